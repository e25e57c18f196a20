"""The guard of a session whose shapes were fixed: a call with other shapes runs on the general session.

That one is made when first needed. onnxruntime itself refuses a call whose shapes differ, before anything runs, so the
guard costs nothing until then. Where shapes change from call to call, there may be several fixed sessions
(``shape_buckets``), and each call is sent to its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession as PlainSession
from onnxruntime.capi.onnxruntime_pybind11_state import EPFail, InvalidArgument

from ort_metainfer.decision import Decision
from ort_metainfer.declared import Declared
from ort_metainfer.errors import MetainferError
from ort_metainfer.options import open_session
from ort_metainfer.problem import Graph, SessionSpec
from ort_metainfer.shape_buckets import ShapeBuckets, open_inputs, opener
from ort_metainfer.strategy import Strategy

if TYPE_CHECKING:
    from ort_metainfer.strategy_cache.store import StrategyCache

__all__ = ["guard"]

REFUSALS = (InvalidArgument, EPFail, ValueError)
"""Other shapes; the provider's failure, from which only the general session falls back; a value of its memory."""


class _General:
    """The session for all other shapes: the caller's own, made once, when first needed."""

    def __init__(self, open_it: Callable[[], Any]) -> None:
        self._open, self._session, self._lock = open_it, None, threading.Lock()

    def __call__(self) -> Any:
        with self._lock:
            if self._session is None:
                self._session = self._open()
            return self._session

    def shown(self) -> tuple[list[Any], list[Any]]:
        """Its inputs and outputs; where nothing has run on it yet it is made for that, and not kept."""
        with self._lock:
            session = self._session or self._open()
        return session.get_inputs(), session.get_outputs()


class _ShapeGuard(PlainSession):  # type: ignore[misc]  # onnxruntime ships no types
    """Stands in a guarded session's class between the caller's own classes and onnxruntime's.

    ``run`` and ``run_with_ort_values`` try the fixed session first. All else that needs a native session, bindings
    above all, which outlive a call and its shapes, gets the general one.
    """

    _metainfer_kind: Any
    _metainfer_fixed: Any
    _metainfer_general: _General
    _metainfer_declared: Declared

    @property
    def _sess(self) -> Any:
        return self._metainfer_general()._sess

    def get_inputs(self) -> list[Any]:
        """Inputs as plain onnxruntime shows them."""
        return list(self._metainfer_declared.inputs())

    def get_outputs(self) -> list[Any]:
        """Outputs as plain onnxruntime shows them."""
        return list(self._metainfer_declared.outputs())

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        """As onnxruntime's own, for any shapes."""
        try:
            return self._metainfer_fixed.run(output_names, input_feed, run_options)
        except REFUSALS:  # other shapes; or a mistake, which the general session will name
            pass
        except (
            AttributeError
        ):  # a caller's mistake; or ``set_providers`` ended the guard, and somebody held this method
            if not isinstance(self, _ShapeGuard):
                return self.run(output_names, input_feed, run_options)
            raise
        return super().run(output_names, input_feed, run_options)

    def run_with_ort_values(self, output_names: Any, input_dict_ort_values: Any, run_options: Any = None) -> Any:
        """As onnxruntime's own, for any shapes."""
        try:
            return self._metainfer_fixed.run_with_ort_values(output_names, input_dict_ort_values, run_options)
        except REFUSALS:
            pass
        return super().run_with_ort_values(output_names, input_dict_ort_values, run_options)

    def end_profiling(self) -> str:
        """As onnxruntime's own: the fixed session is the one that is profiled."""
        return str(self._metainfer_fixed.end_profiling())

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """As onnxruntime's own; the session is then no longer guarded unless the new one fixes shapes too."""
        _unguard(self)
        self.set_providers(providers, provider_options)

    def __copy__(self) -> Any:
        twin = _blank(self._metainfer_kind)
        twin.__dict__.update(self.__dict__)
        twin.__class__ = type(self)
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        """By the class that can be imported: a subclass that pickles itself travels as that."""
        reduced = super().__reduce_ex__(protocol)
        if not isinstance(reduced, tuple) or type(self) not in reduced[1]:
            return reduced
        # Not copyreg.__newobj__: pickle demands the object's very class of it.
        return (_blank, (self._metainfer_kind,), *reduced[2:])


class _BucketGuard(PlainSession):  # type: ignore[misc]
    """The same for a session with open shapes: some shapes have sessions of their own, all else runs as ever."""

    _metainfer_kind: Any
    _metainfer_buckets: ShapeBuckets

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        """As onnxruntime's own."""
        if not isinstance(self, _BucketGuard):  # ``set_providers`` ended the guard, and somebody held this method
            return self.run(output_names, input_feed, run_options)
        session = self._metainfer_buckets.pick(input_feed)
        if session is not None:
            try:
                return session.run(output_names, input_feed, run_options)
            except REFUSALS:
                pass
        return PlainSession.run(self, output_names, input_feed, run_options)

    def run_with_ort_values(self, output_names: Any, input_dict_ort_values: Any, run_options: Any = None) -> Any:
        """As onnxruntime's own."""
        session = self._metainfer_buckets.pick_values(input_dict_ort_values)
        if session is not None:
            try:
                return session.run_with_ort_values(output_names, input_dict_ort_values, run_options)
            except REFUSALS:
                pass
        return PlainSession.run_with_ort_values(self, output_names, input_dict_ort_values, run_options)

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """As onnxruntime's own; the session then has no others beside it unless the new strategy says so."""
        _unguard(self)
        self.set_providers(providers, provider_options)

    __copy__ = _ShapeGuard.__copy__
    __reduce_ex__ = _ShapeGuard.__reduce_ex__


