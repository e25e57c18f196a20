"""What the cache knows of a session, and what it is told after a decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ort_metainfer.decision import Decision, Manifest
from ort_metainfer.errors import ProviderError, StrategyError
from ort_metainfer.problem import CacheKey, Graph, Model, providers_in
from ort_metainfer.strategy import Strategy, Transform

if TYPE_CHECKING:
    from ort_metainfer.strategy_cache.store import StrategyCache

__all__ = ["GIVE_INPUTS", "as_simulated", "decision_of", "edited_decision", "look_up", "manifest_of", "remember"]

LOSSY = ("balanced", "fast")

GIVE_INPUTS = "give inputs= to have it tuned"
"""What is said of a model for which no inputs could be made up."""

SIMULATED = "simulated:"
"""What the device of a key begins with that no hardware stands behind, as ``str`` of a simulated Device does."""


def manifest_of(strategy: Strategy, policy: str) -> Manifest:
    """What a decision for ``strategy`` rests on today: versions of this package, onnxruntime, providers, contributors.

    Of all providers that the policy allowed, not only the winner's: another one that was upgraded may win now. So may
    what a package proposes that contributes rules or rewrites.

    Raises:
        ProviderError: a provider of the policy has no adapter any more.
    """
    from ort_metainfer.contributors import contributors
    from ort_metainfer.providers import get_provider
    from ort_metainfer.strategy_cache.manifest import current_manifest

    versions = {} if strategy.provider is None else get_provider(strategy.provider).versions()
    for name in providers_in(policy):
        versions = {**get_provider(name).versions(), **versions}
    versions = {**contributors(), **versions}
    transforms = {transform.name: _version_here(transform) for transform in strategy.transforms}
    return current_manifest(strategy.provider, versions, transforms)


def _version_here(transform: Transform) -> int:
    """The rewrite's version today; that of the strategy where there is no such rewrite (prepared ahead of time)."""
    from ort_metainfer.rewrites.registry import get_rewrite

    try:
        return get_rewrite(transform.name).version
    except StrategyError:
        return transform.version


def look_up(
    cache: StrategyCache,
    directory: Path,
    key: CacheKey,
    graph: Graph,
    has_inputs: bool,
    has_captured: Callable[[], bool],
    budget_s: float,
) -> Decision:
    """What the cache says: a hit, a stale entry with the strategy to try again, or a miss with the reason.

    Args:
        cache: where to look.
        directory: where strategy files lie.
        key: for which session.
        graph: the model's features, for the decision.
        has_inputs: whether the caller gave inputs now; an entry made without any is then stale, where the policy is
            lossy or nothing could be tried.
        has_captured: whether there are inputs kept of earlier runs; asked only where an entry made without any is then
            stale: where the policy is lossy, or nothing could be tried for want of inputs.
        budget_s: what a decision may take now; an entry that lacked time, with less, is then stale.

    Raises:
        StrategyError: a person edited the strategy file into something that cannot be read.
    """
    edited = edited_decision(directory, key, graph)
    if edited is not None:
        return edited
    entry = cache.get("entries", str(key))
    if entry is None:
        return Decision(Strategy(), "default", "", key, "miss", _why_missed(cache, key), graph=graph)
    try:
        strategy = Strategy.from_dict(entry["strategy"])
        then = _manifest_in(entry)
        changed = then.differences(manifest_of(strategy, key.policy))
    except (KeyError, TypeError, StrategyError, ProviderError) as error:
        return Decision(Strategy(), "default", "", key, "miss", f"the entry cannot be used: {error}", graph=graph)
    if changed:
        return Decision(strategy, "cache", "", key, "stale", "; ".join(changed), graph=graph)
    reason = "" if entry.get("inputs_are_real") else _real_inputs(entry, key, has_inputs, has_captured)
    if reason:
        return Decision(strategy, "cache", "", key, "stale", reason, graph=graph)
    reason = str(entry.get("incomplete_reason"))
    lacked_time = not entry.get("complete", True) and reason.startswith(("the time was up", "no time was left"))
    if lacked_time and budget_s > float(entry.get("budget_s") or 0):
        reason = (
            f"{entry['incomplete_reason']} with a budget of {entry.get('budget_s')} s; {budget_s:g} s are allowed now"
        )
        return Decision(strategy, "cache", "", key, "stale", reason, graph=graph)
    return decision_of(entry, key, graph)


def _real_inputs(entry: Mapping[str, Any], key: CacheKey, has_inputs: bool, has_captured: Callable[[], bool]) -> str:
    """Why an entry made without real inputs is stale now that there are some; empty where it is not."""
    is_lossy, was_left_alone = key.policy.split("|")[0] in LOSSY, entry.get("origin") == "pass-through"
    if has_inputs and (is_lossy or was_left_alone):
        return "it was decided without real inputs, which are given now"
    lacked_them = GIVE_INPUTS in str(entry.get("reason")) if was_left_alone else is_lossy
    if lacked_them and has_captured():
        return "it was decided without real inputs, which earlier runs have left now"
    return ""


