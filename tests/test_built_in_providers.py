"""Adapters of providers compiled into onnxruntime, against constructed machines: none of them was run on hardware."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import onnxruntime
import pytest

from ort_metainfer.errors import ProviderError, StrategyError
from ort_metainfer.hardware.devices import Hardware, cpu_device
from ort_metainfer.problem import Device
from ort_metainfer.providers import Availability, Option, Provider, built_in, coreml, directml, get_provider
from ort_metainfer.providers.acl import AclProvider
from ort_metainfer.providers.built_in import BuiltInOnCpu, BuiltInProvider
from ort_metainfer.providers.cann import CannProvider
from ort_metainfer.providers.capabilities import Capabilities, CompiledModel, Constraints, Failing
from ort_metainfer.providers.coreml import CoreMlProvider
from ort_metainfer.providers.cpu import CpuProvider
from ort_metainfer.providers.cuda import CudaProvider
from ort_metainfer.providers.directml import DirectMlProvider
from ort_metainfer.providers.dnnl import DnnlProvider
from ort_metainfer.providers.migraphx import MiGraphXProvider
from ort_metainfer.providers.nnapi import NnapiProvider
from ort_metainfer.providers.registry import our_providers
from ort_metainfer.providers.rocm import RocmProvider
from ort_metainfer.providers.tensorrt import TensorRtProvider
from ort_metainfer.providers.vitisai import VitisAiProvider
from ort_metainfer.providers.xnnpack import XnnpackProvider
from ort_metainfer.start import PROVIDER_VARIABLES
from ort_metainfer.strategy import Strategy
from tests.provider_conformance import check_adapter, check_refuses_unusable
from tests.system_tree import write_tree

ALL: tuple[type[BuiltInProvider], ...] = (
    TensorRtProvider,
    CudaProvider,
    MiGraphXProvider,
    RocmProvider,
    DirectMlProvider,
    CoreMlProvider,
    CannProvider,
    VitisAiProvider,
    NnapiProvider,
    DnnlProvider,
    XnnpackProvider,
    AclProvider,
)
ON_CPU = tuple(kind for kind in ALL if issubclass(kind, BuiltInOnCpu))
RECORDED = [
    path for path in sorted((Path(__file__).parent / "recorded").glob("*.json")) if not path.stem.startswith("zoo_")
]
CPU = "CPUExecutionProvider"


class FakeOptions(SimpleNamespace):
    """Stands for SessionOptions: remembers the devices added."""

    def __init__(self) -> None:
        super().__init__(added=[], enable_mem_pattern=True, execution_mode=None)

    def add_provider_for_devices(self, devices: list[Any], options: dict[str, str]) -> None:
        self.added.append((devices, options))


Lister = Callable[..., None]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the machine that runs the tests decides."""
    for name in ("CUDA_DEVICE_ORDER", *PROVIDER_VARIABLES):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch) -> Lister:
    """Make onnxruntime list these providers, and offer these devices."""

    def make(*names: str, offered: tuple[Any, ...] = ()) -> None:
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: list(names))
        monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: list(offered), raising=False)

    return make


def ep_device(name: str, kind: str = "GPU", description: str = "", **told: str) -> Any:
    metadata = {"Description": description} if description else {}
    hardware = SimpleNamespace(
        type=SimpleNamespace(name=kind), vendor="NVIDIA", vendor_id=0x10DE, device_id=0x2330, metadata=metadata
    )
    return SimpleNamespace(ep_name=name, ep_metadata=told, device=hardware)


def using(provider: Provider, **options: str) -> Strategy:
    return Strategy(provider=provider.name, provider_options=options)


# ---- the contract, on this machine ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_every_built_in_adapter_keeps_the_contract(kind: type[BuiltInProvider]) -> None:
    check_adapter(kind())


@pytest.mark.parametrize("provider", our_providers(), ids=lambda provider: provider.name)
def test_every_adapter_of_ours_states_what_it_states_with_its_source(provider: Provider) -> None:
    from tests.provider_conformance import check_capabilities, check_options, check_says_what_it_ran_on

    check_says_what_it_ran_on(provider)
    check_options(provider)
    check_capabilities(provider)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_every_built_in_adapter_is_found_by_its_name(kind: type[BuiltInProvider]) -> None:
    assert type(get_provider(kind.name)) is kind
    assert kind.run_on_hardware is False


