"""Time spent deciding against the budget: deadlines.py MODEL ...; budgets of 2, 5 and 20 s, then with a hang each."""

from __future__ import annotations

import os
import sys
import tempfile
import time

import ort_metainfer


def main(*models: str) -> None:
    over = []
    for fault in (None, "opening:0:hang"):
        if fault is not None:
            os.environ["ORT_METAINFER_TRIAL_FAULT"] = fault
        for budget_s in (2.0, 5.0, 20.0):
            for model in models:
                with tempfile.TemporaryDirectory() as cache_dir:
                    settings, started = ort_metainfer.Settings(budget_s=budget_s, cache_dir=cache_dir), time.monotonic()
                    decision = ort_metainfer.tune(model, settings, force=True)
                    over.append(time.monotonic() - started - budget_s)
                print(f"{model} {fault or ''} budget {budget_s:g} s: {over[-1]:+.2f} s; {decision.reason[:80]}")
    print(f"worst: {max(over):+.2f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
