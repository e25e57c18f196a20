"""Products of one input with several weights computed as one product, and split: queries, keys and values at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Context, Outcome, Parameter, Rewrite, Site
from ort_metainfer.rewrites.building import Builder, Names, drop
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.fusing import NOT_DONE_BY_ORT, label_of, outcome_of
from ort_metainfer.rewrites.linear import Linear, linear_of, with_bias
from ort_metainfer.rewrites.patterns import all_graphs, learn_types

__all__ = ["REWRITES", "MergeParallelProducts"]

OPERATORS = ("MatMul", "Gemm", "Conv")


class MergeParallelProducts(Rewrite):
    """MatMul, Gemm or Conv nodes with the same input and constant weights as one of them with a Split behind it.

    Each MatMul's Add of a constant vector goes along where all have one. Conv nodes must have the same kernel, strides,
    padding and dilations, and no groups.
    """

    name = "merge-parallel-products"
    dimension = "fusion"
    promise = "float32-equivalent"
    evidence = NOT_DONE_BY_ORT + "MiniLM 129, 120; but ResNet-50 92, 96, as sums and activations stay outside of Conv"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "most_outputs": Parameter(
            int, 8192, "output channels of one product beyond which it is left alone", numbers=(2, 1 << 20)
        )
    }

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        """Fewer than two of any operator it merges."""
        several = any(graph.count(name) > 1 for name in OPERATORS)
        return None if several else f"the model has no two {', '.join(OPERATORS[:-1])} or {OPERATORS[-1]}"

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Merge every group in each graph."""
        model = draft.ir
        learn_types(model)
        names, sites = Names(model), list[Site]()
        for graph in all_graphs(model):
            for group in _groups(graph):
                reason = _objection(group, parameters["most_outputs"])
                label = label_of(group[0].nodes[0])
                if reason is None:
                    _merge(group, names, self.name, model)
                sites.append(Site(label, reason or ""))
        return outcome_of(sites, "no two products with constant weights have the same input")


def _groups(graph: Any) -> list[list[Linear]]:
    """Products of one input that could be one, in the graph's order; of two and more."""
    groups: dict[Any, list[Linear]] = {}
    for node in graph:
        if node.domain or node.op_type not in OPERATORS:
            continue
        found = linear_of(with_bias(node).outputs[0])
        if not isinstance(found, Linear) or any(part.graph is not graph for part in found.nodes):
            continue
        groups.setdefault(_kind(found), []).append(found)
    return [group for group in groups.values() if len(group) > 1]


def _kind(found: Linear) -> tuple[Any, ...]:
    """Equal for products that can be one."""
    attributes = tuple(sorted((name, repr(given.value)) for name, given in found.attributes.items()))
    sizes = found.weights.shape[1:] if found.operator == "Conv" else (found.taken,)
    return found.operator, id(found.data), attributes, sizes, found.bias is None, str(found.weights.dtype)


def _objection(group: Sequence[Linear], most_outputs: int) -> str | None:
    if any(given.value != 1 for found in group for name, given in found.attributes.items() if name == "group"):
        return "its channels are grouped"
    if any(found.bias is not None and found.bias.size != found.channels for found in group):
        return "its bias is not one number a channel"
    if sum(found.channels for found in group) > most_outputs:
        return f"together they have more than {most_outputs} output channels"
    if group[0].rank is None:
        return "the rank of its input is not known"
    return None


def _merge(group: Sequence[Linear], names: Names, label: str, model: Any) -> None:
    """Put one product and a Split where the first of the group is, and let its parts be used for the results."""
    first = group[0].nodes[-1]
    make = Builder(first, names, label, model.graph.opset_imports.get("", 17), model.ir_version)
    side = 0 if group[0].operator == "Conv" or group[0].channels_first else 1
    whole = _joined(group, side).make(make)
    axis = 1 if group[0].operator in ("Conv", "Gemm") else (group[0].rank or 1) - 1
    parts = make.split(whole, [found.channels for found in group], axis)
    first.graph.insert_before(first, make.nodes)
    for found, part in zip(group, parts, strict=True):
        old = found.nodes[0].outputs[0]
        part.type, part.shape = old.type, old.shape
        name, old.name = old.name, names.fresh(f"{old.name}/replaced")
        part.name = name
        old.replace_all_uses_with(part, replace_graph_outputs=True)
        drop(found.nodes[0])


def _joined(group: Sequence[Linear], side: int) -> Linear:
    weights = np.concatenate([found.weights for found in group], axis=side)
    biases = list(_biases(group))
    return replace(group[0], weights=weights, bias=np.concatenate(biases) if biases else None)


def _biases(group: Sequence[Linear]) -> Iterator[np.ndarray]:
    for found in group:
        if found.bias is not None:
            yield found.bias.reshape(-1).astype(found.weights.dtype)


REWRITES: tuple[Rewrite, ...] = (MergeParallelProducts(),)
