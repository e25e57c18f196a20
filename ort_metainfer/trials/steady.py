"""Taking rounds in one state of the machine: look after each, set it aside or keep it, pause for heat, know the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from ort_metainfer.hardware.drift import drift, has_heat, together
from ort_metainfer.problem import HardwareState
from ort_metainfer.trials.bench import Bench
from ort_metainfer.trials.course import MAX_ASIDE, Course, Sieve
from ort_metainfer.trials.timing import LOOKS, MIN_ROUNDS
from ort_metainfer.trials.turn import LOADED_TOTAL_MS, Clock

__all__ = ["COOLING_SHARE", "Laps", "SteadyRounds", "cool"]

BEFORE_S = 0.1
"""The stretch before the first round lasts at least this long: a shorter one says nothing of other processes."""

COOLING_SHARE = 0.1
"""Share of the time for timing that pauses for heat may take altogether."""

COOLING_STEP_S = 0.25

MEASURING_CAP_S = 120.0
"""A contest ends after so much timing, where it has the rounds for a look: whoever allows an hour wants a decision, not
an hour of full load, and what is undecided after two minutes lies within the noise. A choice."""


class Laps(Protocol):
    """The state of the machine since it was last asked; :class:`~ort_metainfer.hardware.state.LoadWatch` is one."""

    def lap(self) -> HardwareState:
        """The state since the last lap."""
        ...


def cool(laps: Laps, reference: HardwareState | None, clock: Clock, allowed_s: float) -> float:
    """Pause until neither throttling nor temperature tells of heat, at most ``allowed_s``; returns the seconds."""
    began = clock.now_s()
    for _ in range(int(allowed_s / COOLING_STEP_S)):
        clock.sleep(COOLING_STEP_S)
        if not has_heat(drift(reference, laps.lap())):
            break
    return clock.now_s() - began


class SteadyRounds:
    """The rounds of one contest on one bench.

    Args:
        bench: its ``rounds`` are those that count, from now on.
        laps: what else the machine does; default a watch of this process.
        now_s: what ``bench.until`` is compared with.

    Attributes:
        course: all rounds.
    """

    def __init__(self, bench: Bench, laps: Laps | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        if laps is None:
            from ort_metainfer.hardware.state import LoadWatch

            laps = LoadWatch()
        self.bench, self.course = bench, Course()
        self._laps, self._now_s, self._began_s = laps, now_s, now_s()
        self._before: HardwareState | None = None
        self._sieve = Sieve(None)
        self._kept: list[HardwareState] = []
        self._aside: list[HardwareState] = []
        self._round_s = self._cooling_s = 0.0

    def begin(self) -> None:
        """The timing begins: the stretch before it ends."""
        self.bench.clock.sleep(max(0.0, BEFORE_S - (self._now_s() - self._began_s)))
        self._before = self._laps.lap()
        if self._before.busy_reason and self._has_time_for_long_turns:
            self.bench.plan = self.bench.plan.under_load()
        self._sieve, self._began_s = Sieve(self._before), self._now_s()
        self._cooling_s = COOLING_SHARE * max(0.0, self._left_s())
        self.bench.rounds = self.course.rounds  # type: ignore[assignment]

    @property
    def _has_time_for_long_turns(self) -> bool:
        """Whether the second look would still be reached: more rounds are worth more than steadier ones. What a turn
        takes besides its timed runs is about as long."""
        return self._left_s() >= LOOKS[1] * len(self.bench.sessions) * 2 * LOADED_TOTAL_MS / 1000

    @property
    def has_time(self) -> bool:
        """Whether one more round may be taken: before the deadline, within what a contest may take."""
        if self._left_s() <= self._round_s or len(self.course.aside) >= MAX_ASIDE:
            return False
        return self._now_s() - self._began_s < MEASURING_CAP_S or len(self.course.rounds) < MIN_ROUNDS

    def take(self, names: Sequence[str], alone: Mapping[str, str] | None = None) -> bool:
        """Take one round and judge it; returns whether it counts."""
        began_s = self._now_s()
        turns = self.bench.round(names, alone)
        state = self._laps.lap()
        self._round_s = self._now_s() - began_s
        sifted = self._sieve.sift(state, self._left_s() > MIN_ROUNDS * self._round_s)
        if sifted.restarts:
            self._restart(sifted.reasons)
        (self._kept if sifted.keeps else self._aside).append(state)
        if sifted.keeps:
            self.bench.keep(turns)
        else:
            self.course.set_aside(turns, sifted.reasons)
            self.bench.say_round("aside", turns, reasons=list(sifted.reasons))
        self._report()
        if has_heat(sifted.reasons):
            self._cool()
        return sifted.keeps

    def _restart(self, reasons: Sequence[str]) -> None:
        self.bench.speaker.say("restart", reasons=list(reasons))
        self.course.restart(reasons)
        self.bench.rounds = self.course.rounds  # type: ignore[assignment]
        self._kept = []

    def _cool(self) -> None:
        allowed_s = min(self._cooling_s, self._left_s() - self._round_s)
        if allowed_s >= COOLING_STEP_S:
            paused_s = cool(self._laps, self._sieve.reference, self.bench.clock, allowed_s)
            self._cooling_s -= paused_s
            self.bench.speaker.say("cooled", seconds=paused_s)

    def _report(self) -> None:
        """Say both states at a look: should this process be killed later, they are known."""
        if len(self.course.rounds) in LOOKS or len(self.course.aside) in LOOKS:
            self.bench.speaker.say("state", **self.states())

    def states(self) -> dict[str, Any]:
        """``before`` and ``after`` in plain values: before the timing, and over the rounds that count."""
        after = together(self._kept or self._aside)
        return {
            "before": None if self._before is None else asdict(self._before),
            "after": None if after is None else asdict(after),
        }

    def _left_s(self) -> float:
        return self.bench.until - self._now_s()
