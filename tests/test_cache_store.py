"""The store: rows in, rows out, misses for everything else, nothing raised, nothing made by a read."""

from __future__ import annotations

import logging
import math
import os
import pickle
import sqlite3
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ort_metainfer.strategy_cache import store as store_module
from ort_metainfer.strategy_cache.store import SCHEMA, StrategyCache, open_cache

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

ROW: dict[str, Any] = {"text": "Grüße \udcff", "list": [1, 2.5, None, True], "deep": {"a": {"b": "c"}}}


@pytest.fixture
def cache(tmp_path: Path) -> StrategyCache:
    return StrategyCache(tmp_path / "deep" / "cache")


def plant(cache: StrategyCache, value: Any, key: str = "k") -> None:
    """Put a raw value where a row should be, as another program might."""
    assert cache.put("entries", key, {})
    with sqlite3.connect(cache.path) as connection:
        connection.execute(f"UPDATE entries_v{SCHEMA} SET value = ? WHERE key = ?", (value, key))
    connection.close()


def test_a_row_comes_back_equal_in_this_handle_and_in_another(cache: StrategyCache) -> None:
    assert cache.put("entries", "k", ROW)
    assert cache.get("entries", "k") == ROW
    assert StrategyCache(cache.directory).get("entries", "k") == ROW
    assert cache.last_failure is None


def test_a_row_is_replaced_and_its_neighbours_stay(cache: StrategyCache) -> None:
    for key in ("a", "b"):
        assert cache.put("entries", key, {"key": key})
    assert cache.put("entries", "a", {"key": "new"})
    assert [cache.get("entries", key) for key in "ab"] == [{"key": "new"}, {"key": "b"}]


def test_a_change_by_another_handle_is_seen_at_once(cache: StrategyCache) -> None:
    other = StrategyCache(cache.directory)
    assert other.get("entries", "k") is None
    cache.put("entries", "k", {"n": 1})
    assert other.get("entries", "k") == {"n": 1}
    cache.put("entries", "k", {"n": 2})
    assert other.get("entries", "k") == {"n": 2}
    cache.delete("entries", "k")
    assert other.get("entries", "k") is None


def test_tables_do_not_see_each_other(cache: StrategyCache) -> None:
    cache.put("entries", "k", {"in": "entries"})
    cache.put("models", "k", {"in": "models"})
    assert cache.get("entries", "k") == {"in": "entries"}
    assert cache.get("models", "k") == {"in": "models"}
    assert cache.get("decisions", "k") is None


def test_keys_are_sorted_and_those_of_one_table(cache: StrategyCache) -> None:
    for key in ("b", "ä", "a", ""):
        cache.put("entries", key, {})
    cache.put("models", "m", {})
    assert cache.keys("entries") == ["", "a", "b", "ä"]
    assert cache.keys("decisions") == []


def test_delete_says_whether_there_was_a_row(cache: StrategyCache) -> None:
    cache.put("entries", "k", {})
    assert cache.delete("entries", "k")
    assert not cache.delete("entries", "k")
    assert not cache.delete("decisions", "k")
    assert cache.get("entries", "k") is None
    assert cache.last_failure is None


def test_clear_empties_every_table_of_every_schema_and_counts_rows(cache: StrategyCache) -> None:
    for table, key in (("entries", "a"), ("entries", "b"), ("files", "c")):
        cache.put(table, key, {})
    with sqlite3.connect(cache.path) as connection:
        connection.execute("CREATE TABLE entries_v99 (key TEXT PRIMARY KEY, value BLOB)")
        connection.execute("INSERT INTO entries_v99 VALUES ('k', '{}')")
        connection.execute("CREATE TABLE elsewhere (a)")
        connection.execute("INSERT INTO elsewhere VALUES (1)")
    assert cache.clear() == 4
    assert [cache.keys(table) for table in ("entries", "files")] == [[], []]
    assert connection.execute("SELECT COUNT(*) FROM entries_v99").fetchone() == (0,)
    assert connection.execute("SELECT COUNT(*) FROM elsewhere").fetchone() == (1,)
    connection.close()
    assert cache.clear() == 0


def test_neither_read_nor_delete_nor_clear_makes_anything(cache: StrategyCache, tmp_path: Path) -> None:
    assert cache.get("entries", "k") is None
    assert cache.keys("entries") == []
    assert not cache.delete("entries", "k")
    assert cache.clear() == 0
    cache.close()
    assert list(tmp_path.iterdir()) == []
    assert cache.last_failure is None


