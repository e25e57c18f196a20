"""That a person's strategy is in force, and what it replaced: asked at each such start, written down once.

Imports next to nothing until there is something new to write down.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ort_metainfer.errors import MetainferError
from ort_metainfer.problem import Device, Graph, HardwareState, Model, Problem
from ort_metainfer.strategy import Strategy

if TYPE_CHECKING:
    from ort_metainfer.adapt import Request
    from ort_metainfer.decision import Decision
    from ort_metainfer.strategy_cache.store import StrategyCache

__all__ = ["keep_override"]

log = logging.getLogger("ort_metainfer.learning")

MISHAPS = (MetainferError, OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)

MAX_HASHED_BYTES = 64 << 20
"""A larger model that is not known yet is not hashed for the sake of a record: that would be felt at each start."""

MET = "overrides"
"""Table of the strategy cache: overrides that were met before, so that a further start costs one row read."""


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
    mark = _mark(str(key), replaced_at, decision.strategy)
    if replaced == decision.strategy or cache.get(MET, mark) is not None:
        return False
    from ort_metainfer.learning.record_store import RecordStore
    from ort_metainfer.learning.records import override_of

    problem = _problem(request, model, graph, decision.strategy)
    record = override_of(problem, decision.strategy, replaced, replaced_at, key.device)
    store = RecordStore(directory)
    is_new = not store.holds(record.identity) and store.add([record]) > 0
    if store.last_failure is None:
        cache.put(MET, mark, {"replaced_at": replaced_at})
    return is_new


def _mark(key: str, replaced_at: str, strategy: Strategy) -> str:
    text = json.dumps([key, replaced_at, strategy.as_dict()], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _model(request: Request, decision: Decision, cache: StrategyCache) -> Model | None:
    """Which model it is; None where finding out would take long."""
    from ort_metainfer.model.fingerprint import fingerprint

    if decision.key is not None:
        return Model(decision.key.model, 0, path=request.label)
    source = request.source
    is_known = not isinstance(source, bytes) and cache.get("files", os.path.abspath(os.fsdecode(source))) is not None
    size = len(source) if isinstance(source, bytes) else os.path.getsize(source)
    return fingerprint(source, cache) if is_known or size <= MAX_HASHED_BYTES else None


def _problem(request: Request, model: Model, graph: Graph, strategy: Strategy) -> Problem:
    """The problem as far as a record needs it; nothing is registered or measured for it."""
    import time

    from ort_metainfer.adapt import policy_of
    from ort_metainfer.hardware.devices import cpu_device
    from ort_metainfer.learning.features import kind_named, provider_of
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
