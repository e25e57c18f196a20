"""HardSwish and HardSigmoid: composed of Add, Clip and Mul, as one operator, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from ort_metainfer.rewrites.base import Parameter, Rewrite
from ort_metainfer.rewrites.building import Builder
from ort_metainfer.rewrites.factors import is_power, near, plus, product_of
from ort_metainfer.rewrites.node_rewrite import OperatorRewrite, Plan, Surroundings
from ort_metainfer.rewrites.patterns import attribute, constant_size, dtype, produced, scalar

__all__ = [
    "REWRITES",
    "HardSigmoidToComposed",
    "HardSigmoidToNative",
    "HardSwishToComposed",
    "HardSwishToNative",
]


def clipped_line(value: Any) -> tuple[Any, float, float, list[Any]] | None:
    """Of ``min(max(alpha x + beta, 0), top)`` over ``top``: x, alpha, beta and the nodes; Clip and Relu6 alike."""
    whole = product_of(value)
    if len(whole.values) != 1:
        return None
    node = produced(whole.values[0], "Clip")
    limits = None if node is None else _limits(node)
    if node is None or limits is None or limits[0] != 0 or not near(whole.factor * limits[1], 1.0):
        return None
    line = produced(node.inputs[0], "Add")
    for one, other in (line.inputs, line.inputs[::-1]) if line is not None else ():
        beta = scalar(one, beside=other)
        if beta is not None:
            slope = product_of(other, False)
            if len(slope.values) == 1:
                nodes = [*whole.nodes, node, line, *slope.nodes]
                return slope.values[0], slope.factor * whole.factor, beta * whole.factor, nodes
    return None


def _limits(node: Any) -> tuple[float, float] | None:
    if len(node.inputs) == 1 and {"min", "max"} <= set(node.attributes):
        return attribute(node, "min"), attribute(node, "max")
    if len(node.inputs) < 3:
        return None
    low, high = scalar(node.inputs[1]), scalar(node.inputs[2])
    return None if low is None or high is None else (low, high)


class HardSigmoidToNative(OperatorRewrite):
    """HardSigmoid composed of Add, Clip and Div, as one operator."""

    name = "hard-sigmoid-to-native"
    operators = ("Clip",)
    also = ("Add",)

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """A Clip inside a HardSigmoid."""
        last = node
        uses = node.outputs[0].uses()
        if len(uses) == 1 and not node.outputs[0].is_graph_output() and uses[0].node.op_type in ("Mul", "Div"):
            scaled = uses[0].node
            if any(constant_size(value) == 1 for value in scaled.inputs) and not scaled.domain:
                last = scaled
        found = clipped_line(last.outputs[0])
        if found is None:
            return None
        value, alpha, beta, inner = found
        if dtype(value) != "FLOAT":
            return f"a HardSigmoid of {dtype(value) or 'unknown type'} is left alone"
        return Plan(last, lambda make: make("HardSigmoid", value, alpha=alpha, beta=beta), inner)


class HardSigmoidToComposed(OperatorRewrite):
    """HardSigmoid by Mul, Add and Clip."""

    name = "hard-sigmoid-to-composed"
    operators = ("HardSigmoid",)

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """Any HardSigmoid."""
        if dtype(node.inputs[0]) != "FLOAT":
            return f"a HardSigmoid of {dtype(node.inputs[0]) or 'unknown type'} is left alone"
        alpha, beta = np.float32(attribute(node, "alpha", 0.2)), np.float32(attribute(node, "beta", 0.5))

        def make(builder: Builder) -> Any:
            return builder.clip(builder("Add", builder("Mul", node.inputs[0], alpha), beta), 0.0, 1.0)

        return Plan(node, make)


class HardSwishToNative(OperatorRewrite):
    """HardSwish composed of HardSigmoid, or of Add, Clip and Div, as ONNX's HardSwish."""

    name = "hard-swish-to-native"
    operators = ("Mul", "Div")
    least_opset = 14

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """The outermost product of a HardSwish."""
        product = product_of(node.outputs[0])
        if len(product.values) != 2:
            return None
        for value, gate in (product.values, product.values[::-1]):
            inner = _hard_gate(value, gate, product.factor)
            if inner is None:
                continue
            if dtype(value) != "FLOAT":
                return f"a HardSwish of {dtype(value) or 'unknown type'} is left alone"
            return Plan(node, _hard_swish(value), [*product.nodes, *inner])
        return None


def _hard_swish(value: Any) -> Callable[[Builder], Any]:
    return lambda make: make("HardSwish", value)


def _hard_gate(value: Any, gate: Any, factor: float) -> list[Any] | None:
    """The nodes of ``factor * gate`` where that is clip(value / 6 + 1/2, 0, 1)."""
    node = produced(gate, "HardSigmoid")
    if node is not None and node.inputs[0] is value and near(factor, 1.0):
        fits = near(attribute(node, "alpha", 0.2), 1 / 6) and near(attribute(node, "beta", 0.5), 0.5)
        return [node] if fits else None
    node = produced(gate, "Clip")
    limits = None if node is None else _limits(node)
    line = None if node is None else produced(node.inputs[0], "Add")
    if node is None or limits is None or line is None or limits[0] != 0 or not near(limits[1] * factor, 1.0):
        return None
    shifted = plus(line.outputs[0], 0.5 / factor)
    slope = None if shifted is None else product_of(shifted[0], False)
    if slope is None or not is_power(slope, value, 1) or not near(slope.factor * factor, 1 / 6):
        return None
    return [node, line, *slope.nodes]


class HardSwishToComposed(OperatorRewrite):
    """HardSwish by HardSigmoid and Mul, or by Add, Clip, Mul and Mul."""

    name = "hard-swish-to-composed"
    operators = ("HardSwish",)
    least_opset = 14
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "form": Parameter(str, "hard-sigmoid", "which operators it is composed of", values=("hard-sigmoid", "clip"))
    }

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """Any HardSwish."""
        value = node.inputs[0]
        if dtype(value) != "FLOAT":
            return f"a HardSwish of {dtype(value) or 'unknown type'} is left alone"

        def make(builder: Builder) -> Any:
            if around.parameters["form"] == "hard-sigmoid":
                return builder("Mul", value, builder("HardSigmoid", value, alpha=1 / 6, beta=0.5))
            clipped = builder.clip(builder("Add", value, np.float32(3)), 0.0, 6.0)
            return builder("Mul", builder("Mul", value, clipped), np.float32(1 / 6))

        return Plan(node, make)


REWRITES: tuple[Rewrite, ...] = (
    HardSigmoidToNative(),
    HardSigmoidToComposed(),
    HardSwishToNative(),
    HardSwishToComposed(),
)
