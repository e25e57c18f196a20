"""One rule of the library as a declared object, and which parts of a strategy depend on the machine's load."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

__all__ = ["SCHEDULING", "Rule", "always", "is_scheduling", "scheduling_options"]

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
    """What is proposed, what is vetoed, why, and what that rests on.

    Attributes:
        name: what ``explain`` shows and what ``RuleLibrary(disabled=...)`` takes.
        priority: order of proposals, highest first. A veto holds against proposals of any priority; one whose
            priority is not above the proposal's means that the two rules contradict each other (a test forbids it).
        reason: one sentence; ``{problem...}`` in it is filled in from the problem.
        source: the measurement, the issue or the document the reason rests on.
        applies: whether the rule has anything to say about a problem.
        proposes: strategies worth a trial, best first.
        forbids: whether the strategy must not be tried.
        subject: what a veto rules out for this problem as a whole; such a veto is reported even where nobody proposed
            it. Empty where it only speaks about single strategies.
        matters: whether ruling ``subject`` out takes anything away from this problem; unasked-for otherwise.
    """

    name: str
    priority: int
    reason: str
    source: str
    applies: Callable[[Problem], bool]
    proposes: Callable[[Problem], Iterable[Strategy]] | None = None
    forbids: Callable[[Problem, Strategy], bool] | None = None
    subject: str = ""
    matters: Callable[[Problem], bool] = always

    def explain(self, problem: Problem) -> str:
        """The reason, for this problem."""
        return self.reason.format(problem=problem)

    def proposals(self, problem: Problem) -> tuple[Strategy, ...]:
        """What it proposes for ``problem``; empty where it does not apply."""
        return tuple(self.proposes(problem)) if self.proposes is not None and self.applies(problem) else ()

    def vetoes(self, problem: Problem, strategy: Strategy) -> bool:
        """Whether it rules ``strategy`` out for ``problem``."""
        return self.forbids is not None and self.applies(problem) and self.forbids(problem, strategy)
