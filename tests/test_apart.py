"""Copies are told apart from the rest of a run where a device has a memory of its own, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ort_metainfer.learning.records import record_of
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.apart import RUNS, bound_ms
from tests.learning_cases import ONE_THREAD, known_problem
from tests.made_problems import CPU, CUDA, CUDA_GPU, OPENVINO, OPENVINO_CPU, device, trial
from tests.plugin_models import perceptron


class Bound:
    """A session on a made device, of which only binding is asked."""

    def __init__(self, memory: str, fails: bool = False) -> None:
        self.memory, self.fails, self.bound, self.runs = memory, fails, list[str](), 0

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name="x")]

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name="y")]

    def get_input_memory_infos(self) -> list[Any]:
        return [SimpleNamespace(name=self.memory, device_id=0)]

    get_output_memory_infos = get_input_memory_infos

    def io_binding(self) -> Any:
        return SimpleNamespace(
            bind_ortvalue_input=lambda name, value: self.bound.append(name),
            bind_ortvalue_output=lambda name, value: self.bound.append(name),
        )

    def run(self, names: None, feed: dict[str, Any]) -> list[Any]:
        return [feed["x"] + 1]

    def run_with_iobinding(self, binding: Any) -> None:
        if self.fails:
            raise RuntimeError("no kernel")
        self.runs += 1


FEED = {"x": np.zeros(3, np.float32)}


@pytest.fixture(autouse=True)
def _copies_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ort_metainfer.trials.apart.allocate", lambda memory, host, dtype: host)
    monkeypatch.setattr(onnxruntime, "copy_tensors", lambda sources, targets: None, raising=False)


def ticking(step_s: float) -> Any:
    """A clock that moves on by ``step_s`` whenever it is read."""
    times = iter(range(10**6))
    return lambda: next(times) * step_s


def test_runs_with_everything_in_the_device_s_memory_are_timed() -> None:
    session = Bound("Cuda")
    step_s = (0.1, 0.0, 0.0, 0.010, 0.002)  # looked at, begun, run, fetched, fetched again
    times = accumulate([0.0, *(step for _ in range(RUNS) for step in step_s)])
    assert bound_ms(session, FEED, 60.0, lambda: next(times)) == pytest.approx(8.0)
    assert sorted(session.bound) == ["x", "y"] and session.runs == RUNS


def test_a_session_in_the_host_s_memory_copies_nothing(tmp_path: Any) -> None:
    assert bound_ms(Bound("Cpu"), FEED, 60.0) is None
    plain = onnxruntime.InferenceSession(perceptron(tmp_path / "p.onnx"), providers=[CPU])
    assert bound_ms(plain, {"x": np.zeros((4, 64), np.float32)}, 60.0) is None


@pytest.mark.parametrize(
    ("session", "feed", "left_s"),
    [
        (Bound("Cuda", fails=True), FEED, 60.0),
        (Bound("Cuda"), {"x": [np.zeros(3, np.float32)]}, 60.0),
        (Bound("Cuda"), FEED, 0.0),
        (object(), FEED, 60.0),
    ],
    ids=["fails", "no tensor", "no time", "an older onnxruntime"],
)
def test_what_cannot_be_told_is_none(session: Any, feed: Any, left_s: float) -> None:
    assert bound_ms(session, feed, left_s, ticking(0.002)) is None


def test_a_record_of_a_cpu_says_that_nothing_is_copied() -> None:
    made = record_of(known_problem(), trial(ONE_THREAD, 1.5), "tune")
    assert made.p50_ms is not None and (made.device_ms, made.transfer_ms) == (made.p50_ms, 0.0)


def test_a_record_of_a_gpu_takes_times_apart_only_where_they_were_measured() -> None:
    about = replace(known_problem(), devices=(device(), CUDA_GPU))
    known = trial(Strategy(provider=CUDA), 1.5)
    assert known.timing is not None
    told = record_of(about, replace(known, device_ms=0.75 * known.timing.p50_ms), "tune")
    assert told.device_ms is not None and told.transfer_ms == pytest.approx(told.device_ms / 3)
    untold = record_of(about, known, "tune")
    assert (untold.device_ms, untold.transfer_ms) == (None, None)
    simulated = record_of(known_problem(), replace(trial(ONE_THREAD, 1.5), simulated=True), "tune")
    assert (simulated.device_ms, simulated.transfer_ms) == (None, None)
    beside = replace(known_problem(), devices=(device(), OPENVINO_CPU))
    assert record_of(beside, trial(Strategy(provider=OPENVINO), 2.0), "tune").transfer_ms == 0.0
