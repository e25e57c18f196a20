"""Which nodes of a graph are quantised together: products, and what lies between them without leaving 8 bits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ort_metainfer.rewrites.base import Site
from ort_metainfer.rewrites.calibration import Ranges
from ort_metainfer.rewrites.quantiser import captured

__all__ = ["LIGHT", "PRODUCTS", "Island", "everything_of", "island_of"]

PRODUCTS = ("Conv", "Gemm", "MatMul")
"""Operators that are worth it. ConvTranspose is not among them: onnxruntime's CPU provider has no integer kernel."""

MOVING = ("Concat", "Flatten", "MaxPool", "Pad", "Reshape", "Resize", "Split", "Squeeze", "Transpose", "Unsqueeze")
ACTIVATIONS = ("Clip", "Relu")
ARITHMETIC = ("Add", "AveragePool", "GlobalAveragePool", "LeakyRelu", "Mul", "Sigmoid")
LIGHT = (*ACTIVATIONS, *ARITHMETIC, *MOVING)
"""Operators that onnxruntime's CPU provider runs in 8 bits, and that a Conv's result may pass through."""

INDICES = ("ArgMax", "ArgMin")
"""Operators that give no number of the kind they take."""

FUSED = "/MatMulAddFusion"
"""What onnxruntime adds to the name of a MatMul that it makes a Gemm of."""

LARGEST = 1e30
"""A range beyond this is a mask or an overflow: its scale would leave everything else one level."""

DATA_INPUTS: Mapping[str, int] = {
    "Clip": 1,
    "Pad": 1,
    "Reshape": 1,
    "Resize": 1,
    "Split": 1,
    "Squeeze": 1,
    "Unsqueeze": 1,
}
"""Operators whose inputs beyond so many are no data."""


@dataclass(frozen=True)
class Island:
    """What is quantised.

    Attributes:
        nodes: names of all nodes in 8 bits, in order.
        products: those of them that multiply.
        sites: every product looked at, with the reason where it is left in float.
    """

    nodes: tuple[str, ...]
    products: tuple[str, ...]
    sites: tuple[Site, ...]


def island_of(graph: Any, parameters: Mapping[str, Any], ranges: Ranges) -> Island:
    """Choose what is quantised in a graph whose nodes have names of their own: products, and what is between them."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    closed = {value.name for value in graph.input}.intersection(weights) | captured(graph).intersection(weights)
    reasons = {
        node.name: _unfit(node, weights, closed, parameters, ranges)
        for node in graph.node
        if node.op_type in parameters["operators"] and node.domain in ("", "ai.onnx")
    }
    products = [node for node in graph.node if node.op_type in PRODUCTS and reasons.get(node.name, "") is None]
    fit = [node for node in graph.node if node.op_type in LIGHT and reasons.get(node.name, "") is None]
    light = _between(products, fit, weights) if parameters["between"] else _activations(products, fit)
    names = {node.name for node in (*products, *light)}
    sites = [Site(node.name, reasons[node.name] or "") for node in graph.node if _is_product(node, reasons)]
    return Island(
        tuple(node.name for node in graph.node if node.name in names),
        tuple(node.name for node in products),
        tuple(sites),
    )


def everything_of(graph: Any, parameters: Mapping[str, Any], ranges: Ranges) -> Island:
    """Every node of ``operators`` that is not left out, whatever it is next to: what an NPU runs as a whole."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    closed = {value.name for value in graph.input}.intersection(weights) | captured(graph).intersection(weights)
    sites = [
        Site(node.name, _unfit_anywhere(node, weights, closed, parameters, ranges) or "")
        for node in graph.node
        if node.op_type in parameters["operators"] and node.domain in ("", "ai.onnx")
    ]
    names = tuple(site.node for site in sites if not site.reason)
    return Island(names, names, tuple(sites))