# ---- absent ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "system", "words"),
    [
        (CudaProvider, "linux", "pip install onnxruntime-gpu (replaces onnxruntime)"),
        (CudaProvider, "darwin", "Linux and Windows only"),
        (TensorRtProvider, "linux", "install TensorRT"),
        (MiGraphXProvider, "linux", "pip install onnxruntime-migraphx"),
        (DirectMlProvider, "linux", "Windows only"),
        (DirectMlProvider, "win32", "pip install onnxruntime-directml"),
        (CoreMlProvider, "linux", "macOS and iOS only"),
        (CoreMlProvider, "darwin", "macOS packages have it built in"),
        (NnapiProvider, "linux", "Android only"),
        (CannProvider, "win32", "Linux only"),
        (VitisAiProvider, "win32", "Ryzen AI Software"),
        (XnnpackProvider, "linux", "--use_xnnpack"),
        (DnnlProvider, "win32", "--use_dnnl"),
    ],
)
def test_an_absent_provider_says_in_one_line_how_to_get_it(
    listing: Lister, kind: type[BuiltInProvider], system: str, words: str
) -> None:
    listing(CPU)
    provider = kind(system=system)
    found = provider.availability()
    assert (found.usable, found.how) == (False, None)
    assert words in found.reason and "\n" not in found.reason
    assert provider.versions() == {}
    check_refuses_unusable(provider)


@pytest.mark.parametrize("kind", [RocmProvider, AclProvider])
def test_a_provider_that_was_removed_is_called_gone(
    listing: Lister, monkeypatch: pytest.MonkeyPatch, kind: type[BuiltInProvider]
) -> None:
    listing(CPU)
    monkeypatch.setattr(onnxruntime, "get_all_providers", lambda: [CPU])
    assert "has it no more" in kind(system="linux").availability().reason
    monkeypatch.setattr(onnxruntime, "get_all_providers", lambda: [CPU, kind.name])
    assert "not compiled into" in kind(system="linux").availability().reason


