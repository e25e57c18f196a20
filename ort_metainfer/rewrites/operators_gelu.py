"""GELU: composed with Erf or Tanh, as one operator, and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ort_metainfer.rewrites.base import Rewrite
from ort_metainfer.rewrites.building import Builder
from ort_metainfer.rewrites.factors import Product, is_power, near, plus, product_of
from ort_metainfer.rewrites.node_rewrite import OperatorRewrite, Plan, Surroundings
from ort_metainfer.rewrites.patterns import attribute, dtype, produced, scalar

__all__ = ["REWRITES", "GeluToComposed", "GeluToContributed", "GeluToNative"]

MICROSOFT = "com.microsoft"

TANH_SCALE, TANH_CUBIC = math.sqrt(2 / math.pi), 0.044715
"""Of the approximation of GELU by tanh (Hendrycks and Gimpel, arXiv:1606.08415)."""

CONTRIBUTED = ("CPUExecutionProvider", "CUDAExecutionProvider", "DmlExecutionProvider", "WebGpuExecutionProvider")
"""Providers that have kernels for onnxruntime's own Gelu and FastGelu."""


def _cubed(value: Any, base: Any, power: int) -> Product | None:
    """``value`` as a number times ``base`` to the ``power``, by Mul or Pow."""
    product = product_of(value, False)
    if is_power(product, base, power):
        return product
    for part in product.values:
        node = produced(part, "Pow")
        if node is None or node.inputs[0] is not base:
            continue
        rest = [other for other in product.values if other is not part]
        exponent = power - len(rest)
        if all(other is base for other in rest) and near(scalar(node.inputs[1], beside=base), exponent):
            product.nodes.append(node)
            return product
    return None


@dataclass
class Gelu:
    """A GELU found: its input, the node that gives it, the others, and whether it is the approximation by tanh."""

    value: Any
    last: Any
    inner: list[Any]
    tanh: bool


def find_gelu(node: Any) -> Gelu | str | None:
    """The GELU of which ``node`` is the Erf or Tanh."""
    for last in _following(node):
        product = product_of(last.outputs[0])
        if len(product.values) != 2:
            continue
        for value, gate in (product.values, product.values[::-1]):
            one = _gate(gate, node, product.factor)
            if one is not None:
                return _whole(node, last, value, [*product.nodes, *one])
    return (
        "Erf is not part of a GELU in a known spelling whose inside nobody else uses" if node.op_type == "Erf" else None
    )


def _following(node: Any) -> list[Any]:
    """The products that the result of ``node`` goes into, through sums and products that nobody else uses."""
    found, last = [], node
    for _ in range(6):
        uses = last.outputs[0].uses()
        user = uses[0].node if uses else None
        if user is None or len(uses) != 1 or user.domain or user.op_type not in ("Add", "Mul", "Div"):
            break
        last = user
        found += [last] if last.op_type != "Add" else []
    return found


def _gate(gate: Any, node: Any, factor: float) -> list[Any] | None:
    """The nodes of ``factor * gate == (1 + node) / 2``; None where it is not."""
    whole = plus(gate, 1.0)
    if whole is not None and whole[0] is node.outputs[0] and near(factor, 0.5):
        return [whole[1]]
    half = plus(gate, 0.5)
    if half is None or not near(factor, 1.0):
        return None
    inner = product_of(half[0], False)
    fits = len(inner.values) == 1 and inner.values[0] is node.outputs[0] and near(inner.factor, 0.5)
    return [half[1], *inner.nodes] if fits else None


def _whole(node: Any, last: Any, value: Any, nodes: list[Any]) -> Gelu | str:
    argument = product_of(node.inputs[0], False)
    if node.op_type == "Erf":
        if not is_power(argument, value, 1):
            return "the argument of Erf is not the value it is multiplied with"
        if not near(argument.factor, math.sqrt(0.5)):
            return f"the argument of Erf is scaled by {argument.factor:g}, not by 1/sqrt(2)"
        return Gelu(value, last, [node, *argument.nodes, *nodes], False)
    inner = _tanh_argument(argument, value)
    if inner is None:
        return "the argument of Tanh is not that of GELU's approximation"
    return Gelu(value, last, [node, *argument.nodes, *inner, *nodes], True)


