"""Which nodes can compute in a narrower float type, by their operator's schema and by what is known to go wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ort_metainfer.rewrites.patterns import attribute, dtype
from ort_metainfer.rewrites.products import chosen

__all__ = ["KEPT", "PRODUCTS", "connected", "slots_of", "unfit", "untyped"]

PRODUCTS = (
    "Attention",
    "Conv",
    "ConvTranspose",
    "Einsum",
    "GRU",
    "Gemm",
    "LSTM",
    "MatMul",
    "RNN",
)
"""What is worth it; anything else is converted only beside them, which saves the casts between."""

KEPT = (
    "ArgMax",
    "ArgMin",
    "Cast",
    "CastLike",
    "Ceil",
    "Constant",
    "ConstantOfShape",
    "CumSum",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "Equal",
    "EyeLike",
    "Floor",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "NonMaxSuppression",
    "NonZero",
    "OneHot",
    "Optional",
    "QuantizeLinear",
    "Range",
    "RoiAlign",
    "Round",
    "ScatterElements",
    "ScatterND",
    "Sign",
    "TopK",
    "Unique",
    "Upsample",
)
"""Operators left in float32: their results are indices or steps that a rounding error moves, sums that grow long, or
their type is said by an attribute."""

RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")


def unfit(node: Any, parameters: Mapping[str, Any], large: Mapping[str, float]) -> str | None:
    """Why a node must stay in float32; None where nothing is known against it.

    Args:
        node: an onnx_ir node.
        parameters: the rewrite's.
        large: values that were seen to be too large -> how large.
    """
    if node.domain or node.op_type in (*KEPT, *RANDOM, *parameters["block"]):
        return f"{node.op_type} stays in float32"
    reason = chosen(node, {**parameters, "only": parameters["only"] if node.op_type in PRODUCTS else []})
    if reason is not None:
        return reason
    if _fuses_and_crashes(node):
        return "onnxruntime 1.32 crashes where it fuses a float16 product with a Transpose of its first axis"
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.name in large:
            return f"{value.name} was seen to reach {large[value.name]:.3g}"
    return None


SEEN_THROUGH = ("Cast", "Div", "Mul")
"""Operators that onnxruntime moves out of the way to fuse a product with a Transpose."""


def _fuses_and_crashes(node: Any) -> bool:
    """Whether a node is a MatMul of a Transpose that does not leave the first of three or more axes where it is, or
    that Transpose: MatMulTransposeFusion makes a FusedMatMul with transBatch of the two, and where one of them is in
    float16 creating the session ends the process."""
    if node.op_type == "MatMul":
        return any(_moves_batch(maker) for value in node.inputs for maker in _makers(value))
    return _moves_batch(node) and "MatMul" in _users(node.outputs[0])


def _makers(value: Any) -> list[Any]:
    """Nodes that made a value, before Casts and factors."""
    waiting, seen, found = [value], set(), []
    while waiting:
        given = waiting.pop()
        node = None if given is None else given.producer()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if node.op_type in SEEN_THROUGH:
            waiting += node.inputs
        else:
            found.append(node)
    return found


def _users(value: Any) -> set[str]:
    """Operators that take a value, behind Casts and factors or not."""
    waiting, seen, found = [value], set(), set()
    while waiting:
        for use in waiting.pop().uses():
            found.add(use.node.op_type)
            if use.node.op_type in SEEN_THROUGH and id(use.node) not in seen:
                seen.add(id(use.node))
                waiting.append(use.node.outputs[0])
    return found


def _moves_batch(node: Any) -> bool:
    if node is None or node.op_type != "Transpose" or node.domain:
        return False
    order = attribute(node, "perm")
    return order is None or (len(order) > 2 and order[0] != 0)


def untyped(node: Any, kind: str, opset: int) -> str | None:
    """Why a node's operator cannot take the type; None where it can."""
    if any(given.type.name in ("GRAPH", "GRAPHS") for given in node.attributes.values()):
        return "it holds a graph"
    slots = list(slots_of(node, kind, opset))
    if not slots:
        return f"{node.op_type} of opset {opset} takes no {kind.lower()}"
    if any(dtype(value) != "FLOAT" for _, _, value in slots):
        return "not all it takes is known to be float32"
    return None


def slots_of(node: Any, kind: str, opset: int) -> Iterator[tuple[str, int, Any]]:
    """Inputs and outputs (``in`` or ``out``, position, value) whose type may be ``kind`` as well as float32; none where
    no output is among them: such an operator gains nothing."""
    import onnx

    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return
    allowed = {given.type_param_str: set(given.allowed_type_strs) for given in schema.type_constraints}
    wanted = {"tensor(float)", f"tensor({kind.lower()})"}
    variables = {name for name, types in allowed.items() if wanted <= types}
    found = [
        (side, place, value, formals[min(place, len(formals) - 1)].type_str)
        for side, values, formals in (("in", node.inputs, schema.inputs), ("out", node.outputs, schema.outputs))
        if formals
        for place, value in enumerate(values)
        if value is not None and value.name
    ]
    floats = {name for _, _, value, name in found if dtype(value) == "FLOAT"} & variables
    if any(side == "out" and name in floats for side, _, _, name in found):
        yield from ((side, place, value) for side, place, value, name in found if name in floats)


def connected(fit: Sequence[Any]) -> list[Any]:
    """Of the nodes that can be converted, those that hang together with a product through such nodes."""
    inside = {id(node): node for node in fit}
    reached: dict[int, Any] = {}
    waiting = [node for node in fit if node.op_type in PRODUCTS]
    while waiting:
        node = waiting.pop()
        if id(node) in reached:
            continue
        reached[id(node)] = node
        around = [value.producer() for value in node.inputs if value is not None]
        around += [use.node for value in node.outputs for use in value.uses()]
        waiting += [near for near in around if near is not None and id(near) in inside and id(near) not in reached]
    return [node for node in fit if id(node) in reached]
