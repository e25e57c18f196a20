"""A damaged file is set aside once, by one process, with its journal; nothing hangs, the cache goes on."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ort_metainfer.errors import CacheError
from ort_metainfer.strategy_cache.file import set_aside
from ort_metainfer.strategy_cache.store import StrategyCache
from ort_metainfer.strategy_cache.table import opened_table
from tests.cache_children import Say, child, children

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

ROWS = 400
PAGE_BYTES = 4096


@pytest.fixture
def cache(tmp_path: Path) -> StrategyCache:
    """A cache of many pages, no handle of it open."""
    cache = StrategyCache(tmp_path / "cache")
    assert cache.put("entries", "first", {})
    with sqlite3.connect(cache.path) as connection:
        rows = [(f"key {n}", f'{{"n": {n}, "text": "{"x" * 300}"}}') for n in range(ROWS)]
        connection.executemany("INSERT INTO entries_v1 VALUES (?, ?)", rows)
    connection.close()
    return cache


def garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 64)


def header_only(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100] + b"\xa5" * (4 * PAGE_BYTES))


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: 3 * PAGE_BYTES + 1000])


def zeroed_pages(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:PAGE_BYTES] + b"\0" * (len(whole) - PAGE_BYTES))


DAMAGES = pytest.mark.parametrize("damage", [garbage, header_only, cut_short, zeroed_pages])
Damage = Callable[[Path], None]


def aside(cache: StrategyCache) -> list[str]:
    return sorted(path.name for path in cache.directory.iterdir() if ".corrupt-" in path.name)


@DAMAGES
def test_a_read_sets_a_damaged_file_aside_and_misses(cache: StrategyCache, damage: Damage) -> None:
    damage(cache.path)
    damaged = cache.path.read_bytes()
    assert cache.get("entries", "key 399") is None
    [name] = aside(cache)
    assert re.fullmatch(r"strategies\.sqlite\.corrupt-\d{8}T\d{6}Z", name)
    assert (cache.directory / name).read_bytes() == damaged
    assert not cache.path.exists()
    assert cache.last_failure is not None and name in cache.last_failure


@DAMAGES
def test_a_write_to_a_damaged_file_goes_to_a_new_one(cache: StrategyCache, damage: Damage) -> None:
    damage(cache.path)
    assert cache.put("entries", "key 399", {"n": "new"})
    assert cache.get("entries", "key 399") == {"n": "new"}
    assert len(aside(cache)) == 1
    assert cache.keys("entries") == ["key 399"]


@DAMAGES
def test_damage_under_an_open_handle_is_noticed(cache: StrategyCache, damage: Damage) -> None:
    assert cache.get("entries", "key 5") is not None
    damage(cache.path)
    assert cache.keys("entries") == []
    assert cache.put("entries", "k", {"n": 1})
    assert cache.keys("entries") == ["k"]


@DAMAGES
def test_clear_of_a_damaged_file_leaves_an_empty_cache(cache: StrategyCache, damage: Damage) -> None:
    damage(cache.path)
    cache.clear()
    assert cache.keys("entries") == []
    assert cache.put("entries", "k", {})


def test_an_empty_file_is_a_new_cache(cache: StrategyCache) -> None:
    cache.path.write_bytes(b"")
    assert cache.get("entries", "key 5") is None
    assert cache.put("entries", "k", {})
    assert aside(cache) == []


def test_rows_on_sound_pages_stay_readable_until_the_damage_is_met(cache: StrategyCache) -> None:
    whole = cache.path.read_bytes()
    place = whole.index(b'"n": 399,') // PAGE_BYTES * PAGE_BYTES
    cache.path.write_bytes(whole[:place] + b"\0" * PAGE_BYTES + whole[place + PAGE_BYTES :])
    assert cache.get("entries", "key 0") is not None
    assert cache.get("entries", "key 399") is None
    assert len(aside(cache)) == 1


def test_the_thread_that_meets_damage_in_the_middle_of_an_answer_does_not_hang_its_caller(
    cache: StrategyCache, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = cache.path.read_bytes()
    place = whole.index(b'"n": 200,') // PAGE_BYTES * PAGE_BYTES
    cache.path.write_bytes(whole[:place] + b"\0" * PAGE_BYTES + whole[place + PAGE_BYTES :])
    with opened_table(str(cache.path), "entries_v1") as rows, pytest.raises(sqlite3.DatabaseError):
        list(rows.values())
    assert capfd.readouterr() == ("", "")


def test_a_journal_goes_with_the_damaged_file_and_not_into_the_next(cache: StrategyCache) -> None:
    garbage(cache.path)
    journal = Path(f"{cache.path}-journal")
    journal.write_bytes(b"\0" * 600)
    assert cache.put("entries", "k", {"n": 1})
    name, journal_name = aside(cache)
    assert journal_name == f"{name}-journal"
    assert (cache.directory / journal_name).read_bytes() == b"\0" * 600
    assert cache.get("entries", "k") == {"n": 1}


def test_files_set_aside_in_one_second_do_not_replace_each_other(cache: StrategyCache) -> None:
    contents = [bytes([n]) * 5000 for n in range(1, 6)]
    for content in contents:
        cache.path.write_bytes(content)
        assert cache.get("entries", "k") is None
    assert {(cache.directory / name).read_bytes() for name in aside(cache)} == set(contents)


def test_a_sound_file_is_not_set_aside_on_anothers_word(cache: StrategyCache) -> None:
    assert set_aside(cache.path) is None
    assert cache.get("entries", "key 7") is not None
    assert set_aside(cache.directory / "missing.sqlite") is None


def test_damage_that_cannot_be_moved_is_a_miss_with_advice(
    cache: StrategyCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    garbage(cache.path)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    assert cache.get("entries", "k") is None
    assert not cache.put("entries", "k", {})
    assert cache.last_failure is not None
    assert "remove it" in cache.last_failure and str(cache.path) in cache.last_failure
    with pytest.raises(CacheError, match="Permission denied"):
        set_aside(cache.path)


def test_two_handles_that_meet_damage_at_once_set_it_aside_once(cache: StrategyCache) -> None:
    handles = [StrategyCache(cache.directory) for _ in range(2)]
    assert all(handle.get("entries", "key 1") is not None for handle in handles)
    garbage(cache.path)
    barrier = threading.Barrier(2)

    def write(n: int) -> bool:
        barrier.wait()
        return handles[n].put("entries", f"{n}", {"n": n})

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(write, range(2))) == [True, True]
    assert len(aside(cache)) == 1
    assert cache.keys("entries") == ["0", "1"]


@pytest.mark.slow
def test_processes_that_meet_damage_at_once_set_it_aside_once_and_lose_no_row(cache: StrategyCache) -> None:
    garbage(cache.path)

    def writer(name: str) -> Callable[[Say], None]:
        def body(say: Say) -> None:
            mine = StrategyCache(cache.directory)
            for n in range(20):
                say(mine.put("entries", f"{name} {n}", {"n": n}))

        return body

    with children(*(writer(name) for name in "abcdef")) as born:
        for one in born:
            one.go()
        assert {line.strip() for one in born for line in one.lines} == {"True"}
        assert [one.end() for one in born] == [0] * 6
    assert len(aside(cache)) == 1
    assert len(cache.keys("entries")) == 120


@pytest.mark.slow
def test_what_a_killed_writer_left_half_done_is_undone_by_the_next_read(cache: StrategyCache) -> None:
    """A hot journal: pages of a transaction that never ended are in the file already."""

    def die_in_mid_transaction(say: Say) -> None:
        connection = sqlite3.connect(cache.path, isolation_level=None)
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE entries_v1 SET value = replace(value, 'x', 'y')")
        os.kill(os.getpid(), signal.SIGKILL)

    with child(die_in_mid_transaction) as writer:
        assert writer.end() == -signal.SIGKILL
    assert Path(f"{cache.path}-journal").stat().st_size > 0
    assert b"y" * 300 in cache.path.read_bytes()
    row = cache.get("entries", "key 399")
    assert row is not None and row["text"] == "x" * 300
    assert b"y" * 300 not in cache.path.read_bytes()
    assert aside(cache) == []
