"""What every decider must keep to. A test class of a decider inherits these tests and makes the decider."""

from __future__ import annotations

import builtins
import socket
import subprocess
from typing import Any

import pytest

from ort_metainfer.deciders.base import Decider
from ort_metainfer.deciders.rule import scheduling_options
from ort_metainfer.decision import Proposal, Refusal, Trial
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy
from tests.made_problems import is_lossy, random_problem, some_problems, trial

ORIGINS = ("meta-model", "rules", "search")
RANDOM_PROBLEMS = 150


def history_of(answer: list[Proposal | Refusal]) -> list[Trial]:
    """A history in which every other proposal was a gain and the rest lost."""
    proposals = [item for item in answer if isinstance(item, Proposal)]
    return [trial(p.strategy, 1.2 if i % 2 else 0.9) for i, p in enumerate(proposals)]


class DeciderConformance:
    """Inherit and override :meth:`make`."""

    def make(self) -> Decider:
        raise NotImplementedError

    def answers(self, problems: Any) -> list[tuple[Problem, list[Proposal | Refusal]]]:
        decider = self.make()
        return [(problem, list(decider.propose(problem, ()))) for problem in problems]

    def test_it_is_a_decider_named_for_an_origin(self) -> None:
        decider = self.make()
        assert isinstance(decider, Decider)
        assert decider.name in ORIGINS

    def test_each_answer_says_by_whom_and_why(self) -> None:
        name = self.make().name
        for _, answer in self.answers(some_problems()):
            for item in answer:
                assert isinstance(item, Proposal | Refusal)
                assert item.reason.strip() and "\n" not in item.reason
                if isinstance(item, Proposal):
                    assert item.by == name and item.source.strip()
                else:
                    assert item.by.split("/")[0] == name and item.subject.strip()

    def test_no_strategy_is_proposed_twice_or_is_the_default(self) -> None:
        for _, answer in self.answers(some_problems()):
            strategies = [item.strategy for item in answer if isinstance(item, Proposal)]
            assert len(strategies) == len(set(strategies))
            assert Strategy() not in strategies

    def test_nothing_in_the_history_is_proposed_again(self) -> None:
        decider = self.make()
        for problem, answer in self.answers(some_problems()):
            history = history_of(answer)
            tried = {t.strategy for t in history}
            again = [item.strategy for item in decider.propose(problem, history) if isinstance(item, Proposal)]
            assert not tried & set(again)

    def test_equal_questions_get_equal_answers_and_the_history_stays(self) -> None:
        for problem, first in self.answers(some_problems()):
            history = history_of(first)
            before = list(history)
            once, twice = (list(self.make().propose(problem, history)) for _ in range(2))
            assert once == twice
            assert history == before

    def test_what_the_caller_pinned_is_never_changed(self) -> None:
        for problem, answer in self.answers(random_problem(seed) for seed in range(RANDOM_PROBLEMS)):
            for strategy in (item.strategy for item in answer if isinstance(item, Proposal)):
                set_here = {*strategy.session_options, *strategy.session_config}
                set_here |= {f"dim:{name}" for name in strategy.static_shapes}
                assert not set_here & set(problem.policy.pinned), strategy.describe()

    def test_providers_are_allowed_and_present(self) -> None:
        for problem, answer in self.answers(some_problems()):
            for strategy in (item.strategy for item in answer if isinstance(item, Proposal)):
                if strategy.provider is not None:
                    assert strategy.provider in problem.policy.providers
                    assert problem.device(strategy.provider) is not None

    def test_lossy_strategies_need_the_policy_and_real_inputs(self) -> None:
        for problem, answer in self.answers(some_problems()):
            allowed = problem.policy.accuracy != "strict" and problem.inputs_are_real
            lossy = [item for item in answer if isinstance(item, Proposal) and is_lossy(item.strategy)]
            assert allowed or not lossy

    def test_scheduling_is_left_alone_on_a_busy_machine(self) -> None:
        for problem, answer in self.answers(some_problems()):
            if problem.state.busy_reason is None or problem.cpu.lasting_limit:
                continue
            pinned = problem.policy.pinned.get("intra_op_num_threads")
            for strategy in (item.strategy for item in answer if isinstance(item, Proposal)):
                left = set(scheduling_options(strategy))
                if strategy.provider_options.get("INFERENCE_NUM_THREADS") == pinned:
                    left -= {"INFERENCE_NUM_THREADS"}
                assert not left

    def test_every_proposal_survives_its_file(self) -> None:
        for _, answer in self.answers(some_problems()):
            for strategy in (item.strategy for item in answer if isinstance(item, Proposal)):
                assert Strategy.from_dict(strategy.as_dict()) == strategy

    def test_it_touches_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        decider, problems = self.make(), list(some_problems())[:40]

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("a decider is policy only: no files, no processes, no network")

        for owner, name in ((builtins, "open"), (subprocess, "Popen"), (socket, "socket")):
            monkeypatch.setattr(owner, name, refuse)
        answers = [list(decider.propose(problem, ())) for problem in problems]
        monkeypatch.undo()
        assert any(answers)
