"""Elementwise blocks and activations, composed as exporters compose them and native."""

from __future__ import annotations

import math

from tests.random_graph_sketch import Sketch, Value


def per_channel(s: Sketch, value: Value, positive: bool = False) -> str:
    """A constant that broadcasts over ``value``: a scalar, one number a channel, or one a last-axis entry."""
    axis = s.choose(1, value.rank - 1) if value.rank > 1 else 0
    shape = s.choose((), (1,), tuple(size if a == axis else 1 for a, size in enumerate(value.shape)))
    if value.rank > 1 and s.chance(0.3):
        shape = (value.shape[-1],)
    if value.rank == 1:
        shape = ()
    draw = s.rng.uniform(0.5, 1.5, shape) if positive else s.rng.uniform(-1, 1, shape)
    return s.constant(draw)


def affine(s: Sketch) -> None:
    value = s.pick()
    for op in s.choose(("Mul", "Add"), ("Add", "Mul"), ("Mul",), ("Add",), ("Sub", "Div"), ("Div", "Add")):
        value = s.binary(op, value, per_channel(s, value, positive=op in ("Mul", "Div")))
    s.keep(value)


def powers(s: Sketch) -> None:
    value = s.pick()
    kind = s.choose("square", "cube", "root", "inverse", "product", "float-exponent", "zero", "one")
    if kind == "product":
        s.keep(s.binary("Mul", value, value))
        return
    exponents = {"square": 2.0, "cube": 3.0, "root": 0.5, "inverse": -1.0, "float-exponent": 1.7, "zero": 0, "one": 1}
    if kind in ("root", "inverse", "float-exponent"):
        value = s.binary("Add", s.unary("Abs", value), s.scalar(0.5))
    if kind in ("root", "inverse") and s.chance(0.4):
        s.keep(s.unary("Sqrt" if kind == "root" else "Reciprocal", value))
        return
    s.keep(s.binary("Pow", s.unary("Tanh", value) if kind == "cube" else value, s.scalar(exponents[kind])))


def divisions(s: Sketch) -> None:
    value = s.pick()
    divisor = s.scalar(s.choose(2.0, 3.0, -7.5, 0.1, math.sqrt(8))) if s.chance(0.5) else per_channel(s, value, True)
    s.keep(s.binary("Div", value, divisor))


ACTIVATIONS = {
    "Relu": {},
    "LeakyRelu": {"alpha": 0.1},
    "Sigmoid": {},
    "Tanh": {},
    "Elu": {"alpha": 0.8},
    "Softplus": {},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Erf": {},
    "Selu": {},
    "Softsign": {},
    "Neg": {},
    "Abs": {},
    "Exp": {},
}


def activated(s: Sketch, value: Value) -> Value:
    """One activation."""
    name = s.choose(*ACTIVATIONS)
    if name == "Exp":
        value = s.unary("Tanh", value)
    return s.unary(name, value, **ACTIVATIONS[name])


def activation(s: Sketch) -> None:
    value = s.pick()
    newer = [("HardSwish", 14), ("Mish", 18), ("Gelu", 20)]
    there = [name for name, since in newer if s.opset >= since]
    kind = s.choose("plain", "clip", "prelu", "silu", *there)
    if kind == "plain":
        value = activated(s, value)
    elif kind == "clip":
        value = s.emit("Clip", [value, s.constant(-0.5), s.constant(0.75)], value.shape)
    elif kind == "prelu":
        slope = s.constant(s.rng.uniform(0, 0.5, (value.shape[1], *(1,) * (value.rank - 2))))
        value = s.emit("PRelu", [value, slope], value.shape)
    elif kind == "silu":
        value = s.binary("Mul", value, s.unary("Sigmoid", value))
    elif kind == "Gelu" and s.chance(0.5):
        value = s.unary("Gelu", value, approximate="tanh")
    else:
        value = s.unary(kind, value)
    s.keep(value)


def clipped(s: Sketch) -> None:
    """Several limits, one after the other."""
    value = s.pick()
    for _ in range(s.size(2, 3)):
        kind = s.choose("relu", "both", "low", "high", "relu6", "min", "max")
        if kind == "relu":
            value = s.unary("Relu", value)
        elif kind in ("min", "max"):
            value = s.emit(kind.title(), [value, s.constant(s.rng.uniform(-1, 1))], value.shape)
        else:
            low, high = s.rng.uniform(-1, 0), s.rng.uniform(0, 1)
            ends = {"both": (low, high), "low": (low, None), "high": (None, high), "relu6": (0.0, 6.0)}[kind]
            given = ["" if end is None else s.constant(end) for end in ends]
            value = s.emit("Clip", [value, *given], value.shape)
    s.keep(value)


def native(s: Sketch) -> None:
    """Activations that younger opsets have as one operator."""
    value = s.pick(2, 3, 4)
    newer = [("HardSwish", 14), ("Mish", 18), ("Gelu", 20), ("HardSigmoid", 6)]
    name = s.choose(*[name for name, since in newer if s.opset >= since])
    if name == "Gelu":
        s.keep(s.unary(name, value, approximate=s.choose("none", "tanh")))
    elif name == "HardSigmoid":
        s.keep(s.binary("Mul", value, s.unary(name, value, alpha=s.choose(0.2, 1 / 6), beta=0.5)))
    else:
        s.keep(s.unary(name, value))


