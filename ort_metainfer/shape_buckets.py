"""Several sessions of fixed shapes beside the general one, and which of them a call runs on.

A shape that is seen often gets a session of its own, made in a thread of its own: no call waits for it. There are few:
each holds the model's weights once more and has threads of its own.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ort_metainfer.problem import Graph, SessionSpec, TensorSpec
from ort_metainfer.strategy import Strategy

__all__ = ["ShapeBuckets", "open_inputs", "opener", "sizes_by_name"]

log = logging.getLogger("ort_metainfer")

Key = tuple[Any, ...]
Shapes = dict[str, tuple[int, ...]]
Open = Callable[[Shapes], Any]
Start = Callable[[Callable[[], None]], None]

MOST_OBSERVED = 256
"""Different shapes that are counted; beyond them counting begins anew."""


def _in_a_thread(work: Callable[[], None]) -> None:
    # No daemon: a process must not end while onnxruntime makes a session.
    threading.Thread(target=work, name="ort_metainfer-buckets", daemon=False).start()


class ShapeBuckets:
    """The sessions there are, by the shapes of the inputs that have open dimensions.

    Args:
        names: those inputs.
        open_fixed: makes the session for shapes; must not refer to what holds the buckets.
        capacity: sessions at most.
        after: calls with a shape until it gets one.
        start: runs the making of a session, elsewhere.
    """

    def __init__(
        self, names: Sequence[str], open_fixed: Open, capacity: int = 4, after: int = 3, start: Start = _in_a_thread
    ) -> None:
        if capacity < 1 or after < 1 or not names:
            raise ValueError(f"capacity and after must be positive and names given, got {capacity}, {after}, {names}")
        self.names, self.capacity, self.after = tuple(names), capacity, after
        self._only = self.names[0] if len(self.names) == 1 else None
        self._open, self._start = open_fixed, start
        self._ready: dict[Key, Any] = {}
        self._lock = threading.Lock()
        self._seen: dict[Key, int] = {}
        self._taken: set[Key] = set()  # ready, being made, or refused: not counted any more
        self._is_watching = True

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def shapes(self) -> list[Shapes]:
        """What there are sessions for, in the order they were made."""
        return [self._shapes(key) for key in self._ready]

    def pick(self, feeds: Mapping[str, Any]) -> Any:
        """The session for these arrays; None: the general one. Never raises, never waits for a session."""
        try:
            key = feeds[self._only].shape if self._only else tuple([feeds[name].shape for name in self.names])
            found = self._ready.get(key)
        except (KeyError, AttributeError, TypeError):  # a list, a missing input: onnxruntime will have its say
            return None
        if found is None and self._is_watching:
            self._observe(key)
        return found

    def pick_values(self, values: Mapping[str, Any]) -> Any:
        """The same for OrtValues."""
        try:
            shapes = tuple([tuple(values[name].shape()) for name in self.names])
        except (KeyError, AttributeError, TypeError, RuntimeError):  # RuntimeError: no tensor
            return None
        key = shapes[0] if self._only else shapes
        found = self._ready.get(key)
        if found is None and self._is_watching:
            self._observe(key)
        return found

    def add(self, shapes: Mapping[str, Sequence[int]], session: Any) -> None:
        """Take a session that is there already; it counts as one of ``capacity``."""
        key = self._key({name: tuple(shapes[name]) for name in self.names})
        with self._lock:
            self._taken.add(key)
        self._settle(key, session)

    def _key(self, shapes: Shapes) -> Key:
        return shapes[self._only] if self._only else tuple(shapes[name] for name in self.names)

    def _shapes(self, key: Key) -> Shapes:
        return dict(zip(self.names, (key,) if self._only else key, strict=True))

    def _observe(self, key: Key) -> None:
        shapes = (key,) if self._only else key
        if not all(type(shape) is tuple and all(type(size) is int and size > 0 for size in shape) for shape in shapes):
            return
        with self._lock:
            if key in self._taken or len(self._taken) >= self.capacity:
                self._is_watching = len(self._taken) < self.capacity
                return
            if len(self._seen) >= MOST_OBSERVED and key not in self._seen:
                self._seen.clear()
            count = self._seen[key] = self._seen.get(key, 0) + 1
            if count < self.after:
                return
            self._taken.add(key)
            del self._seen[key]
        self._start(_Making(weakref.ref(self), self._open, key, self._shapes(key)))

    def _settle(self, key: Key, session: Any) -> None:
        """A session was made (None: it cannot be, and the shape stays with the general one for good)."""
        with self._lock:
            if session is not None:
                self._ready = {**self._ready, key: session}  # replaced, not changed: others read it without the lock


class _Making:
    """Makes one session; keeps the buckets, and thereby their sessions, alive only to hand it over."""

    def __init__(self, buckets: weakref.ref[ShapeBuckets], open_fixed: Open, key: Key, shapes: Shapes) -> None:
        self._buckets, self._open, self._key, self._shapes = buckets, open_fixed, key, shapes

    def __call__(self) -> None:
        session = None
        try:
            session = self._open(self._shapes)
        except Exception as error:  # noqa: BLE001 (a provider may raise anything; the general session does)
            log.info("no session for the shapes %s: %s: %s", self._shapes, type(error).__name__, error)
        buckets = self._buckets()
        if buckets is not None:
            buckets._settle(self._key, session)


def open_inputs(graph: Graph, spec: SessionSpec) -> tuple[str, ...]:
    """Inputs whose shapes may differ from call to call."""
    return tuple(tensor.name for tensor in graph.inputs if _open_dims(tensor, spec))


def _open_dims(tensor: TensorSpec, spec: SessionSpec) -> list[Any]:
    pinned = spec.free_dimensions
    return [dim for dim in tensor.shape or (None,) if not isinstance(dim, int) and dim not in pinned]


def sizes_by_name(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> dict[str, int] | None:
    """Symbolic dimension -> size that makes the inputs have ``shapes``; None where names do not say it all.

    They do not where a dimension has no name, or one name stands for two sizes.
    """
    sizes: dict[str, int] = {}
    for tensor in graph.inputs:
        if tensor.name not in shapes:
            continue
        shape = shapes[tensor.name]
        if tensor.shape is None or len(tensor.shape) != len(shape):
            return None
        for dim, size in zip(tensor.shape, shape, strict=True):
            if dim is None or (isinstance(dim, int) and dim != size):
                return None
            if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
                return None
    return sizes


def opener(model: str | bytes, spec: SessionSpec, strategy: Strategy, graph: Graph) -> Open:
    """Makes sessions of ``model`` for shapes that no trial has seen.

    They get the strategy's session options but neither its provider nor its rewrites: those were found right and
    accurate for the shapes of the trial only. By the names of the dimensions where these suffice; else the model is
    rewritten, which costs the time to read and write it.
    """
    from dataclasses import replace

    plain = replace(strategy, transforms=(), provider=None, device=None, provider_options={}, static_shapes={})

    def open_fixed(shapes: Shapes) -> Any:
        from ort_metainfer.options import open_session

        unprofiled = {name: value for name, value in spec.properties.items() if name != "enable_profiling"}
        asked = spec._replace(properties=unprofiled)
        sizes = sizes_by_name(graph, shapes)
        if sizes is not None:
            sizes = {name: size for name, size in sizes.items() if name not in spec.free_dimensions}
            return open_session(model, asked, replace(plain, static_shapes=sizes))
        return _open_rewritten(model, asked, plain, shapes)

    return open_fixed


def _open_rewritten(model: str | bytes, spec: SessionSpec, strategy: Strategy, shapes: Shapes) -> Any:
    from ort_metainfer.options import open_session
    from ort_metainfer.rewrites.fixed_shapes import fix_shapes
    from ort_metainfer.scratch import scratch_folder

    with scratch_folder() as folder:
        source = Path(model) if isinstance(model, str) else folder / "model.onnx"
        if isinstance(model, bytes):
            source.write_bytes(model)
        fixed = fix_shapes(source, shapes, folder / "fixed.onnx")
        return open_session(str(fixed.path), spec, strategy)
