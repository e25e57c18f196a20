"""The store of profiles: measured once per device and versions, kept in the cache's table ``profiles``.

What differs between versions is kept in the table ``effects``. Anything there that is no profile of this schema reads
as absent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from ort_metainfer.errors import ProviderError, TrialError
from ort_metainfer.hardware.as_declared import is_as_declared
from ort_metainfer.hardware.profile import SCHEMA, Measurement, Profile, ReferenceTiming
from ort_metainfer.hardware.reference_figures import reference_features
from ort_metainfer.hardware.state import observe
from ort_metainfer.hardware.static_features import static_features
from ort_metainfer.hardware.toolchain import (
    ToolchainEffect,
    flag_effects,
    flag_unrepeatable,
    is_same_device,
    toolchain_effects,
)
from ort_metainfer.problem import Device, HardwareState

__all__ = [
    "EFFECTS",
    "PROFILES",
    "Instruments",
    "Store",
    "all_profiles",
    "known_effects",
    "known_profile",
    "measure_profile",
    "profile_device",
    "suffices",
    "versions_of",
]

PROFILES, EFFECTS = "profiles", "effects"

BETWEEN = " > "
"""Between the keys of two profiles in the key of their effects."""

PROBE_SHARE = 0.4
"""Share of the budget for the probe, the rest is the fingerprint's: 10 s and 15 s of 25."""

Say = Callable[[str], None]


class Store(Protocol):
    """What is needed of the cache; :class:`~ort_metainfer.strategy_cache.store.StrategyCache` is one."""

    def get(self, table: str, key: str) -> dict[str, Any] | None:
        """The row, None where there is none."""
        ...

    def put(self, table: str, key: str, value: dict[str, Any]) -> bool:
        """Write a row; whether that worked."""
        ...

    def keys(self, table: str) -> list[str]:
        """Keys of a table."""
        ...


@dataclass(frozen=True)
class Instruments:
    """What measures: the probe, the fingerprint, who tells the versions and what else goes on; tests give others."""

    probe: Callable[[Device, float, Say], Profile]
    fingerprint: Callable[[Device, float, Say], tuple[ReferenceTiming, ...]]
    versions: Callable[[Device], Mapping[str, str]]
    observe: Callable[[], HardwareState] = observe

    @classmethod
    def real(cls) -> Instruments:
        """Those that measure hardware."""
        return cls(_probe, _fingerprint, versions_of)


def profile_device(
    device: Device,
    cache: Store,
    budget_s: float,
    refresh: bool = False,
    say: Say | None = None,
    instruments: Instruments | None = None,
) -> Profile:
    """The device's profile: the one that is kept, or a new one, measured within ``budget_s`` and kept.

    A new one is compared with what is kept. A figure that differs from that of other versions by more than 15% is a
    toolchain effect, recorded, and flagged in both profiles; one that differs under the same versions does not repeat,
    and is flagged.

    Args:
        device: which; not a simulated one.
        cache: where profiles are kept.
        budget_s: how long measuring may take.
        refresh: measure also where a profile is kept.
        say: told what is being done.
        instruments: what measures.

    Raises:
        ProviderError: the device is simulated: nothing of it can be measured.
        TrialError: no child process can be started.
    """
    tools = instruments or Instruments.real()
    versions = tools.versions(device)
    kept = known_profile(cache, device, versions)
    if kept is not None and suffices(kept) and not refresh:
        return kept
    measured = measure_profile(device, budget_s, say, tools)
    if kept is not None:
        measured = flag_unrepeatable(kept, measured)
    measured = _charge_versions(cache, measured)
    if kept is None or suffices(measured) or not suffices(kept):  # too short a time must not cost what is known
        cache.put(PROFILES, measured.key, measured.as_dict())
    return measured


def suffices(profile: Profile) -> bool:
    """Whether probe and fingerprint were both reached: one that was given too little time is measured again."""
    return bool(profile.measurements) and bool(profile.references)


