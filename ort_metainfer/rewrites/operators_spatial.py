"""Resize by whole factors and the blocks of DepthToSpace as Reshape, Transpose and Expand."""

from __future__ import annotations

from typing import Any

import numpy as np

from ort_metainfer.rewrites.base import Rewrite
from ort_metainfer.rewrites.building import Builder, Size
from ort_metainfer.rewrites.node_rewrite import OperatorRewrite, Plan, Surroundings
from ort_metainfer.rewrites.patterns import attribute, constant, dims, dtype, produced, static_dims

__all__ = ["REWRITES", "DepthToSpaceToReshape", "ExpandToResize", "ResizeToExpand"]

_HALF_PIXEL = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
_ROUNDING = ("round_prefer_floor", "round_prefer_ceil")


class ResizeToExpand(OperatorRewrite):
    """Nearest-neighbour Resize or Upsample by whole factors: every element repeated, by Expand between two reshapes."""

    name = "resize-to-expand"
    promise = "exact"
    operators = ("Resize", "Upsample")
    least_opset = 8

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """Resize in whose formula every output element is element i // factor of the input."""
        size = dims(node.inputs[0])
        if size is None:
            return "the rank of its input is not known"
        reason = _not_floored(node, around.opset)
        if reason is not None:
            return reason
        factors = _factors(node, size, around.opset)
        if isinstance(factors, str):
            return factors
        return Plan(node, lambda make: _repeated(make, node.inputs[0], factors))


def _not_floored(node: Any, opset: int) -> str | None:
    """Why an element may come from elsewhere than i // factor."""
    mode = attribute(node, "mode", "nearest")
    if mode != "nearest":
        return f"it interpolates ({mode})"
    if node.op_type == "Upsample" or opset < 11:
        return None
    if attribute(node, "keep_aspect_ratio_policy", "stretch") != "stretch" or attribute(node, "antialias", 0):
        return "it keeps the aspect ratio, or smooths"
    place = attribute(node, "coordinate_transformation_mode", "half_pixel")
    rounding = attribute(node, "nearest_mode", "round_prefer_floor")
    if (place in _HALF_PIXEL and rounding in _ROUNDING) or (place == "asymmetric" and rounding == "floor"):
        return None
    return f"coordinates {place} with {rounding} are not whole repetitions"


def _factors(node: Any, before: tuple[int | None, ...], opset: int) -> list[int] | str:
    """By how much each axis is repeated."""
    axes = [axis % len(before) for axis in attribute(node, "axes", list(range(len(before))))]
    scales = _numbers(node, "scales", 1 if node.op_type == "Upsample" or opset < 11 else 2)
    sizes = _numbers(node, "sizes", 3) if scales is None else None
    if scales is None and sizes is not None and len(sizes) == len(axes):
        whole = [before[axis] for axis in axes]
        if any(not size for size in whole):
            return "the sizes before are not known"
        scales = [after / size for after, size in zip(sizes, whole, strict=True) if size]
    if scales is None or len(scales) != len(axes):
        return "its scales are not constant"
    if any(scale < 1 or scale != int(scale) for scale in scales):
        return "its scales are not whole numbers"
    factors = [1] * len(before)
    for axis, scale in zip(axes, scales, strict=True):
        factors[axis] = int(scale)
    return factors


def _numbers(node: Any, name: str, place: int) -> list[float] | None:
    given = attribute(node, name)
    if given is not None:
        return [float(number) for number in given]
    array = constant(node.inputs[place]) if len(node.inputs) > place else None
    return None if array is None or not array.size else [float(number) for number in array.reshape(-1)]


def _repeated(make: Builder, value: Any, factors: list[int]) -> Any:
    grown = [axis for axis, factor in enumerate(factors) if factor > 1]
    if not grown:
        return value
    axes = [axis + 1 + place for place, axis in enumerate(grown)]
    shape = np.ones(len(factors) + len(grown), np.int64)
    for axis, place in zip(grown, axes, strict=True):
        shape[place] = factors[axis]
    wide = make("Expand", make.unsqueeze(value, axes), shape)
    return make.reshape(wide, list(enumerate(factors)), like=value)


