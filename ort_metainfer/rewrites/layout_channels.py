"""Channels of convolutions padded to a multiple of what a device computes at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Context, Outcome, Parameter, Rewrite, Site
from ort_metainfer.rewrites.building import Builder, Names
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.node_rewrite import MOST_SITES
from ort_metainfer.rewrites.patterns import (
    FLOATS,
    all_graphs,
    attribute,
    axes_of,
    constant,
    constant_size,
    dims,
    dtype,
    learn_from,
    learn_types,
)

__all__ = ["REWRITES", "ChannelsPadded"]

UNARY = frozenset(
    (
        *("Abs", "Clip", "Elu", "Erf", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Mish", "Neg", "Relu"),
        *("Selu", "Sigmoid", "Softplus", "Tanh"),
    )
)
"""Operators that give a finite number for zero: what is in a padded channel meets a zero weight."""

BINARY = {"Add": 0.0, "Sub": 0.0, "Mul": 0.0, "Div": 1.0, "Max": 0.0, "Min": 0.0}
"""Operator -> what a constant of one number a channel is padded with."""

POOLING = frozenset(("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"))

NORM_PADDING = {1: 0.0, 2: 0.0, 3: 0.0, 4: 1.0}
"""Place among the inputs of BatchNormalization -> what it is padded with."""

LEAST_OPSET = 7


@dataclass
class Island:
    """Values of the same channels that are padded together or not at all.

    Attributes:
        channels: how many there are.
        values: by their ids.
        nodes: those that work on it channel by channel.
        makers: convolutions whose output is in it.
        users: convolutions whose input is in it.
        reason: why it is left alone; empty where it is not.
    """

    channels: int
    values: dict[int, Any] = field(default_factory=dict)
    nodes: list[Any] = field(default_factory=list)
    makers: list[Any] = field(default_factory=list)
    users: list[Any] = field(default_factory=list)
    reason: str = ""


class ChannelsPadded(Rewrite):
    """Channels between convolutions padded to a multiple with zero weights, and cut off where an island ends.

    An island is what lies between convolutions and works channel by channel: element-wise operators, pooling,
    BatchNormalization, depthwise convolutions. Every sum gets terms of exactly zero.
    """

    name = "channels-padded"
    dimension = "layout"
    promise = "exact"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "multiple": Parameter(int, 8, "channels become a multiple of this", values=(4, 8, 16, 32, 64)),
        "most_growth": Parameter(float, 1.5, "islands that would grow by more are left alone", numbers=(1.0, 64.0)),
    }
    evidence = "never measured to pay: no device that needs it has been measured"

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        """Fewer than two convolutions, or an opset whose operators broadcast in another way."""
        if graph.count("Conv") < 2:
            return "the model has no two Conv with channels between them"
        opset = graph.opsets.get("ai.onnx", 0)
        return None if opset >= LEAST_OPSET else f"the model is of opset {opset}; this needs {LEAST_OPSET}"

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Pad every island that is not aligned, in the graph and in each subgraph."""
        model = draft.ir
        opset = int(model.graph.opset_imports.get("", 0))
        if opset < LEAST_OPSET:
            return Outcome(0, notes=(f"the model is of an opset below {LEAST_OPSET}",))
        learn_types(model)
        work = _Work(Names(model), self.name, opset, model.ir_version, parameters)
        sites = [site for graph in all_graphs(model) for site in work.pad(graph)]
        changed = sum(not site.reason for site in sites)
        notes = (f"{changed} islands padded, {work.slices} places where the padding is cut off",)
        if not changed:
            notes = (sites[0].reason if sites else "no channels between convolutions",)
        return Outcome(changed, tuple(sites[:MOST_SITES]), notes, {"slices": float(work.slices)})


def _channels(value: Any) -> int | None:
    sizes = dims(value)
    return None if sizes is None or len(sizes) < 3 else sizes[1]


def is_plain_convolution(node: Any) -> bool:
    """A Conv of one group with constant weights."""
    return _has_weights(node) and attribute(node, "group", 1) == 1


def is_depthwise(node: Any) -> bool:
    """A Conv of one filter a channel with constant weights."""
    sizes = dims(node.inputs[1]) if _has_weights(node) else None
    return bool(sizes and sizes[0] == attribute(node, "group", 1) == _channels(node.inputs[0]) and sizes[1] == 1)


