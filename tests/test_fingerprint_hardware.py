"""The fingerprint of a device: reference networks, the fixed list, figures, and what strategies that fail cost."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ort_metainfer.errors import ProviderError, TrialCrashed, TrialError, TrialTimeout
from ort_metainfer.hardware import fingerprint as parent
from ort_metainfer.hardware.fingerprint import fingerprint_strategies
from ort_metainfer.hardware.fingerprinting import MOST_ROUNDS, Entry, Stand, planned_rounds
from ort_metainfer.hardware.profile import ReferenceTiming
from ort_metainfer.hardware.reference_figures import (
    TimedStrategy,
    disturbance,
    reference_features,
    reference_timings,
    relative_spread,
    unsteadiness,
)
from ort_metainfer.hardware.reference_networks import NETWORKS, reference_feed, reference_model
from ort_metainfer.hardware.reference_strategies import BASELINE, REFERENCE_STRATEGIES, available_strategies
from ort_metainfer.problem import HardwareState
from ort_metainfer.providers import get_provider
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials import faults
from ort_metainfer.trials.fake import FakeClock
from ort_metainfer.trials.timing import MIN_ROUNDS, Turn

ROOT = Path(__file__).parent.parent

PINNED = {
    "conv": "b7131fd329a16319",
    "depthwise": "4bd6279d58fa951c",
    "transformer": "48f88e2a60fb2ab2",
    "gemm": "263cc7961c0f4ac9",
    "many_small": "b95763416001470d",
}
"""First digits of the models' SHA-256. Another network is another measurement: a change here raises profile.SCHEMA."""

CPU = ("CPUExecutionProvider",)
QUIET = HardwareState(when=0.0, window_s=1.0, others_cpu=0.0, steal=0.0)


def digest(name: str) -> str:
    return hashlib.sha256(reference_model(name)).hexdigest()[:16]


# The networks


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_a_valid_model_that_runs_with_finite_outputs_of_a_sensible_size(name: str) -> None:
    model = onnx.load_model_from_string(reference_model(name))
    onnx.checker.check_model(model, full_check=True)
    assert (model.ir_version, [(o.domain, o.version) for o in model.opset_import]) == (10, [("", 17)])
    session = onnxruntime.InferenceSession(reference_model(name), providers=list(CPU))
    (output,) = session.run(None, reference_feed(name))
    assert np.isfinite(output).all()
    assert 0.1 < output.std() < 10  # nothing has died away, nothing explodes in half precision


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_the_same_bytes_everywhere(name: str) -> None:
    assert digest(name) == PINNED[name]


@pytest.mark.slow
def test_another_process_makes_the_same_networks_and_inputs() -> None:
    program = (
        "import hashlib\n"
        "from ort_metainfer.hardware.reference_networks import NETWORKS, reference_feed, reference_model\n"
        "for n in NETWORKS: print(hashlib.sha256(reference_model(n) + reference_feed(n)['x'].tobytes()).hexdigest())"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)
    here = [hashlib.sha256(reference_model(n) + reference_feed(n)["x"].tobytes()).hexdigest() for n in NETWORKS]
    assert done.stdout.split() == here


def test_networks_differ_in_the_work_they_do() -> None:
    operators = {}
    for name in NETWORKS:
        graph = onnx.load_model_from_string(reference_model(name)).graph
        operators[name] = [node.op_type for node in graph.node]
    assert operators["conv"].count("Conv") == 4
    assert operators["depthwise"].count("Conv") == 3
    assert "Softmax" in operators["transformer"] and "LayerNormalization" in operators["transformer"]
    assert operators["gemm"].count("Gemm") == 4
    assert len(operators["many_small"]) > 1000


# The fixed list


@pytest.mark.parametrize("name", REFERENCE_STRATEGIES)
def test_each_strategy_is_one_that_its_adapter_accepts(name: str) -> None:
    strategy = REFERENCE_STRATEGIES[name]
    assert strategy.provider is not None
    get_provider(strategy.provider).check(strategy)


