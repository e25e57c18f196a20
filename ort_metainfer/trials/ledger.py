"""What the parent knows of a race: kept event by event, so that a child's death loses nothing that it had said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ort_metainfer.decision import Gate, Proposal, Timing, Trial
from ort_metainfer.problem import HardwareState
from ort_metainfer.trials.course import Course
from ort_metainfer.trials.duel import BASELINE
from ort_metainfer.trials.placement import placement_from_dict
from ort_metainfer.trials.task import Thresholds
from ort_metainfer.trials.timing import compare

__all__ = ["Ledger", "states_of"]

NO_TIME = "no time left for it; a larger budget_s, or prewarming with one, allows more"

TRIAL_FIELDS = (
    "creation_ms",
    "baseline_creation_ms",
    "peak_memory_mb",
    "error",
    "errors",
    "noise_floor",
    "thread_noise",
)


def states_of(message: dict[str, Any]) -> tuple[HardwareState | None, HardwareState | None]:
    """``before`` and ``after`` of a ``state`` or ``done`` event."""
    before, after = (
        HardwareState.from_dict(state) if (state := message.get(name)) else None for name in ("before", "after")
    )
    return before, after


class Ledger:
    """The state of a race's candidates.

    Args:
        candidates: as proposed; their position is their name.
        thresholds: for the figures' confidence.
    """

    def __init__(self, candidates: Sequence[Proposal], thresholds: Thresholds) -> None:
        self._trials = [Trial(proposal.strategy, proposal.by) for proposal in candidates]
        self._thresholds = thresholds
        self._course = Course()

    @property
    def open_candidates(self) -> list[int]:
        """Those without a verdict that would keep them out of another child's race."""
        return [
            index
            for index, trial in enumerate(self._trials)
            if trial.failure is None and all(gate.passed for gate in trial.gates)
        ]

    @property
    def rounds(self) -> int:
        """Rounds of the present child that count."""
        return len(self._course.rounds)

    def new_child(self) -> None:
        """A new child begins: figures of another process are not mixed with its own."""
        self._keep_timings()
        self._course = Course()

    def note(self, message: dict[str, Any]) -> None:
        """Take in one event."""
        event = message["event"]
        if event == "trial":
            index = message["candidate"]
            plain = message["trial"]
            known = {name: plain[name] for name in TRIAL_FIELDS if _is_told(plain.get(name))}
            if "errors" in known:  # JSON has no infinity, which the cache keeps a decision as
                known["errors"] = {name: error for name, error in known["errors"].items() if _is_told(error)}
            gates = tuple(Gate(**gate) for gate in plain["gates"])
            if plain.get("placement"):
                known["placement"] = placement_from_dict(plain["placement"])
            self._trials[index] = replace(self._trials[index], gates=gates, **known)
        elif event == "untried":
            self._fail(message["candidate"], message["reason"])
        elif event in ("state", "done"):
            before, after = states_of(message)
            for index in filter(self._is_timed, range(len(self._trials))):
                self._trials[index] = replace(self._trials[index], before=before, after=after)
        else:
            self._course.note(message)

    def blame(self, index: int, reason: str) -> None:
        """One candidate failed, and with it its child."""
        self._fail(index, reason)

    def blame_all(self, reason: str) -> None:
        """Nothing of what is still open can be tried."""
        for index in self.open_candidates:
            if not self._is_timed(index) and self._trials[index].timing is None:
                self._fail(index, reason)

    def trials(self) -> list[Trial]:
        """A trial for each candidate, in order; those without figures or verdict say that there was no time."""
        self._keep_timings()
        for index, trial in enumerate(self._trials):
            if trial.failure is None and trial.timing is None and all(gate.passed for gate in trial.gates):
                self._fail(index, NO_TIME)
        return list(self._trials)

    def _is_timed(self, index: int) -> bool:
        return any(str(index) in turns for rounds in self._course.all_rounds() for turns in rounds)

    def _fail(self, index: int, reason: str) -> None:
        self._trials[index] = replace(self._trials[index], failure=reason)

    def _keep_timings(self) -> None:
        """Figures of the present child, where they rest on at least as many rounds as those before."""
        for index, trial in enumerate(self._trials):
            name = str(index)
            # one that had left before a new series was begun has its figures in the series before
            timings = (compare(r, [name], BASELINE, self._thresholds.confidence) for r in self._course.all_rounds())
            timing = next((timing for timing in timings if timing is not None), None)
            if timing is not None and timing.rounds >= _rounds_of(trial.timing):
                flags = self._course.flags(sessions=(name, f"{name}_twin", *BASELINE))
                self._trials[index] = replace(trial, timing=timing, flags=tuple(f"race: {flag}" for flag in flags))


def _is_told(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def _rounds_of(timing: Timing | None) -> int:
    return 0 if timing is None else timing.rounds