def edited_decision(directory: Path, key: CacheKey, graph: Graph) -> Decision | None:
    """The decision that a strategy file stands for which a person edited; None where nobody did.

    Raises:
        StrategyError: it was edited into something that cannot be read.
    """
    from ort_metainfer.strategy_cache.artifacts import edited_strategy, strategy_file_path

    edited = edited_strategy(directory, key)
    if edited is None:
        return None
    file = str(strategy_file_path(directory, key))
    return Decision(edited, "override", f"{file} was edited by hand", key, "hit", strategy_file=file, graph=graph)


def decision_of(entry: Mapping[str, Any], key: CacheKey, graph: Graph | None = None) -> Decision:
    """The decision that an entry of the cache stands for.

    Raises:
        KeyError: the entry lacks something.
        StrategyError: its strategy cannot be read.
    """
    return Decision(
        Strategy.from_dict(entry["strategy"]),
        "cache",
        f"decided {entry.get('decided_at', 'earlier')} by {entry.get('origin')}: {entry.get('reason')}",
        key,
        "hit",
        complete=bool(entry.get("complete", True)),
        incomplete_reason=str(entry.get("incomplete_reason", "")),
        strategy_file=entry.get("strategy_file"),
        inputs_are_real=bool(entry.get("inputs_are_real")),
        compiled=entry.get("compiled"),
        compiled_reason=str(entry.get("compiled_reason", "")),
        manifest=replace(_manifest_in(entry), decided_at=str(entry.get("decided_at", ""))),
        graph=graph,
    )


def _manifest_in(entry: Mapping[str, Any]) -> Manifest:
    from ort_metainfer.strategy_cache.manifest import manifest_from_dict

    manifest = manifest_from_dict(entry["manifest"])
    if manifest is None:
        raise KeyError("manifest")
    return manifest


def _why_missed(cache: StrategyCache, key: CacheKey) -> str:
    """The nearest entry's difference, field by field: which part of the key is new."""
    known = [other for text in cache.keys("entries") if (other := CacheKey.parse(text)) and other.model == key.model]
    if not known:
        return "this model was never decided for in this cache"
    fields = ("device", "shapes", "policy")
    nearest = min(known, key=lambda other: sum(getattr(other, name) != getattr(key, name) for name in fields))
    parts = [
        f"{name} is {getattr(key, name)!r}, known is {getattr(nearest, name)!r}"
        for name in fields
        if getattr(nearest, name) != getattr(key, name)
    ]
    return "; ".join(parts) or "its entry cannot be read"


def as_simulated(decision: Decision) -> Decision:
    """A decision that rests on described chips: its key says so, which no session's key does, and nothing is kept."""
    key = decision.key
    if key is not None and not key.device.startswith(SIMULATED):
        device = decision.strategy.device or "described chips"
        key = replace(key, device=f"{SIMULATED}{device}+{key.device}")
    return replace(decision, key=key, cache="unused", cache_reason="simulated: never remembered", manifest=None)


def remember(cache: StrategyCache, directory: Path, decision: Decision, model: Model, budget_s: float) -> Decision:
    """Write a decision down: the strategy file, the entry that a start reads, and the whole story for ``explain``.

    One that rests on a simulated trial, or bears a simulated device's key, is not written down at all.

    Returns:
        The decision with its strategy file and manifest; where nothing could be written, as it was given.
    """
    if any(trial.simulated for trial in decision.trials) or (decision.key and SIMULATED in decision.key.device):
        return as_simulated(decision)
    from ort_metainfer.strategy_cache.artifacts import write_strategy_file

    assert decision.key is not None
    now = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = replace(manifest_of(decision.strategy, decision.key.policy), decided_at=now)
    file = write_strategy_file(directory, decision.key, decision.strategy, _comment(decision, model, now))
    decision = replace(decision, manifest=manifest, strategy_file=None if file is None else str(file))
    winner = decision.winner
    timing = winner and (winner.duel or winner.timing)
    entry: dict[str, Any] = {
        "strategy": decision.strategy.as_dict(),
        "manifest": {"versions": dict(manifest.versions), "transforms": dict(manifest.transforms)},
        "model": model.label,
        "origin": decision.origin,
        "reason": decision.reason,
        "complete": decision.complete,
        "incomplete_reason": decision.incomplete_reason,
        "decided_at": now,
        "budget_s": budget_s,
        "strategy_file": decision.strategy_file,
        "inputs_are_real": decision.inputs_are_real,
        "compiled": decision.compiled,
        "compiled_reason": decision.compiled_reason,
        "speedup": [timing.speedup, timing.speedup_low, timing.speedup_high] if timing else None,
    }
    if cache.put("entries", str(decision.key), entry):
        cache.put("decisions", str(decision.key), decision.as_dict())
    elif cache.last_failure:
        from ort_metainfer.session import warn_once

        warn_once(f"the decision for {model.label} was not remembered: {cache.last_failure}")
    return decision


def _comment(decision: Decision, model: Model, now: str) -> str:
    """What stands on top of the strategy file."""
    assert decision.key is not None
    lines = [
        f"{model.label}",
        f"decided {now} by {decision.origin}: {decision.reason}",
        f"device {decision.key.device}",
        f"shapes {decision.key.shapes}",
        f"policy {decision.key.policy}",
        "Edit what you like: an edited file wins over what the machine thinks.",
        "To have it decided anew: ort-metainfer tune --force MODEL",
    ]
    return "\n".join(lines)
