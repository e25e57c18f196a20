"""The search: what it tries next, given what was measured, and what it never tries."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from ort_metainfer.deciders.base import Decider
from ort_metainfer.deciders.expected import expected_improvement, probability_of_beating
from ort_metainfer.deciders.prediction import Prediction
from ort_metainfer.deciders.rules import RuleLibrary
from ort_metainfer.deciders.search import Search
from ort_metainfer.deciders.search_space import declared_space, keys_of
from ort_metainfer.decision import Gate, Proposal, Refusal, Trial
from ort_metainfer.problem import Device, Problem
from ort_metainfer.strategy import Strategy, Transform
from tests.decider_conformance import DeciderConformance
from tests.made_problems import (
    CPU,
    CUDA,
    CUDA_GPU,
    DYNAMIC_IMAGE,
    OPENVINO,
    OPENVINO_AUTO,
    OPENVINO_CPU,
    RESNET,
    SMALL_MLP,
    SQUEEZENET,
    TRANSFORMER,
    XNNPACK_CPU,
    grid,
    is_lossy,
    problem,
    timing,
    trial,
)

SEARCH = Search(RuleLibrary(is_lossy=is_lossy).refuse)

NO_PATTERN = Strategy(session_options={"enable_mem_pattern": False})
LEVEL_2 = Strategy(session_config={"session.graph_optimizations_loop_level": "2"})
BLOCKS = Strategy(session_config={"session.dynamic_block_base": "4"})
ONE_MS = Strategy(session_config={"session.intra_op.spin_duration_us": "1000"})
NO_SPINNING = Strategy(session_config={"session.intra_op.allow_spinning": "0"})
ONE_THREAD = Strategy(session_options={"intra_op_num_threads": 1})
ON_OPENVINO = Strategy(provider=OPENVINO, provider_options={"INFERENCE_PRECISION_HINT": "f32"})
PATTERN_AND_LEVEL = Strategy(
    session_options={"enable_mem_pattern": False}, session_config={"session.graph_optimizations_loop_level": "2"}
)


def next_strategies(made: Problem, history: Sequence[Trial] = (), search: Search = SEARCH) -> list[Strategy]:
    return [item.strategy for item in search.propose(made, history) if isinstance(item, Proposal)]


def choices(made: Problem, search: Search = SEARCH) -> dict[str, list[str]]:
    return {dimension.name: [choice.label for choice in dimension.choices] for dimension in search.space(made)}


class TestConformance(DeciderConformance):
    def make(self) -> Decider:
        return Search(RuleLibrary(is_lossy=is_lossy).refuse)


def test_the_rules_are_asked_by_default() -> None:
    assert next_strategies(problem(), search=Search()) == next_strategies(problem())


def test_every_choice_sets_only_its_own_dimension_and_can_be_taken_out_again() -> None:
    for made in grid():
        for dimension in declared_space(made):
            for choice in dimension.choices:
                assert dimension.part_of(choice.part) == choice.part
                assert dimension.put(choice.part, Strategy()).is_default
                assert choice.source and choice.label and math.isfinite(choice.prior) and choice.prior > 0


def test_dimensions_do_not_overlap() -> None:
    keys = [key for dimension in declared_space(problem()) for key in dimension.keys]
    assert len(keys) == len(set(keys))


def test_putting_a_part_keeps_everything_else() -> None:
    rich = Strategy(
        transforms=(Transform("gelu-to-contributed"),),
        session_options={"intra_op_num_threads": 2},
        static_shapes={"N": 1},
    )
    for dimension in declared_space(problem(others=(OPENVINO_CPU,))):
        for choice in dimension.choices:
            changed = dimension.put(rich, choice.part)
            assert dimension.part_of(changed) == choice.part
            assert dimension.put(changed, dimension.part_of(rich)) == rich


@pytest.mark.parametrize(
    ("cores", "counts"),
    [
        (1.0, [1]),
        (3.0, [1, 2, 3]),
        (8.0, [1, 2, 3, 4, 5, 6, 7, 8]),
        (24.0, [1, 2, 4, 8, 12, 16, 23, 24]),
    ],
)
def test_thread_counts_are_all_up_to_eight_cores_and_thinned_above(cores: float, counts: list[int]) -> None:
    (threads,) = [d for d in declared_space(problem(cores=cores)) if d.name == "threads"]
    assert [choice.part.session_options["intra_op_num_threads"] for choice in threads.choices] == counts


def test_the_space_holds_what_exists_here_and_leaves_out_what_the_rules_forbid() -> None:
    assert choices(problem())["threads"] == ["1 thread", "2 threads", "3 threads", "4 threads"]
    assert "threads" not in choices(problem(pinned={"intra_op_num_threads": "2"}))
    assert "spinning" not in choices(problem(others_cpu=1.0))
    assert "provider" not in choices(problem())
    assert "execution mode" not in choices(problem(RESNET))
    assert choices(problem(SQUEEZENET))["execution mode"] == ["parallel, 2 branches"]
    assert "graph level" not in choices(problem(RESNET))
    assert choices(problem(TRANSFORMER))["graph level"] == ["level extended", "level basic", "level disable"][:2]
    assert "static shapes" not in choices(problem(inputs=DYNAMIC_IMAGE))
    dynamic = problem(inputs=DYNAMIC_IMAGE, shapes={"x": (1, 3, 32, 64)})
    assert choices(dynamic)["static shapes"] == ["static H=32 N=1 W=64"]


def test_reduced_precision_is_in_the_space_only_under_a_lossy_policy_with_real_inputs_and_hardware_for_it() -> None:
    def providers(accuracy: str, real: bool, bf16: bool = True) -> list[str]:
        others = (OPENVINO_CPU if bf16 else OPENVINO_AUTO,)
        return choices(problem(others=others, accuracy=accuracy, inputs_are_real=real))["provider"]

    assert providers("fast", True) == ["OpenVINO CPU f32", "OpenVINO CPU bf16"]
    assert providers("fast", False) == providers("strict", True) == ["OpenVINO CPU f32"]
    assert providers("fast", True, bf16=False) == ["OpenVINO AUTO f32"]


def test_the_cpu_is_a_choice_where_the_caller_came_with_another_provider() -> None:
    made = problem(others=(CUDA_GPU,), callers_providers=((CUDA, {}), (CPU, {})))
    assert Strategy(provider=CPU) in next_strategies(made)
    assert ONE_THREAD not in next_strategies(made)


def test_without_a_history_the_priors_set_the_order() -> None:
    assert next_strategies(problem(macs=2_000_000_000, others=(OPENVINO_CPU,)))[0] == ON_OPENVINO
    assert next_strategies(problem(SMALL_MLP, macs=4_000))[0] == ONE_THREAD
    assert ONE_THREAD not in next_strategies(problem(RESNET))  # a quarter of the threads is known to lose
    assert next_strategies(problem(objective="pipeline"))[0] == ONE_MS


@pytest.mark.parametrize("name", ["cpu_ep", "ggml", "TheirExecutionProvider"])
def test_a_provider_that_is_used_only_where_it_is_named_is_tried_before_options_of_the_cpus(name: str) -> None:
    spaces = declared_space(problem(RESNET, others=(Device(name, "cpu", "Some CPU"),)))
    priors = {space.name: max(choice.prior for choice in space.choices) for space in spaces if space.choices}
    assert priors["provider"] > max(prior for dimension, prior in priors.items() if dimension != "provider")


def test_the_first_trials_change_one_dimension_of_the_default() -> None:
    dimensions = SEARCH.space(problem())
    for strategy in next_strategies(problem()):
        assert sum(not dimension.part_of(strategy).is_default for dimension in dimensions) == 1


def test_two_gains_seen_apart_are_tried_together_first() -> None:
    history = [trial(NO_PATTERN, 1.06), trial(LEVEL_2, 1.05)]
    (first, *_) = [item for item in SEARCH.propose(problem(), history) if isinstance(item, Proposal)]
    assert first.strategy == PATTERN_AND_LEVEL
    assert first.reason.startswith("predicted 1.11x")


def test_neighbours_of_the_winner_are_predicted_from_its_own_speed_up() -> None:
    history = [trial(NO_PATTERN, 1.10), trial(LEVEL_2, 1.05), trial(PATTERN_AND_LEVEL, 1.40)]
    (first, *_) = [item for item in SEARCH.propose(problem(), history) if isinstance(item, Proposal)]
    assert "on top of what ran 1.40x" in first.reason
    assert dict(first.strategy.session_options)["enable_mem_pattern"] is False
    assert first.strategy.session_config["session.graph_optimizations_loop_level"] == "2"


def test_a_winner_s_option_is_replaced_and_not_doubled() -> None:
    history = [trial(ONE_MS, 1.3)]
    for strategy in next_strategies(problem(), history):
        assert not {"session.intra_op.spin_duration_us", "session.intra_op.allow_spinning"} <= {
            *strategy.session_config
        }


def test_a_winner_s_rewrites_stay_in_its_neighbours() -> None:
    rewritten = Strategy(transforms=(Transform("gelu-to-contributed"),))
    (first, *_) = next_strategies(problem(), [trial(rewritten, 1.5)])
    assert first.transforms == rewritten.transforms


@pytest.mark.parametrize("failed", ["compiles", "accurate", "crash"])
def test_an_option_that_failed_alone_is_not_tried_in_company(failed: str) -> None:
    made = problem(others=(OPENVINO_CPU,))
    history = [trial(ON_OPENVINO, failed=failed), trial(NO_PATTERN, 1.2)]
    assert not [s for s in next_strategies(made, history) if s.provider == OPENVINO]


def test_an_option_measured_slower_alone_is_not_tried_in_company_but_a_tie_is() -> None:
    history = [trial(NO_PATTERN, 1.2), trial(LEVEL_2, 0.8), trial(BLOCKS, 1.0)]
    tried = next_strategies(problem(), history)
    assert not [s for s in tried if "session.graph_optimizations_loop_level" in s.session_config]
    assert [s for s in tried if "session.dynamic_block_base" in s.session_config]


def test_options_of_the_cpu_s_thread_pool_do_not_join_another_provider() -> None:
    made = problem(macs=2_000_000_000, others=(OPENVINO_CPU, OPENVINO_AUTO))
    for strategy in next_strategies(made, [trial(ON_OPENVINO, 1.5), trial(ONE_MS, 1.1), trial(NO_PATTERN, 1.1)]):
        if strategy.provider == OPENVINO:
            assert {*strategy.session_options} <= {"graph_optimization_level"}
            assert not strategy.session_config


def test_the_optimiser_is_switched_off_only_for_openvino() -> None:
    made = problem(macs=2_000_000_000, others=(OPENVINO_CPU,))
    off = [
        s
        for s in next_strategies(made, [trial(ON_OPENVINO, 1.5)])
        if s.session_options.get("graph_optimization_level") == "disable"
    ]
    assert [s.provider for s in off] == [OPENVINO]


def test_spinning_is_no_question_with_one_thread() -> None:
    for strategy in next_strategies(problem(SMALL_MLP, macs=4_000), [trial(ONE_THREAD, 1.2), trial(NO_SPINNING, 1.1)]):
        if strategy.session_options.get("intra_op_num_threads") == 1:
            assert not strategy.session_config.keys() & {
                "session.intra_op.allow_spinning",
                "session.dynamic_block_base",
            }


def test_trials_in_the_history_count_towards_the_most_there_may_be() -> None:
    search = Search(SEARCH._refuse, max_trials=3)
    made = problem(macs=2_000_000_000, others=(OPENVINO_CPU, OPENVINO_AUTO))
    assert len(next_strategies(made, (), search)) == 3
    assert len(next_strategies(made, [trial(NO_PATTERN, 1.1)] * 2, search)) == 1
    assert not next_strategies(made, [trial(NO_PATTERN, 1.1)] * 4, search)


def test_where_the_rules_leave_nothing_it_says_so() -> None:
    def no(made: Problem, strategy: Strategy) -> Refusal:
        return Refusal(strategy.describe(), "rules/all", "nothing is allowed")

    (answer,) = Search(no).propose(problem(), ())
    assert isinstance(answer, Refusal)
    assert "nothing to search" in answer.reason


def under_load(truth: Mapping[str, float]) -> Callable[[Strategy], float]:
    """A made machine: the speed-up of a strategy is the product of its options' true gains."""

    def speedup(strategy: Strategy) -> float:
        settings = {**strategy.session_options, **strategy.session_config, "provider": strategy.provider}
        return math.prod(
            truth.get(f"{key}={value}", 0.9 if value is not None else 1.0) for key, value in settings.items()
        )

    return speedup


