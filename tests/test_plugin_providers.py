"""Adapters of plug-in packages: what they state and refuse, against devices made up here."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as binding
from packaging.version import Version

from ort_metainfer.errors import ProviderError, StrategyError
from ort_metainfer.hardware.devices import cpu_device
from ort_metainfer.providers import (
    all_providers,
    discovered,
    get_provider,
    plugin,
    plugin_provider,
    qnn,
    registry,
    usable_providers,
    webgpu,
)
from ort_metainfer.providers.discovered import DiscoveredProvider, discover
from ort_metainfer.providers.ggml import GgmlProvider
from ort_metainfer.providers.nxrt import NxrtProvider
from ort_metainfer.providers.openvino import OpenVinoProvider
from ort_metainfer.providers.plugin import PlugIn
from ort_metainfer.providers.plugin_provider import PlugInProvider
from ort_metainfer.providers.qnn import QnnProvider
from ort_metainfer.providers.tensorrt_rtx import TensorRtRtxProvider
from ort_metainfer.providers.webgpu import WebGpuProvider
from ort_metainfer.strategy import Strategy
from tests.provider_conformance import check_adapter, check_cheap_questions_import_nothing
from tests.system_tree import write_tree

ROOT = Path(__file__).resolve().parent.parent
PLUG_INS = (OpenVinoProvider(), NxrtProvider(), QnnProvider(), WebGpuProvider(), GgmlProvider(), TensorRtRtxProvider())


class FakeOptions:
    """Remembers what was added, as onnxruntime's SessionOptions cannot."""

    def __init__(self) -> None:
        self.added: list[tuple[list[Any], dict[str, str]]] = []

    def add_provider_for_devices(self, devices: list[Any], options: dict[str, str]) -> None:
        self.added.append((devices, options))


def hardware(kind: str = "CPU", vendor_id: int = 0x1022, vendor: str = "someone", **metadata: str) -> Any:
    return SimpleNamespace(
        type=SimpleNamespace(name=kind), vendor=vendor, vendor_id=vendor_id, device_id=7, metadata=metadata
    )


