"""How often the default by another name is adopted: same_against_same.py MODEL [TIMES] [--load SHARE] [--busy N].

``--load 0.5 --busy 1`` keeps one other core busy for half of the time meanwhile. Each time is a whole race and duel, as
a decision holds them, with half of the default budget each; an option that load does not change and one that it does
in turn.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from load import load

from ort_metainfer.deciders.rule import is_scheduling
from ort_metainfer.decision import Proposal
from ort_metainfer.problem import SessionSpec
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.client import ChildTrialHost
from ort_metainfer.trials.task import Setup, Thresholds

SAME = {
    "denormals kept": Strategy(session_config={"session.set_denormal_as_zero": "0"}),
    "spinning allowed": Strategy(session_config={"session.intra_op.allow_spinning": "1"}),
}
LIMIT_S = 6.0


def adopted(model: str, strategy: Strategy, objective: str) -> tuple[bool, str]:
    """Whether one whole trial adopts it, and its verdict; what the machine's load forbids is not asked here."""
    with tempfile.TemporaryDirectory() as folder, ChildTrialHost() as host:
        setup = Setup(Path(model), SessionSpec(), Path(folder), objective=objective, callers=2)
        thresholds = Thresholds().aiming(objective)
        host.prepare(setup, time.monotonic() + LIMIT_S)
        proposal = Proposal(strategy, "figures", "the default by another name")
        (trial,) = host.race(setup, [proposal], thresholds, time.monotonic() + LIMIT_S)
        asked = replace(thresholds, steady_only=is_scheduling(strategy))
        trial = host.duel(setup, trial, asked, time.monotonic() + LIMIT_S)
        return trial.passed, trial.verdict


def main() -> None:
    """Count adoptions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("times", nargs="?", type=int, default=20)
    parser.add_argument("--load", type=float, default=0.0)
    parser.add_argument("--busy", type=int, default=1)
    parser.add_argument("--objective", default="latency")
    given = parser.parse_args()
    tried, wins = Counter[str](), Counter[str]()
    with load(given.load, given.busy):
        for time_ in range(given.times):
            name = list(SAME)[time_ % len(SAME)]
            passed, said = adopted(given.model, SAME[name], given.objective)
            tried[name] += 1
            wins[name] += passed
            print(f"{time_ + 1}: {name}: {'ADOPTED, ' if passed else ''}{said}", flush=True)
    for name in tried:
        print(f"{name}: adopted {wins[name]} of {tried[name]}")
    print(f"adopted {wins.total()} of {tried.total()} under a load of {given.busy} x {given.load:g}")


if __name__ == "__main__":
    main()
