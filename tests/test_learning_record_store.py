"""The store of records: no doubles, bounded, what is best stays, and nothing that goes wrong there is felt."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ort_metainfer.learning import record_store
from ort_metainfer.learning.record_store import FILE_NAME, RecordStore
from ort_metainfer.strategy import Strategy
from tests.learning_cases import BASIC, NO_SPINNING, ONE_THREAD, STRUCTURE, override, record

OTHER = "f" * 32
ROOT = Path(__file__).parents[1]


def records(count: int, start: int = 0, **more: object) -> list[record_store.Record]:
    """Different ones, slower and slower."""
    return [
        record(speedup=0.9 - number / 10_000, measured_at=f"{number:06d}", **more)
        for number in range(start, start + count)
    ]


def test_what_was_added_is_read_in_order_and_by_structure(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    given = [record(ONE_THREAD), record(BASIC, 0.8), record(NO_SPINNING, None, structure=OTHER)]
    assert store.add(given) == 3
    assert RecordStore(tmp_path).read() == given
    assert store.read(STRUCTURE) == given[:2] and store.read(OTHER) == given[2:] and store.read("none") == []
    assert store.count() == 3 and store.corrupt == 0 and store.last_failure is None


def test_the_same_record_is_kept_once_by_whatever_path_it_comes(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    assert store.add([record(), record(), record(path="import")]) == 1
    assert store.add([record(path="import", weight=9.0)]) == 0
    assert store.add([record(speedup=1.6)]) == 1
    assert [kept.path for kept in store.read()] == ["tune", "tune"]
    assert store.holds(record().identity) and not store.holds("none")


def test_nothing_is_made_by_reading(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "none")
    assert (store.read(), store.count(), store.holds("x"), store.clear(), store.add([])) == ([], 0, False, 0, 0)
    assert not (tmp_path / "none").exists() and store.last_failure is None


def test_the_oldest_go_first_where_there_are_too_many(tmp_path: Path) -> None:
    store = RecordStore(tmp_path, limit=100)
    store.add(records(100))
    assert store.count() == 100
    store.add(records(1, start=100))
    kept = [made.measured_at for made in store.read()]
    assert len(kept) == 95 and kept[-1] == "000100"
    assert kept[0] == "000000" and kept[1] == "000007"  # the fastest is the best known, and stays


def test_the_best_of_each_structure_and_device_and_what_people_changed_stay(tmp_path: Path) -> None:
    store = RecordStore(tmp_path, limit=50)
    best = [record(BASIC, 2.0), record(BASIC, 1.1, device="cpu:other"), record(BASIC, 0.5, structure=OTHER)]
    wrong = record(NO_SPINNING, 9.0, gates={"compiles": True, "accurate": False})
    changed = override(ONE_THREAD, Strategy())
    store.add([*best, wrong, changed])
    for start in range(0, 300, 30):
        store.add(records(30, start=start))
    kept = store.read()
    assert len(kept) <= 50
    assert all(made in kept for made in best) and changed in kept and wrong not in kept


def test_where_all_are_the_best_of_something_the_oldest_of_them_go(tmp_path: Path) -> None:
    store = RecordStore(tmp_path, limit=20)
    store.add([record(structure=f"{number:032x}") for number in range(30)])
    assert [made.structure for made in store.read()] == [f"{number:032x}" for number in range(10, 30)]


def test_features_that_rows_share_are_kept_once_and_go_with_the_last_row(tmp_path: Path) -> None:
    store = RecordStore(tmp_path, limit=40)
    store.add(records(40))
    assert parts(store) == 4 - 1  # references and versions are both empty: one part
    store.add(records(40, start=40, graph={"inputs": 2.0}))
    assert parts(store) == 4
    store.add(records(40, start=80, graph={"inputs": 3.0}))
    assert {made.graph["inputs"] for made in store.read()} == {1.0, 3.0}  # the best, and the latest
    assert parts(store) == 4


def parts(store: RecordStore) -> int:
    with sqlite3.connect(store.path) as connection:
        return int(connection.execute("SELECT COUNT(*) FROM parts_v1").fetchone()[0])


def test_a_record_with_a_figure_that_json_lacks_is_not_kept(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    assert store.add([record(error=float("nan")), record()]) == 1
    assert store.last_failure is not None and "cannot be kept" in store.last_failure


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE records_v1 SET row = 'no json' WHERE number = 2",
        "UPDATE records_v1 SET row = '[]' WHERE number = 2",
        "UPDATE records_v1 SET row = '{}' WHERE number = 2",
        "UPDATE records_v1 SET row = x'80' WHERE number = 2",
        'UPDATE records_v1 SET row = replace(row, \'"rounds":9\', \'"rounds":"many"\') WHERE number = 2',
        "UPDATE records_v1 SET row = replace(row, '\"schema\":1', '\"schema\":99') WHERE number = 2",
        "UPDATE records_v1 SET graph = 'gone' WHERE number = 2",
    ],
)
def test_a_row_that_is_no_record_is_skipped_and_counted(damage: str, tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.add([record(), record(BASIC), record(NO_SPINNING)])
    with sqlite3.connect(store.path) as connection:
        assert connection.execute(damage).rowcount == 1
    assert [made.strategy for made in store.read()] == [ONE_THREAD, NO_SPINNING]
    assert store.corrupt == 1 and store.last_failure is None
    assert store.read(OTHER) == [] and store.corrupt == 0


@pytest.mark.parametrize("content", [b"rubbish" * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_damaged_is_set_aside_and_another_begun(content: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    store = RecordStore(tmp_path)
    assert store.read() == [] and store.last_failure is not None and "damaged" in store.last_failure
    assert store.add([record()]) == 1 and store.read() == [record()]
    assert list(tmp_path.glob(f"{FILE_NAME}.corrupt-*"))


def test_a_folder_that_cannot_be_written_is_read_and_costs_a_line_at_level_debug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RecordStore(tmp_path)
    store.add([record()])

    def refuse(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("attempt to write a readonly database")

    monkeypatch.setattr(record_store.sqlite3, "connect", refuse)
    caplog.set_level("DEBUG", "ort_metainfer.learning")
    assert store.add([record(BASIC)]) == 0
    monkeypatch.undo()
    assert [entry.levelname for entry in caplog.records] == ["DEBUG"] and "readonly" in caplog.text
    assert store.read() == [record()]


def test_a_place_where_no_folder_can_be_made_costs_nothing_more(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = RecordStore(tmp_path / "file" / "cache")
    assert store.add([record()]) == 0 and store.read() == [] and store.count() == 0
    assert store.last_failure is not None


def test_another_process_that_holds_the_file_costs_the_record_not_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_store, "patience_s", lambda: 0.01)
    store = RecordStore(tmp_path)
    store.add([record()])
    with sqlite3.connect(store.path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert store.add([record(BASIC)]) == 0
        other.execute("ROLLBACK")
    assert store.last_failure is not None and "another process holds it" in store.last_failure
    assert store.add([record(BASIC)]) == 1


def test_clear_forgets_all_and_the_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.add([record(), record(BASIC)])
    assert os.name != "posix" or store.path.stat().st_mode & 0o077 == 0
    assert store.clear() == 2 and store.read() == [] and parts(store) == 0


WRITER = """
import sys
from pathlib import Path
from ort_metainfer.learning.record_store import RecordStore
from tests.test_learning_record_store import records
store = RecordStore(Path(sys.argv[1]))
print(sum(store.add(records(5, start=int(sys.argv[2]) + 5 * number)) for number in range(20)), store.last_failure)
"""

FULL = """
import resource, signal, sys
from pathlib import Path
from ort_metainfer.learning.record_store import RecordStore
from tests.test_learning_record_store import records
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))  # a disk on which the file cannot grow further
store = RecordStore(Path(sys.argv[1]))
print([store.add(records(20, start=20 * number)) for number in range(10)][-1], store.last_failure)
"""


def child(code: str, *words: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.fspath(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)], stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )


@pytest.mark.slow
def test_processes_that_write_at_once_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    writers = [child(WRITER, tmp_path, start) for start in (0, 0, 50, 1000)]  # the first three overlap
    said = [writer.communicate(timeout=120)[0].split() for writer in writers]
    assert all(failure == "None" for _, failure in said)
    store = RecordStore(tmp_path)
    assert len({made.measured_at for made in store.read()}) == store.count() == 250 == sum(int(new) for new, _ in said)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files by setrlimit")
def test_a_full_disk_costs_records_and_leaves_what_there_was(tmp_path: Path) -> None:
    last, failure = child(FULL, tmp_path).communicate(timeout=120)[0].split(maxsplit=1)
    assert last == "0" and "cannot write records" in failure
    store = RecordStore(tmp_path)
    kept = store.read()
    assert len(kept) >= 20 and len(kept) % 20 == 0 and store.corrupt == 0  # whole decisions
    assert store.add(records(1, start=900)) == 1


def test_a_copy_of_the_file_is_a_store_as_well(tmp_path: Path) -> None:
    RecordStore(tmp_path / "a").add([record()])
    (tmp_path / "b").mkdir()
    shutil.copy(tmp_path / "a" / FILE_NAME, tmp_path / "b")
    assert RecordStore(tmp_path / "b").read() == [replace(record())]
