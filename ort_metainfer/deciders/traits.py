"""What the deciders need to know about a problem, computed from it: how heavy, how recurrent, how wide, which sizes.

Figures below that are "own measurement" are ratios of medians, candidate over onnxruntime's default, of the models
that ``CONTRIBUTING.md`` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from ort_metainfer.deciders.traits_devices import CPU, capabilities_of
from ort_metainfer.problem import Device, Problem
from ort_metainfer.strategy import Strategy

__all__ = [
    "CPU",
    "CUDA",
    "HEAVY_MACS",
    "MODERATE_MACS",
    "OPENVINO",
    "TINY_MACS",
    "batch_size",
    "capabilities_of",
    "computes_bf16",
    "exact_options",
    "fixes_shapes",
    "has_convolutions",
    "has_nameless_sizes",
    "has_open_shapes",
    "has_thread_pool",
    "input_bytes",
    "is_heavy",
    "is_moderate",
    "is_recurrent",
    "is_tiny",
    "is_wide",
    "named_device",
    "other_devices",
    "precisions_to_try",
    "provider_objections",
    "runs_on_cpu",
    "static_sizes",
    "whole_cores",
]

CUDA = "CUDAExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"

TINY_MACS = 20_000_000
"""Multiply-accumulates of one run up to which a second thread has nothing to do. Own measurement: a MobileNetV3
classifier of 16 million ran 1.06-1.17x with one thread, a PP-LCNet of 154 million 0.59x."""

TINY_PARAMETERS = 50_000
"""The same limit for graphs without convolutions and loops whose MACs are not known: each parameter is used about once
a row (own measurement: scikit-learn networks of this size take 0.01 ms)."""

HEAVY_MACS = 500_000_000
"""Multiply-accumulates of one run from which OpenVINO at float32 paid on each machine. Own measurement with the plug-in
1.8.1: 0.6x at 154 million, 0.7x at 367 million, 0.9-1.0x at 1 billion, 1.2-2.5x from 2 billion."""

MODERATE_MACS = 100_000_000
"""The same where it paid on one machine and not on the other, so that it is tried, later. Own measurement: a page
classifier of 154 million MACs 2.53x with onnxruntime-openvino 1.24.1 on AMD EPYC, 0.6x with the plug-in 1.8.1 on
Intel; one of 16 million MACs lost on both, nothing in between was measured."""

HEAVY_WEIGHT_BYTES = 4_000_000
"""The same where shapes do not say how many MACs (own measurement: models of 0.6 and 3 MB lost, of 10 MB and more did
not)."""

RECURRENT = ("LSTM", "GRU", "RNN", "com.microsoft.DynamicQuantizeLSTM", "Scan", "Loop")
CONVOLUTIONS = ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "com.microsoft.FusedConv")
WEIGHTED = (*CONVOLUTIONS, "MatMul", "Gemm", "MatMulInteger", "QLinearMatMul")
UNNAMED_DIMS = frozenset({"", "?", "-1", "None"})
"""Names exporters give to dimensions they know nothing about; one name then stands for several sizes."""

ITEM_BYTES = {"float64": 8, "int64": 8, "uint64": 8, "float16": 2, "int16": 2, "uint16": 2, "int8": 1, "uint8": 1}


def exact_options(provider: str) -> Mapping[str, str]:
    """The options that make ``provider`` keep float32 results; empty where it needs none or has none."""
    from ort_metainfer.errors import ProviderError
    from ort_metainfer.providers import get_provider

    try:
        return get_provider(provider).exact
    except ProviderError:
        return {}


def precisions_to_try(problem: Problem, provider: str) -> tuple[Mapping[str, str], ...]:
    """Options that a strategy on ``provider`` is tried with, the most promising first.

    Those that keep float32 results. Where the policy allows a loss and real inputs can judge it, none before them: a
    device then computes in the type it is made for (TF32 on NVIDIA's, float16 on most NPUs).
    """
    exact = exact_options(provider)
    may_lose = problem.policy.accuracy != "strict" and problem.inputs_are_real
    return ({}, exact) if exact and may_lose else (exact,)


def provider_objections(problem: Problem, strategy: Strategy) -> tuple[str, ...]:
    """Why the strategy's provider would take nothing of the graph, by what its adapter states."""
    if strategy.provider is None:
        return ()
    fixed = problem.shapes if strategy.static_shapes or fixes_shapes(strategy) else {}
    return capabilities_of(strategy.provider).constraints.objections(problem.graph, fixed)


def fixes_shapes(strategy: Strategy) -> bool:
    """Whether a rewrite of the strategy fixes its inputs' shapes by input and axis."""
    return any(transform.name == "fixed-shapes" for transform in strategy.transforms)


def has_open_shapes(problem: Problem) -> bool:
    """Whether an input has a dimension that is no number, or no declared rank."""
    return any(not all(isinstance(dim, int) for dim in spec.shape or ("?",)) for spec in problem.graph.inputs)


def has_nameless_sizes(problem: Problem) -> bool:
    """Whether shapes are given that no override by a dimension's name can express."""
    open_inputs = [spec for spec in problem.graph.inputs if not all(isinstance(d, int) for d in spec.shape or ("?",))]
    return bool(open_inputs) and all(spec.name in problem.shapes for spec in open_inputs) and not static_sizes(problem)


def whole_cores(problem: Problem) -> int:
    """Cores this process may keep busy at the same time: at least 1, a fractional quota rounded down."""
    cores = problem.cpu.cores
    return 1 if cores is None else max(1, int(cores))


def has_thread_pool(problem: Problem) -> bool:
    """Whether onnxruntime's default session would have worker threads beside the caller's own."""
    if problem.policy.pinned.get("intra_op_num_threads") == "1":
        return False
    return problem.cpu.cores is None or problem.cpu.cores > 1 or problem.cpu.lasting_limit


def has_convolutions(problem: Problem) -> bool:
    """Whether the graph convolves."""
    return problem.graph.count(*CONVOLUTIONS) > 0


def is_recurrent(problem: Problem) -> bool:
    """Whether the graph holds a recurrent operator or a loop."""
    return problem.graph.count(*RECURRENT) > 0


def is_tiny(problem: Problem) -> bool:
    """Whether one run is so little work that overheads decide (see ``TINY_MACS``)."""
    graph = problem.graph
    if graph.macs is not None:
        return graph.macs <= TINY_MACS
    unrolled = has_convolutions(problem) or graph.has_control_flow
    return not unrolled and graph.parameter_count <= TINY_PARAMETERS


def is_heavy(problem: Problem) -> bool:
    """Whether one run is so much work that another provider's fixed costs do not matter (see ``HEAVY_MACS``)."""
    graph = problem.graph
    return graph.weight_bytes >= HEAVY_WEIGHT_BYTES if graph.macs is None else graph.macs >= HEAVY_MACS


def is_moderate(problem: Problem) -> bool:
    """Whether one run is enough work that another provider may pay (see ``MODERATE_MACS``); unknown MACs are not."""
    macs = problem.graph.macs
    return macs is not None and MODERATE_MACS <= macs < HEAVY_MACS


def is_wide(problem: Problem) -> bool:
    """Whether the graph looks as if independent branches could keep cores busy at the same time.

    The graph's features hold no edges; what is asked for is the mark of Inception and SqueezeNet: at least six nodes
    that concatenate, and three to eight that carry weights for each. Residual networks, transformers and feature
    pyramids have more weights, dense blocks and exported shape arithmetic more concatenations (own measurement:
    spindle_unet1d, 25 weights to 15 concatenations, ran 0.55x in parallel mode).
    """
    joins, weights = problem.graph.count("Concat"), problem.graph.count(*WEIGHTED)
    return joins >= 6 and has_convolutions(problem) and 3 * joins <= weights <= 8 * joins


def computes_bf16(problem: Problem) -> bool:
    """Whether a CPU device reports bfloat16 arithmetic; without it a bfloat16 hint changes nothing."""
    features = (feature for device in problem.devices if device.kind == "cpu" for feature in device.features)
    return any("bf16" in feature.lower() for feature in features)


def batch_size(problem: Problem) -> int | None:
    """First dimension of the first input that has one, as given or declared; None where nothing says."""
    for spec in problem.graph.inputs:
        shape = problem.shapes.get(spec.name, spec.shape)
        if shape:
            return shape[0] if isinstance(shape[0], int) else None
    return None


def input_bytes(problem: Problem) -> int:
    """Bytes of all inputs of one run, as far as shapes say: what must reach another device at least."""
    total = 0
    for spec in problem.graph.inputs:
        shape = problem.shapes.get(spec.name, spec.shape) or ()
        total += ITEM_BYTES.get(spec.dtype, 4) * prod(dim for dim in shape if isinstance(dim, int))
    return total


def static_sizes(problem: Problem) -> dict[str, int]:
    """Symbolic dimension -> its size in the shapes given; only names of one size that the caller has not fixed.

    A name that stands for several sizes, or that is no name (``?``), cannot be overridden: onnxruntime takes equal
    names for equal sizes (own observation: Paddle's exporter calls height and width ``?``, the run then fails).
    """
    seen: dict[str, set[int]] = {}
    for spec in problem.graph.inputs:
        given, declared = problem.shapes.get(spec.name), spec.shape
        if given is None or declared is None or len(given) != len(declared):
            continue
        for dim, size in zip(declared, given, strict=True):
            if isinstance(dim, str):
                seen.setdefault(dim, set()).add(size)
    fixed = problem.policy.pinned
    return {
        name: next(iter(sizes))
        for name, sizes in seen.items()
        if len(sizes) == 1 and min(sizes) > 0 and name not in UNNAMED_DIMS and f"dim:{name}" not in fixed
    }


def runs_on_cpu(problem: Problem, strategy: Strategy) -> bool:
    """Whether the graph runs on the CPU provider first, by the strategy or by the caller's own list."""
    if strategy.provider is not None:
        return strategy.provider == CPU
    return not problem.baseline.providers or problem.baseline.providers[0][0] == CPU


def named_device(problem: Problem, device: Device) -> str | None:
    """How a strategy names ``device``: None for its provider's first one, so that one strategy has one spelling."""
    return None if device == problem.device(device.provider) else device.provider_device


def other_devices(problem: Problem) -> tuple[Device, ...]:
    """Usable devices of allowed providers other than the CPU provider, one a provider, in the order given."""
    first: dict[str, Device] = {}
    for device in problem.devices:
        if device.provider != CPU and device.provider in problem.policy.providers:
            first.setdefault(device.provider, device)
    return tuple(first.values())
