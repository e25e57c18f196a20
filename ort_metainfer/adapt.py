"""The story of one decision: override, cache, meta-model, rules, search, each proposal through three gates.

:func:`decide` is what a session asks; :func:`tune` is the same for the command line and the prewarm script.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ort_metainfer.decision import Decision
from ort_metainfer.errors import CacheError, StrategyError
from ort_metainfer.keys import key_of, policy_of
from ort_metainfer.places import cache_directory
from ort_metainfer.problem import SessionSpec
from ort_metainfer.settings import Settings, resolve
from ort_metainfer.story import Story, unwritable
from ort_metainfer.strategy import Strategy

if TYPE_CHECKING:
    from ort_metainfer.trials.task import TrialHost

__all__ = ["Request", "decide", "key_of", "not_onnx", "policy_of", "settings_for", "tune", "with_graph"]

log = logging.getLogger("ort_metainfer")


@dataclass(frozen=True)
class Request:
    """One session to decide for.

    Attributes:
        source: the caller's model, a path or bytes.
        spec: the caller's session, or one sentence why it is left to plain onnxruntime.
        settings: resolved (see :func:`settings_for`).
        may_decide: False where nothing may be tried, only looked up.
        force: decide anew although the cache knows.
        progress: is told what is being done, in one line each.
        is_expected: whether somebody asked for a decision, and not for a session only.
        path: what asks, as records say it: ``session``, ``tune``, ``bench`` or ``prewarm``.
    """

    source: str | os.PathLike[str] | bytes
    spec: SessionSpec | str
    settings: Settings
    may_decide: bool = True
    force: bool = False
    progress: Callable[[str], None] | None = field(default=None, compare=False)
    is_expected: bool = False
    path: str = "session"

    @property
    def label(self) -> str:
        """What to call the model in a message."""
        return f"a model of {len(self.source)} bytes" if isinstance(self.source, bytes) else os.fsdecode(self.source)


def settings_for(keyword: Settings | None) -> tuple[Settings, list[Any]]:
    """The settings in force, and what was wrong with them; applies ``log`` to the package's logger."""
    settings, problems = resolve(keyword)
    if settings.rules_off:
        from ort_metainfer.deciders.rules import known_rules

        known, fault = known_rules(settings.rules_off)
        settings, problems = replace(settings, rules_off=known), [*problems, *([fault] if fault else [])]
    level = {"off": logging.CRITICAL + 1}.get(str(settings.log), getattr(logging, str(settings.log).upper(), 0))
    log.setLevel(level)
    if level < logging.WARNING and not log.handlers and not logging.getLogger().handlers:
        log.addHandler(logging.StreamHandler())
    return settings, problems


def tune(
    model: str | os.PathLike[str] | bytes,
    settings: Settings | None = None,
    *,
    sess_options: Any = None,
    providers: Sequence[Any] | None = None,
    provider_options: Sequence[Any] | None = None,
    force: bool = False,
    progress: Callable[[str], None] | None = None,
    record_as: str = "tune",
) -> Decision:
    """Decide how ``model`` is best run here, within ``settings.budget_s``, and remember it.

    Args:
        model: a path, or the model's bytes.
        settings: what to change about the environment's and the user file's settings.
        sess_options: as for InferenceSession; what it sets is pinned.
        providers: as for InferenceSession.
        provider_options: as for InferenceSession.
        force: decide anew although the cache knows.
        progress: is told what is being done, in one line each.
        record_as: what the records of its trials say that they come from: ``tune``, ``bench`` or ``prewarm``.

    Raises:
        SettingsError: a setting that is not allowed, wherever it comes from.
        CacheError: the cache directory cannot be written.
        ModelError: the model cannot be read.
        InputsError: no inputs that the model runs with.
        TrialError: no trial could be carried out.
    """
    from ort_metainfer.options import spec_of
    from ort_metainfer.strategy_cache.store import open_cache

    resolved, problems = settings_for(settings)
    if problems:
        raise problems[0]
    reason = unwritable(open_cache(cache_directory(resolved)))
    if reason is not None:
        raise CacheError(reason)
    resolved = replace(resolved, mode="auto")
    spec = spec_of(sess_options, providers, provider_options)
    asked = Request(model, spec, resolved, force=force, progress=progress, is_expected=True, path=record_as)
    return decide(asked)