def offered(ep_name: str, on: Any, **told: str) -> Any:
    return SimpleNamespace(ep_name=ep_name, ep_metadata=told, device=on)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``machine(hardware, offered)``: what onnxruntime sees, and what it offers once a library is registered."""

    def make(seen: list[Any], devices: list[Any], version: str | None = "9.9") -> None:
        registered: list[str] = []
        monkeypatch.setattr(PlugIn, "version", property(lambda self: version))
        monkeypatch.setattr(PlugIn, "_library", lambda self: "/there/lib.so")
        monkeypatch.setattr(plugin, "_registered", set())
        monkeypatch.setattr(binding, "get_hardware_devices", lambda: seen, raising=False)
        monkeypatch.setattr(onnxruntime, "__version__", "1.32.0")  # CI runs these tests with older ones too
        monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: devices if registered else [])
        monkeypatch.setattr(
            onnxruntime, "register_execution_provider_library", lambda name, path: registered.append(name)
        )

    return make


def attach(provider: PlugInProvider, device: str | None = None, **options: str) -> tuple[list[Any], dict[str, str]]:
    taken = FakeOptions()
    assert provider.attach(taken, Strategy(provider=provider.name, device=device, provider_options=options)) is None
    [(devices, given)] = taken.added
    return devices, given


# ---- the contract ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("provider", PLUG_INS, ids=lambda provider: provider.name)
def test_every_adapter_keeps_the_contract(provider: PlugInProvider) -> None:
    check_adapter(provider)


@pytest.mark.parametrize("provider", PLUG_INS, ids=lambda provider: provider.name)
@pytest.mark.parametrize("version", ["1.22.9", "1.23.0", "1.24.0.dev2", "1.24.2", "1.24.4", "1.32.0"])
def test_an_onnxruntime_older_than_the_package_wants_is_said(
    monkeypatch: pytest.MonkeyPatch, machine: Callable[..., None], provider: PlugInProvider, version: str
) -> None:
    machine([], [])
    monkeypatch.setattr(onnxruntime, "__version__", version)
    found = provider.availability()
    is_said = f"needs onnxruntime {provider.oldest_onnxruntime} or later, this is {version}; upgrade it" in found.reason
    assert is_said is (Version(version).release < Version(provider.oldest_onnxruntime).release)
    assert not (is_said and found.usable)


@pytest.mark.slow
@pytest.mark.parametrize("provider", PLUG_INS, ids=lambda provider: provider.name)
def test_asking_whether_it_is_available_loads_nothing(provider: PlugInProvider) -> None:
    check_cheap_questions_import_nothing(provider, provider.plug_in.module, ROOT)


@pytest.mark.parametrize("provider", PLUG_INS, ids=lambda provider: provider.name)
def test_what_is_stated_names_its_source(provider: PlugInProvider) -> None:
    stated = provider.capabilities
    assert stated.sources and stated.driver and stated.failings
    assert stated.constraints.source and stated.preferences.source
    assert all(failing.source and failing.remedy for failing in stated.failings)
    assert provider.run_on_hardware or provider.proven or provider.name == "NvTensorRTRTXExecutionProvider"


def test_what_exists_only_as_a_target_to_compile_for_is_no_device(machine: Callable[..., None]) -> None:
    real = offered("QNNExecutionProvider", hardware("NPU", vendor="Qualcomm"))
    target = offered("QNNExecutionProvider", hardware("GPU", vendor="Qualcomm"), is_virtual="1")
    machine([hardware("NPU", vendor="Qualcomm")], [target, real])
    assert [device.provider_device for device in QnnProvider().devices()] == ["htp"]


def test_memory_is_read_as_windows_and_openvino_tell_it() -> None:
    def size(told: Mapping[str, str], **metadata: str) -> float | None:
        return plugin_provider.memory_mb(offered("any", hardware("GPU", **metadata), **told))

    assert size({}, DxgiVideoMemory="8192 MB") == 8192
    assert size({"GPU_DEVICE_TOTAL_MEM_SIZE": str(2**30)}) == 1024
    assert size({}) is None
    assert size({}, DxgiVideoMemory="plenty") is None


# ---- QNN ------------------------------------------------------------------------------------------------------------

ON_CPU = offered("QNNExecutionProvider", hardware())


@pytest.fixture
def x86(monkeypatch: pytest.MonkeyPatch, machine: Callable[..., None]) -> None:
    monkeypatch.setattr(qnn, "_machine", lambda: "x86_64")
    machine([hardware()], [ON_CPU])


def test_qnn_on_x86_is_a_simulator_and_used_only_where_named(x86: None) -> None:
    found = QnnProvider().availability()
    assert (found.usable, found.emulated) == (True, True)
    [device] = QnnProvider().devices()
    assert (device.kind, device.emulated, device.name) == ("npu", True, "Hexagon HTP simulator")
    assert QnnProvider.name not in [provider.name for provider in usable_providers()]
    assert QnnProvider.name in [provider.name for provider in usable_providers({"QNN"})]


def test_qnn_is_always_told_its_backend(x86: None) -> None:
    """Without it, creation raises on a machine that is not Qualcomm's."""
    assert attach(QnnProvider()) == ([ON_CPU], {"backend_type": "htp"})
    assert attach(QnnProvider(), "htp", vtcm_mb="4") == ([ON_CPU], {"backend_type": "htp", "vtcm_mb": "4"})


@pytest.mark.parametrize("asked", [{"device": "gpu"}, {"backend_type": "gpu"}, {"backend_type": "cpu"}])
def test_qnn_refuses_a_backend_that_is_not_there(x86: None, asked: dict[str, str]) -> None:
    """The library for the CPU is not in the package: onnxruntime would run on its own, with a line in the log."""
    with pytest.raises(ProviderError, match=r"offers no .*; it offers htp"):
        attach(QnnProvider(), **asked)


