"""Transposes that cancel or merge, and those that the operator behind them can do itself.

Pushing them through what lies between is a matter of layout: see ``transposes-placed``.
"""

from __future__ import annotations

from typing import Any

from ort_metainfer.rewrites.base import Rewrite
from ort_metainfer.rewrites.fusing import DONE_BY_ORT, Fusion, Keep, attributes_of
from ort_metainfer.rewrites.node_rewrite import Plan, Surroundings
from ort_metainfer.rewrites.patterns import attribute, produced, rank

__all__ = ["REWRITES", "MergeTransposes", "TransposeIntoGemm", "perm_of"]


def perm_of(node: Any) -> list[int] | None:
    """A Transpose's permutation; None where it is left to a rank that is not known."""
    perm = attribute(node, "perm")
    if perm is None:
        known = rank(node.inputs[0])
        return None if known is None else list(reversed(range(known)))
    return [int(axis) for axis in perm]


class MergeTransposes(Fusion):
    """Two Transposes behind one another as one, or as nothing."""

    name = "merge-transposes"
    promise = "exact"
    operators = ("Transpose",)
    evidence = DONE_BY_ORT

    def find(self, node: Any, around: Surroundings) -> Plan | Keep | str | None:
        """Another one before it."""
        perm = perm_of(node)
        if perm is not None and perm == list(range(len(perm))):
            return Keep(node.inputs[0])
        before = produced(node.inputs[0], "Transpose")
        if before is None:
            return None
        first = perm_of(before)
        if perm is None or first is None or len(perm) != len(first):
            return "its permutation depends on a rank that is not known"
        together = [first[axis] for axis in perm]
        if together == list(range(len(perm))):
            return Keep(before.inputs[0])
        return Plan(node, lambda make: make("Transpose", before.inputs[0], perm=together), [before])


class TransposeIntoGemm(Fusion):
    """A Transpose before Gemm as Gemm's own ``transA`` or ``transB``."""

    name = "transpose-into-gemm"
    promise = "exact"
    operators = ("Gemm",)
    also = ("Transpose",)
    evidence = DONE_BY_ORT

    def find(self, node: Any, around: Surroundings) -> Plan | Keep | str | None:
        """A Transpose of a matrix makes one of the two factors."""
        before = [produced(value, "Transpose") for value in node.inputs[:2]]
        before = [maker if maker is not None and perm_of(maker) == [1, 0] else None for maker in before]
        free = [maker if maker is not None and _only_for(maker, node) else None for maker in before]
        if not any(free):
            return "the transposed matrix is used elsewhere" if any(before) else None
        given = attributes_of(node)
        data = list(node.inputs)
        for place, name in enumerate(("transA", "transB")):
            maker = free[place]
            if maker is not None:
                data[place] = maker.inputs[0]
                given[name] = 1 - attribute(node, name, 0)
        return Plan(node, lambda make: make("Gemm", *data, **given), [maker for maker in dict.fromkeys(free) if maker])


def _only_for(maker: Any, node: Any) -> bool:
    value = maker.outputs[0]
    return not value.is_graph_output() and all(use.node is node for use in value.uses())


REWRITES: tuple[Rewrite, ...] = (MergeTransposes(), TransposeIntoGemm())
