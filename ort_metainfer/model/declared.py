"""What a model declares about its inputs and outputs, as :class:`ort_metainfer.problem.TensorSpec`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from onnx import TensorProto

from ort_metainfer.model.shapes import named_dim
from ort_metainfer.problem import Dim, TensorSpec

__all__ = ["dtype_name", "tensor_spec"]

_DTYPES: Mapping[int, str] = MappingProxyType({TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64"})
"""Where ONNX's name, in small letters, is not numpy's."""


def dtype_name(element: int) -> str:
    """The name of a TensorProto.DataType: numpy's where it has the type, else ONNX's in small letters."""
    try:
        return _DTYPES.get(element) or str(TensorProto.DataType.Name(element)).lower()
    except ValueError:
        return f"unknown type {element}"


def tensor_spec(value: Any) -> TensorSpec:
    """What a ValueInfoProto declares."""
    if value.type.WhichOneof("value") != "tensor_type":
        return TensorSpec(value.name, _type_text(value.type), None)
    tensor = value.type.tensor_type
    shape: tuple[Dim, ...] | None = None
    if tensor.HasField("shape"):
        shape = tuple(named_dim(dim) for dim in tensor.shape.dim)
    return TensorSpec(value.name, dtype_name(tensor.elem_type), shape)


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
    return {TensorProto.FLOAT: "float", TensorProto.DOUBLE: "double"}.get(element) or dtype_name(element)
