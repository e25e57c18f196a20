#!/usr/bin/env python3
"""Fill the strategy cache before a program needs it.

usage: prewarm.py MODELS... [--shapes x:1,3,224,224] [--budget-s 60] [--accuracy strict] [--cache-dir FOLDER] [--force]

MODELS are .onnx files, globs, or lists: a TOML file of [[model]] tables or a JSON file of objects, each with `path`
(relative to the list) and, if you like, `input_shapes`, `inputs` (.npz files), `accuracy`, `budget_s`, `providers`,
`objective`:

    [[model]]
    path = "detector.onnx"
    input_shapes = { x = [1, 3, 320, 640] }

A model that fails is reported and the rest goes on. Exit status: 0 all done, 1 some failed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import glob
import json
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ort_metainfer as ort

Job = tuple[Path, ort.Settings]


def main(words: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(words)
    common = {
        "input_shapes": given.shapes,
        "budget_s": given.budget_s,
        "accuracy": given.accuracy,
        "cache_dir": given.cache_dir,
    }
    try:
        jobs = [job for place in given.models for job in jobs_of(place, common)]
    except (OSError, ValueError) as error:  # a setting that is not allowed is a ValueError too
        print(f"error: {error}", file=sys.stderr)
        return 2
    failures = prewarm(jobs, given.force)
    print(f"{len(jobs) - failures} of {len(jobs)} models ready", file=sys.stderr)
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Fill the strategy cache before a program needs it.")
    parser.add_argument("models", nargs="+", help=".onnx files, globs, or a TOML or JSON list of models")
    parser.add_argument("--shapes", help="shapes of the inputs, for every model: x:1,3,224,224;mask:1,128")
    parser.add_argument("--budget-s", help="seconds for each model; a larger budget than a program has finds more")
    parser.add_argument("--accuracy", help="strict, balanced or fast")
    parser.add_argument("--cache-dir", help="where strategies are kept")
    parser.add_argument("--force", action="store_true", help="decide anew even where the cache knows")
    return parser


def jobs_of(place: str, common: dict[str, Any]) -> Iterator[Job]:
    """The models that one word of the command line names, each with its settings; a list's own settings win."""
    if place.endswith((".toml", ".json")):
        for entry in _entries(Path(place)):
            own = dict(entry)
            try:
                path = Path(place).parent / own.pop("path")
                yield path, ort.Settings(**{**common, **own})
            except (KeyError, TypeError) as error:
                raise ValueError(
                    f"{place}: an entry needs `path` and may hold settings, got {entry} ({error})"
                ) from None
        return
    found = sorted(glob.glob(place, recursive=True)) or [place]
    for name in found:
        yield Path(name), ort.Settings(**common)


def _entries(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    try:
        plain: Any = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    entries = plain.get("model", []) if isinstance(plain, dict) else plain
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries) or not entries:
        raise ValueError(f"{path} holds no list of models; see prewarm.py --help")
    return entries


def prewarm(jobs: list[Job], force: bool) -> int:
    """Tune every model; one line on stdout for each, a bar on stderr where that is a terminal.

    Returns:
        How many failed.
    """
    failures = 0
    for number, (path, settings) in enumerate(jobs):
        _bar(number, len(jobs), str(path))
        try:
            if not path.is_file():
                raise FileNotFoundError(f"{path}: no such file")
            decision = ort.tune(path, settings, force=force, record_as="prewarm")
        except Exception as error:  # noqa: BLE001 (one bad model must not cost the others; it is told and counted)
            failures += 1
            _line(f"FAILED {path}: {' '.join(str(error).split())}")
        else:
            _line(f"{decision.cache:<6} {path}: {decision.strategy.describe()} ({decision.decided_in_s:.1f} s)")
    _bar(len(jobs), len(jobs), "")
    return failures


def _bar(done: int, total: int, what: str) -> None:
    if sys.stderr.isatty():
        filled = 30 * done // max(total, 1)
        end = "\n" if done == total else ""
        print(f"\r\033[K[{'#' * filled}{'.' * (30 - filled)}] {done}/{total} {what}"[:120], end=end, file=sys.stderr)
        sys.stderr.flush()


def _line(text: str) -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
