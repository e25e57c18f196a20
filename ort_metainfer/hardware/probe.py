"""The probe: what a device does with a list of micro-benchmarks and operators, measured in child processes.

What crashes or hangs there costs one point: it is recorded as refused, and another child goes on with the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from ort_metainfer.errors import ProviderError, TrialCrashed, TrialTimeout
from ort_metainfer.hardware.derived import derive_features
from ort_metainfer.hardware.micro_benchmarks import MicroBenchmark, benchmarks_for
from ort_metainfer.hardware.operator_cases import CASES
from ort_metainfer.hardware.profile import Measurement, Profile
from ort_metainfer.hardware.settling import PASSES, PointTurn, settle, wants_repetition
from ort_metainfer.hardware.state import observe
from ort_metainfer.problem import Device
from ort_metainfer.trials.errand import run_errand

__all__ = ["Findings", "find_operators", "measure", "probe_device"]

OPERATORS_SHARE = 0.35
"""Share of the time that trying operators may take; it needs less where sessions are created quickly."""

START_S = 0.7
"""With less time left no child is started: it would not get to anything."""

STATE_S = 0.1
"""How long the machine is watched before and after."""

MAX_FRUITLESS = 4
"""Children that may die one after another without having got anything done."""

Errand = Callable[..., dict[str, Any]]
Say = Callable[[str], None]


@dataclass
class Findings:
    """What children have said of their points so far.

    Attributes:
        points: all that were asked for, most telling first.
        taken: point -> whether the provider itself does the work.
        refusals: point -> why there are no figures.
        turns: point -> turns taken, over all children.
        notes: point -> what should be known of its figures.
        closed: points that no further child need look at.
    """

    points: Sequence[MicroBenchmark]
    taken: dict[str, bool] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    turns: dict[str, list[PointTurn]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)

    def note(self, message: Mapping[str, Any]) -> None:
        """Take in one event."""
        event, name = message["event"], str(message.get("point", ""))
        if event == "admitted":
            self.taken[name] = bool(message["taken"])
            if message["note"]:
                self.notes[name] = message["note"]
            if not message["taken"]:
                self.closed.add(name)
        elif event == "refused":
            self.refuse(name, message["refusal"])
        elif event == "passed_over":
            self.closed.add(name)
        elif event == "turn":
            self.turns.setdefault(name, []).append(PointTurn.from_dict(message["turn"]))

    def refuse(self, name: str, reason: str) -> None:
        """There will be no figures of a point, or no more."""
        self.refusals[name] = reason
        self.closed.add(name)

    @property
    def open_points(self) -> list[str]:
        """Points that still lack a turn, most telling first."""
        return [point.name for point in self.points if point.name not in self.closed and self._lacks(point.name)]

    def _lacks(self, name: str) -> bool:
        turns = self.turns.get(name, [])
        return len(turns) < PASSES or wants_repetition(turns)

    def measurements(self) -> tuple[Measurement, ...]:
        """Every point of which something is known; what was not reached is not there."""
        found = (self._measurement(point) for point in self.points)
        return tuple(measurement for measurement in found if measurement is not None)

    def _measurement(self, point: MicroBenchmark) -> Measurement | None:
        bare = Measurement(point.name, float(point.work), point.work_unit, taken=self.taken.get(point.name, False))
        if point.name in self.refusals:
            return replace(bare, refusal=self.refusals[point.name])
        turns = self.turns.get(point.name)
        if not turns:
            return bare if point.name in self.taken and not bare.taken else None
        settled = settle(turns)
        return replace(bare, **{**vars(settled), "flag": settled.flag or self.notes.get(point.name)})


def probe_device(device: Device, deadline: float, say: Say | None = None) -> Profile:
    """Measure a device: micro-benchmarks, operators, and the features that they give.

    Under ten seconds on real hardware; with a nearer ``deadline``, or on a slow device, fewer points, the most telling
    ones first. The environment of this process is the children's.

    Args:
        device: one that its provider offers here.
        deadline: a time.monotonic() value to end by.
        say: told what is going on, a line at a time.

    Raises:
        ProviderError: the device is only a description, or its provider cannot be used here.
        TrialError: no child process can be started.
    """
    from ort_metainfer.providers import get_provider

    if device.simulated:
        raise ProviderError(f"{device} is simulated: there is nothing here to probe")
    provider, began = get_provider(device.provider), time.monotonic()
    tell = say or (lambda text: None)
    before = observe(STATE_S)
    operators = find_operators(device, began + OPERATORS_SHARE * (deadline - began), tell)
    points = benchmarks_for(device.provider, device.kind, provider.default_is_lossy)
    measurements = measure(device, points, deadline - 2 * STATE_S, tell).measurements()
    return Profile(
        device=device,
        versions=_versions(device, provider.versions()),
        features=derive_features(measurements, device.emulated),
        measurements=measurements,
        operators=operators,
        before=before,
        after=observe(STATE_S),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=time.monotonic() - began,
    )


def _versions(device: Device, versions: Mapping[str, str]) -> dict[str, str]:
    import onnxruntime

    driver = {} if device.driver is None else {"driver": device.driver}
    return {"onnxruntime": onnxruntime.__version__, **versions, **driver}


def measure(
    device: Device, points: Sequence[MicroBenchmark], deadline: float, say: Say, errand: Errand = run_errand
) -> Findings:
    """Time the points, in as many children as it takes.

    Args:
        device: on which.
        points: most telling first.
        deadline: a time.monotonic() value to end by.
        say: told each point's name as it is opened.
        errand: carries out one errand in a child.

    Raises:
        ProviderError: the provider cannot be used here.
        TrialError: no child can be started.
    """
    findings = Findings(points)

    def once(on_event: Callable[[dict[str, Any]], None]) -> None:
        turns = {name: [turn.as_dict() for turn in taken] for name, taken in findings.turns.items()}
        request = {"provider": device.provider, "device": device.provider_device, "emulated": device.emulated}
        errand("probe", {**request, "points": findings.open_points, "turns": turns, "seed": 0}, deadline, on_event)

    def note(message: dict[str, Any]) -> None:
        findings.note(message)
        if message["event"] == "opening":
            say(f"probing {device.name}: {message['session']}")

    _persist(once, note, lambda: bool(findings.open_points), findings.refuse, deadline)
    return findings


def find_operators(device: Device, deadline: float, say: Say, errand: Errand = run_errand) -> dict[str, bool]:
    """Operator case -> whether the device's provider takes it; those that were not reached are not there.

    One over which the child dies or hangs counts as not taken.

    Args:
        device: on which.
        deadline: a time.monotonic() value to end by.
        say: told what was refused, and how.
        errand: carries out one errand in a child.

    Raises:
        ProviderError: the provider cannot be used here.
        TrialError: no child can be started.
    """
    found: dict[str, bool] = {}
    unsaid: set[str] = set()

    def left() -> list[str]:
        return [case.name for case in CASES if case.name not in found and case.name not in unsaid]

    def once(on_event: Callable[[dict[str, Any]], None]) -> None:
        request = {"provider": device.provider, "device": device.provider_device, "cases": left()}
        errand("operators", request, deadline, on_event)

    def refuse(name: str, reason: str) -> None:
        found[name] = False
        say(f"{device.name} takes no {name}: {reason}")

    def note(message: dict[str, Any]) -> None:
        if message["event"] != "operator":
            return
        if message["taken"] is None:
            unsaid.add(message["case"])
        else:
            found[message["case"]] = message["taken"]
        if message["refusal"]:
            say(f"{device.name} takes no {message['case']}: {message['refusal']}")

    say(f"trying {len(CASES)} operators on {device.name}")
    _persist(once, note, lambda: bool(left()), refuse, deadline)
    return found


def _persist(
    once: Callable[[Callable[[dict[str, Any]], None]], None],
    note: Callable[[dict[str, Any]], None],
    unfinished: Callable[[], bool],
    refuse: Callable[[str, str], None],
    deadline: float,
) -> None:
    """Carry an errand out, child after child, until one comes to its end or the time is up.

    Args:
        once: one child's errand; hands on events.
        note: takes in an event.
        unfinished: whether anything is left to do.
        refuse: told what a child died or hung over, and how.
        deadline: a time.monotonic() value.

    Raises:
        MetainferError: what the errand itself raised.
    """
    fruitless = 0
    while unfinished() and fruitless < MAX_FRUITLESS and deadline - time.monotonic() > START_S:
        steps: list[tuple[str, str]] = []
        results = 0

        def hear(message: dict[str, Any], steps: list[tuple[str, str]] = steps) -> None:
            nonlocal results
            if message["event"] in ("opening", "checking", "timing"):
                steps.append((message["event"], message["session"]))
            else:
                results += message["event"] in ("operator", "admitted", "refused", "turn")
            note(message)

        try:
            once(hear)
        except (TrialCrashed, TrialTimeout) as error:
            if isinstance(error, TrialTimeout) and time.monotonic() >= deadline:
                return
            if not steps:
                raise
            refuse(steps[-1][1], str(error))
            fruitless = 0 if results else fruitless + 1
            continue
        return
