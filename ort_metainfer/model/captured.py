"""The inputs kept of earlier runs, as they lie on disk: which there are, of which models, and how they are deleted.

The names of the files say it all (see ``capture.py``): nothing here opens one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

__all__ = ["ABOUT", "Kept", "Summary", "delete_all", "folder_of", "listed", "place_of", "reservoirs"]

PLACE = "inputs"

ABOUT = "about.json"

_NAME = re.compile(r"([0-9a-f]{12})-([0-9a-f]{32})\.npz")


class Kept(NamedTuple):
    """An input on disk: hashes of its names, types and shapes, and of its content; bytes of its file."""

    shapes: str
    content: str
    size_bytes: int

    @property
    def file_name(self) -> str:
        """Of its file."""
        return f"{self.shapes}-{self.content}.npz"


class Summary(NamedTuple):
    """A reservoir in figures: whose it is, where it lies, how many inputs of how many kinds of shapes."""

    model_hash: str
    label: str
    folder: Path
    inputs: int
    kinds: int
    size_bytes: int


def place_of(directory: Path) -> Path:
    """Where the reservoirs of a cache directory lie."""
    return Path(directory) / PLACE


def folder_of(directory: Path, model_hash: str) -> Path:
    """Where the inputs of a model lie, whether there are any or not."""
    return place_of(directory) / model_hash.removeprefix("sha256:")[:32]


def listed(folder: Path) -> list[Kept]:
    """The inputs that lie in a model's folder, in no order: what the names of its files say."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                parts = _NAME.fullmatch(entry.name)
                with suppress(OSError):  # another process removed it meanwhile
                    if parts is not None:
                        found.append(Kept(parts[1], parts[2], entry.stat().st_size))
    except OSError:
        return []
    return found


def reservoirs(directory: Path) -> list[Summary]:
    """What is kept below a cache directory, in the order of the models' names."""
    found = []
    for folder in _folders(directory):
        there = listed(folder)
        about = _about(folder)
        kinds, size = len({kept.shapes for kept in there}), sum(kept.size_bytes for kept in there)
        found.append(Summary(about["model"], about["label"], folder, len(there), kinds, size))
    return sorted(found, key=lambda summary: (summary.label, summary.model_hash))


def delete_all(directory: Path) -> int:
    """Remove every reservoir; how many inputs that were.

    Raises:
        OSError: something cannot be removed.
    """
    count = sum(len(listed(folder)) for folder in _folders(directory))
    if place_of(directory).exists():
        shutil.rmtree(place_of(directory))
    return count


def _folders(directory: Path) -> list[Path]:
    try:
        return [folder for folder in place_of(directory).iterdir() if folder.is_dir()]
    except OSError:
        return []


def _about(folder: Path) -> dict[str, str]:
    try:
        plain = json.loads((folder / ABOUT).read_bytes())
        return {"model": str(plain["model"]), "label": str(plain["label"])}
    except (OSError, ValueError, TypeError, KeyError):
        return {"model": f"sha256:{folder.name}", "label": ""}
