"""A record's problem put together again, as far as its features go: enough for the cost model to reckon with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import expm1

from ort_metainfer.hardware.profile import Feature, Profile
from ort_metainfer.learning.operator_classes import CLASSES
from ort_metainfer.learning.record import Record
from ort_metainfer.model.work import NodeWork
from ort_metainfer.problem import Device, Graph, HardwareState, Model, Policy, Problem, SessionSpec, TensorSpec

__all__ = ["problem_of", "work_of"]

CPU = "CPUExecutionProvider"

OPERATORS: Mapping[str, str] = {
    "conv_dense": "Conv",
    "conv_1x1": "Conv",
    "conv_depthwise": "Conv",
    "gemm": "MatMul",
    "attention": "com.microsoft.Attention",
    "norm": "LayerNormalization",
    "elementwise": "Add",
    "pool": "MaxPool",
    "reduce": "ReduceMean",
    "move": "Transpose",
    "shape": "Range",
    "recurrent": "LSTM",
    "quantise": "QuantizeLinear",
}
"""Class -> the operator that stands for it."""

CONVOLUTIONS = ("conv_dense", "conv_1x1", "conv_depthwise")


def problem_of(record: Record) -> Problem:
    """The problem that ``record`` was a trial of; its graph has one node a class, run as often as there are nodes."""
    work = tuple(work_of(record.graph))
    graph = _graph(record.graph)
    device = _device(record)
    cpu = device if record.provider == CPU else _cpu_beside(record)
    profile = Profile(device, dict(record.versions), tuple(_profile(record.profile)), simulated=record.simulated)
    return Problem(
        model=Model(record.model, int(_size(record.graph, "ln_weight_bytes")), path="record"),
        graph=graph,
        devices=(cpu,) if cpu is device else (cpu, device),
        policy=Policy(providers=tuple(dict.fromkeys((CPU, record.provider)))),
        baseline=SessionSpec(),
        state=HardwareState(when=0.0, window_s=0.0, others_cpu=record.others_cpu),
        profiles={record.provider: profile} if record.profile else {},
        work=work,
    )


def _size(features: Mapping[str, float], name: str) -> float:
    return max(0.0, expm1(features[name])) if name in features else 0.0


def _device(record: Record) -> Device:
    flags = tuple(name.partition("/")[2] for name in record.profile if name.startswith("isa/"))
    return Device(
        provider=record.provider,
        kind=record.kind,
        name=record.device,
        provider_device=record.strategy.device,
        features=flags,
        cores=record.profile.get("cores"),
        lasting_limit=bool(record.profile.get("limited", 0.0)),
    )


def _cpu_beside(record: Record) -> Device:
    """The processor beside an accelerator, of which a record says nothing but what a CPU provider's device shares."""
    flags = tuple(name.partition("/")[2] for name in record.profile if name.startswith("isa/"))
    return Device(provider=CPU, kind="cpu", name="", features=flags, cores=record.profile.get("cores"))


def _profile(features: Mapping[str, float]) -> Iterator[Feature]:
    for name, value in features.items():
        yield Feature(name, value, "", "probe")


def _graph(features: Mapping[str, float]) -> Graph:
    nodes = round(_size(features, "ln_nodes"))
    kinds = [name.partition("/")[2] for name, value in features.items() if name.startswith("quantisation/") and value]
    counts = {OPERATORS[name]: round(features.get(f"node_share/{_family(name)}", 0.0) * nodes) for name in OPERATORS}
    open_dims = features.get("open_dims", 0.0)
    shape = ("open", 1) if open_dims else (1,)
    return Graph(
        inputs=(TensorSpec("x", "float32", shape),),
        outputs=(TensorSpec("y", "float32", None),),
        ir_version=int(features.get("ir_version", 10)),
        opsets={"ai.onnx": int(features.get("opset", 17))},
        operators={name: count for name, count in counts.items() if count},
        node_count=nodes,
        parameter_count=int(_size(features, "ln_parameters")),
        weight_bytes=int(_size(features, "ln_weight_bytes")),
        macs=int(_size(features, "ln_macs")) or None,
        quantisation=next(iter(kinds), "none"),
    )


def _family(name: str) -> str:
    return "conv" if name in CONVOLUTIONS else name


def work_of(features: Mapping[str, float]) -> Iterator[NodeWork]:
    """One node a class of operators, run as often as the graph has nodes of it, with an even share of its work."""
    nodes, macs = _size(features, "ln_nodes"), _size(features, "ln_macs")
    moved, weights = _size(features, "ln_bytes_moved"), _size(features, "ln_weight_bytes")
    quantised = features.get("quantised_macs_share", 0.0) > 0.5
    convolutions = sum(features.get(f"macs_share/{name}", 0.0) for name in CONVOLUTIONS)
    for name in CLASSES:
        share, bytes_share = features.get(f"macs_share/{name}", 0.0), features.get(f"bytes_share/{name}", 0.0)
        count = features.get(f"node_share/{_family(name)}", 0.0) * nodes
        if name in CONVOLUTIONS:
            count *= share / convolutions if convolutions else float(name == "conv_dense")
        runs = max(1, round(count))
        if name not in OPERATORS or (count < 0.5 and not share and not bytes_share):
            continue
        own = int(weights * share / runs)
        activations = max(0, int(moved * bytes_share / runs) - own)
        yield _node(name, runs, int(macs * share / runs), activations, own, quantised)


def _node(name: str, runs: int, macs: int, activations: int, weights: int, quantised: bool) -> NodeWork:
    """Half of the activations are read, half written; the channels tell a convolution's kind."""
    elements = max(1, activations // 8)
    summed = max(2, macs // elements) if name == "conv_1x1" else 1 if name == "conv_depthwise" else 2
    return NodeWork(
        name=name,
        operator=OPERATORS[name],
        dtype="float32",
        output=(elements,),
        macs=macs or None,
        reads={f"{name} in": activations // 2},
        weights={f"{name} weights": weights} if weights else {},
        writes={f"{name} out": activations - activations // 2},
        channels=(summed, 64) if OPERATORS[name] == "Conv" else (64, 64) if macs else None,
        runs=runs,
        quantised=quantised and bool(macs),
    )