def _has_weights(node: Any) -> bool:
    if node.op_type != "Conv" or node.domain or dtype(node.inputs[0]) not in FLOATS:
        return False
    return all(constant_size(value) is not None for value in node.inputs[1:] if value is not None)


def channelwise(node: Any) -> list[Any] | None:
    """The values that share their channels at a node that works channel by channel; None for another one."""
    kind, output = node.op_type, node.outputs[0]
    channels = _channels(output)
    if node.domain or channels is None or dtype(output) not in FLOATS or len(node.outputs) != 1:
        return None
    if is_depthwise(node) or _follows(node):
        return [node.inputs[0], output]
    if kind not in BINARY:
        return None
    tensors = [value for value in node.inputs if constant_size(value) is None]
    if kind == "Div" and (len(tensors) != 1 or tensors[0] is not node.inputs[0]):
        return None
    size = len(dims(output) or ())
    fitting = all((dims(value) is not None) and len(dims(value) or ()) == size for value in tensors)
    if not fitting or any(_channels(value) not in (channels, 1) for value in tensors):
        return None
    if any(len(dims(value) or ()) > size for value in node.inputs):
        return None
    return [*(value for value in tensors if _channels(value) == channels), output]


def _follows(node: Any) -> bool:
    """Whether the output has the channels of the first input, and nothing else has any."""
    kind = node.op_type
    if kind in UNARY or kind in POOLING:
        return True
    if kind == "BatchNormalization":
        return all(constant_size(value) is not None for value in node.inputs[1:])
    if kind not in ("ReduceMean", "ReduceMax"):
        return False
    axes = axes_of(node, [])
    rank = len(dims(node.inputs[0]) or ())
    return bool(axes) and attribute(node, "keepdims", 1) == 1 and all(axis % rank >= 2 for axis in axes or ())


def islands(graph: Any) -> list[Island]:
    """Every island of a graph, in the order of their first values."""
    parent: dict[int, int] = {}
    values: dict[int, Any] = {}

    def root(key: int) -> int:
        while parent[key] != key:
            key = parent[key]
        return key

    groups = [(node, group) for node in graph if (group := _group(node)) is not None]
    for _, group in groups:
        for value in group:
            values[id(value)] = value
            parent.setdefault(id(value), id(value))
            parent[root(id(value))] = root(id(group[0]))
    found: dict[int, Island] = {}
    for key, value in values.items():
        island = found.setdefault(root(key), Island(_channels(value) or 0))
        island.values[key] = value
    for node, group in groups:
        island = found[root(id(group[0]))]
        if is_plain_convolution(node) and not is_depthwise(node):
            island.makers.append(node)
        else:
            island.nodes.append(node)
    for island in found.values():
        _complete(island, graph)
    return list(found.values())


def _group(node: Any) -> list[Any] | None:
    if is_depthwise(node):
        return [node.inputs[0], node.outputs[0]] if _channels(node.outputs[0]) else None
    if is_plain_convolution(node):
        return [node.outputs[0]] if _channels(node.outputs[0]) else None
    return channelwise(node)


def _complete(island: Island, graph: Any) -> None:
    """Find the users, and what stands in the way."""
    inside = {id(node) for node in (*island.nodes, *island.makers)}
    for value in island.values.values():
        producer = value.producer()
        if producer is None or id(producer) not in inside or producer.graph is not graph:
            made = "an input of the graph" if producer is None else f"made by {producer.op_type}"
            island.reason = island.reason or f"{value.name} is {made}, which cannot be padded"
        if _channels(value) != island.channels:
            island.reason = island.reason or f"{value.name} has other channels"
        for use in value.uses():
            node = use.node
            if node.graph is graph and use.idx == 0 and is_plain_convolution(node) and not is_depthwise(node):
                island.users.append(node)


