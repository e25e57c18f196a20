"""A session whose shapes a strategy fixed is used like any other, with any shapes."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ort_metainfer
from ort_metainfer import static_shapes
from tests.dropin_models import dense, saved, values
from tests.dropin_modes import strategy_file
from tests.dropin_observe import attempt, plain

Base = onnxruntime.InferenceSession
Ours = ort_metainfer.InferenceSession
FIXED = {"x": values(3, 8)}
OTHER = {"x": values(5, 8)}


@pytest.fixture(autouse=True)
def fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_METAINFER_STRATEGY", str(strategy_file(tmp_path, "[strategy.static_shapes]\nN = 3\n")))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return saved(dense(), tmp_path / "model.onnx")


def expected(path: str, feeds: dict[str, np.ndarray]) -> Any:
    return plain(Base(path).run(None, feeds))


class Labelled(Ours):
    """A user's subclass that changes what run() returns and pickles itself by its path."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def run(self, *args: Any, **keywords: Any) -> Any:
        return ["label", *super().run(*args, **keywords)]

    def __getstate__(self) -> str:
        return self.path

    def __setstate__(self, path: str) -> None:
        self.__init__(path)  # type: ignore[misc]  (the usual recipe)


@pytest.mark.parametrize("feeds", [FIXED, OTHER], ids=["its own shapes", "other shapes"])
def test_what_a_subclass_overrides_is_called(feeds: dict[str, np.ndarray], path: str):
    label, output = Labelled(path).run(None, feeds)
    assert label == "label"
    assert (plain(output),) == expected(path, feeds)


def test_a_subclass_travels_by_its_own_recipe(path: str):
    again = pickle.loads(pickle.dumps(Labelled(path)))  # noqa: S301 (our own bytes, from the line's other end)
    assert isinstance(again, Labelled)
    assert again.run(None, OTHER)[0] == "label"


def test_a_copy_takes_any_shapes_too(path: str):
    twin = copy.copy(Ours(path))
    assert [plain(twin.run(None, feeds)) for feeds in (FIXED, OTHER)] == [expected(path, f) for f in (FIXED, OTHER)]


@pytest.mark.parametrize("binds", ["io_binding", "IOBinding"])
@pytest.mark.parametrize("feeds", [FIXED, OTHER], ids=["its own shapes", "other shapes"])
def test_bindings_take_any_shapes(binds: str, feeds: dict[str, np.ndarray], path: str):
    session = Ours(path)
    binding = session.io_binding() if binds == "io_binding" else onnxruntime.IOBinding(session)
    binding.bind_cpu_input("x", feeds["x"])
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert plain(binding.copy_outputs_to_cpu()) == expected(path, feeds)


def test_values_of_the_session_s_own_memory_are_taken(path: str):
    session = Ours(path)
    if not hasattr(session, "create_ortvalue_from_shape_and_type"):
        pytest.skip("since onnxruntime 1.30")
    value = session.create_ortvalue_from_shape_and_type([3, 8], np.float32, "cpu")
    value.update_inplace(FIXED["x"])
    (output,) = session.run_with_ort_values(None, {"x": value})
    assert (plain(output.numpy()),) == expected(path, FIXED)


def test_run_async_takes_any_shapes(path: str):
    done, results = threading.Event(), []

    def finished(outputs: Any, _: Any, error: str) -> None:
        results.append((plain(outputs), error))
        done.set()

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = Ours(path, options)  # kept: before 1.32 nothing else keeps it until the callback
    session.run_async(None, OTHER, finished, None)
    assert done.wait(60)
    assert results == [(expected(path, OTHER), "")]


def test_one_profile_is_written(path: str, tmp_path: Path):
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = Ours(path, options)
    session.run(None, FIXED)
    session.run(None, OTHER)
    written = session.end_profiling()
    assert [str(file) for file in tmp_path.glob("profile*")] == [written]


@pytest.mark.parametrize("feeds", [{}, {"x": values(3, 7)}, {"x": np.zeros((3, 8), np.int64)}, {"x": "text"}])
def test_a_mistake_raises_what_plain_onnxruntime_raises(feeds: dict[str, Any], path: str):
    assert attempt(lambda: Ours(path).run(None, feeds)) == attempt(lambda: Base(path).run(None, feeds))


