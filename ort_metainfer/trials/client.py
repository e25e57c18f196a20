"""The parent's side: trials in child processes, under one deadline, whatever the children do."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

from ort_metainfer.decision import Gate, Proposal, Trial
from ort_metainfer.errors import MetainferError, TrialError, TrialTimeout
from ort_metainfer.problem import Device, Graph
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials import duel as duelling
from ort_metainfer.trials import peaks
from ort_metainfer.trials.channel import setup_plain, thresholds_plain
from ort_metainfer.trials.child import Child
from ort_metainfer.trials.course import Course
from ort_metainfer.trials.dialogue import EXTRA, Dialogue
from ort_metainfer.trials.ledger import Ledger, states_of
from ort_metainfer.trials.placement import with_reasons
from ort_metainfer.trials.task import Feeds, Setup, Thresholds

__all__ = ["ChildTrialHost"]

WEIGHING_SHARE = {"race": 0.3, "duel": 0.5}
"""What weighing sessions in processes of their own may take of a contest's time (objective ``memory``): each once in a
race, six pairs in a duel."""

START_S = 0.5
"""Below this no child is started: it would not get to anything."""


def _attribute(error: MetainferError, dialogue: Dialogue | None, ledger: Ledger) -> str | None:
    """Charge a race's end to the candidate that caused it; returns what the next child should do without."""
    if dialogue is None:
        ledger.blame_all(str(error))
        return None
    time_is_up = isinstance(error, TrialTimeout) and time.monotonic() >= dialogue.deadline
    if dialogue.candidate is not None and not time_is_up:
        ledger.blame(dialogue.candidate, str(error))
        return dialogue.session
    if dialogue.session == "noise":
        return "noise"
    if time_is_up:
        ledger.blame_all(f"no time left: {error}; a larger budget_s, or prewarming with one, allows more")
    else:
        ledger.blame_all(f"the default session failed in the trial process: {error}")
    return None


def _kill_all(children: list[Child]) -> None:
    while children:
        children.pop().kill()


