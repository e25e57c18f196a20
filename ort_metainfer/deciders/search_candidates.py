"""What the search may try next, and what the history says of its parts: neighbours of winners, pairs of gains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import hypot, isfinite, log

from ort_metainfer.deciders.prediction import Prediction
from ort_metainfer.deciders.search_space import Choice, Dimension, keys_of
from ort_metainfer.decision import Trial
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

__all__ = ["Candidate", "Measured", "candidates_of", "has_failed"]

PARENTS = 3
"""Winners whose neighbours are looked at; the default is always looked at too."""

TOGETHER = 0.05
"""Spread, in log units, of the assumption that gains multiply: two options that gained alone, together. A choice."""

NOISE = 0.01
"""Least spread of what was measured: identical sessions differ by so much on a quiet machine (own A/A measurement)."""

MOST_SURPRISE = 4.0
"""One wild measurement must not make everything seem possible. A choice."""

OWN = "own measurement on this machine"

Part = tuple[str, Strategy]
"""A dimension's name and what a strategy sets in it."""


@dataclass(frozen=True)
class Candidate:
    """A strategy that was not tried, with what is expected of it and why."""

    strategy: Strategy
    prediction: Prediction
    because: str
    source: str


class Measured:
    """What the history says: which strategies won, and what each option alone gained.

    Args:
        dimensions: the space.
        history: trials so far.
        complete: adds what rules require to a strategy, and says why; an option is alone also with that beside it.

    Attributes:
        parents: speed-up and strategy of the best so far, best first, then the default.
        gains: part -> measured speed-up of it alone.
    """

    def __init__(
        self,
        dimensions: Sequence[Dimension],
        history: Sequence[Trial],
        complete: Callable[[Strategy], tuple[Strategy, str]] = lambda strategy: (strategy, ""),
    ) -> None:
        self.dimensions, self.complete = dimensions, complete
        self.choices = {(d.name, choice.part): choice for d in dimensions for choice in d.choices}
        self._alone = {complete(part[1])[0]: part for part in self.choices} if history else {}
        self.tried = {Strategy(), *(trial.strategy for trial in history)}
        self.gains: dict[Part, float] = {}
        self._bad: set[Part] = set()
        self._parts: dict[Strategy, list[Part]] = {}
        for trial in history:
            part = self._only_part(trial.strategy)
            if part is not None:
                self._learn(part, trial)
        found = ((speedup_of(t), t) for t in history if not has_failed(t))
        timed = [(speedup, t.strategy) for speedup, t in found if speedup is not None]
        timed.sort(key=lambda pair: (-pair[0], pair[1].describe()))
        self.parents = [*[pair for pair in timed if pair[0] > 1][:PARENTS], (1.0, Strategy())]

    def parts(self, strategy: Strategy) -> list[Part]:
        """What it sets, dimension by dimension."""
        if strategy not in self._parts:
            keys = keys_of(strategy)
            setting = [dimension for dimension in self.dimensions if dimension.is_set_by(keys)]
            self._parts[strategy] = [(dimension.name, dimension.part_of(strategy)) for dimension in setting]
        return self._parts[strategy]

    def gain(self, part: Part) -> float:
        """Measured, else expected, else 1: neither better nor worse."""
        expected = self.choices[part].prior if part in self.choices else 1.0
        return self.gains.get(part, expected)

    def spread(self, part: Part) -> float:
        """How far off :meth:`gain` may be, in log units."""
        if part in self.gains:
            return NOISE
        return self.surprise * self.choices[part].spread if part in self.choices else NOISE

    @property
    def surprise(self) -> float:
        """How many times wider than declared the priors' spreads must be taken: root mean square of how many of them
        the options measured alone lay away, at least 1. A machine that is unlike those measured is searched more."""
        known = [(part, gain) for part, gain in self.gains.items() if part in self.choices]
        away = [(log(gain) - log(self.choices[part].prior)) / self.choices[part].spread for part, gain in known]
        return min(MOST_SURPRISE, max(1.0, (sum(z * z for z in away) / len(away)) ** 0.5)) if away else 1.0

    def rules_out(self, strategy: Strategy) -> bool:
        """Whether it was tried, or holds an option that is known to fail or to lose alone."""
        return strategy in self.tried or any(part in self._bad for part in self.parts(strategy))

    def _only_part(self, strategy: Strategy) -> Part | None:
        """The one option that it holds beside what rules require of that."""
        parts = self.parts(strategy)
        if strategy in self._alone:
            return self._alone[strategy]
        return parts[0] if len(parts) == 1 and self._is_all(strategy, parts[0]) else None

    def _is_all(self, strategy: Strategy, part: Part) -> bool:
        dimension = next(d for d in self.dimensions if d.name == part[0])
        return dimension.put(strategy, Strategy()).is_default

    def _learn(self, part: Part, trial: Trial) -> None:
        if has_failed(trial):
            self._bad.add(part)
        elif trial.timing is not None and (speedup := speedup_of(trial)) is not None:
            self.gains[part] = speedup
            if trial.timing.speedup_high < 1:
                self._bad.add(part)


