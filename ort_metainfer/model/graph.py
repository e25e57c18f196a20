"""Features of a model's graph: what deciders look at and what inputs are made from.

Imports onnx, which costs 140 ms: meant for a child process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ort_metainfer.learning.structure import structure_of
from ort_metainfer.model.bounds import index_bounds, integer_inputs
from ort_metainfer.model.declared import tensor_spec
from ort_metainfer.model.inference import PROBE, Sources, infer, probe_shapes, stood_in, unfold
from ort_metainfer.model.macs import count_macs
from ort_metainfer.model.parsing import parse
from ort_metainfer.model.scores import score_outputs
from ort_metainfer.model.shapes import Scope
from ort_metainfer.model.walking import graphs_of, nodes_of, operator_of, subgraphs
from ort_metainfer.model.weights import external_files, weight_sizes
from ort_metainfer.problem import Graph, TensorSpec

__all__ = ["describe"]

_NO_SHAPES: Mapping[str, tuple[int, ...]] = MappingProxyType({})

_RANDOM = (
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)
_TRAINING_DOMAINS = ("ai.onnx.preview.training", "ai.onnx.training")
_DYNAMIC = (
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "ConvInteger",
    "com.microsoft.DynamicQuantizeLSTM",
    "com.microsoft.DynamicQuantizeMatMul",
    "com.microsoft.MatMulInteger16",
    "com.microsoft.MatMulIntegerToFloat",
)
_WEIGHT_ONLY = (
    "DequantizeLinear",
    "com.microsoft.DequantizeLinear",
    "com.microsoft.GatherBlockQuantized",
    "com.microsoft.MatMulBnb4",
    "com.microsoft.MatMulFpQ4",
    "com.microsoft.MatMulNBits",
)


def describe(model: str | Path | bytes, shapes: Mapping[str, tuple[int, ...]] = _NO_SHAPES) -> Graph:
    """Read a model's features without its external data.

    Nodes in subgraphs count like the others, a model-local function's once, however often it is called. A declared
    dimension counts as unnamed where it has a negative size or a name that says nothing (``?``). ``macs`` takes its
    formulas from :func:`ort_metainfer.model.macs.count_macs`: without ``shapes`` it covers the nodes whose shapes the
    model declares or ONNX shape inference finds, and None where that is none.

    Args:
        model: a file, or a model's bytes.
        shapes: input -> the shape it will have; the same symbolic dimension gets the same size everywhere.

    Raises:
        ModelError: the file cannot be read, or is no ONNX model (onnxruntime's own format counts as none).
        InputsError: ``shapes`` names an unknown input, or contradicts a declared rank or size.
    """
    proto = parse(model)
    graph = proto.graph
    initialised = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in initialised]
    operators = Counter(operator_of(node) for node in nodes_of(proto))
    sizes = list(weight_sizes(proto))
    features: dict[str, Any] = {
        "inputs": tuple(map(tensor_spec, inputs)),
        "outputs": tuple(map(tensor_spec, graph.output)),
        "ir_version": int(proto.ir_version),
        "opsets": {opset.domain or "ai.onnx": int(opset.version) for opset in proto.opset_import},
        "operators": dict(sorted(operators.items())),
        "node_count": operators.total(),
        "parameter_count": sum(count for count, _ in sizes),
        "weight_bytes": sum(size for _, size in sizes),
        "quantisation": _quantisation(operators),
        "random_operators": _random_operators(proto, operators),
        "blockers": tuple(_blockers(proto)),
        "external_files": tuple(dict.fromkeys(external_files(proto))),
        "overridable": _overridable(proto),
        "scores": score_outputs(proto),
    }
    plain = unfold(proto)  # takes proto over
    features["structure"] = structure_of(plain.graph)
    bare = stood_in(plain)
    inferred, sources = infer(bare, shapes)
    bounds, tables = _bounds(bare, inferred, sources, shapes)
    return Graph(**features, macs=count_macs(inferred.graph), index_bounds=bounds, index_inputs=tables)


def _bounds(
    bare: Any, inferred: Any, sources: Sources, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, int], dict[str, tuple[str, int]]]:
    """Index bounds; where an integer input has none and dimensions are open, tables are looked for by probing sizes."""
    bounds, tables = index_bounds(inferred.graph, sources)
    unbounded = integer_inputs(inferred.graph) - set(bounds) - set(tables)
    if sources and unbounded:
        probed, marks = probe_shapes(bare, shapes)
        more_bounds, more_tables = index_bounds(infer(bare, probed)[0].graph, marks)
        found = {name: size for name, size in more_bounds.items() if size < PROBE[0]}
        bounds, tables = found | bounds, more_tables | tables
    return bounds, tables


def _quantisation(operators: Mapping[str, int]) -> str:
    names = set(operators)
    plain = {name.removeprefix("com.microsoft.") for name in names}  # 16-bit QDQ below opset 21 is of that domain
    if any(name.startswith(("QLinear", "QGemm", "QAttention")) for name in plain):
        return "qoperator"
    if "DequantizeLinear" in plain and "QuantizeLinear" in plain:
        return "qdq"
    if names.intersection(_DYNAMIC):
        return "dynamic"
    return "weight-only" if names.intersection(_WEIGHT_ONLY) else "none"


def _random_operators(proto: Any, operators: Mapping[str, int]) -> tuple[str, ...]:
    training = any(_trains(proto.graph, Scope.of(proto.graph))) or any(
        node.op_type == "Dropout" and len(node.input) > 2 for function in proto.functions for node in function.node
    )
    return tuple(name for name in _RANDOM if operators.get(name)) + (("Dropout",) if training else ())


def _trains(graph: Any, scope: Scope) -> Iterator[bool]:
    """For each Dropout, whether its third input is anything but a constant False."""
    for node in graph.node:
        if operator_of(node) == "Dropout" and len(node.input) > 2 and node.input[2]:
            mode = scope.constants.get(node.input[2])
            yield mode is None or bool(mode.any())
        for inner in subgraphs(node):
            yield from _trains(inner, Scope.of(inner, scope))


def _blockers(proto: Any) -> Iterator[str]:
    nodes = list(nodes_of(proto))
    if any(node.op_type == "EPContext" for node in nodes):
        yield "EPContext"
    if any(len(graph.sparse_initializer) for graph in graphs_of(proto)):
        yield "sparse initializers"
    if proto.training_info or any(node.domain in _TRAINING_DOMAINS or node.op_type == "Gradient" for node in nodes):
        yield "training"
    if proto.functions:
        yield "model-local functions"
    local = {(function.domain, function.name) for function in proto.functions}
    custom = {node.domain for node in nodes if (node.domain, node.op_type) not in local and _is_custom(node.domain)}
    yield from (f"custom domain {domain}" for domain in sorted(custom))


def _is_custom(domain: str) -> bool:
    known = domain in ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", *_TRAINING_DOMAINS)
    return not known and not domain.startswith(("com.microsoft.", "ai.onnx.preview"))


def _overridable(proto: Any) -> tuple[TensorSpec, ...]:
    """Inputs with an initialiser; onnxruntime lets a caller replace it from IR version 4 on only."""
    initialised = {tensor.name for tensor in proto.graph.initializer}
    return tuple(
        tensor_spec(value) for value in proto.graph.input if value.name in initialised and proto.ir_version >= 4
    )
