"""Which outputs are scores of classes, as far as a graph tells: softmax, or a product with weights, comes last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ort_metainfer.model.declared import tensor_spec
from ort_metainfer.model.walking import operator_of

__all__ = ["score_outputs"]

_LINEAR = frozenset(
    {
        "Gemm",
        "MatMul",
        "QLinearMatMul",
        "com.microsoft.DynamicQuantizeMatMul",
        "com.microsoft.FusedGemm",
        "com.microsoft.FusedMatMul",
        "com.microsoft.MatMulIntegerToFloat",
        "com.microsoft.MatMulNBits",
        "com.microsoft.QGemm",
    }
)
_SOFTMAX = frozenset({"Softmax", "LogSoftmax"})

_PASSING = frozenset(
    {"Cast", "DequantizeLinear", "Identity", "QuantizeLinear", "Squeeze"}
    | {"com.microsoft.DequantizeLinear", "com.microsoft.QuantizeLinear"}
)
"""Operators that leave rows and their order as they are."""

_MOST_STEPS = 8


def score_outputs(proto: Any) -> tuple[str, ...]:
    """Outputs whose last operator is Softmax or LogSoftmax over the last axis, Gemm, or MatMul (quantised ones too).

    Softmax may be spelled out: a division of what Exp makes.
    Of the float type, with two or three axes and, where its size is declared, two elements or more along the last one.
    Operators that only pass on (Identity, Cast, Squeeze, QuantizeLinear, DequantizeLinear) and the addition of a bias
    do not count as the last. A body's or a function's operators are not looked into.
    """
    makers = {name: node for node in proto.graph.node for name in node.output if name}
    weights = {tensor.name for tensor in proto.graph.initializer}
    weights |= {name for name, node in makers.items() if node.op_type == "Constant"}
    opset = next((int(entry.version) for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), 1)
    return tuple(_scores(proto.graph.output, makers, weights, opset))


def _scores(outputs: Any, makers: Mapping[str, Any], weights: set[str], opset: int) -> Iterator[str]:
    for value in outputs:
        spec = tensor_spec(value)
        is_float = "float" in spec.dtype and "(" not in spec.dtype
        if not is_float or spec.shape is None or len(spec.shape) not in (2, 3):
            continue
        last = spec.shape[-1]
        if isinstance(last, int) and last < 2:
            continue
        node = _last_operator(spec.name, makers, weights)
        if node is None:
            continue
        if _is_spelled_out(node, makers) or _makes_scores(node, len(spec.shape), opset):
            yield spec.name


def _last_operator(name: str, makers: Mapping[str, Any], weights: set[str]) -> Any:
    for _ in range(_MOST_STEPS):
        node = makers.get(name)
        if node is None:
            return None
        before = _passed_on(node, weights)
        if before is None:
            return node
        name = before
    return None


def _passed_on(node: Any, weights: set[str]) -> str | None:
    """What the node passes on; None where it does more."""
    operator = operator_of(node)
    if operator in _PASSING:
        return str(node.input[0])
    if operator == "Add":
        others = [str(name) for name in node.input if name not in weights]
        return others[0] if len(others) == 1 else None
    return None


def _is_spelled_out(node: Any, makers: Mapping[str, Any]) -> bool:
    above = makers.get(node.input[0]) if operator_of(node) == "Div" else None
    return above is not None and operator_of(above) == "Exp"


_NO_AXIS: Mapping[bool, int] = MappingProxyType({True: -1, False: 1})


def _makes_scores(node: Any, axes: int, opset: int) -> bool:
    operator = operator_of(node)
    if operator in _LINEAR:
        return True
    if operator not in _SOFTMAX:
        return False
    axis = next((int(item.i) for item in node.attribute if item.name == "axis"), _NO_AXIS[opset >= 13])
    return axis in (-1, axes - 1)
