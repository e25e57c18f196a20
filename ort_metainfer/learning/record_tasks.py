"""Records in the common form of :mod:`.tasks`: strategies tried for a graph on a device, and leaving it be."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import numpy as np

from ort_metainfer.learning.examples import row_features
from ort_metainfer.learning.record import SCHEMA, Record
from ort_metainfer.learning.tasks import Tasks, table
from ort_metainfer.strategy import Strategy

__all__ = ["DEFAULT", "Hold", "tasks_of"]

Hold = Literal["hardware", "provider", "cores", "kind"]
"""What counts as one piece of hardware that is held out: a device, a provider, a number of cores, a device class."""

DEFAULT = "default"
"""The configuration that changes nothing."""

CPU = "CPUExecutionProvider"

_NAME: Mapping[Hold, Callable[[Record], str]] = {
    "hardware": lambda record: record.device,
    "provider": lambda record: record.provider,
    "cores": lambda record: f"{record.profile.get('cores', float('nan')):g} cores",
    "kind": lambda record: record.kind,
}


def _lot(word: str) -> bytes:
    """Where a strategy lies among others: equal words equally, for any other reason than their own."""
    return hashlib.sha256(word.encode()).digest()


def tasks_of(records: Iterable[Record], hold: Hold = "hardware", *, simulated: bool = False) -> Tasks:
    """Verdicts as tasks; a latency is that of a baseline of one millisecond, so only ratios mean anything.

    Of a strategy that was tried several times the median counts. Within a case strategies lie in an order that says
    nothing of how they did, as that of the records may: where a policy rates two alike, the first is taken. Cases are
    what shares graph, shapes, device and what is held out, so that no case lies on both sides.

    Args:
        records: any.
        hold: what is to be held out as hardware.
        simulated: take simulated figures instead of measured ones.
    """
    tried: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        if record.is_verdict and record.schema == SCHEMA and record.simulated == simulated:
            word = json.dumps({**record.strategy.as_dict(), "on": record.provider}, sort_keys=True)
            device = f"{record.shapes}|{record.device}|{_NAME[hold](record)}"
            tried.setdefault((record.structure, device, word), []).append(record)
    rows, latency_ms, features = [], [], []
    for structure, device in dict.fromkeys(key[:2] for key in tried):
        mine = [(key[2], found) for key, found in tried.items() if key[:2] == (structure, device)]
        mine.sort(key=lambda pair: _lot(pair[0]))
        first = mine[0][1][0]
        about = {"model": structure, "family": structure, "device": device, "hardware": _NAME[hold](first)}
        rows.append({**about, "kind": first.kind, "configuration": DEFAULT})
        latency_ms.append(1.0)
        features.append(row_features(first.graph, first.profile, first.references, Strategy(), "cpu", CPU))
        for word, found in mine:
            one = found[0]
            rows.append({**about, "kind": first.kind, "configuration": word})
            latency_ms.append(float(np.exp(-np.median([each.log_ratio or 0.0 for each in found]))))
            features.append(row_features(one.graph, one.profile, one.references, one.strategy, one.kind, one.provider))
    names = sorted({name for row in features for name in row})
    columns = {name: np.array([row.get(name, np.nan) for row in features]) for name in names}
    tasks = table("records", rows, np.array(latency_ms), columns, "records of trials on this and other machines")
    size = columns.get("graph/ln_macs", np.full(len(rows), np.nan))
    return tasks.with_features({"log_size": size}) if rows else tasks
