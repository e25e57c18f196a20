"""Layout: transposes where they cost least, and weights that need none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Context, Outcome, Rewrite, Site
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.layout_placing import place_transposes, transpose_cost
from ort_metainfer.rewrites.node_rewrite import MOST_SITES
from ort_metainfer.rewrites.patterns import learn_types

__all__ = ["REWRITES", "TransposesPlaced"]

LEAST_OPSET = 7
"""Before it, operators took broadcasting as an attribute."""


class TransposesPlaced(Rewrite):
    """Transposes moved to where they cost least, which mostly is nowhere: both layouts of exporters become one.

    Transposes that follow each other become one; constants are transposed here. Then every part of the graph between
    operators that need their own order of axes (Conv, MatMul, Reshape, the graph's inputs and outputs) takes the layout
    in which the fewest elements are transposed: a minimum cut. Operators that do not care (element-wise ones, Concat,
    Split, reductions that keep their axes, Softmax, Pad, Slice, quantisers) follow, with their axes and constants
    adapted.
    """

    name = "transposes-placed"
    dimension = "layout"
    promise = "exact"
    evidence = (
        "never measured to pay on the CPU provider: onnxruntime's own transpose optimizer, on from level basic, "
        "cancels most of the same; meant for providers that take the graph before it"
    )
    sources = ("Edmonds and Karp, 1972: theoretical improvements in algorithmic efficiency for network flow problems",)

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        """No transpose, or an opset whose operators broadcast in another way."""
        if not graph.count("Transpose"):
            return "the model has no Transpose"
        opset = graph.opsets.get("ai.onnx", 0)
        return None if opset >= LEAST_OPSET else f"the model is of opset {opset}; this needs {LEAST_OPSET}"

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Place the transposes of the graph and of each subgraph."""
        model = draft.ir
        if int(model.graph.opset_imports.get("", 0)) < LEAST_OPSET:
            return Outcome(0, notes=(f"the model is of an opset below {LEAST_OPSET}",))
        learn_types(model)
        if not transpose_cost(model):
            return Outcome(0, notes=("no transpose of anything but constants in the model",))
        placed = place_transposes(model, self.name)
        sites = [Site(f"{name} (Transpose)", reason) for name, reason in placed.kept.items()]
        before, after = placed.moved
        notes = (
            (f"transposes move {after} elements a run, before {before}",)
            if placed.changed
            else ("every transpose stands where it costs least",)
        )
        figures = {"elements transposed before": before, "elements transposed after": after}
        return Outcome(placed.changed, tuple(sites[:MOST_SITES]), notes, figures)


REWRITES = (TransposesPlaced(),)
