"""What can be said of an ONNX file without loading it: whether it is one, and whether its weights lie outside.

``import onnx`` costs about as much as importing numpy, so only a model that keeps data outside pays for it, once.
Numbers are those of onnx.proto (ModelProto, TensorProto) and of the protobuf wire format.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from ort_metainfer.errors import ModelError

__all__ = ["EXTERNAL_MARKER", "check_frame", "external_locations"]

EXTERNAL_MARKER = b"\x08location"
"""Length and text of the key that every tensor kept outside has among its ``external_data``."""

_GRAPH = 7  # field of ModelProto
_MOST_FIELDS = 100_000
_LONGEST_HEAD = 20  # two varints of ten bytes


def check_frame(stream: BinaryIO, size_bytes: int, label: str) -> None:
    """Check that a file is framed as a ModelProto: known wire types up to its last byte, a graph among its fields.

    Finds what is no ONNX (text, ORT format, encrypted, empty) and what was cut short, with a few reads at any size.

    Raises:
        ModelError: it is not.
        OSError: it cannot be read.
    """
    offset, has_graph = 0, False
    for _field in range(_MOST_FIELDS):
        if offset == size_bytes and has_graph:
            return
        stream.seek(offset)
        number, kind, length = _field_head(stream.read(_LONGEST_HEAD))
        offset += length
        if number == 0 or offset > size_bytes:
            break
        has_graph |= number == _GRAPH and kind == 2
    raise ModelError(f"{label} is no complete ONNX model (its {size_bytes} bytes are not framed as one)")


def _field_head(head: bytes) -> tuple[int, int, int]:
    """Number, wire type and whole length of the field that begins with ``head``; number 0 where none does."""
    tag, used = _varint(head, 0)
    kind, value, end = tag & 7, 0, used
    if kind in (0, 2):
        value, end = _varint(head, used)
    sizes = {0: end, 1: used + 8, 2: end + value, 5: used + 4}
    is_field = used > 0 and end > 0 and kind in sizes
    return (tag >> 3, kind, sizes[kind]) if is_field else (0, 0, 0)


def _varint(head: bytes, start: int) -> tuple[int, int]:
    """A varint's value and the offset after it; offset 0 where it does not end."""
    value = 0
    for index, byte in enumerate(head[start : start + 10]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, start + index + 1
    return 0, 0


def external_locations(content: bytes, label: str) -> tuple[str, ...]:
    """Where a model's external data lies, as its tensors say (relative to the model's folder), sorted.

    Raises:
        ModelError: the bytes are no ONNX model.
    """
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise ModelError(f"{label} is no ONNX model: {error}") from error
    outside = (tensor for tensor in _tensors(model) if tensor.data_location == onnx.TensorProto.EXTERNAL)
    found = {entry.value for tensor in outside for entry in tensor.external_data if entry.key == "location"}
    return tuple(sorted(found))


def _tensors(model: Any) -> Iterator[Any]:
    """Every tensor of a model: of graphs, subgraphs, attributes, model-local functions and training steps."""
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield from _of_nodes(function.node)
    for step in model.training_info:
        yield from _of_graph(step.initialization)
        yield from _of_graph(step.algorithm)


def _of_graph(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    yield from _of_sparse(graph.sparse_initializer)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Any) -> Iterator[Any]:
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        yield from (attribute.t, *attribute.tensors)
        yield from _of_sparse((attribute.sparse_tensor, *attribute.sparse_tensors))
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from _of_graph(graph)


def _of_sparse(tensors: Any) -> Iterator[Any]:
    for tensor in tensors:
        yield from (tensor.values, tensor.indices)
