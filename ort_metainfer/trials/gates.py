"""The three gates as pure functions: figures in, verdict with its reason in plain words out."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ort_metainfer.decision import Gate, Placement, Timing
from ort_metainfer.trials.accuracy import Comparison
from ort_metainfer.trials.task import Thresholds
from ort_metainfer.trials.timing import MIN_ROUNDS, Interval, is_clear, is_trustworthy

__all__ = [
    "RANDOM",
    "accurate",
    "bar",
    "bounded",
    "compiles",
    "is_bounded",
    "is_settled",
    "may_be_bounded",
    "pays",
    "too_slow",
]

RANDOM = "outputs differ from run to run"

OBJECTIVE_FIGURES = (
    "p99_ms",
    "baseline_p99_ms",
    "runs_per_s",
    "baseline_runs_per_s",
    "peak_mb",
    "baseline_peak_mb",
    "slowdown",
    "slowdown_high",
)

MIN_SAVED_MB = 1.0
"""What a strategy must save of memory at least: allocators and libraries move by some pages from process to process."""

MAX_TOLD = 8
"""Outputs whose figures are told one by one: what is told must not grow with the model."""

RANDOM_ERROR = 1e-3
"""Two runs of the same session on the same input that differ by more than this are random, not rounded differently."""


def compiles(
    creation_ms: float | None,
    feeds: int,
    error: str | None = None,
    placement: Placement | None = None,
    min_share: float = 0.0,
) -> Gate:
    """The session was created, gave every output for every input, and the provider asked for runs enough of it.

    Args:
        creation_ms: what it took; None where that is not known.
        feeds: inputs it ran on.
        error: onnxruntime's message where it was not created or does not run.
        placement: which nodes run where.
        min_share: share of the work that the provider must run (``Thresholds.min_share``); something in any case.
    """
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
    figures |= {"share": placement.share}
    is_taken = placement.taken > 0 and placement.share >= min_share
    if placement.taken > 0 and not is_taken:
        words.append(f"it would mostly run on another provider ({placement.share:.0%} of the work): not timed")
    return Gate("compiles", is_taken, ", ".join(words), figures)


def accurate(
    comparison: Comparison,
    thresholds: Thresholds,
    noise_floor: float | None = None,
    is_random: bool = False,
    thread_noise: float | None = None,
    loss: float | str | None = None,
) -> Gate:
    """The outputs are the reference's, within the policy's tolerance, or within that of a user's metric.

    Args:
        comparison: of the outputs with those of the original model on the CPU provider.
        thresholds: the policy's.
        noise_floor: relative L2 of the reference to itself with the optimiser off; None where not measured.
        is_random: whether outputs differ from run to run.
        thread_noise: the same as ``noise_floor`` for another number of threads.
        loss: what the user's metric gave, or why it gave nothing; None where there is none. It replaces every
            tolerance, but NaN or infinity never pass, whether the candidate's or the reference's.
    """
    if is_random:
        return Gate("accurate", False, f"{RANDOM}, so nothing can be verified")
    noise = {"noise_floor": noise_floor, "thread_noise": thread_noise}
    figures = _accuracy_figures(comparison, noise)
    if loss is not None:
        return _within_metric(comparison, thresholds, figures, loss)
    blame = _accuracy_blame(comparison, thresholds)
    if blame is None:
        return Gate("accurate", True, _accuracy_praise(comparison, thresholds), figures)
    return Gate("accurate", False, blame + _noise_excuse(noise, thresholds), figures)


def _accuracy_figures(comparison: Comparison, noise: Mapping[str, float | None]) -> dict[str, float]:
    """The worst over all outputs, and of the ``MAX_TOLD`` worst outputs all measures (``logits.cosine``)."""
    whole = {"error": comparison.error, "top1": comparison.top1, "cosine": comparison.cosine, **noise}
    figures = {name: value for name, value in whole.items() if value is not None and math.isfinite(value)}
    worst = sorted(comparison.outputs, key=lambda name: comparison.outputs[name].relative_l2, reverse=True)
    for name in worst[:MAX_TOLD]:
        figures |= {f"{name}.{measure}": value for measure, value in comparison.outputs[name].figures().items()}
    return figures


def _told(comparison: Comparison, name: str) -> str:
    """``output 'logits': relative L2 3.1e-02, cosine 0.9991, worst element 0.12 of range 6.3``."""
    known = comparison.outputs.get(name)
    words = known.describe() if known else f"relative L2 {comparison.errors.get(name, 0.0):.1e}"
    return f"output {name!r}: {words}"


def _worst(errors: Mapping[str, float]) -> str:
    return max(errors, key=lambda name: math.inf if math.isnan(errors[name]) else errors[name], default="")


def _accuracy_praise(comparison: Comparison, thresholds: Thresholds) -> str:
    if not comparison.errors:
        return "no output to compare"
    words = [f"{_told(comparison, _worst(comparison.errors))}; at most {thresholds.max_error:.0e} is allowed"]
    if thresholds.top1 is not None and comparison.top1 is not None:
        words.append(f"the top answer is kept in {comparison.top1:.1%} of rows")
    words += [f"output {name!r} has {text}" for name, text in list(comparison.lengths.items())[:MAX_TOLD]]
    return "; ".join(words)


def _accuracy_blame(comparison: Comparison, thresholds: Thresholds) -> str | None:
    if comparison.mismatch is not None or comparison.not_finite is not None:
        return comparison.mismatch or comparison.not_finite
    if not comparison.error <= thresholds.max_error:
        worst = _told(comparison, _worst(comparison.errors))
        return f"{worst}; a relative L2 of at most {thresholds.max_error:.0e} is allowed"
    for name, error in comparison.outputs.items():
        wanted = thresholds.min_cosine
        if wanted is not None and error.cosine is not None and not error.cosine >= wanted:
            return f"{_told(comparison, name)}; a cosine of at least {wanted:g} is asked"
        if error.aligned is not None and not error.aligned >= (thresholds.top1 or 1.0):
            return f"output {name!r} has {comparison.lengths[name]}; at least {thresholds.top1 or 1.0:.0%} is asked"
    if thresholds.top1 is not None and comparison.top1 is not None and comparison.top1 < thresholds.top1:
        return f"the top answer is kept in {comparison.top1:.1%} of rows, at least {thresholds.top1:.0%} is asked"
    return None


def _noise_excuse(noise: Mapping[str, float | None], thresholds: Thresholds) -> str:
    """What to do where plain onnxruntime itself is as far from the reference."""
    ways = {"noise_floor": "with its optimiser off", "thread_noise": "with another number of threads"}
    for name, how in ways.items():
        differs = noise[name]
        if differs is not None and differs > thresholds.max_error:
            return (
                f"; plain onnxruntime {how} differs by {differs:.1e} on the same inputs, so these inputs cannot tell:"
                " give real ones (inputs=)"
            )
    return ""


def _within_metric(
    comparison: Comparison, thresholds: Thresholds, figures: dict[str, float], loss: float | str
) -> Gate:
    name = f"metric {thresholds.metric!r}"
    never = comparison.stray or comparison.not_finite
    if never is not None:
        return Gate("accurate", False, never, figures)
    if isinstance(loss, str):
        return Gate("accurate", False, f"{name}: {loss}", figures)
    passed = loss <= thresholds.metric_threshold
    verdict = f"at most {thresholds.metric_threshold:g} is {'allowed' if passed else 'asked'}"
    known = figures | ({"loss": loss} if math.isfinite(loss) else {})
    told = f" ({_told(comparison, _worst(comparison.errors))})" if comparison.errors else ""
    return Gate("accurate", passed, f"{name} gives a loss of {loss:.4g}, {verdict}{told}", known)


def bar(timing: Timing, thresholds: Thresholds) -> float:
    """The speed-up that the whole interval must exceed: what is asked for, and the A/A band."""
    return max(timing.band, thresholds.min_speedup)


def is_settled(duel: Timing, thresholds: Thresholds, alone: Interval | None = None) -> bool:
    """Whether more rounds would not change a duel's verdict (called at looks only)."""
    if thresholds.objective == "memory":  # rounds tell its latency only
        return is_bounded(duel, thresholds) or not may_be_bounded(duel, thresholds)
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
    """The candidate is better than the default, beyond what two identical sessions differ by, in two processes.

    Better is what the objective says: faster, faster in the tail, more runs per second, less peak memory.

    Args:
        race: the figures of the race, in another process.
        duel: the figures of the duel.
        thresholds: what is asked.
        alone: for ``pipeline``: the log ratio of baseline to candidate when the session runs alone.
        extra: further figures to keep with the verdict.
    """
    figures = {"speedup": duel.speedup, "low": duel.speedup_low, "high": duel.speedup_high, "band": duel.band}
    figures |= {"rounds": float(duel.rounds)} | ({} if race is None else {"race_speedup": race.speedup})
    figures |= {name: value for name in OBJECTIVE_FIGURES if (value := getattr(duel, name)) is not None}
    if alone is not None:
        figures |= {"alone_speedup": _ratio(alone.middle), "alone_low": _ratio(alone.low)}
    counted = "pairs of processes" if duel.peak_mb is not None else "rounds"
    span = f"{duel.speedup:.2f}x [{duel.speedup_low:.2f}, {duel.speedup_high:.2f}] over {duel.rounds} {counted}"
    span = f"{_what(duel)}{span}"
    blame = _pays_blame(race, duel, thresholds, alone)
    detail = f"{span}, {blame}" if blame else f"{span}, outside the A/A band of {duel.band:.2f}"
    return Gate("pays", blame is None, detail, figures | dict(extra or {}))


