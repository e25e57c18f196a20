"""Learning from records: what the trials of other models say of what the cost model expects.

Each record is predicted as if it were a new problem, with its graph's features shared out over one node a class of
operators. What was measured beyond that is explained, by Bayesian linear regression, through the same parts of
strategies that correct predictions during a search, alone and with how heavy and how large the model is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, log

import numpy as np

from ort_metainfer.deciders.cost_expectation import Expectation, Expectations
from ort_metainfer.deciders.cost_kinds import KINDS
from ort_metainfer.deciders.cost_parts import loadings
from ort_metainfer.deciders.cost_rates import Floats
from ort_metainfer.deciders.cost_records import problem_of
from ort_metainfer.deciders.cost_residuals import MODEL_SHARE, Learned
from ort_metainfer.learning.record import Record
from ort_metainfer.problem import Problem

__all__ = ["Row", "interactions", "learn", "learn_rows", "loadings_with_traits", "rows_of", "traits_of"]

TRAITS: Mapping[str, tuple[float, float]] = {"macs": (log(1e9), log(30.0)), "nodes": (log(150.0), log(4.0))}
"""Trait -> middle and width that it is measured in, in log units. Of the models this project is tried with, half lie
within one width: 30 million to 30 billion multiply-accumulates, 40 to 600 nodes."""

TRAIT_WEIGHT = 0.5
"""How much a trait may change a part's gain, over that gain's own spread. A choice."""

WIDEST_TRAIT = 2.0

ELSEWHERE = 0.25
"""What a record of another device counts, over one of this machine: twice its spread. A choice."""

NOISE = 0.02
"""Least spread of a recorded ratio: two duels of one strategy differ by so much."""


def traits_of(problem: Problem) -> dict[str, float]:
    """How heavy and how large a model is, in widths from the middle; what is not known lies in the middle."""
    macs = sum((node.macs or 0) * node.runs for node in problem.work) or problem.graph.macs or 0
    given = {"macs": float(macs), "nodes": float(problem.graph.node_count)}
    return {name: _width(name, value) for name, value in given.items()}


def _width(name: str, value: float) -> float:
    middle, width = TRAITS[name]
    if value <= 0:
        return 0.0
    return float(np.clip((log(value) - middle) / width, -WIDEST_TRAIT, WIDEST_TRAIT))


def interactions(columns: Sequence[str], table: Floats, traits: Mapping[str, float]) -> tuple[list[str], Floats]:
    """The columns, and each of them with each trait: how a part's gain changes with the model."""
    names, blocks = list(columns), [table]
    for trait, value in traits.items():
        names += [f"{column} x {trait}" for column in columns]
        blocks.append(table * (TRAIT_WEIGHT * value))
    return names, np.hstack(blocks)


@dataclass(frozen=True)
class Row:
    """A record of a verdict on speed, what would have been expected of it, and its model's traits."""

    record: Record
    expected: Expectation
    traits: Mapping[str, float]

    @property
    def model(self) -> str:
        """What tells one model from another: its structure, else its bytes."""
        return self.record.structure or self.record.model

    @property
    def residual(self) -> float:
        """Measured less expected ln(speed-up)."""
        return (self.record.log_ratio or 0.0) - self.expected.log_ratio


def learn(records: Sequence[Record], here: Collection[str] = ()) -> Learned:
    """What ``records`` teach: nothing where there is no verdict on speed among them.

    Args:
        records: of any models and devices.
        here: this machine's devices, as records name them: those of others count for less. Empty: all count alike.
    """
    return learn_rows(rows_of(records), here)


def learn_rows(rows: Sequence[Row], here: Collection[str] = ()) -> Learned:
    """The same, of records looked at before."""
    if not rows:
        return Learned()
    columns, table = loadings([[pair for pair in row.expected.parts if pair[0].kind != "together"] for row in rows])
    names, wide = loadings_with_traits(columns, table, rows)
    noise = _noise(rows, table)
    near = np.array([1.0 if not here or row.record.device in here else ELSEWHERE for row in rows])
    weights = near * np.array([row.record.weight for row in rows]) / noise**2
    residuals = np.array([row.residual for row in rows])
    precision = np.eye(len(names)) / (1 - MODEL_SHARE) + wide.T @ (wide * weights[:, None])
    covariance = np.linalg.inv(precision)
    mean = covariance @ (wide.T @ (weights * residuals))
    left = np.clip(np.diag(covariance) / (1 - MODEL_SHARE), 0.0, 1.0)
    models = len({row.model for row in rows})
    return Learned(tuple(names), tuple(map(float, mean)), tuple(map(float, left)), len(rows), models)


def loadings_with_traits(columns: Sequence[str], table: Floats, rows: Sequence[Row]) -> tuple[list[str], Floats]:
    """The columns with their interactions, each row with the traits of its own model."""
    blocks = [interactions(columns, table[index : index + 1], row.traits) for index, row in enumerate(rows)]
    return blocks[0][0], np.vstack([block for _, block in blocks])


def rows_of(records: Sequence[Record]) -> list[Row]:
    """Those of a verdict on the speed of a strategy of which something is expected."""
    rows: list[Row] = []
    memo: dict[object, Expectations] = {}
    for record in records:
        if not record.is_verdict or record.strategy.is_default:
            continue
        key = (record.model, record.shapes, record.device, record.provider, record.baseline_p50_ms)
        if key not in memo:
            memo[key] = _expectations(record)
        answer = memo[key].of(record.strategy)
        if answer is not None and answer.parts:
            rows.append(Row(record, answer, traits_of(memo[key].problem)))
    return rows


def _expectations(record: Record) -> Expectations:
    """As for a new problem; the processor is taken to be as fast as the baseline ran on it, since a record of another
    device says nothing of the processor beside it."""
    base = record.references.get("cpu")
    references = {} if base is None else {name: ratio - base for name, ratio in record.references.items()}
    problem = problem_of(record)
    plain = Expectations(problem, references=references)
    latency = plain.reckoning.latency(plain.reckoning.baseline)
    if not record.baseline_p50_ms or latency is None or not latency.by_kind:
        return plain
    scale = record.baseline_p50_ms / 1000 / sum(latency.by_kind.values())
    return Expectations(problem, dict.fromkeys(KINDS, scale), references)


def _noise(rows: Sequence[Row], table: Floats) -> Floats:
    """Spread of each residual that no shared column explains: measurement, and what is the model's own.

    Several records of one strategy for one model do not average the model's own part away.
    """
    counts = Counter((row.model, row.record.strategy) for row in rows)
    together = np.array([sum(s**2 for part, s in row.expected.parts if part.kind == "together") for row in rows])
    own = MODEL_SHARE * (table**2).sum(axis=1) + together
    repeats = np.array([counts[row.model, row.record.strategy] for row in rows])
    measured = np.array([_measured_spread(row.record) for row in rows])
    return np.asarray(np.sqrt((measured**2 + own) * repeats))


def _measured_spread(record: Record) -> float:
    low, high = record.log_ratio_low, record.log_ratio_high
    return hypot(NOISE, (high - low) / 3.92 if low is not None and high is not None else 0.0)
