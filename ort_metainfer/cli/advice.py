"""What a person can do about a trial that took its process with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ort_metainfer.strategy import Strategy

__all__ = ["advice"]

ENDED = ("its process died", "its process took", "its process closed")
"""How a trial's failure is told where the process was lost (``trials/child.py``)."""


def advice(trial: Mapping[str, Any]) -> str | None:
    """What to do about a trial whose process died; None where it did not."""
    failure = trial["failure"] or ""
    if not any(words in failure for words in ENDED):
        return None
    return f"your program was not touched, and this strategy is not used; {_how(Strategy.from_dict(trial['strategy']))}"


def _how(strategy: Strategy) -> str:
    """How to keep it from being tried again."""
    if strategy.provider is not None:
        short = strategy.provider.removesuffix("ExecutionProvider")
        return f"to have {short} left out, name the providers you want instead (--providers, or the setting providers)"
    if strategy.transforms:
        names = ", ".join(transform.name for transform in strategy.transforms)
        return f"please report it with the model: rewrite {names}"
    names = ", ".join([*strategy.session_options, *strategy.session_config, *strategy.static_shapes])
    if not names:
        return "plain onnxruntime itself dies on this model: run it without ort_metainfer to see how"
    return f"to have it left out, set {names} in your own SessionOptions: what a program sets stays as it is"
