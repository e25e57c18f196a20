"""One matrix product in three spellings: Gemm, MatMul with Add, and a convolution with a kernel of one."""

from __future__ import annotations

from typing import Any

import numpy as np

from ort_metainfer.rewrites.base import Rewrite
from ort_metainfer.rewrites.building import Builder
from ort_metainfer.rewrites.node_rewrite import OperatorRewrite, Plan, Surroundings
from ort_metainfer.rewrites.patterns import (
    FLOATS,
    attribute,
    constant,
    constant_size,
    dims,
    dtype,
    other_input,
    produced,
    rank,
    static_dims,
)

__all__ = ["REWRITES", "ConvToMatMul", "GemmToMatMul", "MatMulToConv", "MatMulToGemm"]


class GemmToMatMul(OperatorRewrite):
    """Gemm as MatMul and Add; transposed and scaled operands are folded where they are constant."""

    name = "gemm-to-matmul"
    operators = ("Gemm",)

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """Any Gemm of floating-point matrices."""
        if dtype(node.inputs[0]) not in FLOATS:
            return f"a product of {dtype(node.inputs[0]) or 'unknown type'} is left alone"
        return Plan(node, lambda make: _multiplied(make, node))


def _multiplied(make: Builder, node: Any) -> Any:
    kind = {"FLOAT": np.float32, "DOUBLE": np.float64}[dtype(node.inputs[0]) or ""]
    alpha, beta = kind(attribute(node, "alpha", 1.0)), kind(attribute(node, "beta", 1.0))
    first = _turned(make, node.inputs[0], bool(attribute(node, "transA", 0)), kind(1))
    fold = alpha if _foldable(node.inputs[1]) else kind(1)
    second = _turned(make, node.inputs[1], bool(attribute(node, "transB", 0)), fold)
    made = make("MatMul", first, second)
    if alpha != fold:
        made = make("Mul", made, alpha)
    addend = node.inputs[2] if len(node.inputs) > 2 else None
    if addend is None or beta == 0:
        return made
    return make("Add", made, _turned(make, addend, False, beta))


def _foldable(value: Any) -> bool:
    """Whether a constant is used here alone, so that a changed copy does not stand beside it."""
    return constant_size(value) is not None and len(value.uses()) == 1


def _turned(make: Builder, value: Any, turn: bool, factor: Any) -> Any:
    """A matrix transposed and multiplied by a number; in place where it is constant."""
    if not turn and factor == 1:
        return value
    array = constant(value) if _foldable(value) else None
    if array is not None:
        return (array.T if turn else array) * factor
    value = make("Transpose", value, perm=[1, 0]) if turn else value
    return value if factor == 1 else make("Mul", value, factor)


class MatMulToGemm(OperatorRewrite):
    """MatMul of two matrices and the Add behind it as Gemm; transposed operands are taken in."""

    name = "matmul-to-gemm"
    operators = ("MatMul",)
    also = ("Add",)

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """A MatMul whose result goes into an Add alone."""
        uses = node.outputs[0].uses()
        last = uses[0].node if len(uses) == 1 else None
        if last is None or last.op_type != "Add" or last.domain:
            return None
        if rank(node.inputs[0]) != 2 or rank(node.inputs[1]) != 2:
            return "its operands are not known to be matrices"
        if dtype(node.inputs[0]) not in FLOATS:
            return f"a product of {dtype(node.inputs[0]) or 'unknown type'} is left alone"
        addend = other_input(last, node.outputs[0])
        if addend is None or not _broadcasts(addend, dims(node.inputs[0]), dims(node.inputs[1])):
            return "what is added is not known to fit into the product's shape"

        def make(builder: Builder) -> Any:
            first, turn_first = _untransposed(node.inputs[0])
            second, turn_second = _untransposed(node.inputs[1])
            return builder("Gemm", first, second, addend, transA=turn_first, transB=turn_second)

        return Plan(last, make, [node])


def _broadcasts(addend: Any, first: Any, second: Any) -> bool:
    """Whether an addend has no size that the product of two matrices has not."""
    sizes = dims(addend)
    if sizes is None or len(sizes) > 2:
        return False
    target = (first[0], second[1])[2 - len(sizes) :]
    return all(size == 1 or (size is not None and size == wide) for size, wide in zip(sizes, target, strict=True))


def _untransposed(value: Any) -> tuple[Any, int | None]:
    node = produced(value, "Transpose")
    if node is None or attribute(node, "perm", [1, 0]) != [1, 0]:
        return value, None
    return node.inputs[0], 1


