"""OpenVINO, from the plug-in package onnxruntime-ep-openvino or built into the package onnxruntime-openvino.

What differs between the two ways, each seen running (plug-in 1.8.1 with onnxruntime 1.32.0, built-in 1.24.1):

* The plug-in must be added by its devices: as a name in ``providers=`` it is dropped without a word. It offers devices
  on Intel hardware only, which it tells by the vendor id that onnxruntime reports. The built-in one ran on AMD's too.
* The plug-in ignores every option but ``load_config``, whose JSON is keyed by the OpenVINO device: for the meta device
  AUTO the key is ``AUTO``; options under ``CPU`` are then ignored silently, and precision with them.
* The built-in one accepts ``device_type`` AUTO and then runs nothing on OpenVINO, so AUTO is not offered there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

from ort_metainfer.errors import ProviderError, StrategyError
from ort_metainfer.hardware.devices import cpu_device, onnxruntime_hardware
from ort_metainfer.problem import Device
from ort_metainfer.providers.base import Availability, Option, Provider
from ort_metainfer.providers.plugin import PlugIn, distribution_version
from ort_metainfer.strategy import Strategy

__all__ = ["OpenVinoProvider"]

NAME = "OpenVINOExecutionProvider"
BUILT_IN = "onnxruntime-openvino"
INTEL_VENDOR_ID = 0x8086
PLUG_IN = PlugIn(
    distribution="onnxruntime-ep-openvino",
    module="onnxruntime_ep_openvino",
    registration=NAME,
    offers=lambda ep_name: ep_name == NAME or ep_name.startswith(f"{NAME}."),
)
ORDER = ("CPU", "AUTO", "GPU", "NPU")
"""Devices, best first: the two that were run here, the one that EPContext models work on before the other."""

PROPERTIES = "OpenVINO documentation, properties of the CPU device (ov::hint, ov::streams)"


def _options(*options: Option) -> Mapping[str, Option]:
    return MappingProxyType({option.name: option for option in options})


class OpenVinoProvider(Provider):
    """Runs whole graphs through OpenVINO. Without a precision hint it computes in bf16 where the CPU has it."""

    name: ClassVar[str] = NAME
    kinds: ClassVar[tuple[str, ...]] = ("cpu", "gpu", "npu")
    default_is_lossy: ClassVar[bool] = True
    run_on_hardware: ClassVar[bool] = True
    options: ClassVar[Mapping[str, Option]] = _options(
        Option(
            name="INFERENCE_PRECISION_HINT",
            values=("f32", "bf16", "f16"),
            default="",
            meaning="type that float32 models are computed in; unset, the device's fastest",
            lossy_values=("bf16", "f16"),
            source=f"{PROPERTIES}; relative error 6e-9 with f32, 2.5e-4 with bf16 and f16 (ResNet-50, own measurement)",
        ),
        Option(
            name="EXECUTION_MODE_HINT",
            values=("PERFORMANCE", "ACCURACY"),
            default="PERFORMANCE",
            meaning="whether the device may choose a smaller type; a precision hint wins over it",
            lossy_values=("PERFORMANCE",),
            source=f"{PROPERTIES}; ACCURACY gives the results of f32, with a bf16 hint those of bf16 (own measurement)",
        ),
        Option(
            name="PERFORMANCE_HINT",
            values=("LATENCY", "THROUGHPUT"),
            default="LATENCY",
            meaning="one request with all cores, or several side by side",
            source=PROPERTIES,
        ),
        Option("NUM_STREAMS", (), "1", "requests computed side by side: a positive number", source=PROPERTIES),
        Option(
            name="INFERENCE_NUM_THREADS",
            values=(),
            default="",
            meaning="threads, a positive number; OpenVINO does not heed intra_op_num_threads",
            source=PROPERTIES,
        ),
        Option("ENABLE_CPU_PINNING", ("YES", "NO"), "YES", "whether threads stay on their core", source=PROPERTIES),
    )

    def availability(self) -> Availability:
        """Built in, or the plug-in's package with Intel hardware to run on."""
        import onnxruntime

        if _is_built_in():
            version = distribution_version(BUILT_IN, "onnxruntime") or onnxruntime.__version__
            return Availability(True, "built-in", f"built into {BUILT_IN} {version}", version)
        version = PLUG_IN.version
        if version is None:
            return Availability(False, None, _what_to_install())
        if not hasattr(onnxruntime, "register_execution_provider_library"):
            reason = f"{PLUG_IN.distribution} {version} needs onnxruntime 1.23 or later, this is"
            return Availability(False, "plug-in", f"{reason} {onnxruntime.__version__}; upgrade it", version)
        if not _has_intel_hardware():
            return Availability(False, "plug-in", _no_device(version), version)
        return Availability(True, "plug-in", f"{PLUG_IN.distribution} {version} is installed", version)

    def devices(self) -> tuple[Device, ...]:
        """CPU and AUTO, then GPU and NPU where there are any."""
        found = self.availability()
        if not found.usable:
            raise ProviderError(found.reason)
        driver = next(iter(self.versions().values()), None)
        if found.how == "built-in":
            return tuple(_built_in_device(name, driver) for name in _built_in_device_names())
        offered = _by_device_name(PLUG_IN.devices())
        if not offered:
            raise ProviderError(_no_device(found.version))
        return tuple(_device(name, devices[0]) for name, devices in offered.items())

    def versions(self) -> dict[str, str]:
        """The package that holds OpenVINO, with its version."""
        if _is_built_in():
            distribution, version = BUILT_IN, distribution_version(BUILT_IN, "onnxruntime")
        else:
            distribution, version = PLUG_IN.distribution, PLUG_IN.version
        return {} if version is None else {distribution: version}

    def attach(self, options: Any, strategy: Strategy) -> list[tuple[str, dict[str, str]]] | None:
        """Add the strategy's device to ``options``, or return the built-in provider by its name."""
        properties = dict(self.check(strategy))
        found = self.availability()
        if not found.usable:
            raise ProviderError(found.reason)
        if found.how == "built-in":
            name = self._device_name(strategy, _built_in_device_names())
            return [(self.name, {"device_type": name, **_load_config(name, properties)})]
        offered = _by_device_name(PLUG_IN.devices())
        if not offered:
            raise ProviderError(_no_device(found.version))
        name = self._device_name(strategy, tuple(offered))
        options.add_provider_for_devices(offered[name], _load_config(name, properties))
        return None

    def is_lossy(self, strategy: Strategy) -> bool:
        """Lossy unless float32 is demanded: by the precision hint, or without one by the execution mode."""
        properties = self.check(strategy)
        precision = properties.get("INFERENCE_PRECISION_HINT")
        if precision is not None:
            return precision != "f32"
        return properties.get("EXECUTION_MODE_HINT") != "ACCURACY"

    def check(self, strategy: Strategy) -> Mapping[str, str]:
        """The base class's check, and numbers where numbers are wanted: OpenVINO takes 0 and 99 without a word."""
        properties = super().check(strategy)
        for name in ("NUM_STREAMS", "INFERENCE_NUM_THREADS"):
            value = properties.get(name, "1")
            if not value.isdecimal() or int(value) < 1:
                raise StrategyError(f"{self.name} option {name} must be a positive number, got {value!r}")
        return properties

    def _device_name(self, strategy: Strategy, offered: tuple[str, ...]) -> str:
        name = self.chosen_device(strategy, offered)
        if name is None:
            raise ProviderError(f"{self.name} is installed and offers no device here; reinstall its package")
        return name


