"""Taking a turn: rest until the process is idle, one untimed run, some timed runs. And what a turn will cost.

Onnxruntime's thread pools go on spinning for about 50 ms after a run; timed right after another session's turn, the
same session ran 1.8 times slower than after a rest (5.3 ms and 9.6 ms; two cores, own measurement). Hence the rest.

Under a CPU quota a rest would hide what matters to ``tail`` and ``throughput``: a group that slept begins with a whole
period's quota, and is throttled only after that is spent. Their turns begin with untimed runs in place of the rest,
until the threads of the session before have stopped spinning and the quota is in use, and go on for several periods.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from ort_metainfer.trials.callers import call_at_once
from ort_metainfer.trials.timing import Turn

__all__ = ["Clock", "SystemClock", "TurnPlan", "rest", "take_turn"]

REST_WINDOW_S = 0.012
REST_IDLE_S = 0.001
REST_CALM_WINDOWS = 2
REST_CAP_S = 0.250
"""A process is idle when its CPU time grows by less than REST_IDLE_S in each of two windows: CPU time is accounted by
the tick, so a single short window can miss a spinning thread."""

SLOW_MS = 100.0
VERY_SLOW_MS = 400.0
MAX_RUNS = 200

LOADED_TOTAL_MS = 60.0
"""Timed runs of a turn together where other processes use the machine: a turn of 10 ms meets them or does not, and one
side of a pair runs twice as long by chance. A choice; a rest takes about as long."""

PERIOD_MS = 100.0
"""Linux's default period of a CPU quota (CFS bandwidth control)."""

SPINNING_MS = 60.0
"""What the untimed runs at the beginning of a long turn take at least: threads spin for about 50 ms."""

LONG_TURN_MS = 150.0
"""Timed runs of a long turn together, where there is no quota. A choice."""

PERIODS = 3
"""The same in periods, where there is a quota."""

TAIL_SHARE = 0.99
MIN_TAIL_RUNS, MAX_TAIL_RUNS = 10, 1000
"""Runs of a turn under ``tail``, the same for every session: with less than a hundred its figure is the slowest of
them, and the slowest of more is slower."""

RUNS_A_CALLER = 4
MAX_SHARED_RUNS = 2000
"""Runs of a turn under ``throughput``: at its end some callers idle, for a run at most."""

LONG = ("tail", "throughput")


class Clock(Protocol):
    """What a turn needs of time; ``fake.FakeClock`` is the one for tests."""

    def now_s(self) -> float:
        """Wall time, from any origin."""
        ...

    def cpu_s(self) -> float:
        """CPU time used by all threads of this process."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def switches(self) -> int | None:
        """Involuntary context switches so far; None where the system does not say."""
        ...


class SystemClock:
    """The real clock."""

    def now_s(self) -> float:
        """See :class:`Clock`."""
        return time.perf_counter()

    def cpu_s(self) -> float:
        """See :class:`Clock`."""
        return time.process_time()

    def sleep(self, seconds: float) -> None:
        """See :class:`Clock`."""
        time.sleep(seconds)

    def switches(self) -> int | None:
        """See :class:`Clock`."""
        try:
            import resource
        except ImportError:  # Windows has no such module
            return None
        return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


@dataclass(frozen=True)
class TurnPlan:
    """How every session of a contest takes its turns; the same for all, or the comparison would not be fair.

    Attributes:
        untimed: whether an untimed run follows the rest.
        min_runs: timed runs, at least.
        min_total_ms: what the timed runs take together, at least.
        runs: timed runs exactly: a long turn, without a rest.
        lead_ms: what the untimed runs before those take together, at least.
        callers: threads that share the runs.
        share: see :class:`~ort_metainfer.trials.timing.Turn`.
    """

    untimed: bool = True
    min_runs: int = 3
    min_total_ms: float = 10.0
    runs: int | None = None
    lead_ms: float = 0.0
    callers: int = 1
    share: float = 0.5

    @classmethod
    def of(cls, latency_ms: float, objective: str = "latency", callers: int = 1, has_quota: bool = False) -> TurnPlan:
        """The plan for a model whose baseline takes ``latency_ms`` a run.

        Args:
            latency_ms: of one caller.
            objective: see ``Settings.objective``.
            callers: threads, for ``throughput``.
            has_quota: whether the process's CPU time is limited.
        """
        if objective in LONG:
            return cls._long(latency_ms, objective, callers, has_quota)
        if latency_ms >= SLOW_MS:
            return cls(untimed=latency_ms < VERY_SLOW_MS, min_runs=1, min_total_ms=0.0)
        return cls()

    @classmethod
    def _long(cls, latency_ms: float, objective: str, callers: int, has_quota: bool) -> TurnPlan:
        lead_ms = SPINNING_MS + PERIOD_MS * has_quota
        timed_ms = PERIODS * PERIOD_MS if has_quota else LONG_TURN_MS
        runs = round(timed_ms / max(latency_ms, 1e-3))
        if objective == "tail":
            runs = min(max(runs, MIN_TAIL_RUNS), MAX_TAIL_RUNS)
            return cls(untimed=False, runs=runs, lead_ms=lead_ms, share=TAIL_SHARE)
        runs = max(min(runs, MAX_SHARED_RUNS), RUNS_A_CALLER * callers)
        return cls(untimed=False, runs=runs, lead_ms=lead_ms, callers=callers)

    def under_load(self) -> TurnPlan:
        """The plan where something else keeps the machine busy: turns that see its quiet and its loud moments alike."""
        return self if self.runs is not None or not self.min_total_ms else replace(self, min_total_ms=LOADED_TOTAL_MS)

    def seconds(self, latency_ms: float, pipeline: bool = False) -> float:
        """About how long one turn takes, its rest included; under ``pipeline`` each run is preceded by a twin's."""
        if self.runs is not None:
            return (max(self.lead_ms, latency_ms * self.callers) + self.runs * latency_ms) / 1000
        timed_ms = max(self.min_runs * latency_ms, min(self.min_total_ms, MAX_RUNS * latency_ms))
        runs_ms = 2 * timed_ms if pipeline else timed_ms + self.untimed * latency_ms
        return (runs_ms + 1000 * REST_WINDOW_S * (REST_CALM_WINDOWS + 3)) / 1000