class MatMulToConv(OperatorRewrite):
    """A product with a constant matrix as a convolution with a kernel of one, channels first; Gemm likewise.

    Accelerators built for convolutions run these many times faster than matrix products, on the CPU they cost two
    transpositions.
    """

    name = "matmul-to-conv"
    operators = ("MatMul", "Gemm")

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """MatMul or Gemm with a constant matrix on the right."""
        weight, size = node.inputs[1], rank(node.inputs[0])
        matrix = dims(weight)
        if constant_size(weight) is None or matrix is None or len(matrix) != 2:
            return "its second operand is no constant matrix"
        if dtype(node.inputs[0]) != "FLOAT":
            return f"a product of {dtype(node.inputs[0]) or 'unknown type'} is left alone"
        if size not in (2, 3, 4):
            return "its first operand is not known to have two to four dimensions"
        if any(not length for length in (dims(node.inputs[0]) or ())[1:-1]):
            return "its rows may be none, which a convolution refuses"
        if node.op_type == "MatMul":
            last, bias = _with_bias(node, matrix[1])
            return Plan(last, lambda make: _convolved(make, node.inputs[0], constant(weight), bias, size), [node])
        if attribute(node, "transA", 0) or any(attribute(node, name, 1.0) != 1 for name in ("alpha", "beta")):
            return "it is scaled, or its first operand is transposed"
        width = matrix[0] if attribute(node, "transB", 0) else matrix[1]
        addend = node.inputs[2] if len(node.inputs) > 2 else None
        if addend is not None and _row(addend, width) is None:
            return "what it adds is no constant row"

        def make(builder: Builder) -> Any:
            array = constant(weight)
            array = array.T if attribute(node, "transB", 0) and array is not None else array
            return _convolved(builder, node.inputs[0], array, _row(addend, width), 2)

        return Plan(node, make)


def _row(value: Any, width: Any) -> np.ndarray | None:
    """A constant as one number a column; None where it is none."""
    if value is None or constant_size(value) not in (1, width):
        return None
    array = constant(value)
    if array is None or array.ndim > 2 or (array.size != 1 and array.shape[-1] != width):
        return None
    return np.broadcast_to(array.reshape(-1), (width,)).copy()


def _with_bias(node: Any, width: Any) -> tuple[Any, np.ndarray | None]:
    """The Add of a constant row that alone uses a product, and the row; else the product itself."""
    uses = node.outputs[0].uses()
    user = uses[0].node if len(uses) == 1 and not node.outputs[0].is_graph_output() else None
    if user is None or user.op_type != "Add" or user.domain or user.graph is not node.graph:
        return node, None
    other = other_input(user, node.outputs[0])
    wide = rank(other) if other is not None else None
    row = _row(other, width) if wide is not None and wide <= (rank(node.inputs[0]) or 0) else None
    return (node, None) if row is None else (user, row)


def _convolved(make: Builder, value: Any, matrix: Any, bias: Any, size: int) -> Any:
    kernel = np.ascontiguousarray(matrix.T).reshape(*matrix.T.shape, 1, 1)
    order = {3: [0, 2, 1], 4: [0, 3, 1, 2]}.get(size)
    back = {3: [0, 2, 1], 4: [0, 2, 3, 1]}.get(size)
    axes = {2: [2, 3], 3: [2]}.get(size)
    value = make("Transpose", value, perm=order) if order else value
    value = make.unsqueeze(value, axes) if axes else value
    made = make("Conv", value, kernel, *([] if bias is None else [bias]), kernel_shape=[1, 1])
    made = make.squeeze(made, axes) if axes else made
    return make("Transpose", made, perm=back) if back else made


class ConvToMatMul(OperatorRewrite):
    """A convolution with a kernel of one as MatMul, channels moved last and back."""

    name = "conv-to-matmul"
    operators = ("Conv",)
    evidence = "never measured to pay: 0.64-0.98 on seven models on the CPU provider (two cores of an AMD EPYC)"

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """A Conv that mixes channels only."""
        kernel = static_dims(node.inputs[1])
        if constant_size(node.inputs[1]) is None or kernel is None:
            return "its kernel is not constant"
        if dtype(node.inputs[0]) not in FLOATS:
            return f"a convolution of {dtype(node.inputs[0]) or 'unknown type'} is left alone"
        if any(size != 1 for size in kernel[2:]) or attribute(node, "group", 1) != 1:
            return "its kernel is larger than one, or it is grouped"
        if any(stride != 1 for stride in attribute(node, "strides", [])) or any(attribute(node, "pads", [])):
            return "it has strides or pads"
        return Plan(node, lambda make: _mixed(make, node, kernel))


def _mixed(make: Builder, node: Any, kernel: tuple[int, ...]) -> Any:
    array, size = constant(node.inputs[1]), len(kernel)
    matrix = np.ascontiguousarray(array.reshape(kernel[:2]).T) if array is not None else None
    value = make("Transpose", node.inputs[0], perm=[0, *range(2, size), 1])
    made = make("MatMul", value, matrix)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        made = make("Add", made, node.inputs[2])
    return make("Transpose", made, perm=[0, size - 1, *range(1, size - 1)])


REWRITES: tuple[Rewrite, ...] = (GemmToMatMul(), MatMulToGemm(), MatMulToConv(), ConvToMatMul())
