"""Which provider runs the graph, on which of its devices, in which precision.

Own measurements: onnxruntime 1.32, onnxruntime-ep-openvino 1.8.1, two cores, sessions of one process taken in turn.
"""

from __future__ import annotations

from collections.abc import Iterator

from ort_metainfer.deciders.rule import Rule
from ort_metainfer.deciders.traits import (
    OPENVINO,
    computes_bf16,
    input_bytes,
    is_heavy,
    is_tiny,
    named_device,
    other_devices,
    precisions_to_try,
    shapes_it_needs,
    static_sizes,
    whole_cores,
)
from ort_metainfer.problem import Device, Problem
from ort_metainfer.strategy import Strategy

__all__ = ["PROVIDER_RULES", "accelerators_pay", "openvino_options", "openvino_takes"]

VETO_PRIORITY = 10
MIN_CONVOLUTIONS = 4
MIN_MATRIX_PRODUCTS = 12

CORE_MACS_PER_S = 20e9
"""Sustained float32 multiply-accumulates of one core. Own measurement: 100e9 in a ResNet-50 with AVX-512, a tenth of
that in small networks; a low figure vetoes less."""

BUS_BYTES_PER_S = 12e9
"""PCIe 3.0 x16 in practice: 16 lanes of 985 MB/s, three quarters of it used."""

LAUNCH_MS = 0.1
"""Fixed cost of one run on another device: two copies started, kernels launched, one wait. Own measurement on WebGPU
(software adapter): 3.1 ms for four small layers that took 0.02 ms on the CPU; a discrete GPU is far nearer to this."""


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


def _heavy_float(problem: Problem) -> bool:
    return openvino_takes(problem) and problem.graph.quantisation == "none" and is_heavy(problem)


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


def _accelerators(problem: Problem) -> Iterator[Device]:
    for device in problem.devices:
        if device.kind != "cpu" and device.provider in problem.policy.providers:
            yield device


def _transfer_costs_more(problem: Problem) -> bool:
    """Whether the CPU is done before another device has got its inputs (see the constants above)."""
    macs = problem.graph.macs
    if macs is None:
        return is_tiny(problem)
    on_cpu_ms = 1e3 * macs / (CORE_MACS_PER_S * whole_cores(problem))
    return on_cpu_ms <= LAUNCH_MS + 1e3 * input_bytes(problem) / BUS_BYTES_PER_S


def accelerators_pay(problem: Problem) -> bool:
    """Whether there is an accelerator, and the model is worth the way to it."""
    compiled = "EPContext" in problem.graph.blockers
    return any(_accelerators(problem)) and not compiled and not _transfer_costs_more(problem)


def _on_accelerators(problem: Problem) -> Iterator[Strategy]:
    seen: set[tuple[str, str | None]] = set()
    for device in _accelerators(problem):
        place = (device.provider, named_device(problem, device))
        if place not in seen:
            seen.add(place)
            for options in precisions_to_try(problem, place[0]):
                yield Strategy(
                    provider=place[0],
                    device=place[1],
                    provider_options=options,
                    static_shapes=shapes_it_needs(problem, place[0]),
                )


def _names_accelerator(problem: Problem, strategy: Strategy) -> bool:
    devices = [device for device in problem.devices if device.provider == strategy.provider]
    named = [device for device in devices if strategy.device in (None, device.provider_device)]
    return bool(named) and named[0].kind != "cpu"


def _other_cpu_devices(problem: Problem) -> list[Device]:
    return [device for device in other_devices(problem) if device.kind == "cpu" and device.provider != OPENVINO]


def _names_openvino(problem: Problem, strategy: Strategy) -> bool:
    return strategy.provider == OPENVINO


