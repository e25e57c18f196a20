"""The parent's side of the probe, its children scripted: a death costs one point, and what was known stays known."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ort_metainfer.errors import ProviderError, TrialCrashed, TrialTimeout
from ort_metainfer.hardware.devices import cpu_device
from ort_metainfer.hardware.micro_benchmarks import named
from ort_metainfer.hardware.operator_cases import CASES
from ort_metainfer.hardware.probe import MAX_FRUITLESS, Findings, find_operators, measure, probe_device
from ort_metainfer.problem import Device

POINTS = [named(name) for name in ("empty/float32/1", "matmul/float32/512", "conv3x3/float32/64x56")]
NAMES = [point.name for point in POINTS]

Script = Callable[[dict[str, Any], Callable[[dict[str, Any]], None]], None]


class Children:
    """An errand's children, one script each; the last one's is used again."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts, self.requests = list(scripts), list[dict[str, Any]]()

    def __call__(
        self, do: str, request: dict[str, Any], deadline: float, on_event: Callable[[dict[str, Any]], None]
    ) -> dict[str, Any]:
        self.requests.append(request)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        script(request, on_event)
        return {}


def works(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
    """A child that does all that is asked."""
    for name in request["points"]:
        tell({"event": "opening", "session": name})
        tell({"event": "admitted", "point": name, "taken": True, "note": None})
    for name in request["points"]:
        for _ in range(2 - len(request["turns"].get(name, []))):
            tell({"event": "turn", "point": name, "turn": {"runs_ms": [1.0, 1.0, 1.0], "disturbed": None}})


def dies_at(point: str, step: str = "opening", error: type[Exception] = TrialCrashed) -> Script:
    """A child that gets everything before ``point`` admitted and dies when it announces that one."""

    def script(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        for name in request["points"]:
            tell({"event": "opening", "session": name})
            if name == point:
                tell({"event": step, "session": name})
                raise error("its process died (SIGABRT); its last words: assertion failed")
            tell({"event": "admitted", "point": name, "taken": True, "note": None})

    return script


def run(*scripts: Script, points: Sequence[Any] = POINTS, seconds: float = 30.0) -> tuple[Findings, Children]:
    children = Children(*scripts)
    found = measure(cpu_device(), points, time.monotonic() + seconds, lambda text: None, children)
    return found, children


def test_a_child_that_does_all_leaves_nothing_open() -> None:
    found, children = run(works)
    assert [point.name for point in found.measurements()] == NAMES
    assert all(point.p50_ms == 1.0 and point.runs == 6 and point.taken for point in found.measurements())
    assert len(children.requests) == 1


def test_a_crash_costs_one_point_and_another_child_goes_on_without_it() -> None:
    found, children = run(dies_at(NAMES[1]), works)
    empty, matmul, conv = found.measurements()
    assert children.requests[1]["points"] == [NAMES[0], NAMES[2]]
    assert matmul.refusal is not None
    assert "its process died (SIGABRT)" in matmul.refusal
    assert (matmul.p50_ms, matmul.taken) == (None, False)
    assert empty.p50_ms == conv.p50_ms == 1.0


def test_a_hang_costs_one_point_too() -> None:
    found, _ = run(dies_at(NAMES[0], "checking", TrialTimeout), works)
    assert [point.refusal is None for point in found.measurements()] == [False, True, True]


def test_turns_that_were_taken_before_a_crash_are_kept_and_handed_on() -> None:
    def dies_timing(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        tell({"event": "opening", "session": NAMES[0]})
        tell({"event": "admitted", "point": NAMES[0], "taken": True, "note": None})
        tell({"event": "turn", "point": NAMES[0], "turn": {"runs_ms": [1.0], "disturbed": None}})
        tell({"event": "timing", "session": NAMES[1]})
        raise TrialCrashed("died")

    found, children = run(dies_timing, works)
    assert children.requests[1]["turns"] == {NAMES[0]: [{"runs_ms": [1.0], "disturbed": None}]}
    assert len(found.turns[NAMES[0]]) == 2


def test_a_child_that_dies_before_it_announced_anything_is_an_error() -> None:
    def dies(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        raise TrialCrashed("its process died (SIGSEGV)")

    with pytest.raises(TrialCrashed, match="SIGSEGV"):
        run(dies)


def test_children_that_only_ever_die_are_given_up() -> None:
    points = [named(point) for point in (*NAMES, "conv1x1/float32/256x28", "lstm/float32/32x256", "matmul/float32/64")]

    def dies_at_the_first(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        dies_at(request["points"][0])(request, tell)

    found, children = run(dies_at_the_first, points=points)
    assert len(children.requests) == MAX_FRUITLESS
    assert len(found.refusals) == MAX_FRUITLESS


def test_what_was_not_reached_is_absent_and_not_zero() -> None:
    def stops(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        works({**request, "points": NAMES[:1]}, tell)
        tell({"event": "passed_over", "point": NAMES[1]})

    found, _ = run(stops)
    assert [point.name for point in found.measurements()] == NAMES[:1]


def test_what_the_provider_left_to_the_cpu_is_told_without_figures() -> None:
    def leaves(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        tell({"event": "admitted", "point": NAMES[1], "taken": False, "note": None})

    (point,) = run(leaves)[0].measurements()
    assert (point.name, point.taken, point.p50_ms, point.refusal) == (NAMES[1], False, None, None)


def test_where_onnxruntime_does_not_say_who_ran_it_the_figures_are_flagged() -> None:
    def unsaid(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        tell({"event": "admitted", "point": NAMES[0], "taken": True, "note": "onnxruntime does not say where it ran"})
        for _ in range(2):
            tell({"event": "turn", "point": NAMES[0], "turn": {"runs_ms": [1.0], "disturbed": None}})

    (point,) = run(unsaid)[0].measurements()
    assert point.flag == "onnxruntime does not say where it ran"


def test_no_child_is_started_without_time() -> None:
    found, children = run(works, seconds=0.1)
    assert children.requests == []
    assert found.measurements() == ()


def test_an_error_of_the_provider_reaches_the_caller() -> None:
    def fails(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        raise ProviderError("its library does not load")

    with pytest.raises(ProviderError, match="does not load"):
        run(fails)


def test_an_operator_over_which_the_child_dies_counts_as_not_taken_and_the_rest_is_tried() -> None:
    def tries(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        for name in request["cases"]:
            tell({"event": "opening", "session": name})
            if name == "Loop":
                raise TrialCrashed("its process died (SIGSEGV)")
            tell({"event": "operator", "case": name, "taken": name != "Einsum", "refusal": None})

    children, said = Children(tries), list[str]()
    found = find_operators(cpu_device(), time.monotonic() + 30, said.append, children)
    assert set(found) == {case.name for case in CASES}
    assert [name for name, taken in found.items() if not taken] == ["Einsum", "Loop"]
    assert "Loop" not in children.requests[1]["cases"]
    assert any("Loop" in line and "SIGSEGV" in line for line in said)


def test_an_operator_of_which_onnxruntime_does_not_say_who_runs_it_is_absent() -> None:
    def tries(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        tell({"event": "operator", "case": "Conv", "taken": None, "refusal": None})
        tell({"event": "operator", "case": "MatMul", "taken": True, "refusal": None})

    assert find_operators(cpu_device(), time.monotonic() + 30, print, Children(tries)) == {"MatMul": True}


def test_a_simulated_device_is_not_probed() -> None:
    device = Device("CPUExecutionProvider", "npu", "an NPU on paper", simulated=True)
    with pytest.raises(ProviderError, match="simulated"):
        probe_device(device, time.monotonic() + 10)
