"""What is there twice made once, and what nobody uses removed."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Context, Outcome, Rewrite, Site
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.fusing import DONE_BY_ORT, keep, label_of, outcome_of
from ort_metainfer.rewrites.patterns import all_graphs, attribute, constant

__all__ = ["REWRITES", "MergeDuplicateNodes", "MergeDuplicateWeights", "RemoveUnused"]

RANDOM = (
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)
"""ONNX operators that give something else every time."""

PURE_DOMAINS = ("", "ai.onnx.ml")

LARGEST_CONSTANT_BYTES = 1 << 20
"""Larger constants in nodes are not compared."""


class MergeDuplicateNodes(Rewrite):
    """Nodes with equal operators, attributes and inputs computed once (common subexpressions).

    Random operators, nodes with graphs in them, those of other domains than ONNX's, and DequantizeLinear (quantised
    kernels are found by one of it for each consumer) are left alone.
    """

    name = "merge-duplicate-nodes"
    dimension = "fusion"
    promise = "exact"
    evidence = DONE_BY_ORT + " but in branches: Silero VAD 212 nodes after it, 210 with this"

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        """A single node has no double."""
        return None if graph.node_count > 1 else "the model has one node at most"

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Merge in each graph on its own, in order, so that duplicate chains go as a whole."""
        sites = [site for graph in all_graphs(draft.ir) for site in _merged(graph)]
        return outcome_of(sites, "no node is there twice")


def _merged(graph: Any) -> Iterator[Site]:
    seen: dict[Hashable, Any] = {}
    for node in tuple(graph):
        key = _meaning(node)
        if key is None:
            continue
        first = seen.setdefault(key, node)
        if first is not node:
            label = label_of(node)
            yield Site(label, _take_over(first, node) or "")


def _take_over(first: Any, node: Any) -> str | None:
    """Use ``first``'s results for ``node``'s; or why not."""
    if len(node.outputs) == 1:
        return keep(node, first.outputs[0])
    if any(value.is_graph_output() for value in node.outputs):
        return "its results are graph outputs"
    for old, new in zip(node.outputs, first.outputs, strict=True):
        old.replace_all_uses_with(new)
    node.graph.remove(node, safe=True)
    return None


def _meaning(node: Any) -> Hashable | None:
    """Equal for nodes with equal results; None where that cannot be told."""
    if node.domain not in PURE_DOMAINS or node.op_type in (*RANDOM, "DequantizeLinear") or not node.outputs:
        return None
    if node.op_type == "Dropout" and len(node.inputs) > 2 and node.inputs[2] is not None:
        training = constant(node.inputs[2])
        if training is None or training.any():
            return None
    attributes: list[Hashable] = []
    for name, given in sorted(node.attributes.items()):
        if given.is_ref() or given.type.name not in ("INT", "INTS", "FLOAT", "FLOATS", "STRING", "STRINGS", "TENSOR"):
            return None
        if given.type.name == "TENSOR":
            content = _content(given.as_tensor(), LARGEST_CONSTANT_BYTES)
            if content is None:
                return None
            attributes.append((name, content))
        else:
            value = attribute(node, name)
            attributes.append((name, (given.type.name, repr(value))))
    inputs = tuple(None if value is None else id(value) for value in node.inputs)
    return node.domain, node.op_type, tuple(attributes), inputs, tuple(bool(value.name) for value in node.outputs)


def _content(tensor: Any, most: int | None = None) -> tuple[str, tuple[int, ...], str] | None:
    """Equal for equal tensors; None for text, and beyond ``most`` bytes."""
    if tensor.dtype.name == "STRING" or (most is not None and tensor.nbytes > most):
        return None
    return tensor.dtype.name, tuple(int(size) for size in tensor.shape), hashlib.sha256(tensor.tobytes()).hexdigest()


class MergeDuplicateWeights(Rewrite):
    """Initialisers with equal contents kept once; those that a caller may override or fetch are left alone."""

    name = "merge-duplicate-weights"
    dimension = "fusion"
    promise = "exact"
    evidence = "never measured to pay: saves memory only, where weights are shared in fact but not in the file"

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        """No weights."""
        return None if graph.weight_bytes else "the model has no weights"

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Merge in each graph on its own; the first of equal ones is kept."""
        sites: list[Site] = []
        saved = 0
        for graph in all_graphs(draft.ir):
            for value, first in _equal_weights(graph):
                saved += value.const_value.nbytes
                value.replace_all_uses_with(first)
                del graph.initializers[value.name]
                sites.append(Site(value.name))
        return outcome_of(sites, "no initialiser is there twice", saved_bytes=float(saved))


def _equal_weights(graph: Any) -> Iterator[tuple[Any, Any]]:
    """Each initialiser that is there already, and the first of its kind; sizes are compared before contents."""
    by_size: dict[Hashable, list[Any]] = {}
    for value in graph.initializers.values():
        if value.const_value is not None and not value.is_graph_input() and not value.is_graph_output():
            tensor = value.const_value
            by_size.setdefault((tensor.dtype, tuple(int(size) for size in tensor.shape)), []).append(value)
    for values in by_size.values():
        seen: dict[Hashable, Any] = {}
        for value in values if len(values) > 1 else ():
            content = _content(value.const_value)
            first = value if content is None else seen.setdefault(content, value)
            if first is not value:
                yield value, first


class RemoveUnused(Rewrite):
    """Nodes and initialisers that no output depends on removed; inputs and their defaults stay."""

    name = "remove-unused"
    dimension = "fusion"
    promise = "exact"
    evidence = DONE_BY_ORT

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        """Nothing in it."""
        return None if graph.node_count or graph.weight_bytes else "the model has neither nodes nor weights"

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """From the end to the beginning, branches and bodies after the node that holds them."""
        model = draft.ir
        sites = [Site(label) for label in _dead_nodes(model.graph)]
        for graph in all_graphs(model):
            for value in tuple(graph.initializers.values()):
                if not (value.uses() or value.is_graph_input() or value.is_graph_output()):
                    sites.append(Site(value.name))
                    del graph.initializers[value.name]
        return outcome_of(sites, "every part of it is used")


def _dead_nodes(graph: Any) -> Iterator[str]:
    """Remove them, and name them."""
    for node in reversed(tuple(graph)):
        inner = [found for given in node.attributes.values() for found in _graphs_in(given)]
        if node.outputs and not any(value.uses() or value.is_graph_output() for value in node.outputs):
            for held in inner:
                _detach(held)
            yield label_of(node)
            graph.remove(node, safe=True)
        else:
            for held in inner:
                yield from _dead_nodes(held)


def _graphs_in(given: Any) -> list[Any]:
    if given.is_ref():
        return []
    return [given.value] if given.type.name == "GRAPH" else list(given.value) if given.type.name == "GRAPHS" else []


def _detach(graph: Any) -> None:
    """Let go of everything that the nodes of a graph take, so that nothing outside counts as used by them."""
    for node in graph.all_nodes():
        for place in range(len(node.inputs)):
            node.replace_input_with(place, None)


REWRITES: tuple[Rewrite, ...] = (MergeDuplicateNodes(), MergeDuplicateWeights(), RemoveUnused())
