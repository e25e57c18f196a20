"""Adapters keep their contract; OpenVINO's and nxrt's are run for real, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as binding

from ort_metainfer.errors import ProviderError, StrategyError
from ort_metainfer.hardware.devices import cpu_device
from ort_metainfer.problem import Device
from ort_metainfer.providers import (
    Availability,
    Option,
    Provider,
    all_providers,
    get_provider,
    openvino,
    plugin,
    registry,
    usable_providers,
    without_adapter,
)
from ort_metainfer.providers.cpu import CpuProvider
from ort_metainfer.providers.discovered import discover
from ort_metainfer.providers.nxrt import NxrtProvider
from ort_metainfer.providers.openvino import OpenVinoProvider
from ort_metainfer.providers.plugin import PlugIn
from ort_metainfer.providers.registry import BrokenProvider
from ort_metainfer.strategy import Strategy
from tests.provider_conformance import check_adapter, check_cheap_questions_import_nothing

ROOT = Path(__file__).resolve().parent.parent
BUILT_IN_PYTHON = os.environ.get("ORT_METAINFER_OPENVINO_PYTHON")
"""An interpreter with onnxruntime-openvino; read before the environment is cleared for each test."""
OV = "OpenVINOExecutionProvider"
F32 = {"INFERENCE_PRECISION_HINT": "f32"}
ADAPTERS = [CpuProvider(), OpenVinoProvider(), NxrtProvider(), BrokenProvider("theirs", "theirs does not load; fix it")]


@pytest.fixture(autouse=True)
def fresh_registry() -> Iterator[None]:
    registry._third_parties.cache_clear()
    yield
    registry._third_parties.cache_clear()


# ---- the contract ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("provider", ADAPTERS, ids=lambda provider: provider.name)
def test_every_adapter_keeps_the_contract(provider: Provider) -> None:
    check_adapter(provider)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("provider", "module"), [(OpenVinoProvider(), "onnxruntime_ep_openvino"), (NxrtProvider(), "nxrt_ep_cpu")]
)
def test_asking_whether_it_is_available_loads_nothing(provider: Provider, module: str) -> None:
    check_cheap_questions_import_nothing(provider, module, ROOT)


@pytest.mark.slow
def test_the_common_path_does_not_import_what_takes_long() -> None:
    """importlib.metadata brings the e-mail parser along, onnx protobuf: a cached start needs neither."""
    code = (
        "import sys, ort_metainfer; from ort_metainfer.providers import get_provider, usable_providers\n"
        "usable_providers(); get_provider('OpenVINO').versions(); get_provider('cpu_ep').versions()\n"
        "from ort_metainfer.hardware.devices import device_string; device_string()\n"
        "print([name for name in ('importlib.metadata', 'email', 'onnx', 'sqlitedict') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_a_version_is_the_one_the_metadata_tells() -> None:
    for module in ("numpy", "onnxruntime", "pytest"):
        if any(dist.name == module for dist in metadata.distributions()):
            assert plugin.distribution_version(module, module) == metadata.version(module)
    assert plugin.distribution_version("no-such-distribution", "numpy") is None
    assert plugin.distribution_version("no-such-distribution", "no_such_module_anywhere") is None


class GoodProvider(CpuProvider):
    name = "GoodExecutionProvider"
    options: ClassVar[Mapping[str, Option]] = {
        "PRECISION": Option("PRECISION", ("f32", "f16"), "f32", "what to compute in", ("f16",), "this test")
    }

    def devices(self) -> tuple[Device, ...]:
        return (replace(cpu_device(), provider=self.name),)


def option(**changes: Any) -> Mapping[str, Option]:
    return {"PRECISION": replace(GoodProvider.options["PRECISION"], **changes)}


def test_the_conformance_suite_passes_a_good_adapter() -> None:
    check_adapter(GoodProvider())


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("name", ""),
        ("kinds", ("toaster",)),
        ("availability", lambda self: Availability(True, None, "usable, and no way in")),
        ("availability", lambda self: Availability(True, "built-in", "")),
        ("versions", lambda self: {}),
        ("versions", lambda self: {"onnxruntime": None}),
        ("is_lossy", lambda self, strategy: True),
        ("devices", lambda self: ()),
        ("devices", lambda self: (cpu_device(),)),
        ("check", lambda self, strategy: strategy.provider_options),
        ("attach", lambda self, options, strategy: None),
        ("options", option(name="OTHER")),
        ("options", option(source="")),
        ("options", option(default="f64")),
        ("options", option(lossy_values=("f8",))),
        ("chosen_device", lambda self, strategy, offered=(): None),
    ],
)
def test_the_conformance_suite_fails_an_adapter_with_one_thing_wrong(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: Any
) -> None:
    monkeypatch.setattr(GoodProvider, attribute, value)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check_adapter(GoodProvider())


@pytest.mark.parametrize(
    ("options", "lossy"),
    [({}, True), ({"THREADS": "1"}, True), ({"PRECISION": "f32"}, False), ({"PRECISION": "f16"}, True)],
)
def test_an_option_that_says_nothing_of_precision_leaves_a_lossy_default_lossy(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], lossy: bool
) -> None:
    threads = Option("THREADS", ("1", "2"), "2", "how many", source="this test")
    monkeypatch.setattr(GoodProvider, "options", {**GoodProvider.options, "THREADS": threads})
    monkeypatch.setattr(GoodProvider, "default_is_lossy", True)
    assert GoodProvider().is_lossy(Strategy(provider_options=options)), "nothing is stated to make it exact"
    monkeypatch.setattr(GoodProvider, "exact", {"PRECISION": "f32"})
    assert GoodProvider().is_lossy(Strategy(provider_options=options)) is lossy
    check_adapter(GoodProvider())


# ---- the registry ---------------------------------------------------------------------------------------------------


def test_the_cpu_comes_first_and_always() -> None:
    assert all_providers()[0].name == "CPUExecutionProvider"
    for names in (None, (), {"CPU"}, {OV}, {"NoSuchExecutionProvider"}):
        assert usable_providers(names)[0].name == "CPUExecutionProvider"


def test_an_unknown_provider_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ProviderError, match=r"'Bogus'; known: CPUExecutionProvider, OpenVINOExecutionProvider, cpu_ep"):
        get_provider("Bogus")


@pytest.mark.parametrize("name", ["OpenVINO", OV])
def test_the_suffix_may_be_left_out(name: str) -> None:
    assert get_provider(name).name == OV


def test_the_settings_spelling_of_a_name_without_the_suffix_is_understood() -> None:
    from ort_metainfer.settings import Settings

    for written in Settings(providers=("cpu_ep",)).providers or ():
        assert get_provider(written).name == "cpu_ep"


def test_an_opt_in_provider_is_used_only_where_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NxrtProvider, "availability", lambda self: Availability(True, "plug-in", "there"))
    assert "cpu_ep" not in [provider.name for provider in usable_providers()]
    assert [provider.name for provider in usable_providers({"cpu_ep"})] == ["CPUExecutionProvider", "cpu_ep"]


def test_what_cannot_be_used_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenVinoProvider, "availability", lambda self: Availability(False, None, "not there"))
    assert usable_providers({OV}) == (all_providers()[0],)


def test_providers_that_nobody_speaks_for_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = ["AzureExecutionProvider", f"{OV}.AUTO", "cpu_ep", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: listed)
    assert without_adapter() == ("AzureExecutionProvider",)


class TheirProvider(CpuProvider):
    name = "TheirExecutionProvider"


class FailingProvider(TheirProvider):
    name = "FailingExecutionProvider"

    def availability(self) -> Availability:
        raise ZeroDivisionError("oops")


class LeavingProvider(TheirProvider):
    def __init__(self) -> None:
        raise SystemExit(3)


def entry_points(monkeypatch: pytest.MonkeyPatch, **values: str) -> list[str]:
    """Make these the installed entry points; returns the list of groups that were asked for."""
    asked: list[str] = []

    def find(*, group: str) -> list[metadata.EntryPoint]:
        asked.append(group)
        return [metadata.EntryPoint(name, value, group) for name, value in values.items()]

    monkeypatch.setattr(metadata, "entry_points", find)
    return asked


def test_a_third_partys_adapter_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = entry_points(monkeypatch, theirs=f"{__name__}:TheirProvider")
    usable_providers()
    get_provider("CPU")
    assert asked == [], "the common path must not search the installed distributions"
    assert get_provider("Their").name == "TheirExecutionProvider"
    assert all_providers()[-1].name == "TheirExecutionProvider"
    assert [provider.name for provider in usable_providers({"TheirExecutionProvider"})][1:] == [TheirProvider.name]
    assert TheirProvider.name not in [provider.name for provider in usable_providers()]
    assert asked == ["ort_metainfer.providers"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("no_such_module_anywhere:Provider", "ModuleNotFoundError"),
        (f"{__name__}:no_such_name", "AttributeError"),
        (f"{__name__}:FailingProvider", "ZeroDivisionError: oops"),
        (f"{__name__}:LeavingProvider", "SystemExit: 3"),
        ("pathlib:Path", "AttributeError"),
        (f"{__name__}:SimpleNamespace", "AttributeError"),
    ],
)
def test_a_broken_third_party_is_reported_and_harms_nobody(
    monkeypatch: pytest.MonkeyPatch, value: str, reason: str
) -> None:
    entry_points(monkeypatch, theirs=value)
    broken = get_provider("theirs")
    assert not broken.availability().usable
    assert value in broken.availability().reason and reason in broken.availability().reason
    assert usable_providers({"theirs"}) == (all_providers()[0],)
    with pytest.raises(ProviderError, match="theirs"):
        broken.devices()


def test_a_discovered_package_that_leaves_the_process_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "onnxruntime_ep_leaving").mkdir()
    source = 'EP_NAME = "Leaving"\ndef get_library_path(): raise SystemExit(3)\n'
    (tmp_path / "onnxruntime_ep_leaving" / "__init__.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    leaving = next(provider for provider in discover((), ()) if provider.name == "Leaving")
    with pytest.raises(ProviderError, match=r"onnxruntime-ep-leaving .*SystemExit: 3"):
        leaving.devices()


def test_a_third_party_cannot_take_the_place_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    class Impostor(CpuProvider):
        pass

    monkeypatch.setattr(sys.modules[__name__], "Impostor", Impostor, raising=False)
    entry_points(monkeypatch, impostor=f"{__name__}:Impostor")
    assert type(get_provider("CPUExecutionProvider")) is CpuProvider
    assert "ignored" in all_providers()[-1].availability().reason


# ---- the CPU provider -----------------------------------------------------------------------------------------------


def test_the_cpu_provider_is_given_by_name() -> None:
    assert CpuProvider().attach(onnxruntime.SessionOptions(), Strategy()) == [("CPUExecutionProvider", {})]


# ---- OpenVINO -------------------------------------------------------------------------------------------------------


def hardware(kind: str = "CPU", vendor_id: int = 0x8086) -> Any:
    kind_of = SimpleNamespace(name=kind)
    return SimpleNamespace(type=kind_of, vendor="someone", vendor_id=vendor_id, device_id=0, metadata={})


def ep_device(ep_name: str, told: Mapping[str, str], kind: str = "CPU") -> Any:
    return SimpleNamespace(ep_name=ep_name, ep_metadata=told, device=hardware(kind))


CPU_DEVICE = ep_device(OV, {"ov_device": "CPU", "version": "1.8.1", "FULL_DEVICE_NAME": "Intel Xeon"})
AUTO_DEVICE = ep_device(f"{OV}.AUTO", {"ov_device": "CPU", "ov_meta_device": "AUTO", "version": "1.8.1"})
GPU_DEVICE = ep_device(OV, {"ov_device": "GPU", "FULL_DEVICE_NAME": "Intel Arc", "version": "1.8.1"}, "GPU")
VIRTUAL_DEVICE = ep_device(OV, {"ov_device": "NPU", "is_virtual": "1"}, "NPU")


class FakeOptions:
    """Remembers what was added, as onnxruntime's SessionOptions cannot."""

    def __init__(self) -> None:
        self.added: list[tuple[list[Any], dict[str, str]]] = []

    def add_provider_for_devices(self, devices: list[Any], options: dict[str, str]) -> None:
        self.added.append((devices, options))


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The plug-in package on Intel hardware; the list is what onnxruntime offers once it is registered."""
    offered = [AUTO_DEVICE, GPU_DEVICE, VIRTUAL_DEVICE, CPU_DEVICE]
    registered: list[str] = []
    monkeypatch.setattr(PlugIn, "version", property(lambda self: "1.8.1"))
    monkeypatch.setattr(PlugIn, "_library", lambda self: "/there/lib.so")
    monkeypatch.setattr(plugin, "_registered", set())
    monkeypatch.setattr(openvino, "_is_built_in", lambda: False)
    monkeypatch.setattr(binding, "get_hardware_devices", lambda: [hardware()], raising=False)
    monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: list(offered) if registered else [])
    monkeypatch.setattr(onnxruntime, "register_execution_provider_library", lambda name, path: registered.append(name))
    return offered


def attach(device: str | None = None, **options: str) -> tuple[list[Any], dict[str, Any]]:
    """Which devices were added to the session options, and the load_config given with them."""
    session_options = FakeOptions()
    strategy = Strategy(provider=OV, device=device, provider_options=options)
    assert OpenVinoProvider().attach(session_options, strategy) is None
    [(devices, given)] = session_options.added
    return devices, json.loads(given["load_config"]) if given else {}


def test_openvino_offers_its_cpu_first_and_no_virtual_device(plug_in: list[Any]) -> None:
    devices = OpenVinoProvider().devices()
    assert [(device.provider_device, device.kind) for device in devices] == [
        ("CPU", "cpu"),
        ("AUTO", "cpu"),
        ("GPU", "gpu"),
    ]
    assert devices[0].cores == cpu_device().cores and devices[0].features == cpu_device().features
    assert (devices[2].name, devices[2].driver) == ("Intel Arc", "1.8.1")


def test_openvino_properties_stand_under_the_chosen_devices_own_name(plug_in: list[Any]) -> None:
    """Under CPU, the AUTO device ignores them without a word, and computes in bf16 what was to be f32."""
    assert attach(**F32) == ([CPU_DEVICE], {"CPU": F32})
    assert attach("AUTO", **F32) == ([AUTO_DEVICE], {"AUTO": F32})
    assert attach("GPU", **F32) == ([GPU_DEVICE], {"GPU": F32})
    assert attach("CPU") == ([CPU_DEVICE], {})


def test_auto_spans_all_its_hardware(plug_in: list[Any]) -> None:
    second = ep_device(f"{OV}.AUTO", {"ov_device": "GPU", "ov_meta_device": "AUTO"}, "GPU")
    plug_in.append(second)
    assert attach("AUTO")[0] == [AUTO_DEVICE, second]


def test_a_device_that_is_not_there_is_refused_with_those_that_are(plug_in: list[Any]) -> None:
    with pytest.raises(ProviderError, match=r"no device 'NPU' here; it offers CPU, AUTO, GPU"):
        attach("NPU")


def test_a_library_that_offers_nothing_is_an_error_that_says_what_to_do(plug_in: list[Any]) -> None:
    plug_in.clear()
    with pytest.raises(ProviderError, match=r"onnxruntime-ep-openvino 1\.8\.1 offers no device .*upgrade"):
        OpenVinoProvider().devices()
    with pytest.raises(ProviderError, match="offers no device"):
        attach()


def test_on_another_makers_cpu_the_plug_in_is_unusable_and_says_what_is(
    plug_in: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "get_hardware_devices", lambda: [hardware(vendor_id=0x1022)], raising=False)
    monkeypatch.setattr(openvino, "cpu_device", lambda: SimpleNamespace(vendor="AMD", name="AMD EPYC"))
    assert OpenVinoProvider().availability() == Availability(
        False,
        "plug-in",
        "onnxruntime-ep-openvino 1.8.1 offers no device: it accepts Intel hardware only and this CPU is AMD; "
        "the package onnxruntime-openvino (in place of onnxruntime) runs on it",
        "1.8.1",
    )


def test_an_intel_gpu_beside_another_makers_cpu_is_enough(plug_in: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    both = [hardware(vendor_id=0x1022), hardware("GPU")]
    monkeypatch.setattr(binding, "get_hardware_devices", lambda: both, raising=False)
    assert OpenVinoProvider().availability().usable


@pytest.mark.parametrize(("vendor_id", "package"), [(0x8086, "onnxruntime-ep-openvino"), (0x1022, "in place of")])
def test_what_to_install_depends_on_the_cpu(
    plug_in: list[Any], monkeypatch: pytest.MonkeyPatch, vendor_id: int, package: str
) -> None:
    monkeypatch.setattr(PlugIn, "version", property(lambda self: None))
    monkeypatch.setattr(binding, "get_hardware_devices", lambda: [hardware(vendor_id=vendor_id)], raising=False)
    found = OpenVinoProvider().availability()
    assert (found.usable, found.how) == (False, None)
    assert package in found.reason


def test_an_onnxruntime_without_plug_ins_is_to_be_upgraded(plug_in: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(onnxruntime, "register_execution_provider_library")
    for provider in (OpenVinoProvider(), NxrtProvider()):
        assert not provider.availability().usable
        assert "needs onnxruntime 1.23" in provider.availability().reason


@pytest.fixture
def built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """An onnxruntime with OpenVINO compiled in."""
    monkeypatch.setattr(binding, "get_available_openvino_device_ids", lambda: ["GPU", "CPU"], raising=False)
    openvino._built_in_device_names.cache_clear()


@pytest.fixture(autouse=True)
def forget_built_in_devices() -> Iterator[None]:
    yield
    openvino._built_in_device_names.cache_clear()


@pytest.mark.usefixtures("built_in")
def test_the_built_in_openvino_is_given_by_name() -> None:
    provider = OpenVinoProvider()
    assert provider.availability().how == "built-in"
    assert [(device.provider_device, device.kind) for device in provider.devices()] == [("CPU", "cpu"), ("GPU", "gpu")]
    [(name, options)] = provider.attach(FakeOptions(), Strategy(provider=OV, provider_options=F32)) or []
    assert (name, options) == (OV, {"device_type": "CPU", "load_config": json.dumps({"CPU": F32})})
    assert provider.attach(FakeOptions(), Strategy(provider=OV, device="GPU")) == [(OV, {"device_type": "GPU"})]


@pytest.mark.usefixtures("built_in")
def test_the_built_in_openvino_has_no_auto_device() -> None:
    """It accepts device_type AUTO, and then runs nothing there."""
    with pytest.raises(ProviderError, match="AUTO"):
        OpenVinoProvider().attach(FakeOptions(), Strategy(provider=OV, device="AUTO"))


@pytest.mark.parametrize(
    ("options", "lossy"),
    [
        ({}, True),
        ({"NUM_STREAMS": "1"}, True),
        ({"INFERENCE_PRECISION_HINT": "f32"}, False),
        ({"INFERENCE_PRECISION_HINT": "bf16"}, True),
        ({"INFERENCE_PRECISION_HINT": "f16"}, True),
        ({"EXECUTION_MODE_HINT": "ACCURACY"}, False),
        ({"EXECUTION_MODE_HINT": "PERFORMANCE"}, True),
        ({"EXECUTION_MODE_HINT": "PERFORMANCE", "INFERENCE_PRECISION_HINT": "f32"}, False),
        ({"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_PRECISION_HINT": "bf16"}, True),
        ({"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1", "PERFORMANCE_HINT": "LATENCY"}, False),
    ],
)
def test_openvino_is_lossy_unless_float32_is_demanded(options: dict[str, str], lossy: bool) -> None:
    assert OpenVinoProvider().is_lossy(Strategy(provider=OV, provider_options=options)) is lossy


@pytest.mark.parametrize("name", ["NUM_STREAMS", "INFERENCE_NUM_THREADS"])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", ""])
def test_a_count_must_be_a_positive_number(name: str, value: str) -> None:
    with pytest.raises(StrategyError, match=f"{name} must be a whole number from 1"):
        OpenVinoProvider().check(Strategy(provider=OV, provider_options={name: value}))


# ---- registering a plug-in's library --------------------------------------------------------------------------------


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> tuple[PlugIn, list[str], list[Any]]:
    """A plug-in, the names it was registered under, and what onnxruntime offers."""
    names: list[str] = []
    offered: list[Any] = []

    def register(name: str, path: str) -> None:
        names.append(name)
        offered.append(ep_device("mine", {}))

    monkeypatch.setattr(plugin, "_registered", set())
    monkeypatch.setattr(PlugIn, "_library", lambda self: "/there/lib.so")
    monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: list(offered))
    monkeypatch.setattr(onnxruntime, "register_execution_provider_library", register)
    return PlugIn("mine-dist", "mine_module", "mine", lambda name: name == "mine"), names, offered


def test_a_library_is_registered_once_however_many_threads_ask(
    library: tuple[PlugIn, list[str], list[Any]],
) -> None:
    mine, names, _ = library
    barrier, counts = threading.Barrier(8), []

    def ask() -> None:
        barrier.wait(10)
        counts.append(len(mine.devices()))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert (names, counts) == (["mine"], [1] * 8)


def test_a_library_the_caller_registered_is_left_alone(library: tuple[PlugIn, list[str], list[Any]]) -> None:
    mine, names, offered = library
    offered.append(ep_device("mine", {}))
    assert len(mine.devices()) == 1
    assert names == []


def test_a_library_without_devices_is_not_registered_again(
    library: tuple[PlugIn, list[str], list[Any]],
) -> None:
    mine, names, offered = library
    assert len(mine.devices()) == 1
    offered.clear()
    assert mine.devices() == []
    assert names == ["mine"]


def test_a_callers_registration_without_devices_is_no_error(
    library: tuple[PlugIn, list[str], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, path: str) -> None:
        raise binding.Fail(f"EP library is already registered under {name}")

    monkeypatch.setattr(onnxruntime, "register_execution_provider_library", refuse)
    assert library[0].devices() == []


@pytest.mark.slow
def test_a_library_that_does_not_load_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "libbroken.so"
    broken.write_bytes(b"\x7fELF and no more")
    monkeypatch.setattr(PlugIn, "_library", lambda self: str(broken))
    with pytest.raises(ProviderError, match=r"broken-dist .*libbroken\.so does not load: .*reinstall it"):
        PlugIn("broken-dist", "json", "broken", lambda name: name == "broken").devices()


def test_a_package_that_is_gone_is_named_with_what_to_do() -> None:
    missing = PlugIn("missing-dist", "no_such_module_anywhere", "missing", lambda name: name == "missing")
    assert missing.version is None
    with pytest.raises(ProviderError, match="pip install missing-dist"):
        missing.devices()


def test_what_an_uninstalled_package_leaves_behind_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "left_behind" / "__pycache__").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert PlugIn("left-behind", "left_behind", "left", lambda name: name == "left").version is None


def test_a_package_without_metadata_beside_it_is_of_unknown_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copied_by_hand").mkdir()
    (tmp_path / "copied_by_hand" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert PlugIn("copied-by-hand", "copied_by_hand", "copied", lambda name: False).version == "unknown"


# ---- for real, in child processes -----------------------------------------------------------------------------------


@pytest.fixture
def perceptron(tmp_path: Path) -> Path:
    """Thirty layers of MatMul, Add and LayerNormalization, then Softmax: enough for bf16 to be seen in the outputs."""
    rng = np.random.default_rng(0)
    weights = {
        "w": (rng.standard_normal((64, 64)) / 8).astype(np.float32),
        "b": rng.standard_normal(64).astype(np.float32),
        "s": np.ones(64, np.float32),
    }
    nodes = []
    for layer in range(30):
        nodes += [
            helper.make_node("MatMul", [f"x{layer}" if layer else "x", "w"], [f"m{layer}"]),
            helper.make_node("Add", [f"m{layer}", "b"], [f"a{layer}"]),
            helper.make_node("LayerNormalization", [f"a{layer}", "s", "b"], [f"x{layer + 1}"], axis=-1),
        ]
    nodes.append(helper.make_node("Softmax", ["x30"], ["y"]))
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, 64]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "perceptron", values[:1], values[1:], tensors)
    path = tmp_path / "perceptron.onnx"
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]), str(path))
    return path


def run(
    model: Path, provider: str, device: str | None = None, python: str = sys.executable, **options: str
) -> dict[str, Any]:
    """Run a model on a provider in a child that believes its CPU to be Intel's (see tests/vendor_override)."""
    strategy = Strategy(provider=provider, device=device, provider_options=options).as_dict()
    command = [python, str(ROOT / "tests" / "provider_run.py"), str(model), json.dumps(strategy)]
    folders = [ROOT, *([ROOT / "tests" / "vendor_override"] if python == sys.executable else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert "refused" not in report, report
    return report


def needs(distribution: str) -> None:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed; run: pip install --no-deps --pre {distribution}")


def took_everything(report: dict[str, Any], ep_name: str) -> bool:
    return set(report["nodes"]) == {ep_name} and report["nodes"][ep_name] > 0 and report["providers"][0] == ep_name


@pytest.mark.slow
@pytest.mark.parametrize(("device", "ep_name"), [(None, OV), ("CPU", OV), ("AUTO", f"{OV}.AUTO")])
def test_openvino_in_float32_takes_the_graph_and_keeps_its_results(
    perceptron: Path, device: str | None, ep_name: str
) -> None:
    needs("onnxruntime-ep-openvino")
    report = run(perceptron, OV, device, **F32)
    assert took_everything(report, ep_name), report
    assert report["error"] < 1e-4
    assert (report["lossy"], report["how"], report["devices"][:2]) == (False, "plug-in", ["CPU", "AUTO"])
    assert report["registrations"].count(OV) == 1


@pytest.mark.slow
@pytest.mark.parametrize("device", ["CPU", "AUTO"])
def test_openvino_takes_every_value_it_is_said_to_take(perceptron: Path, device: str) -> None:
    needs("onnxruntime-ep-openvino")
    counts = {"NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": "1"}
    for hint, pinned in (("LATENCY", "YES"), ("THROUGHPUT", "NO")):
        cores = {"ENABLE_HYPER_THREADING": pinned, "SCHEDULING_CORE_TYPE": "ANY_CORE"}
        cpu_only = {**counts, **cores, "ENABLE_CPU_PINNING": pinned} if device == "CPU" else {}
        report = run(perceptron, OV, device, PERFORMANCE_HINT=hint, EXECUTION_MODE_HINT="ACCURACY", **cpu_only)
        assert report["error"] < 1e-4
        assert report["lossy"] is False


@pytest.mark.slow
def test_openvino_in_bf16_is_another_result_and_is_called_lossy(perceptron: Path) -> None:
    needs("onnxruntime-ep-openvino")
    if not {"avx512_bf16", "amx_bf16"} & set(cpu_device().features):
        pytest.skip("this CPU has no bf16 instructions; OpenVINO then computes in float32 whatever the hint")
    for device in ("CPU", "AUTO"):
        report = run(perceptron, OV, device, INFERENCE_PRECISION_HINT="bf16")
        assert report["error"] > 1e-4
        assert report["lossy"] is True


@pytest.mark.slow
@pytest.mark.parametrize("name", ["opennsfw_resnet50", "ppocr_v6_det", "minilm_l3_fp32"])
def test_openvino_keeps_a_real_models_float32_results(zoo_model: Callable[[str], Path], name: str) -> None:
    needs("onnxruntime-ep-openvino")
    report = run(zoo_model(name), OV, **F32)
    assert took_everything(report, OV), report
    assert report["error"] < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["perceptron", "opennsfw_resnet50"])
def test_the_built_in_openvino_keeps_float32_results(request: pytest.FixtureRequest, name: str) -> None:
    if not BUILT_IN_PYTHON:
        pytest.skip("ORT_METAINFER_OPENVINO_PYTHON names no interpreter that has onnxruntime-openvino")
    made = name == "perceptron"
    model = request.getfixturevalue("perceptron") if made else request.getfixturevalue("zoo_model")(name)
    report = run(model, OV, python=BUILT_IN_PYTHON, **F32)
    assert took_everything(report, OV), report
    assert (report["how"], report["lossy"]) == ("built-in", False)
    assert report["error"] < 1e-4


@pytest.mark.slow
def test_the_built_in_openvino_heeds_its_properties(perceptron: Path) -> None:
    if not BUILT_IN_PYTHON:
        pytest.skip("ORT_METAINFER_OPENVINO_PYTHON names no interpreter that has onnxruntime-openvino")
    if not {"avx512_bf16", "amx_bf16"} & set(cpu_device().features):
        pytest.skip("this CPU has no bf16 instructions; OpenVINO then computes in float32 whatever the hint")
    assert run(perceptron, OV, python=BUILT_IN_PYTHON, INFERENCE_PRECISION_HINT="bf16")["error"] > 1e-4


@pytest.mark.slow
def test_nxrt_takes_a_perceptron_and_is_exact(perceptron: Path) -> None:
    needs("nxrt-ep-cpu")
    report = run(perceptron, "cpu_ep")
    assert took_everything(report, "cpu_ep"), report
    assert report["error"] < 1e-5
    assert (report["lossy"], report["registrations"].count("cpu_ep")) == (False, 1)


@pytest.mark.slow
def test_nxrt_is_listed_by_a_session_though_it_takes_next_to_nothing(zoo_model: Callable[[str], Path]) -> None:
    """Why get_providers() proves nothing and nodes are counted."""
    needs("nxrt-ep-cpu")
    report = run(zoo_model("minilm_l3_fp32"), "cpu_ep")
    assert report["providers"][0] == "cpu_ep"
    assert report["nodes"].get("CPUExecutionProvider", 0) > report["nodes"].get("cpu_ep", 0)
    assert report["error"] < 1e-5


def test_each_adapter_is_listed_under_its_own_name_and_imported_only_when_asked_for() -> None:
    from ort_metainfer.providers import registry

    assert [provider.name for provider in registry.our_providers()] == list(registry.HOMES)
    code = (
        "import sys; from ort_metainfer.providers import get_provider; get_provider('CPU')\n"
        "print([name for name in sys.modules if name.startswith('ort_metainfer.providers.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "providers.cpu" in done.stdout and "providers.cuda" not in done.stdout, done.stdout
