"""``devices``: what a model could run on here."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ort_metainfer.cli.arguments import as_json
from ort_metainfer.cli.figures import feature_table, main_figures
from ort_metainfer.cli.output import console, only_json, print_json
from ort_metainfer.settings import Settings, resolve

if TYPE_CHECKING:
    from ort_metainfer.hardware.profile import Profile
    from ort_metainfer.problem import Device

__all__ = ["devices", "survey"]

DISCOVERY_S = 60.0

INDENT = 15


@click.command()
@click.option("--features", is_flag=True, help="Every feature of devices that were measured, not the main ones.")
@click.option("--cache-dir", help="Where profiles are kept, if not in the configured place.")
@as_json
def devices(features: bool, cache_dir: str | None, as_json: bool) -> None:
    """List the execution providers and the devices they offer to this process.

    Devices that `ort-metainfer probe` has measured are shown with their features.
    """
    with only_json(as_json):
        rows = survey()
        profiles = kept_profiles(rows, cache_dir)
    if as_json:
        print_json([with_features(row, profiles) for row in rows])
        return
    for row in rows:
        console().print(f"{row['provider'].removesuffix('ExecutionProvider'):<{INDENT}}{row['reason']}")
        for device in row["devices"]:
            show_device(device, profiles.get(_identity(row["provider"], device)), features)


def show_device(device: Mapping[str, Any], profile: Profile | None, features: bool) -> None:
    """One device in words, and what is known of it."""
    console().print(f"{'':<{INDENT}}{device_line(device)}")
    if profile is None:
        return
    if features:
        console().print(feature_table(profile.features))
    elif words := list(main_figures(profile)):
        console().print(f"{'':<{INDENT}}  {', '.join(words)}")


def device_line(device: Mapping[str, Any]) -> str:
    """Class, name, vendor, driver, memory, cores, instruction set; a mark where it is no hardware."""
    name = " ".join(text for text in (device["provider_device"], device["name"]) if text)
    vendor = device["vendor"] if device["vendor"] and device["vendor"] not in name else None
    facts = [
        f"{device['kind']}: {name}",
        vendor,
        f"driver {device['driver']}" if device["driver"] else None,
        f"{device['memory_mb'] / 1024:.3g} GiB" if device["memory_mb"] else None,
        None if device["cores"] is None else f"{device['cores']:g} cores",
        *device["features"],
    ]
    marks = "".join(f" [{mark}]" for mark in ("emulated", "simulated") if device[mark])
    return ", ".join(fact for fact in facts if fact) + marks


def survey() -> list[dict[str, Any]]:
    """Each provider: whether it is usable, why or why not, whether it was ever run on hardware, its devices.

    Devices are asked for in another process: a vendor's library that crashes costs its own row only.
    """
    from ort_metainfer.hardware.discovery import offered_devices
    from ort_metainfer.providers import all_providers

    providers = {provider.name: (provider, provider.availability()) for provider in all_providers()}
    usable = [name for name, (_, found) in providers.items() if found.usable]
    offered, refused = offered_devices(usable, time.monotonic() + DISCOVERY_S)
    reasons = dict(refused)
    return [
        {
            "provider": name,
            "usable": found.usable and name not in reasons,
            "reason": reasons.get(name, found.reason),
            "version": found.version,
            "emulated": found.emulated,
            "run_on_hardware": provider.run_on_hardware,
            "devices": [asdict(device) for device in offered if device.provider == name],
        }
        for name, (provider, found) in providers.items()
    ]


Identity = tuple[str, str | None, str]


def _identity(provider: str, device: Mapping[str, Any]) -> Identity:
    return provider, device["provider_device"], str(_device(device))


def _device(plain: Mapping[str, Any]) -> Device:
    from ort_metainfer.problem import Device

    return Device(**{**plain, "features": tuple(plain["features"])})


def kept_profiles(rows: list[dict[str, Any]], cache_dir: str | None) -> dict[Identity, Profile]:
    """The profiles that are kept of the devices in ``rows`` under today's versions."""
    from ort_metainfer.hardware.profiles import known_profile, versions_of
    from ort_metainfer.places import cache_directory
    from ort_metainfer.strategy_cache.store import open_cache

    store = open_cache(cache_directory(resolve(Settings(cache_dir=cache_dir))[0]))
    found = {}
    for row in rows:
        for plain in row["devices"]:
            device = _device(plain)
            profile = known_profile(store, device, versions_of(device))
            if profile is not None:
                found[_identity(row["provider"], plain)] = profile
    return found


def with_features(row: Mapping[str, Any], profiles: Mapping[Identity, Profile]) -> dict[str, Any]:
    """``row`` with each device's features, null where it was not measured."""
    devices = []
    for device in row["devices"]:
        profile = profiles.get(_identity(row["provider"], device))
        features = None if profile is None else [asdict(feature) for feature in profile.features]
        devices.append({**device, "profile": features})
    return {**row, "devices": devices}
