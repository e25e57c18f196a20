"""Every feature that learners see, by name, with its unit and meaning; and the three vectors that hold them.

A feature that is not known is not there: never a zero. Flags are 0 and 1, shares lie from 0 to 1, ``ln`` marks natural
logarithms (of 1 + x for counts and sizes, so that none is too small). A name never changes what it means: what is to
mean something else gets another name, or :data:`VERSION` is raised with the records' schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING

from ort_metainfer.learning.graph_features import QUANTISATIONS, graph_features
from ort_metainfer.learning.operator_classes import CLASSES, MAC_CLASSES, NODE_CLASSES
from ort_metainfer.learning.strategy_features import (
    FAMILIES,
    KINDS,
    PROVIDERS,
    family_of,
    kind_named,
    provider_of,
    strategy_features,
)
from ort_metainfer.problem import Device

if TYPE_CHECKING:
    from ort_metainfer.hardware.profile import Profile
    from ort_metainfer.strategy import Strategy

__all__ = [
    "DEVICE",
    "FEATURES",
    "GRAPH",
    "STRATEGY",
    "VERSION",
    "Described",
    "aligned_reference",
    "described",
    "device_features",
    "family_of",
    "graph_features",
    "kind_named",
    "provider_of",
    "references_of",
    "strategy_features",
]

VERSION = 1
"""Raised when a feature changes its meaning; a model says which version it was trained on."""


@dataclass(frozen=True)
class Described:
    """What a feature is: ``unit`` is ``1`` (a count, share or flag), ``ln``, ``bit``, or that of a figure."""

    unit: str
    meaning: str


def _each(prefix: str, names: tuple[str, ...], unit: str, meaning: str) -> dict[str, Described]:
    return {f"{prefix}/{name}": Described(unit, meaning.format(name)) for name in names}


GRAPH: Mapping[str, Described] = MappingProxyType(
    {
        "ln_parameters": Described("ln", "elements of all weights, ln(1 + x)"),
        "ln_weight_bytes": Described("ln", "bytes of all weights, ln(1 + x)"),
        "weight_bits": Described("bit", "bits of a weight, mean over the weights"),
        "ln_macs": Described("ln", "multiply-accumulates of one run, ln(1 + x); a lower bound where shapes are open"),
        "ln_bytes_moved": Described("ln", "bytes read and written by all nodes in one run, unfused, ln(1 + x)"),
        "ln_intensity": Described("ln", "multiply-accumulates for each byte moved, ln(MAC/B)"),
        "known_share": Described("1", "share of the nodes whose sizes are known"),
        "ln_largest_bytes": Described("ln", "bytes of the largest activation, ln(1 + x)"),
        "ln_nodes": Described("ln", "nodes but Constant ones, subgraphs included, ln(1 + x)"),
        "distinct_operators": Described("1", "how many different operators"),
        "ln_depth": Described("ln", "nodes on the longest way through the graph, views left out, ln(1 + x)"),
        "ln_width": Described("ln", "nodes for each step of the longest way, ln"),
        "ln_steps": Described("ln", "steps of the longest recurrent node, ln; 0 where there is none"),
        "compute_bits": Described("bit", "bits of the arithmetic, mean over the multiply-accumulates"),
        "quantised_macs_share": Described("1", "share of the multiply-accumulates on 8-bit integers or fewer"),
        "open_dims": Described("1", "declared input dimensions without a size"),
        "open_dims_left": Described("1", "those of them for which the session gives none either"),
        "ln_batch": Described("ln", "first dimension of the first input, ln(1 + x)"),
        "inputs": Described("1", "inputs"),
        "outputs": Described("1", "outputs"),
        "ln_input_elements": Described("ln", "elements of all inputs, ln(1 + x)"),
        "ln_input_bytes": Described("ln", "bytes of all inputs, ln(1 + x)"),
        "ln_largest_input_elements": Described("ln", "elements of the largest input, ln(1 + x)"),
        "opset": Described("1", "version of the ONNX domain"),
        "ir_version": Described("1", "ONNX IR version"),
        "has_control_flow": Described("1", "whether it holds If, Loop or Scan"),
        "has_random": Described("1", "whether its outputs differ from run to run"),
        "has_contributed": Described("1", "whether it holds operators of com.microsoft"),
        **_each("quantisation", QUANTISATIONS, "1", "whether the model's own quantisation is {}"),
        **_each("node_share", NODE_CLASSES, "1", "share of the nodes of class {}"),
        **_each("macs_share", MAC_CLASSES, "1", "share of the multiply-accumulates of class {}"),
        **_each("bytes_share", CLASSES, "1", "share of the bytes moved of class {}"),
    }
)

DEVICE: Mapping[str, Described] = MappingProxyType(
    {
        **_each("kind", KINDS, "1", "whether it is of kind {}"),
        "emulated": Described("1", "whether it only imitates such hardware"),
        "isa/*": Described("1", "1 where the processor has these instructions"),
        "cores": Described("1", "cores this process may use; may be a fraction"),
        "limited": Described("1", "whether that is fewer than the machine has, by quota or affinity"),
        "logical_cores": Described("1", "cores that are online"),
        "physical_cores": Described("1", "cores without their second threads"),
        "performance_cores": Described("1", "fast ones of a hybrid processor"),
        "efficiency_cores": Described("1", "slow ones of a hybrid processor"),
        "quota_cores": Described("1", "cores that a container's quota allows"),
        "highest_clock_mhz": Described("MHz", "clock of the fastest core"),
        "memory_nodes": Described("1", "NUMA nodes"),
        "cache/*": Described("B", "size of a cache; with /sharers, logical cores that share it"),
        "memory_bytes": Described("B", "the machine's memory"),
        "memory_limited": Described("1", "1 where a container's limit is below it"),
        "device_memory_bytes": Described("B", "memory of the device itself"),
        "dispatch_ms": Described("ms", "one run of an empty graph"),
        "peak_macs_per_s/*": Described("MAC/s", "best rate of a type over all micro-benchmarks"),
        "rate/*": Described("MAC/s or B/s", "best rate of a kind of micro-benchmark in a type"),
        "bandwidth_bytes_per_s": Described("B/s", "memory's, beyond the caches"),
        "cache_bandwidth_bytes_per_s": Described("B/s", "within the caches"),
        "transfer_*_bytes_per_s": Described("B/s", "copies to or from the device"),
        "transfer_*_latency_ms": Described("ms", "a small copy to or from the device"),
        "round_trip_bytes_per_s": Described("B/s", "to the device and back through a graph of one node"),
        "ratio/*": Described("1", "rate of one micro-benchmark over another's"),
        "reference/*/ms": Described("ms", "a reference network under plain onnxruntime on the CPU provider"),
        "reference/*/*/creation": Described("ms", "creating a session of a reference network under a strategy"),
        "reference/*/*": Described("ln", "a reference network under a strategy, over the geometric mean of all"),
    }
)
"""Patterns where names are open; they are the profile's (:mod:`ort_metainfer.hardware.profile`)."""

