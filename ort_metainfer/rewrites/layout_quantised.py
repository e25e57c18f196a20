"""Quantised convolutions and pooling with the channels last, which is how their kernels compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Context, Outcome, Rewrite, Site
from ort_metainfer.rewrites.building import Builder, Names, replace
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.layout_placing import place_transposes, transpose_cost
from ort_metainfer.rewrites.layout_weights import attributes_without
from ort_metainfer.rewrites.node_rewrite import MOST_SITES
from ort_metainfer.rewrites.patterns import all_graphs, attribute, dtype, learn_from, learn_types, rank

__all__ = ["REWRITES", "QuantisedChannelsLast"]

BYTES = ("UINT8", "INT8")

LEAST_OPSET = 10

CHANNELS_LAST = {
    ("", "QLinearConv"): "QLinearConv",
    ("com.microsoft", "QLinearConv"): "QLinearConv",
    ("", "MaxPool"): "NhwcMaxPool",
    ("com.microsoft", "QLinearAveragePool"): "QLinearAveragePool",
    ("com.microsoft", "QLinearGlobalAveragePool"): "QLinearGlobalAveragePool",
}
"""Operator -> the one of com.microsoft that takes the channels last."""


class QuantisedChannelsLast(Rewrite):
    """Quantised Conv, MaxPool and AveragePool with the channels last, transposes at the borders of the island only.

    Weights stay as they are. Between them, quantised element-wise operators, Concat and quantisers follow (see
    ``transposes-placed``).
    """

    name = "quantised-channels-last"
    dimension = "layout"
    promise = "exact"
    providers = ("CPUExecutionProvider",)
    evidence = "never measured to pay: onnxruntime does the same itself from graph level layout on, its default"
    sources = ("onnxruntime, core/optimizer/nhwc_transformer.cc",)

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        """No quantised convolution."""
        if not graph.count("QLinearConv", "com.microsoft.QLinearConv"):
            return "the model has no QLinearConv"
        return None

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Turn them all, then place the transposes; nothing is changed where there is nothing to turn."""
        model = draft.ir
        learn_types(model)
        opset = int(model.graph.opset_imports.get("", 0))
        convolutions = {"QLinearConv"} & {node.op_type for graph in all_graphs(model) for node in graph}
        if not convolutions or opset < LEAST_OPSET:
            return Outcome(0, notes=("no quantised convolution in the model",))
        before, names = transpose_cost(model), Names(model)
        sites = [
            _turned(node, Builder(node, names, self.name, opset, model.ir_version))
            for graph in all_graphs(model)
            for node in tuple(graph)
            if (node.domain, node.op_type) in CHANNELS_LAST and (node.op_type != "MaxPool" or _is_bytes(node))
        ]
        changed = sum(not site.reason for site in sites)
        if not changed:
            return Outcome(0, tuple(sites[:MOST_SITES]), (sites[0].reason if sites else "no place for it",))
        model.graph.opset_imports.setdefault("com.microsoft", 1)
        after = place_transposes(model, self.name).moved[1]
        figures = {"elements transposed before": before, "elements transposed after": after}
        return Outcome(changed, tuple(sites[:MOST_SITES]), (f"transposes move {after} elements a run",), figures)


def _is_bytes(node: Any) -> bool:
    return dtype(node.inputs[0]) in BYTES


def _turned(node: Any, builder: Builder) -> Site:
    label = f"{node.name or node.outputs[0].name} ({node.op_type})"
    reason = _reason(node)
    if reason is not None:
        return Site(label, reason)
    size = len(rank_range := range(rank(node.inputs[0]) or 0))
    last, first = (0, *rank_range[2:], 1), (0, size - 1, *rank_range[1:-1])
    given = builder("Transpose", node.inputs[0], perm=list(last))
    learn_from(given, node.inputs[0], last)
    if rank(node.outputs[0]) is None:  # ONNX knows no shapes for operators of com.microsoft
        node.outputs[0].type, node.outputs[0].shape = _bytes_over_images(node.inputs[0])
    pooling = node.op_type == "MaxPool"
    dropped = ("storage_order", "channels_last") if pooling else ("channels_last",)
    turned = builder(
        CHANNELS_LAST[(node.domain, node.op_type)],
        given,
        *node.inputs[1:],
        domain="com.microsoft",
        **attributes_without(node, *dropped),
        **({} if pooling else {"channels_last": 1}),
    )
    learn_from(turned, node.outputs[0], last)
    back = builder("Transpose", turned, perm=list(first))
    learn_from(back, node.outputs[0])
    replace(node, [back], builder)
    return Site(label)


def _bytes_over_images(like: Any) -> tuple[Any, Any]:
    import onnx_ir

    return onnx_ir.TensorType(onnx_ir.DataType[str(dtype(like))]), onnx_ir.Shape([None] * 4)


def _reason(node: Any) -> str | None:
    """Why a node stays as it is."""
    if rank(node.inputs[0]) is None:
        return "its rank is not known"
    if rank(node.inputs[0]) != 4:
        return "it is not over images"
    if attribute(node, "channels_last", 0) == 1:
        return "it takes the channels last already"
    if not _is_bytes(node):
        return f"its input is {dtype(node.inputs[0]) or 'of unknown type'}"
    if node.op_type == "MaxPool" and len(node.outputs) > 1 and node.outputs[1].name:
        return "its indices are asked for, which count in its own order"
    return None


REWRITES: tuple[Rewrite, ...] = (QuantisedChannelsLast(),)
