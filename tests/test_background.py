"""Decisions in the background: who waits for whom, what the child is given, and that nobody is left behind."""

from __future__ import annotations

import io
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

import ort_metainfer
from ort_metainfer import background
from ort_metainfer.adapt import Request, decide, settings_for
from ort_metainfer.background import MAX_QUEUED, Workshop
from ort_metainfer.background_child import QUIET_WINDOWS, carry_out, wait_for_quiet
from ort_metainfer.background_job import Job, job_of
from ort_metainfer.decision import Decision
from ort_metainfer.errors import CacheError, InputsError
from ort_metainfer.model.feeds import load_feeds
from ort_metainfer.problem import HardwareState, SessionSpec
from ort_metainfer.settings import Settings
from ort_metainfer.strategy_cache.lock import deciding
from ort_metainfer.trials.child import child_environment
from ort_metainfer.trials.fake import FakeClock, FakeTrialHost
from tests.test_adapt import BIG_GRAPH, favour

QUIET = HardwareState(when=0.0, window_s=1.0, others_cpu=0.0, steal=0.0)
BUSY = replace(QUIET, others_cpu=1.5)


class ScriptedProcess:
    """A child that reads its job, waits until it is allowed to answer, and answers what it is told to."""

    def __init__(self, answer: str, may_answer: threading.Event | None = None) -> None:
        self.stdin, self.killed, self._answer, self._may = io.StringIO(), False, answer, may_answer
        self.was_told = threading.Event()
        self.stdout = self._lines()

    def _lines(self) -> Iterator[str]:
        self.was_told.set()
        if self._may is not None:
            self._may.wait(10)
        if not self.killed:
            yield "something a library printed\n"
            yield self._answer

    def kill(self) -> None:
        self.killed = True
        if self._may is not None:
            self._may.set()

    terminate = kill

    def wait(self, timeout: float | None = None) -> int:
        return -9 if self.killed else 0


DONE = json.dumps({"how": "done", "what": "threads; it is faster"}) + "\n"


def workshop_of(*processes: ScriptedProcess) -> Workshop:
    left = list(processes)
    return Workshop(lambda errors: left.pop(0))  # type: ignore[arg-type, return-value]


def job(key: str, folder: Path | None = None) -> Job:
    return Job(key, f"{key}.onnx", {"key": key}, folder, seconds=10.0)


def ended(workshop: Workshop) -> None:
    """Wait until everything asked for has ended."""
    thread = workshop._thread
    workshop._wake.set()
    if thread is not None:
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(autouse=True)
def short_idling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "IDLE_S", 0.01)
    monkeypatch.setattr("ort_metainfer.session._said", set())


