"""How a deliberation ends, and that it can be replayed: equal trials and clocks give equal decisions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ort_metainfer.adapt import Request, settings_for
from ort_metainfer.deciders.rule import Rule
from ort_metainfer.decision import Decision
from ort_metainfer.deliberate import MIN_DUEL_S, Deliberation
from ort_metainfer.model.fingerprint import fingerprint
from ort_metainfer.problem import SessionSpec
from ort_metainfer.settings import Settings
from ort_metainfer.strategy import Strategy
from ort_metainfer.strategy_cache.store import open_cache
from ort_metainfer.trials.fake import FAKE_GRAPH, QUIET, FakeClock, FakeTrialHost, Scripted

GRAPH = replace(FAKE_GRAPH, operators={"MatMul": 20, "Erf": 5, "Relu": 20}, node_count=45, macs=10**9)
TRIAL_S = 0.4


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ort_metainfer.hardware.state.observe", lambda *_: QUIET)


def deliberate(
    model: Path, folder: Path, host: FakeTrialHost, clock: FakeClock | None = None, **settings: Any
) -> Decision:
    """A decision from an empty cache, by a clock that only trials move."""
    clock = clock or FakeClock()
    resolved, problems = settings_for(Settings(cache_dir=folder, **settings))
    assert not problems
    cache, spec = open_cache(folder), SessionSpec()
    request, known = Request(str(model), spec, resolved), fingerprint(model, None)
    deadline = float(resolved.budget_s or 0)
    return Deliberation(request, spec, known, model, host, cache, deadline, clock.now_s).run(None, None)


def outcome(strategy: Strategy) -> Scripted:
    """Some strategies gain, one is wrong, one does not load: what a real machine gives."""
    wanted = len(strategy.describe())
    if "level" in strategy.describe():
        return Scripted(speedup=1.3, cost_s=TRIAL_S)
    if strategy.transforms:
        return Scripted(speedup=1.1 + wanted % 7 / 20, error=1e-7 if wanted % 2 else 1e-2, cost_s=TRIAL_S)
    return Scripted(speedup=0.9 + wanted % 5 / 20, refusal="no" if wanted % 11 == 0 else None, cost_s=TRIAL_S)


def test_it_says_that_nothing_more_is_expected_to_gain(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    decision = deliberate(tiny_model("MatMul"), tmp_path, FakeTrialHost(graph=GRAPH), budget_s=600)
    assert decision.stopped.startswith("no other strategy is expected to gain, after ")
    assert f"{len(decision.trials)} trials in 0.0 of 600.0 s" in decision.stopped
    assert any(refusal.reason.startswith("no other strategy is worth a trial") for refusal in decision.refusals)


def test_max_trials_is_kept_and_told(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    host = FakeTrialHost(outcome, graph=GRAPH)
    decision = deliberate(tiny_model("MatMul"), tmp_path, host, budget_s=600, max_trials=3)
    assert len(decision.trials) == len(host.raced) == 3
    assert decision.stopped.startswith("max_trials=3 were made, after 3 trials")


def test_what_many_rules_propose_is_raced_a_part_at_a_time_by_rank_and_before_what_the_search_says(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategies = tuple(Strategy(session_config={"their.key": str(number)}) for number in range(20))
    theirs = Rule("theirs", 94, "scheduling", "we know", "our word", proposes=lambda problem: strategies)
    monkeypatch.setattr("ort_metainfer.deciders.rules.contributed_rules", lambda: (theirs,))
    host = FakeTrialHost(graph=GRAPH)
    decision = deliberate(tiny_model("MatMul"), tmp_path, host, budget_s=600, max_trials=25)
    assert host.raced[: len(strategies)] == list(strategies)
    assert host.calls.count("race") > 2 and len(decision.trials) <= 25


def test_it_ends_while_there_is_time_for_a_duel_and_says_so(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    clock = FakeClock()
    host = FakeTrialHost(lambda strategy: Scripted(speedup=1.01, cost_s=0.5), graph=GRAPH, clock=clock)
    decision = deliberate(tiny_model("MatMul"), tmp_path, host, clock, budget_s=4.0)
    assert decision.stopped.startswith("too little time was left for one more race and the duel of its winner, after")


def test_where_a_race_had_no_time_for_anybody_none_is_held_with_less(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    clock = FakeClock()
    host = FakeTrialHost(lambda strategy: Scripted(cost_s=100.0), graph=GRAPH, clock=clock)
    decision = deliberate(tiny_model("MatMul"), tmp_path, host, clock, budget_s=20)
    assert host.calls.count("race") == 1 and not host.raced
    assert decision.stopped.startswith("too little time was left") and "no time was left" in decision.incomplete_reason


def test_nothing_is_proposed_where_no_time_is_left_to_try_it(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    host = FakeTrialHost(outcome, graph=GRAPH)
    decision = deliberate(tiny_model("MatMul"), tmp_path, host, budget_s=MIN_DUEL_S / 2)
    assert "race" not in host.calls and not decision.trials
    assert "no strategy could be tried" in decision.reason and decision.incomplete_reason == "the time was up"


@pytest.mark.parametrize("budget_s", [3.0, 8.0, 40.0])
def test_a_replay_from_recorded_trials_and_clock_gives_the_same_decision(
    tiny_model: Callable[..., Path], tmp_path: Path, budget_s: float
) -> None:
    model, first_clock = tiny_model("MatMul"), FakeClock()
    first = deliberate(
        model, tmp_path / "first", FakeTrialHost(outcome, GRAPH, clock=first_clock), first_clock, budget_s=budget_s
    )
    assert first.trials
    recorded = {trial.strategy: replace(outcome(trial.strategy), cost_s=TRIAL_S) for trial in first.trials}

    def replayed(strategy: Strategy) -> Scripted:
        assert strategy in recorded, "a replay asks for nothing that was not recorded"
        return recorded[strategy]

    clock = FakeClock()
    again = deliberate(model, tmp_path / "again", FakeTrialHost(replayed, GRAPH, clock=clock), clock, budget_s=budget_s)
    left = {"decided_in_s"}
    told, retold = first.as_dict(), again.as_dict()
    assert {name: told[name] for name in told if name not in left} == {
        name: retold[name] for name in retold if name not in left
    }


def test_more_time_never_gives_a_worse_strategy(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    found = []
    for budget_s in (1.0, 2.0, 4.0, 8.0, 16.0):
        clock = FakeClock()
        host = FakeTrialHost(outcome, GRAPH, clock=clock)
        decision = deliberate(tiny_model("MatMul"), tmp_path / str(budget_s), host, clock, budget_s=budget_s)
        winner = decision.winner
        found.append(winner.duel.speedup if winner and winner.duel else 1.0)
    assert all(later >= earlier for earlier, later in itertools.pairwise(found))