def test_strategies_of_the_list_differ() -> None:
    assert len(set(REFERENCE_STRATEGIES.values())) == len(REFERENCE_STRATEGIES)


def test_only_strategies_of_allowed_providers_are_available_the_baseline_first() -> None:
    names = list(available_strategies(CPU))
    assert names[0] == BASELINE
    assert {REFERENCE_STRATEGIES[name].provider for name in names} == set(CPU)
    assert len(names) == 5


def test_emulated_and_opt_in_providers_wait_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    providers = {strategy.provider for strategy in available_strategies(None).values()}
    for name in providers:
        assert name is not None
        provider = get_provider(name)
        assert not provider.opt_in and not provider.availability().emulated


def test_a_provider_without_an_entry_is_tried_under_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from ort_metainfer import providers

    class Strange:
        name = "StrangeExecutionProvider"

    monkeypatch.setattr(providers, "usable_providers", lambda names: [get_provider("CPU"), Strange()])
    found = available_strategies(("CPU", "Strange"))
    assert found["StrangeExecutionProvider"] == Strategy(provider="StrangeExecutionProvider")


# Figures


def turns(*medians_ms: float) -> list[Turn]:
    return [Turn((value,)) for value in medians_ms]


def test_log_ratios_are_taken_to_the_geometric_mean_and_sum_to_nothing() -> None:
    seen = {"cpu": TimedStrategy(turns(*[2.0] * 5)), "cpu-basic": TimedStrategy(turns(*[8.0] * 5))}
    fast, slow = reference_timings("conv", seen)
    assert (fast.p50_ms, slow.p50_ms) == (2.0, 8.0)
    assert fast.log_ratio == pytest.approx(-math.log(2)) and slow.log_ratio == pytest.approx(math.log(2))
    assert (fast.flag, slow.flag) == (None, None)


def test_an_emulated_device_is_flagged_and_does_not_move_the_others() -> None:
    seen = {"cpu": TimedStrategy(turns(*[2.0] * 5)), "webgpu": TimedStrategy(turns(*[2000.0] * 5))}
    cpu, emulated = reference_timings("conv", seen, emulated={"webgpu"})
    assert cpu.log_ratio == 0 and cpu.flag is None
    assert emulated.log_ratio == pytest.approx(math.log(1000))
    assert emulated.flag is not None and "emulated" in emulated.flag


def test_what_was_refused_is_there_with_its_reason_and_what_was_not_reached_is_absent() -> None:
    seen = {
        "cpu": TimedStrategy(turns(*[1.0] * 5)),
        "cuda": TimedStrategy(refusal="no device"),
        "nxrt": TimedStrategy(),
    }
    rows = {row.strategy: row for row in reference_timings("gemm", seen)}
    assert set(rows) == {"cpu", "cuda"}
    assert (rows["cuda"].p50_ms, rows["cuda"].log_ratio, rows["cuda"].refusal) == (None, None, "no device")


@pytest.mark.parametrize(
    ("timed", "word"),
    [
        (TimedStrategy(turns(1.0, 1.0, 1.0)), "3 rounds only"),
        (TimedStrategy(turns(1.0, 1.0, 1.2, 1.3, 1.3, 1.3)), "unsteady: 1 ms in the first half"),
        (TimedStrategy(turns(1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0)), "half of its rounds lie 67% apart"),
        (TimedStrategy(turns(*[1.0] * 5), mismatch="NaN"), "its outputs are wrong: NaN"),
        (TimedStrategy(turns(*[1.0] * 5), disturbance="disturbed: load"), "disturbed: load"),
    ],
)
def test_a_figure_says_what_speaks_against_it(timed: TimedStrategy, word: str) -> None:
    (row,) = reference_timings("conv", {"cpu": timed})
    assert row.flag is not None and word in row.flag


def test_halves_within_fifteen_percent_are_steady() -> None:
    assert unsteadiness([1.0, 1.0, 1.05, 1.1, 1.1]) is None
    assert unsteadiness([1.0, 2.0]) is None  # nothing can be said
    assert unsteadiness([1.0, 1.0, 1.2, 1.2]) is not None
    assert unsteadiness([1.2, 1.2, 1.0, 1.0]) is not None


