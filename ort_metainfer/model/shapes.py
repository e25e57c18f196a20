"""What is known about the values of a graph, by name: their dimensions, and the contents of small constants."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

from ort_metainfer.problem import Dim

__all__ = ["SMALL_ELEMENTS", "Scope", "named_dim"]

SMALL_ELEMENTS = 1024
"""Constants up to this many elements keep their values: axes, shapes, pads. Larger ones are weights, whose values say
nothing about shapes."""

UNNAMED = frozenset({"", "?", "*", "-1", "None", "none", "unk"})
"""Dimension names that exporters write where they know none; two of them say nothing about each other."""


def named_dim(dim: Any) -> Dim:
    """A declared dimension: a size from 0 up, a name, or None (nothing said, a negative size, a name that is none)."""
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return None if dim.dim_param in UNNAMED else str(dim.dim_param)


def _constant_of(node: Any) -> Any:
    """The tensor of a Constant node that holds one (a TensorProto), or None."""
    if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
        return next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)
    return None


@dataclass(frozen=True)
class Scope:
    """What is known about the values one graph can see, its own before those of the graphs around it.

    Attributes:
        dims: value -> dimensions, sizes where known and names where not; a value of unknown rank is missing.
        constants: value -> its array, for small constants.
    """

    dims: MutableMapping[str, tuple[Dim, ...]]
    constants: MutableMapping[str, np.ndarray]

    @classmethod
    def of(cls, graph: Any, outer: Scope | None = None) -> Scope:
        """The scope of ``graph``, which lies in ``outer``."""
        scope = cls(_inside(outer.dims if outer else None), _inside(outer.constants if outer else None))
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape"):
                scope.dims[value.name] = tuple(named_dim(dim) for dim in value.type.tensor_type.shape.dim)
        for tensor in graph.initializer:
            scope._add(tensor.name, tensor)
        for node in graph.node:
            tensor = _constant_of(node)
            if tensor is not None and node.output:
                scope._add(node.output[0], tensor)
        return scope

    def _add(self, name: str, tensor: Any) -> None:
        self.dims[name] = tuple(tensor.dims)
        if np.prod(tensor.dims, dtype=float) <= SMALL_ELEMENTS and tensor.data_location == onnx.TensorProto.DEFAULT:
            try:
                self.constants[name] = onnx.numpy_helper.to_array(tensor)
            except (ValueError, TypeError, AttributeError):  # data and dims disagree: onnxruntime refuses it too
                return

    def sizes(self, name: str) -> tuple[int, ...] | None:
        """The dimensions of a value where every one is known, else None."""
        dims = self.dims.get(name)
        if dims is None or not all(isinstance(dim, int) for dim in dims):
            return None
        return tuple(dim for dim in dims if isinstance(dim, int))


def _inside(outer: MutableMapping[str, Any] | None) -> MutableMapping[str, Any]:
    """A mapping that reads through to ``outer`` and writes to itself."""
    return outer.new_child() if isinstance(outer, ChainMap) else ChainMap()
