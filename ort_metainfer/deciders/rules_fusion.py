"""Fusion: fewer and larger operators, where onnxruntime does not make them itself; and its graph level."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ort_metainfer.deciders.conditions import (
    accelerators_pay,
    by_default,
    has_attention,
    has_gelu,
    is_float,
    is_legal,
    is_not_tiny,
    made,
    on_cpu,
    on_device,
    on_provider,
)
from ort_metainfer.deciders.rule import VETO_PRIORITY, Rule
from ort_metainfer.deciders.traits import CUDA, capabilities_of, has_convolutions, other_devices
from ort_metainfer.deciders.traits_devices import is_memory_bound
from ort_metainfer.problem import Device, Problem
from ort_metainfer.rewrites.ort_optimizers import also_disabling, disabling
from ort_metainfer.strategy import Strategy

__all__ = ["FUSION_RULES"]

MIN_SHAPES = 2
"""Fewer shapes than that are nothing to save."""

GELU_OPSET, GELU_FUSION = 20, "GeluFusionL1"
"""First version of ONNX' operators that has Gelu, and onnxruntime's optimiser that makes it at level basic."""

EXTENDED = Strategy(session_options={"graph_optimization_level": "extended"})


def _multiplies(problem: Problem) -> bool:
    return problem.graph.count("MatMul", "Gemm", "MatMulInteger") > 0


def _does_not_convolve(problem: Problem) -> bool:
    return not has_convolutions(problem)


def _computes_shapes(problem: Problem) -> bool:
    return problem.graph.count("Shape", "ConstantOfShape") >= MIN_SHAPES


def _normalises(problem: Problem) -> bool:
    return problem.graph.count("LayerNormalization") > 0


def _rewritten(problem: Problem, name: str) -> Iterator[Strategy]:
    return (Strategy(transforms=(transform,)) for transform in by_default(problem, name))


def _fusing_devices(problem: Problem) -> Iterator[Device]:
    """Accelerators that have onnxruntime's own attention and normalisation kernels."""
    legal = (device for device in other_devices(problem) if is_legal("fuse-transformer", device.provider))
    return (device for device in legal if device.kind == "gpu")


def _attention_fused(problem: Problem) -> Iterator[Strategy]:
    for device in _fusing_devices(problem):
        yield on_device(problem, device, transforms=(made("fuse-attention"), made("fuse-transformer")))


def _bias_fused(problem: Problem) -> Iterator[Strategy]:
    device = on_provider(problem, CUDA)
    if device is not None:
        yield on_device(problem, device, provider_options={"fuse_conv_bias": "1"})


def _lacks_gelu(provider: str | None) -> bool:
    return provider is not None and "Gelu" in capabilities_of(provider).constraints.missing


def _would_become_gelu(problem: Problem) -> bool:
    """Whether onnxruntime's basic optimiser makes ONNX' own Gelu of what the graph spells out."""
    return problem.graph.opsets.get("ai.onnx", 0) >= GELU_OPSET and problem.graph.count("Erf") > 0


def _without_gelu(problem: Problem) -> Iterator[Strategy]:
    for device in other_devices(problem):
        if _lacks_gelu(device.provider):
            yield on_device(problem, device, session_config=disabling([GELU_FUSION]))


def _gelu_composed(problem: Problem, strategy: Strategy) -> Strategy:
    if not _lacks_gelu(strategy.provider):
        return strategy
    return replace(strategy, session_config=also_disabling(strategy.session_config, [GELU_FUSION]))


FUSION_RULES = (
    Rule(
        "gelu_stays_composed",
        59,
        "fusion",
        "onnxruntime makes Gelu of a GELU that is spelled out, before it asks this provider, which has no Gelu",
        "own observation, onnxruntime 1.32.0, onnxruntime-ggml 0.2.0: of a product, a GELU of opset 20 and a product "
        "ggml takes 0 nodes; with GeluFusionL1 switched off all 7, relative error 2e-7",
        when=(_would_become_gelu, lambda p: any(_lacks_gelu(device.provider) for device in other_devices(p))),
        proposes=_without_gelu,
        requires=_gelu_composed,
    ),
    Rule(
        "attention_fused_on_gpu",
        58,
        "fusion",
        "this provider has one kernel for attention, and onnxruntime's graph optimiser does not make its node itself",
        "onnxruntime documentation: Transformers optimizer (attention is fused offline); docs/OperatorKernels.md; not "
        "run on hardware",
        when=(is_float, has_attention, accelerators_pay, lambda p: any(_fusing_devices(p))),
        devices=("gpu",),
        proposes=_attention_fused,
    ),
    Rule(
        "gelu_as_one_operator",
        49,
        "fusion",
        "a GELU spelled in a way that onnxruntime does not know runs as one operator",
        "own measurement: 1.12x [1.10, 1.12] on magika, 1.00x where onnxruntime fuses it itself",
        when=(has_gelu, on_cpu),
        proposes=lambda p: _rewritten(p, "gelu-to-contributed"),
    ),
    Rule(
        "shapes_as_constants",
        48,
        "fusion",
        "what computes shapes from inputs of known sizes need not run",
        "own measurement: 1.08x [1.06, 1.08] on Silero VAD, 1.00x on MiniLM and magika",
        when=(_computes_shapes, on_cpu),
        proposes=lambda p: _rewritten(p, "fold-shapes"),
    ),
    Rule(
        "fuse_first_where_memory_is_the_limit",
        45,
        "fusion",
        "this model waits for memory: each fused operator is one trip less of its activations to memory and back",
        "Williams, Waterman and Patterson, Roofline (2009), from this machine's measured peak and bandwidth; own "
        "observation: fuse-transformer leaves MiniLM 124 nodes, onnxruntime alone 129",
        when=(is_float, _normalises, is_memory_bound, on_cpu),
        devices=("cpu",),
        proposes=lambda p: (Strategy(transforms=(made("fuse-transformer"),)),),
    ),
    Rule(
        "extended_level_without_convolutions",
        40,
        "fusion",
        "above level extended onnxruntime only changes the layout of convolutions, and this graph has none",
        "own measurement: 1.02x on minilm; onnxruntime documentation: graph optimizations",
        when=(_multiplies, _does_not_convolve, is_not_tiny, on_cpu),
        proposes=lambda p: (EXTENDED,),
    ),
    Rule(
        "cuda_fused_bias",
        34,
        "fusion",
        "cuDNN's frontend runs a convolution with its bias and activation as one kernel, compiled at the first run",
        "onnxruntime, cuda_provider_options.h: fuse_conv_bias, off by default; not run on hardware",
        when=(is_float, has_convolutions, accelerators_pay, lambda p: on_provider(p, CUDA) is not None),
        devices=("gpu",),
        proposes=_bias_fused,
    ),
    Rule(
        "no_gelu_without_division",
        VETO_PRIORITY,
        "fusion",
        "onnxruntime knows a GELU by its division: turned into a product, it is no longer fused",
        "own measurement: div-to-mul 0.82-0.91x on three models with GELU",
        when=(lambda p: p.graph.count("Erf") > 0,),
        devices=("cpu",),
        forbids=lambda p, strategy: any(transform.name == "div-to-mul" for transform in strategy.transforms),
    ),
)