class ExpandToResize(OperatorRewrite):
    """Every element repeated by Expand or Tile between two reshapes, as one nearest-neighbour Resize."""

    name = "expand-to-resize"
    promise = "exact"
    operators = ("Expand", "Tile")
    also = ("Reshape",)
    least_opset = 11

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """Expand of dimensions of one that stand behind those they repeat."""
        into = produced(node.inputs[0], "Reshape", "Unsqueeze")
        uses = node.outputs[0].uses()
        back = uses[0].node if len(uses) == 1 else None
        if (
            into is None
            or back is None
            or back.op_type != "Reshape"
            or back.domain
            or back.inputs[0] is not node.outputs[0]
        ):
            return None
        shapes = [static_dims(value) for value in (into.inputs[0], into.outputs[0], node.outputs[0], back.outputs[0])]
        first, thin, wide, last = shapes
        if first is None or thin is None or wide is None or last is None:
            return "the shapes around it are not known"
        factors = _interleaved(first, thin, wide, last)
        if factors is None:
            return "it does not repeat each element in place"
        if dtype(into.inputs[0]) != "FLOAT" or len(first) != 4 or factors[:2] != [1, 1]:
            return "it is no enlargement of float images, channels first"

        def make(builder: Builder) -> Any:
            regions = None if around.opset >= 13 else np.zeros(0, np.float32)
            scales = np.asarray(factors, np.float32)
            return builder(
                "Resize",
                into.inputs[0],
                regions,
                scales,
                mode="nearest",
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            )

        return Plan(back, make, [into, node])


def _interleaved(
    first: tuple[int, ...], thin: tuple[int, ...], wide: tuple[int, ...], last: tuple[int, ...]
) -> list[int] | None:
    """By how much each axis of ``first`` is repeated; None where the shapes in between are others."""
    if len(last) != len(first) or 0 in first or any(after % size for size, after in zip(first, last, strict=True)):
        return None
    factors = [after // size for size, after in zip(first, last, strict=True)]
    flat_thin, flat_wide = [], []
    for size, factor in zip(first, factors, strict=True):
        flat_thin += [size] if factor == 1 else [size, 1]
        flat_wide += [size] if factor == 1 else [size, factor]
    return factors if list(thin) == flat_thin and list(wide) == flat_wide and max(factors) > 1 else None


class DepthToSpaceToReshape(OperatorRewrite):
    """DepthToSpace and SpaceToDepth as Reshape, Transpose and Reshape, for providers without them."""

    name = "depth-to-space-to-reshape"
    promise = "exact"
    operators = ("DepthToSpace", "SpaceToDepth")

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """Any of known channels; SpaceToDepth of known sizes."""
        known, block = dims(node.inputs[0]), attribute(node, "blocksize")
        if known is None or len(known) != 4 or known[1] is None:
            return "the channels of its input are not known"
        mode = attribute(node, "mode", "DCR")  # SpaceToDepth has it from opset 28 on
        if mode not in ("DCR", "CRD"):
            return f"its mode {mode} is not known"
        by_column = mode == "CRD"
        if node.op_type == "SpaceToDepth":
            if known[2] is None or known[3] is None:
                return "the sizes of its input are not known"
            return Plan(node, lambda make: _into_depth(make, node.inputs[0], known, block, by_column))
        return Plan(node, lambda make: _out_of_depth(make, node.inputs[0], known, block, by_column))


def _batch(known: Any) -> Size:
    """The first size, or 0: copied from the same place."""
    return known[0] or 0


def _into_depth(make: Builder, value: Any, known: Any, block: int, by_column: bool) -> Any:
    batch, channels, height, width = _batch(known), known[1], known[2] // block, known[3] // block
    made = make.reshape(value, [batch, channels, height, block, width, block])
    made = make("Transpose", made, perm=[0, 1, 3, 5, 2, 4] if by_column else [0, 3, 5, 1, 2, 4])
    return make.reshape(made, [batch, channels * block * block, height, width])


def _out_of_depth(make: Builder, value: Any, known: Any, block: int, by_column: bool) -> Any:
    batch, channels = _batch(known), known[1] // (block * block)
    split: list[Size] = [channels, block, block] if by_column else [block, block, channels]
    made = make.reshape(value, [batch, *split, (2, 1), (3, 1)])
    made = make("Transpose", made, perm=[0, 1, 4, 2, 5, 3] if by_column else [0, 3, 4, 1, 5, 2])
    return make.reshape(made, [batch, channels, (2, block), (3, block)], like=value)


REWRITES: tuple[Rewrite, ...] = (ResizeToExpand(), ExpandToResize(), DepthToSpaceToReshape())
