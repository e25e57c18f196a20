"""In the same unusual uses, deciding (on a miss) and remembering (on a hit) cannot be told from plain onnxruntime."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

import ort_metainfer
from ort_metainfer import session
from ort_metainfer.decision import Proposal
from ort_metainfer.deliberate import Deliberation
from ort_metainfer.hardware import state
from ort_metainfer.model.graph import describe
from ort_metainfer.problem import HardwareState
from ort_metainfer.providers import usable_providers
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials import client
from ort_metainfer.trials.fake import FakeTrialHost, Scripted
from tests.dropin_cases import CASES, Case
from tests.dropin_models import X, dense, saved
from tests.dropin_observe import Make, observe, recorded

PARAMETERS = [pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.slow else []) for case in CASES]
WINNER = Strategy(
    session_options={"intra_op_num_threads": 1, "graph_optimization_level": "extended"},
    session_config={"session.intra_op.allow_spinning": "0"},
)


class Host(FakeTrialHost):
    """Reads the model as a child process would, then lets the one proposal win."""

    def __init__(self) -> None:
        super().__init__(script=lambda strategy: Scripted(speedup=2.0))

    def describe(self, setup: Any, deadline: float) -> Any:
        return describe(setup.model_file, setup.shapes)


@pytest.fixture(autouse=True)
def decided_without_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = HardwareState(when=0.0, window_s=0.1)
    monkeypatch.setattr(session, "_said", set())
    monkeypatch.setattr(client, "ChildTrialHost", Host)
    monkeypatch.setattr(state, "observe", lambda window_s: quiet)
    monkeypatch.setattr(Deliberation, "_first_proposals", lambda *_: [Proposal(WINNER, "rules", "for a test")])
    monkeypatch.setattr(Deliberation, "_search", lambda *_: [])


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Case, Make], dict[str, Any]]]:
    folder = tmp_path / "case"

    def run(case: Case, make: Make) -> dict[str, Any]:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "cwd").mkdir(parents=True)
        monkeypatch.chdir(folder / "cwd")
        return observe(make, case.build(folder), folder)

    yield run
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("case", PARAMETERS)
def test_deciding_and_remembering_change_speed_only(case: Case, seen):
    origins: list[str] = []

    def ours(*args: Any, **keywords: Any) -> onnxruntime.InferenceSession:
        made = ort_metainfer.InferenceSession(*args, **keywords)
        origins.append(made.adaptation.origin)
        return made

    plain = seen(case, onnxruntime.InferenceSession)
    for _ in ("a miss", "a hit"):
        mine = seen(case, ours)
        different = {name: (mine.get(name), plain.get(name)) for name in mine | plain}
        different = {name: pair for name, pair in different.items() if pair[0] != pair[1]}
        assert not different, "ours, plain: " + "\n".join(f"{name}: {pair}" for name, pair in different.items())
    if case.adapted is not None:
        assert origins == (["rules", "cache"] if case.adapted else ["pass-through"] * 2)


def test_what_fails_of_ours_costs_one_warning_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = saved(dense(), tmp_path / "model.onnx")
    seen: dict[str, Any] = {}

    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(Deliberation, "run", broken)
    with recorded(seen):
        first = ort_metainfer.InferenceSession(path)
        again = ort_metainfer.InferenceSession(path)
    assert first.run(None, X)[0].tobytes() == again.run(None, X)[0].tobytes()
    assert (seen["stdout"], seen["warnings"]) == ("", [])
    [warning] = seen["logged"]
    assert path in warning
    assert "a bug of ours" in warning


@pytest.mark.parametrize("case", PARAMETERS)
def test_a_bug_of_ours_never_reaches_a_caller(case: Case, seen, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a bug of ours")

    plain = seen(case, onnxruntime.InferenceSession)
    monkeypatch.setattr("ort_metainfer.adapt.decide", broken)
    mine = seen(case, ort_metainfer.InferenceSession)
    assert len(mine.pop("logged")) == (plain["created"] == "session")
    del plain["logged"]
    assert mine == plain


def test_deciding_leaves_the_process_s_devices_and_providers_as_they_were(tmp_path: Path):
    """A plug-in library registered for a look would be seen by the application, which may register its own."""
    if any(provider.availability().how == "plug-in" for provider in usable_providers()):
        pytest.skip("a plug-in has devices here: it is registered to be tried, and stays")

    def state_of_onnxruntime() -> Any:
        devices = [(device.ep_name, device.device.type) for device in onnxruntime.get_ep_devices()]
        return devices, onnxruntime.get_available_providers(), {*os.environ}

    before = state_of_onnxruntime()
    first = ort_metainfer.InferenceSession(saved(dense(), tmp_path / "model.onnx"))
    assert first.adaptation.origin == "rules"
    assert state_of_onnxruntime() == before
