"""Two predictors as one: the cost model reckons, the meta-model remembers; the surer one counts more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import hypot, sqrt
from typing import TYPE_CHECKING

import numpy as np

from ort_metainfer.deciders.meta_expectation import RESIDUAL, Asked
from ort_metainfer.deciders.prediction import Prediction, Predictor
from ort_metainfer.deciders.traits_devices import device_of
from ort_metainfer.decision import Trial
from ort_metainfer.learning.graph_features import graph_features
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

if TYPE_CHECKING:
    from ort_metainfer.deciders.meta_model import Model

__all__ = ["Blended", "LearnedPredictor", "blended", "joined"]

MOST_APART = 3.0
"""Two predictions that lie further apart than so many of their joint spreads widen the answer no further."""


def blended(cost_model: Predictor, meta_model: Model | None) -> Predictor:
    """What the search goes by: the cost model's expectations with the meta-model's, where there is one to ask.

    Args:
        cost_model: reckons, and learns from this problem's own trials.
        meta_model: the learned ranking; None leaves the cost model as it is.
    """
    return cost_model if meta_model is None else Blended((cost_model, LearnedPredictor(meta_model)))


@dataclass(frozen=True)
class LearnedPredictor:
    """The learned ranking as a predictor: None where it must not be asked.

    It does not learn from the trials of the problem at hand. As these come in, it is the less sure the further it was
    off them.

    Attributes:
        model: what was learned of records.
    """

    name = "meta-model"

    model: Model
    _memo: dict[str, tuple[Problem, Asked]] = field(default_factory=dict, compare=False, repr=False)

    def predict(
        self, problem: Problem, strategies: Sequence[Strategy], history: Sequence[Trial]
    ) -> list[Prediction | None]:
        """See :class:`~ort_metainfer.deciders.prediction.Predictor`."""
        asked = self._asked(problem)
        kept, _ = asked.supported(list(dict.fromkeys(strategies)))
        if not kept:
            return [None] * len(strategies)
        words = asked.expected(kept).astype(np.float64)
        off = self._off(asked, history)
        known = dict(zip(kept, zip(words.mean(axis=1), words.std(axis=1), strict=True), strict=True))
        return [
            self._prediction(asked, strategy, *known[strategy], off) if strategy in known else None
            for strategy in strategies
        ]

    def _asked(self, problem: Problem) -> Asked:
        found = self._memo.get("last")
        if found is None or found[0] is not problem:
            graph = graph_features(problem.graph, problem.work, problem.shapes)
            found = self._memo["last"] = problem, Asked(self.model, problem, graph)
        return found[1]

    def _off(self, asked: Asked, history: Sequence[Trial]) -> float:
        """Root mean square of how far it was off the trials made here; the residual where there are none."""
        timed = {t.strategy: np.log(t.timing.speedup) for t in history if t.timing is not None and t.timing.speedup > 0}
        kept, _ = asked.supported(list(timed))
        if not kept:
            return RESIDUAL
        off = asked.expected(kept).mean(axis=1) - np.array([timed[strategy] for strategy in kept])
        return max(RESIDUAL, float(np.sqrt((off**2).mean())))

    def _prediction(self, asked: Asked, strategy: Strategy, mean: float, spread: float, off: float) -> Prediction:
        nearness = asked.place(strategy).nearness
        device = device_of(asked.problem, strategy)
        because = (
            f"{np.exp(mean):.2f}x by records on {'a device' if device is None else f'devices of class {device.kind}'}"
        )
        return Prediction(float(mean), hypot(spread, off * (2.0 - nearness)), because, asked.source)


@dataclass(frozen=True)
class Blended:
    """Several predictors as one; see :func:`joined`.

    Attributes:
        predictors: asked in order; the first one's word stands first.
    """

    name = "cost model and meta-model"

    predictors: tuple[Predictor, ...]

    def predict(
        self, problem: Problem, strategies: Sequence[Strategy], history: Sequence[Trial]
    ) -> list[Prediction | None]:
        """See :class:`~ort_metainfer.deciders.prediction.Predictor`."""
        answers = [predictor.predict(problem, strategies, history) for predictor in self.predictors]
        return [joined([one for one in said if one is not None]) for said in zip(*answers, strict=True)]


def joined(predictions: Sequence[Prediction]) -> Prediction | None:
    """One prediction of several: their mean weighted by precision, wider where they disagree.

    Independent normal predictions join to one of variance 1 / sum(1 / s^2). Where they lie further apart than their
    spreads explain, that variance is multiplied by how much further (the Birge ratio of particle data, at least 1).
    """
    if len(predictions) < 2:
        return predictions[0] if predictions else None
    certain = [one for one in predictions if one.spread <= 0]
    if certain:
        return certain[0]
    weights = np.array([1.0 / one.spread**2 for one in predictions])
    means = np.array([one.log_speedup for one in predictions])
    mean = float((weights * means).sum() / weights.sum())
    apart = float((weights * (means - mean) ** 2).sum()) / (len(predictions) - 1)
    spread = sqrt(min(max(1.0, apart), MOST_APART**2) / weights.sum())
    because = "; ".join(one.because for one in predictions if one.because)
    return Prediction(mean, spread, because, "; ".join(one.source for one in predictions if one.source))
