"""Watching the runs of a session for inputs worth keeping, where the setting ``capture`` asks for it.

A session that is watched gets another class, whose ``run`` looks at the inputs after a run that succeeded; when enough
was seen it gets its old class back. Without the setting nothing of this is imported, and ``run`` is onnxruntime's own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession as PlainSession

from ort_metainfer.errors import InputsError
from ort_metainfer.model.capture import Reservoir

if TYPE_CHECKING:
    from ort_metainfer.settings import Settings

__all__ = ["Watch", "begin", "watch"]

log = logging.getLogger("ort_metainfer")

RUNS_WHEN_FULL = 64
RUNS_AT_MOST = 1024
"""Runs of one session that are looked at, per input that may be kept: with a full reservoir, and in any case."""


class Watch:
    """What looks at the inputs of one session. Holds no reference to the session nor to what it is shown.

    Args:
        reservoir: where to keep them.
        label: what to call the model.
    """

    def __init__(self, reservoir: Reservoir, label: str) -> None:
        self.reservoir, self.label, self.runs = reservoir, label, 0
        self._lock = threading.Lock()

    def see(self, feed: Any) -> bool:
        """Look at the inputs of a run that succeeded; never raises.

        Returns:
            Whether to go on looking.
        """
        if not self._lock.acquire(blocking=False):
            return True  # another thread's run is being looked at: this one need not wait
        try:
            self.runs += 1
            arrays = _arrays(feed)
            if arrays is not None:
                self.reservoir.offer(arrays, self.label)
            return self.runs < RUNS_AT_MOST * self.reservoir.count and not self._has_enough()
        except InputsError:  # a value that numpy cannot store: this input is not kept
            return True
        except Exception as error:  # noqa: BLE001 (a run that succeeded must not fail for our sake)
            from ort_metainfer.session import warn_once

            warn_once(f"inputs of {self.label} are not captured any more: {type(error).__name__}: {error}")
            return False
        finally:
            self._lock.release()

    def _has_enough(self) -> bool:
        return self.runs >= RUNS_WHEN_FULL * self.reservoir.count and self.reservoir.is_full


def _arrays(feed: Any) -> dict[str, Any] | None:
    """A run's inputs where all are arrays that can be stored; None for OrtValues, sequences and the like."""
    if not isinstance(feed, Mapping) or not feed:
        return None
    arrays = {}
    for name, value in feed.items():
        array = _array(value)
        if array is None or array.dtype.kind not in "biufUSO":
            return None
        if array.dtype.kind in "USO":
            if not all(isinstance(item, str) for item in array.flat):
                return None
            array = array.astype(object)
        arrays[str(name)] = array
    return arrays


def _array(value: Any) -> Any:
    """An array, or what onnxruntime makes one of by itself: numbers and strings, and lists of them."""
    if isinstance(value, np.ndarray):
        return value
    is_sequence = isinstance(value, list) and any(isinstance(item, np.ndarray) for item in value)
    if is_sequence or not isinstance(value, int | float | str | np.generic | list):
        return None
    try:
        return np.asarray(value)
    except (ValueError, TypeError):  # a ragged list
        return None


class _Watched(PlainSession):  # type: ignore[misc]  # onnxruntime ships no types
    """Stands in a watched session's class right below the caller's own classes."""

    _metainfer_before: Any

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """As onnxruntime's own; the new session is watched anew."""
        _unwatch(self)
        self.set_providers(providers, provider_options)

    def __copy__(self) -> Any:
        """A copy is not watched."""
        kind = self._metainfer_before
        twin = kind.__new__(kind)
        twin.__dict__.update(self.__dict__)
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        """By the class that can be imported: a subclass that pickles itself travels as that."""
        from ort_metainfer.static_shapes import _blank

        reduced = super().__reduce_ex__(protocol)
        if not isinstance(reduced, tuple) or type(self) not in reduced[1]:
            return reduced
        return (_blank, (self._metainfer_kind,), *reduced[2:])


def _unwatch(session: Any) -> None:
    kind = type(session)
    if "_metainfer_before" in vars(kind):  # else another thread's run was faster
        session.__class__ = kind._metainfer_before


def _watched(what: Watch, below: type[Any]) -> type[Any]:
    """A class whose ``run`` looks at inputs after that of ``below``.

    It asks nothing of the session's class: another thread's run, or this one, may have given the session its old class
    back meanwhile, and whoever holds ``session.run`` goes on calling this.
    """

    def run(self: Any, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        """As onnxruntime's own."""
        outputs = below.run(self, output_names, input_feed, run_options)
        if not what.see(input_feed):
            _unwatch(self)
        return outputs

    return type(_Watched.__name__, (_Watched,), {"__module__": __name__, "run": run})


def watch(session: Any, what: Watch) -> None:
    """Have the runs of ``session`` looked at."""
    before = type(session)
    is_guarded = "_metainfer_kind" in vars(before)  # by ``static_shapes``: then its guard stays below
    kind = before._metainfer_kind if is_guarded else before
    own = () if kind is PlainSession else (kind,)
    below = tuple(base for base in before.__bases__ if base is not kind) if is_guarded else ()
    names = {"__module__": before.__module__, "__qualname__": before.__qualname__, "__doc__": before.__doc__}
    watched = _watched(what, below[0] if below else PlainSession)
    told = {"_metainfer_kind": kind, "_metainfer_before": before}
    session.__class__ = type(before.__name__, (*own, watched, *below), {**names, **told})


def begin(session: Any, keyword: Settings | None) -> None:
    """Watch a session that was just made, where the settings say so; never raises."""
    from ort_metainfer.session import warn_once

    try:
        what = _watch_for(session, keyword)
        if what is not None:
            watch(session, what)
    except Exception as error:  # noqa: BLE001 (the session is made: it must not fail for our sake)
        warn_once(f"inputs are not captured: {type(error).__name__}: {error}")


def _watch_for(session: Any, keyword: Settings | None) -> Watch | None:
    from ort_metainfer.places import cache_directory
    from ort_metainfer.settings import resolve

    settings, _ = resolve(keyword)  # what is wrong in them the session has said already
    if not settings.capture or settings.mode == "off":
        return None
    directory = cache_directory(settings)
    model_hash = _hash_of(session, directory)
    if model_hash is None:
        return None
    path = session._model_path
    label = str(Path(path).absolute()) if isinstance(path, str) else f"a model of {len(session._model_bytes)} bytes"
    reservoir = Reservoir(directory, model_hash, settings.capture)
    return None if reservoir.is_full else Watch(reservoir, label)


def _hash_of(session: Any, directory: Path) -> str | None:
    """The model's hash; None for what is never adapted."""
    start = getattr(session, "_metainfer_start", None)
    if start is not None:
        return str(start.model_hash)
    key = getattr(getattr(session, "adaptation", None), "key", None)
    if key is not None:
        return str(key.model)
    from ort_metainfer.adapt import not_onnx
    from ort_metainfer.model.fingerprint import fingerprint
    from ort_metainfer.strategy_cache.store import open_cache

    source = session._model_path if session._model_path is not None else session._model_bytes
    return None if not_onnx(source) else fingerprint(source, open_cache(directory)).hash
