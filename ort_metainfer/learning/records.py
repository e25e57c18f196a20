"""From a trial to its record: figures and features, and no name of the model. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from ort_metainfer.decision import Timing, Trial
from ort_metainfer.learning.features import device_features, graph_features, provider_of, references_of
from ort_metainfer.learning.names import Names, failure_kind
from ort_metainfer.learning.record import Record
from ort_metainfer.problem import Device, Problem
from ort_metainfer.strategy import Strategy

__all__ = ["OVERRIDE_WEIGHT", "as_override", "device_of", "machine_text", "override_of", "record_of"]

_NO_VERSIONS: Mapping[str, str] = MappingProxyType({})


def record_of(
    problem: Problem,
    trial: Trial,
    path: str,
    *,
    device: str = "",
    versions: Mapping[str, str] = _NO_VERSIONS,
    graph: Mapping[str, float] | None = None,
) -> Record:
    """One trial as a record.

    Args:
        problem: what was to be decided.
        trial: what was tried.
        path: where it comes from: ``session``, ``tune``, ``bench``, ``prewarm``, ``override``.
        device: the machine as a cache key has it; empty: as the problem's devices say.
        versions: what the figures rest on.
        graph: the graph's features, where somebody has them already.
    """
    names = Names(problem.graph, problem.work)
    timing = trial.duel or trial.timing
    figures: dict[str, Any] = {} if timing is None else {name: getattr(timing, name) for name in _FIGURES}
    if timing is not None:
        figures |= {ours: _ln(getattr(timing, theirs)) for ours, theirs in _RATIOS.items()}
    states = [state for state in (trial.before, trial.after) if state is not None]
    loads = [state.others_cpu for state in states if state.others_cpu is not None]
    device_ms, transfer_ms = _apart(trial, timing, device_of(problem, trial.strategy))
    return Record(
        **_about(problem, trial.strategy, names, device, graph),
        by=trial.by,
        path=path,
        gates={gate.name: gate.passed for gate in trial.gates},
        failure=failure_kind(trial.failure),
        **figures,
        creation_ms=trial.creation_ms,
        peak_memory_mb=trial.peak_memory_mb,
        device_ms=device_ms,
        transfer_ms=transfer_ms,
        error=trial.error if trial.error is not None and math.isfinite(trial.error) else None,
        others_cpu=max(loads, default=None),
        flags=tuple(names.text(flag) for flag in trial.flags),
        versions=dict(versions),
        simulated=trial.simulated,
        measured_at=_date(states[-1].when) if states else "",
    )


def override_of(problem: Problem, strategy: Strategy, replaced: Strategy, replaced_at: str, device: str) -> Record:
    """A person's override as a record without figures.

    Args:
        problem: for which model and machine.
        strategy: what the person wants.
        replaced: what had been decided.
        replaced_at: when; empty where nothing had been.
        device: the machine as a cache key has it.
    """
    about = _about(problem, strategy, Names(problem.graph, problem.work), device, None)
    record = Record(**about, by="override", measured_at=_date(problem.state.when))
    return as_override(record, problem, replaced, replaced_at)


def as_override(record: Record, problem: Problem, replaced: Strategy, replaced_at: str) -> Record:
    """A record as one of a person's override; see :func:`override_of`."""
    before = Names(problem.graph, problem.work).without(replaced)
    return replace(record, path="override", weight=OVERRIDE_WEIGHT, replaced=before, replaced_at=replaced_at)


OVERRIDE_WEIGHT = 3.0
"""How much what a person chose counts in training, beside one trial."""

_FIGURES = ("rounds", "baseline_p50_ms", "baseline_p90_ms", "p50_ms", "p90_ms")
_RATIOS = {"log_ratio": "speedup", "log_ratio_low": "speedup_low", "log_ratio_high": "speedup_high", "band": "band"}


def device_of(problem: Problem, strategy: Strategy) -> Device:
    """The device that a strategy runs on; the CPU's where its provider offers none here."""
    provider = provider_of(strategy, problem)
    mine = [device for device in problem.devices if device.provider == provider]
    named = (device for device in mine if strategy.device is not None and device.provider_device == strategy.device)
    return next(named, mine[0] if mine else problem.cpu)


def machine_text(problem: Problem) -> str:
    """The machine in one text, as a cache key has it: the CPU, then every other kind of device."""
    others = [str(device) for device in problem.devices if device.kind != "cpu"]
    return "+".join(dict.fromkeys([str(problem.cpu), *others]))


def _about(
    problem: Problem, strategy: Strategy, names: Names, device: str, graph: Mapping[str, float] | None
) -> dict[str, Any]:
    """The fields that say what was tried where."""
    runs_on, provider = device_of(problem, strategy), provider_of(strategy, problem)
    profile = problem.profiles.get(provider)
    if graph is None:
        graph = graph_features(problem.graph, problem.work, problem.shapes)
    return {
        "model": problem.model.hash,
        "structure": problem.graph.structure,
        "graph": dict(graph),
        "device": device or machine_text(problem),
        "kind": runs_on.kind,
        "provider": provider,
        "strategy": names.without(strategy),
        "shapes": names.shapes_text(problem.shapes),
        "profile": device_features(runs_on, profile),
        "references": references_of(profile),
        "accuracy": problem.policy.accuracy,
        "objective": problem.policy.objective,
    }


def _apart(trial: Trial, timing: Timing | None, runs_on: Device) -> tuple[float | None, float | None]:
    """Time on the device, and to and from it. A CPU's memory is the host's: nothing is copied."""
    if timing is None or trial.simulated:
        return None, None
    if trial.device_ms is not None:
        return trial.device_ms, max(0.0, timing.p50_ms - trial.device_ms)
    return (timing.p50_ms, 0.0) if runs_on.kind == "cpu" else (None, None)


def _ln(ratio: float) -> float | None:
    return math.log(ratio) if ratio > 0 and math.isfinite(ratio) else None


def _date(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="seconds")
