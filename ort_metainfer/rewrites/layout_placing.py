"""Transposes put where they cost least: merged where they follow each other, and moved as the cheapest layouts say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ort_metainfer.rewrites.building import Builder, Names, drop
from ort_metainfer.rewrites.layout_moves import permuted
from ort_metainfer.rewrites.layout_regions import Region, cheapest, inverse, order_of, regions, size_of
from ort_metainfer.rewrites.patterns import all_graphs, constant, constant_size, learn_from

__all__ = ["Placed", "place_transposes", "transpose_cost"]

MOST_ROUNDS = 40
"""Regions changed in one graph at most; each makes it cheaper."""


LARGE_ELEMENTS = 1 << 18
"""A constant beyond this is not kept in two orders."""


@dataclass
class Placed:
    """What became of the transposes.

    Attributes:
        changed: regions changed and transposes merged.
        moved: elements that transposes moved in one run, before and after.
        kept: name of a transpose -> why it stays.
    """

    changed: int = 0
    moved: tuple[int, int] = (0, 0)
    kept: dict[str, str] = field(default_factory=dict)


def transpose_cost(model: Any) -> int:
    """Elements that transposes of anything but constants move in one run."""
    return sum(
        size_of(node.inputs[0])
        for graph in all_graphs(model)
        for node in graph
        if node.op_type == "Transpose" and not node.domain and constant_size(node.inputs[0]) is None
    )


def place_transposes(model: Any, label: str) -> Placed:
    """Rewrite the model in place; types must have been learnt (``patterns.learn_types``), and are known afterwards."""
    before, placed, names = transpose_cost(model), Placed(), Names(model)
    opset = int(model.graph.opset_imports.get("", 0))
    for graph in all_graphs(model):
        work = _Graph(graph, names, label, opset, model.ir_version)
        changed = work.carry_out()
        if changed:
            graph.sort()
        placed.changed += changed
        placed.kept |= work.kept
    placed.moved = (before, transpose_cost(model))
    return placed


class _Graph:
    """One graph while its transposes are placed."""

    def __init__(self, graph: Any, names: Names, label: str, opset: int, ir_version: int) -> None:
        self.graph, self.names, self.label, self.opset, self.ir_version = graph, names, label, opset, ir_version
        self.kept: dict[str, str] = {}

    def builder(self, node: Any) -> Builder:
        return Builder(node, self.names, self.label, self.opset, self.ir_version)

    def carry_out(self) -> int:
        """Until nothing is left to gain; how much was changed."""
        total = 0
        for _ in range(MOST_ROUNDS):
            changed = self.fold() + self.merge()
            changed += self.improve()
            total += changed
            if not changed:
                break
        return total

    def fold(self) -> int:
        """Transpose constants here and now; how many there were."""
        count = 0
        for node in tuple(self.graph):
            order = order_of(node)
            if order is None or not _is_foldable(node.inputs[0]) or node.outputs[0].is_graph_output():
                continue
            builder, array = self.builder(node), constant(node.inputs[0])
            if array is None:
                continue
            value = builder.constant(np.ascontiguousarray(np.transpose(array, order)))
            self.graph.insert_before(node, builder.nodes)
            self.take_place(node.outputs[0], value)
            drop(node)
            count += 1
        return count

    def merge(self) -> int:
        """Make one transpose of two that follow each other, none of one that changes nothing; how many there were."""
        count = 0
        for node in tuple(self.graph):
            order = order_of(node)
            if order is None or node.graph is None:
                continue
            source, first = node.inputs[0], node.inputs[0].producer()
            inner = None if first is None or first.graph is not self.graph else order_of(first)
            if inner is not None:
                source, order = first.inputs[0], tuple(permuted(inner, order))
            if order != tuple(sorted(order)):
                if inner is None:
                    continue
                source = self.transpose(node, source, order)
            elif not self.replaceable(node, source):
                continue
            self.take_place(node.outputs[0], source)
            drop(node)
            count += 1
        return count

    def replaceable(self, node: Any, source: Any) -> bool:
        """Whether ``source`` itself may stand for the node's output; a graph output has to be made here."""
        return not node.outputs[0].is_graph_output() or _may_be_renamed(source, self.graph)

    def transpose(self, place: Any, source: Any, order: Sequence[int], after: bool = False) -> Any:
        """A new transpose of ``source`` at ``place``."""
        builder = self.builder(place)
        value = builder("Transpose", source, perm=list(order))
        learn_from(value, source, order)
        if after:
            self.graph.insert_after(place, builder.nodes)
        else:
            self.graph.insert_before(place, builder.nodes)
        return value

    def take_place(self, old: Any, new: Any) -> None:
        """Let ``new`` be used for ``old``, under its name where it is a graph output."""
        if old.is_graph_output():
            old_name = old.name
            old.name = self.names.fresh(f"{old_name}/replaced")
            new.name = old_name
            new.type, new.shape = old.type, old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)

    def improve(self) -> int:
        """Change the first region whose transposes can be cheaper; 1 where there was one."""
        self.kept.clear()
        for order in self.orders():
            for region in regions(self.graph, order, self.opset):
                cost, layouts = cheapest(region)
                if cost < region.cost:
                    _Assignment(self, region, layouts).carry_out()
                    return 1
                for node in region.transposes:
                    self.kept[node.name or node.outputs[0].name] = _why(region)
        return 0

    def orders(self) -> list[tuple[int, ...]]:
        """What transposes here permute by, each pair of inverses once."""
        found: dict[tuple[int, ...], None] = {}
        for node in self.graph:
            order = order_of(node)
            if order is None or constant_size(node.inputs[0]) is not None:
                continue
            if order not in found and inverse(order) not in found and order != tuple(sorted(order)):
                found[order] = None
        return list(found)


