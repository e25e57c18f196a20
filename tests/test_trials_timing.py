"""Paired statistics, the stopping rules, and turns on a clock that moves only when told."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from ort_metainfer.trials.duel import look_at, verdict
from ort_metainfer.trials.fake import FakeClock
from ort_metainfer.trials.task import Thresholds
from ort_metainfer.trials.timing import (
    LOOKS,
    MAX_ROUNDS,
    Turn,
    compare,
    interleave,
    interval_of_median,
    is_clear,
    is_trustworthy,
    log_ratios,
    look_allowance,
    quantile,
    still_in,
)
from ort_metainfer.trials.turn import REST_CAP_S, REST_WINDOW_S, TurnPlan, rest, take_turn

BASELINE = ("baseline", "baseline_again")


def turn(ms: float) -> Turn:
    return Turn((ms,), cpu_ms=ms)


@pytest.mark.parametrize(("count", "rank"), [(6, 1), (8, 1), (9, 2), (12, 3), (20, 6), (30, 10), (50, 18)])
def test_the_interval_of_the_median_has_the_ranks_of_published_tables(count: int, rank: int) -> None:
    """Ranks for 95%, e.g. Hahn and Meeker's table: n = 20 gives the 6th and the 15th value."""
    interval = interval_of_median([float(i) for i in range(1, count + 1)], 0.05)
    assert (interval.low, interval.high) == (rank, count + 1 - rank)
    assert interval.coverage >= 0.95


def test_five_values_cannot_give_95_percent_and_say_so() -> None:
    interval = interval_of_median([3.0, 1.0, 2.0, 5.0, 4.0], 0.05)
    assert (interval.low, interval.middle, interval.high) == (1.0, 3.0, 5.0)
    assert interval.coverage == pytest.approx(0.9375)


def test_one_value_is_its_own_interval_and_covers_nothing() -> None:
    assert interval_of_median([2.0], 0.05).coverage == 0.0


def test_the_interval_covers_the_true_median_as_often_as_it_says() -> None:
    generator = random.Random(11)
    samples = [[math.exp(generator.gauss(0, 1)) for _ in range(12)] for _ in range(4000)]
    intervals = [interval_of_median(sample, 0.05) for sample in samples]
    covered = sum(interval.low <= 1.0 <= interval.high for interval in intervals) / len(samples)
    assert covered == pytest.approx(intervals[0].coverage, abs=0.01)


def test_all_looks_together_spend_no_more_error_than_allowed() -> None:
    for last in range(1, MAX_ROUNDS + 1):
        spent = sum(look_allowance(look, 0.95) for look in LOOKS if look < last) + look_allowance(
            last, 0.95, final=True
        )
        assert spent <= 0.05 + 1e-12


def test_too_few_rounds_are_not_trusted() -> None:
    assert [rounds for rounds in range(1, 10) if is_trustworthy(rounds, 0.95)] == [6, 7, 8, 9]


@pytest.mark.parametrize(("low", "high", "clear"), [(2.8, 3.2, True), (1.04, 1.10, False), (0.9, 3.0, False)])
def test_a_range_is_clear_when_it_is_farther_from_the_bar_than_wide(low: float, high: float, clear: bool) -> None:
    assert is_clear(low, high, 1.02) is clear


def test_quantiles_are_values_that_were_measured() -> None:
    assert (quantile([1, 2, 3, 4], 0.5), quantile([1, 2, 3, 4], 0.9), quantile([7], 0.9)) == (2, 4, 7)


def test_ratios_pair_within_rounds_so_that_a_slow_second_cancels_out() -> None:
    rounds = [
        {"baseline": turn(2 * slow), "baseline_again": turn(2 * slow), "0": turn(1 * slow)} for slow in (1, 7, 3, 1, 50)
    ]
    timing = compare(rounds, ["0"], BASELINE, 0.95)
    assert timing is not None
    assert (timing.speedup, timing.speedup_low, timing.speedup_high) == pytest.approx((2, 2, 2))
    assert timing.band == pytest.approx(1.0)
    assert timing.cpu_ratio == pytest.approx(2.0)


def test_a_candidate_that_left_is_judged_on_its_own_rounds() -> None:
    rounds = [{"baseline": turn(2), "baseline_again": turn(2), "0": turn(1)}] * 3
    timing = compare([*rounds, {"baseline": turn(9), "baseline_again": turn(9)}], ["0"], BASELINE, 0.95)
    assert timing is not None
    assert (timing.rounds, timing.baseline_p90_ms) == (3, 2)


def test_the_band_is_how_far_identical_sessions_lie_apart_candidates_too() -> None:
    rounds = [{"baseline": turn(2), "baseline_again": turn(2.2), "a": turn(1), "b": turn(1.5)}] * 8
    one, both = compare(rounds, ["a"], BASELINE, 0.95), compare(rounds, ["a", "b"], BASELINE, 0.95)
    assert one is not None
    assert both is not None
    assert (one.band, both.band) == pytest.approx((1.1, 1.5))


