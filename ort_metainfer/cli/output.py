"""What goes to stdout and what to stderr: one JSON document, or text for people; progress only on a terminal."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["console", "only_json", "print_json", "progress", "table"]

PIPED_WIDTH = 240
"""Columns of a table that goes to a file or another program, which have no edge to fold at."""


def console() -> Console:
    """For people, on stdout. Paths and keys are printed as they are, never broken or coloured."""
    width = None if sys.stdout.isatty() else PIPED_WIDTH
    return Console(highlight=False, soft_wrap=True, emoji=False, markup=False, width=width)


def table(*columns: str) -> Table:
    """An empty table; cells may be long, so it folds them."""
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        grid.add_column(column, overflow="fold")
    return grid


def print_json(document: Any) -> None:
    """Print it; a figure that JSON does not have (infinity, not a number) becomes null."""
    print(json.dumps(_finite(document), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


@contextmanager
def only_json(wanted: bool) -> Iterator[None]:
    """Keep stdout clean while work is done: what a library or a child process prints there goes to stderr."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def progress(what: str) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done; nothing where stderr is no terminal."""
    stderr = Console(stderr=True)
    if not stderr.is_terminal:
        yield lambda _: None
        return
    with stderr.status(what) as status:
        yield lambda step: status.update(f"{what}: {step}")
