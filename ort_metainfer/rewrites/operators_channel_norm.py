"""InstanceNormalization and GroupNormalization: composed of elementary operators, as one operator, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ort_metainfer.rewrites.base import Rewrite
from ort_metainfer.rewrites.building import Builder
from ort_metainfer.rewrites.node_rewrite import OperatorRewrite, Plan, Surroundings
from ort_metainfer.rewrites.normalising import Normalised, affine_behind, find_normalised, spread
from ort_metainfer.rewrites.patterns import attribute, constant, dims, dtype, produced, rank

__all__ = [
    "REWRITES",
    "GroupNormToComposed",
    "GroupNormToNative",
    "InstanceNormToComposed",
    "InstanceNormToNative",
]


def _channels(value: Any) -> int | None:
    known = dims(value)
    return known[1] if known is not None and len(known) > 2 else None


def _per_channel(weight: Any, value: Any) -> np.ndarray | None:
    """A constant scale or bias that stands beside ``value``, one number a channel."""
    array, size, channels = constant(weight), rank(value), _channels(value)
    if array is None or size is None or channels is None or array.ndim > size:
        return None
    wide = spread(array, (1, channels, *(1,) * (size - 2)))
    return None if wide is None else wide.reshape(channels)


class InstanceNormToNative(OperatorRewrite):
    """Mean, variance and quotient over all axes but batch and channels, as one InstanceNormalization."""

    name = "instance-norm-to-native"
    operators = ("Div", "Mul")
    also = ("ReduceMean", "Sub")

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """The quotient of a normalisation over the spatial axes."""
        found = find_normalised(node)
        if found is None or not found.centred:
            return None
        size, channels = rank(found.value), _channels(found.value)
        if size is None or size < 3 or channels is None:
            return "its input is not known to have channels and spatial dimensions"
        if found.axes != list(range(2 - size, 0)):
            return f"it normalises over axes {found.axes}, not over all spatial ones"
        if dtype(found.value) != "FLOAT":
            return f"a normalisation of {dtype(found.value) or 'unknown type'} is left alone"
        behind = affine_behind(found, lambda weight: _per_channel(weight, found.value))
        scale = np.ones(channels, np.float32) if behind.scale is None else behind.scale
        bias = np.zeros(channels, np.float32) if behind.bias is None else behind.bias
        return Plan(
            behind.last,
            lambda make: make("InstanceNormalization", found.value, scale, bias, epsilon=found.epsilon),
            [*found.nodes, *behind.nodes],
        )


class InstanceNormToComposed(OperatorRewrite):
    """InstanceNormalization by means, a square root and products, for providers without it."""

    name = "instance-norm-to-composed"
    operators = ("InstanceNormalization",)

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """One of known rank."""
        value, size = node.inputs[0], rank(node.inputs[0])
        if size is None or size < 3:
            return "the rank of its input is not known"
        if dtype(value) != "FLOAT":
            return f"a normalisation of {dtype(value) or 'unknown type'} is left alone"
        epsilon = np.float32(attribute(node, "epsilon", 1e-5))

        def make(builder: Builder) -> Any:
            made = _normalise(builder, value, list(range(2, size)), epsilon)
            return _affine(builder, made, node.inputs[1], node.inputs[2], size)

        return Plan(node, make)


def _normalise(make: Builder, value: Any, axes: list[int], epsilon: Any) -> Any:
    deviation = make("Sub", value, make.mean(value, axes))
    variance = make.mean(make("Mul", deviation, deviation), axes)
    return make("Div", deviation, make("Sqrt", make("Add", variance, epsilon)))


def _affine(make: Builder, value: Any, scale: Any, bias: Any, size: int) -> Any:
    """``value * scale + bias`` with one number a channel."""
    for operator, weight in (("Mul", scale), ("Add", bias)):
        array = constant(weight)
        axes = list(range(1, size - 1))
        wide = make.unsqueeze(weight, axes) if array is None else array.reshape(-1, *(1,) * (size - 2))
        value = make(operator, value, wide)
    return value


class GroupNormToComposed(OperatorRewrite):
    """GroupNormalization by Reshape, means, a square root and products, for providers without it."""

    name = "group-norm-to-composed"
    operators = ("GroupNormalization",)
    least_opset = 18

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """One of known rank; scale and bias are one number a group below opset 21."""
        value, size = node.inputs[0], rank(node.inputs[0])
        if size is None or size < 3:
            return "the rank of its input is not known"
        if dtype(value) != "FLOAT":
            return f"a normalisation of {dtype(value) or 'unknown type'} is left alone"
        groups, epsilon = attribute(node, "num_groups"), np.float32(attribute(node, "epsilon", 1e-5))

        def make(builder: Builder) -> Any:
            made = _normalise(builder, builder("Reshape", value, np.array([0, groups, -1], np.int64)), [2], epsilon)
            if around.opset < 21:
                made = _affine(builder, made, node.inputs[1], node.inputs[2], 3)
            made = builder("Reshape", made, builder("Shape", value))
            return made if around.opset < 21 else _affine(builder, made, node.inputs[1], node.inputs[2], size)

        return Plan(node, make)


class GroupNormToNative(OperatorRewrite):
    """Reshape to groups, normalisation, Reshape back, scale and bias, as one GroupNormalization."""

    name = "group-norm-to-native"
    operators = ("Reshape",)
    least_opset = 21

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """The Reshape back."""
        inner = _grouped(node.inputs[0])
        if inner is None:
            return None
        into, epsilon, nodes = inner
        value, channels = into.inputs[0], _channels(into.inputs[0])
        if channels is None or dtype(value) != "FLOAT":
            return f"its input is not known to have channels, or of type {dtype(value)}"
        groups = _groups(into, channels)
        if groups is None:
            return "the first Reshape does not only split the channels into groups"
        if not _goes_back(node, value):
            return "the second Reshape is not known to give back the shape from before"
        found = Normalised(value, [], epsilon, True, node)
        behind = affine_behind(found, lambda weight: _per_channel(weight, value))
        scale = np.ones(channels, np.float32) if behind.scale is None else behind.scale
        bias = np.zeros(channels, np.float32) if behind.bias is None else behind.bias
        return Plan(
            behind.last,
            lambda make: make("GroupNormalization", value, scale, bias, num_groups=groups, epsilon=epsilon),
            [node, into, *nodes, *behind.nodes],
        )


def _grouped(value: Any) -> tuple[Any, float, list[Any]] | None:
    """The Reshape before a normalisation over the last of three axes, its epsilon, its nodes."""
    node = produced(value, "InstanceNormalization", "Div", "Mul")
    if node is None:
        return None
    if node.op_type == "InstanceNormalization":
        scale, bias = constant(node.inputs[1]), constant(node.inputs[2])
        plain = scale is not None and bias is not None and bool((scale == 1).all() and (bias == 0).all())
        into = produced(node.inputs[0], "Reshape")
        return (into, attribute(node, "epsilon", 1e-5), [node]) if plain and into is not None else None
    found = find_normalised(node)
    into = None if found is None or not found.centred else produced(found.value, "Reshape")
    if found is None or into is None or found.axes not in ([-1], [2]):
        return None
    return into, found.epsilon, found.nodes


def _groups(into: Any, channels: int) -> int | None:
    """Into how many groups a Reshape splits the channels; None where it does something else."""
    shape, known = constant(into.inputs[1]), dims(into.inputs[0])
    if shape is None or known is None or shape.size != 3 or attribute(into, "allowzero", 0):
        return None
    batch, groups, rest = (int(size) for size in shape)
    same_batch = batch == 0 or batch == known[0]
    if groups < 1 or channels % groups:
        return None
    spatial = [size for size in known[2:] if size is not None]
    whole = channels // groups * int(np.prod(spatial)) if len(spatial) == len(known) - 2 else None
    if (same_batch and rest == -1) or (batch == -1 and rest == whole) or (same_batch and rest == whole):
        return groups
    return None


def _goes_back(node: Any, value: Any) -> bool:
    """Whether a Reshape gives the shape of ``value``."""
    maker, known = produced(node.inputs[1], "Shape"), dims(value)
    if maker is not None and maker.inputs[0] is value and not {"start", "end"} & set(maker.attributes):
        return True
    shape = constant(node.inputs[1])
    if shape is None or known is None or shape.size != len(known) or attribute(node, "allowzero", 0):
        return False
    sizes = [int(size) for size in shape]
    first = sizes[0] in (0, -1) or sizes[0] == known[0]
    return first and None not in known[1:] and sizes[1:] == list(known[1:])


REWRITES: tuple[Rewrite, ...] = (
    InstanceNormToNative(),
    InstanceNormToComposed(),
    GroupNormToNative(),
    GroupNormToComposed(),
)