def _unfit_anywhere(
    node: Any, weights: Mapping[str, Any], closed: set[str], parameters: Mapping[str, Any], ranges: Ranges
) -> str | None:
    called = {node.name, node.name.removesuffix(FUSED), *node.output}
    if called.intersection(parameters["exclude"]):
        return "excluded"
    if parameters["only"] and not called.intersection(parameters["only"]):
        return "not asked for"
    if closed.intersection(node.input):
        return "a caller or a subgraph may look at its weight"
    if node.op_type == "Gemm" and not _has_plain_bias(node, weights):
        return "what it adds is not one number a column"
    known = [name for name in (*node.input, *node.output) if name in ranges]
    told = [] if node.op_type in INDICES else list(node.output[:1])  # a value of unknown type cannot be quantised
    return _unfit_range([*known, *told], ranges)


def _is_product(node: Any, reasons: Mapping[str, Any]) -> bool:
    return node.op_type in PRODUCTS and node.name in reasons


def _unfit(
    node: Any, weights: Mapping[str, Any], closed: set[str], parameters: Mapping[str, Any], ranges: Ranges
) -> str | None:
    names = {node.name, node.name.removesuffix(FUSED), *node.output}
    if names.intersection(parameters["exclude"]):
        return "excluded"
    product = node.op_type in PRODUCTS
    if product and parameters["only"] and not names.intersection(parameters["only"]):
        return "not asked for"
    if closed.intersection(node.input):
        return "a caller or a subgraph may look at its weight"
    if product and node.input[1] not in weights:
        return "its second operand is no constant"
    if product and weights[node.input[1]].data_type != 1:
        return "its weight is not float32"
    if node.op_type == "MatMul" and len(weights[node.input[1]].dims) != 2:
        return "its weight is no matrix"
    if node.op_type == "Gemm" and not _has_plain_bias(node, weights):
        return "what it adds is not one number a column"
    return _unfit_range([name for name in _data(node) if name not in weights] + list(node.output[:1]), ranges)


def _has_plain_bias(node: Any, weights: Mapping[str, Any]) -> bool:
    """Whether the quantiser can take a Gemm's addend: none, one that is computed, or a vector as long as the result."""
    if len(node.input) < 3 or node.input[2] not in weights:
        return True
    swapped = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    if node.input[1] not in weights:  # a product of two activations: its bias has no scale of a weight to go by
        return False
    columns = weights[node.input[1]].dims[0 if swapped else 1]
    return list(weights[node.input[2]].dims) == [columns]


def _data(node: Any) -> Iterable[str]:
    return [name for name in node.input[: DATA_INPUTS.get(node.op_type, 3)] if name]


def _unfit_range(names: Iterable[str], ranges: Ranges) -> str | None:
    for name in names:
        if name not in ranges:
            return f"the type of {name} is not known, or it is no float32"
        low, high = ranges[name]
        if not (math.isfinite(low) and math.isfinite(high)) or max(abs(low), abs(high)) > LARGEST:
            return f"{name} ranges from {low:.3g} to {high:.3g}: no scale fits"
    return None


def _activations(products: list[Any], fit: list[Any]) -> list[Any]:
    """Clips and Relus right behind a product: the rounding of its result takes their place."""
    outputs = {node.output[0] for node in products}
    return [node for node in fit if node.op_type in ACTIVATIONS and node.input[0] in outputs]


def _between(products: list[Any], fit: list[Any], weights: Mapping[str, Any]) -> list[Any]:
    """Of ``fit`` those that are reached from a product through such nodes alone.

    Arithmetic must lead to a product again: at the end of a graph, or before something that needs float32, it would
    only be rounded once more.
    """
    chosen = list(fit)
    while True:
        kept = _leading(_reached(products, chosen, weights), products)
        if len(kept) == len(chosen):
            return kept
        chosen = kept


def _reached(products: list[Any], fit: list[Any], weights: Mapping[str, Any]) -> list[Any]:
    made = {name for node in products for name in node.output}
    kept = []
    for node in fit:  # in order, so that what a node reads is settled before it
        if all(name in made or name in weights for name in _data(node)) and made.intersection(_data(node)):
            made.update(node.output)
            kept.append(node)
    return kept


def _leading(fit: list[Any], products: list[Any]) -> list[Any]:
    wanted = {name for node in products for name in _data(node)}
    kept = []
    for node in reversed(fit):
        if node.op_type in ACTIVATIONS or wanted.intersection(node.output):
            wanted.update(_data(node))
            kept.append(node)
    return kept[::-1]
