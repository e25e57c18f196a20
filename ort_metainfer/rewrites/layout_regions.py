"""Connected parts of a graph that could work in either of two layouts, and the cheapest layout for each node of it.

Two layouts belong together by a permutation: ``order`` leads from layout 0 to layout 1. Every Transpose by it, or by
its inverse, only changes the form of one and the same tensor; operators that do not care for the order of their axes
may work on either form. Which one each takes is a minimum cut: a tensor that is wanted in the form it is not made in
costs its size once, however many want it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ort_metainfer.rewrites.layout_moves import Move, move_of
from ort_metainfer.rewrites.min_cut import SINK, SOURCE, UNCUTTABLE, Network
from ort_metainfer.rewrites.patterns import attribute, constant_size, dims, rank

__all__ = ["Region", "cheapest", "inverse", "order_of", "regions"]

OPEN_SIZE = 64
"""What an open dimension counts for; the first one (the batch) counts as one."""


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes it."""
    return tuple(sorted(range(len(order)), key=lambda place: order[place]))


def order_of(node: Any) -> tuple[int, ...] | None:
    """What a Transpose permutes by; None for other nodes, and where not even the rank is known."""
    if node.op_type != "Transpose" or node.domain:
        return None
    given = attribute(node, "perm")
    if given is not None:
        return tuple(given)
    size = rank(node.inputs[0])
    return None if size is None else tuple(range(size))[::-1]


def size_of(value: Any) -> int:
    """Elements, as far as known."""
    sizes = dims(value) or ()
    return math.prod(size if size is not None else OPEN_SIZE if axis else 1 for axis, size in enumerate(sizes))


@dataclass
class Region:
    """A connected part.

    Attributes:
        order: from layout 0 to layout 1.
        transposes: those that lead from one to the other.
        moves: id of a node that can work in either -> the node, and how it is moved.
        layout: id of a value -> the layout it is in.
        values: the values, in the order they were found.
        inside: ids of the transposes.
    """

    order: tuple[int, ...]
    transposes: list[Any] = field(default_factory=list)
    moves: dict[int, tuple[Any, Move]] = field(default_factory=dict)
    layout: dict[int, int] = field(default_factory=dict)
    values: list[Any] = field(default_factory=list)
    inside: set[int] = field(default_factory=set)

    @property
    def cost(self) -> int:
        """Elements that its transposes move."""
        return sum(size_of(node.inputs[0]) for node in self.transposes)

    def between(self, start: int, end: int) -> tuple[int, ...]:
        """The permutation from one layout to the other."""
        return self.order if (start, end) == (0, 1) else inverse(self.order)

    def origin(self, value: Any) -> Any:
        """The value of which ``value`` is another form: what was there before any transpose."""
        while (node := value.producer()) is not None and self.changes_form(node):
            value = node.inputs[0]
        return value

    def changes_form(self, node: Any) -> bool:
        """Whether it is one of the transposes."""
        return bool(node.op_type == "Transpose" and id(node) in self.inside)


def regions(graph: Any, order: tuple[int, ...], opset: int) -> Iterator[Region]:
    """Each connected part of ``graph`` with a transpose by ``order`` or its inverse; changes of one reach the next."""
    pair = (order, inverse(order))
    transposes = [node for node in graph if order_of(node) in pair and constant_size(node.inputs[0]) is None]
    taken: set[int] = set()
    for start in transposes:
        if id(start) not in taken:
            region = _grown(start, order, opset, {id(node) for node in transposes} - taken)
            taken |= {id(node) for node in region.transposes}
            yield region