def test_spread_is_the_interquartile_range_over_the_median() -> None:
    assert relative_spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert relative_spread([1.0, 2.0]) is None


def test_a_busy_machine_and_one_that_drifted_disturb_a_quiet_one_does_not() -> None:
    busy = HardwareState(when=0.0, window_s=1.0, others_cpu=1.5)
    assert disturbance(QUIET, QUIET) is None
    assert disturbance(None, None) is None
    assert "other processes use 1.50 cores" in (disturbance(QUIET, busy) or "")
    assert "load went from 1.5 to 0.0" in (disturbance(busy, QUIET) or "")


def test_features_are_the_log_ratios_the_creation_times_and_the_baselines_latency() -> None:
    timings = [
        ReferenceTiming("conv", "cpu", p50_ms=2.0, spread=0.1, log_ratio=-0.5, creation_ms=9.0),
        ReferenceTiming("conv", "cuda", p50_ms=1.0, spread=0.2, log_ratio=0.5, creation_ms=99.0, flag="unsteady"),
        ReferenceTiming("conv", "nxrt", refusal="no"),
    ]
    features = {feature.name: feature for feature in reference_features(timings)}
    assert {name: (feature.value, feature.unit) for name, feature in features.items()} == {
        "reference/conv/cpu": (-0.5, "ln"),
        "reference/conv/ms": (2.0, "ms"),
        "reference/conv/cpu/creation": (9.0, "ms"),
        "reference/conv/cuda": (0.5, "ln"),
        "reference/conv/cuda/creation": (99.0, "ms"),
    }
    assert features["reference/conv/cuda"].flag == "unsteady"
    assert all(feature.origin == "fingerprint" for feature in features.values())


# Rounds


def test_fast_strategies_get_all_rounds_and_slow_ones_what_their_share_allows() -> None:
    costs = {"cpu": 0.1, "cpu-basic": 0.1, "webgpu": 2.0}
    rounds = planned_rounds(costs, left_s=10.0)
    assert (rounds["cpu"], rounds["cpu-basic"]) == (MOST_ROUNDS, MOST_ROUNDS)
    assert rounds["webgpu"] == 1  # three tenths of ten seconds


def test_a_slow_strategy_alone_gets_all_the_time() -> None:
    assert planned_rounds({"qnn-htp": 3.0}, left_s=10.0) == {"qnn-htp": 3}
    assert planned_rounds({"qnn-htp": 3.0}, left_s=2.0) == {"qnn-htp": 0}


@given(
    st.dictionaries(st.sampled_from(sorted(REFERENCE_STRATEGIES)), st.floats(0.001, 100), min_size=1), st.floats(0, 60)
)
def test_slow_strategies_never_take_more_than_their_share(costs_s: dict[str, float], left_s: float) -> None:
    rounds = planned_rounds(costs_s, left_s)
    slow = [name for name in costs_s if rounds[name] < MOST_ROUNDS]
    assert sum(rounds[name] * costs_s[name] for name in slow) <= left_s * (1 + 1e-9)
    assert all(0 <= count <= MOST_ROUNDS for count in rounds.values())


# The child's side


class Heard:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def say(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event, **fields})

    def of(self, event: str) -> list[dict[str, Any]]:
        return [message for message in self.events if message["event"] == event]


class QuietWatch:
    def lap(self) -> HardwareState:
        return QUIET


class FakeSession:
    """Answers ``answer`` after ``latency_s`` of the fake clock's time."""

    def __init__(self, clock: FakeClock, latency_s: float, answer: float = 1.0) -> None:
        self._clock, self._latency_s, self._answer = clock, latency_s, answer

    def run(self, names: None, feed: Mapping[str, Any]) -> list[Any]:
        self._clock.work(self._latency_s)
        return [np.full(4, self._answer, np.float32)]

    def get_outputs(self) -> list[Any]:
        class Output:
            name = "y"

        return [Output()]


