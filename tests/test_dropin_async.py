"""``run_async`` works with strategies of one thread, too, which plain onnxruntime refuses."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

import ort_metainfer
from ort_metainfer import options as options_module
from tests.dropin_models import dense, saved, values
from tests.dropin_modes import strategy_file
from tests.dropin_observe import plain

Base = onnxruntime.InferenceSession
Ours = ort_metainfer.InferenceSession
FEEDS = {"x": values(3, 8)}
ONE_THREAD = "[strategy.session_options]\nintra_op_num_threads = 1\n"


@pytest.fixture(autouse=True)
def one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_METAINFER_STRATEGY", str(strategy_file(tmp_path, ONE_THREAD)))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return saved(dense(), tmp_path / "model.onnx")


def two_threads() -> Any:
    """Options that plain onnxruntime has a pool with, whatever the machine."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    return options


def asynchronously(session: Any) -> Any:
    done, results = threading.Event(), []

    def finished(outputs: Any, given: Any, error: str) -> None:
        results.append((plain(outputs), given, error))
        done.set()

    session.run_async(None, FEEDS, finished, "mine")
    assert done.wait(60)
    return results


def expected(path: str) -> Any:
    return [(plain(Base(path).run(None, FEEDS)), "mine", "")]


class Counted(Ours):
    """A user's subclass with a run_async of its own, which pickles itself by its path."""

    def __init__(self, path: str, options: Any = None) -> None:
        super().__init__(path, options)
        self.path, self.calls = path, 0

    def run_async(self, *given: Any, **named: Any) -> Any:
        self.calls += 1
        return super().run_async(*given, **named)

    def __getstate__(self) -> str:
        return self.path

    def __setstate__(self, path: str) -> None:
        self.__init__(path, two_threads())  # type: ignore[misc]  (the usual recipe)


def test_it_runs_and_run_stays_with_the_strategy(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    real = options_module.open_session
    monkeypatch.setattr(options_module, "open_session", lambda *given: opened.append(given) or real(*given))
    session = Ours(path, two_threads())
    assert session.get_session_options().intra_op_num_threads == 1
    assert plain(session.run(None, FEEDS)) == plain(Base(path).run(None, FEEDS))
    assert not opened
    for _ in range(2):
        assert asynchronously(session) == expected(path)
    assert len(opened) == 1
    assert type(session) is Ours


def test_what_a_class_overrides_is_called(path: str) -> None:
    session = Counted(path, two_threads())
    assert asynchronously(session) == expected(path)
    assert session.calls == 1
    assert isinstance(session, Counted) and type(session).__name__ == "Counted"


def test_copies_and_pickles_run_asynchronously_too(path: str) -> None:
    for session in (copy.copy(Ours(path, two_threads())), copy.copy(Sub(path, two_threads()))):
        assert asynchronously(session) == expected(path)
    travelled = pickle.loads(pickle.dumps(Counted(path, two_threads())))  # noqa: S301 (made in this very line)
    assert asynchronously(travelled) == expected(path)


class Sub(Ours):
    """Another with a run_async of its own."""

    def run_async(self, *given: Any, **named: Any) -> Any:
        return super().run_async(*given, **named)


def test_a_patched_session_runs_asynchronously_too(path: str) -> None:
    with ort_metainfer.patch():
        session = Base(path, two_threads())
    assert session.get_session_options().intra_op_num_threads == 1
    assert asynchronously(session) == expected(path)


@pytest.mark.parametrize("kind", [Ours, Sub])
def test_set_providers_makes_a_session_of_its_own(kind: Any, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = kind(path, two_threads())
    monkeypatch.setenv("ORT_METAINFER_MODE", "off")
    session.set_providers(["CPUExecutionProvider"])
    assert session.get_session_options().intra_op_num_threads == 2
    assert type(session) is kind and "run_async" not in vars(session)
    assert asynchronously(session) == expected(path)


def test_the_one_thread_the_caller_asked_for_is_refused_as_by_plain_onnxruntime(path: str) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    told = []
    for session in (Ours(path, options), Base(path, options)):
        with pytest.raises(Exception, match="thread pool") as raised:
            session.run_async(None, FEEDS, lambda *given: None, None)
        told.append((type(raised.value), str(raised.value)))
    assert told[0] == told[1]


def test_beside_fixed_shapes_there_is_one_general_session(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = strategy_file(tmp_path, f"{ONE_THREAD}[strategy.static_shapes]\nN = 3\n")
    monkeypatch.setenv("ORT_METAINFER_STRATEGY", str(strategy))
    session = Ours(path, two_threads())
    assert getattr(session, "_metainfer_async", None) is None
    assert asynchronously(session) == expected(path)


@pytest.mark.parametrize("kind", [Ours, Sub])
def test_it_is_freed_with_the_session(kind: Any, path: str) -> None:
    session = kind(path, two_threads())
    asynchronously(session)
    general = weakref.ref(session._metainfer_async._session)
    gone = weakref.ref(session)
    gc.collect()
    gc.disable()
    try:
        del session
        assert gone() is None and general() is None
    finally:
        gc.enable()
