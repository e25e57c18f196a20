"""The search: neighbours of the best strategies measured so far, most promising first, within a number of trials."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

from ort_metainfer.deciders.rules import RuleLibrary
from ort_metainfer.deciders.search_space import Choice, Dimension, Refuse, space
from ort_metainfer.decision import Proposal, Refusal, Trial
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

__all__ = ["Search"]

PARENTS = 3
"""Winners whose neighbours are looked at; the default is always looked at too."""

Part = tuple[str, Strategy]
"""A dimension's name and what a strategy sets in it."""


@dataclass(frozen=True)
class _Candidate:
    strategy: Strategy
    predicted: float
    because: str
    source: str


class Search:
    """Local search over :meth:`space`, guided by what single options were measured to gain.

    Looked at are: every strategy one dimension away from a winner or from the default, and pairs of options that each
    gained alone. Left out are: what the history holds; what a rule forbids; what holds an option that alone failed a
    gate or was measured slower, its whole interval below 1.

    Order: predicted speed-up, then fewer options, then the order in which the space declares them. The prediction is
    the parent's measured speed-up times the gain of the new option over the one it replaces; gains multiply. An
    option's gain is what it was measured to gain alone, otherwise its prior
    (:mod:`~ort_metainfer.deciders.search_space`).

    Args:
        refuse: every rule's veto (see :meth:`RuleLibrary.refuse`).
        max_trials: at most so many trials in all, those in the history included.
    """

    name = "search"

    def __init__(self, refuse: Refuse | None = None, max_trials: int = 30) -> None:
        self._refuse = refuse if refuse is not None else RuleLibrary().refuse
        self.max_trials = max_trials

    def space(self, problem: Problem) -> tuple[Dimension, ...]:
        """The dimensions searched for this problem, with their choices; what the rules forbid is left out."""
        return space(problem, self._refuse)

    def propose(self, problem: Problem, history: Sequence[Trial]) -> Iterable[Proposal | Refusal]:
        """Untried strategies, most promising first; fewer than ``max_trials`` less the history's length.

        Ask again with the longer history: the answer rests on the trials made so far.
        """
        dimensions = self.space(problem)
        if not dimensions:
            yield Refusal("search", self.name, "the rules leave nothing to search for this model on this machine")
            return
        allowed = (c for c in self._ranked(problem, dimensions, history) if self._refuse(problem, c.strategy) is None)
        for candidate in islice(allowed, max(0, self.max_trials - len(history))):
            reason = f"predicted {candidate.predicted:.2f}x: {candidate.because}"
            yield Proposal(candidate.strategy, self.name, reason, candidate.source)

    def _ranked(self, problem: Problem, dimensions: Sequence[Dimension], history: Sequence[Trial]) -> list[_Candidate]:
        measured = _Measured(dimensions, history)
        found: dict[Strategy, _Candidate] = {}
        for candidate in (*_pairs(problem, measured), *_neighbours(problem, measured)):
            if candidate.strategy not in found and not measured.rules_out(candidate.strategy):
                found[candidate.strategy] = candidate
        return sorted(
            found.values(),
            key=lambda c: (-c.predicted, len(measured.parts(c.strategy))),
        )


