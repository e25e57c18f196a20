"""Strategy files: written whole, named by the key, and never taken from the person who edited one."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from ort_metainfer import problem
from ort_metainfer.errors import StrategyError
from ort_metainfer.problem import CacheKey
from ort_metainfer.strategy import Strategy
from ort_metainfer.strategy_cache import artifacts
from ort_metainfer.strategy_cache.artifacts import edited_strategy, strategy_file_path, write_strategy_file
from ort_metainfer.strategy_cache.store import StrategyCache

KEY = CacheKey("sha256:" + "ab12" * 16, "cpu:AMD EPYC/avx2/2c", "x:float32[1,3,224,224]", "strict|latency|CPU")
ONE_THREAD = Strategy(session_options={"intra_op_num_threads": 1})
TWO_THREADS = Strategy(session_options={"intra_op_num_threads": 2})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A written strategy file."""
    path = write_strategy_file(tmp_path, KEY, ONE_THREAD, "model.onnx\nbecause")
    assert path is not None
    return path


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_a_written_file_reads_back_equal_and_is_not_edited(file: Path, tmp_path: Path) -> None:
    assert Strategy.read(file) == ONE_THREAD
    assert edited_strategy(tmp_path, KEY) is None
    assert "# model.onnx\n# because\n" in file.read_text()


def test_its_name_says_model_and_key_and_follows_from_the_key_alone(file: Path, tmp_path: Path) -> None:
    assert file == strategy_file_path(tmp_path, KEY)
    assert file.parent == tmp_path / "strategies"
    assert file.name.startswith("ab12ab12ab12-") and len(file.name) == len("ab12ab12ab12-0123456789abcdef.toml")


@pytest.mark.parametrize("name", ["model", "device", "shapes", "policy"])
def test_every_field_of_the_key_changes_key_and_file(name: str, tmp_path: Path) -> None:
    other = replace(KEY, **{name: getattr(KEY, name) + "0"})
    assert str(other) != str(KEY)
    assert strategy_file_path(tmp_path, other) != strategy_file_path(tmp_path, KEY)
    assert CacheKey.parse(str(other)) == other


def test_fields_of_a_key_cannot_run_into_each_other() -> None:
    assert str(replace(KEY, device="a", shapes="b c")) != str(replace(KEY, device="a b", shapes="c"))
    assert str(replace(KEY, device='a", "b', shapes="c")) != str(replace(KEY, device="a", shapes='b", "c'))


def test_a_key_of_another_schema_is_another_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text, path = str(KEY), strategy_file_path(tmp_path, KEY)
    monkeypatch.setattr(problem, "KEY_SCHEMA", problem.KEY_SCHEMA + 1)
    assert str(KEY) != text
    assert strategy_file_path(tmp_path, KEY) != path
    assert CacheKey.parse(text) is None


def test_a_model_hash_that_is_no_file_name_stays_inside_the_directory(tmp_path: Path) -> None:
    path = write_strategy_file(tmp_path, replace(KEY, model="../../etc/x"), ONE_THREAD, "")
    assert path is not None and path.parent == tmp_path / "strategies"


def test_it_is_the_users_alone_and_leaves_no_part_behind(file: Path) -> None:
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert list(file.parent.iterdir()) == [file]


def test_an_unedited_file_is_replaced_by_the_next_decision(file: Path, tmp_path: Path) -> None:
    assert write_strategy_file(tmp_path, KEY, TWO_THREADS, "later") == file
    assert Strategy.read(file) == TWO_THREADS
    assert edited_strategy(tmp_path, KEY) is None


def test_an_edited_file_wins_and_a_new_decision_goes_beside_it(file: Path, tmp_path: Path) -> None:
    edit(file, "intra_op_num_threads = 1", "intra_op_num_threads = 7")
    mine = file.read_bytes()
    edited = edited_strategy(tmp_path, KEY)
    assert edited == Strategy(session_options={"intra_op_num_threads": 7})
    beside = write_strategy_file(tmp_path, KEY, TWO_THREADS, "later")
    assert beside is not None and beside.name == f"{file.stem}.new.toml"
    assert Strategy.read(beside) == TWO_THREADS
    assert "Not in force" in beside.read_text() and file.name in beside.read_text()
    assert file.read_bytes() == mine
    assert edited_strategy(tmp_path, KEY) == edited
    assert write_strategy_file(tmp_path, KEY, ONE_THREAD, "later still") == beside


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("# because", "# because I say so", id="a comment"),
        pytest.param(artifacts._SEAL, "# mine: ", id="the first line"),
        pytest.param("intra_op_num_threads = 1\n", "intra_op_num_threads = 1", id="the last line end"),
    ],
)
def test_any_change_of_the_text_is_an_edit(file: Path, tmp_path: Path, old: str, new: str) -> None:
    edit(file, old, new)
    assert edited_strategy(tmp_path, KEY) == ONE_THREAD
    beside = write_strategy_file(tmp_path, KEY, TWO_THREADS, "")
    assert beside is not None and beside != file
    assert new in file.read_text()


