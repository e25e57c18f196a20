"""What one run of a model does, node by node: multiply-accumulates, bytes read and written, in which element type.

The facts a cost model needs, from shapes alone; nothing is executed. Imports onnx: meant for a child process or a tool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx

from ort_metainfer.model.inference import infer, stood_in, unfold
from ort_metainfer.model.macs import node_macs, trips
from ort_metainfer.model.parsing import parse
from ort_metainfer.model.shapes import Scope
from ort_metainfer.model.values import Values
from ort_metainfer.model.walking import operator_of, subgraphs
from ort_metainfer.model.work import CONTROL_FLOW, NodeWork

__all__ = ["NodeWork", "workload"]

_NO_SHAPES: Mapping[str, tuple[int, ...]] = MappingProxyType({})

VIEWS = frozenset({"Dropout", "Flatten", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze"})
"""Operators that move no data: onnxruntime lets their result share the input's buffer, or reads only its shape."""

_PARTLY_READ = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})
"""They read of their first input no more than they write: of a table of embeddings, the rows asked for."""

_QUANTISED = ("ConvInteger", "DequantizeLinear", "DynamicQuantize", "MatMulInteger", "QAttention", "QGemm", "QLinear")
_QUANTISED_TOO = ("QuantizeLinear",)
_WEIGHT_AT = MappingProxyType({"Conv": 1, "ConvInteger": 1, "ConvTranspose": 1, "QLinearConv": 3})
_MATRIX = frozenset({"Gemm", "MatMul", "MatMulInteger", "QLinearMatMul"})
_GATES = MappingProxyType({"LSTM": 4, "GRU": 3, "RNN": 1})


