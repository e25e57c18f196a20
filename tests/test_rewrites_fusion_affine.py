"""Scales and shifts per channel in the weights beside them; every kind of product, and every reason not to."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from ort_metainfer.rewrites.fusion_affine import (
    BatchNormBeforeLinear,
    BatchNormIntoLinear,
    ScaleBeforeLinear,
    ScaleIntoLinear,
)
from tests.operator_graphs import assert_left_alone, assert_rewritten, graph, overridable, rewritten

RNG = np.random.default_rng(5)
IMAGE = "(float[N,4,6,5] x) => (float[N,C,H,W] y)"
MATRIX = "(float[N,4] x) => (float[N,6] y)"


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def norm(channels: int) -> dict[str, np.ndarray]:
    """Scale, shift, mean, variance."""
    return {"s": draw(channels), "t": draw(channels), "m": draw(channels), "v": np.abs(draw(channels)) + 0.1}


LINEAR: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Conv": (IMAGE, "c = Conv(x, w)", {"w": draw(6, 4, 3, 3)}),
    "Conv with bias and padding": (IMAGE, "c = Conv<pads = [1,1,1,1]>(x, w, b)", {"w": draw(6, 4, 3, 3), "b": draw(6)}),
    "Conv in groups": (IMAGE, "c = Conv<group = 2>(x, w, b)", {"w": draw(6, 2, 3, 3), "b": draw(6)}),
    "depthwise Conv": (IMAGE, "c = Conv<group = 4>(x, w)", {"w": draw(4, 1, 3, 3)}),
    "ConvTranspose": (IMAGE, "c = ConvTranspose(x, w, b)", {"w": draw(4, 6, 3, 3), "b": draw(6)}),
    "ConvTranspose in groups": (IMAGE, "c = ConvTranspose<group = 2>(x, w)", {"w": draw(4, 3, 2, 2)}),
    "Gemm": (MATRIX, "c = Gemm(x, w, b)", {"w": draw(4, 6), "b": draw(6)}),
    "Gemm turned, with factors": (
        MATRIX, "c = Gemm<transB = 1, alpha = 0.5, beta = 2.0>(x, w, b)", {"w": draw(6, 4), "b": draw(1, 6)}),
    "Gemm with one number": (MATRIX, "c = Gemm(x, w, b)", {"w": draw(4, 6), "b": draw(1)}),
    "MatMul and Add": (MATRIX, "d = MatMul(x, w) c = Add(d, b)", {"w": draw(4, 6), "b": draw(6)}),
}  # fmt: skip


def channels_of(name: str) -> int:
    return 4 if name == "depthwise Conv" else 6


@pytest.mark.parametrize("name", LINEAR)
def test_batch_normalisation_behind_goes_into_the_weights(name: str) -> None:
    signature, body, arrays = LINEAR[name]
    model = graph(
        signature,
        f"{body} y = BatchNormalization<epsilon = 0.01>(c, s, t, m, v)",
        **arrays,
        **norm(channels_of(name)),
    )
    left = assert_rewritten(BatchNormIntoLinear(), model)
    assert "BatchNormalization" not in left and sum(left.values()) <= 2


def test_batch_normalisation_behind_a_bare_product_leaves_an_add() -> None:
    model = graph(MATRIX, "c = MatMul(x, w) y = BatchNormalization(c, s, t, m, v)", w=draw(4, 6), **norm(6))
    assert assert_rewritten(BatchNormIntoLinear(), model) == {"MatMul": 1, "Add": 1}


OPERATIONS = {"Mul": "Mul(c, k)", "Mul, swapped": "Mul(k, c)", "Add": "Add(c, k)", "Sub": "Sub(c, k)",
              "Sub from it": "Sub(k, c)", "Div": "Div(c, k)"}  # fmt: skip


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", LINEAR)
def test_one_constant_a_channel_behind_goes_into_the_weights(name: str, operation: str) -> None:
    signature, body, arrays = LINEAR[name]
    shape = (channels_of(name), 1, 1) if signature == IMAGE else (channels_of(name),)
    model = graph(signature, f"{body} y = {OPERATIONS[operation]}", k=np.abs(draw(*shape)) + 0.5, **arrays)
    left = assert_rewritten(ScaleIntoLinear(), model)
    assert sum(left.values()) == len(onnx.load_from_string(model).graph.node) - 1


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (1, 6, 1, 1)])
def test_constants_of_any_shape_that_is_per_channel_count(shape: tuple[int, ...]) -> None:
    signature, body, arrays = LINEAR["Conv"]
    model = graph(signature, f"{body} y = Mul(c, k)", k=np.asarray(draw(*shape) + 3, np.float32), **arrays)
    assert assert_rewritten(ScaleIntoLinear(), model) == {"Conv": 1}


def test_a_chain_goes_as_a_whole() -> None:
    signature, body, arrays = LINEAR["Conv"]
    tail = "e = Mul(c, k) f = Add(e, l) y = BatchNormalization(f, s, t, m, v)"
    model = graph(signature, f"{body} {tail}", k=draw(6, 1, 1), l=draw(6, 1, 1), **arrays, **norm(6))
    assert assert_rewritten(ScaleIntoLinear(), model, times=2) == {"Conv": 1, "BatchNormalization": 1}


def test_double_precision_stays_in_it() -> None:
    wide = {name: array.astype(np.float64) for name, array in (LINEAR["Gemm"][2] | {"k": draw(6)}).items()}
    model = graph("(double[N,4] x) => (double[N,6] y)", "c = Gemm(x, w, b) y = Mul(c, k)", **wide)
    assert assert_rewritten(ScaleIntoLinear(), model) == {"Gemm": 1}


def test_weights_that_others_use_are_not_touched() -> None:
    body = "c = Conv(x, w) d = Conv(x, w) e = Mul(c, k) y = Add(e, d)"
    model = graph(IMAGE, body, w=draw(6, 4, 3, 3), k=draw(6, 1, 1))
    assert assert_rewritten(ScaleIntoLinear(), model)["Conv"] == 2


BEHIND = "c = Conv(x, w)"


@pytest.mark.parametrize(
    ("body", "arrays", "reason"),
    [
        ("y = Mul(c, k)", {"k": draw(1, 1, 1, 3)}, "not one number a channel"),
        ("y = Mul(c, k)", {"k": draw(6, 4, 3)}, "not one number a channel"),
        ("y = Mul(c, k)", {"k": draw(2, 6, 1, 1)}, "not one number a channel"),
        ("y = Mul(c, k)", {"k": draw(1, 1, 6, 1, 1)}, "not one number a channel"),
        ("y = Mul(c, k)", {"k": np.full((6, 1, 1), np.inf, np.float32)}, "not finite"),
        ("y = Mul(c, k)", {"k": np.full((6, 1, 1), 3e38, np.float32)}, "would not be finite"),
        ("y = Div(c, k)", {"k": np.zeros((6, 1, 1), np.float32)}, "divides by zero"),
        ("d = Mul(c, k) y = Add(d, c)", {"k": draw(6, 1, 1)}, "used elsewhere"),
    ],
)
def test_scales_are_left_alone(body: str, arrays: dict[str, Any], reason: str) -> None:
    signature = "(float[2,4,6,5] x) => (float[A,B,C,D] y)"
    if any(a.ndim == 5 for a in arrays.values()):
        signature = "(float[2,4,6,5] x) => (float[A,B,C,D,E] y)"
    assert_left_alone(ScaleIntoLinear(), graph(signature, f"{BEHIND} {body}", w=draw(6, 4, 3, 3), **arrays), reason)


def test_constants_that_a_caller_may_override_stay() -> None:
    model = graph(IMAGE, "c = Conv(x, w) y = Mul(c, k)", w=draw(6, 4, 3, 3), k=draw(6, 1, 1))
    assert_left_alone(ScaleIntoLinear(), overridable(model, "w"), "weights are not constant")
    assert_left_alone(ScaleIntoLinear(), overridable(model, "k"), "no scale-into-linear pattern")


def test_a_product_that_is_a_graph_output_stays() -> None:
    model = graph(
        IMAGE[:-1] + ", float[N,C,H,W] c)", "c = Conv(x, w) y = Mul(c, k)", w=draw(6, 4, 3, 3), k=draw(6, 1, 1)
    )
    assert_left_alone(ScaleIntoLinear(), model, "graph output")


def test_a_product_outside_of_the_branch_that_scales_it_stays() -> None:
    body = """c = Conv(x, w)
        y = If(flag) <then_branch = then () => (float[N,6,4,3] t) { t = Mul(c, k) },
                      else_branch = other () => (float[N,6,4,3] e) { e = Exp(k2) }>"""
    signature = "(float[N,4,6,5] x, bool flag) => (float[N,C,H,W] y)"
    model = graph(signature, body, w=draw(6, 4, 3, 3), k=draw(6, 1, 1), k2=draw(3, 6, 4, 3))
    assert_left_alone(ScaleIntoLinear(), model, "different graphs")


def test_half_precision_is_left_alone() -> None:
    half = {"w": draw(4, 6).astype(np.float16), "b": draw(6).astype(np.float16), "k": draw(6).astype(np.float16)}
    model = graph("(float16[N,4] x) => (float16[N,6] y)", "c = Gemm(x, w, b) y = Mul(c, k)", **half)
    assert_left_alone(ScaleIntoLinear(), model, "rounded too coarsely")


def test_a_bare_product_has_no_place_for_a_shift() -> None:
    model = graph(MATRIX, "c = MatMul(x, w) y = Add(c, k)", w=draw(4, 6), k=draw(6))
    assert_left_alone(ScaleIntoLinear(), model, "no bias")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"v": np.full(6, -1, np.float32)}, "not finite"),
        ({"training_mode": 1}, "as in training"),
    ],
)
def test_unusual_batch_normalisation_is_left_alone(change: dict[str, Any], reason: str) -> None:
    attributes = "<training_mode = 1>" if "training_mode" in change else ""
    outs = "y, rm, rv" if attributes else "y"
    given = norm(6) | {name: value for name, value in change.items() if name == "v"}
    body = f"c = Conv(x, w) {outs} = BatchNormalization{attributes}(c, s, t, m, v)"
    assert_left_alone(BatchNormIntoLinear(), graph(IMAGE, body, w=draw(6, 4, 3, 3), **given), reason)


# before


BEFORE = {
    name: (signature, body.replace("(x, ", "(a, ", 1), arrays) for name, (signature, body, arrays) in LINEAR.items()
}


@pytest.mark.parametrize("name", [name for name in BEFORE if "pad" not in name and "Transpose" not in name])
def test_batch_normalisation_before_goes_into_the_weights(name: str) -> None:
    signature, body, arrays = BEFORE[name]
    body = f"a = BatchNormalization(x, s, t, m, v) {body}".replace(" c = ", " y = ")
    assert "BatchNormalization" not in assert_rewritten(
        BatchNormBeforeLinear(), graph(signature, body, **arrays, **norm(4))
    )


@pytest.mark.parametrize("name", BEFORE)
def test_a_scale_before_goes_into_the_weights_whatever_the_padding(name: str) -> None:
    signature, body, arrays = BEFORE[name]
    shape = (4, 1, 1) if signature == IMAGE else (4,)
    model = graph(signature, f"a = Mul(k, x) {body} y = Neg(c)", k=draw(*shape), **arrays)
    assert "Mul" not in assert_rewritten(ScaleBeforeLinear(), model)


def test_a_shift_before_padding_stays() -> None:
    model = graph(IMAGE, "a = Add(x, k) y = Conv<pads = [1,1,1,1]>(a, w)", k=draw(4, 1, 1), w=draw(6, 4, 3, 3))
    assert_left_alone(ScaleBeforeLinear(), model, "not shifted")
    model = graph(IMAGE, 'a = Add(x, k) y = Conv<auto_pad = "SAME_LOWER">(a, w)', k=draw(4, 1, 1), w=draw(6, 4, 3, 3))
    assert_left_alone(ScaleBeforeLinear(), model, "not shifted")
    model = graph(IMAGE, "a = Sub(x, k) y = ConvTranspose(a, w)", k=draw(4, 1, 1), w=draw(4, 6, 3, 3))
    assert_left_alone(ScaleBeforeLinear(), model, "not shifted")


def test_one_channel_that_is_repeated_by_the_scale_stays() -> None:
    model = graph(
        "(float[N,1,6,5] x) => (float[N,C,H,W] y)", "a = Mul(x, k) y = Conv(a, w)", k=draw(4, 1, 1), w=draw(6, 4, 3, 3)
    )
    assert_left_alone(ScaleBeforeLinear(), model, "repeat one channel")


def test_what_several_use_is_not_moved_into_one() -> None:
    model = graph(
        IMAGE, "a = Mul(x, k) b = Conv(a, w) c = Conv(a, w) y = Add(b, c)", k=draw(4, 1, 1), w=draw(6, 4, 3, 3)
    )
    assert_left_alone(ScaleBeforeLinear(), model, "used elsewhere")


def test_a_composed_gelu_is_left_whole() -> None:
    body = "a = Div(x, r) e = Erf(a) p = Add(e, one) q = Mul(x, p) h = Mul(q, half) y = MatMul(h, w)"
    constants = {"r": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5), "w": draw(4, 6)}
    assert_left_alone(ScaleBeforeLinear(), graph(MATRIX, body, **constants), "composed GELU")


def test_new_weights_have_names_of_their_own() -> None:
    signature, body, arrays = LINEAR["Conv"]
    after, _ = rewritten(ScaleIntoLinear(), graph(signature, f"{body} y = Mul(c, k)", k=draw(6, 1, 1), **arrays))
    assert len({tensor.name for tensor in after.graph.initializer}) == len(after.graph.initializer) == 1
    onnx.checker.check_model(after, full_check=True)
