"""The probe's course on a scripted device and a clock that moves only when told: what is tried, in which order, when it
stops, what is repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from ort_metainfer.hardware.micro_benchmarks import BENCHMARKS, MicroBenchmark, named
from ort_metainfer.hardware.probing import LONGEST_MS, WAVE_SHARE, Probing, Ready, fits, grown_too_large
from ort_metainfer.hardware.settling import PointTurn
from ort_metainfer.problem import HardwareState
from ort_metainfer.trials.bench import Refused
from ort_metainfer.trials.fake import FakeClock

POINTS = [named(name) for name in ("empty/float32/1", "matmul/float32/512", "conv3x3/float32/64x56")]
QUIET = HardwareState(0.0, 0.1, others_cpu=0.0)
BUSY = HardwareState(0.0, 0.1, others_cpu=0.9)


@dataclass
class ScriptedDevice:
    """Runs take as long as the script says: seconds, or a function of how often the point ran, or words of refusal."""

    clock: FakeClock
    script: Mapping[str, float | str | Callable[[int], float]] = field(default_factory=dict)
    not_taken: frozenset[str] = frozenset()
    open_s: float = 0.01
    runs: dict[str, int] = field(default_factory=dict)

    def open(self, point: MicroBenchmark) -> tuple[Callable[[], object], bool | None]:
        self.clock.work(self.open_s)
        outcome = self.script.get(point.name, 0.001)
        if isinstance(outcome, str):
            raise Refused(outcome)

        def run() -> None:
            count = self.runs[point.name] = self.runs.get(point.name, 0) + 1
            self.clock.work(outcome(count) if callable(outcome) else outcome)

        return run, point.name not in self.not_taken


class Laps:
    """The machine's states, lap by lap; quiet when the list is used up."""

    def __init__(self, *states: HardwareState) -> None:
        self.states = list(states)

    def lap(self) -> HardwareState:
        return self.states.pop(0) if self.states else QUIET


class Spoken(list[dict[str, Any]]):
    def say(self, event: str, **fields: Any) -> None:
        self.append({"event": event, **fields})

    def named(self, event: str) -> list[str]:
        return [message.get("point", message.get("session")) for message in self if message["event"] == event]


def hold(
    script: Mapping[str, Any] | None = None,
    until: float = 60.0,
    points: list[MicroBenchmark] = POINTS,
    states: tuple[HardwareState, ...] = (),
    seed: int = 0,
    wave_share: float = WAVE_SHARE,
    **fields: Any,
) -> tuple[Spoken, FakeClock]:
    clock, spoken = FakeClock(), Spoken()
    turns = fields.pop("turns", None)
    device = ScriptedDevice(clock, script or {}, **fields)
    Probing(device, spoken, until, clock, turns, Laps(*states), seed, wave_share).hold(points)
    return spoken, clock


def test_each_point_takes_a_turn_in_each_of_two_passes() -> None:
    spoken, _ = hold()
    turns = spoken.named("turn")
    names = {point.name for point in POINTS}
    assert set(turns[:3]) == names
    assert set(turns[3:]) == names
    assert len(turns) == 6


def test_the_order_within_passes_is_random_and_repeatable() -> None:
    points = list(BENCHMARKS[:9])
    orders = [tuple(hold(points=points, seed=seed)[0].named("turn")) for seed in (0, 0, 1)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0][:9] != orders[0][9:]


def test_points_are_opened_most_telling_first_and_announced_before() -> None:
    spoken, _ = hold()
    assert spoken.named("opening") == [point.name for point in POINTS]
    events = [message["event"] for message in spoken[:3]]
    assert events == ["opening", "checking", "admitted"]
    assert all(message["limit_s"] >= 2 for message in spoken if message["event"] in ("opening", "checking", "timing"))


def test_a_point_that_is_refused_costs_only_itself() -> None:
    spoken, _ = hold({"matmul/float32/512": "NOT_IMPLEMENTED"})
    assert [message["refusal"] for message in spoken if message["event"] == "refused"] == ["NOT_IMPLEMENTED"]
    assert set(spoken.named("turn")) == {"empty/float32/1", "conv3x3/float32/64x56"}


def test_a_point_that_raises_when_it_runs_is_refused() -> None:
    def fail(count: int) -> float:
        raise RuntimeError("Non-zero status code returned")

    spoken, _ = hold({"matmul/float32/512": fail})
    assert spoken.named("refused") == ["matmul/float32/512"]


def test_what_the_provider_leaves_to_the_cpu_is_not_timed() -> None:
    spoken, _ = hold(not_taken=frozenset({"matmul/float32/512"}))
    assert [message["taken"] for message in spoken if message["event"] == "admitted"] == [True, False, True]
    assert "matmul/float32/512" not in spoken.named("turn")


def test_on_a_slow_device_only_the_first_points_are_reached_and_the_time_is_kept() -> None:
    spoken, clock = hold(dict.fromkeys((point.name for point in BENCHMARKS), 1.0), 10.0, list(BENCHMARKS))
    reached = set(spoken.named("turn"))
    assert reached
    assert reached < {point.name for point in BENCHMARKS[:4]}
    assert clock.now_s() <= 11.0  # the last run began in time


