"""GPUs, NPUs, DSPs and FPGAs: when the way there pays, what they cannot do, and options of theirs.

Nothing here was run on such hardware, but for a simulator (QNN) and a software adapter (WebGPU): sources say so.
"""

from __future__ import annotations

from collections.abc import Iterator

from ort_metainfer.deciders.conditions import (
    CORE_MACS_PER_S,
    accelerators,
    accelerators_pay,
    has_control_flow,
    made,
    may_lose,
    on_device,
    on_provider,
    transfer_costs_more,
)
from ort_metainfer.deciders.rule import ACCELERATORS, BINDING_PRIORITY, VETO_PRIORITY, Rule
from ort_metainfer.deciders.traits import (
    CUDA,
    has_convolutions,
    has_open_shapes,
    is_heavy,
    is_recurrent,
    named_device,
    precisions_to_try,
    whole_cores,
)
from ort_metainfer.deciders.traits_devices import device_of, takes_operators
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

__all__ = ["ACCELERATOR_RULES"]

WEBGPU, QNN, COREML = "WebGpuExecutionProvider", "QNNExecutionProvider", "CoreMLExecutionProvider"

LAUNCH_S = 5e-6
"""Seconds to launch one kernel on a GPU (providers/chips.toml: Modal GPU glossary, CUDA graph)."""

MANY_NODES = 200
"""Fewer launches than that hide behind the copies, which have a rule of their own; a choice."""

HALF = 0.5
"""Share of the graph's operators below which a device takes too little of it; a choice."""

MEBIBYTE = 2**20


def _on_accelerators(problem: Problem) -> Iterator[Strategy]:
    seen: set[tuple[str, str | None]] = set()
    for device in accelerators(problem):
        place = (device.provider, named_device(problem, device))
        if place not in seen:
            seen.add(place)
            for options in precisions_to_try(problem, place[0]):
                yield Strategy(provider=place[0], device=place[1], provider_options=options)


def _launches_cost_more(problem: Problem) -> bool:
    """Whether a GPU's launches alone take as long as the CPU's whole run."""
    macs = problem.graph.macs
    on_cpu_s = None if macs is None else macs / (CORE_MACS_PER_S * whole_cores(problem))
    many = problem.graph.node_count >= MANY_NODES
    return many and on_cpu_s is not None and problem.graph.node_count * LAUNCH_S >= on_cpu_s


def _takes_too_little(problem: Problem, strategy: Strategy) -> bool:
    """What rewrites make of the operators is not known here: the placement after creation tells."""
    from ort_metainfer.rewrites.registry import get_rewrite

    if any(get_rewrite(transform.name).dimension == "operators" for transform in strategy.transforms):
        return False
    device = device_of(problem, strategy)
    return device is not None and takes_operators(problem, device) < HALF


def _exceeds_memory(problem: Problem, strategy: Strategy) -> bool:
    device = device_of(problem, strategy)
    room = None if device is None else device.memory_mb
    return room is not None and problem.graph.weight_bytes > room * MEBIBYTE


def _has_float64(problem: Problem) -> bool:
    return any(spec.dtype == "float64" for spec in (*problem.graph.inputs, *problem.graph.outputs))


def _runs_there(problem: Problem, strategy: Strategy) -> bool:
    return True


def _loops(problem: Problem) -> bool:
    return problem.graph.count("Loop", "Scan") > 0


def _cuda_heuristic(problem: Problem) -> Iterator[Strategy]:
    device = on_provider(problem, CUDA)
    if device is not None:
        yield on_device(problem, device, provider_options={"cudnn_conv_algo_search": "HEURISTIC"})


def _convolves_a_line(problem: Problem) -> bool:
    return has_convolutions(problem) and any(spec.shape and len(spec.shape) == 3 for spec in problem.graph.inputs)


def _cuda_lines(problem: Problem) -> Iterator[Strategy]:
    device = on_provider(problem, CUDA)
    if device is not None:
        yield on_device(problem, device, provider_options={"cudnn_conv1d_pad_to_nc1d": "1"})


def _qnn_burst(problem: Problem) -> Iterator[Strategy]:
    device = on_provider(problem, QNN)
    if device is not None:
        quantised = () if problem.graph.quantisation == "qdq" else (made("int8-static"),)
        options = {"htp_performance_mode": "burst"}
        yield on_device(problem, device, exact=False, provider_options=options, transforms=quantised)


def _coreml_program(problem: Problem) -> Iterator[Strategy]:
    device = on_provider(problem, COREML)
    if device is not None:
        yield on_device(problem, device, exact=False, provider_options={"ModelFormat": "MLProgram"})


def _is_float_or_qdq(problem: Problem) -> bool:
    return problem.graph.quantisation in ("none", "qdq")


