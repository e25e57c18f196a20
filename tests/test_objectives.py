"""What tail, throughput and memory are judged by: turns on a clock that moves only when told, gates on made figures."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ort_metainfer.adapt import policy_of, settings_for
from ort_metainfer.confirming import contenders
from ort_metainfer.decision import Proposal, Timing
from ort_metainfer.errors import TrialCrashed, TrialTimeout
from ort_metainfer.problem import SessionSpec
from ort_metainfer.settings import Settings
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials import gates
from ort_metainfer.trials.callers import call_at_once
from ort_metainfer.trials.channel import setup_from, setup_plain, thresholds_from, thresholds_plain
from ort_metainfer.trials.course import Course
from ort_metainfer.trials.duel import judge, look_at, verdict
from ort_metainfer.trials.fake import FakeClock, FakeTrialHost, Scripted
from ort_metainfer.trials.peaks import MAX_PAIRS, confirm, weigh_all, with_peaks
from ort_metainfer.trials.task import MIN_MEMORY_GAIN, Setup, Thresholds
from ort_metainfer.trials.timing import LOOKS, MAX_ROUNDS, Turn, compare, quantile, still_within
from ort_metainfer.trials.turn import PERIOD_MS, SPINNING_MS, TurnPlan, take_turn
from tests.made_problems import trial
from tests.test_adapt import BIG_GRAPH, QUIET, ask, favour

BASELINE = ("baseline", "baseline_again")
NO_PATTERN = Strategy(session_options={"enable_mem_pattern": False})
ONE_THREAD = Strategy(session_options={"intra_op_num_threads": 1})


# turns


class Quota:
    """A process that may use ``cores`` of each period: whoever spent that sleeps until the next one begins."""

    def __init__(self, cores: float, period_s: float = PERIOD_MS / 1000) -> None:
        self.clock, self.cores, self.period_s, self._spent_s, self._period = FakeClock(), cores, period_s, 0.0, 0

    def run(self, work_s: float, threads: int) -> None:
        """A run that keeps ``threads`` busy for ``work_s`` of CPU time in all."""
        left_s = work_s
        while left_s > 1e-12:
            if (period := int(self.clock.now_s() / self.period_s + 1e-9)) > self._period:
                self._period, self._spent_s = period, 0.0
            step_s = min(left_s, max(0.0, self.cores * self.period_s - self._spent_s))
            if step_s <= 1e-12:
                self.clock.time_s = (self._period + 1) * self.period_s
                continue
            self._spent_s += step_s
            self.clock.work(step_s / threads)
            left_s -= step_s


def test_a_turn_of_the_tail_shows_what_a_quota_does_to_a_pool_that_is_too_large() -> None:
    plan = TurnPlan.of(2.0, "tail", has_quota=True)
    pool, single = Quota(1.0), Quota(1.0)
    many = take_turn(lambda: pool.run(0.008, 4), plan, pool.clock)
    alone = take_turn(lambda: single.run(0.008, 1), plan, single.clock)
    assert many.median_ms == pytest.approx(2.0), "most runs are fast"
    assert many.figure_ms > 70, "and one in twelve waits for the next period"
    assert alone.figure_ms < 10
    rested = take_turn(lambda: pool.run(0.008, 4), TurnPlan(), pool.clock)
    assert max(rested.runs_ms) < 10, "a short turn after a rest shows nothing of it"


@pytest.mark.parametrize("has_quota", [False, True])
@pytest.mark.parametrize("latency_ms", [0.01, 1.0, 20.0, 400.0])
def test_turns_of_the_tail_are_as_many_runs_for_every_session(latency_ms: float, has_quota: bool) -> None:
    plan = TurnPlan.of(latency_ms, "tail", has_quota=has_quota)
    counts = []
    for factor in (0.5, 1.0, 2.0):  # how a candidate compares
        clock = FakeClock()
        turn = take_turn(lambda clock=clock, factor=factor: clock.work(latency_ms * factor / 1000), plan, clock)  # type: ignore[misc]
        counts.append(len(turn.runs_ms))
        assert turn.share == 0.99 and turn.pace_ms is None
    assert len(set(counts)) == 1, "the slowest of more runs is slower"
    assert counts[0] >= 10
    clock = FakeClock()
    take_turn(lambda: clock.work(latency_ms / 1000), plan, clock)
    assert plan.seconds(latency_ms) == pytest.approx(clock.now_s(), rel=0.2, abs=0.03)


def test_a_long_turn_does_not_rest_but_outlasts_the_spinning_of_the_one_before() -> None:
    clock, spun = FakeClock(), []
    clock.work(0.001, spin_s=0.050)

    def run() -> None:
        spun.append(clock.now_s())
        clock.work(0.002)

    turn = take_turn(run, TurnPlan.of(2.0, "tail"), clock)
    assert len(spun) > len(turn.runs_ms)
    assert spun[len(spun) - len(turn.runs_ms)] - spun[0] >= SPINNING_MS / 1000
    assert turn.cpu_ms == pytest.approx(2.0), "CPU time of the timed runs only"


@pytest.mark.parametrize("callers", [1, 2, 5])
def test_callers_share_the_runs_and_none_is_lost(callers: int) -> None:
    lock, runs = threading.Lock(), [0]

    def run() -> None:
        with lock:
            runs[0] += 1

    began: list[int] = []
    called = call_at_once(run, callers, 40, 0.0, FakeClock().now_s, lambda: began.append(runs[0]))
    assert len(called.runs_ms) == 40
    assert began == [callers], "each ran once before the timing, which began once"
    assert runs[0] == 40 + callers


def test_the_callers_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3)
    call_at_once(lambda: meeting.wait(20), 3, 3, 0.0, FakeClock().now_s)  # a caller alone would wait in vain


def test_what_a_caller_raises_is_raised_and_nobody_hangs() -> None:
    lock, runs = threading.Lock(), [0]

    def run() -> None:
        with lock:
            runs[0] += 1
            if runs[0] == 5:
                raise ValueError("the fifth run")

    with pytest.raises(ValueError, match="the fifth run"):
        call_at_once(run, 3, 1000, 0.0, FakeClock().now_s)
    assert runs[0] < 20
    with pytest.raises(ZeroDivisionError):
        call_at_once(lambda: 1 / 0, 3, 10, 0.0, FakeClock().now_s)


def test_a_turn_of_throughput_is_judged_by_the_time_all_callers_took() -> None:
    clock, lock = FakeClock(), threading.Lock()

    def run() -> None:
        with lock:  # one after the other: three callers gain nothing
            clock.work(0.010)

    turn = take_turn(run, TurnPlan.of(10.0, "throughput", callers=3), clock)
    assert turn.pace_ms is not None
    assert turn.figure_ms == turn.pace_ms == pytest.approx(10.0)
    assert len(turn.runs_ms) == 15
    assert TurnPlan.of(500.0, "throughput", callers=3).runs == 12, "each caller gets some runs"


@pytest.mark.parametrize("turn", [Turn((1.0, 2.0), 3.0, 4, 0.99), Turn((1.0,), 1.0, None, 0.5, 0.25), Turn((1.0,))])
def test_turns_of_every_objective_survive_json(turn: Turn) -> None:
    assert Turn.from_dict(turn.as_dict()) == turn
    if turn == Turn((1.0,)):
        assert set(turn.as_dict()) == {"runs_ms", "cpu_ms", "switches"}, "as it always was"


def test_the_setup_and_thresholds_of_an_objective_reach_the_child() -> None:
    setup = Setup(Path("m.onnx"), SessionSpec(), Path("feeds"), objective="throughput", callers=7)
    assert setup_from(setup_plain(setup)) == setup
    thresholds = Thresholds().aiming("memory", 1.3)
    assert thresholds_from(thresholds_plain(thresholds)) == thresholds
    assert (thresholds.min_speedup, thresholds.max_slowdown) == (MIN_MEMORY_GAIN, 1.3)
    assert Thresholds().aiming("tail").min_speedup == Thresholds().min_speedup


# statistics on made samples


def noisy_runs(generator: random.Random, count: int, level: float, stalls: float) -> Turn:
    """Runs with lognormal noise, of which a share ``stalls`` takes five times as long."""
    runs = [
        level * math.exp(generator.gauss(0, 0.05)) * (5 if generator.random() < stalls else 1) for _ in range(count)
    ]
    return Turn(tuple(runs), share=0.99)


def tail_duel(
    generator: random.Random, level: float, stalls: float, count: int = 40, base_stalls: float = 0.2
) -> tuple[Timing | None, bool]:
    """A duel against a baseline of level 10."""
    thresholds, rounds = Thresholds().aiming("tail"), list[dict[str, Turn]]()
    while len(rounds) < MAX_ROUNDS:
        base = {name: noisy_runs(generator, count, 10.0, base_stalls) for name in BASELINE}
        own = {name: noisy_runs(generator, count, level, stalls) for name in ("candidate", "candidate_again")}
        rounds.append(base | own)
        look = look_at(rounds, thresholds)
        if look is not None and look.is_over:
            break
    timing, gate = verdict(None, rounds, thresholds)
    return timing, gate.passed


def test_a_tail_never_pays_against_itself() -> None:
    generator = random.Random(21)
    adopted = sum(tail_duel(generator, 10.0, 0.05, count=12, base_stalls=0.05)[1] for _ in range(200))
    assert adopted <= 0.02 * 200


def test_a_slower_median_without_stalls_has_the_better_tail_and_is_adopted() -> None:
    generator = random.Random(22)
    outcomes = [tail_duel(generator, 13.0, 0.0) for _ in range(30)]
    assert all(passed for _, passed in outcomes)
    timing, _ = outcomes[0]
    assert timing is not None and timing.p99_ms is not None and timing.baseline_p99_ms is not None
    assert timing.p50_ms > timing.baseline_p50_ms
    assert timing.baseline_p99_ms / timing.p99_ms == pytest.approx(timing.speedup, rel=0.25)


def test_a_faster_median_with_the_same_stalls_is_not_adopted_for_the_tail() -> None:
    generator = random.Random(23)

    def rounds_of(count: int) -> list[dict[str, Turn]]:
        made = []
        for _ in range(count):
            level = {"baseline": 10.0, "baseline_again": 10.0, "candidate": 5.0, "candidate_again": 5.0}
            made.append(
                {
                    name: Turn((*[ms] * 30, *[50 * math.exp(generator.gauss(0, 0.05))] * 3), share=0.99)
                    for name, ms in level.items()
                }
            )
        return made

    _, gate = verdict(None, rounds_of(MAX_ROUNDS), Thresholds().aiming("tail"))
    assert not gate.passed and gate.detail.startswith("P99 ")
    assert verdict(None, [{n: replace(t, share=0.5) for n, t in r.items()} for r in rounds_of(8)], Thresholds())[
        1
    ].passed


def test_stalls_too_rare_for_most_turns_count_all_the_same() -> None:
    """One turn in twelve meets stalls: the median of the ratios sees nothing of it, all runs together do."""
    fine, stalled, base = (Turn(runs, share=0.99) for runs in ((5.0,) * 20, (5.0,) * 14 + (1000.0,) * 6, (10.0,) * 20))
    rounds = [
        {"baseline": base, "baseline_again": base, "candidate": stalled if i == 3 else fine, "candidate_again": fine}
        for i in range(12)
    ]
    timing, gate = verdict(None, rounds, Thresholds().aiming("tail"))
    assert timing is not None and timing.speedup_low == pytest.approx(2.0)
    assert not gate.passed and "not below the default's P99 over all runs together" in gate.detail


def paced(generator: random.Random, pace_ms: float, noise: float = 0.02) -> Turn:
    pace = pace_ms * math.exp(generator.gauss(0, noise))
    return Turn((pace * 4,) * 8, pace, share=0.5, pace_ms=pace)


@pytest.mark.parametrize(("gain", "least", "most"), [(1.0, 0.0, 0.02), (1.10, 0.9, 1.0)])
def test_more_runs_a_second_pay_and_as_many_do_not(gain: float, least: float, most: float) -> None:
    generator, thresholds, adopted = random.Random(24), Thresholds().aiming("throughput"), 0
    for _ in range(300):
        rounds: list[dict[str, Turn]] = []
        while len(rounds) < MAX_ROUNDS:
            paces = {"candidate": 10 / gain, "candidate_again": 10 / gain, "baseline": 10.0, "baseline_again": 10.0}
            rounds.append({name: paced(generator, pace) for name, pace in paces.items()})
            look = look_at(rounds, thresholds)
            if look is not None and look.is_over:
                break
        timing, gate = verdict(None, rounds, thresholds)
        adopted += gate.passed
        assert timing is not None and timing.runs_per_s is not None and timing.baseline_runs_per_s is not None
        assert timing.runs_per_s / timing.baseline_runs_per_s == pytest.approx(gain, rel=0.1)
        assert timing.p50_ms == pytest.approx(40 / gain, rel=0.1), "a run among others takes longer"
    assert least * 300 <= adopted <= most * 300
    assert "runs/s against" in gate.detail


def latency(slowdown: float, spread: float = 0.01, rounds: int = 12) -> Timing:
    low, high = (math.exp(sign * spread) / slowdown for sign in (-1, 1))
    return Timing(rounds, 10.0, 11.0, 10 * slowdown, 11 * slowdown, 1 / slowdown, low, high, 1.01)


MEMORY = Thresholds().aiming("memory", 1.1)


def test_peaks_take_the_place_of_the_latencys_ratio() -> None:
    timing = with_peaks(latency(1.05), [100.0, 101.0] * 3, [80.0, 80.8] * 3, 0.95)
    assert timing.speedup == pytest.approx(1.25)
    assert (timing.baseline_peak_mb, timing.peak_mb) == pytest.approx((100.5, 80.4))
    assert timing.slowdown == pytest.approx(1.05)
    assert timing.slowdown_high is not None and timing.slowdown_high > 1.05
    assert timing.band == pytest.approx(1.01) and timing.rounds == 6
    gate = gates.pays(None, timing, MEMORY)
    assert gate.passed
    assert gate.detail.startswith("peak 80.4 MB against 100.5, a run takes 1.05 times as long")
    assert "over 6 pairs of processes" in gate.detail


@pytest.mark.parametrize(
    ("own_mb", "why"),
    [
        ([99.0, 98.0, 99.5, 99.0, 98.5, 99.0], "not wholly above the 1.05 asked for"),
        ([60.0, 99.0, 70.0, 80.0, 70.0, 60.0], "not wholly above the 1.05 asked for"),
        ([90.0, 94.9, 90.0, 90.0, 90.0, 90.0], "not outside the A/A band of 1.05"),
    ],
)
def test_less_memory_must_be_clear_of_what_identical_processes_differ_by(own_mb: list[float], why: str) -> None:
    gate = gates.pays(None, with_peaks(latency(1.0), [100.0] * 6, own_mb, 0.95), MEMORY)
    assert not gate.passed and why in gate.detail


def test_less_than_a_megabyte_is_not_worth_it() -> None:
    gate = gates.pays(None, with_peaks(latency(1.0), [2.0] * 6, [1.5] * 6, 0.95), MEMORY)
    assert not gate.passed and "less than 1 MB" in gate.detail


@pytest.mark.parametrize(
    ("slowdown", "spread", "passed", "words"),
    [
        (1.0, 0.01, True, "a run takes 1.00 times as long"),
        (1.05, 0.01, True, "1.10 times is allowed"),
        (1.5, 0.01, False, "a run takes 1.50 times as long"),
        (1.05, 0.2, False, "not certain, a larger budget_s would tell"),
    ],
)
def test_the_latency_bound_must_hold_by_the_whole_interval(
    slowdown: float, spread: float, passed: bool, words: str
) -> None:
    gate = gates.bounded(latency(slowdown, spread), MEMORY)
    assert gate.passed is passed and words in gate.detail
    assert not gates.is_bounded(latency(1.0, rounds=3), MEMORY), "three rounds tell nothing"


def timed(generator: random.Random, count: int, **slowdowns: float) -> list[dict[str, Turn]]:
    sessions = {"baseline": 1.0, "baseline_again": 1.0} | slowdowns
    return [
        {name: Turn((10 * slow * math.exp(generator.gauss(0, 0.01)),)) for name, slow in sessions.items()}
        for _ in range(count)
    ]


def test_nobody_races_for_memory_each_keeps_a_bound() -> None:
    rounds = timed(random.Random(3), LOOKS[1], fast=0.8, fine=1.02, slow=1.6)
    assert still_within(rounds, ["fast", "fine", "slow"], BASELINE, 0.95, 1.1) == (["fast", "fine"], True)
    assert still_within(rounds[:6], ["slow"], BASELINE, 0.95, 1.1) == (["slow"], False), "between looks"


def test_a_duel_for_memory_ends_when_the_bound_is_decided_and_its_gate_says_so() -> None:
    for slowdown, passed in ((1.0, True), (1.5, False)):
        rounds = timed(random.Random(4), 8, candidate=slowdown, candidate_again=slowdown)
        look = look_at(rounds, MEMORY)
        assert look is not None and look.is_over
        course = Course([rounds])  # type: ignore[list-item]
        timing, gate = judge(None, course, MEMORY)
        assert timing is not None and gate.passed is passed and "times as long" in gate.detail


class Scales:
    """Weighs strategies by a script; counts how often."""

    def __init__(self, peaks_mb: dict[Strategy, float], error: Exception | None = None) -> None:
        self.peaks_mb, self.error, self.asked = peaks_mb, error, list[Strategy]()

    def __call__(self, strategy: Strategy) -> float:
        self.asked.append(strategy)
        if self.error is not None:
            raise self.error
        return self.peaks_mb[strategy]


def test_a_duel_weighs_pairs_until_the_gain_is_certain() -> None:
    scales = Scales({Strategy(): 100.0, NO_PATTERN: 60.0})
    timing, gate = confirm(None, latency(1.0), NO_PATTERN, MEMORY, scales)
    assert gate.passed and timing is not None and timing.rounds == 5
    doubtful = Scales({Strategy(): 100.0, NO_PATTERN: 95.0})
    timing, gate = confirm(None, latency(1.0), NO_PATTERN, MEMORY, doubtful)
    assert timing is not None and timing.rounds <= MAX_PAIRS
    assert doubtful.asked.count(NO_PATTERN) == doubtful.asked.count(Strategy())


def test_a_duel_without_peaks_is_not_passed_and_says_why() -> None:
    timing, gate = confirm(None, latency(1.0), NO_PATTERN, MEMORY, Scales({}, TrialTimeout("killed after 2 s")))
    assert timing is None and not gate.passed and "killed after 2 s" in gate.detail


def test_a_race_weighs_everyone_once_and_the_default_twice() -> None:
    scales = Scales({Strategy(): 100.0, NO_PATTERN: 50.0, ONE_THREAD: 100.0})
    raced = [
        replace(trial(NO_PATTERN, 1.0), timing=latency(1.0)),
        replace(trial(ONE_THREAD, 1.0), timing=latency(1.5, spread=0.5)),
        trial(Strategy(session_config={"a": "1"}), failed="accurate"),
    ]
    light, slow, wrong = weigh_all(raced, MEMORY, scales, deadline=math.inf)
    assert scales.asked.count(Strategy()) == 2 and len(scales.asked) == 4
    assert light.timing is not None and light.timing.speedup == pytest.approx(2.0) and light.peak_memory_mb == 50.0
    assert slow.gates[-1].name == "pays" and "1.50 times as long" in slow.gates[-1].detail
    assert wrong == raced[2]
    assert contenders([light, slow, wrong], None, MEMORY.min_speedup) == [light]


def test_what_cannot_be_weighed_costs_its_own_trial_only() -> None:
    raced = [replace(trial(NO_PATTERN, 1.0), timing=latency(1.0))]
    (crashed,) = weigh_all(raced, MEMORY, Scales({}, TrialCrashed("signal 11")), deadline=math.inf)
    assert crashed.failure == "its memory: signal 11" and crashed.timing is None
    (late,) = weigh_all(raced, MEMORY, Scales({Strategy(): 1.0, NO_PATTERN: 1.0}), deadline=0.0)
    assert "no time left" in str(late.failure)


# the whole story, with a host that follows a script


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ort_metainfer.hardware.state.observe", lambda *_: QUIET)


OPTION = {
    "tail": "intra_op_num_threads",
    "throughput": "session.intra_op.allow_spinning",
    "memory": "enable_mem_pattern",
    "latency": "graph_optimization_level",
}


@pytest.mark.parametrize("objective", OPTION)
def test_a_strategy_that_gains_what_was_asked_for_is_adopted_for_that_alone(
    objective: str, quiet: None, tiny_model: Callable[..., Path]
) -> None:
    model = tiny_model("MatMul")
    host = FakeTrialHost(favour(OPTION[objective], speedup=1.6), graph=BIG_GRAPH)
    decision = ask(model, host, objective=objective)
    chosen = decision.strategy
    assert OPTION[objective] in {*chosen.session_options, *chosen.session_config}
    assert decision.winner is not None and decision.winner.duel is not None
    told = decision.winner.duel
    figures = {"tail": told.p99_ms, "throughput": told.runs_per_s, "memory": told.peak_mb}
    assert {name for name, value in figures.items() if value is not None} == {objective} - {"latency"}
    assert ask(model, objective=objective).cache == "hit"
    others = set(OPTION) - {objective}
    for other in others:
        assert ask(model, FakeTrialHost(graph=BIG_GRAPH), objective=other).cache == "miss", "another key"


def test_less_memory_at_the_price_of_a_slow_run_is_not_adopted(quiet: None, tiny_model: Callable[..., Path]) -> None:
    host = FakeTrialHost(favour("enable_mem_pattern", speedup=2.0, slowdown=1.3), graph=BIG_GRAPH)
    assert ask(tiny_model("MatMul"), host, objective="memory").strategy.is_default
    loose = FakeTrialHost(favour("enable_mem_pattern", speedup=2.0, slowdown=1.3), graph=BIG_GRAPH)
    assert not ask(tiny_model("MatMul"), loose, objective="memory", max_slowdown=1.5).strategy.is_default


def key(**settings: Any) -> str:
    return str(policy_of(settings_for(Settings(**settings))[0], SessionSpec()))


def test_what_an_objective_depends_on_is_part_of_the_key_and_nothing_else_is() -> None:
    assert len({key(objective=objective) for objective in (*OPTION, "pipeline")}) == 5
    assert key(objective="throughput", callers=4) != key(objective="throughput", callers=5)
    assert key(objective="throughput") == key(objective="throughput"), "the default is a number, not chance"
    assert key(objective="memory", max_slowdown=1.2) != key(objective="memory")
    assert key(callers=9, max_slowdown=3.0) == key(), "latency depends on neither"
    assert key().split("|")[1] == "latency"


def test_the_quantile_of_few_runs_is_their_slowest() -> None:
    assert Turn((1.0, 9.0, 2.0), share=0.99).figure_ms == 9.0
    runs = tuple(float(i) for i in range(1, 201))
    assert Turn(runs, share=0.99).figure_ms == quantile(runs, 0.99) == 198.0


def test_figures_of_an_objective_come_from_its_turns_only() -> None:
    plain = [{"baseline": Turn((2.0,)), "0": Turn((1.0,))}] * 5
    timing = compare(plain, ["0"], ["baseline"], 0.95)
    assert timing is not None
    assert (timing.p99_ms, timing.runs_per_s, timing.peak_mb) == (None, None, None)


def proposals_for(strategies: Sequence[Strategy]) -> list[Proposal]:
    return [Proposal(strategy, "rules", "") for strategy in strategies]


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["tail", "throughput", "memory"])
def test_real_children_time_each_objective(objective: str, tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    from ort_metainfer.trials.client import ChildTrialHost

    feeds = tmp_path / "feeds"
    feeds.mkdir()
    np.savez(feeds / "0.npz", x=np.ones((1, 8), np.float32))
    setup = Setup(tiny_model("MatMul"), SessionSpec(), feeds, objective=objective, callers=3)
    thresholds = Thresholds().aiming(objective)
    with ChildTrialHost() as host:
        raced = host.race(setup, proposals_for([NO_PATTERN]), thresholds, time.monotonic() + 8)
        (done,) = raced
        assert done.failure is None and done.timing is not None
        confirmed = host.duel(setup, done, thresholds, time.monotonic() + 8)
    assert confirmed.gates[-1].name == "pays" and confirmed.duel is not None
    told = confirmed.duel
    assert {"tail": told.p99_ms, "throughput": told.runs_per_s, "memory": told.peak_mb}[objective] is not None


def test_a_script_for_memory_goes_through_the_real_gates() -> None:
    host = FakeTrialHost({NO_PATTERN: Scripted(speedup=1.5, slowdown=1.2)})
    setup = Setup(Path("m"), SessionSpec(), Path("f"), objective="memory")
    (raced,) = host.race(setup, proposals_for([NO_PATTERN]), MEMORY, math.inf)
    assert "1.20 times as long" in host.duel(setup, raced, MEMORY, math.inf).verdict
