"""A session with fixed shapes shows as its inputs and outputs, to the letter, what plain onnxruntime shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from ort_metainfer import static_shapes
from ort_metainfer.decision import Decision
from ort_metainfer.declared import Declared, DeclaredArg
from ort_metainfer.errors import MetainferError
from ort_metainfer.model.graph import describe
from ort_metainfer.options import open_session
from ort_metainfer.problem import CacheKey, SessionSpec
from ort_metainfer.rewrites.fixed_shapes import fix_shapes
from ort_metainfer.settings import Settings
from ort_metainfer.strategy import Strategy
from ort_metainfer.strategy_cache.store import open_cache
from tests.rewrite_models import model_of

Dims = list[Any] | None

ODD: dict[str, Dims] = {
    "named": ["N", "M"],
    "unnamed": [None, None],
    "question marks": ["?", "?"],
    "empty names": ["", "M"],
    "negative": [-1, -5],
    "what exporters write": ["unk__214", "None"],
    "stars and numbers as names": ["*", "-1"],
    "one name twice": ["N", "N"],
    "half fixed": ["?", 2],
    "blanks and accents": ["batch size", "h\u00e9"],
    "no rank": None,
}


def value(name: str, dims: Dims) -> Any:
    made = helper.make_empty_tensor_value_info(name)
    made.type.tensor_type.elem_type = TensorProto.FLOAT
    for dim in dims or ():
        one = made.type.tensor_type.shape.dim.add()
        if isinstance(dim, int):
            one.dim_value = dim
        elif dim is not None:
            one.dim_param = dim
    return made


def saved(folder: Path, declared: Dims, output: Dims) -> Path:
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [value("x", declared)], [value("y", output)])
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def guarded(path: Path, shapes: dict[str, Any], spec: SessionSpec, settings: Settings | None = None) -> Any:
    """A session of fixed shapes behind its guard, of a model whose hash is known where there are settings."""
    fixed = fix_shapes(path, shapes, path.with_name("fixed.onnx"))
    session = open_session(str(fixed.path), spec._replace(free_dimensions={}), Strategy())
    session._metainfer_settings = settings
    key = None if settings is None else CacheKey("sha256:0", "a device", "x", "strict")
    decision = Decision(Strategy(), "rules", "a test", key=key, graph=describe(path))
    static_shapes.guard(session, str(path), spec, decision)
    return session


def shown(session: Any) -> list[list[tuple[str, str, Any, str]]]:
    sides = (session.get_inputs(), session.get_outputs())
    return [[(arg.name, arg.type, arg.shape, str(arg)) for arg in side] for side in sides]


@pytest.mark.parametrize("output", [["A", "B"], ["?", None], None], ids=["names", "nothing said", "no rank"])
@pytest.mark.parametrize("declared", ODD.values(), ids=ODD)
def test_odd_declarations_are_shown_as_they_are(declared: Dims, output: Dims, tmp_path: Path) -> None:
    path = saved(tmp_path, declared, output)
    session = guarded(path, {"x": (3, 3) if declared != ["?", 2] else (3, 2)}, SessionSpec())
    assert session._metainfer_fixed.get_inputs()[0].shape in ([3, 3], [3, 2])
    assert shown(session) == shown(onnxruntime.InferenceSession(str(path)))


def test_sizes_the_caller_fixed_by_name_are_shown_as_numbers(tmp_path: Path) -> None:
    path = saved(tmp_path, ["N", "M"], ["N", "M"])
    spec = SessionSpec(free_dimensions={"N": 3})
    options = onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_name("N", 3)
    session = guarded(path, {"x": (3, 4)}, spec)
    assert shown(session) == shown(onnxruntime.InferenceSession(str(path), options))


def test_sequences_and_optionals_are_shown(tmp_path: Path) -> None:
    text = """g (float[N] x, seq(float[?]) q, optional(float[N,2]) o) => (float[?] y, seq(float[?]) r) {
        y = Relu (x)
        r = SequenceInsert (q, x)
    }"""
    path = tmp_path / "model.onnx"
    onnx.save(model_of(text), path)
    spec = SessionSpec()
    session = open_session(str(path), spec, Strategy(static_shapes={"N": 3}))
    static_shapes.guard(session, str(path), spec, Decision(Strategy(), "rules", "a test", graph=describe(path)))
    assert type(session).__mro__[1] is static_shapes._ShapeGuard
    assert shown(session) == shown(onnxruntime.InferenceSession(str(path)))


def test_plain_onnxruntime_is_asked_once_per_model_and_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, settings = saved(tmp_path, ["?", "?"], ["A", "B"]), Settings(cache_dir=str(tmp_path / "cache"))
    opened: list[Any] = []
    monkeypatch.setattr(static_shapes, "open_session", lambda *given: opened.append(given) or open_session(*given))
    first = guarded(path, {"x": (3, 4)}, SessionSpec(), settings)
    assert shown(first) == shown(first)
    again = guarded(path, {"x": (3, 4)}, SessionSpec(properties={"log_severity_level": 3}), settings)
    assert shown(again) == shown(first)
    assert len(opened) == 1
    shown(guarded(path, {"x": (3, 4)}, SessionSpec(properties={"intra_op_num_threads": 1}), settings))
    assert len(opened) == 2


def test_the_session_that_was_asked_is_not_kept_and_one_that_is_there_is_asked(tmp_path: Path) -> None:
    path = saved(tmp_path, ["?", "?"], ["A", "B"])
    session = guarded(path, {"x": (3, 4)}, SessionSpec())
    session.get_outputs()
    assert session._metainfer_general._session is None
    other = guarded(path, {"x": (3, 4)}, SessionSpec())
    general = other._metainfer_general()
    assert other._metainfer_general.shown()[0][0].shape == general.get_inputs()[0].shape
    assert other._metainfer_general() is general


def test_inputs_whose_dimensions_all_have_names_need_no_question(tmp_path: Path) -> None:
    session = guarded(saved(tmp_path, ["N", "M"], ["N", "M"]), {"x": (3, 4)}, SessionSpec())
    session._metainfer_declared._ask = None
    assert [arg.shape for arg in session.get_inputs()] == [["N", "M"]]


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"inputs": 3, "outputs": []},
        {"inputs": [{"name": "x"}], "outputs": []},
        None,
        {"inputs": [{"name": "x", "type": "t", "shape": [1.5]}], "outputs": []},
    ],
)
def test_a_damaged_row_is_asked_for_again(row: Any, tmp_path: Path) -> None:
    cache = open_cache(tmp_path / "cache")
    arg = DeclaredArg("x", "tensor(float)", [None])
    declared = Declared(SessionSpec(), None, lambda: ([arg], [arg]), lambda: cache, "sha256:1")
    if row is not None:
        cache.put("shown", declared._key(), row)
    assert (declared.inputs(), declared.outputs()) == ([arg], [arg])
    assert cache.get("shown", declared._key())["inputs"] == [{"name": "x", "type": "tensor(float)", "shape": [None]}]


def test_without_a_cache_it_is_shown_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(keyword: Any) -> Any:
        raise MetainferError("the settings are wrong")

    monkeypatch.setattr("ort_metainfer.adapt.settings_for", broken)
    path = saved(tmp_path, ["?", "?"], ["A", "B"])
    session = guarded(path, {"x": (3, 4)}, SessionSpec(), Settings())
    assert shown(session) == shown(onnxruntime.InferenceSession(str(path)))
