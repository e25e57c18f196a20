"""Comparing outputs with the reference's: relative L2 error with a floor tied to the output's scale, and top-1. Pure.

Values are what ``InferenceSession.run`` returns: arrays, and for sequences and maps lists and dicts of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["SCALE_FLOOR", "Comparison", "compare_outputs", "leaves"]

SCALE_FLOOR = 0.1
"""An output smaller than this share of its usual norm (over all inputs) is judged as if it had that share: a text
detector that answers 1e-8 on a blank page is not wrong when it answers 2e-8."""

Outputs = Sequence[Any]
"""The outputs of one run, in the order of the names."""


@dataclass(frozen=True)
class Comparison:
    """How far outputs lie from the reference's.

    Attributes:
        errors: output -> worst relative L2 error over the inputs; for integers and strings the share that differs.
        mismatch: what no tolerance can excuse (a shape, a type, a NaN, an integer that differs); None otherwise.
        top1: worst share, over outputs that look like scores, of rows whose largest element stayed where it was;
            None where no output looks like scores.
    """

    errors: Mapping[str, float] = field(default_factory=dict)
    mismatch: str | None = None
    top1: float | None = None

    @property
    def error(self) -> float:
        """The worst of ``errors``; 0 where there are none."""
        return max(self.errors.values(), default=0.0)


def leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The arrays and scalars inside a sequence or map, each with its path (``probabilities[3]['cat']``)."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield from leaves(value[key], f"{name}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from leaves(item, f"{name}[{index}]")
    else:
        yield name, value


def compare_outputs(names: Sequence[str], reference: Sequence[Outputs], candidate: Sequence[Outputs]) -> Comparison:
    """Compare two sessions' outputs over the same inputs.

    Args:
        names: output names.
        reference: for each input, the outputs to be kept.
        candidate: for each input, the outputs to be judged.
    """
    wanted = [dict(_flat(names, outputs)) for outputs in reference]
    scales = _scales(wanted)
    errors: dict[str, float] = {}
    mismatch: str | None = None
    agreement: dict[str, list[float]] = {}
    for feed, (expected, outputs) in enumerate(zip(wanted, candidate, strict=True)):
        got = dict(_flat(names, outputs))
        if list(got) != list(expected):
            strays = sorted(set(got) ^ set(expected))
            return Comparison({}, f"the outputs' structure differs on input {feed}: {', '.join(strays[:3])}", None)
        for path, value in expected.items():
            error, why = _leaf_error(value, got[path], scales.get(path, 0.0))
            errors[path] = max(errors.get(path, 0.0), error)
            if why is not None and mismatch is None:
                mismatch = f"output {path!r} on input {feed}: {why}"
            if why is None and _looks_like_scores(value):
                agreement.setdefault(path, []).append(_rows_agreeing(value, got[path]))
    top1 = min((sum(rows) / len(rows) for rows in agreement.values()), default=None)
    return Comparison(errors, mismatch, top1)


def _flat(names: Sequence[str], outputs: Outputs) -> Iterator[tuple[str, Any]]:
    for name, value in zip(names, outputs, strict=True):
        yield from leaves(value, name)


def _scales(wanted: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Output -> root mean square, over the inputs, of its norm (positions that are not finite left out)."""
    squares: dict[str, list[float]] = {}
    for outputs in wanted:
        for path, value in outputs.items():
            if _is_float(value):
                plain = _wide(value)
                squares.setdefault(path, []).append(_norm(np.where(np.isfinite(plain), plain, 0)) ** 2)
    return {path: math.sqrt(sum(values) / len(values)) for path, values in squares.items()}


def _leaf_error(reference: Any, candidate: Any, scale: float) -> tuple[float, str | None]:
    if reference is None or candidate is None:
        return (0.0, None) if reference is candidate else (math.inf, "one is absent")
    expected, got = np.asarray(reference), np.asarray(candidate)
    if expected.dtype != got.dtype and not (expected.dtype.kind in "OUS" and got.dtype.kind in "OUS"):
        return math.inf, f"it is {got.dtype} instead of {expected.dtype}"
    if expected.shape != got.shape:
        return math.inf, f"its shape is {list(got.shape)} instead of {list(expected.shape)}"
    if not _is_float(expected):
        different = int(np.sum(expected != got))
        share = different / max(1, expected.size)
        return share, f"{different} of {expected.size} elements differ" if different else None
    return _float_error(_wide(expected), _wide(got), scale)


def _float_error(expected: npt.NDArray[Any], got: npt.NDArray[Any], scale: float) -> tuple[float, str | None]:
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(got)):
        stray = int(np.sum(finite != np.isfinite(got)))
        return math.inf, f"NaN or infinity where the reference has none, or the reverse ({stray} elements)"
    odd_expected, odd_got = expected[~finite], got[~finite]
    if not np.array_equal(odd_expected, odd_got, equal_nan=True):
        return math.inf, "NaN and infinities are not the reference's"
    if finite.all():
        distance, norm = _norm(got - expected), _norm(expected)
    else:
        distance, norm = _norm(got[finite] - expected[finite]), _norm(expected[finite])
    if distance == 0:
        return 0.0, None
    floor = float(np.finfo(np.float32).tiny) * math.sqrt(max(1, expected.size))
    return distance / max(norm, SCALE_FLOOR * scale, floor), None


def _is_float(value: Any) -> bool:
    """Floating point or complex; numpy calls bfloat16 and the float8 types void."""
    dtype = np.asarray(value).dtype
    return dtype.kind in "fc" or "float" in dtype.name


def _wide(value: Any) -> npt.NDArray[Any]:
    array = np.asarray(value)
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    # float64 can hold the square of every float32 without overflow
    return (array if array.dtype.kind == "f" else array.astype(np.float32)).astype(np.float64)


def _norm(values: npt.NDArray[Any]) -> float:
    return float(np.linalg.norm(values.ravel()))


def _looks_like_scores(value: Any) -> bool:
    """Rows of at least two scores; four dimensions or more are taken for maps of pixels."""
    shape = np.shape(value)
    return _is_float(value) and np.asarray(value).dtype.kind != "c" and 2 <= len(shape) <= 3 and shape[-1] >= 2


def _rows_agreeing(reference: Any, candidate: Any) -> float:
    """Share of rows with equal arg max; where the reference itself ties within the error, either answer will do."""
    expected = np.nan_to_num(_wide(reference)).reshape(-1, np.shape(reference)[-1])
    got = np.nan_to_num(_wide(candidate)).reshape(expected.shape)
    if expected.shape[0] == 0:
        return 1.0
    error = math.sqrt(float(np.mean((got - expected) ** 2)))
    picked = expected[np.arange(len(got)), got.argmax(axis=1)]
    return float(np.mean(expected.max(axis=1) - picked <= error))