class _FixedBucketGuard(_BucketGuard, _ShapeGuard):
    """Both: the session itself is one of fixed shapes, and has others of other shapes beside it."""


def _unguard(session: Any) -> None:
    session.__class__ = session._metainfer_kind
    for name in ("_metainfer_fixed", "_metainfer_general", "_metainfer_declared", "_metainfer_buckets"):
        session.__dict__.pop(name, None)


def _blank(kind: Any) -> Any:
    """An object that is yet to be given its state."""
    return kind.__new__(kind)


def guard(session: Any, model: str | bytes, spec: SessionSpec, decision: Decision, buckets: int = 0) -> None:
    """Make ``session``, whose shapes were fixed, take any shapes and show those the model declares.

    Args:
        session: a session as onnxruntime made it; one whose shapes are as open as the model's is left as it is.
        model: the caller's model.
        spec: the session the caller asked for.
        decision: what was decided, with the model's features where they are known.
        buckets: how many sessions of fixed shapes there may be, this one included; 0: this one alone. More need the
            model's features.
    """
    graph = decision.graph
    is_fixed = graph is None or _is_narrower(session, graph)
    below: type[Any] = _ShapeGuard
    strategy = decision.strategy
    if not is_fixed and (strategy.transforms or strategy.provider):
        buckets = 0  # buckets get neither (see ``opener``): the session itself is what was found to be faster
    if graph is not None and open_inputs(graph, spec) and buckets > (1 if is_fixed else 0):
        session._metainfer_buckets = _buckets(session, model, spec, decision, buckets, is_fixed)
        below = _FixedBucketGuard if is_fixed else _BucketGuard
    elif not is_fixed:
        return
    if is_fixed:
        _keep_general(session, model, spec, decision)
    session.__class__ = _guarded(type(session), below)


def _is_narrower(session: Any, graph: Graph) -> bool:
    """Whether the session fixes a dimension that the model leaves open."""
    told = {value.name: value.shape for value in session.get_inputs()}
    return any(_narrows(told[tensor.name], tensor.shape) for tensor in graph.inputs if tensor.name in told)


def _narrows(shape: Any, declared: Any) -> bool:
    if declared is None:
        return bool(shape)
    pairs = zip(shape, declared, strict=False)
    return any(isinstance(size, int) and not isinstance(dim, int) for size, dim in pairs)


def _buckets(
    session: Any, model: str | bytes, spec: SessionSpec, decision: Decision, capacity: int, is_fixed: bool
) -> ShapeBuckets:
    """The buckets of a session, with its own shapes as the first."""
    graph: Any = decision.graph
    buckets = ShapeBuckets(open_inputs(graph, spec), opener(model, spec, decision.strategy, graph), capacity)
    shapes = {value.name: value.shape for value in session.get_inputs() if value.name in buckets.names}
    if is_fixed and all(isinstance(size, int) for shape in shapes.values() for size in shape):
        buckets.add(shapes, _fixed_of(session))
    return buckets


def _keep_general(session: Any, model: str | bytes, spec: SessionSpec, decision: Decision) -> None:
    """Give the session what stands behind it: itself as it is, how the general one is made, what that shows."""
    unprofiled = {name: value for name, value in spec.properties.items() if name != "enable_profiling"}
    general = _General(lambda: open_session(model, spec._replace(properties=unprofiled), Strategy()))
    keyword = getattr(session, "_metainfer_settings", None)
    model_hash = None if decision.key is None else decision.key.model
    declared = Declared(spec, decision.graph, general.shown, lambda: _rows(keyword), model_hash)
    session._metainfer_fixed = _fixed_of(session)
    session._metainfer_general, session._metainfer_declared = general, declared


def _rows(keyword: Any) -> StrategyCache | None:
    """The cache of a session made with these settings; None where settings do not say."""
    from ort_metainfer.adapt import settings_for
    from ort_metainfer.places import cache_directory
    from ort_metainfer.strategy_cache.store import open_cache

    try:
        return open_cache(cache_directory(settings_for(keyword)[0]))
    except MetainferError:  # what is wrong in them the session has said already
        return None


def _guarded(kind: type[Any], below: type[Any]) -> type[Any]:
    """``kind`` with the guard below the caller's own classes, so that what they override is called first."""
    bases = (below,) if kind is PlainSession else (kind, below)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, bases, {**names, "_metainfer_kind": kind})


def _fixed_of(session: Any) -> Any:
    """The session as onnxruntime made it, in an object of onnxruntime's own class; it never falls back by itself."""
    fixed = PlainSession.__new__(PlainSession)
    fixed.__dict__.update(session.__dict__, _enable_fallback=False)
    return fixed
