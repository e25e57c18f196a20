"""What depends on constants, or on shapes that are known, is worked out once; and what only looks like it is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from ort_metainfer.rewrites import fusion_constants
from ort_metainfer.rewrites.fusion_constants import FoldConstants, FoldShapes
from tests.operator_graphs import assert_left_alone, assert_rewritten, graph, operators, overridable, rewritten

RNG = np.random.default_rng(9)
FLAT = "(float[N,8] x) => (float[N,8] y)"


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_what_depends_on_constants_is_computed_as_a_session_would() -> None:
    body = "a = Sin(w) b = Transpose<perm = [1, 0]>(a) c = MatMul(x, b) d = Exp(a) e = ReduceSum(d) y = Mul(c, e)"
    after, outcome = rewritten(FoldConstants(), graph("(float[N,8] x) => (float[N,4] y)", body, w=draw(4, 8)))
    assert operators(after) == {"MatMul": 1, "Mul": 1} and outcome.changed == 2
    assert len(after.graph.initializer) == 2


def test_captured_constants_count_in_branches() -> None:
    body = """y = If(flag) <then_branch = then () => (float[N,8] t) { a = Exp(w) t = Mul(x, a) },
                            else_branch = other () => (float[N,8] e) { e = Abs(x) }>"""
    after, outcome = rewritten(FoldConstants(), graph("(float[N,8] x, bool flag) => (float[N,8] y)", body, w=draw(8)))
    assert outcome.changed == 1
    branches = [attribute.g for attribute in after.graph.node[0].attribute]
    assert not any(node.op_type == "Exp" for branch in branches for node in branch.node)


@pytest.mark.parametrize(
    ("body", "arrays", "reason"),
    [
        (
            "a = RandomNormalLike(w) b = Mul(a, zero) y = Add(x, b)",
            {"w": draw(8), "zero": np.float32(0)},
            "nothing depends",
        ),
        (
            "q = DequantizeLinear(w, s) y = Mul(x, q)",
            {"w": np.ones(8, np.int8), "s": np.float32(0.5)},
            "nothing depends",
        ),
        (
            "a = Expand(w, s) y = ReduceMax<keepdims = 0>(a) z = Abs(x)",
            {"w": draw(1), "s": np.array([2000, 2000])},
            "larger",
        ),
    ],
)
def test_constants_are_left_alone(body: str, arrays: dict[str, Any], reason: str) -> None:
    if reason == "larger":
        body = "a = Expand(w, s) b = Add(x, a) y = ReduceMax(b)"
        model = graph("(float[2000,2000] x) => (float[A,B] y)", body, **arrays)
    else:
        model = graph(FLAT, body, **arrays)
    assert_left_alone(FoldConstants(), model, reason)


def test_constants_that_a_caller_may_override_are_not_folded() -> None:
    model = overridable(graph(FLAT, "a = Exp(w) y = Mul(x, a)", w=draw(8)), "w")
    assert_left_alone(FoldConstants(), model, "nothing depends")


def test_a_constant_graph_output_stays_computed() -> None:
    model = graph("(float[N,8] x) => (float[N,8] y, float[8] a)", "a = Exp(w) y = Mul(x, a)", w=draw(8))
    assert_left_alone(FoldConstants(), model, "nothing depends")


def test_growth_is_a_parameter() -> None:
    model = graph(
        "(float[N,1000] x) => (float[N,1000] y)", "a = Expand(w, s) y = Mul(x, a)", w=draw(1), s=np.array([1000])
    )
    assert_left_alone(FoldConstants(), model, "larger", growth_bytes=0)
    assert assert_rewritten(FoldConstants(), model) == {"Mul": 1}


SHAPED = {
    "all sizes known": ("(float[3,8] x) => (float[A,B] y)", "s = Shape(x) y = Reshape(x, s)", {}),
    "one size known, the other copied": (
        "(float[N,8] x) => (float[A,B,C] y)",
        "s = Shape(x) n = Slice(s, zero, one) t = Concat<axis = 0>(n, rest) y = Reshape(x, t)",
        {"zero": np.array([0]), "one": np.array([1]), "rest": np.array([2, 4])}),
    "an open size computed from others": (
        "(float[N,S,8] x) => (float[A,B] y)",
        "s = Shape(x) n = Gather(s, i) m = Gather(s, j) p = Mul(n, m) u = Unsqueeze(p, zero) "
        "t = Concat<axis = 0>(u, rest) y = Reshape(x, t)",
        {"i": np.int64(0), "j": np.int64(1), "zero": np.array([0]), "rest": np.array([8])}),
    "a known size gathered": (
        "(float[N,8] x) => (float[A,B] y)", "s = Shape(x) n = Gather(s, i) c = Cast<to = 1>(n) y = Div(x, c)",
        {"i": np.int64(1)}),
    "Expand": ("(float[4,1] x) => (float[A,B] y)", "s = Shape(x) t = Mul(s, k) y = Expand(x, t)", {"k": [1, 6]}),
    "ConstantOfShape": ("(float[4,3] x) => (float[A,B] y)", "s = Shape(x) z = ConstantOfShape(s) y = Add(x, z)", {}),
    "Size": ("(float[4,3] x) => (float[A,B] y)", "s = Size(x) c = Cast<to = 1>(s) y = Div(x, c)", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPED)
def test_shapes_that_follow_from_the_inputs_are_constants(name: str) -> None:
    signature, body, arrays = SHAPED[name]
    after, outcome = rewritten(FoldShapes(), graph(signature, body, **arrays))
    assert outcome.changed and not {"Shape", "Size", "Gather", "Concat"} & set(operators(after))


@pytest.mark.parametrize("shape", [(1, 8), (3, 8), (0, 8)])
def test_a_folded_shape_holds_for_every_batch_size_even_none(shape: tuple[int, int]) -> None:
    signature, body, arrays = SHAPED["one size known, the other copied"]
    rewritten(FoldShapes(), graph(signature, body, **arrays), {"x": np.ones(shape, np.float32)})


SHAPES_KEPT = {
    "two open sizes": (
        "(float[N,S] x) => (float[A,B,C] y)",
        "s = Shape(x) t = Gather(s, i) y = Reshape(x, t)", {"i": np.array([1, 0])}),
    "an open size that another input has": (
        "(float[N,8] x, float[N,8] z) => (float[A,B,C] y)",
        "s = Shape(z) n = Slice(s, zero, one) t = Concat<axis = 0>(n, rest) y = Reshape(x, t)",
        {"zero": np.array([0]), "one": np.array([1]), "rest": np.array([-1, 4])}),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES_KEPT)
def test_shapes_that_only_the_run_tells_stay(name: str) -> None:
    signature, body, arrays = SHAPES_KEPT[name]
    model = graph(signature.replace("float[A,B,C] y", "float[A,B] y") if "two" in name else signature, body, **arrays)
    assert_left_alone(FoldShapes(), model, "open")


def test_declared_shapes_of_inner_values_are_not_believed() -> None:
    model = onnx.load_from_string(graph("(float[N,8] x) => (int64[2] y)", "a = Abs(x) y0 = Shape(a) y = Neg(y0)"))
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("a", 1, [7, 8]))
    assert_left_alone(FoldShapes(), model.SerializeToString(), "no shape is computed")


BRANCHING = graph(
    "(float[2,3] x) => (float[2,3] y)",
    """s = Size(x) c = Equal(s, six) y = If(c) <then_branch = then () => (float[2,3] t) { t = Exp(x) },
                                                else_branch = other () => (float[2,3] e) { e = Abs(x) }>""",
    six=np.int64(6),
)


def test_a_condition_that_becomes_constant_is_kept_where_onnxruntime_loads_it() -> None:
    assert assert_rewritten(FoldShapes(), BRANCHING) == {"If": 1}


def test_a_condition_that_becomes_constant_is_undone_where_onnxruntime_does_not_load_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fusion_constants, "_refusal", lambda file: f"no {onnx.load(str(file)).graph.node[0].op_type}")
    after, outcome = rewritten(FoldShapes(), BRANCHING)
    assert outcome.notes == ("with a condition that is constant onnxruntime does not load the model: no If",)
    assert not outcome.changed and operators(after) == operators(onnx.load_from_string(BRANCHING))


@pytest.mark.slow
def test_a_range_of_vectors_that_only_an_if_hides_is_not_uncovered() -> None:
    from onnx.backend.test.case.node import collect_testcases

    case = next(case for case in collect_testcases(None) if case.name == "test_affine_grid_2d_expanded")
    names = [value.name for value in case.model.graph.input]
    feed = dict(zip(names, case.data_sets[0][0], strict=True))
    _, outcome = rewritten(FoldShapes(), case.model.SerializeToString(), feed)
    assert not outcome.changed and "Range" in outcome.notes[0]