class _Measured:
    """What the history says: which strategies won, and what each option alone gained."""

    def __init__(self, dimensions: Sequence[Dimension], history: Sequence[Trial]) -> None:
        self.dimensions = dimensions
        self.choices = {(d.name, choice.part): choice for d in dimensions for choice in d.choices}
        self.tried = {Strategy(), *(trial.strategy for trial in history)}
        self.gains: dict[Part, float] = {}
        self._bad: set[Part] = set()
        self._parts: dict[Strategy, list[Part]] = {}
        for trial in history:
            parts = self.parts(trial.strategy)
            if len(parts) == 1 and self._is_all(trial.strategy, parts[0]):
                self._learn(parts[0], trial)
        timed = [(t.timing.speedup, t.strategy) for t in history if t.timing is not None and not _failed(t)]
        timed.sort(key=lambda pair: (-pair[0], pair[1].describe()))
        self.parents = [*[pair for pair in timed if pair[0] > 1][:PARENTS], (1.0, Strategy())]

    def parts(self, strategy: Strategy) -> list[Part]:
        """What it sets, dimension by dimension."""
        if strategy not in self._parts:
            found = ((dimension.name, dimension.part_of(strategy)) for dimension in self.dimensions)
            self._parts[strategy] = [(name, part) for name, part in found if not part.is_default]
        return self._parts[strategy]

    def gain(self, part: Part) -> float:
        """Measured, else expected, else 1: neither better nor worse."""
        expected = self.choices[part].prior if part in self.choices else 1.0
        return self.gains.get(part, expected)

    def rules_out(self, strategy: Strategy) -> bool:
        """Whether it was tried, or holds an option that is known to fail or to lose alone."""
        return strategy in self.tried or any(part in self._bad for part in self.parts(strategy))

    def _is_all(self, strategy: Strategy, part: Part) -> bool:
        dimension = next(d for d in self.dimensions if d.name == part[0])
        return dimension.put(strategy, Strategy()).is_default

    def _learn(self, part: Part, trial: Trial) -> None:
        if _failed(trial):
            self._bad.add(part)
        elif trial.timing is not None:
            self.gains[part] = trial.timing.speedup
            if trial.timing.speedup_high < 1:
                self._bad.add(part)


def _failed(trial: Trial) -> bool:
    """Whether it crashed, or did not compile, or was not accurate; not whether it paid."""
    return trial.failure is not None or any(not gate.passed and gate.name != "pays" for gate in trial.gates)


def _neighbours(problem: Problem, measured: _Measured) -> Iterator[_Candidate]:
    """One dimension away from a parent, the best parent first."""
    for speedup, parent in measured.parents:
        for dimension in measured.dimensions:
            before = measured.gain((dimension.name, dimension.part_of(parent)))
            for choice in dimension.choices:
                strategy = dimension.put(parent, choice.part)
                if _fits(problem, measured, strategy, dimension, choice):
                    gain = measured.gain((dimension.name, choice.part))
                    because, source = _explain(measured, dimension, choice, parent, speedup)
                    yield _Candidate(strategy, speedup * gain / before, because, source)


def _pairs(problem: Problem, measured: _Measured) -> Iterator[_Candidate]:
    """Two options that each gained alone, together."""
    gained = [
        (dimension, choice, gain)
        for dimension in measured.dimensions
        for choice in dimension.choices
        if (gain := measured.gains.get((dimension.name, choice.part), 0.0)) > 1
    ]
    for (one, choice, gain), (other, second, further) in combinations(gained, 2):
        if one.name == other.name:
            continue
        strategy = other.put(one.put(Strategy(), choice.part), second.part)
        if _fits(problem, measured, strategy, one, choice) and _fits(problem, measured, strategy, other, second):
            because = f"{choice.label} gained {gain:.2f}x and {second.label} {further:.2f}x, each alone"
            yield _Candidate(strategy, gain * further, because, "own measurement on this machine")


def _fits(problem: Problem, measured: _Measured, strategy: Strategy, dimension: Dimension, choice: Choice) -> bool:
    """Whether the new choice and every other part of the strategy still mean something beside each other."""
    parts = measured.parts(strategy)
    others = [measured.choices[part] for part in parts if part in measured.choices and part[0] != dimension.name]
    return all(each.fits(problem, strategy) for each in (choice, *others))


def _explain(
    measured: _Measured, dimension: Dimension, choice: Choice, parent: Strategy, speedup: float
) -> tuple[str, str]:
    gain = measured.gains.get((dimension.name, choice.part))
    word = f"{choice.label} (expected {choice.prior:.2f}x)" if gain is None else f"{choice.label} ({gain:.2f}x alone)"
    source = choice.source if gain is None else "own measurement on this machine"
    if parent.is_default:
        return word, source
    return f"{word} on top of what ran {speedup:.2f}x: {parent.describe()}", source
