"""Reading an onnx_ir graph for rewrites: constants, types and shapes, attributes, producers, and who else looks.

A value counts as constant only where nobody can replace it: an initialiser that is a graph input as well is not
(below IR version 4 onnxruntime does not let a caller replace it, and it is). Sizes are trusted where they are numbers;
symbolic names are not: exporters give two dimensions one name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

__all__ = [
    "FLOATS",
    "all_graphs",
    "attribute",
    "axes_of",
    "constant",
    "constant_size",
    "dims",
    "dtype",
    "leak",
    "learn_types",
    "other_input",
    "produced",
    "rank",
    "scalar",
    "static_dims",
    "tensor_of",
]

FLOATS = ("FLOAT", "DOUBLE")
"""Types in which a formula may be spelled another way within float32 rounding."""

_TYPE, _FROZEN = "ort_metainfer.type", "ort_metainfer.frozen"

_INLINE_BYTES = 4096
"""Constants beyond this do not go to shape inference: none of them is an axis, a shape or a scale."""

FIRST_OVERRIDABLE_IR = 4

Dims = tuple[int | None, ...]


def all_graphs(model: Any) -> list[Any]:
    """The main graph and every subgraph; bodies of functions are left out, and never rewritten."""
    return [model.graph, *model.graph.subgraphs()]


def learn_types(model: Any) -> None:
    """Infer types and shapes of all values and keep them beside the values; nothing of it is written to a file."""
    from ort_metainfer.model.inference import infer, skeleton

    inferred, _ = infer(skeleton(_without_weights(model)), {})
    known = _declarations(inferred.graph)
    frozen = model.ir_version < FIRST_OVERRIDABLE_IR
    for graph in all_graphs(model):
        for value in (*graph.inputs, *graph.initializers.values(), *(out for node in graph for out in node.outputs)):
            value.meta[_TYPE] = known.get(value.name)
            value.meta[_FROZEN] = frozen


def learn_from(new: Any, old: Any, order: Sequence[int] | None = None) -> None:
    """Let a new value be known as ``old`` is, its axes permuted as Transpose does by ``order``."""
    import onnx_ir

    new.type = old.type
    new.meta[_FROZEN] = old.meta.get(_FROZEN)
    sizes = dims(old)
    if sizes is None:
        return
    if order is not None:
        sizes = tuple(sizes[axis] for axis in order)
    told = old.meta.get(_TYPE)
    if told is not None:
        new.meta[_TYPE] = (told[0], sizes)
    if new.type is None and told is not None and told[0]:
        new.type = onnx_ir.TensorType(onnx_ir.DataType(told[0]))
    if new.type is not None:
        new.shape = onnx_ir.Shape(sizes)


def _without_weights(model: Any) -> Any:
    """A protobuf of the model in which large initialisers are inputs."""
    import onnx_ir

    twin = model.clone()
    for value in list(twin.graph.initializers.values()):
        if value.const_value is None or value.const_value.nbytes <= _INLINE_BYTES:
            continue
        if value.type is None:
            value.type = onnx_ir.TensorType(value.const_value.dtype)
        value.shape = value.const_value.shape
        del twin.graph.initializers[value.name]
        if not value.is_graph_input():
            twin.graph.inputs.append(value)
    return onnx_ir.to_proto(twin)


def _declarations(graph: Any) -> dict[str, tuple[int, Dims | None] | None]:
    """Name -> element type and sizes; None where two subgraphs use one name for different things."""
    known: dict[str, tuple[int, Dims | None] | None] = {}
    for inner in _with_subgraphs(graph):
        for value in (*inner.input, *inner.output, *inner.value_info):
            told = _declared(value.type)
            known[value.name] = told if known.get(value.name, told) == told else None
    return known


def _with_subgraphs(graph: Any) -> Iterator[Any]:
    from ort_metainfer.model.walking import subgraphs

    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from _with_subgraphs(inner)


def _declared(kind: Any) -> tuple[int, Dims | None] | None:
    if not kind.HasField("tensor_type"):
        return None
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None
    return tensor.elem_type, tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for dim in tensor.shape.dim
    )


def dims(value: Any) -> Dims | None:
    """Sizes of a value, None for one that is open; None where not even the rank is known."""
    if value is None:
        return None
    tensor = _tensor(value)
    if tensor is not None:
        return tuple(tensor.shape.numpy()) if hasattr(tensor.shape, "numpy") else tuple(tensor.shape)
    told = value.meta.get(_TYPE)
    if told is not None and told[1] is not None:
        return told[1]  # type: ignore[no-any-return]
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in value.shape)


def static_dims(value: Any) -> tuple[int, ...] | None:
    """Sizes of a value where all are known."""
    found = dims(value)
    if found is None or any(dim is None for dim in found):
        return None
    return tuple(dim for dim in found if dim is not None)


def rank(value: Any) -> int | None:
    """How many dimensions it has, where known."""
    found = dims(value)
    return None if found is None else len(found)


def dtype(value: Any) -> str | None:
    """ONNX's name of its element type (``FLOAT``), where known."""
    import onnx_ir

    if value is None:
        return None
    if value.dtype is not None:
        return str(value.dtype.name)
    told = value.meta.get(_TYPE)
    if told is not None and told[0]:
        return str(onnx_ir.DataType(told[0]).name)
    tensor = _tensor(value)
    return None if tensor is None else str(tensor.dtype.name)


