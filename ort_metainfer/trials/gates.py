"""The three gates as pure functions: figures in, verdict with its reason in plain words out."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ort_metainfer.decision import Gate, Placement, Timing
from ort_metainfer.trials.accuracy import Comparison
from ort_metainfer.trials.task import Thresholds
from ort_metainfer.trials.timing import MIN_ROUNDS, Interval, is_clear, is_trustworthy

__all__ = ["RANDOM", "accurate", "bar", "compiles", "is_settled", "pays"]

RANDOM = "outputs differ from run to run"

RANDOM_ERROR = 1e-3
"""Two runs of the same session on the same input that differ by more than this are random, not rounded differently."""


def compiles(
    creation_ms: float | None, feeds: int, error: str | None = None, placement: Placement | None = None
) -> Gate:
    """The session was created, gave every output for every input, and the provider asked for runs something of it."""
    if error is not None:
        return Gate("compiles", False, error)
    figures = {} if creation_ms is None else {"creation_ms": creation_ms}
    words = [
        "created" if creation_ms is None else f"created in {creation_ms:.0f} ms",
        f"runs on {feeds} {'input' if feeds == 1 else 'inputs'}",
    ]
    if placement is None or not placement.total:
        return Gate("compiles", True, ", ".join(words), figures)
    figures |= {"nodes": float(placement.total), "taken": float(placement.taken)}
    if placement.taken == placement.total:
        words.append(f"all {placement.total} nodes on {placement.short_name}")
    else:
        words.append(placement.describe())
    return Gate("compiles", placement.taken > 0, ", ".join(words), figures)


def accurate(
    comparison: Comparison, thresholds: Thresholds, noise_floor: float | None = None, is_random: bool = False
) -> Gate:
    """The outputs are the reference's, within the policy's tolerance."""
    if is_random:
        return Gate("accurate", False, f"{RANDOM}, so nothing can be verified")
    figures = _accuracy_figures(comparison, noise_floor)
    blame = _accuracy_blame(comparison, thresholds)
    if blame is None:
        detail = f"relative L2 error {comparison.error:.1e}, at most {thresholds.max_error:.0e} allowed"
        return Gate("accurate", True, detail, figures)
    if noise_floor is not None and noise_floor > thresholds.max_error:
        blame += (
            f"; plain onnxruntime with its optimiser off differs by {noise_floor:.1e} on the same inputs, so these"
            " inputs cannot tell: give real ones (inputs=)"
        )
    return Gate("accurate", False, blame, figures)


def _accuracy_figures(comparison: Comparison, noise_floor: float | None) -> dict[str, float]:
    figures = {"error": comparison.error, "top1": comparison.top1, "noise_floor": noise_floor}
    return {name: value for name, value in figures.items() if value is not None}


def _accuracy_blame(comparison: Comparison, thresholds: Thresholds) -> str | None:
    if comparison.mismatch is not None:
        return comparison.mismatch
    worst = max(comparison.errors, key=lambda name: comparison.errors[name], default="")
    if not comparison.error <= thresholds.max_error:
        return (
            f"output {worst!r} differs by {comparison.error:.1e} (relative L2), at most {thresholds.max_error:.0e}"
            " is allowed"
        )
    if thresholds.top1 is not None and comparison.top1 is not None and comparison.top1 < thresholds.top1:
        return f"the top answer is kept in {comparison.top1:.1%} of rows, at least {thresholds.top1:.0%} is asked"
    return None


def bar(timing: Timing, thresholds: Thresholds) -> float:
    """The speed-up that the whole interval must exceed: what is asked for, and the A/A band."""
    return max(timing.band, thresholds.min_speedup)


def is_settled(duel: Timing, thresholds: Thresholds, alone: Interval | None = None) -> bool:
    """Whether more rounds would not change a duel's verdict (called at looks only)."""
    if duel.speedup_high < thresholds.min_speedup:
        return True
    if not _outside(duel, thresholds):
        return False
    return alone is None or _ratio(alone.low) >= thresholds.noninferior or _ratio(alone.high) < thresholds.noninferior


def pays(
    race: Timing | None,
    duel: Timing,
    thresholds: Thresholds,
    alone: Interval | None = None,
    extra: Mapping[str, float] | None = None,
) -> Gate:
    """The candidate is faster than the default, beyond what two identical sessions differ by, in two processes.

    Args:
        race: the figures of the race, in another process.
        duel: the figures of the duel.
        thresholds: what is asked.
        alone: for ``pipeline``: the log ratio of baseline to candidate when the session runs alone.
        extra: further figures to keep with the verdict.
    """
    figures = {"speedup": duel.speedup, "low": duel.speedup_low, "high": duel.speedup_high, "band": duel.band}
    figures |= {"rounds": float(duel.rounds)} | ({} if race is None else {"race_speedup": race.speedup})
    if alone is not None:
        figures |= {"alone_speedup": _ratio(alone.middle), "alone_low": _ratio(alone.low)}
    span = f"{duel.speedup:.2f}x [{duel.speedup_low:.2f}, {duel.speedup_high:.2f}] over {duel.rounds} rounds"
    blame = _pays_blame(race, duel, thresholds, alone)
    detail = f"{span}, {blame}" if blame else f"{span}, outside the A/A band of {duel.band:.2f}"
    return Gate("pays", blame is None, detail, figures | dict(extra or {}))


def _pays_blame(race: Timing | None, duel: Timing, thresholds: Thresholds, alone: Interval | None) -> str | None:
    if duel.speedup_low <= thresholds.min_speedup:
        return f"not wholly above the {thresholds.min_speedup:.2f} asked for"
    if duel.speedup_low <= duel.band:
        return f"not outside the A/A band of {duel.band:.2f}"
    if not _outside(duel, thresholds):
        return f"too few rounds for {thresholds.confidence:.0%}: a larger budget_s would tell"
    if race is not None and race.speedup <= 1:
        return f"but the race before it, in another process, gave {race.speedup:.2f}x"
    if alone is not None and _ratio(alone.low) < thresholds.noninferior:
        return f"but {_ratio(alone.middle):.2f}x [{_ratio(alone.low):.2f}, ...] when the session runs alone"
    return None


def _outside(timing: Timing, thresholds: Thresholds) -> bool:
    """Whether the interval lies above the bar, and rests on enough rounds or lies far above it."""
    wanted = bar(timing, thresholds)
    if timing.speedup_low <= wanted or timing.rounds < 1:
        return False
    trusted = is_trustworthy(timing.rounds, thresholds.confidence)
    return trusted or (timing.rounds >= MIN_ROUNDS and is_clear(timing.speedup_low, timing.speedup_high, wanted))


def _ratio(log: float) -> float:
    return math.exp(log)
