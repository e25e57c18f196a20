"""Where decisions hand over what they tried: the edge between deciding and learning, after the decision is made.

A record that cannot be made or kept costs a line at level debug, never a session. Simulated trials are not kept: what
was reckoned and what was measured do not lie in one file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ort_metainfer.errors import MetainferError
from ort_metainfer.learning.features import graph_features, kind_named, provider_of
from ort_metainfer.learning.record_store import RecordStore
from ort_metainfer.learning.records import override_of, record_of
from ort_metainfer.problem import Device, HardwareState, Model, Problem
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.ledger import NO_TIME

if TYPE_CHECKING:
    from ort_metainfer.adapt import Request
    from ort_metainfer.decision import Decision, Trial

__all__ = ["MISHAPS", "keep_override", "keep_trials", "with_profiles"]

log = logging.getLogger("ort_metainfer.learning")

MISHAPS = (MetainferError, OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""What a model or a machine that nobody foresaw may raise while it is put into figures."""

MAX_HASHED_BYTES = 64 << 20
"""A larger model that is not known yet is not hashed for the sake of a record: that would be felt at each start."""

_noted: set[str] = set()
"""Overrides that this process met already, so that each further start of it costs nothing."""


def keep_trials(
    directory: Path, problem: Problem | None, trials: Sequence[Trial], path: str, decision: Decision
) -> int:
    """Keep each trial of a decision as a record.

    Args:
        directory: the cache directory.
        problem: what was to be decided; None where it did not get that far.
        trials: what was tried; those for which there was no time say nothing and are left out.
        path: where they come from (see :class:`~ort_metainfer.learning.record.Record`).
        decision: how it ended: for the machine's name and the versions.

    Returns:
        How many were new.
    """
    made = [trial for trial in trials if not trial.simulated and (trial.gates or trial.failure != NO_TIME)]
    if problem is None or not made:
        return 0
    try:
        device = "" if decision.key is None else decision.key.device
        versions: Mapping[str, str] = {} if decision.manifest is None else decision.manifest.versions
        problem = with_profiles(problem, directory, made)
        graph = graph_features(problem.graph, problem.work, problem.shapes)
        more = {"device": device, "versions": versions, "graph": graph}
        records = [record_of(problem, trial, path, **more) for trial in made]  # type: ignore[arg-type]
    except MISHAPS as error:
        log.debug("the trials of %s are not recorded: %s", problem.model.label, error)
        return 0
    return RecordStore(directory).add(records)


def keep_override(request: Request, decision: Decision) -> bool:
    """Keep that a person's strategy is used, and what it replaced; whether that is new.

    What it replaced is what the cache holds for the same session; plain onnxruntime where it holds nothing.
    """
    try:
        return _keep_override(request, decision)
    except MISHAPS as error:
        log.debug("the override for %s is not recorded: %s", request.label, error)
        return False


def _keep_override(request: Request, decision: Decision) -> bool:
    from ort_metainfer.adapt import key_of
    from ort_metainfer.model.fingerprint import known_graph
    from ort_metainfer.places import cache_directory
    from ort_metainfer.strategy_cache.store import open_cache

    directory = cache_directory(request.settings)
    cache = open_cache(directory)
    model = _model(request, decision, cache)
    graph = decision.graph or (known_graph(cache, model.hash) if model else None)
    if model is None or graph is None or isinstance(request.spec, str):
        return False  # nothing was ever decided for it here
    key = decision.key or key_of(model, graph, request.settings, request.spec)
    entry = cache.get("entries", str(key)) or {}
    replaced = Strategy.from_dict(entry.get("strategy", {}))
    replaced_at = str(entry.get("decided_at", ""))
    mark = f"{directory} {key} {replaced_at} {decision.strategy.as_dict()}"
    if replaced == decision.strategy or mark in _noted:
        return False
    _noted.add(mark)
    problem = _problem(request, model, graph, decision.strategy)
    record = override_of(problem, decision.strategy, replaced, replaced_at, key.device)
    store = RecordStore(directory)
    return not store.holds(record.identity) and store.add([record]) > 0


def _model(request: Request, decision: Decision, cache: Any) -> Model | None:
    """Which model it is; None where finding out would take long."""
    from ort_metainfer.model.fingerprint import fingerprint

    if decision.key is not None:
        return Model(decision.key.model, 0, path=request.label)
    source = request.source
    is_known = not isinstance(source, bytes) and cache.get("files", os.path.abspath(os.fsdecode(source))) is not None
    size = len(source) if isinstance(source, bytes) else os.path.getsize(source)
    return fingerprint(source, cache) if is_known or size <= MAX_HASHED_BYTES else None


def _problem(request: Request, model: Model, graph: Any, strategy: Strategy) -> Problem:
    """The problem as far as a record needs it; nothing is registered or measured for it."""
    import time

    from ort_metainfer.adapt import policy_of
    from ort_metainfer.hardware.devices import cpu_device
    from ort_metainfer.providers import get_provider

    assert not isinstance(request.spec, str)
    cpu, name = cpu_device(), provider_of(strategy)
    devices = [cpu]
    if name != cpu.provider:
        kind = kind_named(strategy) or get_provider(name).kinds[0]
        other = Device(name, kind, strategy.device or kind, provider_device=strategy.device)
        devices.append(replace(cpu, provider=name) if kind == cpu.kind else other)
    return Problem(
        model=model,
        graph=graph,
        devices=tuple(devices),
        policy=policy_of(request.settings, request.spec),
        baseline=request.spec,
        state=HardwareState(when=time.time(), window_s=0.0),
        shapes=request.settings.input_shapes or {},
    )


def with_profiles(problem: Problem, directory: Path, trials: Sequence[Trial]) -> Problem:
    """The same with the profiles of the devices that were tried, where they are kept and it has none."""
    if problem.profiles:
        return problem
    from ort_metainfer.hardware.profiles import known_profile, versions_of
    from ort_metainfer.strategy_cache.store import open_cache

    cache = open_cache(directory)
    found = {}
    for name in {provider_of(trial.strategy, problem) for trial in trials}:
        device = problem.device(name)
        profile = None if device is None else known_profile(cache, device, versions_of(device))
        if profile is not None:
            found[name] = profile
    return replace(problem, profiles=found)
