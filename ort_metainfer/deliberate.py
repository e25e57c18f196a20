"""Deciding on a miss: describe the model, get inputs, ask the deciders, race the proposals, confirm the winner."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ort_metainfer.decision import Decision, Proposal, Refusal, Trial
from ort_metainfer.errors import InputsError, TrialError, TrialTimeout
from ort_metainfer.hardware.devices import cpu_device
from ort_metainfer.problem import NEUTRAL_PROPERTIES, Device, Graph, Model, Problem, SessionSpec
from ort_metainfer.remember import GIVE_INPUTS
from ort_metainfer.scratch import scratch_folder
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.duel import UNSTEADY
from ort_metainfer.trials.task import Feeds, Setup, Thresholds, TrialHost, is_simulated

if TYPE_CHECKING:
    from ort_metainfer.adapt import Request
    from ort_metainfer.deciders.base import Decider
    from ort_metainfer.model.capture import Reservoir
    from ort_metainfer.strategy_cache.store import StrategyCache

__all__ = ["Deliberation"]

CAPTURED = "captured from earlier runs"

MAX_TRIALS = 30
"""A decision that needed more would be a search of its own."""

FIRST_BATCH = {"latency": 6, "pipeline": 3}
"""Strategies of the first race: what the rules propose, filled up with the search's first guesses. A turn of the
pipeline runs every session twice, so fewer fit."""

BATCH = 4
"""Strategies of the search raced at a time: it learns from each race what to combine next."""

INPUTS_SHARE = 0.3
"""Share of the budget after which no further item is taken from the caller's inputs."""

RACE_SHARE = 0.5
"""Share of the time left that one race may take."""

DUEL_SHARE = 0.9
"""Share of the time left that a duel may take: the best so far has to be verified, or it is nothing."""

MIN_DUEL_S = 0.5
"""Below this no duel is begun: its process would hardly have started."""

TIE = 0.02
"""What does not beat the verified best by more in its race is not worth a duel of its own."""

GAIN = 1.01
"""Speed-up in a race from which a strategy is something to build on; ties lie within 1% on a quiet machine."""

SEARCH_SHARE = 0.35
"""Share of the budget below which no further race is begun: a winner would have to be confirmed in a fresh process."""


UNKNOWN_LOAD = "load not known"

UNTOLD = "this system does not tell what other processes do: judged by paired ratios in two processes alone"
"""What is said beside a load-sensitive strategy that was adopted where no load can be read."""

TRY_AGAIN = ("machine busy", UNSTEADY, UNKNOWN_LOAD)
"""How refusals begin that another moment may lift: a decision with one of them is not complete."""