Making = Callable[[FakeClock], FakeSession]


def stand_of(sessions: Mapping[str | None, Making | Exception]) -> tuple[Stand, Heard]:
    """A stand whose sessions are made by their strategy's provider."""
    heard, clock = Heard(), FakeClock()

    def open_one(model: bytes, strategy: Strategy) -> FakeSession:
        made = sessions[strategy.provider]
        if isinstance(made, Exception):
            raise made
        clock.work(0.01)
        return made(clock)

    stand = Stand("gemm", heard, time.monotonic() + 60, clock, open_one=open_one, watch=QuietWatch())
    return stand, heard


def entries(*names: str) -> list[Entry]:
    return [Entry(index, name, Strategy(provider=name)) for index, name in enumerate(names)]


def test_every_admitted_strategy_takes_a_turn_in_every_round() -> None:
    stand, heard = stand_of(
        {"a": lambda clock: FakeSession(clock, 0.002), "b": lambda clock: FakeSession(clock, 0.004)}
    )
    both = entries("a", "b")
    for entry in both:
        stand.admit(entry)
    stand.time(both, time.monotonic() + 60)
    rounds = heard.of("round")
    assert len(rounds) == MOST_ROUNDS
    assert all(set(message["turns"]) == {"a", "b"} for message in rounds)
    assert all(message["turns"]["b"]["runs_ms"][0] == pytest.approx(4.0) for message in rounds)
    assert {tuple(message["turns"]) for message in rounds} == {("a", "b"), ("b", "a")}  # in both orders


def test_without_time_for_a_turn_a_fast_strategy_is_not_reached_rather_than_refused() -> None:
    stand, heard = stand_of({"a": lambda clock: FakeSession(clock, 0.002)})
    stand.admit(entries("a")[0])
    stand.time(entries("a"), time.monotonic())
    assert heard.of("refused") == [] and all(message["turns"] == {} for message in heard.of("round"))


def test_outputs_are_held_against_the_first_ones() -> None:
    sessions = {"a": lambda clock: FakeSession(clock, 0.002), "b": lambda clock: FakeSession(clock, 0.002, answer=1.1)}
    stand, heard = stand_of(sessions)
    for entry in entries("a", "b"):
        stand.admit(entry)
    first, second = heard.of("opened")
    assert first["error"] == 0 and second["error"] == pytest.approx(0.1, rel=1e-4)
    assert first["creation_ms"] == pytest.approx(10.0)
    wrong, heard = stand_of({"a": sessions["a"], "b": lambda clock: FakeSession(clock, 0.002, answer=math.nan)})
    for entry in entries("a", "b"):
        wrong.admit(entry)
    assert heard.of("opened")[1]["error"] is None and "NaN" in heard.of("opened")[1]["mismatch"]


def test_what_cannot_be_used_here_need_not_be_asked_again_what_fails_on_one_network_may_do_on_another() -> None:
    stand, heard = stand_of({"a": ProviderError("no device"), "b": RuntimeError("no kernel for Conv")})
    for entry in entries("a", "b"):
        stand.admit(entry)
    assert [(said["reason"], said["everywhere"]) for said in heard.of("refused")] == [
        ("no device", True),
        ("no kernel for Conv", False),
    ]
    stand.time(entries("a", "b"), time.monotonic() + 60)
    assert heard.of("round") == []


def test_a_strategy_too_slow_for_one_turn_is_refused_and_the_others_go_on() -> None:
    sessions = {"a": lambda clock: FakeSession(clock, 0.002), "b": lambda clock: FakeSession(clock, 500.0)}
    stand, heard = stand_of(sessions)
    for entry in entries("a", "b"):
        stand.admit(entry)
    stand.time(entries("a", "b"), time.monotonic() + 60)
    assert [said["strategy"] for said in heard.of("refused")] == ["b"]
    assert all(set(message["turns"]) == {"a"} for message in heard.of("round"))


# The parent's side


