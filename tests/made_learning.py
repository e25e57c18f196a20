"""Made measurements with a known law behind them, as tasks and as records."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ort_metainfer.learning.record import Record
from ort_metainfer.learning.tasks import Tasks, table
from ort_metainfer.strategy import Strategy

CONFIGURATIONS = {"1": (0.0, 1.0), "4": (0.4, 0.3), "gpu": (3.0, 0.05)}
"""Configuration -> (fixed milliseconds, milliseconds for each unit of work): the best depends on size and device."""


def made_tasks(devices: int = 6, models: int = 12, seed: int = 0) -> Tasks:
    """Devices differ in what a launch costs, models in how much they do."""
    random = np.random.default_rng(seed)
    launch, size = random.uniform(0.2, 4.0, devices), np.exp(random.uniform(-1.0, 5.0, models))
    rows, latency_ms, words = [], [], []
    for device, model in itertools.product(range(devices), range(models)):
        for configuration, (fixed, each) in CONFIGURATIONS.items():
            rows.append(
                {
                    "model": f"m{model:02}",
                    "family": f"f{model // 2}",
                    "device": f"d{device}",
                    "hardware": f"h{device // 2}" if device < 2 else f"d{device}",
                    "kind": "gpu" if device % 2 else "cpu",
                    "configuration": configuration,
                }
            )
            latency_ms.append((fixed * launch[device] + each * size[model]) * random.uniform(0.98, 1.02))
            words.append((np.log(size[model]), configuration == "gpu", configuration == "4"))
    columns = np.array(words, dtype=np.float64)
    features = {name: columns[:, number] for number, name in enumerate(("log_size", "is_gpu", "is_4"))}
    return table("made", rows, np.array(latency_ms), features, "made for tests")


STRATEGIES = (
    Strategy(session_options={"intra_op_num_threads": 1}),
    Strategy(session_options={"intra_op_num_threads": 4}),
    Strategy(provider="OpenVINOExecutionProvider", device="CPU"),
    Strategy(session_options={"graph_optimization_level": "disable"}),
)


def gains(size: float, cores: float, odd: bool = False) -> tuple[float, ...]:
    """ln(baseline / strategy) of each of STRATEGIES; on an odd device OpenVINO loses what it gains elsewhere."""
    openvino = 0.5 if size > 18 else -0.1
    return (-0.2 * cores if size > 18 else 0.15, -0.05, -openvino if odd else openvino, -0.4)


def made_records(
    devices: Sequence[tuple[str, float]] = (("cpu:a/2c", 2.0), ("cpu:b/4c", 4.0), ("cpu:c/8c", 8.0)),
    models: int = 12,
    seed: int = 0,
    odd: bool = False,
) -> list[Record]:
    """Verdicts of every strategy for every model on every device."""
    random = np.random.default_rng(seed)
    found = []
    for (device, cores), model in itertools.product(devices, range(models)):
        size = 14.0 + 8.0 * (model + 0.5) / models
        for strategy, gain in zip(STRATEGIES, gains(size, cores, odd), strict=True):
            provider = strategy.provider or "CPUExecutionProvider"
            found.append(
                Record(
                    model=f"sha256:{model}",
                    structure=f"s{model}",
                    graph={"ln_macs": size, "ln_nodes": 4.0 + model % 3},
                    device=device,
                    kind="cpu",
                    provider=provider,
                    strategy=strategy,
                    profile={"cores": cores, "bandwidth_bytes_per_s": 1e10 * cores, "ratio/odd": 2.0 if odd else 1.0},
                    references={"default": 0.1 * cores},
                    gates={"compiles": True, "accurate": True, "pays": gain > 0.02},
                    baseline_p50_ms=10.0,
                    p50_ms=float(10.0 * np.exp(-gain)),
                    log_ratio=gain + float(random.normal(0, 0.01)),
                    rounds=20,
                    measured_at="2026-03-01T00:00:00+00:00",
                )
            )
    return found
