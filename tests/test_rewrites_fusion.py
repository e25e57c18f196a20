"""No-ops removed, Clip chains merged, Pad put into windows: where that is the same, and left alone where it is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from ort_metainfer.rewrites.fusion import MergeClips, RemoveNoOps
from ort_metainfer.rewrites.fusion_padding import PadIntoWindow
from tests.operator_graphs import assert_left_alone, assert_rewritten, graph, operators, overridable, rewritten
from tests.rewrite_run import outputs

FLAT = "(float[N,8] x) => (float[N,8] y)"
IMAGE = "(float[N,2,6,7] x) => (float[N,C,H,W] y)"
EIGHT = np.arange(8, dtype=np.float32)


def between(body: str, signature: str = FLAT, **arrays: Any) -> bytes:
    """``body`` from a to b, between an Abs and a Neg."""
    return graph(signature, f"a = Abs(x) {body} y = Neg(b)", **arrays)


DOES_NOTHING = {
    "Identity": between("b = Identity(a)"),
    "Dropout": between("b = Dropout(a)"),
    "Dropout with a mask nobody wants": between("b, m = Dropout(a)"),
    "Dropout that is told not to train": between("b = Dropout(a, r, t)", r=np.float32(0.5), t=np.array(False)),
    "Cast": between("b = Cast<to = 1>(a)"),
    "Transpose": between("b = Transpose<perm = [0, 1]>(a)"),
    "Reshape that copies": between("b = Reshape(a, s)", s=np.array([0, 8])),
    "Reshape with one open size": between("b = Reshape(a, s)", s=np.array([-1, 8])),
    "Flatten": between("b = Flatten(a)"),
    "Concat": between("b = Concat<axis = 1>(a)"),
    "Max": between("b = Max(a)"),
    "Pad": between("b = Pad(a, p)", p=np.zeros(4, np.int64)),
    "Sub": between("b = Sub(a, c)", c=np.zeros(8, np.float32)),
    "Add of -0": between("b = Add(a, c)", c=np.float32(-0.0)),
    "Mul": between("b = Mul(c, a)", c=np.ones((1, 1), np.float32)),
    "Div": between("b = Div(a, c)", c=np.float32(1)),
    "Pow": between("b = Pow(a, c)", c=np.int64(1)),
    "Slice": between("b = Slice(a, s, e)", s=np.array([0, 0]), e=np.array([2**31 - 1, 8])),
    "Split": between("b = Split(a, s)", s=np.array([3]), signature="(float[3,8] x) => (float[3,8] y)"),
    "Resize": between("b = Resize(a, , s)", s=np.ones(4, np.float32), signature=IMAGE),
}


@pytest.mark.parametrize("name", DOES_NOTHING)
def test_what_does_nothing_goes(name: str) -> None:
    assert assert_rewritten(RemoveNoOps(), DOES_NOTHING[name]) == {"Abs": 1, "Neg": 1}


def test_casts_there_and_back_go_where_the_type_between_is_wider() -> None:
    body = "b = Cast<to = 11>(a) c = Cast<to = 1>(b) y = Neg(c)"
    assert assert_rewritten(RemoveNoOps(), graph(FLAT, f"a = Abs(x) {body}")) == {"Abs": 1, "Neg": 1}


KEPT = {
    "Cast to less": graph(FLAT, "b = Cast<to = 10>(x) y = Cast<to = 1>(b)"),
    "adding 0 (-0 becomes 0)": between("b = Add(a, c)", c=np.float32(0)),
    "a product of more dimensions": graph(
        "(float[8] x) => (float[2,8] y)", "a = Abs(x) y = Mul(a, c)", c=np.ones((2, 8), np.float32)
    ),
    "a product that repeats": graph(
        "(float[N,1] x) => (float[N,8] y)", "a = Abs(x) y = Mul(a, c)", c=np.ones(8, np.float32)
    ),
    "Reshape with two open sizes": graph("(float[N,S] x) => (float[P,Q] y)", "y = Reshape(x, s)", s=np.array([-1, 5])),
    "Slice that drops": graph("(float[N,8] x) => (float[N,7] y)", "y = Slice(x, s, e, a)", s=np.array([0]),
                              e=np.array([7]), a=np.array([1])),
    "Transpose": graph("(float[3,3] x) => (float[3,3] y)", "y = Transpose<perm = [1, 0]>(x)"),
    "Pow of integers to floats": graph(FLAT, "y = Pow(x, c)", c=np.float32(1.5)),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_does_something_stays(name: str) -> None:
    assert_left_alone(RemoveNoOps(), KEPT[name], "no remove-no-ops pattern")


def test_a_default_that_a_caller_may_override_is_no_constant() -> None:
    model = overridable(between("b = Mul(a, c)", c=np.ones(8, np.float32)), "c")
    assert_left_alone(RemoveNoOps(), model, "no remove-no-ops pattern")


def test_a_dropout_that_trains_stays() -> None:
    model = between("b, m = Dropout(a, r, t)", r=np.float32(0), t=np.array(True))
    assert_left_alone(RemoveNoOps(), model, "not known to change nothing")


def test_an_inner_value_takes_over_the_name_of_the_output() -> None:
    after, _ = rewritten(RemoveNoOps(), graph(FLAT, "a = Abs(x) y = Identity(a)"))
    assert operators(after) == {"Abs": 1} and after.graph.output[0].name == "y"


def test_an_output_that_is_an_input_needs_its_identity() -> None:
    assert_left_alone(RemoveNoOps(), graph(FLAT, "y = Identity(x)"), "graph output")


def test_two_names_for_one_value_need_an_identity() -> None:
    model = graph("(float[N,8] x) => (float[N,8] y, float[N,8] z)", "y = Abs(x) z = Identity(y)")
    assert_left_alone(RemoveNoOps(), model, "graph output")


def test_a_scalar_output_keeps_its_shape() -> None:
    after, _ = rewritten(RemoveNoOps(), graph("(float x) => (float y)", "a = Abs(x) y = Identity(a)"))
    assert after.graph.output[0].type.tensor_type.HasField("shape")


def test_what_a_branch_captures_is_followed() -> None:
    body = """a = Abs(x) b = Identity(a)
        y = If(flag) <then_branch = then () => (float[N,8] t) { t = Neg(b) },
                      else_branch = other () => (float[N,8] e) { c = Identity(b) e = Exp(c) }>"""
    model = graph("(float[N,8] x, bool flag) => (float[N,8] y)", body)
    after, outcome = rewritten(RemoveNoOps(), model)
    assert outcome.changed == 2 and operators(after) == {"Abs": 1, "If": 1}


# Clip and Relu


CLIPS = {
    "Relu, Relu": ("a = Relu(x) y = Relu(a)", {}, ["Relu"]),
    "Relu, Clip": ("a = Relu(x) y = Clip(a, l, h)", {"l": -1, "h": 6}, ["Clip"]),
    "Clip, Relu": ("a = Clip(x, l, h) y = Relu(a)", {"l": -1, "h": 1}, ["Clip"]),
    "Clip, Clip apart": ("a = Clip(x, l, h) y = Clip(a, m)", {"l": -1, "h": 1, "m": 2}, ["Clip"]),
    "Clip without limits": ("a = Clip(x) y = Relu(a)", {}, ["Relu"]),
    "three": ("a = Clip(x, l) b = Clip(a, , h) y = Relu(b)", {"l": -1, "h": 2}, ["Clip"]),
}


@pytest.mark.parametrize("name", CLIPS)
def test_chains_of_clips_become_one(name: str) -> None:
    body, limits, left = CLIPS[name]
    model = graph(FLAT, body, **{key: np.float32(value) for key, value in limits.items()})
    after, _ = rewritten(MergeClips(), model)
    assert list(operators(after)) == left and sum(operators(after).values()) == 1


def test_merged_clips_treat_nan_and_infinities_alike() -> None:
    model = graph(FLAT, "a = Relu(x) y = Clip(a, l, h)", l=np.float32(-1), h=np.float32(6))
    x = np.array([[np.nan, np.inf, -np.inf, -0.0, 0, 7, -7, 1]] * 3, np.float32)
    rewritten(MergeClips(), model, {"x": x})


def test_clips_in_the_old_spelling_merge() -> None:
    model = graph(FLAT, "a = Clip<min = -1.0, max = 3.0>(x) y = Clip<max = 2.0>(a)", opset=9)
    assert assert_rewritten(MergeClips(), model) == {"Clip": 1}


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (graph("(float[N,8] x, float l) => (float[N,8] y)", "a = Relu(x) y = Clip(a, l)"), "not constant"),
        (overridable(graph(FLAT, "a = Relu(x) y = Clip(a, l)", l=np.float32(1)), "l"), "not constant"),
        (graph("(float[N,8] x) => (float[N,8] y, float[N,8] a)", "a = Relu(x) y = Relu(a)"), "graph output"),
        (graph(FLAT, "a = Relu(x) b = Relu(a) y = Add(a, b)"), "used elsewhere"),
        (graph(FLAT, "a = Relu(x) y = Clip(a, l, h)", l=np.float32(2), h=np.float32(1)), "above the upper"),
    ],
)
def test_clips_are_left_alone(model: bytes, reason: str) -> None:
    assert_left_alone(MergeClips(), model, reason)


# Pad

WEIGHT = np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype(np.float32)
AROUND = np.array([0, 0, 1, 2, 0, 0, 1, 0])


PADS = {
    "Conv": ("p = Pad(x, s) y = Conv(p, w)", {"s": AROUND, "w": WEIGHT}),
    "Conv that pads": ("p = Pad(x, s) y = Conv<pads = [1,1,1,1]>(p, w)", {"s": AROUND, "w": WEIGHT}),
    "Conv with VALID": ('p = Pad(x, s, z) y = Conv<auto_pad = "VALID">(p, w)',
                        {"s": AROUND, "w": WEIGHT, "z": np.float32(0)}),
    "AveragePool": ("p = Pad(x, s) y = AveragePool<kernel_shape = [3,3]>(p)", {"s": AROUND}),
    "AveragePool that counts": (
        "p = Pad(x, s) y = AveragePool<kernel_shape = [4,4], pads = [1,1,1,1], count_include_pad = 1>(p)",
        {"s": AROUND}),
    "MaxPool of Relu": (
        "r = Relu(x) p = Pad(r, s) y = MaxPool<kernel_shape = [3,3], strides = [2,2]>(p)", {"s": AROUND}),
    "MaxPool with -inf": ("p = Pad(x, s, z) y = MaxPool<kernel_shape = [3,3]>(p)",
                          {"s": AROUND, "z": np.float32(-np.inf)}),
}  # fmt: skip


@pytest.mark.parametrize("name", PADS)
def test_a_pad_goes_into_the_window_behind_it(name: str) -> None:
    body, arrays = PADS[name]
    assert "Pad" not in assert_rewritten(PadIntoWindow(), graph(IMAGE, body, **arrays))


def test_pads_by_axes_and_in_the_old_spelling_go_too() -> None:
    given = {"s": np.array([1, 2]), "a": np.array([3]), "w": WEIGHT}
    model = graph(IMAGE, "p = Pad(x, s, , a) y = Conv(p, w)", opset=18, **given)
    assert assert_rewritten(PadIntoWindow(), model) == {"Conv": 1}
    model = graph(IMAGE, "p = Pad<pads = [0,0,1,1,0,0,1,1]>(x) y = Conv(p, w)", opset=10, w=WEIGHT)
    assert assert_rewritten(PadIntoWindow(), model) == {"Conv": 1}


@pytest.mark.parametrize(
    ("body", "arrays", "reason"),
    [
        ("p = Pad(x, s, z) y = Conv(p, w)", {"s": AROUND, "w": WEIGHT, "z": np.float32(1)}, "with zeros, not with 1"),
        ('p = Pad<mode = "reflect">(x, s) y = Conv(p, w)', {"s": AROUND, "w": WEIGHT}, "not pad with a constant"),
        ("p = Pad(x, s) y = Conv(p, w)", {"s": np.array([1, 0, 0, 0, 0, 0, 0, 0]), "w": WEIGHT}, "batch or channels"),
        ("p = Pad(x, s) y = Conv(p, w)", {"s": np.array([0, 0, -1, 0, 0, 0, 0, 0]), "w": WEIGHT}, "crops"),
        ('p = Pad(x, s) y = Conv<auto_pad = "SAME_UPPER">(p, w)', {"s": AROUND, "w": WEIGHT}, "depends on sizes"),
        ("p = Pad(x, s) y = MaxPool<kernel_shape = [3,3]>(p)", {"s": AROUND}, "may be the maximum"),
        ("r = Relu(x) p = Pad(r, s) y, i = MaxPool<kernel_shape = [3,3]>(p) z = Neg(i)", {"s": AROUND}, "indices"),
        ("p = Pad(x, s) y = AveragePool<kernel_shape = [2,2]>(p)", {"s": AROUND}, "as much as a window"),
        ("p = Pad(x, s) y = AveragePool<kernel_shape = [4,4], pads = [1,1,1,1]>(p)", {"s": AROUND}, "counted in part"),
        ("p = Pad(x, s) y = AveragePool<kernel_shape = [3,3], ceil_mode = 1, strides = [2,2]>(p)", {"s": AROUND}, "up"),
    ],
)
def test_a_pad_is_left_alone(body: str, arrays: dict[str, Any], reason: str) -> None:
    more = ", int64[N,C,H,W] z" if "z = Neg(i)" in body else ""
    assert_left_alone(PadIntoWindow(), graph(IMAGE[:-1] + more + ")", body, **arrays), reason)


def test_a_pad_that_somebody_else_uses_stays() -> None:
    body = "p = Pad(x, s) y = Conv(p, w) z = Neg(p)"
    model = graph(IMAGE[:-1] + ", float[N,C,P,Q] z)", body, s=AROUND, w=WEIGHT)
    assert_left_alone(PadIntoWindow(), model, "used elsewhere")


def test_names_and_weights_of_the_result_are_those_of_one_model() -> None:
    after, _ = rewritten(PadIntoWindow(), graph(IMAGE, PADS["Conv"][0], **PADS["Conv"][1]))
    onnx.checker.check_model(after, full_check=True)
    assert outputs(after.SerializeToString(), [{"x": np.zeros((1, 2, 6, 7), np.float32)}])
