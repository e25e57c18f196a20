"""Which provider runs the graph on the CPU: OpenVINO, on which of its devices, in which precision; and others.

Own measurements: onnxruntime 1.32, onnxruntime-ep-openvino 1.8.1, two cores, sessions of one process taken in turn.
"""

from __future__ import annotations

from collections.abc import Iterator

from ort_metainfer.deciders.conditions import has_control_flow, is_compiled, is_float, made, may_quantise
from ort_metainfer.deciders.rule import VETO_PRIORITY, Rule
from ort_metainfer.deciders.rules_precision import raised_opset
from ort_metainfer.deciders.traits import (
    OPENVINO,
    computes_bf16,
    exact_options,
    has_convolutions,
    has_nameless_sizes,
    is_heavy,
    is_moderate,
    is_tiny,
    other_devices,
    static_sizes,
)
from ort_metainfer.problem import Device, Problem
from ort_metainfer.strategy import Strategy

__all__ = ["PROVIDER_RULES", "openvino_options", "openvino_takes"]


LOADING_PRIORITY = 80
"""Of what OpenVINO does not load, or runs wrongly, on whatever device."""

MIN_CONVOLUTIONS = 4
MIN_MATRIX_PRODUCTS = 12


def openvino_options(problem: Problem, precision: str = "f32") -> dict[str, str]:
    """OpenVINO's options for ``precision``, with the caller's thread count handed on.

    OpenVINO brings its own thread pool and does not look at onnxruntime's (own observation), so a pinned
    ``intra_op_num_threads`` would otherwise be forgotten.
    """
    threads = problem.policy.pinned.get("intra_op_num_threads")
    return {
        "INFERENCE_PRECISION_HINT": precision,
        **({"INFERENCE_NUM_THREADS": threads} if threads and threads.isdecimal() and threads != "0" else {}),
    }


def _openvino(problem: Problem, precision: str = "f32", device: str | None = None, **more: object) -> Strategy:
    options = openvino_options(problem, precision)
    return Strategy(provider=OPENVINO, device=device, provider_options=options, **more)  # type: ignore[arg-type]


def _has_openvino(problem: Problem) -> bool:
    return problem.device(OPENVINO) is not None and OPENVINO in problem.policy.providers


def openvino_takes(problem: Problem) -> bool:
    """Whether no veto of this family rules OpenVINO out, and the graph is not compiled for another provider."""
    graph = problem.graph
    ruled_out = graph.quantisation == "dynamic" or graph.has_control_flow or is_tiny(problem)
    return _has_openvino(problem) and not ruled_out and "EPContext" not in graph.blockers


def _is_unquantised(problem: Problem) -> bool:
    return problem.graph.quantisation == "none"


def _heavy_float(problem: Problem) -> bool:
    return openvino_takes(problem) and _is_unquantised(problem) and is_heavy(problem)


def _convolves(problem: Problem) -> bool:
    return problem.graph.count("Conv", "ConvTranspose") >= MIN_CONVOLUTIONS


def _multiplies(problem: Problem) -> bool:
    return problem.graph.count("MatMul", "Gemm") >= MIN_MATRIX_PRODUCTS


def _has_auto(problem: Problem) -> bool:
    return any(device.provider == OPENVINO and device.provider_device == "AUTO" for device in problem.devices)


def _reduced(problem: Problem) -> Iterator[Strategy]:
    yield _openvino(problem, "bf16")
    if _has_auto(problem):
        yield _openvino(problem, "bf16", device="AUTO")


def _other_cpu_devices(problem: Problem) -> list[Device]:
    return [device for device in other_devices(problem) if device.kind == "cpu" and device.provider != OPENVINO]


def _names_openvino(problem: Problem, strategy: Strategy) -> bool:
    return strategy.provider == OPENVINO


def _does_not_convolve(problem: Problem) -> bool:
    return not _convolves(problem)


def _is_quantised(problem: Problem) -> bool:
    return problem.graph.quantisation == "qdq"