def _grown(start: Any, order: tuple[int, ...], opset: int, transposes: set[int]) -> Region:
    region, seen = Region(order), {id(start)}
    first = 0 if order_of(start) == order else 1
    waiting = deque(_joined(region, start, start.inputs[0], first, None) or ())
    region.transposes.append(start)
    region.inside.add(id(start))
    while waiting:
        value = waiting.popleft()
        for node in _neighbours(value, start.graph):
            if id(node) in seen:
                continue
            is_transpose = id(node) in transposes
            move = None if is_transpose else move_of(node, len(order), opset)
            if not is_transpose and move is None:
                continue
            found = _joined(region, node, value, region.layout[id(value)], move)
            if found is None:
                continue  # it wants the other layout here: it stays as it is, outside
            seen.add(id(node))
            waiting.extend(found)
            if move is None:
                region.transposes.append(node)
                region.inside.add(id(node))
            else:
                region.moves[id(node)] = (node, move)
    return region


def _neighbours(value: Any, graph: Any) -> list[Any]:
    producer = value.producer()
    nodes = [] if producer is None else [producer]
    nodes += [use.node for use in value.uses()]
    return [node for node in nodes if node.graph is graph]


def _joined(region: Region, node: Any, via: Any, layout: int, move: Move | None) -> list[Any] | None:
    """Take a node into the region: its values that are new there; None where its layouts do not fit."""
    if move is None:
        wanted = _transposed(region, node, via, layout)
    else:
        values = [*(node.inputs[place] for place in move.data), *node.outputs]
        wanted = [(value, layout) for value in values] if any(value is via for value in values) else None
    if wanted is None or any(region.layout.get(id(value), at) != at for value, at in wanted):
        return None
    found = []
    for value, at in wanted:
        if id(value) not in region.layout:
            region.layout[id(value)] = at
            region.values.append(value)
            found.append(value)
    return found


def _transposed(region: Region, node: Any, via: Any, layout: int) -> list[tuple[Any, int]] | None:
    start = layout if via is node.inputs[0] else 1 - layout
    if order_of(node) != region.between(start, 1 - start):
        return None
    return [(node.inputs[0], start), (node.outputs[0], 1 - start)]


def cheapest(region: Region) -> tuple[int, dict[int, int]]:
    """What the cheapest assignment costs in elements moved, and the layout of each node that can move, by its id."""
    network = Network()
    vertices = {key: network.add_vertex() for key in region.moves}
    for origin, forms in _tensors(region):
        maker = _end(region, origin, vertices)
        users = [*_users(region, forms, vertices)]
        _want(network, maker, users, size_of(origin))
    cost, first = network.cut()
    return cost, {key: 0 if vertex in first else 1 for key, vertex in vertices.items()}


def _tensors(region: Region) -> Iterator[tuple[Any, list[Any]]]:
    """Each tensor as (the value it is made as, all forms of it)."""
    groups: dict[int, tuple[Any, list[Any]]] = {}
    for value in region.values:
        origin = region.origin(value)
        groups.setdefault(id(origin), (origin, []))[1].append(value)
    yield from groups.values()


def _end(region: Region, origin: Any, vertices: dict[int, int]) -> int:
    producer = origin.producer()
    fixed = SOURCE if region.layout[id(origin)] == 0 else SINK
    return fixed if producer is None else vertices.get(id(producer), fixed)


def _users(region: Region, forms: Iterable[Any], vertices: dict[int, int]) -> Iterator[int]:
    for value in forms:
        fixed = SOURCE if region.layout[id(value)] == 0 else SINK
        if value.is_graph_output():
            yield fixed
        for use in value.uses():
            if region.changes_form(use.node):
                continue
            known = region.moves.get(id(use.node))
            moves = known is not None and use.idx in known[1].data
            yield vertices[id(use.node)] if moves else fixed


def _want(network: Network, maker: int, users: Sequence[int], size: int) -> None:
    """``size`` is paid where any user is on the other side than the maker."""
    last, first = network.add_vertex(), network.add_vertex()
    network.add_edge(maker, last, size)
    network.add_edge(first, maker, size)
    for user in dict.fromkeys(users):
        network.add_edge(last, user, UNCUTTABLE)
        network.add_edge(user, first, UNCUTTABLE)