def test_a_file_written_by_hand_from_nothing_counts_as_edited(tmp_path: Path) -> None:
    path = strategy_file_path(tmp_path, KEY)
    path.parent.mkdir()
    path.write_text("[strategy.session_options]\nintra_op_num_threads = 3\n")
    assert edited_strategy(tmp_path, KEY) == Strategy(session_options={"intra_op_num_threads": 3})


def test_an_override_table_is_laid_over_what_was_decided(file: Path, tmp_path: Path) -> None:
    with open(file, "a", encoding="utf-8") as text:
        text.write('\n[override.session_options]\nexecution_mode = "parallel"\n')
    assert edited_strategy(tmp_path, KEY) == Strategy(
        session_options={"intra_op_num_threads": 1, "execution_mode": "parallel"}
    )


def test_an_edit_taken_back_is_none(file: Path, tmp_path: Path) -> None:
    edit(file, "intra_op_num_threads = 1", "intra_op_num_threads = 7")
    edit(file, "intra_op_num_threads = 7", "intra_op_num_threads = 1")
    assert edited_strategy(tmp_path, KEY) is None


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("intra_op_num_threads = 1", "intra_op_num_threads = 'one'", "intra_op_num_threads"),
        ("intra_op_num_threads = 1", "intra_op_threads = 1", "intra_op_threads"),
        ("[strategy.session_options]", "[strategy.options]", "options"),
        ("intra_op_num_threads = 1", "intra_op_num_threads = ", "not TOML"),
        ("[strategy.session_options]", "strategy = 3\n[else]", "strategy"),
    ],
)
def test_a_broken_edit_is_refused_with_file_and_field(
    file: Path, tmp_path: Path, old: str, new: str, named: str
) -> None:
    edit(file, old, new)
    with pytest.raises(StrategyError, match=named) as caught:
        edited_strategy(tmp_path, KEY)
    assert str(file) in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused_with_its_name(file: Path, tmp_path: Path) -> None:
    file.unlink()
    file.mkdir()
    with pytest.raises(StrategyError, match="cannot read strategy file") as caught:
        edited_strategy(tmp_path, KEY)
    assert str(file) in str(caught.value)
    assert write_strategy_file(tmp_path, KEY, ONE_THREAD, "") is None


def test_an_empty_file_is_nobodys_work(file: Path, tmp_path: Path) -> None:
    file.write_bytes(b"")
    assert edited_strategy(tmp_path, KEY) is None
    assert write_strategy_file(tmp_path, KEY, TWO_THREADS, "") == file


def test_no_file_and_no_directory_is_no_edit_and_makes_none(tmp_path: Path) -> None:
    assert edited_strategy(tmp_path / "cache", KEY) is None
    (tmp_path / "file").write_text("")
    assert edited_strategy(tmp_path / "file", KEY) is None
    assert not (tmp_path / "cache").exists()


def test_a_failed_write_returns_none_and_leaves_the_old_file_whole(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = file.read_bytes()
    monkeypatch.setattr(os, "replace", refuse)
    assert write_strategy_file(tmp_path, KEY, TWO_THREADS, "") is None
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_a_directory_that_cannot_be_made_returns_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert write_strategy_file(tmp_path / "file", KEY, ONE_THREAD, "") is None


def test_a_comment_with_a_name_that_is_no_unicode_is_written_as_an_escape(tmp_path: Path) -> None:
    path = write_strategy_file(tmp_path, KEY, ONE_THREAD, os.fsdecode(b"/models/\xff.onnx"))
    assert path is not None
    assert Strategy.read(path) == ONE_THREAD
    assert "# /models/\\udcff.onnx\n" in path.read_text()


@pytest.mark.parametrize("comment", ["a\rprovider = 'X'", "a\x0bb", "a\x00b", "a\u2028b", "a\x85b"])
def test_a_comment_cannot_break_the_file(tmp_path: Path, comment: str) -> None:
    path = write_strategy_file(tmp_path, KEY, ONE_THREAD, comment)
    assert path is not None
    assert Strategy.read(path) == ONE_THREAD


def test_clearing_the_cache_removes_strategies_and_keeps_edited_ones_aside(file: Path, tmp_path: Path) -> None:
    other = write_strategy_file(tmp_path, replace(KEY, device="other"), ONE_THREAD, "")
    assert other is not None
    edit(file, "intra_op_num_threads = 1", "intra_op_num_threads = 7")
    write_strategy_file(tmp_path, KEY, TWO_THREADS, "beside")
    StrategyCache(tmp_path).clear()
    [kept] = (tmp_path / "strategies").iterdir()
    assert kept.name == f"{file.name}.kept"
    assert "intra_op_num_threads = 7" in kept.read_text()
    assert edited_strategy(tmp_path, KEY) is None
