"""One table of the cache file, opened for writing through sqlitedict, with what sqlitedict does wrongly put right.

Imported only when something is written: a session whose strategy is known never pays for it. What is changed, all of it
seen in sqlitedict 2.1.0:

* its ``timeout`` does not reach SQLite, which goes on waiting 5 s for a lock: here the wait is ``BUSY_S``;
* an error outside its own ``try`` ends its thread, and the caller waits for an answer for ever: here the caller
  notices;
* its thread prints a traceback on stderr and it logs errors that are raised as well: here they are only raised.

Values are JSON (``NaN`` and infinities refused), commits are sqlitedict's autocommit, the journal is SQLite's DELETE:
the only mode that can be read from a read-only folder. ``synchronous`` stays OFF as sqlitedict has it: a killed process
loses nothing that was acknowledged, a power cut may cost the cache, never more than the cache.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, Queue
from typing import Any

import sqlitedict

from ort_metainfer.strategy_cache.file import BUSY_S, patience_s

__all__ = ["Table", "opened_table"]

_ANSWER_POLL_S = 0.1
_NO_MORE = "--no more--"  # sqlitedict's mark for the end of an answer

_ours = threading.local()


class _NotOurs(logging.Filter):
    """Drops what sqlitedict logs while this package opens a table; an application's own use of it logs as before."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(_ours, "opening", False)


logging.getLogger("sqlitedict").addFilter(_NotOurs())
_SILENT = logging.Logger("ort_metainfer.sqlitedict", level=logging.CRITICAL + 1)  # part of no hierarchy


class _Connection(sqlitedict.SqliteMultithread):  # type: ignore[misc]  # sqlitedict has no types
    """sqlitedict's thread around one SQLite connection: quiet, and never waited for in vain."""

    @property
    def log(self) -> logging.Logger:
        return _SILENT

    @log.setter
    def log(self, _logger: logging.Logger) -> None:
        """The base class sets its own, which reaches the user."""

    def _connect(self) -> tuple[sqlite3.Connection, sqlite3.Cursor]:
        try:
            wait_s = patience_s()
            connection = sqlite3.connect(self.filename, timeout=wait_s, isolation_level=None, check_same_thread=False)
            connection.execute(f"PRAGMA busy_timeout = {wait_s * 1000:.0f}")
            connection.execute(f"PRAGMA journal_mode = {self.journal_mode}")
            connection.execute("PRAGMA synchronous = OFF")
        except sqlite3.Error:
            self.exception = sys.exc_info()
            raise
        return connection, connection.cursor()

    def run(self) -> None:
        try:
            super().run()
        except sqlite3.Error:
            with self._lock:
                self.exception = self.exception or sys.exc_info()

    def select(self, req: str, arg: tuple[Any, ...] | None = None) -> Iterator[Any]:
        answers: Queue[Any] = Queue()
        self.execute(req, arg, answers)
        while True:
            try:
                answer = answers.get(timeout=_ANSWER_POLL_S)
            except Empty:
                if self.is_alive() or not answers.empty():
                    continue
                self.check_raise_error()
                raise sqlite3.OperationalError("the thread that writes has ended") from None
            self.check_raise_error()
            if answer == _NO_MORE:
                return
            yield answer


class Table(sqlitedict.SqliteDict):  # type: ignore[misc]  # sqlitedict has no types
    """A dict of JSON values in one table; every change is committed, or raises, before the call returns.

    Raises:
        sqlite3.Error: the file cannot be opened or written.
        ValueError, TypeError, RecursionError: a value that JSON does not have.
    """

    conn: _Connection | None

    def __init__(self, filename: str, name: str) -> None:
        _ours.opening = True
        try:
            super().__init__(
                filename,
                tablename=name,
                autocommit=True,
                journal_mode="DELETE",
                encode=_encode,
                decode=json.loads,
                outer_stack=False,
            )
        except BaseException:
            self.end()
            raise
        finally:
            _ours.opening = False

    def _new_conn(self) -> _Connection:
        return _Connection(self.filename, self.autocommit, self.journal_mode, self._outer_stack)

    def keep_newest(self, count: int) -> None:
        """Remove all rows but the ``count`` that were written last (a row that is replaced counts as new)."""
        name = self.tablename.replace('"', '""')
        self.conn.execute(  # type: ignore[union-attr]
            f'DELETE FROM "{name}" WHERE rowid NOT IN (SELECT rowid FROM "{name}" ORDER BY rowid DESC LIMIT ?)',
            (count,),
        )
        self.commit(blocking=True)

    def end(self) -> None:
        """Close and wait for the thread: afterwards none of it is left, neither for ``__del__`` nor across a fork."""
        connection, self.conn = getattr(self, "conn", None), None
        if connection is not None:
            connection.close(force=True)
            connection.join(timeout=BUSY_S + 1.0)


@contextmanager
def opened_table(filename: str, name: str) -> Iterator[Table]:
    """A table for the time of one change.

    Opened and closed each time, because an open one means a thread and a connection that a fork would inherit, and
    writes are a few per decision.
    """
    table = Table(filename, name)
    try:
        yield table
    finally:
        table.end()


def _encode(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
