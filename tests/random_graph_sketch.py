"""A graph while it is drawn at random: nodes with the shapes their values have, weights, inputs that suit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL

Feed = Callable[[np.random.Generator, int], np.ndarray]
"""Makes an input of a given batch size."""


@dataclass(frozen=True)
class Value:
    """A float value and the shape it has at the nominal batch size; its first axis is the batch."""

    name: str
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)


class Sketch:
    """A graph in the making.

    Args:
        rng: where every choice comes from.
        opset: the ONNX opset its nodes are written in.
        batch: nominal size of every first axis.
        dynamic: ``none``; ``batch``: the first axis is declared by name; ``all``: every axis is.
        tap: how often an intermediate value becomes a graph output as well, or is used by later blocks too.
        override: how often a weight of the main graph is an input with a default.
        outer: the graph this is a branch of; its values can be used here.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        opset: int,
        batch: int = 2,
        dynamic: str = "none",
        tap: float = 0.0,
        override: float = 0.0,
        outer: Sketch | None = None,
    ) -> None:
        self.rng, self.opset, self.batch, self.dynamic, self.tap = rng, opset, batch, dynamic, tap
        self.override, self.outer = override, outer
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.inputs: list[tuple[Any, Feed]] = []
        self.overridable: list[tuple[Any, Feed]] = []
        self.pool: list[Value] = list(outer.pool) if outer else []
        self.used: set[str] = set()
        self.extra: list[Value] = []
        self.typed: list[Any] = []
        self.shared: dict[tuple[int, ...], str] = {}
        self.steps = False
        self._counter: list[int] = outer._counter if outer else [0]

    # choices

    def chance(self, probability: float) -> bool:
        """True that often."""
        return bool(self.rng.random() < probability)

    def choose(self, *options: Any) -> Any:
        """One of the options."""
        return options[int(self.rng.integers(len(options)))]

    def size(self, low: int, high: int) -> int:
        """A number from ``low`` to ``high``, both included."""
        return int(self.rng.integers(low, high + 1))

    def divisor(self, number: int) -> int:
        """One of its divisors."""
        return int(self.choose(*[d for d in range(1, number + 1) if number % d == 0]))

    # pieces

    def fresh(self, stem: str) -> str:
        """A name nobody has."""
        self._counter[0] += 1
        return f"{stem}_{self._counter[0]}"

    def emit(self, op: str, inputs: Sequence[Value | str], shape: Sequence[int], **attributes: Any) -> Value:
        """One node with one float output of this shape."""
        name = self.emit_many(op, inputs, 1, **attributes)[0]
        value = Value(name, tuple(shape))
        if self.outer is None and self.chance(self.tap):
            if self.dynamic == "none" and value.rank in (2, 3, 4) and self.chance(0.5):
                self.pool.append(value)
            else:
                self.extra.append(value)
        return value

    def emit_many(self, op: str, inputs: Sequence[Value | str], count: int, **attributes: Any) -> list[str]:
        """One node with ``count`` outputs, by name."""
        names = [given if isinstance(given, str) else given.name for given in inputs]
        self.used.update(names)
        outputs = [self.fresh(op.lower()) for _ in range(count)]
        label = self.fresh(f"node/{op}") if self.chance(0.8) else ""
        domain = attributes.pop("domain", "")
        self.nodes.append(helper.make_node(op, names, outputs, name=label, domain=domain, **attributes))
        return outputs

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        """A constant: mostly an initialiser, sometimes a Constant node."""
        name = self.fresh("const")
        tensor = numpy_helper.from_array(np.array(array, dtype, order="C"), name)
        if self.chance(0.2):
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.weights.append(tensor)
        return name

    def ints(self, *values: int) -> str:
        """An int64 vector."""
        return self.constant(np.array(values), np.int64)

    def weight(self, *shape: int, fan_in: int = 1) -> str:
        """A weight that keeps magnitudes; now and then one that others have too, or that a caller may override."""
        if self.outer is None and shape in self.shared and self.chance(0.15):
            return self.shared[shape]
        draw = (self.rng.standard_normal(shape) / math.sqrt(max(fan_in, 1))).astype(np.float32)
        if self.outer is not None or not self.chance(self.override):
            self.shared[shape] = self.constant(draw)
            return self.shared[shape]
        name = self.fresh("override")
        self.weights.append(numpy_helper.from_array(draw, name))
        spec = helper.make_tensor_value_info(name, FLOAT, list(shape))
        self.overridable.append((spec, lambda rng, _: (draw * rng.uniform(0.5, 2, shape)).astype(np.float32)))
        return name

    def near_one(self, *shape: int) -> str:
        """Positive numbers around one: scales, variances."""
        return self.constant(self.rng.uniform(0.5, 1.5, shape))

    # values

    def add_input(self, rank: int) -> Value:
        """A new float graph input."""
        body = {2: (self.size(2, 8),), 3: (self.size(2, 6), self.choose(4, 6, 8))}.get(rank)
        if body is None:
            body = (self.choose(1, 2, 3, 4, 6, 8), *(self.size(3, 8) for _ in range(rank - 2)))
        value = Value(self.fresh("x"), (self.batch, *body)[:rank] if rank > 0 else ())
        return self.declare(value, lambda rng, n: rng.standard_normal((n, *value.shape[1:])).astype(np.float32))

    def declare_image(self, channels: int, side: int) -> Value:
        """A new square image as a graph input."""
        shape = (self.batch, channels, side, side)
        value = Value(self.fresh("x"), shape)
        return self.declare(value, lambda rng, n: rng.standard_normal((n, *shape[1:])).astype(np.float32))

    def declare(self, value: Value, feed: Feed, elem_type: int = FLOAT, fixed: bool = False) -> Value:
        """Make ``value`` a graph input of the outermost graph; ``fixed``: its first axis is not the batch."""
        if self.outer is not None:
            return self.outer.declare(value, feed, elem_type, fixed)
        dims: list[int | str] = list(value.shape)
        if self.dynamic != "none" and dims and not fixed:
            dims[0] = "N"
            if self.dynamic == "all":
                dims[1:] = [f"{value.name}_d{axis}" for axis in range(1, len(dims))]
        self.inputs.append((helper.make_tensor_value_info(value.name, elem_type, dims), feed))
        return value

    def pick(self, *ranks: int) -> Value:
        """A value of one of these ranks: mostly a recent one, a new input where there is none."""
        ranks = ranks or (2, 3, 4)
        fitting = [value for value in self.pool if value.rank in ranks]
        if not fitting or (self.outer is None and self.chance(0.1)):
            return self.keep(self.add_input(self.choose(*ranks)))
        return fitting[-1] if self.chance(0.75) else self.choose(*fitting)

    def keep(self, value: Value) -> Value:
        """Offer ``value`` to the blocks that follow."""
        self.pool.append(value)
        return value

    # operators whose form depends on the opset, and the commonest of the rest

    def unary(self, op: str, value: Value, **attributes: Any) -> Value:
        """A node of one input that keeps the shape."""
        return self.emit(op, [value], value.shape, **attributes)

    def binary(self, op: str, left: Value, right: Value | str) -> Value:
        """A node of two inputs with the shape of the first; swapped at times where that changes nothing."""
        pair: list[Value | str] = [left, right]
        if op in ("Add", "Mul") and self.chance(0.3):
            pair.reverse()
        return self.emit(op, pair, left.shape)

    def scalar(self, number: float) -> str:
        """A float constant of shape [] or [1]."""
        return self.constant(np.full(self.choose((), (1,)), number))

    def reduce(self, op: str, value: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
        """ReduceMean and its kin: axes are an attribute or an input, as the opset has it."""
        there = {axis % value.rank for axis in axes}
        shape = [1 if axis in there else size for axis, size in enumerate(value.shape) if keepdims or axis not in there]
        since = 13 if op == "ReduceSum" else 18
        if self.opset >= since:
            return self.emit(op, [value, self.ints(*axes)], shape, keepdims=int(keepdims))
        return self.emit(op, [value], shape, axes=list(axes), keepdims=int(keepdims))

    def axes_node(self, op: str, value: Value, axes: Sequence[int], shape: Sequence[int]) -> Value:
        """Squeeze or Unsqueeze; axes count from the end at times."""
        if self.chance(0.3):
            axes = [axis - max(value.rank, len(shape)) for axis in axes]
        if self.opset >= 13:
            return self.emit(op, [value, self.ints(*axes)], shape)
        return self.emit(op, [value], shape, axes=list(axes))

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Reshape that bakes no batch size in."""
        dims = list(shape)
        dims[0] = (0 if dims[0] == value.shape[0] and self.chance(0.7) else -1) if dims else 0
        return self.emit("Reshape", [value, self.ints(*dims)], shape)

    def transpose(self, value: Value, perm: Sequence[int]) -> Value:
        """Transpose."""
        shape = [value.shape[axis] for axis in perm]
        if list(perm) == list(range(value.rank))[::-1] and self.chance(0.5):
            return self.emit("Transpose", [value], shape)
        return self.emit("Transpose", [value], shape, perm=list(perm))

    def split(self, value: Value, axis: int, sizes: Sequence[int]) -> list[Value]:
        """Split; the axis counts from the end at times."""
        if self.chance(0.3):
            axis = axis % value.rank - value.rank
        given: dict[str, Any] = {"axis": axis}
        names: list[Value | str] = [value]
        if self.opset >= 13:
            names.append(self.ints(*sizes))
        else:
            given["split"] = list(sizes)
        shapes = [[size if a == axis % value.rank else old for a, old in enumerate(value.shape)] for size in sizes]
        outputs = self.emit_many("Split", names, len(sizes), **given)
        return [Value(name, tuple(shape)) for name, shape in zip(outputs, shapes, strict=True)]

    def branch(self) -> Sketch:
        """An empty graph inside this one."""
        return Sketch(self.rng, self.opset, self.batch, self.dynamic, outer=self)

    def graph_of(self, outputs: Sequence[Value], inputs: Sequence[Any] = ()) -> Any:
        """This branch as a graph attribute."""
        assert self.outer is not None
        self.outer.used |= self.used
        self.outer.steps |= self.steps
        infos = [helper.make_tensor_value_info(value.name, FLOAT, [None] * value.rank) for value in outputs]
        return helper.make_graph(self.nodes, self.fresh("branch"), list(inputs), infos, self.weights)
