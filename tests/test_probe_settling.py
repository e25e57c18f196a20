"""The probe's statistics: passes that agree, differ, or were disturbed; never an average."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ort_metainfer.hardware.settling import PointTurn, Settled, apart, settle, wants_repetition


def turn(*runs_ms: float, disturbed: str | None = None) -> PointTurn:
    return PointTurn(runs_ms, disturbed)


def test_two_passes_that_agree_are_pooled_and_not_flagged() -> None:
    settled = settle([turn(10, 10, 11), turn(10, 10.5, 11)])
    assert settled == Settled(p50_ms=10, p90_ms=11, spread=pytest.approx(0.1), runs=6)


def test_the_median_is_a_value_that_was_measured() -> None:
    assert settle([turn(1.0, 9.0), turn(1.0, 9.0)]).p50_ms in (1.0, 9.0)


@pytest.mark.parametrize(("second_ms", "wanted"), [(11.5, False), (11.6, True), (8.6, True), (8.8, False)])
def test_a_point_is_repeated_where_its_passes_differ_by_more_than_15_percent(second_ms: float, wanted: bool) -> None:
    assert wants_repetition([turn(10.0), turn(second_ms)]) is wanted


def test_a_disturbed_pass_is_repeated_though_the_passes_agree() -> None:
    assert wants_repetition([turn(10), turn(10, disturbed="other processes use 1.00 cores")])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_point_is_repeated_once_and_after_both_passes_only(count: int) -> None:
    assert not wants_repetition([turn(10.0 * 2**number) for number in range(count)])


def test_of_three_passes_the_two_that_agree_count_and_the_third_is_not_averaged_in() -> None:
    settled = settle([turn(10), turn(20), turn(10.4)])
    assert (settled.p50_ms, settled.p90_ms, settled.runs, settled.flag) == (10, 10.4, 2, None)


def test_three_passes_that_all_differ_are_flagged_unsteady() -> None:
    settled = settle([turn(10), turn(20), turn(40)])
    assert settled.flag is not None
    assert settled.flag.startswith("unsteady")
    assert "100%" in settled.flag


def test_two_passes_that_differ_are_flagged_where_there_was_no_time_for_a_third() -> None:
    flag = settle([turn(10), turn(12)]).flag
    assert flag == "unsteady: passes of 10, 12 ms differ by 20%"


def test_a_disturbed_pass_does_not_count_where_two_others_were_quiet() -> None:
    settled = settle([turn(10), turn(10.1, disturbed="the hypervisor takes 9% of the time"), turn(10.2)])
    assert (settled.runs, settled.p90_ms, settled.flag) == (2, 10.2, None)


def test_load_that_lasts_is_flagged_though_the_passes_agree() -> None:
    busy = "other processes use 0.98 cores"
    assert settle([turn(20, disturbed=busy), turn(20, disturbed=busy), turn(20, disturbed=busy)]).flag == (
        f"disturbed: {busy}"
    )


def test_one_quiet_pass_is_not_enough_to_drop_the_disturbed_ones() -> None:
    settled = settle([turn(10), turn(10.5, disturbed="x"), turn(10.6, disturbed="x")])
    assert settled.runs == 3
    assert settled.flag == "disturbed: x"


def test_a_point_that_was_seen_once_says_so() -> None:
    assert settle([turn(10, 10)]).flag == "seen in one pass only"


def test_a_turn_survives_the_way_through_json() -> None:
    for taken in (turn(1.5, 2.5), turn(1.0, disturbed="x")):
        assert PointTurn.from_dict(taken.as_dict()) == taken


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=3))
def test_an_unflagged_point_never_rests_on_passes_that_differ(medians: list[float]) -> None:
    settled = settle([turn(median) for median in medians])
    if settled.flag is None:
        counted = [median for median in medians if abs(median / settled.p50_ms - 1) <= 0.15 + 1e-9]
        assert len(counted) >= 2
    assert min(medians) <= settled.p50_ms <= settled.p90_ms <= max(medians)


def test_how_far_passes_lie_apart_is_a_share_of_the_fastest() -> None:
    assert apart([turn(10), turn(12.5), turn(11)]) == pytest.approx(0.25)
    assert apart([turn(10)]) == 0
