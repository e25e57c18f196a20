"""Which devices a decision has to choose from, asked of a trial host, and why not those of the other providers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ort_metainfer.decision import Refusal
from ort_metainfer.errors import ProviderError, TrialError
from ort_metainfer.hardware.devices import CPU_PROVIDER, cpu_device
from ort_metainfer.problem import Device
from ort_metainfer.trials.task import Setup, TrialHost, is_simulated

__all__ = ["devices_to_try", "named_in_vain"]

Until = Callable[[], float]
"""Deadline of a question asked now, a time.monotonic() value."""


def devices_to_try(
    host: TrialHost, setup: Setup, names: Sequence[str], until: Until
) -> tuple[tuple[Device, ...], list[Refusal]]:
    """Devices of the providers, and a refusal for each that offers none or takes its process down.

    Args:
        host: whom to ask; from one that measures no described chips are taken.
        setup: the session under trial.
        names: providers that are allowed.
        until: deadline of each question.
    """
    found, refused = _offered(host, setup, names, until)
    simulated = {device.provider for device in found if device.simulated and not is_simulated(host)}
    real = tuple(device for device in found if device.provider not in simulated)  # nothing of them can be timed
    refused += [(name, "its devices are descriptions, none of them is here") for name in sorted(simulated)]
    return real, [Refusal(name, "providers", reason) for name, reason in refused]


def _offered(
    host: TrialHost, setup: Setup, names: Sequence[str], until: Until
) -> tuple[list[Device], list[tuple[str, str]]]:
    """Devices and refusals; where asking all at once fails, each is asked alone, so that one pays for itself."""
    try:
        return host.devices(setup, names, until())
    except TrialError as error:
        cpu, others = cpu_device(), [name for name in names if name != CPU_PROVIDER]
        if len(others) < 2:
            return [cpu], [(name, f"{error}; it is not used") for name in others or names]
    parts = [_offered(host, setup, [CPU_PROVIDER, name], until) for name in others]
    found = [device for part, _ in parts for device in part if device.provider != cpu.provider]
    return [cpu, *found], [refusal for _, refused in parts for refusal in refused]


def named_in_vain(named: Sequence[str], allowed: Sequence[str]) -> list[Refusal]:
    """Why providers that the settings name are not among those allowed."""
    from ort_metainfer.providers import get_provider

    refusals = []
    for name in named:
        try:
            provider = get_provider(name)
        except ProviderError:  # one of onnxruntime's that no adapter knows
            refusals.append(Refusal(name, "providers", "no adapter knows it; only your own program can choose it"))
            continue
        found = provider.availability()
        reason = "the program's own list of providers lacks it" if found.usable else found.reason
        if provider.name not in allowed:
            refusals.append(Refusal(provider.name, "providers", reason))
    return refusals
