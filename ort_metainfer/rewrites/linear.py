"""Conv, ConvTranspose, Gemm and MatMul with constant weights, and the same with weights scaled along a side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ort_metainfer.rewrites.building import Builder
from ort_metainfer.rewrites.fusing import attributes_of
from ort_metainfer.rewrites.patterns import attribute, constant, produced, rank

__all__ = ["Linear", "linear_of", "with_bias"]


@dataclass(frozen=True)
class Linear:
    """An operator ``W x + b`` with constant W and b.

    Attributes:
        operator: ``Conv``, ``ConvTranspose``, ``Gemm`` or ``MatMul``.
        data: what it takes.
        weights: as the operator has them.
        bias: added along the output channels (of Gemm: whatever broadcasts, with ``beta`` in it); None: none.
        attributes: of the operator.
        nodes: one, or MatMul and the Add behind it.
        rank: of its output; None where not known.
    """

    operator: str
    data: Any
    weights: np.ndarray
    bias: np.ndarray | None
    attributes: Mapping[str, Any]
    nodes: Sequence[Any]
    rank: int | None

    @property
    def bare_product(self) -> bool:
        """Whether it is a MatMul without an Add."""
        return self.operator == "MatMul" and self.bias is None

    @property
    def axis(self) -> int:
        """Of the channels in what it takes and gives."""
        return -1 if self.operator in ("MatMul", "Gemm") else 1

    @property
    def _groups(self) -> int:
        given = self.attributes.get("group")
        return 1 if given is None else int(given.value)

    @property
    def channels_first(self) -> bool:
        """Whether Gemm's weights have the output channels first."""
        given = self.attributes.get("transB")
        return given is not None and bool(given.value)

    @property
    def channels(self) -> int:
        """Output channels."""
        if self.operator == "Conv" or self.channels_first:
            return int(self.weights.shape[0])
        return int(self.weights.shape[1]) * self._groups

    @property
    def taken(self) -> int:
        """Input channels."""
        if self.operator == "Conv":
            return int(self.weights.shape[1]) * self._groups
        return int(self.weights.shape[1 if self.channels_first else 0])

    @property
    def _zero_padded(self) -> bool:
        pads, auto = self.attributes.get("pads"), self.attributes.get("auto_pad")
        return (pads is not None and any(pads.value)) or (auto is not None and auto.value not in ("NOTSET", "VALID"))

    def _along(self, vector: np.ndarray, outputs: bool) -> np.ndarray:
        """``vector``, one number an output (or input) channel, in a shape that meets the weights."""
        kernel = self.weights.ndim - 2
        if self.operator == "Conv" and not outputs:
            split = vector.reshape(self._groups, 1, -1, *[1] * kernel)
            repeated = np.repeat(split, self.weights.shape[0] // self._groups, axis=1)
            return repeated.reshape(self.weights.shape[0], -1, *[1] * kernel)
        if self.operator == "ConvTranspose" and outputs:
            split = vector.reshape(self._groups, 1, -1, *[1] * kernel)
            repeated = np.repeat(split, self.weights.shape[0] // self._groups, axis=1)
            return repeated.reshape(self.weights.shape[0], -1, *[1] * kernel)
        first = (self.operator in ("Conv", "ConvTranspose")) or (self.channels_first == outputs)
        return vector.reshape((-1, *[1] * (kernel + 1)) if first else (1, -1))

    def scaled_outputs(self, scale: np.ndarray, shift: np.ndarray) -> Linear | str:
        """The same with ``* scale + shift`` behind it; or why it cannot be written so."""
        weights = self.weights.astype(np.float64) * self._along(scale, outputs=True)
        if self.operator == "Gemm" and self.bias is not None and self.bias.size > self.channels:
            return "its bias is not one number a channel"
        bias = shift if self.bias is None else self.bias.astype(np.float64) * scale + shift
        return self._with(weights, bias if self.bias is not None or shift.any() else None)

    def scaled_inputs(self, scale: np.ndarray, shift: np.ndarray) -> Linear | str:
        """The same with ``* scale + shift`` before it; or why it cannot be written so."""
        wide = self.weights.astype(np.float64)
        bias = None if self.bias is None else self.bias.astype(np.float64)
        if shift.any():
            if self.operator == "ConvTranspose" or (self.operator == "Conv" and self._zero_padded):
                return "the zeros it is padded with are not shifted"
            extra = self._summed(wide * self._along(shift, outputs=False))
            bias = extra if bias is None else bias + extra
        return self._with(wide * self._along(scale, outputs=False), bias)

    def _summed(self, products: np.ndarray) -> np.ndarray:
        """Over everything but the output channels; Gemm's alpha included."""
        axis = 0 if self.operator == "Conv" or self.channels_first else 1
        total: np.ndarray = products.sum(axis=tuple(a for a in range(products.ndim) if a != axis))
        alpha = self.attributes.get("alpha")
        return total if alpha is None else total * float(alpha.value)

    def _with(self, weights: np.ndarray, bias: np.ndarray | None) -> Linear | str:
        kind = self.weights.dtype
        with np.errstate(over="ignore"):
            made = replace(self, weights=weights.astype(kind), bias=None if bias is None else bias.astype(kind))
        if not np.isfinite(made.weights).all() or not (bias is None or np.isfinite(made.bias).all()):  # type: ignore[arg-type]
            return "the new weights would not be finite"
        return made

    def make(self, builder: Builder, data: Any = None) -> Any:
        """Its node or nodes; gives the output."""
        given = [self.data if data is None else data, self.weights]
        if self.operator == "MatMul":
            product = builder("MatMul", *given)
            return product if self.bias is None else builder("Add", product, self.bias)
        return builder(self.operator, *given, *([] if self.bias is None else [self.bias]), **self.attributes)


def linear_of(value: Any) -> Linear | str | None:
    """The linear operator that makes ``value``; or why its weights stay; None where there is none."""
    node = produced(value, "Conv", "ConvTranspose", "Gemm", "MatMul", "Add")
    if node is None:
        return None
    if node.op_type == "Add":
        return _product_and_bias(node)
    weights = constant(node.inputs[1])
    if weights is None:
        return "its weights are not constant"
    if weights.dtype.kind != "f":
        return "its weights are no floating-point numbers"
    if node.op_type == "MatMul":
        if weights.ndim != 2:
            return "its weights are no matrix"
        return Linear("MatMul", node.inputs[0], weights, None, {}, [node], rank(node.inputs[0]))
    bias = constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    if bias is None and len(node.inputs) > 2 and node.inputs[2] is not None:
        return "its bias is not constant"
    attributes = attributes_of(node, "beta") if node.op_type == "Gemm" else attributes_of(node)
    if node.op_type == "Gemm":
        if attribute(node, "transA", 0):
            return "it takes its input transposed"
        beta = np.float64(attribute(node, "beta", 1.0))
        bias = None if bias is None else (bias * beta).astype(bias.dtype)
        if bias is not None and np.prod(bias.shape[:-1]) != 1:
            return "its bias is not one number a channel"
    return Linear(node.op_type, node.inputs[0], weights, bias, attributes, [node], weights.ndim)


def _product_and_bias(add: Any) -> Linear | str | None:
    """Add of a vector behind a MatMul by a constant matrix."""
    for product, other in (add.inputs, add.inputs[::-1]):
        bias = constant(other)
        node = produced(product, "MatMul")
        if bias is None or node is None:
            continue
        found = linear_of(product)
        if not isinstance(found, Linear) or bias.shape != (found.channels,):
            return None
        return replace(found, bias=bias, nodes=[add, node])
    return None


def with_bias(node: Any) -> Any:
    """The Add of a constant vector behind a MatMul, where that is all that uses it; else the node itself."""
    value = node.outputs[0]
    users = [use.node for use in value.uses()]
    if node.op_type != "MatMul" or len(users) != 1 or value.is_graph_output():
        return node
    user = users[0]
    if user.op_type != "Add" or user.domain or user.graph is not node.graph:
        return node
    found = linear_of(user.outputs[0])
    return user if isinstance(found, Linear) and len(found.nodes) == 2 and found.nodes[1] is node else node
