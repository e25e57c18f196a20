"""What fusions share beyond rewrites of one node: they go on until nothing changes, and stay inside one graph."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ort_metainfer.rewrites.base import Context, Dimension, Outcome, Promise, Site
from ort_metainfer.rewrites.building import Builder, Names, drop
from ort_metainfer.rewrites.building import replace as put_in_place
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.known_shapes import learn_sizes
from ort_metainfer.rewrites.node_rewrite import MOST_SITES, NodeRewrite, Plan, Surroundings
from ort_metainfer.rewrites.patterns import leak

__all__ = ["DONE_BY_ORT", "NOT_DONE_BY_ORT", "Fusion", "Keep", "attributes_of", "keep", "label_of", "outcome_of"]

DONE_BY_ORT = "never measured to pay: onnxruntime's own optimiser does the same"

NOT_DONE_BY_ORT = "never measured to pay; nodes that onnxruntime 1.32 (extended) leaves without and with it: "
"""Counts of nodes say what is new, and nothing of speed."""


@dataclass(frozen=True)
class Keep:
    """The plan to go without a node: ``value``, which is there already, takes the place of its first output."""

    value: Any


class Fusion(NodeRewrite):
    """A fusion of patterns that begin at one node; one that makes room for another is followed by it.

    Attributes:
        rounds: how often the model is gone through at most.
        knows_sizes: whether it asks for sizes that are proved (``known_shapes.sizes_of``).
        trusts_names: whether it takes dimensions of inputs that are declared under one name to be equal.
    """

    dimension: ClassVar[Dimension] = "fusion"
    promise: ClassVar[Promise] = "float32-equivalent"
    evidence = "never measured to pay"
    rounds: ClassVar[int] = 12
    knows_sizes: ClassVar[bool] = False
    trusts_names: ClassVar[bool] = False

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Replace every pattern that matches until none does, subgraphs included."""
        done: list[Site] = []
        outcome = Outcome(0)
        changed = 0
        for _ in range(self.rounds):
            if self.knows_sizes or self.trusts_names:
                learn_sizes(draft.ir, self.trusts_names)
            outcome = super().rewrite(draft, context, parameters)
            changed += outcome.changed
            done += [site for site in outcome.sites if not site.reason]
            if not outcome.changed:
                break
        left = [site for site in outcome.sites if site.reason]
        notes = tuple(note for note in outcome.notes if not changed or left)
        return replace(outcome, changed=changed, sites=(*done, *left)[:MOST_SITES], notes=notes)

    @abstractmethod
    def find(self, node: Any, around: Surroundings) -> Plan | Keep | str | None:
        """What to do at ``node``: a plan, a value to keep instead, the reason why it is left alone, or None."""

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """What :meth:`find` says, with a value that is kept as a plan that makes nothing."""
        found = self.find(node, around)
        return Plan(node, lambda make: found.value) if isinstance(found, Keep) else found

    def _visit(self, node: Any, around: Surroundings, names: Names, ir_version: int) -> Site | None:
        wanted = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        if node.graph is None or wanted not in self.operators or not node.outputs:
            return None
        label, found = label_of(node), self.find(node, around)
        if isinstance(found, Plan):
            found = leak(found.inner, found.node) or _within_one_graph(found)
        if isinstance(found, Keep):
            found = keep(node, found.value) or found
        if found is None or isinstance(found, str):
            return None if found is None else Site(label, found)
        if isinstance(found, Plan):
            builder = Builder(found.node, names, self.name, around.opset, ir_version)
            made = found.make(builder)
            put_in_place(found.node, made if isinstance(made, list) else [made], builder)
        return Site(label)


def label_of(node: Any) -> str:
    """What a site calls a node."""
    return f"{node.name or node.outputs[0].name} ({node.op_type})"


def _within_one_graph(plan: Plan) -> Plan | str:
    if any(node.graph is not plan.node.graph for node in plan.inner):
        return "its parts lie in different graphs"
    return plan


def keep(node: Any, value: Any) -> str | None:
    """Let ``value`` take the place of ``node``'s first output, and its name if that is a graph output; or why not."""
    old = node.outputs[0]
    if any(other.uses() or other.is_graph_output() for other in node.outputs[1:]):
        return "another of its results is used"
    if old.is_graph_output():
        if not _can_be_called(value, node):
            return "its result is a graph output"
        name, old.name = old.name, f"{old.name}/replaced"
        value.name, value.type = name, old.type or value.type
        value.shape = value.shape if old.shape is None else old.shape  # that of a scalar counts as false
    old.replace_all_uses_with(value, replace_graph_outputs=True)
    drop(node)
    return None


def _can_be_called(value: Any, node: Any) -> bool:
    """Whether ``value`` can take over the name of a graph output that ``node`` makes.

    Not where a node holds graphs: a name that is known earlier may be one that they use for something else.
    """
    maker = value.producer()
    if maker is None or maker.graph is not node.graph or value.is_graph_output():
        return False
    return not any(
        given.type.name in ("GRAPH", "GRAPHS") for other in node.graph for given in other.attributes.values()
    )


def outcome_of(sites: Sequence[Site], nothing: str, **figures: float) -> Outcome:
    """What was done at these places; ``nothing`` is said where there are none."""
    left = [site.reason for site in sites if site.reason]
    notes = () if sites else (nothing,)
    if left:
        reasons = "; ".join(list(dict.fromkeys(left))[:3])
        notes = (f"{len(left)} of {len(sites)} places left alone: {reasons}",)
    return Outcome(len(sites) - len(left), tuple(sites[:MOST_SITES]), notes, figures)


def attributes_of(node: Any, *left_out: str) -> dict[str, Any]:
    """A node's attributes, to be given to another one."""
    return {name: given for name, given in node.attributes.items() if name not in left_out}