# ---- constructed machines -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_description_says_whether_it_was_recorded(path: Path) -> None:
    origin = json.loads(path.read_text())["origin"]
    assert origin.startswith(("recorded on ", "constructed from "))
    assert origin.startswith("recorded") or "not recorded on such a machine" in origin


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_constructed_machine_gives_its_devices_driver_and_session_arguments(
    path: Path, tmp_path: Path, listing: Lister, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = json.loads(path.read_text())
    listing(*machine["listed"])
    for name, value in machine.get("environment", {}).items():
        monkeypatch.setenv(name, value)
    files = write_tree(tmp_path, machine["files"])
    for name, wanted in machine["expected"].items():
        [kind] = [kind for kind in ALL if kind.name == name]
        provider = kind(files, machine.get("system", "linux"))
        found = provider.availability()
        assert (found.usable, found.how, found.version) == (True, "built-in", onnxruntime.__version__)
        assert found.reason == f"compiled into onnxruntime {onnxruntime.__version__}"
        offered = provider.devices()
        assert [[d.kind, d.name, d.provider_device, d.memory_mb] for d in offered] == wanted["devices"]
        assert {device.driver for device in offered} == {wanted["driver"]}
        assert provider.driver_version() == wanted["driver"]
        assert set(provider.versions().values()) == {onnxruntime.__version__, wanted["driver"]} - {None}
        strategy = Strategy(provider=name, device=wanted["device"], provider_options=wanted["options"])
        assert provider.attach(FakeOptions(), strategy) == [tuple(pair) for pair in wanted["providers"]]
        assert provider.is_lossy(strategy) is wanted["lossy"]
        check_adapter(provider)


# ---- listed, and no device ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [CudaProvider, TensorRtProvider, MiGraphXProvider, CannProvider, VitisAiProvider])
def test_a_listed_provider_without_a_device_says_so_and_offers_none(
    listing: Lister, tmp_path: Path, kind: type[BuiltInProvider]
) -> None:
    """onnxruntime-gpu lists CUDA on any machine."""
    listing(kind.name, CPU)
    provider = kind(write_tree(tmp_path, {}), "linux")
    found = provider.availability()
    assert found.usable
    assert f"no {kind.device_words} shows in the system's files" in found.reason
    for act in (provider.devices, lambda: provider.attach(FakeOptions(), Strategy(provider=kind.name))):
        with pytest.raises(ProviderError, match="install its driver"):
            act()
    check_adapter(provider)


@pytest.mark.parametrize("kind", [CudaProvider, TensorRtProvider, MiGraphXProvider, VitisAiProvider])
def test_where_nothing_can_be_looked_up_one_device_has_the_class_s_name(
    listing: Lister, tmp_path: Path, kind: type[BuiltInProvider]
) -> None:
    listing(kind.name, CPU)
    provider = kind(write_tree(tmp_path, {}), "win32")
    [device] = provider.devices()
    assert (device.kind, device.name, device.provider_device) == (kind.kinds[0], kind.device_words, "0")
    assert device.driver is None


def test_a_device_that_is_not_there_is_refused_with_those_that_are(listing: Lister, tmp_path: Path) -> None:
    listing(CudaProvider.name, CPU)
    gpu = "/proc/driver/nvidia/gpus/0000:01:00.0/information"
    provider = CudaProvider(write_tree(tmp_path, {gpu: "Model: NVIDIA L4"}), "linux")
    with pytest.raises(ProviderError, match="offers no device '1' here; it offers 0"):
        provider.attach(FakeOptions(), Strategy(provider=provider.name, device="1"))


def test_hidden_gpus_are_not_offered(listing: Lister, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing(CudaProvider.name, CPU)
    gpu = "/proc/driver/nvidia/gpus/0000:01:00.0/information"
    provider = CudaProvider(write_tree(tmp_path, {gpu: "Model: NVIDIA L4"}), "linux")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ProviderError, match="no NVIDIA GPU shows"):
        provider.devices()


def test_unlike_gpus_in_cudas_own_order_are_not_told_apart(listing: Lister, tmp_path: Path) -> None:
    machine = json.loads((Path(__file__).parent / "recorded" / "nvidia_unlike_gpus.json").read_text())
    listing(*machine["listed"])
    names = {device.name for device in CudaProvider(write_tree(tmp_path, machine["files"]), "linux").devices()}
    assert names == {"one of: NVIDIA T1000, NVIDIA A100-PCIE-40GB"}


# ---- devices that onnxruntime itself offers -------------------------------------------------------------------------


@pytest.mark.parametrize("name", [CudaProvider.name, "CudaPluginExecutionProvider"])
def test_a_cuda_that_registers_itself_is_attached_by_its_device(listing: Lister, tmp_path: Path, name: str) -> None:
    first, second = ep_device(name, description="NVIDIA H200"), ep_device(name)
    listing(name, CPU, offered=(ep_device("OtherExecutionProvider"), first, second))
    provider = CudaProvider(write_tree(tmp_path, {"/sys/module/nvidia/version": "575.51.03"}), "linux")
    offered = provider.devices()
    assert [device.name for device in offered] == ["NVIDIA H200", "0x10de:0x2330"]
    assert {device.driver for device in offered} == {"575.51.03"}
    options = FakeOptions()
    assert provider.attach(options, replace(using(provider, use_tf32="0"), device="1")) is None
    assert options.added == [([second], {"use_tf32": "0"})]


def test_directml_prefers_what_onnxruntime_tells(listing: Lister) -> None:
    device = ep_device(DirectMlProvider.name, description="NVIDIA RTX A2000", os_driver_version="32.0.15.7283")
    listing(DirectMlProvider.name, CPU, offered=(device,))
    provider = DirectMlProvider(system="win32")
    [found] = provider.devices()
    assert (found.name, found.driver, found.kind) == ("NVIDIA RTX A2000", "32.0.15.7283", "gpu")
    options = FakeOptions()
    assert provider.attach(options, Strategy(provider=provider.name)) is None
    assert options.added == [([device], {})]
    assert (options.enable_mem_pattern, options.execution_mode) == (False, onnxruntime.ExecutionMode.ORT_SEQUENTIAL)


# ---- DirectML, Core ML, CPUs ----------------------------------------------------------------------------------------


@pytest.fixture
def windows(listing: Lister, monkeypatch: pytest.MonkeyPatch) -> DirectMlProvider:
    listing(DirectMlProvider.name, CPU)
    seen = (Hardware("cpu", "AMD", 0x1022, 0), Hardware("gpu", "AMD", 0x1002, 0x744C, "AMD Radeon RX 7900 XTX"))
    monkeypatch.setattr(directml, "onnxruntime_hardware", lambda: seen)
    return DirectMlProvider(system="win32")


def test_directml_runs_without_memory_patterns_and_in_sequence(windows: DirectMlProvider) -> None:
    options = FakeOptions()
    assert windows.attach(options, Strategy(provider=windows.name)) == [(windows.name, {"device_id": "0"})]
    assert (options.enable_mem_pattern, options.execution_mode) == (False, onnxruntime.ExecutionMode.ORT_SEQUENTIAL)
    assert [device.name for device in windows.devices()] == ["AMD Radeon RX 7900 XTX"]


@pytest.mark.parametrize("option", [{"performance_preference": "high_performance"}, {"device_filter": "npu"}])
def test_directml_takes_a_preference_or_a_number_and_not_both(
    windows: DirectMlProvider, option: Mapping[str, str]
) -> None:
    strategy = Strategy(provider=windows.name, provider_options=option)
    assert windows.attach(FakeOptions(), strategy) == [(windows.name, dict(option))]
    assert windows.is_lossy(strategy) is ("device_filter" in option)


def test_of_several_gpus_directml_s_first_has_no_name(
    windows: DirectMlProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [Hardware("gpu", "Intel", 0x8086, 1, "Intel Iris Xe"), Hardware("gpu", "NVIDIA", 0x10DE, 2, "RTX 4060")]
    monkeypatch.setattr(directml, "onnxruntime_hardware", lambda: tuple(seen))
    assert [device.name for device in windows.devices()] == ["DirectX 12 device"]


@pytest.mark.parametrize(("chip", "vendor", "kind"), [("Apple M2", "Apple", "npu"), ("Intel Core i7", "Intel", "gpu")])
def test_core_ml_is_called_by_the_chip_and_versioned_by_macos(
    listing: Lister, monkeypatch: pytest.MonkeyPatch, chip: str, vendor: str, kind: str
) -> None:
    listing(CoreMlProvider.name, CPU)
    monkeypatch.setattr(coreml, "cpu_device", lambda: Device(CPU, "cpu", chip, vendor))
    monkeypatch.setattr(coreml.platform, "mac_ver", lambda: ("15.5", ("", "", ""), "arm64"))
    provider = CoreMlProvider(system="darwin")
    [device] = provider.devices()
    assert (device.kind, device.name, device.driver) == (kind, chip, "15.5")
    assert provider.versions()["macos"] == "15.5"
    given = provider.attach(FakeOptions(), using(provider, ModelFormat="MLProgram"))
    assert given == [(provider.name, {"ModelFormat": "MLProgram"})], "it has no option for a device's number"
    check_adapter(provider)


@pytest.mark.parametrize("kind", ON_CPU, ids=lambda kind: kind.name)
def test_a_provider_on_the_cpu_offers_the_cpu(listing: Lister, kind: type[BuiltInProvider]) -> None:
    listing(kind.name, CPU)
    provider = kind()
    assert provider.devices() == (replace(cpu_device(), provider=kind.name),)
    assert provider.attach(FakeOptions(), Strategy(provider=kind.name)) == [(kind.name, {})]
    check_adapter(provider)


# ---- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options", "lossy"),
    [
        (CudaProvider, {}, True),
        (CudaProvider, {"prefer_nhwc": "1"}, True),
        (CudaProvider, {"use_tf32": "0"}, False),
        (CudaProvider, {"use_tf32": "0", "prefer_nhwc": "1"}, False),
        (CudaProvider, {"use_tf32": "1"}, True),
        (TensorRtProvider, {}, True),
        (TensorRtProvider, {"trt_fp16_enable": "False"}, True),
        (TensorRtProvider, {"trt_fp16_enable": "True"}, True),
        (MiGraphXProvider, {}, False),
        (MiGraphXProvider, {"migraphx_bf16_enable": "True"}, True),
        (CoreMlProvider, {}, True),
        (CoreMlProvider, {"MLComputeUnits": "CPUOnly"}, False),
        (CoreMlProvider, {"MLComputeUnits": "CPUOnly", "AllowLowPrecisionAccumulationOnGPU": "1"}, True),
        (CoreMlProvider, {"AllowLowPrecisionAccumulationOnGPU": "0"}, True),
        (CoreMlProvider, {"ModelFormat": "MLProgram"}, True),
        (CannProvider, {}, True),
        (CannProvider, {"precision_mode": "must_keep_origin_dtype"}, True),
        (CannProvider, {"precision_mode": "must_keep_origin_dtype", "op_select_impl_mode": "high_precision"}, False),
        (CannProvider, {"precision_mode": "force_fp32", "op_select_impl_mode": "high_precision"}, True),
        (VitisAiProvider, {"opt_level": "3"}, True),
        (NnapiProvider, {}, True),
        (AclProvider, {}, False),
        (AclProvider, {"enable_fast_math": "true"}, True),
        (XnnpackProvider, {"intra_op_num_threads": "4"}, False),
        (DnnlProvider, {}, False),
        (DirectMlProvider, {}, False),
        (DirectMlProvider, {"device_filter": "gpu"}, False),
    ],
)
def test_what_does_not_keep_float32_is_called_lossy(
    kind: type[BuiltInProvider], options: dict[str, str], lossy: bool
) -> None:
    provider = kind()
    assert provider.is_lossy(using(provider, **options)) is lossy


@pytest.mark.parametrize(
    ("kind", "name", "value", "lossy"),
    [
        (CudaProvider, "NVIDIA_TF32_OVERRIDE", "0", False),
        (CudaProvider, "NVIDIA_TF32_OVERRIDE", "1", True),
        (TensorRtProvider, "NVIDIA_TF32_OVERRIDE", "0", False),
        (MiGraphXProvider, "ORT_MIGRAPHX_FP16_ENABLE", "1", True),
        (MiGraphXProvider, "ORT_MIGRAPHX_FP16_ENABLE", "0", False),
        (DnnlProvider, "ONEDNN_DEFAULT_FPMATH_MODE", "BF16", True),
        (DnnlProvider, "ONEDNN_DEFAULT_FPMATH_MODE", "strict", False),
    ],
)
def test_the_environment_decides_about_precision_where_it_wins(
    monkeypatch: pytest.MonkeyPatch, kind: type[BuiltInProvider], name: str, value: str, lossy: bool
) -> None:
    provider = kind()
    monkeypatch.setenv(name, value)
    assert provider.is_lossy(Strategy(provider=provider.name)) is lossy


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind.variables], ids=lambda kind: kind.name)
def test_an_entry_made_under_another_environment_rests_on_another_version(
    monkeypatch: pytest.MonkeyPatch, listing: Lister, kind: type[BuiltInProvider]
) -> None:
    listing(kind.name, CPU)
    before = kind().versions()
    for name in kind.variables:
        monkeypatch.setenv(name, "1")
        assert kind().versions() == before | {name: "1"}
        monkeypatch.delenv(name)
    listing(CPU)
    monkeypatch.setenv(kind.variables[0], "1")
    assert kind().versions() == {}, "it is not there, so nothing rests on it"


