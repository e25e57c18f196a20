"""Bayesian linear regression in log space: what measurements say of what was expected, and of what is like it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ort_metainfer.deciders.cost_rates import Floats

__all__ = ["MODEL_SHARE", "Learned", "corrected"]

SCHEMA = 1

MODEL_SHARE = 0.5
"""Share of what is open about a part that differs from model to model: records of other models say nothing of it. A
choice; :func:`~ort_metainfer.deciders.cost_quality.cost_quality` tells how well it does."""

MOST_SURPRISE = 16.0
"""Variances are widened where measurements lie further off than expected, at most by this. A choice: four spreads."""

WEAKEST = 1e-12


@dataclass(frozen=True)
class Learned:
    """What other models' trials taught: weights of the columns of
    :func:`~ort_metainfer.deciders.cost_parts.loadings`.

    Before anything is learned every weight is normal with mean 0 and variance 1: loadings are in units of a spread.

    Attributes:
        columns: names; a column not among them has mean 0 and variance 1.
        mean: expected weight, by column; ``variance`` what is left of its variance.
        rows: records it rests on; ``models`` how many models they are of.
    """

    columns: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    variance: tuple[float, ...] = ()
    rows: int = 0
    models: int = 0
    _at: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_at", {name: index for index, name in enumerate(self.columns)})

    def of(self, columns: Sequence[str]) -> tuple[Floats, Floats]:
        """Mean and variance of the weights of ``columns``."""
        places = [self._at.get(name) for name in columns]
        mean = np.array([0.0 if place is None else self.mean[place] for place in places])
        variance = np.array([1.0 if place is None else self.variance[place] for place in places])
        return mean, variance

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in JSON."""
        weights = {
            name: [mean, variance] for name, mean, variance in zip(self.columns, self.mean, self.variance, strict=True)
        }
        return {"schema": SCHEMA, "rows": self.rows, "models": self.models, "weights": weights}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Learned:
        """The inverse of :meth:`as_dict`; nothing learned where ``plain`` is of another schema."""
        if plain.get("schema") != SCHEMA:
            return cls()
        weights = {str(name): (float(mean), float(left)) for name, (mean, left) in plain["weights"].items()}
        means, variances = tuple(m for m, _ in weights.values()), tuple(v for _, v in weights.values())
        return cls(tuple(weights), means, variances, int(plain["rows"]), int(plain["models"]))


def corrected(
    unknown: Floats, own: Floats, seen: Sequence[int], residuals: Floats, noise: Floats
) -> tuple[Floats, Floats]:
    """Correction and remaining spread of every strategy, given what some were measured to lie off.

    The prior of the residuals is normal with covariance ``unknown @ unknown.T + diag(own**2)``; the answer is its
    conditional mean and standard deviation (Rasmussen and Williams 2006, Gaussian Processes, equations 2.25 and 2.26).
    Where measurements lie further off than that allows, everything is taken to be less sure.

    Args:
        unknown: loadings, one row a strategy.
        own: spread of each strategy that it shares with no other.
        seen: rows that were measured.
        residuals: measured minus expected, one for each of ``seen``; ``noise`` their standard deviations.
    """
    alone = np.einsum("ij,ij->i", unknown, unknown) + own**2
    if not len(seen):
        return np.zeros(len(own)), np.sqrt(alone)
    rows = np.asarray(seen)
    with_seen = unknown @ unknown[rows].T
    with_seen[rows, np.arange(len(rows))] += own[rows] ** 2
    measured = np.diag(noise**2 + WEAKEST)
    surprise = float(residuals @ np.linalg.solve(with_seen[rows] + measured, residuals)) / len(rows)
    wider = min(MOST_SURPRISE, max(1.0, surprise))
    gains = np.linalg.solve(wider * with_seen[rows] + measured, wider * with_seen.T).T
    left = wider * (alone - np.einsum("ij,ij->i", gains, with_seen))
    return gains @ residuals, np.sqrt(np.maximum(left, 0.0))
