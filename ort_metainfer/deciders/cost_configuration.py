"""What a strategy means for the work of a model: provider, threads, types, fusion, open sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ort_metainfer.deciders.cost_effects import NO_EFFECT, Effect, combined
from ort_metainfer.deciders.traits import CPU
from ort_metainfer.problem import Device, Problem
from ort_metainfer.strategy import Strategy

__all__ = ["Configuration", "configuration_of"]

PRECISION_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "INFERENCE_PRECISION_HINT": "bf16 f16 f32",
        "precision": "float16 bfloat16 int8",
        "trt_fp16_enable": "float16",
        "trt_bf16_enable": "bfloat16",
        "trt_int8_enable": "int8",
        "migraphx_fp16_enable": "float16",
        "migraphx_bf16_enable": "bfloat16",
        "migraphx_int8_enable": "int8",
        "enable_htp_fp16_precision": "float16",
    }
)
"""Provider option -> types it may choose, by value, or the one it switches on."""

TYPE_NAMES: Mapping[str, str] = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
SWITCHED_ON = frozenset({"1", "true", "yes", "on"})

UNFUSED_LEVELS = frozenset({"disable"})
OPEN_LAYOUT_LEVELS = frozenset({"disable", "basic", "extended"})
"""Graph levels below ``layout``, at which onnxruntime leaves convolutions in the model's layout."""


@dataclass(frozen=True)
class Configuration:
    """What the cost of a session depends on, as far as it is reckoned.

    Attributes:
        provider: that runs the graph; ``device`` its own name for one of its devices.
        threads: of onnxruntime's pool; None: as many as the device has cores.
        dtype: type that float32 work is asked to be done in (``float32@default``: as the provider likes).
        is_fused: whether the runtime fuses nodes.
        has_layout: whether convolutions run in the processor's own layout.
        has_fixed_sizes: whether every dimension is known when the session is made.
        effect: what the rewrites do.
    """

    provider: str
    device: str | None = None
    threads: int | None = None
    dtype: str = "float32"
    is_fused: bool = True
    has_layout: bool = True
    has_fixed_sizes: bool = True
    effect: Effect = NO_EFFECT


def configuration_of(problem: Problem, strategy: Strategy) -> Configuration:
    """The configuration that ``strategy`` gives the caller's session."""
    baseline = problem.baseline
    first = baseline.providers[0][0] if baseline.providers else CPU
    provider = strategy.provider or first
    properties = {**dict(baseline.properties), **strategy.session_options}
    level = str(strategy.session_options.get("graph_optimization_level", _level_of(baseline.properties)))
    return Configuration(
        provider=provider,
        device=strategy.device,
        threads=_threads(properties, strategy, provider),
        dtype=_dtype(problem, strategy, provider),
        is_fused=level not in UNFUSED_LEVELS or provider != CPU,
        has_layout=level not in OPEN_LAYOUT_LEVELS or provider != CPU,
        has_fixed_sizes=_has_fixed_sizes(problem, strategy),
        effect=combined(strategy.transforms),
    )


def _level_of(properties: Mapping[str, object]) -> str:
    text = str(properties.get("graph_optimization_level", "all")).lower()
    return text.rpartition(".")[2].removeprefix("ort_").removeprefix("enable_").removesuffix("_all") or "all"


def _threads(properties: Mapping[str, object], strategy: Strategy, provider: str) -> int | None:
    """onnxruntime's own threads, or those that the provider is told."""
    given = properties.get("intra_op_num_threads") if provider == CPU else None
    told = strategy.provider_options.get("INFERENCE_NUM_THREADS") or strategy.provider_options.get(
        "intra_op_num_threads"
    )
    for value in (told, given):
        if value is not None and str(value).isdecimal() and int(str(value)) > 0:
            return int(str(value))
    return None


def _dtype(problem: Problem, strategy: Strategy, provider: str) -> str:
    for option, names in PRECISION_OPTIONS.items():
        value = str(strategy.provider_options.get(option, "")).lower()
        if value in names.split():
            return TYPE_NAMES.get(value, value)
        if value in SWITCHED_ON and " " not in names:
            return names
    if provider == CPU or strategy.provider is None:
        return "float32"
    return "float32@default" if _computes_in_less(problem.device(provider), strategy, provider) else "float32"


def _computes_in_less(device: Device | None, strategy: Strategy, provider: str) -> bool:
    """Whether a provider may compute float32 in fewer bits by default, and the strategy does not forbid it."""
    from ort_metainfer.errors import ProviderError
    from ort_metainfer.providers import get_provider

    if device is None:
        return False
    try:
        adapter = get_provider(provider)
    except ProviderError:
        return False
    kept = all(strategy.provider_options.get(name) == value for name, value in adapter.exact.items())
    return adapter.default_is_lossy and not (adapter.exact and kept)


def _has_fixed_sizes(problem: Problem, strategy: Strategy) -> bool:
    pinned = (name.removeprefix("dim:") for name in problem.policy.pinned)
    known = {*strategy.static_shapes, *pinned, *problem.baseline.free_dimensions}
    return all(isinstance(dim, int) or dim in known for spec in problem.graph.inputs for dim in (spec.shape or (None,)))
