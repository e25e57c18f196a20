"""Which trials are worth a duel, who takes the verified one's place, and when a decision counts as complete."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ort_metainfer.conclusion import conclude, left_alone, out_of_time
from ort_metainfer.confirming import MAX_DUELS, TIE, UNKNOWN_LOAD, beats, contenders
from ort_metainfer.decision import Refusal, Trial
from ort_metainfer.problem import CacheKey
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.duel import UNSTEADY
from ort_metainfer.trials.fake import FAKE_GRAPH
from tests.made_problems import problem, timing, trial

KEY = CacheKey("sha256:0", "cpu", "x", "strict")


def raced(speedup: float, level: str = "all", by: str = "rules") -> Trial:
    return trial(Strategy(session_options={"graph_optimization_level": level}), speedup, by=by)


def test_the_most_promising_are_confirmed_first_and_no_more_than_the_most() -> None:
    trials = [raced(1.1, "basic"), raced(1.5, "extended"), raced(1.3, "all"), raced(1.2, "layout")]
    chosen = contenders(trials, None, min_speedup=1.0)
    assert chosen == [trials[1], trials[2]] and len(chosen) == MAX_DUELS


def test_what_failed_was_confirmed_or_is_too_slow_is_not_confirmed_again() -> None:
    confirmed = replace(raced(2.0, "basic"), duel=timing(2.0))
    trials = [confirmed, raced(1.01, "extended"), trial(Strategy(), failed="it crashed")]
    assert contenders(trials, None, min_speedup=1.02) == []


def test_a_tie_with_the_verified_one_is_not_worth_a_duel() -> None:
    verified = raced(1.5)
    tied, clear = raced(1.5 * (1 + TIE) - 0.001, "basic"), raced(1.5 * (1 + TIE) + 0.01, "extended")
    assert contenders([tied, clear], verified, min_speedup=1.0) == [clear]


@pytest.mark.parametrize(("speedup", "wins"), [(1.49, False), (1.6, True)])
def test_a_duel_beats_another_only_by_its_whole_interval(speedup: float, wins: bool) -> None:
    verified = replace(raced(1.5), duel=timing(1.5))
    again = replace(raced(speedup), duel=timing(speedup))
    assert beats(again, verified) is wins
    assert beats(again, None)


@pytest.mark.parametrize("reason", [f"{UNSTEADY}: 2 of 9 rounds", f"{UNKNOWN_LOAD} while it was tried", "machine busy"])
def test_what_another_moment_may_lift_leaves_a_decision_incomplete(reason: str) -> None:
    told = conclude(KEY, problem(), None, [], [Refusal("threads", "duel", reason)], [])
    assert not told.complete and told.incomplete_reason == reason
    lasting = conclude(KEY, problem(), None, [], [Refusal("threads", "rule", "a limit")], [])
    assert lasting.complete and lasting.strategy.is_default


def test_what_lacked_time_is_a_gap_unless_only_the_search_thought_of_it() -> None:
    late = replace(trial(Strategy(session_options={"enable_mem_pattern": False})), failure="no time was left to try it")
    assert conclude(KEY, problem(), None, [], [], [late]).incomplete_reason == "no time was left for 1 of 1 strategies"
    assert conclude(KEY, problem(), None, [], [], [replace(late, by="search")]).complete


def test_plain_onnxruntime_is_kept_for_what_cannot_be_tried_and_asked_again_for_what_lacked_time() -> None:
    assert left_alone(KEY, FAKE_GRAPH, "compiled already").complete
    late = out_of_time(KEY, FAKE_GRAPH, "reading took too long", 15.0)
    assert not late.complete and late.strategy.is_default
    assert late.reason.startswith("reading took too long; a budget_s above 15")
