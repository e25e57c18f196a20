"""Fixed shapes as a rewrite: what is fixed, what is computed then, and what is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from ort_metainfer.errors import InputsError
from ort_metainfer.model.graph import describe
from ort_metainfer.rewrites.shapes import FixedShapes, shape_from_text, shape_text
from tests.rewrite_models import model_of, noise, operators, rewritten
from tests.rewrite_run import apply_to_bytes, difference, outputs

FIXED = FixedShapes()

FLATTEN = """g (float[?,3,?,?] x) => (float[?,?] y) {
    c = Conv <pads = [1,1,1,1]> (x, w)
    s = Shape (c)
    n = Gather <axis = 0> (s, zero)
    u = Unsqueeze (n, axes)
    t = Concat <axis = 0> (u, rest)
    y = Reshape (c, t)
}"""
WEIGHTS = {"w": noise(4, 3, 3, 3), "zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}


def flatten(**changes: Any) -> Any:
    return model_of(FLATTEN, **WEIGHTS | changes)


def test_height_and_width_of_one_name_get_their_own_sizes_and_shape_arithmetic_goes() -> None:
    after, outcome = rewritten(FIXED, flatten(), {"x": noise(2, 3, 5, 7)})
    assert operators(after) == {"Conv": 1, "Reshape": 1}
    assert [dim.dim_value for dim in after.graph.input[0].type.tensor_type.shape.dim] == [2, 3, 5, 7]
    assert [dim.dim_value for dim in after.graph.output[0].type.tensor_type.shape.dim] == [2, 140]
    assert outcome.changed == 1 + 4
    assert [site.node for site in outcome.sites] == ["input x"]
    assert outcome.figures["nodes before"] - outcome.figures["nodes after"] == 4


def test_shapes_can_be_given_by_the_strategy() -> None:
    model = flatten().SerializeToString()
    made, _ = apply_to_bytes(FIXED, model, parameters={"shapes": {"x": "1,3,4,4"}})
    feeds = [{"x": noise(1, 3, 4, 4)}]
    assert difference(outputs(made, feeds), outputs(model, feeds), "exact") is None
    with pytest.raises(Exception, match="invalid dimensions"):
        outputs(made, [{"x": noise(1, 3, 4, 5)}])


def test_sizes_computed_in_floats_are_folded() -> None:
    """As exporters write Resize: half of the size, through a float and Floor."""
    text = """g (float[1,2,H,W] x) => (float[?,?,?,?] y) {
        s = Shape (x)
        hw = Slice (s, two, four, zero)
        f = Cast <to = 1> (hw)
        h = Mul (f, half)
        fl = Floor (h)
        i = Cast <to = 7> (fl)
        nc = Slice (s, zero, two, zero)
        sizes = Concat <axis = 0> (nc, i)
        y = Resize <mode = "nearest"> (x, , , sizes)
    }"""
    weights = {"two": np.array([2]), "four": np.array([4]), "zero": np.array([0])}
    model = model_of(text, half=np.array([0.5, 1.5], np.float32), **weights)
    after, _ = rewritten(FIXED, model, {"x": noise(1, 2, 7, 5)})
    assert operators(after) == {"Resize": 1}


def test_what_is_large_or_rounds_is_not_computed_here() -> None:
    text = """g (float[N] x) => (float[?] y, float[?] z) {
        s = Shape (x)
        wide = ConstantOfShape (s)
        y = Add (x, wide)
        e = Exp (rate)
        z = Mul (x, e)
    }"""
    after, _ = rewritten(FIXED, model_of(text, rate=np.array([0.3], np.float32)), {"x": noise(5000)})
    assert operators(after) >= Counter({"ConstantOfShape": 1, "Add": 1, "Exp": 1, "Mul": 1})


def test_branches_keep_what_they_take_from_outside() -> None:
    text = """g (float[N,2] x, bool c) => (float[?,?] y) {
        s = Shape (x)
        y = If (c) <
            then_branch = t () => (float[?,?] p) { m = Mul (s, twice)  p = Reshape (x, rest) },
            else_branch = e () => (float[?,?] q) { r = Reshape (x, turned)  q = Relu (r) }
        >
    }"""
    model = model_of(text, twice=np.array([2, 2]), rest=np.array([1, -1]), turned=np.array([-1, 3]))
    for flag in (True, False):
        _, outcome = rewritten(FIXED, model, {"x": noise(3, 2), "c": np.array(flag)})
        assert outcome.changed


def test_a_default_that_a_caller_may_replace_stays_one() -> None:
    text = "g (float[N,2] x, int64[2] to) => (float[?,?] y) { y = Reshape (x, to) }"
    model = model_of(text, to=np.array([2, -1]))
    for feeds in ({"x": noise(3, 2)}, {"x": noise(3, 2), "to": np.array([1, 6])}):
        after, _ = rewritten(FIXED, model, {"x": feeds["x"]})
        assert [value.name for value in after.graph.input] == ["x", "to"]
        got, expected = (outputs(given.SerializeToString(), [feeds]) for given in (after, model))
        assert difference(got, expected, "exact") is None


def test_an_input_of_which_only_the_shape_was_used_keeps_its_default() -> None:
    text = "g (float[N,2] x, float[3,2] like) => (float[?,?] y) { s = Shape (like)  y = Expand (x, s) }"
    after, _ = rewritten(FIXED, model_of(text, like=noise(3, 2)), {"x": noise(1, 2)})
    assert operators(after)["Shape"] == 0
    assert [tensor.name for tensor in after.graph.initializer if tensor.name == "like"] == ["like"]


@pytest.mark.parametrize(
    ("text", "feeds", "reason"),
    [
        ("g (float[2] x) => (float[2] y) { y = Relu (x) }", {"x": noise(2)}, "fixed already"),
        ("g (float[N] x) => (float[N] y) { y = Relu (x) }", {}, "shape of input x is not known"),
        ("g (float[N] x) => (float[N] y) { y = Relu (x) }", {"x": noise(0)}, "is empty"),
        ("g (float[N] x, int64 k) => (float[N] y) { y = Relu (x) }", {"x": noise(2), "k": np.array([1])}, "declared"),
        (
            "g (float[N] x, seq(float[N]) q) => (float[N] y) { y = Relu (x) }",
            {"x": noise(2), "q": [noise(2)]},
            "no tensor",
        ),
    ],
)
def test_it_leaves_alone_what_it_cannot_fix(text: str, feeds: dict[str, Any], reason: str) -> None:
    model = model_of(text).SerializeToString()
    made, outcome = apply_to_bytes(FIXED, model, [feeds])
    assert outcome.changed == 0
    assert reason in outcome.notes[0]
    assert describe(made).inputs == describe(model).inputs


@pytest.mark.parametrize("text", ["1,3,4", "1,3,0,4", "1,3,-1,4", "1x3x4x4", "", "1,2,4,4"])
def test_given_shapes_that_do_not_fit_are_refused(text: str) -> None:
    with pytest.raises(InputsError):
        apply_to_bytes(FIXED, flatten().SerializeToString(), parameters={"shapes": {"x": text}})


def test_a_shape_written_as_text_is_read_back() -> None:
    for shape in ((), (1,), (1, 3, 224, 224)):
        assert shape_from_text("x", shape_text(shape)) == shape


ZOO = ["ppocr_v6_det", "ppocr_cls", "opennsfw_resnet50", "spindle_unet1d", "doc_orientation"]
SHAPES = {
    "ppocr_v6_det": {"x": (1, 3, 96, 160)},
    "ppocr_cls": {"x": (2, 3, 48, 192)},
    "opennsfw_resnet50": {"input:0": (1, 224, 224, 3)},
    "doc_orientation": {"x": (1, 3, 224, 224)},
    "spindle_unet1d": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_real_models(name: str, zoo_model: Any) -> None:
    path = zoo_model(name)
    graph = describe(path)
    shapes = SHAPES[name] or {
        spec.name: tuple(dim if isinstance(dim, int) else 2 for dim in spec.shape or ()) for spec in graph.inputs
    }
    feeds = [{n: np.random.default_rng(0).random(shape, dtype=np.float32) for n, shape in shapes.items()}]
    made, outcome = apply_to_bytes(FIXED, path.read_bytes(), feeds, graph=graph)
    assert outcome.changed
    assert describe(made).symbolic_dims == ()
    for level in ("off", "default"):
        expected = outputs(path, feeds, level)
        promise = "exact" if level == "off" else "float32-equivalent"
        assert difference(outputs(made, feeds, level), expected, promise) is None
