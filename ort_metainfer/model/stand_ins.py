"""ONNX operators that stand in, for shape inference alone, for operators of other domains with the same result shapes.

onnx knows no shapes for the domain ``com.microsoft`` and few for ``ai.onnx.ml``, so that everything behind the first
such node would be unknown. Sources: the operators' definitions in onnxruntime's ContribOperators.md. A stand-in that
does work of its own for counting carries the attribute ``stands_for``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from onnx import TensorProto, helper

__all__ = ["STANDS_FOR", "stand_in"]

STANDS_FOR = "stands_for"
"""Attribute that names the operator a stand-in replaces, where it does not do the same work."""

_SAME_AS_FIRST = ("Identity", (0,))

_STAND_INS: Mapping[str, tuple[str, tuple[int, ...]]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "Attention",
                "BiasGelu",
                "DequantizeLinear",
                "FastGelu",
                "Gelu",
                "GroupNorm",
                "MultiHeadAttention",
                "QAttention",
                "QLinearLeakyRelu",
                "QLinearSigmoid",
                "QLinearSoftmax",
                "QuantizeLinear",
                "QuickGelu",
                "SimplifiedLayerNormalization",
                "SkipLayerNormalization",
                "SkipSimplifiedLayerNormalization",
            ),
            _SAME_AS_FIRST,
        ),
        "BiasAdd": ("Add", (0, 1)),
        "DynamicQuantizeLSTM": ("LSTM", (0, 1, 2)),
        "DynamicQuantizeMatMul": ("MatMul", (0, 1)),
        "EmbedLayerNormalization": ("Gather", (2, 0)),
        "FusedConv": ("Conv", (0, 1, 2)),
        "FusedGemm": ("Gemm", (0, 1, 2)),
        "MatMulInteger16": ("MatMul", (0, 1)),
        "MatMulIntegerToFloat": ("MatMul", (0, 1)),
        "QGemm": ("Gemm", (0, 3)),
        "QLinearAdd": ("Add", (0, 3)),
        "QLinearAveragePool": ("AveragePool", (0,)),
        "QLinearMul": ("Mul", (0, 3)),
    }
)
"""Operator of ``com.microsoft`` -> the ONNX operator, and which of its inputs that one takes."""

_OTHER_WORK = ("Attention", "MultiHeadAttention", "QAttention")


def stand_in(node: Any, graph: Any) -> list[Any]:
    """The nodes to infer shapes with instead of ``node``: itself, where ONNX knows it or it lacks what it must have.

    May add valueless initialisers to ``graph``. Names of values stay, so that what surrounds the node stays connected.
    """
    try:
        return _replacements(node, graph)
    except (LookupError, ValueError):
        return [node]


def _replacements(node: Any, graph: Any) -> list[Any]:
    if node.domain in ("", "ai.onnx"):  # onnxruntime keeps two of its operators under ONNX's own domain
        own = node.op_type in ("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization")
        return [_plain(node, "Identity", node.input[:1])] if own else [node]
    if node.domain == "ai.onnx.ml" and node.op_type in ("Binarizer", "Imputer", "Normalizer", "Scaler") and node.input:
        return [_plain(node, "Identity", node.input[:1])]
    if node.domain != "com.microsoft" or not node.input:
        return [node]
    if node.op_type == "FusedMatMul":
        return _fused_matmul(node)
    if node.op_type == "MatMulNBits":
        return [_matmul_n_bits(node, graph)]
    if node.op_type == "QLinearConcat":
        return [_plain(node, "Concat", node.input[2::3])]
    packed = node.op_type == "MultiHeadAttention" and not all(node.input[1:2])  # query, key and value in one
    if node.op_type not in _STAND_INS or packed:
        return [node]
    operator, positions = _STAND_INS[node.op_type]
    inputs = [node.input[position] for position in positions if position < len(node.input)]
    replacement = _plain(node, operator, node.input if node.op_type in _OTHER_WORK else inputs)
    if node.op_type in _OTHER_WORK:
        replacement.attribute.append(helper.make_attribute(STANDS_FOR, f"com.microsoft.{node.op_type}"))
    return [replacement]


def _plain(node: Any, operator: str, inputs: Sequence[str]) -> Any:
    """``node`` as an ONNX operator with its attributes; its first output only, unless it is a recurrent one."""
    outputs = node.output if operator == "LSTM" else node.output[:1]
    plain = helper.make_node(operator, list(inputs), list(outputs), name=node.name)
    plain.attribute.extend(node.attribute)
    return plain


def _fused_matmul(node: Any) -> list[Any]:
    """MatMul with its operands transposed beforehand, so that shapes and counting need no second rule.

    Without ranks, a transposition of the last two axes cannot be written as Transpose: Einsum with an ellipsis does.
    A batch transposition (``transBatchA``) is left alone.
    """
    flags = {attribute.name: attribute.i for attribute in node.attribute}
    if flags.get("transBatchA") or flags.get("transBatchB"):
        return [node]
    nodes, operands = [], []
    for operand, flag in zip(node.input[:2], ("transA", "transB"), strict=True):
        if flags.get(flag):
            turned = f"{node.output[0]}:{flag}"
            nodes.append(helper.make_node("Einsum", [operand], [turned], equation="...ij->...ji"))
            operand = turned
        operands.append(operand)
    return [*nodes, helper.make_node("MatMul", operands, [node.output[0]], name=node.name)]


def _matmul_n_bits(node: Any, graph: Any) -> Any:
    """MatMul by a weight of [K, N], of which only the dims are there."""
    sizes = {attribute.name: attribute.i for attribute in node.attribute}
    weight = f"{node.output[0]}:weight"
    graph.initializer.append(TensorProto(name=weight, data_type=TensorProto.FLOAT, dims=[sizes["K"], sizes["N"]]))
    return helper.make_node("MatMul", [node.input[0], weight], [node.output[0]], name=node.name)