def test_qnn_refuses_two_answers_to_one_question(x86: None) -> None:
    with pytest.raises(StrategyError, match="say one of them"):
        attach(QnnProvider(), "htp", backend_type="gpu")


@pytest.mark.parametrize(("name", "value"), [("vtcm_mb", "-1"), ("htp_arch", "72"), ("soc_model", "SM8650")])
def test_qnn_options_have_domains(name: str, value: str) -> None:
    with pytest.raises(StrategyError, match=name):
        QnnProvider().check(Strategy(provider=QnnProvider.name, provider_options={name: value}))


def test_qnn_on_qualcomms_hardware_offers_npu_and_gpu(
    monkeypatch: pytest.MonkeyPatch, machine: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "libQnnCpu.so").touch()
    library = str(tmp_path / "libonnxruntime_providers_qnn.so")
    monkeypatch.setattr(qnn, "_machine", lambda: "aarch64")
    seen = [hardware(kind, vendor="Qualcomm") for kind in ("CPU", "GPU", "NPU")]
    on = [offered("QNNExecutionProvider", one, library_path=library) for one in seen]
    machine(seen, on)
    assert not QnnProvider().availability().emulated
    devices = QnnProvider().devices()
    assert [(device.provider_device, device.kind) for device in devices] == [
        ("htp", "npu"),
        ("gpu", "gpu"),
        ("cpu", "cpu"),
    ]
    assert not any(device.emulated for device in devices)
    assert attach(QnnProvider(), "gpu") == ([on[1]], {"backend_type": "gpu"})
    assert attach(QnnProvider(), backend_type="cpu") == ([on[0]], {"backend_type": "cpu"})


def test_qnn_on_another_arm_chip_is_unusable(monkeypatch: pytest.MonkeyPatch, machine: Callable[..., None]) -> None:
    monkeypatch.setattr(qnn, "_machine", lambda: "aarch64")
    monkeypatch.setattr(qnn, "_has_qualcomm_hardware", lambda: False)
    machine([hardware(vendor="Ampere")], [])
    found = QnnProvider().availability()
    assert not found.usable and "no Qualcomm hardware" in found.reason


@pytest.mark.parametrize(
    ("options", "lossy"),
    [
        ({}, True),
        ({"enable_htp_fp16_precision": "1"}, True),
        ({"enable_htp_fp16_precision": "0"}, False),
        ({"htp_bf16_enable": "1", "enable_htp_fp16_precision": "0"}, True),
        ({"htp_performance_mode": "burst"}, True),
    ],
)
def test_qnn_is_lossy_unless_float32_is_demanded(options: dict[str, str], lossy: bool) -> None:
    assert QnnProvider().is_lossy(Strategy(provider=QnnProvider.name, provider_options=options)) is lossy


# ---- WebGPU ---------------------------------------------------------------------------------------------------------

GPU = hardware("GPU", 0x8086, "Intel", Description="Intel Arc", DxgiVideoMemory="4096 MB")


@pytest.mark.parametrize(
    ("seen", "variable", "loader", "usable", "emulated", "reason"),
    [
        ([hardware()], None, True, False, False, "sees no GPU here (set ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1"),
        ([hardware()], "0", True, False, False, "sees no GPU here"),
        ([hardware()], "1", False, False, False, "apt install libvulkan1"),
        ([hardware()], "1", True, True, True, "software adapter"),
        ([hardware(), GPU], None, True, True, False, "is installed"),
        ([hardware(), GPU], "1", True, True, False, "is installed"),
        ([hardware(), GPU], None, False, False, False, "apt install libvulkan1"),
    ],
)
def test_webgpu_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
    machine: Callable[..., None],
    seen: list[Any],
    variable: str | None,
    loader: bool,
    usable: bool,
    emulated: bool,
    reason: str,
) -> None:
    machine(seen, [])
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(webgpu, "has_vulkan_loader", lambda: loader)
    monkeypatch.delenv(webgpu.SOFTWARE, raising=False)
    if variable is not None:
        monkeypatch.setenv(webgpu.SOFTWARE, variable)
    found = WebGpuProvider().availability()
    assert (found.usable, found.emulated) == (usable, emulated)
    assert reason in found.reason


