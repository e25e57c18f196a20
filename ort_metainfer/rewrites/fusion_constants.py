"""What depends on constants, or on shapes that are known, worked out once and for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Context, Outcome, Parameter, Rewrite, Site
from ort_metainfer.rewrites.building import Builder, Names, replace
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.folding_constants import Constants, computed, cones
from ort_metainfer.rewrites.fusing import DONE_BY_ORT, label_of, outcome_of
from ort_metainfer.rewrites.known_shapes import KnownShapes, known_shape_inputs
from ort_metainfer.rewrites.patterns import all_graphs, constant_size, learn_types

__all__ = ["REWRITES", "FoldConstants", "FoldShapes"]

MOST_TAKEN_BYTES = 1 << 29
"""Constants of more bytes than this together are not computed with."""

ROUNDS = 6


class FoldConstants(Rewrite):
    """Nodes that depend on constants alone replaced by what they give, as onnxruntime computes it.

    Left alone: random operators, quantisation, graph outputs, what defaults of inputs go into, and values that would
    make the model grow by more than ``growth_bytes`` each.
    """

    name = "fold-constants"
    dimension = "fusion"
    promise = "exact"
    evidence = DONE_BY_ORT
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "growth_bytes": Parameter(
            int, 1 << 20, "bytes that a value may be larger than the constants it is made of", numbers=(0, 1 << 32)
        )
    }

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        """Nothing to compute, or nothing to compute with."""
        return None if graph.node_count else "the model has no node"

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Fold until nothing is left to fold: what growing operators grow to is known after a round."""
        return _that_loads(draft, lambda: self._folded(draft, parameters))

    def _folded(self, draft: Draft, parameters: Mapping[str, Any]) -> Outcome:
        sites: list[Site] = []
        for _ in range(ROUNDS):
            left = [site for site in sites if not site.reason]
            found = fold(draft.ir, self.name, parameters["growth_bytes"])
            sites = [*left, *found]
            if all(site.reason for site in found):
                break
        return outcome_of(sites, "nothing depends on constants alone")


def _that_loads(draft: Draft, change: Callable[[], Outcome]) -> Outcome:
    """What ``change`` does; nothing where it makes a condition of an If constant and onnxruntime then refuses that.

    onnxruntime puts the branch in the place of such an If as it optimises, and what it learns of shapes there may be
    more than the model stands: a Range of vectors runs as long as nobody looks.
    """
    decided = _constant_conditions(draft.ir)
    if decided is None:
        return change()
    before = draft.ir.clone()
    outcome = change()
    if (_constant_conditions(draft.ir) or set()) <= decided:
        return outcome
    reason = _refusal(draft.file())
    if reason is None:
        return outcome
    draft.go_on_with(before)
    note = f"with a condition that is constant onnxruntime does not load the model: {reason}"
    return replace_fields(outcome, changed=0, sites=(), notes=(note,))


def _constant_conditions(model: Any) -> set[str] | None:
    """The results of those If nodes whose condition is constant; None where there is no If."""
    branching = [node for graph in all_graphs(model) for node in graph if node.op_type == "If" and not node.domain]
    constant = {node.outputs[0].name for node in branching if constant_size(node.inputs[0]) is not None}
    return constant if branching else None