def measure_profile(
    device: Device, budget_s: float, say: Say | None = None, instruments: Instruments | None = None
) -> Profile:
    """A new profile: static facts, then the probe, then the fingerprint; nothing is kept.

    Raises:
        ProviderError: the device is simulated.
        TrialError: no child process can be started.
    """
    if device.simulated:
        raise ProviderError(f"{device} is simulated: it has a description, and nothing to measure")
    tools, tell = instruments or Instruments.real(), say or (lambda text: None)
    started, before = time.monotonic(), tools.observe()
    probed = _probed(tools, device, started + PROBE_SHARE * budget_s, tell)
    references = tools.fingerprint(device, started + budget_s, tell)
    return replace(
        probed,
        device=device,
        versions=dict(tools.versions(device)),
        references=references,
        before=probed.before or before,
        after=tools.observe(),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=time.monotonic() - started,
    ).with_features(*static_features(device), *reference_features(references))


def _probed(tools: Instruments, device: Device, deadline: float, tell: Say) -> Profile:
    """The probe's profile; where its process came to nothing, one that says so: the fingerprint is still taken."""
    try:
        return tools.probe(device, deadline, tell)
    except TrialError as error:
        return Profile(device, {}, measurements=(Measurement("probe", 0.0, "", refusal=str(error)),))


def versions_of(device: Device) -> dict[str, str]:
    """What the device's figures rest on: onnxruntime, the provider's package, the driver.

    Raises:
        ProviderError: there is no adapter for its provider.
    """
    import onnxruntime

    from ort_metainfer.providers import get_provider

    provider = get_provider(device.provider)
    driver = provider.driver_version()
    told = {"driver": driver} if driver else {}
    return {"onnxruntime": onnxruntime.__version__, **provider.versions(), **told}


def known_profile(cache: Store, device: Device, versions: Mapping[str, str]) -> Profile | None:
    """The profile that is kept of ``device`` under ``versions``; None where there is none."""
    key = Profile(device, dict(versions)).key
    found = _read(cache.get(PROFILES, key))
    return found if found is not None and found.key == key else None


def all_profiles(cache: Store) -> tuple[Profile, ...]:
    """Every profile that is kept, of every device and versions, the latest measured first."""
    read = [_read(cache.get(PROFILES, key)) for key in cache.keys(PROFILES)]
    found = [profile for profile in read if profile is not None]
    return tuple(sorted(found, key=lambda profile: profile.measured_at, reverse=True))


def known_effects(cache: Store, profile: Profile) -> Iterator[ToolchainEffect]:
    """Toolchain effects that were recorded between ``profile`` and those of other versions."""
    for key in cache.keys(EFFECTS):
        if profile.key not in key.split(BETWEEN):
            continue
        entries = (cache.get(EFFECTS, key) or {}).get("effects")
        for entry in entries if isinstance(entries, list) else ():
            try:
                versions = {name: (then, now) for name, (then, now) in entry["versions"].items()}
                effect = ToolchainEffect(**{**entry, "versions": versions})
            except (KeyError, TypeError, ValueError, AttributeError):  # written by another release, or damaged
                continue
            if is_as_declared(effect):
                yield effect


def _charge_versions(cache: Store, measured: Profile) -> Profile:
    """``measured`` with what other versions changed flagged; the effects, and the flags of the others, are kept."""
    for other in all_profiles(cache):
        if other.key == measured.key or not is_same_device(other, measured):
            continue
        effects = toolchain_effects(other, measured)
        row = {"effects": [effect.as_dict() for effect in effects], "recorded_at": measured.measured_at}
        cache.put(EFFECTS, f"{other.key}{BETWEEN}{measured.key}", row)
        if effects:
            measured = flag_effects(measured, effects)
            cache.put(PROFILES, other.key, flag_effects(other, effects).as_dict())
    return measured


def _read(row: Mapping[str, Any] | None) -> Profile | None:
    """A row's profile; None for what is none, or of another schema."""
    if row is None or row.get("schema") != SCHEMA:
        return None
    try:
        profile = Profile.from_dict(row)
        return profile if is_as_declared(profile) and profile.key else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _probe(device: Device, deadline: float, say: Say) -> Profile:
    from ort_metainfer.hardware.probe import probe_device

    return probe_device(device, deadline, say)


def _fingerprint(device: Device, deadline: float, say: Say) -> tuple[ReferenceTiming, ...]:
    """The strategies of the device's own provider beside the CPU's: what rests on other packages is not in its key."""
    from ort_metainfer.hardware.fingerprint import fingerprint_strategies

    return fingerprint_strategies((device.provider,), deadline, say)