class Deliberation:
    """One decision under one deadline (a time.monotonic() value)."""

    def __init__(
        self,
        request: Request,
        spec: SessionSpec,
        model: Model,
        model_file: Path,
        host: TrialHost,
        cache: StrategyCache,
        deadline: float,
    ) -> None:
        self.request, self.spec, self.model, self.host, self.cache = request, spec, model, host, cache
        self.model_file, self.deadline = model_file, deadline
        self._budget_s = max(0.0, deadline - time.monotonic())
        self.settings = request.settings
        self._first_batch = FIRST_BATCH[str(self.settings.objective)]
        self.proposals: list[Proposal] = []
        self.refusals: list[Refusal] = []
        self.trials: list[Trial] = []
        self.verified: Trial | None = None
        self._has_captured = False

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
                return self._left_alone("the model is compiled for a provider already", graph)
            setup = replace(setup, graph=graph)
            try:
                feeds = self._feeds(setup, graph)
            except TrialTimeout as error:
                return self._out_of_time(error, graph)
            except InputsError as error:
                if self.settings.inputs is not None:
                    raise
                # inputs that are there and do not help are no reason to decide anew at each start
                return self._left_alone(str(error) if self._has_captured else f"{error}; {GIVE_INPUTS}", graph)
            return self._decide(setup, graph, feeds, prior)

    def _edited(self, graph: Graph) -> Decision | None:
        """A strategy file that a person edited: it wins also where the cache has forgotten the model."""
        from ort_metainfer.adapt import key_of
        from ort_metainfer.remember import edited_decision

        key = key_of(self.model, graph, self.settings, self.spec)
        return None if self.request.force else edited_decision(self.cache.directory, key, graph)

    def _left_alone(self, reason: str, graph: Graph) -> Decision:
        """Plain onnxruntime for what cannot be tried; remembered, so that the next start does not ask again."""
        from ort_metainfer.adapt import key_of

        key = key_of(self.model, graph, self.settings, self.spec)
        return Decision(Strategy(), "pass-through", reason, key=key, graph=graph)

    def _out_of_time(self, error: TrialTimeout, graph: Graph | None) -> Decision:
        """Plain onnxruntime, and that it was the time that lacked; remembered where the key is known."""
        from ort_metainfer.adapt import key_of

        reason = f"{error}; a budget_s above {self.settings.budget_s:g}, or prewarming with one, allows more"
        key = None if graph is None else key_of(self.model, graph, self.settings, self.spec)
        return Decision(
            Strategy(), "default", reason, key=key, complete=False, incomplete_reason="the time was up", graph=graph
        )

    def _setup(self, folder: Path) -> Setup:
        properties = {name: value for name, value in self.spec.properties.items() if name not in NEUTRAL_PROPERTIES}
        return Setup(
            model_file=self.model_file,
            baseline=self.spec._replace(properties=properties),
            feeds=folder,
            as_bytes=self.model.path is None,
            objective=str(self.settings.objective),
            shapes=self.settings.input_shapes or {},
            label=self.model.label,
        )

    def _remember(self, graph: Graph) -> None:
        from ort_metainfer.model.fingerprint import remember_graph

        remember_graph(self.cache, self.model.hash, graph)

    def _feeds(self, setup: Setup, graph: Graph) -> Feeds:
        from ort_metainfer.model.inputs import caller_feeds, save_feeds

        captured = None
        if self.settings.inputs is not None:
            save_feeds(caller_feeds(self.settings.inputs, graph, until=self._until(INPUTS_SHARE)), setup.feeds)
        else:
            captured = self._captured(setup, graph)
        self._say("checking the inputs")
        if captured is not None:
            try:
                return replace(self.host.prepare(setup, self._until(0.5)), origin=CAPTURED)
            except InputsError:
                save_feeds([], setup.feeds)
        feeds = self.host.prepare(setup, self._until(0.5))
        if captured is not None:  # they are of no use: they would make each start decide anew
            with suppress(OSError):
                captured.delete()
        return feeds

    def _captured(self, setup: Setup, graph: Graph) -> Reservoir | None:
        """Give the trials inputs kept of earlier runs; None where there are none."""
        from ort_metainfer.model.capture import Reservoir
        from ort_metainfer.model.inputs import save_feeds

        reservoir = Reservoir(self.cache.directory, self.model.hash)
        feeds = reservoir.feeds(graph, self.settings.input_shapes)
        if not feeds:
            return None
        save_feeds(feeds, setup.feeds)
        self._has_captured = True
        return reservoir

    def _decide(self, setup: Setup, graph: Graph, feeds: Feeds, prior: Strategy | None) -> Decision:
        problem = self._problem(setup, graph, feeds)
        setup = replace(setup, inputs_are_real=feeds.are_real)
        thresholds = Thresholds.of("strict")
        if feeds.are_real:  # made-up inputs justify nothing lossy, and a metric of real ones says nothing of them
            settings = self.settings
            thresholds = Thresholds.of(problem.policy.accuracy, settings.metric, settings.metric_threshold)
        self._try(setup, self._first_proposals(problem, prior), thresholds)
        self._confirm(setup, thresholds, problem)
        while self._is_worth_more() and (more := self._search(problem)):
            self._try(setup, more[:BATCH], thresholds)
            self._confirm(setup, thresholds, problem)
        return self._compile(setup, self._conclude(problem, self.verified), thresholds)

    def _compile(self, setup: Setup, decision: Decision, thresholds: Thresholds) -> Decision:
        """Have the session that was decided for compiled and kept, where that pays and time is left."""
        from ort_metainfer.compilation import with_compiled

        errand = getattr(self.host, "errand", None)  # a host that reckons has none
        if self.settings.compiled == "off" or errand is None:
            return decision
        self._say("compiling")
        return with_compiled(decision, setup, thresholds, self.cache.directory, self.deadline, errand)

    def _problem(self, setup: Setup, graph: Graph, feeds: Feeds) -> Problem:
        from ort_metainfer.adapt import policy_of
        from ort_metainfer.hardware.state import observe

        policy = policy_of(self.settings, self.spec)
        return Problem(
            model=self.model,
            graph=graph,
            devices=self._devices(setup, policy.providers),
            policy=policy,
            baseline=self.spec,
            state=observe(0.2),
            shapes=self.settings.input_shapes or {},
            inputs_are_real=feeds.are_real,
        )

    def _devices(self, setup: Setup, names: Sequence[str]) -> tuple[Device, ...]:
        """Devices of the allowed providers; one that offers none, or takes its process down, is a refusal."""
        try:
            found, refused = self.host.devices(setup, names, self._until(0.3))
        except TrialError as error:
            found, refused = [cpu_device()], [("/".join(names), f"{error}; the CPU provider is used")]
        simulated = {device.provider for device in found if device.simulated and not is_simulated(self.host)}
        found = [device for device in found if device.provider not in simulated]  # nothing of them can be timed
        refused += [(name, "its devices are descriptions, none of them is here") for name in sorted(simulated)]
        self.refusals += [Refusal(name, "providers", reason) for name, reason in refused]
        return tuple(found)

    def _first_proposals(self, problem: Problem, prior: Strategy | None) -> list[Proposal]:
        from ort_metainfer.deciders.meta_model import MetaModel
        from ort_metainfer.deciders.rules import RuleLibrary

        stale = [Proposal(prior, "cache", "it won under other versions")] if prior and not prior.is_default else []
        proposals = self._ask([MetaModel(), RuleLibrary()], problem, stale)
        room = max(0, self._first_batch - len(proposals))  # a race costs its two baselines, however few it compares
        known = {proposal.strategy for proposal in proposals}
        return proposals + [more for more in self._search(problem) if more.strategy not in known][:room]

    def _search(self, problem: Problem) -> list[Proposal]:
        from ort_metainfer.deciders.search import Search

        return self._ask([Search()], problem, [])

    def _ask(self, deciders: Sequence[Decider], problem: Problem, first: list[Proposal]) -> list[Proposal]:
        """Proposals that no rule forbids and that were not tried, in order; every "no" is kept."""
        from ort_metainfer.deciders.rules import RuleLibrary

        rules, tried = RuleLibrary(), {trial.strategy for trial in self.trials} | {Strategy()}
        answers = [*first, *(answer for decider in deciders for answer in decider.propose(problem, self.trials))]
        allowed: list[Proposal] = []
        for answer in answers:
            refusal = answer if isinstance(answer, Refusal) else rules.refuse(problem, answer.strategy)
            if refusal is not None:
                if refusal not in self.refusals:
                    self.refusals.append(refusal)
            elif isinstance(answer, Proposal) and answer.strategy not in tried:
                tried.add(answer.strategy)
                allowed.append(answer)
        return allowed[: MAX_TRIALS - len(self.trials)]

    def _try(self, setup: Setup, proposals: list[Proposal], thresholds: Thresholds) -> None:
        if not proposals:
            return
        self.proposals += proposals
        self._say(f"trying {len(proposals)} strategies")
        self.trials += self.host.race(setup, proposals, thresholds, self._until(RACE_SHARE), self.request.progress)

    def _is_worth_more(self) -> bool:
        """Whether to go on: there is time, and something to build on or little tried yet."""
        timed = [trial.timing.speedup for trial in self.trials if trial.timing is not None]
        has_gain = any(speedup > GAIN for speedup in timed)
        return self._left() > self._budget_s * SEARCH_SHARE and (has_gain or len(timed) < self._first_batch)

    def _confirm(self, setup: Setup, thresholds: Thresholds, problem: Problem) -> None:
        """Hold a duel for the best trials not verified yet; what passes and beats the best so far takes its place."""
        bar = self.verified.timing.speedup * (1 + TIE) if self.verified and self.verified.timing else 0.0
        worth = max(thresholds.min_speedup, bar)  # what did not reach it in the race would not in the duel
        leaders = [trial for trial in self.trials if trial.duel is None and trial.failure is None and trial.timing]
        leaders = sorted((t for t in leaders if t.timing and t.timing.speedup > worth), key=_promise, reverse=True)
        for leader in leaders[:2]:
            if self._left() < MIN_DUEL_S:
                return
            self._say(f"confirming {leader.strategy.describe()}")
            asked = replace(thresholds, steady_only=self._is_load_sensitive(leader.strategy, problem))
            confirmed = self.host.duel(setup, leader, asked, self._until(DUEL_SHARE) - 0.2)
            refusal = self._objection(confirmed, problem) if asked.steady_only else None
            if refusal is not None:
                self.refusals.append(refusal)
            elif asked.steady_only and confirmed.passed and not _is_load_known(confirmed):
                confirmed = replace(confirmed, flags=(*confirmed.flags, UNTOLD))
            self.trials[self.trials.index(leader)] = confirmed
            if confirmed.passed and refusal is None and self._beats_verified(confirmed):
                self.verified = confirmed
                return

    def _beats_verified(self, trial: Trial) -> bool:
        """Whether its duel was better than that of the best so far: by its whole interval, since they ran apart."""
        best = self.verified.duel if self.verified else None
        return best is None or (trial.duel is not None and trial.duel.speedup_low > best.speedup)

    def _is_load_sensitive(self, strategy: Strategy, problem: Problem) -> bool:
        """Whether the rules would forbid it on a busy machine: scheduling, where no lasting limit settles it."""
        from ort_metainfer.deciders.rules import RuleLibrary

        busy = replace(problem.state, others_cpu=problem.cpu.cores or 1.0)
        return RuleLibrary().refuse(replace(problem, state=busy), strategy) is not None

    def _objection(self, trial: Trial, problem: Problem) -> Refusal | None:
        """Why a load-sensitive strategy may not be adopted after all: the state of the machine while it was tried.

        A load that is not known is not taken for none. Where this system could have told it and did not, the strategy
        is left alone; where it never tells (no /proc: Windows, macOS), nothing load-sensitive could ever be adopted,
        so there the paired ratios of two processes decide, and the trial says what they rest on (``UNTOLD``).
        """
        from ort_metainfer.deciders.rules import RuleLibrary

        for state in (trial.before, trial.after):
            if state is not None:
                refusal = RuleLibrary().refuse(replace(problem, state=state), trial.strategy)
                if refusal is not None:
                    return refusal
        failed = next((gate.detail for gate in trial.gates if not gate.passed), "")
        if failed.startswith(UNSTEADY):
            return Refusal(trial.strategy.describe(), "duel", f"{failed}; scheduling left alone")
        if trial.passed and problem.state.is_load_known and not _is_load_known(trial):
            return Refusal(
                trial.strategy.describe(), "duel", f"{UNKNOWN_LOAD} while it was tried; scheduling left alone"
            )
        return None

    def _conclude(self, problem: Problem, winner: Trial | None) -> Decision:
        from ort_metainfer.adapt import key_of

        # what only the search thought of is no gap: it would always think of more
        asked = [trial for trial in self.trials if not trial.by.startswith("search")]
        untried = sum(trial.failure is not None and "no time" in trial.failure for trial in asked)
        busy = next((r.reason for r in self.refusals if r.reason.startswith(TRY_AGAIN)), "")
        incomplete = busy or (f"no time was left for {untried} of {len(asked)} strategies" if untried else "")
        if winner is None:
            strategy, origin, reason = Strategy(), "default", self._why_default()
        else:
            strategy, origin, reason = winner.strategy, _origin(winner.by), f"{winner.verdict}"
        return Decision(
            strategy,
            origin,  # type: ignore[arg-type]
            reason,
            key=key_of(self.model, problem.graph, self.settings, self.spec),
            proposals=tuple(self.proposals),
            refusals=tuple(self.refusals),
            trials=tuple(self.trials),
            complete=not incomplete,
            incomplete_reason=incomplete,
            inputs_are_real=problem.inputs_are_real,
            state=problem.state,
            graph=problem.graph,
        )

    def _why_default(self) -> str:
        if not self.trials:
            return "no strategy was proposed for it"
        tried = [trial for trial in self.trials if trial.failure is None]
        if not tried:
            return f"none of {len(self.trials)} strategies could be tried: {self.trials[0].failure}"
        best = max(tried, key=_promise)
        figures = f"; the best was {best.strategy.describe()}: {best.verdict}"
        return f"none of {len(tried)} strategies beat plain onnxruntime beyond the noise{figures}"

    def _say(self, what: str) -> None:
        if self.request.progress is not None:
            self.request.progress(what)

    def _left(self) -> float:
        return self.deadline - time.monotonic()

    def _until(self, share: float) -> float:
        """A deadline at ``share`` of the time that is left."""
        now = time.monotonic()
        return now + max(0.0, self.deadline - now) * share


def _is_load_known(trial: Trial) -> bool:
    """Whether the system told what other processes did during the last timing."""
    return trial.after is not None and trial.after.is_load_known


def _promise(trial: Trial) -> float:
    """How good a trial looks: the lower bound of its speed-up, 0 where it was not timed."""
    return trial.timing.speedup_low if trial.timing else 0.0


def _origin(by: str) -> str:
    """The decider's family, as ``Decision.origin`` names it."""
    family = by.split(":")[0].split("/")[0]
    return family if family in ("cache", "meta-model", "rules", "search") else "rules"
