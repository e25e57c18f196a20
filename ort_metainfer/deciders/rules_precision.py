"""Precision: which type a device's units are made for, and which types its kernels only pretend to have.

Own measurements: onnxruntime 1.32 on AMD EPYC (avx512_vnni), two cores; see each rewrite's ``evidence``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ort_metainfer.deciders.conditions import (
    ACCELERATORS,
    accelerators,
    accelerators_pay,
    has_int8_units,
    has_products,
    is_legal,
    is_x86,
    made,
    may_quantise,
    on_cpu,
    on_device,
    on_provider,
)
from ort_metainfer.deciders.rule import VETO_PRIORITY, Rule
from ort_metainfer.deciders.traits import batch_size, has_convolutions, named_device, other_devices, runs_on_cpu
from ort_metainfer.deciders.traits_devices import (
    SIMULATED,
    capabilities_of,
    chip_of,
    device_of,
    is_memory_bound,
    needs_quantised,
)
from ort_metainfer.problem import Device, Problem
from ort_metainfer.strategy import Strategy, Transform

__all__ = ["PRECISION_RULES", "raised_opset"]

REQUIREMENT_PRIORITY = 79
TENSORRT, MIGRAPHX = "TensorrtExecutionProvider", "MIGraphXExecutionProvider"

CHANNEL_SCALES_OPSET = 13
"""First version of ONNX's operators whose QuantizeLinear takes a scale for each channel."""

QUANTISED = ("qdq", "qoperator")
REDUCING = frozenset({"float16", "bfloat16", "int8-static", "int8-dynamic", "int8-weights", "int4-weights"})
REWRITES = {
    "float16": ("float16", {}),
    "bfloat16": ("bfloat16", {}),
    "int8": ("int8-static", {}),
    "a16w8": ("int8-static", {"scheme": "a16w8"}),
}
"""Precision, as adapters call it -> the rewrite that gives it, and its parameters."""

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
    for more in ({}, {"calibration": "percentile"}):
        transform = made("int8-static", **more, **_reduced(problem))
        yield Strategy(transforms=(*raised_opset(problem), transform))


def _products(problem: Problem) -> Iterator[Strategy]:
    yield Strategy(transforms=(made("int8-dynamic", smooth=0.65, **_reduced(problem)),))
    yield Strategy(transforms=(made("int8-dynamic", **_reduced(problem)),))


def _takes(problem: Problem, precision: str) -> Iterator[Strategy]:
    """On each device beside the CPU that is made for a precision, the model in that precision.

    What the rewrite leaves in float32 the device computes as it likes: demanding float32 would shut some of them out.
    TensorRT and MIGraphX turn graphs to float16 themselves, layer by layer: rules of their own propose that.
    """
    name, parameters = REWRITES[precision]
    for device in other_devices(problem):
        stated = capabilities_of(device.provider).preferences.precisions
        casts_itself = device.provider in (TENSORRT, MIGRAPHX) and precision in ("float16", "bfloat16")
        if device.kind != "cpu" and precision in stated and is_legal(name, device.provider) and not casts_itself:
            yield on_device(problem, device, exact=False, transforms=(made(name, **parameters),))


def _has_taker(precision: str) -> object:
    def condition(problem: Problem) -> bool:
        return any(_takes(problem, precision))

    return condition


def _chips(problem: Problem) -> Iterator[tuple[Device, str]]:
    """Described devices, and the type of the highest stated peak that is not float32."""
    names = {"float16": "float16", "bfloat16": "bfloat16", "int8": "int8"}
    for device in accelerators(problem):
        chip = chip_of(device)
        peaks = {} if chip is None else {names[key]: peak.value for key, peak in chip.peak.items() if key in names}
        if peaks:
            yield device, max(peaks, key=lambda name: peaks[name])


def _chips_in_their_type(problem: Problem) -> Iterator[Strategy]:
    for device, precision in _chips(problem):
        yield Strategy(
            provider=device.provider,
            device=named_device(problem, device),
            provider_options={"precision": precision},
        )


def _some_need_quantised(problem: Problem) -> bool:
    return any(needs_quantised(device) for device in accelerators(problem))


def _is_not_quantised(problem: Problem) -> bool:
    return problem.graph.quantisation not in QUANTISED


def _quantised(problem: Problem, strategy: Strategy) -> Strategy | None:
    """The model quantised with a calibration; a described device is told to reckon with it."""
    device = device_of(problem, strategy)
    if device is None or not needs_quantised(device) or problem.graph.quantisation == "dynamic":
        return strategy if device is None or not needs_quantised(device) else None
    if device.provider == SIMULATED:
        return replace(strategy, provider_options={**strategy.provider_options, "precision": "int8"})
    if any(transform.name == "int8-static" for transform in strategy.transforms):
        return strategy
    if not is_legal("int8-static", device.provider):
        return None
    return replace(strategy, transforms=(*strategy.transforms, *raised_opset(problem), made("int8-static")))


def _told_int8(problem: Problem, strategy: Strategy) -> Strategy:
    if strategy.provider != TENSORRT:
        return strategy
    return replace(strategy, provider_options={**strategy.provider_options, "trt_int8_enable": "True"})


