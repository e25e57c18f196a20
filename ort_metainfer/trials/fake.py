"""A trial host for tests: scripted outcomes, the real gates, a clock that moves only when told. Starts no process."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ort_metainfer.decision import Gate, Placement, Proposal, Timing, Trial
from ort_metainfer.errors import MetainferError
from ort_metainfer.hardware.devices import cpu_device
from ort_metainfer.problem import Device, Graph, HardwareState, TensorSpec
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials import gates
from ort_metainfer.trials.accuracy import Comparison
from ort_metainfer.trials.duel import UNSTEADY
from ort_metainfer.trials.ledger import NO_TIME
from ort_metainfer.trials.peaks import with_peaks
from ort_metainfer.trials.task import Feeds, Setup, Thresholds

__all__ = ["FakeClock", "FakeTrialHost", "Scripted"]

FAKE_GRAPH = Graph(
    inputs=(TensorSpec("x", "float32", (1, 4)),),
    outputs=(TensorSpec("y", "float32", (1, 4)),),
    ir_version=10,
    opsets={"ai.onnx": 17},
    operators={"Identity": 1},
    node_count=1,
    parameter_count=0,
    weight_bytes=0,
)


BASELINE_MB = 100.0
"""Peak memory of the default session."""

QUIET = HardwareState(when=0.0, window_s=1.0, others_cpu=0.0, steal=0.0)
"""A machine on which nothing else happens."""


class FakeClock:
    """Time that moves only when told: a :class:`~ort_metainfer.trials.turn.Clock`.

    Attributes:
        time_s: what it shows.
        spin_s: CPU time that idle thread pools will still burn while this process sleeps.
    """

    def __init__(self, time_s: float = 0.0) -> None:
        self.time_s, self.spin_s, self._cpu_s = time_s, 0.0, 0.0

    def now_s(self) -> float:
        """Wall time."""
        return self.time_s

    def cpu_s(self) -> float:
        """CPU time."""
        return self._cpu_s

    def sleep(self, seconds: float) -> None:
        """Move on; threads that spin burn CPU time meanwhile."""
        burnt = min(self.spin_s, seconds)
        self.spin_s -= burnt
        self._cpu_s += burnt
        self.time_s += seconds

    def work(self, seconds: float, spin_s: float = 0.0) -> None:
        """A run that takes ``seconds`` of wall and CPU time, after which threads spin for ``spin_s``."""
        self.time_s += seconds
        self._cpu_s += seconds
        self.spin_s = spin_s

    def switches(self) -> int | None:
        """None: nothing is counted here."""
        return None


@dataclass(frozen=True)
class Scripted:
    """How a strategy will turn out.

    Attributes:
        speedup: in the race, of what the objective asks for; ``duel_speedup`` in the duel, the same where None.
        spread: half the interval's width, as a share of the speed-up.
        error: relative L2.
        refusal: onnxruntime's message where the session cannot be created.
        failure: why the child died over it.
        duel_failure: why the duel's child died.
        cost_s: what a trial takes of the clock.
        placement: which nodes run where.
        before: state of the machine before; quiet where nothing is said.
        after: and after.
        flags: what speaks against its figures.
        is_steady: whether its duel had undisturbed rounds.
        slowdown: under ``memory``: how many times the default's latency a run takes.
    """

    speedup: float = 1.0
    duel_speedup: float | None = None
    spread: float = 0.01
    error: float = 0.0
    refusal: str | None = None
    failure: str | None = None
    duel_failure: str | None = None
    creation_ms: float = 10.0
    cost_s: float = 0.0
    placement: Placement | None = None
    before: HardwareState | None = QUIET
    after: HardwareState | None = QUIET
    flags: tuple[str, ...] = ()
    is_steady: bool = True
    slowdown: float = 1.0


class FakeTrialHost:
    """A :class:`~ort_metainfer.trials.task.TrialHost` that carries out a script.

    Args:
        script: strategy -> outcome; or a function of the strategy. Strategies it does not name change nothing.
        graph: what ``describe`` returns, or the error it raises.
        feeds: what ``prepare`` returns, or the error it raises.
        clock: told how long trials take; without one every deadline is kept.
        baseline_ms: latency of the default session.

    Attributes:
        calls: method names in the order they were called.
        raced: strategies raced, in order.
        dueled: strategies dueled, in order.
        is_closed: whether ``close`` was called.
    """

    def __init__(
        self,
        script: Mapping[Strategy, Scripted] | Callable[[Strategy], Scripted] | None = None,
        graph: Graph | MetainferError = FAKE_GRAPH,
        feeds: Feeds | MetainferError = Feeds(1, False, "made up by the fake host", {"x": (1, 4)}),  # noqa: B008 (frozen)
        clock: FakeClock | None = None,
        baseline_ms: float = 10.0,
    ) -> None:
        self._script = script
        self._graph, self._feeds, self._clock, self._baseline_ms = graph, feeds, clock, baseline_ms
        self.calls: list[str] = []
        self.raced: list[Strategy] = []
        self.dueled: list[Strategy] = []
        self.is_closed = False

    def _outcome(self, strategy: Strategy) -> Scripted:
        if callable(self._script):
            return self._script(strategy)
        return (self._script or {}).get(strategy, Scripted())

    def describe(self, setup: Setup, deadline: float) -> Graph:
        """The graph given."""
        self.calls.append("describe")
        if isinstance(self._graph, MetainferError):
            raise self._graph
        return self._graph

    def devices(
        self, setup: Setup, providers: Sequence[str], deadline: float
    ) -> tuple[list[Device], list[tuple[str, str]]]:
        """This machine's CPU; every other provider offers none."""
        self.calls.append("devices")
        others = [name for name in providers if name != "CPUExecutionProvider"]
        return [cpu_device()], [(name, "the fake host has no such device") for name in others]

    def prepare(self, setup: Setup, deadline: float) -> Feeds:
        """The feeds given; nothing is written."""
        self.calls.append("prepare")
        if isinstance(self._feeds, MetainferError):
            raise self._feeds
        return self._feeds

    def race(
        self,
        setup: Setup,
        candidates: Sequence[Proposal],
        thresholds: Thresholds,
        deadline: float,
        on_progress: Callable[[str], None] | None = None,
    ) -> list[Trial]:
        """Outcomes by the script; those past the deadline had no time."""
        self.calls.append("race")
        trials = []
        for proposal in candidates:
            outcome = self._outcome(proposal.strategy)
            if on_progress is not None:
                on_progress(f"creating a session: {proposal.strategy.describe()}")
            if self._is_late(outcome.cost_s, deadline):
                trials.append(Trial(proposal.strategy, proposal.by, failure=NO_TIME))
                continue
            self.raced.append(proposal.strategy)
            trials.append(self._trial(proposal, outcome, thresholds, setup))
        return trials

    def _is_late(self, cost_s: float, deadline: float) -> bool:
        if self._clock is None:
            return False
        self._clock.sleep(min(cost_s, max(0.0, deadline - self._clock.now_s())))
        return self._clock.now_s() >= deadline

    def _trial(self, proposal: Proposal, outcome: Scripted, thresholds: Thresholds, setup: Setup) -> Trial:
        trial = Trial(
            proposal.strategy, proposal.by, failure=outcome.failure, before=outcome.before, flags=outcome.flags
        )
        if outcome.failure is not None:
            return trial
        trial = trial.with_gate(gates.compiles(outcome.creation_ms, 1, outcome.refusal))
        if outcome.refusal is not None:
            return trial
        trial = trial.with_gate(gates.accurate(Comparison({"y": outcome.error}), thresholds))
        known = replace(
            trial,
            creation_ms=outcome.creation_ms,
            baseline_creation_ms=10.0,
            error=outcome.error,
            errors={"y": outcome.error},
            placement=outcome.placement,
            after=outcome.after,
        )
        return replace(known, timing=self._timing(outcome.speedup, outcome, setup)) if trial.gates[-1].passed else known

    def _timing(self, speedup: float, outcome: Scripted, setup: Setup) -> Timing:
        timing = self._latency(outcome.spread, 1 / outcome.slowdown if setup.objective == "memory" else speedup)
        base, own = timing.baseline_p50_ms, timing.p50_ms
        if setup.objective == "tail":
            return replace(timing, baseline_p99_ms=2 * base, p99_ms=2 * own)
        if setup.objective == "throughput":
            return replace(timing, baseline_runs_per_s=1000 / base, runs_per_s=1000 / own)
        if setup.objective == "memory":
            own_mb = [BASELINE_MB / speedup * math.exp(sign * outcome.spread) for sign in (-1, 0, 0, 0, 0, 1)]
            return with_peaks(timing, [BASELINE_MB] * len(own_mb), own_mb, 0.95)
        return timing

    def _latency(self, spread: float, speedup: float) -> Timing:
        base, own = self._baseline_ms, self._baseline_ms / speedup
        low, high = (speedup * math.exp(sign * spread) for sign in (-1, 1))
        return Timing(12, base, base * 1.1, own, own * 1.1, speedup, low, high, 1.01, speedup)

    def duel(self, setup: Setup, trial: Trial, thresholds: Thresholds, deadline: float) -> Trial:
        """The gate ``pays`` by the script's ``duel_speedup``."""
        self.calls.append("duel")
        self.dueled.append(trial.strategy)
        outcome = self._outcome(trial.strategy)
        if outcome.duel_failure is not None:
            return replace(trial, failure=outcome.duel_failure)
        if self._is_late(outcome.cost_s, deadline):
            return trial.with_gate(Gate("pays", False, "no time left to confirm it in a second process"))
        if thresholds.steady_only and not outcome.is_steady:
            return trial.with_gate(Gate("pays", False, f"{UNSTEADY}: 0 of 12 rounds were undisturbed"))
        if thresholds.objective == "memory":
            within = gates.bounded(self._latency(outcome.spread, 1 / outcome.slowdown), thresholds)
            if not within.passed:
                return trial.with_gate(within)
        duel = self._timing(outcome.duel_speedup or outcome.speedup, outcome, setup)
        return replace(trial, duel=duel).with_gate(gates.pays(trial.timing, duel, thresholds))

    def close(self) -> None:
        """Remembered."""
        self.calls.append("close")
        self.is_closed = True