def decide(request: Request, host: TrialHost | None = None) -> Decision:
    """The decision for one session: from the override file, the cache, or trials in other processes.

    Raises:
        MetainferError: whatever of ours fails; the session catches it and falls back.
    """
    decision = _decide(request, host)
    if decision.origin == "override" and request.settings.records:
        from ort_metainfer.learning.recording_overrides import keep_override

        keep_override(request, decision)
    # a rewritten model is part of the strategy
    is_off = request.settings.compiled == "off" and not decision.strategy.transforms
    return replace(decision, compiled=None) if is_off else decision


def _decide(request: Request, host: TrialHost | None) -> Decision:
    settings = request.settings
    if settings.mode == "off":
        return Decision(Strategy(), "off", "mode is off")
    if isinstance(request.spec, str):
        return Decision(Strategy(), "pass-through", request.spec)
    if settings.strategy is not None:
        strategy = Strategy.read(Path(settings.strategy))
        decision = Decision(strategy, "override", f"the strategy file {os.fspath(settings.strategy)}")
        unusual = not_onnx(request.source)
        if strategy.transforms and unusual:
            raise StrategyError(f"{decision.reason} wants the model rewritten, which it is not: {unusual}")
        looks = strategy.transforms or (settings.buckets and not unusual)
        return _identified(decision, request, request.spec) if looks else decision
    unusual = not_onnx(request.source)
    if unusual:
        return Decision(Strategy(), "pass-through", unusual)
    return Story(request, request.spec, host).tell()


def _identified(decision: Decision, request: Request, spec: SessionSpec) -> Decision:
    """The same with its key and the model's features: what was prepared ahead of time is found by them."""
    from ort_metainfer.model.fingerprint import fingerprint, known_graph, remember_graph
    from ort_metainfer.model.graph import describe
    from ort_metainfer.strategy_cache.store import open_cache

    cache = open_cache(cache_directory(request.settings))
    model = fingerprint(request.source, cache)
    graph = known_graph(cache, model.hash)
    if graph is None:
        graph = describe(request.source if isinstance(request.source, bytes) else Path(request.source))
        remember_graph(cache, model.hash, graph)
    return replace(decision, key=key_of(model, graph, request.settings, spec), graph=graph)


def with_graph(decision: Decision, keyword: Settings | None) -> Decision:
    """The same with the model's features, where the cache knows them: a shortcut of a cached start does not ask."""
    from ort_metainfer.model.fingerprint import known_graph
    from ort_metainfer.strategy_cache.store import open_cache

    assert decision.key is not None
    return replace(
        decision, graph=known_graph(open_cache(cache_directory(settings_for(keyword)[0])), decision.key.model)
    )


def not_onnx(source: str | os.PathLike[str] | bytes) -> str | None:
    """Why this model is not looked at, or None: ORT's own format says so in its suffix or at byte 4.

    A pipe is not even opened: what is read from it here onnxruntime would lack.
    """
    if isinstance(source, bytes):
        return "the model is in ORT format" if source[4:8] == b"ORTM" else None
    path = os.fsdecode(source)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return "the model is no regular file, and may be read only once"
        with open(path, "rb") as file:
            head = file.read(8)
    except (OSError, ValueError):  # ValueError: a path that no file can have, with a NUL in it
        return "the model file cannot be read; onnxruntime will say why"
    return "the model is in ORT format" if path.endswith(".ort") or head[4:8] == b"ORTM" else None
