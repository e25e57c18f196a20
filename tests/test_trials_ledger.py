"""What the parent makes of what a child says, and of its silence; no process is started."""

from __future__ import annotations

import itertools
import json
import math
import queue
import sys
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from ort_metainfer.decision import Gate, Proposal
from ort_metainfer.errors import InputsError, TrialCrashed, TrialError, TrialTimeout
from ort_metainfer.problem import HardwareState
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials import child as child_module
from ort_metainfer.trials import client as client_module
from ort_metainfer.trials.channel import decode, encode
from ort_metainfer.trials.child import Child, interpreter
from ort_metainfer.trials.client import _attribute
from ort_metainfer.trials.dialogue import Dialogue
from ort_metainfer.trials.ledger import Ledger
from ort_metainfer.trials.task import Thresholds
from ort_metainfer.trials.timing import Turn

PROPOSALS = [Proposal(Strategy(session_config={"n": str(n)}), "rules", "") for n in range(3)]
PASSED = [Gate("compiles", True, "created"), Gate("accurate", True, "equal")]


def trial_event(index: int, gates: list[Gate], **fields: Any) -> dict[str, Any]:
    return {"event": "trial", "candidate": index, "trial": {"gates": [asdict(gate) for gate in gates], **fields}}


def round_event(**ms: float) -> dict[str, Any]:
    sessions = {"baseline": 10.0, "baseline_again": 10.0} | {name.lstrip("c"): value for name, value in ms.items()}
    return {"event": "round", "turns": {name: Turn((value,), value).as_dict() for name, value in sessions.items()}}


class SilentChild:
    """Says what it was given, then nothing; or dies."""

    def __init__(self, *messages: dict[str, Any], death: str | None = None) -> None:
        self.messages, self.death, self.sent, self.is_killed = list(messages), death, [], False

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def receive(self, until: float) -> dict[str, Any] | None:
        if self.messages:
            return self.messages.pop(0)
        if self.death is not None:
            raise TrialCrashed(self.death)
        return None

    def kill(self) -> None:
        self.is_killed = True


def talk(child: SilentChild, deadline: float = math.inf) -> tuple[Dialogue, list[dict[str, Any]]]:
    dialogue = Dialogue(child, deadline)  # type: ignore[arg-type]
    return dialogue, list(dialogue.events({"do": "race"}))


def test_a_request_is_sent_once_the_child_is_ready_with_the_seconds_left() -> None:
    child = SilentChild({"event": "ready"}, {"event": "done"})
    talk(child)
    assert [message["do"] for message in child.sent] == ["race"]
    assert child.sent[0]["seconds"] == math.inf


def test_silence_kills_the_child_and_names_the_step() -> None:
    child = SilentChild({"event": "ready"}, {"event": "opening", "session": "1"})
    with pytest.raises(TrialTimeout, match=r"creating the session did not end within .* s; killed"):
        talk(child)
    assert child.is_killed


def test_a_death_is_told_with_the_step_it_happened_in() -> None:
    child = SilentChild({"event": "ready"}, {"event": "checking", "session": "1"}, death="its process died (SIGSEGV)")
    with pytest.raises(TrialCrashed, match=r"running the model: its process died \(SIGSEGV\)"):
        talk(child)


@pytest.mark.parametrize(
    ("name", "kind"), [("InputsError", InputsError), ("Refused", TrialError), ("KeyboardInterrupt", TrialError)]
)
def test_errors_of_the_child_arrive_as_errors_of_this_package(name: str, kind: type[Exception]) -> None:
    child = SilentChild({"event": "ready"}, {"event": "failed", "error": name, "message": "no input fits"})
    with pytest.raises(kind, match="no input fits"):
        talk(child)


@pytest.mark.parametrize(
    ("session", "candidate"),
    [("baseline", None), ("baseline_again", None), ("reference", None), ("noise", None), ("2", 2), ("2_twin", 2)],
)
def test_a_step_knows_which_candidate_it_belongs_to(session: str, candidate: int | None) -> None:
    dialogue, _ = talk(SilentChild({"event": "timing", "session": session}, {"event": "done"}))
    assert dialogue.candidate == candidate


@pytest.mark.parametrize(
    ("step", "session", "without", "failed"),
    [
        ("opening", "1", "1", [1]),
        ("timing", "1_twin", "1_twin", [1]),
        ("opening", "noise", "noise", []),
        ("opening", "baseline", None, [0, 1, 2]),
    ],
)
def test_a_death_is_charged_to_who_caused_it(step: str, session: str, without: str | None, failed: list[int]) -> None:
    ledger = Ledger(PROPOSALS, Thresholds())
    dialogue, _ = talk(SilentChild({"event": step, "session": session}, {"event": "done"}))
    assert _attribute(TrialCrashed("died"), dialogue, ledger) == without
    assert [index for index in range(3) if index not in ledger.open_candidates] == failed