def rest(clock: Clock) -> float:
    """Wait until this process is idle, at most ``REST_CAP_S``; returns the seconds waited."""
    started, calm = clock.now_s(), 0
    while calm < REST_CALM_WINDOWS and clock.now_s() - started < REST_CAP_S:
        before = clock.cpu_s()
        clock.sleep(REST_WINDOW_S)
        calm = calm + 1 if clock.cpu_s() - before < REST_IDLE_S else 0
    return clock.now_s() - started


def take_turn(
    run: Callable[[], object], plan: TurnPlan, clock: Clock, twin: Callable[[], object] | None = None
) -> Turn:
    """One turn of a session.

    Args:
        run: runs the session once.
        plan: how many runs.
        clock: wall and CPU time.
        twin: runs a session configured alike just before each timed run (objective ``pipeline``).
    """
    if plan.runs is not None:
        return _take_long_turn(run, plan, plan.runs, clock)
    rest(clock)
    if plan.untimed and twin is None:
        run()
    runs_ms: list[float] = []
    cpu_s, switches = 0.0, clock.switches()
    while len(runs_ms) < plan.min_runs or (sum(runs_ms) < plan.min_total_ms and len(runs_ms) < MAX_RUNS):
        if twin is not None:
            twin()
        cpu, started = clock.cpu_s(), clock.now_s()
        run()
        runs_ms.append((clock.now_s() - started) * 1000)
        cpu_s += clock.cpu_s() - cpu
    after = clock.switches()
    lost = None if switches is None or after is None else after - switches
    return Turn(tuple(runs_ms), cpu_s * 1000 / len(runs_ms), lost)


def _take_long_turn(run: Callable[[], object], plan: TurnPlan, runs: int, clock: Clock) -> Turn:
    """Untimed runs for a while, then exactly ``runs`` timed ones, with nothing in between."""
    switches: list[int | None] = []
    cpu_s: list[float] = []

    def note() -> None:
        switches.append(clock.switches())
        cpu_s.append(clock.cpu_s())

    called = call_at_once(run, plan.callers, runs, plan.lead_ms / 1000, clock.now_s, note)
    note()
    before, after = switches[0], switches[-1]
    lost = None if before is None or after is None else after - before
    pace_ms = called.wall_s * 1000 / runs if plan.callers > 1 else None
    return Turn(called.runs_ms, (cpu_s[-1] - cpu_s[0]) * 1000 / runs, lost, plan.share, pace_ms)
