"""Chains of Reshape, Flatten, Squeeze and Unsqueeze as one Reshape, or as nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from ort_metainfer.rewrites.base import Rewrite
from ort_metainfer.rewrites.fusing import NOT_DONE_BY_ORT, Fusion, Keep
from ort_metainfer.rewrites.node_rewrite import Plan, Surroundings
from ort_metainfer.rewrites.patterns import attribute, axes_of, constant, dims, produced, rank

__all__ = ["REWRITES", "MergeReshapes"]

RESHAPING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


class MergeReshapes(Fusion):
    """Two of Reshape, Flatten, Squeeze and Unsqueeze behind one another as one Reshape; what undoes itself goes."""

    name = "merge-reshapes"
    promise = "exact"
    operators = RESHAPING
    evidence = NOT_DONE_BY_ORT + "Kokoro 2777, 2771; ResNet-50 92, 91"

    def find(self, node: Any, around: Surroundings) -> Plan | Keep | str | None:
        """Another one before it, and a result whose shape is constant up to one size."""
        before = produced(node.inputs[0], *RESHAPING)
        if before is None:
            return None
        source = before.inputs[0]
        if _undoes(before, node):
            return Keep(source)
        known, result = dims(source), dims(node.outputs[0])
        if known is not None and None not in known and known == result:
            return Keep(source)
        shape = _composed(before, node) or _from_sizes(result)
        if shape is None:
            return "the shape of its result is not constant"
        wanted = np.asarray(shape, np.int64)
        return Plan(node, lambda make: make("Reshape", source, wanted), [before])


def _undoes(before: Any, after: Any) -> bool:
    """Whether Squeeze takes away what Unsqueeze added, or Unsqueeze adds what Squeeze took away."""
    if {before.op_type, after.op_type} != {"Squeeze", "Unsqueeze"}:
        return False
    wide = rank(before.outputs[0] if before.op_type == "Unsqueeze" else before.inputs[0])
    axes = [axes_of(node) for node in (before, after)]
    if wide is None or axes[0] is None or axes[1] is None:
        return False
    first, second = ({axis % wide for axis in found} for found in axes if found is not None)
    return first == second


def _composed(before: Any, after: Any) -> list[int] | None:
    """The constant shape of a Reshape, with what it copies from the reshape before it spelled out."""
    shape = constant(after.inputs[1]) if after.op_type == "Reshape" else None
    if shape is None or attribute(after, "allowzero", 0):
        return None
    middle = dims(after.inputs[0])
    copied = (
        constant(before.inputs[1]) if before.op_type == "Reshape" and not attribute(before, "allowzero", 0) else None
    )
    made: list[int] = []
    for axis, size in enumerate(shape.reshape(-1).tolist()):
        if size != 0:
            made.append(int(size))
        elif middle is not None and axis < len(middle) and middle[axis]:
            made.append(int(middle[axis] or 0))
        elif copied is not None and axis < copied.size and copied.reshape(-1)[axis] == 0:
            made.append(0)
        else:
            return None
    return made


def _from_sizes(sizes: tuple[int | None, ...] | None) -> list[int] | None:
    """A constant shape for a result of these sizes."""
    if sizes is None or 0 in sizes or sum(size is None for size in sizes) > 1:
        return None
    return [-1 if size is None else size for size in sizes]


REWRITES: tuple[Rewrite, ...] = (MergeReshapes(),)
