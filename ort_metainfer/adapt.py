"""The story of one decision: override, cache, meta-model, rules, search, each proposal through three gates.

:func:`decide` is what a session asks; :func:`tune` is the same for the command line and the prewarm script.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ort_metainfer._version import VERSION
from ort_metainfer.decision import Decision
from ort_metainfer.errors import CacheError, ModelError, StrategyError, TrialError
from ort_metainfer.places import cache_directory
from ort_metainfer.problem import CacheKey, Graph, Model, Policy, SessionSpec
from ort_metainfer.settings import Settings, resolve
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.task import is_simulated

if TYPE_CHECKING:
    from ort_metainfer.strategy_cache.store import StrategyCache
    from ort_metainfer.trials.task import TrialHost

__all__ = ["Request", "decide", "key_of", "not_onnx", "settings_for", "tune", "with_graph"]

log = logging.getLogger("ort_metainfer")

CPU = "CPUExecutionProvider"
"""Always allowed: onnxruntime itself falls back to it for what other providers do not take."""


MIN_BUDGET_S = 0.5
"""Below this no child process can even import onnxruntime (0.2 to 0.4 s here) and make two sessions."""


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
        path: what asks, as records say it: ``session``, ``tune``, ``bench`` or ``prewarm``.
    """

    source: str | os.PathLike[str] | bytes
    spec: SessionSpec | str
    settings: Settings
    may_decide: bool = True
    force: bool = False
    progress: Callable[[str], None] | None = field(default=None, compare=False)
    path: str = "session"

    @property
    def label(self) -> str:
        """What to call the model in a message."""
        return f"a model of {len(self.source)} bytes" if isinstance(self.source, bytes) else os.fsdecode(self.source)


def settings_for(keyword: Settings | None) -> tuple[Settings, list[Any]]:
    """The settings in force, and what was wrong with them; applies ``log`` to the package's logger."""
    settings, problems = resolve(keyword)
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
    unwritable = _unwritable(open_cache(cache_directory(resolved)))
    if unwritable is not None:
        raise CacheError(unwritable)
    resolved = replace(resolved, mode="auto")
    spec = spec_of(sess_options, providers, provider_options)
    return decide(Request(model, spec, resolved, force=force, progress=progress, path=record_as))


def decide(request: Request, host: TrialHost | None = None) -> Decision:
    """The decision for one session: from the override file, the cache, or trials in other processes.

    Raises:
        MetainferError: whatever of ours fails; the session catches it and falls back.
    """
    decision = _decide(request, host)
    if decision.origin == "override" and request.settings.records:
        from ort_metainfer.learning.recording import keep_override

        keep_override(request, decision)
    return replace(decision, compiled=None) if request.settings.compiled == "off" else decision


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
    return _Story(request, request.spec, host).tell()


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
        pinned=spec.pinned() | ({"providers": first} if first else {}) | metric,
        callers=(settings.callers or _usual_callers()) if settings.objective == "throughput" else 1,
        max_slowdown=settings.max_slowdown if settings.objective == "memory" else None,
    )


def _usual_callers() -> int:
    """As many as this process may keep busy: fewer would leave cores to nobody, more wait for each other."""
    from ort_metainfer.hardware.devices import cpu_device

    return max(2, int(cpu_device().cores or 1))


def _unwritable(cache: StrategyCache) -> str | None:
    """Why nothing can be remembered in this cache, or None."""
    if cache.put("probe", "last", {"package": VERSION}):
        return None
    return f"nothing is decided where it cannot be remembered: {cache.last_failure}"


