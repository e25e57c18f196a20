"""The one way this package reads /proc and /sys: text files below a root, so that tests give it a tree of their own."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

__all__ = ["SYSTEM", "SystemFiles"]

READ_LIMIT_BYTES = 65_536


class SystemFiles(NamedTuple):
    """The machine's files as seen below ``root``; paths are absolute (``/proc/stat``) and lead nowhere outside it."""

    root: Path = Path("/")

    def read(self, path: str, limit_bytes: int = READ_LIMIT_BYTES) -> str | None:
        """The beginning of a text file, or None where it is missing or may not be read."""
        try:
            with open(self.root / path.lstrip("/"), "rb") as file:
                return file.read(limit_bytes).decode("utf-8", "replace")
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """A file that holds one whole number, or None where it is missing or holds something else."""
        text = (self.read(path, 64) or "").strip()
        return int(text) if text.lstrip("-").isdecimal() else None

    def names(self, path: str) -> list[str]:
        """What a folder holds, sorted; empty where it is missing or may not be read."""
        try:
            return sorted(entry.name for entry in (self.root / path.lstrip("/")).iterdir())
        except OSError:
            return []


SYSTEM = SystemFiles()
"""This machine's own files."""