STRATEGY: Mapping[str, Described] = MappingProxyType(
    {
        **_each("provider", PROVIDERS, "1", "whether it runs on the provider {}"),
        **_each("on", KINDS, "1", "whether its device is of kind {}"),
        "options": Described("1", "provider options it sets"),
        "threads": Described("1", "threads of one operator: given, else the cores the process may use"),
        "threads_per_core": Described("1", "the same for each core the process may use"),
        "threads_given": Described("1", "whether the strategy sets them"),
        "spinning": Described("1", "whether idle threads of onnxruntime's pool spin"),
        "parallel": Described("1", "whether onnxruntime runs independent nodes at the same time"),
        "performance_hint": Described("1", "whether OpenVINO is told what to aim at"),
        "weight_bits_used": Described("bit", "bits of a weight after the transforms"),
        "activation_bits_used": Described("bit", "bits computed in; not there where the provider chooses"),
        "graph_level": Described("1", "onnxruntime's optimiser: 0 disable, 1 basic, 2 extended, 3 layout, 4 all"),
        "arena": Described("1", "whether the CPU's memory arena is on"),
        "mem_pattern": Described("1", "whether memory patterns are on"),
        "static_dims": Described("1", "open dimensions that it fixes"),
        "config_entries": Described("1", "session config entries it sets"),
        "channels_last": Described("1", "whether a provider option asks for NHWC"),
        "transforms": Described("1", "graph rewrites"),
        **_each("transform", FAMILIES, "1", "whether there is a rewrite of the family {}"),
        "reference/aligned": Described("ln", "what the nearest strategy of the fingerprint does on this machine"),
    }
)

FEATURES: Mapping[str, Described] = MappingProxyType({**GRAPH, **DEVICE, **STRATEGY})


def described(name: str) -> Described | None:
    """What a feature is; None for one that nobody described."""
    if name in FEATURES:
        return FEATURES[name]
    return next((what for pattern, what in DEVICE.items() if "*" in pattern and fnmatchcase(name, pattern)), None)


def device_features(device: Device, profile: Profile | None = None) -> dict[str, float]:
    """Features of a device by name: what its profile says and nothing speaks against, else what it states itself."""
    found: dict[str, float] = {f"kind/{kind}": float(kind == device.kind) for kind in KINDS}
    found["emulated"] = float(device.emulated)
    found.update(_stated(device))
    found.update(profile.values() if profile is not None else ())
    return found


def _stated(device: Device) -> Iterator[tuple[str, float]]:
    yield from ((f"isa/{flag}", 1.0) for flag in device.features)
    if device.cores is not None:
        yield "cores", float(device.cores)
        yield "limited", float(device.lasting_limit)
    if device.memory_mb is not None:
        yield "device_memory_bytes", device.memory_mb * 2**20


def references_of(profile: Profile | None) -> dict[str, float]:
    """Strategy's name in the fingerprint's list -> its log ratio: the mean of what nothing speaks against."""
    seen: dict[str, list[float]] = {}
    for timing in profile.references if profile is not None else ():
        if timing.log_ratio is not None and timing.flag is None:
            seen.setdefault(timing.strategy, []).append(timing.log_ratio)
    return {name: sum(ratios) / len(ratios) for name, ratios in seen.items()}


def aligned_reference(strategy: Strategy, provider: str, references: Mapping[str, float]) -> float | None:
    """What the nearest strategy of the fingerprint's list does on the machine of ``references``: ln, negative is fast.

    The nearest is one of the same provider with the fewest other settings; None where none of its provider was timed.
    Equally near ones (their settings say nothing of this strategy) count by the list's order.
    """
    from ort_metainfer.hardware.reference_strategies import REFERENCE_STRATEGIES

    best: tuple[int, float] | None = None
    for name, reference in REFERENCE_STRATEGIES.items():
        if name in references and reference.provider == provider:
            apart = len(_settings(strategy) ^ _settings(reference))
            if best is None or apart < best[0]:
                best = apart, references[name]
    return None if best is None else best[1]


def _settings(strategy: Strategy) -> set[tuple[str, str]]:
    tables = (strategy.provider_options, strategy.session_options, strategy.session_config)
    own = {("device", strategy.device)} if strategy.device is not None else set()
    return own | {(key, str(value)) for table in tables for key, value in table.items()}