class _Story:
    """One decision from beginning to end."""

    def __init__(self, request: Request, spec: SessionSpec, host: TrialHost | None) -> None:
        from ort_metainfer.strategy_cache.store import open_cache

        self.request, self.spec, self.settings = request, spec, request.settings
        self.may_decide = request.may_decide and self.settings.mode != "cached"
        self.started = time.monotonic()
        self.directory = cache_directory(self.settings)
        self.cache: StrategyCache = open_cache(self.directory)
        self.host = host

    def tell(self) -> Decision:
        """Look up; on a miss decide, one process at a time."""
        from ort_metainfer.model.fingerprint import fingerprint, known_graph

        try:
            model = fingerprint(self.request.source, self.cache)
        except ModelError as error:
            return Decision(Strategy(), "pass-through", f"{error}; onnxruntime will say more")
        graph = known_graph(self.cache, model.hash)
        found = None
        if is_simulated(self.host):  # what was measured answers no simulation, and the reverse
            return self._simulate(model, graph)
        if graph is not None and not self.request.force:
            found = self._look_up(model, graph)
            if found.cache == "hit":
                return found
        if not self.may_decide:
            reason = found.cache_reason if found else "this model was never decided for in this cache"
            return Decision(Strategy(), "default", f"not in the cache: {reason}", cache="miss", cache_reason=reason)
        failure = None if self.request.force or self.settings.strict else self._known_failure(model)
        if failure is not None:
            return Decision(Strategy(), "pass-through", failure, cache="miss", cache_reason=failure, complete=False)
        return self._alone(model, graph, found)

    def _known_failure(self, model: Model) -> str | None:
        from ort_metainfer.failures import recall_failure

        budget_s = float(self.settings.budget_s or 0)
        return recall_failure(self.cache, model, policy_of(self.settings, self.spec), budget_s)

    def _look_up(self, model: Model, graph: Graph) -> Decision:
        from ort_metainfer.remember import look_up

        key = key_of(model, graph, self.settings, self.spec)
        # what was verified is not given up for a better answer that must not be looked for
        has_inputs = self.may_decide and self.settings.inputs is not None
        budget_s = float(self.settings.budget_s or 0) if self.may_decide else 0.0
        return look_up(self.cache, self.directory, key, graph, has_inputs, lambda: self._has_captured(model), budget_s)

    def _has_captured(self, model: Model) -> bool:
        """Whether a decision made now would have inputs kept of earlier runs."""
        from ort_metainfer.model.capture import Reservoir

        return self.may_decide and Reservoir(self.directory, model.hash).has_any(self.settings.input_shapes)

    def _alone(self, model: Model, graph: Graph | None, found: Decision | None) -> Decision:
        """Decide while no other process decides for the same model; what another one found meanwhile is taken."""
        from ort_metainfer.strategy_cache.lock import deciding

        unwritable = _unwritable(self.cache)
        if unwritable is not None:  # every start would decide anew
            if self.settings.strict:
                raise CacheError(unwritable)
            from ort_metainfer.session import warn_once

            warn_once(f"{unwritable}; {model.label} runs on plain onnxruntime")
            return Decision(Strategy(), "default", unwritable, cache="miss", cache_reason=unwritable, complete=False)
        budget_s = float(self.settings.budget_s or 0)
        with deciding(self.directory, f"{model.hash} {policy_of(self.settings, self.spec)}", budget_s) as mine:
            waited = time.monotonic() - self.started > 0.05
            if graph is None or waited:
                from ort_metainfer.model.fingerprint import known_graph

                graph = graph or known_graph(self.cache, model.hash)
                if graph is not None and not self.request.force:
                    found = self._look_up(model, graph)
                    if found.cache == "hit":
                        return found
            late = self.started + budget_s - time.monotonic() < MIN_BUDGET_S
            if not mine or (waited and late):
                reason = f"another process was deciding for {model.label}, and the time was up before it ended"
                return Decision(Strategy(), "default", reason, cache="miss", cache_reason=reason, complete=False)
            return self._decide(model, graph, found)

    def _decide(self, model: Model, graph: Graph | None, found: Decision | None) -> Decision:
        from ort_metainfer.deliberate import Deliberation
        from ort_metainfer.failures import remember_failure
        from ort_metainfer.remember import remember

        budget_s = float(self.settings.budget_s or 0)
        log.info(
            "deciding how to run %s, once, for at most %g s (prewarm or mode=cached avoids it)", model.label, budget_s
        )
        with self._trial_host() as host, _model_file(model) as file:
            deliberation = Deliberation(self.request, self.spec, model, file, host, self.cache, self.started + budget_s)
            prior, policy = None, policy_of(self.settings, self.spec)
            if found is not None and found.cache == "stale":
                prior = found.strategy
            try:
                decision = deliberation.run(graph, prior)
            except (ModelError, TrialError) as error:
                remember_failure(self.cache, model, policy, budget_s, str(error))
                raise
        if decision.origin == "override":
            return decision
        if decision.key is None:
            remember_failure(self.cache, model, policy, budget_s, decision.reason)
            return decision
        reason = found.cache_reason if found else "this model was never decided for in this cache"
        decision = replace(
            decision,
            cache="stale" if found and found.cache == "stale" else "miss",
            cache_reason=reason,
            decided_in_s=time.monotonic() - self.started,
        )
        decision = remember(self.cache, self.directory, decision, model, budget_s)
        if self.settings.records:
            from ort_metainfer.learning.recording import keep_trials

            keep_trials(self.directory, deliberation.problem, decision.trials, self.request.path, decision)
        return decision

    def _simulate(self, model: Model, graph: Graph | None) -> Decision:
        """What would be decided on described chips: told, never remembered."""
        from ort_metainfer.deliberate import Deliberation
        from ort_metainfer.remember import as_simulated

        assert self.host is not None
        deadline = self.started + float(self.settings.budget_s or 0)
        with _model_file(model) as file:
            decision = Deliberation(self.request, self.spec, model, file, self.host, self.cache, deadline).run(
                graph, None
            )
        return as_simulated(replace(decision, decided_in_s=time.monotonic() - self.started))

    @contextmanager
    def _trial_host(self) -> Iterator[TrialHost]:
        if self.host is not None:
            yield self.host
            return
        from ort_metainfer.trials.client import ChildTrialHost

        host = ChildTrialHost()
        try:
            yield host
        finally:
            host.close()


@contextmanager
def _model_file(model: Model) -> Iterator[Path]:
    """The model as a file that a child can read: the caller's own, or a temporary copy of the bytes he gave."""
    if model.path is not None:
        yield Path(model.path)
        return
    from ort_metainfer.scratch import scratch_folder

    with scratch_folder() as folder:
        file = folder / "model.onnx"
        file.write_bytes(model.content or b"")
        yield file
