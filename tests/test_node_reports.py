"""What a lossy strategy says of its nodes: the one with a wrong scale first, the time kept, and told in words."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ort_metainfer.cli.report import decision_lines, trial_lines
from ort_metainfer.decision import Decision, Gate, Timing, Trial, WorstNode
from ort_metainfer.errors import TrialTimeout
from ort_metainfer.model.graph import describe
from ort_metainfer.model.inputs import save_feeds
from ort_metainfer.node_reports import computes_in_less, to_be_looked_at, with_worst_nodes
from ort_metainfer.problem import SessionSpec
from ort_metainfer.rewrites.base import Context
from ort_metainfer.rewrites.precision_report import worst_nodes
from ort_metainfer.rewrites.registry import get_rewrite
from ort_metainfer.rewrites.rewriting import rewrite_model
from ort_metainfer.strategy import Strategy, Transform
from ort_metainfer.trials.client import ChildTrialHost
from ort_metainfer.trials.rewritten import rewritten_folder, rewritten_model
from ort_metainfer.trials.task import Setup
from tests.test_sensitivity import chain, feeds

STATIC = Strategy(transforms=(get_rewrite("int8-static").transform(),))
DYNAMIC = Strategy(transforms=(get_rewrite("int8-dynamic").transform(),))
FOLDED = Strategy(transforms=(get_rewrite("fold-constants").transform(),))


def quantised(source: Path, folder: Path, transform: Transform) -> Path:
    context = Context(folder, describe(source), feeds(), True)
    return rewrite_model(source, [transform], context, folder / "q.onnx").file


def spoil(file: Path, name: str, factor: float) -> None:
    """Multiply one tensor of a model."""
    model = onnx.load(str(file))
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    array = numpy_helper.to_array(tensor) * np.float32(factor)
    tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float32), name))
    onnx.save(model, str(file))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return chain(tmp_path / "float.onnx", bad=None, layers=6)


@pytest.mark.parametrize(
    ("name", "factor"),
    [("w2_scale", 0.05), ("w2_scale", 30.0), ("w2_scale", -1.0), ("m2_scale", 0.02), ("m2_scale", 40.0)],
)
def test_a_wrong_scale_names_its_node_first(name: str, factor: float, source: Path, tmp_path: Path) -> None:
    """A weight's scale, and that of a result; both far too small and far too large."""
    file = quantised(source, tmp_path, STATIC.transforms[0])
    right, _ = worst_nodes(source, file, feeds(2))
    assert {node.node for node in right} == {f"product{layer}" for layer in range(6)}
    assert max(node.error or 0 for node in right) < 0.1
    spoil(file, name, factor)
    found, note = worst_nodes(source, file, feeds(2))
    assert found[0].node == "product2" and note == "", found
    assert found[0].added is not None and found[0].added > 3 * max(node.added or 0 for node in right)


def test_a_scale_that_is_no_number_names_its_node_first(source: Path, tmp_path: Path) -> None:
    file = quantised(source, tmp_path, STATIC.transforms[0])
    spoil(file, "w3_scale", math.nan)
    found, _ = worst_nodes(source, file, feeds(2))
    assert found[0].node == "product3" and "w3_scale is NaN" in found[0].fault
    assert found[0].describe().startswith("product3 (MatMul) ")


def test_what_came_from_above_is_not_blamed_on_a_node(tmp_path: Path) -> None:
    source = chain(tmp_path / "float.onnx", bad=1)
    found, _ = worst_nodes(source, quantised(source, tmp_path, DYNAMIC.transforms[0]), feeds(2))
    assert found[0].node == "product1"
    later = next(node for node in found if node.node == "product3")
    assert later.error is not None and later.added is not None and later.added < later.error / 2


def test_a_session_that_computes_in_less_is_held_against_the_cpus(source: Path) -> None:
    """The same model twice, as where a provider is told to use less precision."""
    from ort_metainfer.rewrites.observing import plain_session

    same, _ = worst_nodes(source, source, feeds(2), open_with=plain_session)
    assert len(same) == 6 and all(node.error is not None and node.error < 1e-5 for node in same)


def test_a_rewrite_that_left_nothing_to_compare_says_so(source: Path) -> None:
    model = onnx.load(str(source))
    for node in model.graph.node:
        node.op_type = "Mul" if node.op_type == "MatMul" else node.op_type
    onnx.save(model, str(source.with_name("none.onnx")))
    nodes, note = worst_nodes(source.with_name("none.onnx"), source, feeds(1))
    assert nodes == () and "none of its products" in note


def test_a_deadline_that_is_over_is_told(source: Path, tmp_path: Path) -> None:
    file = quantised(source, tmp_path, DYNAMIC.transforms[0])
    nodes, note = worst_nodes(source, file, feeds(1), until=time.monotonic() - 1)
    assert nodes == () and note == "time was up: 6 of 6 nodes were not looked at"


# which trials


