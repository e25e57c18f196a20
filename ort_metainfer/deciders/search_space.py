"""The space that is searched: dimensions of a strategy, their values, where each makes sense, what to expect of it.

A prior is the speed-up over onnxruntime's default to expect of one choice alone, from the measurement its source
names. It only orders trials; whether a choice pays is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace

from ort_metainfer.deciders.rules_providers import openvino_options
from ort_metainfer.deciders.search_rewrites import rewrite_choices
from ort_metainfer.deciders.traits import (
    CPU,
    OPENVINO,
    computes_bf16,
    exact_options,
    has_thread_pool,
    is_heavy,
    is_tiny,
    named_device,
    precisions_to_try,
    runs_on_cpu,
    static_sizes,
    whole_cores,
)
from ort_metainfer.decision import Refusal
from ort_metainfer.problem import Device, Problem
from ort_metainfer.rewrites.ort_optimizers import CONFIG_KEY, SUSPECTS, disabling, suspects_in
from ort_metainfer.strategy import Strategy

__all__ = ["Choice", "Complete", "Dimension", "Refuse", "declared_space", "keys_of", "nothing_required", "space"]

Refuse = Callable[[Problem, Strategy], Refusal | None]

Complete = Callable[[Problem, Strategy], tuple[Strategy, str]]
"""A strategy with what rules require of it, and why (see :meth:`RuleLibrary.complete`)."""

ANY = "any"
ORACLE = "own measurement over eight models, two cores of an AMD EPYC (tests/figures/priors.py)"
ALL_COUNTS_UP_TO = 8
THREAD_EXPONENT = 0.9
"""Speed grows with threads to this power: half the threads gave 0.53x on a ResNet-50 (own measurement)."""


GUESS = 0.15
"""Spread of a prior that few or no measurements stand behind. A choice."""

WIDE = 0.35
"""Spread of another provider's prior: own measurements of one provider reach from 0.6x to 2.5x."""

NARROW = 0.03
"""Spread of the small session options: of eight models each in strict and fast, their gains spread by 0.01 to 0.03."""

FEWER_THREADS = 0.15
"""Spread of a thread count below the cores'. Measured were 0.51x to 0.56x at half, once 0.70x; but on one machine, and
cores that are not all alike or not whole may do otherwise."""


@dataclass(frozen=True)
class Choice:
    """One value of a dimension.

    Attributes:
        label: how ``explain`` calls it.
        part: the strategy with only this value set.
        prior: expected speed-up of this alone over the default.
        source: what the prior rests on.
        on: provider the graph must run on for it to mean anything; ``any``.
        spread: standard deviation of ln(prior) over models: how far off the expectation may be.
    """

    label: str
    part: Strategy
    prior: float
    source: str
    on: str = CPU
    spread: float = GUESS

    def fits(self, problem: Problem, strategy: Strategy) -> bool:
        """Whether it means something in ``strategy``: the provider it concerns, and workers for what concerns those."""
        on_provider = runs_on_cpu(problem, strategy) if self.on == CPU else strategy.provider == self.on
        concerns_workers = WORKER_KEYS & {*self.part.session_options, *self.part.session_config}
        alone = strategy.session_options.get("intra_op_num_threads") == 1
        return (self.on == ANY or on_provider) and not (concerns_workers and alone)