def test_directory_and_file_are_the_users_alone(cache: StrategyCache) -> None:
    before = os.umask(0)
    try:
        assert cache.put("entries", "k", {})
    finally:
        os.umask(before)
    assert stat.S_IMODE(cache.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(cache.path.stat().st_mode) == 0o600


def test_modes_of_a_directory_that_was_there_are_left(cache: StrategyCache) -> None:
    cache.directory.mkdir(parents=True, mode=0o750)
    os.chmod(cache.directory, 0o750)
    assert cache.put("entries", "k", {})
    assert stat.S_IMODE(cache.directory.stat().st_mode) == 0o750


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_does_not_have_is_refused(cache: StrategyCache, number: float) -> None:
    cache.put("entries", "k", {"n": 1})
    assert not cache.put("entries", "k", {"deep": [{"n": number}]})
    assert cache.get("entries", "k") == {"n": 1}
    assert cache.last_failure is not None and "JSON" in cache.last_failure


@pytest.mark.parametrize("value", [{"x": object()}, {"x": b"bytes"}, {("a", 1): 2}, ["no dict"], None])
def test_what_is_no_json_object_is_refused(cache: StrategyCache, value: Any) -> None:
    assert not cache.put("entries", "k", value)
    assert cache.get("entries", "k") is None
    assert cache.last_failure is not None


def test_a_value_that_contains_itself_is_refused(cache: StrategyCache) -> None:
    value: dict[str, Any] = {}
    value["self"] = value
    assert not cache.put("entries", "k", value)


def test_a_key_that_is_no_unicode_is_a_miss_and_a_failure_not_an_exception(cache: StrategyCache) -> None:
    cache.put("entries", "k", {})
    assert not cache.put("entries", "\udcff", {})
    assert cache.get("entries", "\udcff") is None
    assert not cache.delete("entries", "\udcff")
    assert cache.last_failure is not None


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(pickle.dumps({"n": 1}), id="pickled"),
        pytest.param(b"\xff\xfe\x00", id="bytes"),
        pytest.param("[1, 2]", id="json list"),
        pytest.param('"text"', id="json text"),
        pytest.param("null", id="json null"),
        pytest.param('{"n": NaN}', id="NaN"),
        pytest.param('{"n": 1', id="cut short"),
        pytest.param("[" * 100_000, id="nested without end"),
        pytest.param(17, id="integer"),
        pytest.param(None, id="NULL"),
    ],
)
def test_a_foreign_row_is_a_miss_and_can_be_replaced(cache: StrategyCache, value: Any) -> None:
    plant(cache, value)
    assert cache.get("entries", "k") is None
    assert cache.keys("entries") == ["k"]
    assert cache.put("entries", "k", {"n": 1})
    assert cache.get("entries", "k") == {"n": 1}


def test_a_pickled_row_is_not_run(cache: StrategyCache, tmp_path: Path) -> None:
    trap = tmp_path / "ran"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (trap,)

    plant(cache, pickle.dumps(Trap()))
    assert cache.get("entries", "k") is None
    assert cache.delete("entries", "k")
    assert not trap.exists()


def test_text_that_is_no_utf8_is_a_miss(cache: StrategyCache) -> None:
    plant(cache, "{}")
    with sqlite3.connect(cache.path) as connection:
        connection.execute(f"UPDATE entries_v{SCHEMA} SET value = CAST(x'7bff7d' AS TEXT)")
    connection.close()
    assert cache.get("entries", "k") is None
    assert cache.last_failure is None


def test_a_table_of_another_shape_is_a_miss_with_a_reason(cache: StrategyCache) -> None:
    cache.directory.mkdir(parents=True)
    with sqlite3.connect(cache.path) as connection:
        connection.execute(f"CREATE TABLE entries_v{SCHEMA} (other TEXT)")
    connection.close()
    assert cache.get("entries", "k") is None
    assert not cache.put("entries", "k", {})
    assert cache.last_failure is not None and str(cache.path) in cache.last_failure


