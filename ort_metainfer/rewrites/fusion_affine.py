"""Scales and shifts per channel moved into the weights of the Conv, ConvTranspose, Gemm or MatMul beside them.

With ``y = W x + b`` along output channels, ``y * s + t`` is ``(W s) x + (b s + t)``; and ``W (x * s + t) + b`` is
``(W s) x + (W t + b)`` along input channels, as long as no padding brings in zeros that were not shifted. New weights
are computed in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ort_metainfer.rewrites.base import Rewrite
from ort_metainfer.rewrites.fusing import DONE_BY_ORT, NOT_DONE_BY_ORT, Fusion, Keep
from ort_metainfer.rewrites.linear import Linear, linear_of, with_bias
from ort_metainfer.rewrites.node_rewrite import Plan, Surroundings
from ort_metainfer.rewrites.patterns import FLOATS, attribute, constant, dims, dtype, rank

__all__ = [
    "REWRITES",
    "BatchNormBeforeLinear",
    "BatchNormIntoLinear",
    "ScaleBeforeLinear",
    "ScaleIntoLinear",
]

LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")
SCALING = ("Mul", "Add", "Sub", "Div")

DEFAULT_EPSILON = 1e-5
"""BatchNormalization's, in every opset."""


@dataclass(frozen=True)
class Affine:
    """A node that scales and shifts: what it takes, and scale and shift, one number a channel or one for all."""

    data: Any
    scale: np.ndarray
    shift: np.ndarray

    def per_channel(self, rank_: int | None, axis: int, channels: int) -> tuple[np.ndarray, np.ndarray] | str:
        """Scale and shift as vectors of ``channels``; or why they vary along another axis."""
        vectors = [_vector(array, rank_, axis, channels) for array in (self.scale, self.shift)]
        scale, shift = vectors
        if scale is None or shift is None:
            return "its constant is not one number a channel"
        if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
            return "its constant is not finite"
        return scale, shift


def _vector(array: np.ndarray, rank_: int | None, axis: int, channels: int) -> np.ndarray | None:
    """``array``, broadcast against a value of this rank, as a vector along ``axis``; None where it varies elsewhere."""
    if rank_ is None:
        if array.ndim > 1 or axis != -1:
            return None
        rank_ = max(array.ndim, 1)
    if array.ndim > rank_:
        return None
    sizes = [1] * (rank_ - array.ndim) + list(array.shape)
    along = sizes.pop(axis)
    if along not in (1, channels) or any(size != 1 for size in sizes):
        return None
    return np.broadcast_to(array.reshape(-1), (channels,)).astype(np.float64)


def batch_norm_of(node: Any) -> Affine | str:
    """BatchNormalization as it infers: scale and shift of shape [channels, 1, ...]."""
    if attribute(node, "training_mode", 0) or any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return "it computes statistics as in training"
    if attribute(node, "spatial", 1) != 1:
        return "it has statistics for every position"
    arrays = [constant(value) for value in node.inputs[1:5]]
    known = rank(node.inputs[0])
    if any(array is None for array in arrays):
        return "its parameters are not constant"
    if known is None:
        return "the rank of its input is not known"
    scale, shift, mean, variance = (array.astype(np.float64) for array in arrays if array is not None)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + attribute(node, "epsilon", DEFAULT_EPSILON))
    shape = (-1, *[1] * (known - 2))
    return Affine(node.inputs[0], factor.reshape(shape), (shift - mean * factor).reshape(shape))


def scaling_of(node: Any) -> Affine | str | None:
    """Mul, Add, Sub or Div with one constant; None where it has none, or divides a constant."""
    left, right = node.inputs
    arrays = constant(left), constant(right)
    if (arrays[0] is None) == (arrays[1] is None):
        return None
    data, array = (right, arrays[0]) if arrays[1] is None else (left, arrays[1])
    if array is None or array.dtype.kind != "f":
        return None
    number = array.astype(np.float64)
    one, zero = np.ones(()), np.zeros(())
    if node.op_type == "Mul":
        return Affine(data, number, zero)
    if node.op_type == "Add":
        return Affine(data, one, number)
    if node.op_type == "Sub":
        return Affine(data, one, -number) if data is left else Affine(data, -one, number)
    if data is right:
        return None
    if not number.all():
        return "it divides by zero"
    return Affine(data, 1.0 / number, zero)


