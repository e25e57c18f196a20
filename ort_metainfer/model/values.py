"""Size, element type and origin of the values that one graph can see, by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ort_metainfer.model.declared import dtype_name
from ort_metainfer.model.shapes import Scope
from ort_metainfer.model.walking import operator_of
from ort_metainfer.model.weights import tensor_bytes

__all__ = ["Values"]

_TYPE_OF_INPUT = {
    "com.microsoft.DequantizeLinear": 1,
    "com.microsoft.MatMulIntegerToFloat": 2,
    "com.microsoft.QuantizeLinear": 2,
}
"""Operators whose result has the element type of this input, which inference on their stand-ins does not find."""

_FEW_BITS = ("int8", "uint8", "int4", "uint4", "int2", "uint2", "float8", "float4")


@dataclass(frozen=True)
class Values:
    """What is known of values; ``outer`` holds those of the graph around."""

    scope: Scope
    dtypes: Mapping[str, str]
    weights: frozenset[str]
    dequantised: frozenset[str]
    outer: Values | None = None

    @classmethod
    def of(cls, plain: Any, inferred: Any, scope: Scope, outer: Values | None = None) -> Values:
        """Those of a graph: ``plain`` has its own nodes, ``inferred`` the shapes and types found."""
        dtypes = {value.name: dtype_name(value.type.tensor_type.elem_type) for value in _infos(inferred)}
        tensors = {tensor.name: tensor for tensor in (*inferred.initializer, *plain.initializer)}
        for node in (*inferred.node, *plain.node):
            if operator_of(node) == "Constant":
                tensors |= {name: item.t for item in node.attribute if item.HasField("t") for name in node.output}
        dtypes |= {name: dtype_name(tensor.data_type) for name, tensor in tensors.items()}
        for node in plain.node:
            position = _TYPE_OF_INPUT.get(operator_of(node))
            if position is not None and len(node.input) > position and node.input[position] in dtypes:
                dtypes[node.output[0]] = dtypes[node.input[position]]
        found = cls(scope, dtypes, frozenset(tensors), frozenset(), outer)
        return cls(scope, dtypes, frozenset(tensors), frozenset(_dequantised(plain, found)), outer)

    def dtype_of(self, name: str) -> str:
        """Its element type as numpy calls it; empty where it is not known or no tensor."""
        own = self.dtypes.get(name)
        return own if own is not None else self.outer.dtype_of(name) if self.outer else ""

    def bytes_of(self, name: str) -> int | None:
        """Its size in bytes; None where its shape or type is not known."""
        sizes, dtype = self.scope.sizes(name), self.dtype_of(name)
        return None if sizes is None or not dtype or "undefined" in dtype else tensor_bytes(dtype, math.prod(sizes))

    def is_weight(self, name: str) -> bool:
        """Whether it is part of the model rather than computed."""
        if name in self.dtypes or name in self.weights:
            return name in self.weights
        return self.outer is not None and self.outer.is_weight(name)

    def is_dequantised(self, name: str) -> bool:
        """Whether a DequantizeLinear made it out of 8 bits or fewer."""
        return name in self.dequantised or (self.outer is not None and self.outer.is_dequantised(name))


def _infos(graph: Any) -> list[Any]:
    infos = (*graph.input, *graph.output, *graph.value_info)
    return [value for value in infos if value.type.HasField("tensor_type")]


def _dequantised(plain: Any, values: Values) -> set[str]:
    return {
        node.output[0]
        for node in plain.node
        if node.op_type == "DequantizeLinear" and node.input and values.dtype_of(node.input[0]).startswith(_FEW_BITS)
    }
