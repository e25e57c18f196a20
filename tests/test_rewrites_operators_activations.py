"""GELU, HardSwish, HardSigmoid: found in the spellings of exporters, left alone where a constant is another one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ort_metainfer.rewrites.operators_gelu import GeluToComposed, GeluToContributed, GeluToNative
from ort_metainfer.rewrites.operators_hard_swish import (
    HardSigmoidToComposed,
    HardSigmoidToNative,
    HardSwishToComposed,
    HardSwishToNative,
)
from tests.operator_graphs import assert_left_alone, assert_rewritten, graph, overridable

PLAIN = "(float[N,8] x) => (float[N,8] y)"

ERF_CONSTANTS = {"r": math.sqrt(2), "i": math.sqrt(0.5), "one": 1, "half": 0.5, "two": 2}

ERF = {
    "torch": "a = Div(x, r) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half)",
    "half in front": "h = Mul(half, x) a = Mul(x, i) b = Erf(a) c = Add(one, b) y = Mul(c, h)",
    "half on the gate": "a = Div(x, r) b = Erf(a) c = Add(b, one) d = Mul(half, c) y = Mul(x, d)",
    "divided by two": "a = Div(x, r) b = Erf(a) c = Add(b, one) d = Div(x, two) y = Mul(c, d)",
    "half inside the sum": "a = Mul(x, i) b = Erf(a) c = Mul(half, b) d = Add(c, half) y = Mul(d, x)",
}

TANH_CONSTANTS = {"k": math.sqrt(2 / math.pi), "c": 0.044715, "one": 1, "half": 0.5, "three": 3, "two": 2}

TANH = {
    "cube by Pow": "p = Pow(x, three) q = Mul(c, p) s = Add(x, q) t = Mul(k, s)",
    "cube by Mul": "p = Mul(x, x) q = Mul(p, x) u = Mul(q, c) s = Add(x, u) t = Mul(s, k)",
    "square, then product": "p = Pow(x, two) q = Mul(p, x) u = Mul(q, c) s = Add(u, x) t = Mul(s, k)",
    "x in front": "p = Mul(x, x) q = Mul(c, p) u = Add(one, q) v = Mul(k, x) t = Mul(v, u)",
}
TANH_TAIL = " a = Tanh(t) b = Add(a, one) h = Mul(half, x) y = Mul(h, b)"


def made(body: str, constants: dict[str, float], opset: int = 20, kind: Any = np.float32, shape: Any = ()) -> bytes:
    signature = PLAIN if kind is np.float32 else PLAIN.replace("float", "double")
    used = {
        name: np.full(shape, value, kind)
        for name, value in constants.items()
        if f"{name}," in body or f"{name})" in body
    }
    return graph(signature, body, opset=opset, **used)


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("name", ERF)
def test_every_spelling_of_gelu_is_found(name: str, shape: tuple[int, ...]) -> None:
    assert assert_rewritten(GeluToNative(), made(ERF[name], ERF_CONSTANTS, shape=shape)) == {"Gelu": 1}
    assert assert_rewritten(GeluToContributed(), made(ERF[name], ERF_CONSTANTS, 11, shape=shape)) == {
        "com.microsoft.Gelu": 1
    }


@pytest.mark.parametrize("name", TANH)
def test_every_spelling_of_the_approximation_is_found(name: str) -> None:
    assert assert_rewritten(GeluToNative(), made(TANH[name] + TANH_TAIL, TANH_CONSTANTS)) == {"Gelu": 1}
    after = assert_rewritten(GeluToContributed(), made(TANH[name] + TANH_TAIL, TANH_CONSTANTS, 13))
    assert after == {"com.microsoft.FastGelu": 1}


def test_several_gelus_and_a_gelu_of_a_gelu_are_found() -> None:
    first = ERF["torch"].replace("y = ", "z = ")
    second = "a2 = Div(z, r) b2 = Erf(a2) c2 = Add(b2, one) d2 = Mul(z, c2) e = Mul(d2, half) y = Mul(e, z)"
    assert assert_rewritten(GeluToNative(), made(first + second, ERF_CONSTANTS), times=2) == {"Gelu": 2, "Mul": 1}


@pytest.mark.parametrize(
    ("body", "changes", "reason"),
    [
        (ERF["torch"], {"r": 1.41}, "not by 1/sqrt(2)"),
        (ERF["torch"], {"half": 0.4}, "not part of a GELU"),
        (ERF["torch"], {"one": 0.9}, "not part of a GELU"),
        (ERF["torch"].replace("Mul(x, c)", "Mul(w, c)").replace("a =", "w = Abs(x) a ="), {}, "not the value"),
        (ERF["torch"].replace("y =", "z =") + " w = Add(c, z) y = Mul(w, x)", {}, "nobody else uses"),
        (ERF["torch"].replace("y =", "z =") + " y = Add(d, z)", {}, "nobody else uses"),
    ],
)
def test_what_is_no_gelu_is_left_alone(body: str, changes: dict[str, float], reason: str) -> None:
    for rewrite, opset in ((GeluToNative(), 20), (GeluToContributed(), 17)):
        assert_left_alone(rewrite, made(body, ERF_CONSTANTS | changes, opset), reason)


def test_gelu_needs_its_opset_its_type_and_constants_that_stay() -> None:
    assert_left_alone(GeluToNative(), made(ERF["torch"], ERF_CONSTANTS, 19), "opset 19")
    half = graph("(float16[N,8] x) => (float16[N,8] y)", "y = Gelu(x)", opset=20)
    assert_left_alone(GeluToComposed(), half, "FLOAT16")
    assert_left_alone(GeluToNative(), overridable(made(ERF["torch"], ERF_CONSTANTS), "half"), "not part of a GELU")
    raised = made(ERF["torch"], ERF_CONSTANTS, shape=(1, 1, 1))
    assert_left_alone(GeluToNative(), _with_output_rank(raised, 3), "not the value")


def _with_output_rank(model: bytes, rank: int) -> bytes:
    import onnx

    proto = onnx.load_from_string(model)
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    for _ in range(rank):
        proto.graph.output[0].type.tensor_type.shape.dim.add()
    return proto.SerializeToString()


def test_an_inner_value_that_is_an_output_stays() -> None:
    body = ERF["torch"]
    constants = {name: np.float32(value) for name, value in ERF_CONSTANTS.items() if name in ("r", "one", "half")}
    model = graph("(float[N,8] x) => (float[N,8] y, float[N,8] c)", body, opset=20, **constants)
    assert_left_alone(GeluToNative(), model, "c inside it is a graph output")


@pytest.mark.parametrize("node", ["Gelu(x)", 'Gelu<approximate="tanh">(x)'])
def test_native_gelu_is_composed(node: str) -> None:
    assert "Gelu" not in assert_rewritten(GeluToComposed(), graph(PLAIN, f"y = {node}", opset=20))


@pytest.mark.parametrize("node", ["Gelu(x)", "FastGelu(x)", "FastGelu(x, b)", "QuickGelu<alpha=1.5>(x)"])
def test_contributed_gelus_are_composed(node: str) -> None:
    weights = {"b": np.linspace(-1, 1, 8, dtype=np.float32)} if "b)" in node else {}
    after = assert_rewritten(GeluToComposed(), graph(PLAIN, f"y = com.microsoft.{node}", opset=13, **weights))
    assert not any(name.startswith("com.microsoft") for name in after)


HARD_CONSTANTS = {"three": 3, "six": 6, "zero": 0, "sixth": 1 / 6, "one": 1, "half": 0.5, "beta": 0.3, "slope": 0.7}

HARD_SWISH = {
    "clip, product, division": "a = Add(x, three) b = Clip(a, zero, six) c = Mul(x, b) y = Div(c, six)",
    "clip, division, product": "a = Add(three, x) b = Clip(a, zero, six) c = Div(b, six) y = Mul(c, x)",
    "clip, factor, product": "a = Add(x, three) b = Clip(a, zero, six) c = Mul(sixth, b) y = Mul(x, c)",
    "line clipped to one": "l = Mul(x, sixth) a = Add(l, half) b = Clip(a, zero, one) y = Mul(x, b)",
    "hard sigmoid": "a = HardSigmoid<alpha=0.16666667, beta=0.5>(x) y = Mul(x, a)",
}


@pytest.mark.parametrize("name", HARD_SWISH)
def test_every_spelling_of_hard_swish_is_found(name: str) -> None:
    model = made(HARD_SWISH[name], HARD_CONSTANTS, 14)
    assert assert_rewritten(HardSwishToNative(), model) == {"HardSwish": 1}
    assert_left_alone(HardSwishToNative(), made(HARD_SWISH[name], HARD_CONSTANTS, 13), "opset 13")


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        (HARD_SWISH["clip, product, division"], {"six": 5}),
        (HARD_SWISH["clip, product, division"], {"three": 2}),
        (HARD_SWISH["clip, product, division"], {"zero": -1}),
        (HARD_SWISH["hard sigmoid"].replace("0.16666667", "0.2"), {}),
        (HARD_SWISH["hard sigmoid"].replace("Mul(x, a)", "Mul(w, a)").replace("a =", "w = Abs(x) a ="), {}),
    ],
)
def test_what_is_no_hard_swish_is_left_alone(body: str, changes: dict[str, float]) -> None:
    assert_left_alone(HardSwishToNative(), made(body, HARD_CONSTANTS | changes, 14), "no hard-swish-to-native")


def test_a_hard_swish_whose_inside_is_used_elsewhere_is_left_alone() -> None:
    body = HARD_SWISH["clip, division, product"].replace("y =", "z =") + " y = Add(z, b)"
    assert_left_alone(HardSwishToNative(), made(body, HARD_CONSTANTS, 14), "used elsewhere")


@pytest.mark.parametrize("form", ["hard-sigmoid", "clip"])
def test_native_hard_swish_is_composed(form: str) -> None:
    after = assert_rewritten(HardSwishToComposed(), graph(PLAIN, "y = HardSwish(x)", opset=14), form=form)
    assert "HardSwish" not in after and ("HardSigmoid" in after) == (form == "hard-sigmoid")


HARD_SIGMOID = {
    "clip, then division": "a = Add(x, three) b = Clip(a, zero, six) y = Div(b, six)",
    "clip, then factor": "a = Add(x, three) b = Clip(a, zero, six) y = Mul(b, sixth)",
    "line clipped to one": "l = Mul(x, slope) a = Add(l, beta) y = Clip(a, zero, one)",
}


@pytest.mark.parametrize("name", HARD_SIGMOID)
def test_every_spelling_of_hard_sigmoid_is_found(name: str) -> None:
    model = made(HARD_SIGMOID[name], HARD_CONSTANTS, 11)
    assert assert_rewritten(HardSigmoidToNative(), model) == {"HardSigmoid": 1}
    old = graph(
        PLAIN,
        "a = Add(x, three) b = Clip<min=0.0,max=6.0>(a) y = Div(b, six)",
        opset=9,
        three=np.float32(3),
        six=np.float32(6),
    )
    assert assert_rewritten(HardSigmoidToNative(), old) == {"HardSigmoid": 1}


def test_a_clip_to_other_limits_is_no_hard_sigmoid() -> None:
    for changes in ({"six": 4.0, "sixth": 0.3}, {"zero": 0.1}):
        model = made(HARD_SIGMOID["clip, then factor"], HARD_CONSTANTS | changes, 11)
        assert_left_alone(HardSigmoidToNative(), model, "no hard-sigmoid-to-native")


@pytest.mark.parametrize("opset", [7, 13])
def test_native_hard_sigmoid_is_composed(opset: int) -> None:
    model = graph(PLAIN, "y = HardSigmoid<alpha=0.3, beta=0.4>(x)", opset=opset)
    assert assert_rewritten(HardSigmoidToComposed(), model) == {"Mul": 1, "Add": 1, "Clip": 1}