def test_without_tf32_float16_is_lossy_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TensorRtProvider()
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert provider.is_lossy(using(provider, trt_fp16_enable="True"))
    assert not provider.is_lossy(using(provider, trt_builder_optimization_level="5"))
    assert not CudaProvider().is_lossy(using(CudaProvider(), use_tf32="1")), "the variable wins over the option"


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (CudaProvider, "enable_cuda_graph", "1"),
        (CudaProvider, "user_compute_stream", "0"),
        (CudaProvider, "do_copy_in_default_stream", "0"),
        (TensorRtProvider, "trt_cuda_graph_enable", "True"),
        (TensorRtProvider, "trt_builder_optimization_level", "6"),
        (TensorRtProvider, "trt_fp16_enable", "1"),
        (DirectMlProvider, "enable_graph_capture", "true"),
        (XnnpackProvider, "intra_op_num_threads", "0"),
        (NnapiProvider, "NNAPI_FLAG_USE_FP16", "1"),
    ],
)
def test_what_plain_run_cannot_work_with_or_is_outside_its_domain_is_refused(
    kind: type[BuiltInProvider], name: str, value: str
) -> None:
    provider = kind()
    with pytest.raises(StrategyError, match=name):
        provider.check(using(provider, **{name: value}))


def test_an_option_of_a_later_onnxruntime_is_refused(listing: Lister, monkeypatch: pytest.MonkeyPatch) -> None:
    listing(TensorRtProvider.name, CPU)
    monkeypatch.setattr(onnxruntime, "__version__", "1.22.0")
    provider = TensorRtProvider(system="win32")
    with pytest.raises(StrategyError, match=r"trt_bf16_enable needs version 1\.23 or later, installed is 1\.22\.0"):
        provider.check(using(provider, trt_bf16_enable="True"))


