"""``devices``: what a model could run on here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ort_metainfer.cli.arguments import as_json
from ort_metainfer.cli.output import console, only_json, print_json, table

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
    grid = table("provider", "device", "kind", "cores", "features", "note")
    for row in rows:
        for device in row["devices"] or [{}]:
            cores = "" if device.get("cores") is None else f"{device['cores']:g}"
            name = " ".join(text for text in (device.get("provider_device"), device.get("name")) if text)
            features = " ".join(device.get("features", ()))
            grid.add_row(row["provider"], name or "-", device.get("kind", ""), cores, features, row["reason"])
    console().print(grid)


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
