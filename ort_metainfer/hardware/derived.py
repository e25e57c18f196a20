"""From the probe's points to named features: peaks, bandwidths, overheads, ratios. Pure.

A point that was refused, or that the provider left to the CPU, gives no feature. The best of several sizes is taken
among points that nothing speaks against; where a flagged one might have been better, the feature is flagged too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from ort_metainfer.hardware.micro_benchmarks import COPY_KINDS, ONE_THREAD, UNCONSTRAINED
from ort_metainfer.hardware.profile import Feature, Measurement

__all__ = ["EMULATED", "derive_features"]

EMULATED = "emulated: its timing says nothing about such hardware"

PER_SECOND = MappingProxyType({"MAC": "MAC/s", "B": "B/s"})

BEYOND_CACHE_BYTES = 300_000_000
"""Bytes moved in one run of the element-wise chain from which on its rate counts as memory's, that of the largest size:
the matrices take a third of that, more than most processors' last cache (a virtual EPYC with two cores showed 150 GB/s
with 4 MB of them, 68 with 96 MB and 55 with 192 MB)."""

MIGHT_BE_BEST = 0.5
"""A disturbed point is taken to be slowed to half at most: two processes on a core."""

COMPARED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "conv3x3_to_matmul": ("conv3x3/float32/64x56", "matmul/float32/512"),
        "conv1x1_to_conv3x3": ("conv1x1/float32/256x28", "conv3x3/float32/64x56"),
        "depthwise_to_conv3x3": ("depthwise3x3/float32/256x56", "conv3x3/float32/64x56"),
        "attention_to_matmul": ("attention/float32/128x256", "matmul/float32/512"),
        "lstm_to_matmul": ("lstm/float32/32x256", "matmul/float32/512"),
        "small_to_large_matmul": ("matmul/float32/64", "matmul/float32/512"),
        "float16_to_float32/matmul": ("matmul/float16/512", "matmul/float32/512"),
        "bfloat16_to_float32/matmul": ("matmul/bfloat16/512", "matmul/float32/512"),
        "int8_to_float32/matmul": ("matmul/int8/512", "matmul/float32/512"),
        "float16_to_float32/conv3x3": ("conv3x3/float16/64x56", "conv3x3/float32/64x56"),
        "int8_to_float32/conv3x3": ("conv3x3/int8/64x56", "conv3x3/float32/64x56"),
        "int8_to_float32/depthwise3x3": ("depthwise3x3/int8/256x56", "depthwise3x3/float32/256x56"),
        "threads/matmul": ("matmul/float32/512", f"matmul/float32/512@{ONE_THREAD}"),
        "threads/matmul_int8": ("matmul/int8/512", f"matmul/int8/512@{ONE_THREAD}"),
        "threads/conv3x3": ("conv3x3/float32/64x56", f"conv3x3/float32/64x56@{ONE_THREAD}"),
        "threads/element_wise": ("element_wise/float32/8192x1024", f"element_wise/float32/8192x1024@{ONE_THREAD}"),
        "threads/lstm": ("lstm/float32/32x256", f"lstm/float32/32x256@{ONE_THREAD}"),
        "unconstrained/matmul": (f"matmul/float32/512@{UNCONSTRAINED}", "matmul/float32/512"),
        "unconstrained/conv3x3": (f"conv3x3/float32/64x56@{UNCONSTRAINED}", "conv3x3/float32/64x56"),
    }
)
"""Ratio -> the point above and the point below: how much faster work gets done, per unit of work."""


def derive_features(points: Iterable[Measurement], emulated: bool = False) -> tuple[Feature, ...]:
    """Every feature that the points give.

    Args:
        points: as measured.
        emulated: whether the device is a simulator: everything is flagged then.
    """
    usable = [point for point in points if point.p50_ms is not None and point.taken and point.refusal is None]
    found = [*_overhead(usable), *_peaks(usable), *_rates(usable), *_bandwidths(usable)]
    found += [*_transfers(usable), *_ratios({point.name: point for point in usable})]
    return tuple(replace(feature, flag=EMULATED) for feature in found) if emulated else tuple(found)


def _parts(point: Measurement) -> tuple[str, str, str]:
    """Kind, type with its configuration (``float32@1-thread``), and size."""
    kind, dtype, size = point.name.split("/", 2)
    size, mark, configuration = size.partition("@")
    return kind, dtype + mark + configuration, size


def _best(points: Sequence[Measurement]) -> Measurement | None:
    """The highest rate among points that nothing speaks against, flagged where a flagged one might have been higher."""

    def rate(point: Measurement) -> float:
        return point.rate or 0.0

    trusted = [point for point in points if point.flag is None]
    doubtful = max((point for point in points if point.flag is not None), key=rate, default=None)
    best = max(trusted, key=rate, default=None)
    if best is None or doubtful is None:
        return best or doubtful
    return replace(best, flag=doubtful.flag) if rate(doubtful) > MIGHT_BE_BEST * rate(best) else best


def _groups(points: Iterable[Measurement], with_kind: bool) -> dict[str, list[Measurement]]:
    groups: dict[str, list[Measurement]] = {}
    for point in points:
        kind, dtype, _ = _parts(point)
        groups.setdefault(f"{kind}/{dtype}" if with_kind else dtype, []).append(point)
    return groups


def _feature(name: str, point: Measurement | None, origin_is_derived: bool = False) -> Iterator[Feature]:
    """The rate of a point."""
    if point is not None and point.rate is not None:
        unit = PER_SECOND[point.work_unit]
        yield Feature(name, point.rate, unit, "derived" if origin_is_derived else "probe", point.spread, point.flag)


def _overhead(points: Sequence[Measurement]) -> Iterator[Feature]:
    for point in points:
        if _parts(point)[0] == "empty" and point.p50_ms is not None:
            yield Feature("dispatch_ms", point.p50_ms, "ms", "probe", point.spread, point.flag)


def _peaks(points: Sequence[Measurement]) -> Iterator[Feature]:
    """The best rate over all kinds and sizes of a type."""
    for dtype, group in _groups((point for point in points if point.work_unit == "MAC"), with_kind=False).items():
        yield from _feature(f"peak_macs_per_s/{dtype}", _best(group), origin_is_derived=True)


def _rates(points: Sequence[Measurement]) -> Iterator[Feature]:
    """The best rate of each kind and type, over its sizes."""
    working = [point for point in points if point.work_unit and _parts(point)[0] not in (*COPY_KINDS, "round_trip")]
    for name, group in _groups(working, with_kind=True).items():
        yield from _feature(f"rate/{name}", _best(group))


def _bandwidths(points: Sequence[Measurement]) -> Iterator[Feature]:
    chain = [point for point in points if _parts(point)[:2] == ("element_wise", "float32")]
    within = [point for point in chain if point.work < BEYOND_CACHE_BYTES]
    largest = max(chain, key=lambda point: point.work, default=None)
    if largest is not None and largest.work >= BEYOND_CACHE_BYTES:
        yield from _feature("bandwidth_bytes_per_s", largest, origin_is_derived=True)
    yield from _feature("cache_bandwidth_bytes_per_s", _best(within), origin_is_derived=True)


def _transfers(points: Sequence[Measurement]) -> Iterator[Feature]:
    """Copies: the smallest tells the latency, the best the bandwidth. The round trip of a graph: the slope alone, since
    its fixed costs are the dispatch; the device's own Relu is in it, so the copies are at least as fast."""
    for kind in COPY_KINDS:
        group = sorted((point for point in points if _parts(point)[0] == kind), key=lambda point: point.work)
        yield from _feature(f"transfer_{kind}_bytes_per_s", _best(group))
        if group and group[0].p50_ms is not None:
            first = group[0]
            yield Feature(f"transfer_{kind}_latency_ms", group[0].p50_ms, "ms", "probe", first.spread, first.flag)
    trips = sorted((point for point in points if _parts(point)[0] == "round_trip"), key=lambda point: point.work)
    if len(trips) > 1:
        small, large = trips[0], trips[-1]
        took_ms = (large.p50_ms or 0.0) - (small.p50_ms or 0.0)
        if took_ms > 0:
            rate = (large.work - small.work) / (took_ms / 1000)
            yield Feature("round_trip_bytes_per_s", rate, "B/s", "derived", large.spread, _either(small, large))


def _ratios(points: Mapping[str, Measurement]) -> Iterator[Feature]:
    for name, (above, below) in COMPARED.items():
        upper, lower = points.get(above), points.get(below)
        if upper is None or lower is None or not upper.rate or not lower.rate:
            continue
        spread = math.hypot(upper.spread or 0.0, lower.spread or 0.0)
        yield Feature(f"ratio/{name}", upper.rate / lower.rate, "1", "derived", spread, _either(upper, lower))


def _either(*points: Measurement) -> str | None:
    """The first flag."""
    return next((point.flag for point in points if point.flag is not None), None)