class ChildTrialHost:
    """A :class:`~ort_metainfer.trials.task.TrialHost` whose children are Python processes of this machine.

    Use it in a ``with`` statement or call :meth:`close`; children end with this process in any case.

    Args:
        memory_limit_mb: resident memory past which a child is killed; default half of what is available when it starts.
    """

    def __init__(self, memory_limit_mb: float | None = None) -> None:
        self._memory_limit_mb = memory_limit_mb
        self._children: list[Child] = []
        self._scout: Child | None = None
        self._spare: Child | None = None
        self._finalizer = weakref.finalize(self, _kill_all, self._children)

    def __enter__(self) -> ChildTrialHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def describe(self, setup: Setup, deadline: float) -> Graph:
        """See :class:`~ort_metainfer.trials.task.TrialHost`."""
        return Graph.from_dict(self._ask("describe", setup, deadline)["graph"])

    def devices(
        self, setup: Setup, providers: Sequence[str], deadline: float
    ) -> tuple[list[Device], list[tuple[str, str]]]:
        """See :class:`~ort_metainfer.trials.task.TrialHost`."""
        plain = self._ask("devices", setup, deadline, providers=list(providers))
        found = [Device(**{**device, "features": tuple(device["features"])}) for device in plain["devices"]]
        return found, [(name, reason) for name, reason in plain["refused"]]

    def prepare(self, setup: Setup, deadline: float) -> Feeds:
        """See :class:`~ort_metainfer.trials.task.TrialHost`; meanwhile the child of the race starts."""
        if self._spare is None:
            self._spare = self._start()
        plain = self._ask("prepare", setup, deadline)["feeds"]
        shapes = {name: tuple(shape) for name, shape in plain["shapes"].items()}
        return Feeds(plain["count"], plain["are_real"], plain["origin"], shapes)

    def race(
        self,
        setup: Setup,
        candidates: Sequence[Proposal],
        thresholds: Thresholds,
        deadline: float,
        on_progress: Callable[[str], None] | None = None,
    ) -> list[Trial]:
        """See :class:`~ort_metainfer.trials.task.TrialHost`."""
        ledger, with_noise, ends = Ledger(candidates, thresholds), True, deadline
        if setup.objective == "memory":
            deadline -= WEIGHING_SHARE["race"] * max(0.0, deadline - time.monotonic())
        say = on_progress or (lambda text: None)
        self._dismiss_scout()
        while ledger.open_candidates and deadline - time.monotonic() > START_S:
            ledger.new_child()
            request = self._request("race", setup, thresholds, [candidate.strategy for candidate in candidates]) | {
                "candidates": [
                    {"index": index, "strategy": candidates[index].strategy.as_dict()}
                    for index in ledger.open_candidates
                ],
                "with_noise": with_noise,
            }
            culprit = self._race_once(request, ledger, candidates, deadline, say)
            if culprit is None:
                break
            with_noise = with_noise and culprit != "noise"
        trials = [with_reasons(trial, setup) for trial in ledger.trials()]
        if setup.objective != "memory":
            return trials
        say("weighing sessions in processes of their own")
        return peaks.weigh_all(trials, thresholds, partial(peaks.weigh, setup, deadline=ends), ends)

    def _race_once(
        self,
        request: dict[str, Any],
        ledger: Ledger,
        candidates: Sequence[Proposal],
        deadline: float,
        say: Callable[[str], None],
    ) -> str | None:
        """One child's race; returns the session that ended it, None where it came to its end or nobody is to blame."""
        dialogue: Dialogue | None = None
        child: Child | None = None
        try:
            child, self._spare = self._spare or self._start(), None
            dialogue = Dialogue(child, deadline)
            for message in dialogue.events(request):
                ledger.note(message)
                _report(message, candidates, ledger, say)
            return None
        except MetainferError as error:
            return _attribute(error, dialogue, ledger)
        finally:
            self._end(child)

    def duel(self, setup: Setup, trial: Trial, thresholds: Thresholds, deadline: float) -> Trial:
        """See :class:`~ort_metainfer.trials.task.TrialHost`."""
        request = self._request("duel", setup, thresholds, [trial.strategy]) | {"strategy": trial.strategy.as_dict()}
        course = Course()
        child: Child | None = None
        refuted: Gate | None = None
        is_over, ends = False, deadline
        if setup.objective == "memory":
            deadline -= WEIGHING_SHARE["duel"] * max(0.0, deadline - time.monotonic())
        # each contest's own timing is what its figures rest on: the race's becomes "before"
        trial = replace(trial, before=trial.after or trial.before, after=None)
        try:
            child = self._start()
            for message in Dialogue(child, deadline).events(request):
                course.note(message)
                is_over = is_over or message["event"] == "apart"
                if message["event"] in ("state", "apart", "done"):
                    trial = replace(trial, after=states_of(message)[1], device_ms=message.get("bound_ms"))
                elif message["event"] == "refuted":
                    refuted = Gate(**message["gate"])
        except MetainferError as error:
            if not is_over and not (isinstance(error, TrialTimeout) and time.monotonic() >= deadline):
                return replace(trial, failure=f"in the confirming duel, {error}")
        finally:
            self._end(child)
        if refuted is not None:
            kept = tuple(gate for gate in trial.gates if gate.name != "accurate")
            failure = f"in the confirming duel, {refuted.detail}"
            return replace(trial, gates=(*kept, refuted), failure=failure)
        timing, gate = duelling.judge(trial.timing, course, thresholds)
        if setup.objective == "memory":  # so far it is a latency that keeps its bound, or does not
            within, timing = timing if gate.passed else None, None
            if within is not None:
                weigh = partial(peaks.weigh, setup, deadline=ends)
                timing, gate = peaks.confirm(trial.timing, within, trial.strategy, thresholds, weigh)
        flags = course.flags(thresholds.steady_only, (*duelling.CANDIDATE, *duelling.BASELINE))
        told = (*trial.flags, *(f"duel: {flag}" for flag in flags))
        return replace(trial, duel=timing, flags=told).with_gate(gate)

    def errand(self, do: str, request: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        """See :func:`ort_metainfer.trials.errand.run_errand`; children kept for trials make room first."""
        from ort_metainfer.trials.errand import run_errand

        self.close()
        return run_errand(do, request, deadline)

    def inquire(self, do: str, setup: Setup, deadline: float, **more: Any) -> dict[str, Any]:
        """One errand about the model, carried out by the child that reads it: no start, and none kept has to go."""
        return self._ask(do, setup, deadline, **more)

    def close(self) -> None:
        """End every child."""
        self._scout = self._spare = None
        _kill_all(self._children)

    def _request(
        self, do: str, setup: Setup, thresholds: Thresholds | None = None, strategies: Sequence[Strategy] = ()
    ) -> dict[str, Any]:
        request: dict[str, Any] = {"do": do, "setup": setup_plain(setup), "seed": 0}
        if thresholds is not None and not any(strategy.transforms for strategy in strategies):
            request["setup"]["graph"] = None  # it can be large, and only rewrites read it
        return request if thresholds is None else request | {"thresholds": thresholds_plain(thresholds)}

    def _ask(self, do: str, setup: Setup, deadline: float, **more: Any) -> dict[str, Any]:
        """A request without a contest, to a child kept for such."""
        is_new = self._scout is None
        child = self._scout = self._scout or self._start()
        dialogue = Dialogue(child, deadline)
        request, said = self._request(do, setup) | more, {}
        try:
            if not is_new:  # it said that it was ready long ago
                child.send(request | {"seconds": deadline - time.monotonic()})
            for message in dialogue.events(request):
                said[message["event"]] = message
        except TrialError as error:
            self._dismiss_scout()
            if "prepared" in said and dialogue.session == EXTRA:
                return said["prepared"]
            raise type(error)(f"{setup.label}: {error}") from error
        return said["done"]

    def _start(self) -> Child:
        child = Child(self._memory_limit_mb)
        self._children.append(child)
        return child

    def _end(self, child: Child | None) -> None:
        if child is not None and child in self._children:
            self._children.remove(child)
            child.kill()

    def _dismiss_scout(self) -> None:
        self._end(self._scout)
        self._scout = None


def _report(
    message: dict[str, Any], candidates: Sequence[Proposal], ledger: Ledger, say: Callable[[str], None]
) -> None:
    """One line of progress for what a person may care about."""
    event = message["event"]
    if event == "opening":
        session = str(message["session"])
        what = candidates[int(session)].strategy.describe() if session.isdecimal() else session.replace("_", " ")
        say(f"creating a session: {what}")
    elif event == "round":
        say(f"round {ledger.rounds}, {max(0, len(message['turns']) - 2)} strategies still in")
