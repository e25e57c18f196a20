"""What ``bench`` measured, as a record: two fresh processes say more than the trials of the decision did."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ort_metainfer.decision import Decision, Gate, Timing, Trial
from ort_metainfer.learning.record import Record
from ort_metainfer.learning.record_store import RecordStore
from ort_metainfer.learning.recording import MISHAPS, with_profiles
from ort_metainfer.learning.records import as_override, record_of
from ort_metainfer.problem import Device, HardwareState, Model, Problem, SessionSpec
from ort_metainfer.strategy import Strategy

if TYPE_CHECKING:
    from ort_metainfer.settings import Settings

__all__ = ["bench_trial", "keep_bench"]

log = logging.getLogger("ort_metainfer.learning")

ASK_S = 30.0
"""How long a provider may take to say which devices it has."""


def keep_bench(model: Path, settings: Settings, decision: Decision, document: Mapping[str, Any]) -> bool:
    """Keep what was measured of a decision; whether it is new.

    A person's override is kept as one, with the figures: what that is worth is then known.

    Args:
        model: the file.
        settings: as they were given.
        decision: what was measured.
        document: the measurement, as ``bench --json`` prints it.
    """
    from ort_metainfer.adapt import settings_for
    from ort_metainfer.places import cache_directory

    resolved, _ = settings_for(settings)
    trial = bench_trial(decision, document)
    if not resolved.records or trial is None:
        return False
    directory = cache_directory(resolved)
    try:
        problem = with_profiles(_problem(model, resolved, decision), directory, [trial])
        device = "" if decision.key is None else decision.key.device
        versions = {} if decision.manifest is None else decision.manifest.versions
        record = record_of(problem, trial, "bench", device=device, versions=versions)
        if decision.origin == "override":
            record = as_override(record, problem, *_replaced(directory, decision))
    except MISHAPS as error:
        log.debug("the bench of %s is not recorded: %s", model, error)
        return False
    store = RecordStore(directory)
    return store.add([_with_known_features(record, store)]) > 0


def _with_known_features(record: Record, store: RecordStore) -> Record:
    """The same with the graph's features as the decision knew them: it looked at the model's nodes, bench does not."""
    same = (kept for kept in store.read(record.structure) if (kept.model, kept.shapes) == (record.model, record.shapes))
    known = max((kept.graph for kept in same), key=len, default={})
    return replace(record, graph=known) if len(known) > len(record.graph) else record


def bench_trial(decision: Decision, document: Mapping[str, Any]) -> Trial | None:
    """The measurement as a trial; None where there is none, or plain onnxruntime was decided for."""
    timing = document.get("timing")
    if timing is None or decision.strategy.is_default:
        return None
    states = [
        HardwareState.from_dict(process[when]) for process in document["processes"] for when in ("before", "after")
    ]
    mismatch, error = document.get("mismatch"), document.get("error")
    busiest = max(states, key=lambda state: state.others_cpu or 0.0)
    return Trial(
        decision.strategy,
        by=decision.origin,
        gates=(Gate("compiles", True, ""), Gate("accurate", mismatch is None, mismatch or "")),
        timing=Timing(**timing),
        creation_ms=_middle(document["creation_ms"]["tuned"]),
        baseline_creation_ms=_middle(document["creation_ms"]["plain"]),
        error=error,
        before=busiest,
        after=states[-1],
    )


def _middle(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def _replaced(directory: Path, decision: Decision) -> tuple[Strategy, str]:
    """What the cache holds for the session, and when that was decided; nothing where it holds none."""
    from ort_metainfer.strategy_cache.store import open_cache

    entry = {} if decision.key is None else open_cache(directory).get("entries", str(decision.key)) or {}
    return Strategy.from_dict(entry.get("strategy", {})), str(entry.get("decided_at", ""))


def _problem(model: Path, settings: Settings, decision: Decision) -> Problem:
    """The problem that the decision was for, as far as it can be put together again.

    Raises:
        LookupError: nothing is known of the model.
    """
    from ort_metainfer.adapt import policy_of
    from ort_metainfer.model.fingerprint import fingerprint, known_graph
    from ort_metainfer.places import cache_directory
    from ort_metainfer.strategy_cache.store import open_cache

    cache = open_cache(cache_directory(settings))
    identity: Model = fingerprint(str(model), cache)
    graph = decision.graph or known_graph(cache, identity.hash)
    if graph is None:
        raise LookupError("its graph was never described")
    spec = SessionSpec()
    return Problem(
        model=identity,
        graph=graph,
        devices=_devices(model, decision.strategy),
        policy=policy_of(settings, spec),
        baseline=spec,
        state=HardwareState(when=time.time(), window_s=0.0),
        shapes=settings.input_shapes or {},
        inputs_are_real=decision.inputs_are_real or settings.inputs is not None,
    )


def _devices(model: Path, strategy: Strategy) -> tuple[Device, ...]:
    """The CPU, and those of the strategy's provider: asked in a child, since a library may have to be registered."""
    from ort_metainfer.hardware.devices import cpu_device
    from ort_metainfer.scratch import scratch_folder
    from ort_metainfer.trials.client import ChildTrialHost
    from ort_metainfer.trials.offered import devices_to_try
    from ort_metainfer.trials.task import Setup

    cpu = cpu_device()
    if strategy.provider in (None, cpu.provider):
        return (cpu,)
    with scratch_folder() as folder, ChildTrialHost() as host:
        deadline = time.monotonic() + ASK_S
        setup = Setup(model, SessionSpec(), folder)
        return devices_to_try(host, setup, [cpu.provider, str(strategy.provider)], lambda: deadline)[0]
