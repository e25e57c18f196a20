"""Which matrix products of a model can be computed with fewer bits, and why the others stay as they are."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ort_metainfer.errors import StrategyError
from ort_metainfer.rewrites.base import Parameter, Site
from ort_metainfer.rewrites.patterns import all_graphs, attribute, constant, constant_size, dtype

__all__ = ["CHOICE", "Product", "check_names", "chosen", "label_of", "products", "refuse_stray_names"]

CHOICE: Mapping[str, Parameter] = {
    "exclude": Parameter(list, [], "nodes left in float, by their name or by the name of an output"),
    "only": Parameter(list, [], "nodes rewritten, by name; empty: all that can be"),
}
"""Parameters of every rewrite that looks at single nodes."""

LEAST_ELEMENTS = 16
"""Weights of fewer elements are not worth two more nodes."""


@dataclass(frozen=True)
class Product:
    """``MatMul`` or ``Gemm`` of an activation with a constant matrix.

    Attributes:
        node: the onnx_ir node; what it takes is read when it is asked for, as other rewriting may change it.
        transposed: whether the weight is stored as [N, K].
        alpha: factor of the product.
        beta: factor of the addend.
    """

    node: Any
    transposed: bool = False
    alpha: float = 1.0
    beta: float = 1.0

    @property
    def data(self) -> Any:
        """The activation, a value."""
        return self.node.inputs[0]

    @property
    def addend(self) -> Any:
        """What a Gemm adds, a value; None where nothing."""
        return self.node.inputs[2] if len(self.node.inputs) > 2 else None

    def matrix(self) -> np.ndarray:
        """The weight as [K, N], ``alpha`` included."""
        array = constant(self.node.inputs[1])
        assert array is not None
        plain = array.T if self.transposed else array
        return plain if self.alpha == 1.0 else (plain * np.float32(self.alpha)).astype(np.float32)


def label_of(node: Any, twice: Iterable[str] = ()) -> str:
    """What a node is called in lists: its name; the name of its first output where it has none or shares it."""
    return str(node.name) if node.name and node.name not in twice else str(node.outputs[0].name)


def chosen(node: Any, parameters: Mapping[str, Any]) -> str | None:
    """Why the parameters ``exclude`` and ``only`` leave a node alone; None where they do not."""
    names = {node.name or "", *(output.name for output in node.outputs)} - {""}
    if names.intersection(parameters["exclude"]):
        return "excluded"
    if parameters["only"] and not names.intersection(parameters["only"]):
        return "not asked for"
    return None


def check_names(rewrite: str, model: Any, parameters: Mapping[str, Any]) -> None:
    """That every node in ``exclude`` and ``only`` is there: one misspelt would be rewritten, or nothing would be.

    Args:
        rewrite: its name, for the message.
        model: an onnx_ir model.
        parameters: complete.

    Raises:
        StrategyError: a name that no node has, and no output of one.
    """
    if parameters["exclude"] or parameters["only"]:
        nodes = [node for graph in all_graphs(model) for node in graph]
        there = {str(name) for node in nodes for name in (node.name, *(out.name for out in node.outputs)) if name}
        refuse_stray_names(rewrite, there, parameters)


def refuse_stray_names(rewrite: str, there: Collection[str], parameters: Mapping[str, Any]) -> None:
    """The same, with the names that are ``there``.

    Raises:
        StrategyError: a name that is not.
    """
    for parameter in ("exclude", "only"):
        for name in parameters[parameter]:
            if name not in there:
                close = difflib.get_close_matches(name, there, 3)
                hint = (
                    f"did you mean {' or '.join(map(repr, close))}?"
                    if close
                    else "give nodes, or their outputs, as the model calls them"
                )
                raise StrategyError(f"rewrite {rewrite}: {parameter} names {name!r}, which no node is called; {hint}")


def products(graph: Any, parameters: Mapping[str, Any]) -> Iterator[Product | Site]:
    """Every MatMul and Gemm of one graph in order: as a product, or as a site with the reason why it is none."""
    for node in tuple(graph):
        if node.domain or node.op_type not in ("MatMul", "Gemm"):
            continue
        reason = chosen(node, parameters) or _unfit(node)
        yield Site(label_of(node), reason) if reason else _product(node)


def _unfit(node: Any) -> str | None:
    weight = node.inputs[1]
    size = constant_size(weight)
    if size is None:
        return "its second operand is no constant"
    if dtype(weight) != "FLOAT":
        return f"its weight is {str(dtype(weight)).lower()}"
    if constant_size(node.inputs[0]) is not None:
        return "both operands are constants"
    if size < LEAST_ELEMENTS:
        return f"its weight has {size} elements only"
    if attribute(node, "transA", 0):
        return "its first operand is transposed"
    array = constant(weight)
    if array is None or array.ndim != 2:
        return "its weight is no matrix"
    return None if np.isfinite(array).all() else "its weight holds NaN or infinity"


def _product(node: Any) -> Product:
    if node.op_type == "MatMul":
        return Product(node)
    return Product(
        node,
        transposed=bool(attribute(node, "transB", 0)),
        alpha=float(attribute(node, "alpha", 1.0)),
        beta=float(attribute(node, "beta", 1.0)),
    )
