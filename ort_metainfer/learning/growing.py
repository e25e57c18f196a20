"""Growing a forest with scikit-learn, the extra ``train``: half random forest, half extremely randomised trees."""

from __future__ import annotations

from typing import Any

import numpy as np

from ort_metainfer.errors import LearningError
from ort_metainfer.learning.forest import Forest, Tree
from ort_metainfer.learning.tasks import Floats

__all__ = ["grow"]


def grow(
    features: Floats, target: Floats, *, weight: Floats | None = None, trees: int = 100, seed: int = 0, thin: int = 1
) -> Forest:
    """A forest that answers with each tree's word.

    Half of the trees are a random forest's with three rows in a leaf at least; they are steady. Half are extremely
    randomised ones down to single rows: each answers with a neighbour of the case, so that together they say how far
    off a guess may be.

    Args:
        features: rows x columns; NaN where not known.
        target: what is learned, one a row.
        weight: how much a row counts.
        trees: how many, over both halves.
        seed: equal seeds grow equal forests.
        thin: so many times as many rows in a leaf: a smaller forest from many rows.

    Raises:
        LearningError: scikit-learn is not installed.
    """
    try:
        from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor
    except ImportError as error:
        raise LearningError("training needs scikit-learn: pip install 'ort-metainfer[train]'") from error
    halves: list[Any] = [
        RandomForestRegressor(
            trees - trees // 2, min_samples_leaf=3 * thin, max_features=0.4, random_state=seed, n_jobs=1
        ),
        ExtraTreesRegressor(trees // 2, min_samples_leaf=thin, max_features=0.7, random_state=seed, n_jobs=1),
    ]
    columns = np.asarray(features, dtype=np.float32)
    grown: list[Tree] = []
    for half in halves:
        half.fit(columns, target, sample_weight=weight)
        grown += [_tree(each.tree_) for each in half.estimators_]
    return Forest(tuple(grown), columns.shape[1])


def _tree(tree: Any) -> Tree:
    return Tree(
        feature=tree.feature.astype(np.int32),
        threshold=_as_single(tree.threshold),
        left=tree.children_left.astype(np.int32),
        right=tree.children_right.astype(np.int32),
        missing_left=tree.missing_go_to_left.astype(np.bool_),
        value=tree.value[:, 0, 0].astype(np.float32),
    )


def _as_single(threshold: Floats) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The greatest float32 not above each threshold: ``x <= threshold`` is then the same for every float32 ``x``."""
    single = threshold.astype(np.float32)
    return np.where(single.astype(np.float64) > threshold, np.nextafter(single, np.float32(-np.inf)), single)