def contributed(s: Sketch) -> None:
    """Operators of com.microsoft, as onnxruntime's own optimisers write them."""
    value = s.pick(3)
    width = value.shape[-1]
    name = s.choose("Gelu", "FastGelu", "BiasGelu", "QuickGelu", "SkipLayerNormalization", "FusedMatMul")
    given: list[Value | str] = [value]
    attributes: dict[str, object] = {"domain": "com.microsoft"}
    shape = value.shape
    if name == "BiasGelu" or (name == "FastGelu" and s.chance(0.5)):
        given.append(s.weight(width))
    if name == "QuickGelu":
        attributes["alpha"] = 1.702
    if name == "SkipLayerNormalization":
        given += [activated(s, value), s.near_one(width), s.weight(width)]
    if name == "FusedMatMul":
        given.append(s.weight(3, width, fan_in=width))
        attributes |= {"transB": 1, "alpha": 0.5}
        shape = (*value.shape[:-1], 3)
    s.keep(s.emit(name, given, shape, **attributes))


def bias_gelu(s: Sketch) -> None:
    """A vector added along the last axis, and Gelu as one operator."""
    value = s.pick(2, 3)
    value = s.binary("Add", value, s.weight(value.shape[-1]))
    if s.opset >= 20 and s.chance(0.5):
        s.keep(s.unary("Gelu", value, approximate=s.choose("none", "tanh")))
    else:
        s.keep(s.unary(s.choose("Gelu", "FastGelu"), value, domain="com.microsoft"))


def gelu_erf(s: Sketch) -> None:
    value = biased(s, s.pick(2, 3, 4)) if s.chance(0.4) else s.pick(2, 3, 4)
    inner = s.binary("Div", value, s.scalar(math.sqrt(2)))
    if s.chance(0.4):
        inner = s.binary("Mul", value, s.scalar(math.sqrt(0.5)))
    grown = s.binary("Add", s.unary("Erf", inner), s.scalar(1.0))
    form = s.choose("half last", "half first", "half of x", "half of the sum")
    if form == "half last":
        value = s.binary("Mul", s.binary("Mul", value, grown), s.scalar(0.5))
    elif form == "half of the sum":
        value = s.binary("Mul", value, s.binary("Mul", grown, s.scalar(0.5)))
    else:
        value = s.binary("Mul", s.binary("Mul", value, s.scalar(0.5)), grown)
    s.keep(value)


def gelu_tanh(s: Sketch) -> None:
    value = s.pick(2, 3, 4)
    cube = s.binary("Pow", value, s.scalar(3.0))
    if s.chance(0.4):
        cube = s.binary("Mul", s.binary("Mul", value, value), value)
    inner = s.binary("Add", value, s.binary("Mul", cube, s.scalar(0.044715)))
    grown = s.binary("Add", s.unary("Tanh", s.binary("Mul", inner, s.scalar(math.sqrt(2 / math.pi)))), s.scalar(1.0))
    if s.chance(0.5):
        s.keep(s.binary("Mul", s.binary("Mul", value, s.scalar(0.5)), grown))
    else:
        s.keep(s.binary("Mul", s.binary("Mul", value, grown), s.scalar(0.5)))


def hard_swish(s: Sketch) -> None:
    value = s.pick(2, 3, 4)
    form = s.choose("clip", "hard-sigmoid", "relu6")
    if form == "hard-sigmoid":
        gate = s.unary("HardSigmoid", value, alpha=1 / 6, beta=0.5)
        s.keep(s.binary("Mul", value, gate))
        return
    gate = s.binary("Add", value, s.scalar(3.0))
    gate = s.emit("Clip", [gate, s.constant(0.0), s.constant(6.0)], gate.shape)
    if form == "relu6" or s.chance(0.3):
        s.keep(s.binary("Mul", value, s.binary("Div", gate, s.scalar(6.0))))
    else:
        s.keep(s.binary("Div", s.binary("Mul", value, gate), s.scalar(6.0)))


def biased(s: Sketch, value: Value) -> Value:
    """A bias over the last axis, as a linear layer's."""
    return s.binary("Add", value, s.weight(value.shape[-1]))


def softmax(s: Sketch) -> None:
    value = s.pick()
    op = s.choose("Softmax", "Softmax", "LogSoftmax")
    s.keep(s.unary(op, value, axis=s.choose(-1, value.rank - 1) if s.opset < 13 else s.choose(-1, 1, value.rank - 1)))


BLOCKS = {
    block.__name__: block
    for block in (
        affine,
        powers,
        divisions,
        activation,
        clipped,
        native,
        contributed,
        bias_gelu,
        gelu_erf,
        gelu_tanh,
        hard_swish,
        softmax,
    )
}
