"""Rewrites that look at one node at a time, and put other nodes in the place of a small pattern."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Context, Dimension, Outcome, Promise, Rewrite, Site
from ort_metainfer.rewrites.building import Builder, Names, replace
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.patterns import all_graphs, leak, learn_types, produced

__all__ = ["MOST_SITES", "NodeRewrite", "OperatorRewrite", "Plan", "Surroundings"]

MOST_SITES = 100

Make = Callable[[Builder], Any]
"""Makes the new nodes, and gives the value (or, of several outputs, the values) to take the old one's place."""


@dataclass(frozen=True)
class Plan:
    """What to do at a place.

    Attributes:
        node: the node whose outputs are replaced.
        make: makes what replaces them.
        inner: other nodes of the pattern, of which nothing may be seen outside.
    """

    node: Any
    make: Make
    inner: Sequence[Any] = ()


@dataclass(frozen=True)
class Surroundings:
    """What a match may depend on beside the node: the model's ONNX opset, and the rewrite's parameters."""

    opset: int
    parameters: Mapping[str, Any]


class NodeRewrite(Rewrite):
    """A rewrite of patterns that begin at one node.

    Attributes:
        operators: as in :attr:`ort_metainfer.problem.Graph.operators`; a pattern begins at one of them.
        also: operators without which there is no such pattern either.
        least_opset: ONNX opset from which on the result can be written.
    """

    dimension: ClassVar[Dimension] = "operators"
    promise: ClassVar[Promise] = "float32-equivalent"
    operators: ClassVar[tuple[str, ...]]
    also: ClassVar[tuple[str, ...]] = ()
    least_opset: ClassVar[int] = 7

    @abstractmethod
    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """What to do at ``node``: a plan, the reason why it is left alone, or None where it is no place for this."""

    def veto(self, node: Any) -> str | None:
        """Why a match at ``node`` is left alone all the same; None where nothing speaks against it."""
        return None

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        """No operator it looks for, or an opset in which the result cannot be written."""
        if not graph.count(*self.operators):
            return f"the model has no {' or '.join(self.operators)}"
        missing = [name for name in self.also if not graph.count(name)]
        if missing:
            return f"the model has no {missing[0]}"
        return self._opset_objection(graph.opsets.get("ai.onnx", 0))

    def _opset_objection(self, opset: int) -> str | None:
        if opset < self.least_opset:
            return f"the model is of opset {opset}; this needs {self.least_opset}"
        return None

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Replace every pattern that matches, subgraphs included."""
        model = draft.ir
        opset = int(model.graph.opset_imports.get("", 0))
        reason = self._opset_objection(opset)
        if reason is not None:
            return Outcome(0, notes=(reason,))
        learn_types(model)
        names, around = Names(model), Surroundings(opset, parameters)
        sites = [
            site
            for graph in all_graphs(model)
            for node in tuple(graph)
            if (site := self._visit(node, around, names, model.ir_version)) is not None
        ]
        changed = sum(not site.reason for site in sites)
        if changed:
            self._import_domains(model)
        return Outcome(changed, tuple(sites[:MOST_SITES]), self._notes(sites, changed))

    def _visit(self, node: Any, around: Surroundings, names: Names, ir_version: int) -> Site | None:
        wanted = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        if node.graph is None or wanted not in self.operators:
            return None
        label = f"{node.name or node.outputs[0].name} ({node.op_type})"
        plan = self.match(node, around)
        if isinstance(plan, Plan):
            plan = leak(plan.inner, plan.node) or self.veto(node) or plan
        if plan is None or isinstance(plan, str):
            return None if plan is None else Site(label, plan)
        builder = Builder(plan.node, names, self.name, around.opset, ir_version)
        made = plan.make(builder)
        replace(plan.node, made if isinstance(made, list) else [made], builder)
        return Site(label)

    def _import_domains(self, model: Any) -> None:
        used = {node.domain for graph in all_graphs(model) for node in graph}
        if "com.microsoft" in used:
            model.graph.opset_imports.setdefault("com.microsoft", 1)

    def _notes(self, sites: Sequence[Site], changed: int) -> tuple[str, ...]:
        if not sites:
            return (f"no {self.name} pattern in the model",)
        left = len(sites) - changed
        reasons = dict.fromkeys(site.reason for site in sites if site.reason)
        return (f"{left} of {len(sites)} places left alone: {'; '.join(list(reasons)[:3])}",) if left else ()


class OperatorRewrite(NodeRewrite):
    """A rewrite that spells an operator in others, and leaves alone what is computed in integers.

    Between DequantizeLinear and QuantizeLinear a provider looks for one operator: another spelling undoes that. (And
    seen with onnxruntime 1.32: from opset 21 on its own optimiser breaks a Transpose or Unsqueeze of int8 there.)
    """

    def veto(self, node: Any) -> str | None:
        """An operand of the node is dequantised."""
        if any(produced(value, "DequantizeLinear") is not None for value in node.inputs):
            return "it is computed in integers, which another spelling would undo"
        return None
