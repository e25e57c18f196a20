"""The store among processes: written at once, killed, forked, on a full disk, on a disk that cannot be written."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import ort_metainfer
from ort_metainfer.strategy_cache.store import StrategyCache, open_cache
from tests.cache_children import Say, child, children

resource = pytest.importorskip("resource", reason="needs Unix: fork and limits of a process")

pytestmark = pytest.mark.slow

FULL_DISK_BYTES = 256 * 1024


def mounted(folder: Path, options: str) -> str | None:
    """Mount a small file system in memory there; why not, or None."""
    if os.geteuid() != 0:
        return "mounting needs root"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    return done.stderr.strip() or "mount failed" if done.returncode else None


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    if reason := mounted(folder, f"size={FULL_DISK_BYTES}"):
        pytest.skip(reason)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def integrity(cache: StrategyCache) -> list[tuple[str]]:
    connection = sqlite3.connect(cache.path)
    try:
        return connection.execute("PRAGMA integrity_check").fetchall()
    finally:
        connection.close()


def test_eight_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    def writer(name: int) -> Callable[[Say], None]:
        def body(say: Say) -> None:
            cache = StrategyCache(tmp_path / "cache")
            failed = [n for n in range(200) if not cache.put("entries", f"{name} {n}", {"writer": name, "n": n})]
            say(f"{failed} {cache.last_failure}")

        return body

    with children(*(writer(name) for name in range(8))) as born:
        for one in born:
            one.go()
        assert [one.hear() for one in born] == ["[] None"] * 8
    cache = StrategyCache(tmp_path / "cache")
    assert set(cache.keys("entries")) == {f"{name} {n}" for name in range(8) for n in range(200)}
    assert all(
        cache.get("entries", f"{name} {n}") == {"writer": name, "n": n} for name in range(8) for n in range(0, 200, 7)
    )
    assert integrity(cache) == [("ok",)]


def test_readers_never_miss_a_row_while_others_write(tmp_path: Path) -> None:
    cache = StrategyCache(tmp_path / "cache")
    assert cache.put("entries", "there", {"n": 0})

    def write(say: Say) -> None:
        mine = StrategyCache(cache.directory)
        say(all(mine.put("entries", "there", {"n": n}) for n in range(150)))

    with children(write, write) as born:
        for one in born:
            one.go()
        seen = [cache.get("entries", "there") for _ in range(1500)]
        assert [one.hear() for one in born] == ["True", "True"]
    assert None not in seen
    assert cache.last_failure is None


def test_a_writer_killed_twenty_times_keeps_every_acknowledged_row(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    random = Random(20)
    acknowledged: list[str] = []

    def writer(life: int) -> Callable[[Say], None]:
        def body(say: Say) -> None:
            cache = StrategyCache(directory)
            for n in range(100_000):
                if cache.put("entries", f"{life} {n}", {"text": "x" * 500}):
                    say(f"{life} {n}")

        return body

    for life in range(20):
        with child(writer(life)) as victim:
            acknowledged += [victim.hear() for _ in range(random.randint(1, 25))]
            victim.kill()
            assert victim.end() == -9
            acknowledged += [line.strip() for line in victim.lines if line.endswith("\n")]
    cache = StrategyCache(directory)
    assert len(acknowledged) >= 20 and "" not in acknowledged
    assert [key for key in acknowledged if cache.get("entries", key) != {"text": "x" * 500}] == []
    assert integrity(cache) == [("ok",)]
    assert cache.put("entries", "after", {})


def test_a_forked_child_reads_and_writes_with_a_handle_of_its_own(tmp_path: Path) -> None:
    cache = open_cache(tmp_path / "cache")
    assert cache.put("entries", "parent", {"n": 1})
    assert cache.get("entries", "parent") == {"n": 1}
    inherited = cache._reader

    def body(say: Say) -> None:
        say(open_cache(tmp_path / "cache") is cache)
        say(cache.get("entries", "parent"))
        say(cache._reader is not None and cache._reader is not inherited)
        say(cache.put("entries", "child", {"n": 2}))
        say(sorted(cache.keys("entries")))

    with child(body) as one:
        heard = [line.strip() for line in one.lines]
        assert one.end() == 0
    assert heard == ["True", "{'n': 1}", "True", "True", "['child', 'parent']"]
    assert cache._reader is inherited
    assert cache.get("entries", "child") == {"n": 2}


def test_a_child_forked_while_another_thread_writes_does_not_hang(tmp_path: Path) -> None:
    cache = open_cache(tmp_path / "cache")
    stop, wrote = threading.Event(), threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            assert cache.put("entries", f"parent {n}", {"n": n})
            n += 1
            wrote.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert wrote.wait(30)
        for life in range(30):
            with child(lambda say, life=life: say(cache.put("entries", f"child {life}", {}))) as one:  # type: ignore[misc]
                assert one.hear() == "True"
                assert one.end() == 0
    finally:
        stop.set()
        thread.join()
    assert [key for key in cache.keys("entries") if key.startswith("child")] == sorted(f"child {n}" for n in range(30))
    assert cache.last_failure is None
    assert integrity(cache) == [("ok",)]


def test_a_fork_waits_until_a_write_of_another_thread_has_ended(tmp_path: Path) -> None:
    """Or the child would inherit SQLite in the middle of it: its mutexes held, its locks noted as the child's own."""
    cache = open_cache(tmp_path / "cache")
    writing, forking = threading.Event(), threading.Event()
    is_in_the_middle: list[bool] = []

    def change(rows: Any) -> None:
        is_in_the_middle.append(True)
        writing.set()
        forking.wait(30)
        rows["k"] = {"n": 1}
        is_in_the_middle.clear()

    thread = threading.Thread(target=cache._change, args=("entries", change))
    thread.start()
    assert writing.wait(30)
    os.register_at_fork(before=forking.set)
    with child(lambda say: say((is_in_the_middle, cache.get("entries", "k")))) as one:
        assert one.hear() == "([], {'n': 1})"
    thread.join()


