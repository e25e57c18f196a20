"""A learned ranking made by hand for tests: what it was trained on is said, what it expects is a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ort_metainfer.learning.examples import case_features, row_features, strategy_kinds
from ort_metainfer.learning.features import device_features, graph_features
from ort_metainfer.learning.learned import Card
from ort_metainfer.learning.support import Support, learn_support
from ort_metainfer.problem import Device, Problem
from ort_metainfer.strategy import Strategy
from tests.learning_cases import known_problem
from tests.made_problems import GELU_TRANSFORMER, LSTM, RESNET, SMALL_MLP, SQUEEZENET, TRANSFORMER

Row = Mapping[str, float]
TREES = 20


def case_of(problem: Problem, device: Device | None = None) -> dict[str, float]:
    """Features of a problem on its CPU, or on another device."""
    graph = graph_features(problem.graph, problem.work, problem.shapes)
    return case_features(graph, device_features(device or problem.cpu))


def trained_problems(**more: object) -> list[Problem]:
    """Models of several kinds and sizes on CPUs of 2, 4 and 8 cores."""
    kinds = (RESNET, TRANSFORMER, GELU_TRANSFORMER, SQUEEZENET, LSTM, SMALL_MLP)
    sizes = (3_000_000_000, 1_000_000_000, 300_000_000, 100_000_000, 10_000_000, 3_000_000)
    return [
        known_problem(f"{number:032x}", operators=kind, macs=macs, weight_bytes=macs // 100, cores=cores, **more)
        for cores in (2.0, 4.0, 8.0)
        for number, (kind, macs) in enumerate(zip(kinds, sizes, strict=True))
    ]


def support_of(problems: Sequence[Problem], strategies: Sequence[Strategy], kinds: Sequence[str] = ("cpu",)) -> Support:
    """As training makes it, of these problems; every kind named is one of a device seen."""
    cases = [case_of(problem) for problem in problems]
    names = sorted({name for case in cases for name in case})
    table = np.array([[case.get(name, np.nan) for name in names] for case in cases])
    known = frozenset(
        kind for one in strategies for kind in strategy_kinds(one, one.provider or "CPUExecutionProvider")
    )
    hardware = np.array([str(problem.cpu) for problem in problems])
    of_kind = np.array([kinds[number % len(kinds)] for number in range(len(problems))])
    return learn_support(names, table, hardware, of_kind, strategies=known)


@dataclass
class MadeModel:
    """A :class:`~ort_metainfer.deciders.meta_model.Model`: ``gain`` of a row's features, all trees alike but for
    ``doubt``, by which they spread."""

    support: Support
    gain: Callable[[Row], float]
    doubt: float = 0.01
    card: Card = field(
        default_factory=lambda: Card((), "log_speedup", "2025-01-01", "", 90, 6, {"cpu:a": 45, "cpu:b": 45})
    )
    asked: int = 0

    def expected(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        self.asked += len(rows)
        spread = np.linspace(-self.doubt, self.doubt, TREES)
        return np.array([self.gain(row) + spread for row in rows], dtype=np.float32).reshape(len(rows), TREES)


def row_of(problem: Problem, strategy: Strategy) -> dict[str, float]:
    """What a model is asked about a strategy on the CPU."""
    graph = graph_features(problem.graph, problem.work, problem.shapes)
    return row_features(graph, device_features(problem.cpu), {}, strategy, "cpu", "CPUExecutionProvider")
