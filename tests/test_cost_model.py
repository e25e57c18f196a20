"""The cost model as a predictor: what it expects, what trials and records change, how well it does on chips."""

from __future__ import annotations

import json
from dataclasses import replace
from math import log
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ort_metainfer.deciders.cost_calibration import scales_of
from ort_metainfer.deciders.cost_expectation import Expectations
from ort_metainfer.deciders.cost_learning import interactions, learn, traits_of
from ort_metainfer.deciders.cost_model import CostModel
from ort_metainfer.deciders.cost_parts import loadings, parts_of
from ort_metainfer.deciders.cost_quality import cost_quality
from ort_metainfer.deciders.cost_records import OPERATORS, problem_of
from ort_metainfer.deciders.cost_residuals import Learned, corrected
from ort_metainfer.deciders.prediction import Prediction
from ort_metainfer.deciders.search_space import declared_space
from ort_metainfer.decision import Gate, Timing, Trial
from ort_metainfer.hardware.profile import ReferenceTiming
from ort_metainfer.learning.operator_classes import CLASSES
from ort_metainfer.model.work import OperatorTime
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy, Transform
from tests import cost_cases
from tests.cost_cases import case, chain, described_chips, probed, product, record, simulated_records
from tests.made_problems import CPU, CUDA, CUDA_GPU, OPENVINO, OPENVINO_CPU, device, problem

NO_SPINNING = Strategy(session_config={"session.intra_op.allow_spinning": "0"})
ONE_THREAD = Strategy(session_options={"intra_op_num_threads": 1})
ONE_THREAD_INT8 = replace(ONE_THREAD, transforms=(Transform("int8-static"),))
INT8 = Strategy(transforms=(Transform("int8-static"),))
EXTENDED = Strategy(session_options={"graph_optimization_level": "extended"})
F32 = Strategy(provider=OPENVINO, provider_options={"INFERENCE_PRECISION_HINT": "f32"})
PASSED = (Gate("compiles", True, ""), Gate("accurate", True, ""))


def timed(strategy: Strategy, speedup: float, width: float = 0.02, **more: Any) -> Trial:
    low, high = speedup * (1 - width / 2), speedup * (1 + width / 2)
    timing = Timing(20, 10.0, 11.0, 10.0 / speedup, 11.0 / speedup, speedup, low, high, 1.01)
    return Trial(strategy, "test", gates=PASSED, timing=timing, **more)


def made() -> Problem:
    work = chain(*[("Conv", 100_000_000, 400_000), ("Relu", 0, 400_000)] * 8)
    return case(work, others=(OPENVINO_CPU,), allowed=(CPU, OPENVINO))


def one(given: Problem, strategy: Strategy, *history: Trial, model: CostModel | None = None) -> Prediction:
    (answer,) = (model or CostModel()).predict(given, [strategy], history)
    assert answer is not None
    return answer


def test_the_default_is_expected_to_be_itself() -> None:
    answer = one(made(), Strategy())
    assert (answer.log_speedup, answer.spread) == (0.0, 0.0)


def test_every_strategy_of_the_space_gets_a_prediction_with_a_reason_to_believe_it() -> None:
    given = made()
    space = [dimension.put(Strategy(), c.part) for dimension in declared_space(given) for c in dimension.choices]
    answers = CostModel().predict(given, space, ())
    assert len(answers) == len(space) > 10
    for strategy, answer in zip(space, answers, strict=True):
        assert answer is not None and answer.spread > 0 and answer.because, strategy.describe()
        assert np.isfinite(answer.log_speedup) and answer.source, strategy.describe()


def test_what_was_measured_is_predicted_as_measured_and_with_little_doubt() -> None:
    before, after = one(made(), ONE_THREAD), one(made(), ONE_THREAD, timed(ONE_THREAD, 0.8))
    assert after.speedup == pytest.approx(0.8, rel=0.02)
    assert after.spread < 0.5 * before.spread


def test_a_measured_thread_count_moves_every_candidate_with_it_and_no_other() -> None:
    given, seen = made(), timed(ONE_THREAD, 1.3)
    with_thread = one(given, ONE_THREAD_INT8, seen).log_speedup - one(given, ONE_THREAD_INT8).log_speedup
    alone = one(given, ONE_THREAD, seen).log_speedup - one(given, ONE_THREAD).log_speedup
    assert alone > 0.5 and with_thread == pytest.approx(alone, rel=0.25)
    for unlike in (NO_SPINNING, EXTENDED, F32, INT8):
        assert one(given, unlike, seen).log_speedup == pytest.approx(one(given, unlike).log_speedup)


