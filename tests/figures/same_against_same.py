"""How often the default by another name is adopted: same_against_same.py MODEL [TIMES]. On a quiet machine."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from ort_metainfer.decision import Proposal
from ort_metainfer.problem import SessionSpec
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.client import ChildTrialHost
from ort_metainfer.trials.task import Setup, Thresholds

SAME = Strategy(session_config={"session.intra_op.allow_spinning": "1"})
LIMIT_S = 6.0


def main(model: str, times: int = 20) -> None:
    adopted = 0
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder, ChildTrialHost() as host:
            setup, thresholds = Setup(Path(model), SessionSpec(), Path(folder)), Thresholds()
            host.prepare(setup, time.monotonic() + LIMIT_S)
            proposal = Proposal(SAME, "figures", "the default by another name")
            (trial,) = host.race(setup, [proposal], thresholds, time.monotonic() + LIMIT_S)
            adopted += host.duel(setup, trial, thresholds, time.monotonic() + LIMIT_S).passed
    print(f"adopted {adopted} of {times}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