def _tanh_argument(argument: Product, value: Any) -> list[Any] | None:
    """The nodes of ``sqrt(2/pi) * (x + 0.044715 x^3)``, or of that with x in front."""
    if not near(argument.factor, TANH_SCALE):
        return None
    if len(argument.values) == 1:
        node = produced(argument.values[0], "Add")
        pairs = [(node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])] if node is not None else []
        for plain, cubic in pairs:
            product = _cubed(cubic, value, 3) if plain is value else None
            if product is not None and near(product.factor, TANH_CUBIC):
                return [node, *product.nodes]
    if len(argument.values) == 2 and any(part is value for part in argument.values):
        rest = next((part for part in argument.values if part is not value), None)
        one = None if rest is None else plus(rest, 1.0)
        product = None if one is None else _cubed(one[0], value, 2)
        if one is not None and product is not None and near(product.factor, TANH_CUBIC):
            return [one[1], *product.nodes]
    return None


class GeluToNative(OperatorRewrite):
    """GELU composed with Erf or Tanh, as ONNX's Gelu."""

    name = "gelu-to-native"
    operators = ("Erf", "Tanh")
    least_opset = 20

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """An Erf or Tanh inside a GELU."""
        found = find_gelu(node)
        if not isinstance(found, Gelu):
            return found
        if dtype(found.value) != "FLOAT":
            return f"a GELU of {dtype(found.value) or 'unknown type'} is left alone"
        return Plan(found.last, lambda make: self.native(make, found), found.inner)

    def native(self, make: Builder, found: Gelu) -> Any:
        """The one operator."""
        return make("Gelu", found.value, approximate="tanh" if found.tanh else None)


class GeluToContributed(GeluToNative):
    """GELU composed with Erf or Tanh, as onnxruntime's own Gelu or FastGelu, in any opset."""

    name = "gelu-to-contributed"
    least_opset = 9
    providers = CONTRIBUTED
    evidence = (
        "onnxruntime 1.32's CPU provider, two cores of an AMD EPYC: 1.12 [1.10, 1.12] on magika, whose spelling "
        "onnxruntime does not know; 1.00 on four models whose GELU it fuses itself"
    )
    on_by_default = True

    def native(self, make: Builder, found: Gelu) -> Any:
        """The one operator."""
        return make("FastGelu" if found.tanh else "Gelu", found.value, domain=MICROSOFT)


class GeluToComposed(OperatorRewrite):
    """Gelu, FastGelu and QuickGelu by Erf, Tanh or Sigmoid, for providers without them."""

    name = "gelu-to-composed"
    operators = ("Gelu", "com.microsoft.Gelu", "com.microsoft.FastGelu", "com.microsoft.QuickGelu")
    least_opset = 9

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """Any of them."""
        if dtype(node.inputs[0]) != "FLOAT":  # onnxruntime's CPU provider has no Erf in another precision
            return f"a GELU of {dtype(node.inputs[0]) or 'unknown type'} is left alone"
        return Plan(node, lambda make: _composed_gelu(make, node))


def _composed_gelu(make: Builder, node: Any) -> Any:
    value = node.inputs[0]
    if len(node.inputs) > 1 and node.inputs[1] is not None:  # FastGelu's bias
        value = make("Add", value, node.inputs[1])
    if node.op_type == "QuickGelu":
        alpha = np.float32(attribute(node, "alpha", 1.702))
        return make("Mul", value, make("Sigmoid", make("Mul", value, alpha)))
    if node.op_type == "FastGelu" or attribute(node, "approximate", "none") == "tanh":
        cube = make("Mul", make("Mul", make("Mul", value, value), value), np.float32(TANH_CUBIC))
        inner = make("Tanh", make("Mul", make("Add", value, cube), np.float32(TANH_SCALE)))
    else:
        inner = make("Erf", make("Mul", value, np.float32(math.sqrt(0.5))))
    return make("Mul", make("Mul", value, np.float32(0.5)), make("Add", inner, np.float32(1)))


REWRITES: tuple[Rewrite, ...] = (GeluToNative(), GeluToContributed(), GeluToComposed())
