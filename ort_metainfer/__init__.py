"""A drop-in for onnxruntime: every public name of onnxruntime, with InferenceSession fitted to the hardware at hand.

::

    import ort_metainfer as ort
    session = ort.InferenceSession("model.onnx")
    outputs = session.run(None, feeds)
    print(session.adaptation.reason)
"""

from __future__ import annotations

from importlib import import_module as _import_module
from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

import onnxruntime as _onnxruntime

# A checkout keeps providers/ and strategy_cache/ beside this folder; an installed copy holds them inside it.
_here = _Path(__file__).resolve().parent
if not (_here / "providers").is_dir():
    __path__.append(str(_here.parent))

from ort_metainfer.session import InferenceSession, patch, unpatch  # noqa: E402 (the path above comes first)

if TYPE_CHECKING:
    from ort_metainfer.adapt import tune
    from ort_metainfer.decision import Decision
    from ort_metainfer.errors import (
        CacheError,
        InputsError,
        LearningError,
        MetainferError,
        ModelError,
        NotRewritten,
        ProviderError,
        RecordError,
        RewriteError,
        SettingsError,
        StrategyError,
        TrialCrashed,
        TrialError,
        TrialTimeout,
    )
    from ort_metainfer.settings import Settings
    from ort_metainfer.strategy import Strategy

__all__ = [  # ours; onnxruntime's own names are added below, for ``from ort_metainfer import *``
    "CacheError",
    "Decision",
    "InferenceSession",
    "InputsError",
    "LearningError",
    "MetainferError",
    "ModelError",
    "NotRewritten",
    "ProviderError",
    "RecordError",
    "RewriteError",
    "Settings",
    "SettingsError",
    "Strategy",
    "StrategyError",
    "TrialCrashed",
    "TrialError",
    "TrialTimeout",
    "patch",
    "tune",
    "unpatch",
]

_OURS = frozenset(__all__)
__all__ += sorted({name for name in dir(_onnxruntime) if not name.startswith("_")} - _OURS)

_HOME = {"Decision": "decision", "Settings": "settings", "Strategy": "strategy", "tune": "adapt"}


def __getattr__(name: str) -> Any:
    if name in _OURS:
        return getattr(_import_module(f"ort_metainfer.{_HOME.get(name, 'errors')}"), name)
    try:
        return getattr(_onnxruntime, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r} (nor has onnxruntime)") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *dir(_onnxruntime)})