def has_failed(trial: Trial) -> bool:
    """Whether it crashed, or did not compile, or was not accurate; not whether it paid."""
    return trial.failure is not None or any(not gate.passed and gate.name != "pays" for gate in trial.gates)


def speedup_of(trial: Trial) -> float | None:
    """What it was measured to gain; None where it was not timed, or by figures that no clock gives."""
    timing = trial.timing
    return timing.speedup if timing is not None and isfinite(timing.speedup) and timing.speedup > 0 else None


def candidates_of(problem: Problem, measured: Measured) -> list[Candidate]:
    """Pairs of gains, then neighbours; each completed and once, none that was tried or is known to lose."""
    found: dict[Strategy, Candidate] = {}
    for candidate in (*_pairs(problem, measured), *_neighbours(problem, measured)):
        strategy, why = measured.complete(candidate.strategy)
        if strategy in found or any(measured.rules_out(each) for each in (strategy, candidate.strategy)):
            continue
        because = f"{candidate.because}; {why}" if why else candidate.because
        found[strategy] = replace(candidate, strategy=strategy, because=because)
    return list(found.values())


def _neighbours(problem: Problem, measured: Measured) -> Iterator[Candidate]:
    """One dimension away from a parent, the best parent first."""
    for speedup, parent in measured.parents:
        for dimension in measured.dimensions:
            before = (dimension.name, dimension.part_of(parent))
            for choice in dimension.choices:
                strategy, part = dimension.put(parent, choice.part), (dimension.name, choice.part)
                if _fits(problem, measured, strategy, dimension, choice, parent):
                    gain = log(speedup) + log(measured.gain(part)) - log(measured.gain(before))
                    spread = _joint(measured.spread(part), 0.0 if parent.is_default else TOGETHER)
                    because, source = _explain(measured, dimension, choice, parent, speedup)
                    yield Candidate(strategy, Prediction(gain, spread), because, source)


def _pairs(problem: Problem, measured: Measured) -> Iterator[Candidate]:
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
            yield Candidate(strategy, Prediction(log(gain * further), _joint(NOISE, TOGETHER)), because, OWN)


def _joint(*spreads: float) -> float:
    """Spread of a sum of independent errors."""
    return hypot(*spreads)


def _fits(
    problem: Problem,
    measured: Measured,
    strategy: Strategy,
    dimension: Dimension,
    choice: Choice,
    parent: Strategy = Strategy(),  # noqa: B008 (frozen)
) -> bool:
    """Whether the new choice and every other part of the strategy still mean something beside each other.

    What meant nothing in the parent either is there because a rule requires it.
    """
    parts = measured.parts(strategy)
    others = [measured.choices[part] for part in parts if part in measured.choices and part[0] != dimension.name]
    return choice.fits(problem, strategy) and all(
        each.fits(problem, strategy) for each in others if each.fits(problem, parent)
    )


def _explain(
    measured: Measured, dimension: Dimension, choice: Choice, parent: Strategy, speedup: float
) -> tuple[str, str]:
    gain = measured.gains.get((dimension.name, choice.part))
    word = f"{choice.label} (expected {choice.prior:.2f}x)" if gain is None else f"{choice.label} ({gain:.2f}x alone)"
    source = choice.source if gain is None else OWN
    if parent.is_default:
        return word, source
    return f"{word} on top of what ran {speedup:.2f}x: {parent.describe()}", source