def test_spread_shrinks_for_what_shares_a_part_with_a_measurement_that_came_out_as_expected() -> None:
    given = made()
    as_expected = timed(INT8, one(given, INT8).speedup)
    assert one(given, ONE_THREAD_INT8, as_expected).spread < one(given, ONE_THREAD_INT8).spread
    assert one(given, NO_SPINNING, as_expected).spread == pytest.approx(one(given, NO_SPINNING).spread)


def test_a_surprise_widens_what_was_not_measured() -> None:
    given, surprise = made(), timed(NO_SPINNING, 2.0)
    assert one(given, EXTENDED, surprise).spread > 2 * one(given, EXTENDED).spread


def test_a_wide_interval_moves_less_than_a_tight_one() -> None:
    given = made()
    tight, wide = (one(given, INT8, timed(INT8, 0.7, width)).speedup for width in (0.02, 1.5))
    assert tight < wide < one(given, INT8).speedup


def test_the_duel_counts_where_there_was_one() -> None:
    duel = timed(INT8, 1.1).timing
    both = replace(timed(INT8, 3.0), duel=duel)
    assert one(made(), INT8, both).speedup == pytest.approx(1.1, rel=0.03)


def test_trials_without_figures_or_with_wrong_results_move_nothing() -> None:
    given = made()
    failed = Trial(INT8, "test", failure="it crashed")
    wrong = replace(timed(INT8, 5.0), gates=(PASSED[0], Gate("accurate", False, "")))
    assert one(given, INT8, failed, wrong) == one(given, INT8)


def test_reference_networks_tell_of_a_provider_on_this_machine() -> None:
    given = made()
    rows = [("cpu", 0.0), ("openvino-f32", -log(2.0))]
    timings = tuple(ReferenceTiming("net", name, 1.0, log_ratio=ratio) for name, ratio in rows)
    profile = replace(given.profiles[CPU], references=timings)
    told = replace(given, profiles={CPU: profile})
    assert one(told, F32).log_speedup > one(given, F32).log_speedup
    assert "reference networks: openvino-f32" in one(told, F32).source
    assert one(told, ONE_THREAD) == one(given, ONE_THREAD)


def test_the_profiler_says_where_the_baselines_time_goes() -> None:
    work = (product("x", "a", 50_000_000, weights=10), *chain(("Softmax", 0, 400_000)))
    given = case(work)
    table = {node.name: node for node in work}
    assert scales_of(given) == {}
    times = tuple(OperatorTime(name, node.operator, CPU, 4.0) for name, node in table.items())
    told = replace(given, operators=(*times, OperatorTime("", "Unheard", CPU, 1e-6)))
    reckoning = Expectations(told, scales_of(told)).reckoning
    latency = reckoning.latency(reckoning.baseline)
    assert latency is not None
    assert latency.by_kind["matmul"] == pytest.approx(4e-3)
    assert set(scales_of(told)) == {"matmul", "softmax"}


def test_what_the_profiler_says_changes_what_a_rewrite_is_expected_to_gain() -> None:
    work = (product("x", "a", 50_000_000, weights=10), *chain(("Softmax", 0, 400_000)))
    given = case(work)
    int8 = replace(given, profiles={CPU: probed(given.cpu, **{"peak_macs_per_s/int8": 4e11})})
    mostly = replace(int8, operators=(OperatorTime("a", "MatMul", CPU, 9.0), OperatorTime("y", "Softmax", CPU, 1.0)))
    hardly = replace(int8, operators=(OperatorTime("a", "MatMul", CPU, 1.0), OperatorTime("y", "Softmax", CPU, 9.0)))
    assert one(mostly, INT8).log_speedup > one(int8, INT8).log_speedup > one(hardly, INT8).log_speedup


