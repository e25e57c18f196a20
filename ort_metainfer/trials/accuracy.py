"""Comparing outputs with the reference's, output by output, over all inputs. Pure.

Values are what ``InferenceSession.run`` returns: arrays, and for sequences and maps lists and dicts of them. Integers,
strings and booleans must be equal; floats are measured (``measures.py``); outputs whose length depends on the data are
aligned first, where that is asked (``alignment.py``).

NaN and infinities never pass, also where the reference itself gives them, and also where every bit is the reference's:
they hide what would have been computed, so that equal ones prove nothing of other inputs. That holds for a strategy
that only changes threads or the graph level, too: it is held to the same proof, and plain onnxruntime is kept. What
helps is inputs on which the model gives numbers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ort_metainfer.trials.alignment import Alignment, align_outputs
from ort_metainfer.trials.measures import (
    SCALE_FLOOR,
    Array,
    OutputError,
    Usual,
    are_scores,
    cosine,
    is_float,
    relative_l2,
    rows_agreeing,
    wide,
    zeroed,
)

__all__ = ["SCALE_FLOOR", "Comparison", "compare_outputs", "leaves"]

Outputs = Sequence[Any]
"""The outputs of one run, in the order of the names."""

NO_USUAL = Usual(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Comparison:
    """How far outputs lie from the reference's.

    Attributes:
        errors: output -> worst relative L2 error over the inputs; for integers and strings the share that differs.
        mismatch: what no tolerance can excuse (a shape, a type, a NaN, an integer that differs); None otherwise.
        top1: worst share, over outputs that are scores of classes, of rows whose largest element stayed where it was;
            None where no output is.
        outputs: output -> all that was measured of it.
        stray: a NaN or an infinity where the reference has none, or the reverse; None otherwise.
        lengths: output -> how its length differs and what of it was aligned, where it was.
        not_finite: where the reference itself gives NaN or infinity, which never passes; None where it does not. The
            errors are those of the other elements.
    """

    errors: Mapping[str, float] = field(default_factory=dict)
    mismatch: str | None = None
    top1: float | None = None
    outputs: Mapping[str, OutputError] = field(default_factory=dict)
    stray: str | None = None
    lengths: Mapping[str, str] = field(default_factory=dict)
    not_finite: str | None = None

    @property
    def error(self) -> float:
        """The worst of ``errors``; 0 where there are none."""
        return max(self.errors.values(), default=0.0)

    @property
    def cosine(self) -> float | None:
        """The worst over the outputs; None where none has a direction."""
        return min((each.cosine for each in self.outputs.values() if each.cosine is not None), default=None)


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


def compare_outputs(
    names: Sequence[str],
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    align: bool = False,
    scores: Collection[str] = (),
) -> Comparison:
    """Compare two sessions' outputs over the same inputs.

    Args:
        names: output names.
        reference: for each input, the outputs to be kept.
        candidate: for each input, the outputs to be judged.
        align: whether outputs of different lengths are aligned; otherwise they are a mismatch.
        scores: outputs that hold scores of classes as the graph tells (``Graph.scores``); others may by their name
            (see :func:`ort_metainfer.trials.measures.are_scores`).
    """
    wanted = [dict(_flat(names, outputs)) for outputs in reference]
    tally = _Tally(_usual(wanted), scores)
    for feed, (expected, outputs) in enumerate(zip(wanted, candidate, strict=True)):
        got = dict(_flat(names, outputs))
        if list(got) != list(expected):
            strays = sorted(set(got) ^ set(expected))
            return Comparison({}, f"the outputs' structure differs on input {feed}: {', '.join(strays[:3])}", None)
        alignments = align_outputs(expected, got, tally.usual) if align else {}
        for path, value in expected.items():
            tally.add(feed, path, value, got[path], alignments.get(path))
    return tally.comparison()


def _flat(names: Sequence[str], outputs: Outputs) -> Iterator[tuple[str, Any]]:
    for name, value in zip(names, outputs, strict=True):
        yield from leaves(value, name)


def _usual(wanted: Sequence[Mapping[str, Any]]) -> dict[str, Usual]:
    values: dict[str, list[Array]] = {}
    for outputs in wanted:
        for path, value in outputs.items():
            if value is not None and is_float(value):
                values.setdefault(path, []).append(wide(value))
    return {path: Usual.of(arrays) for path, arrays in values.items()}


class _Tally:
    """What was found so far, output by output; ``usual`` is what each is usually like, ``scores`` which hold scores."""

    def __init__(self, usual: Mapping[str, Usual], scores: Collection[str] = ()) -> None:
        self.usual, self.scores = usual, scores
        self.not_finite: str | None = None
        self.mismatch: str | None = None
        self.stray: str | None = None
        self.errors: dict[str, OutputError] = {}
        self.lengths: dict[str, str] = {}
        self._agreeing: dict[str, list[float]] = {}
        self._aligned: dict[str, list[tuple[int, int]]] = {}

    def add(self, feed: int, path: str, expected: Any, got: Any, alignment: Alignment | str | None) -> None:
        """One output on one input."""
        if isinstance(alignment, Alignment):
            self._note_lengths(path, expected, got, alignment)
            expected = np.take(expected, alignment.reference, alignment.axis)
            got = np.take(got, alignment.candidate, alignment.axis)
        self._look_for_nan(feed, path, expected)
        usual = self.usual.get(path, NO_USUAL)
        error, why = _leaf_error(expected, got, usual)
        if why is not None:
            why = f"output {path!r} on input {feed}: {why}"
            if isinstance(alignment, str):
                why += f"; {alignment}"
            self.mismatch = self.mismatch or why
            if error.relative_l2 == math.inf and np.shape(expected) == np.shape(got) and is_float(expected):
                self.stray = self.stray or why
        elif are_scores(path, expected, path in self.scores):
            self._agreeing.setdefault(path, []).append(rows_agreeing(expected, got))
        self.errors[path] = _worse(self.errors.get(path), error)

    def _look_for_nan(self, feed: int, path: str, expected: Any) -> None:
        if self.not_finite is None and expected is not None and is_float(expected):
            count = int(np.sum(~np.isfinite(wide(expected))))
            if count:
                self.not_finite = (
                    f"the reference itself gives NaN or infinity: {count} elements of output {path!r} on input {feed};"
                    " nothing can be verified there, so plain onnxruntime is kept"
                )

    def _note_lengths(self, path: str, expected: Any, got: Any, alignment: Alignment) -> None:
        self._aligned.setdefault(path, []).append((len(alignment.reference), alignment.length))
        if path not in self.lengths:
            lengths = np.shape(got)[alignment.axis], np.shape(expected)[alignment.axis]
            self.lengths[path] = (
                f"{lengths[0]} rows along axis {alignment.axis} instead of {lengths[1]}, {len(alignment.reference)} of"
                " them with a counterpart"
            )

    def comparison(self) -> Comparison:
        """All of it."""
        top1 = {path: sum(rows) / len(rows) for path, rows in self._agreeing.items()}
        aligned = {path: sum(n for n, _ in pairs) / sum(m for _, m in pairs) for path, pairs in self._aligned.items()}
        outputs = {
            path: replace(error, top1=top1.get(path), aligned=aligned.get(path)) for path, error in self.errors.items()
        }
        errors = {path: error.relative_l2 for path, error in outputs.items()}
        least = min(top1.values(), default=None)
        return Comparison(errors, self.mismatch, least, outputs, self.stray, self.lengths, self.not_finite)


def _worse(one: OutputError | None, other: OutputError) -> OutputError:
    """Each measure of the worse of two inputs; one that is not a number is the worst."""
    if one is None:
        return other

    def worst(name: str, sign: int) -> float | None:
        found = [value for value in (getattr(one, name), getattr(other, name)) if value is not None]
        return max(found, key=lambda value: math.inf if math.isnan(value) else sign * value, default=None)

    l2 = worst("relative_l2", 1)
    assert l2 is not None
    return OutputError(l2, worst("cosine", -1), worst("worst", 1), worst("span", 1))


UNLIKE = OutputError(math.inf)


def _leaf_error(reference: Any, candidate: Any, usual: Usual) -> tuple[OutputError, str | None]:
    if reference is None or candidate is None:
        return (OutputError(), None) if reference is candidate else (UNLIKE, "one is absent")
    expected, got = np.asarray(reference), np.asarray(candidate)
    if expected.dtype != got.dtype and not (expected.dtype.kind in "OUS" and got.dtype.kind in "OUS"):
        return UNLIKE, f"it is {got.dtype} instead of {expected.dtype}"
    if expected.shape != got.shape:
        return UNLIKE, f"its shape is {list(got.shape)} instead of {list(expected.shape)}"
    if not is_float(expected):
        different = int(np.sum(expected != got))
        share = different / max(1, expected.size)
        return OutputError(share), f"{different} of {expected.size} elements differ" if different else None
    return _float_error(wide(expected), wide(got), usual)


def _float_error(expected: Array, got: Array, usual: Usual) -> tuple[OutputError, str | None]:
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(got)):
        stray = int(np.sum(finite != np.isfinite(got)))
        return UNLIKE, f"NaN or infinity where the reference has none, or the reverse ({stray} elements)"
    if not np.array_equal(expected[~finite], got[~finite], equal_nan=True):
        return UNLIKE, "NaN and infinities are not the reference's"
    expected, got = zeroed(expected), zeroed(got)
    worst = float(np.abs(got - expected).max(initial=0.0))
    l2 = relative_l2(expected, got, usual.norm)
    return OutputError(l2, cosine(expected, got, usual.norm), worst, usual.span), None