def test_the_vulkan_loader_is_looked_for_where_the_linker_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert not webgpu.has_vulkan_loader(write_tree(tmp_path / "none", {"/etc/hosts": ""}))
    assert webgpu.has_vulkan_loader(
        write_tree(tmp_path / "cache", {"/etc/ld.so.cache": "x\0libvulkan.so.1\0/usr/lib/"})
    )
    assert webgpu.has_vulkan_loader(write_tree(tmp_path / "folder", {"/usr/lib/libvulkan.so.1": ""}))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "libvulkan.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path / 'own'}")
    assert webgpu.has_vulkan_loader(write_tree(tmp_path / "other", {"/etc/hosts": ""}))


def test_webgpu_describes_the_gpu_below_it(machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webgpu, "has_vulkan_loader", lambda: True)
    machine([hardware(), GPU], [offered("WebGpuExecutionProvider", GPU, version="0.4.0")])
    [device] = WebGpuProvider().devices()
    assert (device.kind, device.name, device.vendor, device.memory_mb) == ("gpu", "Intel Arc", "Intel", 4096)
    assert not device.emulated


def test_webgpu_asks_for_the_layout_that_is_right(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webgpu, "has_vulkan_loader", lambda: True)
    machine([hardware(), GPU], [offered("WebGpuExecutionProvider", GPU)])
    assert attach(WebGpuProvider())[1] == {"preferredLayout": "NCHW"}
    assert attach(WebGpuProvider(), preferredLayout="NHWC")[1] == {"preferredLayout": "NHWC"}


@pytest.mark.parametrize("name", ["preferedLayout", "enableGraphCapture", "forceCpuNodeNames"])
def test_webgpu_options_that_it_would_take_without_a_word_are_refused(name: str) -> None:
    """A misspelt one has no effect; with graph capture, run() raises."""
    with pytest.raises(StrategyError, match=f"has no option '{name}'"):
        WebGpuProvider().check(Strategy(provider=WebGpuProvider.name, provider_options={name: "1"}))


# ---- ggml, TensorRT for RTX, OpenVINO's other devices ---------------------------------------------------------------


def test_ggml_never_reuses_the_input_of_the_run_before(machine: Callable[..., None]) -> None:
    machine([hardware()], [offered("ggml", hardware())])
    assert attach(GgmlProvider())[1] == {"device": "cpu", "sticky": "0"}
    assert attach(GgmlProvider(), weights="f32")[1] == {"device": "cpu", "weights": "f32", "sticky": "0"}
    for name in ("sticky", "device"):
        with pytest.raises(StrategyError, match=f"has no option '{name}'"):
            GgmlProvider().check(Strategy(provider="ggml", provider_options={name: "1"}))


@pytest.mark.parametrize(("options", "lossy"), [({}, True), ({"weights": "f32"}, False), ({"threads": "2"}, True)])
def test_ggml_is_lossy_unless_weights_are_float32(options: dict[str, str], lossy: bool) -> None:
    assert GgmlProvider().is_lossy(Strategy(provider="ggml", provider_options=options)) is lossy


def test_installing_ggml_leaves_onnxruntime_alone(machine: Callable[..., None]) -> None:
    machine([hardware()], [], version=None)
    assert "pip install --no-deps onnxruntime-ggml" in GgmlProvider().availability().reason


