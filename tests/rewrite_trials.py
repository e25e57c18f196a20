"""One rewrite tried on many random graphs: how often it applied, and the smallest graph that it broke."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx

from ort_metainfer.model.graph import describe
from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Outcome, Parameter, Rewrite
from ort_metainfer.rewrites.rewriting import blocker
from tests.oldest_onnxruntime import failing_of_oldest
from tests.random_graph_cutting import cut
from tests.random_graph_float64 import runs
from tests.random_graphs import Plan, RandomGraph, build, minimised
from tests.rewrite_run import (
    LEVELS,
    NOISE_FACTOR,
    TOLERANCES,
    apply_to_bytes,
    arrays,
    broken_surface,
    difference,
    error_of,
    fitting_feeds,
    outputs,
    tolerance_for,
)
from tests.rounding_noise import rounding_noise

MOST_NOISE = 0.5
"""Relative L2 error that no rounding noise excuses."""

LOOSE_BOUND = 0.5
"""Median relative L2 error that a lossy rewrite may have over random graphs, unless :data:`LOOSE_BOUNDS` says it."""

LOOSE_BOUNDS: Mapping[str, float] = {"int8-dynamic": 0.05, "int8-weights": 0.05, "int4-weights": 0.3}
"""Rewrite -> that bound, some five times what was seen when it was written."""


class Subject:
    """A random graph with what every trial on it needs, worked out once."""

    def __init__(self, graph: RandomGraph) -> None:
        self.graph = graph
        self.features: Graph = describe(graph.bytes)
        self._noise: dict[str, float] = {}

    @cached_property
    def expected(self) -> dict[str, list[list[Any]]]:
        """Level -> the original's outputs."""
        return {level: outputs(self.graph.bytes, self.graph.feeds, level) for level in LEVELS}

    def noise(self, level: str) -> float:
        """What rounding alone does to its outputs."""
        if level not in self._noise:
            self._noise[level] = rounding_noise(self.graph.bytes, self.graph.feeds, level)
        return self._noise[level]


@dataclass
class Record:
    """What one rewrite did over many graphs.

    Attributes:
        graphs: how many it was tried on.
        applied: on how many it changed something.
        faults: plan, parameters and what went wrong.
        errors: relative L2 error on each graph it changed.
    """

    graphs: int = 0
    applied: int = 0
    faults: list[tuple[Plan, dict[str, Any], str]] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    def summary(self) -> str:
        """One line."""
        middle = f", median error {statistics.median(self.errors):.1e}" if self.errors else ""
        return f"applied to {self.applied} of {self.graphs} graphs{middle}, {len(self.faults)} faults"


def drawn_parameters(rewrite: Rewrite, seed: int) -> dict[str, Any]:
    """The defaults half of the time; else each parameter somewhere in its domain."""
    rng = np.random.default_rng((seed, 4))
    if rng.random() < 0.5:
        return {}
    return {name: _drawn(parameter, rng) for name, parameter in sorted(rewrite.parameters.items())}


def _drawn(parameter: Parameter, rng: np.random.Generator) -> Any:
    if parameter.values:
        return parameter.values[int(rng.integers(len(parameter.values)))]
    if parameter.kind is bool:
        return bool(rng.integers(2))
    if parameter.numbers and rng.random() < 0.7:
        number = parameter.numbers[int(rng.integers(2))]
        return parameter.kind(number)
    return parameter.default


def trial(
    rewrite: Rewrite, subject: Subject, parameters: Mapping[str, Any]
) -> tuple[Outcome | None, float, str | None]:
    """What it did (None: it said no), how far off the result is, and what is wrong with it (None: nothing)."""
    graph = subject.graph
    if blocker(subject.features) or rewrite.objection(subject.features) is not None:
        return None, 0.0, None
    try:
        made, outcome = apply_to_bytes(rewrite, graph.bytes, graph.feeds, parameters, subject.features)
    except Exception as error:  # noqa: BLE001 (whatever it raises is what is reported)
        return None, 0.0, f"raised {type(error).__name__}: {error}"
    after = onnx.load_from_string(made)
    faults = broken_surface(graph.model, after, rewrite)
    if not outcome.changed:
        faults += [] if outcome.notes or any(site.reason for site in outcome.sites) else ["changed nothing, no reason"]
        return outcome, 0.0, "; ".join(faults) or None
    error, off = _compared(rewrite, subject, made)
    return outcome, error, "; ".join([*faults, *off]) or None


