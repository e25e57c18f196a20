"""From what every tree expects of every candidate to the few that are tried. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, hypot, log

import numpy as np
from numpy.typing import NDArray

from ort_metainfer.deciders.prediction import Prediction
from ort_metainfer.strategy import Strategy

__all__ = ["Ranked", "chosen"]

LEAST = 0.01
"""Expected improvement, in natural log units, below which a strategy gets no place in the first race. Trees that end in
single rows exaggerate what may happen; what is left out, the search still weighs by the same expectations."""

LEAST_GAIN = log(1.02)
"""What the third gate demands of a winner over the default, and a duel of a challenger over the best so far: less than
that changes nothing."""

WITHIN = 0.05
"""Trees agree on a choice that they hold to be so near to the best."""


@dataclass(frozen=True)
class Ranked:
    """One candidate to try.

    Attributes:
        strategy: which.
        prediction: what to expect, and how far off that may be.
        agreement: share of trees to whom it is among the best.
        confidence: that share, less where the case lies far from all that was learned from: half of it at the limit.
    """

    strategy: Strategy
    prediction: Prediction
    agreement: float
    confidence: float

    @property
    def reason(self) -> str:
        """In one line."""
        low, high = (exp(self.prediction.log_speedup + sign * self.prediction.spread) for sign in (-1, 1))
        return (
            f"expected {self.prediction.speedup:.2f}x ({low:.2f} to {high:.2f}), "
            f"confidence {self.confidence:.0%}: {self.prediction.because}"
        )


def chosen(
    strategies: Sequence[Strategy],
    expected: NDArray[np.floating],
    count: int,
    *,
    residual: float = 0.0,
    nearness: Sequence[float] = (),
    source: str = "",
) -> list[Ranked]:
    """The candidates to measure, best first.

    The first is the best by the mean of the trees. Each next one adds most to the best of those before it, tree by
    tree; of one provider, device and sequence of rewrites there is one before there are two.

    Args:
        strategies: the candidates.
        expected: candidates x trees, ln(baseline / strategy).
        count: how many at most.
        residual: how far off expectations are on unseen hardware, natural log units.
        nearness: of each candidate's device: 1 where the case is among those learned from, 0 at the limit of what may
            be asked; empty: 1.
        source: what it was learned from, for ``explain``.
    """
    if not strategies or not expected.size:
        return []
    words = np.asarray(expected, dtype=np.float64)
    mean, spread = words.mean(axis=1), words.std(axis=1)
    agree = (words >= np.maximum(words.max(axis=0), 0.0) - WITHIN).mean(axis=1)
    made = []
    for each in _order(words, [_kind(strategy) for strategy in strategies], count):
        because = f"{agree[each]:.0%} of the trees hold it to be among the best"
        prediction = Prediction(float(mean[each]), hypot(float(spread[each]), residual), because, source)
        near = nearness[each] if nearness else 1.0
        confidence = float(agree[each]) * (0.5 + 0.5 * near)
        made.append(Ranked(strategies[each], prediction, float(agree[each]), confidence))
    return made


def _order(words: NDArray[np.float64], kinds: Sequence[object], count: int) -> list[int]:
    """Which to take, by number; see :func:`chosen`."""
    left, order, best = list(range(len(words))), list[int](), np.zeros(words.shape[1])
    while left and len(order) < count:
        taken = {kinds[each] for each in order}
        fresh = [each for each in left if kinds[each] not in taken]
        found = _next(words, fresh, best, not order)
        found = _next(words, left, best, not order) if found is None else found
        if found is None:
            break
        order.append(found)
        left.remove(found)
        best = np.maximum(best, words[found])
    return order


def _next(words: NDArray[np.float64], among: Sequence[int], best: NDArray[np.float64], is_first: bool) -> int | None:
    """The one worth measuring next; None where none adds anything."""
    if not among:
        return None
    rows = list(among)
    adds = np.maximum(words[rows] - best - LEAST_GAIN, 0.0).mean(axis=1)
    place = int((words[rows].mean(axis=1) if is_first else adds).argmax())
    return rows[place] if adds[place] >= LEAST else None


def _kind(strategy: Strategy) -> tuple[object, ...]:
    return strategy.provider, strategy.device, strategy.transforms