def test_a_child_takes_its_own_locks_on_the_file(tmp_path: Path) -> None:
    """SQLite's note of which locks this process holds is copied by a fork; were it kept, the child would take none."""
    cache = open_cache(tmp_path / "cache")
    assert cache.put("entries", "k", {"n": 1})
    assert cache.get("entries", "k") == {"n": 1}

    def hold(say: Say) -> None:
        connection = sqlite3.connect(cache.path, isolation_level=None)
        connection.execute("BEGIN EXCLUSIVE")
        say("held")
        os.read(os.pipe()[0], 1)  # never answered: it is killed

    with child(hold) as one:
        assert one.hear() == "held"
        probe = sqlite3.connect(cache.path, timeout=0, isolation_level=None)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            probe.execute("BEGIN IMMEDIATE")
        probe.close()
        one.kill()
        one.end()
    assert cache.put("entries", "k", {"n": 2})


def run_without_onnxruntime(script: str, directory: Path) -> tuple[str, str]:
    """Run a script in a fresh interpreter; what it printed on stdout and stderr.

    The package is there under its name but not run: with onnxruntime loaded (seen: 1.32) a forked child that leaves by
    ``sys.exit`` hangs, whoever forked it.
    """
    folders = [str(Path(ort_metainfer.__path__[0])), *ort_metainfer.__path__[1:]]
    head = (
        "import os, sys, types\n"
        "from pathlib import Path\n"
        "package = sys.modules['ort_metainfer'] = types.ModuleType('ort_metainfer')\n"
        f"package.__path__ = {folders!r}\n"
        "from ort_metainfer.strategy_cache.store import open_cache\n"
        f"cache = open_cache(Path({str(directory)!r}))\n"
    )
    command = [sys.executable, "-c", head + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, done.stderr


def test_a_child_that_exits_undoes_nothing_of_its_parent(tmp_path: Path) -> None:
    """The whole way out of an interpreter, which closes what a module still holds."""
    script = (
        "assert cache.put('entries', 'a', {'n': 1}) and cache.get('entries', 'a')\n"
        "if os.fork() == 0:\n"
        "    assert cache.put('entries', 'b', {'n': 2})\n"
        "    sys.exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]), cache.keys('entries'), cache.put('entries', 'c', {}))\n"
    )
    assert run_without_onnxruntime(script, tmp_path / "cache") == ("0 ['a', 'b'] True\n", "")


def test_what_was_written_last_survives_an_exit_without_close(tmp_path: Path) -> None:
    assert run_without_onnxruntime("print(cache.put('entries', 'a', {'n': 1}))", tmp_path / "cache") == ("True\n", "")
    assert StrategyCache(tmp_path / "cache").get("entries", "a") == {"n": 1}


def test_a_write_while_the_interpreter_shuts_down_ends_quietly(tmp_path: Path) -> None:
    script = (
        "import atexit\n"
        "atexit.register(lambda: cache.put('entries', 'late', {}))\n"
        "class Late:\n"
        "    def __del__(self): cache.put('entries', 'later', {})\n"
        "late = Late()\n"
    )
    assert run_without_onnxruntime(script, tmp_path / "cache") == ("", "")


def test_a_read_imports_neither_sqlitedict_nor_filelock(tmp_path: Path) -> None:
    assert StrategyCache(tmp_path / "cache").put("entries", "a", {"n": 1})
    script = "print(cache.get('entries', 'a'), {'sqlitedict', 'filelock', 'onnx'} & set(sys.modules))\n"
    assert run_without_onnxruntime(script, tmp_path / "cache") == ("{'n': 1} set()\n", "")


def write_until_full(cache: StrategyCache) -> int:
    """Rows written before one was refused."""
    return next(n for n in range(10_000) if not cache.put("entries", f"{n}", {"text": "x" * 1000}))


def test_a_full_disk_refuses_a_row_keeps_the_others_and_recovers(small_disk: Path) -> None:
    cache = StrategyCache(small_disk / "cache")
    count = write_until_full(cache)
    assert count > 10
    assert cache.last_failure is not None and "free space" in cache.last_failure
    assert [n for n in range(count) if cache.get("entries", f"{n}") is None] == []
    assert cache.get("entries", f"{count}") is None
    assert integrity(cache) == [("ok",)]
    subprocess.run(["mount", "-o", "remount,size=2m", str(small_disk)], check=True)
    assert cache.put("entries", "after", {})
    cache.close()


def test_a_file_that_may_not_grow_refuses_a_row_and_keeps_the_others(tmp_path: Path) -> None:
    def body(say: Say) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_DISK_BYTES, FULL_DISK_BYTES))
        cache = StrategyCache(tmp_path / "cache")
        count = write_until_full(cache)
        say(count > 10)
        say(cache.last_failure)
        say([n for n in range(count) if cache.get("entries", f"{n}") is None])

    with child(body) as one:
        many, failure, missing = (line.strip() for line in one.lines)
        assert one.end() == 0
    assert (many, missing) == ("True", "[]")
    assert "cannot write strategy cache" in failure
    assert integrity(StrategyCache(tmp_path / "cache")) == [("ok",)]


