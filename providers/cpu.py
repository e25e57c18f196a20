"""onnxruntime's own CPU provider: always there, exact, the reference of every comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ort_metainfer.hardware.devices import CPU_PROVIDER, cpu_device
from ort_metainfer.problem import Device
from ort_metainfer.providers.base import Availability, Option, Provider
from ort_metainfer.strategy import Strategy

__all__ = ["CpuProvider"]


class CpuProvider(Provider):
    """What speeds it up are session options (threads, spinning, graph level); of its own it has none to set."""

    name: ClassVar[str] = CPU_PROVIDER
    kinds: ClassVar[tuple[str, ...]] = ("cpu",)
    options: ClassVar[Mapping[str, Option]] = {}
    run_on_hardware: ClassVar[bool] = True

    def availability(self) -> Availability:
        """Always usable: every onnxruntime has it compiled in."""
        import onnxruntime

        reason = f"part of onnxruntime {onnxruntime.__version__}"
        return Availability(True, "built-in", reason, onnxruntime.__version__)

    def devices(self) -> tuple[Device, ...]:
        """The one CPU, as far as this process may use it."""
        return (cpu_device(),)

    def versions(self) -> dict[str, str]:
        """onnxruntime's, whose part it is."""
        import onnxruntime

        return {"onnxruntime": onnxruntime.__version__}

    def attach(self, options: Any, strategy: Strategy) -> list[tuple[str, dict[str, str]]]:
        """The provider by its name; nothing is added to ``options``."""
        self.chosen_device(strategy)
        return [(self.name, dict(self.check(strategy)))]
