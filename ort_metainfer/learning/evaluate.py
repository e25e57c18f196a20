"""How good choices are on what was held out: regret to the best known, after so many measurements. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from ort_metainfer.learning.choice import confidence, measuring_order
from ort_metainfer.learning.held_out import HeldOut
from ort_metainfer.learning.tasks import Floats

__all__ = ["Calibration", "Score", "Verdict", "calibration", "regrets", "score", "verdict", "verdicts"]

MOST = 5
"""Measurements up to which a policy is followed."""

DONE, FAILED = 0.05, 0.15
"""Mean regret below which a device class counts as done, and above which as failed."""

Word = Literal["done", "between", "failed"]


@dataclass(frozen=True)
class Score:
    """One policy after so many measurements on the device.

    Attributes:
        policy: which.
        split: what was unseen (see :mod:`.held_out`).
        references: reference models measured on the device before.
        measured: candidates measured; the best of them is taken.
        cases: how many choices.
        mean_regret: latency over the best known, minus 1.
        within_5: share of cases with a regret of 5% at most; ``within_15`` likewise.
        gap_closed: share of the default's mean regret that is gone; NaN where no default was scored.
    """

    policy: str
    split: str
    references: int
    measured: int
    cases: int
    mean_regret: float
    within_5: float
    within_15: float
    gap_closed: float = float("nan")

    def as_dict(self) -> dict[str, Any]:
        """Plain values; what is not a number is None."""
        return {name: None if value != value else value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Verdict:
    """A device class: ``word`` says whether its mean regret is below 5%, above 15% or between."""

    kind: str
    word: Word
    measured: int
    cases: int
    mean_regret: float
    within_5: float


@dataclass(frozen=True)
class Calibration:
    """Of the choices with at least this ``confidence``: how many there are, and which share ends within 5%."""

    confidence: float
    cases: int
    share_of_all: float
    within_5: float


def regrets(held_out: HeldOut, most: int = MOST) -> Floats:
    """Cases x measurements: regret of the best of the first one, two, ... candidates in the order of measuring."""
    rows = []
    for case in held_out.cases():
        latency = held_out.tasks.latency_ms[case]
        order = measuring_order(held_out.expected[case])
        reached = np.minimum.accumulate(latency[order]) / latency.min() - 1.0
        rows.append([reached[min(count, len(reached)) - 1] for count in range(1, most + 1)])
    return np.array(rows, dtype=np.float64).reshape(len(rows), most)


def score(policy: str, split: str, held_out: HeldOut, default: float | None = None, most: int = MOST) -> list[Score]:
    """A policy's scores for one to ``most`` measurements.

    Args:
        policy: its name; ``split`` likewise.
        held_out: what it answered.
        default: mean regret of the default, against which the gap is told; None where there is none.
        most: measurements.
    """
    table = regrets(held_out, most)
    return [
        Score(
            policy=policy,
            split=split,
            references=held_out.references,
            measured=count + 1,
            cases=len(column),
            mean_regret=float(column.mean()),
            within_5=float((column <= 0.05).mean()),
            within_15=float((column <= 0.15).mean()),
            gap_closed=float("nan") if not default else 1.0 - float(column.mean()) / default,
        )
        for count, column in enumerate(table.T)
        if len(column)
    ]


def verdict(mean_regret: float) -> Word:
    """``done`` below 5%, ``failed`` above 15%, else ``between``."""
    return "done" if mean_regret < DONE else "failed" if mean_regret > FAILED else "between"


def verdicts(held_out: HeldOut, measured: int = 3) -> list[Verdict]:
    """One verdict a device class, for the best of ``measured`` candidates."""
    kinds = np.array([held_out.tasks.kind[case[0]] for case in held_out.cases()], dtype=np.str_)
    column = regrets(held_out, measured)[:, -1]
    found = []
    for kind in np.unique(kinds):
        mine = column[kinds == kind]
        found.append(
            Verdict(
                str(kind),
                verdict(float(mine.mean())),
                measured,
                len(mine),
                float(mine.mean()),
                float((mine <= 0.05).mean()),
            )
        )
    return found


def calibration(held_out: HeldOut, at: Sequence[float] = (0.5, 0.7, 0.8, 0.9)) -> list[Calibration]:
    """What confidence is worth: of the first choices that are at least so sure, the share that ends within 5%."""
    sure = np.array([confidence(held_out.expected[case]) for case in held_out.cases()])
    right = regrets(held_out, 1)[:, 0] <= 0.05
    return [
        Calibration(
            confidence=level,
            cases=int((sure >= level).sum()),
            share_of_all=float((sure >= level).mean()) if len(sure) else float("nan"),
            within_5=float(right[sure >= level].mean()) if (sure >= level).any() else float("nan"),
        )
        for level in at
    ]