@pytest.mark.parametrize(
    "odd",
    [
        problem(macs=None),
        problem({}, macs=None, weight_bytes=0, inputs=()),
        problem({"Unheard": 3, "If": 1}, macs=0),
        replace(problem(), devices=()),
        replace(problem(), devices=(CUDA_GPU,)),
        replace(problem(), work=(replace(product("x", "y", 5), macs=None, output=None, reads={"x": None}),)),
        replace(problem(), work=(product("x", "y", 0, size=0),)),
        replace(problem(), profiles={CPU: replace(probed(device()), features=())}),
        problem(callers_providers=(("UnheardExecutionProvider", {}),)),
        problem(cores=None),
        problem(cores=0.3, lasting_limit=True),
    ],
)
def test_odd_problems_are_answered_too(odd: Problem) -> None:
    strategies = [
        Strategy(),
        ONE_THREAD,
        F32,
        INT8,
        Strategy(provider="UnheardExecutionProvider"),
        Strategy(transforms=(Transform("unheard"),), session_config={"unheard": "1"}, static_shapes={"N": 1}),
    ]
    history = [timed(ONE_THREAD, 1.2), Trial(F32, "test", failure="it crashed")]
    answers = CostModel().predict(odd, strategies, history)
    assert len(answers) == len(strategies)
    for answer in answers:
        assert answer is None or (np.isfinite(answer.log_speedup) and answer.spread >= 0)


def test_a_provider_that_is_not_offered_is_not_known() -> None:
    assert CostModel().predict(made(), [Strategy(provider=CUDA)], ()) == [None]


def test_equal_arguments_give_equal_answers_whatever_was_asked_before() -> None:
    given, history = made(), [timed(ONE_THREAD, 1.2), timed(F32, 1.4)]
    asked = [INT8, ONE_THREAD_INT8, EXTENDED]
    used = CostModel()
    used.predict(problem(), [F32], [timed(F32, 9.0)])
    first = used.predict(given, asked, history)
    assert first == CostModel().predict(given, asked, history) == used.predict(replace(given), asked, history)


@given(st.lists(st.tuples(st.sampled_from([ONE_THREAD, INT8, F32, EXTENDED]), st.floats(0.05, 20)), max_size=6))
def test_no_history_makes_a_prediction_infinite(seen: list[tuple[Strategy, float]]) -> None:
    history = [timed(strategy, speedup) for strategy, speedup in seen]
    for answer in CostModel().predict(made(), [ONE_THREAD, ONE_THREAD_INT8, NO_SPINNING, F32], history):
        assert answer is not None and np.isfinite(answer.log_speedup) and 0 <= answer.spread < 10


# The regression itself


def test_the_correction_is_the_conditional_mean_of_a_normal() -> None:
    shared, own, noise = 0.3, 0.1, 0.05
    unknown = np.array([[shared], [shared], [0.0]])
    correction, spread = corrected(unknown, np.full(3, own), [0], np.array([0.2]), np.array([noise]))
    weight = shared**2 / (shared**2 + own**2 + noise**2)
    assert correction[1] == pytest.approx(0.2 * weight)
    assert spread[1] == pytest.approx((shared**2 + own**2 - weight * shared**2) ** 0.5)
    assert correction[2] == 0 and spread[2] == pytest.approx(own)


def test_strategies_covary_by_the_settings_they_share() -> None:
    two_threads = Strategy(session_options={"intra_op_num_threads": 2})
    rows = [
        [(part, 0.2) for part in parts_of(strategy, CPU, is_callers=True)]
        for strategy in (ONE_THREAD, two_threads, NO_SPINNING, ONE_THREAD_INT8)
    ]
    _, table = loadings(rows)
    covariance = table @ table.T
    assert covariance[0, 0] == pytest.approx(0.04)
    assert covariance[0, 3] == pytest.approx(0.04) and covariance[3, 3] == pytest.approx(0.08)
    assert 0 < covariance[0, 1] < covariance[0, 3] and covariance[0, 2] == 0


# Records


def test_records_of_other_models_move_what_is_expected_of_the_same_option() -> None:
    model = CostModel().fit([record(f"model{n}", NO_SPINNING, 1.3) for n in range(8)])
    given = made()
    assert one(given, NO_SPINNING, model=model).log_speedup > one(given, NO_SPINNING).log_speedup + 0.1
    assert one(given, NO_SPINNING, model=model).spread < one(given, NO_SPINNING).spread
    assert one(given, EXTENDED, model=model).log_speedup == pytest.approx(one(given, EXTENDED).log_speedup)
    assert "records of 8 models" in one(given, NO_SPINNING, model=model).because


def test_many_records_of_one_model_say_less_than_as_many_of_several() -> None:
    several = learn([record(f"model{n}", NO_SPINNING, 1.3) for n in range(8)])
    alike = learn([record("model", NO_SPINNING, 1.3) for _ in range(8)])
    assert max(several.mean) > 1.5 * max(alike.mean)
    assert min(several.variance) < min(alike.variance)


