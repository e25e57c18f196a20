"""Warming a session up: run it until its latency has settled, or until the time for that is used up.

A first run allocates its arena, a provider compiles kernels lazily, clocks rise, pools wake: how many runs that takes
differs by provider, so it is not a number but a condition. (The untimed run of each turn is another thing: it brings
back into the caches what the other sessions' turns have pushed out.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ort_metainfer.trials.turn import Clock

__all__ = ["WarmUp", "have_settled", "warm_up"]

WINDOWS = 3
"""Windows that must agree: two agree by chance while a latency still falls step by step."""

AGREEMENT = 0.10
"""How far the windows' medians may lie apart, as a share of the least. A choice: above the noise of a 5 ms window,
below the fall that is waited for, which is 1.5 times and more."""

WINDOW_MS = 5.0
WINDOW_RUNS = 100
"""A window is runs of so much time together, or so many; a slow model's is one run."""

MAX_RUNS = 1000


@dataclass(frozen=True)
class WarmUp:
    """How it went.

    Attributes:
        runs: runs made.
        seconds: time they took.
        is_settled: whether the last windows agreed; None where there were too few windows to tell.
        latency_ms: median of the last window; None where there was no time for a run.
        outputs: of the last run.
    """

    runs: int
    seconds: float
    is_settled: bool | None
    latency_ms: float | None = None
    outputs: Any = None


def have_settled(medians_ms: Sequence[float]) -> bool | None:
    """Whether the last windows agree; None for too few of them."""
    last = medians_ms[-WINDOWS:]
    return max(last) <= (1 + AGREEMENT) * min(last) if len(last) == WINDOWS else None


def warm_up(run: Callable[[], Any], clock: Clock, cap_s: float, expected_ms: float = 0.0, min_runs: int = 0) -> WarmUp:
    """Run until settled; a run that would end after ``cap_s``, going by the last one, is not begun.

    Args:
        run: runs the session once.
        clock: wall time.
        cap_s: time allowed.
        expected_ms: what the first run is expected to take.
        min_runs: runs to make whatever the time.
    """
    began, runs, outputs = clock.now_s(), 0, None
    windows: list[list[float]] = [[]]
    medians: list[float] = []
    while runs < MAX_RUNS and not have_settled(medians):
        started = clock.now_s()
        if runs >= min_runs and started - began + expected_ms / 1000 >= cap_s:
            break
        outputs, runs = run(), runs + 1
        expected_ms = (clock.now_s() - started) * 1000
        windows[-1].append(expected_ms)
        if sum(windows[-1]) >= WINDOW_MS or len(windows[-1]) >= WINDOW_RUNS:
            medians.append(median(windows[-1]))
            windows.append([])
    last = windows[-1] or (windows[-2] if len(windows) > 1 else [])
    return WarmUp(runs, clock.now_s() - began, have_settled(medians), median(last) if last else None, outputs)