def constant(value: Any) -> np.ndarray | None:
    """The array a value always is; None where it is none, or where a caller may replace it."""
    tensor = _tensor(value)
    return None if tensor is None else np.asarray(tensor.numpy())


def constant_size(value: Any) -> int | None:
    """How many elements a constant has, without reading it; None where the value is no constant."""
    tensor = _tensor(value)
    return None if tensor is None else int(tensor.size)


def scalar(value: Any, beside: Any = None) -> float | None:
    """The number a value always is; with ``beside``, only if it does not raise the rank of what it meets."""
    if constant_size(value) != 1:
        return None
    array = constant(value)
    if array is None or array.dtype.kind not in "fiu":
        return None
    if beside is not None and array.ndim > 0 and array.ndim > (rank(beside) or 0):
        return None
    return float(array.reshape(()))


def tensor_of(value: Any) -> Any:
    """The tensor a value always is, not read as yet; None where it is none, or where a caller may replace it."""
    return _tensor(value)


_PLAIN = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


def _tensor(value: Any) -> Any:
    import onnx_ir

    if value is None:
        return None
    if value.is_initializer():
        replaceable = value.is_graph_input() and not value.meta.get(_FROZEN)
        return None if replaceable else value.const_value
    node = value.producer()
    if node is None or node.op_type != "Constant" or node.domain:
        return None
    for name, given in node.attributes.items():
        if given.is_ref():
            return None
        if name == "value":
            return given.as_tensor()
        if name in _PLAIN:
            return onnx_ir.tensor(np.asarray(given.value, dtype=_PLAIN[name]))
    return None


def attribute(node: Any, name: str, default: Any = None) -> Any:
    """An attribute's value as plain Python (lists for repeated ones), or ``default``."""
    given = node.attributes.get(name)
    if given is None or given.value is None:
        return default
    return list(given.value) if isinstance(given.value, tuple | list) else given.value


def produced(value: Any, *operators: str, domain: str = "") -> Any:
    """The node that makes ``value`` if it is one of ``operators``; None otherwise."""
    node = None if value is None else value.producer()
    if node is None or node.domain != domain or node.op_type not in operators or node.graph is None:
        return None
    return node


def other_input(node: Any, value: Any) -> Any:
    """Of a node with two inputs the one that is not ``value``; None where neither is."""
    if node is None or len(node.inputs) != 2:
        return None
    first, second = node.inputs
    if first is value:
        return second
    return first if second is value else None


def axes_of(node: Any, default: list[int] | None = None) -> list[int] | None:
    """Axes of a reduction, Squeeze or Unsqueeze, given as an attribute or as a constant input; None: not constant.

    ``default`` is what no axes mean.
    """
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        array = constant(node.inputs[1])
        return None if array is None else [int(axis) for axis in array.reshape(-1)]
    given = attribute(node, "axes")
    return default if given is None else [int(axis) for axis in given]


def leak(nodes: Iterable[Any], last: Any) -> str | None:
    """Which value inside a pattern somebody else looks at as well; None where nobody does.

    Args:
        nodes: the pattern's nodes.
        last: the one whose outputs are replaced.
    """
    inside = {id(node) for node in nodes} | {id(last)}
    for node in nodes:
        if node is last:
            continue
        for value in node.outputs:
            if value.is_graph_output():
                return f"{value.name} inside it is a graph output"
            if any(id(use.node) not in inside for use in value.uses()):
                return f"{value.name} inside it is used elsewhere"
    return None