@dataclass(frozen=True)
class Dimension:
    """Choices of which a strategy holds at most one; none of them is onnxruntime's default.

    Attributes:
        name: how ``explain`` calls it.
        keys: session options and config keys it sets; ``provider``, ``static_shapes`` and ``transforms`` for those
            fields.
        choices: in declared order.
    """

    name: str
    keys: frozenset[str]
    choices: tuple[Choice, ...] = field(default=())

    def is_set_by(self, keys: Set[str]) -> bool:
        """Whether a strategy that sets ``keys`` (see :func:`keys_of`) sets anything in this dimension."""
        return not self.keys.isdisjoint(keys)

    def part_of(self, strategy: Strategy) -> Strategy:
        """What ``strategy`` sets in this dimension, and nothing else."""
        provider = strategy if "provider" in self.keys else Strategy()
        return Strategy(
            transforms=strategy.transforms if "transforms" in self.keys else (),
            provider=provider.provider,
            device=provider.device,
            provider_options=provider.provider_options,
            session_options={k: v for k, v in strategy.session_options.items() if k in self.keys},
            session_config={k: v for k, v in strategy.session_config.items() if k in self.keys},
            static_shapes=strategy.static_shapes if "static_shapes" in self.keys else {},
        )

    def put(self, strategy: Strategy, part: Strategy) -> Strategy:
        """``strategy`` with ``part`` in this dimension in place of what it had there."""
        provider = part if "provider" in self.keys else strategy
        kept = {k: v for k, v in strategy.session_options.items() if k not in self.keys}
        config = {k: v for k, v in strategy.session_config.items() if k not in self.keys}
        return replace(
            strategy,
            transforms=part.transforms if "transforms" in self.keys else strategy.transforms,
            provider=provider.provider,
            device=provider.device,
            provider_options=provider.provider_options,
            session_options={**kept, **part.session_options},
            session_config={**config, **part.session_config},
            static_shapes=part.static_shapes if "static_shapes" in self.keys else strategy.static_shapes,
        )


def keys_of(strategy: Strategy) -> frozenset[str]:
    """Everything that ``strategy`` sets, by the names that :attr:`Dimension.keys` has for it."""
    fields = {
        "provider": strategy.provider is not None or strategy.device is not None or strategy.provider_options,
        "transforms": strategy.transforms,
        "static_shapes": strategy.static_shapes,
    }
    return frozenset(
        {*strategy.session_options, *strategy.session_config, *(n for n, given in fields.items() if given)}
    )


WORKER_KEYS = frozenset(
    {
        "session.intra_op.allow_spinning",
        "session.intra_op.spin_duration_us",
        "session.force_spinning_stop",
        "session.dynamic_block_base",
    }
)
"""Keys that concern worker threads, of which a session with one thread has none."""


def nothing_required(problem: Problem, strategy: Strategy) -> tuple[Strategy, str]:
    """Where there are no rules: the strategy as it is."""
    return strategy, ""


def space(problem: Problem, refuse: Refuse, complete: Complete = nothing_required) -> tuple[Dimension, ...]:
    """The declared space without what the rules forbid for this problem, and without empty dimensions.

    A choice is asked about alone, or on top of the provider it concerns, with what rules require beside it.
    """
    narrowed = []
    for dimension in declared_space(problem):
        asked = [(choice, complete(problem, _alone(dimension, choice))[0]) for choice in dimension.choices]
        allowed = tuple(choice for choice, strategy in asked if refuse(problem, strategy) is None)
        if allowed:
            narrowed.append(replace(dimension, choices=allowed))
    return tuple(narrowed)


def _alone(dimension: Dimension, choice: Choice) -> Strategy:
    if choice.on in (CPU, ANY):
        return choice.part
    return dimension.put(Strategy(provider=choice.on, provider_options=exact_options(choice.on)), choice.part)


def declared_space(problem: Problem) -> tuple[Dimension, ...]:
    """Every dimension with the values that exist on this machine for this model, before any veto."""
    return (
        Dimension("provider", frozenset({"provider"}), tuple(_providers(problem))),
        Dimension("rewrites", frozenset({"transforms"}), tuple(rewrite_choices(problem))),
        Dimension("threads", frozenset({"intra_op_num_threads"}), tuple(_threads(problem))),
        Dimension("spinning", WORKER_KEYS - {"session.dynamic_block_base"}, tuple(_spinning(problem))),
        Dimension("graph level", frozenset({"graph_optimization_level"}), tuple(_graph_levels())),
        Dimension("static shapes", frozenset({"static_shapes"}), tuple(_static(problem))),
        Dimension("execution mode", frozenset({"execution_mode", "inter_op_num_threads"}), tuple(_modes())),
        Dimension("memory pattern", frozenset({"enable_mem_pattern"}), _NO_MEMORY_PATTERN),
        Dimension("work blocks", frozenset({"session.dynamic_block_base"}), tuple(_work_blocks(problem))),
        Dimension("optimiser passes", frozenset({"session.graph_optimizations_loop_level"}), _TWO_PASSES),
        Dimension("optimisers off", frozenset({CONFIG_KEY}), tuple(_optimisers_off(problem))),
    )


