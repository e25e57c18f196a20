"""Pad put into the convolution or pool behind it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ort_metainfer.rewrites.base import Rewrite
from ort_metainfer.rewrites.fusing import DONE_BY_ORT, Fusion, Keep, attributes_of
from ort_metainfer.rewrites.node_rewrite import Plan, Surroundings
from ort_metainfer.rewrites.patterns import attribute, constant, dtype, produced, rank, scalar

__all__ = ["REWRITES", "PadIntoWindow"]

NOT_NEGATIVE = ("Relu", "Sigmoid", "HardSigmoid", "Softmax", "Exp", "Abs")


class PadIntoWindow(Fusion):
    """Pad with zeros before Conv or AveragePool, or with what no maximum is before MaxPool, as their ``pads``."""

    name = "pad-into-window"
    promise = "exact"
    operators = ("Conv", "AveragePool", "MaxPool")
    also = ("Pad",)
    evidence = DONE_BY_ORT

    def find(self, node: Any, around: Surroundings) -> Plan | Keep | str | None:
        """A constant Pad before it."""
        pad = produced(node.inputs[0], "Pad")
        if pad is None:
            return None
        sizes = _padding(pad)
        if isinstance(sizes, str):
            return sizes
        own = attribute(node, "pads") or [0] * len(sizes)
        if attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID") or len(own) != len(sizes):
            return "its own padding depends on sizes"
        reason = _value_objection(pad, node, own, sizes)
        if reason is not None:
            return reason
        given = attributes_of(node, "auto_pad", "pads", "count_include_pad")
        given["pads"] = [a + b for a, b in zip(own, sizes, strict=True)]
        if node.op_type == "AveragePool":
            given["count_include_pad"] = 1
        data = [pad.inputs[0], *node.inputs[1:]]
        return Plan(node, lambda make: make(node.op_type, *data, **given), [pad])


def _padding(pad: Any) -> list[int] | str:
    """What it pads of the spatial dimensions: all begins, then all ends."""
    if attribute(pad, "mode", "constant") != "constant":
        return "it does not pad with a constant"
    pads = constant(pad.inputs[1]) if len(pad.inputs) > 1 else np.asarray(attribute(pad, "pads", []))
    known = rank(pad.inputs[0])
    if pads is None or known is None or known < 3:
        return "its sizes are not constant"
    axes = constant(pad.inputs[3]) if len(pad.inputs) > 3 and pad.inputs[3] is not None else np.arange(known)
    if axes is None or pads.size != 2 * axes.size:
        return "its axes are not constant"
    whole = np.zeros((2, known), np.int64)
    whole[:, axes] = pads.reshape(2, -1)
    if (whole < 0).any() or whole[:, :2].any():
        return "it crops, or pads batch or channels"
    return [int(size) for size in whole[:, 2:].reshape(-1)]


def _value_objection(pad: Any, node: Any, own: list[int], sizes: list[int]) -> str | None:
    """Why what it pads with is not what the operator pads with itself."""
    filled = pad.inputs[2] if len(pad.inputs) > 2 else None
    number = float(attribute(pad, "value", 0.0)) if filled is None else scalar(filled)
    if number is None:
        return "what it pads with is not constant"
    if node.op_type == "Conv":
        return None if number == 0 else f"Conv pads with zeros, not with {number:g}"
    kernel = attribute(node, "kernel_shape") or []
    together = [a + b for a, b in zip(own, sizes, strict=True)]
    if attribute(node, "ceil_mode", 0) or max(attribute(node, "dilations") or [1]) > 1:
        return "a pool with dilations, or one that rounds up"
    if any(size >= edge for size, edge in zip(together, kernel * 2, strict=False)):
        return "it pads as much as a window, or more"
    if node.op_type == "AveragePool":
        counts = attribute(node, "count_include_pad", 0) or not any(own)
        return None if number == 0 and counts else "padding is counted in part, or is not zero"
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        return "its indices are used"
    kind = dtype(pad.inputs[0]) or ""
    lowest = number == -math.inf or (number == 0 and kind.startswith("UINT"))
    positive = number <= 0 and produced(pad.inputs[0], *NOT_NEGATIVE) is not None
    return None if lowest or positive else f"{number:g} may be the maximum"


REWRITES: tuple[Rewrite, ...] = (PadIntoWindow(),)