def test_a_job_is_done_once_and_its_folder_is_gone_afterwards(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, may = tmp_path / "inputs", threading.Event()
    folder.mkdir()
    workshop = workshop_of(ScriptedProcess(DONE, may))
    with caplog.at_level(logging.INFO, "ort_metainfer"):
        assert workshop.submit("a", lambda: job("a", folder)) == "under way"
        assert workshop.submit("a", lambda: pytest.fail("it is there already")) in ("under way", "waiting for its turn")
        may.set()
        ended(workshop)
    assert not folder.exists()
    assert "a.onnx, from its next session on: threads; it is faster" in caplog.text


def test_one_child_at_a_time_the_rest_waits_and_too_many_are_refused() -> None:
    may = threading.Event()
    processes = [first := ScriptedProcess(DONE, may), *(ScriptedProcess(DONE) for _ in range(MAX_QUEUED))]
    workshop = workshop_of(*processes)
    workshop.submit("first", lambda: job("first"))
    assert first.was_told.wait(20)
    for number in range(MAX_QUEUED):
        workshop.submit(str(number), lambda number=number: job(str(number)))  # type: ignore[misc]
    assert workshop.submit("5", lambda: pytest.fail("it waits already")) == "waiting for its turn"
    assert workshop.submit("more", lambda: pytest.fail("no place")).startswith(f"not begun: {MAX_QUEUED} other models")
    assert not any(process.stdin.getvalue() for process in processes[1:]), "nobody else was told anything"
    may.set()
    ended(workshop)
    assert all(process.stdin.getvalue() for process in processes)


def test_what_failed_is_said_once_and_not_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    workshop = workshop_of(ScriptedProcess(json.dumps({"how": "failed", "what": "no such file"})))
    workshop.submit("a", lambda: job("a"))
    ended(workshop)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "no such file" in caplog.text
    assert "not begun again in this process: no such file" in workshop.submit("a", lambda: pytest.fail("again"))


def test_a_machine_that_was_never_quiet_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    gave_up = json.dumps({"how": "gave up", "what": "the machine was not quiet within 600 s"})
    workshop = workshop_of(ScriptedProcess(gave_up), ScriptedProcess(DONE))
    workshop.submit("a", lambda: job("a"))
    ended(workshop)
    assert "not quiet within 600 s" in caplog.text
    assert workshop.submit("a", lambda: job("a")) == "under way"
    ended(workshop)


def test_a_child_that_dies_or_cannot_be_started_is_a_failure_in_words(caplog: pytest.LogCaptureFixture) -> None:
    def start(errors: IO[bytes]) -> Any:
        errors.write(b"ImportError: no module named numpy\n")
        process = ScriptedProcess("")
        process.stdout = iter(())  # type: ignore[assignment]
        return process

    dying = Workshop(start)
    dying.submit("a", lambda: job("a"))
    ended(dying)
    assert "its process died" in caplog.text and "no module named numpy" in caplog.text

    def refuse(errors: IO[bytes]) -> Any:
        raise OSError("too many processes")

    refused = Workshop(refuse)
    refused.submit("b", lambda: job("b"))
    ended(refused)
    assert "too many processes" in caplog.text


def test_at_exit_the_child_is_told_to_end_and_folders_go(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    process = ScriptedProcess(DONE, threading.Event())
    workshop = workshop_of(process)
    workshop.submit("a", lambda: job("a", folders[0]))
    assert process.was_told.wait(20)
    workshop.submit("b", lambda: job("b", folders[1]))
    workshop.close()
    assert process.killed
    ended(workshop)
    assert not any(folder.exists() for folder in folders)
    assert workshop.submit("c", lambda: job("c")) == "not begun: this process ends"


def test_a_forked_process_has_no_child_and_holds_no_pipe_of_its_parents() -> None:
    reading, writing = os.pipe()
    process = ScriptedProcess(DONE, threading.Event())
    workshop = workshop_of(process)
    workshop.submit("a", lambda: job("a"))
    assert process.was_told.wait(20)
    end = os.fdopen(writing, "w")
    forked = Workshop(lambda errors: pytest.fail("nothing to do"))  # stands for the copy that a fork makes
    forked._process = ScriptedProcess(DONE)  # type: ignore[assignment]
    forked._process.stdin, forked._process.stdout = end, None  # type: ignore[union-attr, assignment]
    forked.after_fork()
    assert os.read(reading, 1) == b"", "the other end sees that nobody holds this one"
    assert forked._process is None and not forked._waiting
    os.close(reading)
    workshop.close()
    ended(workshop)


SPEC = SessionSpec({"intra_op_num_threads": 1})


def test_the_child_is_given_what_the_session_has(tmp_path: Path) -> None:
    settings = settings_for(Settings(mode="background", accuracy="fast", input_shapes={"x": (1, 8)}, budget_s=7))[0]
    made = job_of("model.onnx", "k", "m", SPEC, settings)
    background._remove(made.folder)
    plain = json.loads(json.dumps(made.request))
    assert Path(plain["model"]).is_absolute() and not plain["as_bytes"]
    assert Settings(**plain["settings"]) == replace(settings, mode="auto")
    assert SessionSpec.from_dict(plain["spec"]) == SPEC


@pytest.mark.parametrize("form", ["dict", "function", "generator"])
def test_inputs_that_no_other_process_could_have_are_taken_as_arrays(form: str) -> None:
    feed = {"x": np.arange(8, dtype=np.float32).reshape(1, 8)}
    given = {"dict": feed, "function": lambda: [feed] * 3, "generator": (feed for _ in range(3))}[form]
    settings = settings_for(Settings(mode="background", inputs=given))[0]
    made = job_of(b"the model", "k", "m", SPEC, settings)
    assert made.folder is not None
    try:
        assert Path(made.request["model"]).read_bytes() == b"the model" and made.request["as_bytes"]
        feeds = load_feeds(Path(made.request["settings"]["inputs"]))
        assert len(feeds) == (1 if form == "dict" else 3)
        assert np.array_equal(feeds[0]["x"], feed["x"])
    finally:
        background._remove(made.folder)


def test_inputs_that_are_files_stay_where_they_are(tmp_path: Path) -> None:
    settings = settings_for(Settings(mode="background", inputs="samples/*.npz"))[0]
    made = job_of("model.onnx", "k", "m", SPEC, settings)
    assert made.request["settings"]["inputs"] == os.path.abspath("samples/*.npz")
    assert made.folder is not None and not [*made.folder.iterdir()]
    background._remove(made.folder)


def test_inputs_too_large_to_hand_over_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ort_metainfer.model.capture.MAX_TOTAL_BYTES", 100)
    small, large = {"x": np.zeros(10, np.float32)}, {"x": np.zeros(1000, np.float32)}
    settings = settings_for(Settings(mode="background", inputs=[large]))[0]
    with pytest.raises(InputsError, match=r"at most 0 MB of them; name .npz files"):
        job_of("model.onnx", "k", "m", SPEC, settings)
    fitting = job_of(
        "m.onnx", "k", "m", SPEC, settings_for(Settings(mode="background", inputs=[small, small, small]))[0]
    )
    assert len(load_feeds(Path(fitting.request["settings"]["inputs"]))) == 2
    background._remove(fitting.folder)


def waited(*states: HardwareState, limit_s: float = 60.0) -> tuple[str | None, float]:
    clock, left = FakeClock(), list(states)

    def observe(window_s: float) -> HardwareState:
        clock.sleep(window_s)
        return left.pop(0) if len(left) > 1 else left[0]

    return wait_for_quiet(limit_s, observe, clock.now_s, clock.sleep), clock.now_s()


def test_a_machine_is_quiet_after_some_quiet_windows_in_a_row() -> None:
    assert waited(QUIET) == (None, QUIET_WINDOWS)
    reason, took_s = waited(QUIET, QUIET, BUSY, QUIET)
    assert reason is None and took_s > 2 + QUIET_WINDOWS


def test_waiting_for_quiet_ends_with_the_reason() -> None:
    reason, took_s = waited(BUSY, limit_s=20.0)
    assert reason == "other processes use 1.50 cores"
    assert 20.0 <= took_s <= 22.0


def test_where_the_system_tells_nothing_nothing_is_waited_for() -> None:
    assert waited(replace(QUIET, others_cpu=None)) == (None, 1.0)


def request_for(model: Path, **settings: Any) -> dict[str, Any]:
    resolved = settings_for(Settings(mode="background", **settings))[0]
    made = job_of(str(model), "key", "m", SessionSpec(), resolved)
    background._remove(made.folder)
    return json.loads(json.dumps(made.request))


@pytest.fixture
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ort_metainfer.hardware.state.observe", lambda *_: QUIET)


def test_what_the_child_decides_the_next_session_uses(
    tiny_model: Callable[..., Path], quiet_machine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = FakeTrialHost(favour("graph_optimization_level"), graph=BIG_GRAPH)
    monkeypatch.setattr("ort_metainfer.trials.client.ChildTrialHost", lambda: host)
    model = tiny_model("MatMul")
    how, what = carry_out(request_for(model))
    assert how == "done" and "graph_optimization_level" in what
    monkeypatch.setattr(background, "workshop", lambda: pytest.fail("the cache knows"))
    session = ort_metainfer.InferenceSession(str(model), metainfer=Settings(mode="background"))
    assert session.adaptation is not None and session.adaptation.cache == "hit"
    assert "graph_optimization_level" in session.strategy.session_options


def test_the_child_leaves_it_to_another_process_and_gives_up_on_a_busy_machine(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_for(tiny_model("MatMul"))
    with deciding(tmp_path / "cache", "background key", 0.0):
        assert carry_out(request)[0] == "left"
    monkeypatch.setattr("ort_metainfer.hardware.state.observe", lambda *_: BUSY)
    how, what = carry_out({**request, "quiet_wait_s": 0.0})
    assert how == "gave up" and "other processes use 1.50 cores" in what


def test_the_child_says_what_is_wrong_with_a_model(tmp_path: Path, quiet_machine: None) -> None:
    how, what = carry_out(request_for(tmp_path / "nowhere.onnx"))
    assert how == "failed" and "cannot be read" in what


def ask(model: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Decision:
    monkeypatch.setattr(background, "workshop", lambda: workshop)
    resolved = settings_for(Settings(mode="background", **settings))[0]
    return decide(Request(str(model), SessionSpec(), resolved))


def test_a_session_is_plain_at_once_and_says_that_a_decision_is_under_way(
    tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = workshop_of(ScriptedProcess(DONE, threading.Event()))
    model = tiny_model("MatMul")
    for _ in range(2):
        decision = ask(model, workshop, monkeypatch)
        assert decision.strategy.is_default and not decision.complete
        assert "a decision in the background is" in decision.reason and decision.cache == "miss"
    session = ort_metainfer.InferenceSession(str(model), metainfer=Settings(mode="background"))
    assert session.run(None, {"x": np.ones((1, 8), np.float32)})[0].shape == (1, 3)
    assert session.adaptation is not None and "in the background" in session.adaptation.incomplete_reason
    workshop.close()
    ended(workshop)


def test_no_child_is_started_where_nothing_can_be_remembered_and_one_warning_says_so(
    tiny_model: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("")
    model, nowhere = tiny_model("MatMul"), tmp_path / "file" / "cache"
    for _ in range(2):
        decision = ask(model, Workshop(lambda errors: pytest.fail("a child")), monkeypatch, cache_dir=nowhere)
        assert decision.strategy.is_default and "cannot be remembered" in decision.reason
    assert len([record for record in caplog.records if "cannot be remembered" in record.message]) == 1
    with pytest.raises(CacheError):
        ask(model, workshop_of(), monkeypatch, cache_dir=nowhere, strict=True)


def test_refused_inputs_end_in_a_plain_session_and_one_warning(
    tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ort_metainfer.model.capture.MAX_TOTAL_BYTES", 4)
    settings = Settings(mode="background", inputs=lambda: {"x": np.ones((1, 8), np.float32)})
    session = ort_metainfer.InferenceSession(str(tiny_model("MatMul")), metainfer=settings)
    assert session.run(None, {"x": np.ones((1, 8), np.float32)})[0].shape == (1, 3)
    assert [record for record in caplog.records if "in the background is given at most" in record.message]


def test_tuning_decides_here_and_now_in_any_mode(
    tiny_model: Callable[..., Path], quiet_machine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "workshop", lambda: pytest.fail("in the background"))
    host = FakeTrialHost(graph=BIG_GRAPH)
    monkeypatch.setattr("ort_metainfer.trials.client.ChildTrialHost", lambda: host)
    assert ort_metainfer.tune(tiny_model("MatMul"), Settings(mode="background")).complete


def test_a_decision_is_announced_once_where_users_look_and_not_where_it_was_asked_for(
    tiny_model: Callable[..., Path],
    quiet_machine: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("ort_metainfer.story._announced", threading.Event())
    monkeypatch.setattr("ort_metainfer.trials.client.ChildTrialHost", lambda: FakeTrialHost(graph=BIG_GRAPH))
    ort_metainfer.tune(tiny_model("Conv"))
    assert not caplog.records, "whoever runs tune knows"
    monkeypatch.setattr("ort_metainfer.story._announced", threading.Event())
    for name in ("MatMul", "Identity"):
        ort_metainfer.InferenceSession(str(tiny_model(name)))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "for at most 15 s" in line and "mode=cached" in line and "ort-metainfer tune" in line


PROGRAM = """
import sys, threading, time
import ort_metainfer
from ort_metainfer import background, background_job
start = background.start_child
def told(errors):
    process = start(errors)
    print(process.pid, flush=True)
    return process
background.start_child = told
def make():
    session = ort_metainfer.InferenceSession(sys.argv[1], metainfer=ort_metainfer.Settings(mode="background"))
    print(session.adaptation.reason, file=sys.stderr, flush=True)
if sys.argv[2] == "thread":
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
else:
    make()
sys.stdin.readline()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for a process that is not its own child")
@pytest.mark.parametrize("end", ["exit", "kill", "thread"])
def test_the_child_ends_with_its_parent_however_that_ends(end: str, tiny_model: Callable[..., Path]) -> None:
    """And outlives the thread that made the session."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tiny_model("MatMul")), end],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert parent.stdin is not None and parent.stdout is not None and parent.stderr is not None
    child = os.pidfd_open(int(parent.stdout.readline()))
    assert "in the background is under way" in parent.stderr.readline()
    assert not select.select([child], [], [], 0)[0], "it lives"
    if end == "kill":
        parent.send_signal(signal.SIGKILL)
    parent.communicate("\n" if end != "kill" else None, timeout=20)
    assert parent.returncode == (-signal.SIGKILL if end == "kill" else 0)
    assert select.select([child], [], [], 20)[0], "it has ended"
    os.close(child)


@pytest.mark.slow
def test_a_child_whose_parent_is_gone_removes_what_it_was_given(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    inputs = {"x": np.ones((1, 8), np.float32)}
    made = job_of(
        str(tiny_model("MatMul")), "k", "m", SPEC, settings_for(Settings(mode="background", inputs=inputs))[0]
    )
    assert made.folder is not None and [*made.folder.iterdir()]
    with (tmp_path / "errors").open("wb") as errors:
        child = background.start_child(errors)
        child.communicate(json.dumps(made.request) + "\n", timeout=20)  # and the end of its standard input
    assert not made.folder.exists()


WITHOUT_WAITING = "from ort_metainfer import background_child as c; c.wait_for_quiet = lambda *_: None; c.main()"


@pytest.mark.slow
@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_real_child_decides_on_the_callers_inputs_for_the_next_session(
    as_bytes: bool, tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(errors: IO[bytes]) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
        environment = child_environment()
        return subprocess.Popen([sys.executable, "-c", WITHOUT_WAITING], env=environment, text=True, **pipes)

    workshop = Workshop(start)
    monkeypatch.setattr(background, "workshop", lambda: workshop)
    model: Any = tiny_model("MatMul").read_bytes() if as_bytes else str(tiny_model("MatMul"))
    inputs = [{"x": np.full((1, 8), value, np.float32)} for value in range(3)]
    settings = Settings(mode="background", inputs=lambda: iter(inputs), budget_s=5, log="info")
    with caplog.at_level(logging.INFO, "ort_metainfer"):
        first = ort_metainfer.InferenceSession(model, metainfer=settings)
        assert first.adaptation is not None and "under way" in first.adaptation.reason
        ended(workshop)
    assert "from its next session on" in caplog.text
    second = ort_metainfer.InferenceSession(model, metainfer=settings)
    assert second.adaptation is not None
    assert second.adaptation.cache == "hit" and second.adaptation.inputs_are_real
