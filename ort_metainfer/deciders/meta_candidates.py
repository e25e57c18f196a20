"""What the learned ranking chooses among: the rules' proposals, single choices of the declared space, and these on top
of each other's rewrites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from ort_metainfer.deciders.meta_conditions import objection
from ort_metainfer.deciders.rules import RuleLibrary
from ort_metainfer.deciders.search_space import Choice, Dimension, space
from ort_metainfer.decision import Proposal, Refusal
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

__all__ = ["MOST", "candidates"]

MOST = 190
"""So many are ranked at most: their features take longer than the forest does."""

ON_TOP = ("provider", "threads", "graph level", "static shapes")
"""Dimensions whose choices are also looked at together with each rewrite."""


def candidates(problem: Problem, rules: RuleLibrary) -> tuple[list[Strategy], list[Refusal]]:
    """Strategies that no rule forbids and whose preconditions hold here, and what was dropped for want of these.

    Args:
        problem: what is to be decided.
        rules: the library that has the last word on every proposal.
    """
    found: dict[Strategy, None] = {}
    dropped: dict[str, Refusal] = {}
    for strategy in _thought_of(problem, rules):
        if strategy.is_default or strategy in found:
            continue
        refusal = objection(problem, strategy)
        if refusal is not None:
            dropped.setdefault(refusal.reason, refusal)
        elif rules.refuse(problem, strategy) is None:
            found[strategy] = None
            if len(found) == MOST:
                break
    return list(found), list(dropped.values())


def _thought_of(problem: Problem, rules: RuleLibrary) -> Iterator[Strategy]:
    yield from (answer.strategy for answer in rules.propose(problem, ()) if isinstance(answer, Proposal))
    dimensions = space(problem, rules.refuse)
    yield from (choice.part for dimension in dimensions for choice in dimension.choices if _alone(problem, choice))
    rewrites = next((dimension for dimension in dimensions if dimension.name == "rewrites"), None)
    if rewrites is not None:
        yield from _on_rewrites(problem, dimensions, rewrites)


def _alone(problem: Problem, choice: Choice) -> bool:
    return choice.fits(problem, choice.part)


def _on_rewrites(problem: Problem, dimensions: Sequence[Dimension], rewrites: Dimension) -> Iterator[Strategy]:
    """Every choice of the main dimensions on top of every sequence of rewrites, the first sequences first."""
    for rewrite in islice(rewrites.choices, MOST):
        for dimension in dimensions:
            if dimension.name not in ON_TOP:
                continue
            for choice in dimension.choices:
                strategy = dimension.put(rewrite.part, choice.part)
                if choice.fits(problem, strategy) and rewrite.fits(problem, strategy):
                    yield strategy
