"""How a deliberation ends: for the winner, for plain onnxruntime, or without having tried anything."""

from __future__ import annotations

from collections.abc import Sequence

from ort_metainfer.confirming import UNKNOWN_LOAD, promise
from ort_metainfer.decision import Decision, Proposal, Refusal, Trial
from ort_metainfer.problem import CacheKey, Graph, Problem
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.duel import UNSTEADY

__all__ = ["conclude", "lacked_time", "left_alone", "out_of_time"]

TRY_AGAIN = ("machine busy", UNSTEADY, UNKNOWN_LOAD)
"""How refusals begin that another moment may lift: a decision with one of them is not complete."""


def conclude(
    key: CacheKey,
    problem: Problem,
    winner: Trial | None,
    proposals: Sequence[Proposal],
    refusals: Sequence[Refusal],
    trials: Sequence[Trial],
) -> Decision:
    """The decision: for the ``winner`` of a duel, for plain onnxruntime where there is none."""
    if winner is None:
        strategy, origin, reason = Strategy(), "default", _why_default(trials)
    else:
        strategy, origin, reason = winner.strategy, _origin(winner.by), winner.verdict
    incomplete = _what_lacks(refusals, trials)
    return Decision(
        strategy,
        origin,  # type: ignore[arg-type]
        reason,
        key=key,
        proposals=tuple(proposals),
        refusals=tuple(refusals),
        trials=tuple(trials),
        complete=not incomplete,
        incomplete_reason=incomplete,
        inputs_are_real=problem.inputs_are_real,
        state=problem.state,
        graph=problem.graph,
    )


def left_alone(key: CacheKey, graph: Graph, reason: str) -> Decision:
    """Plain onnxruntime for what cannot be tried; remembered, so that the next start does not ask again."""
    return Decision(Strategy(), "pass-through", reason, key=key, graph=graph)


def out_of_time(key: CacheKey | None, graph: Graph | None, what: str, budget_s: float) -> Decision:
    """Plain onnxruntime, and that it was the time that lacked; remembered where the key is known.

    Args:
        key: None where the model could not be described in time.
        graph: the model's features, as far as they are known.
        what: what ran out of time, in words.
        budget_s: what there was.
    """
    reason = f"{what}; a budget_s above {budget_s:g}, or prewarming with one, allows more"
    return Decision(
        Strategy(), "default", reason, key=key, complete=False, incomplete_reason="the time was up", graph=graph
    )


def lacked_time(trial: Trial) -> bool:
    """Whether it was not even begun, for want of time."""
    return trial.failure is not None and "no time" in trial.failure


def _what_lacks(refusals: Sequence[Refusal], trials: Sequence[Trial]) -> str:
    """Why another moment, or more time, might decide otherwise; empty where the decision is complete."""
    busy = next((refusal.reason for refusal in refusals if refusal.reason.startswith(TRY_AGAIN)), "")
    # what only the search thought of is no gap: it would always think of more
    asked = [trial for trial in trials if not trial.by.startswith("search")]
    untried = sum(map(lacked_time, asked))
    return busy or (f"no time was left for {untried} of {len(asked)} strategies" if untried else "")


def _why_default(trials: Sequence[Trial]) -> str:
    if not trials:
        return "no strategy was proposed for it"
    tried = [trial for trial in trials if trial.failure is None]
    if not tried:
        return f"none of {len(trials)} strategies could be tried: {trials[0].failure}"
    best = max(tried, key=promise)
    word = "for instance" if best.timing is None else "the best was"  # what was never timed is no best
    figures = f"; {word} {best.strategy.describe()}: {best.verdict}"
    return f"none of {len(tried)} strategies beat plain onnxruntime beyond the noise{figures}"


def _origin(by: str) -> str:
    """The decider's family, as ``Decision.origin`` names it."""
    family = by.split(":")[0].split("/")[0]
    return family if family in ("cache", "meta-model", "rules", "search") else "rules"
