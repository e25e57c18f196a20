"""A device's figures in words and tables: features, the probe's curves, the fingerprint."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ort_metainfer.cli.output import table
from ort_metainfer.ratios import ratio_text

if TYPE_CHECKING:
    from rich.table import Table

    from ort_metainfer.hardware.profile import Feature, Measurement, Profile, ReferenceTiming
    from ort_metainfer.hardware.toolchain import Change

__all__ = [
    "change_lines",
    "curve_lines",
    "doubt_lines",
    "feature_table",
    "figure_text",
    "fingerprint_table",
    "main_figures",
]

PREFIXES = (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15))
BINARY = (("B", 1.0), ("KiB", 2.0**10), ("MiB", 2.0**20), ("GiB", 2.0**30))
MAIN = ("peak_", "bandwidth", "dispatch_ms", "cores", "memory_bytes", "device_memory_bytes")
"""Beginnings of the names of features that a short list shows."""


def figure_text(value: float, unit: str) -> str:
    """``112 GMAC/s``, ``48 KiB``, ``0.31 ms``, ``-0.38 (0.68x)`` for a logarithm."""
    if unit == "ln":
        return f"{value:+.2f} ({math.exp(value):.3g}x)" if abs(value) < 700 else f"{value:+.2f}"
    if unit == "1":
        return f"{value:.4g}"
    if unit == "B":
        return f"{value / _scale(BINARY, value)[1]:.4g} {_scale(BINARY, value)[0]}"
    if unit.endswith("/s"):
        return f"{value / _scale(PREFIXES, value)[1]:.3g} {_scale(PREFIXES, value)[0]}{unit}"
    return f"{value:.3g} {unit}"


def _scale(scales: Sequence[tuple[str, float]], value: float) -> tuple[str, float]:
    """The largest that ``value`` reaches; the first where it reaches none."""
    return next((pair for pair in reversed(scales) if abs(value) >= pair[1]), scales[0])


def main_figures(profile: Profile) -> Iterator[str]:
    """The few features that tell most, in words; one that should not be trusted is marked."""
    for feature in profile.features:
        if feature.name.startswith(MAIN):
            yield f"{feature.name} {figure_text(feature.value, feature.unit)}{' (!)' if feature.flag else ''}"


def feature_table(features: Iterable[Feature]) -> Table:
    """Every feature with unit, spread, origin, and what speaks against it."""
    grid = table("feature", "value", "spread", "origin", "flag")
    for feature in sorted(features, key=lambda feature: (feature.origin != "static", feature.origin, feature.name)):
        spread = "-" if feature.spread is None else f"{feature.spread:.0%}"
        figure = figure_text(feature.value, feature.unit)
        grid.add_row(feature.name, figure, spread, feature.origin, feature.flag or "")
    return grid


def curve_lines(points: Sequence[Measurement]) -> Iterator[str]:
    """The probe's curves, one a line: sizes with their rate, or their time where no work is counted."""
    curves: dict[str, list[str]] = {}
    for point in points:
        curve, _, size = point.name.rpartition("/")
        mark = "!" if point.flag else "" if point.taken else " on the CPU"
        if point.p50_ms is None:
            text = "refused"
        elif point.rate is not None:
            text = figure_text(point.rate, f"{point.work_unit}/s") + mark
        else:
            text = f"{point.p50_ms:.3g} ms{mark}"
        curves.setdefault(curve or size, []).append(f"{size}: {text}" if curve else text)
    width = max(map(len, curves), default=0)
    return (f"  {curve:<{width}}  {'   '.join(words)}" for curve, words in curves.items())


def fingerprint_table(timings: Sequence[ReferenceTiming]) -> Table:
    """Strategies down, networks across: the log ratio and the median; strategies that ran nowhere are left out."""
    networks = tuple(dict.fromkeys(timing.network for timing in timings))
    cells: Mapping[tuple[str, str], ReferenceTiming] = {(t.strategy, t.network): t for t in timings}
    grid = table("strategy", *networks, "creation", "error", "taken")
    for strategy in dict.fromkeys(timing.strategy for timing in timings if timing.p50_ms is not None):
        row = [cells.get((strategy, network)) for network in networks]
        known = [timing for timing in row if timing is not None]
        created = [timing.creation_ms for timing in known if timing.creation_ms is not None]
        errors = [timing.error for timing in known if timing.error is not None]
        taken = [timing.taken for timing in known if timing.taken is not None]
        grid.add_row(
            strategy,
            *(_cell(timing) for timing in row),
            f"{max(created):.0f} ms" if created else "-",
            f"{max(errors):.0e}" if errors else "-",
            f"{min(taken):.0%}" if taken else "-",
        )
    return grid


def _cell(timing: ReferenceTiming | None) -> str:
    if timing is None:
        return "-"
    if timing.p50_ms is None:
        return "refused"
    ratio = "" if timing.log_ratio is None else f"{timing.log_ratio:+.2f} "
    return f"{ratio}({timing.p50_ms:.3g} ms){'!' if timing.flag else ''}"


def doubt_lines(timings: Sequence[ReferenceTiming]) -> Iterator[str]:
    """What speaks against figures of the fingerprint, and why strategies were refused, each text once."""
    told: dict[str, list[str]] = {}
    for timing in timings:
        if text := timing.flag or timing.refusal:
            told.setdefault(text, []).append(f"{timing.network}/{timing.strategy}")
    return (f"  ! {', '.join(names)}: {text}" for text, names in told.items())


def change_lines(changes: Sequence[Change]) -> Iterator[str]:
    """How far two measurements of one device lie apart: a summary, then each figure that does not repeat."""
    large = [change for change in changes if change.large]
    yield f"repeatability  {len(changes) - len(large)} of {len(changes)} measured features within 15%"
    for change in large:
        figures = f"{figure_text(change.before, change.unit)} then, {figure_text(change.after, change.unit)} now"
        yield f"  {change.feature}: {figures} ({ratio_text(change.ratio)}x)"
