"""The setting ``buckets``: shapes seen often get a session of their own; results, names and errors stay plain."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ort_metainfer
from ort_metainfer import shape_buckets, static_shapes
from ort_metainfer.errors import SettingsError
from ort_metainfer.settings import Settings, resolve

CACHED = Settings(mode="cached", buckets=3)


@pytest.fixture(autouse=True)
def made_at_once(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Specialised sessions are made in the call that asks for them, and noted."""
    made: list[Any] = []

    def start(work: Callable[[], None]) -> None:
        made.append(work)
        work()

    original = shape_buckets.ShapeBuckets.__init__

    def patched(self: Any, names: Any, open_fixed: Any, capacity: int = 4, after: int = 3, *_: Any, **__: Any) -> None:
        original(self, names, open_fixed, capacity, 1, start)

    monkeypatch.setattr(shape_buckets.ShapeBuckets, "__init__", patched)
    return made


@pytest.fixture
def known(tiny_model: Callable[..., Path]) -> Path:
    """A model with an open batch whose features are in the cache."""
    model = tiny_model("MatMul", batch="N")
    ort_metainfer.tune(str(model), Settings(budget_s=20.0, providers=("CPU",)))
    return model


def feed(rows: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)}


@pytest.mark.slow
def test_calls_of_many_shapes_are_answered_as_plain_onnxruntime_does(known: Path, made_at_once: list[Any]) -> None:
    settings = replace(CACHED, providers=("CPU",))
    session = ort_metainfer.InferenceSession(str(known), metainfer=settings)
    plain = onnxruntime.InferenceSession(str(known), providers=["CPUExecutionProvider"])
    for rows in (1, 2, 1, 2, 3, 4, 5, 1, 2, 3):
        np.testing.assert_allclose(session.run(None, feed(rows))[0], plain.run(None, feed(rows))[0], rtol=1e-6)
    assert 1 <= len(made_at_once) <= CACHED.buckets, "at most so many sessions are kept"
    assert [value.shape for value in session.get_inputs()] == [["N", 8]]
    with pytest.raises(Exception, match="INVALID_ARGUMENT"):
        session.run(None, {"x": np.zeros((1, 7), np.float32)})
    assert isinstance(session, onnxruntime.InferenceSession)
    held = session.run
    static_shapes._unguard(session)  # as set_providers does
    np.testing.assert_allclose(held(None, feed(2))[0], plain.run(None, feed(2))[0], rtol=1e-6)


@pytest.mark.slow
def test_a_session_with_buckets_is_freed(known: Path) -> None:
    session = ort_metainfer.InferenceSession(str(known), metainfer=replace(CACHED, providers=("CPU",)))
    for rows in (1, 2, 1, 2):
        session.run(None, feed(rows))
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None


def test_without_the_setting_the_class_is_the_caller_s(tiny_model: Callable[..., Path]) -> None:
    session = ort_metainfer.InferenceSession(
        str(tiny_model("MatMul", batch="N")), metainfer=Settings(mode="cached", buckets=0)
    )
    assert type(session) is ort_metainfer.InferenceSession


@pytest.mark.parametrize("mode", ["off", "cached"])
def test_where_nothing_is_known_of_the_model_no_second_session_is_made(
    tiny_model: Callable[..., Path], mode: str
) -> None:
    model = str(tiny_model("MatMul", batch="N"))
    session = ort_metainfer.InferenceSession(model, metainfer=replace(CACHED, mode=mode))
    assert type(session) is ort_metainfer.InferenceSession
    assert len(session.run(None, feed(2))[0]) == 2


def test_a_session_from_a_strategy_file_has_buckets_too(
    tiny_model: Callable[..., Path], tmp_path: Path, made_at_once: list[Any]
) -> None:
    file = tmp_path / "strategy.toml"
    file.write_text("[strategy.session_options]\nenable_mem_pattern = false\n")
    model = str(tiny_model("MatMul", batch="N"))
    session = ort_metainfer.InferenceSession(model, metainfer=replace(CACHED, strategy=str(file)))
    plain = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for rows in (1, 2, 1, 2):
        np.testing.assert_allclose(session.run(None, feed(rows))[0], plain.run(None, feed(rows))[0], rtol=1e-6)
    assert len(made_at_once) == 2


@pytest.mark.parametrize("value", [-1, 65, "many", True, 1.5])
def test_a_number_of_sessions_is_asked_for(value: Any) -> None:
    with pytest.raises(SettingsError, match="buckets"):
        Settings(buckets=value)


def test_the_environment_may_ask_for_it() -> None:
    assert resolve(environment={"ORT_METAINFER_BUCKETS": "4"})[0].buckets == 4
