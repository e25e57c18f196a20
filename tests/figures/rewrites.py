"""What each rewrite alone does to a model: rewrites.py OUTPUT.json MODEL INPUTS [MODEL INPUTS ...]; on a quiet machine.

``INPUTS`` is a folder of .npz files. Every rewrite with its defaults that changes the model races plain onnxruntime on
the CPU provider, six at a time; what is lossy is judged under ``fast``.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ort_metainfer.decision import Proposal
from ort_metainfer.model.inputs import save_feeds
from ort_metainfer.problem import SessionSpec
from ort_metainfer.rewrites.registry import all_rewrites
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.client import ChildTrialHost
from ort_metainfer.trials.task import Setup, Thresholds

LIMIT_S = 45.0
TOGETHER = 6
CPU = "CPUExecutionProvider"


def measure(model: Path, inputs: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each rewrite that changed something."""
    feeds = [dict(np.load(file)) for file in sorted(inputs.glob("*.npz"))]
    save_feeds(feeds, folder)
    setup = Setup(model, SessionSpec(), folder, label=model.parent.name, inputs_are_real=True)
    with ChildTrialHost() as host:
        setup = replace(setup, graph=host.describe(setup, time.monotonic() + LIMIT_S))
        host.prepare(setup, time.monotonic() + LIMIT_S)
        shapes = {name: tuple(map(int, value.shape)) for name, value in feeds[0].items()}
        same = all({name: value.shape for name, value in feed.items()} == shapes for feed in feeds)
        able = [r for r in all_rewrites() if not r.providers or CPU in r.providers]
        able = [r for r in able if r.objection(setup.graph) is None and (same or "shapes" not in r.needs)]
        proposals = [Proposal(Strategy(transforms=(r.transform(),)), r.name, "") for r in able]
        for start in range(0, len(proposals), TOGETHER):
            batch = proposals[start : start + TOGETHER]
            given = replace(setup, shapes=shapes) if any(p.by == "fixed-shapes" for p in batch) else setup
            for trial in host.race(given, batch, Thresholds.of("fast"), time.monotonic() + LIMIT_S):
                if "nothing to rewrite" not in trial.verdict:
                    yield {
                        "model": setup.label,
                        "rewrite": trial.by,
                        "verdict": trial.verdict,
                        "error": trial.error,
                        "timing": None if trial.timing is None else asdict(trial.timing),
                        "flags": trial.flags,
                    }


def main(output: str, *words: str) -> None:
    """Measure, print and write the rows."""
    rows = []
    for model, inputs in zip(words[::2], words[1::2], strict=True):
        with tempfile.TemporaryDirectory() as folder:
            for row in measure(Path(model), Path(inputs), Path(folder)):
                rows.append(row)
                print(
                    f"{row['model']:20} {row['rewrite']:28} {row['error'] or 0:8.1e}  {row['verdict'][:110]}",
                    flush=True,
                )
        Path(output).write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
