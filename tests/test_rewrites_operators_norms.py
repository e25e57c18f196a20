"""Normalisations: found in the spellings of exporters, decomposed exactly as defined, left alone where not sure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ort_metainfer.rewrites.base import Rewrite
from ort_metainfer.rewrites.operators_channel_norm import (
    GroupNormToComposed,
    GroupNormToNative,
    InstanceNormToComposed,
    InstanceNormToNative,
)
from ort_metainfer.rewrites.operators_norm import (
    LayerNormToComposed,
    LayerNormToNative,
    RmsNormToComposed,
    RmsNormToContributed,
    RmsNormToNative,
)
from tests.operator_graphs import assert_left_alone, assert_rewritten, graph, overridable, rewritten

ROWS = "(float[N,S,8] x) => (float[N,S,8] y)"
IMAGES = "(float[N,6,S,4] x) => (float[N,6,S,4] y)"

EIGHT = np.linspace(0.5, 2, 8, dtype=np.float32)
CONSTANTS: dict[str, Any] = {
    "two": np.float32(2),
    "half": np.float32(0.5),
    "minus": np.float32(-0.5),
    "one": np.float32(1),
    "eps": np.float32(1e-5),
    "g": EIGHT,
    "b": EIGHT[::-1].copy(),
    "axes": np.array([-1], np.int64),
    "last": np.array([2], np.int64),
}

MEAN = "m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) "
AFFINE = " s = Mul(n, g) y = Add(s, b)"

LAYER_NORM = {
    "pow and div": MEAN
    + "q = Pow(d, two) v = ReduceMean<axes=[-1]>(q) e = Add(v, eps) r = Sqrt(e) n = Div(d, r)"
    + AFFINE,
    "mul and reciprocal": MEAN
    + "q = Mul(d, d) v = ReduceMean<axes=[-1]>(q) e = Add(eps, v) r = Sqrt(e) i = Reciprocal(r) n = Mul(i, d)"
    + " s = Mul(g, n) y = Add(b, s)",
    "roots by pow": MEAN
    + "q = Mul(d, d) v = ReduceMean<axes=[-1]>(q) e = Add(v, eps) i = Pow(e, minus) n = Mul(d, i)"
    + AFFINE,
    "root by pow, div": MEAN
    + "q = Mul(d, d) v = ReduceMean<axes=[-1]>(q) e = Add(v, eps) r = Pow(e, half) n = Div(d, r)"
    + AFFINE,
    "one over root": MEAN
    + "q = Mul(d, d) v = ReduceMean<axes=[-1]>(q) e = Add(v, eps) r = Sqrt(e) i = Div(one, r) n = Mul(d, i)"
    + AFFINE,
    "two subtractions": MEAN
    + "d2 = Sub(x, m) q = Pow(d2, two) v = ReduceMean<axes=[2]>(q) e = Add(v, eps) r = Sqrt(e) n = Div(d, r)"
    + AFFINE,
}


def model(body: str, signature: str = ROWS, opset: int = 17, **arrays: Any) -> bytes:
    known = {**CONSTANTS, **arrays}
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    return graph(signature, body, opset=opset, **{name: array for name, array in known.items() if name in words})


@pytest.mark.parametrize("name", LAYER_NORM)
def test_every_spelling_of_layer_norm_is_found(name: str) -> None:
    assert assert_rewritten(LayerNormToNative(), model(LAYER_NORM[name])) == {"LayerNormalization": 1}
    newer = LAYER_NORM[name].replace("<axes=[-1]>(x)", "(x, axes)").replace("<axes=[-1]>(q)", "(q, last)")
    newer = newer.replace("<axes=[2]>(q)", "(q, last)")
    assert assert_rewritten(LayerNormToNative(), model(newer, opset=18)) == {"LayerNormalization": 1}


PLAIN_NORM = LAYER_NORM["pow and div"]


@pytest.mark.parametrize(
    ("tail", "arrays", "after"),
    [
        (" y = Identity(n)", {}, {"Identity": 1}),
        (" y = Mul(n, g)", {}, {}),
        (" y = Add(n, b)", {}, {}),
        (" s = Mul(n, g) y = Add(s, b)", {"g": np.float32(2), "b": EIGHT[:1]}, {}),
        (" s = Mul(n, g) y = Add(s, b)", {"g": EIGHT.reshape(1, 1, 8)}, {}),
        (" s = Mul(n, g) y = Add(s, x)", {}, {"Add": 1}),
        (" s = Mul(n, x) y = Add(s, b)", {}, {"Mul": 1, "Add": 1}),
        (" s = Mul(n, n) y = Add(s, b)", {}, {"Mul": 1, "Add": 1}),
        (" s = Mul(n, g) y = Add(s, n)", {}, {"Mul": 1, "Add": 1}),
    ],
)
def test_layer_norm_takes_what_is_scale_and_bias_and_no_more(tail: str, arrays: Any, after: Any) -> None:
    body = PLAIN_NORM.removesuffix(AFFINE) + tail
    assert assert_rewritten(LayerNormToNative(), model(body, **arrays)) == {"LayerNormalization": 1, **after}


def test_layer_norm_over_several_axes_and_in_double_precision() -> None:
    body = PLAIN_NORM.replace("[-1]", "[1,2]")
    weights = {"g": np.ones((5, 8), np.float32) * EIGHT, "b": np.ones((5, 8), np.float32)}
    after = assert_rewritten(LayerNormToNative(), model(body, ROWS.replace("S", "5"), **weights))
    assert after == {"LayerNormalization": 1}
    double = {name: value.astype(np.float64) for name, value in CONSTANTS.items() if name not in ("axes", "last")}
    after = assert_rewritten(LayerNormToNative(), model(PLAIN_NORM, ROWS.replace("float", "double"), **double))
    assert after == {"LayerNormalization": 1}


def test_a_scale_a_caller_may_replace_is_taken_as_an_input() -> None:
    made = overridable(model(PLAIN_NORM), "g")
    assert assert_rewritten(LayerNormToNative(), made) == {"LayerNormalization": 1}
    short = overridable(model(PLAIN_NORM, g=EIGHT[:1]), "g")
    assert assert_rewritten(LayerNormToNative(), short) == {"LayerNormalization": 1, "Mul": 1, "Add": 1}


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (model(PLAIN_NORM, opset=16), "opset 16"),
        (model(PLAIN_NORM.replace("[-1]", "[1]")), "axes [-2]"),
        (model(PLAIN_NORM, "(float[N,S,K] x) => (float[N,S,8] y)"), "not known"),
        (model(PLAIN_NORM.replace("<axes=[-1]>(q)", "<axes=[-1,-2]>(q)")), "no layer-norm"),
        (model(PLAIN_NORM.replace("Sub(x, m)", "Sub(m, x)")), "no layer-norm"),
        (model(PLAIN_NORM, two=np.float32(3)), "no layer-norm"),
        (overridable(model(PLAIN_NORM), "eps"), "no layer-norm"),
        (model(PLAIN_NORM.replace("y =", "z =") + " y = Add(z, e)"), "used elsewhere"),
        (model(PLAIN_NORM, "(float[N,S,8] x) => (float[N,S,8] y, float[N,S,1] v)"), "graph output"),
        (model(PLAIN_NORM.replace("Div(d, r)", "Div(x, r)")), "no layer-norm"),
    ],
)
def test_layer_norm_is_left_alone(made: bytes, reason: str) -> None:
    feed = {"x": np.random.default_rng(0).standard_normal((3, 5, 8)).astype(np.float32)}
    _, outcome = rewritten(LayerNormToNative(), made, feed)
    told = [*(site.reason for site in outcome.sites), *outcome.notes]
    assert not outcome.changed and any(reason in text for text in told), told


def test_scales_that_change_the_shape_stay_outside() -> None:
    body = PLAIN_NORM.removesuffix(AFFINE) + " y = Mul(n, g)"
    wide = model(body, "(float[N,S,8] x) => (float[1,N,S,8] y)", g=EIGHT.reshape(1, 1, 1, 8))
    assert assert_rewritten(LayerNormToNative(), wide) == {"LayerNormalization": 1, "Mul": 1}


@pytest.mark.parametrize("opset", [17, 18, 21])
@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("axis", [-1, 2, 1, -2])
def test_native_layer_norm_is_composed(opset: int, kind: str, axis: int) -> None:
    shape = (8,) if axis in (-1, 2) else (5, 8)
    weights = {
        name: np.full(shape, value, np.float32 if kind == "float" else np.float64)
        for name, value in (("g", 2), ("b", 3))
    }
    signature = f"({kind}[N,5,8] x) => ({kind}[N,5,8] y)"
    for inputs in ("x, g, b", "x, g"):
        used = weights if "b" in inputs else {"g": weights["g"]}
        made = graph(signature, f"y = LayerNormalization<axis={axis}, epsilon=0.001>({inputs})", opset=opset, **used)
        assert "LayerNormalization" not in assert_rewritten(LayerNormToComposed(), made)


def test_native_layer_norm_whose_mean_is_used_stays() -> None:
    body = "y, m = LayerNormalization(x, g)"
    made = graph("(float[N,S,8] x) => (float[N,S,8] y, float[N,S,1] m)", body, g=EIGHT)
    assert_left_alone(LayerNormToComposed(), made, "its mean or deviation")
    half = graph("(float16[N,8] x) => (float16[N,8] y)", "y = LayerNormalization(x, g)", g=EIGHT.astype(np.float16))
    assert_left_alone(LayerNormToComposed(), half, "FLOAT16")


RMS = {
    "div": "q = Mul(x, x) v = ReduceMean<axes=[-1]>(q) e = Add(v, eps) r = Sqrt(e) n = Div(x, r) y = Mul(g, n)",
    "reciprocal": "q = Pow(x, two) v = ReduceMean<axes=[-1]>(q) e = Add(v, eps) r = Sqrt(e) i = Reciprocal(r)"
    " n = Mul(x, i) y = Mul(n, g)",
}


@pytest.mark.parametrize("name", RMS)
def test_every_spelling_of_rms_norm_is_found(name: str) -> None:
    made = model(RMS[name], opset=13)
    assert assert_rewritten(RmsNormToContributed(), made) == {"SimplifiedLayerNormalization": 1}
    newer = model(RMS[name].replace("<axes=[-1]>(q)", "(q, axes)"), opset=23)
    assert assert_rewritten(RmsNormToNative(), newer) == {"RMSNormalization": 1}
    assert_left_alone(RmsNormToNative(), made, "opset 13")
    assert_left_alone(LayerNormToNative(), newer, "no layer-norm")


def test_rms_norm_with_a_mean_taken_off_is_no_rms_norm() -> None:
    assert_left_alone(RmsNormToContributed(), model(PLAIN_NORM), "no rms-norm")


def test_native_rms_norm_is_composed() -> None:
    made = graph(ROWS, "y = RMSNormalization<axis=-1>(x, g)", opset=23, g=EIGHT)
    assert "RMSNormalization" not in assert_rewritten(RmsNormToComposed(), made)
    old = graph(ROWS, "y = SimplifiedLayerNormalization<axis=-1, epsilon=0.01>(x, g)", opset=17, g=EIGHT)
    assert "SimplifiedLayerNormalization" not in assert_rewritten(RmsNormToComposed(), old)


SIX = np.linspace(0.5, 2, 6, dtype=np.float32)
INSTANCE = PLAIN_NORM.replace("[-1]", "[2,3]")


@pytest.mark.parametrize("shape", [(1, 6, 1, 1), (6, 1, 1)])
def test_instance_norm_is_found(shape: tuple[int, ...]) -> None:
    made = model(INSTANCE, IMAGES, g=SIX.reshape(shape), b=SIX.reshape(shape))
    assert assert_rewritten(InstanceNormToNative(), made) == {"InstanceNormalization": 1}
    bare = model(INSTANCE.removesuffix(AFFINE) + " y = Neg(n)", IMAGES)
    assert assert_rewritten(InstanceNormToNative(), bare) == {"InstanceNormalization": 1, "Neg": 1}


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (model(INSTANCE.replace("[2,3]", "[1,2,3]"), IMAGES, g=np.float32(2), b=np.float32(1)), "not over all spatial"),
        (model(INSTANCE.replace("[2,3]", "[3]"), IMAGES, g=np.float32(2), b=np.float32(1)), "not over all spatial"),
        (model(INSTANCE.replace("[2,3]", "[1]"), "(float[N,8] x) => (float[N,8] y)"), "channels and spatial"),
    ],
)
def test_instance_norm_is_left_alone(made: bytes, reason: str) -> None:
    assert_left_alone(InstanceNormToNative(), made, reason)


def test_instance_norm_leaves_scales_that_are_not_per_channel_outside() -> None:
    made = model(INSTANCE, IMAGES, g=np.ones((1, 1, 1, 4), np.float32), b=SIX.reshape(6, 1, 1))
    assert assert_rewritten(InstanceNormToNative(), made) == {"InstanceNormalization": 1, "Mul": 1, "Add": 1}
    one = model(INSTANCE, IMAGES, g=np.float32(3), b=SIX.reshape(6, 1, 1))
    assert assert_rewritten(InstanceNormToNative(), one) == {"InstanceNormalization": 1}


@pytest.mark.parametrize("opset", [9, 13, 18])
def test_native_instance_norm_is_composed(opset: int) -> None:
    made = graph(IMAGES, "y = InstanceNormalization<epsilon=0.01>(x, g, b)", opset=opset, g=SIX, b=SIX)
    for version in (made, overridable(made, "g")):
        assert "InstanceNormalization" not in assert_rewritten(InstanceNormToComposed(), version)


GROUP = {
    "instance norm": "i = Reshape(x, into) n = InstanceNormalization(i, ones, zeros) o = Reshape(n, back)",
    "shape": "i = Reshape(x, into) n = InstanceNormalization(i, ones, zeros) w = Shape(x) o = Reshape(n, w)",
    "elementary": "i = Reshape(x, into) m = ReduceMean(i, axes) d = Sub(i, m) q = Mul(d, d) v = ReduceMean(q, axes)"
    " e = Add(v, eps) r = Sqrt(e) n = Div(d, r) o = Reshape(n, back)",
}
GROUP_WEIGHTS = {
    "into": np.array([0, 3, -1], np.int64),
    "back": np.array([0, 6, 5, 4], np.int64),
    "ones": np.ones(3, np.float32),
    "zeros": np.zeros(3, np.float32),
    "g": SIX.reshape(6, 1, 1),
    "b": SIX.reshape(1, 6, 1, 1),
}
FIXED = IMAGES.replace("S", "5")


@pytest.mark.parametrize("name", GROUP)
def test_every_spelling_of_group_norm_is_found(name: str) -> None:
    made = model(GROUP[name] + " s = Mul(o, g) y = Add(s, b)", FIXED, 21, **GROUP_WEIGHTS)
    assert assert_rewritten(GroupNormToNative(), made) == {"GroupNormalization": 1}
    bare = model(GROUP[name] + " y = Neg(o)", FIXED, 21, **GROUP_WEIGHTS)
    assert assert_rewritten(GroupNormToNative(), bare) == {"GroupNormalization": 1, "Neg": 1}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"into": np.array([0, 5, -1], np.int64)}, "only split the channels"),
        ({"into": np.array([-1, 3, 10], np.int64)}, "only split the channels"),
        ({"back": np.array([0, 6, 4, 5], np.int64)}, "shape from before"),
        ({"ones": np.full(3, 2, np.float32)}, "no group-norm"),
    ],
)
def test_group_norm_is_left_alone(changes: Any, reason: str) -> None:
    sizes = FIXED if "back" not in changes else FIXED.replace("[N,6,5,4] y", "[N,6,4,5] y")
    if "into" in changes:
        sizes = sizes.replace("[N,6,5,4] x", "[N,6,5,5] x").replace("[N,6,5,4] y", "[N,6,5,5] y")
        changes = {**changes, "back": np.array([-1, 6, 5, 5], np.int64)}
    groups = int(changes.get("into", [0, 3])[1])
    ones = {"ones": np.ones(groups, np.float32), "zeros": np.zeros(groups, np.float32)}
    made = model(GROUP["instance norm"] + " y = Neg(o)", sizes, 21, **{**GROUP_WEIGHTS, **ones, **changes})
    assert_left_alone(GroupNormToNative(), made, reason)


@pytest.mark.parametrize("opset", [18, 21])
def test_native_group_norm_is_composed(opset: int) -> None:
    weights = dict.fromkeys(("g", "b"), SIX if opset >= 21 else SIX[:3])
    made = graph(IMAGES, "y = GroupNormalization<num_groups=3, epsilon=0.01>(x, g, b)", opset=opset, **weights)
    assert "GroupNormalization" not in assert_rewritten(GroupNormToComposed(), made)


@pytest.mark.parametrize("rewrite", [InstanceNormToComposed(), GroupNormToComposed(), LayerNormToComposed()])
def test_what_is_not_there_is_objected_to(rewrite: Rewrite) -> None:
    assert_left_alone(rewrite, graph(ROWS, "y = Neg(x)", opset=21), "the model has no")
