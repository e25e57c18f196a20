"""A strategy as named figures: where it runs, in which precision, with how many threads, what was done to the graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ort_metainfer.problem import Device, Graph, Problem
from ort_metainfer.strategy import GRAPH_LEVELS, Strategy, Transform

__all__ = ["FAMILIES", "KINDS", "PROVIDERS", "family_of", "kind_named", "provider_of", "strategy_features"]

CPU = "CPUExecutionProvider"
SPINNING = "session.intra_op.allow_spinning"

KINDS = ("cpu", "gpu", "npu", "dsp", "fpga")

PROVIDERS: tuple[str, ...] = (
    "CPU",
    "OpenVINO",
    "CUDA",
    "Tensorrt",
    "NvTensorRTRTX",
    "MIGraphX",
    "ROCM",
    "Dml",
    "CoreML",
    "QNN",
)
PROVIDERS += ("WebGpu", "Xnnpack", "ACL", "Nnapi", "Dnnl", "VitisAI", "CANN", "ggml", "cpu_ep")
"""Names without ``ExecutionProvider``; any other provider is told by its device's kind alone."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_FAMILY_MEMBERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "arithmetic_forms": _words("pow-to-mul div-to-mul remove-expand tile-to-expand tile-to-concat"),
        "activation_forms": _words("gelu- hard-sigmoid- hard-swish-"),
        "norm_forms": _words("layer-norm- rms-norm- instance-norm- group-norm-"),
        "product_forms": _words("gemm-to- matmul-to- conv-to-matmul einsum-to-"),
        "spatial_forms": _words(
            """
            resize-to- expand-to- depth-to-space- conv-transpose- dilated-conv- separable-conv one-dimension-to-two
            """
        ),
        "unrolled": _words("unroll-"),
        "opset": _words("convert-opset"),
        "layout": _words(
            """
            transposes-placed channels-padded quantised-channels-last weights-transposed transposes-into-weights
            """
        ),
        "shapes": _words("fixed-shapes"),
        "branches": _words("known-branches dead-branches"),
        "absorbed_affine": _words("batch-norm- scale- pad-into-"),
        "quantisation_moves": _words("cancel-quantisation clip-into- dequantise-per-"),
        "fused_kernels": _words("fuse- transpose-into-gemm"),
        "parallel_products": _words("merge-parallel-"),
        "folding": _words("fold-"),
        "tidying": _words("remove-no-ops merge-clips merge-duplicate- remove-unused merge-reshapes merge-transposes"),
        "float16": _words("float16"),
        "bfloat16": _words("bfloat16"),
        "int8_dynamic": _words("int8-dynamic int8-lstm"),
        "int8_static": _words("int8-static int8-operators quantise"),
        "weight_only": _words("int8-weights int4-weights"),
    }
)
"""Family -> names of its rewrites; one that ends in ``-`` stands for all that begin so."""

FAMILIES = (*_FAMILY_MEMBERS, "other")

_BITS: Mapping[str, tuple[float, float | None]] = MappingProxyType(
    {
        "float16": (16, 16),
        "bfloat16": (16, 16),
        "int8-dynamic": (8, 8),
        "int8-lstm": (8, 8),
        "int8-static": (8, 8),
        "int8-operators": (8, 8),
        "quantise": (8, 8),
        "int8-weights": (8, None),
        "int4-weights": (4, None),
    }
)
"""Rewrite -> bits of weights and activations; None where activations stay as they were."""

_PRECISION_OPTIONS: Mapping[tuple[str, str], float] = MappingProxyType(
    {
        ("INFERENCE_PRECISION_HINT", "f32"): 32,
        ("INFERENCE_PRECISION_HINT", "f16"): 16,
        ("INFERENCE_PRECISION_HINT", "bf16"): 16,
        ("use_tf32", "0"): 32,
        ("use_tf32", "1"): 19,
        ("trt_fp16_enable", "True"): 16,
        ("trt_bf16_enable", "True"): 16,
        ("trt_int8_enable", "True"): 8,
        ("migraphx_fp16_enable", "True"): 16,
        ("migraphx_bf16_enable", "True"): 16,
        ("migraphx_int8_enable", "True"): 8,
        ("enable_htp_fp16_precision", "1"): 16,
    }
)
"""Provider option and value -> bits that it computes in (TF32 has 19: NVIDIA, A100 white paper)."""

_LOSSY_UNLESS_TOLD = frozenset({"OpenVINOExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"})
_LOSSY_UNLESS_TOLD |= {"QNNExecutionProvider", "NvTensorRTRTXExecutionProvider", "CoreMLExecutionProvider"}
_LOSSY_UNLESS_TOLD |= {"VitisAIExecutionProvider", "CANNExecutionProvider"}
"""Providers that without an option compute in what the device is made for: in how many bits is then not known."""


def family_of(transform: Transform) -> str:
    """The family of a rewrite; ``other`` for a third party's."""
    for family, members in _FAMILY_MEMBERS.items():
        if any(transform.name == name or (name[-1] == "-" and transform.name.startswith(name)) for name in members):
            return family
    return "other"


