"""The parent's side: trials in child processes, under one deadline, whatever the children do."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

from ort_metainfer import errors
from ort_metainfer.decision import Gate, Proposal, Trial
from ort_metainfer.errors import MetainferError, TrialCrashed, TrialError, TrialTimeout
from ort_metainfer.problem import Device, Graph
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials import duel as duelling
from ort_metainfer.trials import peaks
from ort_metainfer.trials.channel import setup_plain, thresholds_plain
from ort_metainfer.trials.child import Child
from ort_metainfer.trials.course import Course
from ort_metainfer.trials.ledger import Ledger, states_of
from ort_metainfer.trials.placement import with_reasons
from ort_metainfer.trials.task import Feeds, Setup, Thresholds

__all__ = ["ChildTrialHost"]

STEP_SHARE = 0.5
"""What one step of one candidate may take of the time that is left when it begins."""

STEP_MIN_S = 1.0
"""But at least this: half of nearly nothing would blame a candidate for the time being up."""

EXTRA = "extra"
EXTRA_SHARE = 0.2
"""What trying one more synthetic input may take of the time that is left."""

WEIGHING_SHARE = {"race": 0.3, "duel": 0.5}
"""What weighing sessions in processes of their own may take of a contest's time (objective ``memory``): each once in a
race, six pairs in a duel."""

START_S = 0.5
"""Below this no child is started: it would not get to anything."""

STEPS = {
    "starting": "starting the trial process",
    "describing": "reading the model",
    "discovering": "asking a provider for its devices",
    "opening": "creating the session",
    "checking": "running the model",
    "timing": "timing a run",
    "rewriting": "rewriting the model",
    "compiling": "compiling the model",
}


class Dialogue:
    """One request to a child and its answer.

    Attributes:
        step: what the child announced last.
        session: for which session.
    """

    def __init__(self, child: Child, deadline: float) -> None:
        self.child, self.deadline = child, deadline
        self.step, self.session, self._has_rounds = "starting", "", False
        self._step_began, self._step_ends = time.monotonic(), deadline

    def events(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What the child says, the last being ``done``.

        Raises:
            TrialTimeout: a step took longer than it may, or the deadline passed; the child is killed.
            TrialCrashed: the child died.
            MetainferError: what the child raised.
        """
        is_asked = False
        while True:
            message = self._receive()
            event = message.get("event")
            if event == "ready" and not is_asked:
                is_asked = True
                self.child.send(request | {"seconds": self.deadline - time.monotonic()})
            elif event in STEPS:
                self._begin(event, str(message.get("session", "")), message.get("limit_s"))
            elif event in ("round", "aside"):
                self._has_rounds = True
            elif event == "failed":
                raise _error(message)
            yield message
            if event == "done":
                return

    def _begin(self, step: str, session: str, limit_s: float | None = None) -> None:
        """A step begins; a child that knows best how long it may take says so with ``limit_s``."""
        self.step, self.session, self._step_began = step, session, time.monotonic()
        left_s = self.deadline - self._step_began
        self._step_ends = self.deadline
        if limit_s is not None:
            self._step_ends = min(self.deadline, self._step_began + limit_s)
        elif session == EXTRA:
            self._step_ends -= (1 - EXTRA_SHARE) * left_s
        elif self.candidate is not None and not self._has_rounds:  # later, it has shown that it runs
            self._step_ends = self._step_began + max(STEP_SHARE * left_s, min(STEP_MIN_S, left_s))

    @property
    def candidate(self) -> int | None:
        """The candidate the child is busy with, None where it is the baseline, the reference or nothing."""
        number = self.session.removesuffix("_twin")
        return int(number) if number.isdecimal() else 0 if number.startswith("candidate") else None

    def _receive(self) -> dict[str, Any]:
        try:
            message = self.child.receive(min(self._step_ends, self.deadline))
        except TrialCrashed as error:
            raise TrialCrashed(f"{STEPS[self.step]}: {error}") from error
        if message is None:
            self.child.kill()
            took = time.monotonic() - self._step_began
            raise TrialTimeout(f"{STEPS[self.step]} did not end within {took:.1f} s; killed")
        return message


def _error(message: dict[str, Any]) -> Exception:
    """The child's error as one of ours; one that is not in the tree is a TrialError."""
    kind = getattr(errors, str(message.get("error")), TrialError)
    text = str(message.get("message"))
    is_ours = isinstance(kind, type) and issubclass(kind, errors.MetainferError)
    return kind(text) if is_ours else TrialError(text)


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
        ends = deadline
        if setup.objective == "memory":
            deadline -= WEIGHING_SHARE["duel"] * max(0.0, deadline - time.monotonic())
        # each contest's own timing is what its figures rest on: the race's becomes "before"
        trial = replace(trial, before=trial.after or trial.before, after=None)
        try:
            child = self._start()
            for message in Dialogue(child, deadline).events(request):
                course.note(message)
                if message["event"] in ("state", "done"):
                    trial = replace(trial, after=states_of(message)[1])
                elif message["event"] == "refuted":
                    refuted = Gate(**message["gate"])
        except MetainferError as error:
            if not (isinstance(error, TrialTimeout) and time.monotonic() >= deadline):
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