def test_a_device_slower_than_the_time_allows_leaves_nothing_half_done() -> None:
    spoken, _ = hold(dict.fromkeys((point.name for point in POINTS), 30.0), 10.0)
    assert spoken.named("passed_over") == spoken.named("opening") == ["empty/float32/1"]
    assert spoken.named("turn") == []


def test_a_point_without_time_for_its_turns_is_passed_over_and_a_cheaper_one_is_not() -> None:
    spoken, _ = hold({"matmul/float32/512": 2.6}, 6.0)
    assert spoken.named("passed_over") == ["matmul/float32/512"]
    assert "conv3x3/float32/64x56" in spoken.named("turn")


def test_slow_compilation_does_not_eat_the_time_for_turns() -> None:
    spoken, clock = hold(until=10.0, points=list(BENCHMARKS), open_s=1.0)
    assert len(spoken.named("admitted")) >= 4
    assert len(spoken.named("turn")) == 2 * len(spoken.named("admitted"))
    assert clock.now_s() <= 11.0


def test_on_a_slow_device_what_is_measured_is_safe_before_the_next_point_is_opened() -> None:
    spoken, _ = hold(until=10.0, points=list(BENCHMARKS), open_s=1.5)
    events = [message["event"] for message in spoken if message["event"] in ("opening", "turn")]
    assert events.index("turn") < len(events) - 1 - events[::-1].index("opening")


def test_on_an_emulated_device_each_point_takes_its_turns_before_the_next_is_opened() -> None:
    spoken, _ = hold(wave_share=0.0)
    events = [message["event"] for message in spoken if message["event"] in ("opening", "turn")]
    assert events == ["opening", "turn", "turn"] * 3


def test_on_a_fast_device_there_is_one_wave() -> None:
    spoken, _ = hold(points=list(BENCHMARKS[:9]))
    events = [message["event"] for message in spoken if message["event"] in ("opening", "turn")]
    assert events == ["opening"] * 9 + ["turn"] * 18


def test_passes_that_differ_get_one_more() -> None:
    def slower_later(count: int) -> float:
        return 0.005 if count <= 3 + 1 + 3 else 0.008  # tried three times; an untimed run and three timed ones a turn

    spoken, _ = hold({"matmul/float32/512": slower_later})
    assert spoken.named("turn").count("matmul/float32/512") == 3
    assert spoken.named("turn").count("empty/float32/1") == 2


def test_a_turn_that_something_disturbed_is_taken_again() -> None:
    spoken, _ = hold(states=(QUIET, BUSY))  # a lap to begin with, and the one over the first turn
    disturbed = [message for message in spoken if message["event"] == "turn" and message["turn"]["disturbed"]]
    assert [message["turn"]["disturbed"] for message in disturbed] == ["other processes use 0.90 cores"]
    assert spoken.named("turn").count(disturbed[0]["point"]) == 3


def test_short_runs_are_timed_in_batches_and_told_as_single_runs() -> None:
    spoken, _ = hold({"empty/float32/1": 0.000_005})
    turn = next(
        message["turn"] for message in spoken if message.get("point") == "empty/float32/1" and "turn" in message
    )
    assert turn["runs_ms"] == pytest.approx([0.005] * len(turn["runs_ms"]))
    assert Ready(lambda: None, 0.005).batch == 40
    assert Ready(lambda: None, 5.0).batch == 1
    assert Ready(lambda: None, 0.0).batch == 1000


def test_turns_taken_before_a_crash_are_not_taken_again() -> None:
    before = {"matmul/float32/512": [PointTurn((1.0, 1.0, 1.0))], "empty/float32/1": [PointTurn((1.0,))] * 2}
    spoken, _ = hold(turns=before)
    assert spoken.named("turn").count("matmul/float32/512") == 1
    assert spoken.named("turn").count("empty/float32/1") == 0


@pytest.mark.parametrize(("smaller_ms", "too_large"), [(1.0, False), (2.0, True), (None, True)])
def test_a_curve_grows_while_a_run_stays_short(smaller_ms: float | None, too_large: bool) -> None:
    larger = named("matmul/float32/1024")  # eight times the work of 512
    known = {} if smaller_ms is None else {"matmul/float32/512": smaller_ms}
    assert grown_too_large(larger, known) is too_large
    assert 8 < LONGEST_MS < 16


def test_a_curve_that_does_not_grow_from_another_point_is_always_tried() -> None:
    assert not grown_too_large(named("matmul/float32/512"), {})


def test_larger_sizes_follow_on_a_fast_device_only() -> None:
    fast, _ = hold({"matmul/float32/512": 0.000_1}, points=[named(f"matmul/float32/{n}") for n in (512, 1024, 2048)])
    slow, _ = hold({"matmul/float32/512": 0.010}, points=[named(f"matmul/float32/{n}") for n in (512, 1024, 2048)])
    assert len(fast.named("opening")) == 3
    assert len(slow.named("opening")) == 1


def test_a_point_fits_where_all_turns_of_all_points_do() -> None:
    ready = Ready(lambda: None, 50.0)
    assert fits(ready, [], 2 * ready.pass_s)
    assert not fits(ready, [ready], 2 * ready.pass_s)


@pytest.mark.parametrize("kind", ["to_device", "from_device", "round_trip"])
def test_a_copy_whose_time_is_overhead_says_nothing_of_a_larger_one(kind: str) -> None:
    assert not grown_too_large(named(f"{kind}/float32/4194304"), {f"{kind}/float32/4096": 0.3})
