"""The rule library: every rule fires where it should and stays silent where it should not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ort_metainfer.deciders.base import Decider
from ort_metainfer.deciders.rule import Rule, is_scheduling, scheduling_options
from ort_metainfer.deciders.rules import RuleLibrary, all_rules
from ort_metainfer.deciders.traits import batch_size
from ort_metainfer.decision import Proposal, Refusal
from ort_metainfer.errors import SettingsError, StrategyError
from ort_metainfer.problem import Problem, TensorSpec
from ort_metainfer.strategy import Strategy, Transform
from tests.decider_conformance import DeciderConformance
from tests.made_problems import (
    CPU,
    CUDA,
    CUDA_GPU,
    DYNAMIC_IMAGE,
    LSTM,
    NXRT,
    NXRT_CPU,
    OPENVINO,
    OPENVINO_CPU,
    QNN_NPU,
    SMALL_MLP,
    TOKENS,
    TRANSFORMER,
    device,
    grid,
    is_lossy,
    problem,
    trial,
)
from tests.rule_examples import (
    EXACT,
    FORBIDDING,
    HEAVY,
    IMAGE_SIZES,
    ON_GPU,
    ON_OPENVINO,
    PARALLEL,
    PROPOSING,
    QUANTISED,
    REAL,
    REQUIRING,
    REWRITTEN,
    THREADS,
    WITH_OPENVINO,
)

LIBRARY = RuleLibrary(is_lossy=is_lossy)
RULES = {rule.name: rule for rule in all_rules(is_lossy)}


def proposals(made: Problem, library: RuleLibrary = LIBRARY) -> list[Proposal]:
    return [item for item in library.propose(made, ()) if isinstance(item, Proposal)]


def refusals(made: Problem) -> dict[str, Refusal]:
    return {item.by: item for item in LIBRARY.propose(made, ()) if isinstance(item, Refusal)}


class TestConformance(DeciderConformance):
    def make(self) -> Decider:
        return RuleLibrary(is_lossy=is_lossy)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_each_rule_has_examples_of_what_it_does_and_of_what_it_leaves_alone(rule: Rule) -> None:
    assert rule.proposes is not None or rule.requires is not None or rule.forbids is not None
    # what third parties made is proposed by a rule that has nothing to say here: see test_rules_contributed
    assert (rule.name in PROPOSING) == (rule.proposes is not None) or rule.name == "contributed_rewrites"
    assert (rule.name in REQUIRING) == (rule.requires is not None)
    assert (rule.name in FORBIDDING) == (rule.forbids is not None)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_each_rule_gives_one_sentence_and_a_source(rule: Rule) -> None:
    sentence = rule.explain(problem(others_cpu=1.0))
    assert 20 < len(sentence) < 180
    assert not sentence.endswith(".")
    assert rule.source.strip()


@pytest.mark.parametrize("name", PROPOSING)
def test_a_rule_proposes_where_it_applies_and_only_there(name: str) -> None:
    here, elsewhere = PROPOSING[name]
    assert RULES[name].proposals(problem(**here))
    assert not RULES[name].proposals(problem(**elsewhere))


@pytest.mark.parametrize("name", FORBIDDING)
def test_a_rule_forbids_where_it_applies_and_only_there(name: str) -> None:
    here, vetoed, elsewhere, passing = FORBIDDING[name]
    assert RULES[name].vetoes(problem(**here), vetoed)
    assert not RULES[name].vetoes(problem(**elsewhere), passing)


@pytest.mark.parametrize("name", REQUIRING)
def test_a_rule_completes_what_lacks_something_and_leaves_the_rest(name: str) -> None:
    here, lacking, completed, elsewhere, sound = REQUIRING[name]
    rule, made = RULES[name], problem(**here)
    assert rule.completed(made, lacking) == completed
    assert completed is None or rule.completed(made, completed) == completed
    assert rule.completed(problem(**elsewhere), sound) == sound


@pytest.mark.parametrize("name", FORBIDDING)
def test_the_library_refuses_with_the_rule_s_name_reason_and_source(name: str) -> None:
    here, vetoed, _, _ = FORBIDDING[name]
    others = [other for other in RULES if other != name]
    refusal = RuleLibrary(disabled=others, is_lossy=is_lossy).refuse(problem(**here), vetoed)
    assert refusal is not None
    assert refusal.subject == vetoed.describe()
    assert refusal.by == f"rules/{name}"
    assert refusal.reason == RULES[name].explain(problem(**here))
    assert refusal.source == RULES[name].source
    assert RuleLibrary(disabled=list(RULES)).refuse(problem(**here), vetoed) is None


def told_problems() -> Iterator[Problem]:
    """The grid, and every problem that a rule's example tells."""
    yield from grid()
    yield from (problem(**made) for here, elsewhere in PROPOSING.values() for made in (here, elsewhere))
    yield from (problem(**made) for here, _, elsewhere, _ in FORBIDDING.values() for made in (here, elsewhere))


