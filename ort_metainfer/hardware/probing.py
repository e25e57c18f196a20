"""The child's side of the probe: opens the points' sessions, lets them take turns, says each turn as it is taken.

Events, beside the announcements of :mod:`ort_metainfer.trials.channel`::

    {"event": "admitted", "point": "matmul/float32/512", "taken": true, "note": null}
    {"event": "refused", "point": ..., "refusal": ...}
    {"event": "passed_over", "point": ...}                  there is no time for its turns
    {"event": "turn", "point": ..., "turn": {"runs_ms": [...], "disturbed": ...}}

Points are opened most telling first, and take their turns in random order, pass by pass. A slow device does so in waves
of one point or two, until the time is up; what was not reached is absent.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ort_metainfer.hardware.micro_benchmarks import MicroBenchmark, named
from ort_metainfer.hardware.opening import Opener
from ort_metainfer.hardware.settling import PASSES, PointTurn, wants_repetition
from ort_metainfer.hardware.state import LoadWatch
from ort_metainfer.problem import HardwareState
from ort_metainfer.trials import faults
from ort_metainfer.trials.bench import Refused, Speaker, complaint
from ort_metainfer.trials.timing import interleave
from ort_metainfer.trials.turn import Clock, SystemClock, TurnPlan, take_turn

__all__ = ["Opens", "Probing", "Ready", "Watch", "fits", "grown_too_large", "serve"]

SAMPLE_MS = 0.2
"""Runs that are shorter are timed in batches of at least this: the clock's own cost is then below 0.1%."""

MAX_BATCH = 1000

LONGEST_MS = 15.0
"""A curve grows to larger sizes as long as one run is expected to take no longer than this."""

WAVE_SHARE = 0.25
"""Share of the time that is left in which the points of a wave are opened. A fast device does all in one wave; on a
slow one, what is measured is safe before the next point is opened."""

PAUSE_S = 0.1
"""Between passes: lets a small device cool, and sets the passes apart."""

STEP_SHARE = 0.4
STEP_MIN_S = 2.0
"""A step may take this share of what is left when it begins, and at least so long; past it, the parent ends it."""

UNSAID = "onnxruntime does not say where it ran"


@dataclass(frozen=True)
class Ready:
    """A point that can run.

    Attributes:
        run: one run.
        latency_ms: what one took when it was tried; an upper bound where the first was so slow that there was no other.
    """

    run: Callable[[], object]
    latency_ms: float

    @property
    def batch(self) -> int:
        """Runs timed in one."""
        return max(1, min(MAX_BATCH, math.ceil(SAMPLE_MS / self.latency_ms))) if self.latency_ms > 0 else MAX_BATCH

    @property
    def plan(self) -> TurnPlan:
        """How it takes a turn."""
        return TurnPlan.of(self.latency_ms * self.batch)

    def batched(self) -> Callable[[], object]:
        """So many runs in one."""
        run, batch = self.run, self.batch
        if batch == 1:
            return run

        def runs() -> None:
            for _ in range(batch):
                run()

        return runs

    @property
    def pass_s(self) -> float:
        """What one of its turns will take."""
        return self.plan.seconds(self.latency_ms * self.batch)


def fits(ready: Ready, others: Iterable[Ready], left_s: float) -> bool:
    """Whether a point and those admitted before can take all their turns in the time that is left."""
    return PASSES * sum(point.pass_s for point in (ready, *others)) <= left_s


def grown_too_large(point: MicroBenchmark, latencies_ms: Mapping[str, float]) -> bool:
    """Whether a larger size would take too long at the rate of the smaller one, or the smaller one did not run.

    Args:
        point: the larger one.
        latencies_ms: name -> milliseconds a run, of the points that run.
    """
    if point.grows_from is None:
        return False
    smaller_ms = latencies_ms.get(point.grows_from)
    return smaller_ms is None or smaller_ms * point.work / named(point.grows_from).work > LONGEST_MS


class Watch(Protocol):
    """What a probe needs of :class:`~ort_metainfer.hardware.state.LoadWatch`."""

    def lap(self) -> HardwareState:
        """The machine's state since the last lap."""
        ...


class Opens(Protocol):
    """What a probe needs of :class:`~ort_metainfer.hardware.opening.Opener`."""

    def open(self, point: MicroBenchmark) -> tuple[Callable[[], object], bool | None]:
        """A function that runs the point once, and whether the provider itself does the work.

        Raises:
            Refused: it cannot be created.
        """
        ...


