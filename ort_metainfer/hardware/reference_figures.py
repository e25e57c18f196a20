"""From what was timed to figures: medians, spread, log ratios, what should not be trusted, features. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from ort_metainfer.hardware.drift import drift
from ort_metainfer.hardware.profile import Feature, ReferenceTiming
from ort_metainfer.hardware.reference_strategies import BASELINE
from ort_metainfer.problem import HardwareState
from ort_metainfer.trials.timing import MIN_ROUNDS, Turn, quantile

__all__ = [
    "STEADY",
    "TimedStrategy",
    "disturbance",
    "reference_features",
    "reference_timings",
    "relative_spread",
    "unsteadiness",
]

STEADY = 1.15
"""Two figures of the same thing that differ by more than this factor are not the same figure (the issue's 15%)."""

WIDE = 2 * (STEADY - 1)
"""Relative interquartile range past which a median is not known to 15%."""

EMULATED = "the device is emulated: its time says nothing about hardware"


@dataclass
class TimedStrategy:
    """What was seen of one strategy on one network, in order.

    Attributes:
        turns: its turns, one a round.
        creation_ms: time to create the session.
        error: worst relative L2 against the baseline's outputs.
        mismatch: what makes its outputs incomparable with them (a shape, a NaN); None where nothing does.
        taken: share of nodes that its provider took; None where onnxruntime does not say.
        refusal: why it did not get further; None where nothing stopped it.
        disturbance: what else went on while it was timed; None where nothing did.
    """

    turns: list[Turn] = field(default_factory=list)
    creation_ms: float | None = None
    error: float | None = None
    mismatch: str | None = None
    taken: float | None = None
    refusal: str | None = None
    disturbance: str | None = None


def reference_timings(
    network: str, seen: Mapping[str, TimedStrategy], emulated: Collection[str] = ()
) -> tuple[ReferenceTiming, ...]:
    """One network's row of the fingerprint.

    Args:
        network: its name.
        seen: strategy -> what was seen of it; one with neither turns nor a refusal was not reached and is left out.
        emulated: strategies whose time says nothing; they do not count in the geometric mean.
    """
    p50s = {name: median(turn.median_ms for turn in timed.turns) for name, timed in seen.items() if timed.turns}
    honest = [math.log(p50) for name, p50 in p50s.items() if name not in emulated and p50 > 0]
    middle = fmean(honest) if honest else None
    rows = []
    for name, timed in seen.items():
        p50 = p50s.get(name)
        if p50 is None and timed.refusal is None:
            continue
        rows.append(
            ReferenceTiming(
                network=network,
                strategy=name,
                p50_ms=p50,
                spread=relative_spread([turn.median_ms for turn in timed.turns]),
                log_ratio=None if middle is None or not p50 else math.log(p50) - middle,
                creation_ms=timed.creation_ms,
                error=timed.error,
                taken=timed.taken,
                refusal=None if p50 is not None else timed.refusal,
                flag=_doubts(timed, name in emulated) if p50 is not None else None,
            )
        )
    return tuple(rows)


def _doubts(timed: TimedStrategy, is_emulated: bool) -> str | None:
    """Everything that speaks against its figures, in one line; None where nothing does."""
    count = len(timed.turns)
    few = f"{count} round{'s' if count > 1 else ''} only" if count < MIN_ROUNDS else None
    wrong = f"its outputs are wrong: {timed.mismatch}" if timed.mismatch else None
    moved = unsteadiness([turn.median_ms for turn in timed.turns])
    spread = relative_spread([turn.median_ms for turn in timed.turns]) or 0.0
    wide = f"half of its rounds lie {spread:.0%} apart" if spread > WIDE else None
    said = [EMULATED if is_emulated else None, wrong, timed.disturbance, few, moved, None if moved else wide]
    return "; ".join(text for text in said if text) or None


def relative_spread(values: Sequence[float]) -> float | None:
    """Interquartile range over the median; None for fewer than three values."""
    if len(values) < 3 or median(values) <= 0:
        return None
    return (quantile(values, 0.75) - quantile(values, 0.25)) / median(values)


def unsteadiness(values: Sequence[float]) -> str | None:
    """What to say where the first and the second half of ``values`` (in the order they were taken) lie apart by more
    than :data:`STEADY`; None where they do not, or where there are fewer than four."""
    if len(values) < 4:
        return None
    split = len(values) // 2
    first, second = median(values[:split]), median(values[-split:])
    if min(first, second) > 0 and max(first, second) / min(first, second) <= STEADY:
        return None
    return f"unsteady: {first:.3g} ms in the first half of the rounds, {second:.3g} ms in the second"


def disturbance(before: HardwareState | None, after: HardwareState | None) -> str | None:
    """What disturbed a measurement between two states; None where nothing did, or nothing could be read."""
    busy = None if after is None else after.busy_reason
    reasons = [*([busy] if busy else []), *drift(before, after)]
    return f"disturbed: {', '.join(reasons)}" if reasons else None


def reference_features(timings: Iterable[ReferenceTiming]) -> tuple[Feature, ...]:
    """The fingerprint as features.

    ``reference/NETWORK/STRATEGY`` is the log ratio, ``reference/NETWORK/STRATEGY/creation`` the session's creation, and
    ``reference/NETWORK/ms`` the baseline's latency as it is.
    """
    features = []
    for timing in timings:
        name = f"reference/{timing.network}/{timing.strategy}"
        if timing.log_ratio is not None:
            features.append(Feature(name, timing.log_ratio, "ln", "fingerprint", timing.spread, timing.flag))
        if timing.p50_ms is not None and timing.strategy == BASELINE:
            absolute = f"reference/{timing.network}/ms"
            features.append(Feature(absolute, timing.p50_ms, "ms", "fingerprint", timing.spread, timing.flag))
        if timing.creation_ms is not None:
            features.append(Feature(f"{name}/creation", timing.creation_ms, "ms", "fingerprint", None, timing.flag))
    return tuple(features)