def _compared(rewrite: Rewrite, subject: Subject, made: bytes) -> tuple[float, list[str]]:
    worst, faults = 0.0, []
    places = fitting_feeds(rewrite, subject.graph.feeds)
    for level in LEVELS:
        try:
            got = outputs(made, [subject.graph.feeds[place] for place in places], level)
        except Exception as error:  # noqa: BLE001 (onnxruntime's many classes)
            if failing_of_oldest(error) is not None:
                continue
            return float("inf"), [f"does not run at level {level}: {error}"]
        expected = [subject.expected[level][place] for place in places]
        worst = max(
            worst, *(error_of(a, b) for x, y in zip(got, expected, strict=True) for a, b in zip(x, y, strict=True))
        )
        if rewrite.promise == "lossy":
            broken = not all(
                np.isfinite(array).all() for run in got for array in arrays(run) if array.dtype.kind == "f"
            )
            faults += [f"not finite at level {level}"] if broken else []
            continue
        promise = rewrite.promise if level == "off" else "float32-equivalent"
        off = unexplained(subject, got, promise, level, places)
        faults += [f"level {level}: {off}"] if off else []
    return worst, faults


def unexplained(
    subject: Subject,
    got: Sequence[Sequence[Any]],
    promise: str,
    level: str,
    places: Sequence[int] | None = None,
) -> str | None:
    """The difference, unless rounding alone explains it: noise that grows, or a quantiser that takes another step.

    ``got`` is of the feeds at ``places`` (None: of all).
    """
    expected = subject.expected[level]
    if places is not None:
        expected = [expected[place] for place in places]
    off = difference(got, expected, promise)
    if off is None:
        return None
    if subject.graph.steps and any(difference([a], [b], promise) is None for a, b in zip(got, expected, strict=True)):
        return None
    noise = subject.noise(level)
    allowed = max(min(noise * NOISE_FACTOR, MOST_NOISE), TOLERANCES[promise])
    pairs = [(a, b) for x, y in zip(got, expected, strict=True) for a, b in zip(x, y, strict=True)]
    if all(error_of(a, b) <= max(allowed, tolerance_for(promise, b)) for a, b in pairs):
        return None
    return f"{off}; rounding noise alone {noise:.1g}"


def campaign(rewrite: Rewrite, subjects: Iterable[Subject], most_faults: int = 5) -> Record:
    """Try a rewrite on every graph; it ends early once it has broken ``most_faults`` of them."""
    record = Record()
    for number, subject in enumerate(subjects):
        parameters = drawn_parameters(rewrite, number)
        outcome, error, fault = trial(rewrite, subject, parameters)
        record.graphs += 1
        if outcome is not None and outcome.changed:
            record.applied += 1
            record.errors.append(error)
        if fault is not None:
            record.faults.append((subject.graph.plan, parameters, fault))
            if len(record.faults) >= most_faults:
                break
    return record


def smallest(rewrite: Rewrite, plan: Plan, parameters: Mapping[str, Any]) -> str:
    """The smallest graph that it breaks as well, as text, with what is wrong."""

    def broken(graph: RandomGraph) -> bool:
        return runs(graph.model) and trial(rewrite, Subject(graph), parameters)[2] is not None

    least = minimised(plan, lambda smaller: broken(build(smaller)))
    graph = cut(build(least), broken)
    _, _, fault = trial(rewrite, Subject(graph), parameters)
    given = f" with {dict(parameters)}" if parameters else ""
    return f"{rewrite.name}{given}: {fault}\n{graph.text()}"


def report(rewrite: Rewrite, record: Record, most: int = 2) -> str:
    """For a failing test: the summary, and the smallest graphs of the first faults."""
    shown = [smallest(rewrite, plan, parameters) for plan, parameters, _ in record.faults[:most]]
    return "\n\n".join([f"{rewrite.name}: {record.summary()}", *shown])
