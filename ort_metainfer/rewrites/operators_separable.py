"""Large kernels that are products of a column and a row, as two convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ort_metainfer.rewrites.base import Parameter, Rewrite
from ort_metainfer.rewrites.building import Builder
from ort_metainfer.rewrites.node_rewrite import OperatorRewrite, Plan, Surroundings
from ort_metainfer.rewrites.operators_convolution import Geometry, bias_of, geometry_of, kernel_of

__all__ = ["REWRITES", "SeparableConv"]

_EXACT = 1e-6
"""Share of a kernel's norm that its products may leave out: the rounding of its own float32 numbers."""

_LARGEST_SIDE = 1024
"""Of the matrix whose rank is looked for: a decomposition beyond takes seconds."""


class SeparableConv(OperatorRewrite):
    """A large kernel that is exactly a product of a column and a row, as two convolutions, where that is less work."""

    name = "separable-conv"
    operators = ("Conv",)
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "least_side": Parameter(int, 4, "sides of a kernel below which it is left alone", numbers=(2, 64))
    }

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """A two-dimensional Conv over all channels, or over each alone."""
        geometry = geometry_of(node)
        if isinstance(geometry, str):
            return geometry
        least = around.parameters["least_side"]
        if geometry.axes != 2 or min(geometry.kernel[2:]) < least:
            return f"its kernel has not two sides of {least} or more"
        inputs = geometry.kernel[1]
        if geometry.group > 1 and inputs > 1:
            return "its groups are of several channels"
        pair = _each_alone(kernel_of(node)) if geometry.group > 1 else _all_together(kernel_of(node))
        if pair is None:
            return "its kernel is no product of columns and rows with less work"
        return Plan(node, lambda make: _two(make, node, geometry, *pair))


def _each_alone(kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Columns and rows of filters on one channel each."""
    left, scales, right = np.linalg.svd(kernel[:, 0].astype(np.float64), full_matrices=False)
    whole = np.sqrt((scales**2).sum(1))
    if (np.sqrt((scales[:, 1:] ** 2).sum(1)) > _EXACT * whole).any() or kernel.shape[2] * kernel.shape[3] <= sum(
        kernel.shape[2:]
    ):
        return None
    root = np.sqrt(scales[:, :1])
    columns, rows = (left[:, :, 0] * root)[:, None, :, None], (right[:, 0, :] * root)[:, None, None, :]
    return columns.astype(np.float32), rows.astype(np.float32)


def _all_together(kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Columns of every input channel into as many channels as the kernel has rank, and rows of those."""
    outputs, inputs, height, width = kernel.shape
    matrix = kernel.transpose(1, 2, 0, 3).reshape(inputs * height, outputs * width).astype(np.float64)
    if max(matrix.shape) > _LARGEST_SIDE:
        return None
    left, scales, right = np.linalg.svd(matrix, full_matrices=False)
    rank = int((np.sqrt(np.cumsum(scales[::-1] ** 2)[::-1]) > _EXACT * np.linalg.norm(scales)).sum())
    if rank == 0 or rank * sum(matrix.shape) >= kernel.size:
        return None
    root = np.sqrt(scales[:rank])
    columns = (left[:, :rank] * root).reshape(inputs, height, rank).transpose(2, 0, 1)[..., None]
    rows = (root[:, None] * right[:rank]).reshape(rank, outputs, width).transpose(1, 0, 2)[:, :, None]
    return columns.astype(np.float32), rows.astype(np.float32)


def _two(make: Builder, node: Any, geometry: Geometry, columns: np.ndarray, rows: np.ndarray) -> Any:
    value = node.inputs[0]
    for axis, kernel in enumerate((columns, rows)):
        given: dict[str, Any] = {"kernel_shape": list(kernel.shape[2:])}
        for name, numbers in (("strides", geometry.strides), ("dilations", geometry.dilations)):
            given[name] = [numbers[0], 1] if axis == 0 else [1, numbers[1]]
        if geometry.auto_pad == "NOTSET":
            given["pads"] = [pad if place % 2 == axis else 0 for place, pad in enumerate(geometry.pads)]
        else:
            given["auto_pad"] = geometry.auto_pad
        group = 1 if geometry.group == 1 else geometry.group if axis == 0 else len(columns)
        value = make(
            "Conv", value, np.ascontiguousarray(kernel), *(bias_of(node) if axis else []), group=group, **given
        )
    return value


REWRITES: tuple[Rewrite, ...] = (SeparableConv(),)
