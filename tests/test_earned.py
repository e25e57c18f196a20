"""Precision that is earned: which trial is taken up again, what the child is asked, what becomes of its answer."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_metainfer.decision import Gate, Proposal, Refusal, Trial
from ort_metainfer.earned import earn_precision, worth_earning
from ort_metainfer.errors import TrialTimeout
from ort_metainfer.model.graph import describe
from ort_metainfer.model.inputs import save_feeds
from ort_metainfer.problem import SessionSpec
from ort_metainfer.rewrites.registry import get_rewrite
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.client import ChildTrialHost
from ort_metainfer.trials.task import Setup, Thresholds

FAST = Thresholds.of("fast")
INT8 = Strategy(transforms=(get_rewrite("int8-dynamic").transform(),))
FUSED = Strategy(transforms=(get_rewrite("fold-constants").transform(),))
SETUP = Setup(Path("model.onnx"), SessionSpec(), Path("feeds"), inputs_are_real=True)


def inaccurate(strategy: Strategy, error: float | None) -> Trial:
    gates = (Gate("compiles", True, "created"), Gate("accurate", False, f"off by {error}"))
    return Trial(strategy, "rules", gates, error=error)


def test_the_nearest_lossy_trial_that_left_nothing_out_is_taken_up() -> None:
    near, far = inaccurate(INT8, 0.2), inaccurate(replace(INT8, session_config={"a": "b"}), 0.4)
    assert worth_earning([far, near], FAST) is near


@pytest.mark.parametrize(
    "trial",
    [
        inaccurate(FUSED, 0.2),
        inaccurate(Strategy(), 0.2),
        inaccurate(INT8, None),
        inaccurate(INT8, 50.0),
        inaccurate(Strategy(transforms=(get_rewrite("int8-dynamic").transform(exclude=["a"]),)), 0.2),
        replace(inaccurate(INT8, 0.2), gates=(Gate("compiles", False, "no"),)),
        replace(inaccurate(INT8, 0.01), gates=(Gate("compiles", True, ""), Gate("accurate", True, ""))),
    ],
)
def test_what_leaving_nodes_out_cannot_help_is_not(trial: Trial) -> None:
    assert worth_earning([trial], FAST) is None


def answer(told: dict[str, Any]) -> Any:
    return earn_precision(inaccurate(INT8, 0.2), SETUP, FAST, 0.0, lambda do, request, deadline: told)


def test_what_was_earned_is_proposed_with_the_nodes_named() -> None:
    told = {"parameters": {"exclude": ["dense"]}, "passed": True, "detail": "1 of 9 left out", "worst": ["dense (0.3)"]}
    proposal = answer(told)
    assert isinstance(proposal, Proposal)
    assert proposal.strategy.transforms[-1].parameters == {"exclude": ["dense"]}
    assert "1 of 9 left out" in proposal.reason and "dense (0.3)" in proposal.reason


@pytest.mark.parametrize(
    "told",
    [
        {"parameters": {"exclude": ["a"]}, "passed": False, "detail": "too little is left", "worst": ["a (0.9)"]},
        {"parameters": {}, "passed": True, "detail": "nothing left out", "worst": []},
    ],
)
def test_what_does_not_help_is_a_refusal_with_its_reason(told: dict[str, Any]) -> None:
    refusal = answer(told)
    assert isinstance(refusal, Refusal) and (told["detail"] in refusal.reason or "does not help" in refusal.reason)


def test_a_child_that_runs_out_of_time_costs_the_answer_only() -> None:
    def errand(do: str, request: Any, deadline: float) -> Any:
        raise TrialTimeout("rewriting the model did not end within 3.0 s; killed")

    refusal = earn_precision(inaccurate(INT8, 0.2), SETUP, FAST, 0.0, errand)
    assert isinstance(refusal, Refusal) and "3.0 s" in refusal.reason


@pytest.mark.slow
def test_a_layer_with_outliers_is_found_in_a_child_and_left_in_float(tmp_path: Path) -> None:
    """The second product's weights have one enormous column, whose neighbours an 8-bit scale a tensor would erase."""
    generator = np.random.default_rng(0)
    first, second, third = (generator.standard_normal((32, 32)).astype(np.float32) / 6 for _ in range(3))
    second[:, 0] *= 3000
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "a"], ["g"], name="good"),
            helper.make_node("MatMul", ["g", "c"], ["h"], name="good too"),
            helper.make_node("Tanh", ["h"], ["t"]),
            helper.make_node("MatMul", ["t", "b"], ["o"], name="bad"),
            helper.make_node("Mul", ["o", "s"], ["y"]),
        ],
        "outliers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 32])],
        [
            numpy_helper.from_array(first, "a"),
            numpy_helper.from_array(second, "b"),
            numpy_helper.from_array(third, "c"),
            numpy_helper.from_array(np.array([1 / 3000] + [1] * 31, np.float32), "s"),
        ],
    )
    path = tmp_path / "outliers.onnx"
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]), str(path))
    feeds = [{"x": generator.standard_normal((16, 32)).astype(np.float32)} for _ in range(8)]
    folder = tmp_path / "feeds"
    folder.mkdir()
    save_feeds(feeds, folder)
    setup = Setup(path, SessionSpec(), folder, graph=describe(path), label="outliers", inputs_are_real=True)
    coarse = Strategy(transforms=(get_rewrite("int8-dynamic").transform(per_channel=False),))
    with ChildTrialHost() as host:
        found = earn_precision(
            inaccurate(coarse, 0.9), setup, replace(FAST, top1=None), time.monotonic() + 90, host.errand
        )
    assert isinstance(found, Proposal), found
    assert found.strategy.transforms[-1].parameters == {"exclude": ["bad"], "per_channel": False}
