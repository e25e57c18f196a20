"""Writing a prepared model to a folder that a device is given: all of it, or nothing."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from ort_metainfer.errors import CacheError

__all__ = ["REPORT_FILE", "SOURCE_FILE", "STRATEGY_FILE", "check_empty", "deliver"]

REPORT_FILE = "report.json"
STRATEGY_FILE = "strategy.toml"

SOURCE_FILE = "source.onnx"
"""What was compiled: the rewritten model."""


def check_empty(out: Path | None) -> None:
    """That nothing is overwritten.

    Raises:
        CacheError: the folder is there and holds something, or is no folder.
    """
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CacheError(f"{out} is there already and not an empty folder; name another, or remove it")


def deliver(compiled: Path, source: Path, out: Path, strategy: str, report: dict[str, Any]) -> None:
    """Copy a compiled model, what it was made from, its strategy and its report to ``out``.

    Raises:
        CacheError: it cannot be written.
    """
    part = out.with_name(f".{out.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        shutil.copytree(compiled, part)
        _copy_source(source, part / SOURCE_FILE)
        (part / STRATEGY_FILE).write_text(strategy, encoding="utf-8")
        (part / REPORT_FILE).write_text(json.dumps(report, indent=2, allow_nan=False), encoding="utf-8")
        if out.is_dir():
            out.rmdir()  # empty, or it raises
        os.rename(part, out)
    except (OSError, ValueError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise CacheError(f"cannot write {out}: {error}") from error


def _copy_source(source: Path, target: Path) -> None:
    """Under another name, with its weights: a model states the name of the file that holds them."""
    weights = source.with_name(f"{source.name}.data")
    if not weights.exists():
        shutil.copyfile(source, target)
        return
    import onnx

    from ort_metainfer.model.walking import graphs_of

    model = onnx.load(str(source), load_external_data=False)
    renamed = f"{target.name}.data"
    for entry in (
        entry for graph in graphs_of(model) for tensor in graph.initializer for entry in tensor.external_data
    ):
        if entry.key == "location" and entry.value == weights.name:
            entry.value = renamed
    shutil.copyfile(weights, target.with_name(renamed))
    onnx.save(model, str(target))
