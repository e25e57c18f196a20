"""Every rewrite keeps its promise on random graphs, and every rewrite finds graphs among them that it changes."""

from __future__ import annotations

import statistics
from collections import Counter
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from ort_metainfer.errors import RewriteError
from ort_metainfer.rewrites.base import Context, Rewrite
from ort_metainfer.rewrites.registry import all_rewrites
from ort_metainfer.rewrites.rewriting import rewrite_model
from tests.random_graphs import BLOCKS, Plan, build, plans, random_plan
from tests.rewrite_run import fitting_feeds, outputs
from tests.rewrite_trials import LOOSE_BOUND, LOOSE_BOUNDS, Record, Subject, campaign, report, trial, unexplained

QUICK, MANY = 60, 2000

CPU = "CPUExecutionProvider"

HERE = [rewrite for rewrite in all_rewrites() if not rewrite.providers or CPU in rewrite.providers]
"""Those whose results the CPU provider runs; the others have the conformance suite alone."""

REWRITES = [pytest.param(rewrite, id=rewrite.name) for rewrite in HERE]


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
    assert {graph.plan.opset for graph in drawn} == set(range(11, 24))
    assert any(len(graph.feeds) == 3 for graph in drawn), "nothing dynamic and nothing overridable was drawn"
    consumers = Counter(name for graph in drawn for node in graph.model.graph.node for name in node.input)
    assert sum(count > 1 for count in consumers.values()) > 100


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rewrite", REWRITES)
def test_what_hypothesis_draws_keeps_its_results(rewrite: Rewrite) -> None:
    @settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(plans())
    def holds(plan: Plan) -> None:
        fault = trial(rewrite, Subject(build(plan)), {})[2]
        assert fault is None, f"{fault}\n{build(plan).text()}"

    holds()


CHAINS, CHAIN_LENGTH = 300, 4

KEPT = [rewrite for rewrite in HERE if rewrite.promise != "lossy"]


def chain_fault(subject: Subject, seed: int, folder: Path) -> str | None:
    """What goes wrong when several rewrites follow each other in the pipeline; None where nothing does."""
    rng = np.random.default_rng((seed, 5))
    fitting = [rewrite for rewrite in KEPT if rewrite.objection(subject.features) is None]
    chosen = [fitting[place] for place in rng.permutation(len(fitting))[:CHAIN_LENGTH]]
    names = [rewrite.name for rewrite in chosen]
    file = folder / "model.onnx"
    file.write_bytes(subject.graph.bytes)
    shapes = {spec.name: subject.graph.feeds[0][spec.name].shape for spec in subject.features.inputs}
    context = Context(folder, subject.features, subject.graph.feeds, feeds_are_real=True, shapes=shapes)
    transforms = [rewrite.transform() for rewrite in chosen]
    try:
        made = rewrite_model(file, transforms, context, folder / "out" / "model.onnx")
        places = sorted(set.intersection(*(set(fitting_feeds(rewrite, subject.graph.feeds)) for rewrite in chosen)))
        got = outputs(made.file, [subject.graph.feeds[place] for place in places])
    except RewriteError as error:
        return None if "nothing to rewrite" in str(error) else f"{names}: {error}"
    except Exception as error:  # noqa: BLE001 (onnxruntime's many classes)
        return f"{names}: {error}"
    off = unexplained(subject, got, "float32-equivalent", "off", places)
    return f"{names}: {off}" if off else None


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(len(KEPT) < CHAIN_LENGTH, reason="too few rewrites are registered to follow each other")
def test_rewrites_that_follow_each_other_keep_the_results(tmp_path: Path) -> None:
    faults = {}
    for seed in range(MANY, MANY + CHAINS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        fault = chain_fault(Subject(build(random_plan(seed))), seed, folder)
        if fault:
            faults[seed] = fault
    assert not faults, "\n".join(f"{seed}: {fault}" for seed, fault in faults.items())