def steps_end_after(*messages: dict[str, Any], left_s: float, monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds that the last step announced may take."""
    monkeypatch.setattr(client_module.time, "monotonic", lambda: 100.0)
    dialogue, _ = talk(SilentChild(*messages, {"event": "done"}), deadline=100.0 + left_s)
    return dialogue._step_ends - 100.0


def test_a_step_may_take_half_of_what_is_left_and_the_default_session_all(monkeypatch: pytest.MonkeyPatch) -> None:
    opening, default = ({"event": "opening", "session": name} for name in ("1", "baseline"))
    assert steps_end_after(opening, left_s=10, monkeypatch=monkeypatch) == 5
    assert steps_end_after(default, left_s=10, monkeypatch=monkeypatch) == 10


def test_near_the_deadline_a_turn_is_not_taken_for_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = {"event": "timing", "session": "1"}
    assert steps_end_after(turn, left_s=0.6, monkeypatch=monkeypatch) == pytest.approx(0.6)
    assert steps_end_after(turn, left_s=1.5, monkeypatch=monkeypatch) == 1.0
    assert steps_end_after(round_event(c1=5.0), turn, left_s=10, monkeypatch=monkeypatch) == 10


def test_who_is_busy_when_the_time_is_up_is_not_to_blame() -> None:
    ledger = Ledger(PROPOSALS, Thresholds())
    dialogue, _ = talk(SilentChild({"event": "opening", "session": "1"}, {"event": "done"}), deadline=0.0)
    assert _attribute(TrialTimeout("creating the session did not end"), dialogue, ledger) is None
    assert all(str(trial.failure).startswith("no time left") for trial in ledger.trials())


def test_rounds_of_a_child_that_was_killed_are_not_lost() -> None:
    ledger = Ledger(PROPOSALS, Thresholds())
    ledger.note(trial_event(0, PASSED, error=1e-6, creation_ms=12.0))
    for _ in range(6):
        ledger.note(round_event(c0=5.0))
    ledger.blame(1, "timing a run did not end within 3.0 s; killed")
    won, hung, untried = ledger.trials()
    assert won.timing is not None
    assert (won.timing.rounds, won.timing.speedup, won.creation_ms) == (6, pytest.approx(2.0), 12.0)
    assert "killed" in hung.verdict
    assert "no time left" in untried.verdict


def test_figures_of_two_children_are_not_mixed_and_the_longer_series_counts() -> None:
    ledger = Ledger(PROPOSALS[:1], Thresholds())
    ledger.new_child()
    for _ in range(6):
        ledger.note(round_event(c0=5.0))
    ledger.new_child()
    ledger.note(round_event(c0=1.0))
    (trial,) = ledger.trials()
    assert trial.timing is not None
    assert (trial.timing.rounds, trial.timing.speedup) == (6, pytest.approx(2.0))


def test_a_candidate_that_failed_a_gate_is_not_given_to_the_next_child() -> None:
    ledger = Ledger(PROPOSALS, Thresholds())
    ledger.note(trial_event(0, [Gate("compiles", False, "no kernel")]))
    ledger.note({"event": "untried", "candidate": 2, "reason": "no time left: ..."})
    assert ledger.open_candidates == [1]
    assert ledger.trials()[0].verdict == "no kernel"


@pytest.mark.parametrize("event", ["state", "done"])
def test_the_load_while_timing_is_kept_with_those_that_were_timed(event: str) -> None:
    """``state`` comes at each look, so that a child killed at the deadline has said how busy the machine was."""
    ledger = Ledger(PROPOSALS, Thresholds())
    ledger.note(round_event(c0=5.0))
    state = asdict(HardwareState(when=1.0, window_s=2.0, others_cpu=0.5))
    ledger.note({"event": event, "before": None, "after": state})
    timed, untimed, _ = ledger.trials()
    assert timed.after is not None
    assert timed.after.others_cpu == 0.5
    assert untimed.after is None


def test_messages_hold_numpy_figures_and_infinities() -> None:
    message = {"event": "trial", "error": np.float32(0.5), "count": np.int64(3), "worst": math.inf}
    assert decode(encode(message)) == {"event": "trial", "error": 0.5, "count": 3, "worst": math.inf}


@pytest.mark.parametrize("line", ["", "rubbish", "[1, 2]", "3", '{"event": '])
def test_what_is_no_message_is_ignored(line: str) -> None:
    assert decode(line) is None


def test_arrays_are_not_sent_by_accident() -> None:
    with pytest.raises(TypeError, match="cannot send ndarray"):
        encode({"values": np.zeros(3)})


def test_memory_is_looked_at_while_a_child_talks_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(child_module.time, "monotonic", lambda: 0.02 * next(ticks))
    child, looks = Child.__new__(Child), []
    child._lines, child._sampled_at = queue.Queue(), 0.0
    monkeypatch.setattr(child, "_guard_memory", lambda: looks.append(None))
    for _ in range(50):
        child._lines.put('{"event": "timing"}\n')
        child.receive(1e9)
    assert len(looks) >= 50 * 0.02 / (child_module.SAMPLE_S + 0.02) - 1  # one second of talk


@pytest.mark.parametrize("path", ["", None, "/usr/sbin/uwsgi", "C:\\Program Files\\App\\app.exe"])
def test_a_process_without_a_python_interpreter_says_so(path: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", path)
    with pytest.raises(TrialError, match="trials need a Python interpreter"):
        interpreter()


def test_a_frozen_application_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(TrialError, match="trials need a Python interpreter"):
        interpreter()


def test_a_trial_event_is_plain_json() -> None:
    assert json.loads(encode(trial_event(0, PASSED)))["trial"]["gates"][0]["name"] == "compiles"
