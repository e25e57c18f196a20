"""The nodes that lose most of a lossy strategy's accuracy, and the errand ``nodes`` that finds them in a child.

The float model is run on the CPU provider with nothing fused; the other as the strategy runs it, so that a provider's
own precision counts as well. A node's error holds what came to it from above: they are ordered by what each adds.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ort_metainfer.decision import WorstNode
from ort_metainfer.problem import SessionSpec
from ort_metainfer.rewrites.observing import FOLDER_KEY, OpenWith
from ort_metainfer.rewrites.precision_nodes import (
    Twin,
    faults_by_node,
    local_errors,
    looking_into,
    same_twins,
    twins_of,
)
from ort_metainfer.rewrites.registry import get_rewrite
from ort_metainfer.rewrites.sampling import held_back
from ort_metainfer.strategy import Strategy, Transform
from ort_metainfer.trials.bench import Speaker
from ort_metainfer.trials.channel import setup_from
from ort_metainfer.trials.rewritten import MODEL_FILE, references_of, rewritten_folder, rewritten_model
from ort_metainfer.trials.task import Setup

__all__ = ["WORST", "report_on", "serve", "worst_nodes"]

WORST = 5
"""Nodes that are told."""

MOST_FEEDS = 2
"""Inputs that they are measured on."""

ERRORS_SHARE = 0.6
"""Share of the time after which no further nodes are looked at."""

Feed = Mapping[str, Any]


def serve(request: Mapping[str, Any], channel: Speaker, until: float) -> dict[str, Any]:
    """Look at the nodes of one strategy.

    Returns:
        ``nodes``, worst first, and a ``note`` where not all could be looked at, or nothing was found.

    Raises:
        RewriteError: a model cannot be rewritten, or looked into.
        InputsError: it does not run.
    """
    setup, strategy = setup_from(request["setup"]), Strategy.from_dict(request["strategy"])
    channel.say("rewriting", session="nodes")
    nodes, note = report_on(setup, strategy, until, lambda: channel.say("checking", session="nodes"))
    return {"nodes": [asdict(node) for node in nodes], "note": note}


def report_on(
    setup: Setup, strategy: Strategy, until: float, on_rewritten: Callable[[], None] = lambda: None
) -> tuple[tuple[WorstNode, ...], str]:
    """The worst nodes of a strategy, and what is to be said about them; see :func:`serve`.

    Args:
        setup: the session, with a folder of feeds.
        strategy: what is looked at; models that it rewrites are made where they are not there yet.
        until: a time.monotonic() value.
        on_rewritten: called once both models are there.
    """
    from ort_metainfer.model.inputs import load_feeds

    feeds = load_feeds(setup.feeds)
    with tempfile.TemporaryDirectory() as folder:
        float_file, file = _models(setup, strategy, feeds, until, Path(folder))
        on_rewritten()
        opened = _opening(setup.baseline, strategy)
        nodes, note = worst_nodes(float_file, file, held_back(feeds)[1][:MOST_FEEDS], until, opened)
    return nodes[:WORST], note


def _models(setup: Setup, strategy: Strategy, feeds: Sequence[Feed], until: float, folder: Path) -> tuple[Path, Path]:
    """The model in float as the last lossy rewrite finds it, and as the strategy's session runs it."""
    file = _whole(setup, strategy.transforms, feeds, until) if strategy.transforms else setup.model_file
    lossy = [n for n, each in enumerate(strategy.transforms) if get_rewrite(each.name).promise == "lossy"]
    if not lossy:
        return file, file
    before, last = strategy.transforms[: lossy[-1]], strategy.transforms[lossy[-1]]
    source = _whole(setup, before, feeds, until) if before else setup.model_file
    rewrite = get_rewrite(last.name)
    prepare = getattr(rewrite, "prepared", None)
    return (source if prepare is None else prepare(source, folder, rewrite.complete(last))), file


def _whole(setup: Setup, transforms: Sequence[Transform], feeds: Sequence[Feed], until: float) -> Path:
    """The rewritten model of the trial; the same by itself where that one leaves weights in the original's files."""
    made = rewritten_folder(setup, transforms)
    if made.is_dir() and not references_of(made):
        return made / MODEL_FILE
    return rewritten_model(setup, transforms, feeds, until, is_whole=True)


def _opening(baseline: SessionSpec, strategy: Strategy) -> OpenWith:
    """Makes sessions as the strategy makes them."""
    from ort_metainfer.options import open_session

    applied = replace(strategy, transforms=())

    def opened(model: bytes, folder: Path) -> Any:
        return open_session(model, baseline, applied, {FOLDER_KEY: str(folder)})

    return opened


def worst_nodes(
    float_file: Path,
    file: Path,
    feeds: Sequence[Feed],
    until: float | None = None,
    open_with: OpenWith | None = None,
) -> tuple[tuple[WorstNode, ...], str]:
    """Every product that is computed in less, the one that adds most error first; and what is to be said about it.

    Args:
        float_file: the float model.
        file: the lossy one; the same file where the session computes in less.
        feeds: real inputs.
        until: a time.monotonic() value; what is not looked at by then is told in the note.
        open_with: makes the session of the lossy one; None: the CPU provider, nothing fused.

    Raises:
        RewriteError: a model cannot be looked into.
        InputsError: it does not run.
    """
    import onnx

    float_model = onnx.load(str(float_file), load_external_data=False)
    model = float_model if file == float_file else onnx.load(str(file), load_external_data=False)
    twins = same_twins(model) if file == float_file else twins_of(float_model, model)
    if not twins:
        return (), "none of its products can be found again in both models"
    late = None if until is None else time.monotonic() + ERRORS_SHARE * (until - time.monotonic())
    expected, got = looking_into(float_file, feeds), looking_into(file, feeds, None, open_with)
    errors = local_errors(twins, expected, got, late)
    faults: Mapping[str, tuple[str, ...]] = {}
    if file != float_file:
        faults, _ = faults_by_node(onnx.load(str(file)), float_file, feeds, twins, until)
    nodes = _ranked(float_model, twins, errors, faults)
    missing = len(twins) - len(errors)
    return nodes, f"time was up: {missing} of {len(twins)} nodes were not looked at" if missing else ""


def _ranked(
    float_model: Any, twins: Mapping[str, Twin], errors: Mapping[str, float], faults: Mapping[str, tuple[str, ...]]
) -> tuple[WorstNode, ...]:
    above = _errors_above(float_model, {twins[label].before: error for label, error in errors.items()})
    added = {label: _added(error, above[twins[label].before]) for label, error in errors.items()}
    return tuple(
        WorstNode(
            label,
            twins[label].operator,
            _finite(errors[label]),
            _finite(added[label]),
            "; ".join(faults.get(label, ())),
        )
        for label in sorted(errors, key=lambda label: (-added[label], label))
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _added(error: float, above: float) -> float:
    """What a node adds: errors of rounding are independent, and add up in squares."""
    if math.isinf(error):
        return 0.0 if math.isinf(above) else math.inf
    return math.sqrt(max(0.0, error**2 - above**2)) if math.isfinite(above) else 0.0


def _errors_above(float_model: Any, errors: Mapping[str, float]) -> dict[str, float]:
    """Value that was looked at -> the largest error among those nearest above it."""
    reaching: dict[str, float] = {}
    found: dict[str, float] = {}
    for node in float_model.graph.node:
        given = max((reaching.get(name, 0.0) for name in node.input), default=0.0)
        for name in node.output:
            if name in errors:
                found[name] = given
            reaching[name] = errors.get(name, given)
    return found