def test_an_overridden_record_counts_for_more() -> None:
    light = [record("a", NO_SPINNING, 1.3)]
    assert max(learn([replace(light[0], weight=5.0)]).mean) > max(learn(light).mean)


def test_records_of_other_devices_count_for_less() -> None:
    records = [record(f"model{n}", NO_SPINNING, 1.3) for n in range(3)]
    near, far, alike = (CostModel().fit(records, here) for here in (["a cpu"], ["another"], []))
    given = made()
    gains = [one(given, NO_SPINNING, model=model).log_speedup for model in (near, far, alike)]
    assert gains[0] == gains[2] > gains[1] > one(given, NO_SPINNING).log_speedup


def test_what_is_a_combinations_own_is_not_learned() -> None:
    learned = learn([record(f"model{n}", ONE_THREAD_INT8, 1.3) for n in range(3)])
    assert learned.columns and not any("together" in name for name in learned.columns)


def test_records_without_a_verdict_teach_nothing() -> None:
    useless = [
        record("a", NO_SPINNING, 3.0, failure="it crashed"),
        record("b", NO_SPINNING, 3.0, gates={"compiles": True, "accurate": False}),
        replace(record("c", NO_SPINNING, 3.0), log_ratio=None),
        record("d", Strategy(), 1.0),
    ]
    assert learn(useless) == Learned() and cost_quality(useless) == {}
    assert CostModel().fit(useless) == CostModel()


def test_what_was_learned_survives_json_and_anything_else_reads_as_nothing() -> None:
    model = CostModel().fit([record(f"model{n}", INT8, 1.3) for n in range(3)])
    assert CostModel.from_json(model.to_json()) == model != CostModel()
    assert json.loads(model.to_json())["models"] == 3
    for text in ("", "[]", "{}", '{"schema": 99}', '{"schema": 1, "weights": 3, "rows": 1, "models": 1}'):
        assert CostModel.from_json(text) == CostModel()


def test_how_a_gain_depends_on_the_model_is_learned() -> None:
    heavy, light = {"ln_macs": log(3e10)}, {"ln_macs": log(3e7)}
    records = []
    for number in range(8):
        for change, gain in ((heavy, 2.0), (light, 0.5)):
            row = record(f"{number} {gain}", F32, gain)
            records.append(replace(row, graph={**row.graph, **change}))
    learned = learn(records)
    by_macs = dict(zip(learned.columns, learned.mean, strict=True))
    assert any(name.endswith("x macs") and weight > 0.3 for name, weight in by_macs.items())


def test_interactions_are_the_columns_times_the_traits() -> None:
    names, wide = interactions(["a"], np.array([[0.4]]), {"macs": 1.0, "nodes": -2.0})
    assert names == ["a", "a x macs", "a x nodes"]
    assert wide.tolist() == [[0.4, pytest.approx(0.2), pytest.approx(-0.4)]]
    assert traits_of(problem({}, macs=None)) == {"macs": 0.0, "nodes": 0.0}


def test_a_records_problem_has_its_graphs_work() -> None:
    given = problem_of(record("a", F32, 1.2))
    assert sum((node.macs or 0) * node.runs for node in given.work) == pytest.approx(np.expm1(20.7), rel=0.01)
    assert given.device(OPENVINO) is not None and given.cpu.cores == 4.0
    assert problem_of(replace(record("a", F32, 1.2), graph={}, profile={})).work == ()
    assert set(OPERATORS) <= set(CLASSES)


# Described chips as ground truth: the cost model sees their figures, not how their latency is reckoned


def test_described_chips_are_ranked_as_their_analytic_model_ranks_them() -> None:
    errors, ranks = cost_cases.against_described_chips(described_chips()[::2])
    assert np.median(errors) < 0.25
    assert np.mean(ranks) > 0.8


def test_held_out_models_on_described_chips_are_predicted_better_with_records_than_without() -> None:
    quality = cost_quality(list(simulated_records(described_chips()[::4])))
    assert quality["models"] == 16
    assert quality["spearman"] > max(0.75, quality["spearman_unlearned"])
    assert quality["median_absolute_percentage_error"] < min(60, quality["median_absolute_percentage_error_unlearned"])
    assert quality["covered"] > 0.8
