"""Matrix products in their spellings, and Einsum: the same numbers, or left alone with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ort_metainfer.rewrites.operators_einsum import EinsumToMatMul
from ort_metainfer.rewrites.operators_linear import ConvToMatMul, GemmToMatMul, MatMulToConv, MatMulToGemm
from tests.operator_graphs import assert_left_alone, assert_rewritten, feeds_of, graph, overridable, rewritten

RNG = np.random.default_rng(7)


def normal(*shape: int, kind: Any = np.float32) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape)).astype(kind)


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    ("attributes", "addend"),
    [
        ("", (4,)),
        ("transB=1", (1, 4)),
        ("transA=1, alpha=0.5", (4,)),
        ("transA=1, transB=1, alpha=2.0, beta=0.3", (1,)),
        ("beta=0.0", (4,)),
        ("alpha=3.0", None),
    ],
)
def test_gemm_becomes_matmul_and_add(attributes: str, addend: Any, constant: bool, kind: str) -> None:
    number = np.float32 if kind == "float" else np.float64
    a = "[6,3]" if "transA" in attributes else "[3,6]"
    b = (4, 6) if "transB" in attributes else (6, 4)
    weights = {"w": normal(*b, kind=number)} if constant else {}
    if addend is not None:
        weights["c"] = normal(*addend, kind=number)
    extra = "" if constant else f", {kind}[{b[0]},{b[1]}] w"
    given = ", ".join(f"{name}={value}" for name, value in (part.split("=") for part in attributes.split(", ") if part))
    inputs = "x, w, c" if addend is not None else "x, w"
    body = f"y = Gemm<{given}>({inputs})" if given else f"y = Gemm({inputs})"
    made = graph(f"({kind}{a} x{extra}) => ({kind}[3,4] y)", body, opset=13, **weights)
    after = assert_rewritten(GemmToMatMul(), made)
    assert "Gemm" not in after and ("Transpose" in after) == (
        ("transA" in given) or ("transB" in given and not constant)
    )


def test_a_weight_that_two_gemms_share_is_not_copied() -> None:
    body = "a = Gemm<transB=1>(x, w) b = Gemm<transB=1>(a, w) y = Relu(b)"
    after, _ = rewritten(GemmToMatMul(), graph("(float[N,4] x) => (float[N,4] y)", body, w=normal(4, 4)))
    assert [list(tensor.dims) for tensor in after.graph.initializer] == [[4, 4]]


def test_gemm_of_integers_stays() -> None:
    made = graph("(int32[3,4] x) => (int32[3,4] y)", "y = Gemm(x, w)", opset=13, w=np.eye(4, dtype=np.int32))
    assert "INT32" in (rewritten_reason(GemmToMatMul(), made) or "")


def rewritten_reason(rewrite: Any, model: bytes) -> str | None:
    """The first site's reason, where onnxruntime cannot run the model itself."""
    from tests.rewrite_run import apply_to_bytes

    _, outcome = apply_to_bytes(rewrite, model)
    return outcome.sites[0].reason if outcome.sites else None


@pytest.mark.parametrize("addend", [(4,), (1, 4), (1,), (), (1, 1)])
@pytest.mark.parametrize("order", ["a, c", "c, a"])
def test_matmul_and_add_become_gemm(addend: tuple[int, ...], order: str) -> None:
    body = f"a = MatMul(x, w) y = Add({order})"
    made = graph("(float[N,6] x) => (float[N,4] y)", body, w=normal(6, 4), c=normal(*addend))
    assert assert_rewritten(MatMulToGemm(), made) == {"Gemm": 1}


def test_matmul_of_transposed_operands_takes_them_in() -> None:
    body = "t = Transpose<perm=[1,0]>(x) u = Transpose(w) a = MatMul(t, u) y = Add(a, c)"
    made = graph("(float[6,N] x, float[4,6] w) => (float[N,4] y)", body, c=normal(4))
    assert assert_rewritten(MatMulToGemm(), made) == {"Gemm": 1}
    shared = body.replace("y =", "z =") + " s = ReduceSum(t) y = Add(z, s)"
    after = assert_rewritten(
        MatMulToGemm(), graph("(float[6,N] x, float[4,6] w) => (float[N,4] y)", shared, c=normal(4))
    )
    assert after["Transpose"] == 1 and after["Gemm"] == 1


