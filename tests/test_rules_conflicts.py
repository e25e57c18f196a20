"""Where rules contradict each other: who wins, by what, and that it is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ort_metainfer.cli.explain import explanation
from ort_metainfer.cli.report import rule_lines
from ort_metainfer.deciders.rule import ALL_DEVICES, BINDING_PRIORITY, Rule
from ort_metainfer.deciders.rules import RuleLibrary, shipped_rules
from ort_metainfer.decision import Decision, Proposal, Refusal, RuleVerdict
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy
from tests.made_problems import CUDA_GPU, problem, trial

PATTERN = Strategy(session_options={"enable_mem_pattern": False})
ARENA = Strategy(session_options={"enable_cpu_mem_arena": False})


def rule(name: str, priority: int, **more: Any) -> Rule:
    return Rule(name, priority, "scheduling", f"because {name} says so", "made up", **more)


def wants(name: str = "wants", priority: int = 50, strategy: Strategy = PATTERN, **more: Any) -> Rule:
    return rule(name, priority, proposes=lambda problem: (strategy,), **more)


def forbids(name: str = "forbids", priority: int = 50, strategy: Strategy = PATTERN, **more: Any) -> Rule:
    return rule(name, priority, forbids=lambda problem, asked: asked == strategy, **more)


def outcome(*rules: Rule, made: Problem | None = None) -> tuple[list[Strategy], list[str], tuple[RuleVerdict, ...]]:
    """What is proposed, who refused, and what is told."""
    library, made = RuleLibrary(rules=rules), made or problem()
    answers = list(library.propose(made, ()))
    proposed = [answer.strategy for answer in answers if isinstance(answer, Proposal)]
    return proposed, [answer.by for answer in answers if isinstance(answer, Refusal)], library.verdicts(made)


def test_the_higher_priority_wins_and_the_loser_is_told_to_whom() -> None:
    proposed, refused, told = outcome(wants(priority=50), forbids(priority=60))
    assert (proposed, refused) == ([], ["rules/forbids"])
    assert told == (
        RuleVerdict("forbids", 60, "forbids", PATTERN.describe()),
        RuleVerdict("wants", 50, "proposes", PATTERN.describe(), "forbids"),
    )
    proposed, refused, told = outcome(wants(priority=60), forbids(priority=50))
    assert (proposed, refused) == ([PATTERN], [])
    assert told == (
        RuleVerdict("wants", 60, "proposes", PATTERN.describe()),
        RuleVerdict("forbids", 50, "forbids", PATTERN.describe(), "wants"),
    )


def always(problem: Problem) -> bool:
    return True


@pytest.mark.parametrize(
    ("more_of_it", "more_of_the_veto", "wins"),
    [
        ({"when": (always, always)}, {"when": (always,)}, True),
        ({"when": (always,)}, {"when": (always, always)}, False),
        ({"devices": ("cpu",)}, {"devices": ALL_DEVICES}, True),
        ({"when": (always,), "devices": ALL_DEVICES}, {"devices": ("cpu",)}, True),
        ({}, {}, False),
    ],
)
def test_of_equal_priority_the_more_specific_wins_and_of_equals_the_veto(
    more_of_it: dict[str, Any], more_of_the_veto: dict[str, Any], wins: bool
) -> None:
    proposed, _, _ = outcome(wants(**more_of_it), forbids(**more_of_the_veto))
    assert (proposed == [PATTERN]) is wins


def test_a_binding_veto_stands_against_every_proposal() -> None:
    proposed, _, told = outcome(wants(priority=1000), forbids(priority=BINDING_PRIORITY))
    assert not proposed
    assert told[0].lost_to == "forbids"


def test_a_rule_that_outranks_a_shipped_veto_is_heard_also_where_others_ask() -> None:
    made, library = problem(), RuleLibrary(rules=[*shipped_rules(), wants(strategy=ARENA)])
    assert library.refuse(made, ARENA) is None
    assert ARENA in [answer.strategy for answer in library.propose(made, ()) if isinstance(answer, Proposal)]
    refusal = library.refuse(made, replace(ARENA, session_config={"session.disable_prepacking": "1"}))
    assert refusal is not None and refusal.by == "rules/memory_arena_stays"


def test_what_the_caller_pinned_no_rule_outranks() -> None:
    made = problem(pinned={"enable_mem_pattern": "True"})
    library = RuleLibrary(rules=[*shipped_rules(), wants(priority=BINDING_PRIORITY - 1)])
    assert library.refuse(made, PATTERN) is not None


def with_arena(problem: Problem, strategy: Strategy) -> Strategy:
    return replace(strategy, session_options={**strategy.session_options, "enable_cpu_mem_arena": True})


def without_arena(problem: Problem, strategy: Strategy) -> Strategy:
    return replace(strategy, session_options={**strategy.session_options, "enable_cpu_mem_arena": False})


def test_of_two_requirements_the_higher_is_met_and_the_other_told() -> None:
    low, high = rule("low", 30, requires=without_arena), rule("high", 40, requires=with_arena)
    proposed, refused, told = outcome(wants(), low, high)
    completed = Strategy(session_options={"enable_mem_pattern": False, "enable_cpu_mem_arena": True})
    assert (proposed, refused) == ([completed], [])
    assert RuleVerdict("high", 40, "requires", completed.describe()) in told
    assert RuleVerdict("low", 30, "requires", f"otherwise than {completed.describe()}", "high") in told


def test_a_requirement_completes_proposals_and_refuses_what_others_bring_incomplete() -> None:
    library, made = RuleLibrary(rules=[wants(), rule("low", 30, requires=without_arena)]), problem()
    (proposal,) = library.propose(made, ())
    assert isinstance(proposal, Proposal) and "rule low" in proposal.reason
    other = Proposal(Strategy(session_config={"session.disable_prepacking": "1"}), "search", "why not")
    refusal = library.refuse(made, other.strategy)
    assert refusal is not None and refusal.by == "rules/low"
    completed = library.completed(made, other)
    assert library.refuse(made, completed.strategy) is None
    assert completed.reason == "why not; because low says so (rule low)"
    assert library.completed(made, completed) == completed


def test_a_requirement_that_cannot_be_met_refuses() -> None:
    proposed, refused, told = outcome(wants(), rule("never", 30, requires=lambda problem, strategy: None))
    assert (proposed, refused) == ([], ["rules/never"])
    assert told[0].lost_to == "never"


def test_a_veto_against_what_a_requirement_added_is_weighed_against_the_requirement() -> None:
    def arena_off(problem: Problem, strategy: Strategy) -> bool:
        return strategy.session_options.get("enable_cpu_mem_arena") is False

    veto = rule("veto", 40, forbids=arena_off)
    assert outcome(wants(priority=20), rule("need", 45, requires=without_arena), veto)[0]
    assert not outcome(wants(priority=20), rule("need", 35, requires=without_arena), veto)[0]


def test_a_requirement_does_not_shield_a_proposal_from_vetoes_against_the_rest_of_it() -> None:
    def no_pattern(problem: Problem, strategy: Strategy) -> bool:
        return strategy.session_options.get("enable_mem_pattern") is False

    need, veto = rule("need", 90, requires=without_arena), rule("veto", 40, forbids=no_pattern)
    assert not outcome(wants(priority=20), need, veto)[0]


def test_a_rule_speaks_only_where_one_of_its_devices_is_and_of_what_runs_there() -> None:
    on_gpu = Strategy(provider=CUDA_GPU.provider)
    veto = rule("veto", 40, forbids=lambda problem, strategy: True, devices=("gpu",))
    both = problem(others=(CUDA_GPU,))
    assert not veto.applies(problem())
    assert veto.vetoes(both, on_gpu)
    assert not veto.vetoes(both, PATTERN)
    assert not wants(devices=("npu", "dsp")).proposals(both)


def test_what_was_told_before_is_told_again_after_trials() -> None:
    library, made = RuleLibrary(rules=[wants(), forbids()]), problem()
    before = library.verdicts(made)
    list(library.propose(made, [trial(PATTERN, 1.1)]))
    assert library.verdicts(made) == before


def test_explain_shows_what_each_rule_wanted_and_to_whom_it_lost() -> None:
    _, _, told = outcome(wants(priority=50), forbids(priority=60))
    plain = Decision(Strategy(), "default", "nothing gained", rules=told).as_dict()
    lines = list(rule_lines(plain))
    assert lines == [
        "forbids (60) forbids: enable_mem_pattern=False",
        "wants (50) proposes: enable_mem_pattern=False   LOST to forbids",
    ]
    shown = "\n".join(explanation(plain, []))
    assert shown.endswith("\nrules\n    " + "\n    ".join(lines))
    del plain["rules"]
    assert list(rule_lines(plain)) == [], "a decision of an earlier release"


def test_verdicts_are_plain_in_json_and_few() -> None:
    import json

    _, _, told = outcome(*shipped_rules(), made=problem(accuracy="fast", inputs_are_real=True, others=(CUDA_GPU,)))
    text = json.dumps(Decision(Strategy(), "default", "", rules=told).as_dict()["rules"])
    assert json.loads(text)[0].keys() == {"rule", "priority", "kind", "wanted", "lost_to"}
    assert len(text) < 8_000