def _has_other_cpu_devices(problem: Problem) -> bool:
    return bool(_other_cpu_devices(problem))


def _float_precisions(problem: Problem) -> tuple[str, ...]:
    """What OpenVINO computes the rest of a quantised network in, fastest first."""
    return ("bf16", "f32") if computes_bf16(problem) else ("f32",)


def _quantised(problem: Problem) -> Iterator[Strategy]:
    named = static_sizes(problem)
    fixed = (made("fixed-shapes"),) if has_nameless_sizes(problem) else ()
    transforms = (*raised_opset(problem), *fixed, made("int8-static"))
    for precision in _float_precisions(problem):
        options = {"INFERENCE_PRECISION_HINT": precision}
        yield Strategy(provider=OPENVINO, provider_options=options, static_shapes=named, transforms=transforms)


def _fixed(problem: Problem) -> Iterator[Strategy]:
    """OpenVINO in float32 with the shapes given: by name where dimensions have usable ones, by input otherwise."""
    named = static_sizes(problem)
    rewrites = () if named else (made("fixed-shapes"),)
    options = exact_options(OPENVINO)
    yield Strategy(provider=OPENVINO, provider_options=options, static_shapes=named, transforms=rewrites)


def _knows_open_shapes(problem: Problem) -> bool:
    return bool(static_sizes(problem)) or has_nameless_sizes(problem)