def workload(
    model: str | Path | bytes | onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]] = _NO_SHAPES
) -> tuple[NodeWork, ...]:
    """The work of every node in the order of the graph, those inside control flow before the node that holds them.

    Functions are unfolded. Of an If, the branch with more multiply-accumulates counts (then with more nodes). Constant
    nodes do no work and are left out. The sum of ``macs * runs`` is that of ``describe(model, shapes).macs``.

    Args:
        model: a file, a model's bytes, or the model itself, which is left as it is.
        shapes: input -> the shape it will have; the same symbolic dimension gets the same size everywhere.

    Raises:
        ModelError: the file cannot be read, or is no ONNX model.
        InputsError: ``shapes`` names an unknown input, or contradicts a declared rank or size.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model if isinstance(model, onnx.ModelProto) else parse(model))
    plain = unfold(proto)
    bare = onnx.ModelProto()
    bare.CopyFrom(plain)
    _open_outputs(bare.graph)
    inferred, _ = infer(stood_in(bare), shapes)
    return tuple(_graph_work(plain.graph, inferred.graph, None, None, 1, None))


def _open_outputs(graph: Any) -> None:
    """Forget declared output shapes with symbols in them, which inference would let stand."""
    names = {value.name for value in graph.output}
    for value in (*graph.output, *(info for info in graph.value_info if info.name in names)):
        tensor = value.type.tensor_type
        if any(not dim.HasField("dim_value") for dim in tensor.shape.dim):
            tensor.ClearField("shape")


def _graph_work(
    plain: Any, inferred: Any, outer: Values | None, outer_scope: Scope | None, runs: int, inside: str | None
) -> Iterator[NodeWork]:
    """Work of one graph: its own nodes are in ``plain``, what is known of its values in ``inferred``."""
    scope = Scope.of(inferred, outer_scope)
    values = Values.of(plain, inferred, scope, outer)
    counterparts = {name: node for node in inferred.node for name in node.output if name}
    for node in plain.node:
        name = next(filter(None, node.output), "")
        other = counterparts.get(name)
        if other is None or operator_of(node) == "Constant":
            continue
        if operator_of(node) in CONTROL_FLOW:
            yield from _inner_work(node, other, values, scope, runs)
        yield _node_work(node, other, values, scope, runs, inside)


def _inner_work(node: Any, other: Any, values: Values, scope: Scope, runs: int) -> Iterator[NodeWork]:
    """Work of the subgraph that counts."""
    runs, operator = runs * trips(other, scope), operator_of(node)
    branches = [
        list(_graph_work(plain, inferred, values, scope, runs, operator))
        for plain, inferred in zip(subgraphs(node), subgraphs(other), strict=False)
    ]
    yield from max(branches, key=lambda works: (sum(w.macs or 0 for w in works), len(works)), default=[])


def _node_work(node: Any, other: Any, values: Values, scope: Scope, runs: int, inside: str | None) -> NodeWork:
    operator, outputs = operator_of(node), [name for name in node.output if name]
    moves_nothing = operator in VIEWS or operator in CONTROL_FLOW
    writes = {name: 0 if moves_nothing else values.bytes_of(name) for name in outputs}
    reads: dict[str, int | None] = {}
    weights: dict[str, int] = {}
    for position, name in enumerate(node.input):
        if not name:
            continue
        size = 0 if moves_nothing else values.bytes_of(name)
        if position == 0 and operator in _PARTLY_READ:
            size = _smaller(size, writes[outputs[0]])
        if values.is_weight(name):
            weights[name] = size or 0
        else:
            reads[name] = size
    return NodeWork(
        name=node.name or outputs[0],
        operator=operator,
        dtype=values.dtype_of(next(filter(None, node.input), outputs[0])),
        output=scope.sizes(outputs[0]),
        macs=None if operator in CONTROL_FLOW else node_macs(other, scope),
        reads=reads,
        weights=weights,
        writes=writes,
        channels=_channels(other, scope),
        runs=runs,
        steps=_steps(other, scope),
        quantised=_is_quantised(node, operator, values),
        folded=other.op_type == "Constant",
        is_view=operator in VIEWS,
        inside=inside,
    )


def _smaller(one: int | None, other: int | None) -> int | None:
    """What is known of the smaller of two sizes; either bounds the other."""
    known = [size for size in (one, other) if size is not None]
    return min(known) if known else None


def _channels(node: Any, scope: Scope) -> tuple[int, int] | None:
    """Length summed over and output channels; ``node`` is one that ONNX knows."""
    if node.op_type in _WEIGHT_AT and len(node.input) > _WEIGHT_AT[node.op_type]:
        kernel = scope.sizes(node.input[_WEIGHT_AT[node.op_type]])
        if kernel is None or len(kernel) < 2:
            return None
        if node.op_type == "ConvTranspose":
            groups = next((item.i for item in node.attribute if item.name == "group"), 1)
            return kernel[0] // max(1, groups), kernel[1] * groups
        return kernel[1], kernel[0]
    if node.op_type in _MATRIX and node.input:
        left, result = scope.sizes(node.input[0]), scope.sizes(node.output[0])
        turned = any(item.name == "transA" and item.i for item in node.attribute)
        return (left[0] if turned else left[-1], result[-1]) if left and result else None
    if node.op_type in _GATES:
        data = scope.sizes(node.input[0])
        hidden = next((item.i for item in node.attribute if item.name == "hidden_size"), 0)
        return (data[-1] + hidden, _GATES[node.op_type] * hidden) if data else None
    return None


def _steps(node: Any, scope: Scope) -> int:
    sizes = scope.sizes(node.input[0]) if node.op_type in _GATES and node.input else None
    return max(1, sizes[0]) if sizes else 1


def _is_quantised(node: Any, operator: str, values: Values) -> bool:
    plain = operator.removeprefix("com.microsoft.")
    if plain.startswith(_QUANTISED) or plain in _QUANTISED_TOO:
        return True
    floats = [name for name in node.input[:2] if name and values.dtype_of(name).startswith(("float", "bfloat"))]
    return bool(floats) and all(map(values.is_dequantised, floats))
