"""The search: what to try next, by expected gain over the best so far, and when nothing is worth a trial any more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from math import log

from ort_metainfer.deciders.expected import expected_improvement
from ort_metainfer.deciders.prediction import Prediction, Predictor
from ort_metainfer.deciders.rules import RuleLibrary
from ort_metainfer.deciders.search_candidates import Candidate, Measured, candidates_of
from ort_metainfer.deciders.search_space import Complete, Dimension, Refuse, nothing_required, space
from ort_metainfer.decision import Proposal, Refusal, Trial
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

__all__ = ["MIN_IMPROVEMENT", "Search"]

MIN_IMPROVEMENT = 0.003
"""Expected improvement, in log units, below which a strategy is not worth its trial: a third of what identical
sessions differ by on a quiet machine (own A/A measurement: 1%)."""

LEAST_GAIN = log(1.02)
"""What the third gate demands of a winner over the default, and a duel of a challenger over the best so far: less than
that changes nothing."""

ALIKE = 2
"""Strategies of one batch that may share provider and rewrites: what is learned of one tells about the others."""


class Search:
    """Local search over :meth:`space`: neighbours of winners, ranked by the improvement to expect of them.

    Looked at are: every strategy one dimension away from a winner or from the default, and pairs of options that each
    gained alone. Left out are: what the history holds; what a rule forbids; what holds an option that alone failed a
    gate or was measured slower, its whole interval below 1.

    The prediction is the predictor's; where there is none, or it knows nothing of a strategy, the parent's measured
    speed-up times the gain of the new option over the one it replaces: what it was measured to gain alone, otherwise
    its prior (:mod:`~ort_metainfer.deciders.search_space`). Strategies are ordered by expected improvement over the
    best measured and the least gain that counts (:func:`~ort_metainfer.deciders.expected.expected_improvement`); below
    ``MIN_IMPROVEMENT`` the search ends, and says so.

    Args:
        refuse: every rule's veto (see :meth:`RuleLibrary.refuse`).
        max_trials: at most so many trials in all, those in the history included.
        predictor: the cost model; None goes by priors and what single options gained.
        complete: adds what rules require (see :meth:`RuleLibrary.complete`); by default that of all rules where
            ``refuse`` is theirs too, else nothing.
    """

    name = "search"

    def __init__(
        self,
        refuse: Refuse | None = None,
        max_trials: int = 30,
        predictor: Predictor | None = None,
        complete: Complete | None = None,
    ) -> None:
        if refuse is None:
            rules = RuleLibrary()
            refuse, complete = rules.refuse, complete or rules.complete
        self._refuse, self._complete = refuse, complete or nothing_required
        self.max_trials, self.predictor = max_trials, predictor

    def space(self, problem: Problem) -> tuple[Dimension, ...]:
        """The dimensions searched for this problem, with their choices; what the rules forbid is left out."""
        return space(problem, self._refuse, self._complete)

    def propose(self, problem: Problem, history: Sequence[Trial]) -> Iterable[Proposal | Refusal]:
        """Untried strategies, most promising first; fewer than ``max_trials`` less the history's length.

        Ask again with the longer history: the answer rests on the trials made so far. Where strategies are left and
        none is worth a trial, the answer is a refusal that names the best of them.
        """
        dimensions = self.space(problem)
        if not dimensions:
            yield Refusal("search", self.name, "the rules leave nothing to search for this model on this machine")
            return
        room = max(0, self.max_trials - len(history))
        ranked = self.ranked(problem, dimensions, history)
        worth = [(candidate, gain) for candidate, gain in ranked if gain >= MIN_IMPROVEMENT]
        allowed = (pair for pair in worth if self._refuse(problem, pair[0].strategy) is None)
        count = 0
        for candidate, gain in islice(_mixed(allowed), room):
            count += 1
            yield Proposal(candidate.strategy, self.name, _words(candidate, gain), candidate.source)
        if not count and room and ranked and history:
            yield Refusal("search", self.name, f"no other strategy is worth a trial: {_words(*ranked[0])}")

    def ranked(
        self, problem: Problem, dimensions: Sequence[Dimension], history: Sequence[Trial]
    ) -> list[tuple[Candidate, float]]:
        """Candidates with the improvement to expect of each, in log units, best first."""
        measured = Measured(dimensions, history, partial(self._complete, problem))
        found = candidates_of(problem, measured)
        if self.predictor is not None:
            answers = self.predictor.predict(problem, [candidate.strategy for candidate in found], history)
            found = [_with(candidate, answer) for candidate, answer in zip(found, answers, strict=True)]
        best = max(0.0, *(log(speedup) for speedup, _ in measured.parents))
        gains = [(candidate, expected_improvement(candidate.prediction, best + LEAST_GAIN)) for candidate in found]
        return sorted(gains, key=lambda pair: (-pair[1], len(measured.parts(pair[0].strategy))))


def _with(candidate: Candidate, prediction: Prediction | None) -> Candidate:
    """The candidate by the predictor's word, where it has one."""
    if prediction is None:
        return candidate
    source = prediction.source or candidate.source
    because = f"{candidate.because}; {prediction.because}" if prediction.because else candidate.because
    return replace(candidate, prediction=prediction, because=because, source=source)


def _mixed(ranked: Iterable[tuple[Candidate, float]]) -> Iterable[tuple[Candidate, float]]:
    """The same, but no more than ``ALIKE`` of one provider and rewrites before others had their turn."""
    pending, seen = list(ranked), dict[tuple[object, ...], int]()
    while pending:
        later = []
        for pair in pending:
            kind = _kind(pair[0].strategy)
            if seen.get(kind, 0) < ALIKE:
                seen[kind] = seen.get(kind, 0) + 1
                yield pair
            else:
                later.append(pair)
        pending, seen = later, {}


def _kind(strategy: Strategy) -> tuple[object, ...]:
    return strategy.provider, strategy.device, strategy.transforms


def _words(candidate: Candidate, gain: float) -> str:
    expected = candidate.prediction
    return (
        f"predicted {expected.speedup:.2f}x, {gain:.1%} better than the best so far to be expected: {candidate.because}"
    )
