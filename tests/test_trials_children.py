"""Real child processes: what a crash, a hang, an appetite for memory or chatter costs, and whole races and duels."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ort_metainfer.decision import Proposal
from ort_metainfer.errors import InputsError, ModelError, TrialCrashed, TrialTimeout
from ort_metainfer.problem import SessionSpec
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.child import Child
from ort_metainfer.trials.client import ChildTrialHost
from ort_metainfer.trials.faults import VARIABLE
from ort_metainfer.trials.task import Setup, Thresholds

pytestmark = pytest.mark.slow

CANDIDATES = [
    Proposal(Strategy(session_options={"intra_op_num_threads": 1}), "rules", ""),
    Proposal(Strategy(session_config={"session.intra_op.allow_spinning": "0"}), "rules", ""),
    Proposal(Strategy(session_options={"enable_mem_pattern": False}), "rules", ""),
]


@pytest.fixture
def host() -> Iterator[ChildTrialHost]:
    with ChildTrialHost() as host:
        yield host


@pytest.fixture
def setup(tiny_model: Callable[..., Path], tmp_path: Path) -> Setup:
    """A small model with one input given."""
    feeds = tmp_path / "feeds"
    feeds.mkdir()
    np.savez(feeds / "0.npz", x=np.random.default_rng(0).standard_normal((1, 8)).astype(np.float32))
    return Setup(tiny_model("MatMul"), SessionSpec(), feeds)


def soon(seconds: float = 20.0) -> float:
    return time.monotonic() + seconds


def inject(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setenv(VARIABLE, fault)


@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize("objective", ["latency", "pipeline"])
def test_a_race_and_a_duel_measure_every_candidate(
    host: ChildTrialHost, setup: Setup, objective: str, as_bytes: bool
) -> None:
    setup = Setup(setup.model_file, SessionSpec(), setup.feeds, as_bytes, objective)
    said: list[str] = []
    trials = host.race(setup, CANDIDATES, Thresholds(), soon(), said.append)
    for trial in trials:
        assert trial.failure is None
        assert [(gate.name, gate.passed) for gate in trial.gates] == [("compiles", True), ("accurate", True)]
        assert trial.timing is not None
        assert trial.timing.rounds >= 5
        assert trial.error == 0.0
        assert trial.noise_floor is not None
        assert trial.creation_ms is not None
        assert trial.baseline_creation_ms is not None
        assert trial.after is not None
        assert trial.after.window_s > 0
    assert any("intra_op_num_threads=1" in line for line in said)
    confirmed = host.duel(setup, trials[0], Thresholds(), soon(5))
    assert confirmed.duel is not None
    assert confirmed.duel.rounds >= 5
    pays = confirmed.gates[-1]
    assert pays.name == "pays"
    assert ("alone_speedup" in pays.figures) == (objective == "pipeline")


def test_synthetic_inputs_are_made_and_not_taken_for_real_ones(
    host: ChildTrialHost, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    setup = Setup(tiny_model("Conv", batch="N"), SessionSpec(), tmp_path / "made")
    setup.feeds.mkdir()
    graph = host.describe(setup, soon())
    assert graph.operators == {"Conv": 1}
    for _ in range(2):
        feeds = host.prepare(setup, soon())
        assert not feeds.are_real
        assert feeds.origin.startswith("synthetic")
        assert feeds.shapes["x"][1:] == (3, 8, 8)


@pytest.mark.parametrize("kind", ["hang", "crash"])
def test_a_synthetic_input_that_never_ends_costs_that_input_only(
    host: ChildTrialHost,
    tiny_model: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """As with a speech model that, fed noise, speaks for minutes."""
    inject(monkeypatch, f"checking:extra:{kind}")
    setup = Setup(tiny_model("MatMul"), SessionSpec(), tmp_path / "made")
    setup.feeds.mkdir()
    feeds = host.prepare(setup, soon(10))
    assert (feeds.count, feeds.are_real, feeds.shapes) == (1, False, {"x": (1, 8)})
    assert [path.name for path in setup.feeds.glob("*.npz")] == ["0.npz"]
    monkeypatch.delenv(VARIABLE)
    assert host.race(setup, CANDIDATES[:1], Thresholds(), soon())[0].timing is not None


def test_inputs_given_are_real_and_checked(host: ChildTrialHost, setup: Setup) -> None:
    feeds = host.prepare(setup, soon())
    assert (feeds.count, feeds.are_real, feeds.shapes) == (1, True, {"x": (1, 8)})
    np.savez(setup.feeds / "1.npz", x=np.zeros((1, 9), np.float32))
    with pytest.raises(InputsError, match=r"refuses input 1 .*x float32\[1, 9\]"):
        host.prepare(setup, soon())


def test_a_file_that_is_no_model_is_a_model_error(host: ChildTrialHost, setup: Setup, tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish.onnx"
    rubbish.write_bytes(b"\xff" * 100)
    with pytest.raises(ModelError):
        host.describe(Setup(rubbish, SessionSpec(), setup.feeds), soon())


def test_a_candidate_that_cannot_be_created_fails_its_gate_alone(host: ChildTrialHost, setup: Setup) -> None:
    bad = Proposal(Strategy(provider="NoSuchExecutionProvider"), "rules", "")
    refused, fine = host.race(setup, [bad, CANDIDATES[0]], Thresholds(), soon())
    assert [(gate.name, gate.passed) for gate in refused.gates] == [("compiles", False)]
    assert fine.timing is not None


def test_a_model_whose_outputs_are_random_is_refused(host: ChildTrialHost, setup: Setup, tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    node = helper.make_node("RandomNormalLike", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy")
    graph = helper.make_graph([node], "random", [x], [y])
    save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "random.onnx")
    setup = Setup(tmp_path / "random.onnx", SessionSpec(), setup.feeds)
    for trial in host.race(setup, CANDIDATES, Thresholds(), soon()):
        assert trial.gates[-1].name == "accurate"
        assert "outputs differ from run to run" in trial.verdict


def test_a_provider_is_asked_which_nodes_it_took(host: ChildTrialHost, setup: Setup) -> None:
    import onnxruntime

    if not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        pytest.skip(f"onnxruntime {onnxruntime.__version__} does not record which provider took a node")
    named = Proposal(Strategy(provider="CPUExecutionProvider"), "rules", "")
    (trial,) = host.race(setup, [named], Thresholds(), soon())
    assert trial.nodes == {"CPUExecutionProvider": 1}


def test_the_reference_is_the_cpu_provider_where_the_caller_has_another(host: ChildTrialHost, setup: Setup) -> None:
    import onnxruntime

    others = [name for name in onnxruntime.get_available_providers() if name != "CPUExecutionProvider"]
    if not others:
        pytest.skip("this onnxruntime has no provider but the CPU's")
    # built-in ones come first; what another test registered in this process is not known to the child
    spec = SessionSpec(providers=((others[0], {}), ("CPUExecutionProvider", {})))
    said: list[str] = []
    (trial,) = host.race(Setup(setup.model_file, spec, setup.feeds), CANDIDATES[:1], Thresholds(), soon(), said.append)
    assert "creating a session: reference" in said
    assert trial.timing is not None


@pytest.mark.parametrize(
    ("fault", "step"),
    [
        ("opening:1:crash", "creating the session"),
        ("checking:1:crash", "running the model"),
        ("timing:1:crash", "timing"),
    ],
)
def test_a_crash_costs_the_candidate_and_nobody_else(
    host: ChildTrialHost, setup: Setup, monkeypatch: pytest.MonkeyPatch, fault: str, step: str
) -> None:
    inject(monkeypatch, fault)
    first, crashed, third = host.race(setup, CANDIDATES, Thresholds(), soon())
    assert crashed.failure is not None
    assert step in crashed.failure
    assert "vendor library: assertion failed" in crashed.failure
    for trial in (first, third):
        assert trial.failure is None
        assert trial.timing is not None


@pytest.mark.parametrize("step", ["opening", "timing"])
def test_a_candidate_that_hangs_is_killed_and_the_others_go_on(
    host: ChildTrialHost, setup: Setup, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    inject(monkeypatch, f"{step}:1:hang")
    deadline = soon(8)
    first, hung, third = host.race(setup, CANDIDATES, Thresholds(), deadline)
    assert time.monotonic() < deadline + 3
    assert hung.failure is not None
    assert hung.failure.endswith("s; killed")
    assert (first.failure, third.failure) == (None, None)


def test_a_candidate_that_eats_memory_is_killed(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch, "checking:0:eat")
    with ChildTrialHost(memory_limit_mb=600) as host:
        greedy, modest, _ = host.race(setup, CANDIDATES, Thresholds(), soon())
    if not sys.platform.startswith("linux"):
        pytest.skip("memory of another process is read from /proc only")
    assert "600 MB are allowed; killed" in str(greedy.failure)
    assert modest.failure is None


def test_rubbish_on_standard_output_disturbs_nothing(
    host: ChildTrialHost, setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(monkeypatch, "timing:0:chatter")
    assert all(trial.failure is None and trial.timing for trial in host.race(setup, CANDIDATES, Thresholds(), soon()))


def test_a_default_session_that_crashes_fails_every_trial_with_its_reason(
    host: ChildTrialHost, setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(monkeypatch, "opening:baseline:crash")
    for trial in host.race(setup, CANDIDATES, Thresholds(), soon()):
        assert "the default session failed in the trial process" in str(trial.failure)


def test_a_noise_measurement_that_crashes_is_left_out(
    host: ChildTrialHost, setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(monkeypatch, "opening:noise:crash")
    for trial in host.race(setup, CANDIDATES, Thresholds(), soon()):
        assert trial.failure is None
        assert trial.noise_floor is None


def test_a_crash_in_the_duel_is_a_failure_of_the_trial(
    host: ChildTrialHost, setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    (trial,) = host.race(setup, CANDIDATES[:1], Thresholds(), soon())
    inject(monkeypatch, "opening:candidate:crash")
    assert "in the confirming duel" in str(host.duel(setup, trial, Thresholds(), soon()).failure)


def test_a_crash_while_checking_inputs_is_raised_and_the_next_request_works(
    host: ChildTrialHost, setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(monkeypatch, "checking:baseline:crash")
    with pytest.raises(TrialCrashed, match="running the model"):
        host.prepare(setup, soon())
    monkeypatch.delenv(VARIABLE)
    assert host.prepare(setup, soon()).count == 1


def test_a_model_that_cannot_be_read_in_time_is_a_timeout(
    host: ChildTrialHost, setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(monkeypatch, "describing:model:hang")
    deadline = soon(2)
    with pytest.raises(TrialTimeout, match="killed"):
        host.describe(setup, deadline)
    assert time.monotonic() < deadline + 3


def test_closing_ends_every_child(setup: Setup) -> None:
    host = ChildTrialHost()
    host.prepare(setup, soon())
    children = list(host._children)
    assert children
    host.close()
    assert all(child._process.returncode is not None for child in children)


def test_a_child_ends_when_its_input_ends() -> None:
    child = Child()
    assert child.receive(soon()) == {"event": "ready"}
    assert child._process.stdin is not None
    child._process.stdin.close()
    assert child._process.wait(timeout=10) == 0
    child.kill()


@pytest.mark.skipif(os.name != "posix", reason="the parent is killed by a signal")
def test_a_child_that_hangs_ends_when_its_parent_is_killed(setup: Setup) -> None:
    program = f"""
