"""Convolutions that a device lacks or does badly, by plain ones: transposed and dilated ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ort_metainfer.rewrites.base import Parameter, Rewrite
from ort_metainfer.rewrites.building import Builder
from ort_metainfer.rewrites.node_rewrite import OperatorRewrite, Plan, Surroundings
from ort_metainfer.rewrites.patterns import attribute, constant, constant_size, dtype, static_dims

__all__ = [
    "REWRITES",
    "ConvTransposeToConv",
    "ConvTransposeToDepthToSpace",
    "DilatedConvToDense",
    "Geometry",
    "bias_of",
    "geometry_of",
    "kernel_of",
]


@dataclass(frozen=True)
class Geometry:
    """How a convolution steps; one number an axis, ``pads`` all befores first."""

    kernel: tuple[int, ...]
    strides: list[int]
    dilations: list[int]
    pads: list[int]
    auto_pad: str
    group: int

    @property
    def axes(self) -> int:
        """How many spatial axes."""
        return len(self.kernel) - 2


def geometry_of(node: Any) -> Geometry | str:
    """The geometry of a Conv or ConvTranspose of float32 with a constant kernel; or why it is another."""
    kernel = static_dims(node.inputs[1])
    if constant_size(node.inputs[1]) is None or kernel is None:
        return "its kernel is not constant"
    if dtype(node.inputs[0]) != "FLOAT":
        return f"a convolution of {dtype(node.inputs[0]) or 'unknown type'} is left alone"
    count = len(kernel) - 2
    return Geometry(
        kernel,
        attribute(node, "strides", [1] * count),
        attribute(node, "dilations", [1] * count),
        attribute(node, "pads", [0] * 2 * count),
        attribute(node, "auto_pad", "NOTSET"),
        attribute(node, "group", 1),
    )


def bias_of(node: Any) -> list[Any]:
    """The bias as a list of one value, or none."""
    return [node.inputs[2]] if len(node.inputs) > 2 and node.inputs[2] is not None else []


def _turned(kernel: np.ndarray, group: int) -> np.ndarray:
    """A kernel of ConvTranspose as one of Conv: input and output channels exchanged within each group."""
    inputs, outputs, *spatial = kernel.shape
    grouped = kernel.reshape(group, inputs // group, outputs, *spatial)
    return np.swapaxes(grouped, 1, 2).reshape(group * outputs, inputs // group, *spatial)


def _stepping(node: Any, geometry: Geometry) -> str | None:
    """Why the output of a ConvTranspose is not settled by pads and strides."""
    if "output_shape" in node.attributes or geometry.auto_pad not in ("NOTSET", "VALID"):
        return "its pads follow from the shape of its output"
    return None


class ConvTransposeToDepthToSpace(OperatorRewrite):
    """ConvTranspose whose blocks do not overlap, as a 1x1 Conv and DepthToSpace."""

    name = "conv-transpose-to-depth-to-space"
    operators = ("ConvTranspose",)
    least_opset = 11

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """A square kernel as large as its stride, without pads."""
        geometry = geometry_of(node)
        if isinstance(geometry, str):
            return geometry
        block = geometry.strides[0]
        if geometry.axes != 2 or geometry.kernel[2:] != (block, block) or geometry.strides != [block, block]:
            return "its kernel is not square and as large as its stride"
        if any(geometry.pads) or any(attribute(node, "output_padding", [])) or geometry.dilations != [1, 1]:
            return "it has pads or dilations"
        reason = _stepping(node, geometry)
        if reason is not None:
            return reason
        biases = bias_of(node)
        bias = constant(biases[0]) if biases else None
        if biases and bias is None:
            return "its bias is not constant"
        return Plan(node, lambda make: _blocks(make, node, geometry, bias, block))


def _blocks(make: Builder, node: Any, geometry: Geometry, bias: Any, block: int) -> Any:
    kernel = _turned(kernel_of(node), geometry.group)
    flat = np.moveaxis(kernel, 1, -1).reshape(-1, kernel.shape[1])  # output channel, row, column; input channel
    weights: list[np.ndarray] = [flat.reshape(*flat.shape, 1, 1)]
    weights += [] if bias is None else [np.repeat(bias, block * block)]
    made = make("Conv", node.inputs[0], *weights, kernel_shape=[1, 1], group=geometry.group)
    return make("DepthToSpace", made, blocksize=block, mode="CRD")


def kernel_of(node: Any) -> np.ndarray:
    """The constant kernel of a convolution that has a :class:`Geometry`."""
    array = constant(node.inputs[1])
    assert array is not None
    return array


class ConvTransposeToConv(OperatorRewrite):
    """ConvTranspose as what it is: zeros between the elements, and a convolution with the kernel mirrored."""

    name = "conv-transpose-to-conv"
    operators = ("ConvTranspose",)

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """Any with a constant kernel and pads of its own."""
        geometry = geometry_of(node)
        if isinstance(geometry, str):
            return geometry
        return _stepping(node, geometry) or Plan(node, lambda make: _mirrored(make, node, geometry))


def _mirrored(make: Builder, node: Any, geometry: Geometry) -> Any:
    count, value = geometry.axes, _stretched(make, node.inputs[0], geometry)
    reach = [(size - 1) * dilation for size, dilation in zip(geometry.kernel[2:], geometry.dilations, strict=True)]
    more = attribute(node, "output_padding", [0] * count)
    before = [far - pad for far, pad in zip(reach, geometry.pads[:count], strict=True)]
    behind = [  # of the zeros behind the last element, stride - 1 are there already
        far - pad + extra - (stride - 1)
        for far, pad, extra, stride in zip(reach, geometry.pads[count:], more, geometry.strides, strict=True)
    ]
    value = _cut(make, value, before, behind)
    kernel = np.flip(_turned(kernel_of(node), geometry.group), tuple(range(2, 2 + count)))
    return make(
        "Conv",
        value,
        np.ascontiguousarray(kernel),
        *bias_of(node),
        kernel_shape=list(geometry.kernel[2:]),
        dilations=geometry.dilations,
        pads=[max(pad, 0) for pad in (*before, *behind)],
        group=geometry.group,
    )


def _stretched(make: Builder, value: Any, geometry: Geometry) -> Any:
    """Zeros behind every element, stride - 1 an axis."""
    grown = [axis for axis, stride in enumerate(geometry.strides) if stride > 1]
    if not grown:
        return value
    axes = [2 + axis + 1 + place for place, axis in enumerate(grown)]
    behind = [0] * (2 + geometry.axes + len(grown))
    for axis, place in zip(grown, axes, strict=True):
        behind[place] = geometry.strides[axis] - 1
    wide = make.pad(make.unsqueeze(value, axes), [0] * len(behind) + behind)
    factors = [1, 1, *geometry.strides]
    return make.reshape(wide, list(enumerate(factors)), like=value)


def _cut(make: Builder, value: Any, before: list[int], behind: list[int]) -> Any:
    """Without what negative pads take away."""
    axes = [axis for axis, pads in enumerate(zip(before, behind, strict=True)) if min(pads) < 0]
    if not axes:
        return value
    starts = [max(-before[axis], 0) for axis in axes]
    ends = [behind[axis] if behind[axis] < 0 else np.iinfo(np.int64).max for axis in axes]
    return make.slice(value, starts, [int(end) for end in ends], [2 + axis for axis in axes])


class DilatedConvToDense(OperatorRewrite):
    """A dilated convolution with the zeros written into its kernel, for devices that know no dilation."""

    name = "dilated-conv-to-dense"
    operators = ("Conv",)
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "largest_kernel": Parameter(
            int, 15, "side of the filled kernel beyond which it is left alone", numbers=(3, 127)
        )
    }

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """A Conv with a dilation."""
        geometry = geometry_of(node)
        if isinstance(geometry, str):
            return geometry
        filled = [
            (size - 1) * dilation + 1 for size, dilation in zip(geometry.kernel[2:], geometry.dilations, strict=True)
        ]
        if filled == list(geometry.kernel[2:]):
            return "it is not dilated"
        if max(filled) > around.parameters["largest_kernel"]:
            return f"its kernel filled with zeros is {'x'.join(map(str, filled))}"

        def make(builder: Builder) -> Any:
            kernel = np.zeros((*geometry.kernel[:2], *filled), np.float32)
            places = tuple(slice(None, None, dilation) for dilation in (1, 1, *geometry.dilations))
            kernel[places] = kernel_of(node)
            given = _kept(node, "dilations") | {"kernel_shape": filled}
            return builder("Conv", node.inputs[0], kernel, *bias_of(node), **given)

        return Plan(node, make)


def _kept(node: Any, *without: str) -> dict[str, Any]:
    """A node's attributes but for some."""
    return {name: attribute(node, name) for name in node.attributes if name not in without}


REWRITES: tuple[Rewrite, ...] = (ConvTransposeToDepthToSpace(), ConvTransposeToConv(), DilatedConvToDense())