class Script:
    """Carries out errands as told: one list of events, or an error after some, for each child."""

    def __init__(self, *children: Callable[[Mapping[str, Any]], Sequence[dict[str, Any] | Exception]]) -> None:
        self.children, self.requests = list(children), []

    def __call__(
        self, do: str, request: Mapping[str, Any], deadline: float, on_event: Callable[[dict[str, Any]], None]
    ) -> dict[str, Any]:
        assert do == "fingerprint"
        self.requests.append(request)
        for event in self.children.pop(0)(request):
            if isinstance(event, Exception):
                raise event
            on_event(event)
        return {"event": "done"}


def names_of(request: Mapping[str, Any], timed: bool = True) -> list[str]:
    return [entry["name"] for entry in request["strategies"] if entry["timed"] or not timed]


def at(request: Mapping[str, Any], name: str, step: str = "opening") -> dict[str, Any]:
    index = next(entry["index"] for entry in request["strategies"] if entry["name"] == name)
    return {"event": step, "session": str(index)}


def all_well(request: Mapping[str, Any]) -> list[dict[str, Any] | Exception]:
    events: list[dict[str, Any] | Exception] = []
    for name in names_of(request, timed=False):
        opened = {"event": "opened", "strategy": name, "creation_ms": 5.0, "error": 0.0, "mismatch": None, "taken": 1.0}
        events += [at(request, name), opened]
    turn = Turn((2.0,)).as_dict()
    return events + [{"event": "round", "turns": dict.fromkeys(names_of(request), turn)}] * MIN_ROUNDS


def run(
    script: Script, networks: Sequence[str] = ("conv",), seconds: float = 60.0
) -> dict[tuple[str, str], ReferenceTiming]:
    rows = fingerprint_strategies(CPU, time.monotonic() + seconds, networks=networks, errand=script)
    return {(row.network, row.strategy): row for row in rows}


def test_each_network_has_a_child_of_its_own() -> None:
    script = Script(all_well, all_well)
    rows = run(script, ("conv", "gemm"))
    assert [request["network"] for request in script.requests] == ["conv", "gemm"]
    assert len(rows) == 10
    assert all(row.p50_ms == 2.0 and row.log_ratio == 0 and row.flag is None for row in rows.values())


def test_a_strategy_that_takes_the_child_down_costs_itself_only() -> None:
    def crashing(request: Mapping[str, Any]) -> list[dict[str, Any] | Exception]:
        return [at(request, "cpu"), at(request, "cpu-basic"), TrialCrashed("its process died (SIGABRT)")]

    script = Script(crashing, all_well, all_well)
    rows = run(script, ("conv", "gemm"))
    assert rows["conv", "cpu-basic"].refusal == "its process died (SIGABRT)"
    assert "cpu-basic" not in names_of(script.requests[1])
    assert [row.p50_ms for key, row in rows.items() if key != ("conv", "cpu-basic")] == [2.0] * 9
    assert rows["gemm", "cpu-basic"].p50_ms == 2.0  # what it cannot do with one network it may do with another


def test_a_strategy_that_hangs_is_not_tried_on_another_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent, "PATIENCE_S", 0.0)

    def hanging(request: Mapping[str, Any]) -> list[dict[str, Any] | Exception]:
        return [at(request, "cpu-parallel", "checking"), TrialTimeout("did not end within 5.0 s; killed")]

    script = Script(hanging, all_well, all_well)
    rows = run(script, ("conv", "gemm"))
    assert "did not end" in (rows["conv", "cpu-parallel"].refusal or "")
    assert ("gemm", "cpu-parallel") not in rows
    assert "cpu-parallel" not in names_of(script.requests[2])


def test_what_was_timed_before_a_crash_is_kept_and_not_timed_again() -> None:
    def crashing_late(request: Mapping[str, Any]) -> list[dict[str, Any] | Exception]:
        return [*all_well(request)[:-1], at(request, "cpu-basic", "timing"), TrialCrashed("died")]

    script = Script(crashing_late, all_well)
    rows = run(script)
    assert rows["conv", "cpu-basic"].refusal == "died" and rows["conv", "cpu-basic"].p50_ms is None
    assert rows["conv", "cpu"].p50_ms == 2.0


