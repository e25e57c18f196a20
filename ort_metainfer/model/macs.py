"""Multiply-accumulates of one run, counted from shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ort_metainfer.model.shapes import Scope
from ort_metainfer.model.stand_ins import STANDS_FOR
from ort_metainfer.model.walking import subgraphs

__all__ = ["count_macs", "node_macs", "trips"]


def count_macs(graph: Any, outer: Scope | None = None) -> int | None:
    """Multiply-accumulates of one run of ``graph``, whose shapes have been inferred; None where nothing can be counted.

    With numel(t) the elements of a tensor, of one node:

    * Conv: numel(Y) x numel(W) / W.shape[0], which is numel(Y) x (channels per group) x (kernel elements)
    * ConvTranspose: numel(X) x numel(W) / W.shape[0]
    * Gemm, MatMul: numel(Y) x (length of the axis summed over)
    * LSTM, GRU, RNN: steps x batch x directions x gates x hidden x (features + hidden); 4, 3 and 1 gates
    * Einsum of two operands without an ellipsis: product of the sizes of all its labels
    * Attention: query x keys and weights x values, numel(Q) x keys + numel(Y) x keys; onnxruntime's own also project
      first, numel(X) x W.shape[1]

    and the integer forms as the float ones. Element-wise work, pooling and normalisation count nothing. An If counts as
    its larger branch, a Loop or Scan as often as its trip count is known, else once. Nodes with unknown shapes are left
    out, so that the result is a lower bound where some are.
    """
    scope = Scope.of(graph, outer)
    return _total(node_macs(node, scope) for node in graph.node)


def _total(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def node_macs(node: Any, scope: Scope) -> int | None:
    """Multiply-accumulates of one node, its subgraphs included; None where they are not counted or not known."""
    inner = [count_macs(graph, scope) for graph in subgraphs(node)]
    if inner:
        known = [count for count in inner if count is not None]
        return max(known) * trips(node, scope) if known else None
    marks = [attribute.s.decode() for attribute in node.attribute if attribute.name == STANDS_FOR]
    rule = _RULES.get(marks[0] if marks else node.op_type) if node.domain in ("", "ai.onnx") else None
    try:
        return None if rule is None else rule(node, scope)
    except (LookupError, ValueError):  # a size is not known, or the node is not as its operator demands
        return None


def trips(node: Any, scope: Scope) -> int:
    """How often a node runs its subgraph: a Loop's or Scan's trips where they are known, else once."""
    if node.op_type == "Loop" and node.input and node.input[0] in scope.constants:
        return max(0, int(scope.constants[node.input[0]].max(initial=0)))
    if node.op_type == "Scan":
        scanned = _attribute(node, "num_scan_inputs", 1)
        sizes = scope.sizes(node.input[len(node.input) - scanned]) if len(node.input) >= scanned else None
        return sizes[0] if sizes else 1
    return 1


class _UnknownShape(LookupError):
    """A size the rule needs is not known."""


def _sizes(node: Any, position: int, scope: Scope) -> tuple[int, ...]:
    """Sizes of an input, or (negative ``position``) of the first output."""
    name = node.output[0] if position < 0 else node.input[position]
    sizes = scope.sizes(name)
    if sizes is None:
        raise _UnknownShape(name)
    return sizes


def _attribute(node: Any, name: str, default: int) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), default)


def _conv(data: int, weight: int) -> Callable[[Any, Scope], int]:
    def rule(node: Any, scope: Scope) -> int:
        kernel = _sizes(node, weight, scope)
        return math.prod(_sizes(node, data, scope)) * math.prod(kernel[1:])

    return rule


def _matmul(node: Any, scope: Scope) -> int:
    return math.prod(_sizes(node, -1, scope)) * _sizes(node, 0, scope)[-1]


def _gemm(node: Any, scope: Scope) -> int:
    axis = 0 if _attribute(node, "transA", 0) else 1
    return math.prod(_sizes(node, -1, scope)) * _sizes(node, 0, scope)[axis]


def _recurrent(gates: int) -> Callable[[Any, Scope], int]:
    def rule(node: Any, scope: Scope) -> int:
        steps, batch, features = _sizes(node, 0, scope)
        hidden = _attribute(node, "hidden_size", 0)
        both = any(attribute.name == "direction" and attribute.s == b"bidirectional" for attribute in node.attribute)
        return steps * batch * (2 if both else 1) * gates * hidden * (features + hidden)

    return rule


def _einsum(node: Any, scope: Scope) -> int | None:
    equation = next((attribute.s.decode() for attribute in node.attribute if attribute.name == "equation"), "")
    terms = equation.replace(" ", "").split("->")[0].split(",")
    if len(terms) != 2 or "." in equation:
        return None
    sizes: dict[str, int] = {}
    for position, term in enumerate(terms):
        sizes.update(zip(term, _sizes(node, position, scope), strict=False))
    return math.prod(sizes.values())


def _attention(node: Any, scope: Scope) -> int:
    """Query [.., S, D], key [.., L, D], of three or four axes; a past is not counted."""
    keys = _sizes(node, 1, scope)[-2]
    return (math.prod(_sizes(node, 0, scope)) + math.prod(_sizes(node, -1, scope))) * keys


def _self_attention(node: Any, scope: Scope) -> int:
    """X [B, S, D] is projected by W [D, 3D] to query, key and value; a past is not counted."""
    data, weight = _sizes(node, 0, scope), _sizes(node, 1, scope)
    return math.prod(data) * weight[1] + 2 * math.prod(data) * data[1]


_RULES: Mapping[str, Callable[[Any, Scope], int | None]] = MappingProxyType(
    {
        "Conv": _conv(-1, 1),
        "ConvInteger": _conv(-1, 1),
        "QLinearConv": _conv(-1, 3),
        "ConvTranspose": _conv(0, 1),
        "Gemm": _gemm,
        "MatMul": _matmul,
        "MatMulInteger": _matmul,
        "QLinearMatMul": _matmul,
        "LSTM": _recurrent(4),
        "GRU": _recurrent(3),
        "RNN": _recurrent(1),
        "Einsum": _einsum,
        "Attention": _attention,
        "com.microsoft.MultiHeadAttention": _attention,
        "com.microsoft.Attention": _self_attention,
        "com.microsoft.QAttention": _self_attention,
    }
)
