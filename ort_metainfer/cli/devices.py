"""``devices``: what a model could run on here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import click

from ort_metainfer.cli.arguments import as_json
from ort_metainfer.cli.output import console, only_json, print_json

__all__ = ["devices"]


@click.command()
@as_json
def devices(as_json: bool) -> None:
    """List the execution providers and the devices they offer to this process."""
    with only_json(as_json):
        rows = survey()
    if as_json:
        print_json(rows)
        return
    console().print("\n".join(line for row in rows for line in device_lines(row)))


def device_lines(row: Mapping[str, Any]) -> Iterator[str]:
    """One provider in words: its name with what was found out, then a line for each device."""
    yield f"{row['provider'].removesuffix('ExecutionProvider'):<10}{row['reason']}"
    for device in row["devices"]:
        name = " ".join(text for text in (device["provider_device"], device["name"]) if text)
        cores = [] if device["cores"] is None else [f"{device['cores']:g} cores"]
        words = ", ".join([f"{device['kind']}: {name}", *cores, *device["features"]])
        yield f"{'':<10}{words}"


def survey() -> list[dict[str, Any]]:
    """Each provider: whether it is usable, why or why not, whether it was ever run on hardware, its devices."""
    from ort_metainfer.errors import ProviderError
    from ort_metainfer.providers import all_providers

    rows = []
    for provider in all_providers():
        found = provider.availability()
        row = {"provider": provider.name, "usable": found.usable, "reason": found.reason, "version": found.version}
        try:
            offered = [asdict(device) for device in provider.devices()] if found.usable else []
        except ProviderError as error:
            offered, row["reason"], row["usable"] = [], str(error), False
        rows.append({**row, "run_on_hardware": provider.run_on_hardware, "devices": offered})
    return rows
