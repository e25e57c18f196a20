"""What each provider does to a model: providers.py PROVIDER MODEL INPUTS [OUTPUT.json] ...; on a quiet machine.

``INPUTS`` is a folder of .npz files. Fixed shapes (of the first input), the provider's exact options, against plain
onnxruntime on the CPU provider: latency ratio, error, nodes taken, session creation, and creation again from what was
compiled. A device that is a simulator or a software rasteriser is told as such: its ratio says nothing.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ort_metainfer.compilation import compile_model
from ort_metainfer.compiled_key import compiled_key
from ort_metainfer.decision import Proposal
from ort_metainfer.model.inputs import save_feeds
from ort_metainfer.problem import SessionSpec
from ort_metainfer.providers import get_provider
from ort_metainfer.rewrites.fixed_shapes import fix_shapes
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.client import ChildTrialHost
from ort_metainfer.trials.task import Setup, Thresholds

LIMIT_S = 120.0


def measure(provider: str, model: Path, inputs: Path, folder: Path) -> dict[str, Any]:
    """One provider on one model."""
    feeds = [dict(np.load(file)) for file in sorted(inputs.glob("*.npz"))]
    shape = {name: value.shape for name, value in feeds[0].items()}
    feeds = [feed for feed in feeds if {name: value.shape for name, value in feed.items()} == shape]
    (folder / "feeds").mkdir()
    save_feeds(feeds, folder / "feeds")
    fixed = fix_shapes(model, {name: tuple(map(int, sizes)) for name, sizes in shape.items()}, folder / "fixed.onnx")
    adapter = get_provider(provider)
    options = dict(adapter.exact)
    strategy = Strategy(provider=adapter.name, provider_options=options)
    setup = Setup(fixed.path, SessionSpec(), folder / "feeds", label=model.parent.name)
    thresholds = replace(Thresholds.of("fast"), min_share=0.0)  # timed in any case: it is what the figures are for
    with ChildTrialHost() as host:
        until = time.monotonic() + LIMIT_S
        setup = replace(setup, graph=host.describe(setup, until))
        host.prepare(setup, until)
        devices, refused = host.devices(setup, [adapter.name], until)
        (trial,) = host.race(setup, [Proposal(strategy, "figures", "")], thresholds, time.monotonic() + LIMIT_S)
    row = {
        "provider": adapter.name,
        "device": [str(device) for device in devices],
        "emulated": any(device.emulated for device in devices),
        "refused": refused,
        "model": model.parent.name,
        "options": options,
        "verdict": trial.verdict,
        "timing": None if trial.timing is None else asdict(trial.timing),
        "error": trial.error,
        "placement": None if trial.placement is None else trial.placement.describe(),
        "creation_ms": trial.creation_ms,
        "baseline_creation_ms": trial.baseline_creation_ms,
        "flags": trial.flags,
    }
    key = compiled_key("sha256:" + "0" * 64, setup.baseline, strategy)
    outcome = compile_model(
        setup, strategy, key, folder / "cache", time.monotonic() + LIMIT_S, thresholds, must_pay=False
    )
    return {**row, "compiled": outcome.reason, "compiled_figures": dict(outcome.figures)}


def main(*words: str) -> None:
    """Measure, and print a row each."""
    *words_, output = (*words, "") if len(words) % 3 == 0 else words
    rows = []
    for provider, model, inputs in zip(words_[::3], words_[1::3], words_[2::3], strict=True):
        with tempfile.TemporaryDirectory() as folder:
            row = measure(provider, Path(model), Path(inputs), Path(folder))
        rows.append(row)
        timing = row["timing"] or {}
        ratio = (
            f"{timing['speedup']:.3f} [{timing['speedup_low']:.3f}, {timing['speedup_high']:.3f}]" if timing else "-"
        )
        figures = row["compiled_figures"]
        second = f"{figures['creation_ms']:.0f} -> {figures['load_ms']:.0f} ms" if "load_ms" in figures else "-"
        error = "-" if row["error"] is None else f"{row['error']:.1e}"
        mark = " (emulated)" if row["emulated"] else ""
        print(
            f"{row['provider']}{mark} | {row['model']} | {ratio} | error {error} | {row['placement']} | created "
            f"{row['creation_ms'] or 0:.0f} ms (CPU {row['baseline_creation_ms'] or 0:.0f}) | compiled {second}: "
            f"{row['compiled']} | {row['verdict']}",
            flush=True,
        )
    if output:
        Path(output).write_text(json.dumps(rows, indent=1, default=str), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
