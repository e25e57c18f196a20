"""Features of a model's graph: what deciders look at and what inputs are made from.

Imports onnx, which costs 140 ms: meant for a child process.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, TensorProto

from ort_metainfer.errors import ModelError
from ort_metainfer.model.bounds import index_bounds, integer_inputs
from ort_metainfer.model.inference import PROBE, Sources, infer, probe_shapes, skeleton
from ort_metainfer.model.macs import count_macs
from ort_metainfer.model.shapes import Scope, named_dim, subgraphs, walk
from ort_metainfer.problem import Dim, Graph, TensorSpec

__all__ = ["describe"]

_NO_SHAPES: Mapping[str, tuple[int, ...]] = MappingProxyType({})

_DTYPES: Mapping[int, str] = MappingProxyType({TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64"})
"""Where ONNX's name, in small letters, is not numpy's."""

_BITS: Mapping[str, int] = MappingProxyType(
    {"bool": 8, "string": 0, "bfloat16": 16, "complex64": 64, "complex128": 128, "float8e8m0": 8, "float4e2m1": 4}
)
"""Bits of an element where the type's name does not end in them; a string is counted by its bytes."""

_RANDOM = (
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)
_TRAINING_DOMAINS = ("ai.onnx.preview.training", "ai.onnx.training")
_DYNAMIC = (
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "ConvInteger",
    "com.microsoft.DynamicQuantizeLSTM",
    "com.microsoft.DynamicQuantizeMatMul",
    "com.microsoft.MatMulInteger16",
    "com.microsoft.MatMulIntegerToFloat",
)
_WEIGHT_ONLY = (
    "DequantizeLinear",
    "com.microsoft.DequantizeLinear",
    "com.microsoft.GatherBlockQuantized",
    "com.microsoft.MatMulBnb4",
    "com.microsoft.MatMulFpQ4",
    "com.microsoft.MatMulNBits",
)


def describe(model: str | Path | bytes, shapes: Mapping[str, tuple[int, ...]] = _NO_SHAPES) -> Graph:
    """Read a model's features without its external data.

    Nodes in subgraphs count like the others, a model-local function's once, however often it is called. A declared
    dimension counts as unnamed where it has a negative size or a name that says nothing (``?``). ``macs`` takes its
    formulas from :func:`ort_metainfer.model.macs.count_macs`: without ``shapes`` it covers the nodes whose shapes the
    model declares or ONNX shape inference finds, and None where that is none.

    Args:
        model: a file, or a model's bytes.
        shapes: input -> the shape it will have; the same symbolic dimension gets the same size everywhere.

    Raises:
        ModelError: the file cannot be read, or is no ONNX model (onnxruntime's own format counts as none).
        InputsError: ``shapes`` names an unknown input, or contradicts a declared rank or size.
    """
    proto = _parse(model)
    graph = proto.graph
    initialised = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in initialised]
    operators = Counter(_operator(node) for node in _nodes(proto))
    weights = list(_weights(proto))
    features = {
        "inputs": tuple(map(_spec, inputs)),
        "outputs": tuple(map(_spec, graph.output)),
        "ir_version": int(proto.ir_version),
        "opsets": {opset.domain or "ai.onnx": int(opset.version) for opset in proto.opset_import},
        "operators": dict(sorted(operators.items())),
        "node_count": operators.total(),
        "parameter_count": sum(count for count, _ in weights),
        "weight_bytes": sum(size for _, size in weights),
        "quantisation": _quantisation(operators),
        "random_operators": _random_operators(proto, operators),
        "blockers": tuple(_blockers(proto)),
        "external_files": tuple(dict.fromkeys(_external_files(proto))),
        "overridable": _overridable(proto),
    }
    bare = skeleton(proto)  # takes proto over
    inferred, sources = infer(bare, shapes)
    bounds, tables = _bounds(bare, inferred, sources, shapes)
    return Graph(**features, macs=count_macs(inferred.graph), index_bounds=bounds, index_inputs=tables)


