"""Deciding on a miss: describe the model, get inputs, ask the deciders, race the proposals, confirm the winner."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ort_metainfer.conclusion import conclude, lacked_time, left_alone, out_of_time
from ort_metainfer.confirming import UNTOLD, beats, contenders, is_load_known, is_load_sensitive, objection
from ort_metainfer.decision import Decision, Proposal, Refusal, Trial
from ort_metainfer.errors import InputsError, TrialTimeout
from ort_metainfer.feeding import Feeding
from ort_metainfer.problem import NEUTRAL_PROPERTIES, CacheKey, Device, Graph, Model, Problem, SessionSpec
from ort_metainfer.remember import GIVE_INPUTS
from ort_metainfer.rewrites.rewriting import refused_for
from ort_metainfer.scratch import scratch_folder
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.offered import devices_to_try, named_in_vain
from ort_metainfer.trials.task import Feeds, Setup, Thresholds, TrialHost

if TYPE_CHECKING:
    from ort_metainfer.adapt import Request
    from ort_metainfer.deciders.base import Decider
    from ort_metainfer.deciders.prediction import Predictor
    from ort_metainfer.deciders.rules import RuleLibrary
    from ort_metainfer.strategy_cache.store import StrategyCache

__all__ = ["Deliberation"]

FIRST_BATCH = {"latency": 6, "pipeline": 3, "tail": 3, "throughput": 3, "memory": 4}
"""Strategies of the first race: what the rules propose, filled up with the search's first guesses. A turn of the
pipeline runs every session twice, turns of tail and throughput are long, and memory takes a process each: fewer fit."""

MOST_AT_ONCE = 2
"""First batches of which one race holds at most so many: the rest of what rules propose is raced after it, since what a
race has no time for is given up."""

BATCH = 4
"""Strategies of the search raced at a time: it learns from each race what to combine next."""

RACE_SHARE = 0.5
"""Share of the time left that one race may take."""

DUEL_SHARE = 0.9
"""Share of the time left that a duel may take: the best so far has to be verified, or it is nothing."""

MIN_DUEL_S = 0.5
"""Below this no duel is begun: its process would hardly have started."""

EARN_SHARE = 0.5
"""Share of the time left that looking for sensitive nodes may take."""

EARN_MIN_S = 6.0
"""Below this it is not begun: a small encoder takes some ten seconds."""

SEARCH_SHARE = 0.35
"""Share of the budget below which no further race is begun: a winner would have to be confirmed in a fresh process."""


class Deliberation:
    """One decision under one deadline, a value of the clock ``now_s``: equal trials and clocks give equal decisions."""

    def __init__(
        self,
        request: Request,
        spec: SessionSpec,
        model: Model,
        model_file: Path,
        host: TrialHost,
        cache: StrategyCache,
        deadline: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request, self.spec, self.model, self.host, self.cache = request, spec, model, host, cache
        self.model_file, self.deadline, self._now_s = model_file, deadline, now_s
        self._budget_s = max(0.0, deadline - now_s())
        self.settings = request.settings
        self._first_batch = FIRST_BATCH[str(self.settings.objective)]
        self._waiting: list[Proposal] = []
        self.proposals: list[Proposal] = []
        self.refusals: list[Refusal] = []
        self.trials: list[Trial] = []
        self.verified: Trial | None = None
        self.problem: Problem | None = None
        self._session_s = 0.0
        self._ran_out = False

    def run(self, graph: Graph | None, prior: Strategy | None) -> Decision:
        """Decide.

        Args:
            graph: the model's features, if the cache knew them.
            prior: the strategy of a stale entry, which is tried first.

        Raises:
            ModelError: the model cannot be parsed.
            InputsError: the caller's inputs do not fit the model.
            StrategyError: a person edited the strategy file into something that cannot be read.
            TrialError: no child process could do its work, for another reason than time.
        """
        with scratch_folder() as folder:
            setup = self._setup(folder)
            if graph is None:
                self._say("reading the model")
                try:
                    graph = self.host.describe(setup, self._until(0.8))
                except TrialTimeout as error:
                    return self._out_of_time(error, None)
                self._remember(graph)
                if (edited := self._edited(graph)) is not None:
                    return edited
            if "EPContext" in graph.blockers:
                return left_alone(self._key(graph), graph, "the model is compiled for a provider already")
            setup = replace(setup, graph=graph)
            began_s = self._now_s()
            feeding = Feeding(self.settings, self.model.hash, self.host, self.cache.directory, self._until, self._say)
            try:
                feeds = feeding.prepare(setup, graph)
            except TrialTimeout as error:
                return self._out_of_time(error, graph)
            except InputsError as error:
                if self.settings.inputs is not None:
                    raise
                # inputs that are there and do not help are no reason to decide anew at each start
                reason = str(error) if feeding.has_captured else f"{error}; {GIVE_INPUTS}"
                return left_alone(self._key(graph), graph, reason)
            self._session_s = self._now_s() - began_s
            return self._decide(setup, graph, feeds, prior)

    @cached_property
    def rules(self) -> RuleLibrary:
        """The rule library without the rules that the caller switched off: the one that all parts of it ask."""
        from ort_metainfer.deciders.rules import RuleLibrary

        return RuleLibrary(disabled=self.settings.rules_off or ())

    def _edited(self, graph: Graph) -> Decision | None:
        """A strategy file that a person edited: it wins also where the cache has forgotten the model."""
        from ort_metainfer.remember import edited_decision

        return None if self.request.force else edited_decision(self.cache.directory, self._key(graph), graph)

    def _key(self, graph: Graph) -> CacheKey:
        from ort_metainfer.adapt import key_of

        return key_of(self.model, graph, self.settings, self.spec)

    def _out_of_time(self, error: TrialTimeout, graph: Graph | None) -> Decision:
        key = None if graph is None else self._key(graph)
        return out_of_time(key, graph, str(error), self.settings.budget_s or 0.0)

    def _setup(self, folder: Path) -> Setup:
        from ort_metainfer.adapt import policy_of

        properties = {name: value for name, value in self.spec.properties.items() if name not in NEUTRAL_PROPERTIES}
        return Setup(
            model_file=self.model_file,
            baseline=self.spec._replace(properties=properties),
            feeds=folder,
            as_bytes=self.model.path is None,
            objective=str(self.settings.objective),
            shapes=self.settings.input_shapes or {},
            label=self.model.label,
            callers=policy_of(self.settings, self.spec).callers,
        )

    def _remember(self, graph: Graph) -> None:
        from ort_metainfer.model.fingerprint import remember_graph

        remember_graph(self.cache, self.model.hash, graph)

    def _decide(self, setup: Setup, graph: Graph, feeds: Feeds, prior: Strategy | None) -> Decision:
        problem = self.problem = self._problem(setup, graph, feeds)
        if self._left() < MIN_DUEL_S:
            error = TrialTimeout(f"{self.model.label}: no strategy could be tried in the {self._left():.1f} s left")
            return self._out_of_time(error, graph)
        setup = replace(setup, inputs_are_real=feeds.are_real)
        thresholds = Thresholds.of("strict")
        if feeds.are_real:  # made-up inputs justify nothing lossy, and a metric of real ones says nothing of them
            settings = self.settings
            thresholds = Thresholds.of(problem.policy.accuracy, settings.metric, settings.metric_threshold)
        thresholds = thresholds.aiming(problem.policy.objective, problem.policy.max_slowdown)
        self.refusals += refused_for(graph)
        first, most = self._first_proposals(problem, prior), MOST_AT_ONCE * self._first_batch
        self._waiting = first[most:]
        self._try(setup, first[:most], thresholds)
        self._confirm(setup, thresholds, problem)
        self._earn(setup, thresholds, problem)
        stopped = self._search_on(setup, thresholds, problem)
        key = self._key(graph)
        decision = conclude(key, problem, self.verified, self.proposals, self.refusals, self.trials)
        decision = replace(decision, rules=self.rules.verdicts(problem), stopped=stopped)
        return self._name_worst_nodes(setup, self._compile(setup, decision, thresholds))

    def _search_on(self, setup: Setup, thresholds: Thresholds, problem: Problem) -> str:
        """Race what the search proposes, as long as that is worth it; why it stopped, in words."""
        while self._left() > self._budget_s * SEARCH_SHARE and not self._ran_out:
            waiting = self._waiting[: max(0, (self.settings.max_trials or 0) - len(self.trials))]
            more = waiting or self._search(problem)
            self._waiting = waiting[BATCH:]
            if not more:
                return self._in_words("no other strategy is expected to gain")
            self._try(setup, more[:BATCH], thresholds)
            self._confirm(setup, thresholds, problem)
        for_what = "any strategy of the last race" if self._ran_out else "one more race and the duel of its winner"
        return self._in_words(f"too little time was left for {for_what}")

    def _in_words(self, reason: str) -> str:
        most, count = self.settings.max_trials or 0, len(self.trials)
        reason = f"max_trials={most} were made" if count >= most else reason
        used_s = self._budget_s - self._left()
        return f"{reason}, after {count} trials in {used_s:.1f} of {self._budget_s:.1f} s"

    def _earn(self, setup: Setup, thresholds: Thresholds, problem: Problem) -> None:
        """Try a quantised model that was not accurate enough once more, with its sensitive nodes left in float."""
        from ort_metainfer.earned import earn_precision, worth_earning

        errand = getattr(self.host, "errand", None)
        trial = worth_earning(self.trials, thresholds) if setup.inputs_are_real and errand is not None else None
        if trial is None or errand is None or self._left() < EARN_MIN_S:
            return
        self._say(f"looking for what makes {trial.strategy.describe()} inaccurate")
        answer = earn_precision(trial, setup, thresholds, self._until(EARN_SHARE), errand)
        if isinstance(answer, Refusal):
            self.refusals.append(answer)
            return
        self._try(setup, self._ask([], problem, [answer]), thresholds)
        self._confirm(setup, thresholds, problem)

    def _name_worst_nodes(self, setup: Setup, decision: Decision) -> Decision:
        """Have lossy trials say which nodes cost them most, with the time that is left."""
        from ort_metainfer.node_reports import with_worst_nodes

        errand = getattr(self.host, "errand", None)
        if errand is None or not setup.inputs_are_real:
            return decision
        return with_worst_nodes(decision, setup, self.deadline, errand)

    def _compile(self, setup: Setup, decision: Decision, thresholds: Thresholds) -> Decision:
        """Have the session that was decided for compiled and kept, where that pays and time is left."""
        from ort_metainfer.compilation import with_compiled

        errand = getattr(self.host, "errand", None)  # a host that reckons has none
        if errand is None or (self.settings.compiled == "off" and not decision.strategy.transforms):
            return decision
        self._say("compiling")
        return with_compiled(decision, setup, thresholds, self.cache.directory, self.deadline, errand)

    def _problem(self, setup: Setup, graph: Graph, feeds: Feeds) -> Problem:
        from ort_metainfer.adapt import policy_of
        from ort_metainfer.groundwork import Groundwork
        from ort_metainfer.hardware.state import observe

        policy = policy_of(self.settings, self.spec)
        devices = self._devices(setup, policy.providers)
        ground = Groundwork(self.cache, self.host, self._until, self._left, self._session_s)
        return Problem(
            model=self.model,
            graph=graph,
            devices=devices,
            policy=policy,
            baseline=self.spec,
            state=observe(0.2),
            shapes=self.settings.input_shapes or {},
            inputs_are_real=feeds.are_real,
            profiles=ground.profiles(devices),
            work=ground.work(self.model.hash, setup, feeds.shapes),
            operators=ground.operators(self.model.hash, setup, feeds.shapes, devices),
        )

    def _devices(self, setup: Setup, names: Sequence[str]) -> tuple[Device, ...]:
        """Devices of the allowed providers; one that offers none, or takes its process down, is a refusal."""
        self.refusals += named_in_vain(self.settings.providers or (), names)
        found, refusals = devices_to_try(self.host, setup, names, lambda: self._until(0.3))
        self.refusals += refusals
        return found

    def _first_proposals(self, problem: Problem, prior: Strategy | None) -> list[Proposal]:
        from ort_metainfer.learning.experience import meta_model

        learned = meta_model(self.cache.directory, self.rules, self._first_batch // 2)
        stale = [Proposal(prior, "cache", "it won under other versions")] if prior and not prior.is_default else []
        proposals = self._ask([learned, self.rules], problem, stale)
        room = max(0, self._first_batch - len(proposals))  # a race costs its two baselines, however few it compares
        known = {proposal.strategy for proposal in proposals}
        filled = proposals + [more for more in self._search(problem) if more.strategy not in known][:room]
        return filled[: self.settings.max_trials]

    def _search(self, problem: Problem) -> list[Proposal]:
        from ort_metainfer.deciders.search import Search

        search = Search(self.rules.refuse, self.settings.max_trials or 0, self.predictor, self.rules.complete)
        return self._ask([search], problem, [])

    @cached_property
    def predictor(self) -> Predictor:
        """What tells the search what to expect of a strategy."""
        from ort_metainfer.learning.experience import predictor

        return predictor(self.cache.directory)

    def _ask(self, deciders: Sequence[Decider], problem: Problem, first: list[Proposal]) -> list[Proposal]:
        """Proposals that no rule forbids and that were not tried, in order, completed; every "no" is kept."""
        tried = {trial.strategy for trial in self.trials} | {Strategy()}
        answers = [*first, *(answer for decider in deciders for answer in decider.propose(problem, self.trials))]
        allowed: list[Proposal] = []
        for asked in answers:
            answer = self.rules.completed(problem, asked) if isinstance(asked, Proposal) else asked
            refusal = answer if isinstance(answer, Refusal) else self.rules.refuse(problem, answer.strategy)
            if refusal is not None:
                if refusal not in self.refusals:
                    self.refusals.append(refusal)
            elif isinstance(answer, Proposal) and answer.strategy not in tried:
                tried.add(answer.strategy)
                allowed.append(answer)
        return allowed[: max(0, (self.settings.max_trials or 0) - len(self.trials))]

    def _try(self, setup: Setup, proposals: list[Proposal], thresholds: Thresholds) -> None:
        if not proposals:
            return
        self.proposals += proposals
        self._say(f"trying {len(proposals)} strategies")
        raced = self.host.race(setup, proposals, thresholds, self._until(RACE_SHARE), self.request.progress)
        self._ran_out = all(map(lacked_time, raced))  # the next race would have less time than this one
        self.trials += raced

    def _confirm(self, setup: Setup, thresholds: Thresholds, problem: Problem) -> None:
        """Hold a duel for the best trials not verified yet; what passes and beats the best so far takes its place."""
        for leader in contenders(self.trials, self.verified, thresholds.min_speedup):
            if self._left() < MIN_DUEL_S:
                return
            self._say(f"confirming {leader.strategy.describe()}")
            asked = replace(thresholds, steady_only=is_load_sensitive(leader.strategy, problem, self.rules))
            confirmed = self.host.duel(setup, leader, asked, self._until(DUEL_SHARE) - 0.2)
            refusal = objection(confirmed, problem, self.rules) if asked.steady_only else None
            if refusal is not None:
                self.refusals.append(refusal)
            elif asked.steady_only and confirmed.passed and not is_load_known(confirmed):
                confirmed = replace(confirmed, flags=(*confirmed.flags, UNTOLD))
            self.trials[self.trials.index(leader)] = confirmed
            if confirmed.passed and refusal is None and beats(confirmed, self.verified):
                self.verified = confirmed
                return

    def _say(self, what: str) -> None:
        if self.request.progress is not None:
            self.request.progress(what)

    def _left(self) -> float:
        return self.deadline - self._now_s()

    def _until(self, share: float) -> float:
        """A deadline at ``share`` of the time that is left."""
        now = self._now_s()
        return now + max(0.0, self.deadline - now) * share
