"""Records and problems made up for the tests of learning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ort_metainfer.decision import Trial
from ort_metainfer.learning.record import Record
from ort_metainfer.learning.records import override_of, record_of
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy
from tests.made_problems import problem, trial

STRUCTURE = "0123456789abcdef" * 2
ONE_THREAD = Strategy(session_options={"intra_op_num_threads": 1})
NO_SPINNING = Strategy(session_config={"session.intra_op.allow_spinning": "0"})
BASIC = Strategy(session_options={"graph_optimization_level": "basic"})


def known_problem(structure: str = STRUCTURE, **more: Any) -> Problem:
    """A problem whose graph's structure is known."""
    made = problem(**more)
    return replace(made, graph=replace(made.graph, structure=structure))


def record(
    strategy: Strategy = ONE_THREAD, speedup: float | None = 1.5, about: Problem | None = None, **more: Any
) -> Record:
    """A record of a trial of ``strategy``; ``more`` are fields to change."""
    made = record_of(about or known_problem(), trial(strategy, speedup), "tune")
    return replace(made, **more)


def override(strategy: Strategy, replaced: Strategy, about: Problem | None = None, at: str = "2025-01-01") -> Record:
    """A record of a person's override."""
    return override_of(about or known_problem(), strategy, replaced, at, "cpu:made")


def failed(strategy: Strategy, why: str) -> Trial:
    """A trial that came to nothing."""
    return Trial(strategy, "rules", failure=why)
