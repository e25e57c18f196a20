"""Base of the adapters for providers that come as a plug-in package: each of them only states its facts.

A plug-in is always attached by its devices. By name, in ``providers=``, onnxruntime 1.32 drops some of them without a
word (OpenVINO's and QNN's: seen), and the session runs on the CPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ort_metainfer.errors import ProviderError
from ort_metainfer.hardware.devices import cpu_device
from ort_metainfer.hardware.drivers import amd_gpus, nvidia_gpus
from ort_metainfer.problem import Device
from ort_metainfer.providers.base import Availability, Provider
from ort_metainfer.providers.plugin import PlugIn
from ort_metainfer.strategy import Strategy

__all__ = ["PlugInProvider", "hardware_name", "memory_mb", "told"]

ONE_DEVICE = ""
"""Name of a provider's device where it has but one, which then needs no name."""


class PlugInProvider(Provider):
    """A provider in a package of its own.

    A subclass states ``plug_in``, and overrides what differs: :meth:`_found_here` (is there hardware for it?),
    :meth:`_named` (what its devices are called), :meth:`_device` (what each of them is), :meth:`_given` (options that
    go along).

    Attributes:
        plug_in: the package.
        install: the command that brings it.
        oldest_onnxruntime: first version of onnxruntime that takes plug-ins, or that this one wants.
    """

    plug_in: ClassVar[PlugIn]
    install: ClassVar[str] = ""
    oldest_onnxruntime: ClassVar[str] = "1.23"

    def availability(self) -> Availability:
        """Usable where the package is installed, onnxruntime takes plug-ins, and there is hardware for it."""
        import onnxruntime

        version = self.plug_in.version
        if version is None:
            return Availability(False, None, self._not_installed())
        package = f"{self.plug_in.distribution} {version}"
        takes_plug_ins = hasattr(onnxruntime, "register_execution_provider_library")
        if not takes_plug_ins or _release(onnxruntime.__version__) < _release(self.oldest_onnxruntime):
            reason = f"{package} needs onnxruntime {self.oldest_onnxruntime} or later, this is"
            return Availability(False, "plug-in", f"{reason} {onnxruntime.__version__}; upgrade it", version)
        return self._found_here(package, version)

    def devices(self) -> tuple[Device, ...]:
        """What it offers, best first; real devices only, none that exists as a target to compile for alone."""
        return tuple(self._device(name, offered[0]) for name, offered in self._offered().items())

    def versions(self) -> dict[str, str]:
        """The package's."""
        return {} if self.plug_in.version is None else {self.plug_in.distribution: self.plug_in.version}

    def attach(self, options: Any, strategy: Strategy) -> list[tuple[str, dict[str, str]]] | None:
        """Add the strategy's device to ``options``, its library registered if need be."""
        properties = self.check(strategy)
        offered = self._offered()
        name = self._chosen(strategy, offered)
        options.add_provider_for_devices(offered[name], self._given(name, properties))
        return None

    # ---- what an adapter may say otherwise ---------------------------------------------------------------------------

    def _not_installed(self) -> str:
        install = self.install or f"pip install {self.plug_in.distribution}"
        return f"not installed; run: {install}"

    def _found_here(self, package: str, version: str) -> Availability:
        """What there is for an installed package to run on; cheap, and nothing is registered for it."""
        named = f"; used only where named: providers={self.name}" if self.opt_in else ""
        return Availability(True, "plug-in", f"{package} is installed{named}", version)

    def _named(self, offered: Sequence[Any]) -> Mapping[str, list[Any]]:
        """The provider's own name of each device -> its OrtEpDevices, best first."""
        return {ONE_DEVICE: list(offered[:1])}

    def _device(self, name: str, offered: Any) -> Device:
        """One device, described; ``offered`` is the first of its OrtEpDevices."""
        cpu = replace(cpu_device(), provider=self.name, driver=told(offered).get("version"))
        return replace(cpu, provider_device=name or None)

    def _given(self, name: str, properties: Mapping[str, str]) -> dict[str, str]:
        """Options that onnxruntime is given for device ``name``, where the strategy sets ``properties``."""
        return dict(properties)

    def _no_device(self) -> str:
        return f"{self.plug_in.distribution} {self.plug_in.version} offers no device on {cpu_device().name}"

    # ---- common to all of them ---------------------------------------------------------------------------------------

    def _chosen(self, strategy: Strategy, offered: Mapping[str, list[Any]]) -> str:
        names = [name for name in offered if name]
        return self.chosen_device(strategy, names) or next(iter(offered))

    def _offered(self) -> dict[str, list[Any]]:
        """Device name -> OrtEpDevices, the library registered first if need be.

        Raises:
            ProviderError: it is not usable, its library does not load, or it offers no device.
        """
        found = self.availability()
        if not found.usable:
            raise ProviderError(found.reason)
        real = [device for device in self.plug_in.devices() if told(device).get("is_virtual") != "1"]
        named = {name: devices for name, devices in self._named(real).items() if devices}
        if not named:
            raise ProviderError(self._no_device())
        return named


def _release(version: str) -> tuple[int, ...]:
    """Its numbers: ``1.24.0.dev2`` is (1, 24, 0). Without ``packaging``, which a cached start would have to import."""
    numbers = itertools.takewhile(str.isdecimal, version.split("."))
    return tuple(map(int, numbers))


def told(offered: Any) -> dict[str, str]:
    """What the provider says of an OrtEpDevice."""
    return dict(offered.ep_metadata)


def hardware_name(offered: Any) -> str:
    """What the system calls the hardware below a device: its description (Windows), else NVIDIA's or AMD's name for it.

    Where the system's files name several of one maker, or none, it is called by its PCI numbers.
    """
    hardware = offered.device
    description = dict(hardware.metadata).get("Description")
    makers = {0x10DE: nvidia_gpus, 0x1002: amd_gpus}
    named = makers[hardware.vendor_id]() if hardware.vendor_id in makers else ()
    alone = named[0].name if len(named) == 1 else None
    return description or alone or f"{hardware.vendor_id:#06x}:{hardware.device_id:#06x}"


def memory_mb(offered: Any) -> float | None:
    """The device's own memory as it says: DXGI's ``8192 MB`` (Windows), OpenVINO's bytes; None where it does not."""
    words = dict(offered.device.metadata).get("DxgiVideoMemory", "").split()
    if len(words) == 2 and words[0].isdecimal() and words[1] == "MB":
        return float(words[0])
    for key in ("GPU_DEVICE_TOTAL_MEM_SIZE", "NPU_DEVICE_TOTAL_MEM_SIZE"):
        text = told(offered).get(key, "")
        if text.isdecimal():
            return int(text) / 2**20
    return None
