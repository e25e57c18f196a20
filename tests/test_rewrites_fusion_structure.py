"""Reshapes and transposes merged, duplicates made once, parallel products made one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from ort_metainfer.rewrites.fusion_duplicates import MergeDuplicateNodes, MergeDuplicateWeights, RemoveUnused
from ort_metainfer.rewrites.fusion_parallel import MergeParallelProducts
from ort_metainfer.rewrites.fusion_reshapes import MergeReshapes
from ort_metainfer.rewrites.fusion_transposes import MergeTransposes, TransposeIntoGemm
from tests.operator_graphs import assert_left_alone, assert_rewritten, graph, operators, overridable, rewritten
from tests.rewrite_run import apply_to_bytes

RNG = np.random.default_rng(9)
FLAT = "(float[N,8] x) => (float[N,8] y)"
CUBE = "(float[N,S,8] x) => (float[A,B,C] y)"


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# reshapes and transposes

CHAINS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "Reshape, Reshape": ("(float[N,8] x) => (float[A,B] y)", "a = Reshape(x, s) y = Reshape(a, t)",
                         {"s": np.array([-1, 2, 2]), "t": np.array([-1, 4])}, "Reshape"),
    "Reshape that copies, Reshape that copies": (
        "(float[N,8] x) => (float[A,B,C] y)", "a = Reshape(x, s) y = Reshape(a, t)",
        {"s": np.array([0, 2, 4]), "t": np.array([0, 0, 4])}, "Reshape"),
    "Flatten, Reshape": ("(float[N,2,4] x) => (float[A,B] y)", "a = Flatten(x) y = Reshape(a, t)",
                         {"t": np.array([-1, 4])}, "Reshape"),
    "Squeeze, Flatten": ("(float[N,1,2,4] x) => (float[A,B] y)", "a = Squeeze(x, s) y = Flatten(a)",
                         {"s": np.array([1])}, "Reshape"),
    "Unsqueeze, Unsqueeze": ("(float[3,8] x) => (float[A,B,C,D] y)", "a = Unsqueeze(x, s) y = Unsqueeze(a, s)",
                             {"s": np.array([0])}, "Reshape"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_two_reshapes_become_one(name: str) -> None:
    signature, body, arrays, left = CHAINS[name]
    assert assert_rewritten(MergeReshapes(), graph(signature, body, **arrays)) == {left: 1}


@pytest.mark.parametrize(("first", "second"), [("Unsqueeze", "Squeeze"), ("Squeeze", "Unsqueeze")])
def test_what_undoes_itself_goes(first: str, second: str) -> None:
    signature = "(float[N,1,8] x) => (float[A,B,C] y)"
    model = graph(signature, f"b = Abs(x) a = {first}(b, s) c = {second}(a, t) y = Neg(c)", s=[1], t=[1])
    assert assert_rewritten(MergeReshapes(), model) == {"Abs": 1, "Neg": 1}


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (graph("(float[N,S,2] x) => (float[A,B,C] y)", "a = Flatten(x) y = Unsqueeze(a, s)", s=[0]), "not constant"),
        (graph("(float[N,8] x, int64[2] t) => (float[A,B] y)", "a = Flatten(x) y = Reshape(a, t)"), "not constant"),
        (
            graph("(float[N,8] x) => (float[A,B] y)", "a = Flatten(x) b = Reshape(a, t) y = Add(a, b)", t=[-1, 8]),
            "else",
        ),
    ],
)
def test_reshapes_are_left_alone(model: bytes, reason: str) -> None:
    proto = onnx.load_from_string(model)
    sizes = (3, 5, 2) if len(proto.graph.input[0].type.tensor_type.shape.dim) == 3 else (3, 8)
    feed = {"x": draw(*sizes)} | ({"t": np.array([4, 6])} if len(proto.graph.input) > 1 else {})
    after, outcome = rewritten(MergeReshapes(), model, feed)
    assert not outcome.changed and operators(after) == operators(proto)
    assert any(reason in note for note in outcome.notes)


def test_transposes_cancel_merge_or_do_nothing() -> None:
    there = "a = Transpose<perm = [0,2,1]>(x)"
    model = graph(CUBE, f"r = Abs(x) {there.replace('(x)', '(r)')} b = Transpose<perm = [0,2,1]>(a) y = Neg(b)")
    assert assert_rewritten(MergeTransposes(), model) == {"Abs": 1, "Neg": 1}
    model = graph(CUBE, f"{there} y = Transpose<perm = [2,0,1]>(a)")
    assert assert_rewritten(MergeTransposes(), model) == {"Transpose": 1}
    model = graph(CUBE, "r = Abs(x) a = Transpose<perm = [0,1,2]>(r) y = Neg(a)")
    assert assert_rewritten(MergeTransposes(), model) == {"Abs": 1, "Neg": 1}


def test_a_transpose_that_is_undone_stays_for_those_who_want_it() -> None:
    body = "r = Abs(x) a = Transpose<perm = [0,2,1]>(r) b = Transpose<perm = [0,2,1]>(a) y = Neg(b) z = Neg(a)"
    model = graph("(float[N,S,8] x) => (float[A,B,C] y, float[A,D,E] z)", body)
    assert assert_rewritten(MergeTransposes(), model)["Transpose"] == 1


def test_transposes_into_gemm_on_either_side() -> None:
    body = "a = Transpose(x) b = Transpose(w) y = Gemm<transB = 1>(a, b, c)"
    model = graph("(float[4,3] x) => (float[A,B] y)", body, w=draw(4, 6), c=draw(6))
    after, _ = rewritten(TransposeIntoGemm(), model)
    assert operators(after) == {"Gemm": 1}
    assert {a.name: a.i for a in after.graph.node[0].attribute} == {"transA": 1, "transB": 0}
    shared = graph(
        "(float[4,3] x) => (float[A,B] y)", "a = Transpose(x) b = Gemm(a, w) y = Concat<axis = 1>(a, b)", w=draw(4, 4)
    )
    assert_left_alone(TransposeIntoGemm(), shared, "used elsewhere")


# duplicates


def test_duplicate_chains_go_as_a_whole() -> None:
    body = "a = Exp(x) b = Exp(x) c = Neg(a) d = Neg(b) y = Add(c, d)"
    assert assert_rewritten(MergeDuplicateNodes(), graph(FLAT, body), times=2) == {"Exp": 1, "Neg": 1, "Add": 1}


def test_constants_in_nodes_and_operators_of_several_outputs_merge() -> None:
    body = """k = Constant<value = float[2] {1, 2}>() l = Constant<value = float[2] {1, 2}>()
        a, b = Split<axis = 1>(x) c, d = Split<axis = 1>(x) e = Mul(a, k) f = Mul(c, l) g = Add(e, f) y = Add(g, d)"""
    model = graph("(float[N,4] x) => (float[N,2] y)", body)
    assert assert_rewritten(MergeDuplicateNodes(), model, times=3)["Split"] == 1


@pytest.mark.parametrize(
    "body",
    [
        "a = RandomNormalLike(x) b = RandomNormalLike(x) c = Sub(a, b) d = Mul(c, zero) y = Add(x, d)",
        "a = Bernoulli(h) b = Bernoulli(h) c = Sub(a, b) d = Mul(c, zero) y = Add(x, d)",
        "a = Cast<to = 1>(x) y = Cast<to = 11>(a)",
        "a = LeakyRelu<alpha = 0.1>(x) b = LeakyRelu<alpha = 0.2>(x) y = Sub(a, b)",
        "a = Sub(x, h) b = Sub(h, x) y = Sub(a, b)",
    ],
)
def test_what_is_not_the_same_stays(body: str) -> None:
    signature = FLAT if "11" not in body else "(float[N,8] x) => (double[N,8] y)"
    model = graph(signature, body, zero=np.float32(0), h=np.full((1, 8), 0.5, np.float32))
    assert_left_alone(MergeDuplicateNodes(), model, "no node is there twice")


def test_equal_outputs_keep_both_names() -> None:
    model = graph("(float[N,8] x) => (float[N,8] y, float[N,8] z)", "y = Exp(x) z = Exp(x)")
    assert_left_alone(MergeDuplicateNodes(), model, "graph output")
    model = graph("(float[N,8] x) => (float[N,8] y, float[N,8] z)", "a = Exp(x) z = Exp(x) y = Neg(a)")
    after, _ = rewritten(MergeDuplicateNodes(), model)
    assert operators(after) == {"Exp": 1, "Neg": 1} and [v.name for v in after.graph.output] == ["y", "z"]


def test_dequantised_twice_stays_twice() -> None:
    body = "a = DequantizeLinear(w, s) b = DequantizeLinear(w, s) c = Mul(x, a) y = Mul(c, b)"
    model = graph(FLAT, body, w=np.ones(8, np.int8), s=np.float32(0.5))
    assert_left_alone(MergeDuplicateNodes(), model, "no node is there twice")


def test_equal_weights_are_kept_once() -> None:
    w = draw(8)
    model = graph(FLAT, "a = Mul(x, w) b = Mul(a, v) y = Mul(b, u)", w=w, v=w, u=w.astype(np.float32) + 1)
    after, outcome = rewritten(MergeDuplicateWeights(), model)
    assert outcome.changed == 1 and outcome.figures["saved_bytes"] == 32 and len(after.graph.initializer) == 2


def test_equal_weights_of_other_types_or_overridable_ones_stay() -> None:
    zeros = np.zeros(8, np.float32)
    model = graph(FLAT, "a = Add(x, w) b = Cast<to = 1>(v) y = Add(a, b)", w=zeros, v=zeros.astype(np.int32))
    assert_left_alone(MergeDuplicateWeights(), model, "no initialiser is there twice")
    model = overridable(graph(FLAT, "a = Add(x, w) y = Add(a, v)", w=zeros, v=zeros), "v")
    assert_left_alone(MergeDuplicateWeights(), model, "no initialiser is there twice")


def test_what_nobody_uses_goes_with_the_branches_it_holds() -> None:
    body = """a = Exp(x) b = Neg(a) u = Mul(x, w)
        z = If(flag) <then_branch = then () => (float[N,8] t) { t = Abs(u) },
                      else_branch = other () => (float[N,8] e) { e = Abs(x) }> y = Abs(x)"""
    after, outcome = rewritten(
        RemoveUnused(), graph("(float[N,8] x, bool flag) => (float[N,8] y)", body, w=draw(8), unused=draw(3))
    )
    assert operators(after) == {"Abs": 1} and not after.graph.initializer and outcome.changed == 6
    assert [value.name for value in after.graph.input] == ["x", "flag"]


def test_defaults_of_inputs_that_nobody_uses_stay() -> None:
    model = overridable(graph(FLAT, "y = Abs(x)", w=draw(8)), "w")
    assert_left_alone(RemoveUnused(), model, "every part of it is used")


# parallel products

PARALLEL: dict[str, tuple[str, str, dict[str, np.ndarray], dict[str, int]]] = {
    "MatMul": (CUBE, "a = MatMul(x, u) b = MatMul(x, v) c = MatMul(x, w) d = Add(a, b) y = Mul(d, c)",
               {"u": draw(8, 4), "v": draw(8, 4), "w": draw(8, 4)}, {"MatMul": 1, "Split": 1, "Add": 1, "Mul": 1}),
    "MatMul of other widths": ("(float[N,8] x) => (float[N,7] y)",
                               "a = MatMul(x, u) b = MatMul(x, v) y = Concat<axis = 1>(b, a)",
                               {"u": draw(8, 4), "v": draw(8, 3)}, {"MatMul": 1, "Split": 1, "Concat": 1}),
    "MatMul and Add": (CUBE, "a = MatMul(x, u) b = MatMul(x, v) c = Add(a, s) d = Add(t, b) y = Mul(c, d)",
                       {"u": draw(8, 4), "v": draw(8, 4), "s": draw(4), "t": draw(4)},
                       {"MatMul": 1, "Split": 1, "Add": 1, "Mul": 1}),
    "Gemm": (FLAT, "a = Gemm<transB = 1>(x, u, s) b = Gemm<transB = 1>(x, v, t) y = Mul(a, b)",
             {"u": draw(8, 8), "v": draw(8, 8), "s": draw(8), "t": draw(1, 8)}, {"Gemm": 1, "Split": 1, "Mul": 1}),
    "Conv": ("(float[N,2,5,5] x) => (float[N,A,B,C] y)",
             "a = Conv<pads = [1,1,1,1]>(x, u, s) b = Conv<pads = [1,1,1,1]>(x, v, t) y = Concat<axis = 1>(b, a)",
             {"u": draw(3, 2, 3, 3), "v": draw(4, 2, 3, 3), "s": draw(3), "t": draw(4)},
             {"Conv": 1, "Split": 1, "Concat": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", PARALLEL)
@pytest.mark.parametrize("opset", [11, 17])
def test_parallel_products_become_one(name: str, opset: int) -> None:
    signature, body, arrays, left = PARALLEL[name]
    assert assert_rewritten(MergeParallelProducts(), graph(signature, body, opset=opset, **arrays)) == left


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a = Conv<group = 2>(x, g) b = Conv<group = 2>(x, g) y = Add(a, b)", "grouped"),
        ("a = Conv(x, w) b = Conv<strides = [2,2]>(x, w) y = Concat<axis = 1>(b, b) z = Abs(a)", "no two products"),
        ("a = Conv(x, w) b = Conv(x, w, s) y = Add(a, b)", "no two products"),
        ("a = Conv(x, w) r = Relu(x) b = Conv(r, w) y = Add(a, b)", "no two products"),
    ],
)
def test_products_that_are_not_parallel_stay(body: str, reason: str) -> None:
    arrays = {"w": draw(2, 2, 3, 3), "g": draw(2, 1, 3, 3), "s": draw(2)}
    signature = "(float[N,2,5,5] x) => (float[N,A,B,C] y" + (", float[N,D,E,F] z)" if "z = " in body else ")")
    assert_left_alone(MergeParallelProducts(), graph(signature, body, **arrays), reason)


def test_products_that_are_outputs_keep_their_names() -> None:
    model = graph(
        "(float[N,8] x) => (float[N,4] y, float[N,4] z)",
        "y = MatMul(x, u) z = MatMul(x, v)",
        u=draw(8, 4),
        v=draw(8, 4),
    )
    assert assert_rewritten(MergeParallelProducts(), model) == {"MatMul": 1, "Split": 1}


def test_wide_products_are_left_alone() -> None:
    signature, body, arrays, _ = PARALLEL["MatMul"]
    assert_left_alone(MergeParallelProducts(), graph(signature, body, **arrays), "more than 10", most_outputs=10)


def test_the_same_bytes_every_time() -> None:
    signature, body, arrays, _ = PARALLEL["MatMul and Add"]
    model = graph(signature, body, **arrays)
    assert len({apply_to_bytes(MergeParallelProducts(), model)[0] for _ in range(3)}) == 1