class Probing:
    """One probe in this process.

    Args:
        opener: makes points ready.
        speaker: where events go.
        until: time by ``clock`` past which nothing new is begun.
        clock: wall and CPU time.
        turns: turns taken before, in a process that ended over another point.
        watch: whose ``lap()`` gives the machine's state since the last one.
        seed: of the order within passes.
        wave_share: share of the time that is left in which the points of a wave are opened; 0 is a point a wave.
    """

    def __init__(
        self,
        opener: Opens,
        speaker: Speaker,
        until: float,
        clock: Clock | None = None,
        turns: Mapping[str, Sequence[PointTurn]] | None = None,
        watch: Watch | None = None,
        seed: int = 0,
        wave_share: float = WAVE_SHARE,
    ) -> None:
        self.opener, self.speaker, self.until = opener, speaker, until
        self.clock: Clock = SystemClock() if clock is None else clock
        self.turns = {name: list(taken) for name, taken in (turns or {}).items()}
        self.watch: Watch = LoadWatch() if watch is None else watch
        self.generator = random.Random(seed)
        self.wave_share = wave_share
        self.ready: dict[str, Ready] = {}
        self.latencies_ms = {name: taken[-1].median_ms for name, taken in self.turns.items() if taken}

    def left_s(self) -> float:
        """Seconds left."""
        return self.until - self.clock.now_s()

    def hold(self, points: Sequence[MicroBenchmark]) -> None:
        """Wave by wave: open some, then pass by pass; each point that wants it gets one pass more."""
        waiting = list(points)
        while waiting and self.left_s() > 0:
            self.ready.clear()
            self._open_wave(waiting)
            for number in range(PASSES):
                self._pass([name for name in self.ready if len(self.turns.get(name, ())) <= number])
            self._pass([name for name in self.ready if wants_repetition(self.turns.get(name, ()))])

    def announce(self, step: str, point: str, at_least_s: float = 0.0) -> None:
        """Say what comes next, and how long it may take."""
        limit_s = max(STEP_MIN_S, STEP_SHARE * self.left_s(), at_least_s)
        self.speaker.say(step, session=point, limit_s=limit_s)
        faults.strike(step, point)

    def _open_wave(self, waiting: list[MicroBenchmark]) -> None:
        """Open points, taking them off the list, until that has taken its share of the time."""
        ends_s = self.clock.now_s() + self.wave_share * self.left_s()
        while waiting and self.left_s() > 0 and not (self.ready and self.clock.now_s() >= ends_s):
            point = waiting.pop(0)
            if not grown_too_large(point, self.latencies_ms):
                self._admit(point)

    def _admit(self, point: MicroBenchmark) -> None:
        self.announce("opening", point.name)
        try:
            run, taken = self.opener.open(point)
            self.announce("checking", point.name)
            latency_ms = self._try(run)
        except Refused as error:
            self.speaker.say("refused", point=point.name, refusal=str(error))
            return
        if taken is False:
            self.speaker.say("admitted", point=point.name, taken=False, note=None)
            return
        ready = Ready(run, latency_ms)
        self.latencies_ms[point.name] = latency_ms
        if fits(ready, self.ready.values(), self.left_s()):
            self.ready[point.name] = ready
            self.speaker.say("admitted", point=point.name, taken=True, note=UNSAID if taken is None else None)
        else:
            self.speaker.say("passed_over", point=point.name)

    def _try(self, run: Callable[[], object]) -> float:
        """Milliseconds of a run that is not the first, unless the first took very long: it may compile.

        Raises:
            Refused: onnxruntime raised.
        """
        latency_ms = math.inf
        for _ in range(3):
            started = self.clock.now_s()
            try:
                run()
            except Exception as error:
                raise Refused(complaint(error)) from error
            latency_ms = min(latency_ms, (self.clock.now_s() - started) * 1000)
            if latency_ms > self.left_s() * 100:  # a tenth of what is left
                break
        return latency_ms

    def _pass(self, names: Sequence[str]) -> None:
        """Each of the points takes a turn, in random order, as long as there is time."""
        if names:
            self.clock.sleep(PAUSE_S)
        for name in interleave(names, self.generator):
            ready = self.ready[name]
            if self.left_s() < ready.pass_s:
                continue
            self.announce("timing", name, at_least_s=3 * ready.pass_s)
            turn = self._turn(ready)
            self.turns.setdefault(name, []).append(turn)
            self.speaker.say("turn", point=name, turn=turn.as_dict())

    def _turn(self, ready: Ready) -> PointTurn:
        self.watch.lap()
        gc.disable()  # a collection would land on whoever happens to run
        try:
            turn = take_turn(ready.batched(), ready.plan, self.clock)
        finally:
            gc.enable()
        return PointTurn(tuple(run / ready.batch for run in turn.runs_ms), self.watch.lap().busy_reason)


def serve(request: dict[str, Any], channel: Speaker, until: float) -> dict[str, Any]:
    """The errand ``probe``.

    Args:
        request: ``provider``, ``device`` (the provider's own name for it), ``points`` (names, most telling first),
            ``turns`` (point -> turns taken in an earlier process), ``emulated``, ``seed``.
        channel: where events go.
        until: time.monotonic() value to end by.

    Raises:
        ProviderError: the provider cannot be used here.
    """
    channel.say("discovering", session=request["provider"])
    opener = Opener(request["provider"], request["device"])
    opener.warm_up()
    clock = SystemClock()
    turns = {name: [PointTurn.from_dict(turn) for turn in taken] for name, taken in request["turns"].items()}
    left_s = until - time.monotonic()  # clocks differ in their origin
    wave_share = 0.0 if request["emulated"] else WAVE_SHARE  # slow, and nothing is lost by it: its timing says nothing
    until_s = clock.now_s() + left_s
    probing = Probing(opener, channel, until_s, clock, turns, seed=request["seed"], wave_share=wave_share)
    probing.hold([named(name) for name in request["points"]])
    return {}
