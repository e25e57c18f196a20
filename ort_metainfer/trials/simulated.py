"""A trial host for described chips: real graphs, real inputs, real numerics on the CPU provider, reckoned latencies.

Every trial it gives is marked ``simulated`` and says so in each gate. Nothing of it is remembered as a measured
decision (see :mod:`ort_metainfer.remember`), and a session that is made for real never asks it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ort_metainfer.decision import Gate, Placement, Proposal, Timing, Trial
from ort_metainfer.errors import MetainferError, ProviderError
from ort_metainfer.hardware.devices import cpu_device
from ort_metainfer.hardware.simulation import Estimate, estimate
from ort_metainfer.model.work import NodeWork
from ort_metainfer.model.workload import workload
from ort_metainfer.problem import Device, Graph
from ort_metainfer.providers.chips import Chip, all_chips, get_chip
from ort_metainfer.providers.simulated import CPU, SIMULATED, SimulatedProvider, device_of
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.bench import Bench, Refused, judge_outputs
from ort_metainfer.trials.ledger import NO_TIME
from ort_metainfer.trials.task import Feeds, Setup, Thresholds, TrialHost

__all__ = ["SimulatedTrialHost"]

ON_CPU = "simulated device, its numerics on the CPU provider"

NOT_MODELLED = "simulated: the analytic model knows described chips, not what session options do on a processor"

NO_MEMORY = "simulated: the analytic model knows what a run takes of time, not of memory"

NO_WORK = "simulated: by the analytic model nothing in it takes time, so there is nothing to compare"


class _Silence:
    """Takes events and does nothing."""

    def say(self, event: str, **fields: Any) -> None:
        """Nothing."""


class SimulatedTrialHost:
    """A :class:`~ort_metainfer.trials.task.TrialHost` whose devices are described chips.

    A strategy of the simulated provider is compared with one described processor, beside which every chip is taken to
    be. Sessions are created in this process, on the CPU provider.

    Args:
        inner: reads models and makes inputs; by default child processes do.
        chips: names of the chips offered; by default all that come with the package.
        processor: name of the described processor; by default that beside the first chip.

    Raises:
        ProviderError: no such chip, or a processor that is none.

    Attributes:
        simulated: True, for whoever decides what to do with its trials.
    """

    simulated = True

    def __init__(self, inner: TrialHost | None = None, chips: Sequence[str] = (), processor: str | None = None) -> None:
        self._inner = inner
        self._chips = {chip.name: chip for chip in map(get_chip, chips)} if chips else all_chips()
        first = next(iter(self._chips.values()))
        self._processor = get_chip(processor or first.host or first.name)
        if self._processor.kind != "cpu":
            raise ProviderError(f"{self._processor.title} is no processor that a chip could be beside")
        self._work: dict[tuple[str, str], tuple[NodeWork, ...]] = {}

    @property
    def _reader(self) -> TrialHost:
        if self._inner is None:
            from ort_metainfer.trials.client import ChildTrialHost

            self._inner = ChildTrialHost()
        return self._inner

    def describe(self, setup: Setup, deadline: float) -> Graph:
        """The model's features, really read."""
        return self._reader.describe(setup, deadline)

    def devices(
        self, setup: Setup, providers: Sequence[str], deadline: float
    ) -> tuple[list[Device], list[tuple[str, str]]]:
        """This machine's CPU, which computes, and the described chips where the simulated provider is asked for."""
        found = [cpu_device()]
        refused: list[tuple[str, str]] = []
        for name in providers:
            if name == SIMULATED:
                found += [device_of(chip) for chip in self._chips.values()]
            elif name != CPU:
                refused.append((name, "only described chips are tried here, and nothing is measured"))
        return found, refused

    def prepare(self, setup: Setup, deadline: float) -> Feeds:
        """Inputs that the model really takes."""
        return self._reader.prepare(setup, deadline)

    def race(
        self,
        setup: Setup,
        candidates: Sequence[Proposal],
        thresholds: Thresholds,
        deadline: float,
        on_progress: Callable[[str], None] | None = None,
    ) -> list[Trial]:
        """Check each candidate's outputs on the CPU provider and reckon its latency; deterministic in its figures."""
        trials = []
        for proposal in candidates:
            if on_progress is not None:
                on_progress(f"simulating {proposal.strategy.describe()}")
            trials.append(self._race_one(setup, proposal, thresholds, deadline))
        return trials

    def _race_one(self, setup: Setup, proposal: Proposal, thresholds: Thresholds, deadline: float) -> Trial:
        trial = Trial(proposal.strategy, proposal.by, simulated=True)
        if time.monotonic() >= deadline:
            return replace(trial, failure=NO_TIME)
        if setup.objective == "memory":
            return replace(trial, failure=NO_MEMORY)
        if proposal.strategy.provider != SIMULATED:
            return replace(trial, failure=NOT_MODELLED)
        try:
            SimulatedProvider().check(proposal.strategy)
            chip = get_chip(proposal.strategy.device or next(iter(self._chips)), self._chips)
            trial = _judged(trial, setup, thresholds, deadline)
            if trial.failure is not None or not all(gate.passed for gate in trial.gates):
                return trial
            return self._timed(trial, setup, chip)
        except MetainferError as error:
            return replace(trial, failure=f"simulated: {error}")

    def _timed(self, trial: Trial, setup: Setup, chip: Chip) -> Trial:
        own = self._estimate(trial.strategy, setup, chip)
        if not own.p50_ms:
            return replace(trial, failure=NO_WORK)
        base = self._estimate(Strategy(), setup, self._processor)
        speedup = base.p50_ms / own.p50_ms
        timing = Timing(0, base.p50_ms, base.p50_ms, own.p50_ms, own.p50_ms, speedup, speedup, speedup, 1.0)
        if setup.objective == "tail":  # a model without chance: every run takes as long
            timing = replace(timing, baseline_p99_ms=base.p50_ms, p99_ms=own.p50_ms)
        elif setup.objective == "throughput":  # a chip is taken to serve one caller after the other
            timing = replace(timing, baseline_runs_per_s=1000 / base.p50_ms, runs_per_s=1000 / own.p50_ms)
        counts = {SIMULATED: own.nodes, CPU: own.nodes_on_host}
        placement = Placement(SIMULATED, counts, own.left, own.parts, own.reasons)
        return replace(trial, timing=timing, placement=placement)

    def _estimate(self, strategy: Strategy, setup: Setup, chip: Chip) -> Estimate:
        from ort_metainfer.model.inputs import load_feeds

        feed = load_feeds(setup.feeds)[0]
        shapes = {name: tuple(map(int, value.shape)) for name, value in feed.items() if hasattr(value, "shape")}
        key = (str(setup.model_file), str(shapes))
        if key not in self._work:
            self._work[key] = workload(setup.model_file, shapes)
        graph = setup.graph or self.describe(setup, time.monotonic() + 60)
        return estimate(
            chip,
            self._processor,
            self._work[key],
            [spec.name for spec in graph.outputs],
            precision=strategy.provider_options.get("precision", "as is"),  # type: ignore[arg-type]  # checked
            fixed_shapes=_are_fixed(graph, setup, strategy),
        )

    def duel(self, setup: Setup, trial: Trial, thresholds: Thresholds, deadline: float) -> Trial:
        """The gate ``pays`` by the same reckoning: a second process would say nothing else."""
        if trial.timing is None:
            return replace(trial, failure="simulated: it was not reckoned in the race")
        timing = trial.timing
        passed = timing.speedup > thresholds.min_speedup
        verdict = "" if passed else f", not above the {thresholds.min_speedup:.2f} asked for"
        detail = (
            f"simulated: {timing.speedup:.2f}x by the analytic model, {timing.p50_ms:.3f} ms against"
            f" {timing.baseline_p50_ms:.3f} ms on {self._processor.title}{verdict}; nothing was measured"
        )
        figures = {"speedup": timing.speedup, "simulated": 1.0}
        return replace(trial, duel=timing).with_gate(Gate("pays", passed, detail, figures))

    def close(self) -> None:
        """End what read the models."""
        if self._inner is not None:
            self._inner.close()


