"""Fixed shapes in models with branches and loops: what they decide is settled, what they make impossible raises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

from ort_metainfer import static_shapes
from ort_metainfer.decision import Decision
from ort_metainfer.errors import InputsError
from ort_metainfer.model.graph import describe
from ort_metainfer.options import open_session
from ort_metainfer.problem import SessionSpec
from ort_metainfer.rewrites.shapes import FixedShapes
from ort_metainfer.strategy import Strategy
from tests.dropin_observe import plain
from tests.rewrite_models import model_of, noise, operators, rewritten
from tests.rewrite_run import apply_to_bytes, outputs

FIXED = FixedShapes()

SQUEEZED = """g (float[N,M,2] x) => (float[?,2] y) {
    s = Shape <start = 1, end = 2> (x)
    is_one = Equal (s, one)
    r = If (is_one) <
        then_branch = t () => (float[?,2] z) { z = Squeeze (x, one) },
        else_branch = e () => (float[?,?,2] z) { z = Identity (x) }
    >
    y = MatMul (r, w)
}"""
"""What exporters write for ``x.squeeze(1)``; both branches call their result by one name."""

RATES = """g (float[N,K] x, int64 rate) => (float[?,?] y) {
    is_high = Equal (rate, high)
    y = If (is_high) <
        then_branch = t () => (float[?,?] a) { a = MatMul (x, w4) },
        else_branch = e () => (float[?,?] b) { b = MatMul (x, w2) }
    >
}"""
"""A branch for four samples and one for two; which one is taken the value of an input says."""


def squeezed() -> onnx.ModelProto:
    return model_of(SQUEEZED, one=np.array([1]), w=noise(2, 2))


def rates() -> onnx.ModelProto:
    return model_of(RATES, high=np.array(16), w4=noise(4, 3), w2=noise(2, 3))


def rate(feeds: np.ndarray, value: int) -> dict[str, Any]:
    return {"x": feeds, "rate": np.array(value)}


@pytest.mark.parametrize(("sizes", "expected"), [((3, 1, 2), {"Squeeze", "MatMul"}), ((3, 4, 2), {"MatMul"})])
def test_an_if_on_a_size_becomes_the_branch_that_is_taken(sizes: tuple[int, ...], expected: set[str]) -> None:
    after, outcome = rewritten(FIXED, squeezed(), {"x": noise(*sizes)})
    assert set(operators(after)) - {"Identity"} == expected
    assert "branches settled by the shapes: 1" in outcome.notes


def test_branches_inside_branches_are_settled_one_after_another_without_a_clash_of_names() -> None:
    inner = """If (is_one) <
        then_branch = a () => (float[?,2] z) { q = Squeeze (x, one)  z = Add (q, c) },
        else_branch = b () => (float[?,?,2] z) { q = Relu (x)  z = Add (q, c) }
    >"""
    text = f"""g (float[N,M,2] x, bool flag) => (float[?,?] y, float[?,?] v) {{
        s = Shape <start = 1, end = 2> (x)
        is_one = Equal (s, one)
        y, v = If (flag) <
            then_branch = t () => (float[?,?] y1, float[?,?] v1) {{ y1 = {inner}  v1 = {inner} }},
            else_branch = e () => (float[?,?] y2, float[?,?] v2) {{
                c = Constant <value = float[2] {{5.0, 6.0}}> ()
                y2 = {inner}
                n = Shape (y2)  r = Size (n)  is_flat = Equal (r, two)
                v2 = If (is_flat) <
                    then_branch = f () => (float[?,?] q) {{ q = Transpose (y2) }},
                    else_branch = h () => (float[?,?] q) {{ q = ReduceSum <keepdims = 0> (y2, one) }}
                >
            }}
        >
    }}"""
    text = text.replace(
        "then_branch = t () => (float[?,?] y1, float[?,?] v1) {",
        "then_branch = t () => (float[?,?] y1, float[?,?] v1) { c = Neg (d) ",
    )
    model = model_of(text, one=np.array([1]), two=np.array(2), d=noise(2))
    for flag in (True, False):
        _, outcome = rewritten(FIXED, model, {"x": noise(2, 1, 2), "flag": np.array(flag)})
        assert "branches settled by the shapes: 4" in outcome.notes


def test_a_rank_declared_wrongly_inside_a_branch_decides_nothing() -> None:
    text = """g (float[N] x, bool flag) => (float[?] y) {
        b = If (flag) <
            then_branch = t () => (float[?,1] p) { p = Relu (x) },
            else_branch = e () => (float[?,1] q) { q = Neg (x) }
        >
        s = Shape (b)
        is_one = Equal (s, one)
        y = If (is_one) <
            then_branch = t2 () => (float[?] u) { u = Add (b, hundred) },
            else_branch = e2 () => (float[?] v) { v = Identity (b) }
        >
    }"""
    model = model_of(text, one=np.array([1]), hundred=np.array([100], np.float32))
    rewritten(FIXED, model, {"x": noise(3), "flag": np.array(True)})


@pytest.mark.parametrize("given", [rate(noise(5, 4), 16), rate(noise(5, 2), 8)], ids=["then", "else"])
def test_a_branch_that_is_impossible_with_the_shapes_does_not_spoil_the_other(given: dict[str, Any]) -> None:
    _, outcome = rewritten(FIXED, rates(), given)
    assert "branches impossible with the shapes, a run that takes one raises: 1" in outcome.notes


def test_a_run_that_takes_the_impossible_branch_raises() -> None:
    made, _ = apply_to_bytes(FIXED, rates().SerializeToString(), [rate(noise(5, 4), 16)])
    for level in ("off", "default"):
        with pytest.raises(InvalidArgument):
            outputs(made, [rate(noise(5, 4), 8)], level)


def test_with_the_drop_in_it_runs_on_the_general_session(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(rates(), path)
    shapes = {"x": "5,4", "rate": ""}
    made, _ = apply_to_bytes(FIXED, path.read_bytes(), parameters={"shapes": shapes})
    strategy = Strategy(transforms=(FIXED.transform(shapes=shapes),))
    ours, theirs = open_session(made, SessionSpec(), Strategy()), onnxruntime.InferenceSession(str(path))
    static_shapes.guard(
        ours, str(path), SessionSpec(), Decision(strategy, "rules", "a test", graph=describe(str(path)))
    )
    for feeds in (rate(noise(5, 4), 16), rate(noise(5, 2), 8)):
        assert plain(ours.run(None, feeds)) == plain(theirs.run(None, feeds))
    with pytest.raises(Fail, match="MatMul"):  # plain onnxruntime's own words
        ours.run(None, rate(noise(5, 4), 8))


LOOP = """g (float[N,K] x, int64 n) => (float[?,?] y) {
    y = Loop (n, , x) <body = b (int64 i, bool c, float[?,?] v) => (bool c2, float[?,?] v2) {
        c2 = Identity (c)  v2 = MatMul (v, w)
    }>
}"""


def test_loops_keep_what_they_do() -> None:
    rewritten(FIXED, model_of(LOOP, w=noise(4, 4)), {"x": noise(3, 4), "n": np.array(2)})


def test_a_body_that_cannot_have_the_shapes_is_refused_before_anything_runs_it() -> None:
    model = model_of(LOOP.replace("MatMul (v, w)", "MatMul (x, w)"), w=noise(4, 4)).SerializeToString()
    with pytest.raises(InputsError, match=r"leave them open: .*MatMul"):
        apply_to_bytes(FIXED, model, parameters={"shapes": {"x": "3,5", "n": ""}})


@pytest.mark.slow
@pytest.mark.parametrize(("samples", "hertz"), [(576, 16000), (288, 8000), (576, 8000)])
def test_a_voice_detector_of_nested_branches(samples: int, hertz: int, zoo_model: Any) -> None:
    path = zoo_model("silero_vad")
    shapes = {"input": f"1,{samples}", "state": "2,1,128", "sr": ""}
    feeds = {"input": noise(1, samples), "state": noise(2, 1, 128), "sr": np.array(hertz)}
    made, outcome = apply_to_bytes(FIXED, path.read_bytes(), parameters={"shapes": shapes})
    assert outcome.notes[0].startswith("branches settled by the shapes: 1")
    if samples == 576 and hertz == 8000:
        with pytest.raises(InvalidArgument):
            outputs(made, [feeds])
        return
    for got, expected in zip(outputs(made, [feeds])[0], outputs(path, [feeds])[0], strict=True):
        np.testing.assert_array_equal(got, expected)
