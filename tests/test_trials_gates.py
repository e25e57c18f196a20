"""The gate that asks whether a candidate pays, and the fake host that others test with."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from pathlib import Path

import pytest

from ort_metainfer.decision import Proposal, Timing
from ort_metainfer.errors import InputsError
from ort_metainfer.problem import SessionSpec
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.client import ChildTrialHost
from ort_metainfer.trials.fake import FakeClock, FakeTrialHost, Scripted
from ort_metainfer.trials.gates import compiles, is_settled, pays
from ort_metainfer.trials.task import Setup, Thresholds, TrialHost
from ort_metainfer.trials.timing import Interval

FAST = Timing(12, 10, 11, 5.4, 6, 1.84, 1.79, 1.90, 1.02, 1.9)
ONE_THREAD = Strategy(session_options={"intra_op_num_threads": 1})
SETUP = Setup(Path("model.onnx"), SessionSpec(), Path("feeds"))


def test_a_gain_outside_the_band_pays_and_says_so_in_plain_words() -> None:
    gate = pays(FAST, FAST, Thresholds())
    assert gate.passed
    assert gate.detail == "1.84x [1.79, 1.90] over 12 rounds, outside the A/A band of 1.02"
    assert gate.figures["race_speedup"] == 1.84


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"speedup_low": 1.01}, "not wholly above the 1.02 asked for"),
        ({"band": 1.85}, "not outside the A/A band of 1.85"),
        ({"rounds": 5, "speedup_low": 1.1, "speedup_high": 2.5}, "too few rounds for 95%"),
    ],
)
def test_a_gain_that_is_not_certain_does_not_pay(change: dict[str, float], why: str) -> None:
    gate = pays(FAST, replace(FAST, **change), Thresholds())
    assert not gate.passed
    assert why in gate.detail


def test_a_gain_that_another_process_did_not_see_does_not_pay() -> None:
    gate = pays(replace(FAST, speedup=0.99), FAST, Thresholds())
    assert not gate.passed
    assert gate.detail.endswith("but the race before it, in another process, gave 0.99x")


def test_five_rounds_suffice_for_a_gain_far_outside_their_range() -> None:
    assert pays(None, replace(FAST, rounds=5, speedup=3, speedup_low=2.9, speedup_high=3.1), Thresholds()).passed


def test_a_pipeline_gain_must_not_make_the_session_alone_slower() -> None:
    slower = Interval(math.log(0.8), math.log(0.78), math.log(0.82), 0.99)
    gate = pays(FAST, FAST, Thresholds(), alone=slower)
    assert not gate.passed
    assert "0.80x [0.78, ...] when the session runs alone" in gate.detail
    equal = Interval(0.0, math.log(0.98), math.log(1.02), 0.99)
    assert pays(FAST, FAST, Thresholds(), alone=equal).passed


def test_a_pipeline_duel_goes_on_until_the_session_alone_is_decided_too() -> None:
    wide = Interval(0.0, math.log(0.85), math.log(1.15), 0.99)
    assert is_settled(FAST, Thresholds())
    assert not is_settled(FAST, Thresholds(), alone=wide)


def test_a_session_that_cannot_be_created_fails_with_onnxruntimes_words() -> None:
    assert compiles(None, 0, "NOT_IMPLEMENTED : no kernel").detail == "NOT_IMPLEMENTED : no kernel"
    assert compiles(12.3, 1).detail == "created in 12 ms, runs on 1 input"


def test_both_hosts_have_the_methods_of_the_contract_with_the_same_arguments() -> None:
    for name in ("describe", "prepare", "race", "duel", "close"):
        wanted = list(inspect.signature(getattr(TrialHost, name)).parameters)
        for host in (ChildTrialHost, FakeTrialHost):
            assert list(inspect.signature(getattr(host, name)).parameters) == wanted, (host, name)


def test_the_fake_host_follows_its_script_through_the_real_gates() -> None:
    lossy, gone = Strategy(session_config={"a": "1"}), Strategy(session_config={"b": "1"})
    host = FakeTrialHost(
        {ONE_THREAD: Scripted(speedup=2.0), lossy: Scripted(error=1e-2), gone: Scripted(failure="it crashed")}
    )
    candidates = [Proposal(strategy, "rules", "because") for strategy in (ONE_THREAD, lossy, gone)]
    won, wrong, dead = host.race(SETUP, candidates, Thresholds(), math.inf)
    assert host.duel(SETUP, won, Thresholds(), math.inf).passed
    assert [gate.name for gate in wrong.gates if not gate.passed] == ["accurate"]
    assert dead.verdict == "it crashed"
    host.close()
    assert host.calls == ["race", "duel", "close"]


def test_the_fake_host_runs_out_of_time_on_a_fake_clock() -> None:
    clock = FakeClock()
    host = FakeTrialHost(lambda strategy: Scripted(speedup=2.0, cost_s=4.0), clock=clock)
    candidates = [Proposal(Strategy(session_config={"n": str(n)}), "rules", "") for n in range(3)]
    trials = host.race(SETUP, candidates, Thresholds(), deadline=10.0)
    assert [trial.failure is None for trial in trials] == [True, True, False]
    assert "no time left" in str(trials[2].failure)
    assert clock.now_s() == 10.0


def test_the_fake_host_raises_what_it_is_told_to() -> None:
    with pytest.raises(InputsError, match="none fits"):
        FakeTrialHost(feeds=InputsError("none fits")).prepare(SETUP, math.inf)
