"""Products in 8-bit integers, activations quantised while running: nothing has to be calibrated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ort_metainfer.errors import RewriteError
from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Context, Outcome, Parameter, Rewrite, Site
from ort_metainfer.rewrites.building import Builder, Names, replace
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.integers import quantise_matrix
from ort_metainfer.rewrites.patterns import all_graphs, learn_types
from ort_metainfer.rewrites.products import CHOICE, Product, check_names, label_of, products
from ort_metainfer.rewrites.smoothing import column_ranges, smoothing_factors

__all__ = ["REWRITES", "Int8Dynamic"]

MOST_SITES = 100
OLDEST_OPSET = 11
"""DynamicQuantizeLinear came with it."""


@dataclass
class _Work:
    """What is shared between the products of one model."""

    names: Names
    opset: int
    ir_version: int
    parameters: Mapping[str, Any]
    ranges: Mapping[str, np.ndarray]


@dataclass
class _Activation:
    """What several products of one graph take.

    Attributes:
        products: those products.
        quantised: its integers, their scale and zero point, once they are made.
        factors: what its columns were divided by first; None where by nothing.
    """

    products: list[Product] = field(default_factory=list)
    quantised: tuple[Any, Any, Any] | None = None
    factors: np.ndarray | None = None


class Int8Dynamic(Rewrite):
    """MatMul and Gemm by a constant as MatMulInteger; the activation's range is looked at in every run.

    ``smooth`` moves part of the activations' spread into the weights first: a column whose values are large is divided
    by a factor, and the weight's row multiplied by it. Which factors, is worked out on the feeds.
    """

    name = "int8-dynamic"
    dimension = "precision"
    promise = "lossy"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "per_channel": Parameter(bool, True, "a scale for each column of a weight, in place of one for all"),
        "reduce_range": Parameter(bool, False, "weights in 7 bits: x86 processors without VNNI saturate with 8"),
        "weight_type": Parameter(str, "int8", "type of the weights", values=("int8", "uint8")),
        "smooth": Parameter(
            float, 0.0, "share of the activations' spread moved into the weights; 0: none", numbers=(0.0, 1.0)
        ),
        **CHOICE,
    }
    evidence = (
        "1.99 [1.91, 2.04] on MiniLM at 128 tokens, two cores of an AMD EPYC with VNNI; 1.00-1.05 on networks of other "
        "kinds; MiniLM's relative error is 0.08 per channel, 0.05 with smooth = 0.65, 0.3 for one scale a weight; "
        "convolutions are left alone"
    )
    sources = ("https://arxiv.org/abs/2211.10438 (SmoothQuant: the factors)",)

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        """No product, an opset that is too old, or quantised already."""
        if not graph.count("MatMul", "Gemm"):
            return "the model has no MatMul or Gemm"
        if graph.quantisation != "none":
            return f"the model is quantised already ({graph.quantisation})"
        return _too_old(graph.opsets.get("ai.onnx", 0))

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Replace every product that can be, subgraphs included."""
        before = draft.file() if parameters["smooth"] else None
        opset = int(draft.ir.graph.opset_imports.get("", 0))
        now = replace_fields(
            context.graph, opsets={**context.graph.opsets, "ai.onnx": opset}
        )  # it may have been raised
        reason = self.objection(now)
        if reason is not None:
            return Outcome(0, notes=(reason,))
        check_names(self.name, draft.ir, parameters)
        if parameters["smooth"] and not context.feeds:
            raise RewriteError(
                f"{self.name}: smooth = {parameters['smooth']:g} needs inputs to look at the activations"
            )
        notes: list[str] = []
        ranges = {} if before is None else _ranges(draft.ir.graph, before, context)
        model = draft.ir
        learn_types(model)
        graphs = all_graphs(model)
        work = _Work(Names(model), opset, model.ir_version, parameters, ranges)
        sites = [site for graph in graphs for site in _rewrite_graph(graph, work)]
        changed = sum(not site.reason for site in sites)
        if not changed:
            notes += list(dict.fromkeys(site.reason for site in sites))[:3] or ["no product with a constant"]
        return Outcome(changed, tuple(sites[:MOST_SITES]), tuple(notes), {"feeds": float(len(context.feeds))})


def _too_old(opset: int) -> str | None:
    return f"the model is of opset {opset}; this needs {OLDEST_OPSET}" if opset < OLDEST_OPSET else None


def _ranges(graph: Any, file: Path, context: Context) -> Mapping[str, np.ndarray]:
    """Activation -> largest absolute value in each column; of all products, so that it holds for any choice of them."""
    every: dict[str, list[str]] = {"exclude": [], "only": []}
    wanted = [item.data.name for item in products(graph, every) if isinstance(item, Product)]
    return column_ranges(file, list(dict.fromkeys(wanted)), context.feeds, context.folder, context.deadline)


def _rewrite_graph(graph: Any, work: _Work) -> list[Site]:
    found = list(products(graph, work.parameters))
    shared: dict[int, _Activation] = {}
    given: list[Any] = [item.data for item in found if isinstance(item, Product)]  # kept, so that ids stay taken
    for item in found:
        if isinstance(item, Product):
            shared.setdefault(id(item.data), _Activation()).products.append(item)
    activations = iter([shared[id(value)] for value in given])
    sites = []
    for item in found:
        if isinstance(item, Product):
            label = label_of(item.node)
            _replace(item, next(activations), work)
            item = Site(label)
        sites.append(item)
    return sites


def _replace(product: Product, activation: _Activation, work: _Work) -> None:
    """Put the integer product in the place of one node."""
    builder = Builder(product.node, work.names, "int8", work.opset, work.ir_version)
    if activation.quantised is None:
        _quantise(activation, product.data, work, builder)
    assert activation.quantised is not None
    data, scale, zero = activation.quantised
    matrix = product.matrix()
    if activation.factors is not None:
        matrix = matrix * activation.factors[:, None]
    weight = quantise_matrix(
        matrix,
        per_channel=work.parameters["per_channel"],
        reduce_range=work.parameters["reduce_range"],
        unsigned=work.parameters["weight_type"] == "uint8",
    )
    integers = builder("MatMulInteger", data, weight.values, zero, weight.zero_point)
    value = builder("Mul", builder("Cast", integers, to=1), builder("Mul", scale, weight.scale))
    replace(product.node, [added(value, product, builder)], builder)


def _quantise(activation: _Activation, data: Any, work: _Work, builder: Builder) -> None:
    columns = work.ranges.get(data.name)
    if columns is not None:
        matrices = [product.matrix() for product in activation.products]
        activation.factors = smoothing_factors(columns, matrices, work.parameters["smooth"])
    if activation.factors is not None:
        data = builder("Mul", data, (1 / activation.factors).astype(np.float32))
    values, scale, zero = builder.many("DynamicQuantizeLinear", data, count=3)
    activation.quantised = values, scale, zero


def added(value: Any, product: Product, builder: Builder) -> Any:
    """A product with what its Gemm adds."""
    if product.addend is None:
        return value
    addend = product.addend
    if product.beta != 1.0:
        addend = builder("Mul", addend, np.asarray(product.beta, np.float32))
    return builder("Add", value, addend)


REWRITES = (Int8Dynamic(),)