PROVIDER_RULES = (
    Rule(
        "openvino_reduced_precision",
        77,
        "precision",
        "OpenVINO computes in bfloat16 here, on twice as many numbers at a time, and the policy asks only for so much",
        "own measurement: 1.3-2.1x on AMD EPYC, 2.0-5.0x on Intel with AMX, errors 2e-4 to 2e-2, one model wrong",
        when=(
            openvino_takes,
            _is_unquantised,
            computes_bf16,
        ),
        devices=("cpu",),
        proposes=_reduced,
    ),
    Rule(
        "openvino_float32_convolutions",
        70,
        "provider",
        "OpenVINO fuses and lays out large convolutional networks better, at the same precision",
        "own measurement: 1.17x on ppocr_v6_det and spindle_unet1d on AMD EPYC, 2.5x and 1.2x on Intel; "
        "0.84-1.0x on small ones",
        when=(
            _heavy_float,
            _convolves,
        ),
        devices=("cpu",),
        proposes=lambda p: (_openvino(p),),
    ),
    Rule(
        "openvino_float32_matrix_products",
        69,
        "provider",
        "OpenVINO fuses the many small operators between the matrix products of large transformers and graph networks",
        "own measurement: 1.04x on minilm at 128 tokens, 2.1x on painn_gnn",
        when=(
            _heavy_float,
            _multiplies,
            _does_not_convolve,
        ),
        devices=("cpu",),
        proposes=lambda p: (_openvino(p),),
    ),
    Rule(
        "openvino_static_quantised",
        68,
        "precision",
        "OpenVINO runs statically quantised networks on the CPU's 8-bit units from end to end",
        "own measurement: a ResNet-18 in QDQ form (u8s8) 6.6-8.4x against 2.2-2.8x on the CPU provider, under load",
        when=(
            openvino_takes,
            _is_quantised,
        ),
        devices=("cpu",),
        proposes=lambda p: (_openvino(p),),
    ),
    Rule(
        "openvino_static_shapes",
        66,
        "shapes",
        "OpenVINO plans memory and kernels ahead only where it knows the sizes",
        "own measurement: 6.0x against 4.4x on a text detector, 4.3x against 2.9x on another, under load",
        when=(
            _heavy_float,
            lambda p: bool(static_sizes(p)),
        ),
        devices=("cpu",),
        proposes=lambda p: (_openvino(p, static_shapes=static_sizes(p)),),
    ),
    Rule(
        "openvino_unoptimised_graph",
        64,
        "fusion",
        "onnxruntime's own fusions hide patterns that OpenVINO's optimiser would have found",
        "own measurement: a ResNet-18 5.05x against 4.27x, under load",
        when=(_heavy_float,),
        devices=("cpu",),
        proposes=lambda p: (_openvino(p, session_options={"graph_optimization_level": "disable"}),),
    ),
    Rule(
        "openvino_auto_device",
        62,
        "provider",
        "OpenVINO's AUTO device often ran a little faster than its CPU device",
        "own measurement: 5.5-8.3x against 4.0-5.1x on a ResNet-18, 6.5x against 4.4x on a text detector, under load; "
        "cause not known",
        when=(
            _heavy_float,
            _has_auto,
        ),
        devices=("cpu",),
        proposes=lambda p: (_openvino(p, device="AUTO"),),
    ),
    Rule(
        "openvino_int8_convolutions",
        78,
        "precision",
        "OpenVINO runs a quantised convolutional network in 8 bits from end to end",
        "own measurement: a ResNet-18 in QDQ form 6.6-8.4x of plain onnxruntime on Intel with AMX, under load",
        when=(may_quantise, has_convolutions, openvino_takes),
        devices=("cpu",),
        proposes=_quantised,
    ),
    Rule(
        "openvino_fixed_shapes",
        67,
        "shapes",
        "OpenVINO runs convolutional networks of fixed shapes well in float32, also small ones",
        "own measurement (onnxruntime-openvino 1.24.1, AMD EPYC), float32: fixed 1.80x, 1.35x and 1.12x on a page "
        "classifier of 154 million MACs, a 1-D U-Net and a ResNet-50; open 2.53x, 1.31x and 1.06x",
        when=(openvino_takes, is_float, has_convolutions, _knows_open_shapes),
        devices=("cpu",),
        proposes=_fixed,
    ),
    Rule(
        "openvino_float32_moderate",
        52,
        "provider",
        "OpenVINO can pay on convolutional networks of moderate size too: it did on one machine and not on another",
        "own measurement on a page classifier of 154 million MACs: 2.53x with onnxruntime-openvino 1.24.1 on AMD EPYC, "
        "0.6x with the plug-in 1.8.1 on Intel",
        when=(openvino_takes, is_float, _convolves, is_moderate),
        devices=("cpu",),
        proposes=lambda p: (_openvino(p),),
    ),
    Rule(
        "other_cpu_provider",
        30,
        "provider",
        "another provider for the CPU may have better kernels for a model of this size",
        "own measurement: nxrt 0.77-1.1x on a transformer; unknown for others, hence late",
        when=(
            _has_other_cpu_devices,
            is_heavy,
            lambda p: not is_compiled(p),
        ),
        devices=("cpu",),
        proposes=lambda p: (Strategy(provider=device.provider) for device in _other_cpu_devices(p)),
    ),
    Rule(
        "openvino_not_for_dynamic_int8",
        LOADING_PRIORITY,
        "provider",
        "OpenVINO is slower with dynamically quantised graphs, and their results differ",
        "own measurement: 0.31-0.32x on the encoder and decoder of a t5 in int8, error 0.1-0.4",
        when=(
            _has_openvino,
            lambda p: p.graph.quantisation == "dynamic",
        ),
        forbids=_names_openvino,
        subject=OPENVINO,
    ),
    Rule(
        "openvino_not_for_control_flow",
        LOADING_PRIORITY,
        "provider",
        "OpenVINO fails to load graphs with If, Loop or Scan, or hands them back piece by piece",
        "own measurement: silero_vad fails to load with dynamic shapes, and ran 0.03x with static ones",
        when=(
            _has_openvino,
            has_control_flow,
        ),
        forbids=_names_openvino,
        subject=OPENVINO,
    ),
    Rule(
        "openvino_not_for_tiny_models",
        VETO_PRIORITY,
        "provider",
        "OpenVINO's fixed cost of a run is more than this model's whole run",
        "own measurement: a classifier of 16 million MACs and 0.6-1.2 ms ran 0.24-0.96x",
        when=(_has_openvino, is_tiny),
        devices=("cpu",),
        forbids=_names_openvino,
        subject=OPENVINO,
    ),
)