def _tensorrt_float16(problem: Problem) -> Iterator[Strategy]:
    device = on_provider(problem, TENSORRT)
    options = {"trt_fp16_enable": "True"}
    if problem.graph.count("LayerNormalization"):
        options["trt_layer_norm_fp32_fallback"] = "True"
    if device is not None:
        yield on_device(problem, device, provider_options=options)


def _migraphx_float16(problem: Problem) -> Iterator[Strategy]:
    device = on_provider(problem, MIGRAPHX)
    if device is not None:
        yield on_device(problem, device, provider_options={"migraphx_fp16_enable": "True"})


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
        "device_needs_quantised",
        REQUIREMENT_PRIORITY,
        "precision",
        "this device computes in 8 bits only: the model is quantised for it",
        "AMD DPU product guides (PG338, PG367, PG389); coral.ai/docs/edgetpu; NXP and Qualcomm Hexagon documents (see "
        "providers/chips.toml); not run on hardware",
        when=(_is_not_quantised, _some_need_quantised),
        devices=("npu", "dsp", "fpga"),
        requires=_quantised,
    ),
    Rule(
        "tensorrt_int8_for_quantised",
        REQUIREMENT_PRIORITY,
        "precision",
        "TensorRT builds a quantised graph only where 8 bits are enabled",
        "onnxruntime documentation: TensorRT execution provider, trt_int8_enable; not run on hardware",
        when=(lambda p: p.graph.quantisation == "qdq", lambda p: on_provider(p, TENSORRT) is not None),
        devices=("gpu",),
        requires=_told_int8,
    ),
    Rule(
        "int8_convolutions",
        75,
        "precision",
        "convolutions in 8 bits, a scale for each channel, run on the processor's integer units at twice the rate",
        "own measurement: int8-static U8S8 1.67x on a 1-D U-Net, 1.13x on a text detector, 0.66x on a network with "
        "HardSwish; microsoft/onnxruntime#20052: slower where the units are lacking",
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
        "float16_on_accelerators",
        73,
        "precision",
        "this device computes float16 at least twice as fast as float32, on half the memory",
        "NVIDIA, AMD and Apple architecture documents: tensor and matrix cores; not run on hardware",
        when=(may_quantise, accelerators_pay, _has_taker("float16")),
        devices=ACCELERATORS,
        proposes=lambda p: _takes(p, "float16"),
    ),
    Rule(
        "tensorrt_float16",
        73,
        "precision",
        "TensorRT chooses float16 kernels layer by layer, normalisation kept in float32",
        "onnxruntime documentation: TensorRT execution provider, trt_fp16_enable, trt_layer_norm_fp32_fallback; not "
        "run on hardware",
        when=(may_quantise, accelerators_pay, lambda p: on_provider(p, TENSORRT) is not None),
        devices=("gpu",),
        proposes=_tensorrt_float16,
    ),
    Rule(
        "migraphx_float16",
        73,
        "precision",
        "MIGraphX turns the graph to float16 as it compiles it, for AMD's matrix cores",
        "onnxruntime documentation: MIGraphX execution provider, migraphx_fp16_enable; not run on hardware",
        when=(may_quantise, accelerators_pay, lambda p: on_provider(p, MIGRAPHX) is not None),
        devices=("gpu",),
        proposes=_migraphx_float16,
    ),
    Rule(
        "int8_on_accelerators",
        72,
        "precision",
        "this device is made for 8-bit networks",
        "Qualcomm, AMD (Vitis AI) and Intel NPU documents: QDQ models; run on QNN's simulator only",
        when=(may_quantise, accelerators_pay, _has_taker("int8")),
        devices=ACCELERATORS,
        proposes=lambda p: _takes(p, "int8"),
    ),
    Rule(
        "a16w8_on_accelerators",
        71,
        "precision",
        "16-bit activations with 8-bit weights keep more of the results where 8 bits lose them",
        "own measurement: a page classifier on QNN's simulator, error 0.4 in 8 bits, 0.014 with 16-bit activations",
        when=(may_quantise, accelerators_pay, _has_taker("a16w8")),
        devices=ACCELERATORS,
        proposes=lambda p: _takes(p, "a16w8"),
    ),
    Rule(
        "described_chip_in_its_type",
        71,
        "precision",
        "by its description this chip computes this type fastest",
        "providers/chips.toml, each peak with the vendor's document; not run on hardware",
        when=(may_quantise, accelerators_pay, lambda p: any(_chips(p))),
        devices=ACCELERATORS,
        proposes=_chips_in_their_type,
    ),
    Rule(
        "bfloat16_on_accelerators",
        61,
        "precision",
        "bfloat16 has float32's range: it stands where float16 overflows, at the same rate",
        "NVIDIA Ampere (GA100) white paper; AMD CDNA 3 white paper; not run on hardware",
        when=(may_quantise, accelerators_pay, _has_taker("bfloat16")),
        devices=("gpu", "npu"),
        proposes=lambda p: _takes(p, "bfloat16"),
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
