"""The same model with its input shapes fixed: what NPU compilers demand.

By input and axis, never by the name of a dimension: exporters (Paddle's) call height and width both ``?``, and whoever
fixes dimensions by name gives them one size.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from ort_metainfer.errors import InputsError
from ort_metainfer.model.inference import infer, skeleton
from ort_metainfer.model.shapes import named_dim
from ort_metainfer.model.walking import graphs_of
from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.dead_branches import close_dead_branches, inference_failure
from ort_metainfer.rewrites.files import Rewritten, open_model, save
from ort_metainfer.rewrites.known_branches import forget_declared_inside, holds_graphs, settle_branches

__all__ = ["fix_shapes"]

Shapes = Mapping[str, tuple[int, ...]]


def fix_shapes(model: str | os.PathLike[str], shapes: Shapes, target: Path) -> Rewritten:
    """Write ``model`` with every input dimension a number, and what follows from that inferred.

    Args:
        model: the model's file.
        shapes: input -> shape; inputs whose shapes are fixed already may be left out.
        target: file to write.

    Raises:
        ModelError: the model cannot be read, or must not be rewritten.
        InputsError: an input is unknown, its declared rank or size is another one, or one with open dimensions is not
            given; with what to give. Or a body inside the model cannot have what follows.
    """
    proto, graph = open_model(model)
    _check(graph, shapes, os.fspath(model))
    inferred, notes = _inferred(proto, shapes, os.fspath(model))
    changed = _write_inputs(proto.graph, shapes)
    open_outputs = _take_over(proto, inferred.graph)
    save(proto, target, graph.weight_bytes)
    notes += [f"the shape of output {name} is not known before it runs" for name in open_outputs]
    return Rewritten(target, changed, tuple(notes))


def _inferred(proto: Any, shapes: Shapes, label: str) -> tuple[Any, list[str]]:
    """What follows from ``shapes``; the branches that they decide are settled in ``proto``."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    _forget_declared(bare)
    bare = skeleton(bare)
    if not holds_graphs(proto):
        return infer(bare, shapes)[0], []
    forget_declared_inside(proto)
    forget_declared_inside(bare)
    original = onnx.ModelProto()
    original.CopyFrom(bare)
    _, settled = settle_branches(proto, bare, shapes)
    closed, failure = close_dead_branches(proto, bare, shapes)
    if failure is not None and inference_failure(original, {}) is None:
        raise InputsError(f"model {label}: what it holds inside cannot have these shapes; leave them open: {failure}")
    told = {"settled by the shapes": settled, "impossible with the shapes, a run that takes one raises": closed}
    return infer(bare, shapes)[0], [f"branches {what}: {count}" for what, count in told.items() if count]


def _check(graph: Graph, shapes: Shapes, label: str) -> None:
    names = [spec.name for spec in graph.inputs]
    stray = next((name for name in shapes if name not in names), None)
    if stray is not None:
        raise InputsError(f"model {label} has no input {stray!r}; its inputs: {', '.join(names)}")
    for spec in graph.inputs:
        given = shapes.get(spec.name)
        if given is not None and any(size < 1 for size in given):
            raise InputsError(f"model {label}: sizes of input {spec.name!r} must be positive, got {list(given)}")
        if given is None and (spec.shape is None or not all(isinstance(dim, int) for dim in spec.shape)):
            raise InputsError(f"model {label}: input {spec} has open dimensions; give its shape: {spec.name}:1,...")


def _write_inputs(graph: Any, shapes: Shapes) -> bool:
    changed = False
    for value in graph.input:
        if value.name in shapes:
            before = value.SerializeToString(deterministic=True)
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=size) for size in shapes[value.name])
            changed |= before != value.SerializeToString(deterministic=True)
    return changed


def _forget_declared(proto: Any) -> None:
    """Clear what is declared of inner values and outputs: inference keeps it, also where it is wrong."""
    for graph in graphs_of(proto):
        del graph.value_info[:]
    for value in proto.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")


def _take_over(proto: Any, inferred: Any) -> list[str]:
    """Replace what is declared of inner values and outputs by what was inferred; names of outputs left open."""
    declared = {value.name: _sizes(value) for value in proto.graph.output}
    del proto.graph.value_info[:]
    made = {name for node in proto.graph.node for name in node.output}
    told = {value.name: value for value in (*inferred.value_info, *inferred.output)}
    proto.graph.value_info.extend(
        _only_numbers(value) for name, value in told.items() if name in made - set(declared) and _has_shape(value)
    )
    left_open = []
    for value in proto.graph.output:
        if value.name in told and _has_shape(told[value.name]):
            value.CopyFrom(told[value.name])
            _add_declared(value, declared[value.name])
        value.CopyFrom(_only_numbers(value))
        if not all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim):
            left_open.append(value.name)
    return left_open


def _sizes(value: Any) -> tuple[int | None, ...]:
    dims = (named_dim(dim) for dim in value.type.tensor_type.shape.dim)
    return tuple(dim if isinstance(dim, int) else None for dim in dims)


def _add_declared(value: Any, declared: tuple[int | None, ...]) -> None:
    """Where inference left a size open, the one that was declared."""
    dims = value.type.tensor_type.shape.dim
    for dim, size in zip(dims, declared, strict=False) if len(dims) == len(declared) else ():
        if size is not None and not dim.HasField("dim_value"):
            dim.dim_value = size


def _has_shape(value: Any) -> bool:
    return bool(value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape"))


def _only_numbers(value: Any) -> Any:
    """A copy whose open dimensions are without a name: the names are ours, or onnx's."""
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    for dim in copy.type.tensor_type.shape.dim:
        if not isinstance(named_dim(dim), int):
            dim.Clear()
    return copy
