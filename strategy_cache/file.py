"""The SQLite file: created with its mode, opened for reading, found damaged, set aside."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from ort_metainfer.errors import CacheError

__all__ = [
    "BUSY_S",
    "FILE_NAME",
    "SCHEMA",
    "create",
    "is_damage",
    "note_wait",
    "open_for_reading",
    "patience_s",
    "set_aside",
]

SCHEMA = 1
"""Part of every table's name: raised when rows change meaning, so that older and newer releases share one file."""

FILE_NAME = "strategies.sqlite"

BUSY_S = 2.0
"""Seconds to wait for a lock that another process holds on the file."""

SOON_S = 5.0
"""After a lock that was waited for in vain: how long no other is waited for. A session asks some five times, and each
wait would come on top of the time that deciding may take."""

SHORT_S = 0.05
"""Seconds to wait for a lock meanwhile."""

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_SIDE_FILES = ("-journal", "-wal", "-shm")
_waited_in_vain_at = float("-inf")


def patience_s() -> float:
    """Seconds to wait for a lock now: ``BUSY_S``, but next to nothing soon after one was waited for in vain."""
    return min(SHORT_S, BUSY_S) if time.monotonic() - _waited_in_vain_at < SOON_S else BUSY_S


def note_wait(error: Exception) -> bool:
    """Whether ``error`` is the end of a wait for a lock in vain; :func:`patience_s` heeds it from then on."""
    global _waited_in_vain_at
    is_busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY
    if is_busy and time.monotonic() - _waited_in_vain_at >= SOON_S:
        _waited_in_vain_at = time.monotonic()
    return is_busy


def create(path: Path) -> None:
    """Make the folder (0700) and an empty file (0600) where there is none.

    A file that is there is never opened: closing it again would drop the locks SQLite holds on it in this process.

    Raises:
        OSError: they cannot be made.
    """
    if not path.exists():
        os.makedirs(path.parent, mode=0o700, exist_ok=True)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return


def open_for_reading(path: Path) -> sqlite3.Connection:
    """A connection that reads; text comes as bytes, so that what is no UTF-8 is a value like any other.

    It is opened ``mode=rw`` and then limited by ``query_only``, rather than ``mode=ro``: only so may SQLite roll back
    the journal that a killed writer left. Where file or folder cannot be written SQLite itself falls back to reading.

    Raises:
        sqlite3.Error: there is no such file, or it cannot be opened.
    """
    wait_s = patience_s()
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw", uri=True, timeout=wait_s, isolation_level=None, check_same_thread=False
    )
    connection.text_factory = bytes
    connection.execute(f"PRAGMA busy_timeout = {wait_s * 1000:.0f}")
    connection.execute("PRAGMA query_only = ON")
    return connection


def is_damage(error: Exception) -> bool:
    """Whether SQLite says that the file is none of its own, or malformed."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def set_aside(path: Path) -> Path | None:
    """Rename a damaged file to ``NAME.corrupt-DATE``, its journal first, lest SQLite roll that back into the next file.

    Only after a second look, on a connection of its own, at what bears the name now: it may be a new file already. The
    caller sees to it that one process does this at a time.

    Returns:
        The new name; None where the file that bears the name now is not damaged, or there is none.

    Raises:
        CacheError: it is damaged and cannot be renamed.
    """
    if not _is_damaged(path):
        return None
    from datetime import UTC, datetime

    aside = _free_name(f"{path}.corrupt-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    try:
        for suffix in _SIDE_FILES:
            if os.path.exists(f"{path}{suffix}"):
                os.rename(f"{path}{suffix}", f"{aside}{suffix}")
        os.rename(path, aside)
    except OSError as error:
        raise CacheError(f"strategy cache {path} is damaged; remove it ({error.strerror or error})") from error
    return Path(aside)


def _is_damaged(path: Path) -> bool:
    """Whether the file that bears the name now is damaged, on a connection of its own."""
    if not path.exists():
        return False
    try:
        connection = open_for_reading(path)
        try:
            return bool(connection.execute("PRAGMA integrity_check(1)").fetchall() != [(b"ok",)])
        finally:
            connection.close()
    except sqlite3.Error as error:
        return is_damage(error)


def _free_name(name: str) -> str:
    taken = 0
    while os.path.exists(f"{name}-{taken}" if taken else name):
        taken += 1
    return f"{name}-{taken}" if taken else name