class _Into(Fusion):
    """A scale and shift behind a linear operator, put into its weights."""

    also = ()

    def affine(self, node: Any) -> Affine | str | None:
        """The node as a scale and shift."""
        raise NotImplementedError

    def find(self, node: Any, around: Surroundings) -> Plan | Keep | str | None:
        """A linear operator before it, with constant weights."""
        found = self.affine(node)
        if not isinstance(found, Affine):
            return found
        linear = linear_of(found.data)
        if linear is None or isinstance(linear, str):
            return linear
        if dtype(found.data) not in FLOATS:
            return f"weights of {dtype(found.data) or 'unknown type'} are rounded too coarsely"
        vectors = found.per_channel(linear.rank, linear.axis, linear.channels)
        if isinstance(vectors, str):
            return vectors
        scale, shift = vectors
        if linear.bare_product and (scale == 1).all():
            return "a MatMul has no bias to put it into"
        scaled = linear.scaled_outputs(scale, shift)
        if isinstance(scaled, str):
            return scaled
        if not self.pays(node, linear, shift):
            return "as many operators would be left"
        return Plan(node, lambda make: scaled.make(make), linear.nodes)

    def pays(self, node: Any, linear: Linear, shift: np.ndarray) -> bool:
        """Whether an operator goes."""
        return not (linear.bare_product and shift.any() and node.op_type != "BatchNormalization")


class BatchNormIntoLinear(_Into):
    """BatchNormalization behind Conv, ConvTranspose, Gemm or MatMul into their weights (MatMul keeps an Add)."""

    name = "batch-norm-into-linear"
    evidence = DONE_BY_ORT + " behind Conv and MatMul, not behind ConvTranspose and Gemm (none in the models tried)"
    operators = ("BatchNormalization",)

    def affine(self, node: Any) -> Affine | str | None:
        """What it does at inference."""
        return batch_norm_of(node)


class ScaleIntoLinear(_Into):
    """Mul, Add, Sub and Div by one constant a channel behind Conv, ConvTranspose, Gemm or MatMul into their weights."""

    name = "scale-into-linear"
    evidence = DONE_BY_ORT + " behind Conv, not behind ConvTranspose and Gemm (none in the models tried)"
    operators = SCALING

    def affine(self, node: Any) -> Affine | str | None:
        """What it does."""
        return scaling_of(node)


class _Before(Fusion):
    """A scale and shift before a linear operator, put into its weights."""

    operators = LINEAR
    scalings: tuple[str, ...] = ()

    def find(self, node: Any, around: Surroundings) -> Plan | Keep | str | None:
        """One of ``scalings`` makes what it takes."""
        maker = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
        if maker is None or maker.domain or maker.op_type not in self.scalings or maker.graph is None:
            return None
        if _ends_gelu(maker):
            return "it is part of a composed GELU, which is worth more as one operator"
        found = batch_norm_of(maker) if maker.op_type == "BatchNormalization" else scaling_of(maker)
        if not isinstance(found, Affine):
            return found
        end = with_bias(node)
        linear = linear_of(end.outputs[0])
        if linear is None or isinstance(linear, str):
            return linear
        if dtype(node.inputs[0]) not in FLOATS:
            return f"weights of {dtype(node.inputs[0]) or 'unknown type'} are rounded too coarsely"
        known = rank(found.data)
        if known is None or (linear.rank is not None and known != linear.rank):
            return "the rank of its input is not known"
        vectors = found.per_channel(known, linear.axis, linear.taken)
        if isinstance(vectors, str):
            return vectors
        if (dims(found.data) or ())[linear.axis] != linear.taken and found.scale.size * found.shift.size > 1:
            return "it may repeat one channel"
        return self._plan(end, maker, found, linear, vectors)

    def _plan(self, node: Any, maker: Any, found: Affine, linear: Linear, vectors: Any) -> Plan | str:
        scale, shift = vectors
        if linear.bare_product and shift.any():
            return "a MatMul has no bias to put the shift into"
        scaled = linear.scaled_inputs(scale, shift)
        if isinstance(scaled, str):
            return scaled
        return Plan(node, lambda make: scaled.make(make, found.data), [maker, *linear.nodes])


def _ends_gelu(node: Any, steps: int = 3) -> bool:
    """Whether Erf or Tanh is a factor of the product: the last Mul of a GELU in several operators."""
    makers = [value.producer() for value in node.inputs if value is not None and value.producer() is not None]
    if node.op_type not in ("Mul", "Add", "Div"):
        return node.op_type in ("Erf", "Tanh")
    return steps > 0 and any(_ends_gelu(maker, steps - 1) for maker in makers)


class BatchNormBeforeLinear(_Before):
    """BatchNormalization before Conv, ConvTranspose, Gemm or MatMul into their weights, if no padding is in the way."""

    name = "batch-norm-before-linear"
    evidence = NOT_DONE_BY_ORT + "a U-Net for EEG 128, 120"
    also = ("BatchNormalization",)
    scalings = ("BatchNormalization",)


class ScaleBeforeLinear(_Before):
    """Mul, Add, Sub and Div by one constant a channel before Conv, ConvTranspose, Gemm or MatMul into their weights."""

    name = "scale-before-linear"
    evidence = NOT_DONE_BY_ORT + "PP-OCR's classifier 155, 146"
    scalings = SCALING


REWRITES: tuple[Rewrite, ...] = (
    BatchNormIntoLinear(),
    ScaleIntoLinear(),
    BatchNormBeforeLinear(),
    ScaleBeforeLinear(),
)
