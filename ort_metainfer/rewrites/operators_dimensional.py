"""One-dimensional convolutions and pools as two-dimensional ones of height one, for devices that know no others."""

from __future__ import annotations

from typing import Any

from ort_metainfer.rewrites.base import Rewrite
from ort_metainfer.rewrites.building import Builder
from ort_metainfer.rewrites.node_rewrite import OperatorRewrite, Plan, Surroundings
from ort_metainfer.rewrites.patterns import attribute, constant, dtype, rank

__all__ = ["REWRITES", "OneDimensionToTwo"]

_WITH_KERNEL = ("Conv", "ConvTranspose")

_SPREAD = {"kernel_shape": 1, "strides": 1, "dilations": 1, "output_padding": 0}
"""Attribute -> what the new axis gets."""


class OneDimensionToTwo(OperatorRewrite):
    """Conv, ConvTranspose and pools over a sequence as the same over images of height one."""

    name = "one-dimension-to-two"
    operators = (*_WITH_KERNEL, "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """One with a single spatial axis."""
        size = rank(node.inputs[0])
        if size is None:
            return "the rank of its input is not known"
        if size != 3:
            return None
        if dtype(node.inputs[0]) != "FLOAT":
            return f"a {node.op_type} of {dtype(node.inputs[0]) or 'unknown type'} is left alone"
        if "output_shape" in node.attributes:
            return "its pads follow from the shape of its output"
        if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
            return "its indices are used"
        return Plan(node, lambda make: _flat(make, node))


def _flat(make: Builder, node: Any) -> Any:
    inputs = [make.unsqueeze(node.inputs[0], [2])]
    if node.op_type in _WITH_KERNEL:
        kernel = constant(node.inputs[1])
        inputs.append(make.unsqueeze(node.inputs[1], [2]) if kernel is None else kernel[:, :, None])
        inputs += node.inputs[2:]
    return make.squeeze(make(node.op_type, *inputs, **_attributes(node)), [2])


def _attributes(node: Any) -> dict[str, Any]:
    made = {}
    for name in node.attributes:
        given = attribute(node, name)
        if name in _SPREAD:
            given = [_SPREAD[name], *given]
        elif name == "pads":
            given = [0, given[0], 0, given[1]]
        made[name] = given
    return made


REWRITES: tuple[Rewrite, ...] = (OneDimensionToTwo(),)
