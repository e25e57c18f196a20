"""LayerNormalization and RMSNormalization: composed of elementary operators, as one operator, and back."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ort_metainfer.rewrites.base import Rewrite
from ort_metainfer.rewrites.building import Builder
from ort_metainfer.rewrites.node_rewrite import OperatorRewrite, Plan, Surroundings
from ort_metainfer.rewrites.normalising import Normalised, affine_behind, find_normalised, trailing_weight
from ort_metainfer.rewrites.patterns import attribute, dims, dtype, rank

__all__ = [
    "REWRITES",
    "LayerNormToComposed",
    "LayerNormToNative",
    "RmsNormToComposed",
    "RmsNormToContributed",
    "RmsNormToNative",
]

KINDS = {"FLOAT": np.float32, "DOUBLE": np.float64}

SIMPLIFIED = ("CPUExecutionProvider", "CUDAExecutionProvider", "DmlExecutionProvider", "WebGpuExecutionProvider")
"""Providers that have kernels for onnxruntime's own SimplifiedLayerNormalization."""


def _trailing(found: Normalised) -> tuple[int, ...] | str:
    """The sizes normalised over; or why they are no trailing dimensions of known size."""
    count, known = len(found.axes), dims(found.value)
    if found.axes != list(range(-count, 0)):
        return f"it normalises over axes {found.axes}, which are not known to be the last ones"
    if known is None or len(known) < count or any(size is None for size in known[-count:]):
        return "the sizes it normalises over are not known"
    return tuple(size for size in known[-count:] if size is not None)


def _rank_raised(found: Normalised, weight: Any) -> bool:
    """Whether a scale or bias has more dimensions than what it is applied to."""
    wide, own = rank(weight), rank(found.value)
    return wide is None or own is None or wide > own


class LayerNormToNative(OperatorRewrite):
    """Mean, variance and quotient, with scale and bias behind them, as one LayerNormalization."""

    name = "layer-norm-to-native"
    operators = ("Div", "Mul")
    also = ("ReduceMean",)
    least_opset = 17
    centred = True

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """The quotient of a normalisation over the last axes."""
        found = find_normalised(node)
        if found is None or found.centred != self.centred:
            return None
        kind = KINDS.get(dtype(found.value) or "")
        if kind is None:
            return f"a normalisation of {dtype(found.value) or 'unknown type'} is left alone"
        shape = _trailing(found)
        if isinstance(shape, str):
            return shape

        def fit(weight: Any) -> Any:
            return None if _rank_raised(found, weight) else trailing_weight(weight, shape)

        behind = affine_behind(found, fit, with_bias=self.centred)
        scale = np.ones(shape, kind) if behind.scale is None else behind.scale
        weights = [scale] if behind.bias is None else [scale, behind.bias]
        return Plan(behind.last, lambda make: self.native(make, found, weights), [*found.nodes, *behind.nodes])

    def native(self, make: Builder, found: Normalised, weights: list[Any]) -> Any:
        """The one operator."""
        return make("LayerNormalization", found.value, *weights, axis=found.axes[0], epsilon=found.epsilon)


class RmsNormToNative(LayerNormToNative):
    """Mean square and quotient, with a scale behind them, as one RMSNormalization."""

    name = "rms-norm-to-native"
    least_opset = 23
    centred = False

    def native(self, make: Builder, found: Normalised, weights: list[Any]) -> Any:
        """The one operator."""
        return make("RMSNormalization", found.value, *weights, axis=found.axes[0], epsilon=found.epsilon)


class RmsNormToContributed(LayerNormToNative):
    """Mean square and quotient, with a scale behind them, as onnxruntime's SimplifiedLayerNormalization."""

    name = "rms-norm-to-contributed"
    least_opset = 7
    centred = False
    providers = SIMPLIFIED

    def native(self, make: Builder, found: Normalised, weights: list[Any]) -> Any:
        """The one operator, which onnxruntime keeps in the domain of ONNX."""
        return make("SimplifiedLayerNormalization", found.value, *weights, axis=found.axes[0], epsilon=found.epsilon)


class LayerNormToComposed(OperatorRewrite):
    """LayerNormalization by means, a square root and products, for providers without it."""

    name = "layer-norm-to-composed"
    operators: ClassVar[tuple[str, ...]] = ("LayerNormalization",)
    least_opset = 11  # negative axes of reductions
    centred = True

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """One of which only the normalised value is used."""
        value, kind = node.inputs[0], KINDS.get(dtype(node.inputs[0]) or "")
        if kind is None:  # its mean is taken in float32, whatever the type
            return f"a normalisation of {dtype(value) or 'unknown type'} is left alone"
        if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
            return "its mean or deviation is used"
        axis, size = attribute(node, "axis", -1), rank(value)
        if size is None and axis >= 0:
            return "the rank of its input is not known"
        axes = list(range(axis - (size or 0) if axis >= 0 else axis, 0))
        epsilon = kind(attribute(node, "epsilon", 1e-5))
        weights = [weight for weight in node.inputs[1:] if weight is not None]
        return Plan(node, lambda make: _composed(make, value, axes, epsilon, weights, self.centred))


class RmsNormToComposed(LayerNormToComposed):
    """RMSNormalization or SimplifiedLayerNormalization by a mean, a square root and products."""

    name = "rms-norm-to-composed"
    operators = ("RMSNormalization", "SimplifiedLayerNormalization")
    centred = False


def _composed(make: Builder, value: Any, axes: list[int], epsilon: Any, weights: list[Any], centred: bool) -> Any:
    deviation = make("Sub", value, make.mean(value, axes)) if centred else value
    spread = make.mean(make("Mul", deviation, deviation), axes)
    made = make("Div", deviation, make("Sqrt", make("Add", spread, epsilon)))
    for operator, weight in zip(("Mul", "Add"), weights, strict=False):
        made = make(operator, made, weight)
    return made


REWRITES: tuple[Rewrite, ...] = (
    LayerNormToNative(),
    LayerNormToComposed(),
    RmsNormToNative(),
    RmsNormToContributed(),
    RmsNormToComposed(),
)
