"""The dimension of rewrites in the searched space: what the rules want rewritten, alone and one after another."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, log
from typing import TYPE_CHECKING

from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy, Transform

if TYPE_CHECKING:
    from ort_metainfer.deciders.search_space import Choice

__all__ = ["expected_gain", "rewrite_choices"]

MEASURED = "own measurement over eight models on the CPU, AMD EPYC with avx512_vnni (tests/figures/priors.py): "

GAINS: dict[str, tuple[float, float, str]] = {
    "int8-static": (1.4, 0.45, MEASURED + "0.62x to 2.5x where it is accurate enough"),
    "int8-dynamic": (1.7, 0.35, MEASURED + "1.1x to 2.3x where it is accurate enough"),
    "float16": (0.8, 0.40, "own measurement: slower on the CPU; twice the rate on tensor cores by vendors' documents"),
    "bfloat16": (0.8, 0.40, "guess: no provider at hand takes such models"),
    "gelu-to-contributed": (1.03, 0.04, MEASURED + "1.09x on magika, 1.00x where onnxruntime fuses it itself"),
    "fold-shapes": (1.03, 0.04, MEASURED + "1.00x to 1.06x"),
    "fixed-shapes": (1.07, 0.08, MEASURED + "1.02x to 1.23x"),
    "convert-opset": (1.0, 0.01, "changes no computation by itself"),
}
"""Rewrite -> expected speed-up of it alone, spread of its logarithm over models, source."""

UNKNOWN = (1.0, 0.08, "no measurement: most lossless rewrites lay within 8% of 1.0")


def expected_gain(transforms: tuple[Transform, ...]) -> tuple[float, float, str]:
    """Expected speed-up of rewrites one after another, its spread in log units, and what that rests on.

    Gains multiply; spreads add up as those of independent errors do.
    """
    known = [GAINS.get(transform.name, UNKNOWN) for transform in transforms]
    gain = exp(sum(log(each) for each, _, _ in known))
    return gain, sum(spread**2 for _, spread, _ in known) ** 0.5, "; ".join(dict.fromkeys(src for _, _, src in known))


def rewrite_choices(problem: Problem) -> Iterator[Choice]:
    """Each sequence of rewrites that a rule wants for this problem, and the lossless ones behind one another."""
    from ort_metainfer.deciders.search_space import ANY, Choice

    wanted = _wanted(problem)
    for transforms in dict.fromkeys([*wanted, *_joined(wanted)]):
        gain, spread, source = expected_gain(transforms)
        label = " then ".join(transform.describe() for transform in transforms)
        yield Choice(label, Strategy(transforms=transforms), gain, source, ANY, spread)


def _wanted(problem: Problem) -> list[tuple[Transform, ...]]:
    from ort_metainfer.deciders.rules import all_rules

    proposed = (strategy for rule in all_rules() for strategy in rule.proposals(problem))
    return list(dict.fromkeys(strategy.transforms for strategy in proposed if strategy.transforms))


def _joined(wanted: list[tuple[Transform, ...]]) -> Iterator[tuple[Transform, ...]]:
    """Lossless rewrites in front of each other sequence: they leave less to quantise."""
    from ort_metainfer.rewrites.registry import get_rewrite

    lossless = [t for t in wanted if all(get_rewrite(each.name).promise != "lossy" for each in t)]
    for first in lossless:
        for then in wanted:
            if not {each.name for each in first} & {each.name for each in then}:
                yield (*first, *then)
