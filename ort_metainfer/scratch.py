"""A folder for the time of one decision: feeds, a model given as bytes. What a killed process left is swept later."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["LEFT_BEHIND_S", "scratch_folder", "sweep"]

PREFIX = "ort_metainfer-"

LEFT_BEHIND_S = 3600.0
"""Only folders older than this are swept: the process that made one may be alive in another container."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder (0700) that is gone afterwards; sweeps first, since it may hold a user's real inputs."""
    sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as folder:
        yield Path(folder)


def sweep(place: Path, now: float | None = None) -> list[Path]:
    """Remove our folders in ``place`` whose process was killed; returns them. Another user's are left alone."""
    if not hasattr(os, "getuid"):  # on Windows asking whether a process lives can end it
        return []
    removed = []
    for folder in place.glob(f"{PREFIX}*-*"):
        try:
            pid, stat = int(folder.name.removeprefix(PREFIX).split("-")[0]), folder.lstat()
        except (ValueError, OSError):
            continue
        is_old = (time.time() if now is None else now) - stat.st_mtime > LEFT_BEHIND_S
        if is_old and stat.st_uid == os.getuid() and not folder.is_symlink() and not _lives(pid):
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    return removed


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
