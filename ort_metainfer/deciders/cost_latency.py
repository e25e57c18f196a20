"""Latency of a model under a configuration, added up from its groups: a roofline, launches, copies. Pure.

One run takes

    sum over groups of  max( MACs / rate(kind, type, size),  bytes / rate(kind, size) ) x threads + launch
    + call      for each part of the graph on the device
    + transfer  for every value that crosses between host and device: latency + bytes / link

with the rates of :mod:`~ort_metainfer.deciders.cost_rates`. Fewer threads slow a group down as far as it would have
used them: a product takes one for each 65536 multiply-accumulates, other nodes one for each 100000 cycles (onnxruntime,
core/mlas/lib/mlasi.h, ``MLAS_SGEMM_THREAD_COMPLEXITY``; core/common/threadpool.cc, ``kPerThreadCycles``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ort_metainfer.deciders.cost_configuration import Configuration
from ort_metainfer.deciders.cost_effects import Effect
from ort_metainfer.deciders.cost_kinds import KINDS
from ort_metainfer.deciders.cost_rates import Rates
from ort_metainfer.deciders.cost_table import Floats, WorkTable

__all__ = ["Latency", "latency_of"]

BYTES: Mapping[str, float] = {"float16": 0.5, "bfloat16": 0.5, "int8": 0.25}
"""Bytes of a type, over those of float32."""

MACS_A_THREAD = 65536
"""Multiply-accumulates for which MLAS takes one thread more (``MLAS_SGEMM_THREAD_COMPLEXITY``)."""

BYTES_A_THREAD = 100_000 * 64 / 11
"""Bytes that element-wise nodes move for one thread more: 100000 cycles, at 11 for a cache line of 64 bytes (the cost
model of onnxruntime's thread pool, after Eigen's)."""

THREAD_EXPONENT = 0.9
"""Speed grows with threads to this power where it was not measured: half the threads gave 0.53x on a ResNet-50 (own
measurement)."""

LAYOUT_GAIN = 1 / 0.63
"""Convolutions in the processor's layout over those in the model's: levels basic to extended gave 0.61 to 0.70x on a
network of convolutions (own measurement, least of all runs)."""

LAYOUT_KINDS = ("conv3x3", "conv1x1", "depthwise3x3")

WAKING_SHARE = 0.5
"""Share of a launch that goes into waking threads, which a session with one thread saves. Own measurement: networks of
many small nodes run 1.04 to 1.17x with one thread."""


@dataclass(frozen=True)
class Latency:
    """Seconds of one run, by kind of group; ``overhead_s`` is what belongs to none (calls, copies, views), and
    ``launch_s`` what of all of it are launches."""

    by_kind: Mapping[str, float]
    overhead_s: float
    launch_s: float = 0.0

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(self.by_kind.values()) + self.overhead_s


def latency_of(
    table: WorkTable,
    configuration: Configuration,
    device: Rates,
    host: Rates,
    threads: int,
    scales: Mapping[str, float] | None = None,
) -> Latency:
    """What one run takes.

    Args:
        table: the model's work, placed.
        configuration: how it is run.
        device: rates of the device asked for; ``host`` those of the CPU beside it, which runs the rest.
        threads: that the rates were measured with.
        scales: kind -> how much longer the host was measured to take for it than the rates say.
    """
    own = _seconds(table, configuration, device, threads)
    on_host = Configuration("", effect=configuration.effect, has_fixed_sizes=configuration.has_fixed_sizes)
    seconds = own if device is host else np.where(table.on_device, own, _seconds(table, on_host, host, threads))
    if scales:
        factors = np.array([scales.get(kind, 1.0) for kind in KINDS])[table.kind]
        seconds = np.where(table.on_device & (device is not host), seconds, seconds * factors)
    by_kind = np.bincount(table.kind, weights=seconds, minlength=len(KINDS)) if seconds.size else np.zeros(len(KINDS))
    overhead = _overhead_s(table, configuration, device, host)
    known = {kind: float(value) for kind, value in zip(KINDS, by_kind, strict=True) if value}
    return Latency(known, overhead, float(table.launches.sum()) * device.launch_s)


def _overhead_s(table: WorkTable, configuration: Configuration, device: Rates, host: Rates) -> float:
    """Calls, copies, and the nodes that are in no group."""
    overhead = device.call_s * max(1, table.parts)
    if device is not host and device.link:
        overhead += table.crossings * device.latency_s + table.crossing_bytes / device.link
    runs_views = device is host
    folds = configuration.has_fixed_sizes or configuration.effect.folds_sizes
    loose = (table.views if runs_views else 0) + (0 if folds or not runs_views else table.sizes)
    loose += 0 if configuration.is_fused else table.unfused
    return overhead + loose * host.launch_s * WAKING_SHARE


def _seconds(table: WorkTable, configuration: Configuration, rates: Rates, threads: int) -> Floats:
    """Seconds of each group over one run, as if all of them ran here."""
    effect = configuration.effect
    changed = _changed(table, effect)
    weights, activations = _bytes(table, configuration, rates, changed)
    compute = _compute(table, configuration, rates, changed)
    memory = _memory(table, rates, weights + np.where(activations > rates.resident_bytes, activations, 0.0))
    slower = _slower(table, configuration, rates, threads)
    work = np.maximum(compute, memory) * slower
    work += _passes(table, rates, effect, changed) * slower
    if not configuration.is_fused:  # every element-wise node reads and writes for itself
        work += memory * slower * np.maximum(table.nodes - 1, 0) * ~table.is_product
    launches = table.launches * (1 + effect.launches * changed)
    launches *= np.where(table.is_product, 1.0, 1 - effect.merges)
    launch_s = rates.launch_s * (1 - WAKING_SHARE if configuration.threads == 1 else 1.0)
    seconds = work * table.launches + launches * launch_s
    return np.where(table.is_shape, 0.0, seconds) if effect.folds_sizes else np.asarray(seconds)


def _changed(table: WorkTable, effect: Effect) -> npt.NDArray[np.bool_]:
    """Groups that the rewrites turn into another type."""
    touched = np.array([kind in effect.kinds for kind in KINDS])[table.kind]
    return np.asarray(touched & table.is_float32 & table.is_product)


def _bytes(
    table: WorkTable, configuration: Configuration, rates: Rates, changed: npt.NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """Bytes of weights and of activations, in the types that the configuration computes in."""
    effect = configuration.effect
    narrow = BYTES.get(rates.arithmetic(configuration.dtype), 1.0)
    held = np.where(table.is_float32, narrow, 1.0)
    weights = table.weights * np.where(changed, effect.weights, held)
    activations = table.activations * np.where(changed, effect.activations, held)
    return weights, activations


def _compute(table: WorkTable, configuration: Configuration, rates: Rates, changed: npt.NDArray[np.bool_]) -> Floats:
    """Seconds of arithmetic of each group."""
    seconds = np.zeros(table.macs.shape)
    narrowed = changed if configuration.effect.dtype else np.zeros_like(changed)
    types = ((configuration.effect.dtype or "", narrowed), ("int8", table.is_quantised & ~narrowed))
    others = (configuration.dtype, ~table.is_quantised & ~narrowed)
    for dtype, of_type in (*types, others):
        for index, kind in enumerate(KINDS):
            rows = of_type & table.is_product & (table.kind == index)
            if rows.any():
                found = table.macs[rows] / rates.macs_per_s(kind, dtype, table.macs[rows])
                slow = LAYOUT_GAIN if kind in LAYOUT_KINDS and not configuration.has_layout else 1.0
                seconds[rows] = found * slow
    return seconds


def _memory(table: WorkTable, rates: Rates, size: Floats) -> Floats:
    """Seconds to move the bytes of each group: products at the memory's rate, others at that of their kind."""
    seconds = size / rates.bandwidth
    for index, kind in enumerate(KINDS):
        rows = ~table.is_product & (table.kind == index)
        if rows.any():
            seconds[rows] = size[rows] / rates.bytes_per_s(kind, size[rows])
    return np.asarray(seconds)