def test_the_base_class_offers_nothing_without_a_name() -> None:
    assert all(kind.name and kind.install and kind.device_words for kind in ALL)
    assert set(built_in.SYSTEMS) >= {system for kind in ALL for system in kind.systems}


# ---- the suite itself fails what it should --------------------------------------------------------------------------


class StatingProvider(CpuProvider):
    name = "StatingExecutionProvider"
    options: ClassVar[Mapping[str, Option]] = {
        "THREADS": Option("THREADS", (), "1", "how many", source="this test", numbers=(1, 8), since="1.0", until="99.0")
    }
    capabilities: ClassVar[Capabilities] = Capabilities(
        constraints=Constraints(static_shapes=True, source="this test"),
        compiled=CompiledModel("blobs", {"a.b": "1"}, ("model", "driver"), source="this test"),
        failings=(Failing("slow", "it is", "wait", "this test"),),
        driver="this test",
    )

    def devices(self) -> tuple[Device, ...]:
        return (replace(cpu_device(), provider=self.name),)

    def driver_version(self) -> str | None:
        return "1"


def changed_option(**changes: Any) -> Mapping[str, Option]:
    return {"THREADS": replace(StatingProvider.options["THREADS"], **changes)}


def changed(**changes: Any) -> Capabilities:
    return replace(StatingProvider.capabilities, **changes)


