"""Computing the small integers that shapes are made of, where ONNX shape inference stops following them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
from onnx.reference import ReferenceEvaluator

from ort_metainfer.model.shapes import SMALL_ELEMENTS, Scope
from ort_metainfer.model.walking import subgraphs

__all__ = ["fold"]

_FOLDABLE = frozenset(
    {
        *(
            "Abs",
            "Add",
            "And",
            "Cast",
            "Ceil",
            "Concat",
            "Div",
            "Equal",
            "Floor",
            "Gather",
            "Greater",
            "GreaterOrEqual",
        ),
        *("Identity", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "ReduceMax", "ReduceMin"),
        *("ReduceProd", "ReduceSum", "Reshape", "Round", "Slice", "Sqrt", "Squeeze", "Sub", "Transpose", "Unsqueeze"),
        *("ConstantOfShape", "Expand", "Range", "Where"),
    }
)
"""Operators that exporters compute shapes with. Their results are no larger than what goes in, but for the last row,
whose sizes are looked at first."""


def fold(graph: Any, opsets: Mapping[str, int], outer: Scope | None = None) -> int:
    """Replace nodes of a small, known result by Constant nodes, in subgraphs too; how many values it made known.

    ``graph`` has inferred shapes: a Shape of known dimensions is where most of it starts.
    """
    replaced = 0 if outer is None else _bring_in(graph, outer)
    scope = Scope.of(graph, outer)
    for node in graph.node:
        replaced += sum(fold(inner, opsets, scope) for inner in subgraphs(node))
        value = _value(node, scope, opsets)
        if value is not None and value.size <= SMALL_ELEMENTS:
            name = node.output[0]
            scope.constants[name], scope.dims[name] = value, value.shape
            tensor = onnx.numpy_helper.from_array(value)
            node.CopyFrom(onnx.helper.make_node("Constant", [], [name], name=node.name, value=tensor))
            replaced += 1
    return replaced


def _bring_in(graph: Any, outer: Scope) -> int:
    """Copy the outer constants a subgraph uses into it: ONNX infers a subgraph without the values around it.

    Returns:
        How many were copied.
    """
    own = {value.name for value in (*graph.input, *graph.initializer)} | {name for n in graph.node for name in n.output}
    used = {name for node in graph.node for name in node.input if name and name not in own}
    known = sorted(used & set(outer.constants))
    for name in known:
        graph.initializer.append(onnx.numpy_helper.from_array(outer.constants[name], name))
    return len(known)


def _value(node: Any, scope: Scope, opsets: Mapping[str, int]) -> np.ndarray[Any, Any] | None:
    if node.domain not in ("", "ai.onnx") or len(node.output) != 1:
        return None
    if node.op_type in ("Shape", "Size"):
        sizes = scope.sizes(node.input[0]) if node.input else None
        return None if sizes is None else _shape_value(node, sizes)
    names = [name for name in node.input if name]
    if node.op_type not in _FOLDABLE or not names or not all(name in scope.constants for name in names):
        return None
    values = {name: scope.constants[name] for name in names}
    if _elements(node.op_type, [values[name] for name in names]) > SMALL_ELEMENTS:
        return None
    return _evaluate(node, values, opsets)


def _shape_value(node: Any, sizes: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if node.op_type == "Size":
        return np.array(math.prod(sizes), np.int64)
    cut = {item.name: item.i for item in node.attribute}
    return np.array(sizes[cut.get("start", 0) : cut.get("end", len(sizes))], np.int64)


def _elements(operator: str, values: list[np.ndarray[Any, Any]]) -> float:
    """An upper bound of the result's elements, for the operators that can make much of little."""
    if operator == "ConstantOfShape":
        return math.prod(map(float, values[0].ravel()))
    if operator == "Expand" and len(values) == 2:
        return max(1, values[0].size) * math.prod(map(float, values[1].ravel()))
    if operator == "Range" and len(values) == 3:
        start, limit, delta = (float(value.reshape(-1)[0]) if value.size else math.nan for value in values)
        return abs((limit - start) / delta) if delta else math.inf
    if operator in ("Gather", "Where"):
        return math.prod(max(1, value.size) for value in values[:2])
    return math.prod(max(1, value.size) for value in values) if operator in _BROADCASTING else 0


_BROADCASTING = frozenset({"Add", "And", "Div", "Equal", "Greater", "Less", "Max", "Min", "Mod", "Mul", "Or", "Sub"})


def _evaluate(node: Any, values: Mapping[str, Any], opsets: Mapping[str, int]) -> np.ndarray[Any, Any] | None:
    infos = [onnx.helper.make_empty_tensor_value_info(name) for name in (*values, node.output[0])]
    alone = onnx.helper.make_graph([node], "one node", infos[:-1], infos[-1:])
    try:
        with np.errstate(all="ignore"):
            (result,) = ReferenceEvaluator(alone, opsets={"": opsets.get("", 17)}).run(None, dict(values))
    except (ArithmeticError, AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return None  # the reference implementation refuses: so will onnxruntime, or it has no such version
    return result if isinstance(result, np.ndarray) else None