def test_a_disk_full_from_the_start_is_a_failure_and_no_more(small_disk: Path) -> None:
    fill(small_disk)
    cache = StrategyCache(small_disk / "cache")
    assert not cache.put("entries", "k", {})
    assert cache.get("entries", "k") is None
    assert cache.last_failure is not None
    cache.close()


def fill(disk: Path) -> None:
    with open(disk / "filler", "wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(b"\0" * 4096)


@pytest.mark.parametrize("is_written", [True, False], ids=["with rows", "without a file"])
def test_a_read_only_directory_reads_and_refuses_rows(small_disk: Path, is_written: bool) -> None:
    directory = small_disk / "cache"
    directory.mkdir()
    if is_written:
        assert StrategyCache(directory).put("entries", "k", {"n": 1})
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    cache = StrategyCache(directory)
    assert cache.get("entries", "k") == ({"n": 1} if is_written else None)
    assert cache.last_failure is None
    assert not cache.put("entries", "k", {"n": 2})
    assert cache.last_failure is not None and str(cache.path) in cache.last_failure
    assert cache.get("entries", "k") == ({"n": 1} if is_written else None)
    assert not cache.delete("entries", "k")
    cache.close()


def test_a_damaged_file_in_a_read_only_directory_is_a_miss(small_disk: Path) -> None:
    directory = small_disk / "cache"
    directory.mkdir()
    (directory / "strategies.sqlite").write_bytes(b"garbage" * 100)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    cache = StrategyCache(directory)
    assert cache.get("entries", "k") is None
    assert not cache.put("entries", "k", {})
    assert cache.last_failure is not None and "remove it" in cache.last_failure
    cache.close()
