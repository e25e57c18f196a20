"""The structure of a graph as one hash: what is computed, not how it is written down.

Each value's hash is made of its node's operator, its attributes and the hashes of what the node reads (Weisfeiler and
Lehman 1968; on a graph without cycles one pass is all it takes). The graph's is made of the hashes of all nodes that
its outputs rest on, and of the outputs, sorted. So names, the order of nodes, Identity nodes, and whether a constant is
a node or an initialiser, do not matter.

Left out, since a re-export or another batch size changes it: sizes of inputs; weights' values; values and computation
of shapes, axes and bounds (a Reshape's target may be a constant in one export and a chain of Shape, Gather and Concat
in another); attributes at their default, by the newest version of the operator, and those that became inputs; the
opset. Kept: types, ranks of inputs, shapes of weights. Models that differ only in resolution are therefore the same
structure; models that differ in width are not. Imports onnx: meant for a child process.
"""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import onnx
import onnx.defs

from ort_metainfer.model.walking import operator_of

__all__ = ["VERSION", "structure_of"]

VERSION = 1
"""Part of every hash: raised when the same graph hashes to something else."""

_SETTINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Reshape": ("shape", "allowzero"),
        "Expand": (),
        "Tile": ("tiles", "axis"),
        "ConstantOfShape": (),
        "Slice": ("axes", "starts", "ends"),
        "Squeeze": ("axes",),
        "Unsqueeze": ("axes",),
        "Pad": ("pads", "paddings", "value"),
        "Resize": ("scales", "sizes"),
        "Upsample": ("scales", "height_scale", "width_scale"),
        "Split": ("split", "num_outputs"),
        "Clip": ("min", "max"),
        "TopK": ("k",),
        "Dropout": ("ratio", "is_test", "seed"),
        "OneHot": (),
        "Range": (),
        "Flatten": ("axis",),
        **{f"Reduce{name}": ("axes",) for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod")},
        **{f"Reduce{name}": ("axes",) for name in ("Sum", "SumSquare")},
    }
)
"""Operators whose inputs after the first are settings, with the attributes that said the same in other opsets."""

_PASSING = frozenset({"Identity", "Dropout"})
"""They pass on what they read (a Dropout when not training)."""

_SHAPES_ONLY = frozenset({"Shape", "Size", "Constant", "ConstantOfShape", "Range"})
"""What they give rests on sizes alone, not on data."""