def test_a_veto_only_overrules_proposals_it_outranks() -> None:
    for made in told_problems():
        for proposing in RULES.values():
            for strategy in proposing.proposals(made):
                against = [rule for rule in RULES.values() if rule.vetoes(made, strategy)]
                clashes = [rule.name for rule in against if rule.priority <= proposing.priority]
                assert not clashes, f"{proposing.name} proposes {strategy.describe()}, which {clashes} forbid"


def test_proposals_come_in_order_of_priority() -> None:
    made = problem(objective="pipeline", cores=2.5, lasting_limit=True, **{**HEAVY, **IMAGE_SIZES})
    names = [item.strategy.describe() for item in proposals(made)]
    spinning = "session.force_spinning_stop=1"
    limit = "intra_op_num_threads=2"
    openvino = f"{OPENVINO} INFERENCE_PRECISION_HINT=f32"
    assert names[:3] == [
        spinning,
        "session.intra_op.spin_duration_us=1000",
        "session.intra_op.allow_spinning=0",
    ]
    assert names.index(spinning) < names.index(limit) < names.index(openvino)


def test_a_strategy_of_two_rules_is_proposed_once_with_both_reasons() -> None:
    made = problem(operators=LSTM, macs=500_000)
    (one,) = [item for item in proposals(made) if item.strategy == THREADS]
    assert "one_thread_for_tiny_models" in one.reason
    assert "one_thread_for_recurrent_at_batch_1" in one.reason


def test_a_vetoed_proposal_becomes_the_refusal_of_the_rule_that_vetoed_it() -> None:
    made = problem(operators=SMALL_MLP, macs=4_000, pinned={"intra_op_num_threads": "2"})
    assert THREADS not in [item.strategy for item in proposals(made)]
    assert refusals(made)["rules/pinned_option"].subject == THREADS.describe()


def test_a_busy_machine_is_named_once_and_threads_are_left_alone() -> None:
    made = problem(operators=SMALL_MLP, macs=4_000, others_cpu=0.75, objective="pipeline")
    assert not [item for item in proposals(made) if is_scheduling(item.strategy)]
    refusal = refusals(made)["rules/machine_busy"]
    assert refusal.subject == "scheduling"
    assert refusal.reason == "machine busy (other processes use 0.75 cores), scheduling left alone"


def test_a_lasting_limit_is_heeded_even_while_the_machine_is_busy() -> None:
    made = problem(cores=1.5, lasting_limit=True, others_cpu=1.0)
    assert THREADS in [item.strategy for item in proposals(made)]
    assert "rules/machine_busy" not in refusals(made)


@pytest.mark.parametrize(("cores", "threads"), [(0.5, 1), (1.0, 1), (1.9, 1), (2.0, 2), (3.7, 3)])
def test_threads_under_a_limit_are_its_whole_cores_and_at_least_one(cores: float, threads: int) -> None:
    made = problem(cores=cores, lasting_limit=True)
    assert Strategy(session_options={"intra_op_num_threads": threads}) in [p.strategy for p in proposals(made)]


def test_openvino_s_own_veto_is_explained_even_where_nobody_proposed_it() -> None:
    made = problem(operators=TRANSFORMER, quantisation="dynamic", **WITH_OPENVINO)
    assert refusals(made)["rules/openvino_not_for_dynamic_int8"].subject == OPENVINO
    assert not [item for item in proposals(made) if item.strategy.provider == OPENVINO]
    assert LIBRARY.refuse(made, Strategy(provider=OPENVINO)) is not None, "that would drop the caller's options"


def test_reduced_precision_is_refused_under_strict_with_what_would_allow_it() -> None:
    refusal = refusals(problem(**HEAVY))["rules/lossy_under_strict"]
    assert "bf16" in refusal.subject
    assert "real inputs" in refusal.reason


