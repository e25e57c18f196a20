"""How fast a device works, by kind of operator, element type and size: from its probe, else from described chips.

A probed device is reckoned along its own curves: rate over the size of one node, interpolated in the logarithm. What
was not probed falls back to the peak, and a device without a profile to the geometric mean of the described chips of
its class (``providers/chips.toml``), for processors a core. The spread says which it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import fmean, pstdev

import numpy as np
import numpy.typing as npt

from ort_metainfer.deciders.cost_kinds import KINDS, PRODUCTS
from ort_metainfer.hardware.profile import Measurement, Profile
from ort_metainfer.problem import Device

__all__ = ["PROBED_SPREAD", "Rates", "rates_of"]

Floats = npt.NDArray[np.float64]

PROBED_SPREAD = 0.3
"""How far a roofline along probed curves lies off, in log units: nn-Meter's and CDMPP's errors across models are 10 to
15%, on kernels that they were trained on (MobiSys 2021; EuroSys 2024); twice that is assumed here."""

UNPROBED_SPREAD = 0.7
"""The same where nothing was measured: a factor of two. Assumed."""

MACS_PER_CYCLE: Mapping[str, int] = {"avx512f": 32, "avx2": 16, "asimd": 8, "neon": 8}
"""float32 multiply-accumulates a core and cycle: two fused multiply-add units of 512, 256 and 128 bits (Intel and AMD
optimisation manuals; the derived peaks of ``chips.toml``)."""

CLOCK_HZ = 3.0e9
"""Of a core that is not known better: the geometric mean of the clocks in the derived peaks of ``chips.toml``."""

TYPE_GAINS: tuple[tuple[str, str, float], ...] = (
    ("amx_int8", "int8", 32.0),
    ("avx512_vnni", "int8", 4.0),
    ("avx_vnni", "int8", 4.0),
    ("i8mm", "int8", 8.0),
    ("asimddp", "int8", 4.0),
    ("dotprod", "int8", 4.0),
    ("amx_bf16", "bfloat16", 16.0),
    ("avx512_bf16", "bfloat16", 2.0),
    ("bf16", "bfloat16", 2.0),
    ("avx512_fp16", "float16", 2.0),
    ("fphp", "float16", 2.0),
)
"""Instruction set, type, and its rate over float32's: products a cycle by the vendors' manuals (Intel AMX: 2048 and
1024 operations a cycle and core in int8 and bfloat16; Arm's dot product and matrix instructions)."""

FALLBACKS: Mapping[str, tuple[str, ...]] = {
    "int8": ("int8", "float16", "bfloat16", "float32"),
    "float16": ("float16", "bfloat16", "float32"),
    "bfloat16": ("bfloat16", "float16", "float32"),
    "float32": ("float32", "float16", "bfloat16", "int8"),
}
"""Type asked for -> types it may be computed in, the first that the device has."""

LAYERS: Mapping[str, float] = {
    "matmul": 2,
    "conv3x3": 4,
    "conv1x1": 4,
    "depthwise3x3": 8,
    "attention": 6,
    "lstm": 1,
    "element_wise": 6,
    "layer_norm": 5,
    "softmax": 5,
    "gather": 1,
}
"""Nodes that share the work of one of the probe's models (:mod:`~ort_metainfer.hardware.micro_benchmarks`)."""

LEAST_SHARE = 0.3
"""Least share of a point's time that is work: of a small point nearly all may be the call itself."""

Curve = tuple[Floats, Floats]
"""ln(work of one node), ascending, and ln(rate) there."""


@dataclass(frozen=True)
class Rates:
    """What a device does in a second.

    Attributes:
        curves: (kind, type with its configuration) -> rates measured.
        peaks: type -> multiply-accumulates a second that large products reach.
        bandwidth: bytes a second.
        launch_s: to launch one group; ``call_s`` for each part of the graph handed over.
        latency_s: to begin one copy between host and device; ``link`` bytes a second of it, None where nothing is
            copied.
        threads: kind -> rate with all threads over the rate with one, where that was measured.
        resident_bytes: largest activation that stays on the chip between two nodes, and costs no bandwidth. Zero where
            that is not stated, or the curves tell.
        spread: how far off a latency may be, in log units.
        source: what it rests on.
    """

    curves: Mapping[tuple[str, str], Curve]
    peaks: Mapping[str, float]
    bandwidth: float
    launch_s: float
    call_s: float
    latency_s: float = 0.0
    link: float | None = None
    threads: Mapping[str, float] = field(default_factory=dict)
    resident_bytes: float = 0.0
    spread: float = UNPROBED_SPREAD
    source: str = ""

    def arithmetic(self, dtype: str) -> str:
        """The type that work in ``dtype`` is computed in."""
        known = {*self.peaks, *(curve for _, curve in self.curves)}
        if dtype.endswith("@default") and dtype not in known:  # left alone, a provider takes what is fastest
            narrow = [name for name in ("float32", "bfloat16", "float16") if name in self.peaks]
            return max(narrow, key=lambda name: self.peaks[name], default="float32")
        wanted = FALLBACKS.get(dtype.partition("@")[0], ("float32", "float16", "bfloat16", "int8"))
        return next((name for name in (dtype, *wanted) if name in known), "float32")

    def macs_per_s(self, kind: str, dtype: str, macs: Floats) -> Floats:
        """Rate of nodes of ``kind`` with so many multiply-accumulates each."""
        own = self.arithmetic(dtype)
        curve = self.curves.get((kind, own))
        if curve is not None:
            return _along(curve, macs)
        base, other = self.curves.get((kind, "float32")), self.curves.get(("matmul", own))
        reference = self.curves.get(("matmul", "float32"))
        if base is not None and other is not None and reference is not None:
            return _along(base, macs) * _along(other, macs) / _along(reference, macs)
        known = self.peaks.get(own) or next(iter(self.peaks.values()), 1e9)
        return np.full(macs.shape, known)

    def bytes_per_s(self, kind: str, size: Floats) -> Floats:
        """Rate of nodes of ``kind`` that move so many bytes each."""
        curve = self.curves.get((kind, "float32")) or self.curves.get(("element_wise", "float32"))
        return np.full(size.shape, self.bandwidth) if curve is None else _along(curve, size)


def _along(curve: Curve, work: Floats) -> Floats:
    return np.asarray(np.exp(np.interp(np.log(np.maximum(work, 1.0)), *curve)))


def rates_of(device: Device, profile: Profile | None) -> Rates:
    """The rates of ``device``: from its profile as far as that goes, the rest from described chips of its class."""
    assumed = _described(device)
    if profile is None:
        return assumed
    features = {name: value for name, value in profile.values() if value > 0}
    told = {feature.name: feature.value for feature in profile.features if feature.value > 0} | features
    curves = dict(_curves(profile.measurements, told.get("dispatch_ms", 0.0) / 1000))
    peaks = {name.partition("/")[2]: value for name, value in told.items() if name.startswith("peak_macs_per_s/")}
    probed = bool(curves) or (bool(peaks) and not profile.simulated)
    share = 1.0 if probed else _USED.get(device.kind, 0.5)  # a stated peak is never reached
    if not peaks and not told.get("bandwidth_bytes_per_s"):
        return assumed
    return Rates(
        curves=curves,
        peaks={name: value * share for name, value in peaks.items()} or assumed.peaks,
        bandwidth=told.get("bandwidth_bytes_per_s", assumed.bandwidth) * (1.0 if probed else _STREAMED),
        launch_s=told.get("launch_ms", assumed.launch_s * 1000) / 1000,
        call_s=told.get("dispatch_ms", assumed.call_s * 1000) / 1000,
        latency_s=told.get("transfer_to_device_latency_ms", assumed.latency_s * 1000) / 1000,
        link=_link(told, assumed),
        threads={name.partition("/")[2].partition("/")[2]: v for name, v in told.items() if "ratio/threads/" in name},
        resident_bytes=0.0 if probed else _RESIDENT_SHARE * told.get("cache_bytes", 0.0),
        spread=PROBED_SPREAD if probed else 0.5 * (PROBED_SPREAD + UNPROBED_SPREAD),
        source="this device's profile" if probed else "the device's description",
    )


_USED: Mapping[str, float] = {"gpu": 0.45, "npu": 0.5, "dsp": 0.5, "fpga": 0.6, "cpu": 0.6}
"""Share of a stated peak that tuned kernels reach, and of a stated bandwidth: the defaults of ``chips.toml``, with
their sources there."""
_STREAMED = 0.75
_RESIDENT_SHARE = 0.5
"""Of on-chip memory: the rest holds weights and the next result, as in :mod:`~ort_metainfer.hardware.simulation`."""


def _link(told: Mapping[str, float], assumed: Rates) -> float | None:
    copies = [told.get(f"transfer_{way}_bytes_per_s") for way in ("to_device", "from_device")]
    known = [rate for rate in (*copies, told.get("round_trip_bytes_per_s")) if rate]
    return min(known) if known else assumed.link


def _curves(points: Iterable[Measurement], call_s: float) -> Iterable[tuple[tuple[str, str], Curve]]:
    """Every curve of a probe; points that were refused, left to the CPU or are doubtful are not on it."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for point in points:
        if point.p50_ms is None or not point.taken or point.refusal is not None or not point.work_unit:
            continue
        if point.name.count("/") < 2:
            continue
        kind, dtype, size = point.name.split("/", 2)
        configuration = size.partition("@")[2]
        if kind not in KINDS or (point.work_unit == "MAC") != (kind in PRODUCTS):
            continue
        whole = point.p50_ms / 1000
        seconds = max(whole - call_s, LEAST_SHARE * whole)
        if seconds <= 0 or point.work <= 0:
            continue
        name = f"{dtype}@{configuration}" if configuration else dtype
        found.setdefault((kind, name), []).append((point.work / LAYERS[kind], point.work / seconds))
    for key, pairs in found.items():
        pairs.sort()
        yield key, (np.log([work for work, _ in pairs]), np.log([rate for _, rate in pairs]))


@lru_cache(maxsize=64)
def _described(device: Device) -> Rates:
    """The geometric mean of the described chips of the device's class; those of its vendor where there are any."""
    from ort_metainfer.providers.chips import all_chips

    chips = [chip for chip in all_chips().values() if chip.kind == device.kind]
    same = [chip for chip in chips if device.vendor and chip.vendor.lower() == device.vendor.lower()]
    chips = same or chips or list(all_chips().values())
    used = _USED.get(device.kind, 0.5)
    types = {name for chip in chips for name in chip.peak}
    peaks = {name: used * _middle([c.peak[name].value for c in chips if name in c.peak]) for name in sorted(types)}
    bandwidth = _STREAMED * _middle([chip.bandwidth.value for chip in chips if chip.bandwidth])
    first = [chip.peak["float32"].value for chip in chips if "float32" in chip.peak]
    apart = pstdev(map(math.log, first)) if len(first) > 1 else 0.0
    if device.kind == "cpu":
        cores = max(1.0, device.cores or 1.0)
        peaks = _of_instruction_sets(device.features, cores * used)
        units = [chip.bandwidth.value / chip.units.value for chip in chips if chip.bandwidth and chip.units]
        bandwidth, apart = _STREAMED * cores * _middle(units), UNPROBED_SPREAD
    links = [chip.link.bandwidth.value for chip in chips if chip.link.bandwidth]
    return Rates(
        curves={},
        peaks=peaks,
        bandwidth=bandwidth or 1e10,
        launch_s=_middle([chip.usage["launch"].value for chip in chips]),
        call_s=_middle([chip.usage["call"].value for chip in chips]),
        latency_s=0.0 if device.kind == "cpu" else _middle([chip.link.latency.value for chip in chips]),
        link=None if device.kind == "cpu" else _middle(links) or bandwidth,
        spread=max(UNPROBED_SPREAD, apart),
        source=f"described chips of its class ({device.kind}), not this one",
    )


def _of_instruction_sets(features: Sequence[str], cores: float) -> dict[str, float]:
    has = {feature.lower() for feature in features}
    base = max((macs for name, macs in MACS_PER_CYCLE.items() if name in has), default=MACS_PER_CYCLE["avx2"])
    peaks = {"float32": cores * base * CLOCK_HZ}
    for name, dtype, gain in TYPE_GAINS:
        if name in has:
            peaks[dtype] = max(peaks.get(dtype, 0.0), gain * peaks["float32"])
    return peaks


def _middle(values: Sequence[float]) -> float:
    """Geometric mean of what is above zero; 0 where nothing is."""
    known = [math.log(value) for value in values if value > 0]
    return math.exp(fmean(known)) if known else 0.0
