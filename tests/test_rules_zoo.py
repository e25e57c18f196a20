"""The shipped rules on the recorded features of real graphs, on described chips and on real kinds of machines."""

from __future__ import annotations

from functools import cache
from typing import get_args

import pytest

from ort_metainfer.deciders.rule import ALL_DEVICES, Dimension, Rule
from ort_metainfer.deciders.rules import RuleLibrary, shipped_rules
from ort_metainfer.deciders.weighing import complete
from ort_metainfer.decision import Proposal, RuleVerdict
from ort_metainfer.problem import Problem
from tests.made_problems import OPENVINO
from tests.zoo_problems import REAL_MACHINES, SIMULATED_MACHINES, zoo_graphs, zoo_problem, zoo_problems

RULES = shipped_rules()
LIBRARY = RuleLibrary(rules=RULES)
FEW = 20
"""Proposals for one problem: on an NVIDIA GPU under a lossy policy each precision of two providers is one."""


@cache
def answers() -> tuple[tuple[Problem, tuple[RuleVerdict, ...], tuple[Proposal, ...]], ...]:
    """What the library says of each: asked once for all tests."""
    library = RuleLibrary(rules=RULES)
    return tuple(
        (made, library.verdicts(made), tuple(a for a in library.propose(made, ()) if isinstance(a, Proposal)))
        for made in problems()
    )


@cache
def problems() -> tuple[Problem, ...]:
    """All of them; rules neither change a problem nor keep anything of it."""
    return tuple(zoo_problems())


def test_no_two_rules_of_equal_priority_contradict_each_other() -> None:
    clashes = {
        (proposing.name, against.name)
        for made in problems()
        for applying in [LIBRARY.applying(made)]
        for proposing in applying
        for proposed in proposing.proposals(made)
        for strategy in [complete(applying, made, proposed).strategy]
        for against in applying
        if against.priority == proposing.priority and against.objects_to(made, strategy)
    }
    assert not clashes


def test_no_requirement_contradicts_another_and_asked_twice_none_adds_anything() -> None:
    for made in problems():
        applying = LIBRARY.applying(made)
        for proposed in (strategy for rule in applying for strategy in rule.proposals(made)):
            completion = complete(applying, made, proposed)
            assert not completion.overruled
            assert complete(applying, made, completion.strategy).strategy == completion.strategy


def test_no_veto_is_outranked_by_a_shipped_proposal() -> None:
    assert not {v.rule for _, verdicts, _ in answers() for v in verdicts if v.kind == "forbids" and v.lost_to}


def test_what_is_proposed_each_provider_s_adapter_takes() -> None:
    for _, verdicts, _ in answers():
        for verdict in verdicts:
            assert verdict.lost_to != "adapter", f"{verdict.rule} wants {verdict.wanted}"


def test_no_problem_gets_more_proposals_than_can_be_tried() -> None:
    for made, _, proposed in answers():
        assert len(proposed) <= FEW, made.devices


def test_every_answer_is_the_same_when_asked_again() -> None:
    for made, verdicts, proposals in answers()[::17]:
        again = RuleLibrary(rules=RULES)
        assert again.verdicts(made) == verdicts
        assert tuple(a for a in again.propose(made, ()) if isinstance(a, Proposal)) == proposals


def test_there_are_rules_for_every_dimension_and_every_class_of_devices() -> None:
    assert len(RULES) >= 40
    assert {rule.dimension for rule in RULES} == set(get_args(Dimension))
    spoken_of = {kind for rule in RULES if rule.devices != ALL_DEVICES for kind in rule.devices}
    assert spoken_of == set(ALL_DEVICES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_for_accelerators_says_what_it_rests_on(rule: Rule) -> None:
    if "cpu" not in rule.devices:
        words = (
            "not run on hardware",
            "own measurement",
            "estimate",
            "not measured by us",
            "simulator",
            "documentation",
        )
        assert any(word in rule.source for word in words)


def test_names_are_unique_and_fit_for_the_setting_that_switches_them_off() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)


@pytest.mark.parametrize(
    ("model", "machine", "policy", "first"),
    [
        # what was measured to pay most comes first
        ("ppocr_v6_det", "x86 with OpenVINO", {"accuracy": "fast", "inputs_are_real": True}, "int8-static OpenVINO"),
        ("minilm_l3_fp32", "x86", {"accuracy": "fast", "inputs_are_real": True}, "int8-dynamic(smooth=0.65)"),
        ("opennsfw_resnet50", "NVIDIA", {}, "CUDAExecutionProvider use_tf32=0"),
        ("silero_vad", "x86", {}, "intra_op_num_threads=1"),
        ("magika_v3", "container", {}, "intra_op_num_threads=2"),
    ],
)
def test_the_first_proposal_is_the_one_that_measurements_speak_for(
    model: str, machine: str, policy: dict[str, object], first: str
) -> None:
    made = zoo_problem(model, REAL_MACHINES[machine], **policy)  # type: ignore[arg-type]
    proposed = [a.strategy.describe() for a in LIBRARY.propose(made, ()) if isinstance(a, Proposal)]
    assert first in proposed[0]


def test_a_moderate_network_is_tried_on_openvino_after_what_is_surer() -> None:
    made = zoo_problem("doc_orientation", REAL_MACHINES["x86 with OpenVINO"])
    proposals = [a for a in LIBRARY.propose(made, ()) if isinstance(a, Proposal)]
    assert [a for a in proposals if "openvino_float32_moderate" in a.reason]
    assert "openvino_float32_moderate" not in proposals[0].reason
    tiny = zoo_problem("ppocr_cls", REAL_MACHINES["x86 with OpenVINO"])
    strategies = [a.strategy for a in LIBRARY.propose(tiny, ()) if isinstance(a, Proposal)]
    assert not [s for s in strategies if s.provider == OPENVINO and s.device != "NPU"]


def test_every_recorded_graph_is_whole() -> None:
    assert len(zoo_graphs()) >= 16
    assert all(graph.operators and graph.inputs for graph, _, _ in zoo_graphs().values())


def test_what_an_npu_needs_is_part_of_what_is_proposed_for_it() -> None:
    lossy = {"accuracy": "fast", "inputs_are_real": True}
    for name, devices in SIMULATED_MACHINES.items():
        made = zoo_problem("opennsfw_resnet50", devices, **lossy)  # type: ignore[arg-type]
        on_chip = [a.strategy for a in LIBRARY.propose(made, ()) if isinstance(a, Proposal) and a.strategy.provider]
        from ort_metainfer.providers.chips import get_chip

        chip = get_chip(name)
        for strategy in on_chip:
            assert strategy.static_shapes or not chip.static_shapes
            assert strategy.provider_options.get("precision") == "int8" or chip.quantised != "required"