def _refusal(file: Path) -> str | None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 (onnxruntime's many classes)
        return str(error).splitlines()[0]
    return None


def fold(model: Any, label: str, growth_bytes: int) -> list[Site]:
    """Replace every value of the model that depends on constants alone; what was done, value by value."""
    learn_types(model)
    names = Names(model)
    opsets = {domain: version for domain, version in model.graph.opset_imports.items() if domain in ("", "ai.onnx")}
    sites: list[Site] = []
    for graph in all_graphs(model):
        parts = []
        for part in cones(graph, MOST_TAKEN_BYTES):
            if part.taken_bytes > MOST_TAKEN_BYTES:
                sites.append(Site(label_of(part.nodes[-1]), "its constants are too large"))
            else:
                parts.append(part)
        for part, values in computed(parts, opsets or {"": 17}, model.ir_version):
            sites.append(_put(part, values, names, label, growth_bytes, model))
    return sites


def _put(
    part: Constants, values: Sequence[np.ndarray] | str, names: Names, label: str, growth_bytes: int, model: Any
) -> Site:
    node = part.nodes[-1]
    where = label_of(node)
    if isinstance(values, str):
        return Site(where, values)
    if any(value.nbytes > part.taken_bytes + growth_bytes for value in values):
        return Site(where, "its value would make the model larger")
    builder = Builder(node, names, label, model.graph.opset_imports.get("", 17), model.ir_version)
    by_id = {id(value): builder.constant(array) for value, array in zip(part.wanted, values, strict=True)}
    replace(node, [by_id.get(id(value)) for value in node.outputs], builder)
    return Site(where)


class FoldShapes(Rewrite):
    """Shapes that are computed as the model runs replaced by constants, as far as the sizes of the inputs say them.

    ``Shape`` of what has a known shape, a known size taken from a shape, and the shape operand of Reshape, Expand and
    ConstantOfShape: with 0 where Reshape keeps a size, and -1 for one that is open. Then constants are folded. Declared
    shapes of inner values are not believed. For sizes that a session is known to run with, fix the input shapes first.
    """

    name = "fold-shapes"
    evidence = (
        "onnxruntime 1.32's CPU provider, two cores of an AMD EPYC: 1.08 [1.06, 1.08] on Silero VAD (212 nodes after "
        "onnxruntime's own optimiser, 136 with it); 1.00 on MiniLM (129, 127) and magika"
    )
    on_by_default = True
    dimension = "fusion"
    promise = "exact"

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        """Nothing that makes or takes a shape."""
        wanted = ("Shape", "Size", "Reshape", "Expand", "ConstantOfShape")
        return None if graph.count(*wanted) else f"the model has no {', '.join(wanted[:-1])} or {wanted[-1]}"

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Shapes first, then what is constant because of them."""
        return _that_loads(draft, lambda: self._folded(draft.ir))

    def _folded(self, model: Any) -> Outcome:
        sites = list(self._known(model))
        if any(not site.reason for site in sites):
            fold(model, self.name, 1 << 16)
        return outcome_of(sites, "no shape is computed as the model runs")

    def _known(self, model: Any) -> Iterator[Site]:
        learn_types(model)
        shapes, names = KnownShapes(model), Names(model)
        for graph in all_graphs(model):
            for node in tuple(graph):
                if node.graph is None or node.domain:
                    continue
                builder = Builder(node, names, self.name, model.graph.opset_imports.get("", 17), model.ir_version)
                array = shapes.value_of(node)
                if array is not None and not node.outputs[0].is_graph_output():
                    label = label_of(node)
                    replace(node, [builder.constant(array)], builder)
                    yield Site(label)
                elif node.op_type in known_shape_inputs:
                    yield from _operand_known(node, shapes, builder)


def _operand_known(node: Any, shapes: KnownShapes, builder: Builder) -> Iterator[Site]:
    """Replace the shape operand of a Reshape, Expand or ConstantOfShape, where it is not constant already."""
    shape = shapes.operand_of(node)
    if shape is None:
        return
    if isinstance(shape, str):
        yield Site(label_of(node), shape)
        return
    from ort_metainfer.rewrites.building import drop

    place = known_shape_inputs[node.op_type]
    old = node.inputs[place]
    new = builder.constant(np.asarray(shape, np.int64))
    if builder.nodes:
        node.graph.insert_before(node, builder.nodes)
    node.replace_input_with(place, new)
    if old.producer() is not None:
        drop(old.producer())
    yield Site(label_of(node))


REWRITES: tuple[Rewrite, ...] = (FoldConstants(), FoldShapes())
