"""Moving the spread of activations into weights, so that both can be written in 8 bits.

With one scale for a whole activation, a few large columns leave the others few levels. ``X W`` is
``(X / s) (s W)`` for any positive ``s``; SmoothQuant (https://arxiv.org/abs/2211.10438, equation 4) takes
``s = max|X|**a / max|W|**(1 - a)``, by column of X and row of W.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ort_metainfer.errors import RewriteError
from ort_metainfer.rewrites.observing import observe, question

__all__ = ["column_ranges", "smoothing_factors"]

LEAST, MOST_RATIO = 1e-5, 1e4
"""Ranges below the first count as it; factors further apart than the second are drawn together: a column that was
never active in the feeds must not be blown up in another input."""


def column_ranges(
    file: Path,
    names: Sequence[str],
    feeds: Sequence[Mapping[str, Any]],
    folder: Path,
    deadline: float | None = None,
) -> dict[str, np.ndarray]:
    """Value -> largest absolute value of each column (index of the last axis) over the feeds.

    Args:
        file: the float model.
        names: values inside it.
        feeds: its inputs.
        folder: where the answer is kept, so that the same question is not worked out twice.
        deadline: a time.monotonic() value.

    Raises:
        RewriteError: no time left, or the model does not run.
    """
    kept = folder / f"columns-{question(file, names, feeds)}.npz"
    if kept.exists():
        with np.load(kept) as before:
            return {name: before[f"c{place}"] for place, name in enumerate(names) if f"c{place}" in before.files}
    found: dict[str, np.ndarray] = {}
    for name, _, array in observe(file, names, feeds, deadline):
        if array.dtype != np.float32 or array.ndim == 0 or array.size == 0:
            continue
        columns = np.abs(array).reshape(-1, array.shape[-1]).max(axis=0)
        found[name] = np.maximum(found[name], columns) if name in found else columns
    if deadline is not None and time.monotonic() > deadline:
        raise RewriteError(f"{file}: no time left to look at its activations")
    finite = {name: columns for name, columns in found.items() if np.isfinite(columns).all()}
    arrays: dict[str, Any] = {f"c{place}": finite[name] for place, name in enumerate(names) if name in finite}
    np.savez(kept, **arrays)
    return finite


def smoothing_factors(columns: np.ndarray, matrices: Sequence[np.ndarray], share: float) -> np.ndarray | None:
    """One factor a column, of geometric mean 1; None where nothing is to be moved.

    Args:
        columns: largest absolute value of each column of the activation, [K].
        matrices: every weight [K, N] it is multiplied by.
        share: how much of the spread goes to the weights, 0 to 1.
    """
    if not share or not np.any(columns > 0) or any(matrix.shape[0] != columns.shape[0] for matrix in matrices):
        return None
    rows = np.max([np.abs(matrix).max(axis=1) for matrix in matrices], axis=0)
    factors = np.maximum(columns, LEAST).astype(np.float64) ** share
    factors /= np.maximum(rows, LEAST).astype(np.float64) ** (1 - share)
    factors /= np.exp(np.mean(np.log(factors)))
    bound = MOST_RATIO**0.5
    return np.asarray(np.clip(factors, 1 / bound, bound), np.float32)
