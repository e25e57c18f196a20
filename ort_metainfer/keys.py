"""Which session a decision is for: its policy, and the key it is remembered by."""

from __future__ import annotations

import os
from itertools import takewhile

from ort_metainfer.problem import CacheKey, Graph, Model, Policy, SessionSpec
from ort_metainfer.settings import Settings
from ort_metainfer.spec import THREAD_VARIABLES

__all__ = ["key_of", "policy_of"]

CPU = "CPUExecutionProvider"
"""Always allowed: onnxruntime itself falls back to it for what other providers do not take."""


def key_of(model: Model, graph: Graph, settings: Settings, spec: SessionSpec) -> CacheKey:
    """The cache key of a session: which model, on what, with which shapes, under which policy."""
    from ort_metainfer.hardware.devices import device_string
    from ort_metainfer.model.fingerprint import signature

    shapes = signature(graph.inputs, settings.input_shapes or {})
    return CacheKey(model.hash, device_string(), shapes, str(policy_of(settings, spec)))


def policy_of(settings: Settings, spec: SessionSpec) -> Policy:
    """What is allowed: the caller's providers narrowed by the settings', and what he pinned.

    His providers in order are pinned too where they name any before the CPU, which takes all that is left: his plain
    session, what everything is measured against and what a strategy may leave as it is, is then another one.
    """
    from ort_metainfer.providers import usable_providers

    named = {name for name, _ in spec.providers}
    limits = [limit for limit in (named, set(settings.providers or ())) if limit]
    wanted = set.intersection(*limits) if limits else None
    usable = tuple(provider.name for provider in usable_providers(wanted))
    first = "+".join(takewhile(lambda name: name != CPU, (name for name, _ in spec.providers)))
    metric = {} if settings.metric is None else {"metric": f"{settings.metric}<={settings.metric_threshold:g}"}
    return Policy(
        accuracy=settings.accuracy,  # type: ignore[arg-type]  # checked by Settings
        objective=settings.objective,  # type: ignore[arg-type]
        providers=tuple(dict.fromkeys((CPU, *usable))),
        pinned=_threads_by_environment() | spec.pinned() | ({"providers": first} if first else {}) | metric,
        callers=(settings.callers or _usual_callers()) if settings.objective == "throughput" else 1,
        max_slowdown=settings.max_slowdown if settings.objective == "memory" else None,
        rules_off=tuple(sorted(settings.rules_off or ())),
    )


def _threads_by_environment() -> dict[str, str]:
    """Thread counts set by onnxruntime's own variables: set by the caller too, and part of his plain session."""
    found = {name: os.environ.get(variable, "").strip() for name, variable in THREAD_VARIABLES.items()}
    return {name: count for name, count in found.items() if count not in ("", "0")}


def _usual_callers() -> int:
    """As many as this process may keep busy: fewer would leave cores to nobody, more wait for each other."""
    from ort_metainfer.hardware.devices import cpu_device

    return max(2, int(cpu_device().cores or 1))
