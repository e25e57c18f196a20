"""Precision on GPUs, NPUs, DSPs and FPGAs: the type that a device is made for, and the one it cannot do without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ort_metainfer.deciders.conditions import (
    accelerators,
    accelerators_pay,
    is_legal,
    made,
    may_quantise,
    on_device,
    on_provider,
)
from ort_metainfer.deciders.rule import ACCELERATORS, Condition, Rule
from ort_metainfer.deciders.rules_precision import QUANTISED, raised_opset
from ort_metainfer.deciders.traits import named_device, other_devices
from ort_metainfer.deciders.traits_devices import SIMULATED, capabilities_of, chip_of, device_of, needs_quantised
from ort_metainfer.problem import Device, Problem
from ort_metainfer.strategy import Strategy

__all__ = ["DEVICE_PRECISION_RULES"]

REQUIREMENT_PRIORITY = 79
TENSORRT, MIGRAPHX = "TensorrtExecutionProvider", "MIGraphXExecutionProvider"

REWRITES = {
    "float16": ("float16", {}),
    "bfloat16": ("bfloat16", {}),
    "int8": ("int8-static", {}),
    "a16w8": ("int8-static", {"scheme": "a16w8"}),
}
"""Precision, as adapters call it -> the rewrite that gives it, and its parameters."""


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


def _has_taker(precision: str) -> Condition:
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


DEVICE_PRECISION_RULES = (
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
        "a quantised graph is for TensorRT to compute in 8 bits, which it does where they are enabled",
        "onnxruntime documentation: TensorRT execution provider, trt_int8_enable; not run on hardware",
        when=(lambda p: p.graph.quantisation == "qdq", lambda p: on_provider(p, TENSORRT) is not None),
        devices=("gpu",),
        requires=_told_int8,
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
)
