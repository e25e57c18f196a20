"""What rewrites look at beside the model is told apart, and what they do not look at makes no difference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from ort_metainfer.compiled import Compiled, compiled_for, keep, made_with_any_inputs, part_folder
from ort_metainfer.compiled_key import REWRITTEN, CompiledKey
from ort_metainfer.rewrites.circumstances import CAPTURED, circumstances, look_at_feeds
from ort_metainfer.rewrites.registry import get_rewrite
from ort_metainfer.strategy import Transform

GELU = (get_rewrite("gelu-to-contributed").transform(),)
INT8 = (get_rewrite("int8-static").transform(),)
SHAPES = (get_rewrite("fixed-shapes").transform(),)

ONES = [{"x": np.ones((1, 2), np.float32)}]
KEY = CompiledKey("sha256:" + "a" * 64, "cpu:x/1c", "{}", "{}")


def test_exact_rewrites_look_at_nothing() -> None:
    assert not look_at_feeds(GELU)
    assert circumstances(GELU, {"x": (1, 2)}, ONES) == ""


def test_what_calibrates_tells_inputs_apart_by_value_type_and_shape() -> None:
    told = {circumstances(INT8, {}, ONES)}
    for other in (np.zeros((1, 2), np.float32), np.ones((1, 2)), np.ones((2, 1), np.float32)):
        told.add(circumstances(INT8, {}, [{"x": other}]))
    told.add(circumstances(INT8, {}, [{"y": ONES[0]["x"]}]))
    told.add(circumstances(INT8, {}, CAPTURED))
    told.add(circumstances(INT8, {}, []))
    assert len(told) == 7 and circumstances(INT8, {}, [{"x": ONES[0]["x"].copy()}]) in told
    assert circumstances(INT8, {"x": (1, 2)}, []) == ""


def test_inputs_that_are_held_back_for_judging_make_no_difference() -> None:
    feeds = [{"x": np.full((1, 2), number, np.float32)} for number in range(4)]
    other = [*feeds[:3], {"x": np.full((1, 2), 9, np.float32)}]
    assert circumstances(INT8, {}, feeds) == circumstances(INT8, {}, other)


def test_shapes_are_told_apart_where_they_are_fixed() -> None:
    one, other = (circumstances(SHAPES, {"x": (1, size)}, ONES) for size in (2, 3))
    assert one != other and one


def test_a_rewrite_that_there_is_not_looks_at_nothing() -> None:
    assert circumstances((Transform("gelu-to-gold", 1, {}),), {"x": (1, 2)}, ONES) == ""


def kept(directory: Path, inputs: str) -> Compiled:
    with part_folder(directory) as part:
        (part / "model.onnx").write_text(inputs)
        return keep(directory, part, Compiled(part, REWRITTEN, replace(KEY, inputs=inputs)))


def test_models_made_with_other_inputs_lie_side_by_side(tmp_path: Path) -> None:
    one, other = kept(tmp_path, "inputs 1"), kept(tmp_path, "inputs 2")
    assert one.folder != other.folder and one.folder.exists()
    assert compiled_for(tmp_path, replace(KEY, inputs="inputs 1")) == one
    assert isinstance(compiled_for(tmp_path, KEY), str)
    assert isinstance(made_with_any_inputs(tmp_path, KEY), Compiled)
    assert isinstance(made_with_any_inputs(tmp_path, replace(KEY, strategy='{"other": 1}')), str)


def test_a_folder_that_a_decision_names_is_right_for_its_key_only(tmp_path: Path) -> None:
    made = kept(tmp_path, "inputs 1")
    assert compiled_for(tmp_path, KEY, made.folder.name) == made
    found = compiled_for(tmp_path, replace(KEY, session="another"), made.folder.name)
    assert isinstance(found, str) and made.folder.exists()
