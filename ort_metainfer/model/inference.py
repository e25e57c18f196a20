"""Shapes of every value in a graph: the declared or given input shapes, carried through by ONNX shape inference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.inliner
import onnx.shape_inference

from ort_metainfer.errors import InputsError
from ort_metainfer.model.folding import fold
from ort_metainfer.model.shapes import SMALL_ELEMENTS, named_dim
from ort_metainfer.model.stand_ins import stand_in
from ort_metainfer.model.walking import subgraphs, walk

__all__ = ["REFUSALS", "Sources", "infer", "probe_shapes", "skeleton", "stood_in", "unfold"]

Sources = dict[str | int, tuple[str, int]]
"""A symbolic dimension, or a size that stands for one -> the input and axis where its size can be read."""

REFUSALS = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError)
"""What onnx's C++ side raises for a model it does not take."""

MAX_ROUNDS = 4
"""Inference and folding feed each other; exported models need two rounds, four are enough for what was seen."""

PROBE = 100_003, 1_014
"""First size and step of the sizes that mark open dimensions while inferring; none of them is usual for a table."""

MAX_SKELETON_BYTES = 1_500_000_000
"""A graph that is still larger without its weights is not inferred: protobuf refuses 2 GB, and inference copies."""

MAX_INLINED_NODES = 200_000
"""Functions that would unfold to more nodes than this are dropped: what they do stays unknown."""


def skeleton(model: Any) -> Any:
    """What shape inference needs of ``model``, which is taken over: weights dropped, functions unfolded, every operator
    one that ONNX has shapes for, as far as possible."""
    return stood_in(unfold(model))


def unfold(model: Any) -> Any:
    """``model``, which is taken over, without its weights' values and with its functions unfolded."""
    _drop_weights(model)
    model = _inline(model)
    _import_missing_domains(model)
    return model


def stood_in(model: Any) -> Any:
    """``model``, which is taken over, with every operator one that ONNX has shapes for, as far as possible.

    Names of values stay, so that what is inferred of them holds for the model's own nodes.
    """
    _stand_in(model.graph)
    return model


def infer(bare: Any, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Any, Sources]:
    """A copy of the skeleton ``bare`` with ``shapes`` filled in and the rest inferred.

    Where inference is refused or the graph is too large, what is declared is all there is.

    Returns:
        The copy, and where each symbolic dimension can be read. An open dimension without a name is given one.

    Raises:
        InputsError: ``shapes`` names an unknown input, or contradicts a declared rank or size.
    """
    model = onnx.ModelProto()
    model.CopyFrom(bare)
    sources = _fill_in(model, shapes)
    if model.ByteSize() > MAX_SKELETON_BYTES:
        return model, sources
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    for _ in range(MAX_ROUNDS):
        try:
            model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        except REFUSALS:  # a model that onnx rejects may still run
            break
        if not fold(model.graph, opsets):
            break
    return model, sources


def probe_shapes(bare: Any, shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, tuple[int, ...]], Sources]:
    """``shapes`` with a telling size for every dimension they leave open, and the input and axis each stands for.

    ONNX computes with sizes but not with names: a dimension that went through a Reshape is found by its size.
    """
    taken = {size for tensor in _tensors(bare) for size in tensor.dims}
    size, step = PROBE
    by_name: dict[str, int] = {}
    probed: dict[str, tuple[int, ...]] = {}
    sources: Sources = {}
    for value in _inputs(bare):
        if value.name in shapes or not value.type.tensor_type.HasField("shape"):
            continue
        dims = [named_dim(dim) for dim in value.type.tensor_type.shape.dim]
        for axis, dim in enumerate(dims):
            if isinstance(dim, int):
                continue
            while size in taken:
                size += step
            mark = size if dim is None else by_name.setdefault(dim, size)
            dims[axis] = mark
            sources.setdefault(mark, (value.name, axis))
            size += step
        probed[value.name] = tuple(dim for dim in dims if isinstance(dim, int))
    return {**shapes, **probed}, sources


def _inputs(model: Any) -> list[Any]:
    initialised = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in initialised]


def _drop_weights(model: Any) -> None:
    for tensor in _tensors(model):
        if np.prod(tensor.dims, dtype=float) > SMALL_ELEMENTS:
            for name in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
                tensor.ClearField(name)
            del tensor.string_data[:]


