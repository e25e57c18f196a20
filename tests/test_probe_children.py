"""The probe on real providers, in real child processes."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from pathlib import Path

import pytest

from ort_metainfer.hardware.devices import CPU_PROVIDER, cpu_device
from ort_metainfer.hardware.micro_benchmarks import MicroBenchmark, benchmarks_for, named
from ort_metainfer.hardware.opening import strategy_for
from ort_metainfer.hardware.probe import measure, probe_device
from ort_metainfer.hardware.profile import Profile
from ort_metainfer.problem import Device
from ort_metainfer.providers import get_provider
from ort_metainfer.trials.faults import VARIABLE

pytestmark = pytest.mark.slow

SWIFTSHADER_AT_START = os.environ.get("ORT_METAINFER_SWIFTSHADER")
"""Read before the isolation of every test removes the variable."""

POINTS = [named(name) for name in ("empty/float32/1", "matmul/float32/512", "conv3x3/float32/64x56")]


GRACE_S = 3.0
"""What a loaded machine may take to end children that are killed at the deadline."""


def soon(seconds: float = 30.0) -> float:
    return time.monotonic() + seconds


def test_a_probe_of_the_cpu_keeps_its_deadline_and_gives_features() -> None:
    said: list[str] = []
    deadline = soon(12)
    profile = probe_device(cpu_device(), deadline, said.append)
    assert time.monotonic() < deadline + GRACE_S
    assert profile["dispatch_ms"].unit == "ms"
    assert profile["peak_macs_per_s/float32"].value > 1e6
    assert profile["cache_bandwidth_bytes_per_s"].value > 1e6
    assert profile.operators["Conv"] is True
    assert profile.versions["onnxruntime"]
    assert profile.before is not None
    assert profile.after is not None
    assert profile.measured_at.endswith("+00:00")
    assert 0 < profile.seconds < 12 + GRACE_S
    assert any("matmul/float32/512" in line for line in said)
    assert {name for name, _ in profile.values()} <= {feature.name for feature in profile.features}


def test_a_probe_with_next_to_no_time_ends_in_time() -> None:
    deadline = soon(3)
    profile = probe_device(cpu_device(), deadline)
    assert time.monotonic() < deadline + GRACE_S
    known = {point.name for point in benchmarks_for(CPU_PROVIDER, "cpu", lossy_default=False)}
    assert {point.name for point in profile.measurements} <= known


def test_a_profile_survives_the_way_through_json() -> None:
    profile = probe_device(cpu_device(), soon(4))
    assert Profile.from_dict(json.loads(json.dumps(profile.as_dict()))) == profile


def test_a_type_that_the_cpu_provider_lacks_is_refused_and_gives_no_feature() -> None:
    found = measure(cpu_device(), [*POINTS[:1], named("matmul/bfloat16/512")], soon(), print)
    refused = found.measurements()[1]
    assert "NOT_IMPLEMENTED" in str(refused.refusal)
    assert refused.taken is False


@pytest.mark.parametrize("fault", ["opening:{}:crash", "checking:{}:crash", "timing:{}:crash", "checking:{}:hang"])
def test_a_point_that_kills_or_hangs_its_process_costs_only_itself(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, fault.format("matmul/float32/512"))
    found = measure(cpu_device(), POINTS, soon(12), print)
    empty, matmul, conv = found.measurements()
    assert empty.p50_ms is not None
    assert conv.p50_ms is not None
    assert matmul.p50_ms is None
    assert ("its process died" if fault.endswith("crash") else "did not end within") in str(matmul.refusal)


@pytest.mark.skipif(importlib.util.find_spec("nxrt_ep_cpu") is None, reason="nxrt-ep-cpu is not installed")
def test_what_a_plug_in_leaves_to_the_cpu_is_not_passed_off_as_its_own() -> None:
    device = get_provider("cpu_ep").devices()[0]
    found = measure(device, [named("matmul/float32/64"), named("lstm/float32/32x256")], soon(), print)
    matmul, lstm = found.measurements()
    assert matmul.taken is True
    assert matmul.p50_ms is not None
    assert (lstm.taken, lstm.p50_ms) == (False, None)


def test_float32_is_asked_for_where_a_provider_would_compute_in_less() -> None:
    provider = get_provider("OpenVINO")
    exact = strategy_for(provider, "CPU", named("matmul/float32/512"))
    left_alone = strategy_for(provider, "CPU", named("matmul/float32/512@default"))
    half = strategy_for(provider, "CPU", named("matmul/float16/512"))
    assert exact.provider_options["INFERENCE_PRECISION_HINT"] == "f32"
    assert not provider.is_lossy(exact)
    assert not left_alone.provider_options
    assert not half.provider_options


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime_qnn") is None, reason="onnxruntime-qnn is not installed")
def test_a_simulator_that_takes_seconds_a_run_shows_the_first_points_all_flagged() -> None:
    device = next(iter(get_provider("QNN").devices()))
    if not device.emulated:
        pytest.skip(f"{device} is no simulator")
    deadline = soon(15)
    profile = probe_device(device, deadline)
    assert time.monotonic() < deadline + GRACE_S
    assert "dispatch_ms" in profile
    assert list(profile.values()) == []


def copies() -> list[MicroBenchmark]:
    return [named(f"{kind}/float32/{size}") for kind in ("to_device", "from_device") for size in (4096, 4194304)]


@pytest.fixture
def software_gpu(monkeypatch: pytest.MonkeyPatch) -> Device:
    """WebGPU on SwiftShader; children inherit the environment, this process never loads it."""
    if importlib.util.find_spec("onnxruntime_ep_webgpu") is None:
        pytest.skip("onnxruntime-ep-webgpu is not installed")
    if not SWIFTSHADER_AT_START:
        pytest.skip("ORT_METAINFER_SWIFTSHADER is unset; name the folder with vk_swiftshader_icd.json there")
    folder = Path(SWIFTSHADER_AT_START)
    for name, value in {
        "VK_DRIVER_FILES": str(folder / "vk_swiftshader_icd.json"),
        "LD_LIBRARY_PATH": str(folder),
        "XDG_RUNTIME_DIR": "/tmp",
        "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "1",
    }.items():
        monkeypatch.setenv(name, value)
    return Device("WebGpuExecutionProvider", "gpu", "SwiftShader", emulated=True)


def test_copies_to_and_from_a_gpu_s_memory_are_timed(software_gpu: Device) -> None:
    found = measure(software_gpu, copies(), soon(), print)
    points = found.measurements()
    assert [point.name for point in points] == [point.name for point in copies()]
    assert all(point.p50_ms is not None and point.rate is not None for point in points), points


def test_a_copy_to_a_device_that_shares_the_host_s_memory_is_refused() -> None:
    found = measure(cpu_device(), copies()[:1], soon(), print)
    assert "host's memory" in str(found.measurements()[0].refusal)