def test_tensorrt_rtx_wants_an_nvidia_gpu_and_numbers_them(machine: Callable[..., None]) -> None:
    name = TensorRtRtxProvider.name
    cards = [hardware("GPU", 0x10DE, "NVIDIA", Description=text) for text in ("RTX 4090", "RTX 3060")]
    machine([hardware()], [])
    assert "no NVIDIA GPU" in TensorRtRtxProvider().availability().reason
    on = [offered(name, card) for card in cards]
    machine([hardware(), *cards], on)
    assert [(device.provider_device, device.name) for device in TensorRtRtxProvider().devices()] == [
        ("gpu:0", "RTX 4090"),
        ("gpu:1", "RTX 3060"),
    ]
    assert attach(TensorRtRtxProvider(), "gpu:1")[0] == [on[1]]


@pytest.mark.parametrize(
    ("device", "option", "value", "owner"),
    [
        ("CPU", "GPU_QUEUE_THROTTLE", "LOW", "GPU"),
        ("GPU.0", "NPU_TURBO", "YES", "NPU"),
        ("NPU", "ENABLE_CPU_PINNING", "YES", "CPU"),
        ("AUTO", "ENABLE_CPU_PINNING", "YES", "CPU"),
    ],
)
def test_openvino_refuses_a_property_of_another_device(
    machine: Callable[..., None], device: str, option: str, value: str, owner: str
) -> None:
    intel = hardware(vendor_id=0x8086)
    name = OpenVinoProvider.name
    machine([intel], [offered(name, intel, ov_device=one) for one in ("CPU", "AUTO", "GPU.0", "NPU")])
    with pytest.raises(StrategyError, match=f"{option} is for the device {owner}, this is {device}"):
        attach(OpenVinoProvider(), device, **{option: value})


def test_openvino_gives_a_device_its_own_properties(machine: Callable[..., None]) -> None:
    intel, name = hardware(vendor_id=0x8086), OpenVinoProvider.name
    machine([intel], [offered(name, intel, ov_device=one) for one in ("CPU", "NPU")])
    given = attach(OpenVinoProvider(), "NPU", NPU_TURBO="YES", PERFORMANCE_HINT="LATENCY")[1]
    assert json.loads(given["load_config"]) == {"NPU": {"NPU_TURBO": "YES", "PERFORMANCE_HINT": "LATENCY"}}


# ---- packages that no adapter speaks for ----------------------------------------------------------------------------

