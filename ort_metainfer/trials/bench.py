"""The child's bench: opens sessions, runs feeds, holds outputs against the reference, takes rounds of turns."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ort_metainfer.decision import Gate, Placement
from ort_metainfer.problem import Graph
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials import accuracy, faults, gates, memory
from ort_metainfer.trials.placement import RECORD_ASSIGNMENT, placement_of
from ort_metainfer.trials.task import Setup, Thresholds
from ort_metainfer.trials.timing import Turn, interleave
from ort_metainfer.trials.turn import Clock, SystemClock, TurnPlan, take_turn

__all__ = ["Bench", "Opened", "Refused", "Speaker", "complaint", "judge", "judge_outputs"]

CPU = "CPUExecutionProvider"

Feed = dict[str, Any]


class Speaker(Protocol):
    """Where events go."""

    def say(self, event: str, **fields: Any) -> None:
        """Send one event."""
        ...


class Refused(Exception):
    """A session could not be created or run; the text is onnxruntime's."""


def complaint(error: Exception) -> str:
    """An error's message, short enough for one line: its first 300 characters without line breaks."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


@dataclass
class Opened:
    """A session with what it cost: milliseconds to create, and growth of resident memory in MB.

    ``first`` holds the outputs of its first run, on the first feed, until they are used; ``placement`` says which nodes
    run where, for a strategy that names a provider.
    """

    session: Any
    creation_ms: float
    memory_mb: float | None = None
    first: Sequence[Any] | None = None
    placement: Placement | None = None

    def run(self, feed: Feed) -> Sequence[Any]:
        """All outputs of one run.

        Raises:
            Refused: onnxruntime raised.
        """
        try:
            outputs: Sequence[Any] = self.session.run(None, feed)
        except Exception as error:
            raise Refused(complaint(error)) from error
        return outputs


class Bench:
    """Sessions of one model in this process.

    Args:
        setup: the session under trial.
        feeds: what to run it with.
        speaker: where events go.
        until: time.monotonic() value past which nothing new is begun.
        clock: for turns.
        seed: of the order within rounds.
    """

    def __init__(
        self,
        setup: Setup,
        feeds: Sequence[Feed],
        speaker: Speaker,
        until: float,
        clock: Clock | None = None,
        seed: int = 0,
    ) -> None:
        self.setup, self.feeds, self.speaker, self.until = setup, list(feeds), speaker, until
        self.clock: Clock = SystemClock() if clock is None else clock
        self.generator = random.Random(seed)
        self.sessions: dict[str, Opened] = {}
        self.twins: dict[str, str] = {}
        self.rounds: list[dict[str, Turn]] = []
        self.plan = TurnPlan()
        self.model = setup.model_file.read_bytes() if setup.as_bytes else str(setup.model_file)

    def left_s(self) -> float:
        """Seconds left."""
        return self.until - time.monotonic()

    def announce(self, step: str, session: str) -> None:
        """Say what comes next, before it is done."""
        self.speaker.say(step, session=session)
        faults.strike(step, session)

    def open(self, name: str, strategy: Strategy, keep: bool = True, cpu_only: bool = False) -> Opened:
        """Create a session.

        Args:
            name: what to call it in messages.
            strategy: the strategy to apply.
            keep: whether it will take turns.
            cpu_only: the original model on the CPU provider, with the caller's other options.

        Raises:
            Refused: it cannot be created.
        """
        from ort_metainfer.options import open_session

        model, extra = self.model, dict[str, str]()
        if strategy.transforms and not cpu_only:
            model, extra = self._rewritten(name, strategy)
        self.announce("opening", name)
        spec = self.setup.baseline._replace(providers=((CPU, {}),)) if cpu_only else self.setup.baseline
        extra |= {RECORD_ASSIGNMENT: "1"} if strategy.provider else {}
        started = time.perf_counter()
        try:
            session = open_session(model, spec, replace(strategy, transforms=()), extra)
        except Exception as error:
            raise Refused(complaint(error)) from error
        opened = Opened(session, (time.perf_counter() - started) * 1000)
        if strategy.provider:
            opened.placement = placement_of(session, strategy.provider)
        if keep:
            self.sessions[name] = opened
        return opened

    def _rewritten(self, name: str, strategy: Strategy) -> tuple[str | bytes, dict[str, str]]:
        """The model as the strategy's transforms make it, and the config entries that it is opened with.

        Raises:
            Refused: it cannot be rewritten.
        """
        from ort_metainfer.errors import MetainferError
        from ort_metainfer.trials.rewritten import opened_with, rewritten_model

        self.announce("rewriting", name)
        try:
            file = rewritten_model(self.setup, strategy.transforms, self.feeds, self.until)
            return opened_with(file, self.setup.model_file)
        except MetainferError as error:
            raise Refused(complaint(error)) from error

    def open_measured(self, name: str, strategy: Strategy) -> Opened:
        """Create a session and run it once, with the growth of resident memory meanwhile.

        Raises:
            Refused: it cannot be created or run.
        """
        gc.collect()
        was_reset, before = memory.reset_peak(), memory.resident_mb()
        opened = self.open(name, strategy)
        self.announce("checking", name)
        try:
            opened.first = opened.run(self.feeds[0])
        except Refused:
            self.release(name)
            raise
        after = memory.peak_resident_mb() if was_reset else memory.resident_mb()
        opened.memory_mb = None if before is None or after is None else max(0.0, after - before)
        return opened

    def release(self, *names: str) -> None:
        """Let sessions go, with their memory."""
        for name in names:
            self.sessions.pop(name, None)
            self.twins.pop(name, None)

    def outputs(self, opened: Opened) -> list[Sequence[Any]]:
        """Its outputs for every feed; those of its first run are not computed again.

        Raises:
            Refused: onnxruntime raised.
        """
        first, opened.first = opened.first, None
        known = [] if first is None else [first]
        return [*known, *(opened.run(feed) for feed in self.feeds[len(known) :])]

    def round(self, names: Sequence[str], alone: Mapping[str, str] | None = None) -> dict[str, Turn]:
        """Every session takes one turn, in random order, all on the same feed; neither reported nor kept.

        Args:
            names: sessions.
            alone: name of a turn -> session that takes it without its twin, besides.
        """
        feed = self.feeds[len(self.rounds) % len(self.feeds)]
        takers = {name: name for name in names} | dict(alone or {})
        turns: dict[str, Turn] = {}
        gc.disable()  # a collection would land on whoever happens to run
        try:
            for turn in interleave(takers, self.generator):
                name = takers[turn]
                self.announce("timing", name)
                twin = self.twins.get(name) if turn == name else None
                run_twin = None if twin is None else self._runner(twin, feed)
                turns[turn] = take_turn(self._runner(name, feed), self.plan, self.clock, run_twin)
        finally:
            gc.enable()
        return turns

    def keep(self, turns: dict[str, Turn]) -> None:
        """Report a round and let it count; the next one is on the next feed."""
        self.rounds.append(turns)
        self.say_round("round", turns)

    def say_round(self, event: str, turns: Mapping[str, Turn], **fields: Any) -> None:
        """Report a round as ``event``."""
        self.speaker.say(event, turns={turn: figures.as_dict() for turn, figures in turns.items()}, **fields)

    def _runner(self, name: str, feed: Feed) -> Callable[[], object]:
        run = self.sessions[name].session.run
        return lambda: run(None, feed)


def judge(
    names: Sequence[str],
    reference: Sequence[Sequence[Any]],
    outputs: Sequence[Sequence[Any]],
    thresholds: Thresholds,
    noise_floor: float | None = None,
    thread_noise: float | None = None,
    graph: Graph | None = None,
) -> tuple[Gate, accuracy.Comparison]:
    """The gate ``accurate`` of outputs, by the policy's tolerances or by the user's metric."""
    # a length that differs is one of the losses that a lossy policy may allow
    align, scores = thresholds.top1 is not None, () if graph is None else graph.scores
    comparison = accuracy.compare_outputs(names, reference, outputs, align, scores)
    loss: float | str | None = None
    if thresholds.metric is not None:
        from ort_metainfer.trials.metric import loss_of

        loss = loss_of(thresholds.metric, names, reference, outputs)
    return gates.accurate(comparison, thresholds, noise_floor, thread_noise=thread_noise, loss=loss), comparison


def judge_outputs(
    bench: Bench,
    opened: Opened,
    reference: Sequence[Sequence[Any]],
    thresholds: Thresholds,
    noise_floor: float | None,
    thread_noise: float | None = None,
) -> tuple[list[Gate], accuracy.Comparison | None]:
    """The gates ``compiles`` and ``accurate`` of a session that was created."""
    try:
        outputs = bench.outputs(opened)
    except Refused as error:
        return [gates.compiles(None, 0, f"created, but does not run: {error}")], None
    names = [output.name for output in opened.session.get_outputs()]
    graph = bench.setup.graph
    accurate, comparison = judge(names, reference, outputs, thresholds, noise_floor, thread_noise, graph)
    compiled = gates.compiles(
        opened.creation_ms, len(bench.feeds), placement=opened.placement, min_share=thresholds.min_share
    )
    return [compiled] if not compiled.passed else [compiled, accurate], comparison
