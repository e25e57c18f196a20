"""Which trials are worth a duel, and what may still speak against adopting one after it: asked, never acts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ort_metainfer.decision import Refusal, Trial
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.duel import UNSTEADY

if TYPE_CHECKING:
    from ort_metainfer.deciders.rules import RuleLibrary

__all__ = [
    "UNKNOWN_LOAD",
    "UNTOLD",
    "beats",
    "contenders",
    "is_load_known",
    "is_load_sensitive",
    "objection",
    "promise",
]

TIE = 0.02
"""What does not beat the verified best by more in its race is not worth a duel of its own."""

MAX_DUELS = 2
"""Duels after one race; a choice: the time of a third is better spent on the search."""

UNKNOWN_LOAD = "load not known"

UNTOLD = "this system does not tell what other processes do: judged by paired ratios in two processes alone"
"""What is said beside a load-sensitive strategy that was adopted where no load can be read."""


def contenders(trials: Sequence[Trial], verified: Trial | None, min_speedup: float) -> list[Trial]:
    """Trials that deserve a duel, most promising first: raced, not confirmed yet, and clear of the best so far.

    What a race already found to break a bound (the latency's, for the objective ``memory``) is not among them.

    Args:
        trials: all there are.
        verified: the best that a duel confirmed; None where there is none yet.
        min_speedup: what the third gate demands; who did not reach it in the race would not in the duel.
    """
    bar = verified.timing.speedup * (1 + TIE) if verified and verified.timing else 0.0
    worth = max(min_speedup, bar)
    raced = [trial for trial in trials if trial.duel is None and trial.failure is None]
    sound = [trial for trial in raced if all(gate.passed for gate in trial.gates)]
    leaders = [trial for trial in sound if trial.timing and trial.timing.speedup > worth]
    return sorted(leaders, key=promise, reverse=True)[:MAX_DUELS]


def beats(trial: Trial, verified: Trial | None) -> bool:
    """Whether its duel was better than that of the best so far: by its whole interval, since they ran apart."""
    best = verified.duel if verified else None
    return best is None or (trial.duel is not None and trial.duel.speedup_low > best.speedup)


def is_load_sensitive(strategy: Strategy, problem: Problem, rules: RuleLibrary) -> bool:
    """Whether the rules would forbid it on a busy machine: scheduling, where no lasting limit settles it."""
    busy = replace(problem.state, others_cpu=problem.cpu.cores or 1.0)
    return rules.refuse(replace(problem, state=busy), strategy) is not None


def is_load_known(trial: Trial) -> bool:
    """Whether the system told what other processes did during the last timing."""
    return trial.after is not None and trial.after.is_load_known


def objection(trial: Trial, problem: Problem, rules: RuleLibrary) -> Refusal | None:
    """Why a load-sensitive strategy may not be adopted after all: the state of the machine while it was tried.

    A load that is not known is not taken for none. Where this system could have told it and did not, the strategy
    is left alone; where it never tells (no /proc: Windows, macOS), nothing load-sensitive could ever be adopted,
    so there the paired ratios of two processes decide, and the trial says what they rest on (``UNTOLD``).
    """
    for state in (trial.before, trial.after):
        if state is not None:
            refusal = rules.refuse(replace(problem, state=state), trial.strategy)
            if refusal is not None:
                return refusal
    failed = next((gate.detail for gate in trial.gates if not gate.passed), "")
    name = trial.strategy.describe()
    if failed.startswith(UNSTEADY):
        return Refusal(name, "duel", f"{failed}; scheduling left alone")
    if trial.passed and problem.state.is_load_known and not is_load_known(trial):
        return Refusal(name, "duel", f"{UNKNOWN_LOAD} while it was tried; scheduling left alone")
    return None


def promise(trial: Trial) -> float:
    """How good a trial looks: the lower bound of its speed-up, 0 where it was not timed."""
    return trial.timing.speedup_low if trial.timing else 0.0
