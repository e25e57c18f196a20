"""Made models for the cost model's tests: chains whose latency can be added up by hand, and described chips."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import expm1, log
from typing import Any

from ort_metainfer.deciders.cost_quality import rank_correlation
from ort_metainfer.deciders.cost_reckoning import Reckoning
from ort_metainfer.hardware.profile import Feature, Measurement, Profile
from ort_metainfer.hardware.simulation import PRECISIONS, estimate
from ort_metainfer.learning.features import device_features, graph_features
from ort_metainfer.learning.record import Record
from ort_metainfer.model.work import NodeWork
from ort_metainfer.problem import Device, Problem, TensorSpec
from ort_metainfer.providers.chips import Chip, all_chips
from ort_metainfer.providers.simulated import SIMULATED, device_of, profile_of
from ort_metainfer.strategy import Strategy
from tests.made_problems import CPU, problem

PEAK, BANDWIDTH, LAUNCH_S, CALL_S = 1e11, 1e10, 1e-6, 5e-6


def features(**more: float) -> tuple[Feature, ...]:
    values = {
        "peak_macs_per_s/float32": PEAK,
        "bandwidth_bytes_per_s": BANDWIDTH,
        "launch_ms": LAUNCH_S * 1000,
        "dispatch_ms": CALL_S * 1000,
        **more,
    }
    return tuple(Feature(name.replace("__", "/"), value, "", "probe") for name, value in values.items())


def probed(device: Device, points: Sequence[Measurement] = (), **more: float) -> Profile:
    return Profile(device, {}, features(**more), tuple(points))


def product(before: str, after: str, macs: int, weights: int = 0, size: int = 4096, **more: Any) -> NodeWork:
    reads, writes, held = {before: size}, {after: size}, {f"w {after}": weights}
    node = NodeWork(after, "MatMul", "float32", (size // 4,), macs, reads, held, writes, channels=(64, 64))
    return replace(node, **more)


def adding(before: str, after: str, size: int) -> NodeWork:
    return NodeWork(after, "Add", "float32", (size // 4,), None, {before: size}, {}, {after: size})


def chain(*nodes: tuple[str, int, int]) -> tuple[NodeWork, ...]:
    """Nodes behind one another, from (operator, MACs or 0, bytes of its result)."""
    names = ["x", *(f"v{index}" for index in range(len(nodes) - 1)), "y"]
    made = []
    for (operator, macs, size), (before, after) in zip(nodes, pairwise(names), strict=True):
        node = product(before, after, macs, macs // 64, size) if macs else adding(before, after, size)
        made.append(replace(node, operator=operator))
    return tuple(made)


def case(work: Sequence[NodeWork], profiles: Mapping[str, Profile] | None = None, **more: Any) -> Problem:
    made = problem(inputs=(TensorSpec("x", "float32", (1, 64)),), **more)
    return replace(made, work=tuple(work), profiles=profiles or {CPU: probed(made.cpu)})


def networks() -> dict[str, tuple[NodeWork, ...]]:
    """Sixteen made networks: few and many layers, light and heavy, some bound by memory."""
    made = {}
    for layers in (4, 40):
        for macs in (1_000_000, 30_000_000, 600_000_000):
            for size in (50_000, 2_000_000):
                conv = [("Conv", macs, size), ("Relu", 0, size)] * layers
                made[f"conv {layers} {macs} {size}"] = chain(*conv)
        made[f"matmul {layers}"] = chain(*[("MatMul", 20_000_000, 400_000), ("Add", 0, 400_000)] * layers)
        made[f"softmax {layers}"] = chain(*[("MatMul", 5_000_000, 900_000), ("Softmax", 0, 900_000)] * layers)
    return made


def described_chips() -> tuple[Chip, ...]:
    return tuple(chip for chip in all_chips().values() if chip.kind in ("gpu", "npu") and chip.host is not None)


def on_chip(chip: Chip, work: Sequence[NodeWork]) -> Problem:
    """A made network beside a described processor, with a described chip to choose."""
    host = all_chips()[chip.host or ""]
    cpu = replace(device_of(host), provider=CPU, provider_device=None, simulated=False, cores=8.0)
    made = case(work, {CPU: replace(profile_of(host), device=cpu)}, allowed=(CPU, SIMULATED))
    return replace(made, devices=(cpu, device_of(chip)))


def record(model: str, strategy: Strategy, speedup: float, **more: Any) -> Record:
    """A verdict on one strategy for a made model, mostly convolutions, on a made processor."""
    graph = {"ln_macs": 20.7, "ln_nodes": 4.6, "ln_weight_bytes": 17.0, "macs_share/conv_dense": 1.0}
    graph |= {
        "node_share/conv": 0.5,
        "node_share/elementwise": 0.5,
        "ln_bytes_moved": 16.0,
        "bytes_share/conv_dense": 1,
    }
    fields: dict[str, Any] = {
        "model": f"sha256:{model}",
        "structure": model,
        "graph": graph,
        "device": "a cpu",
        "kind": "cpu",
        "provider": strategy.provider or CPU,
        "profile": {"cores": 4.0},
        "baseline_p50_ms": 10.0,
    }
    return Record(strategy=strategy, log_ratio=log(speedup), **{**fields, **more})


def simulated_records(chips: Sequence[Chip] | None = None) -> Iterator[Record]:
    """What the analytic model of described chips says of every made network, chip and precision, as records."""
    for chip in chips or described_chips():
        host = all_chips()[chip.host or ""]
        for name, work in networks().items():
            base = estimate(host, host, work, ["y"]).p50_ms
            for precision in PRECISIONS:
                p50 = estimate(chip, host, work, ["y"], precision=precision).p50_ms
                options = {} if precision == "as is" else {"precision": precision}
                given = on_chip(chip, work)
                yield Record(
                    model=f"sha256:{name}",
                    structure=name,
                    graph=graph_features(given.graph, work),
                    device=str(device_of(chip)),
                    kind=chip.kind,
                    provider=SIMULATED,
                    strategy=Strategy(provider=SIMULATED, device=chip.name, provider_options=options),
                    profile=device_features(device_of(chip), profile_of(chip)),
                    gates={"compiles": True, "accurate": True},
                    baseline_p50_ms=base,
                    p50_ms=p50,
                    log_ratio=log(base / p50),
                    simulated=True,
                )


def against_described_chips(chips: Sequence[Chip]) -> tuple[list[float], list[float]]:
    """Errors of the latency reckoned for each made network, chip and precision, and rank correlations over precisions
    and chips of one network beside the same processor."""
    errors: list[float] = []
    by_network: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for chip in chips:
        host = all_chips()[chip.host or ""]
        for name, work in networks().items():
            reckoning = Reckoning(on_chip(chip, work))
            base = estimate(host, host, work, ["y"]).p50_ms
            for precision in PRECISIONS:
                options = {} if precision == "as is" else {"precision": precision}
                strategy = Strategy(provider=SIMULATED, device=chip.name, provider_options=options)
                expected = reckoning.expected(strategy)
                assert expected is not None
                true = log(base / estimate(chip, host, work, ["y"], precision=precision).p50_ms)
                errors.append(abs(expm1(true - expected.log_ratio)))
                by_network.setdefault((name, host.name), []).append((true, expected.log_ratio))
    found = [rank_correlation(pairs) for pairs in by_network.values() if len(pairs) > 4]
    return errors, [correlation for correlation in found if correlation is not None]