def trial(strategy: Strategy, failed: str | None = None, error: float | None = None) -> Trial:
    names = ("compiles", "accurate", "pays")
    gates = [Gate(name, name != failed, name) for name in names]  # type: ignore[arg-type]
    return Trial(strategy, "rules", tuple(gates[: names.index(failed) + 1] if failed else gates), error=error)


def decision(*trials: Trial, strategy: Strategy) -> Decision:
    return Decision(strategy, "rules", "because", trials=trials)


def test_the_adopted_one_and_the_nearest_inaccurate_ones_are_looked_at() -> None:
    other = [replace(DYNAMIC, session_config={"a": str(n)}) for n in range(4)]
    kept, unmeasured, far, near, middle, slow, exact = (
        trial(STATIC, error=0.01),
        trial(other[3], "accurate"),
        trial(other[0], "accurate", 0.9),
        trial(other[1], "accurate", 0.2),
        trial(other[2], "accurate", 0.4),
        trial(DYNAMIC, "pays", 0.1),
        trial(FOLDED, "accurate", 0.3),
    )
    found = decision(unmeasured, far, slow, near, exact, kept, middle, strategy=STATIC)
    assert list(to_be_looked_at(found)) == [kept, near, middle]


@pytest.mark.parametrize(
    ("strategy", "lossy"),
    [
        (STATIC, True),
        (FOLDED, False),
        (Strategy(session_config={"optimization.enable_gelu_approximation": "1"}), True),
        (Strategy(provider="OpenVINOExecutionProvider", provider_options={"INFERENCE_PRECISION_HINT": "bf16"}), True),
        (Strategy(provider="OpenVINOExecutionProvider", provider_options={"INFERENCE_PRECISION_HINT": "f32"}), False),
        (Strategy(transforms=(Transform("not here"),)), False),
        (Strategy(), False),
    ],
)
def test_what_computes_in_less(strategy: Strategy, lossy: bool) -> None:
    assert computes_in_less(strategy) is lossy


SETUP = Setup(Path("model.onnx"), SessionSpec(), Path("feeds"), inputs_are_real=True)


def test_the_answer_is_kept_and_told_in_words() -> None:
    nodes = (WorstNode("dense", "MatMul", 0.5, 0.4, "scale s is zero"), WorstNode("last", "Gemm", None, None))
    told = {"nodes": [asdict(node) for node in nodes], "note": ""}
    timing = Timing(9, 2.0, 2.1, 1.0, 1.1, 2.0, 1.9, 2.1, 1.02)
    kept = replace(trial(STATIC, error=0.01), timing=timing, duel=timing)
    found = with_worst_nodes(
        decision(kept, trial(DYNAMIC, "accurate", 0.3), strategy=STATIC),
        SETUP,
        time.monotonic() + 60,
        lambda do, request, deadline: told,
    )
    assert [each.worst_nodes for each in found.trials] == [nodes, nodes]
    words = "dense (MatMul) 5.0e-01: scale s is zero, last (Gemm) no number"
    plain = found.as_dict()
    assert f"worst nodes   {words}" in decision_lines(plain)
    assert [line for line in trial_lines(plain) if words in line] == [f"    worst     {words}"] * 2


def test_without_time_the_reason_stands_in_their_place() -> None:
    def never(do: str, request: Any, deadline: float) -> Any:
        raise AssertionError("no child may be started")

    found = with_worst_nodes(decision(trial(STATIC), strategy=STATIC), SETUP, time.monotonic() + 0.1, never)
    assert found.trials[0].worst_nodes_note == "no time was left to look at its nodes"
    assert any("no time was left" in line for line in trial_lines(found.as_dict()))


def test_a_child_that_does_not_end_costs_the_report_only() -> None:
    def slow(do: str, request: Any, deadline: float) -> Any:
        raise TrialTimeout("checking nodes did not end within 3.0 s; killed")

    found = with_worst_nodes(decision(trial(STATIC), strategy=STATIC), SETUP, time.monotonic() + 60, slow)
    assert found.trials[0].worst_nodes == () and "3.0 s" in found.trials[0].worst_nodes_note
    assert found.strategy == STATIC


@pytest.mark.slow
def test_in_a_child_the_node_with_the_wrong_scale_comes_first(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "feeds"
    folder.mkdir()
    save_feeds(feeds(), folder)
    setup = Setup(source, SessionSpec(), folder, graph=describe(source), label="chain", inputs_are_real=True)
    rewritten_model(setup, STATIC.transforms, feeds(), time.monotonic() + 60)
    spoil(rewritten_folder(setup, STATIC.transforms) / "model.onnx", "w4_scale", 0.1)
    with ChildTrialHost() as host:
        found = with_worst_nodes(
            decision(trial(STATIC, error=0.5), strategy=STATIC), setup, time.monotonic() + 60, host.errand
        )
    nodes = found.trials[0].worst_nodes
    assert len(nodes) == 5 and nodes[0].node == "product4", found.trials[0]
