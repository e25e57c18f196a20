"""Which rows of two outputs of different lengths belong together: the longest common alignment, in order. Pure.

What a detector or a tokeniser puts out has a length that depends on the data, and a score that lies on a threshold may
fall on either side of it. The rule: outputs may differ in length along one axis, all others being equal. Outputs of one
run that differ in the same way (boxes, scores and labels of one list) are aligned together. A row of the reference and
one of the candidate match where they match in each of those outputs: floats within ``ROW_TOLERANCE`` (relative L2),
all else equal. Order is kept, and as many rows as possible are matched (longest common subsequence). What matched is
then compared as if nothing else were there; how much did is for the gate to judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ort_metainfer.trials.measures import SCALE_FLOOR, Usual, is_float, wide

__all__ = ["MAX_CELLS", "ROW_TOLERANCE", "Alignment", "align_outputs", "longest_common"]

ROW_TOLERANCE = 0.1
"""Relative L2 within which two rows are the same one: the loosest policy's. Closer comparison follows."""

MAX_CELLS = 4_000_000
"""Pairs of rows that are looked at at most, after equal beginnings and ends: a table of 16 MB."""

MAX_ELEMENTS = 400_000_000
"""Elements that comparing those pairs may take: a second or two."""

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Alignment:
    """Rows along ``axis`` that belong together, by position: ``reference[i]`` with ``candidate[i]``.

    ``length`` is the longer output's, so that rows too many count as much as rows that are missing.
    """

    axis: int
    reference: Indices
    candidate: Indices
    length: int

    @property
    def share(self) -> float:
        """Rows that found their counterpart."""
        return len(self.reference) / max(1, self.length)


def align_outputs(
    reference: Mapping[str, Any], candidate: Mapping[str, Any], usual: Mapping[str, Usual]
) -> dict[str, Alignment | str]:
    """For each output of one run whose length differs along one axis, its alignment, or why there is none.

    Outputs whose shapes are equal, or differ otherwise, are not mentioned.
    """
    groups: dict[tuple[int, int], dict[str, int]] = {}
    for name, value in reference.items():
        axis = _differing_axis(np.shape(value), np.shape(candidate[name]))
        if axis is not None and np.asarray(value).dtype == np.asarray(candidate[name]).dtype:
            lengths = np.shape(value)[axis], np.shape(candidate[name])[axis]
            groups.setdefault(lengths, {})[name] = axis
    found: dict[str, Alignment | str] = {}
    for lengths, axes in groups.items():
        pairs = [
            (_rows(reference[name], axis), _rows(candidate[name], axis), _usual_row(usual.get(name), lengths[0]))
            for name, axis in axes.items()
        ]
        matched = longest_common(pairs, *lengths)
        for name, axis in axes.items():
            found[name] = matched if isinstance(matched, str) else Alignment(axis, *matched, max(lengths))
    return found


def _differing_axis(one: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    """The only axis along which two shapes differ; None where they are equal or differ more."""
    if len(one) != len(other):
        return None
    axes = [axis for axis, (size, its) in enumerate(zip(one, other, strict=True)) if size != its]
    return axes[0] if len(axes) == 1 else None


def _rows(value: Any, axis: int) -> npt.NDArray[Any]:
    """[rows, elements of one], floats in float64."""
    array = np.moveaxis(wide(value) if is_float(value) else np.asarray(value), axis, 0)
    return array.reshape(array.shape[0], -1) if array.size else array.reshape(array.shape[0], 0)


def _usual_row(usual: Usual | None, rows: int) -> float:
    return 0.0 if usual is None else usual.norm / max(1, rows) ** 0.5


Pair = tuple[npt.NDArray[Any], npt.NDArray[Any], float]


def longest_common(pairs: Sequence[Pair], length: int, other: int) -> tuple[Indices, Indices] | str:
    """Positions of the rows of the longest common subsequence, or why it is not looked for.

    Args:
        pairs: for each output its rows in the reference and in the candidate, and the usual norm of one.
        length: rows of the reference.
        other: rows of the candidate.
    """
    # equal beginnings and ends belong to some longest alignment, whatever "equal" means: no pair need cross them
    begin = _run_of_matches(pairs, range(min(length, other)), 0)
    rest = min(length, other) - begin
    end = _run_of_matches(pairs, range(length - 1, length - 1 - rest, -1), other - length)
    rows, columns = length - begin - end, other - begin - end
    width = sum(reference.shape[1] for reference, _, _ in pairs)
    if rows * columns > MAX_CELLS or rows * columns * width > MAX_ELEMENTS:
        return f"{length} and {other} rows are too many to align"
    middle: list[tuple[int, int]] = []
    if rows and columns:
        middle = _backtrack(np.stack([_matches(pairs, begin + i, begin, begin + columns) for i in range(rows)]))
    head = [(i, i) for i in range(begin)]
    tail = [(length - k, other - k) for k in range(end, 0, -1)]
    chosen = [*head, *((begin + i, begin + j) for i, j in middle), *tail]
    both = np.array(chosen, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _run_of_matches(pairs: Sequence[Pair], positions: Sequence[int], shift: int) -> int:
    """How many of ``positions`` match one after the other, the candidate's being ``shift`` further on."""
    for count, i in enumerate(positions):
        if not _matches(pairs, i, i + shift, i + shift + 1)[0]:
            return count
    return len(positions)


def _matches(pairs: Sequence[Pair], row: int, first: int, stop: int) -> npt.NDArray[np.bool_]:
    """Whether row ``row`` of the reference matches each of the candidate's rows ``first`` to ``stop``."""
    matching = np.ones(stop - first, np.bool_)
    for reference, candidate, usual in pairs:
        one, others = reference[row], candidate[first:stop]
        if one.dtype.kind in "fc":
            allowed = ROW_TOLERANCE * max(float(np.linalg.norm(one)), SCALE_FLOOR * usual)
            matching &= np.linalg.norm(others - one, axis=1) <= allowed
        else:
            matching &= np.array(others == one, np.bool_).all(axis=1)
    return matching


def _backtrack(matching: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Pairs of the longest common subsequence, from a table of what matches what."""
    rows, columns = matching.shape
    best = np.zeros((rows + 1, columns + 1), np.int32)
    for i in range(rows):
        longer = np.maximum(best[i, 1:], np.where(matching[i], best[i, :-1] + 1, 0))
        best[i + 1, 1:] = np.maximum.accumulate(longer)
    chosen: list[tuple[int, int]] = []
    i, j = rows, columns
    while i and j:
        if best[i, j] == best[i - 1, j]:
            i -= 1
        elif best[i, j] == best[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            chosen.append((i, j))
    return chosen[::-1]
