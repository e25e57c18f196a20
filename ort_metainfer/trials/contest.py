"""The two contests a child holds: the race of all candidates, and the duel of its winner with the default."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from ort_metainfer.decision import Gate
from ort_metainfer.hardware.cgroups import quota_cores
from ort_metainfer.problem import Graph
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials import gates, memory
from ort_metainfer.trials.accuracy import compare_outputs
from ort_metainfer.trials.apart import bound_ms
from ort_metainfer.trials.bench import CPU, Bench, Opened, Refused, judge, judge_outputs
from ort_metainfer.trials.duel import ALONE, BASELINE, CANDIDATE, look_at
from ort_metainfer.trials.steady import SteadyRounds
from ort_metainfer.trials.task import Thresholds
from ort_metainfer.trials.timing import MIN_ROUNDS, still_in, still_within
from ort_metainfer.trials.turn import TurnPlan, rest
from ort_metainfer.trials.warmup import WarmUp, warm_up

__all__ = ["Race", "hold_duel"]

RACE_SHARE = 0.7
"""Share of the time in which all candidates must get their first rounds; the rest is for deciding between them."""

NOISE_SHARE = 0.1
"""Share of the time that measuring the noise floor may take, and half as much the second witness of it."""

MEMORY_RESERVE = 0.15
"""Share of the machine's memory that must stay free, or no further session is created."""

UNOPTIMISED = Strategy(session_options={"graph_optimization_level": "disable"})

WARM_SHARE = 0.03
"""Share of the time left that warming up may take: once for the baseline, once for all sessions before the timing."""

CREATION_GUESS = 1.5
"""A candidate's creation time over the baseline's, before one was seen (OpenVINO: 1.5 to 5, own measurement)."""


