"""Finding ``(x - mean) / sqrt(variance + epsilon)``, with or without the mean, and the scale and bias behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ort_metainfer.rewrites.factors import near
from ort_metainfer.rewrites.patterns import (
    attribute,
    axes_of,
    constant,
    other_input,
    produced,
    rank,
    scalar,
    static_dims,
)

__all__ = ["Affine", "Normalised", "affine_behind", "find_normalised", "spread", "trailing_weight"]


@dataclass
class Normalised:
    """A normalisation found.

    Attributes:
        value: what is normalised.
        axes: over which, negative and sorted where the rank is known or they were given so.
        epsilon: added to the variance (or mean square).
        centred: whether the mean is taken off first.
        last: the node whose result is normalised.
        nodes: all of them.
    """

    value: Any
    axes: list[int]
    epsilon: float
    centred: bool
    last: Any
    nodes: list[Any] = field(default_factory=list)


@dataclass
class Affine:
    """Scale and bias behind a normalisation (None: there is none), the last node, and the nodes in between."""

    scale: Any
    bias: Any
    last: Any
    nodes: list[Any]


def find_normalised(node: Any) -> Normalised | None:
    """The normalisation of which ``node`` is the last: a quotient, or a product with a reciprocal."""
    if node.op_type == "Div":
        pairs = [(node.inputs[0], _root(node.inputs[1]))]
    else:
        pairs = [(node.inputs[0], _inverse_root(node.inputs[1])), (node.inputs[1], _inverse_root(node.inputs[0]))]
    for above, below in pairs:
        found = None if below is None else _normalised(above, below[0], [node, *below[1]], node)
        if found is not None:
            return found
    return None


def _root(value: Any) -> tuple[Any, list[Any]] | None:
    """Of a square root: what it is of, and its nodes."""
    node = produced(value, "Sqrt", "Pow")
    if node is None or (node.op_type == "Pow" and not near(scalar(node.inputs[1], node.inputs[0]), 0.5)):
        return None
    return node.inputs[0], [node]


def _inverse_root(value: Any) -> tuple[Any, list[Any]] | None:
    node = produced(value, "Reciprocal", "Div", "Pow")
    if node is None:
        return None
    if node.op_type == "Pow":
        return (node.inputs[0], [node]) if near(scalar(node.inputs[1], node.inputs[0]), -0.5) else None
    if node.op_type == "Div" and not near(scalar(node.inputs[0], node.inputs[1]), 1.0):
        return None
    below = _root(node.inputs[-1])
    return None if below is None else (below[0], [node, *below[1]])


def _normalised(above: Any, below: Any, nodes: list[Any], last: Any) -> Normalised | None:
    total = produced(below, "Add")
    for one, other in (total.inputs, total.inputs[::-1]) if total is not None else ():
        epsilon, mean = scalar(one, beside=other), produced(other, "ReduceMean")
        axes = None if epsilon is None or mean is None else _axes(mean)
        square = None if axes is None else _square(mean.inputs[0])
        if epsilon is None or axes is None or square is None:
            continue
        nodes = [*nodes, total, mean, square]
        base = square.inputs[0]
        first, second = _centred(base, axes), _centred(above, axes)
        if first is not None and second is not None and first[0] is second[0]:
            return Normalised(first[0], axes, epsilon, True, last, [*nodes, *first[1], *second[1]])
        if above is base:
            return Normalised(base, axes, epsilon, False, last, nodes)
    return None


def _square(value: Any) -> Any:
    node = produced(value, "Mul", "Pow")
    if node is None:
        return None
    if node.op_type == "Mul":
        return node if node.inputs[0] is node.inputs[1] else None
    return node if near(scalar(node.inputs[1], node.inputs[0]), 2.0) else None


def _centred(value: Any, axes: list[int]) -> tuple[Any, list[Any]] | None:
    """Of ``x - mean(x)``: x and the nodes."""
    node = produced(value, "Sub")
    mean = None if node is None else produced(node.inputs[1], "ReduceMean")
    if node is None or mean is None or mean.inputs[0] is not node.inputs[0] or _axes(mean) != axes:
        return None
    return node.inputs[0], [node, mean]


def _axes(node: Any) -> list[int] | None:
    """Axes of a mean that keeps its dimensions, negative where the rank is known."""
    axes = axes_of(node)
    if not axes or attribute(node, "keepdims", 1) != 1:
        return None
    size = rank(node.inputs[0])
    return sorted(axes) if size is None else sorted(axis - size if axis >= 0 else axis for axis in axes)


def affine_behind(found: Normalised, fit: Callable[[Any], Any], with_bias: bool = True) -> Affine:
    """The Mul and the Add that the normalised value alone goes into, one after the other.

    Args:
        found: the normalisation.
        fit: a scale or bias in the form wanted; None where it is none.
        with_bias: whether an Add is looked for.
    """
    made = Affine(None, None, found.last, [])
    for operator in ("Mul", "Add") if with_bias else ("Mul",):
        user = _only_user(made.last)
        other = None if user is None or user.op_type != operator else other_input(user, made.last.outputs[0])
        weight = None if other is None else fit(other)
        if weight is None:
            continue
        made.nodes.append(made.last)
        made.last = user
        if operator == "Mul":
            made.scale = weight
        else:
            made.bias = weight
    return made


def _only_user(node: Any) -> Any:
    """The node of the same graph that alone uses the result of ``node``."""
    uses = node.outputs[0].uses()
    user = uses[0].node if len(uses) == 1 else None
    inside = user is not None and not user.domain and user.graph is node.graph
    return user if inside and not node.outputs[0].is_graph_output() else None


def trailing_weight(weight: Any, shape: tuple[int, ...]) -> Any:
    """A scale or bias as wide as the sizes normalised over: the value itself, or an array; None where it is another."""
    if static_dims(weight) == shape:
        return weight
    array = constant(weight)
    if array is None:
        return None
    return spread(array, shape)


def spread(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """``array`` repeated to ``shape``; None where it has dimensions that ``shape`` has not."""
    extra = max(array.ndim - len(shape), 0)
    if any(size != 1 for size in array.shape[:extra]):
        return None
    try:
        return np.broadcast_to(array.reshape(array.shape[extra:]), shape).copy()
    except ValueError:
        return None