@pytest.mark.parametrize(
    ("truth", "best"),
    [
        (
            {
                "enable_mem_pattern=False": 1.10,
                "session.graph_optimizations_loop_level=2": 1.08,
                "session.dynamic_block_base=4": 1.05,
            },
            1.10 * 1.08 * 1.05,
        ),
        ({"intra_op_num_threads=3": 1.5, "session.force_spinning_stop=1": 1.2}, 1.5 * 1.2),
        ({"session.intra_op.allow_spinning=0": 1.2, "session.dynamic_block_base=4": 1.3}, 1.2 * 1.3),
        ({}, 1.0),
    ],
)
def test_asked_trial_by_trial_it_finds_the_best_combination_within_its_trials(
    truth: Mapping[str, float], best: float
) -> None:
    made, measure, history = problem(RESNET), under_load(truth), [trial(Strategy(), 1.0)]
    while len(history) < SEARCH.max_trials and (following := next_strategies(made, history)):
        history.append(trial(following[0], measure(following[0])))
    assert max(t.timing.speedup for t in history if t.timing) == pytest.approx(best)


def test_a_device_has_one_spelling_in_what_rules_and_search_propose() -> None:
    made = problem(macs=2_000_000_000, others=(OPENVINO_CPU, OPENVINO_AUTO, CUDA_GPU))
    by_rules = RuleLibrary(is_lossy=is_lossy).propose(made, ())
    tried = [trial(item.strategy, 1.1) for item in by_rules if isinstance(item, Proposal)]
    assert {t.strategy.device for t in tried} == {None, "AUTO"}
    alone = {s.provider for s in next_strategies(made) if s.provider and not s.session_options}
    assert alone == {OPENVINO, CUDA}
    assert not {s for s in next_strategies(made, tried) if s.provider and not (s.session_options or s.session_config)}


