"""How well the cost model predicts trials that it has not seen: each model's by one fitted to all others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import expm1, hypot, sqrt
from statistics import fmean, median

import numpy as np

from ort_metainfer.deciders.cost_learning import NOISE, Row, learn_rows, loadings_with_traits, rows_of
from ort_metainfer.deciders.cost_parts import loadings
from ort_metainfer.deciders.cost_rates import Floats
from ort_metainfer.deciders.cost_residuals import MODEL_SHARE, Learned
from ort_metainfer.learning.record import Record

__all__ = ["cost_quality", "rank_correlation"]

MAIN = ("median_absolute_percentage_error", "spearman")

Scored = tuple[Row, float, float]
"""A trial, the ln(speed-up) predicted of it, and the spread of that."""


def cost_quality(records: Sequence[Record]) -> dict[str, float]:
    """How well held-out trials are predicted, before any trial of their own model: by a cost model fitted to the
    records of all other models, and by one that learned nothing. Given is only the baseline's latency.

    Returns:
        ``median_absolute_percentage_error`` of the strategy's latency; ``spearman``, the mean rank correlation within
        a model's candidates, no number where none has three; ``covered``, the share that lies within two spreads; the
        first two as ``..._unlearned``; ``trials`` and ``models`` that they rest on. Empty where there are not two
        models.
    """
    rows = rows_of(records)
    models = sorted({row.model for row in rows})
    if len(models) < 2:
        return {}
    learned: list[Scored] = []
    for name in models:
        held = [row for row in rows if row.model == name]
        learned += _scored(learn_rows([row for row in rows if row.model != name]), held)
    figures, plain = _figures(learned), _figures([(row, row.expected.log_ratio, row.expected.spread) for row in rows])
    return {**figures, **{f"{name}_unlearned": plain[name] for name in MAIN}, "models": float(len(models))}


def _scored(learned: Learned, held: Sequence[Row]) -> list[Scored]:
    """What a cost model that learned ``learned`` predicts without any history."""
    columns, table = loadings([row.expected.parts for row in held])
    names, wide = loadings_with_traits(columns, table, held)
    mean, _ = learned.of(names)
    _, left = learned.of(columns)
    shift = wide @ mean
    variance = (table**2) @ (MODEL_SHARE + (1 - MODEL_SHARE) * left)
    return [
        (row, row.expected.log_ratio + float(moved), sqrt(float(spread)))
        for row, moved, spread in zip(held, shift, variance, strict=True)
    ]


def _figures(scored: Sequence[Scored]) -> dict[str, float]:
    errors = [abs(expm1((row.record.log_ratio or 0.0) - mean)) for row, mean, _ in scored]
    within = [abs((row.record.log_ratio or 0.0) - mean) <= 2 * hypot(spread, NOISE) for row, mean, spread in scored]
    ranks = _rank_correlations(scored)
    return {
        "median_absolute_percentage_error": 100 * median(errors),
        "spearman": fmean(ranks) if ranks else float("nan"),
        "covered": fmean(within),
        "trials": float(len(scored)),
    }


def _rank_correlations(scored: Sequence[Scored]) -> list[float]:
    """Spearman's rank correlation within the candidates of each model and shapes, three at least."""
    groups: dict[object, list[tuple[float, float]]] = defaultdict(list)
    for row, mean, _ in scored:
        groups[row.record.model, row.record.shapes].append((row.record.log_ratio or 0.0, mean))
    found = (rank_correlation(pairs) for pairs in groups.values() if len(pairs) >= 3)
    return [correlation for correlation in found if correlation is not None]


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation; None where one side is all the same."""
    one, other = (_ranks(np.array(side)) for side in zip(*pairs, strict=True))
    if not one.std() or not other.std():
        return None
    return float(np.corrcoef(one, other)[0, 1])


def _ranks(values: Floats) -> Floats:
    """Ranks from 0; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2)[inverse])
