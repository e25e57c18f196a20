"""Whether plain values are a record: rows come from other releases, other machines and other people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ort_metainfer.errors import RecordError, StrategyError
from ort_metainfer.learning.record import SCHEMA, Record

__all__ = ["checked_record"]

_TEXTS: tuple[str, ...] = (
    "model",
    "structure",
    "device",
    "kind",
    "provider",
    "shapes",
    "accuracy",
    "objective",
    "by",
    "path",
)
_TEXTS += ("measured_at", "replaced_at")
_TABLES = {"graph": float, "profile": float, "references": float, "gates": bool, "versions": str}
_FIGURES = tuple(name for name in Record.__dataclass_fields__ if name.endswith(("_ms", "_mb")) or "log_ratio" in name)
_FIGURES += ("band", "error", "others_cpu")
MAX_TEXT = 4096


def checked_record(plain: Any) -> Record:
    """The record that ``plain`` is.

    Raises:
        RecordError: it is none; with the field that is wrong.
    """
    if not isinstance(plain, Mapping):
        raise RecordError(f"a record is a JSON object, got {type(plain).__name__}")
    schema = plain.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA or schema < 1:
        raise RecordError(f"a record of schema {schema!r}, known here are 1 to {SCHEMA}: a newer release wrote it")
    wrong = _objection(plain)
    if wrong is not None:
        raise RecordError(f"no record: {wrong}")
    try:
        return Record.from_dict(plain)
    except (KeyError, TypeError, AttributeError, StrategyError) as error:
        raise RecordError(f"no record: {error}") from error


def _objection(plain: Mapping[str, Any]) -> str | None:
    for name in ("model", "structure", "graph", "device", "kind", "provider", "strategy"):
        if name not in plain:
            return f"{name} is missing"
    for name in _TEXTS:
        if not isinstance(plain.get(name, ""), str) or len(plain.get(name, "")) > MAX_TEXT:
            return f"{name} must be text"
    for name in _FIGURES:
        if plain.get(name) is not None and not _is_number(plain[name]):
            return f"{name} must be a number or null, got {plain[name]!r}"
    for name, kind in _TABLES.items():
        table = plain.get(name, {})
        if not isinstance(table, Mapping) or not all(_fits(value, kind) for value in table.values()):
            return f"{name} must be a table of {kind.__name__}"
    flags = plain.get("flags", ())
    if not isinstance(flags, list | tuple) or not all(isinstance(flag, str) for flag in flags):
        return "flags must be a list of text"
    if not isinstance(plain.get("failure"), str | None) or not isinstance(plain.get("simulated", False), bool):
        return "failure must be text or null, simulated true or false"
    rounds, weight = plain.get("rounds", 0), plain.get("weight", 1.0)
    if not isinstance(rounds, int) or not _is_number(weight) or not 0 < weight <= 100:
        return "rounds must be a whole number, weight a number above 0 and up to 100"
    return None


def _fits(value: Any, kind: type) -> bool:
    return _is_number(value) if kind is float else isinstance(value, kind)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
