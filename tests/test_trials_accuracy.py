"""Comparison of outputs, and what the accuracy gate makes of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ort_metainfer.trials.accuracy import Comparison, compare_outputs
from ort_metainfer.trials.gates import accurate
from ort_metainfer.trials.task import Thresholds


def compare(reference: Any, candidate: Any) -> Comparison:
    """One output, one input."""
    return compare_outputs(["y"], [[reference]], [[candidate]])


def test_equal_outputs_have_no_error() -> None:
    values = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    assert compare(values, values.copy()) == Comparison({"y": 0.0}, None, 1.0)


@settings(max_examples=50, deadline=None)
@given(st.floats(1e-7, 1.0), st.sampled_from([np.float16, np.float32, np.float64]), st.integers(1, 50))
def test_scaling_an_output_shows_as_just_that_error(share: float, dtype: type, size: int) -> None:
    reference = np.ones(size, np.float64).astype(dtype)
    candidate = (np.ones(size) * (1 + share)).astype(dtype)
    expected = abs(float(candidate[0]) - 1)
    assert compare(reference, candidate).error == pytest.approx(expected, rel=1e-6)


def test_an_output_that_is_small_on_one_input_is_held_to_its_usual_scale() -> None:
    """A text detector on a blank page: 1e-8 against 2e-8 is no error when pages with text give 1."""
    text, blank = np.ones(100, np.float32), np.full(100, 1e-8, np.float32)
    comparison = compare_outputs(["y"], [[text], [blank]], [[text], [blank * 2]])
    assert comparison.error < 1e-6
    assert compare(blank, blank * 2).error == pytest.approx(1.0)


def test_the_worst_input_counts_for_each_output() -> None:
    one = np.ones(4, np.float32)
    comparison = compare_outputs(["a", "b"], [[one, one], [one, one]], [[one, one * 1.5], [one * 1.25, one]])
    assert comparison.errors == pytest.approx({"a": 0.25, "b": 0.5})


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [([1.0, 2.0], [1.0, math.nan]), ([1.0, math.nan], [1.0, 2.0]), ([1.0, math.inf], [1.0, -math.inf])],
)
def test_nan_and_infinity_must_stand_where_the_reference_has_them(
    reference: list[float], candidate: list[float]
) -> None:
    comparison = compare(np.array(reference, np.float32), np.array(candidate, np.float32))
    assert comparison.mismatch is not None
    assert comparison.error == math.inf


def test_nan_in_the_same_places_is_no_error() -> None:
    values = np.array([1.0, math.nan, math.inf, -math.inf], np.float32)
    assert compare(values, values.copy()).error == 0
    assert compare(values, values.copy()).mismatch is None


def test_a_shape_that_differs_is_named_with_both_shapes() -> None:
    comparison = compare(np.zeros((1, 3)), np.zeros((1, 4)))
    assert comparison.mismatch == "output 'y' on input 0: its shape is [1, 4] instead of [1, 3]"


def test_a_type_that_differs_is_a_mismatch() -> None:
    assert "float16 instead of float32" in str(compare(np.zeros(3, np.float32), np.zeros(3, np.float16)).mismatch)


@pytest.mark.parametrize(
    "reference", [np.array([1, 2, 3]), np.array([True, False, True]), np.array(["a", "b", "c"], object)]
)
def test_integers_booleans_and_strings_must_be_equal(reference: np.ndarray) -> None:
    changed = reference.copy()
    changed[0] = reference[1]
    assert compare(reference, reference.copy()).mismatch is None
    assert compare(reference, changed).mismatch == "output 'y' on input 0: 1 of 3 elements differ"


def test_sequences_and_maps_are_compared_inside() -> None:
    reference = [{"cat": 0.9, "dog": 0.1}, {"cat": 0.5, "dog": 0.5}]
    candidate = [{"cat": 0.9, "dog": 0.1}, {"cat": 0.5, "dog": 0.25}]
    assert compare(reference, reference).error == 0
    assert compare(reference, candidate).errors["y[1]['dog']"] == pytest.approx(0.5)


def test_a_sequence_of_another_length_is_a_mismatch() -> None:
    comparison = compare([np.zeros(1), np.zeros(1)], [np.zeros(1)])
    assert "structure differs on input 0: y[1]" in str(comparison.mismatch)


def test_an_absent_optional_must_be_absent() -> None:
    assert compare(None, None).mismatch is None
    assert compare(None, np.zeros(1)).mismatch is not None


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,)])
def test_scalars_and_empty_outputs_can_be_compared(shape: tuple[int, ...]) -> None:
    assert compare(np.zeros(shape, np.float32), np.zeros(shape, np.float32)).error == 0


def test_an_output_that_should_be_zero_everywhere_and_is_not_is_wrong() -> None:
    assert compare(np.zeros(4, np.float32), np.full(4, 0.1, np.float32)).error > 1e6


def test_large_float32_values_do_not_overflow() -> None:
    values = np.full(10, 3e38, np.float32)
    assert compare(values, values * np.float32(0.5)).error == pytest.approx(0.5)


def test_top1_is_the_share_of_rows_with_the_same_largest_element() -> None:
    reference = np.eye(4, dtype=np.float32)
    candidate = reference.copy()
    candidate[0] = [0, 1, 0, 0]
    assert compare(reference, candidate).top1 == 0.75


def test_a_tie_of_the_reference_within_the_error_counts_as_agreement() -> None:
    reference = np.array([[0.500001, 0.5, 0.0]], np.float32)
    candidate = np.array([[0.5, 0.500002, 0.0]], np.float32)
    assert compare(reference, candidate).top1 == 1.0


@pytest.mark.parametrize("shape", [(8,), (3, 1), (1, 3, 4, 4)])
def test_what_does_not_look_like_scores_has_no_top1(shape: tuple[int, ...]) -> None:
    assert compare(np.ones(shape, np.float32), np.ones(shape, np.float32)).top1 is None


def test_a_lossy_policy_asks_for_the_same_top_answers() -> None:
    comparison = Comparison({"y": 0.01}, None, top1=0.98)
    assert accurate(comparison, Thresholds(max_error=0.1)).passed
    gate = accurate(comparison, Thresholds(max_error=0.1, top1=0.99))
    assert not gate.passed
    assert gate.detail == "the top answer is kept in 98.0% of rows, at least 99% is asked"


def test_the_gate_names_the_worst_output_and_by_how_much() -> None:
    gate = accurate(Comparison({"a": 1e-6, "b": 2e-3}), Thresholds())
    assert not gate.passed
    assert gate.detail == "output 'b' differs by 2.0e-03 (relative L2), at most 1e-04 is allowed"
    assert gate.figures["error"] == 2e-3


def test_inputs_on_which_onnxruntime_differs_from_itself_cannot_tell() -> None:
    gate = accurate(Comparison({"y": 0.86}), Thresholds(), noise_floor=1.05)
    assert not gate.passed
    assert "these inputs cannot tell: give real ones" in gate.detail


def test_random_models_are_refused() -> None:
    gate = accurate(Comparison(), Thresholds(), is_random=True)
    assert not gate.passed
    assert "outputs differ from run to run" in gate.detail


def test_an_error_that_is_not_a_number_does_not_pass() -> None:
    assert not accurate(Comparison({"y": math.nan}), Thresholds()).passed
