"""One decides, the others wait or go without: among threads and processes, after a kill, where no lock can be had."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from ort_metainfer.strategy_cache.lock import deciding
from tests.cache_children import Say, child

LONG_S = 30.0


def is_free(directory: Path, key: str, wait_s: float = 0.0) -> bool:
    with deciding(directory, key, wait_s) as is_ours:
        return is_ours


def test_one_thread_decides_and_another_does_not(tmp_path: Path) -> None:
    seen: list[bool] = []
    with deciding(tmp_path, "k", 0) as is_ours:
        assert is_ours
        thread = threading.Thread(target=lambda: seen.append(is_free(tmp_path, "k")))
        thread.start()
        thread.join()
    assert seen == [False]
    assert is_free(tmp_path, "k")


def test_another_thread_waits_until_the_first_has_decided(tmp_path: Path) -> None:
    decided = threading.Event()
    seen: list[tuple[bool, bool]] = []

    def wait() -> None:
        with deciding(tmp_path, "k", LONG_S) as is_ours:
            seen.append((is_ours, decided.is_set()))

    with deciding(tmp_path, "k", 0):
        thread = threading.Thread(target=wait)
        thread.start()
        decided.set()
    thread.join()
    assert seen == [(True, True)]


@pytest.mark.parametrize("wait_s", [0.05, -1.0])
def test_the_wait_ends_with_a_no_where_the_holder_goes_on(tmp_path: Path, wait_s: float) -> None:
    seen: list[bool] = []
    with deciding(tmp_path, "k", 0):
        thread = threading.Thread(target=lambda: seen.append(is_free(tmp_path, "k", wait_s)))
        thread.start()
        thread.join()
    assert seen == [False]


@pytest.mark.parametrize("wait_s", [0.0, 0.05, -1.0])
def test_a_thread_that_already_decides_does_not_wait_for_itself(tmp_path: Path, wait_s: float) -> None:
    with deciding(tmp_path, "k", 0) as outer, deciding(tmp_path, "k", wait_s) as inner:
        assert (outer, inner) == (True, False)
    assert is_free(tmp_path, "k")


def test_keys_and_directories_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with deciding(tmp_path, "a", 0), deciding(tmp_path, "b", 0) as other, deciding(tmp_path / "x", "a", 0) as elsewhere:
        assert other and elsewhere


def test_an_error_while_deciding_passes_and_frees_the_lock(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="ours"), deciding(tmp_path, "k", 0):
        raise OSError("ours")
    assert is_free(tmp_path, "k")


def test_the_lock_file_stays_empty_private_and_is_used_again(tmp_path: Path) -> None:
    for _ in range(3):
        assert is_free(tmp_path / "cache", 'key with / and "quotes" \udcff')
    [file] = (tmp_path / "cache" / "locks").iterdir()
    assert file.stat().st_size == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_where_no_lock_can_be_had_everybody_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "makedirs", refuse)
    assert is_free(tmp_path / "cache", "k")
    assert not (tmp_path / "cache").exists()


def test_a_lock_file_that_cannot_be_opened_stops_nobody(tmp_path: Path) -> None:
    assert is_free(tmp_path, "k")
    [file] = (tmp_path / "locks").iterdir()
    file.unlink()
    file.mkdir()
    assert is_free(tmp_path, "k")


@pytest.mark.slow
def test_a_process_that_decides_keeps_another_from_it_until_it_ends(tmp_path: Path) -> None:
    def hold(say: Say) -> None:
        with deciding(tmp_path, "k", 0) as is_ours:
            say(is_ours)
            os.read(os.pipe()[0], 1)  # never answered: it is killed

    with child(hold) as holder:
        assert holder.hear() == "True"
        assert not is_free(tmp_path, "k")
        assert not is_free(tmp_path, "k", wait_s=0.1)
        holder.kill()
        holder.end()
        assert is_free(tmp_path, "k")


@pytest.mark.slow
def test_a_waiting_process_is_next_when_the_holder_is_killed(tmp_path: Path) -> None:
    def hold(say: Say) -> None:
        with deciding(tmp_path, "k", 0):
            say("held")
            os.read(os.pipe()[0], 1)

    def wait(say: Say) -> None:
        say("waiting")
        with deciding(tmp_path, "k", LONG_S) as is_ours:
            say(is_ours)

    with child(hold) as holder:
        assert holder.hear() == "held"
        with child(wait) as waiter:
            assert waiter.hear() == "waiting"
            holder.kill()
            holder.end()
            assert waiter.hear() == "True"