def test_a_gain_that_was_not_sure_enough_to_pay_is_still_built_upon() -> None:
    unsure = trial(NO_PATTERN, 1.04).with_gate(Gate("pays", False, "inside the A/A band"))
    assert PATTERN_AND_LEVEL in next_strategies(problem(), [unsure])


@pytest.mark.parametrize("speedup", [0.0, -1.0, math.inf, math.nan])
def test_figures_that_no_clock_gives_count_as_none(speedup: float) -> None:
    tried = Trial(NO_PATTERN, "rules", timing=replace(timing(1.1), speedup=speedup))
    untimed = Trial(NO_PATTERN, "rules")
    assert next_strategies(problem(), [tried]) == next_strategies(problem(), [untimed])


def test_what_a_strategy_sets_is_told_by_the_dimensions_names_for_it() -> None:
    for made in grid():
        for dimension in declared_space(made):
            for choice in dimension.choices:
                keys = keys_of(choice.part)
                setting = [d.name for d in declared_space(made) if d.is_set_by(keys)]
                assert setting == [dimension.name] and keys_of(Strategy()) == frozenset()


class Oracle:
    """A predictor that knows one strategy, and nothing of the others."""

    name = "oracle"

    def __init__(self, known: Strategy, log_speedup: float, spread: float = 0.01) -> None:
        self.known, self.answer = known, Prediction(log_speedup, spread, "it knows", "a made predictor")

    def predict(
        self, problem: Problem, strategies: Sequence[Strategy], history: Sequence[Trial]
    ) -> Sequence[Prediction | None]:
        return [self.answer if strategy == self.known else None for strategy in strategies]


