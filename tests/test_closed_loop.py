"""The loop closed end to end: a machine on which the model in use is wrong, its own trials recorded, trained again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from ort_metainfer import adapt
from ort_metainfer.adapt import Request, decide, settings_for
from ort_metainfer.decision import Decision
from ort_metainfer.learning.in_use import model_in_use, own_folder
from ort_metainfer.learning.record import Record
from ort_metainfer.learning.record_store import RecordStore
from ort_metainfer.problem import Device, Graph, HardwareState, SessionSpec, TensorSpec
from ort_metainfer.settings import Settings
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.fake import FakeTrialHost, Scripted
from ort_metainfer.trials.task import Setup
from tests.learning_cases import known_problem, record
from tests.made_problems import CPU, GELU_TRANSFORMER, LSTM, SMALL_MLP, SQUEEZENET, TRANSFORMER

pytest.importorskip("sklearn", reason="training needs the extra train")

EXTENDED = Strategy(session_options={"graph_optimization_level": "extended"})
NO_PATTERN = Strategy(session_options={"enable_mem_pattern": False})
BOTH = Strategy(session_options={"enable_mem_pattern": False, "graph_optimization_level": "extended"})

ELSEWHERE = {NO_PATTERN: 1.30, EXTENDED: 0.80, BOTH: 1.05}
HERE = {NO_PATTERN: 0.80, EXTENDED: 1.50, BOTH: 1.20}

LATER = HardwareState(when=2e9, window_s=1.0, others_cpu=0.0, steal=0.0)
MADE = Device(CPU, "cpu", "a made processor", features=("sve", "i8mm"), cores=6.0)

KINDS = (TRANSFORMER, GELU_TRANSFORMER, SQUEEZENET, LSTM, SMALL_MLP)
TRIALS_EACH = 5


def graph_of(number: int) -> Graph:
    """One of a family of models, each of a structure of its own."""
    kind, macs = KINDS[number % len(KINDS)], 100_000_000 + 10_000_000 * number
    return Graph(
        inputs=(TensorSpec("x", "float32", (1, 64)),),
        outputs=(TensorSpec("y", "float32", None),),
        ir_version=8,
        opsets={"ai.onnx": 17},
        operators={**kind, "Identity": 1 + number % 3},
        node_count=sum(kind.values()) + 1 + number % 3,
        parameter_count=macs // 100,
        weight_bytes=macs // 25,
        macs=macs,
        structure=f"{number:032x}",
    )


def elsewhere() -> list[Record]:
    """What was measured on three other devices, on which leaving memory patterns out wins."""
    made = []
    for cores in (2.0, 4.0, 8.0):
        cpu = Device(CPU, "cpu", "a processor", features=("avx2", "avx512f"), cores=cores)
        for number in range(5):
            about = replace(known_problem(), graph=graph_of(number), devices=(cpu,))
            made += [
                replace(_dated(record(strategy, gain, about)), device=f"cpu:elsewhere/{cores:g}c")
                for strategy, gain in ELSEWHERE.items()
            ]
    return made


def _dated(one: Record) -> Record:
    return replace(one, measured_at="2025-01-01T00:00:00+00:00", path="import")


def one_node(number: int) -> onnx.GraphProto:
    """Something to hash; what is decided about it is what :func:`graph_of` says."""
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 64])
    other = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 64])
    return onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], f"model{number}", [value], [other])


class MadeMachine(FakeTrialHost):
    """A machine of a made processor on which every strategy runs as ``HERE`` says, whatever the model."""

    def __init__(self, number: int) -> None:
        super().__init__(self.outcome, graph=graph_of(number))

    def outcome(self, strategy: Strategy) -> Scripted:
        known = [gain for each, gain in HERE.items() if strategy.session_options == each.session_options]
        return Scripted(speedup=known[0] if known else 0.99, before=LATER, after=LATER)

    def devices(
        self, setup: Setup, providers: Sequence[str], deadline: float
    ) -> tuple[list[Device], list[tuple[str, str]]]:
        return [MADE], [(name, "not on this machine") for name in providers if name != CPU]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Decides for the model of that number on the made machine."""
    monkeypatch.setattr("ort_metainfer.hardware.state.observe", lambda *_: LATER)
    monkeypatch.setattr("ort_metainfer.learning.train.TREES", 30)
    monkeypatch.setattr("ort_metainfer.learning.train.TREES_HELD_OUT", 12)

    def decide_for(number: int, **settings: Any) -> Decision:
        model = tmp_path / f"model{number}.onnx"
        onnx.save(onnx.helper.make_model(one_node(number)), model)
        resolved, problems = settings_for(Settings(max_trials=TRIALS_EACH, **settings))
        assert not problems
        return decide(Request(str(model), SessionSpec(), resolved), MadeMachine(number))

    return decide_for


def test_after_twenty_trials_of_other_models_the_first_proposal_for_a_new_one_is_right(ask: Any) -> None:
    from ort_metainfer.learning.retraining import retrain

    directory = adapt.cache_directory(settings_for(None)[0])
    store = RecordStore(directory)
    assert store.add(elsewhere()) == 45
    first = retrain(directory)
    assert first.kept and first.contest.reason == "there is no model in use"

    before = ask(8)
    assert before.proposals[0].by == "meta-model" and before.proposals[0].strategy == NO_PATTERN, (
        "wrong on this machine"
    )
    wrong = next(trial for trial in before.trials if trial.strategy == NO_PATTERN)
    assert not wrong.passed

    for number in (5, 6, 7):
        ask(number)
    mine = [one for one in store.read() if one.path == "session"]
    assert 18 <= len(mine) <= 22 and len({one.structure for one in mine}) == 4

    again = retrain(directory)
    assert again.kept and "not worse" in again.contest.reason and again.contest.held_out == "hardware"
    assert again.model.card.records == 45 + len(mine) and again.folder == own_folder(directory)

    unseen = ask(9)
    assert unseen.proposals[0].by == "meta-model" and unseen.proposals[0].strategy == EXTENDED
    assert "learned ranking: expected 1." in unseen.proposals[0].reason
    assert unseen.strategy == EXTENDED and unseen.origin == "meta-model"


def test_a_challenger_that_chooses_worse_on_unseen_hardware_does_not_take_the_place(ask: Any) -> None:
    from ort_metainfer.learning.retraining import retrain

    directory = adapt.cache_directory(settings_for(None)[0])
    store = RecordStore(directory)
    store.add(elsewhere())
    champion = retrain(directory).model
    spoilt = [
        replace(
            one,
            device=f"cpu:spoilt/{number}",
            log_ratio=-(one.log_ratio or 0.0),
            measured_at="2030-01-01T00:00:00+00:00",
        )
        for one in elsewhere()
        for number in range(3)
    ]
    store.add(spoilt)
    again = retrain(directory)
    assert not again.kept and "worse" in again.contest.reason
    kept = model_in_use(directory)
    assert kept is not None and kept.card.records == champion.card.records == 45


def test_a_damaged_model_is_told_and_the_decision_is_made_without_it(ask: Any) -> None:
    directory = adapt.cache_directory(settings_for(None)[0])
    own_folder(directory).mkdir(parents=True)
    (own_folder(directory) / "card.json").write_text("{")
    decision = ask(3)
    assert decision.key is not None
    assert any(one.by == "meta-model" and "learn train again" in one.reason for one in decision.refusals)
