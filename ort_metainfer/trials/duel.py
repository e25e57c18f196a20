"""A duel as its rounds tell it: the figures after each look, whether it is over, and the gate. Pure.

Four sessions in the order they were created: candidate, baseline, baseline again, candidate again. Read backwards the
order is the same, so that whatever favours the first or the last session of a process favours both sides alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from ort_metainfer.decision import Gate, Timing
from ort_metainfer.trials import gates
from ort_metainfer.trials.course import Course
from ort_metainfer.trials.task import Thresholds
from ort_metainfer.trials.timing import (
    LOOKS,
    MAX_ROUNDS,
    MIN_ROUNDS,
    Interval,
    Rounds,
    compare,
    interval_of_median,
    log_ratios,
    look_allowance,
)

__all__ = ["ALONE", "BASELINE", "CANDIDATE", "UNSTEADY", "Look", "judge", "look_at", "verdict"]

CANDIDATE = ("candidate", "candidate_again")
BASELINE = ("baseline", "baseline_again")

ALONE: Mapping[str, str] = {"candidate alone": "candidate", "baseline alone": "baseline"}
"""Turns that the objective ``pipeline`` adds: the session without another one running in between."""


UNSTEADY = "machine not steady"
"""How the verdict begins where a strategy may only be judged by undisturbed rounds and there were too few."""


@dataclass(frozen=True)
class Look:
    """What the rounds say so far; ``alone`` is the log ratio of the sessions when alone, for ``pipeline``."""

    timing: Timing
    alone: Interval | None
    is_over: bool


def look_at(rounds: Rounds, thresholds: Thresholds, time_is_up: bool = False) -> Look | None:
    """The figures after these rounds; None between looks, and before the first round.

    Args:
        rounds: turns by the names above.
        thresholds: what is asked.
        time_is_up: whether no further round will follow, whatever this look says.
    """
    if len(rounds) in LOOKS:
        look = _look(rounds, thresholds, final=False)
        if look is not None and gates.is_settled(look.timing, thresholds, look.alone):
            return replace(look, is_over=True)
        if not time_is_up and len(rounds) < MAX_ROUNDS:
            return look
    return _look(rounds, thresholds, final=True) if time_is_up or len(rounds) >= MAX_ROUNDS else None


def _look(rounds: Rounds, thresholds: Thresholds, final: bool) -> Look | None:
    candidate = tuple(name for name in CANDIDATE if rounds and name in rounds[-1])
    timing = compare(rounds, candidate, BASELINE, thresholds.confidence, final) if candidate else None
    return None if timing is None else Look(timing, _alone(rounds, thresholds, final), final)


def _alone(rounds: Rounds, thresholds: Thresholds, final: bool) -> Interval | None:
    ratios = log_ratios(rounds, ["baseline alone"], ["candidate alone"])
    if not ratios:
        return None
    return interval_of_median(ratios, look_allowance(len(ratios), thresholds.confidence, final))


def judge(race: Timing | None, course: Course, thresholds: Thresholds) -> tuple[Timing | None, Gate]:
    """The duel's figures and the gate ``pays``, by those of its rounds that count (see :class:`Course`)."""
    basis = course.basis(thresholds.confidence, thresholds.steady_only)
    timing, gate = verdict(race, basis.rounds, replace(thresholds, confidence=basis.confidence))
    if thresholds.steady_only and course.aside and len(basis.rounds) < MIN_ROUNDS:
        total = len(course.aside) + sum(map(len, course.series))
        detail = f"{UNSTEADY}: {len(basis.rounds)} of {total} rounds were undisturbed; {course.reasons[0]}"
        return timing, replace(gate, passed=False, detail=detail)
    return timing, gate


def verdict(race: Timing | None, rounds: Rounds, thresholds: Thresholds) -> tuple[Timing | None, Gate]:
    """The duel's figures and the gate ``pays``, once no further round follows."""
    look = look_at(rounds, thresholds, time_is_up=True)
    if look is None:
        return None, Gate("pays", False, "no time left to confirm it in a second process")
    if thresholds.objective == "memory":
        return look.timing, gates.bounded(look.timing, thresholds)
    return look.timing, gates.pays(race, look.timing, thresholds, look.alone, _switches(rounds))


def _switches(rounds: Rounds) -> dict[str, float]:
    """Involuntary context switches of a turn, where the system counts them: the load's fingerprint."""
    counted = {
        side: [turn.switches for turns in rounds if (turn := turns.get(side)) and turn.switches is not None]
        for side in ("candidate", "baseline")
    }
    return {f"{side}_switches": float(median(values)) for side, values in counted.items() if values}
