"""The store: JSON rows in one SQLite file, that never raises, never hangs, and forgets rather than lies.

Writes go through sqlitedict (see :mod:`ort_metainfer.strategy_cache.table`). Reads go to the same file through
``sqlite3`` itself, for three reasons: sqlitedict creates the file and the table on its way to a read; each of its reads
is a round trip to a thread, and that thread dies, with the caller waiting, when a page in the middle of an answer is
damaged; and a hit should not pay for importing it. No read holds a lock after it returns.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import sqlite3
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from ort_metainfer.errors import CacheError
from ort_metainfer.strategy_cache.file import (
    BUSY_S,
    FILE_NAME,
    SCHEMA,
    create,
    is_damage,
    note_wait,
    open_for_reading,
    patience_s,
    set_aside,
)
from ort_metainfer.strategy_cache.lock import deciding

if TYPE_CHECKING:
    from ort_metainfer.strategy_cache.table import Table

__all__ = ["SCHEMA", "StrategyCache", "open_cache"]

MOST_ROWS = MappingProxyType({"starts": 2000, "files": 2000, "unchanged": 2000, "workloads": 100, "operators": 200})
"""Table -> rows kept: those that a look-up can make again in milliseconds, and that every other path, setting and
version adds to; and what a decision can ask a child again, a row of some 50 kB for each model and shapes. All others
hold what was decided."""

KEPT_SHARE = 0.75
"""Share of them that is left when there are more, so that not every write removes a row."""

_FORK_WAIT_S = 5.0  # above BUSY_S: a fork waits for a read or write in progress, but never for ever

_log = logging.getLogger("ort_metainfer.strategy_cache")

T = TypeVar("T")


class StrategyCache:
    """The cache in ``directory``: tables of JSON objects by key. Opening it does nothing; the first use does.

    No method raises for anything that the disk or another process can cause: a failure reads as a miss or returns
    False, and :attr:`last_failure` then says what went wrong. Safe between threads and processes, and across a fork.

    Attributes:
        directory: where it lies; created (0700) by the first write, never by a read.
        path: the SQLite file (0600).
        last_failure: the latest failure, one sentence that names the file and says what to do; None as long as none
            happened. A missing file, table or row is none.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = Path(os.path.abspath(directory))
        self.path = self.directory / FILE_NAME
        self.last_failure: str | None = None
        self._file = os.fspath(self.path)
        self._lock = threading.RLock()
        self._reader: sqlite3.Connection | None = None
        self._reader_is_for: tuple[int, int, float] | None = None
        _stores.add(self)

    def get(self, table: str, key: str) -> dict[str, Any] | None:
        """The row of ``key``, None where there is none or it is no JSON object."""
        rows = self._select(f'SELECT value FROM "{_table_name(table)}" WHERE key = ?', (key,))
        return _decode(rows[0][0]) if rows else None

    def put(self, table: str, key: str, value: dict[str, Any]) -> bool:
        """Write a row, replacing an older one; True once it is committed.

        Of a table in ``MOST_ROWS`` the rows written longest ago then go where there are too many. Reading is no
        writing, lest a cached start write: a row that is still wanted comes back as the newest when it is missed.

        False where it cannot be written, or holds what JSON does not have (``NaN`` and infinities among it).
        """
        if not isinstance(value, dict):
            return self._failed(f"a row of table {table!r} must be a dict, got {type(value).__name__}")

        def write(rows: Table) -> bool:
            rows[key] = value
            most = MOST_ROWS.get(table)
            if most is not None and len(rows) > most:
                rows.keep_newest(int(most * KEPT_SHARE))
            return True

        return self._change(table, write) or False

    def delete(self, table: str, key: str) -> bool:
        """Remove a row; True where there was one and it is gone."""

        def remove(rows: Table) -> bool:
            del rows[key]
            return True

        return (os.path.exists(self._file) and self._change(table, remove)) or False

    def keys(self, table: str) -> list[str]:
        """Keys of a table, sorted."""
        rows = self._select(f'SELECT key FROM "{_table_name(table)}" ORDER BY key')
        return [key.decode("utf-8", "replace") for (key,) in rows if isinstance(key, bytes)]

    def clear(self) -> int:
        """Empty every table, of every schema, and remove the strategy files and what was compiled.

        A strategy file that a person edited is set aside as ``NAME.toml.kept``: no longer in force, but not lost.

        Returns:
            Rows removed, over all tables.
        """
        from ort_metainfer.compiled import remove_all
        from ort_metainfer.strategy_cache.artifacts import remove_strategy_files

        remove_all(self.directory)
        removed = 0
        names = self._select("SELECT name FROM sqlite_master WHERE type = 'table'")
        for name in (name.decode("utf-8", "replace") for (name,) in names):
            if _TABLE_OF_OURS.fullmatch(name):
                removed += self._empty(name)
        try:
            remove_strategy_files(self.directory)
        except OSError as error:
            self._failed(f"cannot remove strategy files of {self.directory}: {error.strerror or error}")
        return removed

    def close(self) -> None:
        """Give up the connection; the next use opens another."""
        with self._lock:
            reader, self._reader, self._reader_is_for = self._reader, None, None
            if reader is not None:
                reader.close()

    def _select(self, query: str, values: tuple[str, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query; none where it fails."""
        with self._lock:
            for _attempt in range(2):
                try:
                    reader = self._open_reader()
                    return [] if reader is None else reader.execute(query, values).fetchall()
                except (sqlite3.Error, UnicodeEncodeError) as error:
                    if str(error).startswith("no such table") or not self._repaired(error, "read"):
                        return []
            self._failed(f"strategy cache {self._file} is damaged; remove it")
        return []

    def _open_reader(self) -> sqlite3.Connection | None:
        """The reading connection, to the file that now bears the name; None where there is no file."""
        try:
            stat = os.stat(self._file)
        except (FileNotFoundError, NotADirectoryError):
            self.close()
            return None
        except OSError as error:
            raise sqlite3.OperationalError(error.strerror) from error
        # another file may bear the name by now; and a connection waits as long as it was told when it was opened
        is_for = (stat.st_dev, stat.st_ino, patience_s())
        if self._reader is None or self._reader_is_for != is_for:
            self.close()
            self._reader = open_for_reading(self.path)
            self._reader_is_for = is_for
        return self._reader

    def _change(self, table: str, change: Callable[[Table], T]) -> T | None:
        """Apply ``change`` to a table; None where it failed, which is then in :attr:`last_failure`."""
        return self._change_named(_table_name(table), change)

    def _change_named(self, name: str, change: Callable[[Table], T]) -> T | None:
        with self._lock:
            for _attempt in range(2):
                try:
                    from ort_metainfer.strategy_cache.table import opened_table

                    create(self.path)
                    with opened_table(self._file, name) as rows:
                        return change(rows)
                except KeyError:
                    return None
                except sqlite3.Error as error:
                    if not self._repaired(error, "write"):
                        return None
                except (OSError, ValueError, TypeError, RecursionError, RuntimeError, ImportError) as error:
                    # RuntimeError: no new thread can be started (limits, interpreter shutting down)
                    self._failed(f"cannot write strategy cache {self._file}: {error}")
                    return None
            self._failed(f"strategy cache {self._file} is damaged; remove it")
        return None

    def _empty(self, name: str) -> int:
        count = self._select(f'SELECT COUNT(*) FROM "{name}"')

        def empty(rows: Table) -> int:
            rows.clear()
            return int(count[0][0]) if count else 0

        return self._change_named(name, empty) or 0

    def _repaired(self, error: Exception, doing: str) -> bool:
        """Whether to try once more: the file was damaged and is out of the way now. Anything else is noted."""
        if is_damage(error):
            return self._set_aside()
        advice = "another process holds it" if note_wait(error) else "check its permissions and free space"
        return self._failed(f"cannot {doing} strategy cache {self._file}: {error} ({advice})")

    def _set_aside(self) -> bool:
        """Get a damaged file out of the way; True where a sound one, or none, bears its name now."""
        self.close()
        try:
            with deciding(self.directory, "set aside a damaged strategy cache", BUSY_S) as is_ours:
                aside = set_aside(self.path) if is_ours else None
        except CacheError as error:
            return self._failed(str(error))
        if aside is not None:
            self._failed(f"strategy cache {self._file} was damaged and is now {aside.name}; a new one is begun")
        return is_ours

    def _failed(self, message: str) -> bool:
        self.last_failure = message
        _log.debug("%s", message)
        return False

    def _forget(self) -> None:
        """In a forked child: leave the parent's connection alone (closing it could undo the parent's work)."""
        _inherited.append(self._reader)
        self._lock, self._reader, self._reader_is_for = threading.RLock(), None, None


def open_cache(directory: Path) -> StrategyCache:
    """The cache of ``directory``: one per directory and process."""
    name = os.path.abspath(directory)
    with _opening:
        if name not in _by_directory:
            _by_directory[name] = StrategyCache(Path(name))
        return _by_directory[name]


_TABLE_OF_OURS = re.compile(r"[a-z][a-z_]*_v\d+")


@functools.lru_cache(maxsize=64)
def _table_name(table: str) -> str:
    """The name in the file: ``entries`` is ``entries_v1``."""
    name = f"{table}_v{SCHEMA}"
    if not _TABLE_OF_OURS.fullmatch(name):
        raise ValueError(f"a table is named by lower-case letters and _, got {table!r}")
    return name


def _decode(value: Any) -> dict[str, Any] | None:
    """A JSON object; None for what some other program, or pickle, left in its place."""
    try:
        plain = json.loads(value, parse_constant=_refuse)
    except (ValueError, TypeError, RecursionError):
        return None
    return plain if isinstance(plain, dict) else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


_opening = threading.Lock()
_by_directory: dict[str, StrategyCache] = {}
_stores: weakref.WeakSet[StrategyCache] = weakref.WeakSet()
_inherited: list[Any] = []  # connections of the parent process, kept so that nothing ever closes them
_held = threading.local()


def _before_fork() -> None:
    """Let reads and writes in progress end: SQLite's state of locks is copied into the child as it is now."""
    _held.locks = [lock for lock in [store._lock for store in _stores] if lock.acquire(timeout=_FORK_WAIT_S)]


def _after_fork_in_parent() -> None:
    for lock in getattr(_held, "locks", ()):
        lock.release()
    _held.locks = []


def _after_fork_in_child() -> None:
    global _opening
    _opening, _held.locks = threading.Lock(), []
    for store in list(_stores):
        store._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