def test_the_conformance_suite_passes_an_adapter_that_states_everything() -> None:
    check_adapter(StatingProvider())


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("run_on_hardware", False),
        ("capabilities", {"opsets": (1, 17)}),
        ("capabilities", changed(constraints=Constraints(static_shapes=True))),
        ("capabilities", changed(constraints=Constraints(opsets=(18, 17), source="x"))),
        ("capabilities", changed(compiled=CompiledModel("blobs", {}, (), source="x"))),
        ("capabilities", changed(compiled=CompiledModel("blobs", {}, ("model",), source="x"))),
        ("capabilities", changed(compiled=CompiledModel("blobs", {}, ("model", "weather"), source="x"))),
        ("capabilities", changed(compiled=CompiledModel("blobs", {"NO_OPTION": "1"}, ("model", "driver"), source="x"))),
        ("capabilities", changed(failings=(Failing("slow", "it is", "wait"),))),
        ("capabilities", changed(driver="")),
        ("driver_version", lambda self: 5),
        ("options", changed_option(numbers=(8, 1))),
        ("options", changed_option(default="9")),
        ("options", changed_option(values=("1", "2"))),
        ("options", changed_option(since="99.0", until="1.0")),
        ("options", changed_option(since="one point two")),
        ("options", {"THREADS": Option("THREADS", ("1", "1"), "1", "twice", source="x")}),
        ("devices", lambda self: (replace(cpu_device(), provider=self.name, emulated=True),)),
        ("devices", lambda self: (replace(cpu_device(), provider=self.name, simulated=True),)),
        ("devices", lambda self: (replace(cpu_device(), provider=self.name, memory_mb=0.0),)),
        ("availability", lambda self: Availability(True, "built-in", "here", "1.0", emulated=True)),
    ],
)
def test_the_conformance_suite_fails_an_adapter_that_states_one_thing_wrong(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: Any
) -> None:
    monkeypatch.setattr(StatingProvider, attribute, value)
    with pytest.raises((AssertionError, pytest.fail.Exception, ValueError)):
        check_adapter(StatingProvider())


def test_the_conformance_suite_lets_an_option_end_before_the_installed_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StatingProvider, "options", changed_option(since="0.1", until="1.0"))
    check_adapter(StatingProvider())