@pytest.mark.parametrize(
    ("signature", "body", "weights", "reason"),
    [
        ("(float[B,N,6] x) => (float[B,N,4] y)", "a = MatMul(x, w) y = Add(a, c)", {"c": normal(4)}, "matrices"),
        ("(float[1,6] x) => (float[3,4] y)", "a = MatMul(x, w) y = Add(a, c)", {"c": normal(3, 4)}, "fit into"),
        ("(float[N,6] x) => (float[2,N,4] y)", "a = MatMul(x, w) y = Add(a, c)", {"c": normal(2, 1, 4)}, "fit into"),
        ("(float[N,6] x, float[M,4] c) => (float[N,4] y)", "a = MatMul(x, w) y = Add(a, c)", {}, "fit into"),
        ("(float[N,6] x) => (float[N,4] y)", "a = MatMul(x, w) y = Add(a, a)", {}, "no matmul-to-gemm"),
        (
            "(float[N,6] x) => (float[N,4] y, float[N,4] a)",
            "a = MatMul(x, w) y = Add(a, c)",
            {"c": normal(4)},
            "graph output",
        ),
    ],
)
def test_matmul_is_no_gemm(signature: str, body: str, weights: Any, reason: str) -> None:
    made = graph(signature, body, w=normal(6, 4), **weights)
    _, outcome = rewritten(MatMulToGemm(), made, feeds_of(made, B=2, M=1))
    told = [*(site.reason for site in outcome.sites), *outcome.notes]
    assert not outcome.changed and any(reason in text for text in told), told


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("shape", ["N,6", "N,5,6", "N,2,5,6"])
@pytest.mark.parametrize("tail", ["y = Relu(a)", "y = Add(a, c)", "y = Add(c, a)", "y = Mul(a, c)"])
def test_matmul_becomes_a_convolution(shape: str, tail: str, opset: int) -> None:
    weights = {"w": normal(6, 4), **({"c": normal(4)} if "c" in tail.split("=")[1] else {})}
    signature = f"(float[{shape}] x) => (float[{shape[:-1]}4] y)"
    after = assert_rewritten(MatMulToConv(), graph(signature, "a = MatMul(x, w) " + tail, opset=opset, **weights))
    assert after["Conv"] == 1 and "MatMul" not in after and "Add" not in after


def test_a_product_that_may_have_no_rows_is_no_convolution() -> None:
    made = graph("(float[N,S,6] x) => (float[N,S,4] y)", "y = MatMul(x, w)", w=normal(6, 4))
    assert_left_alone(MatMulToConv(), made, "rows may be none")
    for signature in ("(float[N,6] x) => (float[N,4] y)", "(float[N,5,6] x) => (float[N,5,4] y)"):
        made = graph(signature, "y = MatMul(x, w)", w=normal(6, 4))
        feed = feeds_of(made, N=0)
        _, outcome = rewritten(MatMulToConv(), made, feed)
        assert outcome.changed == 1


@pytest.mark.parametrize("given", ["", "<transB=1>"])
@pytest.mark.parametrize("addend", [(4,), (1, 4), (), None])
def test_gemm_becomes_a_convolution(given: str, addend: Any) -> None:
    weights = {"w": normal(4, 6) if given else normal(6, 4), **({} if addend is None else {"c": normal(*addend)})}
    body = f"y = Gemm{given}(x, w{', c' if addend is not None else ''})"
    assert assert_rewritten(MatMulToConv(), graph("(float[N,6] x) => (float[N,4] y)", body, **weights))["Conv"] == 1


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (graph("(float[N,6] x, float[6,4] w) => (float[N,4] y)", "y = MatMul(x, w)"), "no constant matrix"),
        (graph("(float[2,S,6] x) => (float[2,S,4] y)", "y = MatMul(x, w)", w=normal(2, 6, 4)), "no constant matrix"),
        (
            overridable(graph("(float[N,6] x) => (float[N,4] y)", "y = MatMul(x, w)", w=normal(6, 4)), "w"),
            "no constant",
        ),
        (graph("(float[6] x) => (float[4] y)", "y = MatMul(x, w)", w=normal(6, 4)), "two to four"),
        (graph("(double[N,6] x) => (double[N,4] y)", "y = MatMul(x, w)", w=normal(6, 4, kind=np.float64)), "DOUBLE"),
        (graph("(float[6,N] x) => (float[N,4] y)", "y = Gemm<transA=1>(x, w)", w=normal(6, 4)), "transposed"),
        (graph("(float[N,6] x) => (float[N,4] y)", "y = Gemm<alpha=0.5>(x, w)", w=normal(6, 4)), "scaled"),
        (
            graph("(float[3,6] x) => (float[3,4] y)", "y = Gemm(x, w, c)", w=normal(6, 4), c=normal(3, 4)),
            "constant row",
        ),
    ],
)
def test_a_product_is_no_convolution(made: bytes, reason: str) -> None:
    assert_left_alone(MatMulToConv(), made, reason)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("spatial", ["S", "S,4", "2,S,3"])
def test_a_convolution_with_a_kernel_of_one_becomes_matmul(spatial: str, bias: bool) -> None:
    ones = (1,) * (spatial.count(",") + 1)
    weights = {"w": normal(4, 6, *ones), **({"b": normal(4)} if bias else {})}
    body = f"y = Conv(x, w{', b' if bias else ''})"
    made = graph(f"(float[N,6,{spatial}] x) => (float[N,4,{spatial}] y)", body, **weights)
    assert assert_rewritten(ConvToMatMul(), made)["MatMul"] == 1