class Race:
    """All candidates in one process, baseline first and last.

    Args:
        bench: empty.
        candidates: index and strategy, in order of preference.
        thresholds: what the gates demand.
        with_noise: whether to measure the noise floor.
    """

    def __init__(
        self, bench: Bench, candidates: Sequence[tuple[int, Strategy]], thresholds: Thresholds, with_noise: bool = True
    ) -> None:
        self.bench, self.candidates, self.thresholds, self.with_noise = bench, candidates, thresholds, with_noise
        self.is_pipeline = bench.setup.objective == "pipeline"
        self.noise_floor: float | None = None
        self.thread_noise: float | None = None
        self.latency_ms = self.baseline_creation_ms = 0.0
        self.creations_ms: list[float] = []
        self.running: list[str] = []

    def hold(self) -> dict[str, Any]:
        """Create, check, time; returns the fields of the last event.

        Raises:
            Refused: the baseline or the reference cannot be created or run.
        """
        steady, bench = SteadyRounds(self.bench), self.bench
        baseline = bench.open_measured("baseline", Strategy())
        self.baseline_creation_ms = baseline.creation_ms
        self.latency_ms, again = warm_baseline(bench, baseline)
        bench.plan = plan_of(bench, self.latency_ms)
        bench.speaker.say("baseline", creation_ms=baseline.creation_ms, latency_ms=self.latency_ms)
        if _is_random(baseline, again):
            for index, _ in self.candidates:
                self._say_trial(index, gates=[gates.accurate(compare_outputs([], [], []), self.thresholds, None, True)])
            return {}
        self._admit_all(self._reference(baseline), baseline)
        if not self.running:
            return {}
        bench.open("baseline_again", Strategy())
        if self.is_pipeline:
            bench.twins |= {"baseline": "baseline_again", "baseline_again": "baseline"}
        warm_all(bench, self.latency_ms)
        steady.begin()
        self._time(steady)
        return steady.states()

    def _reference(self, baseline: Opened) -> list[Sequence[Any]]:
        """Outputs of the original model on the CPU provider, and the noise floor beside them."""
        bench = self.bench
        if all(name == CPU for name, _ in bench.setup.baseline.providers):
            reference = bench.outputs(baseline)
        else:
            reference = bench.outputs(bench.open("reference", Strategy(), keep=False, cpu_only=True))
        if self.with_noise:
            self.noise_floor = self._noise(baseline, reference, UNOPTIMISED, NOISE_SHARE)
            self.thread_noise = self._noise(baseline, reference, self._other_threads(), NOISE_SHARE / 2)
        return reference

    def _noise(
        self, baseline: Opened, reference: list[Sequence[Any]], strategy: Strategy, share: float
    ) -> float | None:
        """The reference against itself under ``strategy``, on as many feeds as that share of the time allows."""
        allowed_ms = share * self.bench.left_s() * 1000 - baseline.creation_ms
        feeds = min(len(reference), int(allowed_ms / max(self.latency_ms, 1e-3)))
        if feeds < 1:
            return None
        try:
            plain = self.bench.open("noise", strategy, keep=False, cpu_only=True)
            self.bench.announce("checking", "noise")
            outputs = [plain.run(feed) for feed in self.bench.feeds[:feeds]]
        except Refused:  # some models do not load unoptimised: then there is no noise floor
            return None
        return compare_outputs(_names(plain), reference[:feeds], outputs).error

    def _other_threads(self) -> Strategy:
        """Another number of threads than the reference's: sums are then taken in another order."""
        asked = int(self.bench.setup.baseline.properties.get("intra_op_num_threads", 0))
        # on two processors or fewer onnxruntime may run one thread by itself: it counts physical cores
        is_one = asked == 1 or (not asked and (os.cpu_count() or 1) <= 2)
        return Strategy(session_options={"intra_op_num_threads": 3 if is_one else 1})

    def _admit_all(self, reference: list[Sequence[Any]], baseline: Opened) -> None:
        for position, (index, strategy) in enumerate(self.candidates):
            lack = self._lack(baseline)
            if lack is not None:
                for left_out, _ in self.candidates[position:]:
                    self.bench.speaker.say("untried", candidate=left_out, reason=lack)
                return
            self._admit(index, strategy, reference)

    def _lack(self, baseline: Opened) -> str | None:
        """What is missing for one more candidate, or None."""
        creation_ms = max([CREATION_GUESS * self.baseline_creation_ms, *self.creations_ms])
        turn_s = self.bench.plan.seconds(self.latency_ms, self.is_pipeline)
        needed_s = (creation_ms * (1 + self.is_pipeline) + len(self.bench.feeds) * self.latency_ms) / 1000
        needed_s += self.baseline_creation_ms / 1000 + MIN_ROUNDS * (len(self.running) + 3) * turn_s
        if needed_s > self.bench.left_s() * (RACE_SHARE if self.running else 1.0):
            return (
                f"no time left: a run takes {self.latency_ms:.3g} ms and creating the default session"
                f" {self.baseline_creation_ms:.0f} ms; a larger budget_s, or prewarming with one, allows more"
            )
        available, total = memory.available_mb(), memory.total_mb()
        if available is None or total is None or available - (baseline.memory_mb or 0) > MEMORY_RESERVE * total:
            return None
        return f"no memory left for another session: {available:.0f} of {total:.0f} MB are available"

    def _admit(self, index: int, strategy: Strategy, reference: list[Sequence[Any]]) -> None:
        """Create one candidate, judge its outputs, and let it race if they are right."""
        bench, name = self.bench, str(index)
        try:
            opened = bench.open_measured(name, strategy)
        except Refused as error:
            self._say_trial(index, gates=[gates.compiles(None, 0, str(error))])
            return
        self.creations_ms.append(opened.creation_ms)
        verdicts, comparison = judge_outputs(
            bench, opened, reference, self.thresholds, self.noise_floor, self.thread_noise
        )
        self._say_trial(
            index,
            gates=verdicts,
            creation_ms=opened.creation_ms,
            peak_memory_mb=opened.memory_mb,
            placement=None if opened.placement is None else asdict(opened.placement),
            error=comparison.error if comparison else None,
            errors=dict(comparison.errors) if comparison else {},
        )
        if not all(gate.passed for gate in verdicts):
            bench.release(name)
            return
        if self.is_pipeline:
            bench.open(f"{name}_twin", strategy)
            bench.twins[name] = f"{name}_twin"
        self.running.append(name)

    def _say_trial(self, index: int, gates: Sequence[Any], **fields: Any) -> None:
        plain = [asdict(gate) for gate in gates]
        fields |= {"baseline_creation_ms": self.baseline_creation_ms}
        fields |= {"noise_floor": self.noise_floor, "thread_noise": self.thread_noise}
        self.bench.speaker.say("trial", candidate=index, trial={"gates": plain, **fields})

    def _time(self, steady: SteadyRounds) -> None:
        bench, is_over = self.bench, False
        while self.running and not is_over and steady.has_time:
            if not steady.take([*BASELINE, *self.running]):
                continue
            confidence = steady.course.confidence(self.thresholds.confidence)
            staying, is_over = self._look(confidence)
            for name in set(self.running) - set(staying):
                bench.release(name, f"{name}_twin")
            self.running = staying

    def _look(self, confidence: float) -> tuple[list[str], bool]:
        """Who stays, and whether it is over. For ``memory`` nobody races the others: each has a bound to keep."""
        rounds, thresholds = self.bench.rounds, self.thresholds
        if thresholds.objective == "memory":
            return still_within(rounds, self.running, BASELINE, confidence, thresholds.max_slowdown)
        return still_in(rounds, self.running, BASELINE, confidence, thresholds.min_speedup)


