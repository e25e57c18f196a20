"""Ways through a ModelProto: every node, every graph, subgraphs and model-local functions included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["graphs_of", "nodes_of", "operator_of", "subgraphs", "walk"]


def subgraphs(node: Any) -> Iterator[Any]:
    """The graphs a node holds (If, Loop, Scan, and what other domains define)."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def walk(nodes: Any) -> Iterator[Any]:
    """Every node of ``nodes``, those in subgraphs included."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from walk(graph.node)


def nodes_of(proto: Any) -> Iterator[Any]:
    """Every node of a model, those of functions once."""
    for body in (proto.graph, *proto.functions):
        yield from walk(body.node)


def operator_of(node: Any) -> str:
    """A node's operator: its name, with the domain before it where that is not ONNX's own."""
    return str(node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}")


def graphs_of(proto: Any) -> Iterator[Any]:
    """The main graph and every subgraph, those in functions too."""
    yield proto.graph
    for node in nodes_of(proto):
        yield from subgraphs(node)
