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
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

from ort_metainfer.errors import ProviderError, StrategyError
from ort_metainfer.hardware.devices import cpu_device, onnxruntime_hardware
from ort_metainfer.hardware.files import SYSTEM
from ort_metainfer.problem import Device
from ort_metainfer.providers.base import Availability, Option
from ort_metainfer.providers.capabilities import Capabilities
from ort_metainfer.providers.openvino_facts import BUILT_IN, CAPABILITIES, OPTIONS, OWNERS
from ort_metainfer.providers.plugin import PlugIn, distribution_version
from ort_metainfer.providers.plugin_provider import PlugInProvider, memory_mb, told
from ort_metainfer.strategy import Strategy

__all__ = ["OpenVinoProvider"]

NAME = "OpenVINOExecutionProvider"
INTEL_VENDOR_ID = 0x8086
PLUG_IN = PlugIn(
    distribution="onnxruntime-ep-openvino",
    module="onnxruntime_ep_openvino",
    registration=NAME,
    offers=lambda ep_name: ep_name == NAME or ep_name.startswith(f"{NAME}."),
)
LEFT_OUT, FOLDING = "optimization.disable_specified_optimizers", "ConstantFolding"
ORDER = ("CPU", "AUTO", "GPU", "NPU")
"""Devices, best first: the two that were run here, the one that EPContext models work on before the other."""


class OpenVinoProvider(PlugInProvider):
    """Runs whole graphs through OpenVINO. Without a precision hint it computes in bf16 where the CPU has it."""

    name: ClassVar[str] = NAME
    kinds: ClassVar[tuple[str, ...]] = ("cpu", "gpu", "npu")
    default_is_lossy: ClassVar[bool] = True
    exact: ClassVar[Mapping[str, str]] = MappingProxyType({"INFERENCE_PRECISION_HINT": "f32"})
    run_on_hardware: ClassVar[bool] = True
    plug_in: ClassVar[PlugIn] = PLUG_IN
    options: ClassVar[Mapping[str, Option]] = OPTIONS
    capabilities: ClassVar[Capabilities] = CAPABILITIES

    def availability(self) -> Availability:
        """Built in, or the plug-in's package with Intel hardware to run on."""
        import onnxruntime

        if not _is_built_in():
            return super().availability()
        version = distribution_version(BUILT_IN, "onnxruntime") or onnxruntime.__version__
        return Availability(True, "built-in", f"built into {BUILT_IN} {version}", version)

    def devices(self) -> tuple[Device, ...]:
        """CPU and AUTO, then GPU and NPU where there are any."""
        if not _is_built_in():
            return super().devices()
        driver = next(iter(self.versions().values()), None)
        return tuple(_built_in_device(name, driver) for name in _built_in_device_names())

    def versions(self) -> dict[str, str]:
        """The package that holds OpenVINO, with its version, and the NPU driver's where there is one."""
        if _is_built_in():
            version = distribution_version(BUILT_IN, "onnxruntime")
            found = {} if version is None else {BUILT_IN: version}
        else:
            found = super().versions()
        driver = self.driver_version()
        return {**found, "intel_vpu driver": driver} if found and driver else found

    def driver_version(self) -> str | None:
        """Of the NPU's kernel module, where it has a version of its own; the CPU needs none."""
        return (SYSTEM.read("/sys/module/intel_vpu/version", 256) or "").strip() or None

    def attach(self, options: Any, strategy: Strategy) -> list[tuple[str, dict[str, str]]] | None:
        """Add the strategy's device to ``options``, or return the built-in provider by its name."""
        if not _is_built_in():
            if strategy.static_shapes:
                _leave_constants(options)
            return super().attach(options, strategy)
        properties = self.check(strategy)
        name = self.chosen_device(strategy, _built_in_device_names())
        if name is None:
            raise ProviderError(f"{self.name} is installed and offers no device here; reinstall its package")
        return [(self.name, {"device_type": name, **self._given(name, properties)})]

    def is_lossy(self, strategy: Strategy) -> bool:
        """Lossy unless float32 is demanded: by the precision hint, or without one by the execution mode."""
        properties = self.check(strategy)
        precision = properties.get("INFERENCE_PRECISION_HINT")
        if precision is not None:
            return precision != "f32"
        return properties.get("EXECUTION_MODE_HINT") != "ACCURACY"

    def _not_installed(self) -> str:
        return _what_to_install()

    def _found_here(self, package: str, version: str) -> Availability:
        if not _has_intel_hardware():
            return Availability(False, "plug-in", _no_device(version), version)
        return super()._found_here(package, version)

    def _no_device(self) -> str:
        return _no_device(self.plug_in.version)

    def _named(self, offered: Sequence[Any]) -> Mapping[str, list[Any]]:
        """OpenVINO's device name -> its OrtEpDevices, best first; AUTO may span several pieces of hardware."""
        named: dict[str, list[Any]] = {}
        for device in offered:
            says = told(device)
            name = says.get("ov_meta_device") or says.get("ov_device") or device.device.type.name
            named.setdefault(name, []).append(device)
        return {name: named[name] for name in sorted(named, key=_rank)}

    def _device(self, name: str, offered: Any) -> Device:
        says, kind = told(offered), offered.device.type.name.lower()
        driver = says.get("NPU_DRIVER_VERSION") or says.get("version")
        if kind == "cpu":
            return _on_cpu(name, driver)
        full_name, vendor = says.get("FULL_DEVICE_NAME", name), offered.device.vendor
        return Device(NAME, kind, full_name, vendor, name, driver=driver, memory_mb=memory_mb(offered))

    def _given(self, name: str, properties: Mapping[str, str]) -> dict[str, str]:
        """``load_config``, keyed by the device; what is for another device OpenVINO would refuse with less to say.

        Raises:
            StrategyError: a property that this device does not have.
        """
        family = name.partition(".")[0]
        for property_name in properties:
            owners = OWNERS.get(property_name.partition("_")[0], OWNERS.get(property_name, (family,)))
            if family not in owners:
                raise StrategyError(
                    f"{self.name} option {property_name} is for the device {' or '.join(owners)}, this is {name}"
                )
        return {"load_config": json.dumps({name: dict(properties)})} if properties else {}


def _leave_constants(options: Any) -> None:
    """Keep onnxruntime from computing constants: sizes that are fixed by name make some that hold nothing.

    The plug-in 1.8.1 takes such a constant for an input and refuses the graph ("Input names mismatch"). OpenVINO
    computes constants itself.
    """
    try:
        named = options.get_session_config_entry(LEFT_OUT).split(";")
    except RuntimeError:  # never set
        named = []
    if FOLDING not in named:
        options.add_session_config_entry(LEFT_OUT, ";".join([*filter(None, named), FOLDING]))


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


def _rank(name: str) -> tuple[int, str]:
    family = name.partition(".")[0]
    return (ORDER.index(family) if family in ORDER else len(ORDER), name)


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