def plan_of(bench: Bench, latency_ms: float) -> TurnPlan:
    """How the sessions of a contest take turns, by its objective."""
    setup = bench.setup
    return TurnPlan.of(latency_ms, setup.objective, setup.callers, quota_cores() is not None)


def _names(opened: Opened) -> list[str]:
    return [output.name for output in opened.session.get_outputs()]


def _is_random(opened: Opened, again: Sequence[Any]) -> bool:
    """Whether the first run and one more on the same feed disagree beyond rounding."""
    if opened.first is None:
        return False
    comparison = compare_outputs(_names(opened), [opened.first], [again])
    return comparison.mismatch is not None or comparison.error > gates.RANDOM_ERROR


def warm_baseline(bench: Bench, opened: Opened) -> tuple[float, Sequence[Any]]:
    """Milliseconds and outputs of a run once the process came to rest and the session settled, for planning only.

    Raises:
        Refused: onnxruntime raised.
    """
    bench.announce("checking", "baseline")
    rest(bench.clock)
    warm = warm_up(partial(opened.run, bench.feeds[0]), bench.clock, WARM_SHARE * bench.left_s(), min_runs=1)
    _say_warmed(bench, "baseline", warm)
    return warm.latency_ms or 0.0, warm.outputs


def warm_all(bench: Bench, latency_ms: float) -> None:
    """Every session that will take turns runs until it has settled, as far as the time for that reaches.

    Raises:
        Refused: onnxruntime raised.
    """
    cap_s = WARM_SHARE * bench.left_s() / max(1, len(bench.sessions))
    for name, opened in bench.sessions.items():
        bench.announce("checking", name)
        _say_warmed(bench, name, warm_up(partial(opened.run, bench.feeds[0]), bench.clock, cap_s, latency_ms))


def _say_warmed(bench: Bench, name: str, warm: WarmUp) -> None:
    bench.speaker.say("warmed", session=name, runs=warm.runs, seconds=warm.seconds, is_settled=warm.is_settled)


def _refuted(candidate: Opened, baseline: Opened, thresholds: Thresholds, graph: Graph | None = None) -> Gate | None:
    """The failed gate where first outputs are not the baseline's; None where they are.

    A user's metric may need more than one input: then only a NaN or infinity speaks against the candidate here.
    """
    if candidate.first is None or baseline.first is None:
        return None
    plain, names = replace(thresholds, metric=None), _names(baseline)
    gate, comparison = judge(names, [baseline.first], [candidate.first], plain, graph=graph)
    if thresholds.metric is not None and comparison.stray is None and comparison.not_finite is None:
        return None
    return None if gate.passed else gate


def hold_duel(bench: Bench, strategy: Strategy, thresholds: Thresholds) -> dict[str, Any]:
    """The candidate first, then the baseline twice, then the candidate again; rounds until it is decided.

    Outputs on the first feed are held against the baseline's first: what the race saw must hold in this process too.

    Returns:
        The fields of the last event.

    Raises:
        Refused: a session cannot be created or run.
    """
    steady, is_pipeline = SteadyRounds(bench), bench.setup.objective == "pipeline"
    candidate = bench.open_measured("candidate", strategy)
    baseline = bench.open_measured("baseline", Strategy())
    latency_ms, _ = warm_baseline(bench, baseline)
    refuted = _refuted(candidate, baseline, thresholds, bench.setup.graph)
    if refuted is not None:
        bench.speaker.say("refuted", gate=asdict(refuted))
        return {}
    candidate.first = baseline.first = None
    bench.plan = plan_of(bench, latency_ms)
    bench.open("baseline_again", Strategy())
    rounds_s = MIN_ROUNDS * (4 + len(ALONE) * is_pipeline) * bench.plan.seconds(latency_ms, is_pipeline)
    if is_pipeline or candidate.creation_ms / 1000 + rounds_s < bench.left_s():
        bench.open("candidate_again", strategy)
    if is_pipeline:
        bench.twins |= {first: second for pair in (CANDIDATE, BASELINE) for first, second in (pair, pair[::-1])}
    warm_all(bench, latency_ms)
    steady.begin()
    names, is_over = [name for name in (*CANDIDATE, *BASELINE) if name in bench.sessions], False
    while not is_over and steady.has_time:
        if steady.take(names, ALONE if is_pipeline else None):
            confidence = steady.course.confidence(thresholds.confidence)
            look = look_at(bench.rounds, replace(thresholds, confidence=confidence))
            is_over = look is not None and look.is_over
    states = steady.states()
    bench.speaker.say("apart", **states)  # what happens from here on takes nothing from the duel
    alone = bench.setup.objective == "latency"  # under the others a run takes longer for other reasons than copies
    return {**states, "bound_ms": bound_ms(candidate.session, bench.feeds[0], bench.left_s()) if alone else None}
