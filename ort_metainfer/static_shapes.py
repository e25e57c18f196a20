"""The guard of a session whose shapes were fixed: a call with other shapes runs on the general session, made when
first needed.

onnxruntime itself refuses a call whose shapes differ, before anything runs, so the guard costs nothing until then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from ort_metainfer.decision import Decision
from ort_metainfer.options import open_session
from ort_metainfer.problem import SessionSpec, TensorSpec
from ort_metainfer.strategy import Strategy

__all__ = ["DeclaredArg", "guard"]

_ORT_TYPE = {
    "float32": "float",
    "float64": "double",
}


@dataclass(frozen=True)
class DeclaredArg:
    """An input or output as the model declares it, with the attributes of onnxruntime.NodeArg."""

    name: str
    type: str
    shape: list[int | str | None]

    @classmethod
    def of(cls, spec: TensorSpec) -> DeclaredArg:
        """``tensor(float)`` and the like from a described tensor."""
        kind = spec.dtype if "(" in spec.dtype else f"tensor({_ORT_TYPE.get(spec.dtype, spec.dtype)})"
        return cls(spec.name, kind, list(spec.shape or ()))


class _General:
    """The session for all other shapes: the caller's own, made once, when first needed."""

    def __init__(self, open_it: Callable[[], Any]) -> None:
        self._open, self._session, self._lock = open_it, None, threading.Lock()

    def __call__(self) -> Any:
        with self._lock:
            if self._session is None:
                self._session = self._open()
            return self._session


class _ShapeGuard:
    """Mixed into the class of a guarded session."""

    _metainfer_general: _General
    _metainfer_declared: tuple[list[DeclaredArg], list[DeclaredArg]]

    def get_inputs(self) -> list[Any]:
        """Inputs as the model declares them."""
        return list(self._metainfer_declared[0])

    def get_outputs(self) -> list[Any]:
        """Outputs as the model declares them."""
        return list(self._metainfer_declared[1])

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        """As onnxruntime's own, for any shapes."""
        try:
            return super().run(output_names, input_feed, run_options)  # type: ignore[misc]
        except InvalidArgument:  # other shapes; or a mistake, which the general session will name
            return self._metainfer_general().run(output_names, input_feed, run_options)

    def run_with_ort_values(self, output_names: Any, input_dict_ort_values: Any, run_options: Any = None) -> Any:
        """As onnxruntime's own, for any shapes."""
        try:
            return super().run_with_ort_values(output_names, input_dict_ort_values, run_options)  # type: ignore[misc]
        except InvalidArgument:
            return self._metainfer_general().run_with_ort_values(output_names, input_dict_ort_values, run_options)

    def run_async(
        self, output_names: Any, input_feed: Any, callback: Any, user_data: Any, run_options: Any = None
    ) -> None:
        """As onnxruntime's own, for any shapes: on the general session, since a refusal would come too late to
        catch."""
        self._metainfer_general().run_async(output_names, input_feed, callback, user_data, run_options)

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """As onnxruntime's own; the session is then no longer guarded unless the new one fixes shapes too."""
        self.__class__ = type(self).__mro__[2]  # type: ignore[assignment]  # what it was before guard()
        self.set_providers(providers, provider_options)


def guard(session: Any, model: str | bytes, spec: SessionSpec, decision: Decision) -> None:
    """Make ``session``, whose symbolic dimensions were fixed, take any shapes, and show the shapes the model
    declares."""
    session._metainfer_general = _General(lambda: open_session(model, spec, Strategy()))
    graph = decision.graph
    if graph is None:
        general = session._metainfer_general()
        session._metainfer_declared = (general.get_inputs(), general.get_outputs())
    else:
        declared = tuple([DeclaredArg.of(tensor) for tensor in tensors] for tensors in (graph.inputs, graph.outputs))
        session._metainfer_declared = declared
    kind = type(session)
    if not issubclass(kind, _ShapeGuard):
        session.__class__ = type(kind.__name__, (_ShapeGuard, kind), {"__module__": kind.__module__})
