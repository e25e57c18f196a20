"""What a trial is given: the caller's session in plain values, the candidates, the thresholds. Data only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from ort_metainfer.decision import Proposal, Trial
from ort_metainfer.problem import Device, Graph, SessionSpec

__all__ = ["MIN_COSINE", "TOLERANCES", "Feeds", "Setup", "Thresholds", "TrialHost", "is_simulated"]

TOLERANCES: Mapping[str, float] = {"strict": 1e-4, "balanced": 1e-2, "fast": 1e-1}
"""Accuracy policy -> relative L2 error allowed on every float output (DESIGN: promise 2)."""

MIN_MEMORY_GAIN = 1.05
"""What a strategy must save of a session's peak memory to be worth its risk. A choice: peaks of the same session in
several processes lie within 1% (own measurement), and a few per cent decide about nothing."""

TOP1_AGREEMENT = 0.99
"""Share of rows whose largest element must stay where it was, for lossy policies."""


MIN_COSINE: Mapping[str, float] = {"balanced": 0.9999, "fast": 0.995}
"""Lossy accuracy policy -> cosine that every float output must keep with the reference's, in each sample of a batch.

Relative L2 over a whole batch lets one bad sample hide among good ones, and says nothing of an output far below its
usual size. Measured on a sentence encoder (MiniLM): dynamic int8 per tensor gives 0.92, per channel 0.985; rankings by
similarity move with both, so both are refused; bfloat16 keeps 0.99997.
"""


@dataclass(frozen=True)
class Thresholds:
    """What the gates demand.

    Attributes:
        max_error: relative L2 error allowed on every float output.
        top1: share of rows whose arg max must agree; None where the policy does not ask. Where it does, outputs whose
            length depends on the data are aligned, and as large a share of their rows must find their counterpart.
        min_cosine: cosine that every float output must keep; None where the policy does not ask.
        metric: a user's loss in place of all these (see ``trials/metric.py``); None for none.
        metric_threshold: how large that may be.
        min_speedup: the whole interval of the paired speed-up must lie above this, and above the A/A band.
        confidence: of that interval, after correction for repeated looks.
        noninferior: for ``pipeline``: how much slower the session may be when it runs alone after all (0.9 = 10%).
        steady_only: whether only rounds may count during which the machine did not change (load-sensitive strategies).
        objective: what must be better (see ``Settings.objective``); ``min_speedup`` is asked of that.
        max_slowdown: for ``memory``: how many times the default's median latency is allowed.
        min_share: share of the work (``Placement.share``) that a strategy's provider must take to be worth timing: what
            mostly falls back to the CPU is dropped before. Half is a choice.
    """

    max_error: float = TOLERANCES["strict"]
    top1: float | None = None
    min_cosine: float | None = None
    metric: str | None = None
    metric_threshold: float = 0.0
    min_speedup: float = 1.02
    confidence: float = 0.95
    noninferior: float = 0.9
    steady_only: bool = False
    objective: str = "latency"
    max_slowdown: float = 1.1
    min_share: float = 0.5

    @classmethod
    def of(cls, accuracy: str, metric: str | None = None, metric_threshold: float | None = None) -> Thresholds:
        """The thresholds of an accuracy policy, with a user's metric where there is one."""
        return cls(
            max_error=TOLERANCES[accuracy],
            top1=None if accuracy == "strict" else TOP1_AGREEMENT,
            min_cosine=MIN_COSINE.get(accuracy),
            metric=metric,
            metric_threshold=metric_threshold or 0.0,
        )

    def aiming(self, objective: str, max_slowdown: float | None = None) -> Thresholds:
        """The same for an objective."""
        asked = max(self.min_speedup, MIN_MEMORY_GAIN) if objective == "memory" else self.min_speedup
        bound = self.max_slowdown if max_slowdown is None else max_slowdown
        return replace(self, objective=objective, min_speedup=asked, max_slowdown=bound)


@dataclass(frozen=True)
class Setup:
    """The session under trial, so that a fresh process can make it.

    Attributes:
        model_file: the model; where the caller gave bytes, a temporary file that holds them.
        as_bytes: load the file and give onnxruntime its bytes, as the caller did.
        baseline: the caller's session.
        objective: see ``Settings.objective``.
        callers: threads that call the session at once, for ``throughput``.
        feeds: folder of feeds, ``0.npz``, ``1.npz``, ...; filled by ``TrialHost.prepare`` where empty.
        graph: the model's features, once known.
        shapes: input name -> shape to run with, where the caller said.
        label: what to call the model in messages.
        inputs_are_real: whether the feeds came from the caller or were captured: what is lossy is calibrated on them.
    """

    model_file: Path
    baseline: SessionSpec
    feeds: Path
    as_bytes: bool = False
    objective: str = "latency"
    graph: Graph | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    label: str = "model"
    inputs_are_real: bool = False
    callers: int = 1


@dataclass(frozen=True)
class Feeds:
    """What the sessions are run with: how many, whether real, and in one line where from."""

    count: int
    are_real: bool
    origin: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class TrialHost(Protocol):
    """Runs trials in other processes. ``deadline`` is a time.monotonic() value: every method ends within 0.5 s of it.

    A child that crashes, hangs or eats memory costs the trial that it was carrying out, never the caller: that trial
    comes back with ``failure`` set, and the rest goes on in a new child while time remains.
    """

    def describe(self, setup: Setup, deadline: float) -> Graph:
        """The model's features.

        Raises:
            ModelError: it cannot be parsed.
            TrialError: the child crashed or the time was up.
        """
        ...

    def devices(
        self, setup: Setup, providers: Sequence[str], deadline: float
    ) -> tuple[list[Device], list[tuple[str, str]]]:
        """Devices of providers, and (provider, reason) for each that offers none.

        Asked for in another process because the answer may take registering a library, which cannot be undone.

        Raises:
            TrialError: the child crashed or the time was up.
        """
        ...

    def prepare(self, setup: Setup, deadline: float) -> Feeds:
        """Fill an empty ``setup.feeds`` with synthetic inputs that the baseline takes, or check those given.

        Raises:
            InputsError: the baseline refuses them, or none could be made; with onnxruntime's message.
            TrialError: the child crashed or the time was up.
        """
        ...

    def race(
        self,
        setup: Setup,
        candidates: Sequence[Proposal],
        thresholds: Thresholds,
        deadline: float,
        on_progress: Callable[[str], None] | None = None,
    ) -> list[Trial]:
        """Try candidates, in order of preference, against the baseline, all in one child; a Trial for each, in order.

        Baseline first and last, candidates in between; each passes ``compiles`` and ``accurate`` before it is timed.
        A candidate there was no time for comes back with ``failure`` saying so. ``pays`` is not judged here: the
        figures are in ``timing``.
        """
        ...

    def duel(self, setup: Setup, trial: Trial, thresholds: Thresholds, deadline: float) -> Trial:
        """Confirm a race's leader in a fresh process, created in reverse order; adds ``duel`` and the gate ``pays``."""
        ...

    def close(self) -> None:
        """End every child."""
        ...


def is_simulated(host: TrialHost | None) -> bool:
    """Whether a host reckons with described chips instead of measuring: its word is never kept as a measurement."""
    return bool(getattr(host, "simulated", False))
