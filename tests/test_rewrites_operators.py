"""Powers, divisions, repetitions: rewritten where that is the same, left alone where it is not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ort_metainfer.rewrites.operators import DivToMul, PowToMul, RemoveExpand, TileToConcat, TileToExpand
from tests.operator_graphs import (
    assert_left_alone,
    assert_rewritten,
    feeds_of,
    graph,
    operators,
    overridable,
    rewritten,
)
from tests.rewrite_run import apply_to_bytes, difference, outputs

PLAIN = "(float[N,8] x) => (float[N,8] y)"


def power(exponent: float, kind: type = np.float32, signature: str = PLAIN, shape: tuple[int, ...] = ()) -> bytes:
    return graph(
        signature, "a = Abs(x) b = Add(a, half) y = Pow(b, p)", p=np.full(shape, exponent, kind), half=np.float32(0.5)
    )


@pytest.mark.parametrize("exponent", [1, 2, 3, 4, 0.5, -0.5, -1, -2])
def test_pow_by_a_constant_becomes_products_roots_and_reciprocals(exponent: float) -> None:
    assert "Pow" not in assert_rewritten(PowToMul(), power(exponent))


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
@pytest.mark.parametrize("kind", [np.float32, np.int64, np.float64])
def test_pow_takes_an_exponent_of_any_type_and_of_one_element(shape: tuple[int, ...], kind: type) -> None:
    assert assert_rewritten(PowToMul(), power(2, kind, shape=shape))["Mul"] == 1


def test_pow_of_double_precision_stays_in_it() -> None:
    model = graph("(double[N,8] x) => (double[N,8] y)", "y = Pow(x, p)", p=np.float32(3))
    assert assert_rewritten(PowToMul(), model)["Mul"] == 2


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (power(2.5), "exponent 2.5"),
        (graph(PLAIN, "y = Pow(x, p)", p=np.full(8, 2, np.float32)), "not one constant number"),
        (graph("(float[N,8] x) => (float[1,N,8] y)", "y = Pow(x, p)", p=np.full((1, 1, 1), 2, np.float32)), "not one"),
        (overridable(power(2), "p"), "not one constant number"),
        (graph("(float[N,8] x, float p) => (float[N,8] y)", "y = Pow(x, p)"), "not one constant number"),
        (graph("(int64[N,8] x) => (int64[N,8] y)", "y = Pow(x, p)", p=np.int64(2)), "INT64"),
    ],
)
def test_pow_is_left_alone(model: bytes, reason: str) -> None:
    assert_left_alone(PowToMul(), model, reason)


def test_pow_below_ir_version_4_has_exponents_that_no_caller_can_replace() -> None:
    model = overridable(graph(PLAIN, "y = Pow(x, p)", opset=12, ir_version=3, p=np.float32(2)), "p")
    assert "Pow" not in assert_rewritten(PowToMul(), model)


def test_pow_by_one_between_input_and_output_leaves_both_names() -> None:
    after, _ = rewritten(PowToMul(), graph(PLAIN, "y = Pow(x, p)", p=np.float32(1)))
    assert operators(after) == {"Identity": 1} and after.graph.output[0].name == "y"


def test_subgraphs_are_rewritten_and_may_look_outside() -> None:
    body = """a = Pow(x, p) y = If (c) <
        then_branch = t () => (float[N,8] u) { u = Pow(a, p) },
        else_branch = e () => (float[N,8] v) { v = Div(x, d) }>"""
    model = graph("(float[N,8] x, bool c) => (float[N,8] y)", body, p=np.float32(2), d=np.float32(3))
    assert assert_rewritten(PowToMul(), model, times=2)["Pow"] == 0
    assert_rewritten(DivToMul(), model)


def test_a_value_used_in_a_subgraph_only_is_not_dropped() -> None:
    body = """a = Abs(x) e = Expand(a, s) y = If (c) <
        then_branch = t () => (float[N,8] u) { u = Add(e, x) },
        else_branch = f () => (float[N,8] v) { v = Neg(e) }>"""
    model = graph("(float[N,8] x, bool c) => (float[N,8] y)", body, s=np.array([1, 1], np.int64))
    assert assert_rewritten(RemoveExpand(), model) == {"Abs": 1, "If": 1}


def test_names_that_are_taken_are_not_given_again() -> None:
    first, _ = rewritten(DivToMul(), graph(PLAIN, "y = Div(x, d)", d=np.float32(3)))
    taken = next(tensor.name for tensor in first.graph.initializer)
    model = onnx.load_from_string(graph(PLAIN, "taken = Abs(x) z = Div(taken, d) y = Div(z, d)", d=np.float32(3)))
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = taken
    assert assert_rewritten(DivToMul(), model.SerializeToString(), times=2) == {"Abs": 1, "Mul": 2}


@pytest.mark.parametrize("opset", [7, 13, 21])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_division_by_constants_becomes_multiplication(opset: int, kind: str) -> None:
    divisor = np.array([3, -0.1, 7e4, 1e-5, 8, 2, 1, 5], np.float32 if kind == "float" else np.float64)
    model = graph(f"({kind}[N,8] x) => ({kind}[N,8] y)", "y = Div(x, d)", opset=opset, d=divisor)
    assert assert_rewritten(DivToMul(), model) == {"Mul": 1}


def test_division_by_a_power_of_two_is_exact() -> None:
    model = graph(PLAIN, "y = Div(x, d)", d=np.float32(8))
    made, _ = apply_to_bytes(DivToMul(), model)
    feeds = [feeds_of(model)]
    assert np.array_equal(outputs(made, feeds)[0][0], outputs(model, feeds)[0][0])


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (graph("(int64[N,8] x) => (int64[N,8] y)", "y = Div(x, d)", d=np.int64(3)), "INT64"),
        (graph(PLAIN, "y = Div(x, d)", d=np.array([1, 0, 1, 1, 1, 1, 1, 1], np.float32)), "zeros"),
        (graph(PLAIN, "y = Div(x, d)", d=np.float32(1e-39)), "zeros, or"),
        (graph(PLAIN, "y = Div(x, d)", d=np.float32(3e38)), "zeros, or"),
        (graph(PLAIN, "y = Div(d, x)", d=np.float32(3)), "not constant"),
        (overridable(graph(PLAIN, "y = Div(x, d)", d=np.float32(3)), "d"), "not constant"),
    ],
)
def test_division_is_left_alone(model: bytes, reason: str) -> None:
    feed = {"x": np.ones((3, 8), np.int64 if "INT64" in reason else np.float32)}
    before = operators(onnx.load_from_string(model))
    after, outcome = rewritten(DivToMul(), model, feed)
    assert operators(after) == before and reason in outcome.sites[0].reason


EXPANDED = {
    "by a constant, to the size of the other operand": ("e = Expand(b, s) y = Add(e, x)", {"s": [4, 8]}),
    "by the other operand's shape": ("s = Shape(x) e = Expand(b, s) y = Mul(x, e)", {}),
    "by Tile": ("e = Tile(b, s) y = Sub(e, x)", {"s": [4, 1]}),
    "to nothing else": ("e = Expand(x, s) y = Neg(e)", {"s": [1, 1]}),
    "to the size it has": ("e = Expand(x, s) y = Neg(e)", {"s": [4, 8]}),
    "with two users that broadcast": ("e = Expand(b, s) a = Add(e, x) z = Mul(e, x) y = Add(a, z)", {"s": [4, 8]}),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_an_expansion_that_broadcasting_does_anyway_goes(name: str) -> None:
    body, constants = EXPANDED[name]
    arrays = {key: np.array(value, np.int64) for key, value in constants.items()}
    signature = "(float[4,8] x, float[1,8] b) => (float[4,8] y)"
    after = assert_rewritten(RemoveExpand(), graph(signature, body, **arrays))
    assert not {"Expand", "Tile"} & set(after)


NEEDED = {
    "by an operator that does not broadcast": (
        "e = Expand(b, s) y = Concat<axis=0>(e, x)",
        [4, 8],
        "does not broadcast",
    ),
    "as an output": ("y = Expand(b, s)", [4, 8], "graph output"),
    "by an operand that is small too": ("e = Expand(b, s) y = Add(e, b)", [4, 8], "as large on axis -2"),
    "by an operand of lower rank": ("e = Expand(b, s) y = Add(e, x)", [1, 4, 8], "adds dimensions"),
    "by itself": ("e = Expand(b, s) y = Add(e, e)", [4, 8], "as large"),
}


@pytest.mark.parametrize("name", NEEDED)
def test_an_expansion_that_is_needed_stays(name: str) -> None:
    body, shape, reason = NEEDED[name]
    signature = "(float[4,8] x, float[1,8] b) => (float[?] y)".replace("[?]", "")
    assert_left_alone(RemoveExpand(), graph(signature, body, s=np.array(shape, np.int64)), reason)


def test_an_expansion_of_an_open_size_stays() -> None:
    model = graph(
        "(float[N,8] x, float[M,8] b) => (float y)".replace("float y", "float[K,8] y"),
        "e = Expand(b, s) y = Add(e, x)",
        s=np.array([4, 8], np.int64),
    )
    feed = {"x": np.ones((4, 8), np.float32), "b": np.ones((1, 8), np.float32)}
    _, outcome = rewritten(RemoveExpand(), model, feed)
    assert not outcome.changed


@pytest.mark.parametrize("kind", ["float", "int64", "bool"])
def test_tile_along_dimensions_of_one_becomes_expand(kind: str) -> None:
    model = graph(f"({kind}[N,1,4] x) => ({kind}[N,5,4] y)", "y = Tile(x, r)", r=np.array([1, 5, 1], np.int64))
    assert assert_rewritten(TileToExpand(), model) == {"Expand": 1}


def test_tile_along_other_dimensions_is_no_expand() -> None:
    for size in ("2", "N"):
        model = graph(f"(float[{size},4] x) => (float[M,4] y)", "y = Tile(x, r)", r=np.array([2, 1], np.int64))
        assert_left_alone(TileToExpand(), model, "not known to be one")


def test_tile_becomes_concat_up_to_so_many_copies() -> None:
    model = graph("(float[N,4] x) => (float[M,12] y)", "y = Tile(x, r)", r=np.array([2, 3], np.int64))
    assert assert_rewritten(TileToConcat(), model) == {"Concat": 2}
    assert_left_alone(TileToConcat(), model, "not from 1 to 2", most_copies=2)
    assert_left_alone(TileToConcat(), overridable(model, "r"), "not constant")


def test_results_off_by_more_than_the_promise_are_seen() -> None:
    model = graph(PLAIN, "y = Div(x, d)", d=np.float32(3))
    wrong = graph(PLAIN, "y = Div(x, d)", d=np.float32(3.001))
    feeds = [feeds_of(model)]
    assert difference(outputs(wrong, feeds), outputs(model, feeds), "float32-equivalent")
