"""Records as files, to carry them from machine to machine: JSON lines (``.gz`` too), or Parquet with pyarrow."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ort_metainfer.errors import RecordError
from ort_metainfer.learning.record import Record
from ort_metainfer.learning.record_checks import checked_record

__all__ = ["Format", "Read", "format_of", "read_records", "write_records"]

Format = Literal["jsonl", "parquet"]

_NESTED = ("graph", "profile", "references", "gates", "versions", "strategy", "replaced", "flags")
"""Columns of a Parquet file that hold JSON: their keys differ from row to row."""

MAX_LINE_BYTES = 4_000_000
MAX_COMPLAINTS = 5


@dataclass
class Read:
    """What a file held.

    Attributes:
        records: those that are records, in order.
        rejected: how many rows are none.
        complaints: why, of the first few, each with its line.
    """

    records: list[Record] = field(default_factory=list)
    rejected: int = 0
    complaints: list[str] = field(default_factory=list)


def format_of(file: Path, wanted: str | None = None) -> Format:
    """The format asked for, else what the file's name says: ``.parquet``, anything else is JSON lines."""
    if wanted is not None:
        return "parquet" if wanted == "parquet" else "jsonl"
    return "parquet" if file.suffix == ".parquet" else "jsonl"


def write_records(file: Path, records: Iterable[Record], how: Format = "jsonl") -> int:
    """Write records, all of them or nothing; returns how many.

    Raises:
        RecordError: the file cannot be written, or pyarrow is missing.
    """
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        count = _write_parquet(part, records) if how == "parquet" else _write_lines(part, records, file.suffix == ".gz")
        os.replace(part, file)
    except OSError as error:
        raise RecordError(f"cannot write records to {file}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
    return count


def read_records(file: Path, how: Format = "jsonl", path: str | None = None) -> Read:
    """Read records; rows that are none are counted, not fatal.

    Args:
        file: where they are.
        how: its format.
        path: what to put down as where they come from; None leaves what the file says.

    Raises:
        RecordError: the file cannot be read, is of another format, or pyarrow is missing.
    """
    found = Read()
    for number, row in enumerate(_rows(file, how), 1):
        try:
            record = checked_record(json.loads(row) if isinstance(row, bytes) else row)
            found.records.append(record if path is None else replace(record, path=path))
        except (ValueError, RecursionError, RecordError) as error:
            found.rejected += 1
            if len(found.complaints) < MAX_COMPLAINTS:
                found.complaints.append(f"{file}, row {number}: {error}")
    if found.rejected and not found.records:
        raise RecordError(f"{file} holds no records ({found.complaints[0]})")
    return found


def _write_lines(file: Path, records: Iterable[Record], compressed: bool) -> int:
    count = 0
    with open(file, "wb") as raw, _compressing(raw) if compressed else raw as out:
        for record in records:
            count += 1
            out.write(json.dumps(record.as_dict(), allow_nan=False, sort_keys=True).encode() + b"\n")
    return count


def _compressing(raw: Any) -> Any:
    return gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0)  # the same records, the same bytes


def _rows(file: Path, how: Format) -> Iterator[Any]:
    try:
        yield from _parquet_rows(file) if how == "parquet" else _lines(file)
    except (OSError, EOFError) as error:  # gzip's own errors are among them
        raise RecordError(f"cannot read records from {file}: {getattr(error, 'strerror', None) or error}") from error


def _lines(file: Path) -> Iterator[bytes]:
    with open(file, "rb") as raw:
        is_compressed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        source: Any = gzip.GzipFile(fileobj=raw) if is_compressed else raw
        lines = io.BufferedReader(source) if is_compressed else source
        while line := lines.readline(MAX_LINE_BYTES):
            if line.strip():
                yield line


def _write_parquet(file: Path, records: Iterable[Record]) -> int:
    arrow, parquet = _arrow()
    rows = [_flat(record.as_dict()) for record in records]
    names = list(Record.__dataclass_fields__)
    columns = {name: [row[name] for row in rows] for name in names}
    parquet.write_table(arrow.table(columns), os.fspath(file), compression="zstd")
    return len(rows)


def _flat(plain: dict[str, Any]) -> dict[str, Any]:
    return {**plain, **{name: json.dumps(plain[name], allow_nan=False, sort_keys=True) for name in _NESTED}}


def _parquet_rows(file: Path) -> Iterator[dict[str, Any]]:
    arrow, parquet = _arrow()
    try:
        table = parquet.read_table(os.fspath(file))
    except arrow.lib.ArrowInvalid as error:
        raise RecordError(f"{file} is no Parquet file: {error}") from error
    for row in table.to_pylist():
        nested = {name: json.loads(row[name]) for name in _NESTED if isinstance(row.get(name), str)}
        yield {**row, **nested}


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise RecordError(
            "Parquet needs pyarrow: pip install 'ort-metainfer[parquet]', or use --format jsonl"
        ) from error
    return pyarrow, pyarrow.parquet