_KERNELS: Mapping[str, range] = MappingProxyType(
    {
        **dict.fromkeys(("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "BatchNormalization"), range(9)),
        **dict.fromkeys(("Gemm", "MatMul", "MatMulInteger", "QLinearMatMul", "PRelu"), range(9)),
        **dict.fromkeys(("LSTM", "GRU", "RNN"), range(4)),
        "Gather": range(1),
    }
)
"""Operator -> inputs that are weights, all of whose sizes say what the architecture is; of a recurrent node's the
initial states behind them are not."""

_LONG = 16
"""Lists in attributes that are longer are weights: those of a tree, a scaler, a classifier."""

_KEPT = 16
"""Bytes of a node's hash: with a million nodes, two of them agree by chance once in 10**26 graphs."""


def structure_of(graph: Any) -> str:
    """The structural hash of a GraphProto, functions unfolded: 32 hex digits.

    Weights' values are not looked at and may be missing.
    """
    hashed = _Hashing().graph(graph)
    return hashlib.sha256(b"structure %d " % VERSION + hashed).hexdigest()[: 2 * _KEPT]


class _Hashing:
    """Hashes of the values of one graph; those around it are seen through ``outer``."""

    def __init__(self, outer: _Hashing | None = None) -> None:
        self.values: ChainMap[str, bytes] = outer.values.new_child() if outer else ChainMap()
        self.constants: ChainMap[str, Any] = outer.constants.new_child() if outer else ChainMap()
        self.rests_on: dict[str, tuple[str, ...]] = {}

    def graph(self, graph: Any) -> bytes:
        """The hash of the graph as a whole."""
        self.constants.update({tensor.name: tensor for tensor in graph.initializer})
        for value in graph.input:
            if value.name not in self.constants.maps[0]:
                self.values[value.name] = _digest("input", *_type_words(value))
        hashed = [(node, self.node(node)) for node in _in_order(graph)]
        outputs = [value.name for value in graph.output]
        needed = self._needed(outputs)
        nodes = [one for node, one in hashed if one is not None and needed.intersection(node.output)]
        return _digest("graph", *sorted(nodes), "outputs", *sorted(map(self.value, outputs)))

    def node(self, node: Any) -> bytes | None:
        """The hash of one node, those of its outputs noted; None for one that does nothing."""
        operator = operator_of(node)
        if operator == "Constant":
            self.constants[node.output[0]] = _tensor_of(node)
            return None
        if operator in _PASSING and node.input:
            self._pass_on(node)
            return None
        data = [] if operator in _SHAPES_ONLY else list(node.input[:1] if operator in _SETTINGS else node.input)
        hashed = _digest(operator, *self._attributes(node, operator), *self._inputs(data, operator))
        captured = tuple(_captured(node))
        for position, name in enumerate(node.output):
            self.values[name] = _digest(hashed, str(position))
            self.rests_on[name] = (*data, *captured)
        return None if operator in _SHAPES_ONLY else hashed

    def value(self, name: str) -> bytes:
        """The hash of what a name stands for."""
        return self.values[name] if name in self.values else _constant(self.constants.get(name), whole=False)

    def _needed(self, outputs: Iterable[str]) -> set[str]:
        """Every value of this graph that the outputs rest on: as data, not as a shape."""
        needed: set[str] = set()
        waiting = list(outputs)
        while waiting:
            name = waiting.pop()
            if name not in needed:
                needed.add(name)
                waiting += self.rests_on.get(name, ())
        return needed

    def _pass_on(self, node: Any) -> None:
        source, name = node.input[0], node.output[0]
        if source in self.values or source not in self.constants:
            self.values[name] = self.value(source)
        else:
            self.constants[name] = self.constants[source]
        self.rests_on[name] = (source,)

    def _inputs(self, data: Sequence[str], operator: str) -> Iterator[bytes | str]:
        kernels = _KERNELS.get(operator, ())
        for position, name in enumerate(data):
            if not name:
                yield "nothing"
            elif name in self.values:
                yield self.values[name]
            else:
                yield _constant(self.constants.get(name), whole=position in kernels)

    def _attributes(self, node: Any, operator: str) -> Iterator[bytes | str]:
        if operator in _SHAPES_ONLY:
            return
        settings, defaults = _SETTINGS.get(operator, ()), _defaults(node.op_type, node.domain)
        for attribute in sorted(node.attribute, key=lambda item: str(item.name)):
            name, graphs = str(attribute.name), list(_graphs(attribute))
            if graphs:
                yield name
                yield from (_Hashing(self).graph(graph) for graph in graphs)
            elif attribute.HasField("t"):
                yield from (name, _constant(attribute.t, whole=True))
            elif name not in settings and (name, text := _text(attribute)) not in defaults:
                yield f"{name}={text}"


def _in_order(graph: Any) -> list[Any]:
    """The nodes, each after those it reads from: ONNX demands it, onnxruntime does not."""
    maker = {name: number for number, node in enumerate(graph.node) for name in node.output if name}
    readers: dict[int, list[int]] = {}
    missing = []
    for number, node in enumerate(graph.node):
        makers = {maker[name] for name in (*node.input, *_captured(node)) if name in maker} - {number}
        missing.append(len(makers))
        for other in makers:
            readers.setdefault(other, []).append(number)
    ready = [number for number, count in enumerate(missing) if count == 0]
    ordered = []
    while ready:
        number = ready.pop()
        ordered.append(graph.node[number])
        for other in readers.get(number, ()):
            missing[other] -= 1
            if missing[other] == 0:
                ready.append(other)
    return ordered  # without those of a cycle, about which onnxruntime will have its say


def _graphs(attribute: Any) -> Iterator[Any]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def _captured(node: Any) -> Iterator[str]:
    """Names that a node's subgraphs take from around them."""
    for attribute in node.attribute:
        for graph in _graphs(attribute):
            own = {name for inner in graph.node for name in inner.output}
            own.update(value.name for value in (*graph.input, *graph.initializer))
            named = [name for inner in graph.node for name in (*inner.input, *_captured(inner))]
            yield from (name for name in (*named, *(value.name for value in graph.output)) if name and name not in own)


def _tensor_of(node: Any) -> Any:
    """What a Constant node holds, as a tensor: its type and shape at least."""
    kinds = {"value_float": onnx.TensorProto.FLOAT, "value_int": onnx.TensorProto.INT64}
    kinds |= {"value_floats": onnx.TensorProto.FLOAT, "value_ints": onnx.TensorProto.INT64}
    for attribute in node.attribute:
        if attribute.name == "value":
            return attribute.t
        if attribute.name in kinds:
            sizes = [len(attribute.floats) or len(attribute.ints)] if attribute.name.endswith("s") else []
            return onnx.TensorProto(data_type=kinds[attribute.name], dims=sizes)
    return onnx.TensorProto(data_type=onnx.TensorProto.STRING)


def _digest(*parts: bytes | str) -> bytes:
    """One hash of several words, each with its length before it, so that no two sequences read alike."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(raw) + raw)
    return digest.digest()[:_KEPT]


def _type_words(value: Any) -> Iterator[str]:
    """Type and rank of an input."""
    yield str(value.type.WhichOneof("value"))
    if value.type.HasField("tensor_type"):
        tensor = value.type.tensor_type
        yield str(tensor.elem_type)
        yield str(len(tensor.shape.dim)) if tensor.HasField("shape") else "any rank"


def _constant(tensor: Any, whole: bool) -> bytes:
    """Type and shape of a constant.

    A kernel's shape is taken ``whole``. Of any other the first size may be the batch's (an initial state, a mask made
    once), and of one-dimensional integers the length is that of a shape: both are left out, as are sizes of one.
    """
    if tensor is None:
        return _digest("from outside")
    sizes = list(tensor.dims)
    if not whole:
        sizes = [size for size in sizes[1 if len(sizes) > 1 else 0 :] if size != 1]
        if len(tensor.dims) <= 1 and tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):
            sizes = []
    return _digest("constant", str(tensor.data_type), *map(str, sizes))


def _text(attribute: Any) -> str:
    """The value of an attribute that is neither a tensor nor a graph."""
    kind = attribute.type
    if kind == onnx.AttributeProto.FLOAT:
        return f"{attribute.f:.6g}"
    if kind == onnx.AttributeProto.INT:
        return str(attribute.i)
    if kind == onnx.AttributeProto.STRING:
        return str(attribute.s.decode("utf-8", "replace"))
    lists: Sequence[Any] = attribute.ints or attribute.strings or attribute.floats
    if len(lists) > _LONG:
        return f"{len(lists)} values"
    return ",".join(f"{value:.6g}" if isinstance(value, float) else str(value) for value in lists)


@lru_cache(maxsize=4096)
def _defaults(op_type: str, domain: str) -> frozenset[tuple[str, str]]:
    """Attributes of an operator that have a default, with it, by its newest version."""
    try:
        schema = onnx.defs.get_schema(op_type, domain="" if domain == "ai.onnx" else domain)
    except onnx.defs.SchemaError:
        return frozenset()
    pairs = ((name, item.default_value) for name, item in schema.attributes.items())
    return frozenset((name, _text(value)) for name, value in pairs if value is not None and value.name)
