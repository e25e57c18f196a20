"""Precision on the CPU: which types its units are made for, and which its kernels only pretend to have.

Own measurements: onnxruntime 1.32 on AMD EPYC (avx512_vnni), two cores; see each rewrite's ``evidence``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ort_metainfer.deciders.conditions import (
    has_gelu,
    has_int8_units,
    has_products,
    is_x86,
    made,
    may_quantise,
    on_cpu,
)
from ort_metainfer.deciders.rule import VETO_PRIORITY, Rule
from ort_metainfer.deciders.traits import batch_size, has_convolutions, runs_on_cpu
from ort_metainfer.deciders.traits_devices import (
    is_memory_bound,
)
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy, Transform

__all__ = ["PRECISION_RULES", "raised_opset"]


CHANNEL_SCALES_OPSET = 13
"""First version of ONNX's operators whose QuantizeLinear takes a scale for each channel."""

QUANTISED = ("qdq", "qoperator")
REDUCING = frozenset({"float16", "bfloat16", "int8-static", "int8-dynamic", "int8-weights", "int4-weights"})

FAST_MATH = Strategy(session_config={"mlas.enable_gemm_fastmath_arm64_bfloat16": "1"})
GELU_APPROXIMATION = Strategy(session_config={"optimization.enable_gelu_approximation": "1"})


def _reduced(problem: Problem) -> dict[str, object]:
    """Weights in 7 bits where the products of 8 would saturate: x86 without VNNI."""
    return {"reduce_range": True} if is_x86(problem) and not has_int8_units(problem) else {}


def raised_opset(problem: Problem) -> tuple[Transform, ...]:
    """A later opset first, where the model's has no quantised operators with a scale for each channel (ONNX, 13)."""
    opset = problem.graph.opsets.get("ai.onnx", CHANNEL_SCALES_OPSET)
    return (made("convert-opset", target=CHANNEL_SCALES_OPSET),) if opset < CHANNEL_SCALES_OPSET else ()


def _convolutions(problem: Problem) -> Iterator[Strategy]:
    raised, plain = raised_opset(problem), made("int8-static", **_reduced(problem))
    yield Strategy(transforms=(*raised, plain))
    if has_gelu(problem):  # spelled out, it may lie between two quantised products as a row of float operators
        yield Strategy(transforms=(*raised, made("gelu-to-contributed"), plain))
    yield Strategy(transforms=(*raised, made("int8-static", calibration="percentile", **_reduced(problem))))


def _products(problem: Problem) -> Iterator[Strategy]:
    yield Strategy(transforms=(made("int8-dynamic", smooth=0.65, **_reduced(problem)),))
    yield Strategy(transforms=(made("int8-dynamic", **_reduced(problem)),))


def _has_arm_bf16(problem: Problem) -> bool:
    return "bf16" in problem.cpu.features


def _named(strategy: Strategy, *names: str) -> list[Transform]:
    return [transform for transform in strategy.transforms if transform.name in names]


def _is_signed(problem: Problem, strategy: Strategy) -> bool:
    given = [transform.parameters.get("scheme") for transform in _named(strategy, "int8-static")]
    return "s8s8" in given and runs_on_cpu(problem, strategy)


def _is_half_on_cpu(problem: Problem, strategy: Strategy) -> bool:
    return bool(_named(strategy, "float16", "bfloat16")) and runs_on_cpu(problem, strategy)


def _reads_one_row(problem: Problem) -> bool:
    """Whether products read their weights for one row: batch 1, and nothing but products."""
    return batch_size(problem) == 1 and has_products(problem) and not has_convolutions(problem)


