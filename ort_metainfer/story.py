"""One decision from beginning to end: look up, else decide here and now, or have it decided in the background."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ort_metainfer._version import VERSION
from ort_metainfer.decision import Decision
from ort_metainfer.errors import CacheError, ModelError, TrialError
from ort_metainfer.keys import key_of, policy_of
from ort_metainfer.places import cache_directory
from ort_metainfer.problem import Graph, Model, SessionSpec
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.task import is_simulated

if TYPE_CHECKING:
    from ort_metainfer.adapt import Request
    from ort_metainfer.strategy_cache.store import StrategyCache
    from ort_metainfer.trials.task import TrialHost

__all__ = ["Story", "unwritable"]

log = logging.getLogger("ort_metainfer")

MIN_BUDGET_S = 0.5
"""Below this no child process can even import onnxruntime (0.2 to 0.4 s here) and make two sessions."""

_announced = threading.Event()


def unwritable(cache: StrategyCache) -> str | None:
    """Why nothing can be remembered in this cache, or None."""
    if cache.put("probe", "last", {"package": VERSION}):
        return None
    return f"nothing is decided where it cannot be remembered: {cache.last_failure}"


class Story:
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
        if self.settings.mode == "background":
            return self._beside(model, found)
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

        if (vain := self._in_vain(model)) is not None:
            return vain
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

    def _in_vain(self, model: Model) -> Decision | None:
        """What to do where nothing can be remembered, since every start would decide anew; None where it can.

        Raises:
            CacheError: it cannot, under ``strict``.
        """
        reason = unwritable(self.cache)
        if reason is None:
            return None
        if self.settings.strict:
            raise CacheError(reason)
        from ort_metainfer.session import warn_once

        warn_once(f"{reason}; {model.label} runs on plain onnxruntime")
        return Decision(Strategy(), "default", reason, cache="miss", cache_reason=reason, complete=False)

    def _beside(self, model: Model, found: Decision | None) -> Decision:
        """Have it decided in the background; this session is plain onnxruntime's."""
        from ort_metainfer.background import workshop
        from ort_metainfer.background_job import job_of

        if (vain := self._in_vain(model)) is not None:
            return vain
        source = self.request.source
        given = source if isinstance(source, bytes) else os.fsdecode(source)
        key = f"{model.hash} {policy_of(self.settings, self.spec)} {self.settings.input_shapes or ''}"
        standing = workshop().submit(key, lambda: job_of(given, key, model.label, self.spec, self.settings))
        reason = f"a decision in the background is {standing}"
        return Decision(
            Strategy(),
            "default",
            f"plain onnxruntime for now: {reason}",
            cache="stale" if found and found.cache == "stale" else "miss",
            cache_reason=found.cache_reason if found else "this model was never decided for in this cache",
            complete=False,
            incomplete_reason=reason,
        )

    def _announce(self, model: Model, budget_s: float) -> None:
        """Say that a decision is made. At level warning the first time in a process, where nobody asked for one: a
        program that seems to hang at its start has to say why, and saying it once tells how to avoid it for all."""
        level = logging.INFO if self.request.is_expected or _announced.is_set() else logging.WARNING
        _announced.set()
        log.log(
            level,
            "deciding how to run %s, once, for at most %g s; `ort-metainfer tune` ahead of time, mode=background or "
            "mode=cached avoid this wait",
            model.label,
            budget_s,
        )

    def _decide(self, model: Model, graph: Graph | None, found: Decision | None) -> Decision:
        from ort_metainfer.deliberate import Deliberation
        from ort_metainfer.failures import remember_failure
        from ort_metainfer.remember import remember

        budget_s = float(self.settings.budget_s or 0)
        self._announce(model, budget_s)
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
