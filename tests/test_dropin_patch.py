"""patch() adapts the sessions of code nobody may edit, and unpatch() leaves no trace."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from onnxruntime import InferenceSession as ImportedBefore

import ort_metainfer
from ort_metainfer import adapt, options
from tests.dropin_models import X, dense, saved
from tests.dropin_modes import switch_to
from tests.dropin_observe import attempt, plain

Base = onnxruntime.capi.onnxruntime_inference_collection.InferenceSession
Ours = ort_metainfer.InferenceSession


class SubclassedBefore(onnxruntime.InferenceSession):
    """Defined by an application before anything is patched."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return saved(dense(), tmp_path / "model.onnx")


@pytest.fixture(autouse=True)
def strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    switch_to("strategy", tmp_path, monkeypatch)


def is_adapted(session: onnxruntime.InferenceSession) -> bool:
    """The strategy says one thread; nothing else here does."""
    return session.get_session_options().intra_op_num_threads == 1


def test_sessions_are_adapted_between_patch_and_unpatch_only(path: str):
    assert not is_adapted(onnxruntime.InferenceSession(path))
    ort_metainfer.patch()
    session = onnxruntime.InferenceSession(path)
    assert is_adapted(session)
    assert session.adaptation.origin == "override"
    ort_metainfer.unpatch()
    assert not is_adapted(onnxruntime.InferenceSession(path))


def test_unpatch_restores_the_class_exactly(path: str):
    before = dict(vars(Base))
    with ort_metainfer.patch():
        assert dict(vars(Base)) != before
        assert onnxruntime.InferenceSession is Base
    assert dict(vars(Base)) == before
    assert all(vars(Base)[name] is value for name, value in before.items())


def test_names_imported_before_and_after_and_subclasses_are_adapted(path: str):
    with ort_metainfer.patch():
        from onnxruntime import InferenceSession as ImportedAfter

        for kind in (ImportedBefore, ImportedAfter, SubclassedBefore, Base):
            session = kind(path)
            assert type(session) is kind
            assert is_adapted(session)
            assert isinstance(session, onnxruntime.InferenceSession)
            assert type(session).run is Base.run


def test_patches_nest(path: str):
    with ort_metainfer.patch():
        with ort_metainfer.patch():
            assert is_adapted(Base(path))
        assert is_adapted(Base(path))
    assert not is_adapted(Base(path))


def test_an_error_inside_the_block_ends_the_patch(path: str):
    with pytest.raises(ZeroDivisionError), ort_metainfer.patch():
        raise ZeroDivisionError
    assert not is_adapted(Base(path))


def test_unpatch_without_a_patch_does_nothing(path: str):
    before = dict(vars(Base))
    ort_metainfer.unpatch()
    ort_metainfer.unpatch()
    assert dict(vars(Base)) == before
    with ort_metainfer.patch():
        assert is_adapted(Base(path))


def test_our_own_class_decides_once_however_often_it_is_patched(path: str, monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    decide = adapt.decide
    monkeypatch.setattr(adapt, "decide", lambda request: asked.append(request) or decide(request))
    with ort_metainfer.patch(), ort_metainfer.patch():
        assert is_adapted(Ours(path))
        assert len(asked) == 1
        assert is_adapted(Base(path))
        assert len(asked) == 2


def test_an_application_that_puts_our_class_in_onnxruntime_s_place_gets_no_recursion(path: str, monkeypatch):
    monkeypatch.setattr(onnxruntime, "InferenceSession", Ours)
    assert is_adapted(onnxruntime.InferenceSession(path))
    with ort_metainfer.patch():
        assert is_adapted(onnxruntime.InferenceSession(path))


def test_a_session_made_while_patched_outlives_the_patch(path: str):
    with ort_metainfer.patch():
        session = Base(path)
    expected = plain(Base(path).run(None, X))
    assert plain(session.run(None, X)) == expected
    session.set_providers(["CPUExecutionProvider"])
    assert plain(session.run(None, X)) == expected


def test_an_error_of_the_caller_is_onnxruntime_s_own_while_patched(tmp_path: Path):
    plainly = attempt(lambda: Base(str(tmp_path / "none.onnx")))
    with ort_metainfer.patch():
        assert attempt(lambda: Base(str(tmp_path / "none.onnx"))) == plainly


def test_threads_patch_and_unpatch_at_will(path: str):
    before, barrier = dict(vars(Base)), threading.Barrier(8)

    def work(_: int) -> bool:
        barrier.wait(timeout=60)
        results = []
        for _ in range(20):
            with ort_metainfer.patch():
                results.append(is_adapted(Base(path)))
        return all(results)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert dict(vars(Base)) == before


BAD_OPTION_CALLS = {
    "unknown method": lambda made: made.no_such_method(),
    "config key alone": lambda made: made.add_session_config_entry("key"),
    "config value no text": lambda made: made.add_session_config_entry("key", 1),
    "missing config key": lambda made: made.get_session_config_entry("key"),
    "free dimension no number": lambda made: made.add_free_dimension_override_by_name("N", "1"),
    "initializer no value": lambda made: made.add_initializer("W", 3),
    "missing library": lambda made: made.register_custom_ops_library("/no/such/lib.so"),
    "argument to the constructor": lambda made: type(made)(1),
    "threads no number": lambda made: setattr(made, "intra_op_num_threads", "2"),
}


@pytest.mark.parametrize("call", BAD_OPTION_CALLS)
def test_options_are_watched_without_changing_what_a_wrong_call_raises(call: str):
    watched = attempt(lambda: BAD_OPTION_CALLS[call](onnxruntime.SessionOptions()))
    options.unwatch()
    try:
        assert watched == attempt(lambda: BAD_OPTION_CALLS[call](onnxruntime.SessionOptions()))
        assert watched[0] == "error"
    finally:
        options.watch()


def test_watching_keeps_the_documentation_of_the_options():
    documented = {name: getattr(onnxruntime.SessionOptions, name).__doc__ for name in dir(onnxruntime.SessionOptions)}
    options.unwatch()
    try:
        for name, text in documented.items():
            assert getattr(onnxruntime.SessionOptions, name).__doc__ == text
    finally:
        options.watch()
