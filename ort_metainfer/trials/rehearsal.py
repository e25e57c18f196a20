"""Before any trial: reading the model, and inputs that its own session accepts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from ort_metainfer.errors import InputsError
from ort_metainfer.problem import Graph
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.bench import Bench, Feed, Opened, Refused, Speaker
from ort_metainfer.trials.task import Feeds, Setup

__all__ = ["prepare", "read_graph"]

SYNTHETIC_FEEDS = 3
SYNTHETIC_SHARE = 0.1
"""Synthetic inputs beyond the first are made while running them takes at most this share of the time."""

ORIGIN = "origin.json"
"""Beside the feeds: says that they were made up, so that a second look does not take them for real ones."""


def read_graph(setup: Setup) -> Graph:
    """The model's features.

    Raises:
        ModelError: it cannot be parsed.
    """
    from ort_metainfer.model.graph import describe

    return describe(setup.model_file, setup.shapes)


def prepare(setup: Setup, speaker: Speaker, until: float) -> Feeds:
    """Check the feeds that are there, or make some that the baseline takes and save them.

    Raises:
        InputsError: the baseline refuses them all; with onnxruntime's message.
        ModelError: the model cannot be parsed.
    """
    from ort_metainfer.model.inputs import load_feeds

    given = load_feeds(setup.feeds) if any(setup.feeds.glob("*.npz")) else []
    bench = Bench(setup, given, speaker, until)
    try:
        baseline = bench.open("baseline", Strategy())
    except Refused as error:
        raise InputsError(f"{setup.label}: onnxruntime cannot create the session: {error}") from error
    bench.announce("checking", "baseline")
    return _check(setup, bench, baseline) if given else _make(setup, bench, baseline)


def _check(setup: Setup, bench: Bench, baseline: Opened) -> Feeds:
    for number, feed in enumerate(bench.feeds):
        try:
            baseline.run(feed)
        except Refused as error:
            shown = ", ".join(f"{name} {value.dtype}{list(value.shape)}" for name, value in feed.items())
            raise InputsError(f"{setup.label} refuses input {number} ({shown}): {error}") from error
    marker = setup.feeds / ORIGIN
    if marker.is_file():
        return replace(Feeds(**json.loads(marker.read_text(encoding="utf-8"))), shapes=_shapes(bench.feeds[0]))
    origin = f"{len(bench.feeds)} {'input' if len(bench.feeds) == 1 else 'inputs'} given"
    return Feeds(len(bench.feeds), True, origin, _shapes(bench.feeds[0]))


def _make(setup: Setup, bench: Bench, baseline: Opened) -> Feeds:
    from ort_metainfer.model.inputs import GUESSES, synthetic

    graph = setup.graph if setup.graph is not None else read_graph(setup)
    complaints: list[str] = []
    for guess in range(GUESSES):
        try:
            feeds = [synthetic(graph, setup.shapes, 0, guess)]
            latency_s = _run_s(bench, baseline, feeds[0])
        except (Refused, InputsError) as error:
            complaints.append(str(error))
            continue
        made = _saved(setup, feeds, guess)
        bench.speaker.say("prepared", feeds=asdict(made))
        more = _more(setup, bench, baseline, graph, guess, latency_s)
        bench.announce("checking", "baseline")
        return _saved(setup, feeds + more, guess) if more else made
    tried = f"tried {len(complaints)} guesses at the sizes nobody declared; the first failed with: {complaints[0]}"
    raise InputsError(f"no synthetic input fits {setup.label}: {tried}; give inputs= or input_shapes=")


def _saved(setup: Setup, feeds: list[Feed], guess: int) -> Feeds:
    from ort_metainfer.model.inputs import save_feeds

    save_feeds(feeds, setup.feeds)
    made = Feeds(len(feeds), False, f"synthetic, {len(feeds)} seeds, sizes of guess {guess}")
    (setup.feeds / ORIGIN).write_text(json.dumps(asdict(made)), encoding="utf-8")
    return replace(made, shapes=_shapes(feeds[0]))


def _run_s(bench: Bench, baseline: Opened, feed: Feed) -> float:
    started = bench.clock.now_s()
    baseline.run(feed)
    return bench.clock.now_s() - started


def _more(setup: Setup, bench: Bench, baseline: Opened, graph: Graph, guess: int, latency_s: float) -> list[Feed]:
    """Further feeds of the same sizes; one the baseline refuses is left out.

    How long a run takes may depend on the values (a speech model that is fed noise may speak for minutes): the parent
    gives this step little time, and goes on with the first feed where that does not do.
    """
    from ort_metainfer.model.inputs import synthetic

    more: list[Feed] = []
    for seed in range(1, SYNTHETIC_FEEDS):
        if latency_s > SYNTHETIC_SHARE * bench.left_s():
            break
        bench.announce("checking", "extra")
        feed = synthetic(graph, setup.shapes, seed, guess)
        try:
            baseline.run(feed)
        except Refused:
            continue
        more.append(feed)
    return more


def _shapes(feed: Feed) -> dict[str, tuple[int, ...]]:
    return {name: tuple(int(size) for size in _sizes(value)) for name, value in feed.items()}


def _sizes(value: Any) -> Sequence[int]:
    shape: Sequence[int] = getattr(value, "shape", ())
    return shape
