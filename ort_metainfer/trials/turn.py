"""Taking a turn: rest until the process is idle, one untimed run, some timed runs. And what a turn will cost.

Onnxruntime's thread pools go on spinning for about 50 ms after a run; timed right after another session's turn, the
same session ran 1.8 times slower than after a rest (5.3 ms and 9.6 ms; two cores, own measurement). Hence the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

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
    """How every session of a contest takes its turns; the same for all, or the comparison would not be fair."""

    untimed: bool = True
    min_runs: int = 3
    min_total_ms: float = 10.0

    @classmethod
    def of(cls, latency_ms: float) -> TurnPlan:
        """The plan for a model whose baseline takes ``latency_ms`` a run."""
        if latency_ms >= SLOW_MS:
            return cls(untimed=latency_ms < VERY_SLOW_MS, min_runs=1, min_total_ms=0.0)
        return cls()

    def seconds(self, latency_ms: float, pipeline: bool = False) -> float:
        """About how long one turn takes, its rest included; under ``pipeline`` each run is preceded by a twin's."""
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
