"""A float matrix as small integers with scales."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Integers", "quantise_matrix"]

LEAST_SCALE = float(np.finfo(np.float32).tiny)
"""Columns that would need a smaller scale are zero for every purpose."""


@dataclass(frozen=True)
class Integers:
    """``(values - zero_point) * scale``, of each column or of all.

    Attributes:
        values: int8 or uint8, of the matrix' shape.
        scale: float32, one or one a column.
        zero_point: of the type of ``values`` and the shape of ``scale``.
    """

    values: np.ndarray
    scale: np.ndarray
    zero_point: np.ndarray


def quantise_matrix(matrix: np.ndarray, per_channel: bool, reduce_range: bool, unsigned: bool) -> Integers:
    """Round a matrix [K, N] to integers around zero: 127 steps to each side, 64 with a reduced range."""
    steps = 64 if reduce_range else 127
    largest = np.abs(matrix).max(axis=0 if per_channel else None, initial=0.0)
    scale = np.asarray(largest / np.float32(steps), np.float32)
    scale = np.where(scale < LEAST_SCALE, np.float32(1), scale).astype(np.float32)
    values = np.clip(np.rint(matrix / scale), -steps, steps)
    if unsigned:
        return Integers((values + 128).astype(np.uint8), scale, np.full(scale.shape, 128, np.uint8))
    return Integers(values.astype(np.int8), scale, np.zeros(scale.shape, np.int8))