OPTIMISERS_OFF = {
    "NchwcTransformer": (0.67, 0.15, f"{ORACLE}: 0.33-1.02x"),
    "ConstantFolding": (0.86, 0.10, f"{ORACLE}: 0.64-1.00x"),
    "MatMulAddFusion": (1.00, 0.015, f"{ORACLE}: 0.99-1.03x"),
    "ConvAddActivationFusion": (1.00, 0.015, f"{ORACLE}: 0.96-1.01x"),
    "AttentionFusion": (1.00, 0.015, f"{ORACLE}: 0.97-1.02x"),
    "CommonSubexpressionElimination": (1.00, 0.015, f"{ORACLE}: 0.99-1.04x"),
    "TransposeOptimizer": (1.00, 0.015, f"{ORACLE}: 0.98-1.02x"),
    "TransposeOptimizer_CPUExecutionProvider": (1.01, 0.015, f"{ORACLE}: 0.99-1.03x"),
    "MatmulTransposeFusion": (1.00, 0.015, f"{ORACLE}: 0.99-1.01x"),
}
"""Optimiser -> expected speed-up without it, spread of its logarithm, source."""


def _optimisers_off(problem: Problem) -> Iterator[Choice]:
    """onnxruntime's own optimisers that are suspected of costing more than they gain, one at a time."""
    for name in suspects_in(problem.graph.operators):
        prior, spread, source = OPTIMISERS_OFF.get(name, (0.99, NARROW, f"guess: {SUSPECTS[name]}"))
        yield Choice(f"{name} off", Strategy(session_config=disabling([name])), prior, source, spread=spread)


def _providers(problem: Problem) -> Iterator[Choice]:
    if not runs_on_cpu(problem, Strategy()):
        yield Choice("CPU", Strategy(provider=CPU), 0.8, "guess: the caller had a reason for another provider", ANY)
    for device in problem.devices:
        if device.provider == OPENVINO:
            yield from _openvino(problem, device)
        elif device.provider != CPU:
            known = ("own measurement: 0.77-1.1x on a transformer; its best: who names it wants it tried", 1.1)
            source, prior = known if device.provider == "cpu_ep" else ("guess: never measured by us", 1.5)
            for options in precisions_to_try(problem, device.provider):
                part = Strategy(
                    provider=device.provider, device=named_device(problem, device), provider_options=options
                )
                kept = ", ".join(f"{name}={value}" for name, value in options.items())
                name = f"{device.provider} on {device.kind}{f', {kept}' if kept else ''}"
                yield Choice(name, part, prior, source, ANY, WIDE)


def _openvino(problem: Problem, device: Device) -> Iterator[Choice]:
    """OpenVINO on one of its devices: exact, bound to the limit's cores, and in bfloat16."""
    name, heavy = device.provider_device, is_heavy(problem)
    gains = {
        "f32": (1.15, "own measurement: 1.06-2.53x with onnxruntime-openvino 1.24.1, 0.6-1.2x with the plug-in 1.8.1"),
        "bf16": (1.6 if heavy else 1.3, "own measurement: 1.3-2.1x on AMD EPYC"),
    }
    for precision, (prior, source) in gains.items():
        if precision == "bf16" and not computes_bf16(problem):
            continue
        options = openvino_options(problem, precision)
        part = Strategy(provider=OPENVINO, device=named_device(problem, device), provider_options=options)
        yield Choice(f"OpenVINO {name or ''} {precision}".replace("  ", " "), part, prior, source, ANY, WIDE)
        if problem.cpu.lasting_limit and device.kind == "cpu" and "INFERENCE_NUM_THREADS" not in options:
            count = str(whole_cores(problem))
            bound = replace(part, provider_options={**options, "INFERENCE_NUM_THREADS": count})
            yield Choice(f"OpenVINO {precision}, {count} threads", bound, prior, f"{source}; bound: guess", ANY, WIDE)


