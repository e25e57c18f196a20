"""``run_async`` of a session that a strategy gave one thread: it runs on the session plain onnxruntime would have made.

onnxruntime runs such calls on a session's own pool of threads and refuses them where there is none, which is so with
``intra_op_num_threads`` 1. The other session is made at the first such call; ``run`` stays as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession as PlainSession

if TYPE_CHECKING:
    from ort_metainfer.spec import SessionSpec

__all__ = ["forget_asynchronous", "keep_asynchronous", "lacks_pool"]


def lacks_pool(options: Any, spec: SessionSpec) -> bool:
    """Whether these options have no pool for ``run_async`` though the caller's would."""
    return options.intra_op_num_threads == 1 and spec.properties.get("intra_op_num_threads") != 1


def keep_asynchronous(session: Any, model: str | bytes, spec: SessionSpec) -> None:
    """Have ``session.run_async`` run on the caller's plain session; holds no reference to ``session``.

    Args:
        session: one without a pool of threads.
        model: the caller's model.
        spec: the session the caller asked for.
    """

    def make() -> Any:
        from ort_metainfer.options import open_session
        from ort_metainfer.strategy import Strategy

        unprofiled = {name: value for name, value in spec.properties.items() if name != "enable_profiling"}
        return open_session(model, spec._replace(properties=unprofiled), Strategy())

    session._metainfer_async = _Elsewhere(make)
    if type(session).run_async is PlainSession.run_async:
        session.run_async = session._metainfer_async
    else:  # what a caller's class overrides is called first, and finds this above onnxruntime's own
        kind = type(session)
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
        session.__class__ = type(kind.__name__, (kind, _Asynchronous), {**names, "_metainfer_kind": kind})


def forget_asynchronous(session: Any) -> None:
    """Undo :func:`keep_asynchronous`: another session is about to be made in its place."""
    if getattr(session, "_metainfer_async", None) is None:
        return
    if isinstance(session, _Asynchronous):
        session.__class__ = session._metainfer_kind
    else:
        del session.run_async
    session._metainfer_async = None


class _Elsewhere:
    """Stands in for the method ``run_async``."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._session: Any = None

    def __call__(
        self, output_names: Any, input_feed: Any, callback: Any, user_data: Any, run_options: Any = None
    ) -> Any:
        """As onnxruntime's own."""
        with self._lock:
            if self._session is None:
                self._session = self._make()
        return self._session.run_async(output_names, input_feed, callback, user_data, run_options)


class _Asynchronous(PlainSession):  # type: ignore[misc]  # onnxruntime ships no types
    """Stands in a session's class between the caller's own classes and onnxruntime's."""

    _metainfer_kind: Any
    _metainfer_async: _Elsewhere

    def run_async(
        self, output_names: Any, input_feed: Any, callback: Any, user_data: Any, run_options: Any = None
    ) -> Any:
        """As onnxruntime's own."""
        return self._metainfer_async(output_names, input_feed, callback, user_data, run_options)

    def __copy__(self) -> Any:
        twin = self._metainfer_kind.__new__(self._metainfer_kind)
        twin.__dict__.update(self.__dict__)
        twin.__class__ = type(self)
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        """By the class that can be imported: a subclass that pickles itself travels as that."""
        from ort_metainfer.static_shapes import _blank

        reduced = super().__reduce_ex__(protocol)
        if not isinstance(reduced, tuple) or type(self) not in reduced[1]:
            return reduced
        return (_blank, (self._metainfer_kind,), *reduced[2:])
