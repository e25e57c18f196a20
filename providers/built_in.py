"""Base of the adapters for providers that are compiled into an onnxruntime: each of them only states its facts.

Such a provider comes with another package in place of ``onnxruntime``, or with a build of one's own. It is there if
onnxruntime lists it, which says nothing of hardware: onnxruntime-gpu lists CUDA on a machine without any GPU. So:

- listed makes it usable, and the reason says so where the system's files show no device for it;
- :meth:`BuiltInProvider.devices` raises ProviderError then, on the systems whose files would show one (Linux); on
  others it offers one device that is called by the provider's class, because nothing here can look;
- where onnxruntime itself offers the provider's devices (``get_ep_devices``: DirectML, a CUDA built as a plug-in that
  registers itself), these come first: they are attached as devices, with what their metadata tells.

None of these adapters was run on hardware.
"""

from __future__ import annotations

import os
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

from ort_metainfer.errors import ProviderError
from ort_metainfer.hardware.devices import cpu_device
from ort_metainfer.hardware.drivers import Accelerator
from ort_metainfer.hardware.files import SYSTEM, SystemFiles
from ort_metainfer.problem import Device
from ort_metainfer.providers.base import Availability, Provider
from ort_metainfer.strategy import Strategy

__all__ = ["BuiltInOnCpu", "BuiltInProvider"]

SYSTEMS: Mapping[str, str] = MappingProxyType(
    {"linux": "Linux", "win32": "Windows", "darwin": "macOS", "android": "Android", "ios": "iOS"}
)
"""sys.platform -> what people call it."""