def _why(region: Region) -> str:
    if not region.moves:
        return "what makes its input and what uses its output each need their own order of axes"
    return "moved anywhere else it would have as much or more to move"


class _Assignment:
    """A region on its way to the layouts it was given."""

    def __init__(self, work: _Graph, region: Region, layouts: dict[int, int]) -> None:
        self.work, self.region = work, region
        self.moved = [
            (node, move, layouts[key])
            for key, (node, move) in region.moves.items()
            if layouts[key] != region.layout[id(node.outputs[0])]
        ]
        self.forms: dict[tuple[int, int], Any] = {}
        for value in region.values:  # what is made comes before what a transpose makes of it
            if region.origin(value) is value:
                self.forms[self.key(value, region.layout[id(value)])] = value

    def key(self, value: Any, layout: int) -> tuple[int, int]:
        return id(self.region.origin(value)), layout

    def carry_out(self) -> None:
        keys = {id(value): self.key(value, self.region.layout[id(value)]) for value in self.region.values}
        made = [self.remake(node, move, layout, keys) for node, move, layout in self.moved]
        self.unite_transposes(keys)
        for new, move, layout in made:
            self.feed(new, move, layout, keys)
        self.restore_old_forms(keys)
        for node in self.region.transposes:
            drop(node)

    def remake(self, node: Any, move: Any, layout: int, keys: dict[int, tuple[int, int]]) -> tuple[Any, Any, int]:
        """The node in the other layout, fed as before as yet; the old one has no node any more that it feeds."""
        import onnx_ir

        builder = self.work.builder(node)
        old_layout = self.region.layout[id(node.outputs[0])]
        order = self.region.between(old_layout, layout)
        adapted = move.adapt(node, order, builder)
        outputs = [onnx_ir.Value(name=self.work.names.fresh(f"{value.name}/moved")) for value in node.outputs]
        attributes = {name: given for name, given in node.attributes.items() if name not in adapted.attributes}
        new = onnx_ir.Node(
            node.domain,
            node.op_type,
            [adapted.inputs.get(place, value) for place, value in enumerate(node.inputs)],
            [*attributes.values(), *(_attribute(name, value) for name, value in adapted.attributes.items())],
            outputs=outputs,
            name=node.name,
            doc_string=node.doc_string,
            metadata_props=dict(node.metadata_props),
        )
        self.work.graph.insert_before(node, [*builder.nodes, new])
        for old, value in zip(node.outputs, outputs, strict=True):
            learn_from(value, old, order)
            keys[id(value)] = (keys[id(old)][0], layout)
            self.forms[keys[id(value)]] = value
            self.forms.pop((keys[id(old)][0], old_layout), None)
        return new, move, layout

    def unite_transposes(self, keys: dict[int, tuple[int, int]]) -> None:
        """Whatever form of a tensor there is without a transpose, is used; else the first transpose's."""
        for node in self.region.transposes:
            output = node.outputs[0]
            there = self.forms.setdefault(keys[id(output)], output)
            if there is output:
                continue
            if output.is_graph_output() and not _may_be_renamed(there, self.work.graph):
                there = self.work.builder(node)("Identity", there)
                self.work.graph.insert_before(node, [there.producer()])
                keys[id(there)] = keys[id(output)]
            self.work.take_place(output, there)

    def feed(self, new: Any, move: Any, layout: int, keys: dict[int, tuple[int, int]]) -> None:
        """Give a remade node its inputs in its own layout."""
        for place in move.data:
            tensor, _ = keys[id(new.inputs[place])]
            there = self.forms.get((tensor, layout))
            if there is None:
                made = self.forms[(tensor, 1 - layout)]
                there = self.work.transpose(new, made, self.region.between(1 - layout, layout))
                self.forms[(tensor, layout)] = there
            new.replace_input_with(place, there)

    def restore_old_forms(self, keys: dict[int, tuple[int, int]]) -> None:
        """Where the old form of a moved node's output is still wanted, make it of the new one; drop the old node."""
        old_nodes = [node for node, _, _ in self.moved]
        for node, _, layout in self.moved:
            for output in node.outputs:
                wanted = output.is_graph_output() or any(
                    all(use.node is not old for old in old_nodes) and not self.is_idle(use.node)
                    for use in output.uses()
                )
                if wanted:
                    self.restore(output, keys[id(output)][0], layout)
        for node in reversed(old_nodes):
            for place in range(len(node.inputs)):
                node.replace_input_with(place, None)
        for node in old_nodes:
            drop(node)

    def restore(self, output: Any, tensor: int, layout: int) -> None:
        old_layout = self.region.layout[id(output)]
        there = self.forms.get((tensor, old_layout))
        if there is None or output.is_graph_output():
            new = self.forms[(tensor, layout)]
            order = self.region.between(layout, old_layout)
            there = self.work.transpose(new.producer(), new, order, after=True)
        self.forms[(tensor, old_layout)] = there
        self.work.take_place(output, there)

    def is_idle(self, node: Any) -> bool:
        """Whether it is one of the transposes, and nobody uses what it makes."""
        output = node.outputs[0]
        return self.region.changes_form(node) and not output.uses() and not output.is_graph_output()


def _is_foldable(value: Any) -> bool:
    """Whether it is a constant that is large only if nobody else needs it as it is."""
    size = constant_size(value)
    return size is not None and (size <= LARGE_ELEMENTS or len(value.uses()) == 1)


def _attribute(name: str, value: Any) -> Any:
    import onnx_ir

    return onnx_ir.AttrInt64(name, value) if isinstance(value, int) else onnx_ir.AttrInt64s(name, value)


def _may_be_renamed(value: Any, graph: Any) -> bool:
    """Whether it is made by a node of this graph, and its name is nobody's business."""
    producer = value.producer()
    return producer is not None and producer.graph is graph and not value.is_graph_output()
