"""Every rewrite keeps its promise on random graphs, and every rewrite finds graphs among them that it changes."""

from __future__ import annotations

import statistics
from collections import Counter
from functools import cache, lru_cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from ort_metainfer.rewrites.base import Rewrite
from ort_metainfer.rewrites.registry import all_rewrites
from tests.random_graphs import BLOCKS, Plan, build, plans, random_plan
from tests.rewrite_run import outputs
from tests.rewrite_trials import LOOSE_BOUND, LOOSE_BOUNDS, Record, Subject, campaign, report

QUICK, MANY = 60, 2000

REWRITES = [pytest.param(rewrite, id=rewrite.name) for rewrite in all_rewrites()]


@lru_cache(maxsize=2)
def subjects(count: int) -> tuple[Subject, ...]:
    return tuple(Subject(build(random_plan(seed))) for seed in range(count))


@cache
def record_of(rewrite: Rewrite, count: int) -> Record:
    record = campaign(rewrite, subjects(count))
    print(f"{rewrite.name}: {record.summary()}")
    return record


def assert_promise_kept(rewrite: Rewrite, count: int) -> None:
    record = record_of(rewrite, count)
    assert not record.faults, report(rewrite, record)
    if rewrite.promise == "lossy" and record.errors:
        assert statistics.median(record.errors) <= LOOSE_BOUNDS.get(rewrite.name, LOOSE_BOUND)


@pytest.mark.parametrize("rewrite", REWRITES)
def test_a_few_random_graphs_keep_their_results(rewrite: Rewrite) -> None:
    assert_promise_kept(rewrite, QUICK)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rewrite", REWRITES)
def test_two_thousand_random_graphs_keep_their_results(rewrite: Rewrite) -> None:
    assert_promise_kept(rewrite, MANY)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rewrite", REWRITES)
def test_the_generator_draws_graphs_that_the_rewrite_changes(rewrite: Rewrite) -> None:
    record = record_of(rewrite, MANY)
    assert record.applied, f"{rewrite.name} applied to none of {record.graphs} graphs: its proof shows nothing"


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(plans())
def test_what_hypothesis_draws_runs_and_is_finite(plan: Plan) -> None:
    assert_runs(plan)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_random_graph_runs_and_is_finite() -> None:
    for seed in range(MANY):
        assert_runs(random_plan(seed))


def assert_runs(plan: Plan) -> None:
    graph = build(plan)
    for feed, run in enumerate(outputs(graph.bytes, graph.feeds)):
        for array in run:
            assert np.isfinite(array).all(), f"feed {feed}\n{graph.text()}"


def test_the_same_plan_gives_the_same_bytes() -> None:
    for seed in range(QUICK):
        assert build(random_plan(seed)).bytes == build(random_plan(seed)).bytes


def test_random_graphs_hold_what_rewrites_look_for() -> None:
    drawn = [build(random_plan(seed)) for seed in range(400)]
    blocks = Counter(name for graph in drawn for name, _ in graph.plan.blocks)
    assert set(blocks) == set(BLOCKS)
    operators = Counter(node.op_type for graph in drawn for node in graph.model.graph.node)
    assert len(operators) > 60, sorted(operators)
    assert {graph.plan.opset for graph in drawn} == set(range(11, 22))
    assert any(len(graph.feeds) == 3 for graph in drawn), "nothing dynamic and nothing overridable was drawn"
    consumers = Counter(name for graph in drawn for node in graph.model.graph.node for name in node.input)
    assert sum(count > 1 for count in consumers.values()) > 100
