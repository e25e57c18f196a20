"""Which values an integer input may take: where it ends up as an index, the table's size is the bound."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import onnx

from ort_metainfer.model.shapes import Scope
from ort_metainfer.model.walking import subgraphs
from ort_metainfer.problem import Dim

__all__ = ["index_bounds", "integer_inputs"]

Origins = frozenset[tuple[str, int]]
"""Graph inputs a value is made of, each with what was added to it at most on the way."""

_NONE: Origins = frozenset()

_INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.INT16, onnx.TensorProto.INT8)
_UNSIGNED = (onnx.TensorProto.UINT64, onnx.TensorProto.UINT32, onnx.TensorProto.UINT16, onnx.TensorProto.UINT8)

_KEEPS_VALUES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Transpose"), (0,)),
        **dict.fromkeys(("Slice", "Expand", "Tile", "Pad", "Split", "Dropout", "Abs", "ReduceMax", "ReduceMin"), (0,)),
        **dict.fromkeys(("Gather", "GatherElements", "GatherND", "CastLike", "Trilu"), (0,)),
        **dict.fromkeys(("Mul", "Max"), (0, 1)),
        **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), (0, 2)),
        "Where": (1, 2),
    }
)
"""Operators whose results hold values of these inputs and nothing larger (a Mul is taken for one by a mask)."""

_AXIS_TABLES: Mapping[str, tuple[int, int, str, int]] = MappingProxyType(
    {
        "Gather": (0, 1, "axis", 0),
        "GatherElements": (0, 1, "axis", 0),
        "Scatter": (0, 1, "axis", 0),
        "ScatterElements": (0, 1, "axis", 0),
        "com.microsoft.GatherBlockQuantized": (0, 1, "gather_axis", 0),
        "ai.onnx.ml.ArrayFeatureExtractor": (0, 1, "", -1),
    }
)
"""Operator -> the table's input, the indices' input, the attribute that names the table's axis, its default."""

_ND_TABLES = ("GatherND", "ScatterND")


@dataclass
class _Found:
    sources: Mapping[str | int, tuple[str, int]]
    sizes: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, tuple[str, int]] = field(default_factory=dict)

    def add(self, origins: Origins, limit: Dim) -> None:
        """Note that indices made of ``origins`` must stay below ``limit``."""
        for name, added in origins:
            if limit is not None and limit in self.sources:
                self.inputs.setdefault(name, self.sources[limit])
            elif isinstance(limit, int) and limit - added > 0:
                self.sizes[name] = min(self.sizes.get(name, limit - added), limit - added)


def index_bounds(
    graph: Any, sources: Mapping[str | int, tuple[str, int]]
) -> tuple[dict[str, int], dict[str, tuple[str, int]]]:
    """Exclusive upper bounds of the integer inputs of ``graph``, whose shapes have been inferred.

    An input is followed through the operators that keep its values to every Gather, Scatter, OneHot and the like.

    Args:
        graph: the model's main graph.
        sources: symbolic dimension, or a size that stands for one -> the input and axis where its size can be read.

    Returns:
        Input -> the smallest table's size; and input -> (input, axis) whose size is the bound, where the table is made
        of an input.
    """
    origins: MutableMapping[str, Origins] = ChainMap({name: frozenset({(name, 0)}) for name in integer_inputs(graph)})
    found = _Found(sources)
    if origins:
        _follow(graph, Scope.of(graph), origins, found)
    return found.sizes, found.inputs


def integer_inputs(graph: Any) -> set[str]:
    """Names of the integer inputs without an initialiser."""
    initialised = {tensor.name for tensor in graph.initializer}
    return {
        value.name
        for value in graph.input
        if value.type.tensor_type.elem_type in _INTEGERS + _UNSIGNED and value.name not in initialised
    }


def _follow(graph: Any, scope: Scope, origins: MutableMapping[str, Origins], found: _Found) -> None:
    for node in graph.node:
        for indices, limit in _lookups(node, scope):
            found.add(origins.get(indices, _NONE), limit)
        passed = _passed_on(node, scope, origins)
        for name in node.output:
            if passed or name in origins:  # an outer value of the same name is hidden
                origins[name] = passed
        for inner in subgraphs(node):
            hidden = {value.name: _NONE for value in inner.input}
            _follow(inner, Scope.of(inner, scope), ChainMap(hidden, origins), found)


def _passed_on(node: Any, scope: Scope, origins: Mapping[str, Origins]) -> Origins:
    """The inputs whose values are still in the node's result, with what it added."""
    if node.domain not in ("", "ai.onnx"):
        return _NONE
    if node.op_type == "Concat":
        return _NONE.union(*(origins.get(name, _NONE) for name in node.input))
    if node.op_type in ("Add", "Sub") and len(node.input) == 2:
        return _shifted(node, scope, origins)
    positions = [place for place in _KEEPS_VALUES.get(node.op_type, ()) if place < len(node.input)]
    if node.op_type == "Mul" and any(_largest(node.input[place], scope) > 1 for place in positions):
        return _NONE
    return _NONE.union(*(origins.get(node.input[place], _NONE) for place in positions))


def _largest(name: str, scope: Scope) -> float:
    """The largest value of a constant; 0 for what is none."""
    constant = scope.constants.get(name)
    return 0.0 if constant is None or not constant.size or constant.dtype.kind not in "iufb" else float(constant.max())


def _shifted(node: Any, scope: Scope, origins: Mapping[str, Origins]) -> Origins:
    """``x + c`` and ``c + x`` raise values by c's largest; ``x - c`` lowers them by its smallest, here taken as 0."""
    for value, other in ((node.input[0], node.input[1]), (node.input[1], node.input[0])):
        if origins.get(value) and other in scope.constants:
            if node.op_type == "Sub":
                return origins[value] if value == node.input[0] else _NONE
            added = int(max(0.0, _largest(other, scope)))
            return frozenset((name, before + added) for name, before in origins[value])
    return _NONE


def _lookups(node: Any, scope: Scope) -> Iterator[tuple[str, Dim]]:
    """What the node uses as indices, and the size they must stay below."""
    kind = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
    if kind in _AXIS_TABLES and len(node.input) >= 2:
        table, indices, attribute, default = _AXIS_TABLES[kind]
        axis = next((item.i for item in node.attribute if item.name == attribute), default)
        dims = scope.dims.get(node.input[table], ())
        if -len(dims) <= axis < len(dims):
            yield node.input[indices], dims[axis]
    elif kind in _ND_TABLES and len(node.input) >= 2:
        yield node.input[1], _nd_limit(node, scope)
    elif kind == "OneHot" and len(node.input) >= 2:
        depth = int(_largest(node.input[1], scope))
        yield node.input[0], depth or None


def _nd_limit(node: Any, scope: Scope) -> Dim:
    """One bound for all components of an index vector: the smallest of the axes it addresses."""
    first = next((item.i for item in node.attribute if item.name == "batch_dims"), 0)
    dims, indices = scope.dims.get(node.input[0], ()), scope.dims.get(node.input[1], ())
    if not indices or not isinstance(indices[-1], int):
        return None
    axes = dims[first : first + indices[-1]]
    sizes = [size for size in axes if isinstance(size, int)]
    return min(sizes) if sizes else (axes[0] if len(axes) == 1 else None)
