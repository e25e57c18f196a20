"""Who wins where rules contradict each other: proposals completed, vetoes weighed against them. Pure.

The order is :attr:`Rule.rank`: priority, then specificity (more conditions, then fewer device classes); where even that
is equal, what forbids wins. A binding veto stands against every proposal, and so does a requirement: what a device
cannot do without is added to a proposal, not argued with. Between two requirements the rank decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ort_metainfer.deciders.rule import Rule
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

__all__ = ["Claim", "Completion", "Verdict", "complete", "proposals_of", "weigh"]

Rank = tuple[int, int, int]


@dataclass(frozen=True)
class Completion:
    """A strategy with what rules require of it.

    Attributes:
        strategy: completed as far as could be.
        added: rules whose requirement was met by adding to it.
        overruled: rule -> the rule of higher rank that requires something else.
        lacking: the first rule whose requirement cannot be met; None where all are.
    """

    strategy: Strategy
    added: tuple[Rule, ...] = ()
    overruled: tuple[tuple[Rule, Rule], ...] = ()
    lacking: Rule | None = None


@dataclass(frozen=True)
class Claim:
    """A strategy that rules propose: which, what it became, and what was asked for before completion."""

    rules: tuple[Rule, ...]
    completion: Completion

    @property
    def strategy(self) -> Strategy:
        """What would be tried."""
        return self.completion.strategy

    @property
    def rank(self) -> Rank:
        """That of the strongest rule that wants it so."""
        return max(rule.rank for rule in (*self.rules, *self.completion.added))


@dataclass(frozen=True)
class Verdict:
    """The veto that stands against a strategy, if any, and those that were outranked."""

    against: Rule | None
    outranked: tuple[Rule, ...] = ()


def complete(rules: Sequence[Rule], problem: Problem, strategy: Strategy) -> Completion:
    """``strategy`` with all requirements, the highest rank's word last."""
    requiring = sorted((rule for rule in rules if rule.requires is not None), key=lambda rule: rule.rank)
    current, added, lacking = strategy, [], None
    for rule in requiring:
        wanted = rule.completed(problem, current)
        if wanted is None:
            lacking = rule
        elif wanted != current:
            current = wanted
            added.append(rule)
    met = [rule for rule in added if rule.completed(problem, current) == current]
    lost = tuple((rule, _stronger(rule, met)) for rule in added if rule not in met)
    return Completion(current, tuple(met), lost, lacking)


def _stronger(rule: Rule, others: Sequence[Rule]) -> Rule:
    """Who overruled ``rule``: the next one above it."""
    above = [other for other in others if other.rank >= rule.rank]
    return min(above, key=lambda other: other.rank, default=rule)


def proposals_of(rules: Sequence[Rule], problem: Problem) -> list[Claim]:
    """What rules propose, completed, in order of rank; one claim for each strategy that comes of it."""
    claims: dict[Strategy, Claim] = {}
    for rule in rules:
        for proposed in rule.proposals(problem):
            completion = complete(rules, problem, proposed)
            before = claims.get(completion.strategy)
            wanting = (*(before.rules if before else ()), rule)
            claims[completion.strategy] = Claim(tuple(dict.fromkeys(wanting)), completion)
    return list(claims.values())


def weigh(rules: Iterable[Rule], problem: Problem, strategy: Strategy, claim: Claim | None) -> Verdict:
    """Whether a veto stands against ``strategy``.

    Args:
        rules: in order of rank, highest first.
        problem: what is to be decided.
        strategy: the strategy in question.
        claim: what rules want of it; None where none proposes it.

    Raises:
        ProviderError: a veto asked an adapter that there is not.
        StrategyError: the provider's adapter does not take the strategy.
    """
    outranked = []
    for rule in rules:
        if rule.vetoes(problem, strategy):
            if claim is None or rule.is_binding or rule.rank >= claim.rank:
                return Verdict(rule)
            outranked.append(rule)
    return Verdict(None, tuple(outranked))
