"""Records as files: what is written is read again, what is none is told, and the formats hold the same."""

from __future__ import annotations

import builtins
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ort_metainfer.errors import RecordError
from ort_metainfer.learning.record_checks import checked_record
from ort_metainfer.learning.record_files import Format, format_of, read_records, write_records
from ort_metainfer.strategy import Strategy, Transform
from tests.learning_cases import BASIC, ONE_THREAD, override, record

RECORDS = [
    record(
        ONE_THREAD, flags=("race: 1 of 9 rounds set aside",), references={"cpu": 0.25}, versions={"onnxruntime": "1"}
    ),
    record(BASIC, None, failure="crashed", gates={}),
    record(Strategy(transforms=(Transform("int8-static", 1, {"block": ["Conv"]}),)), 2.0),
    override(ONE_THREAD, BASIC),
]


def test_json_lines_are_one_record_each(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    assert write_records(file, RECORDS) == 4
    assert [json.loads(line)["schema"] for line in file.read_text().splitlines()] == [1] * 4
    assert read_records(file).records == RECORDS
    assert list(tmp_path.iterdir()) == [file]


def test_compressed_ones_are_read_by_what_they_are_and_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    file, other = tmp_path / "records.jsonl.gz", tmp_path / "again.jsonl.gz"
    write_records(file, RECORDS)
    write_records(other, RECORDS)
    assert file.read_bytes() == other.read_bytes() and gzip.decompress(file.read_bytes())
    file.rename(tmp_path / "records.txt")
    assert read_records(tmp_path / "records.txt", path="import").records[0].path == "import"


def test_parquet_holds_the_same(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="Parquet needs pyarrow, the extra ort-metainfer[parquet]")
    file = tmp_path / "records.parquet"
    assert write_records(file, RECORDS, "parquet") == 4
    assert read_records(file, "parquet").records == RECORDS
    assert write_records(file, [], "parquet") == 0 and read_records(file, "parquet").records == []


def test_what_is_no_parquet_is_told(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="Parquet needs pyarrow, the extra ort-metainfer[parquet]")
    file = tmp_path / "records.parquet"
    file.write_text("no parquet")
    with pytest.raises(RecordError, match=r"records\.parquet is no Parquet file"):
        read_records(file, "parquet")


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RecordError, match=r"ort-metainfer\[parquet\].*--format jsonl"):
        write_records(tmp_path / "records.parquet", RECORDS, "parquet")
    assert list(tmp_path.iterdir()) == []


def test_rows_that_are_no_records_are_counted_with_their_place(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    lines = [json.dumps(made.as_dict()) for made in RECORDS[:2]]
    file.write_text("\n".join([lines[0], "{}", "", "no json", lines[1], "[1]", '{"schema": 99}']))
    read = read_records(file)
    assert read.records == RECORDS[:2] and read.rejected == 4
    assert f"{file}, row 2: " in read.complaints[0] and "newer release" in read.complaints[-1]


def test_a_file_without_any_record_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text("this is\nno such file\n")
    with pytest.raises(RecordError, match="holds no records"):
        read_records(file)
    file.write_bytes(b"\x1f\x8b damaged")
    with pytest.raises(RecordError, match="cannot read records from"):
        read_records(file)
    file.write_bytes(b"")
    assert read_records(file).records == []


def test_a_place_that_cannot_be_written_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot write records to"):
        write_records(tmp_path / "none" / "records.jsonl", RECORDS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"graph": {"inputs": "many"}}, "graph must be a table of float"),
        ({"graph": {"inputs": float("inf")}}, "graph must be a table of float"),
        ({"profile": []}, "profile must be a table"),
        ({"gates": {"accurate": 1}}, "gates must be a table of bool"),
        ({"log_ratio": "fast"}, "log_ratio must be a number or null"),
        ({"p50_ms": True}, "p50_ms must be a number"),
        ({"device": 3}, "device must be text"),
        ({"kind": "x" * 5000}, "kind must be text"),
        ({"flags": "one"}, "flags must be a list of text"),
        ({"weight": 0}, "weight a number above 0"),
        ({"weight": 1e9}, "weight a number above 0"),
        ({"simulated": "yes"}, "simulated true or false"),
        ({"strategy": {"session_options": {"nonsense": 1}}}, "unknown session option"),
        ({"strategy": None}, "no record"),
        ({"replaced": {"nonsense": 1}}, "unknown field"),
        ({"schema": 0}, "schema 0"),
        ({"schema": None}, "schema None"),
    ],
)
def test_what_is_wrong_with_a_row_is_said(change: dict[str, Any], words: str) -> None:
    with pytest.raises(RecordError, match=words):
        checked_record({**record().as_dict(), **change})


def test_a_field_that_is_missing_is_named() -> None:
    plain = record().as_dict()
    del plain["provider"]
    with pytest.raises(RecordError, match="provider is missing"):
        checked_record(plain)


@pytest.mark.parametrize(
    ("name", "wanted", "expected"),
    [
        ("a.jsonl", None, "jsonl"),
        ("a.parquet", None, "parquet"),
        ("a.parquet", "jsonl", "jsonl"),
        ("a", "parquet", "parquet"),
    ],
)
def test_the_format_is_the_one_asked_for_else_the_names(name: str, wanted: str | None, expected: Format) -> None:
    assert format_of(Path(name), wanted) == expected
