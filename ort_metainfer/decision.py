"""What was decided and why: proposals, refusals, trials with their gates, the decision. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ort_metainfer.problem import CacheKey, Graph, HardwareState
from ort_metainfer.ratios import speedup_words
from ort_metainfer.strategy import Strategy

__all__ = ["Decision", "Gate", "Manifest", "Placement", "Proposal", "Refusal", "Timing", "Trial", "WorstNode"]

Origin = Literal["override", "cache", "meta-model", "rules", "search", "default", "pass-through", "off"]


@dataclass(frozen=True)
class Proposal:
    """A strategy worth a trial. ``source`` says where the reason comes from (a measurement, a document, an issue)."""

    strategy: Strategy
    by: str
    reason: str
    source: str = ""


@dataclass(frozen=True)
class Refusal:
    """A "no": what was refused, by whom, why."""

    subject: str
    by: str
    reason: str
    source: str = ""


@dataclass(frozen=True)
class RuleVerdict:
    """What one rule wanted for a problem, and which rule it lost to; ``lost_to`` is empty where it stood."""

    rule: str
    priority: int
    kind: Literal["proposes", "requires", "forbids"]
    wanted: str
    lost_to: str = ""


@dataclass(frozen=True)
class Gate:
    """One gate's verdict; ``figures`` carry what it was judged on."""

    name: Literal["compiles", "accurate", "pays"]
    passed: bool
    detail: str
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Timing:
    """Candidate against baseline, interleaved in one process; latencies in milliseconds of one run.

    ``speedup`` is baseline / candidate of what the objective asks for (latency, P99, time per run of all callers, peak
    memory): the median over rounds of the paired ratio, with its distribution-free interval. ``band`` is how far two
    identical sessions lay apart (1.03 = 3%). ``cpu_ratio`` is the same ratio in process CPU time. The rest is known
    under one objective each: ``tail`` gives P99 over all runs, ``throughput`` runs per second of all callers (its
    latencies are those of a run among others), ``memory`` peak memory in MB of 2**20 bytes, and how many times the
    baseline's median latency a run takes, with the upper end of its interval.
    """

    rounds: int
    baseline_p50_ms: float
    baseline_p90_ms: float
    p50_ms: float
    p90_ms: float
    speedup: float
    speedup_low: float
    speedup_high: float
    band: float
    cpu_ratio: float | None = None
    p99_ms: float | None = None
    baseline_p99_ms: float | None = None
    runs_per_s: float | None = None
    baseline_runs_per_s: float | None = None
    peak_mb: float | None = None
    baseline_peak_mb: float | None = None
    slowdown: float | None = None
    slowdown_high: float | None = None


@dataclass(frozen=True)
class Placement:
    """Which nodes of a session run where, as onnxruntime tells after creating it.

    Attributes:
        provider: the provider that was asked for.
        nodes: provider -> nodes it took.
        left: operator -> nodes that the asked-for provider left to another one.
        partitions: connected pieces that the asked-for provider runs; each boundary may cost a copy.
        reasons: why it left what it left, as far as that can be told, a sentence each.
        products: how many of the convolutions, matrix products and recurrent nodes, which are where the time goes, the
            asked-for provider took.
        all_products: how many there are.
    """

    provider: str
    nodes: Mapping[str, int]
    left: Mapping[str, int] = field(default_factory=dict)
    partitions: int = 0
    reasons: tuple[str, ...] = ()
    products: int = 0
    all_products: int = 0

    @property
    def share(self) -> float:
        """Share of the work that the asked-for provider runs, by products where there are any, else by nodes."""
        if self.all_products:
            return self.products / self.all_products
        return self.taken / self.total if self.total else 0.0

    @property
    def short_name(self) -> str:
        """The provider's name as people say it."""
        return self.provider.removesuffix("ExecutionProvider")

    @property
    def total(self) -> int:
        """Nodes of the session, after onnxruntime's own rewriting."""
        return sum(self.nodes.values())

    @property
    def taken(self) -> int:
        """Nodes that the asked-for provider runs."""
        return self.nodes.get(self.provider, 0)

    def describe(self) -> str:
        """``31 of 49 nodes on QNN in 2 parts; 18 on CPU because ...``."""
        parts = f" in {self.partitions} parts" if self.partitions > 1 else ""
        words = [f"{self.taken} of {self.total} nodes on {self.short_name}{parts}"]
        for other, count in sorted(self.nodes.items()):
            if other != self.provider and count:
                because = f" because {'; '.join(self.reasons)}" if self.reasons else ""
                words.append(f"{count} on {other.removesuffix('ExecutionProvider')}{because}")
        return "; ".join(words)


