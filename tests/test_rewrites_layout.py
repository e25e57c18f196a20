"""Transposes stand where they cost least: what follows, what stays, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from ort_metainfer.rewrites.layout import TransposesPlaced
from ort_metainfer.rewrites.min_cut import SINK, SOURCE, Network
from tests.rewrite_models import attribute_of, model_of, node_of, noise, operators, rewritten

PLACED = TransposesPlaced()
TO_LAST, TO_FIRST = "<perm = [0, 2, 3, 1]>", "<perm = [0, 3, 1, 2]>"
FEED = {"x": noise(2, 3, 4, 5)}


def between(body: str, opset: int = 17, out: str = "float[N,?,?,?]", **weights: Any) -> onnx.ModelProto:
    """``body`` makes ``b`` of ``a``, both NHWC, between two transposes."""
    text = f"""g (float[N,3,4,5] x) => ({out} y) {{
        a = Transpose {TO_LAST} (x)
        {body}
        y = Transpose {TO_FIRST} (b)
    }}"""
    return model_of(text, opset, **weights)


def assert_none_left(model: onnx.ModelProto) -> onnx.ModelProto:
    after, outcome = rewritten(PLACED, model, FEED)
    assert operators(after)["Transpose"] == 0
    assert outcome.changed
    assert outcome.figures["elements transposed after"] == 0
    return after


@pytest.mark.parametrize(
    "body",
    [
        "b = Relu(a)",
        "s = Sigmoid(a)  t = Mul(a, s)  b = Add(t, a)",
        "b = Clip(a, low, high)",
        "b = Add(a, channels)",
        "b = Sub(image, a)",
        "b = PRelu(a, channels)",
        "c = Greater(a, one)  b = Where(c, a, channels)",
        "b = Concat <axis = -1> (a, a)",
        "b = Concat <axis = 1> (a, a)",
        "c, d = Split <axis = 3> (a, sizes)  e = Tanh(c)  b = Concat <axis = 3> (d, e)",
        "b = Softmax (a)",
        "b = Softmax <axis = 1> (a)",
        "b = ReduceMean <axes = [1, 2]> (a)",
        "b = ReduceMax <axes = [-1]> (a)",
        "b = ReduceMean (a)",
        "b = ReduceSum (a, hw)",
        "b = Pad (a, pads)",
        'b = Pad <mode = "reflect"> (a, pads)',
        "b = Slice (a, one_row, two_rows, last)",
        "c = Cast <to = 7> (a)  d = Cast <to = 1> (c)  b = Mul(d, a)",
        "i = ArgMax <axis = 3> (a)  b = Cast <to = 1> (i)",
    ],
)
def test_operators_that_do_not_care_follow(body: str) -> None:
    weights = {
        "low": np.float32(-1),
        "high": np.float32(1),
        "one": np.array([0.5], np.float32),
        "channels": noise(3),
        "image": noise(4, 5, 3),
        "sizes": np.array([1, 2]),
        "hw": np.array([1, 2]),
        "pads": np.array([0, 1, 2, 0, 0, 0, 1, 2]),
        "one_row": np.array([1]),
        "two_rows": np.array([3]),
        "last": np.array([-1]),
    }
    assert_none_left(between(body, **{name: array for name, array in weights.items() if name in body}))


@pytest.mark.parametrize("opset", [9, 11, 17, 18, 20])
def test_spellings_of_every_opset(opset: int) -> None:
    sums = "b = ReduceMean <axes = [1, 2]> (c)" if opset < 18 else "b = ReduceMean (c, hw)"
    pads = "c = Pad <pads = [0,1,0,0,0,0,2,0]> (a)" if opset < 11 else "c = Pad (a, pads)"
    weights = {} if opset < 11 else {"pads": np.array([0, 1, 0, 0, 0, 0, 2, 0])}
    assert_none_left(between(f"{pads} {sums}", opset, **weights, **({"hw": np.array([1, 2])} if opset > 17 else {})))


def test_softmax_of_an_old_opset_flattens_and_stays() -> None:
    after, _ = rewritten(PLACED, between("b = Softmax <axis = 1> (a)", 11), FEED)
    assert operators(after)["Transpose"] == 2


@pytest.mark.parametrize("opset", [13, 20])
def test_quantisers_follow_with_their_axis(opset: int) -> None:
    body = "q = QuantizeLinear <axis = 3> (a, scales, zeros)  b = DequantizeLinear <axis = -1> (q, scales, zeros)"
    scales = {"scales": np.array([0.02, 0.1, 0.5], np.float32), "zeros": np.zeros(3, np.int8)}
    after = assert_none_left(between(body, opset, **scales))
    assert attribute_of(node_of(after, "QuantizeLinear"), "axis") == 1


def test_a_whole_network_of_an_exporter_keeps_the_transpose_of_its_input_only() -> None:
    text = f"""g (float[N,4,5,3] x) => (float[N,?] y) {{
        x1 = Transpose {TO_FIRST} (x)
        c1 = Conv <pads = [1,1,1,1]> (x1, w1)
        n1 = Transpose {TO_LAST} (c1)
        b1 = Add (n1, bias)
        r1 = Relu (b1)
        x2 = Transpose {TO_FIRST} (r1)
        c2 = Conv <pads = [1,1,1,1]> (x2, w2)
        n2 = Transpose {TO_LAST} (c2)
        a2 = Add (n2, r1)
        m = ReduceMean <axes = [1, 2]> (a2)
        y = Flatten (m)
    }}"""
    model = model_of(text, w1=noise(6, 3, 3, 3), w2=noise(6, 6, 3, 3), bias=noise(6))
    after, outcome = rewritten(PLACED, model, {"x": noise(2, 4, 5, 3)})
    assert operators(after)["Transpose"] == 2  # of the input, and of one number a channel
    assert outcome.figures["elements transposed after"] < outcome.figures["elements transposed before"] / 3


def test_it_moves_to_where_the_tensor_is_small() -> None:
    text = f"""g (float[N,3,8,9] x) => (float[N,?,?,3] y) {{
        t = Transpose {TO_LAST} (x)
        y = ReduceMax <axes = [1, 2]> (t)
    }}"""
    after, outcome = rewritten(PLACED, model_of(text), {"x": noise(2, 3, 8, 9)})
    assert [node.op_type for node in after.graph.node] == ["ReduceMax", "Transpose"]
    assert outcome.figures == {"elements transposed before": 216, "elements transposed after": 3}


def test_it_does_not_move_to_where_the_tensor_is_large() -> None:
    text = f"g (float[N,3,8,9] x) => (float[N,?,?,?] y) {{ t = Transpose {TO_LAST} (x)  y = Concat <axis = 1> (t, t) }}"
    after, outcome = rewritten(PLACED, model_of(text), {"x": noise(2, 3, 8, 9)})
    assert [node.op_type for node in after.graph.node] == ["Transpose", "Concat"]
    assert outcome.changed == 0
    assert "as much or more" in outcome.sites[0].reason


def test_one_that_a_convolution_needs_stays_with_the_reason() -> None:
    text = f"g (float[N,4,5,3] x) => (float[N,2,4,5] y) {{ t = Transpose {TO_FIRST} (x)  y = Conv (t, w) }}"
    after, outcome = rewritten(PLACED, model_of(text, w=noise(2, 3, 1, 1)), {"x": noise(2, 4, 5, 3)})
    assert operators(after)["Transpose"] == 1
    assert "each need their own order" in outcome.sites[0].reason


def test_one_tensor_wanted_in_both_orders_is_transposed_once() -> None:
    text = f"""g (float[N,3,4,5] x) => (float[N,2,4,5] y, float[N,4,5,7] z) {{
        t = Transpose {TO_LAST} (x)
        r = Relu (t)
        back = Transpose {TO_FIRST} (r)
        y = Conv (back, w)
        z = MatMul (r, v)
    }}"""
    after, _ = rewritten(PLACED, model_of(text, w=noise(2, 3, 1, 1), v=noise(3, 7)), FEED)
    assert operators(after)["Transpose"] == 1


def test_graph_outputs_keep_their_names_and_layouts() -> None:
    text = f"""g (float[N,3,4,5] x) => (float[N,4,5,3] inner, float[N,3,4,5] y, float[N,3,4,5] again) {{
        a = Transpose {TO_LAST} (x)
        inner = Relu (a)
        y = Transpose {TO_FIRST} (inner)
        again = Transpose {TO_FIRST} (inner)
    }}"""
    after, outcome = rewritten(PLACED, model_of(text), FEED)
    assert [value.name for value in after.graph.output] == ["inner", "y", "again"]
    assert operators(after)["Transpose"] == 1
    assert outcome.changed


def test_two_in_a_row_become_one() -> None:
    text = """g (float[2,3,4,5] x) => (float[?,?,?,?] y) {
        a = Transpose <perm = [1, 0, 2, 3]> (x)
        y = Transpose <perm = [3, 1, 2, 0]> (a)
    }"""
    after, _ = rewritten(PLACED, model_of(text), FEED)
    assert attribute_of(node_of(after, "Transpose"), "perm") == [3, 0, 2, 1]


def test_one_that_changes_nothing_goes_also_before_a_graph_output() -> None:
    text = """g (float[2,3] x) => (float[2,3] y, float[2,3] z) {
        a = Transpose <perm = [0, 1]> (x)
        b = Relu (a)
        y = Transpose <perm = [0, 1]> (b)
        z = Transpose <perm = [0, 1]> (x)
    }"""
    after, _ = rewritten(PLACED, model_of(text), {"x": noise(2, 3)})
    assert operators(after) == {"Relu": 1, "Transpose": 1}  # z needs a node that makes it


def test_without_perm_all_axes_are_turned_round() -> None:
    text = "g (float[2,3,4] x) => (float[2,3,4] y) { a = Transpose (x)  b = Exp (a)  y = Transpose (b) }"
    after, _ = rewritten(PLACED, model_of(text), {"x": noise(2, 3, 4)})
    assert operators(after) == {"Exp": 1}


def test_constants_are_transposed_here() -> None:
    text = """g (float[N,3] x) => (float[N,5] y) {
        t = Transpose (w)  a = Transpose (x)  b = Transpose (a)  y = MatMul (b, t)
    }"""
    after, _ = rewritten(PLACED, model_of(text, w=noise(5, 3)), {"x": noise(2, 3)})
    assert operators(after) == {"MatMul": 1}


@pytest.mark.parametrize("lower", ["float[3] low", "float[5,3] low"])
def test_a_variable_of_lower_rank_keeps_its_operator_where_it_is(lower: str) -> None:
    text = f"""g (float[N,3,4,5] x, {lower}) => (float[N,?,?,?] y) {{
        a = Transpose {TO_LAST} (x)  b = Add (a, low)  y = Transpose {TO_FIRST} (b)
    }}"""
    feeds = FEED | {"low": noise(3) if lower == "float[3] low" else noise(5, 3)}
    after, outcome = rewritten(PLACED, model_of(text), feeds)
    assert operators(after)["Transpose"] == 2
    assert not outcome.changed


def test_a_default_that_a_caller_may_replace_is_not_permuted() -> None:
    text = f"""g (float[N,3,4,5] x, float[1,1,1,3] bias) => (float[N,?,?,?] y) {{
        a = Transpose {TO_LAST} (x)  b = Add (a, bias)  y = Transpose {TO_FIRST} (b)
    }}"""
    model = model_of(text, bias=noise(1, 1, 1, 3))
    for feeds in (FEED, FEED | {"bias": noise(1, 1, 1, 3, seed=1)}):
        after, _ = rewritten(PLACED, model, feeds)
        assert [value.name for value in after.graph.input] == ["x", "bias"]
        assert operators(after)["Transpose"] == 1  # of the bias, which is the smallest


def test_subgraphs_see_what_they_saw() -> None:
    text = f"""g (float[2,3,4,5] x, bool c) => (float[2,3,4,5] y) {{
        a = Transpose {TO_LAST} (x)
        r = Relu (a)
        i = If (c) <
            then_branch = t () => (float[2,4,5,3] p) {{ p = Neg (r) }},
            else_branch = e () => (float[2,4,5,3] q) {{
                u = Transpose {TO_FIRST} (r)  v = Exp (u)  q = Transpose {TO_LAST} (v)
            }}
        >
        y = Transpose {TO_FIRST} (i)
    }}"""
    model = model_of(text)
    for flag in (True, False):
        after, outcome = rewritten(PLACED, model, FEED | {"c": np.array(flag)})
        assert outcome.changed
    body = attribute_of(node_of(after, "If"), "else_branch")
    assert [node.op_type for node in body.node].count("Transpose") < 2


def test_a_model_without_transposes_or_of_an_old_opset_is_refused() -> None:
    from ort_metainfer.model.graph import describe

    plain = describe(model_of("g (float[2] x) => (float[2] y) { y = Relu (x) }").SerializeToString())
    assert PLACED.objection(plain) == "the model has no Transpose"
    old = describe(between("b = Relu(a)", 6).SerializeToString())
    assert "needs 7" in (PLACED.objection(old) or "")


def test_the_cheapest_cut_of_a_known_network() -> None:
    network = Network()
    a, b = network.add_vertex(), network.add_vertex()
    for start, end, capacity in ((SOURCE, a, 3), (SOURCE, b, 2), (a, b, 1), (a, SINK, 2), (b, SINK, 2)):
        network.add_edge(start, end, capacity)
    assert network.cut() == (4, {SOURCE, a, b})


@pytest.mark.parametrize("seed", range(20))
def test_the_cut_is_the_cheapest_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    edges = [(int(a), int(b), int(rng.integers(1, 9))) for a, b in rng.integers(0, 7, (14, 2)) if a != b]
    network = Network()
    for _ in range(5):
        network.add_vertex()
    for edge in edges:
        network.add_edge(*edge)
    sides = [{SOURCE, *(v for v in range(2, 7) if mask >> (v - 2) & 1)} for mask in range(32)]
    costs = [sum(capacity for a, b, capacity in edges if a in side and b not in side) for side in sides]
    cost, first = network.cut()
    assert cost == min(costs)
    assert costs[sides.index(first)] == cost


@pytest.mark.slow
@pytest.mark.parametrize("name", ["opennsfw_resnet50", "spindle_unet1d", "magika_v3", "minilm_l3_fp32", "silero_vad"])
def test_real_models_have_their_transposes_where_they_cost_least(name: str, zoo_model: Any) -> None:
    """So it is honest that this rewrite is off: exporters and their optimisers have done its work."""
    from ort_metainfer.model.graph import describe
    from tests.rewrite_run import apply_to_bytes

    path = zoo_model(name)
    _, outcome = apply_to_bytes(PLACED, path.read_bytes(), graph=describe(path))
    assert outcome.changed == 0
    assert all(site.reason for site in outcome.sites)