def test_the_predictor_s_word_replaces_the_prior_and_is_told() -> None:
    search = Search(SEARCH._refuse, predictor=Oracle(BLOCKS, 0.5))
    first = next(item for item in search.propose(problem(), ()) if isinstance(item, Proposal))
    assert first.strategy == BLOCKS
    assert "predicted 1.65x" in first.reason and "it knows" in first.reason
    assert first.source == "a made predictor"


def test_what_the_predictor_expects_to_lose_is_left_out() -> None:
    assert BLOCKS in next_strategies(problem())
    assert BLOCKS not in next_strategies(problem(), search=Search(SEARCH._refuse, predictor=Oracle(BLOCKS, -0.5)))


def test_an_option_of_which_nothing_that_pays_is_expected_is_not_tried() -> None:
    assert NO_SPINNING not in next_strategies(problem())


def test_it_ends_where_nothing_is_expected_to_beat_the_best_and_says_what_came_nearest() -> None:
    made, history = problem(RESNET), [trial(Strategy(), 1.0)]
    while following := next_strategies(made, history):
        history.append(trial(following[0], 0.98))
    assert len(history) < SEARCH.max_trials
    (answer,) = SEARCH.propose(made, history)
    assert isinstance(answer, Refusal)
    assert answer.reason.startswith("no other strategy is worth a trial: predicted ")


