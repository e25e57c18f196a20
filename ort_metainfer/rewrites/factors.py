"""Products compared as products: a constant factor and the values multiplied, wherever the constants stand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ort_metainfer.rewrites.patterns import produced, scalar

__all__ = ["Product", "is_power", "near", "plus", "product_of"]

ROUNDING = 2e-6
"""How far, relatively, a constant may be from what it stands for: exporters write float32 and some decimal digits."""


@dataclass
class Product:
    """A value taken apart: a constant factor times values, and the nodes that multiply."""

    factor: float = 1.0
    values: list[Any] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)


def product_of(value: Any, outermost: bool = True) -> Product:
    """``value`` as a product, through Mul and Div by constants, as far as nobody else uses what lies between."""
    made = Product()
    node = produced(value, "Mul", "Div")
    shared = value.is_graph_output() or len(value.uses()) != 1
    if node is None or (shared and not outermost):
        made.values.append(value)
        return made
    made.nodes.append(node)
    first, second = node.inputs
    if node.op_type == "Div":
        number = scalar(second, beside=first)
        if not number:
            return Product(values=[value])
        _take(made, product_of(first, False), 1 / number)
        return made
    for one, other in ((first, second), (second, first)):
        number = scalar(one, beside=other)
        if number is not None:
            _take(made, product_of(other, False), number)
            return made
    _take(made, product_of(first, False), 1.0)
    _take(made, product_of(second, False), 1.0)
    return made


def _take(made: Product, part: Product, factor: float) -> None:
    made.factor *= part.factor * factor
    made.values += part.values
    made.nodes += part.nodes


def near(number: float | None, wanted: float) -> bool:
    """Whether a constant is what it should be, within the digits that exporters write."""
    return number is not None and abs(number - wanted) <= ROUNDING * max(abs(wanted), 1e-30)


def plus(value: Any, wanted: float) -> tuple[Any, Any] | None:
    """Of ``other + wanted``: the other value and the Add."""
    node = produced(value, "Add")
    if node is None:
        return None
    for one, other in (node.inputs, node.inputs[::-1]):
        if near(scalar(one, beside=other), wanted):
            return other, node
    return None


def is_power(product: Product, value: Any, power: int) -> bool:
    """Whether nothing but ``value`` is multiplied, so often."""
    return len(product.values) == power and all(part is value for part in product.values)
