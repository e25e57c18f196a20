"""Powers, divisions and repetitions spelled in cheaper or more widely supported operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ort_metainfer.rewrites.base import Parameter, Rewrite
from ort_metainfer.rewrites.building import Builder
from ort_metainfer.rewrites.node_rewrite import OperatorRewrite, Plan, Surroundings
from ort_metainfer.rewrites.patterns import FLOATS, constant, dims, dtype, produced, rank, scalar

__all__ = ["REWRITES", "DivToMul", "PowToMul", "RemoveExpand", "TileToConcat", "TileToExpand"]


class PowToMul(OperatorRewrite):
    """Pow with a constant exponent of 1, 2, 3, 4, 0.5, -0.5, -1 or -2, by Mul, Sqrt and Reciprocal.

    Two values differ that ONNX leaves to the library: ``pow(-inf, 0.5)`` is inf where Sqrt gives NaN, and
    ``pow(-0, 0.5)`` is 0 where Sqrt gives -0.
    """

    name = "pow-to-mul"
    operators = ("Pow",)
    evidence = "never measured to pay: onnxruntime's CPU kernel squares and cubes without calling pow"

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """Pow by a number that nobody can replace."""
        base, exponent = node.inputs
        if dtype(base) not in FLOATS:
            return f"a power of {dtype(base) or 'unknown type'} is left alone"
        power = scalar(exponent, beside=base)
        if power is None:
            return "the exponent is not one constant number"
        if power not in (1, 2, 3, 4, 0.5, -0.5, -1, -2):
            return f"the exponent {power:g} has no cheaper spelling"
        return Plan(node, lambda make: _power(make, base, power))


def _power(make: Builder, base: Any, power: float) -> Any:
    if power < 0:
        return make("Reciprocal", _power(make, base, -power))
    if power == 1:
        return base
    if power == 0.5:
        return make("Sqrt", base)
    square = make("Mul", base, base)
    if power == 2:
        return square
    return make("Mul", square, base if power == 3 else square)


class DivToMul(OperatorRewrite):
    """Division by a constant as multiplication by its reciprocal: at most one rounding off, exact for powers of two."""

    name = "div-to-mul"
    operators = ("Div",)
    evidence = (
        "never measured to pay: 0.82-0.91 on three models, since onnxruntime no longer knows their GELU by its Div; "
        "1.04 on a classifier of 0.5 ms (two cores of an AMD EPYC)"
    )

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """Div whose divisor nobody can replace."""
        dividend, divisor = node.inputs
        if dtype(dividend) not in FLOATS:
            return f"a quotient of {dtype(dividend) or 'unknown type'} is left alone"
        array = constant(divisor)
        if array is None:
            return "the divisor is not constant"
        with np.errstate(divide="ignore", over="ignore"):
            inverse = (1.0 / array.astype(np.float64)).astype(array.dtype)
        if not _is_normal(array) or not _is_normal(inverse):
            return "the divisor holds zeros, or numbers whose reciprocal is not exact to rounding"
        return Plan(node, lambda make: make("Mul", dividend, inverse))


def _is_normal(array: np.ndarray) -> bool:
    return bool(np.isfinite(array).all() and (np.abs(array) >= np.finfo(array.dtype).tiny).all())


_BROADCASTING = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Where", "Equal", "Less", "Greater", "And", "Or")


class RemoveExpand(OperatorRewrite):
    """Expand or Tile that does nothing, or nothing that the broadcasting of the operators behind it would not do."""

    name = "remove-expand"
    promise = "exact"
    operators = ("Expand", "Tile")

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """Expand or Tile with known sizes, or by the shape of the operand it meets."""
        source, grown = node.inputs[0], _grown(node)
        before = dims(source)
        if before is None:
            return "the shape of its input is not known"
        if _does_nothing(node, before) or (grown == before and None not in before):
            return Plan(node, lambda make: source)
        if node.outputs[0].is_graph_output():
            return "its result is a graph output"
        uses = node.outputs[0].uses()
        reasons = [_needs(use, node, before, grown) for use in uses]
        told = next((reason for reason in reasons if reason), None)
        if told is not None or not uses:
            return told
        return Plan(node, lambda make: source)


def _does_nothing(node: Any, before: tuple[int | None, ...]) -> bool:
    by = constant(node.inputs[1])
    return by is not None and by.size <= len(before) and bool((by == 1).all())


def _grown(node: Any) -> tuple[int | None, ...] | None:
    """The shape after an Expand or Tile, as far as it is known."""
    before, by = dims(node.inputs[0]), constant(node.inputs[1])
    if before is None or by is None:
        return dims(node.outputs[0])
    numbers = [int(number) for number in by.reshape(-1)]
    if node.op_type == "Tile":
        return tuple(
            size if factor == 1 else None if size is None else size * factor
            for size, factor in zip(before, numbers, strict=True)
        )
    length = max(len(before), len(numbers))
    sizes = (1,) * (length - len(before)) + before
    wanted = [1] * (length - len(numbers)) + numbers
    return tuple(size if want == 1 else want if size == 1 else size for size, want in zip(sizes, wanted, strict=True))


def _needs(use: Any, node: Any, before: tuple[int | None, ...], grown: tuple[int | None, ...] | None) -> str | None:
    """Why one user needs the grown value; None where broadcasting does the same."""
    user = use.node
    others = [value for index, value in enumerate(user.inputs) if index != use.idx and value is not node.outputs[0]]
    if user.domain or user.op_type not in _BROADCASTING:
        return f"{user.op_type} does not broadcast"
    if node.op_type == "Expand" and _is_shape_of(node.inputs[1], others):
        return None
    if grown is None:
        return "the shape it grows to is not known"
    present = (1,) * (len(grown) - len(before)) + before
    ranks = [rank(other) for other in others]
    if len(grown) != len(before) and max((found or 0 for found in ranks), default=0) < len(grown):
        return "it adds dimensions that no other operand is known to have"
    for axis in range(-len(grown), 0):
        if present[axis] == grown[axis] and (present[axis] is not None or not _repeats(node, axis)):
            continue
        if present[axis] != 1 or not any(_size(other, axis) == grown[axis] is not None for other in others):
            return f"no other operand of {user.op_type} is known to be as large on axis {axis}"
    return None


def _repeats(node: Any, axis: int) -> bool:
    """Whether an open dimension may be another one afterwards."""
    by = constant(node.inputs[1])
    if by is None:
        return True
    numbers = by.reshape(-1)
    return -axis <= len(numbers) and int(numbers[axis]) != 1


def _size(value: Any, axis: int) -> int | None:
    found = dims(value)
    return found[axis] if found is not None and -axis <= len(found) else None


def _is_shape_of(shape: Any, values: list[Any]) -> bool:
    maker = produced(shape, "Shape")
    whole = maker is not None and not {"start", "end"} & set(maker.attributes)
    return whole and any(maker.inputs[0] is value for value in values)


class TileToExpand(OperatorRewrite):
    """Tile of dimensions of one as Expand, which copies nothing where a provider broadcasts by strides."""

    name = "tile-to-expand"
    promise = "exact"
    operators = ("Tile",)
    least_opset = 8

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """Tile by constants along dimensions of one."""
        repeats, before = constant(node.inputs[1]), dims(node.inputs[0])
        if repeats is None or before is None:
            return "its repeats are not constant, or the shape of its input is not known"
        factors = [int(number) for number in repeats.reshape(-1)]
        if any(factor != 1 and size != 1 for factor, size in zip(factors, before, strict=True)):
            return "it repeats a dimension that is not known to be one"
        return Plan(node, lambda make: make("Expand", node.inputs[0], np.asarray(factors, np.int64)))


class TileToConcat(OperatorRewrite):
    """Tile by small constants as Concat of the input with itself, axis by axis."""

    name = "tile-to-concat"
    promise = "exact"
    operators = ("Tile",)
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "most_copies": Parameter(int, 8, "repeats of one axis beyond which Tile is left alone", numbers=(2, 64))
    }

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """Tile by constants."""
        repeats = constant(node.inputs[1])
        if repeats is None:
            return "its repeats are not constant"
        factors = [int(number) for number in repeats.reshape(-1)]
        if min(factors, default=1) < 1 or max(factors, default=1) > around.parameters["most_copies"]:
            return f"repeats {factors} are not from 1 to {around.parameters['most_copies']}"

        def make(builder: Builder) -> Any:
            value = node.inputs[0]
            for axis, factor in enumerate(factors):
                if factor > 1:
                    value = builder("Concat", *[value] * factor, axis=axis)
            return value

        return Plan(node, make)


REWRITES: tuple[Rewrite, ...] = (PowToMul(), DivToMul(), RemoveExpand(), TileToExpand(), TileToConcat())