def test_another_schema_version_is_not_read(cache: StrategyCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put("entries", "k", {"n": 1})
    monkeypatch.setattr(store_module, "SCHEMA", SCHEMA + 1)
    store_module._table_name.cache_clear()
    try:
        assert cache.get("entries", "k") is None
    finally:
        store_module._table_name.cache_clear()


@pytest.mark.parametrize("table", ["", "Entries", "a b", 'x"; DROP TABLE y; --', "sqlite_master\n"])
def test_a_table_needs_a_plain_name(cache: StrategyCache, table: str) -> None:
    with pytest.raises(ValueError, match="named by lower-case letters"):
        cache.get(table, "k")
    with pytest.raises(ValueError, match="named by lower-case letters"):
        cache.put(table, "k", {})


def test_a_removed_cache_is_a_miss_at_once_and_begun_anew_by_a_write(cache: StrategyCache) -> None:
    cache.put("entries", "k", {"n": 1})
    assert cache.get("entries", "k") == {"n": 1}
    cache.path.unlink()
    assert cache.get("entries", "k") is None
    assert cache.put("entries", "other", {"n": 2})
    assert cache.get("entries", "other") == {"n": 2}
    assert StrategyCache(cache.directory).keys("entries") == ["other"]


def test_a_file_that_another_handle_replaced_is_read_instead_of_the_old_one(cache: StrategyCache) -> None:
    cache.put("entries", "k", {"n": "old"})
    assert cache.get("entries", "k") == {"n": "old"}
    os.rename(cache.path, f"{cache.path}.old")
    StrategyCache(cache.directory).put("entries", "k", {"n": "new"})
    assert cache.get("entries", "k") == {"n": "new"}


def test_a_directory_in_the_way_is_a_miss_with_a_reason(cache: StrategyCache) -> None:
    cache.path.mkdir(parents=True)
    assert cache.get("entries", "k") is None
    assert not cache.put("entries", "k", {})
    assert cache.last_failure is not None and str(cache.path) in cache.last_failure


def test_a_file_where_the_directory_should_be_is_a_miss_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no directory")
    cache = StrategyCache(tmp_path / "cache")
    assert cache.get("entries", "k") is None
    assert cache.last_failure is None
    assert not cache.put("entries", "k", {})
    assert cache.last_failure is not None
    assert (tmp_path / "cache").read_text() == "no directory"


def test_a_directory_with_an_odd_name_works(tmp_path: Path) -> None:
    cache = StrategyCache(tmp_path / "a?b#c%20d ü'\"")
    assert cache.put("entries", "k", {"n": 1})
    assert cache.get("entries", "k") == {"n": 1}
    assert [path.name for path in cache.directory.iterdir()] == ["strategies.sqlite"]


def test_a_closed_cache_opens_itself_again(cache: StrategyCache) -> None:
    cache.put("entries", "k", {"n": 1})
    cache.close()
    cache.close()
    assert cache.get("entries", "k") == {"n": 1}


def test_a_relative_directory_is_fixed_when_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cache = StrategyCache(Path("cache"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    cache.put("entries", "k", {"n": 1})
    assert StrategyCache(tmp_path / "cache").get("entries", "k") == {"n": 1}


def test_open_cache_gives_one_store_per_directory_to_all_threads(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)

    def opened(_: int) -> StrategyCache:
        barrier.wait()
        return open_cache(tmp_path / "cache")

    with ThreadPoolExecutor(8) as pool:
        stores = set(pool.map(opened, range(8)))
    assert len(stores) == 1
    assert open_cache(tmp_path / "x" / ".." / "cache") in stores
    assert open_cache(tmp_path / "other") not in stores


def test_threads_share_a_store(cache: StrategyCache) -> None:
    def write_and_read(n: int) -> bool:
        return cache.put("entries", f"{n}", {"n": n}) and cache.get("entries", f"{n}") == {"n": n}

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(write_and_read, range(64)))
    assert len(cache.keys("entries")) == 64


def test_no_thread_is_left_after_a_write_or_a_failed_one(cache: StrategyCache) -> None:
    before = set(threading.enumerate())
    cache.put("entries", "k", {})
    cache.put("entries", "k", {"n": math.nan})
    cache.path.write_bytes(b"garbage" * 1000)
    cache.put("entries", "k", {})
    assert set(threading.enumerate()) <= before


def test_no_lock_is_held_after_a_read(cache: StrategyCache) -> None:
    for key in ("a", "b"):
        cache.put("entries", key, {})
    assert cache.get("entries", "a") == {}
    assert cache.keys("entries") == ["a", "b"]
    other = sqlite3.connect(cache.path, timeout=0, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    other.execute("ROLLBACK")
    other.close()


def test_the_reading_connection_cannot_write(cache: StrategyCache) -> None:
    cache.put("entries", "k", {"n": 1})
    assert cache._select(f"DELETE FROM entries_v{SCHEMA}") == []
    assert cache.get("entries", "k") == {"n": 1}


def test_a_lock_held_elsewhere_is_waited_for_and_then_a_failure(
    cache: StrategyCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ort_metainfer.strategy_cache import file

    cache.put("entries", "k", {"n": 1})
    monkeypatch.setattr(file, "BUSY_S", 0.05)
    monkeypatch.setattr(file, "_waited_in_vain_at", float("-inf"))
    holder = sqlite3.connect(cache.path, timeout=0, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    assert cache.get("entries", "k") == {"n": 1}
    assert not cache.put("entries", "k", {"n": 2})
    assert cache.last_failure is not None and "another process holds it" in cache.last_failure
    holder.execute("ROLLBACK")
    holder.close()
    assert cache.put("entries", "k", {"n": 3})
    assert cache.get("entries", "k") == {"n": 3}


def test_many_reads_and_writes_wait_for_one_lock_no_longer_than_one(
    cache: StrategyCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ort_metainfer.strategy_cache import file

    now = [100.0]
    monkeypatch.setattr(file, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(file, "BUSY_S", 0.3)
    monkeypatch.setattr(file, "_waited_in_vain_at", float("-inf"))
    cache.put("entries", "k", {"n": 1})
    holder = sqlite3.connect(cache.path, timeout=0, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    assert file.patience_s() == 0.3
    assert cache.get("entries", "k") is None
    assert file.patience_s() == file.SHORT_S
    assert not cache.put("entries", "k", {"n": 2})
    holder.execute("ROLLBACK")
    holder.close()
    assert cache.get("entries", "k") == {"n": 1}
    now[0] += file.SOON_S
    assert file.patience_s() == 0.3


def test_the_wait_for_a_lock_is_ours_and_not_sqlitedicts(cache: StrategyCache) -> None:
    from ort_metainfer.strategy_cache.file import BUSY_S
    from ort_metainfer.strategy_cache.table import opened_table

    cache.put("entries", "k", {})
    with opened_table(str(cache.path), "entries_v1") as rows:
        assert rows.conn is not None
        pragmas = {name: rows.conn.select_one(f"PRAGMA {name}")[0] for name in ("busy_timeout", "journal_mode")}
    assert pragmas == {"busy_timeout": BUSY_S * 1000, "journal_mode": "delete"}
    assert cache._select("PRAGMA busy_timeout") == [(BUSY_S * 1000,)]


def test_a_file_in_wal_mode_is_read_and_turned_back_by_a_write_when_nobody_else_reads(cache: StrategyCache) -> None:
    cache.put("entries", "k", {"n": 1})
    other = sqlite3.connect(cache.path)
    assert other.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    other.close()
    assert cache.get("entries", "k") == {"n": 1}
    cache.close()
    assert cache.put("entries", "k", {"n": 2})
    assert cache.get("entries", "k") == {"n": 2}
    assert cache._select("PRAGMA journal_mode") == [(b"delete",)]


def test_sqlitedict_reaches_neither_stderr_nor_the_users_log(
    cache: StrategyCache, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        cache.put("entries", "k", {})
        cache.delete("entries", "k")
        cache.path.write_bytes(b"garbage" * 1000)
        cache.put("entries", "k", {})
        cache.path.unlink()
        cache.path.mkdir()
        cache.put("entries", "k", {})
    assert [record.name for record in caplog.records if record.name.startswith("sqlitedict")] == []
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_an_applications_own_sqlitedict_logs_as_before(
    cache: StrategyCache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import sqlitedict

    with caplog.at_level(logging.DEBUG):
        cache.put("entries", "k", {})
        with sqlitedict.SqliteDict(str(tmp_path / "theirs.sqlite"), encode=str, decode=str) as theirs:
            theirs["k"] = "v"
    assert any(record.name == "sqlitedict" and "theirs" in record.getMessage() for record in caplog.records)
    assert logging.getLogger("sqlitedict").level == logging.NOTSET


def test_a_missing_sqlitedict_is_a_failure_and_reads_go_on(
    cache: StrategyCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    cache.put("entries", "k", {"n": 1})
    monkeypatch.delitem(sys.modules, "ort_metainfer.strategy_cache.table")
    monkeypatch.delattr("ort_metainfer.strategy_cache.table", raising=False)
    monkeypatch.setitem(sys.modules, "sqlitedict", None)
    assert not cache.put("entries", "k", {"n": 2})
    assert cache.last_failure is not None and "sqlitedict" in cache.last_failure
    assert cache.get("entries", "k") == {"n": 1}
