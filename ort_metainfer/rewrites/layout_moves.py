"""Which operators give the same result on permuted axes, and what of them changes with the axes.

``order`` permutes as Transpose does: axis j of the new layout is axis ``order[j]`` of the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ort_metainfer.rewrites.patterns import attribute, axes_of, constant, constant_size, dims, rank

__all__ = ["Adapted", "Move", "is_local", "move_of", "permuted"]

UNARY = frozenset(
    [
        "Abs",
        "Acos",
        "Acosh",
        "Asin",
        "Asinh",
        "Atan",
        "Atanh",
        "Cast",
        "Ceil",
        "Celu",
        "Clip",
        "Cos",
        "Cosh",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "IsInf",
        "IsNaN",
        "LeakyRelu",
        "Log",
        "Mish",
        "Neg",
        "Not",
        "Reciprocal",
        "Relu",
        "Round",
        "Selu",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Tan",
        "Tanh",
        "ThresholdedRelu",
    ]
)
BROADCAST = frozenset(
    [
        "Add",
        "And",
        "Div",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
        "Max",
        "Mean",
        "Min",
        "Mod",
        "Mul",
        "Or",
        "PRelu",
        "Pow",
        "Sub",
        "Sum",
        "Where",
        "Xor",
    ]
)
ONE_AXIS = {"Concat": None, "Split": 0, "Softmax": -1, "LogSoftmax": -1, "Hardmax": -1, "ArgMax": 0, "ArgMin": 0}
"""Operators with an attribute ``axis`` -> its default."""

FLATTENING_BEFORE_13 = ("Softmax", "LogSoftmax", "Hardmax")

FIRST_TYPED_QUANTISER = 21
"""From here on onnxruntime's optimiser, which quantises a Transpose behind a DequantizeLinear, may write a
QuantizeLinear whose ``output_dtype`` and zero point disagree, and refuse the model (seen with 1.32)."""

QUANTISED = {"QLinearAdd": (0, 3), "QLinearMul": (0, 3), "QLinearSigmoid": (0,), "QLinearLeakyRelu": (0,)}
"""Operators of com.microsoft -> the inputs that are tensors; the others are scales and zero points."""


@dataclass(frozen=True)
class Adapted:
    """What changes of a node: inputs by place, attributes by name."""

    inputs: Mapping[int, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)


Adapt = Callable[[Any, Sequence[int], Any], Adapted]
"""From (node, order, builder)."""


@dataclass(frozen=True)
class Move:
    """How a node is moved to another layout.

    Attributes:
        data: the inputs that are permuted.
        adapt: what else changes.
    """

    data: tuple[int, ...]
    adapt: Adapt


def is_local(value: Any, graph: Any) -> bool:
    """Whether a value is of this graph, not of one around it."""
    producer = value.producer()
    return bool((producer.graph if producer is not None else value.graph) is graph)


def permuted(numbers: Sequence[Any], order: Sequence[int]) -> list[Any]:
    """``numbers``, one an axis, in the new layout."""
    return [numbers[axis] for axis in order]


def move_of(node: Any, ranks: int, opset: int) -> Move | None:
    """How a node of this rank is moved; None where it is not."""
    rule = _quantised_rule(node) if node.domain == "com.microsoft" else _rule(node, opset) if not node.domain else None
    if rule is None or any(rank(output) != ranks for output in node.outputs):
        return None
    data, adapt = rule
    fits = all(node.inputs[place] is not None and rank(node.inputs[place]) == ranks for place in data)
    if not data or not fits or not all(is_local(node.inputs[place], node.graph) for place in data):
        return None
    return Move(data, adapt)


def _rule(node: Any, opset: int) -> tuple[tuple[int, ...], Adapt] | None:
    kind = node.op_type
    if kind in UNARY:
        return (0,), _nothing
    if kind in BROADCAST:
        return _broadcast_rule(node, range(len(node.inputs)))
    if kind in ONE_AXIS:
        return _axis_rule(node, opset)
    if kind.startswith("Reduce"):
        return _reduction_rule(node)
    if kind in ("QuantizeLinear", "DequantizeLinear"):
        return _scale_rule(node) if opset < FIRST_TYPED_QUANTISER else None
    return {"Pad": _pad_rule, "Slice": _slice_rule}.get(kind, lambda _node, _opset: None)(node, opset)


def _nothing(node: Any, order: Sequence[int], builder: Any) -> Adapted:
    return Adapted()


def _broadcast_rule(node: Any, places: Sequence[int]) -> tuple[tuple[int, ...], Adapt] | None:
    """Tensors of the full rank are permuted, constants too; anything else that has axes keeps the node where it is."""
    given = [place for place in places if node.inputs[place] is not None]
    data = tuple(place for place in given if constant_size(node.inputs[place]) is None and rank(node.inputs[place]))
    fixed = tuple(place for place in given if (constant_size(node.inputs[place]) or 0) > 1)
    unknown = [place for place in given if rank(node.inputs[place]) is None or constant_size(node.inputs[place]) == 0]
    if unknown or not data:
        return None

    def adapt(node: Any, order: Sequence[int], builder: Any) -> Adapted:
        arrays = {place: constant(node.inputs[place]) for place in fixed}
        return Adapted({place: builder.constant(_spread(array, order)) for place, array in arrays.items()})

    return data, adapt


def _spread(array: Any, order: Sequence[int]) -> np.ndarray:
    full = array.reshape((1,) * (len(order) - array.ndim) + array.shape)
    return np.ascontiguousarray(np.transpose(full, order))


def _axis_rule(node: Any, opset: int) -> tuple[tuple[int, ...], Adapt] | None:
    default = ONE_AXIS[node.op_type]
    if node.op_type in FLATTENING_BEFORE_13 and opset < 13:
        return None
    if node.op_type.startswith("Arg") and attribute(node, "keepdims", 1) != 1:
        return None
    axis = attribute(node, "axis", default)
    if axis is None:
        return None
    data = tuple(range(len(node.inputs))) if node.op_type == "Concat" else (0,)
    if any(constant_size(node.inputs[place]) is not None for place in data):
        return None

    def adapt(node: Any, order: Sequence[int], builder: Any) -> Adapted:
        return Adapted(attributes={"axis": _moved(axis, order)})

    return data, adapt


def _moved(axis: int, order: Sequence[int]) -> int:
    return list(order).index(axis % len(order))


def _reduction_rule(node: Any) -> tuple[tuple[int, ...], Adapt] | None:
    axes = axes_of(node, [])
    if attribute(node, "keepdims", 1) != 1 or axes is None:
        return None
    as_input = len(node.inputs) > 1 and node.inputs[1] is not None

    def adapt(node: Any, order: Sequence[int], builder: Any) -> Adapted:
        if not axes:
            return Adapted()
        moved = [_moved(axis, order) for axis in axes]
        if as_input:
            return Adapted({1: builder.constant(np.asarray(moved, np.int64))})
        return Adapted(attributes={"axes": moved})

    return (0,), adapt


def _scale_rule(node: Any) -> tuple[tuple[int, ...], Adapt] | None:
    sizes = dims(node.inputs[1])
    if sizes is None or len(sizes) > 1:
        return None
    if constant_size(node.inputs[0]) is not None:
        return None
    axis = attribute(node, "axis", 1)

    def adapt(node: Any, order: Sequence[int], builder: Any) -> Adapted:
        return Adapted(attributes={"axis": _moved(axis, order)} if sizes and sizes != (1,) else {})

    return (0,), adapt


def _pad_rule(node: Any, opset: int) -> tuple[tuple[int, ...], Adapt] | None:
    if opset < 11:
        pads: Any = attribute(node, "pads")
    else:
        pads = constant(node.inputs[1])
    axes = constant(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else None
    if pads is None or (len(node.inputs) > 3 and node.inputs[3] is not None and axes is None):
        return None

    def adapt(node: Any, order: Sequence[int], builder: Any) -> Adapted:
        if axes is not None:
            return Adapted({3: builder.constant(np.asarray([_moved(int(a), order) for a in axes], np.int64))})
        half = len(pads) // 2
        moved = [int(size) for size in (*permuted(pads[:half], order), *permuted(pads[half:], order))]
        if opset < 11:
            return Adapted(attributes={"pads": moved})
        return Adapted({1: builder.constant(np.asarray(moved, np.int64))})

    return (0,), adapt


def _slice_rule(node: Any, opset: int) -> tuple[tuple[int, ...], Adapt] | None:
    if opset < 10:
        axes: Any = attribute(node, "axes")
    else:
        axes = constant(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else None
    if axes is None:
        return None

    def adapt(node: Any, order: Sequence[int], builder: Any) -> Adapted:
        moved = [_moved(int(axis), order) for axis in axes]
        if opset < 10:
            return Adapted(attributes={"axes": moved})
        return Adapted({3: builder.constant(np.asarray(moved, axes.dtype))})

    return (0,), adapt


def _quantised_rule(node: Any) -> tuple[tuple[int, ...], Adapt] | None:
    if node.op_type in QUANTISED:
        return _broadcast_rule(node, QUANTISED[node.op_type])
    if node.op_type != "QLinearConcat":
        return None
    data = tuple(range(2, len(node.inputs), 3))
    axis = attribute(node, "axis")
    if axis is None or any(constant_size(node.inputs[place]) is not None for place in data):
        return None

    def adapt(node: Any, order: Sequence[int], builder: Any) -> Adapted:
        return Adapted(attributes={"axis": _moved(axis, order)})

    return data, adapt
