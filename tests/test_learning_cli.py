"""``learn`` on the command line: records out and in, the exception list, and what explain says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ort_metainfer.cli.application import application
from ort_metainfer.cli.explain import explanation
from ort_metainfer.cli.learn_exceptions import exception_lines
from ort_metainfer.decision import Decision
from ort_metainfer.learning.record_store import FILE_NAME, RecordStore
from ort_metainfer.problem import CacheKey
from ort_metainfer.settings import Settings
from ort_metainfer.strategy import Strategy
from tests.learning_cases import BASIC, ONE_THREAD, known_problem, override, record

TWO_THREADS = Strategy(session_options={"intra_op_num_threads": 2})


def learn(*words: object) -> Result:
    return CliRunner().invoke(application, ["learn", *map(str, words)])


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    """The records of the configured cache directory."""
    return RecordStore(tmp_path / "cache")


@pytest.mark.parametrize("name", ["records.jsonl", "records.jsonl.gz", "records.parquet"])
def test_what_one_machine_exports_another_imports_once(name: str, store: RecordStore, tmp_path: Path) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="Parquet needs pyarrow, the extra ort-metainfer[parquet]")
    store.add([record(), record(BASIC), override(TWO_THREADS, ONE_THREAD)])
    file, other = tmp_path / name, tmp_path / "other"
    written = learn("export", file, "--json")
    assert written.exit_code == 0 and json.loads(written.output)["records"] == 3
    first = json.loads(learn("import", file, "--cache-dir", other, "--json").output)
    again = json.loads(learn("import", file, "--cache-dir", other, "--json").output)
    assert (first["new"], again["new"], again["kept"], again["rejected"]) == (3, 0, 3, 0)
    assert {made.path for made in RecordStore(other).read()} == {"import"}
    assert "0 of 3 records are new; 3 are kept" in learn("import", file, "--cache-dir", other).output


def test_ones_own_alone_are_exported_where_that_is_asked(store: RecordStore, tmp_path: Path) -> None:
    store.add([record(), record(BASIC, path="import")])
    assert json.loads(learn("export", tmp_path / "a.jsonl", "--own", "--json").output)["records"] == 1
    assert json.loads(learn("export", tmp_path / "b.jsonl", "--json").output)["records"] == 2


def test_exported_records_carry_the_weight_of_what_people_chose(store: RecordStore, tmp_path: Path) -> None:
    store.add([record(TWO_THREADS, 1.2), override(TWO_THREADS, ONE_THREAD)])
    learn("export", tmp_path / "a.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [line["weight"] for line in lines] == [3.0, 3.0]


def test_what_is_no_file_of_records_is_one_line_and_status_1(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("rubbish\n")
    failed = learn("import", tmp_path / "a.jsonl")
    assert failed.exit_code == 1 and "holds no records" in failed.output and failed.output.count("\n") == 1
    assert learn("import", tmp_path / "none").exit_code == 2
    assert learn("nonsense").exit_code == 2


def test_rows_that_are_none_are_told(store: RecordStore, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(record().as_dict()) + "\n{}\n")
    said = learn("import", tmp_path / "a.jsonl").output
    assert "1 of 1 records are new" in said and "1 rows are no records:" in said and "row 2" in said


def test_a_store_that_cannot_be_read_is_told(store: RecordStore, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / FILE_NAME).write_bytes(b"rubbish" * 1000)
    failed = learn("export", tmp_path / "a.jsonl")
    assert failed.exit_code == 1 and "damaged" in failed.output


def test_an_empty_store_exports_an_empty_file(tmp_path: Path) -> None:
    assert "0 records written" in learn("export", tmp_path / "a.jsonl").output
    assert (tmp_path / "a.jsonl").read_bytes() == b""


def test_records_are_forgotten_where_that_is_asked_and_the_cache_clear_leaves_them(store: RecordStore) -> None:
    store.add([record(), record(BASIC)])
    assert CliRunner().invoke(application, ["cache", "clear"]).exit_code == 0 and store.count() == 2
    assert "2 records removed" in learn("clear").output and store.count() == 0
    assert json.loads(learn("clear", "--json").output)["removed"] == 0


def overridden(store: RecordStore) -> None:
    store.add([override(TWO_THREADS, ONE_THREAD, known_problem(name)) for name in ("a" * 32, "b" * 32)])


def test_exceptions_are_listed(store: RecordStore) -> None:
    assert "0 exceptions from 0 overrides" in learn("exceptions").output
    overridden(store)
    said = learn("exceptions").output
    assert "1 exceptions from 2 overrides" in said and "intra_op_num_threads" in said
    (rule,) = json.loads(learn("exceptions", "--json").output)["exceptions"]
    assert (rule["setting"], rule["before"], rule["after"], rule["models"]) == ("intra_op_num_threads", "1", "2", 2)


def decided(strategy: Strategy, origin: Any = "cache") -> dict[str, Any]:
    graph = known_problem().graph
    key = CacheKey("sha256:0", "cpu:a", "", "strict|latency|CPU")
    return Decision(strategy, origin, "because", key, graph=graph).as_dict()


def test_explain_shows_exceptions_that_speak_about_the_decision(store: RecordStore) -> None:
    overridden(store)
    (line,) = exception_lines(decided(ONE_THREAD), Settings())
    assert line.startswith("intra_op_num_threads: 1 -> 2 on cpu")
    assert list(exception_lines(decided(BASIC), Settings())) == []
    assert list(exception_lines(decided(ONE_THREAD, "override"), Settings())) == []
    told = list(explanation({**decided(ONE_THREAD), "exceptions": [line]}, []))
    assert told[-2:] == ["people changed this before", f"    {line}"]
    assert "people changed this before" not in list(explanation(decided(ONE_THREAD), []))


def test_explain_says_so_on_the_command_line(store: RecordStore, tiny_model: Any) -> None:
    overridden(store)
    said = CliRunner().invoke(application, ["explain", str(tiny_model("MatMul")), "--json"])
    assert said.exit_code == 0 and json.loads(said.output)["exceptions"] == []
