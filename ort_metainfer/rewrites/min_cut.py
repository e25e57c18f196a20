"""The cheapest way to part a network in two: minimum cut by shortest augmenting paths (Edmonds and Karp, 1972)."""

from __future__ import annotations

from collections import deque

__all__ = ["SINK", "SOURCE", "UNCUTTABLE", "Network"]

SOURCE, SINK = 0, 1

UNCUTTABLE = 1 << 62
"""A capacity that no cut crosses."""


class Network:
    """Vertices with directed edges of a capacity: one is cut where it leads from the source's side to the sink's."""

    def __init__(self) -> None:
        self._room: list[dict[int, int]] = [{}, {}]

    def add_vertex(self) -> int:
        """A new vertex."""
        self._room.append({})
        return len(self._room) - 1

    def add_edge(self, start: int, end: int, capacity: int) -> None:
        """Room from ``start`` to ``end``, added to what there is."""
        if start != end:
            self._room[start][end] = self._room[start].get(end, 0) + capacity
            self._room[end].setdefault(start, 0)

    def cut(self) -> tuple[int, set[int]]:
        """What the cheapest cut costs, and the vertices on the source's side of it; the network is used up."""
        total = 0
        while True:
            before = self._reach()
            if SINK not in before:
                return total, set(before)
            total += self._push(before)

    def _reach(self) -> dict[int, int]:
        """Each vertex that has room from the source -> the one before it on a shortest way."""
        before, waiting = {SOURCE: SOURCE}, deque([SOURCE])
        while waiting and SINK not in before:
            here = waiting.popleft()
            for there, room in self._room[here].items():
                if room > 0 and there not in before:
                    before[there] = here
                    waiting.append(there)
        return before

    def _push(self, before: dict[int, int]) -> int:
        way = [SINK]
        while way[-1] != SOURCE:
            way.append(before[way[-1]])
        steps = list(zip(way[1:], way, strict=False))
        amount = min(self._room[start][end] for start, end in steps)
        for start, end in steps:
            self._room[start][end] -= amount
            self._room[end][start] += amount
        return amount
