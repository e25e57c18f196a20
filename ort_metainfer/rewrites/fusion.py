"""Operators that do nothing removed, chains of Clip and Relu merged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ort_metainfer.rewrites.base import Rewrite
from ort_metainfer.rewrites.building import Builder
from ort_metainfer.rewrites.fusing import DONE_BY_ORT, NOT_DONE_BY_ORT, Fusion, Keep
from ort_metainfer.rewrites.node_rewrite import Plan, Surroundings
from ort_metainfer.rewrites.patterns import attribute, constant, dims, dtype, produced, rank, scalar

__all__ = ["REWRITES", "MergeClips", "RemoveNoOps"]

ENDLESS = 2**31 - 1
"""The smallest number that exporters write for "to the end"."""

WIDER: Mapping[str, tuple[str, ...]] = {
    "FLOAT16": ("FLOAT", "DOUBLE"),
    "BFLOAT16": ("FLOAT", "DOUBLE"),
    "FLOAT": ("DOUBLE",),
    "INT8": ("INT16", "INT32", "INT64", "FLOAT", "DOUBLE"),
    "UINT8": ("INT16", "INT32", "INT64", "UINT16", "UINT32", "UINT64", "FLOAT", "DOUBLE"),
    "INT32": ("INT64", "DOUBLE"),
    "BOOL": ("UINT8", "INT8", "INT32", "INT64", "FLOAT", "DOUBLE"),
}
"""Element type -> types that hold all its values."""


class RemoveNoOps(Fusion):
    """Operators whose result is their input: Identity, Dropout, a Cast, Reshape, Slice, Pad, ... that changes nothing.

    Adding a float 0 is kept: it turns -0 into 0.
    """

    name = "remove-no-ops"
    promise = "exact"
    evidence = NOT_DONE_BY_ORT + "T5's decoder 605, 574; MiniLM 129, 126; else the same"

    def find(self, node: Any, around: Surroundings) -> Plan | Keep | str | None:
        """One of the operators below, where it does nothing."""
        if node.domain:
            return None
        kept = NO_OPS[node.op_type](node)
        if kept is None:
            return "it is not known to change nothing" if node.op_type in ("Identity", "Dropout") else None
        return Keep(kept)


def _first(node: Any) -> Any:
    return node.inputs[0]


def _only(node: Any) -> Any:
    return node.inputs[0] if len(node.inputs) == 1 else None


def _dropout(node: Any) -> Any:
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return node.inputs[0]
    training = constant(node.inputs[2])
    return node.inputs[0] if training is not None and not training.any() else None


def _cast(node: Any) -> Any:
    import onnx_ir

    wanted, value = onnx_ir.DataType(attribute(node, "to")).name, node.inputs[0]
    if dtype(value) == wanted:
        return value
    before = produced(value, "Cast")
    if before is not None and dtype(before.inputs[0]) == wanted and dtype(value) in WIDER.get(wanted, ()):
        return before.inputs[0]
    return None


def _transpose(node: Any) -> Any:
    perm = attribute(node, "perm")
    return node.inputs[0] if perm is not None and perm == sorted(perm) else None


def _reshape(node: Any) -> Any:
    before, after = dims(node.inputs[0]), dims(node.outputs[0])
    wanted = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    if before is None or after is None or len(before) != len(after) or 0 in before:
        return None
    if wanted is not None and not attribute(node, "allowzero", 0):
        after = tuple(
            had if want == 0 else size for had, want, size in zip(before, wanted.tolist(), after, strict=True)
        )
        kept = [
            want == 0 or size == had is not None for had, want, size in zip(before, wanted.tolist(), after, strict=True)
        ]
        return node.inputs[0] if sum(not same for same in kept) <= 1 and _one_open(before, after, kept) else None
    return node.inputs[0] if None not in before and before == after else None


def _one_open(before: Any, after: Any, kept: list[bool]) -> bool:
    """Whether the one dimension that is not known to stay must, because all others do."""
    return all(same or (had is None and size is None) for had, size, same in zip(before, after, kept, strict=True))


def _flatten(node: Any) -> Any:
    return node.inputs[0] if rank(node.inputs[0]) == 2 and attribute(node, "axis", 1) in (1, -1) else None


def _pad(node: Any) -> Any:
    pads = constant(node.inputs[1]) if len(node.inputs) > 1 else np.asarray(attribute(node, "pads", []))
    return node.inputs[0] if pads is not None and pads.size and not pads.any() else None


def _neutral(number: float) -> Callable[[Any], Any]:
    """For a second operand that is this number everywhere, and as large as the first at most."""

    def find(node: Any) -> Any:
        pairs = [tuple(node.inputs)]
        if node.op_type in ("Mul", "Add"):
            pairs.append(pairs[0][::-1])
        for value, other in pairs:
            array = constant(other)
            if array is not None and array.dtype.kind in "fiu" and (array == number).all() and _covers(value, array):
                exact = node.op_type != "Add" or array.dtype.kind in "iu" or bool(np.signbit(array).all())
                return value if exact and constant(value) is None else None
        return None

    return find


def _covers(value: Any, array: np.ndarray) -> bool:
    """Whether broadcasting ``array`` leaves the shape of ``value``."""
    sizes = dims(value)
    if sizes is None or array.ndim > len(sizes) or not array.size:
        return False
    return all(a in (1, size) for a, size in zip(array.shape[::-1], sizes[::-1], strict=False))


def _slice(node: Any) -> Any:
    if len(node.inputs) < 3:
        return None
    given = [None if value is None else constant(value) for value in node.inputs[1:]]
    if any(value is not None and array is None for value, array in zip(node.inputs[1:], given, strict=True)):
        return None
    starts, ends = given[:2]
    axes = given[2] if len(given) > 2 and given[2] is not None else np.arange(len(starts))  # type: ignore[arg-type]
    steps = given[3] if len(given) > 3 else None
    sizes = dims(node.inputs[0])
    if sizes is None or starts is None or ends is None or starts.any() or (steps is not None and (steps != 1).any()):
        return None
    whole = all(end >= ENDLESS or end >= (sizes[axis] or math.inf) for end, axis in zip(ends, axes, strict=True))
    return node.inputs[0] if whole else None


def _split(node: Any) -> Any:
    return node.inputs[0] if len(node.outputs) == 1 else None


def _resize(node: Any) -> Any:
    if attribute(node, "coordinate_transformation_mode", "") == "tf_crop_and_resize" or attribute(node, "antialias", 0):
        return None
    place = 1 if node.op_type == "Upsample" or len(node.inputs) == 2 else 2
    scales = constant(node.inputs[place]) if len(node.inputs) == place + 1 else None
    whole = scales is not None and scales.size == rank(node.inputs[0]) and (scales == 1).all()
    return node.inputs[0] if whole and attribute(node, "axes") is None else None


NO_OPS: Mapping[str, Callable[[Any], Any]] = {
    "Identity": _first,
    "Dropout": _dropout,
    "Cast": _cast,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Concat": _only,
    "Sum": _only,
    "Mean": _only,
    "Max": _only,
    "Min": _only,
    "Pad": _pad,
    "Add": _neutral(0),
    "Sub": _neutral(0),
    "Mul": _neutral(1),
    "Div": _neutral(1),
    "Pow": _neutral(1),
    "Slice": _slice,
    "Split": _split,
    "Resize": _resize,
    "Upsample": _resize,
}
RemoveNoOps.operators = tuple(NO_OPS)


class MergeClips(Fusion):
    """Chains of Relu and Clip with constant limits as one of them."""

    name = "merge-clips"
    promise = "exact"
    operators = ("Relu", "Clip")
    evidence = DONE_BY_ORT + " for Relu before Clip, not for Clip before Clip (none in the models tried)"

    def find(self, node: Any, around: Surroundings) -> Plan | Keep | str | None:
        """Another one before it."""
        before = produced(node.inputs[0], "Relu", "Clip")
        if before is None:
            return None
        kind = dtype(before.inputs[0])
        inner, outer = _limits(before), _limits(node)
        if kind is None or inner is None or outer is None:
            return "its limits are not constant, or its type is not known"
        if inner[0] > inner[1] or outer[0] > outer[1]:
            return "its lower limit is above the upper one"
        low, high = (min(max(limit, outer[0]), outer[1]) for limit in inner)
        if around.opset < 11 and kind != "FLOAT":
            return f"a Clip of {kind} in opset {around.opset}"
        return Plan(node, lambda make: _clip(make, before.inputs[0], low, high, kind), [before])


def _limits(node: Any) -> tuple[float, float] | None:
    """Lower and upper limit; None where they are not constant."""
    if node.op_type == "Relu":
        return 0.0, math.inf
    found = [-math.inf, math.inf]
    for place, name in enumerate(("min", "max")):
        given = node.inputs[place + 1] if len(node.inputs) > place + 1 else None
        if given is not None:
            number = scalar(given)
            if number is None or math.isnan(number) or abs(number) >= 2**53:
                return None
            found[place] = number
        elif name in node.attributes:
            found[place] = float(attribute(node, name))
    return found[0], found[1]


def _clip(make: Builder, value: Any, low: float, high: float, kind: str) -> Any:
    import onnx_ir

    if (low, high) == (0, math.inf) and kind in ("FLOAT", "DOUBLE", "FLOAT16"):
        return make("Relu", value)
    if make.opset < 11:
        limits: dict[str, Any] = {"min": low if low > -math.inf else None, "max": high if high < math.inf else None}
        return make("Clip", value, **limits)
    array = onnx_ir.DataType[kind].numpy()
    given = [None if math.isinf(limit) else np.asarray(limit, array) for limit in (low, high)]
    return make("Clip", value, *(given if given[1] is not None else given[:1]))


REWRITES: tuple[Rewrite, ...] = (RemoveNoOps(), MergeClips())