def _what(timing: Timing) -> str:
    """What the ratio is of, where it is not the median latency."""
    if timing.p99_ms is not None:
        return f"P99 {timing.p99_ms:.3g} ms against {timing.baseline_p99_ms:.3g}: "
    if timing.runs_per_s is not None:
        return f"{timing.runs_per_s:.4g} runs/s against {timing.baseline_runs_per_s:.4g}: "
    if timing.peak_mb is not None:
        return f"peak {timing.peak_mb:.1f} MB against {timing.baseline_peak_mb:.1f}, {_slowdown_text(timing)}: "
    return ""


def _slowdown_text(timing: Timing) -> str:
    return f"a run takes {timing.slowdown:.2f} times as long [..., {timing.slowdown_high:.2f}]"


def is_bounded(latency: Timing, thresholds: Thresholds) -> bool:
    """Whether the whole interval lies within ``max_slowdown``, and rests on enough rounds or lies far within."""
    bound = 1 / thresholds.max_slowdown
    if latency.speedup_low < bound or latency.rounds < 1:
        return False
    trusted = is_trustworthy(latency.rounds, thresholds.confidence)
    return trusted or (latency.rounds >= MIN_ROUNDS and is_clear(latency.speedup_low, latency.speedup_high, bound))


def may_be_bounded(latency: Timing, thresholds: Thresholds) -> bool:
    """Whether some of the interval lies within ``max_slowdown``."""
    return latency.speedup_high >= 1 / thresholds.max_slowdown


