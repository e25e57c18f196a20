"""Described chips as a provider, for tests, teaching and planning: numerics on the CPU provider, latency reckoned.

None of its devices is here. It is used only where it is named, and only with a trial host that reckons
(:class:`~ort_metainfer.trials.simulated.SimulatedTrialHost`): a session made for real never runs on it. Not run on
hardware, by its nature.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from ort_metainfer.errors import ProviderError
from ort_metainfer.hardware.profile import Feature, Profile
from ort_metainfer.problem import Device
from ort_metainfer.providers.base import Availability, Option, Provider
from ort_metainfer.providers.capabilities import Capabilities, Constraints
from ort_metainfer.providers.chips import SCHEMA, Chip, Figure, all_chips
from ort_metainfer.strategy import Strategy

__all__ = ["SIMULATED", "SimulatedProvider", "device_of", "profile_of"]

SIMULATED = "SimulatedExecutionProvider"
CPU = "CPUExecutionProvider"

MODEL = "ort_metainfer.hardware.simulation: a roofline over fused groups, with launches, calls and transfers"

_FEATURES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "bandwidth": ("bandwidth_bytes_per_s", "B/s"),
        "memory": ("device_memory_bytes", "B"),
        "on_chip": ("cache_bytes", "B"),
        "units": ("compute_units", "1"),
        "power": ("power_w", "W"),
        "link/bandwidth": ("transfer_to_device_bytes_per_s", "B/s"),
        "link/latency": ("transfer_to_device_latency_ms", "ms"),
        "usage/launch": ("launch_ms", "ms"),
        "usage/call": ("dispatch_ms", "ms"),
    }
)
"""Figure of a description -> feature of a profile, and its unit. Peaks are ``peak_macs_per_s/TYPE``."""


class SimulatedProvider(Provider):
    """Every described chip as one device; a session runs on the CPU provider. Not run on hardware: there is none."""

    name: ClassVar[str] = SIMULATED
    kinds: ClassVar[tuple[str, ...]] = ("gpu", "npu", "dsp", "fpga", "cpu")
    options: ClassVar[Mapping[str, Option]] = MappingProxyType(
        {
            "precision": Option(
                "precision",
                ("as is", "float16", "bfloat16", "int8"),
                "as is",
                "what float32 values are taken to be turned into; the latency of it is reckoned, the error is not",
                lossy_values=("float16", "bfloat16", "int8"),
                source=MODEL,
            )
        }
    )
    opt_in: ClassVar[bool] = True
    capabilities: ClassVar[Capabilities] = Capabilities(
        constraints=Constraints(
            notes=("what a chip takes is decided node by node, from its description",), source="providers/chips.toml"
        ),
        driver="there is none",
        sources=("providers/chips.toml", MODEL),
    )

    def availability(self) -> Availability:
        """Usable by whoever names it: the descriptions come with this package."""
        reason = "descriptions of public chips, none of them here: latency is simulated, numerics run on the CPU"
        return Availability(True, "built-in", reason, f"descriptions {SCHEMA}", emulated=True)

    def devices(self) -> tuple[Device, ...]:
        """A simulated device for every described chip, in the order of the descriptions."""
        return tuple(device_of(chip) for chip in all_chips().values())

    def versions(self) -> dict[str, str]:
        """Of the descriptions."""
        return {"simulated": str(SCHEMA)}

    def option_version(self) -> str | None:
        """None: its options do not depend on a version."""
        return None

    def is_lossy(self, strategy: Strategy) -> bool:
        """Whether it names fewer bits, or a chip without FP32, which computes float32 models in fewer."""
        chip = all_chips().get(strategy.device or next(iter(all_chips())))
        return super().is_lossy(strategy) or (chip is not None and "float32" not in chip.peak)

    def attach(self, options: Any, strategy: Strategy) -> list[tuple[str, dict[str, str]]]:
        """The CPU provider: what computes in a simulated device's place."""
        self.check(strategy)
        if strategy.device is not None and strategy.device not in all_chips():
            raise ProviderError(
                f"{self.name} has no such device as {strategy.device!r}; see ort-metainfer estimate --list"
            )
        return [(CPU, {})]


def device_of(chip: Chip) -> Device:
    """The simulated device of a described chip."""
    return Device(
        provider=SIMULATED,
        kind=chip.kind,
        name=chip.title,
        vendor=chip.vendor,
        provider_device=chip.name,
        memory_mb=None if chip.memory is None else chip.memory.value / 2**20,
        simulated=True,
    )


def profile_of(chip: Chip) -> Profile:
    """A described chip in the form in which measured devices are known; every feature's origin is ``simulated``.

    Figures without a feature of that kind, and what the description does not state, are not there. A doubtful figure
    is flagged. The profile is never stored among measured ones.
    """
    figures = chip.figures()
    features = [
        _feature(f"peak_macs_per_s/{name.removeprefix('peak/')}", "MAC/s", figure)
        for name, figure in figures.items()
        if name.startswith("peak/")
    ]
    features += [_feature(name, unit, figures[key]) for key, (name, unit) in _FEATURES.items() if key in figures]
    return Profile(device_of(chip), {"simulated": str(SCHEMA)}, tuple(features), simulated=True)


def _feature(name: str, unit: str, figure: Figure) -> Feature:
    value = figure.value * 1000 if unit == "ms" else figure.value
    return Feature(name, value, unit, "simulated", flag=figure.doubtful or None)