def _bounds(
    bare: Any, inferred: Any, sources: Sources, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, int], dict[str, tuple[str, int]]]:
    """Index bounds; where an integer input has none and dimensions are open, tables are looked for by probing sizes."""
    bounds, tables = index_bounds(inferred.graph, sources)
    unbounded = integer_inputs(inferred.graph) - set(bounds) - set(tables)
    if sources and unbounded:
        probed, marks = probe_shapes(bare, shapes)
        more_bounds, more_tables = index_bounds(infer(bare, probed)[0].graph, marks)
        found = {name: size for name, size in more_bounds.items() if size < PROBE[0]}
        bounds, tables = found | bounds, more_tables | tables
    return bounds, tables


def _parse(model: str | Path | bytes) -> Any:
    label = f"model of {len(model)} bytes" if isinstance(model, bytes) else f"model {os.fspath(model)}"
    try:
        content = model if isinstance(model, bytes) else Path(model).read_bytes()
    except OSError as error:
        raise ModelError(f"{label} cannot be read: {error.strerror or error}") from error
    if content[4:8] == b"ORTM":
        raise ModelError(f"{label} is in onnxruntime's own format (.ort), which cannot be described; use the ONNX file")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except (DecodeError, RecursionError, ValueError) as error:
        raise ModelError(f"{label} is not an ONNX model: {error}") from error
    if not proto.ir_version or not proto.HasField("graph"):  # protobuf reads nearly anything as something
        raise ModelError(f"{label} is not an ONNX model: it has no {'graph' if proto.ir_version else 'IR version'}")
    return proto


def _dtype(element: int) -> str:
    try:
        return _DTYPES.get(element) or str(TensorProto.DataType.Name(element)).lower()
    except ValueError:
        return f"unknown type {element}"


def _spec(value: Any) -> TensorSpec:
    if value.type.WhichOneof("value") != "tensor_type":
        return TensorSpec(value.name, _type_text(value.type), None)
    tensor = value.type.tensor_type
    shape: tuple[Dim, ...] | None = None
    if tensor.HasField("shape"):
        shape = tuple(named_dim(dim) for dim in tensor.shape.dim)
    return TensorSpec(value.name, _dtype(tensor.elem_type), shape)


def _type_text(kind: Any) -> str:
    """A type as onnxruntime's NodeArg.type has it: ``seq(map(int64,tensor(float)))``."""
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        return f"{which.removesuffix('_type')}({_element_text(getattr(kind, which).elem_type)})"
    if which == "sequence_type":
        return f"seq({_type_text(kind.sequence_type.elem_type)})"
    if which == "optional_type":
        return f"optional({_type_text(kind.optional_type.elem_type)})"
    if which == "map_type":
        return f"map({_element_text(kind.map_type.key_type)},{_type_text(kind.map_type.value_type)})"
    return "unknown"


def _element_text(element: int) -> str:
    return {TensorProto.FLOAT: "float", TensorProto.DOUBLE: "double"}.get(element) or _dtype(element)


def _nodes(proto: Any) -> Iterator[Any]:
    for body in (proto.graph, *proto.functions):
        yield from walk(body.node)


def _operator(node: Any) -> str:
    return str(node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}")


def _graphs(proto: Any) -> Iterator[Any]:
    yield proto.graph
    for node in _nodes(proto):
        yield from subgraphs(node)


def _weights(proto: Any) -> Iterator[tuple[int, int]]:
    """Elements and bytes of every initialiser and Constant node."""
    for graph in _graphs(proto):
        yield from map(_tensor_size, graph.initializer)
        yield from (_tensor_size(sparse.values) for sparse in graph.sparse_initializer)
    for node in _nodes(proto):
        if _operator(node) == "Constant":
            yield from map(_attribute_size, node.attribute)


def _tensor_size(tensor: Any) -> tuple[int, int]:
    count = math.prod(tensor.dims)
    if tensor.data_type == TensorProto.STRING:
        return count, sum(map(len, tensor.string_data))
    return count, math.ceil(count * _bits(_dtype(tensor.data_type)) / 8)


