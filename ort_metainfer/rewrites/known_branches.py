"""Branches that fixed shapes decide: an If whose condition follows from them is replaced by what it then does.

Exporters write a Squeeze of one axis as an If on that axis' size. Left in, the branch that is never taken is inferred
with the fixed sizes as well, for which it was not written, and onnxruntime refuses the whole model for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import onnx

from ort_metainfer.model.inference import infer
from ort_metainfer.model.shapes import Scope
from ort_metainfer.model.walking import graphs_of, nodes_of, subgraphs

__all__ = ["forget_declared_inside", "holds_graphs", "settle_branches"]

MAX_ROUNDS = 16
"""Each round settles one level of nesting at least; what was seen is four levels deep."""

Renamed = Mapping[str, str]


def holds_graphs(proto: Any) -> bool:
    """Whether any node holds a graph: If, Loop, Scan."""
    return any(True for node in nodes_of(proto) for _ in subgraphs(node))


def settle_branches(proto: Any, bare: Any, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Any, int]:
    """Replace, in place, each If whose condition follows from ``shapes``.

    Args:
        proto: the model, with its weights.
        bare: its skeleton; the same is done to it.
        shapes: input -> shape.

    Returns:
        The skeleton with shapes inferred, and how many were replaced in ``proto``.
    """
    settled = 0
    inferred, _ = infer(bare, shapes)
    for _ in range(MAX_ROUNDS):
        taken = _Names(proto)
        known = {name: taken_then for name, taken_then in _conditions(inferred.graph) if taken.is_single(name)}
        if not known or not _settle(bare.graph, known, taken):
            break
        settled += _settle(proto.graph, known, taken)
        inferred, _ = infer(bare, shapes)
    return inferred, settled


def forget_declared_inside(proto: Any) -> None:
    """Clear the shapes declared of branches' outputs: onnxruntime takes wrong ones, inference does not."""
    for node in nodes_of(proto):
        for graph in subgraphs(node) if node.op_type == "If" else ():
            for value in graph.output:
                if value.type.HasField("tensor_type"):
                    value.type.tensor_type.ClearField("shape")


class _Names:
    """The names of a model: which are defined once only, and which are free."""

    def __init__(self, proto: Any) -> None:
        self._defined = Counter(name for graph in graphs_of(proto) for name in _defined_in(graph))

    def is_single(self, name: str) -> bool:
        return self._defined[name] == 1

    def is_free(self, name: str) -> bool:
        return not self._defined[name]


def _defined_in(graph: Any) -> Iterator[str]:
    initialised = {tensor.name for tensor in graph.initializer}
    yield from initialised
    yield from (value.name for value in graph.input if value.name not in initialised)
    yield from (name for node in graph.node for name in node.output if name)


def _conditions(graph: Any, outer: Scope | None = None) -> Iterator[tuple[str, bool]]:
    """First output -> condition, of every If whose condition is a known constant."""
    scope = Scope.of(graph, outer)
    for node in graph.node:
        if node.op_type == "If" and not node.domain and node.output and node.output[0]:
            condition = scope.constants.get(node.input[0])
            if condition is not None and condition.size == 1:
                yield node.output[0], bool(condition.reshape(-1)[0])
        for inner in subgraphs(node):
            yield from _conditions(inner, scope)


def _settle(graph: Any, known: Mapping[str, bool], names: _Names) -> int:
    """Replace the Ifs of ``known`` in a graph and those below it; an inner one is left to the next round."""
    nodes: list[Any] = []
    settled = 0
    for node in graph.node:
        branch = _branch(node, known, names)
        if branch is not None:
            nodes += _spliced(node, branch, graph)
            settled += 1
            continue
        settled += sum(_settle(inner, known, names) for inner in subgraphs(node))
        nodes.append(node)
    if settled:
        kept = onnx.GraphProto(node=nodes)
        del graph.node[:]
        graph.node.extend(kept.node)
    return settled


def _branch(node: Any, known: Mapping[str, bool], names: _Names) -> Any:
    """The branch that ``node`` takes; None where it is no such If, or its values would clash with others."""
    if node.op_type != "If" or not node.output or node.output[0] not in known:
        return None
    wanted = "then_branch" if known[node.output[0]] else "else_branch"
    branch = next((attribute.g for attribute in node.attribute if attribute.name == wanted), None)
    if branch is None or not all(names.is_free(_inner(node, name)) for name in _defined_in(branch)):
        return None
    return branch


def _inner(node: Any, name: str) -> str:
    return f"{node.output[0]}:{name}"


def _spliced(node: Any, branch: Any, graph: Any) -> list[Any]:
    """The nodes that stand for ``node``: those of its branch, under names of their own; weights go to ``graph``."""
    renamed = {name: _inner(node, name) for name in _defined_in(branch)}
    moved = onnx.GraphProto()
    moved.CopyFrom(branch)
    for tensor in moved.initializer:
        tensor.name = renamed[tensor.name]
    graph.initializer.extend(moved.initializer)
    _rename(moved.node, renamed)
    results = [
        onnx.helper.make_node("Identity", [renamed.get(value.name, value.name)], [name], name=_inner(node, name))
        for value, name in zip(branch.output, node.output, strict=False)
        if name
    ]
    return [*moved.node, *results]


def _rename(nodes: Any, renamed: Renamed) -> None:
    for node in nodes:
        for side in (node.input, node.output):
            side[:] = [renamed.get(name, name) for name in side]
        for inner in subgraphs(node):
            own = set(_defined_in(inner))
            below = {name: new for name, new in renamed.items() if name not in own}
            _rename(inner.node, below)
            for value in inner.output:  # one that is handed on from outside
                value.name = below.get(value.name, value.name)
