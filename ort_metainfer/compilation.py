"""Having a model compiled in a child process, and deciding whether the result is kept."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ort_metainfer.compiled import (
    MAX_TOTAL_BYTES,
    Compiled,
    compiled_for,
    keep,
    part_folder,
)
from ort_metainfer.compiled_key import REWRITTEN, CompiledKey, compiled_key, form_of
from ort_metainfer.decision import Decision, Placement
from ort_metainfer.errors import MetainferError, ProviderError
from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.rewriting import FUNCTIONS
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.channel import setup_plain, thresholds_plain
from ort_metainfer.trials.placement import placement_from_dict
from ort_metainfer.trials.task import Setup, Thresholds

__all__ = [
    "MIN_CREATION_MS",
    "Errand",
    "Outcome",
    "compile_model",
    "in_a_child",
    "pays",
    "with_compiled",
    "with_rewritten",
    "worth_trying",
]

MIN_CREATION_MS = 100.0
"""A session that is created in less is left as it is: a caller would hardly notice, and the copy takes disk space."""

MIN_SAVED_MS = 50.0
MIN_RATIO = 1.25
"""What loading must save to be worth it, by the median; a choice, not a measurement."""

MIN_TIME_S = 2.0
"""Below this no child is started to compile: it starts, creates the session, runs it, compiles, and does it again."""

MAX_SHARE = 0.25
"""Share of the space for compiled models that one may take."""

MAX_REWRITTEN_SHARE = 0.75
"""The same for a rewritten model: without it the strategy that won could not be applied."""

Errand = Callable[[str, Mapping[str, Any], float], Mapping[str, Any]]
"""Carries out an errand by its name, with its request, under a deadline (see ``trials.errand.run_errand``)."""


@dataclass(frozen=True)
class Outcome:
    """What became of compiling.

    Attributes:
        compiled: the result, None where there is none or it is not kept.
        reason: one sentence.
        figures: milliseconds and errors, as far as it got.
        placement: which nodes of the original run where.
    """

    compiled: Compiled | None
    reason: str
    figures: Mapping[str, float]
    placement: Placement | None = None


def worth_trying(graph: Graph, creation_ms: float | None) -> str | None:
    """Why compiling is not even tried, or None."""
    if blockers := [blocker for blocker in graph.blockers if blocker != FUNCTIONS]:  # those the optimiser unfolds
        return f"the model holds {', '.join(blockers)}"
    if graph.random_operators:
        return f"its outputs differ from run to run ({', '.join(graph.random_operators)}), so nothing can be verified"
    if graph.overridable:
        return "a caller may replace some of its weights, which compiling would fix"
    if creation_ms is not None and creation_ms < MIN_CREATION_MS:
        return f"the session is created in {creation_ms:.0f} ms already"
    return None


def pays(figures: Mapping[str, float]) -> tuple[bool, str]:
    """Whether loading the compiled model is enough faster than creating the session, and the figures in words."""
    plain, load = figures["creation_ms"], figures["load_ms"]
    words = f"created in {plain:.0f} ms, loaded compiled in {load:.0f} ms"
    return plain - load >= MIN_SAVED_MS and plain >= load * MIN_RATIO, words


def with_compiled(
    decision: Decision, setup: Setup, thresholds: Thresholds, directory: Path, deadline: float, errand: Errand
) -> Decision:
    """A decision that was just made, with the name of what its session is loaded from; or why from nothing."""
    assert decision.key is not None and decision.graph is not None
    creation_ms = _creation_ms(decision)
    reason: str | None = "what creating the session takes was not measured"
    if creation_ms is not None:
        reason = worth_trying(decision.graph, creation_ms)
    if decision.strategy.transforms:
        return with_rewritten(decision, setup, directory)
    if reason is None and deadline - time.monotonic() < MIN_TIME_S:
        reason = "no time was left to compile it"
    if reason is None:
        try:
            key = compiled_key(decision.key.model, setup.baseline, decision.strategy)
        except ProviderError as error:
            return replace(decision, compiled_reason=str(error))
        outcome = compile_model(setup, decision.strategy, key, directory, deadline, thresholds, errand=errand)
        reason = outcome.reason
        if outcome.compiled is not None:
            return replace(decision, compiled=outcome.compiled.folder.name, compiled_reason=reason)
    return replace(decision, compiled_reason=reason)


def with_rewritten(decision: Decision, setup: Setup, directory: Path) -> Decision:
    """A decision whose strategy rewrites the model, with the name of the rewritten one that is kept for it.

    What the trials ran is what is kept. Without it the strategy could not be applied: where it cannot be kept, the
    decision is for plain onnxruntime, and says why.
    """
    from ort_metainfer.model.feeds import load_feeds
    from ort_metainfer.rewrites.circumstances import circumstances
    from ort_metainfer.rewriting_again import note_verified
    from ort_metainfer.trials.rewritten import MODEL_FILE, model_files, notes_of, references_of, rewritten_folder

    assert decision.key is not None
    made = rewritten_folder(setup, decision.strategy.transforms)
    try:
        feeds = load_feeds(setup.feeds) if any(setup.feeds.glob("*.npz")) else []
        looked_at = circumstances(decision.strategy.transforms, setup.shapes, feeds)
        key = replace(compiled_key(decision.key.model, setup.baseline, decision.strategy), inputs=looked_at)
        size = sum(path.stat().st_size for path in model_files(made))
        if size > MAX_REWRITTEN_SHARE * MAX_TOTAL_BYTES:
            raise OSError(f"{size / 2**20:.0f} MB are more than one model may take")
        with part_folder(directory) as part:
            for path in model_files(made):
                shutil.copyfile(path, part / path.name)
            assert (part / MODEL_FILE).exists()
            kept = keep(directory, part, Compiled(part, REWRITTEN, key, referenced=references_of(made)))
    except (OSError, ProviderError) as error:
        reason = f"its rewritten model cannot be kept in {directory}: {error}"
        return replace(
            decision, strategy=Strategy(), origin="default", reason=reason, complete=False, incomplete_reason=reason
        )
    note_verified(directory, kept)
    reason = "; ".join(("the rewritten model is kept", *notes_of(setup, decision.strategy.transforms)))
    return replace(decision, compiled=kept.folder.name, compiled_reason=reason)


def _creation_ms(decision: Decision) -> float | None:
    """What creating the session took in the trials, as far as that was measured."""
    if decision.winner is not None:
        return decision.winner.creation_ms
    known = [trial.baseline_creation_ms for trial in decision.trials if trial.baseline_creation_ms is not None]
    return known[0] if known else None


def compile_model(
    setup: Setup,
    strategy: Strategy,
    key: CompiledKey,
    directory: Path,
    deadline: float,
    thresholds: Thresholds,
    *,
    must_pay: bool = True,
    original: Path | None = None,
    errand: Errand | None = None,
) -> Outcome:
    """Compile a model and keep it for ``key``; one process at a time does, and others take what it made.

    Args:
        setup: the session, with the model file to compile and a folder of feeds to check it on.
        strategy: what to compile for; its rewrites are taken to be in the file already.
        key: what the result will be looked for by.
        directory: the cache's.
        deadline: a time.monotonic() value.
        thresholds: how far outputs may lie from the uncompiled session's.
        must_pay: keep it only where loading it is faster (see :func:`pays`).
        original: the caller's model where ``setup.model_file`` is a rewritten one: the outputs are held against it too.
        errand: does the work; the default starts a child process.
    """
    from ort_metainfer.strategy_cache.lock import deciding

    if (form := form_of(setup.baseline, strategy)) is None:
        return Outcome(None, "its provider keeps no compiled models that could be used again", {})
    with deciding(directory, f"compile {key.folder_name}", deadline - time.monotonic()) as mine:
        found = compiled_for(directory, key)
        if isinstance(found, Compiled) and found.form == form:  # a rewritten model may lie there, for the same strategy
            return Outcome(found, f"compiled already, {found.made_at}", found.figures)
        if not mine:
            return Outcome(None, "another process was compiling it, and the time was up", {})
        request = {
            "task": "compile",
            "setup": setup_plain(setup) | {"graph": None},
            "strategy": _without_rewrites(strategy).as_dict(),
            "thresholds": thresholds_plain(thresholds),
            "form": form,
            "original": None if original is None else str(original),
        }
        try:
            with part_folder(directory) as part:
                return _compiled(request, part, key, directory, deadline, must_pay, errand or in_a_child)
        except OSError as error:
            return Outcome(None, f"it cannot be kept in {directory}: {error.strerror or error}", {})


def _compiled(
    request: Mapping[str, Any],
    part: Path,
    key: CompiledKey,
    directory: Path,
    deadline: float,
    must_pay: bool,
    errand: Errand,
) -> Outcome:
    try:
        told = errand("compile", {**request, "folder": str(part)}, deadline)
    except MetainferError as error:
        return Outcome(None, str(error), {})
    figures, placed = told["figures"], told.get("placement")
    placement = None if placed is None else placement_from_dict(placed)
    is_worth_it, words = pays(figures)
    if must_pay and not is_worth_it:
        return Outcome(None, f"not worth keeping: {words}", figures, placement)
    size = sum(path.stat().st_size for path in part.iterdir())
    if size > MAX_SHARE * MAX_TOTAL_BYTES:
        return Outcome(None, f"too large to be kept: {size / 2**20:.0f} MB", figures, placement)
    made = Compiled(part, request["form"], key, told["metadata"], told["compatibility"], figures)
    return Outcome(keep(directory, part, made), words, figures, placement)


def in_a_child(do: str, request: Mapping[str, Any], deadline: float) -> Mapping[str, Any]:
    """See :data:`Errand`: a fresh child process for each."""
    from ort_metainfer.trials.errand import run_errand

    return run_errand(do, request, deadline)


def _without_rewrites(strategy: Strategy) -> Strategy:
    return replace(strategy, transforms=())