def test_without_a_baseline_nothing_is_compared() -> None:
    def crashing(request: Mapping[str, Any]) -> list[dict[str, Any] | Exception]:
        return [at(request, "cpu"), TrialCrashed("died")]

    script = Script(crashing, all_well)
    rows = run(script, ("conv", "gemm"))
    assert {key for key in rows if key[0] == "conv"} == {("conv", "cpu")}
    assert rows["conv", "cpu"].refusal == "died"
    assert rows["gemm", "cpu"].p50_ms == 2.0


def test_a_child_that_cannot_be_started_is_an_error() -> None:
    def nothing(request: Mapping[str, Any]) -> list[dict[str, Any] | Exception]:
        return [TrialError("cannot start a process for trials")]

    with pytest.raises(TrialError, match="cannot start"):
        run(Script(nothing))


def test_past_its_deadline_nothing_is_begun() -> None:
    assert run(Script(), seconds=0.0) == {}


def test_a_refusal_for_good_is_not_repeated() -> None:
    def refusing(request: Mapping[str, Any]) -> list[dict[str, Any] | Exception]:
        others = [entry for entry in request["strategies"] if entry["name"] != "cpu-basic"]
        said = {"event": "refused", "strategy": "cpu-basic", "reason": "no such option", "everywhere": True}
        return [*all_well({**request, "strategies": others}), said]

    script = Script(refusing, all_well)
    rows = run(script, ("conv", "gemm"))
    assert rows["conv", "cpu-basic"].refusal == "no such option"
    assert ("gemm", "cpu-basic") not in rows


# For real


@pytest.mark.slow
def test_the_cpu_strategies_are_timed_for_real() -> None:
    rows = fingerprint_strategies(CPU, time.monotonic() + 12, networks=("gemm", "transformer"))
    assert {(row.network, row.strategy) for row in rows} == {
        (network, strategy) for network in ("gemm", "transformer") for strategy in available_strategies(CPU)
    }
    for row in rows:
        assert row.refusal is None
        assert row.p50_ms is not None and row.p50_ms > 0
        assert row.creation_ms is not None and row.creation_ms > 0
        assert row.error is not None and row.error < 1e-5
        assert row.taken in (1.0, None)
    for network in ("gemm", "transformer"):
        ratios = [row.log_ratio for row in rows if row.network == network and row.log_ratio is not None]
        assert sum(ratios) == pytest.approx(0, abs=1e-9)


@pytest.mark.slow
def test_a_plug_in_is_timed_beside_the_cpu_with_its_share_of_nodes() -> None:
    if not get_provider("cpu_ep").availability().usable:
        pytest.skip("nxrt-ep-cpu is not installed")
    rows = fingerprint_strategies(("cpu_ep",), time.monotonic() + 12, networks=("gemm",))
    row = next(row for row in rows if row.strategy == "nxrt")
    assert row.refusal is None and row.p50_ms is not None
    assert row.error is not None and row.error < 1e-4
    assert row.taken is not None and 0 <= row.taken <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "step"), [("crash", "opening"), ("crash", "timing"), ("hang", "checking")])
def test_a_strategy_that_misbehaves_for_real_costs_itself_only(
    monkeypatch: pytest.MonkeyPatch, kind: str, step: str
) -> None:
    index = list(available_strategies(CPU)).index("cpu-basic")
    monkeypatch.setenv(faults.VARIABLE, f"{step}:{index}:{kind}")
    rows = fingerprint_strategies(CPU, time.monotonic() + 15, networks=("gemm",))
    by_name = {row.strategy: row for row in rows}
    assert by_name["cpu-basic"].refusal is not None and by_name["cpu-basic"].p50_ms is None
    assert ("SIGABRT" if kind == "crash" else "did not end") in by_name["cpu-basic"].refusal
    assert by_name["cpu"].p50_ms is not None and by_name["cpu-1-thread"].p50_ms is not None
