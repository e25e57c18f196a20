"""A graph as named figures: how much work, of which classes, in which types, on which sizes. Pure, and without onnx.

Natural logarithms of 1 + x stand for counts and sizes, so that one model of a billion does not outweigh all others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from ort_metainfer.learning.operator_classes import CLASSES, MAC_CLASSES, NODE_CLASSES, class_of, operator_class
from ort_metainfer.model.work import CONTROL_FLOW, NodeWork
from ort_metainfer.problem import Graph, TensorSpec

__all__ = ["QUANTISATIONS", "graph_features"]

QUANTISATIONS = ("none", "qdq", "qoperator", "dynamic", "weight-only")

_ITEM_BYTES = {"float64": 8, "int64": 8, "uint64": 8, "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2}
_ITEM_BYTES |= {"int8": 1, "uint8": 1, "bool": 1}
_NO_SHAPES: Mapping[str, tuple[int, ...]] = MappingProxyType({})


def graph_features(
    graph: Graph, work: Sequence[NodeWork] = (), shapes: Mapping[str, tuple[int, ...]] = _NO_SHAPES
) -> dict[str, float]:
    """Features of a graph by name; what is not known is not there.

    Args:
        graph: what is declared and counted.
        work: what one run does, node by node; empty where it was not looked at.
        shapes: input -> shape the session is run with, where the caller says.
    """
    found = dict(_declared(graph))
    found.update(_inputs(graph, shapes))
    found.update(_operators(graph))
    if work:
        found.update(_work(work))
        found.update(_dataflow(work))
    elif graph.macs is not None:
        found["ln_macs"] = math.log1p(graph.macs)
    return {name: float(value) for name, value in found.items()}


def _declared(graph: Graph) -> Iterator[tuple[str, float]]:
    yield "ln_parameters", math.log1p(graph.parameter_count)
    yield "ln_weight_bytes", math.log1p(graph.weight_bytes)
    if graph.parameter_count:
        yield "weight_bits", 8 * graph.weight_bytes / graph.parameter_count
    opset = graph.opsets.get("ai.onnx", graph.opsets.get(""))
    if opset is not None:
        yield "opset", opset
    yield "ir_version", graph.ir_version
    yield "has_control_flow", graph.has_control_flow
    yield "has_random", bool(graph.random_operators)
    yield "has_contributed", any(name.startswith("com.microsoft.") for name in graph.operators)
    for name in QUANTISATIONS:
        yield f"quantisation/{name}", graph.quantisation == name


def _inputs(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, float]]:
    yield "inputs", len(graph.inputs)
    yield "outputs", len(graph.outputs)
    declared = [dim for spec in graph.inputs for dim in spec.shape or ()]
    yield "open_dims", sum(not isinstance(dim, int) for dim in declared)
    sized = {spec: shapes.get(spec.name, spec.shape) for spec in graph.inputs}
    yield "open_dims_left", sum(not isinstance(dim, int) for shape in sized.values() for dim in shape or ())
    first = next((shape for shape in sized.values() if shape), None)
    if first and isinstance(first[0], int):
        yield "ln_batch", math.log1p(first[0])
    elements = {spec: _elements(shape) for spec, shape in sized.items()}
    known = {spec: count for spec, count in elements.items() if count is not None}
    if known and len(known) == len(elements):
        yield "ln_input_elements", math.log1p(sum(known.values()))
        yield "ln_input_bytes", math.log1p(sum(count * _width(spec) for spec, count in known.items()))
        yield "ln_largest_input_elements", math.log1p(max(known.values()))


def _elements(shape: Sequence[int | str | None] | None) -> int | None:
    if shape is None or not all(isinstance(dim, int) for dim in shape):
        return None
    return math.prod(dim for dim in shape if isinstance(dim, int))


def _width(spec: TensorSpec) -> int:
    return _ITEM_BYTES.get(spec.dtype, 4)


def _operators(graph: Graph) -> Iterator[tuple[str, float]]:
    """Shares of nodes by class; Constant nodes do nothing and do not count."""
    counts = Counter({name: count for name, count in graph.operators.items() if name != "Constant"})
    total = counts.total()
    yield "ln_nodes", math.log1p(total)
    yield "distinct_operators", len(counts)
    if total:
        by_class: Counter[str] = Counter()
        for operator, count in counts.items():
            by_class[operator_class(operator)] += count
        for name in NODE_CLASSES:
            yield f"node_share/{name}", by_class[name] / total


def _work(work: Sequence[NodeWork]) -> Iterator[tuple[str, float]]:
    does = [node for node in work if not node.is_view and not node.folded and node.operator not in CONTROL_FLOW]
    macs = dict.fromkeys(MAC_CLASSES, 0)
    moved: Counter[str] = Counter()
    for node in does:
        found = class_of(node)
        if node.macs is not None:
            macs[found] = macs.get(found, 0) + node.macs * node.runs
        moved[found] += _bytes(node)
    total, total_bytes = sum(macs.values()), moved.total()
    if any(node.macs is not None for node in does):
        yield "ln_macs", math.log1p(total)
    if total:
        yield from ((f"macs_share/{name}", macs[name] / total) for name in MAC_CLASSES)
        yield from _arithmetic(does, total)
    if total_bytes:
        yield "ln_bytes_moved", math.log1p(total_bytes)
        yield from ((f"bytes_share/{name}", moved[name] / total_bytes) for name in CLASSES)
        yield "known_share", sum(node.is_known for node in does) / len(does)
        yield "ln_largest_bytes", math.log1p(max(size or 0 for node in does for size in node.writes.values()))
        if total:
            yield "ln_intensity", math.log(total / total_bytes)


def _bytes(node: NodeWork) -> int:
    """Bytes read and written in one run of the model, as far as they are known."""
    return node.runs * (_known(node.reads.values()) + node.weight_bytes + _known(node.writes.values()))


def _known(sizes: Iterable[int | None]) -> int:
    return sum(size for size in sizes if size is not None)


def _arithmetic(does: Sequence[NodeWork], total: int) -> Iterator[tuple[str, float]]:
    """In how many bits the multiply-accumulates are done: the mean over them."""
    bits = 0.0
    quantised = 0
    for node in does:
        count = (node.macs or 0) * node.runs
        quantised += count if node.quantised else 0
        bits += count * (8 if node.quantised else 8 * _ITEM_BYTES.get(node.dtype, 4))
    yield "compute_bits", bits / total
    yield "quantised_macs_share", quantised / total


def _dataflow(work: Sequence[NodeWork]) -> Iterator[tuple[str, float]]:
    """Depth: nodes on the longest way through the graph; width: how many there are for each step of it."""
    deep: dict[str, int] = {}
    depth = does = 0
    for node in work:  # in the order of the graph: what a node reads was made before
        before = max((deep.get(name, 0) for name in node.reads), default=0)
        step = 0 if node.is_view or node.folded else 1
        does += step
        depth = max(depth, before + step)
        deep.update(dict.fromkeys(node.writes, before + step))
    if depth:
        yield "ln_depth", math.log1p(depth)
        yield "ln_width", math.log(does / depth)
    steps = max((node.steps for node in work), default=1)
    yield "ln_steps", math.log(steps)
