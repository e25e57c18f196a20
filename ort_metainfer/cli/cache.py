"""``cache``: list, show and clear what is remembered."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ort_metainfer.cli.arguments import as_json
from ort_metainfer.cli.output import console, print_json, table
from ort_metainfer.cli.report import decision_lines, key_lines, refusal_lines, trial_lines
from ort_metainfer.errors import CacheError, StrategyError
from ort_metainfer.problem import CacheKey
from ort_metainfer.ratios import ratio_text
from ort_metainfer.settings import Settings, resolve
from ort_metainfer.strategy import Strategy

if TYPE_CHECKING:
    from ort_metainfer.strategy_cache.store import StrategyCache

__all__ = ["cache"]

cache_dir = click.option("--cache-dir", help="Where strategies are kept, if not in the configured place.")

SHORT = 10
"""Hex digits of a key's SHA-256 that name it on a command line."""


@click.group()
def cache() -> None:
    """List, show and clear what is remembered."""


@cache.command("ls")
@cache_dir
@as_json
def list_entries(cache_dir: str | None, as_json: bool) -> None:
    """List the entries."""
    folder, store = _open(cache_dir)
    rows = [entry_row(key, store.get("entries", key)) for key in store.keys("entries")]
    _complain(store)
    if as_json:
        print_json({"directory": str(folder), "entries": rows})
        return
    console().print(f"{len(rows)} entries in {folder}")
    grid = table("id", "model", "shapes", "policy", "strategy", "speed-up", "decided")
    for row in rows:
        middle = row["speedup"][0] if row["speedup"] else None
        gain = "-" if middle is None else f"{ratio_text(middle)}x"
        model = Path(row["label"] or row["model"] or "-").name
        words = [row[name] or "-" for name in ("shapes", "policy", "strategy")]
        grid.add_row(row["id"], model, *words, gain, row["decided_at"] or "-")
    if rows:
        console().print(grid)


@cache.command("show")
@click.argument("key")
@cache_dir
@as_json
def show_entry(key: str, cache_dir: str | None, as_json: bool) -> None:
    """Show the entry KEY: an id of `cache ls` or its first digits, or the whole key."""
    folder, store = _open(cache_dir)
    full = find_key(key, store.keys("entries"), folder)
    entry, decision = store.get("entries", full), store.get("decisions", full)
    if as_json:
        print_json({"id": key_id(full), "key": full, "entry": entry, "decision": decision})
        return
    row = entry_row(full, entry)
    console().print("\n".join([f"entry {row['id']}", *key_lines(row), "", f"strategy      {row['strategy']}"]))
    if decision:
        story = [*decision_lines(decision)[1:], "", "trials", *trial_lines(decision), "", "refused"]
        console().print("\n".join([*story, *refusal_lines(decision)]))


@cache.command("clear")
@cache_dir
@as_json
def clear(cache_dir: str | None, as_json: bool) -> None:
    """Forget every entry; the next session of each model decides anew."""
    folder, store = _open(cache_dir)
    count = len(store.keys("entries"))
    store.clear()
    _complain(store)
    if as_json:
        print_json({"directory": str(folder), "removed": count})
    else:
        console().print(f"{count} entries removed from {folder}")


def key_id(key: str) -> str:
    """A short name for a key."""
    return hashlib.sha256(key.encode()).hexdigest()[:SHORT]


def find_key(wanted: str, keys: Sequence[str], folder: Path) -> str:
    """The one key that ``wanted`` names.

    Raises:
        CacheError: none, or several.
    """
    found = [key for key in keys if key == wanted or (wanted and key_id(key).startswith(wanted))]
    if len(found) == 1:
        return found[0]
    how_many = "no entry" if not found else f"{len(found)} entries"
    raise CacheError(f"{how_many} for {wanted!r} in {folder}; `ort-metainfer cache ls` lists their ids")


def entry_row(key: str, entry: Any) -> dict[str, Any]:
    """An entry's key and what matters of its value, None where it is not there."""
    parsed = CacheKey.parse(key)
    fields = {name: getattr(parsed, name, None) for name in ("model", "device", "shapes", "policy")}
    value = entry if isinstance(entry, dict) else {}
    try:
        strategy = Strategy.from_dict(value["strategy"]).describe()
    except (KeyError, TypeError, StrategyError):  # written by another release, or by nobody we know
        strategy = None
    rest = {name: value.get(name) for name in ("origin", "complete", "speedup", "decided_at")}
    label = value.get("model")
    return {"id": key_id(key), "key": key, "label": label, **fields, "strategy": strategy, **rest}


def _open(cache_dir: str | None) -> tuple[Path, StrategyCache]:
    from ort_metainfer.places import cache_directory
    from ort_metainfer.strategy_cache.store import open_cache

    folder = cache_directory(resolve(Settings(cache_dir=cache_dir))[0])
    return folder, open_cache(folder)


def _complain(store: StrategyCache) -> None:
    """The store answers "nothing there" to whatever fails; a person who asks is told what failed.

    Raises:
        CacheError: something did.
    """
    if store.last_failure:
        raise CacheError(store.last_failure)
