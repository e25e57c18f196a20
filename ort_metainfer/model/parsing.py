"""From bytes to a ModelProto that can be relied on; protobuf itself reads nearly anything as something."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from ort_metainfer.errors import ModelError
from ort_metainfer.model.walking import graphs_of, nodes_of

__all__ = ["parse"]


def parse(model: str | Path | bytes) -> Any:
    """The ModelProto in a file or in bytes; external data stays where it is.

    Raises:
        ModelError: it cannot be read, is no ONNX model (onnxruntime's own format counts as none), or is damaged.
    """
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
    _check_names(proto, label)
    return proto


def _check_names(proto: Any, label: str) -> None:
    """A name that is no UTF-8 comes as bytes or raises, depending on protobuf's version, and only when looked at."""
    try:
        stray = next((name for name in _names(proto) if not isinstance(name, str)), None)
    except UnicodeDecodeError as error:
        raise ModelError(f"{label} is damaged: a name in it is no UTF-8 ({error.reason})") from error
    if stray is not None:
        raise ModelError(f"{label} is damaged: the name {stray!r} in it is no UTF-8")


def _names(proto: Any) -> Iterator[Any]:
    yield from (opset.domain for opset in proto.opset_import)
    for function in proto.functions:
        yield from (function.domain, function.name, *function.input, *function.output)
    for node in nodes_of(proto):
        yield from (node.op_type, node.domain, node.name, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
        yield from (file.value for item in node.attribute for file in item.t.external_data)
    for graph in graphs_of(proto):
        yield from (tensor.name for tensor in graph.initializer)
        yield from (file.value for tensor in graph.initializer for file in tensor.external_data)
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield value.name
            yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