def test_openvino_is_told_the_caller_s_threads_also_on_a_busy_machine() -> None:
    made = problem(pinned={"intra_op_num_threads": "1"}, others_cpu=1.0, **HEAVY)
    told = [item.strategy.provider_options.get("INFERENCE_NUM_THREADS") for item in proposals(made)]
    assert told and set(told) == {"1"}


def test_one_spinning_key_of_the_caller_pins_all_of_them() -> None:
    made = problem(objective="pipeline", pinned={"session.intra_op.allow_spinning": "1"})
    assert not proposals(made)


def test_affinities_of_the_caller_pin_the_number_of_threads() -> None:
    made = problem(pinned={"session.intra_op_thread_affinities": "1;2"})
    assert LIBRARY.refuse(made, THREADS) is not None


def test_a_provider_the_caller_set_up_keeps_its_options_and_device() -> None:
    made = problem(pinned={f"{OPENVINO}.device_type": "GPU"}, **HEAVY)
    assert not [item for item in proposals(made) if item.strategy.provider == OPENVINO]


@pytest.mark.parametrize(
    ("inputs", "shapes", "sizes"),
    [
        (DYNAMIC_IMAGE, {"x": (1, 3, 320, 640)}, {"N": 1, "H": 320, "W": 640}),
        (TOKENS, {"ids": (1, 128), "mask": (1, 128)}, {"batch": 1, "tokens": 128}),
        (TOKENS, {"ids": (1, 128), "mask": (1, 64)}, {"batch": 1}),
        (TOKENS, {"ids": (1, 128)}, {"batch": 1, "tokens": 128}),
        ((TensorSpec("x", "float32", (None, "?", "-1", "W")),), {"x": (1, 3, 4, 5)}, {"W": 5}),
        ((TensorSpec("x", "float32", ("N", 3)),), {"x": (1, 3, 4)}, {}),
        ((TensorSpec("x", "float32", ("N", 3)),), {"x": (0, 3)}, {}),
        ((TensorSpec("x", "float32", None),), {"x": (1, 3)}, {}),
        (DYNAMIC_IMAGE, {}, {}),
    ],
)
def test_a_dimension_is_fixed_only_where_its_name_has_one_size(inputs: Any, shapes: Any, sizes: Any) -> None:
    fixed = [p.strategy.static_shapes for p in proposals(problem(inputs=inputs, shapes=shapes))]
    assert [dict(sizes_of) for sizes_of in fixed if sizes_of] == ([sizes] if sizes else [])


def test_what_the_caller_fixed_is_left_out_of_static_shapes() -> None:
    made = problem(pinned={"dim:H": "320"}, **IMAGE_SIZES)
    assert Strategy(static_shapes={"N": 1, "W": 640}) in [item.strategy for item in proposals(made)]


def test_a_gpu_gets_the_options_that_keep_float32() -> None:
    on_gpu = [item.strategy for item in proposals(problem(others=(CUDA_GPU,))) if item.strategy.provider == CUDA]
    assert on_gpu[0] == ON_GPU
    assert all(strategy.provider_options["use_tf32"] == "0" for strategy in on_gpu)


def test_each_device_of_an_accelerator_is_proposed_by_name() -> None:
    gpu, npu = (device(OPENVINO, kind, provider_device=kind.upper()) for kind in ("gpu", "npu"))
    named = [p.strategy.device for p in proposals(problem(others=(OPENVINO_CPU, gpu, npu))) if p.strategy.device]
    assert named == ["GPU", "NPU"]


def test_another_cpu_provider_comes_after_openvino() -> None:
    made = problem(others=(NXRT_CPU, OPENVINO_CPU))
    providers = [item.strategy.provider for item in proposals(made)]
    assert providers.index(OPENVINO) < providers.index(NXRT)


def test_an_adapter_that_does_not_take_the_strategy_refuses_it_in_its_own_words() -> None:
    def cannot(strategy: Strategy) -> bool:
        raise StrategyError("no option of that name; known: none")

    refusal = RuleLibrary(is_lossy=cannot).refuse(problem(**WITH_OPENVINO), ON_OPENVINO)
    assert refusal is not None
    assert refusal.reason == "no option of that name; known: none"


def test_a_disabled_rule_neither_proposes_nor_forbids() -> None:
    without = RuleLibrary(disabled={"pipeline_spinning", "memory_arena_stays"}, is_lossy=is_lossy)
    assert not proposals(problem(objective="pipeline"), without)
    assert without.refuse(problem(), Strategy(session_options={"enable_cpu_mem_arena": False})) is None


