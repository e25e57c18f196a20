"""Weights in the order in which a kernel or the operator before them wants them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ort_metainfer.rewrites.base import Parameter, Rewrite
from ort_metainfer.rewrites.building import Builder
from ort_metainfer.rewrites.layout_regions import inverse, order_of
from ort_metainfer.rewrites.node_rewrite import NodeRewrite, Plan, Surroundings
from ort_metainfer.rewrites.patterns import attribute, constant, constant_size, dims, produced, rank

__all__ = ["REWRITES", "TransposeIntoWeights", "WeightsTransposed"]


def attributes_without(node: Any, *names: str) -> dict[str, Any]:
    """A node's attributes as plain values, but for these."""
    return {name: attribute(node, name) for name in node.attributes if name not in names}


def _own_weight(value: Any) -> str | None:
    """Why a weight cannot be given another order; None where it can."""
    if constant_size(value) is None:
        return "its weight is not constant, or a caller may replace it"
    if len(value.uses()) > 1:
        return "its weight is used elsewhere too"
    return None


class WeightsTransposed(NodeRewrite):
    """Constant weights of Gemm in one orientation: as they are multiplied (``transB`` 0), or transposed (1)."""

    name = "weights-transposed"
    dimension = "layout"
    promise = "exact"
    operators = ("Gemm",)
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "trans_b": Parameter(int, 0, "what Gemm's transB is afterwards", values=(0, 1))
    }
    evidence = "never measured to pay: onnxruntime's CPU provider packs constant weights once, from either orientation"

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """A Gemm of the other orientation with a constant weight of its own."""
        wanted = around.parameters["trans_b"]
        if attribute(node, "transB", 0) == wanted:
            return f"its weight has transB={wanted} already"
        weight = node.inputs[1]
        reason = _own_weight(weight)
        if reason is not None:
            return reason
        others = attributes_without(node, "transB")

        def make(build: Builder) -> Any:
            array = constant(weight)
            assert array is not None
            turned = np.ascontiguousarray(array.T)
            return build("Gemm", node.inputs[0], turned, *node.inputs[2:], **others, transB=wanted)

        return Plan(node, make)


class TransposeIntoWeights(NodeRewrite):
    """A Transpose that is flattened and multiplied: the weight's rows are put in the order of what is not transposed.

    So TensorFlow's exporters leave the last dense layer behind convolutions, and Keras models an NHWC input.
    """

    name = "transposes-into-weights"
    dimension = "layout"
    promise = "exact"
    operators = ("MatMul", "Gemm")
    also = ("Transpose",)
    evidence = "never measured to pay: a transpose of a small tensor goes; no model of the zoo has one"

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """MatMul or Gemm of a flattened Transpose that leaves the batch where it is."""
        flat = produced(node.inputs[0], "Flatten", "Reshape")
        moved = produced(flat.inputs[0], "Transpose") if flat is not None else None
        if moved is None or flat.graph is not node.graph or moved.graph is not node.graph:
            return None
        order, sizes = order_of(moved), dims(moved.inputs[0])
        reason = _not_foldable(node, flat, order, sizes) or _own_weight(node.inputs[1])
        if reason is not None:
            return reason
        assert order is not None and sizes is not None
        within: list[int] = [int(size) for size in sizes[1:] if size is not None]
        is_turned = node.op_type == "Gemm" and attribute(node, "transB", 0) == 1

        def make(build: Builder) -> Any:
            array = constant(node.inputs[1])
            assert array is not None
            rows = _in_order(array.T if is_turned else array, order, within)
            again = build(flat.op_type, moved.inputs[0], *flat.inputs[1:], **attributes_without(flat))
            weight = np.ascontiguousarray(rows.T if is_turned else rows)
            return build(node.op_type, again, weight, *node.inputs[2:], **attributes_without(node))

        return Plan(node, make, [flat, moved])


def _not_foldable(node: Any, flat: Any, order: Any, sizes: Any) -> str | None:
    if order is None or sizes is None or any(size is None for size in sizes[1:]):
        return "what is transposed has open dimensions beside the batch"
    if order[0] != 0:
        return "the transpose moves the batch"
    features, found = math.prod(sizes[1:]), dims(flat.outputs[0])
    if flat.op_type == "Flatten" and attribute(flat, "axis", 1) != 1:
        return "it is flattened at another axis"
    if flat.op_type == "Reshape" and constant_size(flat.inputs[1]) is None:
        return "the shape it is flattened to is computed"
    if found is None or len(found) != 2 or found[1] != features:
        return "it is not flattened to one row a sample"
    if node.op_type == "Gemm" and attribute(node, "transA", 0) != 0:
        return "Gemm transposes it"
    return None if rank(node.inputs[1]) == 2 else "its weight is no matrix"


def _in_order(weight: np.ndarray, order: Sequence[int], sizes: Sequence[int]) -> np.ndarray:
    """Rows of a weight (inputs, outputs) for the transposed tensor, in the order of the tensor before it."""
    apart = weight.reshape(*(sizes[axis - 1] for axis in order[1:]), weight.shape[1])
    back = [place - 1 for place in inverse(order)[1:]]
    return np.transpose(apart, [*back, len(back)]).reshape(weight.shape)


REWRITES: tuple[Rewrite, ...] = (WeightsTransposed(), TransposeIntoWeights())
