"""Blocks that move, repeat and rename: transposes, reshapes, concatenations, constant and duplicate parts."""

from __future__ import annotations

import math

import numpy as np

from tests.random_graph_convolutions import convolved
from tests.random_graph_elementwise import activated, per_channel
from tests.random_graph_sketch import INT64, Sketch, Value


def inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes it."""
    return tuple(int(axis) for axis in np.argsort(perm))


def permutation(s: Sketch, rank: int) -> tuple[int, ...]:
    """One that leaves the batch where it is; NHWC and back most of the time."""
    if s.chance(0.6):
        return s.choose((0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1)))
    return (0, *(int(axis) + 1 for axis in s.rng.permutation(rank - 1)))


def transposes(s: Sketch) -> None:
    value = s.pick(3, 4)
    perm = permutation(s, value.rank)
    value = s.transpose(value, perm)
    for _ in range(s.size(0, 2)):
        if s.chance(0.5):
            value = activated(s, value)
        elif s.chance(0.5):
            value = s.binary(s.choose("Add", "Mul"), value, per_channel(s, value, True))
        else:
            value = s.unary("Softmax", value, axis=-1 if s.opset >= 13 else value.rank - 1)
    value = s.transpose(value, inverse(perm) if s.chance(0.75) else permutation(s, value.rank))
    s.keep(value)


def batch_moved(s: Sketch) -> None:
    """Transposes that move the batch and bring it back."""
    value = s.pick(2, 3)
    perm = s.choose((1, 0), (1, 0)) if value.rank == 2 else s.choose((1, 0, 2), (2, 1, 0), (1, 2, 0))
    moved = activated(s, s.transpose(value, perm))
    s.keep(s.transpose(moved, inverse(perm)))


def nhwc_island(s: Sketch) -> None:
    """As TensorFlow's exporters write it: every convolution between two transposes."""
    value = s.pick(4)
    value = s.transpose(value, (0, 2, 3, 1))
    for _ in range(s.size(1, 2)):
        inner = convolved(s, s.transpose(value, (0, 3, 1, 2)))
        value = s.transpose(inner, (0, 2, 3, 1))
        if s.chance(0.6):
            value = s.binary("Add", value, s.weight(value.shape[-1]))
    s.keep(s.transpose(value, (0, 3, 1, 2)))


def reshapes(s: Sketch) -> None:
    value = s.pick(2, 3, 4)
    shape = value.shape
    for _ in range(s.size(1, 3)):
        kind = s.choose("reshape", "flatten", "unsqueeze", "squeeze", "identity")
        if kind == "reshape" and value.rank > 1:
            value = s.reshape(value, (value.shape[0], *_regrouped(s, value.shape[1:])))
        elif kind == "flatten":
            value = s.emit("Flatten", [value], (value.shape[0], math.prod(value.shape[1:])))
        elif kind == "unsqueeze" and value.rank < 4:
            axis = s.size(1, value.rank)
            value = s.axes_node("Unsqueeze", value, [axis], (*value.shape[:axis], 1, *value.shape[axis:]))
        elif kind == "squeeze" and 1 in value.shape[1:] and value.rank > 2:
            axis = value.shape.index(1, 1)
            value = s.axes_node("Squeeze", value, [axis], (*value.shape[:axis], *value.shape[axis + 1 :]))
        else:
            value = s.unary("Identity", value)
    if s.chance(0.5):
        value = s.reshape(value, shape)
    if value.rank == 1:
        value = s.axes_node("Unsqueeze", value, [1], (*value.shape, 1))
    s.keep(value)


