"""Precision that is earned: where a quantised model was fast but not accurate enough, what must stay in float.

Asked after a race; the answer is another proposal, which passes the same gates as any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ort_metainfer.compilation import Errand
from ort_metainfer.decision import Proposal, Refusal, Trial
from ort_metainfer.errors import MetainferError
from ort_metainfer.strategy import Strategy, Transform
from ort_metainfer.trials.channel import setup_plain
from ort_metainfer.trials.task import Setup, Thresholds

__all__ = ["earn_precision", "worth_earning"]

BY = "rules/earned-precision"

MOST_ERROR = 20.0
"""Times the tolerance: what is further off has more wrong with it than a few sensitive nodes. A choice."""


def worth_earning(trials: Sequence[Trial], thresholds: Thresholds) -> Trial | None:
    """The inaccurate trial nearest to the tolerance whose last rewrite can leave nodes out, and did not yet."""
    wanted = [trial for trial in trials if _is_near(trial, thresholds) and _may_leave_out(trial.strategy)]
    return min(wanted, key=lambda trial: trial.error or 0.0, default=None)


def _is_near(trial: Trial, thresholds: Thresholds) -> bool:
    failed = next((gate.name for gate in trial.gates if not gate.passed), None)
    return failed == "accurate" and trial.error is not None and trial.error < MOST_ERROR * thresholds.max_error


def _may_leave_out(strategy: Strategy) -> bool:
    from ort_metainfer.rewrites.registry import get_rewrite

    if not strategy.transforms or strategy.transforms[-1].parameters.get("exclude"):
        return False
    rewrite = get_rewrite(strategy.transforms[-1].name)
    return rewrite.promise == "lossy" and "exclude" in rewrite.parameters


def earn_precision(
    trial: Trial, setup: Setup, thresholds: Thresholds, deadline: float, errand: Errand
) -> Proposal | Refusal:
    """What to try in place of ``trial``'s strategy, found in a child process; or why there is nothing."""
    request: dict[str, Any] = {
        "setup": setup_plain(setup),
        "strategy": trial.strategy.as_dict(),
        "tolerance": thresholds.max_error,
        "top1": thresholds.top1,
    }
    subject = trial.strategy.describe()
    try:
        told = errand("earn", request, deadline)
    except MetainferError as error:
        return Refusal(subject, BY, f"what makes it inaccurate was not found: {error}")
    worst = f"; most sensitive: {', '.join(told['worst'])}" if told["worst"] else ""
    if not told["passed"]:
        return Refusal(subject, BY, f"{told['detail']}{worst}")
    last = trial.strategy.transforms[-1]
    earned = Transform(last.name, last.version, told["parameters"])
    strategy = replace(trial.strategy, transforms=(*trial.strategy.transforms[:-1], earned))
    if strategy == trial.strategy:
        return Refusal(subject, BY, f"leaving nodes in float does not help: {trial.verdict}")
    return Proposal(strategy, BY, f"{told['detail']}{worst}", "own measurement: the error of each node on your inputs")
