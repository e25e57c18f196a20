"""Weights in another order: Gemm's orientation, and a transpose that is flattened and multiplied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ort_metainfer.rewrites.layout_weights import TransposeIntoWeights, WeightsTransposed
from tests.rewrite_models import attribute_of, model_of, node_of, noise, operators, rewritten

TURNED, INTO = WeightsTransposed(), TransposeIntoWeights()

GEMM = "g (float[N,3] x, float[4] d) => (float[N,4] y) {{ y = Gemm <alpha = 0.5, beta = 2.0, transB = {}> (x, w, d) }}"


@pytest.mark.parametrize("wanted", [0, 1])
def test_gemm_takes_its_weight_in_the_wanted_orientation(wanted: int) -> None:
    model = model_of(GEMM.format(1 - wanted), w=noise(3, 4) if wanted else noise(4, 3))
    after, outcome = rewritten(TURNED, model, {"x": noise(2, 3), "d": noise(4)}, trans_b=wanted)
    assert outcome.changed == 1
    assert attribute_of(node_of(after, "Gemm"), "transB") == wanted
    assert attribute_of(node_of(after, "Gemm"), "alpha") == 0.5
    assert len(after.graph.initializer) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float[N,3] x) => (float[N,4] y) { y = Gemm (x, w) }", "already"),
        ("g (float[N,3] x, float[4,3] w) => (float[N,4] y) { y = Gemm <transB = 1> (x, w) }", "not constant"),
        (
            "g (float[N,3] x) => (float[N,4] y, float[4,3] z) { y = Gemm <transB = 1> (x, w)  z = Relu (w) }",
            "used elsewhere",
        ),
    ],
)
def test_it_stays_with_the_reason(text: str, reason: str) -> None:
    weight = noise(3, 4) if "transB" not in text else noise(4, 3)
    _, outcome = rewritten(TURNED, model_of(text, w=weight), {"x": noise(2, 3)})
    assert outcome.changed == 0
    assert reason in outcome.sites[0].reason


FLAT = {
    "f = Flatten (t)": {},
    "f = Reshape (t, to)": {"to": np.array([0, -1])},
    "f = Reshape (t, to) ": {"to": np.array([-1, 60])},
    "f = Reshape (t, to)  ": {"to": np.array([2, 60])},
}
DENSE = {
    "y = MatMul (f, w)": noise(60, 7),
    "y = Gemm (f, w)": noise(60, 7),
    "y = Gemm <transB = 1, alpha = 2.0> (f, w)": noise(7, 60),
}


@pytest.mark.parametrize("perm", ["[0,2,3,1]", "[0,3,1,2]", "[0,3,2,1]", "[0,1,3,2]"])
@pytest.mark.parametrize("flat", FLAT)
@pytest.mark.parametrize("dense", DENSE)
def test_a_transpose_goes_into_the_rows_of_the_weight(perm: str, flat: str, dense: str) -> None:
    text = f"g (float[N,3,4,5] x) => (float[N,7] y) {{ t = Transpose <perm = {perm}> (x)  {flat}  {dense} }}"
    after, outcome = rewritten(INTO, model_of(text, w=DENSE[dense], **FLAT[flat]), {"x": noise(2, 3, 4, 5)})
    assert outcome.changed == 1
    assert operators(after)["Transpose"] == 0


@pytest.mark.parametrize(
    ("body", "outputs", "reason"),
    [
        ("t = Transpose <perm = [1,0,2,3]> (x)  f = Flatten (t)  y = MatMul (f, w)", "", "moves the batch"),
        ("t = Transpose <perm = [0,3,1,2]> (x)  f = Flatten (t)  y = MatMul (f, w)", ", float[?,?,?,?] t", "t inside"),
        ("t = Transpose <perm = [0,3,1,2]> (x)  f = Flatten <axis = 2> (t)  y = MatMul (f, v)", "", "another axis"),
        ("t = Transpose <perm = [0,3,1,2]> (x)  f = Reshape (t, to)  y = MatMul (f, w)", "", "is computed"),
    ],
)
def test_it_is_left_alone_where_it_is_more_than_that(body: str, outputs: str, reason: str) -> None:
    text = f"g (float[2,3,4,5] x, int64[2] to) => (float[?,?] y{outputs}) {{ {body} }}"
    weights: dict[str, Any] = {"v": noise(12, 7)} if "v)" in body else {"w": noise(40 if "[1," in body else 60, 7)}
    feeds = {"x": noise(2, 3, 4, 5), "to": np.array([2, 60])}
    _, outcome = rewritten(INTO, model_of(text, **weights), feeds)
    assert outcome.changed == 0
    assert reason in outcome.sites[0].reason


def test_open_dimensions_are_left_alone() -> None:
    text = """g (float[N,3,H,5] x) => (float[N,7] y) {
        t = Transpose <perm = [0,2,3,1]> (x)  f = Flatten (t)  y = MatMul (f, w)
    }"""
    _, outcome = rewritten(INTO, model_of(text, w=noise(60, 7)), {"x": noise(2, 3, 4, 5)})
    assert "open dimensions" in outcome.sites[0].reason


def test_a_weight_that_is_used_elsewhere_stays() -> None:
    text = """g (float[N,3,4,5] x, float[N,60] z) => (float[N,7] y, float[N,7] v) {
        t = Transpose <perm = [0,2,3,1]> (x)  f = Flatten (t)  y = MatMul (f, w)  v = MatMul (z, w)
    }"""
    _, outcome = rewritten(INTO, model_of(text, w=noise(60, 7)), {"x": noise(2, 3, 4, 5), "z": noise(2, 60)})
    assert "used elsewhere" in outcome.sites[0].reason