PRECISION_RULES = (
    Rule(
        "int8_convolutions",
        75,
        "precision",
        "convolutions in 8 bits, a scale for each channel, run on the processor's integer units at twice the rate",
        "own measurement: int8-static U8S8 1.67x on a 1-D U-Net, 1.13x on a text detector, 0.66x on a network with "
        "HardSwish; behind a GELU made one operator 2.32x instead of 1.64x on a 1-D U-Net, 1.13x instead of 2.01x on "
        "magika (tests/recorded/oracle); microsoft/onnxruntime#20052: slower where the units are lacking",
        when=(may_quantise, has_convolutions, has_int8_units, on_cpu),
        devices=("cpu",),
        proposes=_convolutions,
    ),
    Rule(
        "int8_products",
        76,
        "precision",
        "matrix products in 8 bits, their inputs' scales taken anew at each run, run on the processor's integer units",
        "own measurement: int8-dynamic on MiniLM; per tensor its cosine similarity is 0.94, per channel 0.996",
        when=(may_quantise, has_products, has_int8_units, on_cpu),
        devices=("cpu",),
        proposes=_products,
    ),
    Rule(
        "arm_bfloat16_products",
        60,
        "precision",
        "this Arm processor multiplies bfloat16 matrices, which onnxruntime uses for float32 products if allowed",
        "microsoft/onnxruntime#17031: 1.2-1.76x on AWS Graviton3 (BERT, RoBERTa, GPT-2); not run on hardware",
        when=(may_quantise, has_products, _has_arm_bf16, on_cpu),
        devices=("cpu",),
        proposes=lambda p: (FAST_MATH,),
    ),
    Rule(
        "weights_in_fewer_bits",
        33,
        "precision",
        "one row at a time waits for the weights to come from memory: fewer bits are fewer bytes",
        "microsoft/onnxruntime#24491 (products of one row: 4 bits 1.2-6x faster than 8); own measurement: MiniLM's "
        "error 0.02 in 8 bits, no gain on a machine whose cache holds them",
        when=(may_quantise, _reads_one_row, is_memory_bound, on_cpu),
        devices=("cpu",),
        proposes=lambda p: (Strategy(transforms=(made("int8-weights"),)), Strategy(transforms=(made("int4-weights"),))),
    ),
    Rule(
        "gelu_approximation",
        31,
        "precision",
        "GELU by a hyperbolic tangent is cheaper than by the error function",
        "own measurement: 1.1-1.6x on a transformer under load, error 2e-4",
        when=(may_quantise, has_products, lambda p: p.graph.count("Erf", "Gelu") > 0, on_cpu),
        devices=("cpu",),
        proposes=lambda p: (GELU_APPROXIMATION,),
    ),
    Rule(
        "no_signed_activations_on_x86",
        VETO_PRIORITY,
        "precision",
        "x86 multiplies unsigned by signed bytes: int8 activations take onnxruntime's slow kernels",
        "own measurement: a ResNet-18 in S8S8 0.75-0.9x, in U8S8 2.2-2.8x; microsoft/onnxruntime#12072",
        when=(is_x86,),
        devices=("cpu",),
        forbids=_is_signed,
    ),
    Rule(
        "no_int8_convolutions_without_units",
        VETO_PRIORITY,
        "precision",
        "without instructions for 8-bit products quantised convolutions are slower than float ones",
        "microsoft/onnxruntime#20052, #6977 (AVX2: MobileNetV3 and ShuffleNetV2 slower)",
        when=(is_x86, has_convolutions, lambda p: not has_int8_units(p)),
        devices=("cpu",),
        forbids=lambda p, strategy: bool(_named(strategy, "int8-static")) and runs_on_cpu(p, strategy),
    ),
    Rule(
        "no_half_precision_on_cpu",
        VETO_PRIORITY,
        "precision",
        "onnxruntime's CPU provider has few kernels in float16 and bfloat16: the rest is cast back and forth",
        "own observation: most float16 nodes are cast to float32 again; onnxruntime docs/OperatorKernels.md",
        devices=("cpu",),
        forbids=_is_half_on_cpu,
    ),
    Rule(
        "no_second_reduction",
        VETO_PRIORITY,
        "precision",
        "the model is quantised already: what it lost is not to be lost twice",
        "onnxruntime documentation: quantize ONNX models (float32 models are quantised)",
        when=(lambda p: p.graph.quantisation in (*QUANTISED, "dynamic"),),
        forbids=lambda p, strategy: not REDUCING.isdisjoint(t.name for t in strategy.transforms),
    ),
    Rule(
        "no_unsigned_weights",
        VETO_PRIORITY,
        "precision",
        "unsigned weights avoid saturation on old processors, at half the rate",
        "own observation: session.x64quantprecision was slower; microsoft/onnxruntime#8057: U8S8 up to twice as fast",
        when=(is_x86,),
        devices=("cpu",),
        forbids=lambda p, strategy: "session.x64quantprecision" in strategy.session_config,
    ),
)
