"""What graph rewrites change about a model's work, declared by family: types, bytes, passes, nodes that vanish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ort_metainfer.deciders.cost_kinds import PRODUCTS
from ort_metainfer.strategy import Transform

__all__ = ["EFFECTS", "NO_EFFECT", "Effect", "combined", "effect_of"]

CONVOLUTIONS = frozenset({"conv3x3", "conv1x1", "depthwise3x3"})
MATRICES = frozenset({"matmul", "attention"})


@dataclass(frozen=True)
class Effect:
    """What rewrites do to the float32 groups of some kinds.

    Attributes:
        kinds: kinds of groups that change; the others stay.
        dtype: type that their products are computed in afterwards; None: as before.
        weights: share of the weights' bytes that is left; ``activations`` of the activations'.
        passes: bytes moved besides, as a share of the activations': values turned into another type and back.
        stray_passes: the same for each element-wise node of a group that cannot work on 8-bit integers.
        launches: launches besides, a group.
        folds_sizes: whether reckoning with sizes of tensors vanishes.
        merges: share of the launches of element-wise and normalising groups that vanish.
        spread: how far off the whole may be, in log units, beside the device's own.
        source: what it rests on.
    """

    kinds: frozenset[str] = frozenset()
    dtype: str | None = None
    weights: float = 1.0
    activations: float = 1.0
    passes: float = 0.0
    stray_passes: float = 0.0
    launches: float = 0.0
    folds_sizes: bool = False
    merges: float = 0.0
    spread: float = 0.05
    source: str = ""


OPERATOR_TYPES = "the operators' own types: ONNX specification, QuantizeLinear, DequantizeLinear, Cast"
NODE_COUNTS = "nodes left with and without it: the rewrites' own evidence"

EFFECTS: Mapping[str, Effect] = MappingProxyType(
    {
        "int8-static": Effect(
            CONVOLUTIONS | MATRICES, "int8", 0.25, 0.25, stray_passes=1.25, spread=0.3, source=OPERATOR_TYPES
        ),
        "int8-dynamic": Effect(MATRICES, "int8", 0.25, passes=1.25, launches=1.0, spread=0.3, source=OPERATOR_TYPES),
        "int8-weights": Effect(MATRICES, None, 0.25, spread=0.3, source=OPERATOR_TYPES),
        "int4-weights": Effect(MATRICES, None, 0.125, spread=0.3, source=OPERATOR_TYPES),
        "float16": Effect(frozenset(PRODUCTS), "float16", 0.5, 0.5, spread=0.2, source=OPERATOR_TYPES),
        "bfloat16": Effect(frozenset(PRODUCTS), "bfloat16", 0.5, 0.5, spread=0.2, source=OPERATOR_TYPES),
        "fold-shapes": Effect(folds_sizes=True, spread=0.04, source=NODE_COUNTS),
        "fold-constants": Effect(folds_sizes=False, spread=0.02, source=NODE_COUNTS),
        "fixed-shapes": Effect(folds_sizes=True, spread=0.08, source=NODE_COUNTS),
        "fuse-": Effect(merges=0.05, spread=0.05, source=NODE_COUNTS),
        "remove-": Effect(merges=0.02, spread=0.03, source=NODE_COUNTS),
        "merge-": Effect(merges=0.03, spread=0.04, source=NODE_COUNTS),
        "gelu-to-": Effect(spread=0.06, source="1.00 to 1.10x: own measurement"),
        "convert-opset": Effect(spread=0.01, source="changes no computation by itself"),
    }
)
"""Rewrite, or the beginning of the names of a family of them, -> what it does; the longest that fits counts."""

UNKNOWN = Effect(spread=0.08, source="most lossless rewrites lie within 8% of 1.0 (own measurement)")


NO_EFFECT = Effect(spread=0.0)


def effect_of(name: str) -> Effect:
    """The effect of the rewrite of that name; of an unknown one nothing but a spread."""
    fitting = [key for key in EFFECTS if name == key or (key.endswith("-") and name.startswith(key))]
    return EFFECTS[max(fitting, key=len)] if fitting else UNKNOWN


def combined(transforms: Iterable[Transform]) -> Effect:
    """The effects of rewrites one after another; of two that change types the later one's types count."""
    whole = NO_EFFECT
    for effect in map(effect_of, (transform.name for transform in transforms)):
        typed = effect if effect.kinds else whole
        whole = replace(
            typed,
            folds_sizes=whole.folds_sizes or effect.folds_sizes,
            merges=1 - (1 - whole.merges) * (1 - effect.merges),
            spread=(whole.spread**2 + effect.spread**2) ** 0.5,
            source="; ".join(dict.fromkeys(filter(None, (whole.source, effect.source)))),
        )
    return whole
