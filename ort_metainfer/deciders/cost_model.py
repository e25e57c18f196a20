"""The cost model: what a strategy is expected to gain, from reckoning, priors, records, and the trials made so far.

Four steps, each of which may be missing: what is expected before anything is measured
(:mod:`~ort_metainfer.deciders.cost_expectation`), what other models' records taught
(:mod:`~ort_metainfer.deciders.cost_learning`), what onnxruntime's profiler says of the baseline's operators
(:mod:`~ort_metainfer.deciders.cost_calibration`), and the trials of this very model
(:func:`~ort_metainfer.deciders.cost_residuals.corrected`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot, log, sqrt
from typing import TYPE_CHECKING

import numpy as np

from ort_metainfer.deciders.cost_calibration import scales_of
from ort_metainfer.deciders.cost_expectation import Expectation, Expectations
from ort_metainfer.deciders.cost_learning import interactions, learn, traits_of
from ort_metainfer.deciders.cost_parts import loadings
from ort_metainfer.deciders.cost_rates import Floats
from ort_metainfer.deciders.cost_residuals import MODEL_SHARE, Learned, corrected
from ort_metainfer.deciders.prediction import Prediction
from ort_metainfer.decision import Timing, Trial
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

if TYPE_CHECKING:
    from ort_metainfer.learning.record import Record

__all__ = ["CostModel"]

NOISE = 0.01
"""Least spread of what was measured: identical sessions differ by so much on a quiet machine (own A/A measurement)."""

NOTHING = Learned()

INTERVAL = 2 * 1.96
"""Width of a 95% interval in standard deviations."""


@dataclass
class _Memo:
    """What was worked out for the last problem asked about: answers are the same without it."""

    problem: Problem | None = None
    expectations: Expectations | None = None


@dataclass(frozen=True)
class CostModel:
    """A :class:`~ort_metainfer.deciders.prediction.Predictor`; without arguments one that has learned nothing yet.

    Attributes:
        learned: what records of other models taught.
    """

    name = "cost model"

    learned: Learned = NOTHING
    _memo: _Memo = field(default_factory=_Memo, compare=False, repr=False)

    def predict(
        self, problem: Problem, strategies: Sequence[Strategy], history: Sequence[Trial]
    ) -> list[Prediction | None]:
        """See :class:`~ort_metainfer.deciders.prediction.Predictor`; equal arguments give equal answers."""
        expectations = self.expectations(problem)
        measured = [(trial, timing) for trial in history if (timing := _timing_of(trial)) is not None]
        asked = [*strategies, *(trial.strategy for trial, _ in measured)]
        answers = [expectations.of(strategy) for strategy in asked]
        known = [index for index, answer in enumerate(answers) if answer is not None]
        means, spreads = self._weighed(problem, asked, answers, known, [timing for _, timing in measured])
        seen = sum(index >= len(strategies) for index in known)
        found: list[Prediction | None] = [None] * len(strategies)
        for row, index in enumerate(known):
            answer = answers[index]
            if index < len(strategies) and answer is not None:
                found[index] = _prediction(answer, float(means[row]), float(spreads[row]), seen, self.learned)
        return found

    def expectations(self, problem: Problem) -> Expectations:
        """What is expected before anything is measured; kept for the problem asked about last."""
        if self._memo.problem is not problem or self._memo.expectations is None:
            self._memo.expectations = Expectations(problem, scales_of(problem))
            self._memo.problem = problem
        return self._memo.expectations

    def _weighed(
        self,
        problem: Problem,
        asked: Sequence[Strategy],
        answers: Sequence[Expectation | None],
        known: Sequence[int],
        timings: Sequence[Timing],
    ) -> tuple[Floats, Floats]:
        """Mean and spread of each known strategy, corrected by what was measured."""
        told = [answer for index in known if (answer := answers[index]) is not None]
        columns, table = loadings([answer.parts for answer in told])
        means = np.array([answer.log_ratio for answer in told])
        shift, variance = self._learned(columns, table, traits_of(problem))
        means = means + shift
        first = len(asked) - len(timings)
        rows = [row for row, index in enumerate(known) if index >= first]
        measured = [timings[known[row] - first] for row in rows]
        residuals = np.array([log(timing.speedup) for timing in measured]) - means[rows]
        noise = np.array([_noise_of(timing) for timing in measured])
        correction, spread = corrected(table * np.sqrt(variance), np.zeros(len(told)), rows, residuals, noise)
        return means + correction, spread

    def _learned(self, columns: Sequence[str], table: Floats, traits: Mapping[str, float]) -> tuple[Floats, Floats]:
        """By how much records move each strategy, and what variance they leave of each column."""
        if not self.learned.columns:
            return np.zeros(table.shape[0]), np.ones(table.shape[1])
        names, wide = interactions(columns, table, traits)
        mean, _ = self.learned.of(names)
        _, left = self.learned.of(columns)
        return wide @ mean, MODEL_SHARE + (1 - MODEL_SHARE) * left

    def fit(self, records: Sequence[Record], here: Collection[str] = ()) -> CostModel:
        """A model with what ``records`` teach, and nothing of what this one learned.

        Args:
            records: of any models and devices; those without a verdict on speed are left out.
            here: this machine's devices, as records name them: those of others count for less. Empty: all count alike.
        """
        return CostModel(learn(records, here))

    def to_json(self) -> str:
        """What was learned, as text."""
        return json.dumps(self.learned.as_dict())

    @classmethod
    def from_json(cls, text: str) -> CostModel:
        """The inverse of :meth:`to_json`; one that learned nothing where the text is none of this schema."""
        try:
            return cls(Learned.from_dict(json.loads(text)))
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls()


def _timing_of(trial: Trial) -> Timing | None:
    """The figures that a trial rests on; None where there are none, or they are of wrong results."""
    if trial.failure is not None or any(not gate.passed and gate.name != "pays" for gate in trial.gates):
        return None
    timing = trial.duel or trial.timing
    return timing if timing is not None and timing.speedup > 0 else None


def _noise_of(timing: Timing) -> float:
    low, high = timing.speedup_low, timing.speedup_high
    width = log(high / low) / INTERVAL if 0 < low < high else 0.0
    return hypot(NOISE, width, abs(log(timing.band)) / INTERVAL if timing.band > 0 else 0.0)


def _prediction(answer: Expectation, mean: float, spread: float, seen: int, learned: Learned) -> Prediction:
    moved = mean - answer.log_ratio
    words = [f"expected {np.exp(answer.log_ratio):.2f}x"]
    if abs(moved) > NOISE:
        by = [f"{seen} trials" if seen else "", f"records of {learned.models} models" if learned.models else ""]
        words.append(f"{np.exp(moved):.2f}x by {' and '.join(filter(None, by))}")
    floor = NOISE if answer.parts else 0.0
    return Prediction(mean, sqrt(max(spread**2, floor**2)), ", then ".join(words), answer.source)