ACCELERATOR_RULES = (
    Rule(
        "accelerator",
        74,
        "provider",
        "this device computes in parallel far wider than the CPU, and the model is large enough to be worth the way",
        "onnxruntime documentation: execution providers; not measured by us, hence tried like any other strategy",
        when=(accelerators_pay,),
        devices=ACCELERATORS,
        proposes=_on_accelerators,
    ),
    Rule(
        "coreml_program",
        63,
        "provider",
        "Core ML's newer model format takes other operators than the default one, and may leave fewer to the CPU",
        "onnxruntime documentation: CoreML execution provider, ModelFormat; not run on hardware",
        when=(may_lose, accelerators_pay, lambda p: on_provider(p, COREML) is not None),
        devices=("gpu", "npu"),
        proposes=_coreml_program,
    ),
    Rule(
        "cuda_heuristic_search",
        56,
        "provider",
        "with open shapes cuDNN would benchmark its convolutions anew for each shape that comes",
        "onnxruntime documentation: CUDA execution provider, cudnn_conv_algo_search; not run on hardware",
        when=(accelerators_pay, has_convolutions, has_open_shapes, lambda p: on_provider(p, CUDA) is not None),
        devices=("gpu",),
        proposes=_cuda_heuristic,
    ),
    Rule(
        "qnn_burst",
        53,
        "scheduling",
        "a latency that is asked for is worth the power: the NPU is asked for its burst mode, not for its default",
        "onnxruntime documentation: QNN execution provider, htp_performance_mode; what the mode does to clocks: "
        "not checked; not run on hardware",
        when=(may_lose, accelerators_pay, _is_float_or_qdq, lambda p: on_provider(p, QNN) is not None),
        devices=("npu",),
        proposes=_qnn_burst,
    ),
    Rule(
        "cuda_padded_lines",
        35,
        "provider",
        "padded to [N, C, 1, D], a convolution along one axis is run by other kernels of cuDNN's than as [N, C, D, 1]",
        "onnxruntime documentation: CUDA execution provider, cudnn_conv1d_pad_to_nc1d; not run on hardware",
        when=(accelerators_pay, _convolves_a_line, lambda p: on_provider(p, CUDA) is not None),
        devices=("gpu",),
        proposes=_cuda_lines,
    ),
    Rule(
        "weights_exceed_device_memory",
        BINDING_PRIORITY,
        "provider",
        "the weights alone do not fit into the device's memory",
        "by definition: what a device runs lies in its memory; onnxruntime documentation: CUDA execution provider, "
        "gpu_mem_limit (a limit of the arena alone, so that more is needed, not less)",
        when=(lambda p: any(device.memory_mb for device in accelerators(p)),),
        devices=ACCELERATORS,
        forbids=_exceeds_memory,
    ),
    Rule(
        "webgpu_not_for_recurrent",
        BINDING_PRIORITY,
        "provider",
        "WebGPU's results on recurrent graphs with branches were wrong",
        "own measurement (software adapter): silero_vad with a relative error of 0.20 and 0.53, and 255 ms for 0.2",
        when=(is_recurrent, lambda p: p.device(WEBGPU) is not None),
        devices=("gpu",),
        forbids=lambda p, strategy: strategy.provider == WEBGPU,
    ),
    Rule(
        "no_accelerator_below_transfer_cost",
        VETO_PRIORITY,
        "provider",
        "the CPU is done before another device has received the inputs",
        "estimate: MACs at 20e9 a second and core against 0.1 ms and the inputs at 12e9 bytes a second; own "
        "measurement on a software GPU: 3.1 ms for what the CPU did in 0.02 ms",
        when=(transfer_costs_more,),
        devices=ACCELERATORS,
        forbids=_runs_there,
        subject="accelerators",
    ),
    Rule(
        "no_gpu_for_many_small_nodes",
        80,
        "provider",
        "launching a kernel for each node takes as long as the CPU's whole run",
        "estimate: 5 microseconds a launch (Modal GPU glossary, in providers/chips.toml) against MACs at 20e9 a second "
        "and core; not run on hardware",
        when=(_launches_cost_more,),
        devices=("gpu",),
        forbids=_runs_there,
    ),
    Rule(
        "no_device_for_few_operators",
        80,
        "provider",
        "this device runs less than half of the graph's operators, and each piece left to the CPU costs two copies",
        "onnxruntime documentation: troubleshooting performance (why is my model slower on GPU than on CPU); "
        "operators as probed, described or stated",
        devices=ACCELERATORS,
        forbids=_takes_too_little,
    ),
    Rule(
        "no_gpu_for_light_control_flow",
        80,
        "provider",
        "the logic of If, Loop and Scan runs on the host, and what crosses their borders is copied each time",
        "microsoft/onnxruntime#339, #16625, #11254; not run on hardware",
        when=(has_control_flow, lambda p: not is_heavy(p)),
        devices=("gpu",),
        forbids=_runs_there,
    ),
    Rule(
        "no_fixed_function_for_loops",
        80,
        "provider",
        "these devices run a graph compiled ahead, which has no loops",
        "onnxruntime-qnn documentation, model requirements (If since 2.5.0, Loop not); AMD PG338; not run on hardware",
        when=(_loops,),
        devices=("npu", "dsp", "fpga"),
        forbids=_runs_there,
    ),
    Rule(
        "no_fixed_function_for_dynamic_int8",
        80,
        "provider",
        "these devices compute with scales known ahead, and this model takes its scales anew at each run",
        "AMD PG338 (fixed scales); Cadence and TI documents in providers/chips.toml; an NPU of Qualcomm's has patterns "
        "for it (onnxruntime-qnn documentation, supported fusions); not run on hardware",
        when=(lambda p: p.graph.quantisation == "dynamic",),
        devices=("dsp", "fpga"),
        forbids=_runs_there,
    ),
    Rule(
        "no_fixed_function_for_float64",
        80,
        "provider",
        "these devices have no units for float64",
        "the adapters' element types (QNN); vendors' peaks in providers/chips.toml name none; not run on hardware",
        when=(_has_float64,),
        devices=("npu", "dsp", "fpga"),
        forbids=_runs_there,
    ),
)
