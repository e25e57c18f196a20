"""Attention, norms, activations and products in onnxruntime's own operators: each spelling, each reason not to."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from ort_metainfer.rewrites.contributed import KERNELS
from ort_metainfer.rewrites.fusion_attention import FuseAttention, FuseTransformer
from ort_metainfer.rewrites.fusion_fused import FuseConv, FuseGemm, FuseMatMul
from ort_metainfer.rewrites.fusion_normalization import FuseBiasGelu, FuseEmbedLayerNorm, FuseSkipLayerNorm
from tests.operator_graphs import assert_left_alone, assert_rewritten, graph, operators, overridable, rewritten

RNG = np.random.default_rng(4)
HEADS, SIZE, TIME = 2, 3, 5
WIDTH = HEADS * SIZE
CUBE = f"(float[N,S,{WIDTH}] x) => (float[N,S,{WIDTH}] y)"


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_the_cpu_has_kernels_for_what_is_made() -> None:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    there = {
        kernel.op_name
        for kernel in state.get_all_opkernel_def()
        if kernel.domain == "com.microsoft" and kernel.provider == "CPUExecutionProvider"
    }
    assert set(KERNELS) <= there, onnxruntime.__version__


# attention


def attention(
    scale: str = "scores", mask: str = "", keys: str = "one", joined: str = "constant", kind: str = "float"
) -> bytes:
    """Self-attention; ``scale``: where it stands, ``mask``: its shape, ``keys``: how many transposes turn them."""
    np_kind = {"float": np.float32, "double": np.float64}[kind]
    arrays: dict[str, Any] = {
        "split": np.array([0, 0, HEADS, SIZE]), "join": np.array([0, 0, WIDTH]), "f": np_kind(0.6), "g": np_kind(1.6),
        **{f"w{part}": draw(WIDTH, WIDTH).astype(np_kind) for part in "qkv"},
    }  # fmt: skip
    parts = "".join(
        f"{p}0 = MatMul(x, w{p}) {p}1 = Reshape({p}0, split) {p}2 = Transpose<perm = [{perm}]>({p}1) "
        for p, perm in (("q", "0,2,1,3"), ("k", "0,2,3,1" if keys == "one" else "0,2,1,3"), ("v", "0,2,1,3"))
    )
    parts += "" if keys == "one" else "k3 = Transpose<perm = [0,1,3,2]>(k2) "
    query, key = "q2", "k2" if keys == "one" else "k3"
    if scale in ("queries", "both"):
        parts, query = parts + "q4 = Mul(q2, f) ", "q4"
    if scale == "both":
        parts, key = parts + f"k4 = Div({key}, g) ", "k4"
    parts += f"s0 = MatMul({query}, {key}) "
    last = "s0"
    if scale == "scores":
        parts, last = parts + "s1 = Div(s0, g) ", "s1"
    if mask:
        parts, last = parts + f"s2 = Add({last}, mask) ", "s2"
    parts += f"p = Softmax<axis = -1>({last}) o = MatMul(p, v2) t = Transpose<perm = [0,2,1,3]>(o) "
    parts += "y = Reshape(t, join)" if joined == "constant" else "sx = Shape(x) y = Reshape(t, sx)"
    signature = CUBE.replace("float", kind).replace(" x)", f" x, {kind}[{mask}] mask)" if mask else " x)")
    return graph(signature, parts, **arrays)


@pytest.mark.parametrize("scale", ["scores", "queries", "both", "none"])
@pytest.mark.parametrize("keys", ["one", "two"])
def test_attention_becomes_one_operator(scale: str, keys: str) -> None:
    left = assert_rewritten(FuseAttention(), attention(scale, keys=keys))
    assert left["com.microsoft.MultiHeadAttention"] == 1
    assert not {"Softmax", "Transpose", "Div", "Mul"} & set(left)


@pytest.mark.parametrize("mask", ["1,1,S,S", f"N,{HEADS},S,S", "S,S", "N,1,1,S", "1,S,S", "S"])
def test_a_mask_known_to_broadcast_to_the_scores_goes_along(mask: str) -> None:
    assert assert_rewritten(FuseAttention(), attention(mask=mask))["com.microsoft.MultiHeadAttention"] == 1


def test_heads_joined_in_a_shape_that_is_computed() -> None:
    assert assert_rewritten(FuseAttention(), attention(joined="computed"))["com.microsoft.MultiHeadAttention"] == 1


def test_a_mask_of_other_sizes_is_taken_only_on_trust() -> None:
    model = attention(mask="B,1,1,T")
    feed = {"x": draw(3, 5, WIDTH), "mask": draw(3, 1, 1, 5)}
    _, outcome = rewritten(FuseAttention(), model, feed)
    assert not outcome.changed and "shape of the scores" in outcome.notes[0]
    for shape in [(3, 1, 1, 5), (1, 1, 1, 5), (1, 1, 1, 1), (3, 1, 1, 1)]:
        _, outcome = rewritten(FuseAttention(), model, feed | {"mask": draw(*shape)}, trust_masks=True)
        assert outcome.changed == 1


def test_attention_that_others_look_into_stays() -> None:
    proto = onnx.load_from_string(attention())
    proto.graph.output.append(onnx.helper.make_tensor_value_info("p", 1, [None] * 4))
    assert_left_alone(FuseAttention(), proto.SerializeToString(), "graph output")
    assert_left_alone(FuseAttention(), attention(kind="double"), "no DOUBLE")


def test_onnxscripts_fusions_are_counted_and_keep_the_surface() -> None:
    body = "a = Add(x, z) b = LayerNormalization<axis = -1>(a, s, t) y = Add(b, x)"
    model = graph("(float[2,4,8] x, float[2,4,8] z) => (float[2,4,8] y)", body, opset=18, s=draw(8), t=draw(8))
    after, outcome = rewritten(FuseTransformer(), model)
    assert outcome.changed == 1 and outcome.figures == {"skip_layer_normalization": 1}
    assert operators(after)["com.microsoft.SkipLayerNormalization"] == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a = Add(x, tiny) b = Softmax(a) y = Abs(b)", "for zero or one"),
        ("a = Mul(x, nearly) b = Softmax(a) y = Abs(b)", "for zero or one"),
        ("b = Softmax(x) y = Abs(b)", "none of onnxscript's fusions"),
        ("y = Abs(x)", "no Softmax"),
    ],
)
def test_onnxscripts_fusions_are_refused(body: str, reason: str) -> None:
    arrays = {"tiny": np.float32(1e-12), "nearly": np.float32(1 + 1e-6)}
    used = {name: array for name, array in arrays.items() if f"{name})" in body}
    assert_left_alone(FuseTransformer(), graph("(float[N,8] x) => (float[N,8] y)", body, **used), reason)


def test_onnxscripts_fusions_do_not_see_inputs_with_defaults_or_branches() -> None:
    model = overridable(graph("(float[N,8] x) => (float[N,8] y)", "a = Mul(x, w) y = Softmax(a)", w=draw(8)), "w")
    assert_left_alone(FuseTransformer(), model, "has a default")
    body = """y = If(flag) <then_branch = then () => (float[N,8] t) { t = Softmax(x) },
                            else_branch = other () => (float[N,8] e) { e = Abs(x) }>"""
    model = graph("(float[N,8] x, bool flag) => (float[N,8] y)", body)
    assert_left_alone(FuseTransformer(), model, "graphs within graphs")


# norms and activations

NORM = {"s": draw(WIDTH), "t": draw(WIDTH)}
SKIP = "a = Add(x, z) n = LayerNormalization<axis = -1, epsilon = 0.001>(a, s, t)"
PAIR = f"(float[N,S,{WIDTH}] x) => (float[N,S,{WIDTH}] y)"


def test_a_sum_goes_into_the_norm_behind_it() -> None:
    model = graph(PAIR, f"z = Abs(x) {SKIP} y = Neg(n)", **NORM)
    assert assert_rewritten(FuseSkipLayerNorm(), model) == {
        "Abs": 1, "com.microsoft.SkipLayerNormalization": 1, "Neg": 1
    }  # fmt: skip


def test_a_sum_that_goes_on_comes_out_of_the_operator() -> None:
    model = graph(PAIR, f"z = Abs(x) {SKIP} b = Neg(a) y = Add(n, b)", **NORM)
    after, _ = rewritten(FuseSkipLayerNorm(), model)
    assert operators(after)["Add"] == 1 and operators(after)["com.microsoft.SkipLayerNormalization"] == 1
    made = next(node for node in after.graph.node if node.op_type == "SkipLayerNormalization")
    assert [bool(name) for name in made.output] == [True, False, False, True]


def test_a_sum_that_is_a_graph_output_keeps_its_name() -> None:
    model = graph(PAIR[:-1] + f", float[N,S,{WIDTH}] a)", f"z = Abs(x) {SKIP} y = Neg(n)", **NORM)
    assert assert_rewritten(FuseSkipLayerNorm(), model)["com.microsoft.SkipLayerNormalization"] == 1


@pytest.mark.parametrize(
    ("signature", "body", "reason"),
    [
        (PAIR.replace("x)", f"x, float[N,S,{WIDTH}] z)"), f"{SKIP} y = Neg(n)", ""),
        (PAIR.replace("x)", f"x, float[M,S,{WIDTH}] z)"), f"{SKIP} y = Neg(n)", "one shape"),
        (PAIR.replace("x)", f"x, float[1,1,{WIDTH}] z)"), f"{SKIP} y = Neg(n)", "one shape"),
        (PAIR, "z = Abs(x) a = Add(x, z) y = LayerNormalization<axis = 1>(a, s2)", "last dimension only"),
        (PAIR, "z = Abs(x) a = Add(x, z) y, m = LayerNormalization<axis = -1>(a, s, t) {}", "statistics"),
    ],
)
def test_norms_of_sums_that_are_left_alone(signature: str, body: str, reason: str) -> None:
    arrays: dict[str, Any] = dict(NORM)
    if "axis = 1" in body:
        signature, arrays = signature.replace("[N,S,", "[N,4,"), {"s2": draw(4, WIDTH)}
    if "{}" in body:
        signature, body = signature[:-1] + ", float[N,S,1] k)", body.replace("{}", "k = Neg(m)")
    feed = {"x": draw(3, 4, WIDTH)}
    if " z)" in signature:
        feed["z"] = draw(1, 1, WIDTH) if "[1,1" in signature else draw(3, 4, WIDTH)
    _, outcome = rewritten(FuseSkipLayerNorm(), graph(signature, body, **arrays), feed)
    assert not outcome.changed and (reason or "one shape") in outcome.notes[0]


@pytest.mark.parametrize(("operator", "made"), [("Gelu", "BiasGelu"), ("FastGelu", "FastGelu")])
def test_a_bias_goes_into_the_activation(operator: str, made: str) -> None:
    model = graph(CUBE, f"a = Add(b, x) y = com.microsoft.{operator}(a)", b=draw(WIDTH))
    assert assert_rewritten(FuseBiasGelu(), model) == {f"com.microsoft.{made}": 1}
    model = graph(CUBE, f'a = Add(x, b) y = Gelu<approximate = "{"none" if operator == "Gelu" else "tanh"}">(a)',
                  opset=20, b=draw(WIDTH))  # fmt: skip
    assert assert_rewritten(FuseBiasGelu(), model) == {f"com.microsoft.{made}": 1}


def test_a_bias_that_is_no_vector_stays() -> None:
    for shape in [(), (1,), (1, WIDTH), (TIME, WIDTH)]:
        model = graph(CUBE, "a = Add(x, b) y = com.microsoft.Gelu(a)", b=draw(*shape))
        assert_left_alone(FuseBiasGelu(), model, "no constant vector")
    model = overridable(graph(CUBE, "a = Add(x, b) y = com.microsoft.Gelu(a)", b=draw(WIDTH)), "b")
    assert_left_alone(FuseBiasGelu(), model, "no constant vector")


def embedding(*parts: tuple[str, str], kind: str = "int64") -> tuple[bytes, dict[str, np.ndarray]]:
    """Tables looked up by inputs of these shapes, added up and normalised."""
    inputs = ", ".join(f"{kind}[{shape}] {name}" for name, shape in parts)
    body = " ".join(f"e{name} = Gather(w{name}, {name})" for name, _ in parts)
    last = f"e{parts[0][0]}"
    for name, _ in parts[1:]:
        body += f" a{name} = Add({last}, e{name})"
        last = f"a{name}"
    body += f" y = LayerNormalization<axis = -1>({last}, s, t)"
    arrays = {f"w{name}": draw(7, WIDTH) for name, _ in parts}
    sizes = {"N": 2, "S": 5, "1": 1}
    feed = {n: RNG.integers(0, 7, [sizes[d] for d in shape.split(",")]).astype(kind) for n, shape in parts}
    return graph(f"({inputs}) => (float[N,S,{WIDTH}] y)", body, **arrays, **NORM), feed


@pytest.mark.parametrize("kind", ["int64", "int32"])
@pytest.mark.parametrize(
    "parts",
    [
        (("word", "N,S"), ("place", "1,S")),
        (("word", "N,S"), ("side", "N,S"), ("place", "1,S")),
        (("word", "N,S"), ("place", "1,S"), ("side", "N,S")),
        (("word", "N,S"), ("side", "N,S"), ("place", "N,S")),
    ],
)
def test_embeddings_and_their_norm_become_one(parts: tuple[tuple[str, str], ...], kind: str) -> None:
    model, feed = embedding(*parts, kind=kind)
    after, outcome = rewritten(FuseEmbedLayerNorm(), model, feed, trust_indices=True)
    assert outcome.changed == 1 and "Gather" not in operators(after)


def test_embeddings_of_other_shapes_stay() -> None:
    model, feed = embedding(("word", "N,S"), ("place", "1,1"))
    _, outcome = rewritten(FuseEmbedLayerNorm(), model, feed, trust_indices=True)
    assert not outcome.changed and "not known to fit" in outcome.notes[0]


def test_indices_that_may_be_negative_are_not_fused_unasked() -> None:
    model, feed = embedding(("word", "N,S"), ("place", "1,S"))
    feed["word"] = feed["word"] - 7
    _, outcome = rewritten(FuseEmbedLayerNorm(), model, feed)
    assert not outcome.changed and "may be negative" in outcome.notes[0]


# products and convolutions


def test_transposed_and_scaled_factors_go_into_the_product() -> None:
    signature = "(float[N,4,5] x, float[N,6,4] z) => (float[A,B,C] y)"
    body = "a = Transpose<perm = [0,2,1]>(x) b = Transpose<perm = [0,2,1]>(z) c = Mul(a, f) y = MatMul(c, b)"
    after, _ = rewritten(FuseMatMul(), graph(signature, body, f=np.float32(0.5)))
    assert operators(after) == {"com.microsoft.FusedMatMul": 1}
    assert {a.name for a in after.graph.node[0].attribute} == {"alpha", "transA", "transB"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a = Transpose<perm = [1,0,2]>(x) y = MatMul(a, z)", "no fuse-matmul pattern"),
        ("a = Transpose<perm = [0,2,1]>(x) b = MatMul(a, z) c = Abs(a) y = Add(b, c)", "used elsewhere"),
    ],
)
def test_other_transposes_stay(body: str, reason: str) -> None:
    assert_left_alone(FuseMatMul(), graph("(float[4,4,4] x, float[4,4,4] z) => (float[A,B,C] y)", body), reason)


ACTIVATIONS = ["Relu(a)", "Tanh(a)", "Sigmoid(a)", "LeakyRelu(a)", "LeakyRelu<alpha = 0.3>(a)", "HardSigmoid(a)"]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_goes_into_the_convolution(activation: str) -> None:
    body = f"a = Conv<pads = [1,1,1,1], strides = [2,2]>(x, w, b) y = {activation}"
    model = graph("(float[N,2,6,7] x) => (float[A,B,C,D] y)", body, w=draw(3, 2, 3, 3), b=draw(3))
    assert assert_rewritten(FuseConv(), model) == {"com.microsoft.FusedConv": 1}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_and_a_bias_go_into_the_product(activation: str) -> None:
    model = graph(
        "(float[N,4] x) => (float[N,6] y)", f"p = MatMul(x, w) a = Add(b, p) y = {activation}", w=draw(4, 6), b=draw(6)
    )
    assert assert_rewritten(FuseGemm(), model) == {"com.microsoft.FusedGemm": 1}
    body = f"a = Gemm<transB = 1, beta = 0.5, alpha = 2.0>(x, w, b) y = {activation}"
    model = graph("(float[N,4] x) => (float[N,6] y)", body, w=draw(6, 4), b=draw(6))
    assert assert_rewritten(FuseGemm(), model) == {"com.microsoft.FusedGemm": 1}


@pytest.mark.parametrize("sizes", ["N,S,4", "2,N,S,4", "2,3,4"])
def test_more_dimensions_are_rows(sizes: str) -> None:
    signature = f"(float[{sizes}] x) => (float[{sizes[:-1]}6] y)"
    model = graph(signature, "p = MatMul(x, w) a = Add(b, p) y = Relu(a)", w=draw(4, 6), b=draw(6))
    assert assert_rewritten(FuseGemm(), model)["com.microsoft.FusedGemm"] == 1


def test_products_without_a_bias_or_with_one_that_varies_stay() -> None:
    assert_left_alone(FuseGemm(), graph(CUBE, "a = MatMul(x, w) y = Relu(a)", w=draw(WIDTH, WIDTH)), "no bias")
    model = graph(
        f"(float[3,{WIDTH}] x) => (float[A,B] y)", "a = Gemm(x, w, b) y = Relu(a)", w=draw(WIDTH, 4), b=draw(3, 4)
    )
    assert_left_alone(FuseGemm(), model, "no fuse-gemm pattern")
    model = graph("(double[N,4] x) => (double[N,6] y)", "a = Gemm(x, w, b) y = Relu(a)",
                  w=draw(4, 6).astype(float), b=draw(6).astype(float))  # fmt: skip
    assert_left_alone(FuseGemm(), model, "no DOUBLE")