def test_the_general_session_is_made_only_when_needed_and_freed_with_the_rest(path: str, monkeypatch):
    made: list[Any] = []
    open_session = static_shapes.open_session
    monkeypatch.setattr(static_shapes, "open_session", lambda *a: made.append(s := open_session(*a)) or s)
    gc.disable()
    try:
        session = Ours(path)
        made.clear()  # an override knows no features, so the general session told the shapes
        session.run(None, FIXED)
        assert made == []
        handles = [weakref.ref(session), weakref.ref(session._sess), weakref.ref(session._metainfer_fixed._sess)]
        del session
        made.clear()
        assert [handle() for handle in handles] == [None] * 3
    finally:
        gc.enable()


def test_a_patched_session_is_guarded_too_and_set_providers_ends_it(path: str):
    with ort_metainfer.patch():
        session = Base(path)
    assert isinstance(session, Base)
    assert plain(session.run(None, OTHER)) == expected(path, OTHER)
    held = session.run
    session.set_providers(["CPUExecutionProvider"])
    assert type(session) is Base
    assert plain(session.run(None, OTHER)) == plain(held(None, OTHER)) == expected(path, OTHER)


def test_the_general_session_is_not_adapted_while_the_patch_is_in_force(path: str):
    wanted = expected(path, OTHER)
    with ort_metainfer.patch():
        session = Base(path)
        assert plain(session.run(None, OTHER)) == wanted
        assert plain(session.run(None, FIXED)) == plain(session._metainfer_fixed.run(None, FIXED))
    assert dict(session.strategy.static_shapes) == {"N": 3}


def test_a_guard_that_cannot_be_set_up_costs_the_strategy_only(path: str, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: Any) -> Any:
        raise TypeError("object layout differs")

    monkeypatch.setattr(static_shapes, "guard", broken)
    session = Ours(path)
    assert plain(session.run(None, OTHER)) == expected(path, OTHER)
    assert session.strategy.is_default


# shapes fixed by a rewrite, input by input


@pytest.fixture
def nameless(tmp_path: Path) -> tuple[Any, str]:
    """A guarded session whose height and width, of one name in the model, were fixed; and the model's file."""
    from ort_metainfer.decision import Decision
    from ort_metainfer.model.graph import describe
    from ort_metainfer.options import open_session
    from ort_metainfer.problem import SessionSpec
    from ort_metainfer.rewrites.shapes import FixedShapes
    from ort_metainfer.strategy import Strategy
    from tests.rewrite_models import model_of, noise
    from tests.rewrite_run import apply_to_bytes

    text = "g (float[?,3,?,?] x) => (float[?,4,?,?] y) { c = Conv <pads = [1,1,1,1]> (x, w)  y = Relu (c) }"
    model = saved(model_of(text, w=noise(4, 3, 3, 3)), tmp_path / "nameless.onnx")
    rewrite = FixedShapes()
    fixed, _ = apply_to_bytes(rewrite, Path(model).read_bytes(), parameters={"shapes": {"x": "1,3,6,8"}})
    session = open_session(fixed, SessionSpec(), Strategy())
    strategy = Strategy(transforms=(rewrite.transform(shapes={"x": "1,3,6,8"}),))
    decision = Decision(strategy, "rules", "a test", graph=describe(model))
    static_shapes.guard(session, model, SessionSpec(), decision)
    return session, model


def test_dimensions_without_names_are_guarded_too(nameless: tuple[Any, str]):
    session, model = nameless
    reference = Base(model)
    assert session._metainfer_fixed.get_inputs()[0].shape == [1, 3, 6, 8]
    for shape in ((1, 3, 6, 8), (1, 3, 8, 6), (2, 3, 6, 8), (1, 3, 6, 8)):
        feeds = {"x": values(*shape)}
        np.testing.assert_allclose(session.run(None, feeds)[0], reference.run(None, feeds)[0], rtol=1e-5, atol=1e-6)
    assert [value.shape for value in session.get_inputs()] == [[None, 3, None, None]]


def test_a_mistake_is_still_one_without_names(nameless: tuple[Any, str]):
    session, model = nameless
    for feeds in ({}, {"x": values(1, 2, 6, 8)}, {"x": values(3, 6, 8)}):
        assert attempt(lambda feeds=feeds: session.run(None, feeds)) == attempt(
            lambda feeds=feeds: Base(model).run(None, feeds)
        )
