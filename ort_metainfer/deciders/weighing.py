"""Who wins where rules contradict each other: proposals completed, vetoes weighed against them. Pure.

The order is :attr:`Rule.rank`: priority, then specificity (more conditions, then fewer device classes); where even that
is equal, what forbids wins. A binding veto stands against every proposal, and so does a requirement: what a device
cannot do without is added to a proposal, not argued with. Between two requirements the rank decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

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
    """A strategy that rules propose: which rules, what the first of them asked for, and what it became."""

    rules: tuple[Rule, ...]
    asked: Strategy
    completion: Completion

    @property
    def strategy(self) -> Strategy:
        """What would be tried."""
        return self.completion.strategy

    def rank_against(self, veto: Rule, problem: Problem) -> Rank:
        """That of the strongest rule that wants what ``veto`` is against: who added it, where the proposal lacks it."""
        added = self.completion.added
        wanting = self.rules if not added or veto.objects_to(problem, self.asked) else (*self.rules, *added)
        return max(rule.rank for rule in wanting)


@dataclass(frozen=True)
class Verdict:
    """The veto that stands against a strategy, if any, and those that were outranked."""

    against: Rule | None
    outranked: tuple[Rule, ...] = ()


def complete(rules: Sequence[Rule], problem: Problem, strategy: Strategy) -> Completion:
    """``strategy`` with all requirements of ``rules``, which apply to ``problem``; the highest rank's word last."""
    requiring = sorted((rule for rule in rules if rule.requires is not None), key=lambda rule: rule.rank)
    current, added, lacking = strategy, [], None
    for rule in requiring:
        wanted = rule.completion(problem, current)
        if wanted is None:
            lacking = rule
        elif wanted != current:
            current = wanted
            added.append(rule)
    met = [rule for rule in added if rule.completion(problem, current) == current]
    lost = tuple((rule, _stronger(rule, met)) for rule in added if rule not in met)
    return Completion(current, tuple(met), lost, lacking)


def _stronger(rule: Rule, others: Sequence[Rule]) -> Rule:
    """Who overruled ``rule``: the next one above it."""
    above = [other for other in others if other.rank >= rule.rank]
    return min(above, key=lambda other: other.rank, default=rule)


def proposals_of(rules: Sequence[Rule], problem: Problem) -> list[Claim]:
    """What rules, which apply to ``problem``, propose, in order of rank; one claim for each strategy, completed."""
    claims: dict[Strategy, Claim] = {}
    for rule in rules:
        for proposed in rule.proposes(problem) if rule.proposes is not None else ():
            completion = complete(rules, problem, proposed)
            before = claims.get(completion.strategy, Claim((), proposed, completion))
            claims[completion.strategy] = replace(before, rules=tuple(dict.fromkeys((*before.rules, rule))))
    return list(claims.values())


def weigh(rules: Iterable[Rule], problem: Problem, strategy: Strategy, claim: Claim | None) -> Verdict:
    """Whether a veto stands against ``strategy``.

    Args:
        rules: those that apply to ``problem``, in order of rank, highest first.
        problem: what is to be decided.
        strategy: the strategy in question.
        claim: what rules want of it; None where none proposes it.

    Raises:
        ProviderError: a veto asked an adapter that there is not.
        StrategyError: the provider's adapter does not take the strategy.
    """
    outranked = []
    for rule in rules:
        if rule.objects_to(problem, strategy):
            if claim is None or rule.is_binding or rule.rank >= claim.rank_against(rule, problem):
                return Verdict(rule)
            outranked.append(rule)
    return Verdict(None, tuple(outranked))
