"""The class and the module can be told from onnxruntime's own by nothing a caller does with them."""

from __future__ import annotations

import copy
import gc
import importlib
import inspect
import os
import pickle
import pkgutil
import signal
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_metainfer
from tests.dropin_models import X, dense, info, saved, with_threads
from tests.dropin_modes import MODES, switch_to
from tests.dropin_observe import Make, attempt, options_state, plain

Base = onnxruntime.InferenceSession
Ours = ort_metainfer.InferenceSession

CPU = "CPUExecutionProvider"


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return switch_to(request.param, tmp_path, monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return saved(dense(), tmp_path / "model.onnx")


def test_the_settings_keyword_takes_settings_only(path: str):
    with pytest.raises(TypeError, match="Settings"):
        Ours(path, metainfer={"mode": "off"})


def test_signature_and_documentation_are_those_of_onnxruntime():
    assert inspect.signature(Ours) == inspect.signature(Base)
    assert inspect.signature(Ours.__init__) == inspect.signature(Base.__init__)
    assert (Ours.__doc__, Ours.__init__.__doc__) == (Base.__doc__, Base.__init__.__doc__)
    assert Ours.__name__ == Base.__name__
    assert issubclass(Ours, Base)


def test_no_python_stands_between_a_caller_and_run(path: str, mode: str):
    session = Ours(path)
    methods = [name for name in dir(Base) if name.startswith(("run", "get_", "io_"))]
    assert {"run", "run_async", "run_with_iobinding", "run_with_ort_values", "run_with_ortvaluevector"} <= {*methods}
    for name in methods:
        assert getattr(type(session), name) is getattr(Base, name), name
        assert name not in vars(session) or (name, mode) == ("run_async", "strategy")  # onnxruntime refuses one thread
    for hook in ("__getattribute__", "__getattr__", "__setattr__", "__del__", "__slots__", "__new__"):
        assert hook not in vars(Ours)


def test_everything_public_in_onnxruntime_is_there_and_the_same():
    public = [name for name in dir(onnxruntime) if not name.startswith("_")]
    assert len(public) > 50
    other = [name for name in public if getattr(ort_metainfer, name) is not getattr(onnxruntime, name)]
    assert other == ["InferenceSession"]
    assert {*public} <= {*dir(ort_metainfer)}
    assert ort_metainfer.__version__ == onnxruntime.__version__
    with pytest.raises(AttributeError, match="no_such_name"):
        ort_metainfer.no_such_name  # noqa: B018 (the access is what is tested)


def test_no_module_of_ours_takes_a_name_that_onnxruntime_has():
    """Importing a submodule sets it on the package, over whatever __getattr__ would have found."""
    ours = {module.name for module in pkgutil.iter_modules(ort_metainfer.__path__)}
    assert "session" in ours
    assert not ours & {*dir(onnxruntime)}


def test_a_star_import_brings_onnxruntime_s_names_too():
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    exec("from ort_metainfer import *", ours)
    exec("from onnxruntime import *", theirs)
    submodules = {name for name, value in theirs.items() if inspect.ismodule(value)}  # whichever were imported since
    assert {*theirs} - submodules <= {*ours}


def test_submodules_of_onnxruntime_are_reached_through_the_module():
    assert importlib.import_module("onnxruntime.quantization") is ort_metainfer.quantization


def test_a_session_is_an_instance_of_onnxruntime_s_class_with_its_attributes(path: str, mode: str):
    session, reference = Ours(path), Base(path)
    assert isinstance(session, Base)
    assert type(session._sess) is type(reference._sess)
    assert {*vars(reference)} <= {*vars(session)}
    assert session._model_path == path


class Picklable(Ours):
    """How users make a session travel: it is made again from its path."""

    def __init__(self, path: str, label: str = "") -> None:
        super().__init__(path, providers=[CPU])
        self.path, self.label = path, label

    def __getstate__(self) -> dict[str, str]:
        return {"path": self.path, "label": self.label}

    def __setstate__(self, state: dict[str, str]) -> None:
        self.__init__(**state)  # type: ignore[misc]  (the usual recipe)

    def run(self, *args: Any, **keywords: Any) -> Any:
        return [self.label, *super().run(*args, **keywords)]


def test_a_picklable_subclass_of_a_user_works(path: str, mode: str):
    again = pickle.loads(pickle.dumps(Picklable(path, "mine")))  # noqa: S301 (our own bytes, from the line's other end)
    label, output = again.run(None, X)
    assert label == "mine"
    assert plain(output) == plain(Base(path).run(None, X)[0])


class Wrapping(Ours):
    """A user's subclass that sets options of its own and takes other arguments."""

    def __init__(self, path: str, threads: int) -> None:
        self.options = onnxruntime.SessionOptions()
        self.options.inter_op_num_threads = threads
        super().__init__(path, self.options)


def test_a_subclass_with_its_own_arguments_works(path: str, mode: str):
    session = Wrapping(path, threads=3)
    assert session.get_session_options().inter_op_num_threads == 3
    assert plain(session.run(None, X)) == plain(Base(path).run(None, X))


@pytest.mark.parametrize("copying", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_allowed_and_refused_as_with_plain_onnxruntime(copying: Callable[[Any], Any], path: str, mode: str):
    def error(session: Base) -> Any:
        try:
            return plain(copying(session).run(None, X))
        except TypeError as refused:
            return str(refused)

    assert error(Ours(path)) == error(Base(path))


def test_dropping_the_last_reference_frees_the_session_at_once(path: str, mode: str):
    options = onnxruntime.SessionOptions()
    gc.disable()
    try:
        session = Ours(path, options)
        handles = [weakref.ref(session), weakref.ref(session._sess), weakref.ref(options)]
        del session
        assert [handle() is None for handle in handles] == [True, True, False]
        del options
        assert handles[2]() is None
    finally:
        gc.enable()


def test_a_refused_session_leaves_nothing_behind(tmp_path: Path, mode: str):
    options = onnxruntime.SessionOptions()
    handle = weakref.ref(options)
    gc.disable()
    try:
        with pytest.raises(Exception, match="NO_SUCHFILE"):
            Ours(str(tmp_path / "none.onnx"), options)
        del options
        assert handle() is None
    finally:
        gc.enable()


def test_one_options_object_serves_several_sessions_and_is_not_changed(path: str, mode: str):
    options = with_threads(2)
    options.add_session_config_entry("session.dynamic_block_base", "4")
    before = options_state(options)
    outputs = [plain(kind(path, options).run(None, X)) for kind in (Ours, Base, Ours, Base)]
    assert len({*map(str, outputs)}) == 1
    assert options_state(options) == before


def test_threads_may_create_sessions_with_shared_options(path: str, mode: str):
    options, barrier = with_threads(2), threading.Barrier(8)

    def create(_: int) -> Any:
        barrier.wait(timeout=60)
        return [plain(Ours(path, options).run(None, X)) for _ in range(5)]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(create, range(8)))
    assert results == [[plain(Base(path).run(None, X))] * 5] * 8


def test_a_forked_child_runs_the_parent_s_session_and_makes_its_own(path: str, mode: str):
    options = with_threads(
        1
    )  # no thread pool: its threads would not be there in the child, with plain onnxruntime neither
    session = Ours(path, options)
    expected = plain(Base(path, options).run(None, X))
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        right = plain(session.run(None, X)) == expected == plain(Ours(path, options).run(None, X))
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_binding_belongs_to_the_session_that_made_it(path: str, mode: str):
    session = Ours(path)
    binding = onnxruntime.IOBinding(session)
    binding.bind_cpu_input("x", X["x"])
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert plain(binding.copy_outputs_to_cpu()) == plain(Base(path).run(None, X))
    other = Ours(path)
    assert attempt(lambda: other.run_with_iobinding(binding)) == attempt(lambda: Base(path).run_with_iobinding(binding))


def test_run_async_and_run_with_vectors(path: str, mode: str):
    session, done, results = Ours(path, with_threads(2)), threading.Event(), []

    def finished(outputs: Any, data: Any, error: str) -> None:
        results.append((plain(outputs), data, error))
        done.set()

    session.run_async(["y"], X, finished, "mine")
    assert done.wait(60)
    assert results == [(plain(Base(path).run(None, X)), "mine", "")]


def test_profiling_writes_one_file_where_the_caller_said(path: str, mode: str, tmp_path: Path):
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = Ours(path, options)
    session.run(None, X)
    written = session.end_profiling()
    assert [str(file) for file in tmp_path.glob("profile*")] == [written]


@pytest.mark.parametrize("value", ["0", "1", "2"])
def test_the_configuration_inside_a_model_counts_as_with_plain_onnxruntime(value, tmp_path, mode, monkeypatch):
    proto = dense()
    onnx.helper.set_model_props(proto, {"ort_config": '{"session_options": {"inter_op_num_threads": 5}}'})
    path = saved(proto, tmp_path / "model.onnx")
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", value)

    def threads(kind: Make) -> Any:
        session = kind(path, with_threads(2))
        options = session.get_session_options()
        return options.inter_op_num_threads, value != "0" and options.intra_op_num_threads

    assert attempt(lambda: threads(Ours)) == attempt(lambda: threads(Base))


@pytest.mark.skipif(not hasattr(Base, "_from_initialized_c_session"), reason="since onnxruntime 1.32")
@pytest.mark.parametrize("kind", [Base, Ours])
@pytest.mark.parametrize("patched", [False, True])
def test_sessions_of_a_model_package_are_left_alone(kind: type[Base], patched: bool, path: str, mode: str):
    """onnxruntime makes them from a finished C session, past the constructor."""
    native = onnxruntime.capi._pybind_state.InferenceSession(onnxruntime.SessionOptions(), path, True, False)
    native.initialize_session([], [], set())
    if patched:
        ort_metainfer.patch()
    session = kind._from_initialized_c_session(native)
    assert type(session) is kind
    assert plain(session.run(None, X)) == plain(Base(path).run(None, X))
    assert getattr(session, "adaptation", None) is None
    with pytest.raises(NotImplementedError, match="model package"):
        session.set_providers([CPU])


def test_an_initializer_given_as_input_is_listed_as_overridable(tmp_path: Path, mode: str):
    proto = dense()
    proto.graph.input.append(info("b", [4]))
    path = saved(proto, tmp_path / "model.onnx")
    session = Ours(path)
    assert [arg.name for arg in session.get_overridable_initializers()] == ["b"]
    feeds = {**X, "b": np.zeros(4, np.float32)}
    assert plain(session.run(None, feeds)) == plain(Base(path).run(None, feeds)) != plain(Base(path).run(None, X))
