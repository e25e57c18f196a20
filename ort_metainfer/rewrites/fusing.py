"""What fusions share beyond rewrites of one node: they go on until nothing changes, and stay inside one graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from ort_metainfer.rewrites.base import Context, Outcome, Site
from ort_metainfer.rewrites.building import Names
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.node_rewrite import MOST_SITES, NodeRewrite, Plan, Surroundings

__all__ = ["Fusion", "attributes_of", "same_graph"]

ORT_DOES_IT = "onnxruntime's own optimiser does the same: never measured to pay beyond it"


class Fusion(NodeRewrite):
    """A fusion of patterns that begin at one node; one that makes room for another is followed by it.

    Attributes:
        rounds: how often the model is gone through at most.
    """

    dimension = "fusion"
    evidence = "never measured to pay"
    rounds: ClassVar[int] = 12

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Replace every pattern that matches until none does, subgraphs included."""
        done: list[Site] = []
        outcome = Outcome(0)
        changed = 0
        for _ in range(self.rounds):
            outcome = super().rewrite(draft, context, parameters)
            changed += outcome.changed
            done += [site for site in outcome.sites if not site.reason]
            if not outcome.changed:
                break
        left = [site for site in outcome.sites if site.reason]
        notes = tuple(note for note in outcome.notes if not changed or left)
        return replace(outcome, changed=changed, sites=(*done, *left)[:MOST_SITES], notes=notes)

    def _visit(self, node: Any, around: Surroundings, names: Names, ir_version: int) -> Site | None:
        if len(node.outputs) == 0:
            return None
        return super()._visit(node, around, names, ir_version)


def same_graph(plan: Plan) -> Plan | str:
    """The plan, or why not: what it takes together lies in graphs within one another, run at other times."""
    if any(node.graph is not plan.node.graph for node in plan.inner):
        return "its parts lie in different graphs"
    return plan


def attributes_of(node: Any, *left_out: str) -> dict[str, Any]:
    """A node's attributes, to be given to another one."""
    return {name: given for name, given in node.attributes.items() if name not in left_out}