def provider_of(strategy: Strategy, about: Problem | Device | None = None) -> str:
    """The provider that a strategy runs on: its own, else the first that the caller named, else the CPU's."""
    if strategy.provider is not None:
        return strategy.provider
    if isinstance(about, Problem) and about.baseline.providers:
        return about.baseline.providers[0][0]
    return CPU


def kind_named(strategy: Strategy) -> str | None:
    """The kind of device that a strategy's own words name (``GPU``, ``NPU.0``); None where they name none."""
    device = (strategy.device or "").lower().partition(".")[0]
    return device if device in KINDS else None


def strategy_features(strategy: Strategy, about: Problem | Device | None = None) -> dict[str, float]:
    """Features of a strategy by name; what is not known is not there.

    Args:
        strategy: which.
        about: the problem it is for, or the device it runs on: cores, the device's kind and what the model computes in
            are taken from it. None: they are not known.
    """
    device = _device(strategy, about)
    found = dict(_where(strategy, about, device))
    found.update(_scheduling(strategy, about, device))
    found.update(_precision(strategy, about))
    found.update(_session(strategy))
    found.update(_transforms(strategy))
    return {name: float(value) for name, value in found.items()}


def _device(strategy: Strategy, about: Problem | Device | None) -> Device | None:
    if not isinstance(about, Problem):
        return about
    provider = provider_of(strategy, about)
    mine = [device for device in about.devices if device.provider == provider]
    named = (device for device in mine if strategy.device is not None and device.provider_device == strategy.device)
    return next(named, mine[0] if mine else None)


def _where(strategy: Strategy, about: Problem | Device | None, device: Device | None) -> Iterator[tuple[str, float]]:
    name = provider_of(strategy, about).removesuffix("ExecutionProvider")
    yield from ((f"provider/{known}", known == name) for known in PROVIDERS)
    if device is not None:
        yield from ((f"on/{kind}", kind == device.kind) for kind in KINDS)
    elif name == "CPU":
        yield from ((f"on/{kind}", kind == "cpu") for kind in KINDS)
    yield "options", len(strategy.provider_options)


def _scheduling(
    strategy: Strategy, about: Problem | Device | None, device: Device | None
) -> Iterator[tuple[str, float]]:
    cores = about.cpu.cores if isinstance(about, Problem) else device.cores if device is not None else None
    given = strategy.session_options.get("intra_op_num_threads")
    own = strategy.provider_options.get("INFERENCE_NUM_THREADS")
    threads = float(given) if isinstance(given, int) and given > 0 else None
    if own is not None and own.isdigit() and int(own) > 0:
        threads = float(own)
    if threads is None and cores is not None:
        threads = max(1.0, float(int(cores)))  # what onnxruntime takes by default: the cores it may use
    yield "threads_given", given is not None or own is not None
    if threads is not None:
        yield "threads", threads
        if cores:
            yield "threads_per_core", threads / cores
    if provider_of(strategy, about) == CPU:
        yield "spinning", strategy.session_config.get(SPINNING, "1") != "0"
        yield "parallel", strategy.session_options.get("execution_mode") == "parallel"
    yield "performance_hint", "PERFORMANCE_HINT" in strategy.provider_options


def _precision(strategy: Strategy, about: Problem | Device | None) -> Iterator[tuple[str, float]]:
    weights, activations = _bits_of(about.graph) if isinstance(about, Problem) else (None, None)
    if provider_of(strategy, about) in _LOSSY_UNLESS_TOLD:
        activations = None if activations is None or activations > 16 else activations
    for option in strategy.provider_options.items():
        activations = _PRECISION_OPTIONS.get(option, activations)
    for transform in strategy.transforms:
        if transform.name in _BITS:
            weights, own = _BITS[transform.name]
            activations = activations if own is None else own
    if weights is not None:
        yield "weight_bits_used", weights
    if activations is not None:
        yield "activation_bits_used", activations


def _bits_of(graph: Graph) -> tuple[float | None, float]:
    weights = 8 * graph.weight_bytes / graph.parameter_count if graph.parameter_count else None
    if graph.quantisation in ("qdq", "qoperator", "dynamic"):
        return weights, 8.0
    return weights, 16.0 if weights is not None and weights < 20 and graph.quantisation == "none" else 32.0


def _session(strategy: Strategy) -> Iterator[tuple[str, float]]:
    level = str(strategy.session_options.get("graph_optimization_level", "all"))
    yield "graph_level", GRAPH_LEVELS.index(level)
    yield "arena", bool(strategy.session_options.get("enable_cpu_mem_arena", True))
    yield "mem_pattern", bool(strategy.session_options.get("enable_mem_pattern", True))
    yield "static_dims", len(strategy.static_shapes)
    yield "config_entries", len(strategy.session_config)
    layout = str(strategy.provider_options.get("prefer_nhwc", strategy.provider_options.get("preferredLayout", "")))
    yield "channels_last", layout.lower() in ("1", "true", "nhwc")


def _transforms(strategy: Strategy) -> Iterator[tuple[str, float]]:
    present = [family_of(transform) for transform in strategy.transforms]
    yield "transforms", len(present)
    yield from ((f"transform/{family}", family in present) for family in FAMILIES)