def test_a_round_without_the_session_counts_for_nothing() -> None:
    assert log_ratios([{"baseline": turn(2)}], ["baseline"], ["0"]) == []
    assert compare([], ["0"], BASELINE, 0.95) is None


def test_cpu_time_that_the_clock_cannot_resolve_is_left_out() -> None:
    timing = compare([{"baseline": Turn((2.0,), 0.0), "0": Turn((1.0,), 0.0)}], ["0"], ["baseline"], 0.95)
    assert timing is not None
    assert timing.cpu_ratio is None


def test_a_turn_survives_json() -> None:
    for given in (Turn((1.5, 2.0), 3.0, 4), Turn((1.0,))):
        assert Turn.from_dict(given.as_dict()) == given


def test_the_order_of_a_round_is_random_and_repeatable() -> None:
    orders = [tuple(interleave("abcd", random.Random(seed))) for seed in range(40)]
    assert len(set(orders)) > 10
    assert orders == [tuple(interleave("abcd", random.Random(seed))) for seed in range(40)]


def rounds_of(count: int, noise: float = 0.02, seed: int = 1, **speedups: float) -> list[dict[str, Turn]]:
    """Rounds with lognormal noise; ``speedups`` by session name."""
    generator = random.Random(seed)
    sessions = {"baseline": 1.0, "baseline_again": 1.0} | speedups
    return [
        {name: turn(10 / speedup * math.exp(generator.gauss(0, noise))) for name, speedup in sessions.items()}
        for _ in range(count)
    ]


def test_a_candidate_that_is_clearly_slower_is_dropped_at_the_first_look() -> None:
    rounds = rounds_of(5, slow=0.5, fast=1.5)
    assert still_in(rounds, ["slow", "fast"], BASELINE, 0.95, 1.02) == (["fast"], True)


def test_a_candidate_behind_the_leader_is_dropped_though_faster_than_the_baseline() -> None:
    assert still_in(rounds_of(8, second=1.3, first=2.0), ["second", "first"], BASELINE, 0.95, 1.02) == (["first"], True)


def test_nobody_leaves_between_looks() -> None:
    assert still_in(rounds_of(6, slow=0.5), ["slow"], BASELINE, 0.95, 1.02) == (["slow"], False)


def test_a_race_of_slow_candidates_ends_without_any() -> None:
    assert still_in(rounds_of(5, a=0.5, b=0.6), ["a", "b"], BASELINE, 0.95, 1.02) == ([], True)


def test_two_equal_leaders_end_the_race_together_once_they_tie() -> None:
    rounds = rounds_of(40, noise=0.01, a=2.0, b=2.0)
    looks = [still_in(rounds[:look], ["a", "b"], BASELINE, 0.95, 1.02) for look in LOOKS]
    first_over = next(look for look, (_, over) in zip(LOOKS, looks, strict=True) if over)
    assert first_over < MAX_ROUNDS
    assert looks[LOOKS.index(first_over)][0] == ["a", "b"]


def test_a_race_that_cannot_be_decided_ends_at_the_last_look() -> None:
    assert still_in(rounds_of(40, noise=0.1, a=1.0), ["a"], BASELINE, 0.95, 1.02)[1]


def duel(sample: Callable[[], dict[str, float]], thresholds: Thresholds, most: int = MAX_ROUNDS) -> tuple[bool, int]:
    """A whole duel on made-up figures: whether it pays, and after how many rounds."""
    rounds: list[dict[str, Turn]] = []
    while len(rounds) < most:
        rounds.append({name: turn(ms) for name, ms in sample().items()})
        look = look_at(rounds, thresholds)
        if look is not None and look.is_over:
            break
    return verdict(None, rounds, thresholds)[1].passed, len(rounds)


def sampler(
    generator: random.Random, speedup: float, noise: float, instance: float = 0.0
) -> Callable[[], dict[str, float]]:
    """Turns with lognormal noise; each session besides lies off by a constant of its own (``instance``)."""
    wanted = {"candidate": speedup, "candidate_again": speedup, "baseline": 1.0, "baseline_again": 1.0}
    levels = {name: -math.log(value) + generator.gauss(0, instance) for name, value in wanted.items()}
    return lambda: {name: 10 * math.exp(level + generator.gauss(0, noise)) for name, level in levels.items()}


@pytest.mark.parametrize(
    ("noise", "most"),
    [(0.02, 5), (0.02, MAX_ROUNDS), (0.10, 7), pytest.param(0.10, MAX_ROUNDS, marks=pytest.mark.slow)],
)
def test_a_session_never_pays_against_itself(noise: float, most: int) -> None:
    generator = random.Random(5)
    adopted = sum(duel(sampler(generator, 1.0, noise), Thresholds(), most)[0] for _ in range(2000))
    assert adopted <= 0.02 * 2000


