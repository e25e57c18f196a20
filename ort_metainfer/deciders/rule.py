"""One rule of the library as a declared object, and which parts of a strategy depend on the machine's load."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from ort_metainfer.deciders.traits_devices import kind_of, usable_kinds
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

__all__ = [
    "ACCELERATORS",
    "ALL_DEVICES",
    "BINDING_PRIORITY",
    "SCHEDULING",
    "VETO_PRIORITY",
    "Condition",
    "DeviceClass",
    "Dimension",
    "Rule",
    "always",
    "is_scheduling",
    "scheduling_options",
]

Dimension = Literal["operators", "fusion", "layout", "shapes", "precision", "scheduling", "provider"]
"""What a rule is about: the five ways to rewrite a model, and the two to run it."""

DeviceClass = Literal["cpu", "gpu", "npu", "dsp", "fpga"]

ALL_DEVICES: tuple[DeviceClass, ...] = ("cpu", "gpu", "npu", "dsp", "fpga")

ACCELERATORS: tuple[DeviceClass, ...] = ("gpu", "npu", "dsp", "fpga")

Condition = Callable[[Problem], bool]
"""One condition on graph, devices and their profiles, shapes or policy."""

BINDING_PRIORITY = 95
"""From here on a veto stands whatever was proposed: the caller's word, and what the machine cannot judge now."""

VETO_PRIORITY = 10
"""Of vetoes that say what never paid: whoever knows better outranks them."""

SCHEDULING = frozenset(
    {
        "intra_op_num_threads",
        "inter_op_num_threads",
        "execution_mode",
        "session.intra_op.allow_spinning",
        "session.inter_op.allow_spinning",
        "session.intra_op.spin_duration_us",
        "session.inter_op.spin_duration_us",
        "session.intra_op.spin_backoff_max",
        "session.inter_op.spin_backoff_max",
        "session.force_spinning_stop",
        "session.dynamic_block_base",
        "session.intra_op_thread_affinities",
        "INFERENCE_NUM_THREADS",
        "PERFORMANCE_HINT",
        "NUM_STREAMS",
        "ENABLE_CPU_PINNING",
        "ENABLE_HYPER_THREADING",
        "SCHEDULING_CORE_TYPE",
        "TBB_PARTITIONER",
    }
)
"""Session options, session config keys and provider options whose best value depends on what else the machine does.

Own measurement: beside one busy process one thread ran 1.8-1.9x on every model, on the quiet machine 0.5-0.6x."""


def scheduling_options(strategy: Strategy) -> tuple[str, ...]:
    """The load-sensitive options that ``strategy`` sets, sorted."""
    return tuple(sorted(SCHEDULING & {*strategy.session_options, *strategy.session_config, *strategy.provider_options}))


def is_scheduling(strategy: Strategy) -> bool:
    """Whether the strategy, or a part of it, depends on the machine's load."""
    return bool(scheduling_options(strategy))


def always(problem: Problem) -> bool:
    """Applies to every problem."""
    return True


@dataclass(frozen=True)
class Rule:
    """When it applies, what it proposes, requires or forbids then, why, and what that rests on.

    Attributes:
        name: what ``explain`` shows and the setting ``rules_off`` takes; letters, digits and underscores.
        priority: who wins where rules contradict each other, and the order of proposals, highest first; from
            ``BINDING_PRIORITY`` on a veto stands against every proposal.
        dimension: what it is about.
        reason: one sentence; ``{problem...}`` in it is filled in from the problem.
        source: the measurement, the issue or the document the reason rests on.
        when: the conditions under which it has anything to say, all of which must hold.
        devices: classes of devices it speaks about: it applies where one of them is usable, and requires and forbids
            something of strategies that run there.
        proposes: strategies worth a trial, best first.
        requires: the strategy with what it must contain here added, itself where nothing lacks, None where that
            cannot be added: it is then refused. Asked again of its own answer, it changes nothing.
        forbids: whether the strategy must not be tried.
        subject: what a veto rules out for this problem as a whole; such a veto is reported even where nobody proposed
            it. Empty where it only speaks about single strategies.
        matters: whether ruling ``subject`` out takes anything away from this problem; unasked-for otherwise.
    """

    name: str
    priority: int
    dimension: Dimension
    reason: str
    source: str
    when: tuple[Condition, ...] = ()
    devices: tuple[DeviceClass, ...] = ALL_DEVICES
    proposes: Callable[[Problem], Iterable[Strategy]] | None = None
    requires: Callable[[Problem, Strategy], Strategy | None] | None = None
    forbids: Callable[[Problem, Strategy], bool] | None = None
    subject: str = ""
    matters: Condition = always

    @property
    def rank(self) -> tuple[int, int, int]:
        """What decides between rules that contradict each other, the greater wins.

        Priority, then specificity: more conditions, then fewer device classes.
        """
        return self.priority, len(self.when), -len(self.devices)

    @property
    def is_binding(self) -> bool:
        """Whether its veto stands whatever was proposed."""
        return self.priority >= BINDING_PRIORITY

    def applies(self, problem: Problem) -> bool:
        """Whether it has anything to say about ``problem``."""
        there = self.devices == ALL_DEVICES or not usable_kinds(problem).isdisjoint(self.devices)
        return there and all(condition(problem) for condition in self.when)

    def speaks_of(self, problem: Problem, strategy: Strategy) -> bool:
        """Whether ``strategy`` runs on a device of its classes."""
        return self.devices == ALL_DEVICES or kind_of(problem, strategy) in self.devices

    def explain(self, problem: Problem) -> str:
        """The reason, for this problem; as it stands where it names what no problem has."""
        try:
            return self.reason.format(problem=problem)
        except (AttributeError, LookupError, TypeError, ValueError):  # a third party's; ours are held to it by tests
            return self.reason

    def proposals(self, problem: Problem) -> tuple[Strategy, ...]:
        """What it proposes for ``problem``; empty where it does not apply."""
        return tuple(self.proposes(problem)) if self.proposes is not None and self.applies(problem) else ()

    def completed(self, problem: Problem, strategy: Strategy) -> Strategy | None:
        """``strategy`` with what the rule, where it applies, requires of it; None where that cannot be had."""
        return self.completion(problem, strategy) if self.applies(problem) else strategy

    def completion(self, problem: Problem, strategy: Strategy) -> Strategy | None:
        """The same for a problem to which the rule is known to apply."""
        if self.requires is None or not self.speaks_of(problem, strategy):
            return strategy
        return self.requires(problem, strategy)

    def vetoes(self, problem: Problem, strategy: Strategy) -> bool:
        """Whether the rule, where it applies, rules ``strategy`` out."""
        return self.forbids is not None and self.applies(problem) and self.objects_to(problem, strategy)

    def objects_to(self, problem: Problem, strategy: Strategy) -> bool:
        """The same for a problem to which the rule is known to apply."""
        return self.forbids is not None and self.speaks_of(problem, strategy) and self.forbids(problem, strategy)