@dataclass(frozen=True)
class WorstNode:
    """A node of a lossy strategy that is further off than others, on real inputs.

    Attributes:
        node: its name, or that of its first output.
        operator: what the float model computes there.
        error: relative L2 error of its output against the float model's, worst input; None where a NaN, an infinity or
            another shape stands in its place. What it was given may be off already.
        added: how much of it this node adds; None as above.
        fault: what is wrong with its scales; empty where nothing is.
    """

    node: str
    operator: str
    error: float | None
    added: float | None
    fault: str = ""

    def describe(self) -> str:
        """``dense (MatMul) 1.2e-01``, and its fault."""
        off = "no number" if self.error is None else f"{self.error:.1e}"
        return f"{self.node} ({self.operator}) {off}{f': {self.fault}' if self.fault else ''}"


@dataclass(frozen=True)
class Trial:
    """One strategy tried on the device.

    Attributes:
        gates: verdicts in order; the first that failed is the last.
        failure: why there is no verdict (it crashed, hung, ate memory, had no time); None otherwise.
        timing: the race's figures; None where it did not get that far.
        duel: the figures of the confirming duel in a fresh process with the order of creation reversed.
        creation_ms: time to create the session, and the baseline's.
        peak_memory_mb: growth of the process's resident memory while the session was made and run.
        device_ms: median of a run with inputs and outputs in the device's memory, after the duel, under the objective
            ``latency``; None where they lie in the host's anyway, or that cannot be told.
        error: worst relative L2 over outputs and inputs; ``errors`` gives it per output. None, and left out, where
            outputs cannot be compared at all (another shape, a NaN): the gate says why.
        noise_floor: the same for plain onnxruntime with its graph optimiser off; None where not measured.
        thread_noise: the same for plain onnxruntime with another number of threads.
        before: what else the machine was doing before.
        after: and after.
        placement: which nodes run where, where the strategy names a provider and onnxruntime says.
        simulated: whether the figures come from an analytic model of a device that is not here.
        flags: what speaks against its figures without refuting them: rounds set aside because the machine changed
            meanwhile, a session that did not settle, a load that is not known.
        worst_nodes: of a lossy strategy that is adopted, or was the nearest to being accurate enough: the nodes that
            add most error, worst first.
        worst_nodes_note: why there are none, or not all were looked at.
    """

    strategy: Strategy
    by: str
    gates: tuple[Gate, ...] = ()
    failure: str | None = None
    timing: Timing | None = None
    duel: Timing | None = None
    creation_ms: float | None = None
    baseline_creation_ms: float | None = None
    peak_memory_mb: float | None = None
    device_ms: float | None = None
    error: float | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    noise_floor: float | None = None
    thread_noise: float | None = None
    before: HardwareState | None = None
    after: HardwareState | None = None
    placement: Placement | None = None
    simulated: bool = False
    flags: tuple[str, ...] = ()
    worst_nodes: tuple[WorstNode, ...] = ()
    worst_nodes_note: str = ""

    @property
    def nodes(self) -> Mapping[str, int]:
        """Provider -> nodes it took; empty where onnxruntime does not say."""
        return {} if self.placement is None else self.placement.nodes

    @property
    def passed(self) -> bool:
        """Whether all three gates were passed."""
        return self.failure is None and [gate.name for gate in self.gates if gate.passed] == [
            "compiles",
            "accurate",
            "pays",
        ]

    @property
    def verdict(self) -> str:
        """One line: the failure, the gate that failed, the race's figures, or the last gate's detail."""
        if self.failure is not None:
            return self.failure
        failed = next((gate.detail for gate in self.gates if not gate.passed), None)
        if failed is not None:
            return failed
        if self.timing is not None and self.duel is None:
            words = speedup_words(self.timing.speedup, self.timing.speedup_low, self.timing.speedup_high)
            return f"{words} in the race, not confirmed by a duel"
        return self.gates[-1].detail if self.gates else "not tried"

    def with_gate(self, gate: Gate) -> Trial:
        """This trial with one more verdict."""
        return replace(self, gates=(*self.gates, gate))


