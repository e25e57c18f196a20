"""Whether a learned model may be asked at all: what it was trained on, and how far a question lies from that. Pure.

Agreement among trees is no such test: on a class of device that none of them has seen they agree more than elsewhere
and are wrong. So the questions are asked in this order, and the first "no" stands, with its reason:

1. Was a device of this class seen in training?
2. Was a strategy of this kind, and every operator that it leans on, seen?
3. Does each feature lie within the range seen, and the whole within the distance at which held-out hardware lay?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ort_metainfer.learning.tasks import Floats

__all__ = ["Question", "Support", "learn_support", "refusal"]

SLACK = 0.1
"""A feature may lie outside the range seen by this share of it: ranges are those of a sample."""

QUANTILE = 0.99
"""Of the distances at which held-out hardware lay from all other: what is farther is not known ground."""

ROUNDING = 1e-5
"""Relative spread below which a feature is the same everywhere: what is left is rounding, also of the card's digits."""

EXEMPLARS = 192
"""Cases that are kept to measure distances from; enough that the nearest is near, few enough for a file."""


@dataclass(frozen=True)
class Question:
    """What a model is asked about.

    Attributes:
        kind: class of the device the strategy runs on.
        features: by name, of the model and the device; what is not known is not there.
        strategies: kinds of strategies to be ranked: providers, precisions, families of rewrites.
        operators: operators that the answer leans on.
    """

    kind: str
    features: Mapping[str, float]
    strategies: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Support:
    """What a model was trained on.

    Attributes:
        kinds: device class -> pieces of hardware of it.
        strategies: kinds of strategies seen; ``operators`` likewise. Empty: nothing is asked of them.
        names: of the features that ranges and distances are told in.
        low: least value seen, a feature each; ``high`` likewise; NaN where it was never known.
        exemplars: cases x features in units of ``scale`` from ``centre``; NaN where not known.
        threshold: distance beyond which a case is not known ground; NaN where it could not be found (one hardware).
    """

    kinds: Mapping[str, int]
    strategies: frozenset[str]
    operators: frozenset[str]
    names: tuple[str, ...]
    low: Floats
    high: Floats
    centre: Floats
    scale: Floats
    exemplars: Floats
    threshold: float

    def standardised(self, features: Floats) -> Floats:
        """In units of the spread seen."""
        return (features - self.centre) / self.scale


def refusal(support: Support, question: Question) -> str | None:
    """Why the model is not to be asked, in one sentence; None where it may be."""
    if question.kind not in support.kinds:
        seen = ", ".join(f"{kind} ({count})" for kind, count in sorted(support.kinds.items()))
        return f"no device of class {question.kind} was seen in training, only {seen or 'none'}"
    for what, asked, seen_ones in (
        ("strategy of kind", question.strategies, support.strategies),
        ("operator", question.operators, support.operators),
    ):
        strange = sorted(asked - seen_ones) if seen_ones else []
        if strange:
            return f"{what} {', '.join(strange[:3])} was not seen in training"
    values = np.array([question.features.get(name, np.nan) for name in support.names])
    return _outside(support, values) or _far(support, values)


def _outside(support: Support, values: Floats) -> str | None:
    slack = SLACK * (support.high - support.low)
    with np.errstate(invalid="ignore"):
        outside = np.flatnonzero((values < support.low - slack) | (values > support.high + slack))
    if not len(outside):
        return None
    first = int(outside[0])
    more = f" (and {len(outside) - 1} more)" if len(outside) > 1 else ""
    return (
        f"{support.names[first]} is {values[first]:.4g}, trained on {support.low[first]:.4g} "
        f"to {support.high[first]:.4g}{more}"
    )


def _far(support: Support, values: Floats) -> str | None:
    if np.isnan(support.threshold) or not len(support.exemplars):
        return None
    distance = float(distances(support.standardised(values)[None, :], support.exemplars)[0])
    if not distance > support.threshold:
        return None
    return f"the nearest case seen lies {distance:.2f} away, held-out hardware lay within {support.threshold:.2f}"


def distances(cases: Floats, exemplars: Floats) -> Floats:
    """Distance of each case to the nearest exemplar: root mean square over what is known of both."""
    nearest = np.full(len(cases), np.inf)
    for exemplar in exemplars:
        difference = cases - exemplar
        known = ~np.isnan(difference)
        count = known.sum(axis=1)
        squares = np.where(known, difference**2, 0.0).sum(axis=1) / np.maximum(count, 1)
        nearest = np.minimum(nearest, np.where(count > 0, np.sqrt(squares), np.inf))
    return nearest


def learn_support(
    names: Sequence[str],
    cases: Floats,
    hardware: NDArray[np.str_],
    kinds: NDArray[np.str_],
    *,
    strategies: frozenset[str] = frozenset(),
    operators: frozenset[str] = frozenset(),
    seed: int = 0,
) -> Support:
    """What the cases of a training set support.

    Args:
        names: of the columns of ``cases``.
        cases: one a row, features of model and device; NaN where not known.
        hardware: of each case; ``kinds`` likewise.
        strategies: see :class:`Support`; ``operators`` likewise.
        seed: which cases are kept.
    """
    keep: NDArray[np.bool_] = np.asarray(~np.isnan(cases).all(axis=0))
    columns = cases[:, keep]
    centre, spread = np.nanmean(columns, axis=0), np.nanstd(columns, axis=0)
    scale = np.where(spread > ROUNDING * (1 + np.abs(centre)), spread, 1.0)
    standardised = (columns - centre) / scale
    picked = _spread_out(hardware, seed)
    return Support(
        kinds={str(kind): len(np.unique(hardware[kinds == kind])) for kind in np.unique(kinds)},
        strategies=strategies,
        operators=operators,
        names=tuple(name for name, kept in zip(names, keep.tolist(), strict=True) if kept),
        low=np.nanmin(columns, axis=0),
        high=np.nanmax(columns, axis=0),
        centre=centre,
        scale=scale,
        exemplars=standardised[picked],
        threshold=_threshold(standardised, hardware, picked),
    )


def _spread_out(hardware: NDArray[np.str_], seed: int) -> NDArray[np.intp]:
    """Cases to keep, every piece of hardware as often as there is room for."""
    random = np.random.default_rng(seed)
    turns = {each: random.permutation(np.flatnonzero(hardware == each)) for each in np.unique(hardware)}
    longest = max((len(rows) for rows in turns.values()), default=0)
    dealt = [rows[turn] for turn in range(longest) for rows in turns.values() if turn < len(rows)]
    return np.array(dealt[:EXEMPLARS], dtype=np.intp)


def _threshold(standardised: Floats, hardware: NDArray[np.str_], picked: NDArray[np.intp]) -> float:
    """The distance within which 99% of the cases of held-out hardware lie from all other hardware."""
    found = [
        distances(standardised[hardware == each], standardised[picked[hardware[picked] != each]])
        for each in np.unique(hardware)
    ]
    away = np.concatenate(found) if found else np.empty(0)
    away = away[np.isfinite(away)]
    return float(np.quantile(away, QUANTILE)) if len(away) else float("nan")
