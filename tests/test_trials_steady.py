"""Rounds taken while the machine changed never count beside those taken before or after; and warming up ends."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ort_metainfer.decision import Gate, Proposal
from ort_metainfer.hardware.drift import drift
from ort_metainfer.problem import HardwareState
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.course import ENOUGH_ROUNDS, MAX_ASIDE, Course, Sieve
from ort_metainfer.trials.duel import UNSTEADY, judge, look_at
from ort_metainfer.trials.fake import FakeClock
from ort_metainfer.trials.ledger import Ledger
from ort_metainfer.trials.steady import COOLING_SHARE, MEASURING_CAP_S, SteadyRounds
from ort_metainfer.trials.task import Thresholds
from ort_metainfer.trials.timing import LOOKS, MAX_ROUNDS, MIN_ROUNDS, Turn, look_allowance
from ort_metainfer.trials.turn import TurnPlan, take_turn
from ort_metainfer.trials.warmup import MAX_RUNS, have_settled, warm_up

CALM = HardwareState(when=0.0, window_s=1.0, others_cpu=0.0, steal=0.0, temperature_c=50.0, throttled="")
BUSY = replace(CALM, others_cpu=1.5)
HOT = replace(CALM, temperature_c=80.0)
THROTTLED = replace(CALM, throttled="2 thermal events of a package")
NAMES = ("candidate", "baseline", "baseline_again", "candidate_again")


def turns(speedup: float, generator: random.Random | None = None, noise: float = 0.01) -> dict[str, Turn]:
    figures = {}
    for name in NAMES:
        ms = 10.0 / (speedup if name.startswith("candidate") else 1.0)
        figures[name] = Turn((ms * math.exp(generator.gauss(0, noise)) if generator else ms,), ms)
    return figures


class FakeLaps:
    """States in the order given; the last one stays."""

    def __init__(self, *states: HardwareState) -> None:
        self.states = list(states)

    def lap(self) -> HardwareState:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


class FakeBench:
    """A bench whose rounds take ``round_s`` of a clock that moves only by them."""

    def __init__(self, until: float = 100.0, round_s: float = 1.0, speedups: Sequence[float] = (2.0,)) -> None:
        self.clock, self.until, self.round_s, self.plan = FakeClock(), until, round_s, TurnPlan()
        self.sessions = dict.fromkeys(NAMES)
        self.speedups, self.rounds, self.events = list(speedups), [], []
        self.speaker = SimpleNamespace(say=lambda event, **fields: self.events.append({"event": event, **fields}))

    def round(self, names: Sequence[str], alone: object = None) -> dict[str, Turn]:
        self.clock.work(self.round_s)
        return turns(self.speedups.pop(0) if len(self.speedups) > 1 else self.speedups[0])

    def keep(self, taken: dict[str, Turn]) -> None:
        self.rounds.append(taken)
        self.say_round("round", taken)

    def say_round(self, event: str, taken: dict[str, Turn], **fields: Any) -> None:
        plain = {name: turn.as_dict() for name, turn in taken.items()}
        self.speaker.say(event, turns=plain, **fields)


def steady_on(bench: FakeBench, *states: HardwareState) -> SteadyRounds:
    """Rounds on ``bench`` in a machine of these states, the first being that before the timing."""
    rounds = SteadyRounds(bench, FakeLaps(*states), bench.clock.now_s)  # type: ignore[arg-type]
    rounds.begin()
    return rounds


def heard(bench: FakeBench) -> Course:
    """What the parent makes of what the child said."""
    course = Course()
    for event in bench.events:
        course.note(event)
    return course


def test_a_round_during_which_load_came_is_set_aside_and_taken_again() -> None:
    bench = FakeBench(speedups=[2.0, 2.0, 0.5, 2.0])
    rounds = steady_on(bench, CALM, CALM, CALM, BUSY, CALM)
    assert [rounds.take(NAMES) for _ in range(5)] == [True, True, False, True, True]
    assert len(bench.rounds) == 4, "the set-aside round is not counted, so that the next one is on the same input"
    course = heard(bench)
    assert (len(course.rounds), len(course.aside)) == (4, 1)
    assert course.flags() == ("1 of 5 rounds set aside, since other processes' load went from 0.0 to 1.5 cores",)
    assert rounds.states()["after"]["others_cpu"] == 0.0, "the state is that of the rounds that count"


def test_turns_are_longer_where_something_else_keeps_the_machine_busy() -> None:
    quiet, busy, hurried = FakeBench(), FakeBench(), FakeBench(until=2.0)
    steady_on(quiet, CALM)
    steady_on(busy, BUSY)
    steady_on(hurried, BUSY)
    assert hurried.plan == TurnPlan(), "too few of them would be had"
    assert quiet.plan == TurnPlan() and busy.plan.min_total_ms > 4 * quiet.plan.min_total_ms
    for plan in (TurnPlan.of(200.0), TurnPlan.of(5.0, "tail")):
        assert plan.under_load() == plan, "a slow model's turn is long as it is"


def test_a_change_that_stays_begins_a_new_series_once() -> None:
    bench = FakeBench()
    rounds = steady_on(bench, *[CALM] * 4, *[BUSY] * 5, *[CALM] * 4)
    assert [rounds.take(NAMES) for _ in range(11)] == [True] * 3 + [False] + [True] * 4 + [False] * 3
    course = heard(bench)
    assert [len(series) for series in course.series] == [3, 4]
    assert len(course.aside) == 4
    assert "timed again after 3 rounds, since other processes' load" in course.flags()[0]
    assert rounds.states()["after"]["others_cpu"] == 1.5


def test_a_long_series_is_not_begun_anew() -> None:
    bench = FakeBench(until=60.0)
    rounds = steady_on(bench, *[CALM] * (ENOUGH_ROUNDS + 1), BUSY)
    while rounds.has_time:
        rounds.take(NAMES)
    course = heard(bench)
    assert ([len(series) for series in course.series], len(course.aside)) == ([ENOUGH_ROUNDS], MAX_ASIDE)


def test_a_new_series_is_not_begun_without_time_for_it() -> None:
    bench = FakeBench(until=8.0)
    rounds = steady_on(bench, *[CALM] * 5, BUSY)
    while rounds.has_time:
        rounds.take(NAMES)
    assert [len(series) for series in heard(bench).series] == [4]


def test_a_machine_that_was_in_another_state_before_costs_one_round() -> None:
    bench = FakeBench()
    rounds = steady_on(bench, BUSY, CALM)
    assert [rounds.take(NAMES) for _ in range(4)] == [False, True, True, True]
    assert [len(series) for series in heard(bench).series] == [3]


@given(st.lists(st.sampled_from([CALM, BUSY, HOT, THROTTLED]), min_size=1, max_size=40), st.booleans())
def test_rounds_of_one_series_never_differ_from_its_first(states: list[HardwareState], has_time: bool) -> None:
    sieve, series = Sieve(CALM), [[]]
    for state in states:
        sifted = sieve.sift(state, has_time)
        if sifted.restarts and series[-1]:
            series.append([])
        if sifted.keeps:
            series[-1].append(state)
            assert not drift(series[-1][0], state)
        else:
            assert sifted.reasons, "nothing is set aside without a reason"
    assert len(series) <= 2


@given(st.lists(st.sampled_from([CALM, BUSY, HOT, THROTTLED]), min_size=2, max_size=40), st.floats(2.0, 60.0))
def test_parent_and_child_agree_on_what_counts(states: list[HardwareState], until: float) -> None:
    bench = FakeBench(until=until)
    rounds = steady_on(bench, *states)
    while rounds.has_time and len(bench.rounds) < MAX_ROUNDS:
        rounds.take(NAMES)
    assert heard(bench).series == rounds.course.series
    assert len(heard(bench).aside) == len(rounds.course.aside)
    assert bench.clock.now_s() <= until, "no contest passes its deadline"


@given(st.floats(0.05, 3.0), st.floats(2.0, 50.0))
def test_pauses_for_heat_never_take_more_than_their_share(round_s: float, rounds_allowed: float) -> None:
    until = round_s * rounds_allowed + 0.1
    bench = FakeBench(until=until, round_s=round_s)
    rounds = steady_on(bench, CALM, THROTTLED)
    while rounds.has_time:
        rounds.take(NAMES)
    assert bench.clock.now_s() <= until
    assert sum(event["seconds"] for event in bench.events if event["event"] == "cooled") <= COOLING_SHARE * until + 1e-9


def test_a_pause_ends_when_the_heat_has_gone() -> None:
    bench = FakeBench()
    rounds = steady_on(bench, CALM, CALM, HOT, HOT, HOT, CALM)
    assert [rounds.take(NAMES) for _ in range(3)] == [True, False, True]
    (pause,) = [event["seconds"] for event in bench.events if event["event"] == "cooled"]
    assert pause == pytest.approx(0.75)
    assert heard(bench).flags()[0] == "paused for 0.8 s because of heat"


def test_load_is_not_waited_for() -> None:
    bench = FakeBench()
    rounds = steady_on(bench, CALM, CALM, BUSY)
    rounds.take(NAMES)
    rounds.take(NAMES)
    assert not [event for event in bench.events if event["event"] == "cooled"]


def test_a_machine_that_changes_all_the_time_is_not_waited_for() -> None:
    bench = FakeBench(until=1e6)
    rounds = steady_on(bench, CALM, THROTTLED)
    while rounds.has_time:
        rounds.take(NAMES)
    assert len(rounds.course.aside) == MAX_ASIDE


def test_timing_ends_after_a_while_whatever_the_budget() -> None:
    bench = FakeBench(until=1e6, round_s=1.0)
    rounds = steady_on(bench, CALM)
    while rounds.has_time:
        rounds.take(NAMES)
    assert bench.clock.now_s() == pytest.approx(MEASURING_CAP_S, abs=2)
    slow = FakeBench(until=1e6, round_s=100.0)
    rounds = steady_on(slow, CALM)
    while rounds.has_time:
        rounds.take(NAMES)
    assert len(slow.rounds) == MIN_ROUNDS, "a slow model gets the rounds for one look"


def test_the_states_are_told_at_each_look_so_that_a_killed_child_has_told_them() -> None:
    bench = FakeBench()
    rounds = steady_on(bench, CALM)
    for _ in range(8):
        rounds.take(NAMES)
    told = [event for event in bench.events if event["event"] == "state"]
    assert len(told) == 2 and told[-1]["after"]["window_s"] == pytest.approx(8.0)


def course_of(kept: int, aside: int, speedup: float = 2.0, earlier: int = 0) -> Course:
    course = Course()
    for _ in range(earlier):
        course.keep(turns(1.0))
    if earlier:
        course.restart(["the clock went from 3000 to 2000 MHz"])
    for _ in range(kept):
        course.keep(turns(speedup))
    for _ in range(aside):
        course.set_aside(turns(speedup), ["the clock went from 3000 to 2500 MHz"])
    return course


def test_disturbed_rounds_are_never_averaged_in() -> None:
    course = course_of(kept=8, aside=0)
    for _ in range(8):
        course.set_aside(turns(0.1), ["load"])
    timing, gate = judge(None, course, Thresholds())
    assert gate.passed and timing is not None
    assert (timing.rounds, timing.speedup) == (8, pytest.approx(2.0))


def test_rounds_of_an_earlier_state_are_not_averaged_in_either() -> None:
    timing, gate = judge(None, course_of(kept=8, aside=1, earlier=12), Thresholds())
    assert gate.passed and timing is not None
    assert (timing.rounds, timing.speedup) == (8, pytest.approx(2.0))


def test_a_load_sensitive_strategy_does_not_pay_without_undisturbed_rounds() -> None:
    course = course_of(kept=2, aside=12)
    _, gate = judge(None, course, Thresholds(steady_only=True))
    assert not gate.passed
    assert gate.detail.startswith(f"{UNSTEADY}: 2 of 14 rounds were undisturbed; the clock went from 3000 to 2500")
    timing, gate = judge(None, course, Thresholds())
    assert gate.passed and timing is not None and timing.rounds == 12
    assert any("judged by disturbed rounds" in flag for flag in course.flags())
    assert not any("judged by disturbed rounds" in flag for flag in course.flags(steady_only=True))


def test_where_nothing_was_set_aside_too_few_rounds_are_a_lack_of_time() -> None:
    _, gate = judge(None, course_of(kept=0, aside=0), Thresholds(steady_only=True))
    assert "no time left" in gate.detail
    _, gate = judge(None, course_of(kept=4, aside=0), Thresholds(steady_only=True))
    assert not gate.passed and "too few rounds" in gate.detail


@given(earlier=st.integers(0, MAX_ROUNDS - 1), kept=st.integers(0, MAX_ROUNDS))
def test_the_looks_of_both_series_together_spend_no_more_error_than_allowed(earlier: int, kept: int) -> None:
    course = course_of(kept, 0, earlier=earlier)
    spent = sum(look_allowance(look, 0.95) for look in LOOKS if look <= earlier)
    basis = course.basis(0.95)
    if basis.rounds is course.rounds:
        spent += sum(look_allowance(look, basis.confidence) for look in LOOKS if look < kept)
        spent += look_allowance(max(1, kept), basis.confidence, final=True)
    else:
        spent = sum(look_allowance(look, 0.95) for look in LOOKS if look < earlier)
        spent += look_allowance(earlier, 0.95, final=True)
    assert spent <= 0.05 + 1e-9


def test_a_session_never_pays_against_itself_on_a_machine_that_changes() -> None:
    generator, states = random.Random(3), (CALM, CALM, CALM, CALM, BUSY, HOT)
    adopted = 0
    for _ in range(500):
        sieve, course = Sieve(CALM), Course()
        for _ in range(MAX_ROUNDS):
            taken, sifted = turns(1.0, generator, 0.03), sieve.sift(generator.choice(states), True)
            if sifted.restarts:
                course.restart(sifted.reasons)
            if not sifted.keeps:
                course.set_aside(taken, sifted.reasons)
                if len(course.aside) >= MAX_ASIDE:
                    break
                continue
            course.keep(taken)
            look = look_at(course.rounds, Thresholds(confidence=course.confidence(0.95)))
            if look is not None and look.is_over:
                break
        adopted += judge(None, course, Thresholds())[1].passed
    assert adopted <= 0.02 * 500


PASSED = [asdict(Gate("compiles", True, "created")), asdict(Gate("accurate", True, "equal"))]


def test_a_race_keeps_what_left_before_a_new_series_and_says_what_was_set_aside() -> None:
    ledger = Ledger([Proposal(Strategy(session_config={"n": str(n)}), "rules", "") for n in range(2)], Thresholds())
    for index in range(2):
        ledger.note({"event": "trial", "candidate": index, "trial": {"gates": PASSED}})

    def told(event: str, reasons: Sequence[str] = (), **ms: float) -> None:
        figures = {"baseline": 10.0, "baseline_again": 10.0, **{name.lstrip("c"): value for name, value in ms.items()}}
        plain = {name: Turn((value,), value).as_dict() for name, value in figures.items()}
        ledger.note({"event": event, "turns": plain, "reasons": list(reasons)})

    ledger.note({"event": "warmed", "session": "1", "runs": 9, "seconds": 0.25, "is_settled": False})
    ledger.note({"event": "warmed", "session": "baseline", "runs": 9, "seconds": 0.1, "is_settled": None})
    for _ in range(5):
        told("round", c0=20.0, c1=5.0)
    told("aside", ["the clock fell"], c1=1.0)
    ledger.note({"event": "restart", "reasons": ["the clock fell"]})
    for _ in range(6):
        told("round", c1=4.0)
    slow, fast = ledger.trials()
    assert slow.timing is not None and fast.timing is not None
    assert (slow.timing.rounds, slow.timing.speedup) == (5, pytest.approx(0.5))
    assert (fast.timing.rounds, fast.timing.speedup) == (6, pytest.approx(2.5))
    assert slow.flags == (
        "race: timed again after 5 rounds, since the clock fell",
        "race: 1 of 12 rounds set aside, since the clock fell",
    )
    assert fast.flags == ("race: its session had not settled after 9 runs in 0.25 s of warm-up", *slow.flags)


def warm(clock: FakeClock, latencies_ms: Sequence[float], cap_s: float = 10.0, **rest: Any) -> tuple[int, bool | None]:
    left = list(latencies_ms)

    def run() -> None:
        clock.work((left.pop(0) if len(left) > 1 else left[0]) / 1000)

    done = warm_up(run, clock, cap_s, **rest)
    assert done.seconds == pytest.approx(clock.now_s())
    return done.runs, done.is_settled


def test_warming_up_ends_when_three_windows_agree() -> None:
    assert warm(FakeClock(), [80, 40, 20, 10, 10, 10, 10]) == (6, True)
    assert warm(FakeClock(), [10]) == (3, True)


def test_a_latency_that_falls_step_by_step_has_not_settled() -> None:
    assert have_settled([10, 8, 6]) is False
    assert have_settled([10.0, 10.4, 9.8]) is True
    assert have_settled([10, 10]) is None


def test_a_fast_models_window_is_many_runs() -> None:
    assert warm(FakeClock(), [0.5]) == (30, True)
    assert warm(FakeClock(), [0.0]) == (300, True), "a clock too coarse to tell does not make it endless"


@given(
    st.lists(st.floats(0.001, 500.0), min_size=1, max_size=60),
    st.floats(0.0, 1.0),
    st.floats(0.0, 500.0),
)
def test_warming_up_begins_no_run_that_would_pass_its_cap(
    latencies: list[float], cap_s: float, expected_ms: float
) -> None:
    clock = FakeClock()
    runs, _ = warm(clock, latencies, cap_s, expected_ms=expected_ms)
    assert runs <= MAX_RUNS
    last_s = ([*latencies, *[latencies[-1]] * MAX_RUNS][runs - 1]) / 1000 if runs else 0.0
    assert clock.now_s() - last_s <= cap_s + 1e-9
    if expected_ms / 1000 >= cap_s:
        assert runs == 0


def test_a_slow_model_is_not_run_again_for_warmth_but_the_baseline_once() -> None:
    assert warm(FakeClock(), [2000], cap_s=0.3, expected_ms=2000) == (0, None)
    assert warm(FakeClock(), [2000], cap_s=0.3, min_runs=1) == (1, None)


def test_the_untimed_run_of_a_turn_stays() -> None:
    clock, runs = FakeClock(), []
    take_turn(lambda: (runs.append(0), clock.work(0.05)), TurnPlan.of(50.0), clock)
    assert len(runs) == 4