def test_disabling_a_rule_there_is_not_names_it_and_those_there_are() -> None:
    with pytest.raises(SettingsError, match=r"'spinnning'.*pipeline_spinning"):
        RuleLibrary(disabled={"spinnning"})


def test_what_was_tried_is_not_proposed_again() -> None:
    made = problem(objective="pipeline")
    first, *rest = proposals(made)
    again = [item for item in LIBRARY.propose(made, [trial(first.strategy, 1.1)]) if isinstance(item, Proposal)]
    assert again == rest


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        (Strategy(), ()),
        (Strategy(session_options={"graph_optimization_level": "extended"}), ()),
        (ON_OPENVINO, ()),
        (THREADS, ("intra_op_num_threads",)),
        (Strategy(session_config={"session.force_spinning_stop": "1"}), ("session.force_spinning_stop",)),
        (
            Strategy(provider=OPENVINO, provider_options={**EXACT, "INFERENCE_NUM_THREADS": "1"}),
            ("INFERENCE_NUM_THREADS",),
        ),
    ],
)
def test_a_strategy_with_any_load_sensitive_part_is_scheduling(strategy: Strategy, options: tuple[str, ...]) -> None:
    assert scheduling_options(strategy) == options
    assert is_scheduling(strategy) == bool(options)


def test_a_busy_machine_takes_nothing_away_where_there_is_no_thread_pool() -> None:
    for single in ({"cores": 1.0}, {"pinned": {"intra_op_num_threads": "1"}}):
        made = problem(others_cpu=1.0, **single)
        assert "rules/machine_busy" not in refusals(made)
        assert LIBRARY.refuse(made, THREADS) is not None


@pytest.mark.parametrize(
    ("macs", "side", "worth_the_way"),
    [
        # 4 cores at 20e9 MACs a second against 0.1 ms and 3 * side**2 float32 at 12e9 bytes a second
        (8_000_000, 8, False),
        (8_100_000, 8, True),
        (11_000_000, 224, False),
        (13_000_000, 224, True),
        (13_000_000, 448, False),
    ],
)
def test_an_accelerator_is_worth_it_once_the_cpu_takes_longer_than_launch_and_transfer(
    macs: int, side: int, worth_the_way: bool
) -> None:
    made = problem(macs=macs, others=(CUDA_GPU,), shapes={"x": (1, 3, side, side)})
    assert (LIBRARY.refuse(made, ON_GPU) is None) == worth_the_way
    assert (ON_GPU in [item.strategy for item in proposals(made)]) == worth_the_way


@pytest.mark.parametrize("quantisation", ["qdq", "dynamic", "qoperator"])
def test_reduced_precision_is_not_proposed_for_models_that_have_reduced_theirs(quantisation: str) -> None:
    made = problem(quantisation=quantisation, accuracy="fast", inputs_are_real=True, **HEAVY)
    assert not [item for item in proposals(made) if is_lossy(item.strategy)]


@pytest.mark.parametrize(
    ("made", "batch"),
    [
        ({}, 1),
        ({"inputs": DYNAMIC_IMAGE}, None),
        ({"inputs": DYNAMIC_IMAGE, "shapes": {"x": (8, 3, 32, 32)}}, 8),
        ({"inputs": (TensorSpec("sr", "int64", ()), TensorSpec("x", "float32", (2, 512)))}, 2),
    ],
)
def test_the_batch_is_read_from_the_shapes_given_before_those_declared(made: dict[str, Any], batch: int | None) -> None:
    assert batch_size(problem(**made)) == batch


@pytest.mark.parametrize(
    ("operators", "wide"),
    [
        ({"Conv": 26, "Concat": 8}, True),  # SqueezeNet
        ({"Conv": 94, "Concat": 15, "Gemm": 1}, True),  # Inception v3
        ({"Conv": 53, "Add": 16, "Gemm": 1}, False),  # ResNet-50
        ({"Conv": 120, "Concat": 58, "Gemm": 1}, False),  # DenseNet-121: each block waits for the one before
        ({"Conv": 22, "MatMul": 3, "Concat": 15}, False),  # spindle_unet1d: shape arithmetic
        ({"Conv": 83, "Concat": 2}, False),  # ppocr_v6_det
        ({"MatMul": 24, "Concat": 15}, False),  # minilm
    ],
)
def test_parallel_execution_is_thought_of_only_where_branches_carry_weights(
    operators: dict[str, int], wide: bool
) -> None:
    assert (LIBRARY.refuse(problem(operators), PARALLEL) is None) == wide


