"""Problems made up for tests: one keyword for each thing a decider may look at."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

from ort_metainfer.decision import Gate, Timing, Trial
from ort_metainfer.hardware.profile import Feature, Profile
from ort_metainfer.model.work import NodeWork
from ort_metainfer.problem import Device, Graph, HardwareState, Model, Policy, Problem, SessionSpec, TensorSpec
from ort_metainfer.strategy import Strategy

CPU = "CPUExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
CUDA = "CUDAExecutionProvider"
NXRT = "cpu_ep"
QNN = "QNNExecutionProvider"

RESNET = {"Conv": 53, "Relu": 49, "Add": 16, "MatMul": 1}
TRANSFORMER = {"MatMul": 24, "Add": 32, "LayerNormalization": 7, "Softmax": 3}
GELU_TRANSFORMER = {**TRANSFORMER, "Erf": 6, "Shape": 4}
SQUEEZENET = {"Conv": 26, "Concat": 8, "Relu": 26}
LSTM = {"LSTM": 2, "Conv": 4, "Gemm": 1}
GATED = {"If": 2, "Conv": 5, "LSTM": 1}
SMALL_MLP = {"MatMul": 3, "Add": 3, "Relu": 2}

FIXED_IMAGE = (TensorSpec("x", "float32", (1, 3, 224, 224)),)
DYNAMIC_IMAGE = (TensorSpec("x", "float32", ("N", 3, "H", "W")),)
NAMELESS_IMAGE = (TensorSpec("x", "float32", ("?", 3, "?", "?")),)
TOKENS = (TensorSpec("ids", "int64", ("batch", "tokens")), TensorSpec("mask", "int64", ("batch", "tokens")))


def is_lossy(strategy: Strategy) -> bool:
    """Stands for the adapters' answer: OpenVINO is exact only with the f32 hint, CUDA only without TF32."""
    if strategy.provider == OPENVINO:
        return strategy.provider_options.get("INFERENCE_PRECISION_HINT") != "f32"
    return strategy.provider == CUDA and strategy.provider_options.get("use_tf32") != "0"


def device(provider: str = CPU, kind: str = "cpu", **more: Any) -> Device:
    return Device(provider=provider, kind=kind, name=f"a {kind}", **more)


OPENVINO_CPU = device(OPENVINO, provider_device="CPU", features=("avx512_bf16",))
OPENVINO_AUTO = device(OPENVINO, provider_device="AUTO")
CUDA_GPU = device(CUDA, "gpu")
NXRT_CPU = device(NXRT)
QNN_NPU = device(QNN, "npu", provider_device="htp")


XNNPACK_CPU = device("XnnpackExecutionProvider")
TENSORRT_GPU = device("TensorrtExecutionProvider", "gpu")
MIGRAPHX_GPU = device("MIGraphXExecutionProvider", "gpu")
WEBGPU_GPU = device("WebGpuExecutionProvider", "gpu")
DIRECTML_GPU = device("DmlExecutionProvider", "gpu")
COREML_NPU = device("CoreMLExecutionProvider", "npu")
CANN_NPU = device("CANNExecutionProvider", "npu")
VITISAI_NPU = device("VitisAIExecutionProvider", "npu")
OPENVINO_NPU = device(OPENVINO, "npu", provider_device="NPU")


def chip(name: str) -> Device:
    """A described chip as the simulated provider offers it."""
    from ort_metainfer.providers.chips import get_chip
    from ort_metainfer.providers.simulated import device_of

    return device_of(get_chip(name))


def cpu_profile(macs_per_s: float, bytes_per_s: float) -> Mapping[str, Profile]:
    """A probed CPU of that peak and bandwidth."""
    features = (
        Feature("peak_macs_per_s/float32", macs_per_s, "MAC/s", "derived"),
        Feature("bandwidth_bytes_per_s", bytes_per_s, "B/s", "derived"),
    )
    return {CPU: Profile(device(), {}, features)}


def product(rows: int, inner: int, columns: int) -> NodeWork:
    """The work of one float32 matrix product with constant weights."""
    return NodeWork(
        "product",
        "MatMul",
        "float32",
        (rows, columns),
        macs=rows * inner * columns,
        reads={"x": 4 * rows * inner},
        weights={"w": 4 * inner * columns},
        writes={"y": 4 * rows * columns},
        channels=(inner, columns),
    )


def problem(
    operators: Mapping[str, int] = RESNET,
    *,
    macs: int | None = 1_000_000_000,
    weight_bytes: int = 25_000_000,
    quantisation: str = "none",
    blockers: tuple[str, ...] = (),
    inputs: tuple[TensorSpec, ...] = FIXED_IMAGE,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    cores: float | None = 4.0,
    lasting_limit: bool = False,
    features: tuple[str, ...] = (),
    others: tuple[Device, ...] = (),
    allowed: tuple[str, ...] | None = None,
    accuracy: Any = "strict",
    objective: Any = "latency",
    callers: int = 1,
    pinned: Mapping[str, str] | None = None,
    callers_providers: tuple[tuple[str, Mapping[str, str]], ...] = (),
    others_cpu: float = 0.0,
    inputs_are_real: bool = False,
    opset: int = 17,
    profiles: Mapping[str, Profile] | None = None,
    work: tuple[NodeWork, ...] = (),
) -> Problem:
    """A ResNet on a quiet machine of four cores with the CPU provider only, unless said otherwise."""
    graph = Graph(
        inputs=inputs,
        outputs=(TensorSpec("y", "float32", None),),
        ir_version=8,
        opsets={"ai.onnx": opset},
        operators=dict(operators),
        node_count=sum(operators.values()),
        parameter_count=weight_bytes // 4,
        weight_bytes=weight_bytes,
        macs=macs,
        quantisation=quantisation,
        blockers=blockers,
    )
    cpu = device(cores=cores, lasting_limit=lasting_limit, features=features)
    names = (CPU, *dict.fromkeys(other.provider for other in others))
    return Problem(
        model=Model("sha256:" + "0" * 64, weight_bytes, path="/made/model.onnx"),
        graph=graph,
        devices=(cpu, *others),
        policy=Policy(accuracy, objective, allowed or names, dict(pinned or {}), callers),
        baseline=SessionSpec(providers=callers_providers),
        state=HardwareState(when=0.0, window_s=1.0, others_cpu=others_cpu),
        shapes=dict(shapes or {}),
        inputs_are_real=inputs_are_real,
        profiles=dict(profiles or {}),
        work=work,
    )


KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"macs": 2_000_000_000, "inputs": DYNAMIC_IMAGE, "shapes": {"x": (1, 3, 320, 640)}},
    {"inputs": NAMELESS_IMAGE, "shapes": {"x": (1, 3, 320, 640)}},
    {"operators": TRANSFORMER, "inputs": TOKENS, "shapes": {"ids": (1, 128), "mask": (1, 128)}},
    {"operators": TRANSFORMER, "quantisation": "dynamic"},
    {"operators": GELU_TRANSFORMER},
    {"operators": RESNET, "quantisation": "qdq"},
    {"operators": SQUEEZENET},
    {"operators": LSTM, "macs": 500_000, "weight_bytes": 2_000_000},
    {"operators": GATED, "macs": None, "weight_bytes": 2_300_000},
    {"operators": SMALL_MLP, "macs": 4_000, "weight_bytes": 19_000},
    {"operators": SMALL_MLP, "macs": None, "weight_bytes": 19_000},
    {"operators": {"EPContext": 1}, "macs": None, "blockers": ("EPContext",)},
)
MACHINES: tuple[dict[str, Any], ...] = (
    {},
    {"cores": 1.0},
    {"cores": None},
    {"cores": 2.5, "lasting_limit": True},
    {"cores": 2.0, "others": (OPENVINO_CPU, OPENVINO_AUTO)},
    {"cores": 16.0, "others": (OPENVINO_CPU, CUDA_GPU, NXRT_CPU)},
    {"others_cpu": 1.0, "others": (OPENVINO_CPU,)},
    {"features": ("avx2", "avx512_vnni"), "others": (QNN_NPU,)},
)
POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"objective": "pipeline"},
    {"objective": "throughput", "callers": 2},
    {"objective": "tail"},
    {"objective": "memory"},
    {"accuracy": "balanced"},
    {"accuracy": "fast", "inputs_are_real": True},
    {"allowed": (CPU,)},
    {"pinned": {"intra_op_num_threads": "1"}},
    {"pinned": {"session.intra_op.allow_spinning": "1", "graph_optimization_level": "ORT_ENABLE_ALL"}},
    {"pinned": {"dim:N": "1", "execution_mode": "ORT_SEQUENTIAL"}, "objective": "pipeline"},
    {"pinned": {f"{OPENVINO}.device_type": "GPU", "use_per_session_threads": "False"}},
)


def grid() -> Iterator[Problem]:
    """Every kind of graph on every machine under every policy."""
    for kind, machine, policy in itertools.product(KINDS, MACHINES, POLICIES):
        yield problem(**{**kind, **machine, **policy})


def some_problems() -> Iterator[Problem]:
    """Every fifth problem of the grid: five divides no axis of it, so each value of each meets many of the others."""
    return itertools.islice(grid(), 0, None, 5)


PINS: Mapping[str, str] = {
    "intra_op_num_threads": "2",
    "inter_op_num_threads": "2",
    "execution_mode": "ORT_PARALLEL",
    "graph_optimization_level": "ORT_ENABLE_BASIC",
    "enable_mem_pattern": "False",
    "enable_cpu_mem_arena": "False",
    "session.intra_op.allow_spinning": "0",
    "session.intra_op.spin_duration_us": "10",
    "session.force_spinning_stop": "0",
    "session.dynamic_block_base": "2",
    "session.graph_optimizations_loop_level": "0",
    "session.intra_op_thread_affinities": "1",
    "dim:N": "1",
    "dim:tokens": "128",
}


def random_problem(seed: int) -> Problem:
    """Any graph, machine and policy with up to five pinned options."""
    dice = random.Random(seed)
    pins = dice.sample(sorted(PINS), dice.randint(0, 5))
    chosen = {**dice.choice(KINDS), **dice.choice(MACHINES), **dice.choice(POLICIES)}
    return problem(**{**chosen, "pinned": {name: PINS[name] for name in pins}})


def timing(speedup: float, spread: float = 0.01) -> Timing:
    return Timing(
        rounds=9,
        baseline_p50_ms=10.0,
        baseline_p90_ms=11.0,
        p50_ms=10.0 / speedup,
        p90_ms=11.0 / speedup,
        speedup=speedup,
        speedup_low=speedup * (1 - spread),
        speedup_high=speedup * (1 + spread),
        band=1.01,
    )


def trial(strategy: Strategy, speedup: float | None = None, *, failed: str | None = None, by: str = "rules") -> Trial:
    """A trial that was timed, or one whose gate ``failed`` (``compiles``, ``accurate``), or that crashed."""
    if failed == "crash":
        return Trial(strategy, by, failure="its process died; nothing to do")
    if failed is not None:
        return Trial(strategy, by, gates=(Gate(failed, False, f"{failed}: no"),))  # type: ignore[arg-type]
    gates = (Gate("compiles", True, "yes"), Gate("accurate", True, "yes"))
    return Trial(strategy, by, gates=gates, timing=None if speedup is None else timing(speedup))
