"""Outputs whose length depends on the data: what belongs together, and when the gate lets a difference pass."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ort_metainfer.trials import alignment as aligning
from ort_metainfer.trials.accuracy import Comparison, compare_outputs
from ort_metainfer.trials.alignment import Alignment, align_outputs, longest_common
from ort_metainfer.trials.gates import accurate
from ort_metainfer.trials.task import Thresholds

NAMES = ["boxes", "scores", "labels"]


def detections(count: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    boxes = (100 * rng.random((1, count, 4))).astype(np.float32)
    return [boxes, rng.random((1, count)).astype(np.float32), rng.integers(0, 80, (1, count))]


def without(outputs: list[np.ndarray[Any, Any]], row: int) -> list[np.ndarray[Any, Any]]:
    return [np.delete(output, row, axis=1) for output in outputs]


def compared(reference: Any, candidate: Any, align: bool = True, names: list[str] = NAMES) -> Comparison:
    return compare_outputs(names, [reference], [candidate], align)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_the_alignment_is_in_order_of_equal_rows_and_the_longest_there_is(one: list[int], other: list[int]) -> None:
    rows, columns = np.array(one, np.int64).reshape(-1, 1), np.array(other, np.int64).reshape(-1, 1)
    found = longest_common([(rows, columns, 0.0)], len(one), len(other))
    assert not isinstance(found, str)
    left, right = found
    assert [one[i] for i in left] == [other[j] for j in right]
    assert all(a < b for side in (left, right) for a, b in pairwise(side))
    assert len(left) == longest_length(one, other)


def longest_length(one: list[int], other: list[int]) -> int:
    """The textbook recursion."""
    best = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            best[i + 1][j + 1] = best[i][j] + 1 if a == b else max(best[i][j + 1], best[i + 1][j])
    return best[-1][-1]


def test_one_detection_more_or_less_leaves_the_others_aligned() -> None:
    reference = detections(200)
    for candidate in (without(reference, 77), without(reference, 0), without(reference, 199)):
        comparison = compared(reference, candidate)
        assert comparison.mismatch is None
        assert comparison.error == 0
        assert comparison.outputs["boxes"].aligned == pytest.approx(199 / 200)
        gate = accurate(comparison, Thresholds.of("fast"))
        assert gate.passed
        assert "output 'boxes' has 199 rows along axis 1 instead of 200, 199 of them with a counterpart" in gate.detail
    assert compared(without(reference, 5), reference).outputs["boxes"].aligned == pytest.approx(199 / 200)


def test_a_list_that_lost_more_than_a_hundredth_is_refused_with_how_much() -> None:
    reference = detections(18)
    gate = accurate(compared(reference, without(reference, 3)), Thresholds.of("fast"))
    assert not gate.passed
    assert gate.detail == (
        "output 'boxes' has 17 rows along axis 1 instead of 18, 17 of them with a counterpart; at least 99% is asked"
    )


def test_float32_results_do_not_change_their_length() -> None:
    reference = detections(200)
    comparison = compared(reference, without(reference, 3), align=False)
    assert comparison.mismatch == "output 'boxes' on input 0: its shape is [1, 199, 4] instead of [1, 200, 4]"
    assert not accurate(compared(reference, without(reference, 3)), Thresholds.of("strict")).passed


def test_outputs_of_one_list_are_aligned_together() -> None:
    """A box must not be matched with one, and its score with another's."""
    reference = detections(150)
    candidate = without(reference, 3)
    candidate[2] = candidate[2].copy()
    candidate[2][0, 50] += 1  # another label for one box
    comparison = compared(reference, candidate)
    assert comparison.mismatch is None
    assert {round(error.aligned or 0, 4) for error in comparison.outputs.values()} == {round(148 / 150, 4)}
    assert not accurate(comparison, Thresholds.of("fast")).passed


def test_what_is_aligned_is_measured() -> None:
    reference = detections(200)
    candidate = without(reference, 3)
    candidate[0] = candidate[0] * np.float32(1.02)
    assert compared(reference, candidate).errors["boxes"] == pytest.approx(0.02, rel=1e-3)


def test_lengths_are_counted_over_all_inputs() -> None:
    reference = detections(60)
    comparison = compare_outputs(NAMES, [reference, reference], [without(reference, 7), reference], align=True)
    assert comparison.outputs["boxes"].aligned == pytest.approx(59 / 60)


def test_another_order_of_equal_length_is_not_excused() -> None:
    reference = detections(200)
    assert accurate(compared(reference, reference), Thresholds.of("fast")).passed
    assert not accurate(compared(reference, [output[:, ::-1] for output in reference]), Thresholds.of("fast")).passed


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        (np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32)),
        (np.zeros((2, 3), np.float32), np.zeros(6, np.float32)),
        (np.zeros(3, np.float32), np.zeros(4, np.float64)),
    ],
)
def test_two_axes_another_rank_or_another_type_are_no_matter_of_length(reference: Any, candidate: Any) -> None:
    assert align_outputs({"y": reference}, {"y": candidate}, {}) == {}
    assert compared([reference], [candidate], names=["y"]).mismatch is not None


def test_a_sequence_of_tokens_is_aligned_by_equality() -> None:
    tokens = np.arange(300).reshape(1, 300)
    comparison = compared([tokens], [np.delete(tokens, 150, axis=1)], names=["tokens"])
    assert comparison.mismatch is None
    assert comparison.outputs["tokens"].aligned == pytest.approx(299 / 300)


@pytest.mark.parametrize("empty", [0, 1])
def test_nothing_at_all_matches_nothing(empty: int) -> None:
    sides = [detections(5), detections(0)]
    comparison = compared(sides[empty], sides[1 - empty])
    assert comparison.outputs["boxes"].aligned == 0
    assert not accurate(comparison, Thresholds.of("fast")).passed


def test_a_nan_among_the_rows_matches_nothing() -> None:
    reference = detections(200)
    candidate = without(reference, 3)
    candidate[0] = candidate[0].copy()
    candidate[0][0, 10] = np.nan
    assert compared(reference, candidate).outputs["boxes"].aligned == pytest.approx(198 / 200)


def test_what_is_too_long_to_align_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aligning, "MAX_CELLS", 100)
    reference, candidate = np.arange(100), np.arange(99) + 1000
    mismatch = compared([reference], [candidate], names=["samples"]).mismatch
    assert mismatch is not None
    assert mismatch.endswith("its shape is [99] instead of [100]; 100 and 99 rows are too many to align")
    head = compared([reference], [reference[:99]], names=["samples"])  # equal beginnings need no table
    assert head.outputs["samples"].aligned == pytest.approx(0.99)


def test_an_alignment_says_how_much_found_its_counterpart() -> None:
    both = np.arange(3)
    assert Alignment(0, both, both, 4).share == 0.75
