"""From a point's turns to its figures: whether its passes agree, which of them count, what to say where they do not.

Pure. Each point takes a turn in each of two passes, so that heat and other processes strike the two differently; where
they differ, or something else was running, it gets one more. Passes are chosen or flagged, never averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

from ort_metainfer.trials.timing import quantile

__all__ = ["AGREEMENT", "PASSES", "PointTurn", "Settled", "apart", "settle", "wants_repetition"]

PASSES = 2
AGREEMENT = 0.15
"""Passes whose medians differ by more than this do not agree."""


@dataclass(frozen=True)
class PointTurn:
    """One turn of one point: milliseconds of one run in each timed batch, and what else the machine did meanwhile."""

    runs_ms: tuple[float, ...]
    disturbed: str | None = None

    @property
    def median_ms(self) -> float:
        """The turn's figure."""
        return median(self.runs_ms)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in JSON."""
        return {"runs_ms": list(self.runs_ms), "disturbed": self.disturbed}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> PointTurn:
        """The inverse of :meth:`as_dict`."""
        return cls(tuple(float(run) for run in plain["runs_ms"]), plain["disturbed"])


@dataclass(frozen=True)
class Settled:
    """A point's figures over the passes that count; ``flag`` says why they should not be trusted."""

    p50_ms: float
    p90_ms: float
    spread: float
    runs: int
    flag: str | None = None


def apart(turns: Sequence[PointTurn]) -> float:
    """How far the slowest of the turns lies above the fastest, as a share; 0 for a single one."""
    medians = [turn.median_ms for turn in turns]
    return max(medians) / min(medians) - 1 if min(medians) > 0 else 0.0


def wants_repetition(turns: Sequence[PointTurn]) -> bool:
    """Whether a point that had its passes should have one more: they differ, or something disturbed one."""
    return len(turns) == PASSES and (apart(turns) > AGREEMENT or any(turn.disturbed for turn in turns))


def settle(turns: Sequence[PointTurn]) -> Settled:
    """The figures of a point.

    Undisturbed turns count alone where there are two of them. Of three that do not agree the two closest count, if
    those agree. What remains apart is flagged, and so is what was disturbed or seen only once.

    Args:
        turns: at least one.
    """
    quiet = [turn for turn in turns if turn.disturbed is None]
    counted = quiet if len(quiet) >= PASSES else list(turns)
    if apart(counted) > AGREEMENT and len(counted) > PASSES:
        closest = min(combinations(counted, PASSES), key=apart)
        counted = list(closest)
    runs_ms = [run for turn in counted for run in turn.runs_ms]
    middle = quantile(runs_ms, 0.5)
    spread = (quantile(runs_ms, 0.75) - quantile(runs_ms, 0.25)) / middle if middle > 0 else 0.0
    return Settled(middle, quantile(runs_ms, 0.9), spread, len(runs_ms), _flag(counted))


def _flag(turns: Sequence[PointTurn]) -> str | None:
    """Why the turns that count should not be trusted."""
    if apart(turns) > AGREEMENT:
        passes = ", ".join(f"{turn.median_ms:.3g}" for turn in turns)
        return f"unsteady: passes of {passes} ms differ by {apart(turns):.0%}"
    disturbance = next((turn.disturbed for turn in turns if turn.disturbed), None)
    if disturbance is not None:
        return f"disturbed: {disturbance}"
    return "seen in one pass only" if len(turns) < PASSES else None