def _tensors(model: Any) -> Iterator[Any]:
    bodies = [model.graph, *model.functions]
    for body in bodies:
        yield from getattr(body, "initializer", ())
        for node in walk(body.node):
            yield from (attribute.t for attribute in node.attribute if attribute.HasField("t"))
            for graph in subgraphs(node):
                yield from graph.initializer


def _fill_in(model: Any, shapes: Mapping[str, tuple[int, ...]]) -> Sources:
    """Write the given sizes into the graph, and a name of its own into every input dimension that has neither."""
    inputs = {value.name: value for value in _inputs(model)}
    stray = next((name for name in shapes if name not in inputs), None)
    if stray is not None:
        raise InputsError(f"shapes name the input {stray!r}, which the model does not have; its inputs: {list(inputs)}")
    symbols: dict[str, int] = {}
    for name, shape in shapes.items():
        _give(inputs[name], shape, symbols)
    sources: Sources = {}
    for index, value in enumerate(model.graph.input):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if named_dim(dim) is None:
                dim.dim_param = f"unnamed:{index}:{axis}"
    _set_symbols(model.graph, symbols)
    for name, value in inputs.items():
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param:
                sources.setdefault(dim.dim_param, (name, axis))
    return sources


def _give(value: Any, shape: tuple[int, ...], symbols: dict[str, int]) -> None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        tensor.shape.CopyFrom(onnx.TensorShapeProto(dim=[onnx.TensorShapeProto.Dimension() for _ in shape]))
    declared = [named_dim(dim) for dim in tensor.shape.dim]
    fits = len(declared) == len(shape) and all(
        (size >= 0 and dim in (size, None)) or isinstance(dim, str) for dim, size in zip(declared, shape, strict=True)
    )
    if not fits:
        raise InputsError(f"input {value.name!r} is declared as {declared}, but its shape is given as {list(shape)}")
    for name, dim, size in zip(declared, tensor.shape.dim, shape, strict=True):
        if isinstance(name, str):
            symbols.setdefault(name, size)
        dim.dim_value = size


def _set_symbols(graph: Any, symbols: Mapping[str, int]) -> None:
    """Give every declared dimension that bears a known symbol its size, in subgraphs too."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in symbols:
                dim.dim_value = symbols[dim.dim_param]
    for node in graph.node:
        for inner in subgraphs(node):
            _set_symbols(inner, symbols)


def _inline(model: Any) -> Any:
    """The model with its functions unfolded; without them where they reach themselves or unfold to too much.

    Shape inference follows every call as well, so that leaving such functions in would never end.
    """
    if model.functions and _unfolded_nodes(model) <= MAX_INLINED_NODES:
        try:
            return onnx.inliner.inline_local_functions(model)
        except REFUSALS:
            pass  # an invalid function, about which onnxruntime will have its say
    del model.functions[:]
    return model


def _unfolded_nodes(model: Any) -> float:
    """Nodes after inlining; infinite where a function reaches itself."""
    bodies = {(function.domain, function.name): list(walk(function.node)) for function in model.functions}
    sizes = dict.fromkeys(bodies, float("inf"))
    for _ in bodies:  # each round settles at least one function, unless those left are circular
        settled = {key: _node_count(nodes, sizes) for key, nodes in bodies.items()}
        if settled == sizes:
            break
        sizes = settled
    return _node_count(walk(model.graph.node), sizes)


def _node_count(nodes: Iterable[Any], sizes: Mapping[tuple[str, str], float]) -> float:
    return sum(sizes.get((node.domain, node.op_type), 1) for node in nodes)


def _import_missing_domains(model: Any) -> None:
    """Shape inference refuses a domain without an import; onnxruntime does not always."""
    imported = {"" if opset.domain == "ai.onnx" else opset.domain for opset in model.opset_import}
    for domain in sorted({node.domain for node in walk(model.graph.node)} | {""}):
        if domain not in imported and domain != "ai.onnx":
            model.opset_import.append(onnx.helper.make_opsetid(domain, 1 if domain else 17))


def _stand_in(graph: Any) -> None:
    """Replace what ONNX has no shape inference for by ONNX operators whose results have the same shapes."""
    for node in graph.node:
        for inner in subgraphs(node):
            _stand_in(inner)
    nodes = [replacement for node in graph.node for replacement in stand_in(node, graph)]
    if any(new is not old for new, old in zip(nodes, graph.node, strict=False)):
        kept = onnx.GraphProto(node=nodes)
        del graph.node[:]
        graph.node.extend(kept.node)