GOOD = """
raise SystemExit("imported though nobody asked for it")
EP_NAME = "MineExecutionProvider"
def get_library_path(): return "/there/libmine.so"
"""
RETURNED = '''
def get_library_path() -> str:
    return "/there/libmine.so"
def get_ep_name() -> str:
    """The name."""
    # as registered
    return "TheirsExecutionProvider"
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """``installed(module, source)``: a package in a folder that Python imports from, with its metadata beside it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(module: str, source: str, version: str = "1.2.3") -> None:
        (tmp_path / module).mkdir()
        (tmp_path / module / "__init__.py").write_text(source)
        (tmp_path / f"{module}-{version}.dist-info").mkdir()
        plugin._folder.cache_clear()
        plugin.distribution_version.cache_clear()
        importlib.invalidate_caches()

    return write


def found(installed_modules: set[str]) -> dict[str, DiscoveredProvider]:
    """What is discovered among these packages, by name; others of this environment are left out."""
    providers = discover((), ())
    return {provider.name: provider for provider in providers if provider.plug_in.module in installed_modules}


def test_an_unknown_plug_in_package_is_found_by_reading_it(installed: Callable[[str, str], None]) -> None:
    modules = {"onnxruntime_ep_mine", "theirs_ep_cpu", "onnxruntime_ep_coming_soon"}
    installed("onnxruntime_ep_mine", GOOD)
    installed("theirs_ep_cpu", RETURNED)
    installed("onnxruntime_ep_coming_soon", "")
    named = found(modules)
    assert sorted(named) == ["MineExecutionProvider", "TheirsExecutionProvider", "onnxruntime-ep-coming-soon"]
    mine = named["MineExecutionProvider"]
    assert mine.opt_in and mine.availability().usable
    assert "onnxruntime-ep-mine 1.2.3" in mine.availability().reason
    assert mine.versions() == {"onnxruntime-ep-mine": "1.2.3"}
    empty = named["onnxruntime-ep-coming-soon"].availability()
    assert not empty.usable and "no get_library_path" in empty.reason
    assert not modules & set(sys.modules)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("onnxruntime_extensions", "def get_library_path(): return 'custom operators'\n"),
        ("onnxruntime_tools", "EP_NAME = 'x'\n"),
        ("step_by_step", GOOD),
    ],
)
def test_what_only_looks_like_a_plug_in_is_none(
    installed: Callable[[str, str], None], module: str, source: str
) -> None:
    installed(module, source)
    assert found({module}) == {}


def test_a_package_that_an_adapter_speaks_for_is_not_found_again(installed: Callable[[str, str], None]) -> None:
    installed("onnxruntime_ep_mine", GOOD)
    modules = [provider.plug_in.module for provider in discover({"onnxruntime_ep_mine"}, ())]
    assert "onnxruntime_ep_mine" not in modules
    names = [provider.name for provider in discover((), {"MineExecutionProvider"})]
    assert "MineExecutionProvider" not in names


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (GOOD.replace("SystemExit", "ZeroDivisionError"), "ZeroDivisionError: imported though"),
        (GOOD.split("\n", 2)[2], "libmine.so does not load"),
        ('EP_NAME = "MineExecutionProvider"\ndef get_library_path(): raise KeyError("where")\n', "KeyError"),
    ],
)
def test_one_that_does_not_load_is_an_error_that_names_it(
    installed: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, source: str, told: str
) -> None:
    installed("onnxruntime_ep_mine", source)
    monkeypatch.setattr(plugin, "_registered", set())
    mine = found({"onnxruntime_ep_mine"})["MineExecutionProvider"]
    for act in (mine.devices, lambda: attach(mine)):
        with pytest.raises(ProviderError, match="onnxruntime-ep-mine") as caught:
            act()
        assert told in str(caught.value)
    sys.modules.pop("onnxruntime_ep_mine", None)


def test_an_unknown_plug_ins_devices_are_those_that_name_its_library(
    installed: Callable[[str, str], None], machine: Callable[..., None]
) -> None:
    installed("onnxruntime_ep_mine", GOOD)
    mine = found({"onnxruntime_ep_mine"})["MineExecutionProvider"]
    npu = hardware("NPU", 0x1234, "Maker", Description="Maker X1")
    other = offered("CPUExecutionProvider", hardware(), library_path="/elsewhere.so")
    on = [offered("other_name", one, library_path="/there/lib.so", version="4.5") for one in (npu, hardware())]
    machine([hardware()], [other, *on])
    first, second = mine.devices()
    assert (first.kind, first.name, first.provider_device, first.driver) == ("npu", "Maker X1", "npu:0", "4.5")
    assert (second.kind, second.name, second.provider_device) == ("cpu", cpu_device().name, "cpu:1")
    assert attach(mine, "cpu:1") == ([on[1]], {})
    with pytest.raises(StrategyError, match="has no option 'X'; known: none"):
        attach(mine, X="1")


def test_an_unknown_plug_in_is_used_where_named_and_only_there(
    installed: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("onnxruntime_ep_mine", GOOD)
    registry._discovered.cache_clear()
    try:
        assert "MineExecutionProvider" in [provider.name for provider in all_providers()]
        assert get_provider("Mine").name == "MineExecutionProvider"
        assert "MineExecutionProvider" in [provider.name for provider in usable_providers({"Mine"})]
        assert "MineExecutionProvider" not in [provider.name for provider in usable_providers()]
    finally:
        registry._discovered.cache_clear()


def test_the_common_path_looks_for_no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    registry._discovered.cache_clear()
    monkeypatch.setattr(discovered, "discover", lambda *known: pytest.fail("looked for packages"))
    usable_providers()
    usable_providers({"CPUExecutionProvider", "OpenVINOExecutionProvider"})
    get_provider("CPU")