@pytest.mark.parametrize(
    ("given", "kernel", "reason"),
    [
        ("<group=2>", (4, 3, 1, 1), "grouped"),
        ("<strides=[2,2]>", (4, 6, 1, 1), "strides or pads"),
        ("<pads=[1,0,0,0]>", (4, 6, 1, 1), "strides or pads"),
        ("", (4, 6, 1, 3), "larger than one"),
    ],
)
def test_other_convolutions_stay(given: str, kernel: tuple[int, ...], reason: str) -> None:
    made = graph("(float[N,6,S,4] x) => (float[N,4,H,W] y)", f"y = Conv{given}(x, w)", w=normal(*kernel))
    assert_left_alone(ConvToMatMul(), made, reason)
    assert_left_alone(ConvToMatMul(), overridable(made, "w"), "not constant")


EINSUMS = {
    "bhid,bhjd->bhij": ("N,2,S,4", "N,2,S,4", "N,2,S,S"),
    "bhij,bhjd->bhid": ("N,2,S,5", "N,2,5,4", "N,2,S,4"),
    "ij,jk->ik": ("N,4", "4,S", "N,S"),
    "ij,jk": ("N,4", "4,S", "N,S"),
    "bsd,dhk->bshk": ("N,S,6", "6,2,3", "N,S,2,3"),
    "bshk,hkd->bsd": ("N,S,2,3", "2,3,6", "N,S,6"),
    "bqhd,bkhd->bhqk": ("N,S,2,4", "N,S,2,4", "N,2,S,S"),
    "bhqk,bkhd->bqhd": ("N,2,S,5", "N,5,2,4", "N,S,2,4"),
    "i,j->ij": ("N", "S", "N,S"),
    "i,i->": ("4", "4", ""),
    "bi,bi->b": ("N,4", "N,4", "N"),
    "ij,j->i": ("N,4", "4", "N"),
    "j,jk->k": ("4", "4,S", "S"),
    "ijk,jl->ilk": ("N,4,3", "4,S", "N,S,3"),
    "abcd,cde->abe": ("N,S,2,3", "2,3,4", "N,S,4"),
    "bi,bj->bij": ("N,4", "N,S", "N,4,S"),
    "ij,ij->ij": ("N,4", "N,4", "N,4"),
    "ij,k->jk": ("N,4", "S", "4,S"),
    "abij,bjc->abic": ("2,3,5,4", "3,4,2", "2,3,5,2"),
    "ij->ji": ("N,4", None, "4,N"),
    "ijk->ik": ("N,4,S", None, "N,S"),
    "ijk->": ("N,4,S", None, ""),
    "ji": ("N,4", None, "4,N"),
}


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("equation", EINSUMS)
def test_einsum_becomes_products_and_transpositions(equation: str, kind: str) -> None:
    first, second, result = EINSUMS[equation]
    inputs = f"{kind}[{first}] a" + ("" if second is None else f", {kind}[{second}] b")
    output = f"{kind}[{result}] y" if result else f"{kind} y"
    body = f'y = Einsum<equation="{equation}">(a{"" if second is None else ", b"})'
    assert "Einsum" not in assert_rewritten(EinsumToMatMul(), graph(f"({inputs}) => ({output})", body))


def test_a_batch_of_one_still_meets_a_larger_one() -> None:
    body = 'y = Einsum<equation="bij,bjk->bik">(a, b)'
    made = graph("(float[N,S,4] a, float[1,4,3] b) => (float[N,S,3] y)", body)
    assert assert_rewritten(EinsumToMatMul(), made) == {"MatMul": 1}


@pytest.mark.parametrize(
    ("equation", "first", "second", "result", "reason"),
    [
        ("ij,jk->ik", "N,S", "S,4", "N,4", "sizes of j"),
        ("ij,jk->ik", "N,1", "5,4", "N,4", "sizes of j"),
        ("...ij,jk->...ik", "2,N,4", "4,3", "2,N,3", "ellipsis"),
        ("ii,ij->ij", "4,4", "4,3", "4,3", "diagonal"),
        ("baij,bjc->baic", "N,2,S,4", "N,4,3", "N,2,S,3", "size of i"),
    ],
)
def test_einsum_is_left_alone(equation: str, first: str, second: str, result: str, reason: str) -> None:
    body = f'y = Einsum<equation="{equation}">(a, b)'
    made = graph(f"(float[{first}] a, float[{second}] b) => (float[{result}] y)", body)
    assert_left_alone(EinsumToMatMul(), made, reason)


@pytest.mark.parametrize("rewrite", [MatMulToConv(), MatMulToGemm()])
def test_products_of_quantised_pairs_stay(rewrite: Any) -> None:
    body = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) a = MatMul(d, w) y = Add(a, c)"
    weights = {"s": np.float32(0.05), "z": np.int8(0), "w": normal(6, 4), "c": normal(4)}
    made = graph("(float[N,6] x) => (float[N,4] y)", body, opset=22, ir_version=10, **weights)
    assert_left_alone(rewrite, made, "computed in integers")
