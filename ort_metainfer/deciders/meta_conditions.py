"""What must hold of a device before a habit learned elsewhere is followed there: its own probe has the last word."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ort_metainfer.deciders.rules_operators import COMPOSING, OTHER_FORMS
from ort_metainfer.deciders.traits_devices import device_of
from ort_metainfer.decision import Refusal
from ort_metainfer.errors import StrategyError
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

__all__ = ["can_run", "objection"]

SOURCE = "the probe of this device"

MADE: Mapping[str, str] = MappingProxyType(
    {
        "layer-norm-to-native": "LayerNormalization",
        "rms-norm-to-native": "RMSNormalization",
        "rms-norm-to-contributed": "com.microsoft.SimplifiedLayerNormalization",
        "instance-norm-to-native": "InstanceNormalization",
        "group-norm-to-native": "GroupNormalization",
        "gelu-to-native": "Gelu",
        "gelu-to-contributed": "com.microsoft.Gelu",
        "hard-sigmoid-to-native": "HardSigmoid",
        "hard-swish-to-native": "HardSwish",
    }
)
"""Rewrite -> the operator that it makes of others."""


def can_run(problem: Problem, strategy: Strategy) -> bool:
    """Whether there is anything here for it to run on and to do: its provider offers a device, its rewrites exist and
    have something to rewrite."""
    from ort_metainfer.rewrites.registry import get_rewrite

    if strategy.provider is not None and device_of(problem, strategy) is None:
        return False
    try:
        rewrites = [get_rewrite(transform.name) for transform in strategy.transforms]
        for rewrite, transform in zip(rewrites, strategy.transforms, strict=True):
            rewrite.complete(transform)
    except StrategyError:
        return False
    return all(rewrite.objection(problem.graph) is None for rewrite in rewrites[:1])


def objection(problem: Problem, strategy: Strategy) -> Refusal | None:
    """Why a strategy must not be taken over from other devices: by its probe, this one differs from them.

    A rewrite that splits an operator is dropped where the device takes that operator as it is; one that makes an
    operator, where the device does not take that. What was not tried on the device speaks for neither.
    """
    device = device_of(problem, strategy) if strategy.transforms else None
    profile = None if device is None else problem.profiles.get(device.provider)
    if device is None or profile is None or profile.device.kind != device.kind:
        return None
    for transform in strategy.transforms:
        reason = _objection(transform.name, problem, profile.operators)
        if reason is not None:
            words = f"{reason} on this {device.kind} ({device.provider})"
            return Refusal(f"{transform.name} on {device.provider}", "meta-model", words, SOURCE)
    return None


def _objection(rewrite: str, problem: Problem, operators: Mapping[str, bool]) -> str | None:
    if rewrite in COMPOSING:
        split = [name for name, by in OTHER_FORMS.items() if by == rewrite and problem.graph.count(name)]
        native = [name for name in split if operators.get(name)]
        if native and len(native) == len(split):
            return f"{rewrite} is a habit of devices without {native[0]}, which the probe found native"
    made = MADE.get(rewrite)
    if made is not None and operators.get(made) is False:
        return f"{rewrite} makes {made}, which the probe found refused"
    return None