PROVIDER_RULES = (
    Rule(
        "openvino_reduced_precision",
        75,
        "OpenVINO computes in bfloat16 here, on twice as many numbers at a time, and the policy asks only for so much",
        "own measurement: 1.3-2.1x on AMD EPYC, 2.0-5.0x on Intel with AMX, errors 2e-4 to 2e-2, one model wrong",
        applies=lambda p: openvino_takes(p) and p.graph.quantisation == "none" and computes_bf16(p),
        proposes=_reduced,
    ),
    Rule(
        "accelerator",
        74,
        "this device computes in parallel far wider than the CPU, and the model is large enough to be worth the way",
        "onnxruntime documentation: execution providers; not measured by us, hence tried like any other strategy",
        applies=accelerators_pay,
        proposes=_on_accelerators,
    ),
    Rule(
        "openvino_float32_convolutions",
        70,
        "OpenVINO fuses and lays out large convolutional networks better, at the same precision",
        "own measurement: 1.17x on ppocr_v6_det and spindle_unet1d on AMD EPYC, 2.5x and 1.2x on Intel; "
        "0.84-1.0x on small ones",
        applies=lambda p: _heavy_float(p) and _convolves(p),
        proposes=lambda p: (_openvino(p),),
    ),
    Rule(
        "openvino_float32_matrix_products",
        69,
        "OpenVINO fuses the many small operators between the matrix products of large transformers and graph networks",
        "own measurement: 1.04x on minilm at 128 tokens, 2.1x on painn_gnn",
        applies=lambda p: _heavy_float(p) and _multiplies(p) and not _convolves(p),
        proposes=lambda p: (_openvino(p),),
    ),
    Rule(
        "openvino_static_quantised",
        68,
        "OpenVINO runs statically quantised networks on the CPU's 8-bit units from end to end",
        "own measurement: a ResNet-18 in QDQ form (u8s8) 6.6-8.4x against 2.2-2.8x on the CPU provider, under load",
        applies=lambda p: openvino_takes(p) and p.graph.quantisation == "qdq",
        proposes=lambda p: (_openvino(p),),
    ),
    Rule(
        "openvino_static_shapes",
        66,
        "OpenVINO plans memory and kernels ahead only where it knows the sizes",
        "own measurement: 6.0x against 4.4x on a text detector, 4.3x against 2.9x on another, under load",
        applies=lambda p: _heavy_float(p) and bool(static_sizes(p)),
        proposes=lambda p: (_openvino(p, static_shapes=static_sizes(p)),),
    ),
    Rule(
        "openvino_unoptimised_graph",
        64,
        "onnxruntime's own fusions hide patterns that OpenVINO's optimiser would have found",
        "own measurement: a ResNet-18 5.05x against 4.27x, under load",
        applies=_heavy_float,
        proposes=lambda p: (_openvino(p, session_options={"graph_optimization_level": "disable"}),),
    ),
    Rule(
        "openvino_auto_device",
        62,
        "OpenVINO's AUTO device often ran a little faster than its CPU device",
        "own measurement: 5.5-8.3x against 4.0-5.1x on a ResNet-18, 6.5x against 4.4x on a text detector, under load; "
        "cause not known",
        applies=lambda p: _heavy_float(p) and _has_auto(p),
        proposes=lambda p: (_openvino(p, device="AUTO"),),
    ),
    Rule(
        "other_cpu_provider",
        30,
        "another provider for the CPU may have better kernels for a model of this size",
        "own measurement: nxrt 0.77-1.1x on a transformer; unknown for others, hence late",
        applies=lambda p: bool(_other_cpu_devices(p)) and is_heavy(p) and "EPContext" not in p.graph.blockers,
        proposes=lambda p: (Strategy(provider=device.provider) for device in _other_cpu_devices(p)),
    ),
    Rule(
        "openvino_not_for_dynamic_int8",
        VETO_PRIORITY,
        "OpenVINO is slower with dynamically quantised graphs, and their results differ",
        "own measurement: 0.31-0.32x on the encoder and decoder of a t5 in int8, error 0.1-0.4",
        applies=lambda p: _has_openvino(p) and p.graph.quantisation == "dynamic",
        forbids=_names_openvino,
        subject=OPENVINO,
    ),
    Rule(
        "openvino_not_for_control_flow",
        VETO_PRIORITY,
        "OpenVINO fails to load graphs with If, Loop or Scan, or hands them back piece by piece",
        "own measurement: silero_vad fails to load with dynamic shapes, and ran 0.03x with static ones",
        applies=lambda p: _has_openvino(p) and p.graph.has_control_flow,
        forbids=_names_openvino,
        subject=OPENVINO,
    ),
    Rule(
        "openvino_not_for_tiny_models",
        VETO_PRIORITY,
        "OpenVINO's fixed cost of a run is more than this model's whole run",
        "own measurement: a classifier of 16 million MACs and 0.6-1.2 ms ran 0.24-0.96x",
        applies=lambda p: _has_openvino(p) and is_tiny(p),
        forbids=_names_openvino,
        subject=OPENVINO,
    ),
    Rule(
        "no_accelerator_below_transfer_cost",
        VETO_PRIORITY,
        "the CPU is done before another device has received the inputs",
        "estimate: MACs at 20e9 a second and core against 0.1 ms and the inputs at 12e9 bytes a second; own "
        "measurement on a software GPU: 3.1 ms for what the CPU did in 0.02 ms",
        applies=lambda p: any(_accelerators(p)) and _transfer_costs_more(p),
        forbids=_names_accelerator,
        subject="accelerators",
    ),
)
