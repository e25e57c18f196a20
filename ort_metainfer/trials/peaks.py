"""The objective ``memory``: what each session takes in a process of its own, and what that says beside its latency."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from statistics import median
from typing import Any

from ort_metainfer.decision import Gate, Timing, Trial
from ort_metainfer.errors import MetainferError
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials import gates
from ort_metainfer.trials.channel import setup_plain
from ort_metainfer.trials.errand import run_errand
from ort_metainfer.trials.task import Setup, Thresholds
from ort_metainfer.trials.timing import MIN_ROUNDS, interval_of_median, is_clear

__all__ = ["MAX_PAIRS", "Weigh", "confirm", "weigh", "weigh_all", "with_peaks"]

MAX_PAIRS = 6
"""Pairs of processes in a duel: the fewest whose range is an interval of 95%."""

Weigh = Callable[[Strategy], float]
"""Peak memory in MB of a session with that strategy, in a process of its own; raises a MetainferError."""


def weigh(setup: Setup, strategy: Strategy, deadline: float) -> float:
    """Peak memory in MB of a session made and run in a fresh process.

    Raises:
        MetainferError: it cannot be made, crashed, had no time, or the system does not tell.
    """
    plain = setup_plain(setup)
    if not strategy.transforms:
        plain["graph"] = None  # it can be large, and only rewrites read it
    request = {"setup": plain, "strategy": strategy.as_dict(), "name": "baseline" if strategy.is_default else "0"}
    answer: dict[str, Any] = run_errand("peak", request, deadline)
    return float(answer["peak_mb"])


def _both(weigh_one: Weigh, first: Strategy, second: Strategy) -> tuple[float, float]:
    """Two sessions at the same time: the one's peak says nothing of the other's, and most of it is waiting."""
    with ThreadPoolExecutor(2) as pool:
        a, b = pool.submit(weigh_one, first), pool.submit(weigh_one, second)
        return a.result(), b.result()


def with_peaks(latency: Timing, base_mb: Sequence[float], own_mb: Sequence[float], confidence: float) -> Timing:
    """Figures of the memory ratio in place of those of the latency, which becomes ``slowdown``.

    Args:
        latency: the contest's.
        base_mb: peaks of plain sessions, at least one.
        own_mb: of the strategy's; as many make pairs, a single one is held against all.
        confidence: of the interval.
    """
    own = own_mb if len(own_mb) == len(base_mb) else [own_mb[0]] * len(base_mb)
    ratios = [math.log(max(base, 1e-3) / max(mine, 1e-3)) for base, mine in zip(base_mb, own, strict=True)]
    interval = interval_of_median(ratios, 1 - confidence)
    band = max(max(peaks) / max(min(peaks), 1e-3) for peaks in (base_mb, own_mb))
    return replace(
        latency,
        rounds=len(own_mb),
        speedup=math.exp(interval.middle),
        speedup_low=math.exp(interval.low),
        speedup_high=math.exp(interval.high),
        band=band,
        peak_mb=median(own_mb),
        baseline_peak_mb=median(base_mb),
        slowdown=1 / latency.speedup,
        slowdown_high=1 / latency.speedup_low,
    )


def weigh_all(trials: Sequence[Trial], thresholds: Thresholds, weigh_one: Weigh, deadline: float) -> list[Trial]:
    """A race's trials with memory figures: the plain session weighed twice, each strategy once.

    One that a run takes too long with, or that was not weighed, is none to confirm.
    """
    base_mb: Sequence[float] = ()
    done: list[Trial] = []
    for trial in trials:
        if trial.timing is None or trial.failure is not None:
            done.append(trial)
            continue
        try:
            if not base_mb:
                base_mb = _both(weigh_one, Strategy(), Strategy())
            _expect_time(deadline)
            own_mb = weigh_one(trial.strategy)
        except MetainferError as error:
            done.append(replace(trial, timing=None, failure=f"its memory: {error}"))
            continue
        timing = with_peaks(trial.timing, base_mb, [own_mb], thresholds.confidence)
        keeps = 1 / trial.timing.speedup <= thresholds.max_slowdown  # whether for certain, a duel will tell
        blame = None if keeps else gates.too_slow(trial.timing, thresholds)
        weighed = replace(trial, timing=timing, peak_memory_mb=own_mb)
        done.append(weighed if blame is None else weighed.with_gate(Gate("pays", False, blame)))
    return done


def _expect_time(deadline: float) -> None:
    if time.monotonic() >= deadline:
        from ort_metainfer.errors import TrialTimeout
        from ort_metainfer.trials.ledger import NO_TIME

        raise TrialTimeout(NO_TIME)


def confirm(
    race: Timing | None, latency: Timing, strategy: Strategy, thresholds: Thresholds, weigh_one: Weigh
) -> tuple[Timing | None, Gate]:
    """The duel's figures and the gate ``pays``, of pairs of fresh processes; ``latency`` is within its bound already.

    Which of a pair is started first alternates.
    """
    base_mb: list[float] = []
    own_mb: list[float] = []
    lack = ""
    while len(own_mb) < MAX_PAIRS and not _is_clear(base_mb, own_mb, thresholds):
        order = (Strategy(), strategy) if len(own_mb) % 2 else (strategy, Strategy())
        try:
            peaks = dict(zip(order, _both(weigh_one, *order), strict=True))
        except MetainferError as error:
            lack = str(error)
            break
        base_mb.append(peaks[Strategy()])
        own_mb.append(peaks[strategy])
    if not own_mb:
        return None, Gate("pays", False, f"its memory: {lack}")
    timing = with_peaks(latency, base_mb, own_mb, thresholds.confidence)
    return timing, gates.pays(race, timing, thresholds)


def _is_clear(base_mb: Sequence[float], own_mb: Sequence[float], thresholds: Thresholds) -> bool:
    if len(own_mb) < MIN_ROUNDS:
        return False
    ratios = [base / max(own, 1e-3) for base, own in zip(base_mb, own_mb, strict=True)]
    return is_clear(min(ratios), max(ratios), thresholds.min_speedup) or max(ratios) < thresholds.min_speedup