@pytest.fixture
def npu_of_fixed_shapes(monkeypatch: pytest.MonkeyPatch) -> str:
    """The OpenVINO adapter, made to state that it takes fixed shapes only."""
    from ort_metainfer.providers import get_provider
    from ort_metainfer.providers.capabilities import Capabilities, Constraints

    stated = Capabilities(constraints=Constraints(static_shapes=True, opsets=(13, None), source="made up"))
    monkeypatch.setattr(type(get_provider(OPENVINO)), "capabilities", stated)
    return OPENVINO


def test_a_provider_that_would_take_nothing_is_refused_with_its_adapters_reason(npu_of_fixed_shapes: str) -> None:
    npu = device(npu_of_fixed_shapes, "npu", provider_device="NPU")
    old = problem(opset=11, others=(npu,), allowed=(CPU, npu_of_fixed_shapes))
    strategy = Strategy(provider=npu_of_fixed_shapes, provider_options={"INFERENCE_PRECISION_HINT": "f32"})
    refusal = RuleLibrary(is_lossy=is_lossy).refuse(old, strategy)
    assert refusal is not None and "opset 13" in refusal.reason and refusal.source == "made up"


def test_a_device_that_needs_fixed_shapes_is_refused_where_none_are_given(npu_of_fixed_shapes: str) -> None:
    npu = device(npu_of_fixed_shapes, "npu", provider_device="NPU")
    dynamic = problem(inputs=DYNAMIC_IMAGE, others=(npu,), allowed=(CPU, npu_of_fixed_shapes))
    strategy = Strategy(provider=npu_of_fixed_shapes, provider_options={"INFERENCE_PRECISION_HINT": "f32"})
    refusal = RuleLibrary(is_lossy=is_lossy).refuse(dynamic, strategy)
    assert refusal is not None and refusal.by == "rules/device_needs_fixed_shapes" and "input_shapes" in refusal.reason


def test_an_accelerator_that_needs_fixed_shapes_is_proposed_with_those_given(npu_of_fixed_shapes: str) -> None:
    npu = device(npu_of_fixed_shapes, "npu", provider_device="NPU")
    given = problem(
        inputs=DYNAMIC_IMAGE, shapes={"x": (1, 3, 224, 224)}, others=(npu,), allowed=(CPU, npu_of_fixed_shapes)
    )
    answers = list(RuleLibrary(is_lossy=is_lossy).propose(given, ()))
    proposed = [a.strategy for a in answers if isinstance(a, Proposal) and "rule accelerator" in a.reason]
    assert proposed and proposed[0].static_shapes == {"N": 1, "H": 224, "W": 224}


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ({}, [{"use_tf32": "0"}]),
        ({"accuracy": "fast"}, [{"use_tf32": "0"}]),
        (REAL, [{}, {"use_tf32": "0"}]),
    ],
)
def test_an_accelerator_is_tried_in_its_own_precision_too_where_a_loss_can_be_judged(
    policy: dict[str, Any], options: list[dict[str, str]]
) -> None:
    proposed = RULES["accelerator"].proposals(problem(others=(CUDA_GPU,), **policy))
    assert [dict(strategy.provider_options) for strategy in proposed] == options


@pytest.mark.parametrize("rule", ["int8_on_accelerators", "a16w8_on_accelerators"])
def test_a_device_that_gets_fewer_bits_is_not_held_to_float32_for_the_rest(rule: str) -> None:
    proposed = RULES[rule].proposals(problem(others=(QNN_NPU,), **REAL))
    assert proposed and all(strategy.transforms and not strategy.provider_options for strategy in proposed)


def test_a_lossy_rewrite_is_lossy_whatever_the_provider() -> None:
    assert RULES["lossy_under_strict"].vetoes(problem(), QUANTISED)
    assert not RULES["lossy_under_strict"].vetoes(problem(), REWRITTEN)
    assert RULES["lossy_on_synthetic_inputs"].vetoes(problem(accuracy="fast"), QUANTISED)
    assert not RULES["lossy_on_synthetic_inputs"].vetoes(problem(accuracy="fast", inputs_are_real=True), QUANTISED)


def test_a_rewrite_that_there_is_not_is_refused_with_the_names_there_are() -> None:
    refusal = LIBRARY.refuse(problem(), Strategy(transforms=(Transform("no-such-rewrite"),)))
    assert refusal is not None and "no-such-rewrite" in refusal.reason