def _load_config(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    return {"load_config": json.dumps({name: dict(properties)})} if properties else {}


def _is_built_in() -> bool:
    """Whether this onnxruntime was compiled with OpenVINO; a registered plug-in lists the same provider's name."""
    from onnxruntime.capi import onnxruntime_pybind11_state as binding

    return hasattr(binding, "get_available_openvino_device_ids")


def _has_intel_hardware() -> bool:
    return any(hardware.vendor_id == INTEL_VENDOR_ID for hardware in onnxruntime_hardware())


def _what_to_install() -> str:
    if _has_intel_hardware():
        return f"not installed; run: pip install {PLUG_IN.distribution}"
    cpu = cpu_device()
    return f"not installed; on this CPU ({cpu.vendor or cpu.name}) use the package {BUILT_IN} in place of onnxruntime"


def _no_device(version: str | None) -> str:
    cpu = cpu_device()
    plug_in = f"{PLUG_IN.distribution} {version} offers no device"
    if _has_intel_hardware():
        return f"{plug_in} on {cpu.name}, though there is Intel hardware; upgrade the package and the hardware's driver"
    return (
        f"{plug_in}: it accepts Intel hardware only and this CPU is {cpu.vendor or cpu.name}; "
        f"the package {BUILT_IN} (in place of onnxruntime) runs on it"
    )


@lru_cache(maxsize=1)
def _built_in_device_names() -> tuple[str, ...]:
    from onnxruntime.capi import onnxruntime_pybind11_state as binding

    return tuple(sorted(binding.get_available_openvino_device_ids(), key=_rank))


def _by_device_name(offered: list[Any]) -> dict[str, list[Any]]:
    """OpenVINO's device name -> its OrtEpDevices, best first; AUTO may span several pieces of hardware.

    Virtual devices (a caller can register the library for them) compile for absent hardware and cannot run: left out.
    """
    named: dict[str, list[Any]] = {}
    for device in offered:
        told = dict(device.ep_metadata)
        if told.get("is_virtual") == "1":
            continue
        name = told.get("ov_meta_device") or told.get("ov_device") or device.device.type.name
        named.setdefault(name, []).append(device)
    return {name: named[name] for name in sorted(named, key=_rank)}


def _rank(name: str) -> tuple[int, str]:
    family = name.partition(".")[0]
    return (ORDER.index(family) if family in ORDER else len(ORDER), name)


def _device(name: str, offered: Any) -> Device:
    told, kind = dict(offered.ep_metadata), offered.device.type.name.lower()
    full_name = told.get("FULL_DEVICE_NAME", name)
    vendor, version = offered.device.vendor, told.get("version")
    if kind == "cpu":
        return _on_cpu(name, version)
    return Device(NAME, kind, full_name, vendor=vendor, provider_device=name, driver=version)


def _built_in_device(name: str, driver: str | None) -> Device:
    kind = name.partition(".")[0].lower()
    if kind == "cpu":
        return _on_cpu(name, driver)
    return Device(NAME, kind, name, vendor="Intel", provider_device=name, driver=driver)


def _on_cpu(name: str, driver: str | None) -> Device:
    cpu = cpu_device()
    return Device(
        provider=NAME,
        kind="cpu",
        name=cpu.name,
        vendor=cpu.vendor,
        provider_device=name,
        features=cpu.features,
        cores=cpu.cores,
        driver=driver,
        lasting_limit=cpu.lasting_limit,
    )