def _threads(problem: Problem) -> Iterator[Choice]:
    cores = whole_cores(problem)
    for count in _thread_counts(cores):
        if is_tiny(problem):
            prior, source = 1.0, f"{ORACLE}: 0.85-1.06x with one thread on tiny models"
        elif count == cores and problem.cpu.lasting_limit:
            prior, source = 1.2, "microsoft/onnxruntime#29510: the default pool is larger than the limit"
        else:
            prior, source = (count / cores) ** THREAD_EXPONENT, f"{ORACLE}: 0.51-0.70x with half the threads"
        label = "1 thread" if count == 1 else f"{count} threads"
        at_all_cores = GUESS if problem.cpu.lasting_limit else NARROW
        spread = FEWER_THREADS if count < cores else at_all_cores
        yield Choice(label, Strategy(session_options={"intra_op_num_threads": count}), prior, source, spread=spread)


def _thread_counts(cores: int) -> Sequence[int]:
    """All counts up to 8 cores; above, powers of two, half, all but one and all."""
    if cores <= ALL_COUNTS_UP_TO:
        return range(1, cores + 1)
    powers = {2**power for power in range(cores.bit_length()) if 2**power <= cores}
    return sorted(powers | {cores // 2, cores - 1, cores})


def _spinning(problem: Problem) -> Iterator[Choice]:
    """Alone, spinning is worth having; between runs of another session it costs that one 1.8x."""
    if not has_thread_pool(problem):
        return
    gain = 9.6 / 5.3 if problem.policy.objective == "pipeline" else 1.0
    for label, key, value, alone, width, seen in (
        ("spinning bounded to 1 ms", "session.intra_op.spin_duration_us", "1000", 1.00, NARROW, "0.97-1.01x"),
        ("spinning stopped after each run", "session.force_spinning_stop", "1", 0.96, 0.05, "0.77-1.01x"),
        ("no spinning", "session.intra_op.allow_spinning", "0", 0.81, 0.10, "0.64-0.98x"),
    ):
        source = f"{ORACLE}: {seen}; 9.6 to 5.3 ms in a pipeline"
        spread = width if problem.policy.objective == "latency" else GUESS
        yield Choice(label, Strategy(session_config={key: value}), gain * alone, source, spread=spread)


def _graph_levels() -> Iterator[Choice]:
    for level, prior, source, on in (
        ("extended", 1.00, f"{ORACLE}: 1.00x on a transformer", CPU),
        ("basic", 0.95, f"{ORACLE}: 0.95x on a transformer", CPU),
        ("disable", 1.05, "own measurement, under load: OpenVINO 5.05x against 4.27x on a ResNet-18", OPENVINO),
    ):
        part = Strategy(session_options={"graph_optimization_level": level})
        yield Choice(f"level {level}", part, prior, source, on, NARROW if on == CPU else GUESS)


def _static(problem: Problem) -> Iterator[Choice]:
    sizes = static_sizes(problem)
    if sizes:
        label = "static " + " ".join(f"{name}={size}" for name, size in sorted(sizes.items()))
        yield Choice(
            label,
            Strategy(static_shapes=sizes),
            1.00,
            f"{ORACLE}: 0.92-1.03x",
            ANY,
            0.06,
        )


def _modes() -> Iterator[Choice]:
    part = Strategy(session_options={"execution_mode": "parallel", "inter_op_num_threads": 2})
    yield Choice(
        "parallel, 2 branches", part, 0.7, "own measurement: 0.05-0.7x on graphs that are not wide", spread=0.3
    )


def _work_blocks(problem: Problem) -> Iterator[Choice]:
    if has_thread_pool(problem):
        part = Strategy(session_config={"session.dynamic_block_base": "4"})
        yield Choice("smaller work blocks", part, 1.0, f"{ORACLE}: 0.98-1.01x", spread=NARROW)


_NO_MEMORY_PATTERN = (
    Choice(
        "no memory pattern",
        Strategy(session_options={"enable_mem_pattern": False}),
        0.99,
        f"{ORACLE}: 0.93-1.03x",
        spread=NARROW,
    ),
)
_TWO_PASSES = (
    Choice(
        "optimiser loop level 2",
        Strategy(session_config={"session.graph_optimizations_loop_level": "2"}),
        1.0,
        f"{ORACLE}: 0.98-1.03x",
        spread=NARROW,
    ),
)
