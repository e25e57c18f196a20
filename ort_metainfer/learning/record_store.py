"""Records on this machine: append-only, without doubles, bounded in size, safe between processes.

An SQLite file of its own beside the strategies, for three things that neither JSON lines nor sqlitedict give: a second
index (find-db asks by structure), a whole decision's rows in one transaction, and the oldest going without the file
being written anew. It is no part of the strategy cache, so that clearing that does not cost what was learned, and a
damaged one does not cost the other. A graph's and a machine's features, the bulk of a row, are kept once and referred
to.

Nothing here raises for what the disk or another process can cause: a record lost is a line at level debug.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ort_metainfer.errors import CacheError, RecordError
from ort_metainfer.learning.record import Record
from ort_metainfer.learning.record_checks import checked_record
from ort_metainfer.strategy_cache.file import (
    BUSY_S,
    create,
    is_damage,
    note_wait,
    open_for_reading,
    patience_s,
    set_aside,
)
from ort_metainfer.strategy_cache.lock import deciding

__all__ = ["FILE_NAME", "MAX_RECORDS", "RecordStore"]

FILE_NAME = "records.sqlite"

MAX_RECORDS = 20_000
"""A decision makes some thirty; with some 1.5 KB a row that is 30 MB, and twice what training is asked to take a minute
for."""

ROOM = 0.95
"""What is left of the bound when the oldest go, so that not each decision has to remove some."""

_PARTS = ("graph", "profile", "references", "versions")
"""Fields that many rows share, kept apart under their hash."""

_IDS = ", ".join(f'"{name}"' for name in _PARTS)

_LAYOUT = """
CREATE TABLE IF NOT EXISTS records_v1 (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, structure TEXT NOT NULL, device TEXT NOT NULL,
    score REAL, kept INTEGER NOT NULL, row TEXT NOT NULL,
    graph TEXT NOT NULL, profile TEXT NOT NULL, "references" TEXT NOT NULL, versions TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS records_v1_structure ON records_v1 (structure, device);
CREATE TABLE IF NOT EXISTS parts_v1 (id TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

_KEPT = """
SELECT number FROM records_v1 WHERE kept UNION
SELECT number FROM (SELECT number, MAX(score) FROM records_v1 WHERE score IS NOT NULL GROUP BY structure, device)
"""
"""Overrides, and the best known of each structure and device."""

_OLDEST = "DELETE FROM records_v1 WHERE number IN (SELECT number FROM records_v1 {} ORDER BY number LIMIT ?)"

_log = logging.getLogger("ort_metainfer.learning")


class RecordStore:
    """The records in ``directory``; opening does nothing, the first use does.

    Args:
        directory: the cache directory.
        limit: how many rows are kept. The oldest go first; people's overrides and the best of each structure and
            device only where nothing else is left.

    Attributes:
        corrupt: rows that the last reading had to skip.
        last_failure: the latest failure, one sentence; None where there was none.
    """

    def __init__(self, directory: Path, limit: int = MAX_RECORDS) -> None:
        self.path = Path(os.path.abspath(directory)) / FILE_NAME
        self.limit = limit
        self.corrupt = 0
        self.last_failure: str | None = None

    def add(self, records: Iterable[Record]) -> int:
        """Keep records; returns how many are new. 0 where they cannot be written."""
        rows = [row for row in map(self._row_of, records) if row is not None]
        if not rows:
            return 0
        for _attempt in range(2):
            try:
                with self._writing() as connection:
                    return self._insert(connection, rows)
            except (sqlite3.Error, OSError) as error:
                if not self._repaired(error, "write"):
                    return 0
        return 0

    def read(self, structure: str | None = None, *, overrides: bool = False) -> list[Record]:
        """Records in the order they came, all or those of one structure, or people's overrides alone; rows that are
        none are counted."""
        self.corrupt = 0
        for _attempt in range(2):
            try:
                rows, parts = self._select(structure, overrides)
                return [record for row in rows if (record := self._record(row, parts)) is not None]
            except FileNotFoundError:
                return []
            except (sqlite3.Error, OSError) as error:
                if str(error).startswith("no such table") or not self._repaired(error, "read"):
                    return []
        return []

    def count(self) -> int:
        """How many rows there are, readable or not."""
        try:
            with closing(self._open()) as connection:
                return int(connection.execute("SELECT COUNT(*) FROM records_v1").fetchone()[0])
        except (sqlite3.Error, OSError):
            return 0

    def holds(self, identity: str) -> bool:
        """Whether a record is known, by :attr:`Record.identity`."""
        try:
            with closing(self._open()) as connection:
                found = connection.execute("SELECT 1 FROM records_v1 WHERE id = ?", (identity,)).fetchone()
                return found is not None
        except (sqlite3.Error, OSError):
            return False

    def clear(self) -> int:
        """Forget every record; returns how many there were."""
        count = self.count()
        try:
            if count:
                with self._writing() as connection:
                    connection.execute("DELETE FROM records_v1")
                    connection.execute("DELETE FROM parts_v1")
        except (sqlite3.Error, OSError) as error:
            self._failed(f"cannot clear records {self.path}: {error}")
            return 0
        return count

    def _row_of(self, record: Record) -> tuple[tuple[Any, ...], dict[str, str]] | None:
        """The values of a row, and the parts it refers to: id -> JSON."""
        plain = record.as_dict()
        try:
            texts = {name: _json(plain.pop(name)) for name in _PARTS}
            ids = {name: hashlib.sha256(text.encode()).hexdigest()[:24] for name, text in texts.items()}
            score = record.log_ratio if record.is_verdict else None
            values = (record.identity, record.structure, record.device, score, record.replaced is not None)
            return (*values, _json(plain), *ids.values()), {ids[name]: text for name, text in texts.items()}
        except (ValueError, TypeError) as error:  # NaN among it
            self._failed(f"a record cannot be kept: {error}")
            return None

    def _insert(self, connection: sqlite3.Connection, rows: Sequence[tuple[tuple[Any, ...], dict[str, str]]]) -> int:
        before = connection.total_changes
        columns = f"id, structure, device, score, kept, row, {_IDS}"
        marks = ",".join("?" * (6 + len(_PARTS)))
        statement = f"INSERT OR IGNORE INTO records_v1 ({columns}) VALUES ({marks})"
        connection.executemany(statement, [values for values, _ in rows])
        new = connection.total_changes - before
        parts = {key: text for _, own in rows for key, text in own.items()}
        connection.executemany("INSERT OR IGNORE INTO parts_v1 VALUES (?,?)", parts.items())
        self._bound(connection)
        return new

    def _bound(self, connection: sqlite3.Connection) -> None:
        """Let the oldest go where there are too many, and the parts that nothing refers to any more."""
        count = int(connection.execute("SELECT COUNT(*) FROM records_v1").fetchone()[0])
        if count <= self.limit:
            return
        target = int(self.limit * ROOM)
        removed = connection.execute(_OLDEST.format(f"WHERE number NOT IN ({_KEPT})"), (count - target,)).rowcount
        if count - removed > self.limit:
            connection.execute(_OLDEST.format(""), (count - removed - self.limit,))
        connection.execute(f"DELETE FROM parts_v1 WHERE id NOT IN ({_used('')})")

    def _select(self, structure: str | None, overrides: bool) -> tuple[list[Any], dict[Any, Any]]:
        asked = ["structure = :structure"] if structure is not None else []
        asked += ["kept"] if overrides else []
        where, values = (f"WHERE {' AND '.join(asked)}" if asked else ""), {"structure": structure}
        with closing(self._open()) as connection:
            connection.execute("BEGIN")  # rows and parts of the same moment
            rows = connection.execute(f"SELECT row, {_IDS} FROM records_v1 {where} ORDER BY number", values).fetchall()
            wanted = f"WHERE id IN ({_used(where)})" if asked else ""
            return rows, dict(connection.execute(f"SELECT id, value FROM parts_v1 {wanted}", values).fetchall())

    def _record(self, row: Sequence[bytes], parts: Mapping[bytes, bytes]) -> Record | None:
        try:
            shared = {name: json.loads(parts[key]) for name, key in zip(_PARTS, row[1:], strict=True)}
            return checked_record({**json.loads(row[0]), **shared})
        except (ValueError, TypeError, KeyError, RecordError) as error:
            self.corrupt += 1
            _log.debug("a record of %s is skipped: %s", self.path, error)
            return None

    def _open(self) -> sqlite3.Connection:
        if not self.path.exists():
            raise FileNotFoundError(os.fspath(self.path))
        return open_for_reading(self.path)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A connection inside a transaction that is committed at the end, or undone."""
        create(self.path)
        wait_s = patience_s()
        with closing(sqlite3.connect(self.path, timeout=wait_s, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")  # a power cut may cost records, a killed process does not
            connection.executescript(_LAYOUT)
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def _repaired(self, error: Exception, doing: str) -> bool:
        """Whether to try once more: the file was damaged and is out of the way now. Anything else is noted."""
        if not is_damage(error):
            advice = "another process holds it" if note_wait(error) else "check its permissions and free space"
            return self._failed(f"cannot {doing} records {self.path}: {error} ({advice})")
        try:
            with deciding(self.path.parent, "set aside damaged records", BUSY_S) as is_ours:
                aside = set_aside(self.path) if is_ours else None
        except CacheError as failure:
            return self._failed(str(failure))
        if aside is not None:
            self._failed(f"records {self.path} were damaged and are now {aside.name}; a new file is begun")
        return is_ours

    def _failed(self, message: str) -> bool:
        self.last_failure = message
        _log.debug("%s", message)
        return False


def _used(where: str) -> str:
    """The query for every part that rows refer to."""
    return " UNION ".join(f'SELECT "{name}" FROM records_v1 {where}' for name in _PARTS)


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":"))
