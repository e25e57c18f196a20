"""Which nodes a described chip would run itself, and in which element type; for the analytic model."""

from __future__ import annotations

from collections.abc import Mapping

from ort_metainfer.model.work import CONTROL_FLOW, NodeWork
from ort_metainfer.providers.chips import Chip

__all__ = ["Placing", "arithmetic_of", "rate_of"]

_FALLBACKS: Mapping[str, tuple[str, ...]] = {
    "int8": ("int8", "float16", "bfloat16", "float32"),
    "float16": ("float16", "bfloat16", "float32"),
    "bfloat16": ("bfloat16", "float16", "float32"),
    "float32": ("float32", "float16", "bfloat16"),
    "float64": ("float64", "float32"),
}
"""Element type -> types it may be computed in, the first that the chip has. Of a chip without FP32 (the Apple and Intel
NPUs) a runtime computes float32 models in fewer bits."""


def rate_of(chip: Chip, dtype: str) -> tuple[str, float] | None:
    """Element type that ``chip`` computes ``dtype`` in, and its peak in MAC/s; None where it has none for it."""
    plain = {"uint8": "int8"}.get(dtype, dtype)
    for candidate in _FALLBACKS.get(plain, (plain, "float32", "float16", "bfloat16", "int8")):
        if candidate in chip.peak:
            return candidate, chip.peak[candidate].value
    return None


def arithmetic_of(node: NodeWork) -> str:
    """Element type that a node's arithmetic is in: 8-bit integers where it is quantised."""
    return "int8" if node.quantised else node.dtype


class Placing:
    """Which nodes a chip takes, and why not the others.

    Args:
        chip: which.
        fixed_shapes: whether the session has fixed shapes.

    Attributes:
        reasons: why nodes are left to the host, a sentence each, in order of appearance.
    """

    def __init__(self, chip: Chip, fixed_shapes: bool) -> None:
        self.chip = chip
        self.reasons: dict[str, None] = {}
        self._refuses_all = False
        if chip.static_shapes and not fixed_shapes:
            self.refuse_all("it takes fixed shapes only: give the shapes of open dimensions")

    def refuse_all(self, reason: str) -> None:
        """Leave everything to the host, for one reason."""
        self._refuses_all = True
        self.reasons = {reason: None}

    def takes(self, node: NodeWork) -> bool:
        """Whether the chip runs ``node``; why not is remembered."""
        if self._refuses_all:
            return False
        reason = self._objection(node)
        if reason is not None and not node.is_view and not node.folded:
            self.reasons[reason] = None
        return reason is None

    def _objection(self, node: NodeWork) -> str | None:
        is_float = node.dtype.startswith(("float", "bfloat"))
        if self.chip.quantised == "required" and is_float and not node.quantised and not node.is_view:
            return "it takes quantised nodes only, and float ones are left"
        operator = node.inside if node.inside in CONTROL_FLOW and not self.chip.family.has(node.inside) else None
        if operator is not None or not self.chip.family.has(node.operator):
            return f"its family of chips has no {operator or node.operator}"
        if node.macs and rate_of(self.chip, arithmetic_of(node)) is None:
            return f"it has no arithmetic for {node.dtype}"
        return None
