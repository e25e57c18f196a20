"""Sizes that follow from the declared sizes of a model's inputs and from nothing else.

onnxruntime refuses inputs of other sizes than declared, so these hold in every run; what a file declares of inner
values may be wrong. Every open dimension of an input gets a name of its own: exporters give different ones one name.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ort_metainfer.rewrites.patterns import all_graphs, attribute, constant, constant_size, produced

__all__ = ["KnownShapes", "known_shape_inputs", "learn_sizes", "sizes_of"]

Size = int | str | None
"""A number, the name of an open dimension, or nothing known."""

known_shape_inputs = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}
"""Operator -> which of its inputs is a shape."""

OPEN = "open:{}:{}"

INLINE_BYTES = 4096
"""Larger constants do not go to shape inference: none of them is a shape."""


_SIZES = "ort_metainfer.sizes"


def learn_sizes(model: Any, trust_names: bool = False) -> None:
    """Keep the sizes of all values beside them, for :func:`sizes_of`; nothing of it is written to a file."""
    shapes = KnownShapes(model, trust_names)
    for graph in all_graphs(model):
        for value in (*graph.inputs, *graph.initializers.values(), *(out for node in graph for out in node.outputs)):
            value.meta[_SIZES] = shapes.sizes(value)


def sizes_of(value: Any) -> tuple[Size, ...] | None:
    """Sizes of a value after :func:`learn_sizes`; equal names are equal sizes. None: not even the rank is known."""
    return None if value is None else value.meta.get(_SIZES)


class KnownShapes:
    """Sizes of all values of a model as it is now.

    Args:
        model: an onnx_ir model.
        trust_names: whether dimensions of inputs that are declared under one name are taken to be one.
    """

    def __init__(self, model: Any, trust_names: bool = False) -> None:
        from ort_metainfer.model.inference import infer, skeleton

        inferred, _ = infer(skeleton(_bare(model, trust_names)), {})
        self._sizes: dict[str, tuple[Size, ...] | None] = {}
        self._take(inferred.graph)
        for tensor in inferred.graph.initializer:
            self._sizes[tensor.name] = tuple(tensor.dims)

    def _take(self, graph: Any) -> None:
        from ort_metainfer.model.walking import subgraphs

        for value in (*graph.input, *graph.output, *graph.value_info):
            told = _sizes(value)
            known = self._sizes.setdefault(value.name, told)
            if known != told:
                self._sizes[value.name] = None  # two graphs use one name for different things
        for node in graph.node:
            for inner in subgraphs(node):
                self._take(inner)

    def sizes(self, value: Any) -> tuple[Size, ...] | None:
        """Sizes of a value; None where not even the rank is known."""
        return None if value is None else self._sizes.get(value.name)

    def value_of(self, node: Any) -> np.ndarray | None:
        """What a Shape or Size, or a Gather or Slice of a Shape, always gives; None where that is not known."""
        if node.op_type in ("Shape", "Size"):
            sizes = self.sizes(node.inputs[0])
            sizes = None if sizes is None else sizes[attribute(node, "start", 0) : attribute(node, "end")]
            if sizes is None or not all(isinstance(size, int) for size in sizes):
                return None
            numbers = [int(size) for size in sizes]  # type: ignore[arg-type]
            return np.asarray(numbers if node.op_type == "Shape" else math.prod(numbers), np.int64)
        shape = produced(node.inputs[0], "Shape") if node.op_type in ("Gather", "Slice") else None
        sizes = None if shape is None or {"start", "end"} & set(shape.attributes) else self.sizes(shape.inputs[0])
        if sizes is None:
            return None
        picked = _gathered(node, sizes) if node.op_type == "Gather" else _sliced(node, sizes)
        if picked is None or not all(isinstance(size, int) for size in picked.reshape(-1)):
            return None
        return picked.astype(np.int64)

    def operand_of(self, node: Any) -> list[int] | str | None:
        """The constant that does what the shape operand of ``node`` does; or why there is none.

        None: it is constant as it is, or there is nothing to tell.
        """
        place = known_shape_inputs[node.op_type]
        if constant_size(node.inputs[place]) is not None:
            return None
        after = self.sizes(node.outputs[0])
        if after is None:
            return "not even the rank of its result is known"
        if node.op_type != "Reshape":
            return [int(size) for size in after if isinstance(size, int)] if _fixed(after) else "its sizes are open"
        if attribute(node, "allowzero", 0):
            return "a 0 in its shape means a size of 0"
        before = self.sizes(node.inputs[0]) or ()
        shape = [_reshaped(axis, size, before) for axis, size in enumerate(after)]
        if shape.count(-1) > 1 or (-1 in shape and 0 in shape) or 0 in after:
            return "more than one of its sizes is open"
        return shape


def _reshaped(axis: int, size: Size, before: tuple[Size, ...]) -> int:
    """What a Reshape says of one size: a number, 0 where it is kept, -1 where it is not known."""
    if isinstance(size, int):
        return size
    return 0 if size is not None and axis < len(before) and before[axis] == size else -1


def _fixed(sizes: tuple[Size, ...]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _gathered(node: Any, sizes: tuple[Size, ...]) -> np.ndarray | None:
    places = constant(node.inputs[1])
    if places is None or attribute(node, "axis", 0) not in (0, -1) or (places >= len(sizes)).any():
        return None
    return np.asarray(sizes, object)[places] if places.ndim else np.asarray(sizes[int(places)], object)


def _sliced(node: Any, sizes: tuple[Size, ...]) -> np.ndarray | None:
    if len(node.inputs) < 3:
        start, end = attribute(node, "starts"), attribute(node, "ends")
        return None if not start or not end else np.asarray(sizes[int(start[0]) : int(end[0])], object)
    given = [constant(value) for value in node.inputs[1:]]
    if any(array is None or array.size != 1 for array in given):
        return None
    start, end, *rest = (int(array.reshape(-1)[0]) for array in given if array is not None)
    step = rest[1] if len(rest) > 1 else 1
    return np.asarray(sizes[start:end:step], object) if step > 0 else None


def _bare(model: Any, trust_names: bool) -> Any:
    """A protobuf of the model in which nothing but inputs of the main graph has a declared shape, and no weights."""
    import onnx_ir

    twin = model.clone()
    for graph in all_graphs(twin):
        inputs = {id(value) for value in twin.graph.inputs}
        for value in (*graph.inputs, *graph.outputs, *(out for node in graph for out in node.outputs)):
            if id(value) not in inputs:
                value.shape = None
    for index, value in enumerate(twin.graph.inputs):
        if value.shape is not None:
            dims = [
                dim if isinstance(dim, int) else _name(dim, trust_names) or OPEN.format(index, axis)
                for axis, dim in enumerate(value.shape)
            ]
            value.shape = onnx_ir.Shape(dims)
    for value in list(twin.graph.initializers.values()):
        if value.const_value is not None and value.const_value.nbytes > INLINE_BYTES and not value.is_graph_input():
            value.type, value.shape = onnx_ir.TensorType(value.const_value.dtype), value.const_value.shape
            del twin.graph.initializers[value.name]
            twin.graph.inputs.append(value)
    return onnx_ir.to_proto(twin)


def _name(dim: Any, trusted: bool) -> str | None:
    """A symbolic dimension's name, where it is one: exporters write ``?`` and the like as well."""
    return str(dim.value) if trusted and dim.value is not None and str(dim.value).isidentifier() else None


def _sizes(value: Any) -> tuple[Size, ...] | None:
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in value.type.tensor_type.shape.dim
    )