def test_sessions_that_differ_by_their_place_in_memory_rarely_pay_against_themselves() -> None:
    """Identical sessions of one process that lie 3% apart for good, as creation order makes them."""
    generator = random.Random(6)
    adopted = sum(duel(sampler(generator, 1.0, 0.01, instance=0.03), Thresholds())[0] for _ in range(1000))
    assert adopted <= 0.10 * 1000  # and the race before it, in another process, must agree besides


def test_a_gain_of_ten_percent_is_found_under_two_percent_of_noise() -> None:
    generator = random.Random(7)
    outcomes = [duel(sampler(generator, 1.10, 0.02), Thresholds()) for _ in range(500)]
    assert sum(adopted for adopted, _ in outcomes) >= 0.90 * 500
    assert quantile([rounds for _, rounds in outcomes], 0.5) == 8
    assert quantile([rounds for _, rounds in outcomes], 0.9) <= 12


def test_a_gain_of_three_times_needs_five_rounds() -> None:
    generator = random.Random(8)
    outcomes = [duel(sampler(generator, 3.0, 0.05), Thresholds()) for _ in range(200)]
    assert all(adopted for adopted, _ in outcomes)
    assert quantile([rounds for _, rounds in outcomes], 0.9) == 5


def test_a_clear_loss_ends_the_duel_at_the_first_look() -> None:
    adopted, rounds = duel(sampler(random.Random(9), 0.5, 0.02), Thresholds())
    assert (adopted, rounds) == (False, 5)


def test_a_gain_below_what_is_asked_is_not_adopted() -> None:
    generator = random.Random(10)
    outcomes = [duel(sampler(generator, 1.01, 0.01), Thresholds(min_speedup=1.02))[0] for _ in range(300)]
    assert sum(outcomes) <= 3


def test_a_duel_without_a_round_was_not_decided_for_lack_of_time() -> None:
    timing, gate = verdict(None, [], Thresholds())
    assert (timing, gate.passed) == (None, False)
    assert "no time left" in gate.detail


def test_resting_waits_until_threads_stop_spinning() -> None:
    clock = FakeClock()
    clock.work(0.001, spin_s=0.050)
    waited = rest(clock)
    assert clock.spin_s == 0
    assert 0.050 + 2 * REST_WINDOW_S <= waited <= 0.050 + 4 * REST_WINDOW_S


def test_resting_gives_up_on_a_process_that_is_never_idle() -> None:
    clock = FakeClock()
    clock.spin_s = math.inf
    assert rest(clock) == pytest.approx(REST_CAP_S, abs=REST_WINDOW_S)


def test_one_calm_window_is_not_enough() -> None:
    assert rest(FakeClock()) == pytest.approx(2 * REST_WINDOW_S)


def test_a_turn_is_an_untimed_run_and_timed_ones_for_ten_milliseconds() -> None:
    clock, runs = FakeClock(), []

    def run() -> None:
        runs.append(clock.now_s())
        clock.work(0.002)

    taken = take_turn(run, TurnPlan.of(2.0), clock)
    assert len(runs) == 6
    assert taken.runs_ms == pytest.approx((2.0,) * 5)
    assert taken.cpu_ms == pytest.approx(2.0)


@pytest.mark.parametrize(("ms", "runs", "timed"), [(0.001, 201, 200), (50, 4, 3), (150, 2, 1), (500, 1, 1)])
def test_slow_models_get_fewer_runs_a_turn(ms: float, runs: int, timed: int) -> None:
    clock, count = FakeClock(), 0

    def run() -> None:
        nonlocal count
        count += 1
        clock.work(ms / 1000)

    taken = take_turn(run, TurnPlan.of(ms), clock)
    assert (count, len(taken.runs_ms)) == (runs, timed)


def test_in_a_pipeline_a_twin_runs_before_each_timed_run_without_a_rest() -> None:
    clock, order = FakeClock(), []

    def run(name: str) -> Callable[[], None]:
        def do() -> None:
            order.append((name, clock.spin_s))
            clock.work(0.005, spin_s=0.040)

        return do

    take_turn(run("own"), TurnPlan.of(5.0), clock, twin=run("twin"))
    assert [name for name, _ in order] == ["twin", "own"] * 3
    assert all(spin_s == 0.040 for name, spin_s in order if name == "own")


@pytest.mark.parametrize("latency_ms", [0.01, 1.0, 20.0, 150.0, 800.0])
def test_a_plan_knows_about_how_long_its_turn_takes(latency_ms: float) -> None:
    clock, plan = FakeClock(), TurnPlan.of(latency_ms)
    take_turn(lambda: clock.work(latency_ms / 1000, spin_s=0.040), plan, clock)
    assert plan.seconds(latency_ms) == pytest.approx(clock.now_s(), abs=0.05)