def bounded(latency: Timing, thresholds: Thresholds) -> Gate:
    """Of the objective ``memory``, the half that rounds tell: a run takes no longer than allowed."""
    passed, text = is_bounded(latency, thresholds), too_slow(latency, thresholds)
    blame = text if not may_be_bounded(latency, thresholds) else f"{text}: not certain, a larger budget_s would tell"
    return Gate("pays", passed, text if passed else blame)


def too_slow(timing: Timing, thresholds: Thresholds) -> str:
    """What to say of one that is not within ``max_slowdown``; ``timing`` may be that of latency or of memory."""
    slowdown = timing.slowdown or 1 / timing.speedup
    high = timing.slowdown_high or 1 / timing.speedup_low
    return (
        f"a run takes {slowdown:.2f} times as long [..., {high:.2f}] as by default over {timing.rounds} rounds; "
        f"{thresholds.max_slowdown:.2f} times is allowed (max_slowdown)"
    )


def _pays_blame(race: Timing | None, duel: Timing, thresholds: Thresholds, alone: Interval | None) -> str | None:
    if duel.speedup_low <= thresholds.min_speedup:
        return f"not wholly above the {thresholds.min_speedup:.2f} asked for"
    if duel.speedup_low <= duel.band:
        return f"not outside the A/A band of {duel.band:.2f}"
    if not _outside(duel, thresholds):
        return f"too few rounds for {thresholds.confidence:.0%}: a larger budget_s would tell"
    if duel.p99_ms is not None and duel.p99_ms >= (duel.baseline_p99_ms or 0):
        return "but not below the default's P99 over all runs together"
    if duel.peak_mb is not None and (duel.baseline_peak_mb or 0) - duel.peak_mb < MIN_SAVED_MB:
        return f"but less than {MIN_SAVED_MB:g} MB"
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
