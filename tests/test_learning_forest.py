"""A forest answers alike as plain arrays, in onnxruntime and in scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ort_metainfer.errors import LearningError
from ort_metainfer.learning.choice import confidence, measuring_order
from ort_metainfer.learning.forest import Forest, Tree, to_onnx
from ort_metainfer.learning.forest_run import ForestRun, as_matrix
from ort_metainfer.learning.growing import _as_single, grow

pytest.importorskip("sklearn", reason="training needs the extra train")


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    features = random.standard_normal((300, 7))
    features[random.random(features.shape) < 0.15] = np.nan
    features[:, 6] = random.integers(0, 2, 300)  # flags put many rows exactly on a threshold's side
    target = np.nan_to_num(features[:, 0]) + np.where(np.isnan(features[:, 1]), 1.0, 0.0) + features[:, 6]
    return features, target


def test_onnxruntime_gives_each_trees_answer_as_the_arrays_do_with_missing_features(data) -> None:
    features, target = data
    forest = grow(features, target, trees=10)
    run = ForestRun(to_onnx(forest).SerializeToString())
    answers = run.expected(features.astype(np.float32))
    assert answers.shape == (300, 10)
    np.testing.assert_array_equal(answers, forest.predict(features))


def test_the_arrays_answer_as_scikit_learn_does(data) -> None:
    from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor

    features, target = data
    forest = grow(features, target, trees=10, seed=5)
    single = features.astype(np.float32)
    steady = RandomForestRegressor(5, min_samples_leaf=3, max_features=0.4, random_state=5).fit(single, target)
    random = ExtraTreesRegressor(5, min_samples_leaf=1, max_features=0.7, random_state=5).fit(single, target)
    expected = np.stack([each.predict(single) for half in (steady, random) for each in half.estimators_], axis=1)
    np.testing.assert_allclose(forest.predict(features), expected, rtol=1e-6, atol=1e-6)


def test_a_threshold_between_two_float32_keeps_its_side_when_it_becomes_one() -> None:
    below = np.float32(1.1)
    above = np.nextafter(below, np.float32(2))
    between = np.array([float(below) + 0.75 * (float(above) - float(below))])
    assert np.float32(between[0]) == above  # rounding would move a row at `above` to the left
    assert _as_single(between)[0] == below


def test_a_row_on_the_threshold_goes_left_and_a_missing_one_where_the_tree_says() -> None:
    def stump(missing_left: bool) -> Forest:
        words = {"feature": [0, -2, -2], "left": [1, -1, -1], "right": [2, -1, -1]}
        tree = Tree(
            **{name: np.array(value, dtype=np.int32) for name, value in words.items()},
            threshold=np.array([0.5, 0, 0], dtype=np.float32),
            missing_left=np.array([missing_left, False, False]),
            value=np.array([0, -1, 1], dtype=np.float32),
        )
        return Forest((tree,), 1)

    rows = np.array([[0.5], [0.50001], [np.nan]], dtype=np.float32)
    for missing_left, expected in ((True, [-1, 1, -1]), (False, [-1, 1, 1])):
        forest = stump(missing_left)
        assert forest.predict(rows)[:, 0].tolist() == expected
        assert ForestRun(to_onnx(forest).SerializeToString()).expected(rows)[:, 0].tolist() == expected


def test_no_candidates_have_no_answers(data) -> None:
    run = ForestRun(to_onnx(grow(*data, trees=4)).SerializeToString())
    assert run.expected(as_matrix([], ["x"] * 7)).shape == (0, 4)


def test_a_file_that_is_no_forest_is_named(tmp_path: Path) -> None:
    path = tmp_path / "forest.onnx"
    path.write_bytes(b"nonsense")
    with pytest.raises(LearningError, match=r"forest\.onnx is no forest"):
        ForestRun(path)


def test_equal_seeds_grow_equal_forests(data) -> None:
    first, second, other = (grow(*data, trees=6, seed=seed).predict(data[0]) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_the_second_measured_is_what_wins_where_the_first_fails_not_the_firsts_twin() -> None:
    first, twin, other = [0.0, 0.0, 0.0, 2.0], [0.05, 0.05, 0.05, 2.05], [1.0, 1.0, 1.0, 0.0]
    assert measuring_order(np.array([first, twin, other])) == [0, 2, 1]


def test_a_choice_is_sure_where_all_trees_see_it_within_5_percent() -> None:
    assert confidence(np.array([[0.0, 0.0], [0.04, 1.0]])) == 1.0
    assert confidence(np.array([[0.0, 0.0, 0.3], [0.5, 0.5, 0.0]])) == pytest.approx(2 / 3)
