"""Problems of the zoo's recorded graphs: each on every described chip, on real processors, under several policies."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ort_metainfer.problem import Device, Graph, HardwareState, Model, Policy, Problem, SessionSpec
from ort_metainfer.providers.chips import all_chips
from ort_metainfer.providers.simulated import device_of, profile_of
from tests.made_problems import (
    COREML_NPU,
    CPU,
    CUDA_GPU,
    DIRECTML_GPU,
    MIGRAPHX_GPU,
    NXRT_CPU,
    OPENVINO_AUTO,
    OPENVINO_CPU,
    OPENVINO_NPU,
    QNN_NPU,
    TENSORRT_GPU,
    VITISAI_NPU,
    WEBGPU_GPU,
    XNNPACK_CPU,
    cpu_profile,
    device,
)

__all__ = ["REAL_MACHINES", "SIMULATED_MACHINES", "zoo_graphs", "zoo_problem", "zoo_problems"]

VNNI = device(cores=2.0, features=("avx2", "avx512_vnni"))
ARM = device(cores=4.0, features=("asimd", "bf16", "dotprod", "i8mm"))
QUOTA = device(cores=2.5, lasting_limit=True, features=("avx2",))

REAL_MACHINES: Mapping[str, tuple[Device, ...]] = {
    "x86": (VNNI,),
    "x86 with OpenVINO": (VNNI, OPENVINO_CPU, OPENVINO_AUTO, OPENVINO_NPU),
    "container": (QUOTA, NXRT_CPU),
    "Arm": (ARM, XNNPACK_CPU),
    "NVIDIA": (VNNI, TENSORRT_GPU, CUDA_GPU),
    "AMD": (VNNI, MIGRAPHX_GPU, VITISAI_NPU),
    "Windows": (VNNI, DIRECTML_GPU, WEBGPU_GPU),
    "Snapdragon": (ARM, QNN_NPU),
    "Apple": (ARM, COREML_NPU),
}
"""Devices as adapters give them; nothing of it need be here, for nothing is run."""

SIMULATED_MACHINES: Mapping[str, tuple[Device, ...]] = {
    name: (VNNI, device_of(chip)) for name, chip in all_chips().items() if chip.kind != "cpu"
}

POLICIES: tuple[dict[str, Any], ...] = (
    {"accuracy": "strict"},
    {"accuracy": "strict", "objective": "pipeline"},
    {"accuracy": "strict", "objective": "throughput", "callers": 2},
    {"accuracy": "strict", "objective": "tail"},
    {"accuracy": "strict", "objective": "memory"},
    {"accuracy": "balanced"},
    {"accuracy": "fast", "inputs_are_real": True},
    {"accuracy": "fast", "inputs_are_real": True, "open": True},
)


ENDS = ({"accuracy": "strict"}, {"accuracy": "fast", "inputs_are_real": True})
"""The policies that differ most in what they allow."""


@cache
def zoo_graphs() -> Mapping[str, tuple[Graph, Mapping[str, tuple[int, ...]], int | None]]:
    """Model -> its features, the shapes of a real input, and the multiply-accumulates of a run at these."""
    file = Path(__file__).with_name("recorded") / "zoo_features.json"
    plain = json.loads(file.read_text(encoding="utf-8"))
    return {
        name: (
            Graph.from_dict(entry["graph"]),
            {name: tuple(shape) for name, shape in entry["shapes"].items()},
            entry["macs"],
        )
        for name, entry in plain.items()
    }


def zoo_problem(
    model: str,
    devices: tuple[Device, ...],
    *,
    accuracy: Any = "strict",
    objective: Any = "latency",
    callers: int = 1,
    inputs_are_real: bool = False,
    open: bool = False,
) -> Problem:
    """One recorded graph on one machine; with ``open`` shapes as the model declares them, else those of an input."""
    graph, shapes, macs = zoo_graphs()[model]
    profiles = dict(cpu_profile(1e11, 2e10))
    profiles |= {d.provider: profile_of(all_chips()[str(d.provider_device)]) for d in devices if d.simulated}
    names = tuple(dict.fromkeys((CPU, *(d.provider for d in devices))))
    return Problem(
        model=Model("sha256:" + "0" * 64, graph.weight_bytes, path="/made/model.onnx"),
        graph=graph if open else replace(graph, macs=macs),
        devices=devices,
        policy=Policy(accuracy, objective, names, callers=callers),
        baseline=SessionSpec(),
        state=HardwareState(when=0.0, window_s=1.0, others_cpu=0.0),
        shapes={} if open else shapes,
        inputs_are_real=inputs_are_real,
        profiles=profiles,
    )


def zoo_problems() -> Iterator[Problem]:
    """Every recorded graph on each kind of machine under each policy, and on each described chip under the two ends.

    What else a policy may say speaks of the processor alone, of which there is one beside every chip.
    """
    for model, devices, policy in itertools.product(zoo_graphs(), REAL_MACHINES.values(), POLICIES):
        yield zoo_problem(model, devices, **policy)
    for model, devices, policy in itertools.product(zoo_graphs(), SIMULATED_MACHINES.values(), ENDS):
        yield zoo_problem(model, devices, **policy)