def _bits(dtype: str) -> int:
    if dtype in _BITS:
        return _BITS[dtype]
    if dtype.startswith("float8"):
        return 8
    digits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    return int(digits) if digits.isdigit() else 0


def _attribute_size(attribute: Any) -> tuple[int, int]:
    """Elements and bytes of a Constant node's attribute; numbers given in place are of 32-bit floats or 64-bit ints."""
    kind = attribute.type
    if kind == AttributeProto.TENSOR:
        return _tensor_size(attribute.t)
    if kind == AttributeProto.SPARSE_TENSOR:
        return _tensor_size(attribute.sparse_tensor.values)
    if kind in (AttributeProto.FLOAT, AttributeProto.FLOATS):
        count = len(attribute.floats) if kind == AttributeProto.FLOATS else 1
        return count, 4 * count
    if kind in (AttributeProto.INT, AttributeProto.INTS):
        count = len(attribute.ints) if kind == AttributeProto.INTS else 1
        return count, 8 * count
    strings = attribute.strings if kind == AttributeProto.STRINGS else [attribute.s]
    return len(strings), sum(map(len, strings))


def _quantisation(operators: Mapping[str, int]) -> str:
    names = set(operators)
    if any(name.removeprefix("com.microsoft.").startswith(("QLinear", "QGemm", "QAttention")) for name in names):
        return "qoperator"
    if "DequantizeLinear" in names and "QuantizeLinear" in names:
        return "qdq"
    if names.intersection(_DYNAMIC):
        return "dynamic"
    return "weight-only" if names.intersection(_WEIGHT_ONLY) else "none"


def _random_operators(proto: Any, operators: Mapping[str, int]) -> tuple[str, ...]:
    training = any(_trains(proto.graph, Scope.of(proto.graph))) or any(
        node.op_type == "Dropout" and len(node.input) > 2 for function in proto.functions for node in function.node
    )
    return tuple(name for name in _RANDOM if operators.get(name)) + (("Dropout",) if training else ())


def _trains(graph: Any, scope: Scope) -> Iterator[bool]:
    """For each Dropout, whether its third input is anything but a constant False."""
    for node in graph.node:
        if _operator(node) == "Dropout" and len(node.input) > 2 and node.input[2]:
            mode = scope.constants.get(node.input[2])
            yield mode is None or bool(mode.any())
        for inner in subgraphs(node):
            yield from _trains(inner, Scope.of(inner, scope))


def _blockers(proto: Any) -> Iterator[str]:
    nodes = list(_nodes(proto))
    if any(node.op_type == "EPContext" for node in nodes):
        yield "EPContext"
    if any(len(graph.sparse_initializer) for graph in _graphs(proto)):
        yield "sparse initializers"
    if proto.training_info or any(node.domain in _TRAINING_DOMAINS or node.op_type == "Gradient" for node in nodes):
        yield "training"
    local = {(function.domain, function.name) for function in proto.functions}
    custom = {node.domain for node in nodes if (node.domain, node.op_type) not in local and _is_custom(node.domain)}
    yield from (f"custom domain {domain}" for domain in sorted(custom))


def _is_custom(domain: str) -> bool:
    known = domain in ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", *_TRAINING_DOMAINS)
    return not known and not domain.startswith(("com.microsoft.", "ai.onnx.preview"))


def _external_files(proto: Any) -> Iterator[str]:
    tensors = [tensor for graph in _graphs(proto) for tensor in graph.initializer]
    tensors += [tensor for node in _nodes(proto) for item in node.attribute for tensor in (item.t, *item.tensors)]
    for tensor in tensors:
        if tensor.data_location == TensorProto.EXTERNAL:
            yield from (entry.value for entry in tensor.external_data if entry.key == "location")


def _overridable(proto: Any) -> tuple[TensorSpec, ...]:
    """Inputs with an initialiser; onnxruntime lets a caller replace it from IR version 4 on only."""
    initialised = {tensor.name for tensor in proto.graph.initializer}
    return tuple(_spec(value) for value in proto.graph.input if value.name in initialised and proto.ir_version >= 4)
