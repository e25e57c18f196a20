"""Channels padded to a multiple: islands, where they end, and what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from ort_metainfer.rewrites.layout_channels import ChannelsPadded
from tests.rewrite_models import attribute_of, model_of, noise, operators, rewritten

PADDED = ChannelsPadded()
FEED = {"x": noise(2, 3, 8, 9)}
ENDS = {"w1": noise(6, 3, 3, 3), "b1": noise(6), "w2": noise(4, 6, 3, 3)}


def between(body: str, opset: int = 17, **weights: Any) -> onnx.ModelProto:
    """``body`` makes ``b`` of ``a``, six channels, between two convolutions."""
    text = f"""g (float[N,3,8,9] x) => (float[?,?,?,?] y) {{
        a = Conv <pads = [1,1,1,1]> (x, w1, b1)
        {body}
        y = Conv (b, w2)
    }}"""
    return model_of(text, opset, **ENDS | weights)


def shapes_of(model: onnx.ModelProto) -> list[list[int]]:
    weights = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    return [weights[node.input[1]] for node in model.graph.node if node.op_type == "Conv"]


@pytest.mark.parametrize(
    "body",
    [
        "b = Relu (a)",
        "s = Sigmoid (a)  b = Mul (a, s)",
        "c = Add (a, channels)  b = Clip (c, low, high)",
        "b = Div (a, channels)",
        "b = Sub (one, a)",
        "b = Max (a, one)",
        "b = BatchNormalization (a, scale, mean, mean, scale)",
        "b = Conv <group = 6, pads = [1,1,1,1]> (a, deep, mean)",
        "b = MaxPool <kernel_shape = [2,2], pads = [1,1,0,0]> (a)",
        "b = AveragePool <kernel_shape = [3,3], pads = [1,1,1,1]> (a)",
        "g = GlobalAveragePool (a)  h = HardSigmoid (g)  b = Mul (a, h)",
        "g = ReduceMean <axes = [2, 3]> (a)  h = Tanh (g)  b = Mul (a, h)",
        "c = Conv <pads = [1,1,1,1]> (a, square)  b = Add (a, c)",
    ],
)
def test_what_works_channel_by_channel_is_part_of_an_island(body: str) -> None:
    weights = {
        "low": np.float32(-1),
        "high": np.float32(1),
        "one": np.float32(1),
        "channels": np.abs(noise(6, 1, 1)) + 1,
        "scale": np.abs(noise(6)) + 1,
        "mean": noise(6, seed=2),
        "deep": noise(6, 1, 3, 3),
        "square": noise(6, 6, 3, 3),
    }
    used = {name: array for name, array in weights.items() if name in body}
    after, outcome = rewritten(PADDED, between(body, **used), FEED)
    assert outcome.changed == 1
    assert operators(after)["Slice"] == 0
    first, *_, last = shapes_of(after)
    assert (first[0], last[1]) == (8, 8)


def test_a_gate_of_a_squeezed_middle_makes_two_islands() -> None:
    body = """g = GlobalAveragePool (a)  m = Conv (g, down)  r = Relu (m)  u = Conv (r, up)  h = Sigmoid (u)
        b = Mul (a, h)"""
    after, outcome = rewritten(PADDED, between(body, down=noise(6, 6, 1, 1), up=noise(6, 6, 1, 1)), FEED)
    assert outcome.changed == 2
    assert operators(after)["Slice"] == 0
    assert shapes_of(after)[1:3] == [[8, 8, 1, 1], [8, 8, 1, 1]]


def test_the_group_of_a_depthwise_convolution_grows() -> None:
    after, _ = rewritten(PADDED, between("b = Conv <group = 6> (a, deep)", deep=noise(6, 1, 3, 3)), FEED)
    assert attribute_of(after.graph.node[1], "group") == 8


@pytest.mark.parametrize("opset", [9, 13, 17])
def test_the_padding_is_cut_off_where_an_island_ends(opset: int) -> None:
    text = """g (float[N,3,8,9] x) => (float[?,?,?,?] y, float[?,?,?,?] a, float[?,?,?,?] z) {
        c = Conv (x, w1, b1)
        a = Relu (c)
        y = Conv (a, w2)
        z = Transpose <perm = [0,2,3,1]> (c)
    }"""
    after, outcome = rewritten(PADDED, model_of(text, opset, **ENDS), FEED)
    assert outcome.changed == 1
    assert outcome.figures == {"slices": 2}
    assert operators(after)["Slice"] == 2
    assert [value.name for value in after.graph.output] == ["y", "a", "z"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("b = Concat <axis = 1> (a)", ""),
        ("t = Transpose <perm = [0,1,3,2]> (x)  u = Conv <pads=[1,1,1,1]> (t, w1)  v = Transpose <perm = [0,1,3,2]> (u)"
         "  b = Add (a, v)", "made by Transpose"),
    ],
)  # fmt: skip
def test_other_makers_keep_an_island_as_it_is(body: str, reason: str) -> None:
    after, outcome = rewritten(PADDED, between(body), FEED)
    assert outcome.changed == 0
    assert not reason or any(reason in site.reason for site in outcome.sites)
    assert shapes_of(after)[0] == [6, 3, 3, 3]


def test_what_is_aligned_or_would_grow_too_much_stays() -> None:
    _, outcome = rewritten(PADDED, between("b = Relu (a)"), FEED, multiple=32)
    assert "more than 1.5 times" in outcome.sites[0].reason
    _, outcome = rewritten(PADDED, between("b = Relu (a)"), FEED, multiple=32, most_growth=6.0)
    assert outcome.changed == 1
    aligned = between("b = Relu (a)", w1=noise(8, 3, 3, 3), b1=noise(8), w2=noise(4, 8, 3, 3))
    _, outcome = rewritten(PADDED, aligned, FEED)
    assert "are a multiple of 8" in outcome.sites[0].reason


def test_groups_and_replaceable_weights_are_left_alone() -> None:
    grouped = between("b = Conv <group = 2> (a, w)", w=noise(6, 3, 1, 1))
    assert rewritten(PADDED, grouped, FEED)[1].changed == 0
    text = """g (float[N,3,8,9] x, float[6,3,3,3] w1) => (float[?,?,?,?] y) { a = Conv (x, w1)  y = Conv (a, w2) }"""
    model = model_of(text, w1=ENDS["w1"], w2=ENDS["w2"])
    assert rewritten(PADDED, model, FEED)[1].changed == 0


def test_a_graph_output_that_a_branch_sees_too() -> None:
    text = """g (float[2,3,8,9] x, bool c) => (float[?,?,?,?] y, float[?,?,?,?] z) {
        a = Conv (x, w1, b1)
        r = Relu (a)
        y = Conv (r, w2)
        z = If (c) < then_branch = t () => (float[?,?,?,?] p) { p = Neg (r) },
                     else_branch = e () => (float[?,?,?,?] q) { q = Abs (a) } >
    }"""
    for flag in (True, False):
        _, outcome = rewritten(PADDED, model_of(text, **ENDS), FEED | {"c": np.array(flag)})
        assert outcome.changed == 1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape"), [("ppocr_cls", (1, 3, 48, 192)), ("ppocr_v6_det", (1, 3, 96, 160))])
def test_real_networks(name: str, shape: tuple[int, ...], zoo_model: Any) -> None:
    from tests.rewrite_run import apply_to_bytes, difference, outputs

    path = zoo_model(name)
    feeds = [{"x": np.random.default_rng(0).random(shape, dtype=np.float32)}]
    made, outcome = apply_to_bytes(PADDED, path.read_bytes(), feeds, {"multiple": 64, "most_growth": 64.0})
    assert outcome.changed
    for level in ("off", "default"):
        assert difference(outputs(made, feeds, level), outputs(path, feeds, level), "float32-equivalent") is None
