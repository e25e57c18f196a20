"""What a learned or analytic model expects of a strategy before it is tried. Data, and who gives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import Protocol

from ort_metainfer.decision import Trial
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

__all__ = ["Prediction", "Predictor"]


@dataclass(frozen=True)
class Prediction:
    """Expected speed-up of one strategy over the caller's own session.

    Attributes:
        log_speedup: ln(baseline / strategy); positive is faster.
        spread: standard deviation of the same, in natural log units: how far off it may be.
        because: what it rests on, in a few words.
        source: where that comes from.
    """

    log_speedup: float
    spread: float
    because: str = ""
    source: str = ""

    @property
    def speedup(self) -> float:
        """As a ratio: 1.2 is 20% faster."""
        return exp(self.log_speedup)


class Predictor(Protocol):
    """Policy: it is asked and never acts; equal arguments give equal answers."""

    name: str

    def predict(
        self, problem: Problem, strategies: Sequence[Strategy], history: Sequence[Trial]
    ) -> Sequence[Prediction | None]:
        """One prediction a strategy, in order; None where it knows nothing of it.

        Args:
            problem: for which model and machine.
            strategies: what to predict.
            history: trials made so far for this problem: they correct what is expected.
        """
        ...