def test_measurements_far_from_their_priors_widen_what_is_looked_at() -> None:
    made = problem(RESNET)

    def without_spinning(measured: float) -> list[Strategy]:
        found = next_strategies(made, [trial(BLOCKS, measured)])
        return [each for each in found if each.session_config.get("session.intra_op.allow_spinning") == "0"]

    assert not without_spinning(0.99)
    assert without_spinning(1.3)


def test_a_batch_mixes_providers_and_rewrites() -> None:
    made = problem(macs=2_000_000_000, others=(OPENVINO_CPU, OPENVINO_AUTO))
    first = next_strategies(made, [trial(ON_OPENVINO, 1.5)])[:4]
    assert len({(strategy.provider, strategy.device, strategy.transforms) for strategy in first}) > 1


@pytest.mark.parametrize(("mean", "spread", "best"), [(0.1, 0.05, 0.0), (-0.2, 0.3, 0.1), (0.0, 0.03, 0.0)])
def test_expected_improvement_is_the_mean_of_what_a_sample_exceeds_the_best_by(
    mean: float, spread: float, best: float
) -> None:
    drawn = np.random.default_rng(7).normal(mean, spread, 400_000)
    expected = float(np.maximum(drawn - best, 0).mean())
    assert expected_improvement(Prediction(mean, spread), best) == pytest.approx(expected, rel=0.02, abs=1e-5)
    assert probability_of_beating(Prediction(mean, spread), best) == pytest.approx((drawn > best).mean(), abs=0.005)
    assert expected_improvement(Prediction(mean, 0.0), best) == max(0.0, mean - best)


def searching() -> Search:
    rules = RuleLibrary(is_lossy=is_lossy)
    return Search(rules.refuse, complete=rules.complete)


def test_what_lacks_only_what_a_rule_requires_is_completed_and_says_so() -> None:
    made = problem(RESNET, others=(XNNPACK_CPU,))
    assert "provider" not in choices(made)
    first = next(item for item in searching().propose(made, ()) if isinstance(item, Proposal))
    assert first.strategy.provider == XNNPACK_CPU.provider
    assert RuleLibrary().complete(made, first.strategy) == (first.strategy, "")
    assert first.reason.endswith("(rule xnnpack_threads)")
    assert next_strategies(made, search=searching())[0] == next_strategies(made, search=Search())[0]


@pytest.mark.parametrize("history_of", [lambda s: trial(s, 0.5), lambda s: trial(s, failed="compiles")])
def test_a_completed_option_that_lost_or_failed_alone_is_not_combined_further(
    history_of: Callable[[Strategy], Trial],
) -> None:
    made = problem(RESNET, others=(XNNPACK_CPU,))
    first = next_strategies(made, search=searching())[0]
    following = next_strategies(made, [history_of(first)], searching())
    assert following == [each for each in following if each.provider != XNNPACK_CPU.provider]


def test_what_is_built_on_a_completed_option_is_completed_too_and_does_not_come_back_to_it() -> None:
    made = problem(RESNET, others=(XNNPACK_CPU,), inputs=DYNAMIC_IMAGE, shapes={"x": (1, 3, 32, 64)})
    search = searching()
    first = next_strategies(made, search=search)[0]
    ranked = search.ranked(made, search.space(made), [trial(first, 1.5)])
    found = [candidate.strategy for candidate, _ in ranked]
    assert first not in found and len(set(found)) == len(found)
    on_it = [strategy for strategy in found if strategy.provider == first.provider]
    assert on_it and all(RuleLibrary().refuse(made, each) is None for each in on_it)
