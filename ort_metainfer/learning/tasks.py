"""The common form of everything a choice is learned from: cases, each with candidates of known latency. Data only.

A case is one model on one device; its candidates are the configurations (runtime, precision, layout, threads) that were
measured there. What is learned is how far a candidate lies from its case's mean, in log latency, so that neither a slow
device nor a large model says anything by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

__all__ = ["Floats", "Rows", "Tasks", "Words", "table"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Words = NDArray[np.str_]


@dataclass(frozen=True, eq=False)
class Tasks:
    """Measured candidates, one a row; every array has that many rows.

    Attributes:
        name: which table.
        model: the network; ``family`` names those that are variants of one another, held out together.
        device: where it was measured; ``hardware`` names devices that are one thing under several names, held out
            together.
        kind: device class (``phone``, ``cpu``, ``fpga``).
        configuration: what is to be chosen, as one word.
        latency_ms: of one run.
        features: rows x names, known before the candidate is timed; NaN where not known.
        names: of the columns of ``features``.
        source: where the figures come from, with the licence.
    """

    name: str
    model: Words
    family: Words
    device: Words
    hardware: Words
    kind: Words
    configuration: Words
    latency_ms: Floats
    features: Floats
    names: tuple[str, ...]
    source: str = ""
    case: Rows = field(init=False)

    def __post_init__(self) -> None:
        pairs = np.char.add(np.char.add(self.model.astype(np.str_), "\0"), self.device.astype(np.str_))
        object.__setattr__(self, "case", np.unique(pairs, return_inverse=True)[1].astype(np.intp))

    def __len__(self) -> int:
        return len(self.latency_ms)

    @property
    def log_ms(self) -> Floats:
        """Natural logarithm of the latency in milliseconds."""
        return np.log(self.latency_ms)

    @property
    def target(self) -> Floats:
        """Log latency minus the case's mean: what is learned; the least is the best."""
        return self.log_ms - case_mean(self.case, self.log_ms)

    def cases(self) -> Iterator[Rows]:
        """The rows of each case, in the order of the table."""
        order = np.argsort(self.case, kind="stable")
        yield from np.split(order, np.flatnonzero(np.diff(self.case[order])) + 1)

    def column(self, name: str) -> Floats:
        """One feature; NaN everywhere where there is none of that name."""
        return self.features[:, self.names.index(name)] if name in self.names else np.full(len(self), np.nan)

    def take(self, rows: NDArray[np.bool_]) -> Tasks:
        """The same of some rows only."""
        arrays = ("model", "family", "device", "hardware", "kind", "configuration", "latency_ms", "features")
        return replace(self, **{name: getattr(self, name)[rows] for name in arrays})

    def with_choice(self) -> Tasks:
        """Only cases that leave a choice: two candidates or more."""
        return self.take(np.bincount(self.case)[self.case] >= 2)

    def with_features(self, more: Mapping[str, Floats]) -> Tasks:
        """The same with more columns."""
        columns = np.column_stack([self.features, *more.values()]) if more else self.features
        return replace(self, features=columns, names=(*self.names, *more))


def table(
    name: str, rows: Sequence[Mapping[str, str]], latency_ms: Floats, features: Mapping[str, Floats], source: str = ""
) -> Tasks:
    """Tasks of rows that carry ``model``, ``family``, ``device``, ``hardware``, ``kind`` and ``configuration``."""
    words = {
        column: np.array([row[column] for row in rows], dtype=np.str_)
        for column in ("model", "family", "device", "hardware", "kind", "configuration")
    }
    columns = np.column_stack(list(features.values())) if features else np.empty((len(rows), 0))
    return Tasks(
        name=name,
        **words,
        latency_ms=np.asarray(latency_ms, dtype=np.float64),
        features=columns.astype(np.float64),
        names=tuple(features),
        source=source,
    )


def case_mean(case: Rows, values: Floats) -> Floats:
    """Row by row the mean of the known values of its case; NaN where none is known."""
    known = ~np.isnan(values)
    count = np.bincount(case[known], minlength=int(case.max(initial=-1)) + 1).astype(np.float64)
    total = np.bincount(case[known], values[known], minlength=len(count))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (total / count)[case]


def case_min(case: Rows, values: Floats) -> Floats:
    """Row by row the least known value of its case; NaN where none is known."""
    least = np.full(int(case.max(initial=-1)) + 1, np.inf)
    known = ~np.isnan(values)
    np.minimum.at(least, case[known], values[known])
    return np.where(np.isinf(least), np.nan, least)[case]
