"""The exception list: what people change again and again, what it speaks about, and what it weighs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ort_metainfer.learning.exceptions import (
    NOTHING,
    Change,
    changes_of,
    exception_list,
    similar_exceptions,
    weighed,
)
from ort_metainfer.learning.records import OVERRIDE_WEIGHT
from ort_metainfer.strategy import Strategy, Transform
from tests.learning_cases import BASIC, NO_SPINNING, ONE_THREAD, known_problem, override, record
from tests.made_problems import OPENVINO, RESNET, TRANSFORMER

TWO_THREADS = Strategy(session_options={"intra_op_num_threads": 2})
THREADS = Change("intra_op_num_threads", "1", "2")
OTHER = "f" * 32


def test_changes_are_the_settings_that_differ_with_both_values() -> None:
    before = Strategy(provider=OPENVINO, provider_options={"INFERENCE_PRECISION_HINT": "f32"}, device="CPU")
    after = Strategy(session_options={"intra_op_num_threads": 2}, transforms=(Transform("fold-shapes"),))
    assert changes_of(before, after) == (
        Change("INFERENCE_PRECISION_HINT", "f32", NOTHING),
        Change("device", "CPU", NOTHING),
        Change("folding/fold-shapes", NOTHING, "yes"),
        Change("intra_op_num_threads", NOTHING, "2"),
        Change("provider", OPENVINO, NOTHING),
    )
    assert changes_of(after, after) == ()
    assert str(THREADS) == "intra_op_num_threads: 1 -> 2"


def test_a_change_made_for_two_models_is_an_exception_made_once_it_is_none() -> None:
    once = override(TWO_THREADS, ONE_THREAD)
    assert exception_list([once, record()]) == []
    other = override(TWO_THREADS, ONE_THREAD, known_problem(OTHER))
    (rule,) = exception_list([once, other, record()])
    assert (rule.change, rule.models, rule.times, rule.kind) == (THREADS, 2, 1, "cpu")
    assert len(rule.graphs) == 2
    assert rule.describe().startswith("intra_op_num_threads: 1 -> 2 on cpu, 1 times for 2 models, last 1970-01-01")


def test_a_change_made_again_after_another_decision_is_one_at_another_start_it_is_not() -> None:
    first = override(TWO_THREADS, ONE_THREAD, at="2025-01-01")
    assert exception_list([first, replace(first, measured_at="2025-05-05")]) == []
    (rule,) = exception_list([first, override(TWO_THREADS, ONE_THREAD, at="2025-02-01")])
    assert (rule.models, rule.times) == (1, 2)


def test_the_same_change_within_different_strategies_is_one_exception() -> None:
    spinning = {"session.intra_op.allow_spinning": "0"}
    one = override(replace(TWO_THREADS, session_config=spinning), replace(ONE_THREAD, session_config=spinning))
    two = override(TWO_THREADS, ONE_THREAD, known_problem(OTHER))
    assert [rule.change for rule in exception_list([one, two])] == [THREADS]


def test_a_change_on_another_kind_of_device_is_another_exception() -> None:
    one = override(TWO_THREADS, ONE_THREAD)
    other = replace(override(TWO_THREADS, ONE_THREAD, known_problem(OTHER)), kind="npu")
    assert exception_list([one, other]) == []


def test_the_most_frequent_come_first() -> None:
    structures = [f"{number:032x}" for number in range(3)]
    often = [override(TWO_THREADS, ONE_THREAD, known_problem(name)) for name in structures]
    seldom = [override(BASIC, NO_SPINNING, known_problem(name)) for name in structures[:2]]
    rules = exception_list([*seldom, *often])
    assert [rule.models for rule in rules] == [3, 2, 2] and rules[0].change == THREADS


@pytest.mark.parametrize(
    ("strategy", "kind", "operators", "speaks"),
    [
        (ONE_THREAD, "cpu", RESNET, True),
        (TWO_THREADS, "cpu", RESNET, False),
        (Strategy(), "cpu", RESNET, False),
        (ONE_THREAD, "gpu", RESNET, False),
        (ONE_THREAD, "cpu", TRANSFORMER, False),
        (ONE_THREAD, "cpu", {"Conv": 20, "Relu": 22}, True),
    ],
)
def test_an_exception_speaks_about_what_people_changed_for_graphs_like_theirs(
    strategy: Strategy, kind: str, operators: dict[str, int], speaks: bool
) -> None:
    from ort_metainfer.learning.features import graph_features

    rules = exception_list([override(TWO_THREADS, ONE_THREAD, known_problem(name)) for name in ("a" * 32, "b" * 32)])
    graph = graph_features(known_problem(operators=operators).graph)
    assert bool(similar_exceptions(rules, strategy, kind, graph)) is speaks
    assert bool(similar_exceptions(rules, strategy, kind, {})) is (strategy == ONE_THREAD and kind == "cpu")


def test_what_a_person_chose_weighs_more_in_training() -> None:
    chosen, other = record(TWO_THREADS, 1.2), record(ONE_THREAD, 1.5)
    changed = override(TWO_THREADS, ONE_THREAD)
    elsewhere = record(TWO_THREADS, 1.2, structure=OTHER)
    weights = [made.weight for made in weighed([chosen, other, changed, elsewhere])]
    assert weights == [OVERRIDE_WEIGHT, 1.0, OVERRIDE_WEIGHT, 1.0]


def test_the_latest_override_is_the_one_that_counts() -> None:
    first = replace(override(TWO_THREADS, ONE_THREAD), measured_at="2025-01-01")
    later = replace(override(NO_SPINNING, TWO_THREADS), measured_at="2025-02-01")
    records = [record(TWO_THREADS, 1.2), record(NO_SPINNING, 1.3), later, first]
    assert [made.weight for made in weighed(records)][:2] == [1.0, OVERRIDE_WEIGHT]
