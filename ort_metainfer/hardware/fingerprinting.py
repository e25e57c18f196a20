"""The child's side of the fingerprint: one reference network, all strategies, in interleaved rounds.

Real devices go first, and what they did is told round by round; emulated ones follow with the time that is left, so
that one that takes for ever costs the others nothing. Events beside those that every child says::

    {"event": "opened", "strategy": "cpu", "creation_ms": ..., "error": ..., "mismatch": ..., "taken": ...}
    {"event": "refused", "strategy": "qnn-htp", "reason": ..., "everywhere": whether other networks need not ask}
    {"event": "round", "turns": {"cpu": {"runs_ms": [...], ...}}}
    {"event": "disturbance", "strategies": [...], "reason": ...}      of the rounds just told
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ort_metainfer.errors import ProviderError, StrategyError
from ort_metainfer.hardware.reference_figures import disturbance
from ort_metainfer.hardware.reference_networks import reference_feed, reference_model
from ort_metainfer.hardware.state import LoadWatch
from ort_metainfer.options import open_session
from ort_metainfer.problem import HardwareState
from ort_metainfer.spec import SessionSpec
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials import faults
from ort_metainfer.trials.accuracy import compare_outputs
from ort_metainfer.trials.bench import Opened, Refused, Speaker, complaint
from ort_metainfer.trials.placement import RECORD_ASSIGNMENT, placement_of
from ort_metainfer.trials.timing import MIN_ROUNDS, Turn, interleave
from ort_metainfer.trials.turn import Clock, SystemClock, TurnPlan, take_turn

__all__ = ["Entry", "Stand", "planned_rounds", "serve"]

MOST_ROUNDS = 12
REAL_SHARE = 0.6
"""Share of the time that real devices may take where emulated ones wait."""

SLOW_TURN_S = 1.0
"""A strategy for whose single turn there is no time is refused where a turn takes this long; otherwise it is merely not
reached, and absent."""

SLOW_SHARE = 0.3
"""Share of the time for rounds that slow strategies may take where others are fast."""

SECOND_CREATION_MS = 250.0
"""A session created faster than this is created again, and the faster time counts: the first one of a provider pays for
loading its library."""


@dataclass(frozen=True)
class Entry:
    """One strategy to be timed: ``index`` is its name in announcements, ``timed`` False for a mere reference."""

    index: int
    name: str
    strategy: Strategy
    emulated: bool = False
    timed: bool = True

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Entry:
        """As it is sent: the fields, the strategy as plain values."""
        return cls(**{**plain, "strategy": Strategy.from_dict(plain["strategy"])})


def serve(request: dict[str, Any], channel: Speaker, until: float) -> dict[str, Any]:
    """The errand ``fingerprint``: ``network``, ``strategies`` (entries, the baseline first) and ``seed``."""
    stand = Stand(request["network"], channel, until, seed=request["seed"])
    entries = [Entry.from_dict(plain) for plain in request["strategies"]]
    baseline = entries[0]
    stand.admit(baseline)
    if baseline.name not in stand.opened:
        return {}
    real = [entry for entry in entries if not entry.emulated]
    emulated = [entry for entry in entries if entry.emulated]
    started = time.monotonic()
    for entry in real[1:]:
        stand.admit(entry)
    share = REAL_SHARE if emulated else 1.0
    stand.time([entry for entry in real if entry.timed], started + share * (until - started))
    for position, entry in enumerate(emulated):
        part_s = (until - time.monotonic()) / (len(emulated) - position)
        ends = time.monotonic() + part_s
        stand.admit(entry)
        stand.time([entry], ends)
    return {}


def planned_rounds(costs_s: Mapping[str, float], left_s: float, most: int = MOST_ROUNDS) -> dict[str, int]:
    """How many turns each session may get: the fast ones as many as there is time for, the slow ones fewer.

    Slow is who would need more than twice its equal share of the time, or all of it, for the fewest rounds that count.
    Together the slow ones get :data:`SLOW_SHARE` of it, or all where nobody is fast.

    Args:
        costs_s: session -> what one of its turns takes.
        left_s: for all turns together.
        most: nobody gets more.
    """
    share_s = max(0.0, left_s) / max(1, len(costs_s))
    slow = [name for name, cost_s in costs_s.items() if MIN_ROUNDS * cost_s > min(2 * share_s, left_s)]
    part = 1.0 if len(slow) == len(costs_s) else SLOW_SHARE
    allowed_s = part * max(0.0, left_s) / max(1, len(slow))
    return {name: min(most, int(allowed_s / cost_s)) if name in slow else most for name, cost_s in costs_s.items()}


class Watch(Protocol):
    """What is needed of :class:`~ort_metainfer.hardware.state.LoadWatch`."""

    def lap(self) -> HardwareState:
        """The state since the last lap."""
        ...


class Stand:
    """Sessions of one reference network in this process.

    Args:
        network: its name.
        speaker: where events go.
        until: a time.monotonic() value past which nothing new is begun.
        clock: for turns.
        seed: of the order within rounds.
        open_one: creates a session from a model and a strategy.
        watch: what the machine does besides.

    Attributes:
        opened: strategy's name -> session that runs, with its latency estimated.
    """

    def __init__(
        self,
        network: str,
        speaker: Speaker,
        until: float,
        clock: Clock | None = None,
        seed: int = 0,
        open_one: Callable[[bytes, Strategy], Any] | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._model, self._feed = reference_model(network), reference_feed(network)
        self._speaker, self._until = speaker, until
        self._clock: Clock = SystemClock() if clock is None else clock
        self._generator = random.Random(seed)
        self._open_one = open_one or _open_session
        self._watch: Watch = LoadWatch() if watch is None else watch
        self._reference: Sequence[Any] | None = None
        self.opened: dict[str, tuple[Opened, float]] = {}

    def admit(self, entry: Entry) -> None:
        """Create its session, run it, hold its outputs against the baseline's; says ``opened`` or ``refused``."""
        try:
            opened = self._create(entry)
            self._announce("checking", entry)
            outputs, latency_ms = self._warm(opened)
        except Refused as error:
            cause = error.__cause__
            self._refuse(entry, str(error), isinstance(cause, ProviderError | StrategyError))
            return
        if self._reference is None:
            self._reference = outputs
        names = [output.name for output in opened.session.get_outputs()]
        comparison = compare_outputs(names, [self._reference], [outputs])
        self._speaker.say(
            "opened",
            strategy=entry.name,
            creation_ms=opened.creation_ms,
            error=None if comparison.mismatch else comparison.error,
            mismatch=comparison.mismatch,
            taken=_share_taken(opened.session, entry.strategy.provider),
        )
        self.opened[entry.name] = (opened, latency_ms)

    def time(self, entries: Sequence[Entry], until: float) -> None:
        """Rounds of turns among those of ``entries`` that were admitted, until a time.monotonic() value."""
        present = {entry.name: entry for entry in entries if entry.name in self.opened}
        if not present:
            return
        plans = {name: TurnPlan.of(self.opened[name][1]) for name in present}
        costs_s = {name: plan.seconds(self.opened[name][1]) for name, plan in plans.items()}
        before = self._watch.lap()
        rounds = planned_rounds(costs_s, until - time.monotonic())
        for name in [name for name, count in rounds.items() if count == 0 and costs_s[name] >= SLOW_TURN_S]:
            self._refuse(present[name], f"no time left: one turn takes {costs_s[name]:.2g} s", False)
        for number in range(max(rounds.values())):
            takers = {name: present[name] for name, count in rounds.items() if count > number}
            if number and sum(costs_s[name] for name in takers) > until - time.monotonic():
                break
            self._round(takers, plans, costs_s, until)
        reason = disturbance(before, self._watch.lap())
        if reason is not None:
            self._speaker.say("disturbance", strategies=sorted(present), reason=reason)

    def _round(
        self, takers: Mapping[str, Entry], plans: Mapping[str, TurnPlan], costs_s: dict[str, float], until: float
    ) -> None:
        """One turn each, in random order, while the time lasts; ``costs_s`` learns what they really took."""
        turns: dict[str, Turn] = {}
        gc.disable()  # a collection would land on whoever happens to run
        try:
            for name in interleave(takers, self._generator):
                started = time.monotonic()
                if until - started < costs_s[name]:
                    continue
                self._announce("timing", takers[name])
                turns[name] = take_turn(self._runner(name), plans[name], self._clock)
                costs_s[name] = time.monotonic() - started
        finally:
            gc.enable()
        self._speaker.say("round", turns={name: turn.as_dict() for name, turn in turns.items()})

    def _runner(self, name: str) -> Callable[[], object]:
        run, feed = self.opened[name][0].session.run, self._feed
        return lambda: run(None, feed)

    def _create(self, entry: Entry) -> Opened:
        self._announce("opening", entry)
        opened = self._created(entry.strategy)
        if opened.creation_ms < SECOND_CREATION_MS:
            opened.creation_ms = min(opened.creation_ms, self._created(entry.strategy).creation_ms)
        return opened

    def _created(self, strategy: Strategy) -> Opened:
        started = self._clock.now_s()
        try:
            session = self._open_one(self._model, strategy)
        except Exception as error:
            raise Refused(complaint(error)) from error
        return Opened(session, (self._clock.now_s() - started) * 1000)

    def _warm(self, opened: Opened) -> tuple[Sequence[Any], float]:
        """Outputs of the first run, and milliseconds of the next: the first may compile."""
        started = self._clock.now_s()
        outputs = opened.run(self._feed)
        first_s = self._clock.now_s() - started
        if self._until - time.monotonic() < 2 * first_s:
            return outputs, first_s * 1000
        started = self._clock.now_s()
        opened.run(self._feed)
        return outputs, (self._clock.now_s() - started) * 1000

    def _refuse(self, entry: Entry, reason: str, everywhere: bool) -> None:
        self._speaker.say("refused", strategy=entry.name, reason=reason, everywhere=everywhere)

    def _announce(self, step: str, entry: Entry) -> None:
        self._speaker.say(step, session=str(entry.index))
        faults.strike(step, str(entry.index))


def _open_session(model: bytes, strategy: Strategy) -> Any:
    return open_session(model, SessionSpec(), strategy, {RECORD_ASSIGNMENT: "1"})


def _share_taken(session: Any, provider: str | None) -> float | None:
    placement = None if provider is None else placement_of(session, provider)
    return None if placement is None or not placement.total else placement.taken / placement.total
