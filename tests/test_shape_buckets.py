"""Sessions of fixed shapes beside the general one: who gets one, which call runs where, and what is left behind."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from ort_metainfer import shape_buckets, static_shapes
from ort_metainfer.decision import Decision
from ort_metainfer.model.graph import describe
from ort_metainfer.options import open_session
from ort_metainfer.problem import SessionSpec
from ort_metainfer.shape_buckets import ShapeBuckets, open_inputs, opener, sizes_by_name
from ort_metainfer.strategy import Strategy, Transform
from tests.rewrite_models import model_of, noise

TEXT = "g (float[?,3,?,?] x) => (float[?,4,?,?] y) { c = Conv <pads = [1,1,1,1]> (x, w)  y = Relu (c) }"
NAMED = TEXT.replace("[?,3,?,?]", "[N,3,H,W]")


class Bench:
    """Buckets whose sessions are made when the test says so."""

    def __init__(self, names: tuple[str, ...] = ("x",), capacity: int = 2, after: int = 2) -> None:
        self.asked: list[Any] = []
        self.waiting: list[Callable[[], None]] = []
        self.buckets = ShapeBuckets(names, self.open, capacity, after, self.waiting.append)

    def open(self, shapes: Any) -> str:
        self.asked.append(shapes)
        if shapes.get("x") == (9, 9):
            raise RuntimeError("this provider takes no nines")
        return f"session of {shapes}"

    def make(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


def feed(*shape: int) -> dict[str, np.ndarray]:
    return {"x": np.zeros(shape, np.float32)}


def test_a_shape_seen_often_gets_a_session_and_no_call_waits_for_it() -> None:
    bench = Bench()
    assert bench.buckets.pick(feed(1, 2)) is None
    assert not bench.waiting
    assert bench.buckets.pick(feed(1, 2)) is None
    assert len(bench.waiting) == 1 and not bench.asked
    assert bench.buckets.pick(feed(1, 2)) is None  # while it is being made
    bench.make()
    assert bench.buckets.pick(feed(1, 2)) == "session of {'x': (1, 2)}"
    assert bench.buckets.pick(feed(2, 1)) is None
    assert bench.asked == [{"x": (1, 2)}]


def test_there_are_no_more_than_allowed() -> None:
    bench = Bench(capacity=2, after=1)
    for size in (1, 2, 3, 4, 3, 4):
        assert bench.buckets.pick(feed(size)) is None
    bench.make()
    assert bench.buckets.shapes == [{"x": (1,)}, {"x": (2,)}]
    assert bench.buckets.pick(feed(3)) is None
    assert not bench.waiting


def test_one_that_is_there_already_counts() -> None:
    bench = Bench(capacity=2, after=1)
    bench.buckets.add({"x": [5]}, "the first")
    assert bench.buckets.pick(feed(5)) == "the first"
    for size in (6, 7):
        bench.buckets.pick(feed(size))
    bench.make()
    assert bench.buckets.shapes == [{"x": (5,)}, {"x": (6,)}]


def test_a_shape_that_cannot_have_one_stays_with_the_general_session() -> None:
    bench = Bench(after=1)
    for _ in range(3):
        assert bench.buckets.pick(feed(9, 9)) is None
        bench.make()
    assert bench.asked == [{"x": (9, 9)}]


def test_shapes_of_several_inputs_belong_together() -> None:
    bench = Bench(("x", "z"), after=1)
    first = {"x": np.zeros((1, 2)), "z": np.zeros(3), "fixed": np.zeros(7)}
    bench.buckets.pick(first)
    bench.make()
    assert bench.buckets.pick(first) == "session of {'x': (1, 2), 'z': (3,)}"
    assert bench.buckets.pick(first | {"z": np.zeros(4)}) is None
    assert bench.buckets.pick({"x": first["x"]}) is None


def test_what_is_no_array_is_for_the_general_session() -> None:
    bench = Bench(after=1)
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((2, 2), np.float32))
    for feeds in ({"x": [1.0]}, {}, {"x": None}, {"x": value}, {"x": np.zeros((0, 2))}, None):
        assert bench.buckets.pick(feeds) is None  # type: ignore[arg-type]
    assert not bench.waiting


def test_values_of_onnxruntime_find_the_same_sessions() -> None:
    bench = Bench(after=1)
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((2, 2), np.float32))
    assert bench.buckets.pick_values({"x": value}) is None
    bench.make()
    assert bench.buckets.pick_values({"x": value}) == bench.buckets.pick(feed(2, 2)) == "session of {'x': (2, 2)}"
    assert bench.buckets.pick_values({"x": 3}) is None


def test_what_is_counted_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape_buckets, "MOST_OBSERVED", 10)
    bench = Bench(after=2)
    for size in range(1, 101):
        bench.buckets.pick(feed(size))
    assert len(bench.buckets._seen) <= 10


def test_a_session_made_for_buckets_that_are_gone_is_dropped() -> None:
    bench = Bench(after=1)
    made = weakref.WeakSet[Any]()

    class Session:
        pass

    def open_fixed(_: Any) -> Any:
        session = Session()
        made.add(session)
        return session

    buckets = ShapeBuckets(("x",), open_fixed, 2, 1, bench.waiting.append)
    buckets.pick(feed(1))
    handle = weakref.ref(buckets)
    del buckets
    assert handle() is None  # without the garbage collector: what waits does not hold it
    bench.make()
    assert not made


@pytest.mark.parametrize("given", [{"capacity": 0}, {"after": 0}, {"names": ()}])
def test_nonsense_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        ShapeBuckets(**{"names": ("x",), "open_fixed": str, **given})


def test_many_threads_make_one_session_each_shape() -> None:
    bench = Bench(capacity=4, after=5)
    begin = threading.Barrier(8)

    def work() -> None:
        begin.wait()
        for turn in range(400):
            bench.buckets.pick(feed(turn % 4 + 1))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.make()
    assert sorted(shapes["x"] for shapes in bench.asked) == [(1,), (2,), (3,), (4,)]
    assert len(bench.buckets) == 4


def graph_of(text: str) -> Any:
    return describe(model_of(text, w=noise(4, 3, 3, 3)).SerializeToString())


def test_names_say_the_shapes_or_not() -> None:
    named, unnamed = graph_of(NAMED), graph_of(TEXT)
    shapes = {"x": (1, 3, 4, 5)}
    assert sizes_by_name(named, shapes) == {"N": 1, "H": 4, "W": 5}
    assert sizes_by_name(unnamed, shapes) is None
    assert sizes_by_name(graph_of(NAMED.replace("H,W", "S,S")), shapes) is None
    assert sizes_by_name(graph_of(NAMED.replace("H,W", "S,S")), {"x": (1, 3, 5, 5)}) == {"N": 1, "S": 5}
    assert sizes_by_name(named, {"x": (1, 2, 4, 5)}) is None
    assert sizes_by_name(named, {"x": (1, 3, 4)}) is None


def test_inputs_that_the_caller_fixed_are_not_open() -> None:
    named = graph_of(NAMED)
    assert open_inputs(named, SessionSpec()) == ("x",)
    assert open_inputs(named, SessionSpec(free_dimensions={"N": 1, "H": 2, "W": 3})) == ()


@pytest.mark.parametrize("text", [TEXT, NAMED], ids=["without names", "named"])
@pytest.mark.parametrize("as_bytes", [False, True], ids=["path", "bytes"])
def test_sessions_of_any_shape_are_made_and_agree(text: str, as_bytes: bool, tmp_path: Path) -> None:
    model = model_of(text, w=noise(4, 3, 3, 3))
    path = tmp_path / "model.onnx"
    onnx.save(model, str(path))
    graph = describe(path)
    source = path.read_bytes() if as_bytes else str(path)
    options = {"intra_op_num_threads": 1}
    session = opener(source, SessionSpec(), Strategy(session_options=options), graph)({"x": (2, 3, 4, 6)})
    assert session.get_inputs()[0].shape == [2, 3, 4, 6]
    assert session.get_session_options().intra_op_num_threads == 1
    x = noise(2, 3, 4, 6)
    plain = onnxruntime.InferenceSession(str(path))
    np.testing.assert_allclose(session.run(None, {"x": x})[0], plain.run(None, {"x": x})[0], rtol=1e-5, atol=1e-6)


class Guarded:
    """A guarded session with buckets that are filled when the test says so."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, fixed: bool, capacity: int = 3) -> None:
        self.path, self.waiting = path, []
        bench = self.waiting.append
        made = ShapeBuckets.__init__
        monkeypatch.setattr(
            ShapeBuckets, "__init__", lambda self, names, opens, capacity: made(self, names, opens, capacity, 2, bench)
        )
        strategy = Strategy(static_shapes={"N": 1, "H": 4, "W": 5} if fixed else {})
        self.session = open_session(str(path), SessionSpec(), strategy)
        decision = Decision(strategy, "rules", "a test", graph=describe(path))
        static_shapes.guard(self.session, str(path), SessionSpec(), decision, capacity)
        self.plain = onnxruntime.InferenceSession(str(path))

    def make(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()

    def check(self, *shape: int) -> None:
        x = noise(*shape)
        expected = self.plain.run(None, {"x": x})[0]
        value = onnxruntime.OrtValue.ortvalue_from_numpy(x)
        for got in (self.session.run(None, {"x": x}), self.session.run(["y"], {"x": x}, None)):
            np.testing.assert_allclose(got[0], expected, rtol=1e-5, atol=1e-6)
        (ort_value,) = self.session.run_with_ort_values(None, {"x": value})
        np.testing.assert_allclose(ort_value.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "model.onnx"
    onnx.save(model_of(NAMED, w=noise(4, 3, 3, 3)), str(file))
    return file


@pytest.mark.parametrize("fixed", [True, False], ids=["the session has fixed shapes", "the session is open"])
def test_every_call_gets_its_result_whatever_there_are_sessions_for(
    fixed: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = Guarded(path, monkeypatch, fixed)
    for _ in range(2):
        for shape in ((1, 3, 4, 5), (2, 3, 4, 5), (1, 3, 8, 5), (1, 3, 5, 5), (3, 3, 7, 7)):
            guarded.check(*shape)
            guarded.make()
    buckets = guarded.session._metainfer_buckets
    assert len(buckets) == 3
    assert buckets.shapes[0] == {"x": (1, 3, 4, 5)}
    assert guarded.session.get_inputs()[0].shape == ["N", 3, "H", "W"]
    assert guarded.session.get_outputs()[0].name == "y"


def test_a_call_runs_on_the_session_of_its_shapes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Guarded(path, monkeypatch, fixed=True)
    guarded.check(2, 3, 4, 5)
    guarded.make()
    ran: list[Any] = []

    class Spy:
        def run(self, *given: Any) -> Any:
            ran.append(given[1]["x"].shape)
            return ["spied"]

    buckets = guarded.session._metainfer_buckets
    buckets._ready = {key: Spy() for key in buckets._ready}
    assert guarded.session.run(None, {"x": noise(2, 3, 4, 5)}) == ["spied"]
    assert guarded.session.run(None, {"x": noise(1, 3, 4, 5)}) == ["spied"]
    assert guarded.session.run(None, {"x": noise(1, 3, 4, 4)})[0].shape == (1, 4, 4, 4)
    assert ran == [(2, 3, 4, 5), (1, 3, 4, 5)]


@pytest.mark.parametrize("fixed", [True, False])
def test_bindings_and_run_async_take_any_shapes(fixed: bool, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Guarded(path, monkeypatch, fixed)
    for shape in ((1, 3, 4, 5), (2, 3, 9, 5)):
        x = noise(*shape)
        expected = guarded.plain.run(None, {"x": x})[0]
        binding = guarded.session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("y")
        guarded.session.run_with_iobinding(binding)
        np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], expected, rtol=1e-5, atol=1e-6)
        done, results = threading.Event(), []

        def finished(outputs: Any, _: Any, error: str, results: Any = results, done: Any = done) -> None:
            results.append((outputs, error))
            done.set()

        guarded.session.run_async(None, {"x": x}, finished, None)
        assert done.wait(60)
        np.testing.assert_allclose(results[0][0][0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("feeds", [{}, {"x": noise(1, 2, 4, 5)}, {"x": np.zeros((1, 3, 4, 5))}, {"x": "text"}])
def test_a_mistake_raises_what_plain_onnxruntime_raises(
    fixed: bool, feeds: dict[str, Any], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = Guarded(path, monkeypatch, fixed)
    raised = []
    for session in (guarded.session, guarded.plain):
        with pytest.raises(Exception) as caught:
            session.run(None, feeds)
        raised.append((type(caught.value), str(caught.value)))
    assert raised[0] == raised[1]


@pytest.mark.parametrize("fixed", [True, False])
def test_everything_is_freed_with_the_session(fixed: bool, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.disable()
    try:
        guarded = Guarded(path, monkeypatch, fixed)
        guarded.check(2, 3, 4, 5)
        guarded.make()
        buckets = guarded.session._metainfer_buckets
        handles = [weakref.ref(guarded.session), *(weakref.ref(s._sess) for s in buckets._ready.values())]
        assert len(handles) == (3 if fixed else 2)
        del buckets
        guarded.session = None
        assert [handle() for handle in handles] == [None] * len(handles)
    finally:
        gc.enable()


@pytest.mark.parametrize("fixed", [True, False])
def test_set_providers_ends_it(fixed: bool, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Guarded(path, monkeypatch, fixed)
    guarded.check(2, 3, 4, 5)
    session = guarded.session
    session.set_providers(["CPUExecutionProvider"])
    assert type(session) is static_shapes.PlainSession
    assert not hasattr(session, "_metainfer_buckets")
    guarded.check(1, 3, 4, 5)


def test_a_session_as_open_as_its_model_is_left_as_it_is(path: Path) -> None:
    session = open_session(str(path), SessionSpec(), Strategy())
    decision = Decision(Strategy(), "rules", "a test", graph=describe(path))
    static_shapes.guard(session, str(path), SessionSpec(), decision)
    assert type(session) is static_shapes.PlainSession


@pytest.mark.parametrize(
    "strategy", [Strategy(transforms=(Transform("int8-dynamic"),)), Strategy(provider="CPUExecutionProvider")]
)
def test_what_was_found_faster_for_any_shapes_is_not_left_for_a_session_without_it(
    path: Path, strategy: Strategy
) -> None:
    session = open_session(str(path), SessionSpec(), Strategy())
    decision = Decision(strategy, "rules", "a test", graph=describe(path))
    static_shapes.guard(session, str(path), SessionSpec(), decision, 3)
    assert type(session) is static_shapes.PlainSession


def test_a_session_is_made_in_a_thread_of_its_own_by_default(path: Path) -> None:
    made, threads = threading.Event(), []

    def open_fixed(_: Any) -> str:
        threads.append(threading.current_thread())
        made.set()
        return "session"

    buckets = ShapeBuckets(("x",), open_fixed, after=1)
    assert buckets.pick(feed(2)) is None
    assert made.wait(60)
    threads[0].join(60)
    assert buckets.pick(feed(2)) == "session"
    assert threads[0] is not threading.main_thread()
    assert not threads[0].daemon
