"""What fixing shapes alone gains: shapes.py MODEL ... [--providers CPU,OpenVINO] [--inputs FOLDER]; on a quiet machine.

Races, against plain onnxruntime on the CPU provider: the model with its shapes fixed as a session option (by the names
of dimensions, where these say it all), as a rewrite (``fixed-shapes``, then ``fold-shapes``), and as both. On each
other provider with its exact options the same, beside that provider with open shapes: the gain there is the quotient
of the two, whose interval is the widest that the two intervals allow.

``FOLDER`` holds a folder of .npz files for each model, named like the folder the model lies in; those of the first
file's shapes are used. Without it inputs are made up. ``band`` is how far two identical sessions lay apart: a ratio
within it is no gain.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ort_metainfer.decision import Proposal, Trial
from ort_metainfer.model.inputs import save_feeds
from ort_metainfer.problem import Graph, SessionSpec
from ort_metainfer.providers import get_provider
from ort_metainfer.rewrites.registry import get_rewrite
from ort_metainfer.shape_buckets import open_inputs, sizes_by_name
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.client import ChildTrialHost
from ort_metainfer.trials.task import Setup, Thresholds

CPU = "CPUExecutionProvider"
PREPARE_S = 60.0


def forms(graph: Graph, shapes: dict[str, tuple[int, ...]]) -> dict[str, Strategy]:
    """Name of a form -> the strategy that fixes the shapes so."""
    rewrites = tuple(get_rewrite(name).transform() for name in ("fixed-shapes", "fold-shapes"))
    found = {"rewrite": Strategy(transforms=rewrites)}
    if sizes := sizes_by_name(graph, shapes):
        found = {"option": Strategy(static_shapes=sizes), **found}
        found["both"] = Strategy(static_shapes=sizes, transforms=rewrites)
    return found


def on(provider: str, strategy: Strategy) -> Strategy:
    """The same on a provider, with the options that keep float32 results."""
    if provider == CPU:
        return strategy
    return replace(strategy, provider=provider, provider_options=dict(get_provider(provider).exact))


def given(folder: Path | None, model: Path, target: Path) -> bool:
    """Put the inputs that are there for a model, all of the first one's shapes, into ``target``."""
    files = sorted((folder / model.parent.name).glob("*.npz")) if folder else []
    feeds = [dict(np.load(file)) for file in files]
    alike = [
        feed for feed in feeds if {n: v.shape for n, v in feed.items()} == {n: v.shape for n, v in feeds[0].items()}
    ]
    save_feeds(alike, target)
    return bool(alike)


def measure(model: Path, providers: Sequence[str], inputs: Path | None, limit_s: float, folder: Path) -> Iterator[Any]:
    """A row for each provider and form."""
    is_real = given(inputs, model, folder)
    setup = Setup(model, SessionSpec(), folder, label=model.parent.name, inputs_are_real=is_real)
    with ChildTrialHost() as host:
        until = time.monotonic() + PREPARE_S
        setup = replace(setup, graph=host.describe(setup, until))
        shapes = dict(host.prepare(setup, until).shapes)
        graph = setup.graph
        assert graph is not None
        if not open_inputs(graph, setup.baseline):
            yield {"model": setup.label, "provider": "-", "form": "-", "verdict": "every shape is fixed already"}
            return
        setup = replace(setup, shapes={name: shapes[name] for name in open_inputs(graph, setup.baseline)})
        for provider in providers:
            wanted = forms(graph, shapes) if provider == CPU else {"open": Strategy(), **forms(graph, shapes)}
            proposals = [Proposal(on(provider, strategy), form, "") for form, strategy in wanted.items()]
            deadline = time.monotonic() + limit_s
            trials = {trial.by: trial for trial in host.race(setup, proposals, Thresholds.of("strict"), deadline)}
            for form, trial in trials.items():
                yield _row(setup.label, provider, form, trial, trials.get("open"), shapes)


def _row(label: str, provider: str, form: str, trial: Trial, opened: Trial | None, shapes: Any) -> dict[str, Any]:
    timing = trial.timing
    gain = None if timing is None else (timing.speedup, timing.speedup_low, timing.speedup_high)
    if opened is not None:
        beside = opened.timing
        is_known = gain is not None and beside is not None and form != "open"
        gain = (
            (gain[0] / beside.speedup, gain[1] / beside.speedup_high, gain[2] / beside.speedup_low)
            if is_known
            else None  # type: ignore[index, union-attr]
        )
    return {
        "model": label,
        "provider": provider,
        "form": form,
        "shapes": {name: list(shape) for name, shape in shapes.items()},
        "gain": gain,
        "timing": None if timing is None else asdict(timing),
        "error": trial.error,
        "creation_ms": trial.creation_ms,
        "baseline_creation_ms": trial.baseline_creation_ms,
        "verdict": trial.verdict,
        "flags": trial.flags,
    }


def line(row: dict[str, Any]) -> str:
    """A row in words."""
    timing = row.get("timing")
    if not timing:
        return f"{row['model']} | {row['provider']} | {row['form']} | {row['verdict']}"
    text = "beside the plain session only" if row["gain"] is None else "{:.3f} [{:.3f}, {:.3f}]".format(*row["gain"])
    return (
        f"{row['model']} | {row['provider']} | {row['form']} | {text} | {timing['p50_ms']:.3f} ms, plain "
        f"{timing['baseline_p50_ms']:.3f} | {timing['rounds']} rounds, band {timing['band']:.3f} | "
        f"error {row['error'] or 0:.1e} | {row['verdict']}"
    )


def main() -> None:
    """Measure, print a row each, and write them where that is asked for."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    words.add_argument("--providers", default="CPU", help="separated by commas; also those the CPU is not among")
    words.add_argument("--inputs", type=Path, help="a folder with a folder of .npz files per model")
    words.add_argument("--limit-s", type=float, default=60.0, help="seconds for the race of each model and provider")
    words.add_argument("--output", type=Path, help="a JSON file for the rows")
    asked = words.parse_args()
    providers = [get_provider(name.strip()).name for name in asked.providers.split(",")]
    rows = []
    for model in asked.models:
        with tempfile.TemporaryDirectory() as folder:
            for row in measure(model, providers, asked.inputs, asked.limit_s, Path(folder)):
                rows.append(row)
                print(line(row), flush=True)
        if asked.output:
            asked.output.write_text(json.dumps(rows, indent=1, default=str), encoding="utf-8")


if __name__ == "__main__":
    main()