@dataclass(frozen=True)
class Manifest:
    """What a decision rests on; where today's differ, it is stale: gated again, neither trusted nor thrown away.

    ``versions`` names the package, onnxruntime with its build, and each provider package and driver the strategy uses.
    """

    versions: Mapping[str, str]
    transforms: Mapping[str, int] = field(default_factory=dict)
    decided_at: str = ""
    inputs: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def differences(self, today: Manifest) -> list[str]:
        """What changed since, one line each; empty where nothing did."""
        pairs = ((self.versions, today.versions), (self.transforms, today.transforms))
        return [
            f"{name} was {then.get(name)}, is {now.get(name)}"
            for then, now in pairs
            for name in sorted(set(then) | set(now))
            if then.get(name) != now.get(name)
        ]


@dataclass(frozen=True)
class Decision:
    """The outcome for one session.

    Attributes:
        strategy: what is applied.
        origin: who proposed it: ``override``, ``cache``, ``meta-model``, ``rules``, ``search``; ``default`` where
            plain onnxruntime won, ``pass-through`` where nothing was decided (``reason`` says why), ``off``.
        reason: one sentence.
        key: the cache key, None where none was made.
        cache: ``hit``, ``miss``, ``stale`` or ``unused``, and ``cache_reason`` why.
        complete: False where something was left to decide later (the machine was busy, the time was up);
            ``incomplete_reason`` says what.
        decided_in_s: time spent deciding, wall.
        strategy_file: where it is written down.
        inputs_are_real: whether it was verified on inputs that the caller gave, or that earlier runs left (capture).
        compiled: name of the compiled model in the cache that a session of it is made from; None where there is none,
            and ``compiled_reason`` says why, as far as it was looked at.
        state: what else the machine was doing when the decision began.
        graph: the model's features, where they are known.
        rules: the rules that fired, what each wanted, and which lost to whom.
        stopped: why no more strategies were tried, with the budget and how many were; empty where none was.
    """

    strategy: Strategy
    origin: Origin
    reason: str
    key: CacheKey | None = None
    cache: Literal["hit", "miss", "stale", "unused"] = "unused"
    cache_reason: str = ""
    proposals: tuple[Proposal, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    trials: tuple[Trial, ...] = ()
    complete: bool = True
    incomplete_reason: str = ""
    decided_in_s: float = 0.0
    strategy_file: str | None = None
    inputs_are_real: bool = False
    compiled: str | None = None
    compiled_reason: str = ""
    manifest: Manifest | None = None
    state: HardwareState | None = None
    graph: Graph | None = None
    rules: tuple[RuleVerdict, ...] = ()
    stopped: str = ""

    @property
    def winner(self) -> Trial | None:
        """The trial whose strategy is applied, None where the default is or the cache knew."""
        return next((trial for trial in self.trials if trial.passed and trial.strategy == self.strategy), None)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as ``--json`` prints them and the cache keeps them."""
        return {name: _plain(getattr(self, name)) for name in self.__dataclass_fields__}


def _plain(value: Any) -> Any:
    """Dataclasses, mappings and tuples as JSON has them."""
    if isinstance(value, Strategy):
        return value.as_dict()
    if isinstance(value, CacheKey | HardwareState):
        return asdict(value)
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
