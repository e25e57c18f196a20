"""Products and convolutions with what is around them in one of onnxruntime's own operators, where it does not do it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ort_metainfer.rewrites.base import Rewrite
from ort_metainfer.rewrites.building import Builder, Size
from ort_metainfer.rewrites.contributed import KERNELS, MICROSOFT, SOURCES
from ort_metainfer.rewrites.factors import product_of
from ort_metainfer.rewrites.fusing import DONE_BY_ORT, Fusion, Keep, attributes_of
from ort_metainfer.rewrites.linear import Linear, linear_of
from ort_metainfer.rewrites.node_rewrite import Plan, Surroundings
from ort_metainfer.rewrites.patterns import attribute, dtype, produced, rank

__all__ = ["REWRITES", "FuseConv", "FuseGemm", "FuseMatMul"]

ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
}
"""Activation -> its parameters, in the order in which FusedConv takes them."""

CPU_ONLY = ("CPUExecutionProvider",)
"""Other providers' FusedConv takes fewer activations."""

DEFAULTS = {"LeakyRelu": {"alpha": 0.01}, "HardSigmoid": {"alpha": 0.2, "beta": 0.5}}


class FuseMatMul(Fusion):
    """MatMul of transposed or scaled factors as com.microsoft.FusedMatMul."""

    name = "fuse-matmul"
    operators = ("MatMul",)
    providers = KERNELS["FusedMatMul"]
    evidence = DONE_BY_ORT
    sources = SOURCES

    def find(self, node: Any, around: Surroundings) -> Plan | Keep | str | None:
        """A Transpose of the last two dimensions, or a constant factor, before it."""
        parts = [product_of(value) for value in node.inputs]
        values = [
            part.values[0] if len(part.values) == 1 else value for part, value in zip(parts, node.inputs, strict=True)
        ]
        factors = [part.factor if len(part.values) == 1 else 1.0 for part in parts]
        inner = [node_ for part in parts if len(part.values) == 1 for node_ in part.nodes]
        turned = [produced(value, "Transpose") for value in values]
        turned = [maker if maker is not None and _swaps_last(maker) else None for maker in turned]
        if not inner and not any(turned):
            return None
        if dtype(node.inputs[0]) != "FLOAT":
            return f"it has no kernel for {dtype(node.inputs[0]) or 'an unknown type'} everywhere"
        if any((rank(value) or 0) < 2 for value in values):
            return "a factor is not known to be a matrix"
        data = [maker.inputs[0] if maker is not None else value for maker, value in zip(turned, values, strict=True)]
        given = {"alpha": factors[0] * factors[1], "transA": int(bool(turned[0])), "transB": int(bool(turned[1]))}
        inner += [maker for maker in dict.fromkeys(turned) if maker is not None]
        return Plan(node, lambda make: make("FusedMatMul", *data, domain=MICROSOFT, **given), inner)


def _swaps_last(node: Any) -> bool:
    perm = attribute(node, "perm")
    if perm is None:
        return rank(node.inputs[0]) == 2
    size = len(perm)
    return size >= 2 and perm == [*range(size - 2), size - 1, size - 2]


class FuseGemm(Fusion):
    """MatMul or Gemm with constant weights and bias, and the activation behind it, as com.microsoft.FusedGemm.

    More than two dimensions are folded into rows, for which the open ones may have to be read as the model runs.
    """

    name = "fuse-gemm"
    operators = tuple(ACTIVATIONS)
    providers = KERNELS["FusedGemm"]
    evidence = DONE_BY_ORT + " for Gemm and for MatMul of matrices; of more dimensions it takes two Reshapes"
    sources = SOURCES

    def find(self, node: Any, around: Surroundings) -> Plan | Keep | str | None:
        """A product with a bias before it."""
        linear = linear_of(node.inputs[0])
        if not isinstance(linear, Linear) or linear.operator not in ("Gemm", "MatMul"):
            return None
        if linear.bias is None:
            return "the product has no bias"
        if dtype(node.inputs[0]) != "FLOAT":
            return f"the CPU's kernel takes no {dtype(node.inputs[0]) or 'unknown type'}"
        if linear.rank is None or linear.rank < 2:
            return "the rank of its input is not known"
        given: dict[str, Any] = dict(linear.attributes)
        given |= {"activation": node.op_type}
        given |= {f"activation_{name}": _parameter(node, name) for name in ACTIVATIONS[node.op_type]}
        return Plan(node, lambda make: _fused_gemm(make, linear, given), linear.nodes)


def _fused_gemm(make: Builder, linear: Linear, given: Mapping[str, Any]) -> Any:
    import numpy as np

    data, wide = linear.data, linear.rank or 2
    if wide > 2:
        data = make("Reshape", data, np.asarray([-1, linear.taken], np.int64))
    made = make("FusedGemm", data, linear.weights, linear.bias, domain=MICROSOFT, **given)
    if wide == 2:
        return made
    sizes: list[Size] = [*((axis, 1) for axis in range(wide - 1)), linear.channels]
    return make.reshape(made, sizes, like=linear.data)


def _parameter(node: Any, name: str) -> float:
    return float(attribute(node, name, DEFAULTS[node.op_type][name]))


class FuseConv(Fusion):
    """Conv and the activation behind it as com.microsoft.FusedConv."""

    name = "fuse-conv"
    operators = tuple(ACTIVATIONS)
    also = ("Conv",)
    providers = CPU_ONLY
    evidence = DONE_BY_ORT
    sources = SOURCES

    def find(self, node: Any, around: Surroundings) -> Plan | Keep | str | None:
        """A Conv before it."""
        conv = produced(node.inputs[0], "Conv")
        if conv is None:
            return None
        if dtype(conv.inputs[0]) != "FLOAT":
            return f"the CPU's kernel takes no {dtype(conv.inputs[0]) or 'unknown type'}"
        given = attributes_of(conv)
        given["activation"] = node.op_type
        parameters = [_parameter(node, name) for name in ACTIVATIONS[node.op_type]]
        if parameters:
            given["activation_params"] = parameters
        return Plan(node, lambda make: make("FusedConv", *conv.inputs, domain=MICROSOFT, **given), [conv])


REWRITES: tuple[Rewrite, ...] = (FuseMatMul(), FuseGemm(), FuseConv())
