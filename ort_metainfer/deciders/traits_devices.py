"""What the deciders need to know about devices: of which class one is, what it needs, how its figures relate.

Measured features come from ``Problem.profiles``, described chips from ``providers/chips.toml``, the rest from what
adapters state. What is not known is None or "no", never a guess.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ort_metainfer.problem import Device, Problem
from ort_metainfer.strategy import Strategy

if TYPE_CHECKING:
    from ort_metainfer.providers.capabilities import Capabilities
    from ort_metainfer.providers.chips import Chip

__all__ = [
    "CPU",
    "SIMULATED",
    "alignment_of",
    "capabilities_of",
    "chip_of",
    "device_of",
    "feature",
    "is_memory_bound",
    "kind_of",
    "lacks",
    "needs_fixed_shapes",
    "needs_quantised",
    "ridge_macs_per_byte",
    "takes_operators",
    "usable",
    "usable_kinds",
]

CPU = "CPUExecutionProvider"
SIMULATED = "SimulatedExecutionProvider"

FIXED_SHAPES_NPU = frozenset({"OpenVINOExecutionProvider", "VitisAIExecutionProvider"})
"""Providers whose NPU takes fixed shapes only though their other devices do not (OpenVINO documentation, NPU device,
limitations; onnxruntime documentation, Vitis AI execution provider)."""


def usable(problem: Problem) -> tuple[Device, ...]:
    """Devices of allowed providers, the CPU provider's included whatever the policy says."""
    allowed = {CPU, *problem.policy.providers}
    return tuple(device for device in problem.devices if device.provider in allowed)


def usable_kinds(problem: Problem) -> frozenset[str]:
    """Classes of the usable devices."""
    return frozenset(device.kind for device in usable(problem))


def device_of(problem: Problem, strategy: Strategy) -> Device | None:
    """The device that ``strategy`` runs on first, by its own word or the caller's; None where there is no such."""
    callers = problem.baseline.providers
    provider = strategy.provider or (callers[0][0] if callers else CPU)
    found = [device for device in problem.devices if device.provider == provider]
    named = [device for device in found if strategy.device in (None, device.provider_device)]
    return named[0] if named else None


def kind_of(problem: Problem, strategy: Strategy) -> str | None:
    """Class of that device; None where there is no such device."""
    device = device_of(problem, strategy)
    return None if device is None else device.kind


def capabilities_of(provider: str) -> Capabilities:
    """What the adapter of ``provider`` states; nothing where there is none."""
    from ort_metainfer.errors import ProviderError
    from ort_metainfer.providers import get_provider
    from ort_metainfer.providers.capabilities import Capabilities

    try:
        return get_provider(provider).capabilities
    except ProviderError:
        return Capabilities()


def chip_of(device: Device) -> Chip | None:
    """The description of a simulated device; None for a real one."""
    if not device.simulated:
        return None
    from ort_metainfer.providers.chips import all_chips

    return all_chips().get(device.provider_device or "")


def needs_fixed_shapes(device: Device) -> bool:
    """Whether the device takes nothing with open dimensions, by its description or its adapter."""
    chip = chip_of(device)
    if chip is not None:
        return chip.static_shapes
    is_npu = device.kind == "npu" and device.provider in FIXED_SHAPES_NPU
    return is_npu or capabilities_of(device.provider).constraints.static_shapes


def alignment_of(device: Device) -> int | None:
    """The multiple that channels are best padded to, by its description or its adapter; None where it is not stated."""
    chip = chip_of(device)
    return capabilities_of(device.provider).preferences.channel_alignment if chip is None else chip.channel_alignment


def needs_quantised(device: Device) -> bool:
    """Whether it takes nothing that is not quantised, by its description or its adapter."""
    chip = chip_of(device)
    stated = capabilities_of(device.provider).constraints.quantised if chip is None else chip.quantised
    return stated == "required"


def lacks(problem: Problem, device: Device, operator: str) -> bool:
    """Whether the device is known not to run ``operator``: tried out, described or stated."""
    profile = problem.profiles.get(device.provider)
    if profile is not None and profile.device == device and operator in profile.operators:
        return not profile.operators[operator]
    chip = chip_of(device)
    if chip is not None:
        return not chip.family.has(operator)
    return bool(capabilities_of(device.provider).constraints.lacking((operator,)))


def takes_operators(problem: Problem, device: Device) -> float:
    """Share of the graph's nodes that nothing speaks against its running; 1 where nothing is known."""
    operators = problem.graph.operators
    total = sum(operators.values())
    lost = sum(count for name, count in operators.items() if lacks(problem, device, name))
    return 1.0 - lost / total if total else 1.0


def feature(problem: Problem, name: str, provider: str = CPU) -> float | None:
    """A measured feature of the provider's first device that nothing speaks against; None where it is not known."""
    profile = problem.profiles.get(provider)
    return None if profile is None else dict(profile.values()).get(name)


def ridge_macs_per_byte(problem: Problem) -> float | None:
    """Multiply-accumulates per byte moved above which the CPU's arithmetic is its limit, below which its memory is.

    The ridge point of Williams, Waterman and Patterson, Roofline (2009): measured peak over measured bandwidth.
    """
    peak, bandwidth = (feature(problem, name) for name in ("peak_macs_per_s/float32", "bandwidth_bytes_per_s"))
    return peak / bandwidth if peak and bandwidth else None


def is_memory_bound(problem: Problem) -> bool:
    """Whether the model does less arithmetic per byte than the CPU could: work and profile must be known."""
    ridge = ridge_macs_per_byte(problem)
    known = [node for node in problem.work if node.is_known and not node.folded and not node.is_view]
    moved = sum(node.runs * ((node.read_bytes or 0) + (node.written_bytes or 0) + node.weight_bytes) for node in known)
    macs = sum(node.runs * (node.macs or 0) for node in known)
    return ridge is not None and moved > 0 and macs / moved < ridge