def _regrouped(s: Sketch, sizes: tuple[int, ...]) -> tuple[int, ...]:
    total = math.prod(sizes)
    first = s.divisor(total)
    return s.choose((total,), (first, total // first), (total // first, 1, first))


def shape_computed(s: Sketch) -> None:
    """A reshape whose target is computed from the input's shape, as PyTorch exports view()."""
    value = s.pick(3, 4)
    shape = s.emit_many("Shape", [value], 1)[0]
    batch = s.emit_many("Gather", [shape, s.constant(0, np.int64)], 1, axis=0)[0]
    first = s.emit_many("Reshape", [batch, s.ints(1)], 1)[0]
    if s.chance(0.7):
        axes = {"axes": [0]} if s.opset < 13 else {}
        first = s.emit_many("Unsqueeze", [batch, *([] if axes else [s.ints(0)])], 1, **axes)[0]
    target = s.emit_many("Concat", [first, s.ints(-1)], 1, axis=0)[0]
    flat = s.emit("Reshape", [value, target], (value.shape[0], math.prod(value.shape[1:])))
    s.keep(activated(s, flat) if s.chance(0.5) else flat)
    if s.chance(0.6):
        s.keep(s.emit("Reshape", [s.pool[-1], shape], value.shape))


def repeats(s: Sketch) -> None:
    value = s.pick(2, 3, 4)
    axis = s.size(1, value.rank - 1)
    if s.chance(0.5):
        times = [s.size(1, 2) if a == axis else 1 for a in range(value.rank)]
        s.keep(s.emit("Tile", [value, s.ints(*times)], [n * t for n, t in zip(value.shape, times, strict=True)]))
        return
    narrow = s.reduce(s.choose("ReduceMean", "ReduceMax", "ReduceSum"), value, (axis,))
    target = [1 if a == 0 or s.chance(0.3) else size for a, size in enumerate(value.shape)]
    shape = [max(a, b) for a, b in zip(narrow.shape, target, strict=True)]
    wide = s.emit("Expand", [narrow, s.ints(*target)], shape)
    s.keep(s.binary("Sub", value, wide) if s.chance(0.5) else wide)


def concat_split(s: Sketch) -> None:
    value = s.pick(2, 3, 4)
    axis = s.size(1, value.rank - 1)
    count = s.size(1, 3)
    parts = [value if s.chance(0.3) else activated(s, value) for _ in range(count)]
    shape = [n * (count if a == axis else 1) for a, n in enumerate(value.shape)]
    joined = s.emit("Concat", parts, shape, axis=s.choose(axis, axis - value.rank))
    if s.chance(0.4):
        s.keep(joined)
        return
    sizes = [value.shape[axis]] * count
    for place, part in enumerate(s.split(joined, axis, sizes)):
        if place == 0 or s.chance(0.7):
            s.keep(activated(s, part) if s.chance(0.5) else part)


def slices(s: Sketch) -> None:
    value = s.pick(2, 3, 4)
    axis = s.size(1, value.rank - 1)
    size = value.shape[axis]
    start, step = s.size(0, size - 1), s.choose(1, 1, 2)
    if s.chance(0.3):
        index = s.constant(s.rng.integers(0, size, 2), np.int64)
        s.keep(s.emit("Gather", [value, index], [2 if a == axis else n for a, n in enumerate(value.shape)], axis=axis))
        return
    inputs = [value, s.ints(start), s.ints(s.choose(size, 2**31 - 1, 2**63 - 1)), s.ints(axis), s.ints(step)]
    length = math.ceil((size - start) / step)
    s.keep(s.emit("Slice", inputs, [length if a == axis else n for a, n in enumerate(value.shape)]))


def do_nothings(s: Sketch) -> None:
    value = s.pick()
    for _ in range(s.size(1, 3)):
        kind = s.choose("identity", "dropout", "cast", "add zero", "times one", "transpose", "concat", "pad", "slice")
        if kind == "identity":
            value = s.unary("Identity", value)
        elif kind == "dropout":
            given = [value] if s.opset < 12 or s.chance(0.5) else [value, s.constant(0.3), s.constant(False, bool)]
            value = s.emit("Dropout", given, value.shape)
        elif kind == "cast":
            value = s.unary("Cast", value, to=1)
        elif kind == "add zero":
            value = s.binary("Add", value, s.scalar(0.0))
        elif kind == "times one":
            value = s.binary(s.choose("Mul", "Div"), value, s.scalar(1.0))
        elif kind == "transpose":
            value = s.transpose(value, tuple(range(value.rank)))
        elif kind == "concat":
            value = s.emit("Concat", [value], value.shape, axis=0)
        elif kind == "pad":
            value = s.emit("Pad", [value, s.ints(*[0] * 2 * value.rank)], value.shape)
        else:
            inputs = [value, s.ints(0), s.ints(2**63 - 1), s.ints(value.rank - 1)]
            value = s.emit("Slice", inputs, value.shape)
    s.keep(activated(s, value) if s.chance(0.5) else value)


def constants(s: Sketch) -> None:
    """A part that depends on no input."""
    value = s.pick(2, 3, 4)
    width = value.shape[-1]
    kind = s.choose("chain", "transpose", "fill", "range", "concat", "shape of a weight")
    if kind == "chain":
        part = s.binary("Mul", s.binary("Add", Value(s.weight(width), (width,)), s.near_one(width)), s.scalar(0.5))
    elif kind == "transpose":
        part = s.transpose(s.unary("Tanh", Value(s.weight(width, 1), (width, 1))), (1, 0))
    elif kind == "fill":
        fill = s.emit_many("ConstantOfShape", [s.ints(width)], 1)[0]
        part = s.unary("Cos", Value(fill, (width,)))
    elif kind == "range":
        ends = [s.constant(number, np.int64) for number in (0, width, 1)]
        part = s.emit("Cast", [s.emit_many("Range", ends, 1)[0]], (width,), to=1)
    elif kind == "concat":
        ones = [s.near_one(1) for _ in range(width)]
        part = s.emit("Concat", ones, (width,), axis=0)
    else:
        shape = s.emit_many("Shape", [s.weight(width, 3)], 1)[0]
        part = s.emit("Cast", [s.emit_many("Gather", [shape, s.ints(0)], 1)[0]], (1,), to=1)
    s.keep(s.binary(s.choose("Mul", "Add"), value, part.name))


def duplicates(s: Sketch) -> None:
    """The same nodes twice over the same value."""
    value = s.pick()
    weight = per_channel(s, value)
    count = s.size(2, 3)
    twins = [s.unary("Sigmoid", s.binary("Add", value, weight)) for _ in range(count)]
    same = twins[0]
    for twin in twins[1:]:
        same = s.binary(s.choose("Add", "Mul"), same, twin)
    s.keep(same)


def sorted_out(s: Sketch) -> None:
    """Operators whose result has a data-dependent order or length, on a fresh input."""
    value = s.add_input(2)
    if s.chance(0.5):
        count = s.size(1, value.shape[1])
        best, where = s.emit_many("TopK", [value, s.ints(count)], 2, axis=1)
        s.keep(Value(best, (value.shape[0], count)))
        s.typed.append((where, INT64, [None, None]))
    else:
        positive = s.emit_many("Greater", [value, s.constant(0.1)], 1)[0]
        where = s.emit_many("NonZero", [positive], 1)[0]
        s.typed.append((where, INT64, [2, None]))
        s.keep(activated(s, value))


BLOCKS = {
    block.__name__: block
    for block in (
        transposes,
        batch_moved,
        nhwc_island,
        reshapes,
        shape_computed,
        repeats,
        concat_split,
        slices,
        do_nothings,
        constants,
        duplicates,
        sorted_out,
    )
}
