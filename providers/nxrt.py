"""nxrt's CPU provider: a plug-in in the package nxrt-ep-cpu, exact in float32, still a development release.

Seen with 0.1.0.dev6: it takes small MatMul and LayerNormalization graphs whole, next to nothing of real models (2 nodes
of 147 of a MiniLM, none of a ResNet), and one model failed while running. So it is used only where the user names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from ort_metainfer.errors import ProviderError
from ort_metainfer.hardware.devices import cpu_device
from ort_metainfer.problem import Device
from ort_metainfer.providers.base import Availability, Option, Provider
from ort_metainfer.providers.plugin import PlugIn
from ort_metainfer.strategy import Strategy

__all__ = ["NxrtProvider"]

NAME = "cpu_ep"
PLUG_IN = PlugIn(
    distribution="nxrt-ep-cpu", module="nxrt_ep_cpu", registration=NAME, offers=lambda ep_name: ep_name == NAME
)


class NxrtProvider(Provider):
    """It has no options; it calls itself ``cpu_ep``."""

    name: ClassVar[str] = NAME
    kinds: ClassVar[tuple[str, ...]] = ("cpu",)
    options: ClassVar[Mapping[str, Option]] = {}
    run_on_hardware: ClassVar[bool] = True
    opt_in: ClassVar[bool] = True

    def availability(self) -> Availability:
        """Usable where the package is installed and onnxruntime takes plug-ins."""
        import onnxruntime

        version = PLUG_IN.version
        if version is None:
            return Availability(False, None, f"not installed; run: pip install --pre {PLUG_IN.distribution}")
        if not hasattr(onnxruntime, "register_execution_provider_library"):
            reason = f"{PLUG_IN.distribution} {version} needs onnxruntime 1.23 or later, this is"
            return Availability(False, "plug-in", f"{reason} {onnxruntime.__version__}; upgrade it", version)
        reason = f"{PLUG_IN.distribution} {version} is installed; used only where named: providers={NAME}"
        return Availability(True, "plug-in", reason, version)

    def devices(self) -> tuple[Device, ...]:
        """The CPU, as far as this process may use it."""
        version = dict(self._offered()[0].ep_metadata).get("version")
        return (replace(cpu_device(), provider=self.name, driver=version),)

    def versions(self) -> dict[str, str]:
        """The package's."""
        return {} if PLUG_IN.version is None else {PLUG_IN.distribution: PLUG_IN.version}

    def attach(self, options: Any, strategy: Strategy) -> None:
        """Add its one device to ``options``."""
        self.check(strategy)
        self.chosen_device(strategy)
        options.add_provider_for_devices(self._offered()[:1], {})

    def _offered(self) -> list[Any]:
        found = self.availability()
        if not found.usable:
            raise ProviderError(found.reason)
        offered = PLUG_IN.devices()
        if not offered:
            raise ProviderError(f"{PLUG_IN.distribution} {found.version} offers no device on {cpu_device().name}")
        return offered