class _Work:
    """Islands being padded."""

    def __init__(self, names: Names, label: str, opset: int, ir_version: int, parameters: Mapping[str, Any]) -> None:
        self.names, self.label, self.opset, self.ir_version = names, label, opset, ir_version
        self.multiple, self.most_growth = parameters["multiple"], parameters["most_growth"]
        self.slices = 0

    def builder(self, node: Any) -> Builder:
        return Builder(node, self.names, self.label, self.opset, self.ir_version)

    def pad(self, graph: Any) -> Iterator[Site]:
        """Pad the islands of a graph."""
        for island in islands(graph):
            if not island.makers or not island.users:
                continue
            label = f"{island.makers[0].name or island.makers[0].outputs[0].name} (Conv)"
            target = -(-island.channels // self.multiple) * self.multiple
            reason = island.reason or self.objection(island, target)
            if not reason:
                self.carry_out(island, target, graph)
            yield Site(label, reason)

    def objection(self, island: Island, target: int) -> str:
        if target == island.channels:
            return f"its {target} channels are a multiple of {self.multiple}"
        if target > island.channels * self.most_growth:
            return f"{target} channels in place of {island.channels} are more than {self.most_growth:g} times as many"
        return ""

    def carry_out(self, island: Island, target: int, graph: Any) -> None:
        more = target - island.channels
        aware = {id(node) for node in (*island.nodes, *island.users)}
        for node in island.makers:
            self.widen(node, {1: (0, more, 0.0), 2: (0, more, 0.0)})
        for node in dict.fromkeys(island.users):
            self.widen(node, {1: (1, more, 0.0)})
        for node in island.nodes:
            self.follow(node, island, more)
        for value in island.values.values():
            self.cut_off(value, island, aware, graph, target)

    def follow(self, node: Any, island: Island, more: int) -> None:
        """Give a node that works channel by channel what it needs for the new channels."""
        import onnx_ir

        if node.op_type == "Conv":
            self.widen(node, {1: (0, more, 0.0), 2: (0, more, 0.0)})
            node.attributes["group"] = onnx_ir.AttrInt64("group", island.channels + more)
        elif node.op_type == "BatchNormalization":
            self.widen(node, {place: (0, more, number) for place, number in NORM_PADDING.items()})
        elif node.op_type in BINARY:
            size = len(dims(node.outputs[0]) or ())
            for place, value in enumerate(node.inputs):
                sizes = dims(value) if constant_size(value) is not None else None
                axis = None if sizes is None else 1 - size + len(sizes)
                if sizes and axis is not None and axis >= 0 and sizes[axis] == island.channels:
                    self.widen(node, {place: (axis, more, BINARY[node.op_type])})

    def widen(self, node: Any, inputs: Mapping[int, tuple[int, int, float]]) -> None:
        """Pad constant inputs: place -> (axis, how many, with what)."""
        builder = self.builder(node)
        for place, (axis, more, number) in inputs.items():
            if place >= len(node.inputs) or node.inputs[place] is None:
                continue
            old = node.inputs[place]
            array = constant(old)
            assert array is not None
            pads = [(0, more if at == axis else 0) for at in range(array.ndim)]
            node.replace_input_with(place, builder.constant(np.pad(array, pads, constant_values=number)))
            _forget(old)
        if builder.nodes:
            node.graph.insert_before(node, builder.nodes)

    def cut_off(self, value: Any, island: Island, aware: set[int], graph: Any, target: int) -> None:
        """Widen a value, and give whoever does not know about it what it was."""
        import onnx_ir

        sizes = dims(value) or ()
        others = [use for use in value.uses() if id(use.node) not in aware or use.node.graph is not graph]
        if others or value.is_graph_output():
            node = value.producer()
            builder = self.builder(node)
            cut = builder.slice(value, [0], [island.channels], [1])
            learn_from(cut, value)
            graph.insert_after(node, builder.nodes)
            self.slices += 1
            for use in others:
                use.node.replace_input_with(use.idx, cut)
            if value.is_graph_output():
                self.hand_over(value, cut)
        wide = (sizes[0], target, *sizes[2:])
        learn_from(value, value, None)
        value.shape = onnx_ir.Shape(wide)
        value.meta["ort_metainfer.type"] = (value.dtype.value, wide) if value.dtype is not None else None

    def hand_over(self, value: Any, cut: Any) -> None:
        """Make ``cut`` the graph output that ``value`` was."""
        name, value.name = value.name, self.names.fresh(f"{value.name}/padded")
        cut.name, cut.type, cut.shape = name, value.type, value.shape
        kept = [use for use in value.uses() if use.node is not cut.producer()]
        value.replace_all_uses_with(cut, replace_graph_outputs=True)
        cut.producer().replace_input_with(0, value)
        for use in kept:
            use.node.replace_input_with(use.idx, value)


def _forget(value: Any) -> None:
    """Drop an initialiser that nobody uses any more."""
    if value.is_initializer() and not (value.uses() or value.is_graph_input() or value.is_graph_output()):
        del value.graph.initializers[value.name]


REWRITES: tuple[Rewrite, ...] = (ChannelsPadded(),)
