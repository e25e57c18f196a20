"""Outputs judged in trials: once more in the duel, by a user's metric; what is kept of those that do not compare."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ort_metainfer.decision import Decision, Gate, Proposal, Timing, Trial
from ort_metainfer.problem import SessionSpec
from ort_metainfer.strategy import Strategy
from ort_metainfer.strategy_cache.store import open_cache
from ort_metainfer.trials import client as parent
from ort_metainfer.trials.bench import Opened
from ort_metainfer.trials.client import ChildTrialHost
from ort_metainfer.trials.contest import _refuted
from ort_metainfer.trials.ledger import Ledger
from ort_metainfer.trials.task import Setup, Thresholds

ONE_THREAD = Strategy(session_options={"intra_op_num_threads": 1})
SETUP = Setup(Path("model.onnx"), SessionSpec(), Path("feeds"))
FAST = Timing(12, 10, 11, 5.4, 6, 1.84, 1.79, 1.90, 1.02, 1.9)
ONE = np.ones((1, 8), np.float32)


class OneOutput:
    """A session as far as the names of its outputs go."""

    name = "y"

    def get_outputs(self) -> list[Any]:
        return [self]


def opened(output: Any) -> Opened:
    return Opened(OneOutput(), 1.0, first=None if output is None else [output])


@pytest.mark.parametrize(
    ("candidate", "thresholds", "why"),
    [
        (ONE, Thresholds(), None),
        (ONE * np.float32(1 + 1e-3), Thresholds(), "relative L2 1.0e-03"),
        (ONE * np.float32(1 + 1e-3), Thresholds.of("balanced"), None),
        (np.full_like(ONE, math.nan), Thresholds.of("fast"), "NaN or infinity"),
        (np.ones((1, 9), np.float32), Thresholds(), "its shape is [1, 9] instead of [1, 8]"),
        (ONE * 2, Thresholds(metric="m:f"), None),
        (np.full_like(ONE, math.nan), Thresholds(metric="m:f"), "NaN or infinity"),
        (None, Thresholds(), None),
    ],
)
def test_first_outputs_are_held_against_the_baselines(candidate: Any, thresholds: Thresholds, why: str | None) -> None:
    gate = _refuted(opened(candidate), opened(ONE), thresholds)
    assert (gate is None) == (why is None)
    assert gate is None or (not gate.passed and str(why) in gate.detail)


class ScriptedChild:
    """Says what it is told to, and notes what it is asked."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self.events, self.asked = list(events), []

    def send(self, request: dict[str, Any]) -> None:
        self.asked.append(request)

    def receive(self, until: float) -> dict[str, Any] | None:
        return self.events.pop(0)

    def kill(self) -> None:
        return None


def test_outputs_that_differ_in_the_duels_process_fail_the_trial_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuted = Gate("accurate", False, "output 'y': relative L2 4.0e-01; a relative L2 of at most 1e-04 is allowed")
    events = [{"event": "ready"}, {"event": "refuted", "gate": asdict(refuted)}, {"event": "done"}]
    monkeypatch.setattr(parent, "Child", lambda limit: ScriptedChild(*json.loads(json.dumps(events))))
    gates = (Gate("compiles", True, "created"), Gate("accurate", True, "equal"))
    trial = ChildTrialHost().duel(SETUP, Trial(ONE_THREAD, "rules", gates, timing=FAST), Thresholds(), math.inf)
    assert not trial.passed
    assert trial.verdict == f"in the confirming duel, {refuted.detail}"
    assert [(gate.name, gate.passed) for gate in trial.gates] == [("compiles", True), ("accurate", False)]
    assert trial.duel is None


def test_what_cannot_be_compared_does_not_keep_the_story_from_being_remembered(tmp_path: Path) -> None:
    """JSON has no infinity: a NaN in one candidate's outputs once cost the whole story of the decision."""
    ledger = Ledger([Proposal(ONE_THREAD, "rules", "")], Thresholds())
    gate = Gate("accurate", False, "output 'y' on input 0: NaN or infinity where the reference has none", {})
    plain = {"gates": [asdict(gate)], "error": math.inf, "errors": {"y": math.inf, "z": 0.5}, "noise_floor": math.inf}
    ledger.note({"event": "trial", "candidate": 0, "trial": {**plain, "thread_noise": 1e-7}})
    (trial,) = ledger.trials()
    assert (trial.error, dict(trial.errors), trial.noise_floor, trial.thread_noise) == (None, {"z": 0.5}, None, 1e-7)
    cache = open_cache(tmp_path / "cache")
    assert cache.put("decisions", "k", Decision(Strategy(), "default", "", trials=(trial,)).as_dict())


@pytest.fixture
def real_setup(tiny_model: Callable[..., Path], tmp_path: Path) -> Setup:
    folder = tmp_path / "feeds"
    folder.mkdir()
    for seed in range(2):
        x = np.random.default_rng(seed).standard_normal((1, 8)).astype(np.float32)
        np.savez(folder / f"{seed}.npz", x=x)
    return Setup(tiny_model("MatMul"), SessionSpec(), folder)


@pytest.mark.slow
def test_a_users_metric_is_asked_in_the_trials_process(
    real_setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is imported from where this process would, and judges all inputs at once."""
    code = "def counted(reference, candidate): return float(len(reference) * len(candidate[0]['y'][0]))\n"
    (tmp_path / "own_metrics.py").write_text(code)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    proposals = [Proposal(ONE_THREAD, "rules", "")]
    with ChildTrialHost() as host:
        for threshold, passed in ((6.0, True), (5.0, False)):
            thresholds = Thresholds(metric="own_metrics:counted", metric_threshold=threshold)
            (trial,) = host.race(real_setup, proposals, thresholds, time.monotonic() + 20)
            accurate = next(gate for gate in trial.gates if gate.name == "accurate")
            assert (accurate.passed, accurate.figures["loss"]) == (passed, 6.0)
            assert "metric 'own_metrics:counted' gives a loss of 6" in accurate.detail


@pytest.mark.slow
def test_a_race_has_two_witnesses_of_the_noise_and_tells_each_output(real_setup: Setup) -> None:
    with ChildTrialHost() as host:
        (trial,) = host.race(real_setup, [Proposal(ONE_THREAD, "rules", "")], Thresholds(), time.monotonic() + 20)
    accurate = next(gate for gate in trial.gates if gate.name == "accurate")
    assert (trial.noise_floor, trial.thread_noise) == (0.0, 0.0)
    assert {"noise_floor", "thread_noise", "y.cosine", "y.worst", "y.span"} <= set(accurate.figures)
    assert accurate.detail.startswith("output 'y': relative L2 0.0e+00")
