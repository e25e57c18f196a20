"""Quantised graphs in the form in which quantised kernels are found: pairs that cancel, one DequantizeLinear each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Context, Outcome, Rewrite, Site
from ort_metainfer.rewrites.building import Builder, Names
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.fusing import DONE_BY_ORT, Fusion, Keep, attributes_of, label_of, outcome_of
from ort_metainfer.rewrites.node_rewrite import Plan, Surroundings
from ort_metainfer.rewrites.patterns import all_graphs, attribute, constant, dtype, produced, scalar

__all__ = ["REWRITES", "CancelQuantisation", "ClipIntoQuantiser", "DequantisePerConsumer"]

RANGES = {"INT8": (-128, 127), "UINT8": (0, 255), "INT16": (-32768, 32767), "UINT16": (0, 65535)}
"""Quantised types, and what they hold."""


class CancelQuantisation(Fusion):
    """QuantizeLinear of what was dequantised with the same scale and zero point: the integers it came from."""

    name = "cancel-quantisation"
    promise = "exact"
    operators = ("QuantizeLinear",)
    also = ("DequantizeLinear",)
    evidence = DONE_BY_ORT

    def find(self, node: Any, around: Surroundings) -> Plan | Keep | str | None:
        """A DequantizeLinear before it."""
        before = produced(node.inputs[0], "DequantizeLinear")
        if before is None:
            return None
        kinds = dtype(before.inputs[0]), dtype(node.outputs[0])
        if kinds[0] != kinds[1] or kinds[0] not in RANGES:
            return "it quantises to another type"
        if attribute(before, "block_size", 0) or attribute(node, "block_size", 0):
            return "it quantises in blocks"
        first, second = _parameters(before), _parameters(node)
        if first is None or second is None:
            return "its scale or zero point is not constant"
        if first[0].size > 1 and attribute(before, "axis", 1) != attribute(node, "axis", 1):
            return "it quantises along another axis"
        if not all(np.array_equal(a, b) for a, b in zip(first, second, strict=True)):
            return "it quantises with another scale or zero point"
        if not (np.isfinite(first[0]).all() and (first[0] >= np.finfo(np.float32).tiny).all()):
            return "its scale is no normal positive number"
        return Keep(before.inputs[0])


def _parameters(node: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Scale and zero point."""
    scale = constant(node.inputs[1])
    there = len(node.inputs) > 2 and node.inputs[2] is not None
    zero = constant(node.inputs[2]) if there else None if scale is None else np.zeros(scale.shape, np.int64)
    return None if scale is None or zero is None or scale.dtype != np.float32 else (scale, zero)


class ClipIntoQuantiser(Fusion):
    """Relu and Clip before QuantizeLinear removed, where saturation does the same.

    So that Conv, Relu and what quantises them stay one group with one kernel.
    """

    name = "clip-into-quantiser"
    promise = "exact"
    operators = ("QuantizeLinear",)
    evidence = DONE_BY_ORT
    sources = ("https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html",)

    def find(self, node: Any, around: Surroundings) -> Plan | Keep | str | None:
        """A Relu or Clip before it, with limits outside of what the integers reach."""
        before = produced(node.inputs[0], "Relu", "Clip")
        if before is None:
            return None
        limits = RANGES.get(dtype(node.outputs[0]) or "")
        given = _parameters(node)
        if limits is None or given is None:
            return "its scale or zero point is not constant, or its type is unusual"
        low, high = _clipped(before)
        if low is None or high is None:
            return "the limits are not constant"
        scale, zero = given[0], given[1].astype(np.float64)
        ends = [np.rint(np.float32(limit) / scale) + zero for limit in (low, high)]  # what quantising them gives
        if not (scale > 0).all() or (ends[0] > limits[0]).any() or (ends[1] < limits[1]).any():
            return "the integers reach beyond its limits"
        data = [before.inputs[0], *node.inputs[1:]]
        return Plan(node, lambda make: make("QuantizeLinear", *data, **attributes_of(node)), [before])


def _clipped(node: Any) -> tuple[float | None, float | None]:
    """Limits of a Relu or Clip; None for one that is not constant."""
    if node.op_type == "Relu":
        return 0.0, np.inf
    found: list[float | None] = []
    for place, (name, default) in enumerate((("min", -np.inf), ("max", np.inf))):
        given = node.inputs[place + 1] if len(node.inputs) > place + 1 else None
        found.append(float(attribute(node, name, default)) if given is None else scalar(given))
    return found[0], found[1]


class DequantisePerConsumer(Rewrite):
    """A DequantizeLinear of its own for every node that uses what it gives: quantised kernels are found that way."""

    name = "dequantise-per-consumer"
    dimension = "fusion"
    promise = "exact"
    evidence = DONE_BY_ORT
    sources = ("https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html",)

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        """Nothing dequantised."""
        return None if graph.count("DequantizeLinear") else "the model has no DequantizeLinear"

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Double it for every consumer but the first, in the graph it is in."""
        model = draft.ir
        names = Names(model)
        sites = [site for graph in all_graphs(model) for site in self._doubled(graph, names, model)]
        return outcome_of(sites, "every DequantizeLinear has one consumer")

    def _doubled(self, graph: Any, names: Names, model: Any) -> Iterator[Site]:
        for node in tuple(graph):
            if node.op_type != "DequantizeLinear" or node.domain:
                continue
            users = list(dict.fromkeys(use.node for use in node.outputs[0].uses() if use.node.graph is graph))
            outside = node.outputs[0].is_graph_output() or len(users) < len(
                {use.node for use in node.outputs[0].uses()}
            )
            for user in users if outside else users[1:]:
                make = Builder(user, names, self.name, model.graph.opset_imports.get("", 17), model.ir_version)
                made = make("DequantizeLinear", *node.inputs, **attributes_of(node))
                made.type, made.shape = node.outputs[0].type, node.outputs[0].shape
                graph.insert_before(user, make.nodes)
                for place, value in enumerate(user.inputs):
                    if value is node.outputs[0]:
                        user.replace_input_with(place, made)
                yield Site(label_of(user))


REWRITES: tuple[Rewrite, ...] = (CancelQuantisation(), ClipIntoQuantiser(), DequantisePerConsumer())
