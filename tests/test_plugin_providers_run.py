"""Plug-in providers run for real, in processes of their own: results against the CPU provider's, nodes counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ort_metainfer.decision import Proposal
from ort_metainfer.problem import SessionSpec
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.client import ChildTrialHost
from ort_metainfer.trials.task import Setup, Thresholds
from tests import plugin_models

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
SWIFTSHADER = os.environ.get("ORT_METAINFER_SWIFTSHADER")
"""A folder with SwiftShader and a Vulkan loader; read before the environment is cleared for each test."""

QNN, WEBGPU, GGML = "QNNExecutionProvider", "WebGpuExecutionProvider", "ggml"
TIMEOUT_S = 170


def needs(distribution: str) -> None:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed; run: pip install --no-deps {distribution}")


def child(command: list[str], **environment: str) -> str:
    """The last line that a Python process of this checkout prints."""
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def run(model: Path, provider: str, environment: dict[str, str] | None = None, **options: str) -> dict[str, Any]:
    """Run a model through its adapter, see tests/provider_run.py."""
    strategy = json.dumps(Strategy(provider=provider, provider_options=options).as_dict())
    line = child([str(ROOT / "tests" / "provider_run.py"), str(model), strategy], **(environment or {}))
    report: dict[str, Any] = json.loads(line)
    assert "refused" not in report, report
    return report


def takes_all(report: dict[str, Any], ep_name: str) -> bool:
    return set(report["nodes"]) == {ep_name} and report["nodes"][ep_name] > 0


# ---- QNN: the NPU's simulator ---------------------------------------------------------------------------------------


@pytest.fixture
def convolutions(tmp_path: Path) -> Path:
    return plugin_models.convolutions(tmp_path / "convolutions.onnx")


def test_qnns_simulator_takes_a_network_and_keeps_its_results(convolutions: Path) -> None:
    needs("onnxruntime-qnn")
    report = run(convolutions, QNN)
    assert takes_all(report, QNN), report
    assert report["error"] < 1e-4 and report["error_after_a_change"] < 1e-4
    assert (report["kinds"], report["devices"]) == (["npu"], ["htp"])
    if sys.platform == "linux":
        assert report["emulated"] == [True]


def test_qnn_in_float16_is_another_result_and_is_called_lossy(convolutions: Path) -> None:
    """What hardware does by default, the simulator does where the chip is named."""
    needs("onnxruntime-qnn")
    report = run(convolutions, QNN, enable_htp_fp16_precision="1", soc_model="69")
    assert takes_all(report, QNN), report
    assert 1e-4 < report["error"] < 1e-2
    assert report["lossy"] is True


def test_qnn_takes_the_values_it_is_said_to_take(convolutions: Path) -> None:
    needs("onnxruntime-qnn")
    asked = {
        "htp_performance_mode": "extreme_power_saver",
        "htp_graph_finalization_optimization_mode": "3",
        "vtcm_mb": "4",
        "htp_arch": "73",
        "offload_graph_io_quantization": "0",
        "qnn_context_priority": "high",
        "rpc_control_latency": "100",
        "extended_udma": "0",
        "enable_htp_fp16_precision": "0",
    }
    assert takes_all(run(convolutions, QNN, **asked), QNN)


def test_qnn_takes_nothing_of_open_shapes_and_nothing_asked_for_by_name(tmp_path: Path, convolutions: Path) -> None:
    """Why a graph must be static for it, why it is attached by its devices, and why nodes are counted."""
    needs("onnxruntime-qnn")
    dynamic = run(plugin_models.convolutions(tmp_path / "dynamic.onnx", batch="N"), QNN)
    assert dynamic["providers"][0] == QNN
    assert QNN not in dynamic["nodes"]
    code = (
        "import onnxruntime, onnxruntime_qnn\n"
        f"onnxruntime.register_execution_provider_library({QNN!r}, onnxruntime_qnn.get_library_path())\n"
        f"asked = [({QNN!r}, {{'backend_type': 'htp'}})]\n"
        f"session = onnxruntime.InferenceSession({str(convolutions)!r}, providers=asked)\n"
        "print(','.join(session.get_providers()))"
    )
    assert child(["-c", code]) == "CPUExecutionProvider"


# ---- WebGPU on a software rasteriser --------------------------------------------------------------------------------


@pytest.fixture
def rasteriser(tmp_path: Path) -> dict[str, str]:
    """Environment of a process that sees SwiftShader."""
    needs("onnxruntime-ep-webgpu")
    if not SWIFTSHADER:
        pytest.skip("ORT_METAINFER_SWIFTSHADER names no folder with libvk_swiftshader.so and libvulkan.so.1")
    (tmp_path / "runtime").mkdir(mode=0o700)
    return {
        "VK_DRIVER_FILES": f"{SWIFTSHADER}/vk_swiftshader_icd.json",
        "LD_LIBRARY_PATH": SWIFTSHADER,
        "XDG_RUNTIME_DIR": str(tmp_path / "runtime"),
        "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "1",
    }


def test_webgpus_adapter_keeps_the_contract_where_there_is_an_adapter(rasteriser: dict[str, str]) -> None:
    code = (
        "from ort_metainfer.providers.webgpu import WebGpuProvider\n"
        "from tests.provider_conformance import check_adapter\n"
        "assert WebGpuProvider().availability().emulated\n"
        "check_adapter(WebGpuProvider())\n"
        "print(sorted(WebGpuProvider().versions()))"
    )
    assert child(["-c", code], **rasteriser) == "['graphics driver', 'onnxruntime-ep-webgpu']"


def test_webgpu_takes_a_real_model_and_keeps_its_results(
    zoo_model: Callable[[str], Path], rasteriser: dict[str, str]
) -> None:
    report = run(zoo_model("ppocr_cls"), WEBGPU, rasteriser)
    assert report["nodes"][WEBGPU] > 100
    assert report["error"] < 1e-5 and report["error_after_a_change"] < 1e-5
    assert (report["kinds"], report["emulated"]) == (["gpu"], [True])


def test_webgpu_is_wrong_in_its_own_layout_and_right_in_the_one_that_is_asked_for(
    tmp_path: Path, rasteriser: dict[str, str]
) -> None:
    """Should the first half fail, the provider was mended: ask for its own layout again."""
    model = plugin_models.odd_convolution(tmp_path / "odd.onnx")
    wrong, right = run(model, WEBGPU, rasteriser, preferredLayout="NHWC"), run(model, WEBGPU, rasteriser)
    assert (wrong["lossy"], right["lossy"]) == (True, False)
    assert wrong["error"] > 0.1
    assert right["error"] < 1e-5
    assert wrong["nodes"][WEBGPU] and right["nodes"][WEBGPU]


def test_webgpu_takes_the_values_it_is_said_to_take(tmp_path: Path, rasteriser: dict[str, str]) -> None:
    asked = {
        "powerPreference": "low-power",
        "dawnBackendType": "Vulkan",
        "storageBufferCacheMode": "lazyRelease",
        "uniformBufferCacheMode": "lazyRelease",
        "queryResolveBufferCacheMode": "simple",
        "defaultBufferCacheMode": "disabled",
        "enableInt64": "1",
        "validationMode": "full",
        "enableRobustness": "1",
        "maxNumPendingDispatches": "64",
    }
    report = run(plugin_models.perceptron(tmp_path / "perceptron.onnx"), WEBGPU, rasteriser, **asked)
    assert report["error"] < 1e-5 and report["nodes"][WEBGPU]


def test_copies_to_and_from_webgpu_are_told_apart_from_a_run(tmp_path: Path, rasteriser: dict[str, str]) -> None:
    model = plugin_models.perceptron(tmp_path / "perceptron.onnx")
    code = (
        "import numpy as np\n"
        "from ort_metainfer.options import open_session\n"
        "from ort_metainfer.problem import SessionSpec\n"
        "from ort_metainfer.strategy import Strategy\n"
        "from ort_metainfer.trials.apart import bound_ms\n"
        f"session = open_session({str(model)!r}, SessionSpec(), Strategy(provider={WEBGPU!r}), {{}})\n"
        "print(bound_ms(session, {'x': np.zeros((4, 64), np.float32)}, 20.0) > 0)"
    )
    assert child(["-c", code], **rasteriser) == "True"


def test_webgpu_is_wrong_with_the_buffers_that_are_left_out(tmp_path: Path, rasteriser: dict[str, str]) -> None:
    """Should it fail, the provider was mended: uniformBufferCacheMode may be ``bucket`` again."""
    model = plugin_models.perceptron(tmp_path / "perceptron.onnx")
    code = (
        "import numpy as np, onnxruntime as ort, onnxruntime_ep_webgpu as plug_in\n"
        f"model, name = {str(model)!r}, {WEBGPU!r}\n"
        "ort.register_execution_provider_library(name, plug_in.get_library_path())\n"
        "options = ort.SessionOptions()\n"
        "devices = [device for device in ort.get_ep_devices() if device.ep_name == name]\n"
        "options.add_provider_for_devices(devices, {'uniformBufferCacheMode': 'bucket'})\n"
        "ours, theirs = ort.InferenceSession(model, options), ort.InferenceSession(model)\n"
        "x = {'x': np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)}\n"
        "got, wanted = ours.run(None, x)[0], theirs.run(None, x)[0]\n"
        "print(np.linalg.norm(got - wanted) / np.linalg.norm(wanted) > 0.1)"
    )
    assert child(["-c", code], **rasteriser) == "True"


def test_webgpus_voice_detector_is_right(
    tmp_path: Path, zoo_model: Callable[[str], Path], rasteriser: dict[str, str]
) -> None:
    model = plugin_models.static_voice_detector(zoo_model("silero_vad_ifless"), tmp_path / "static.onnx")
    assert run(model, WEBGPU, rasteriser)["error"] < 1e-3
    assert run(model, WEBGPU, rasteriser, preferredLayout="NHWC")["error"] > 0.1


# ---- ggml -----------------------------------------------------------------------------------------------------------


def test_ggml_takes_a_real_model_and_keeps_its_results(zoo_model: Callable[[str], Path]) -> None:
    needs("onnxruntime-ggml")
    report = run(zoo_model("minilm_l3_fp32"), GGML, weights="f32", threads="1")
    assert takes_all(report, GGML), report
    assert report["error"] < 1e-4
    assert (report["lossy"], report["emulated"]) == (False, [False])


def test_ggml_with_float16_weights_is_another_result_and_is_called_lossy(tmp_path: Path) -> None:
    needs("onnxruntime-ggml")
    report = run(plugin_models.perceptron(tmp_path / "perceptron.onnx"), GGML)
    assert takes_all(report, GGML), report
    assert 1e-5 < report["error"] < 1e-2
    assert report["lossy"] is True


def test_ggml_does_not_answer_with_the_input_of_the_run_before(tmp_path: Path) -> None:
    """Its own default does, for an input of 256 KiB and more of which a few values changed."""
    needs("onnxruntime-ggml")
    model = plugin_models.perceptron(tmp_path / "perceptron.onnx", rows=512, inputs=512)
    assert run(model, GGML, weights="f32")["error_after_a_change"] < 1e-4
    code = (
        "import numpy as np, onnxruntime as ort, onnxruntime_ggml as ggml\n"
        f"model = {str(model)!r}\n"
        "ours, theirs = ggml.InferenceSession(model, {'weights': 'f32'}), ort.InferenceSession(model)\n"
        "x = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)\n"
        "ours.run(None, {'x': x})\n"
        "x = x.copy(); x.reshape(-1)[87381:87384] += 20\n"
        "got, wanted = ours.run(None, {'x': x})[0], theirs.run(None, {'x': x})[0]\n"
        "print(np.linalg.norm(got - wanted) / np.linalg.norm(wanted) > 1e-3)"
    )
    assert child(["-c", code], ORT_GGML_LOG="error") == "True", "its default was mended: sticky may be left alone"


def test_ggml_takes_nothing_of_a_graph_that_holds_one_operator_it_lacks(convolutions: Path) -> None:
    needs("onnxruntime-ggml")
    report = run(convolutions, GGML)
    assert report["providers"][0] == GGML
    assert GGML not in report["nodes"]
    assert GGML not in run(convolutions, GGML, partial="1")["nodes"], "what it lacks stands in the middle"


def test_ggml_takes_part_of_a_graph_that_ends_with_what_it_lacks(tmp_path: Path) -> None:
    needs("onnxruntime-ggml")
    model = plugin_models.perceptron(tmp_path / "bounded.onnx", then="HardSigmoid")
    assert GGML not in run(model, GGML)["nodes"]
    report = run(model, GGML, partial="1", weights="f32")
    assert report["nodes"][GGML] == 3 and report["error"] < 1e-4


def race(model: Path, feeds: dict[str, Any], strategy: Strategy, folder: Path) -> Any:
    """The trial that a decision would make of ``strategy``, up to the gates."""
    folder.mkdir()
    np.savez(folder / "0.npz", **feeds)
    with ChildTrialHost() as host:
        setup = Setup(model, SessionSpec(), folder)
        [trial] = host.race(setup, [Proposal(strategy, "user", "")], Thresholds(), time.monotonic() + 60)
    return trial


def test_the_accuracy_gate_catches_ggml_on_a_voice_detector(
    tmp_path: Path, zoo_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("onnxruntime-ggml")
    monkeypatch.setenv("ORT_GGML_LOG", "error")
    rng = np.random.default_rng(0)
    model = plugin_models.static_voice_detector(zoo_model("silero_vad_ifless"), tmp_path / "static.onnx")
    heard = {"input": [1, 512], "state": [2, 1, 128]}
    feeds = {name: (rng.standard_normal(shape) * 0.1).astype(np.float32) for name, shape in heard.items()}
    strategy = Strategy(provider=GGML, provider_options={"weights": "f32"})
    trial = race(model, feeds, strategy, tmp_path / "feeds")
    assert [(gate.name, gate.passed) for gate in trial.gates] == [("compiles", True), ("accurate", False)]
    assert trial.error is not None and trial.error > 0.05


def test_the_accuracy_gate_passes_ggml_where_it_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("onnxruntime-ggml")
    monkeypatch.setenv("ORT_GGML_LOG", "error")
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)}
    strategy = Strategy(provider=GGML, provider_options={"weights": "f32"})
    model = plugin_models.perceptron(tmp_path / "perceptron.onnx")
    trial = race(model, feeds, strategy, tmp_path / "feeds")
    assert [(gate.name, gate.passed) for gate in trial.gates] == [("compiles", True), ("accurate", True)]


def test_ggml_slices_a_convolution_wrongly(tmp_path: Path) -> None:
    """What is behind the voice detector. Should it fail, the provider was mended: it need not be opt-in for this."""
    needs("onnxruntime-ggml")
    report = run(plugin_models.sliced_convolution(tmp_path / "sliced.onnx"), GGML, weights="f32")
    assert takes_all(report, GGML), report
    assert report["error"] > 0.1
