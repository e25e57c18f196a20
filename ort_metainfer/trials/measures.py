"""What one output's difference from the reference's comes to: relative L2, cosine, worst element, top-1. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "SCALE_FLOOR",
    "OutputError",
    "Usual",
    "are_scores",
    "cosine",
    "is_float",
    "relative_l2",
    "rows_agreeing",
    "wide",
    "zeroed",
]

Array = npt.NDArray[Any]

SCALE_FLOOR = 0.1
"""An output smaller than this share of its usual norm (over all inputs) is judged as if it had that share: a text
detector that answers 1e-8 on a blank page is not wrong when it answers 2e-8."""

MIN_DIRECTION = 8
"""Elements from which a sample of a batch has a direction of its own; with fewer, the whole output has one."""

_SCORES = frozenset(
    {"logit", "logits", "score", "scores", "prob", "probs", "probability", "probabilities", "softmax", "classes"}
)
_NO_SCORES = frozenset(
    {"box", "boxes", "bbox", "bboxes", "coords", "coordinates", "keypoints", "landmarks", "points"}
    | {"embedding", "embeddings", "embed", "feature", "features", "hidden", "pooler", "pooled", "state", "states"}
)


@dataclass(frozen=True)
class OutputError:
    """How far one output lies from the reference's: the worst over the inputs.

    Attributes:
        relative_l2: norm of the difference over the reference's norm; for integers and strings the share of elements
            that differ. Infinite where the two cannot be compared.
        cosine: of the angle between the two, sample by sample; None where neither has a direction.
        worst: largest absolute difference of an element; ``span`` is how far the reference's own elements spread
            (largest less smallest, over all inputs).
        top1: share of rows whose largest element stayed where it was; None where it holds no scores of classes.
        aligned: share of rows that found their counterpart, where the lengths differ; None where they do not.
    """

    relative_l2: float = 0.0
    cosine: float | None = None
    worst: float | None = None
    span: float | None = None
    top1: float | None = None
    aligned: float | None = None

    def describe(self) -> str:
        """``relative L2 3.1e-02, cosine 0.9991, worst element 0.12 of range 6.3``."""
        words = [f"relative L2 {self.relative_l2:.1e}"]
        if self.cosine is not None:
            words.append(f"cosine {self.cosine:.6g}")
        if self.worst is not None:
            words.append(
                f"worst element {self.worst:.2g}" + ("" if self.span is None else f" of range {self.span:.2g}")
            )
        return ", ".join(words)

    def figures(self) -> dict[str, float]:
        """The finite ones, by name."""
        known = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in known.items() if value is not None and math.isfinite(value)}


@dataclass(frozen=True)
class Usual:
    """What an output of the reference is usually like, over all inputs: ``norm`` is the root mean square of its norm,
    ``low`` and ``high`` are its smallest and largest finite element."""

    norm: float
    low: float
    high: float

    @property
    def span(self) -> float:
        """Largest less smallest element."""
        return self.high - self.low

    @classmethod
    def of(cls, values: list[Array]) -> Usual:
        """Of one output's values, one array an input."""
        finite = [zeroed(value) for value in values]
        squares = [float(np.linalg.norm(value.ravel())) ** 2 for value in finite]
        real = [value.real for value in finite if value.size]
        low, high = min((float(v.min()) for v in real), default=0.0), max((float(v.max()) for v in real), default=0.0)
        return cls(math.sqrt(sum(squares) / max(1, len(squares))), low, high)


def is_float(value: Any) -> bool:
    """Floating point or complex; numpy calls bfloat16 and the float8 types void."""
    dtype = np.asarray(value).dtype
    return dtype.kind in "fc" or "float" in dtype.name


def wide(value: Any) -> Array:
    """In float64, which can hold the square of every float32 without overflow; complex values in complex128."""
    array = np.asarray(value)
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    return (array if array.dtype.kind == "f" else array.astype(np.float32)).astype(np.float64)


def zeroed(values: Array) -> Array:
    """With zeros where it is not finite."""
    finite = np.isfinite(values)
    return values if finite.all() else np.where(finite, values, 0)


def relative_l2(expected: Array, got: Array, usual_norm: float) -> float:
    """Norm of the difference over the reference's, which counts as at least ``SCALE_FLOOR`` of the usual one.

    A reference of zeros counts as the smallest normal float32 in every element.
    """
    distance = float(np.linalg.norm((got - expected).ravel()))
    if distance == 0:
        return 0.0
    floor = float(np.finfo(np.float32).tiny) * math.sqrt(max(1, expected.size))
    return distance / max(float(np.linalg.norm(expected.ravel())), SCALE_FLOOR * usual_norm, floor)


def cosine(expected: Array, got: Array, usual_norm: float) -> float | None:
    """Cosine of the angle between two outputs; of a batch (two axes or more), the worst of its samples.

    Samples lie along axis 0. One whose norm is below ``SCALE_FLOOR`` of what is usual has no direction worth judging:
    its size is what :func:`relative_l2` judges. None where that leaves nothing.
    """
    if expected.size < 2:
        return None
    is_batch = expected.ndim > 1 and expected.size // expected.shape[0] >= MIN_DIRECTION
    rows = expected.shape[0] if is_batch else 1
    one, other = expected.reshape(rows, -1), got.reshape(rows, -1)
    norms, others = np.linalg.norm(one, axis=1), np.linalg.norm(other, axis=1)
    floor = max(SCALE_FLOOR * usual_norm / math.sqrt(rows), float(np.finfo(np.float32).tiny))
    judged = ~(norms < floor)  # one that is not a number is judged, and fails
    if not judged.any():
        return None
    dots = np.einsum("ij,ij->i", one.conj(), other).real[judged]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        cosines = np.where(others[judged] == 0, 0.0, dots / norms[judged] / others[judged])
    return float(np.clip(cosines.min(), -1.0, 1.0))


def are_scores(name: str, value: Any, by_graph: bool = False) -> bool:
    """Whether the largest element of each row is an answer: scores or probabilities of classes.

    Real floating point, two elements or more along the last axis, and one of these:

    * the output's name says so (``logits``, ``scores``, ``probs`` ...), with one to three axes;
    * the graph says so, with two or three axes: its last operator is Softmax, LogSoftmax, Gemm or MatMul (see
      ``model/scores.py``), and its name does not speak of boxes, points, embeddings, features or states.

    Values are not looked at: what is neither is judged by relative L2 and cosine alone, whatever its shape.

    Args:
        name: the output's, or the path of an array within it.
        value: the array.
        by_graph: whether the graph says so.
    """
    shape = np.shape(value)
    if not is_float(value) or np.asarray(value).dtype.kind == "c" or not 1 <= len(shape) <= 3 or shape[-1] < 2:
        return False
    words = set(re.split(r"[^a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()))
    return bool(words & _SCORES) or (by_graph and len(shape) > 1 and not words & _NO_SCORES)


def rows_agreeing(reference: Any, candidate: Any) -> float:
    """Share of rows with equal arg max; where the reference itself ties within the error, either answer will do."""
    expected = np.nan_to_num(wide(reference)).reshape(-1, np.shape(reference)[-1])
    got = np.nan_to_num(wide(candidate)).reshape(expected.shape)
    if expected.shape[0] == 0:
        return 1.0
    error = math.sqrt(float(np.mean((got - expected) ** 2)))
    picked = expected[np.arange(len(got)), got.argmax(axis=1)]
    return float(np.mean(expected.max(axis=1) - picked <= error))
