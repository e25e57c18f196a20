"""How many weights a model holds, how large they are and which files they lie in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from onnx import AttributeProto, TensorProto

from ort_metainfer.model.declared import dtype_name
from ort_metainfer.model.walking import graphs_of, nodes_of, operator_of

__all__ = ["external_files", "tensor_bytes", "weight_sizes"]

_BITS: Mapping[str, int] = MappingProxyType(
    {"bool": 8, "string": 0, "bfloat16": 16, "complex64": 64, "complex128": 128, "float8e8m0": 8, "float4e2m1": 4}
)
"""Bits of an element where the type's name does not end in them; a string is counted by its bytes."""


def weight_sizes(proto: Any) -> Iterator[tuple[int, int]]:
    """Elements and bytes of every initialiser and Constant node."""
    for graph in graphs_of(proto):
        yield from map(_tensor_size, graph.initializer)
        yield from (_tensor_size(sparse.values) for sparse in graph.sparse_initializer)
    for node in nodes_of(proto):
        if operator_of(node) == "Constant":
            yield from map(_attribute_size, node.attribute)


def _tensor_size(tensor: Any) -> tuple[int, int]:
    count = math.prod(tensor.dims)
    if tensor.data_type == TensorProto.STRING:
        return count, sum(map(len, tensor.string_data))
    return count, tensor_bytes(dtype_name(tensor.data_type), count)


def tensor_bytes(dtype: str, count: int) -> int:
    """Bytes of ``count`` elements, those below eight bits packed; 0 for what has no size (strings)."""
    return math.ceil(count * _bits(dtype) / 8)


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


def external_files(proto: Any) -> Iterator[str]:
    """Locations of external data as the model states them, one a tensor."""
    tensors = [tensor for graph in graphs_of(proto) for tensor in graph.initializer]
    tensors += [tensor for node in nodes_of(proto) for item in node.attribute for tensor in (item.t, *item.tensors)]
    for tensor in tensors:
        if tensor.data_location == TensorProto.EXTERNAL:
            yield from (entry.value for entry in tensor.external_data if entry.key == "location")
