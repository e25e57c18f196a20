"""Finding attention in a graph: softmax(scale * Q K^T + mask) V with heads split off and joined by transposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ort_metainfer.rewrites.factors import product_of
from ort_metainfer.rewrites.known_shapes import sizes_of
from ort_metainfer.rewrites.patterns import attribute, produced

__all__ = ["Attention", "attention_of"]

SPLIT = [0, 2, 1, 3]
"""[batch, time, heads, size] -> [batch, heads, time, size], and back."""

SPLIT_AND_TURNED = [0, 2, 3, 1]
"""The same with time last, as the scores' second factor has it."""

TURNED = [0, 1, 3, 2]


@dataclass(frozen=True)
class Attention:
    """One attention.

    Attributes:
        query, key, value: [batch, time, heads, size], before the heads come forward.
        mask: what is added to the scores; None: nothing.
        scores: [batch, heads, time, time], before the mask.
        scale: what the scores are multiplied with.
        heads: how many.
        nodes: all nodes of the pattern.
    """

    query: Any
    key: Any
    value: Any
    mask: Any
    scores: Any
    scale: float
    heads: int
    nodes: Sequence[Any]


def attention_of(joined: Any) -> Attention | str | None:
    """The attention that ends in the Transpose ``joined``; or why it has another form; None: no attention at all."""
    mixed = produced(joined.inputs[0], "MatMul") if attribute(joined, "perm") == SPLIT else None
    weights = None if mixed is None else produced(mixed.inputs[0], "Softmax")
    if mixed is None or weights is None:
        return None
    if attribute(weights, "axis", -1) not in (-1, 3):
        return "the softmax is not along the keys"
    value = produced(mixed.inputs[1], "Transpose")
    if value is None or attribute(value, "perm") != SPLIT:
        return "the values' heads are not split off by a transpose"
    found = _scores(weights.inputs[0])
    if found is None:
        return "the scores are no product of queries and keys with heads"
    scores, mask, scale, query, key, nodes = found
    sizes = [sizes_of(part.inputs[0]) for part in (query, key[-1], value)]
    heads = {size[2] for size in sizes if size is not None and len(size) == 4 and isinstance(size[2], int)}
    known = all(size is not None and len(size) == 4 and all(isinstance(n, int) for n in size[2:]) for size in sizes)
    if len(heads) != 1 or not known:
        return "the number of heads is not known"
    whole = [joined, mixed, weights, value, query, *key, *nodes]
    parts = query.inputs[0], key[-1].inputs[0], value.inputs[0]
    return Attention(*parts, mask, scores, scale, int(next(iter(heads)) or 0), whole)


def _scores(value: Any) -> tuple[Any, Any, float, Any, list[Any], list[Any]] | None:
    """Scores, mask, scale, and what makes queries and keys."""
    candidates: list[tuple[Any, Any, list[Any]]] = [(value, None, [])]
    add = produced(value, "Add")
    if add is not None:
        left, right = add.inputs
        candidates += [(left, right, [add]), (right, left, [add])]
    for scores, mask, nodes in candidates:
        scaled = product_of(scores)
        product = produced(scaled.values[0], "MatMul") if len(scaled.values) == 1 else None
        if product is None:
            continue
        query, key = (product_of(part) for part in product.inputs)
        if len(query.values) != 1 or len(key.values) != 1:
            continue
        first, second = produced(query.values[0], "Transpose"), _turned(key.values[0])
        scale = scaled.factor * query.factor * key.factor
        if first is None or attribute(first, "perm") != SPLIT or second is None or not scale:
            continue
        inner = [*nodes, *scaled.nodes, product, *query.nodes, *key.nodes]
        return product.outputs[0], mask, scale, first, second, inner
    return None


def _turned(value: Any) -> list[Any] | None:
    """The Transpose, or the two, that bring the keys' heads forward and their time to the end."""
    last = produced(value, "Transpose")
    if last is None:
        return None
    perm = attribute(last, "perm")
    if perm == SPLIT_AND_TURNED:
        return [last]
    before = produced(last.inputs[0], "Transpose") if perm == TURNED else None
    return [last, before] if before is not None and attribute(before, "perm") == SPLIT else None
