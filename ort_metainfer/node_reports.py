"""Which nodes cost a lossy strategy its accuracy: asked of a child for what is adopted, and what was nearest to it.

A scale that was computed wrongly makes a model wrong, not slow: whoever reads the decision sees the node by its name.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from ort_metainfer.compilation import Errand
from ort_metainfer.decision import Decision, Trial, WorstNode
from ort_metainfer.errors import MetainferError
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.channel import setup_plain
from ort_metainfer.trials.task import Setup

__all__ = ["computes_in_less", "to_be_looked_at", "with_worst_nodes"]

MOST_REFUSED = 2
"""Trials that were not accurate enough whose nodes are looked at as well, the nearest first."""

MIN_S = 1.5
"""Below this no child is started: it starts, reads two models and runs both."""

MOST_S = 10.0
SHARE = 0.5
"""Seconds, and share of the time that is left, that looking at the nodes of one strategy may take. A choice."""

TOO_LATE = "no time was left to look at its nodes"


def computes_in_less(strategy: Strategy) -> bool:
    """Whether it may compute float32 models in less: by a rewrite, by its provider, or by onnxruntime's kernels."""
    from ort_metainfer.deciders.rules import provider_is_lossy
    from ort_metainfer.deciders.rules_policy import LOSSY_CONFIG
    from ort_metainfer.rewrites.rewriting import promise_of

    if LOSSY_CONFIG & {*strategy.session_config}:
        return True
    try:
        return promise_of(strategy.transforms) == "lossy" or provider_is_lossy(strategy)
    except MetainferError:  # a rewrite or a provider that is not here: nothing can be said of it
        return False


def to_be_looked_at(decision: Decision) -> Iterator[Trial]:
    """The lossy trial that is adopted, then those that were not accurate enough, the nearest first."""
    adopted = decision.winner
    if adopted is not None and computes_in_less(adopted.strategy):
        yield adopted
    refused = [each for each in decision.trials if _was_inaccurate(each) and computes_in_less(each.strategy)]
    yield from sorted(refused, key=lambda each: (each.error is None, each.error or 0.0))[:MOST_REFUSED]


def _was_inaccurate(trial: Trial) -> bool:
    return next((gate.name for gate in trial.gates if not gate.passed), None) == "accurate"


def with_worst_nodes(decision: Decision, setup: Setup, deadline: float, errand: Errand) -> Decision:
    """A decision whose lossy trials say which nodes cost them most, as far as time is left.

    Args:
        decision: what was decided.
        setup: the session under trial, its inputs real.
        deadline: a time.monotonic() value.
        errand: does the work.
    """
    looked_at = {id(trial): _looked_at(trial, setup, deadline, errand) for trial in to_be_looked_at(decision)}
    return replace(decision, trials=tuple(looked_at.get(id(trial), trial) for trial in decision.trials))


def _looked_at(trial: Trial, setup: Setup, deadline: float, errand: Errand) -> Trial:
    left = deadline - time.monotonic()
    if left < MIN_S:
        return replace(trial, worst_nodes_note=TOO_LATE)
    request = {"setup": setup_plain(setup), "strategy": trial.strategy.as_dict()}
    try:
        told = errand("nodes", request, time.monotonic() + min(MOST_S, SHARE * left))
    except MetainferError as error:
        return replace(trial, worst_nodes_note=f"its nodes were not looked at: {error}")
    nodes = tuple(WorstNode(**node) for node in told["nodes"])
    return replace(trial, worst_nodes=nodes, worst_nodes_note=told["note"])