def _are_fixed(graph: Graph, setup: Setup, strategy: Strategy) -> bool:
    """Whether every input dimension is a number, by declaration, by the caller or by the strategy."""
    return all(
        spec.name in setup.shapes
        or (spec.shape is not None and all(isinstance(dim, int) or dim in strategy.static_shapes for dim in spec.shape))
        for spec in graph.inputs
    )


def _judged(trial: Trial, setup: Setup, thresholds: Thresholds, deadline: float) -> Trial:
    """The gates ``compiles`` and ``accurate``, of sessions on the CPU provider."""
    from ort_metainfer.model.inputs import load_feeds

    bench = Bench(setup, load_feeds(setup.feeds), _Silence(), deadline)
    on_cpu = replace(trial.strategy, provider=None, device=None, provider_options={})
    try:
        baseline = bench.open("baseline", Strategy(), keep=False, cpu_only=True)
        reference = bench.outputs(baseline)
        opened = bench.open("candidate", on_cpu, keep=False, cpu_only=True)
    except Refused as error:
        return trial.with_gate(Gate("compiles", False, f"{ON_CPU}: {error}"))
    gates, comparison = judge_outputs(bench, opened, reference, thresholds, None)
    for gate in gates:  # how long a session on the CPU took to create says nothing of the chip
        trial = trial.with_gate(Gate(gate.name, gate.passed, f"{ON_CPU}: {_without_times(gate)}"))
    if comparison is None:
        return trial
    errors = {name: error for name, error in comparison.errors.items() if math.isfinite(error)}
    return replace(trial, error=comparison.error if math.isfinite(comparison.error) else None, errors=errors)


def _without_times(gate: Gate) -> str:
    if gate.name == "compiles" and gate.passed:
        return "created, runs on every input"
    return f"{gate.detail}; what the chip's own arithmetic would change is not simulated"