def _passes(table: WorkTable, rates: Rates, effect: Effect, changed: npt.NDArray[np.bool_]) -> Floats:
    """Seconds of turning values into another type and back."""
    share = effect.passes + effect.stray_passes * np.minimum(table.strays, 1)
    size = table.activations * share * changed
    return np.asarray(size / rates.bytes_per_s("element_wise", np.maximum(size, 1.0)))


def _slower(table: WorkTable, configuration: Configuration, rates: Rates, threads: int) -> Floats:
    """How many times longer each group takes than with the threads that the rates were measured with."""
    given = None if configuration.threads is None else min(configuration.threads, threads)
    if given is None or given == threads:
        return np.ones(table.macs.shape)
    wanted = np.where(
        table.is_product, 1 + np.floor(table.macs / MACS_A_THREAD), 1 + np.floor(table.activations / BYTES_A_THREAD)
    )
    exponents = np.array([_exponent(kind, rates, threads) for kind in KINDS])[table.kind]
    return np.asarray((np.minimum(wanted, threads) / np.minimum(wanted, given)) ** exponents)


def _exponent(kind: str, rates: Rates, threads: int) -> float:
    """Power of the number of threads that speed grows with."""
    named = "conv3x3" if kind in LAYOUT_KINDS else kind
    gain = rates.threads.get(named) or (rates.threads.get("matmul") if kind == "attention" else None)
    if gain is None or threads <= 1:
        return THREAD_EXPONENT
    return float(np.clip(np.log(max(gain, 1.0)) / np.log(threads), 0.0, 1.2))
