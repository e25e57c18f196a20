"""``learn export`` and ``learn import``: records of trials to a file, and from one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ort_metainfer.cli.arguments import as_json
from ort_metainfer.cli.output import console, print_json
from ort_metainfer.errors import RecordError
from ort_metainfer.settings import Settings, resolve

if TYPE_CHECKING:
    from ort_metainfer.learning.record_store import RecordStore

__all__ = ["cache_dir", "clear_records", "complain", "export_records", "import_records", "record_store"]

cache_dir = click.option("--cache-dir", help="The cache directory, if not the configured one.")

how = click.option(
    "--format",
    "how",
    type=click.Choice(["jsonl", "parquet"]),
    help="By default as the file's name says; parquet needs the extra ort-metainfer[parquet].",
)


@click.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@how
@click.option("--own", "only_own", is_flag=True, help="Leave out those that were imported.")
@cache_dir
@as_json
def export_records(file: Path, how: str | None, only_own: bool, cache_dir: str | None, as_json: bool) -> None:
    """Write this machine's records to FILE (.jsonl, .jsonl.gz or .parquet).

    They hold hashes and named features of models, nothing else of them: see the README.
    """
    from ort_metainfer.learning.exceptions import weighed
    from ort_metainfer.learning.record_files import format_of, write_records

    store = record_store(cache_dir)
    records = weighed([record for record in store.read() if not only_own or record.path != "import"])
    complain(store)
    written = write_records(file, records, format_of(file, how))
    document = {"file": str(file), "records": written, "unreadable": store.corrupt}
    if as_json:
        print_json(document)
        return
    lost = f"; {store.corrupt} rows could not be read" if store.corrupt else ""
    console().print(f"{written} records written to {file}{lost}")


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path))
@how
@cache_dir
@as_json
def import_records(file: Path, how: str | None, cache_dir: str | None, as_json: bool) -> None:
    """Add the records in FILE, which another machine exported, to this one's; those known already are passed over."""
    from ort_metainfer.learning.record_files import format_of, read_records

    store = record_store(cache_dir)
    read = read_records(file, format_of(file, how), path="import")
    new = store.add(read.records)
    complain(store)
    rejected = {"rejected": read.rejected, "complaints": read.complaints}
    document = {"file": str(file), "records": len(read.records), "new": new, **rejected, "kept": store.count()}
    if as_json:
        print_json(document)
        return
    lines = [f"{new} of {len(read.records)} records are new; {document['kept']} are kept"]
    lines += [f"{read.rejected} rows are no records:", *(f"    {line}" for line in read.complaints)] * bool(
        read.rejected
    )
    console().print("\n".join(lines))


@click.command("clear")
@cache_dir
@as_json
def clear_records(cache_dir: str | None, as_json: bool) -> None:
    """Forget every record, imported ones too; `cache clear` leaves them alone."""
    store = record_store(cache_dir)
    removed = store.clear()
    complain(store)
    if as_json:
        print_json({"file": str(store.path), "removed": removed})
    else:
        console().print(f"{removed} records removed from {store.path}")


def record_store(cache_dir: str | None) -> RecordStore:
    """The records of the configured cache directory, or of another one."""
    from ort_metainfer.learning.record_store import RecordStore
    from ort_metainfer.places import cache_directory

    return RecordStore(cache_directory(resolve(Settings(cache_dir=cache_dir))[0]))


def complain(store: RecordStore) -> None:
    """The store answers "nothing there" to whatever fails; a person who asks is told what failed.

    Raises:
        RecordError: something did.
    """
    if store.last_failure:
        raise RecordError(store.last_failure)
