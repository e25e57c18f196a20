"""``inputs``: list and delete what is kept of the inputs of real runs (the setting ``capture``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ort_metainfer.cli.arguments import as_json
from ort_metainfer.cli.output import console, print_json, table
from ort_metainfer.errors import InputsError
from ort_metainfer.model.capture import Reservoir
from ort_metainfer.model.captured import Summary, delete_all, place_of, reservoirs
from ort_metainfer.settings import Settings, resolve

__all__ = ["inputs"]

cache_dir = click.option("--cache-dir", help="The cache directory, if not the configured one.")

SHORT = 12
"""Hex digits of a model's hash that name it on a command line."""


@click.group()
def inputs() -> None:
    """List and delete inputs kept of real runs (capture)."""


@inputs.command("list")
@cache_dir
@as_json
def list_inputs(cache_dir: str | None, as_json: bool) -> None:
    """List the models of which inputs are kept."""
    directory = _directory(cache_dir)
    found = reservoirs(directory)
    if as_json:
        rows = [{**summary._asdict(), "folder": str(summary.folder)} for summary in found]
        print_json({"directory": str(place_of(directory)), "models": rows})
        return
    total = sum(summary.inputs for summary in found)
    console().print(f"{total} inputs of {len(found)} models in {place_of(directory)}")
    grid = table("id", "model", "inputs", "kinds of shapes", "size")
    for summary in found:
        size = f"{summary.size_bytes / 2**20:.1f} MiB"
        grid.add_row(_id(summary), summary.label or "-", str(summary.inputs), str(summary.kinds), size)
    if found:
        console().print(grid)


@inputs.command("delete")
@click.argument("model", required=False)
@click.option("--all", "is_all", is_flag=True, help="Of every model.")
@cache_dir
@as_json
def delete_inputs(model: str | None, is_all: bool, cache_dir: str | None, as_json: bool) -> None:
    """Delete the inputs kept of MODEL, a file or an id of `inputs list`; or of all models with --all.

    A program that is running with capture on goes on keeping inputs.
    """
    if (model is None) != is_all:
        raise click.UsageError("name a MODEL, or give --all")
    directory = _directory(cache_dir)
    if model is None:
        count = delete_all(directory)
    else:
        count = Reservoir(directory, _hash_of(model, reservoirs(directory))).delete()
    if as_json:
        print_json({"directory": str(place_of(directory)), "removed": count})
    else:
        console().print(f"{count} inputs removed from {place_of(directory)}")


def _directory(cache_dir: str | None) -> Path:
    from ort_metainfer.places import cache_directory

    return cache_directory(resolve(Settings(cache_dir=cache_dir))[0])


def _id(summary: Summary) -> str:
    return summary.folder.name[:SHORT]


def _hash_of(model: str, known: Sequence[Summary]) -> str:
    """The hash of the model that ``model`` names: by its id, by the path it had, or by what the file holds now.

    Raises:
        InputsError: no inputs of such a model are kept, or of several.
    """
    asked = model.removeprefix("sha256:")
    by_name = [summary for summary in known if asked and summary.folder.name.startswith(asked[:32])]
    found = by_name or [summary for summary in known if summary.label == str(Path(model).absolute())]
    if not found and Path(model).is_file():
        from ort_metainfer.model.fingerprint import fingerprint

        content_hash = fingerprint(model, None).hash
        found = [summary for summary in known if summary.model_hash == content_hash]
    if len(found) != 1:
        how_many = "no inputs are kept" if not found else f"inputs of {len(found)} models are kept"
        raise InputsError(f"{how_many} under {model!r}; `ort-metainfer inputs list` lists their ids")
    return found[0].model_hash
