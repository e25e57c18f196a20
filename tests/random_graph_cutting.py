"""Making a failing random graph smaller node by node: what is cut off becomes an input fed with the value it had."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import onnx
from onnx import helper

from tests.random_graphs import RandomGraph
from tests.rewrite_run import outputs

Fails = Callable[[RandomGraph], bool]


def cut(graph: RandomGraph, fails: Fails) -> RandomGraph:
    """The smallest graph found that fails as well: one output, as early as it can be, and few nodes before it."""
    for output in graph.model.graph.output:
        single = without_dead_parts(graph, [output])
        if fails(single):
            graph = single
            break
    names = [name for node in graph.model.graph.node for name in node.output if name]
    ends = (ending_at(graph, name) for name in names)
    graph = next((early for early in ends if early is not None and fails(early)), graph)
    for name in [name for node in reversed(graph.model.graph.node) for name in node.output if name]:
        smaller = fed_from(graph, name)
        if smaller is not None and len(smaller.model.graph.node) < len(graph.model.graph.node) and fails(smaller):
            graph = smaller
    return graph


def ending_at(graph: RandomGraph, name: str) -> RandomGraph | None:
    """The graph with the value ``name`` as its only output."""
    found = _value_of(graph, name)
    return None if found is None else without_dead_parts(graph, [_declared(name, found, shaped=False)])


def fed_from(graph: RandomGraph, name: str) -> RandomGraph | None:
    """The graph with the value ``name`` as an input; None where it cannot be one."""
    body = graph.model.graph
    beside = {other for node in body.node if name in node.output for other in node.output} - {name}
    used = {value.name for value in body.output}.union(*map(_names_used, body.node))
    if name in {value.name for value in body.output} or beside & used:
        return None
    found = _value_of(graph, name)
    if found is None:
        return None
    feeds = tuple(dict(feed) | {name: array} for feed, array in zip(graph.feeds, found, strict=True))
    given = _declared(name, found, shaped=_equal_shapes(found))
    return without_dead_parts(replace(graph, feeds=feeds), list(body.output), [given])


def _value_of(graph: RandomGraph, name: str) -> list[Any] | None:
    """The value with each feed; None where onnxruntime cannot give it out."""
    asked = onnx.ModelProto()
    asked.CopyFrom(graph.model)
    asked.graph.output.insert(0, onnx.ValueInfoProto(name=name))
    try:
        return [run[0] for run in outputs(asked.SerializeToString(), graph.feeds)]
    except Exception:  # noqa: BLE001 (onnxruntime's many classes)
        return None


def _declared(name: str, found: list[Any], shaped: bool) -> Any:
    kind = helper.np_dtype_to_tensor_dtype(found[0].dtype)
    return helper.make_tensor_value_info(name, kind, list(found[0].shape) if shaped else [None] * found[0].ndim)


def _equal_shapes(arrays: Iterable[Any]) -> bool:
    return len({array.shape for array in arrays}) == 1


def without_dead_parts(graph: RandomGraph, ends: list[Any], fresh: Iterable[Any] = ()) -> RandomGraph:
    """Only what ``ends`` need, with ``fresh`` as inputs."""
    body, fresh = graph.model.graph, list(fresh)
    needed = {value.name for value in ends}
    given = {value.name for value in fresh}
    nodes: list[Any] = []
    for node in reversed(body.node):
        if needed.intersection(node.output) - given and not given.intersection(node.output):
            nodes.insert(0, node)
            needed.update(_names_used(node))
    inputs = [value for value in (*body.input, *fresh) if value.name in needed]
    weights = [tensor for tensor in body.initializer if tensor.name in needed]
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    model.graph.CopyFrom(helper.make_graph(nodes, body.name, inputs, ends, weights))
    kept = {value.name for value in inputs}
    feeds = tuple({name: array for name, array in feed.items() if name in kept} for feed in graph.feeds)
    return RandomGraph(graph.plan, model, feeds, graph.steps)


def _names_used(node: Any) -> set[str]:
    names = set(node.input)
    for attribute in node.attribute:
        for inner in attribute.g.node if attribute.HasField("g") else ():
            names |= _names_used(inner)
        names |= {value.name for value in attribute.g.output} if attribute.HasField("g") else set()
    return names
