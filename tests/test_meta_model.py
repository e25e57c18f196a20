"""The meta-model: what experience proposes, in which order, with what it expects; and when it must not be asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from ort_metainfer.deciders.base import Decider
from ort_metainfer.deciders.meta_exceptions import changed
from ort_metainfer.deciders.meta_model import MOST, MetaModel
from ort_metainfer.deciders.meta_ranking import chosen
from ort_metainfer.deciders.meta_support import limit_of, place_of
from ort_metainfer.deciders.rules import RuleLibrary
from ort_metainfer.deciders.search import Search
from ort_metainfer.decision import Proposal, Refusal
from ort_metainfer.hardware.profile import Profile
from ort_metainfer.learning.exceptions import Change, exception_list
from ort_metainfer.learning.find_db import Known, known_strategies
from ort_metainfer.learning.record import Record
from ort_metainfer.problem import Device, Problem
from ort_metainfer.strategy import Strategy, Transform
from tests.decider_conformance import DeciderConformance
from tests.learning_cases import BASIC, NO_SPINNING, ONE_THREAD, known_problem, override, record
from tests.made_problems import (
    OPENVINO,
    QNN,
    QNN_NPU,
    TRANSFORMER,
    device,
    is_lossy,
    some_problems,
)
from tests.meta_cases import MadeModel, case_of, support_of, trained_problems

EXTENDED = Strategy(session_options={"graph_optimization_level": "extended"})
NO_PATTERN = Strategy(session_options={"enable_mem_pattern": False})
FPGA = device("VitisAIExecutionProvider", "fpga")
SPLIT = Strategy(transforms=(Transform("layer-norm-to-composed"),), provider=QNN)
SEEN = (ONE_THREAD, BASIC, NO_SPINNING, EXTENDED, NO_PATTERN, Strategy(provider=OPENVINO))


class Records:
    """Find-db over records in memory."""

    def __init__(self, *records: Record) -> None:
        self.records = records

    def lookup(self, problem: Problem) -> Sequence[Known]:
        return known_strategies(problem, [("imported", one) for one in self.records])


def prefers(**gains: float) -> MadeModel:
    """Trained on the usual problems; expects ``graph_level``, ``mem_pattern``, ... away from the default to gain."""
    names = {"extended": ("strategy/graph_level", 2.0), "no_pattern": ("strategy/mem_pattern", 0.0)}
    names |= {"openvino": ("strategy/provider/OpenVINO", 1.0), "one_thread": ("strategy/threads", 1.0)}

    def gain(row: dict[str, float]) -> float:
        return sum(math.log(value) for name, value in gains.items() if row.get(names[name][0]) == names[name][1])

    return MadeModel(support_of(trained_problems(), SEEN), gain)  # type: ignore[arg-type]


def here(**more: object) -> Problem:
    """A model that was not trained on, of a usual size."""
    return known_problem(
        "f" * 32, **{"operators": TRANSFORMER, "macs": 500_000_000, "weight_bytes": 5_000_000, "cores": 4.0, **more}
    )


def answers(meta_model: MetaModel, problem: Problem) -> tuple[list[Proposal], list[Refusal]]:
    found = list(meta_model.propose(problem, ()))
    return [a for a in found if isinstance(a, Proposal)], [a for a in found if isinstance(a, Refusal)]


class TestConformanceWithNothing(DeciderConformance):
    def make(self) -> Decider:
        return MetaModel()


class TestConformanceWithExperience(DeciderConformance):
    """A model that is asked about everything, a find-db that knows something of everything, and an exception."""

    def make(self) -> Decider:
        model = prefers(extended=1.2, no_pattern=1.1, openvino=1.5, one_thread=1.3)
        model.support = replace(
            model.support,
            low=model.support.low - 1e12,
            high=model.support.high + 1e12,
            threshold=1e12,
            strategies=frozenset(),
        )
        model.support.kinds.update({"gpu": 1, "npu": 1})  # type: ignore[attr-defined]
        strategies = (
            ONE_THREAD,
            BASIC,
            Strategy(provider=OPENVINO, provider_options={"INFERENCE_PRECISION_HINT": "f32"}),
        )
        find_db = Everything(*(record(one, 1.3, device=f"cpu:{n}") for n, one in enumerate(strategies)))
        exceptions = exception_list([override(NO_SPINNING, Strategy(), at=at) for at in ("2025-01-01", "2025-01-02")])
        return MetaModel(model, find_db, exceptions=exceptions, rules=RuleLibrary(is_lossy=is_lossy))


class Everything(Records):
    """Of whatever structure."""

    def lookup(self, problem: Problem) -> Sequence[Known]:
        named = replace(problem, graph=replace(problem.graph, structure=self.records[0].structure))
        return super().lookup(named)


def test_it_says_that_there_is_no_model_and_proposes_nothing() -> None:
    (answer,) = MetaModel().propose(here(), ())
    assert answer == Refusal("meta-model", "meta-model", "no model yet: none is shipped or trained")
    (answer,) = MetaModel(why="the card is damaged").propose(here(), ())
    assert isinstance(answer, Refusal) and answer.reason == "no model yet: the card is damaged"


def test_what_won_for_this_structure_elsewhere_is_proposed_with_what_to_expect() -> None:
    about = here()
    theirs = [record(EXTENDED, 1.3, about, device="cpu:theirs"), record(ONE_THREAD, 0.8, about, device="cpu:theirs")]
    (proposal,), _ = answers(MetaModel(None, Records(*theirs)), about)
    assert proposal.strategy == EXTENDED and proposal.by == "meta-model"
    assert proposal.reason.startswith("expected 1.30x (") and "confidence 99%" in proposal.reason
    assert "nearest cpu:theirs" in proposal.reason and "imported records of this structure" in proposal.source
    other = replace(about, graph=replace(about.graph, structure="e" * 32))
    assert answers(MetaModel(None, Records(*theirs)), other) == ([], [NO_MODEL])
    assert answers(MetaModel(None, Records(*theirs[1:])), about)[0] == []  # what lost is not proposed


NO_MODEL = Refusal("meta-model", "meta-model", "no model yet: none is shipped or trained")


def test_the_learned_ranking_comes_behind_what_is_known_of_this_very_structure() -> None:
    about = here()
    find_db = Records(record(NO_PATTERN, 1.1, about, device="cpu:theirs"))
    proposals, _ = answers(MetaModel(prefers(extended=1.4), find_db), about)
    assert [one.strategy for one in proposals] == [NO_PATTERN, EXTENDED]
    assert proposals[1].reason.startswith("learned ranking: expected 1.40x (")
    assert "confidence" in proposals[1].reason and "100% of the trees" in proposals[1].reason
    assert proposals[1].source == "90 trials of 6 models on 2 devices, 2025-01-01"


def test_of_all_that_is_known_at_most_a_few_are_proposed_and_the_ranking_keeps_a_place() -> None:
    about = here()
    known = [record(one, 1.2, about, device=f"cpu:{n}") for n, one in enumerate((NO_PATTERN, ONE_THREAD, NO_SPINNING))]
    proposals, _ = answers(MetaModel(prefers(extended=1.4), Records(*known)), about)
    assert len(proposals) == MOST and proposals[-1].strategy == EXTENDED


def test_a_ranking_that_expects_nothing_of_anything_proposes_nothing_and_says_so() -> None:
    proposals, refusals = answers(MetaModel(prefers(extended=0.9)), here())
    assert proposals == [] and any("nothing learned speaks for any" in one.reason for one in refusals)


def test_those_tried_are_of_different_kinds_and_each_adds_to_the_ones_before() -> None:
    same = [Strategy(session_options={"intra_op_num_threads": count}) for count in (1, 2, 3)]
    other = Strategy(provider=OPENVINO)
    words = np.array([[0.5] * 4, [0.49] * 4, [0.48] * 4, [0.3, 0.3, 0.3, 0.6]])
    first, second = chosen([*same, other], words, 3)
    assert (first.strategy, second.strategy) == (
        same[0],
        other,
    )  # no tree holds another count for better than the first
    assert first.agreement == 0.75 and first.confidence == 0.75
    assert chosen([*same, other], words, 3, nearness=[0.0] * 4)[0].confidence == pytest.approx(0.375)


def test_a_class_of_device_that_no_training_saw_is_left_to_the_rules() -> None:
    model = prefers(extended=1.4)
    about = here(others=(FPGA,))
    proposals, refusals = answers(MetaModel(model), about)
    assert [one.reason for one in refusals if "fpga" in one.subject] == [
        "no device of class fpga was seen in training, only cpu (3): it is left to the rules and the search"
    ]
    assert all(one.strategy.provider != FPGA.provider for one in proposals)
    only = replace(about, devices=(replace(about.cpu, kind="fpga"),))
    asked = model.asked
    proposals, refusals = answers(MetaModel(model), only)
    assert proposals == [] and len(refusals) == 1 and model.asked == asked  # not even asked


def test_the_class_is_asked_about_before_anything_else() -> None:
    far = here(macs=10**14, others=(FPGA,))
    _, refusals = answers(MetaModel(prefers(extended=1.4)), far)
    subjects = [one.subject for one in refusals]
    assert subjects.index("the learned ranking on fpga") < subjects.index(
        "the learned ranking on cpu (CPUExecutionProvider)"
    )


def probed(npu: Device, **operators: bool) -> Problem:
    about = here(
        operators={**TRANSFORMER, "Conv": 1},
        others=(npu,),
        allowed=("CPUExecutionProvider", QNN),
        accuracy="fast",
        inputs_are_real=True,
    )
    return replace(about, profiles={npu.provider: Profile(npu, {}, operators=operators)})


def test_a_habit_of_splitting_an_operator_is_not_followed_where_the_probe_found_it_native() -> None:
    split = Strategy(transforms=(_transform("layer-norm-to-composed"),), provider=QNN)

    def told(native: bool) -> tuple[list[Proposal], list[Refusal]]:
        about = probed(QNN_NPU, LayerNormalization=native)
        there = record(split, 2.0, about, device="npu:theirs", provider=QNN, kind="npu", error=1e-6)
        return answers(MetaModel(None, Records(there)), about)

    proposals, refusals = told(native=True)
    assert proposals == []
    assert any(
        "habit of devices without LayerNormalization, which the probe found native" in r.reason for r in refusals
    )
    proposals, refusals = told(native=False)
    assert [one.strategy.transforms for one in proposals] == [split.transforms]


def _transform(name: str) -> Transform:
    from ort_metainfer.rewrites.registry import get_rewrite

    return get_rewrite(name).transform()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"macs": 10**13}, "graph/ln_macs"),
        ({"cores": 64.0}, "device/cores 64, seen 2 to 8"),
        ({"inputs": (), "macs": 3_000_000_000, "operators": {"NonMaxSuppression": 400}}, "nearest case learned from"),
    ],
)
def test_what_lies_outside_of_what_was_learned_is_not_ranked_and_how_far_is_said(
    changes: dict[str, object], word: str
) -> None:
    model = prefers(extended=1.4)
    proposals, refusals = answers(MetaModel(model), here(**changes))
    (refusal,) = [one for one in refusals if one.subject.startswith("the learned ranking on cpu")]
    assert proposals == [] and model.asked == 0
    assert word in refusal.reason and "away" in refusal.reason


def test_larger_inputs_than_any_seen_are_outside() -> None:
    model = prefers(extended=1.4)
    large = here(shapes={"x": (64, 3, 224, 224)})
    assert answers(MetaModel(model), here(shapes={"x": (1, 3, 224, 224)}))[0]
    proposals, refusals = answers(MetaModel(model), large)
    assert proposals == [] and any("graph/ln_batch" in one.reason or "graph/ln_input" in one.reason for one in refusals)


def test_an_unseen_model_is_within_reach_though_every_model_was_seen_on_every_device() -> None:
    support = support_of(trained_problems(), SEEN)
    assert limit_of(support) > support.threshold
    place = place_of(support, case_of(here()))
    assert place.objection is None and 0 < place.nearness < 1
    assert place_of(support, case_of(trained_problems()[0])).nearness == pytest.approx(1.0)


def test_options_that_no_training_saw_are_not_ranked() -> None:
    model = MadeModel(support_of(trained_problems(), [EXTENDED]), lambda row: 0.3)
    proposals, refusals = answers(MetaModel(model), here())
    assert {option for one in proposals for option in one.strategy.session_options} <= {"graph_optimization_level"}
    assert not any(one.strategy.session_config for one in proposals)
    (refusal,) = [one for one in refusals if one.subject == "the learned ranking"]
    assert "option enable_mem_pattern" in refusal.reason


def test_what_people_changed_repeatedly_is_proposed_in_similar_cases_and_said() -> None:
    about = here()
    twice = [override(NO_PATTERN, Strategy(), about, at) for at in ("2025-01-01", "2025-02-01")]
    (proposal,), _ = answers(MetaModel(None, exceptions=exception_list(twice)), about)
    assert proposal.strategy == NO_PATTERN
    assert proposal.reason.startswith(
        "people changed this before: enable_mem_pattern: (not set) -> False on cpu, 2 times"
    )
    assert "in place of the default" in proposal.reason
    unlike = here(operators={"LSTM": 3, "Gather": 40})
    assert answers(MetaModel(None, exceptions=exception_list(twice)), unlike)[0] == []
    assert answers(MetaModel(None, exceptions=exception_list(twice[:1])), about)[0] == []  # once is no exception


def test_a_change_is_made_of_what_is_about_to_be_tried() -> None:
    about = here()
    on_top = replace(EXTENDED, session_options={**EXTENDED.session_options, "enable_mem_pattern": False})
    twice = [override(on_top, EXTENDED, about, at) for at in ("2025-01-01", "2025-02-01")]
    find_db = Records(record(EXTENDED, 1.3, about, device="cpu:theirs"))
    proposals, _ = answers(MetaModel(None, find_db, exceptions=exception_list(twice)), about)
    assert [one.strategy for one in proposals][:2] == [EXTENDED, on_top]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (Change("intra_op_num_threads", "(not set)", "2"), Strategy(session_options={"intra_op_num_threads": 2})),
        (Change("enable_mem_pattern", "(not set)", "False"), NO_PATTERN),
        (Change("session.intra_op.allow_spinning", "(not set)", "0"), NO_SPINNING),
        (Change("provider", "(not set)", OPENVINO), Strategy(provider=OPENVINO)),
        (Change("folding/fold-shapes", "(not set)", "yes"), None),
        (Change("static_shapes", "(not set)", "fixed"), None),
        (Change("other/nothing-of-the-kind", "(not set)", "yes"), None),
        (Change("intra_op_num_threads", "(not set)", "many"), None),
    ],
)
def test_a_persons_change_is_put_together_from_its_words(change: Change, expected: Strategy | None) -> None:
    made = changed(Strategy(), change)
    if change.setting.startswith("folding"):
        assert made is not None and [one.name for one in made.transforms] == ["fold-shapes"]
    else:
        assert made == expected


def test_what_a_rule_forbids_is_not_proposed_whoever_speaks_for_it() -> None:
    about = here(pinned={"graph_optimization_level": "ORT_ENABLE_ALL"})
    find_db = Records(record(EXTENDED, 1.3, about, device="cpu:theirs"))
    proposals, refusals = answers(MetaModel(prefers(extended=1.4), find_db), about)
    assert all("graph_optimization_level" not in one.strategy.session_options for one in proposals)
    assert any(one.by.startswith("meta-model/") for one in refusals)


def test_few_enough_candidates_are_ranked() -> None:
    model = prefers(extended=1.4)
    for about in [*some_problems()][:60]:
        model.asked = 0
        list(MetaModel(model).propose(replace(about, graph=replace(about.graph, structure="")), ()))
        assert model.asked < 200


def test_the_search_goes_by_both_the_cost_model_and_what_records_taught() -> None:
    from ort_metainfer.deciders.cost_model import CostModel
    from ort_metainfer.deciders.meta_prior import blended

    about, model = here(), prefers(extended=1.8)
    without = list(Search(predictor=CostModel()).propose(about, ()))
    with_it = list(Search(predictor=blended(CostModel(), model)).propose(about, ()))
    assert without[0].strategy != EXTENDED and with_it[0].strategy == EXTENDED  # type: ignore[union-attr]
    assert "by records" in with_it[0].reason
    assert blended(cost := CostModel(), None) is cost