import time
from pathlib import Path
from ort_metainfer.problem import SessionSpec
from ort_metainfer.trials.client import ChildTrialHost
from ort_metainfer.trials.task import Setup
host = ChildTrialHost()
host._scout = host._start()
print(host._scout.pid, flush=True)
host.prepare(Setup(Path({str(setup.model_file)!r}), SessionSpec(), Path({str(setup.feeds)!r})), time.monotonic() + 60)
"""
    environment = os.environ | {
        VARIABLE: "opening:baseline:hang",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert _is_alive(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline, pause = time.monotonic() + 10, threading.Event()
    while _is_alive(pid) and time.monotonic() < deadline:
        pause.wait(0.02)
    assert not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended but was not yet waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return not Path("/proc/self").exists()


def test_a_real_model_goes_through_the_whole_protocol(
    host: ChildTrialHost, zoo_model: Callable[[str], Path], tmp_path: Path
) -> None:
    setup = Setup(zoo_model("ppocr_cls"), SessionSpec(), tmp_path / "feeds", shapes={"x": (1, 3, 48, 192)})
    setup.feeds.mkdir()
    assert host.describe(setup, soon()).node_count > 100
    assert host.prepare(setup, soon()).shapes == {"x": (1, 3, 48, 192)}
    unoptimised = Proposal(Strategy(session_options={"graph_optimization_level": "disable"}), "rules", "")
    trials = host.race(setup, [*CANDIDATES[:1], unoptimised], Thresholds(), soon())
    assert all(trial.timing is not None and trial.error is not None and trial.error < 1e-4 for trial in trials)
    assert trials[1].error == pytest.approx(trials[1].noise_floor)
    confirmed = host.duel(setup, trials[0], Thresholds(), soon(10))
    assert confirmed.duel is not None
    assert confirmed.gates[-1].name == "pays"


def test_a_module_beside_the_script_is_not_taken_for_a_library(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    """A program named onnx.py, without a guard for ``__main__``, runs once."""
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "onnx.py").write_text(f"""
print("the program runs")
import ort_metainfer
session = ort_metainfer.InferenceSession({str(tiny_model("MatMul"))!r})
print(session.adaptation.key is not None, session.adaptation.reason)
""")
    ended = subprocess.run(
        [sys.executable, str(folder / "onnx.py")],
        env=os.environ | {"ORT_METAINFER_BUDGET_S": "5", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    ran, *outcome = ended.stdout.splitlines()
    assert ran == "the program runs" and len(outcome) == 1
    assert outcome[0].startswith("True "), ended.stdout + ended.stderr
    (said,) = ended.stderr.splitlines()
    assert said.startswith("deciding how to run"), "what is announced once, and nothing else"