class BuiltInProvider(Provider):
    """A provider that onnxruntime was compiled with. Not run on hardware.

    A subclass states its facts, and :meth:`_found`.

    Attributes:
        other_names: names that builds of the same provider as a plug-in bear.
        install: what brings it, as an imperative sentence without its full stop.
        systems: values of ``sys.platform`` it exists on; empty: any.
        shown_on: those whose files would show its devices.
        device_words: what its devices are called where there is nothing to look with, and in messages.
        driver_name: the driver's name among the versions.
        variables: environment variables that bear on its results: what they say stands among the versions, so that an
            entry made under one value is stale under another.
    """

    other_names: ClassVar[tuple[str, ...]] = ()
    install: ClassVar[str]
    systems: ClassVar[tuple[str, ...]] = ()
    shown_on: ClassVar[tuple[str, ...]] = ("linux",)
    device_words: ClassVar[str]
    driver_name: ClassVar[str] = "driver"
    variables: ClassVar[tuple[str, ...]] = ()

    def __init__(self, files: SystemFiles = SYSTEM, system: str = sys.platform) -> None:
        self.files = files
        self.system = system

    @abstractmethod
    def _found(self) -> tuple[Accelerator, ...]:
        """Its devices as the system's files show them, in the provider's own order."""

    def availability(self) -> Availability:
        """Usable where onnxruntime lists it; reads a few small files, imports nothing."""
        import onnxruntime

        version = onnxruntime.__version__
        if not self._is_listed():
            return Availability(False, None, self._what_to_install(version))
        found = f"compiled into onnxruntime {version}"
        missing = self._missing()
        return Availability(True, "built-in", f"{found}; {missing}" if missing else found, version)

    def devices(self) -> tuple[Device, ...]:
        """Its devices by number (``0`` is the first), or the one it has.

        Raises:
            ProviderError: it is not compiled in, or the system's files show no device for it.
        """
        found = self.availability()
        if not found.usable:
            raise ProviderError(found.reason)
        offered = self._offered()
        if offered:
            return tuple(self._told(device, index) for index, device in enumerate(offered))
        missing = self._missing()
        if missing:
            raise ProviderError(f"{self.name}: {missing}")
        generic = Accelerator(self.kinds[0], self.device_words, "")
        return tuple(self._device(one) for one in self._found() or (generic,))

    def versions(self) -> dict[str, str]:
        """onnxruntime's, whose part it is, the driver's where it can be read, and what its environment variables say.

        None where it is not compiled in.
        """
        import onnxruntime

        if not self._is_listed():
            return {}
        driver = self.driver_version()
        told = {self.driver_name: driver} if driver else {}
        told |= {name: value for name in self.variables if (value := os.environ.get(name))}
        return {"onnxruntime": onnxruntime.__version__, **told}

    def attach(self, options: Any, strategy: Strategy) -> list[tuple[str, dict[str, str]]] | None:
        """The provider by its name with the device's number, or its device added where onnxruntime offers devices."""
        given = dict(self.check(strategy))
        names = [device.provider_device for device in self.devices()]
        chosen = self.chosen_device(strategy, [name for name in names if name is not None])
        offered = self._offered()
        if offered:
            options.add_provider_for_devices([offered[int(chosen or 0)]], given)
            return None
        return [(self.name, {**self._device_options(chosen, given), **given})]

    def _device_options(self, device: str | None, given: Mapping[str, str]) -> dict[str, str]:
        """The options that choose the device, beside those ``given``."""
        return {} if device is None else {"device_id": device}

    def _is_listed(self) -> bool:
        import onnxruntime

        return not {self.name, *self.other_names}.isdisjoint(onnxruntime.get_available_providers())

    def _missing(self) -> str | None:
        """What speaks against there being a device; None where one is found, or nothing can look for one."""
        if self.system not in self.shown_on or self._found() or self._offered():
            return None
        return f"no {self.device_words} shows in the system's files: install its driver, or let the container see it"

    def _what_to_install(self, version: str) -> str:
        import onnxruntime

        if self.systems and self.system not in self.systems:
            return f"{' and '.join(SYSTEMS[name] for name in self.systems)} only"
        if self.name not in onnxruntime.get_all_providers():
            return f"onnxruntime {version} has it no more; {self.install}"
        return f"not compiled into onnxruntime {version}; {self.install}"

    def _offered(self) -> list[Any]:
        """What onnxruntime itself offers as this provider's devices, in its order; most builds offer nothing."""
        import onnxruntime

        if not hasattr(onnxruntime, "get_ep_devices"):
            return []
        names = {self.name, *self.other_names}
        return [device for device in onnxruntime.get_ep_devices() if device.ep_name in names]

    def _told(self, offered: Any, index: int) -> Device:
        """A device by what onnxruntime tells of it, and by the system's files where it tells no name."""
        hardware, told = offered.device, dict(offered.ep_metadata)
        same = self._found()
        by_files = same[index] if index < len(same) else None
        numbers = f"{hardware.vendor_id:#06x}:{hardware.device_id:#06x}"
        name = dict(hardware.metadata).get("Description") or (by_files.name if by_files else numbers)
        kind = hardware.type.name.lower()
        driver = told.get("os_driver_version") or self.driver_version()
        memory = by_files.memory_mb if by_files else None
        return Device(self.name, kind, name, hardware.vendor, str(index), driver=driver, memory_mb=memory)

    def _device(self, found: Accelerator) -> Device:
        return Device(
            provider=self.name,
            kind=found.kind,
            name=found.name,
            vendor=found.vendor,
            provider_device=str(found.number),
            driver=self.driver_version(),
            memory_mb=found.memory_mb,
        )


class BuiltInOnCpu(BuiltInProvider):
    """A built-in provider whose one device is the CPU, which needs no driver and no number. Not run on hardware."""

    kinds: ClassVar[tuple[str, ...]] = ("cpu",)
    shown_on: ClassVar[tuple[str, ...]] = ()
    device_words: ClassVar[str] = "CPU"

    def devices(self) -> tuple[Device, ...]:
        """The CPU, as far as this process may use it.

        Raises:
            ProviderError: the provider is not compiled in.
        """
        found = self.availability()
        if not found.usable:
            raise ProviderError(found.reason)
        return (replace(cpu_device(), provider=self.name),)

    def chosen_device(self, strategy: Strategy, offered: Sequence[str] = ()) -> str | None:
        """None: there is but one."""
        return super().chosen_device(strategy, ())

    def _found(self) -> tuple[Accelerator, ...]:
        return ()

    def _offered(self) -> list[Any]:
        return []
