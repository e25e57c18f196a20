"""Where a case lies beside what a model was trained on: beyond its sizes, or further off than held-out hardware. Pure.

Ranges are asked of sizes only. With some hundred features and some ten models nearly every new model is the most of
something in one share or another; how unlike it is as a whole, its distance says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ort_metainfer.learning.support import Support

__all__ = ["Place", "limit_of", "place_of"]

SIZES = ("graph/ln_", "device/cores", "device/peak_macs_per_s/", "device/bandwidth_", "device/memory_bytes")
"""Features of which a value beyond those seen is one that nothing was learned of."""

FACTOR = 2.0
"""How far beyond the sizes seen still counts as within: twice the greatest, half of the least. A choice."""


QUANTILE = 0.99
"""Share of what was learned from that lies within the limit of all other."""


@dataclass(frozen=True)
class Place:
    """Where a case lies.

    Attributes:
        distance: to the nearest case trained on; NaN where nothing is known in common.
        limit: distance within which held-out hardware and held-out models lay; NaN where that could not be found.
        beyond: sizes outside of what was seen, a few words each.
    """

    distance: float
    limit: float
    beyond: tuple[str, ...] = ()

    @property
    def objection(self) -> str | None:
        """Why a model must not be asked; None where it may."""
        away = f"the nearest case learned from lies {self.distance:.2f} away"
        limit = "" if np.isnan(self.limit) else f" (what was held out lay within {self.limit:.2f})"
        if self.beyond:
            more = f" and {len(self.beyond) - 2} more" if len(self.beyond) > 2 else ""
            return f"outside of what was learned: {'; '.join(self.beyond[:2])}{more}; {away}{limit}"
        if np.isnan(self.distance) or self.distance > self.limit:
            return f"outside of what was learned: {away}{limit}"
        return None

    @property
    def nearness(self) -> float:
        """1 at a case that was learned from, 0 at the limit of what may be asked; a half where there is no limit."""
        if np.isnan(self.limit) or np.isnan(self.distance):
            return 0.5
        return max(0.0, 1.0 - self.distance / self.limit) if self.limit > 0 else float(self.distance == 0)


def place_of(support: Support, case: Mapping[str, float]) -> Place:
    """Where a case of these features lies.

    Args:
        support: what a model was trained on.
        case: features of graph and device, by the names of the model's.
    """
    from ort_metainfer.learning.support import distances

    values = np.array([case.get(name, np.nan) for name in support.names], dtype=np.float64)
    far = float(distances(support.standardised(values)[None, :], support.exemplars)[0])
    sides = zip(support.names, values, support.low, support.high, strict=True)
    beyond = tuple(
        f"{name} {value:.3g}, seen {low:.3g} to {high:.3g}"
        for name, value, low, high in sides
        if name.startswith(SIZES) and _is_beyond(name, value, low, high)
    )
    return Place(far if np.isfinite(far) else float("nan"), limit_of(support), beyond)


@lru_cache(maxsize=4)
def limit_of(support: Support) -> float:
    """The distance within which 99% of the cases lie from the nearest of another model on another device; NaN without.

    Where every model was measured on every device, hardware held out alone lies near: the same model is there on
    another one. Where all are of one device, or of one model, it is the distance from the nearest other case.
    """
    cases = support.exemplars.astype(np.float32)
    is_graph = np.array([name.startswith("graph/") for name in support.names], dtype=np.bool_)
    found = []
    for case in cases:
        difference = cases - case
        known = ~np.isnan(difference)
        squares = np.where(known, difference**2, 0.0)
        of_graph, of_device = (squares[:, part].sum(axis=1) > 0 for part in (is_graph, ~is_graph))
        both = of_graph & of_device
        others = both if both.any() else of_graph | of_device
        if others.any():
            far = np.sqrt(squares[others].sum(axis=1) / np.maximum(known[others].sum(axis=1), 1))
            found.append(float(far.min()))
    of_both = float(np.quantile(found, QUANTILE)) if found else float("nan")
    return float(np.fmax(support.threshold, of_both))


def _is_beyond(name: str, value: float, low: float, high: float) -> bool:
    """False where one of them is not known. Names with ``ln_`` are logarithms already."""
    if name.startswith("graph/ln_"):
        slack = float(np.log(FACTOR))
        return bool(value < low - slack or value > high + slack)
    return bool(value * FACTOR < low or value > FACTOR * high)
