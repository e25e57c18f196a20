"""Preparing a model for a device ahead of time: fixed shapes, a quantised form, the compiled model; each step gated.

What an NPU wants and a float model with open shapes is not. The accuracy gate holds the quantised model against the
float one on the CPU provider, on real inputs that were held back from calibration; what the device computes is then
held against the float model as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ort_metainfer.compilation import Errand, Outcome, compile_model, in_a_child, worth_trying
from ort_metainfer.compiled import Compiled, strategy_file
from ort_metainfer.compiled_key import CompiledKey, compiled_key
from ort_metainfer.decision import Gate
from ort_metainfer.delivering import STRATEGY_FILE, check_empty, deliver
from ort_metainfer.errors import InputsError, ModelError, ProviderError
from ort_metainfer.preparation import Preparation, Prepared, strategy_for
from ort_metainfer.problem import Graph, SessionSpec
from ort_metainfer.scratch import scratch_folder
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.channel import setup_plain, thresholds_plain
from ort_metainfer.trials.task import Setup, Thresholds

if TYPE_CHECKING:
    from ort_metainfer.providers.base import Provider

__all__ = ["Preparation", "Prepared", "prepare_model"]

MAX_FEEDS = 200
"""Inputs taken for calibration and judging."""

CHECKED_FEEDS = 4
"""Inputs that the device is checked on: a simulator takes seconds for each."""


def prepare_model(
    wanted: Preparation,
    directory: Path,
    progress: Callable[[str], None] = lambda step: None,
    errand: Errand | None = None,
) -> Prepared:
    """Carry out a preparation; the result lies in the cache at ``directory``, and in ``wanted.out`` where given.

    Args:
        wanted: what.
        directory: the cache's.
        progress: is told what is being done, in one line each.
        errand: does the work; the default starts child processes.

    Raises:
        ModelError: the model cannot be read, or must not be rewritten.
        InputsError: shapes or inputs do not fit, or real inputs are needed and not given.
        ProviderError: the provider cannot be used here, or offers no such device.
        StrategyError: the recipe holds what there is not, or names a node that the model does not have.
        CacheError: ``wanted.out`` is in use.
        TrialError: a child process could not do its work.
    """
    from ort_metainfer.model.fingerprint import fingerprint
    from ort_metainfer.model.graph import describe
    from ort_metainfer.providers import get_provider

    deadline, provider = time.monotonic() + wanted.budget_s, get_provider(wanted.provider)
    check_empty(wanted.out)
    model, graph = fingerprint(wanted.model, None), describe(wanted.model)
    _check(wanted, graph, provider)
    strategy = strategy_for(wanted, graph, provider)
    provider.check(strategy)
    _check_device(strategy, provider, deadline, errand or in_a_child)
    with scratch_folder() as folder:
        work = _Work(wanted, strategy, graph, folder, deadline, progress, errand or in_a_child)
        source, gate, notes = work.rewrite()
        if gate is not None and not gate.passed:
            return Prepared(f"the quantised model is not accurate enough: {gate.detail}", strategy, gate, notes=notes)
        outcome = work.compile(source, compiled_key(model.hash, SessionSpec(), strategy), directory)
        prepared = _prepared(outcome, strategy, gate, notes, model.size_bytes)
        failure = prepared.failure or _too_far(outcome.figures, work.thresholds)
        if failure is not None or outcome.compiled is None:
            return replace(prepared, failure=failure)
        text = strategy.to_toml(f"prepared from {wanted.model} for {provider.name}; made by ort-metainfer compile")
        file = strategy_file(outcome.compiled.folder)
        file.write_text(text, encoding="utf-8")
        prepared = replace(prepared, strategy_file=file)
        return prepared if wanted.out is None else _delivered(prepared, source, wanted.out, text)


def _check_device(strategy: Strategy, provider: Provider, deadline: float, errand: Errand) -> None:
    """That the device named is there, before anything is rewritten for it; a child asks, as that may take a library.

    Raises:
        ProviderError: it is not, or none is; with what is there.
    """
    if strategy.device is None:
        return
    told = errand("devices", {"providers": [provider.name]}, deadline)
    for name, reason in told["refused"]:
        raise ProviderError(f"{name} offers no device here: {reason}")
    provider.chosen_device(strategy, [each["provider_device"] for each in told["devices"] if each["provider_device"]])


def _check(wanted: Preparation, graph: Graph, provider: Provider) -> None:
    label = f"model {wanted.model}"
    if (reason := worth_trying(graph, None)) is not None:
        raise ModelError(f"{label} is not compiled: {reason}")
    objections = provider.capabilities.constraints.objections(graph, wanted.shapes)
    if wanted.recipe is not None:
        objections = tuple(objection for objection in objections if "quantised" not in objection)
    if objections:
        raise InputsError(f"{label} cannot be compiled for {provider.name}: {'; '.join(objections)}")
    stray = [name for name in (wanted.recipe or {}).get("exclude_operators", ()) if name not in graph.operators]
    if stray:
        there = ", ".join(sorted(graph.operators))
        raise ModelError(f"{label} has no operator {stray[0]!r}, which is to be left in float; it has {there}")
    if wanted.inputs is None and (wanted.recipe is not None or wanted.accuracy != "strict"):
        what = "quantising" if wanted.recipe is not None else f"accuracy {wanted.accuracy}"
        raise InputsError(
            f"{label}: {what} needs real inputs to be judged on, synthetic ones never justify a loss: give inputs, "
            "as .npz files with arrays named like the model's inputs (four or more)"
        )


class _Work:
    """The steps, each in a child of its own."""

    def __init__(
        self,
        wanted: Preparation,
        strategy: Strategy,
        graph: Graph,
        folder: Path,
        deadline: float,
        progress: Callable[[str], None],
        errand: Errand,
    ) -> None:
        self.wanted, self.strategy, self.deadline, self.progress = wanted, strategy, deadline, progress
        self.errand, self.folder = errand, folder
        # who names a device has asked for it: how much of the model it takes is told, not judged
        self.thresholds = replace(Thresholds.of(wanted.accuracy), min_share=0.0)
        self.setup = self._setup(graph)

    def _setup(self, graph: Graph) -> Setup:
        from ort_metainfer.model.inputs import caller_feeds, save_feeds
        from ort_metainfer.trials.client import ChildTrialHost

        feeds, label = self.folder / "feeds", str(self.wanted.model)
        feeds.mkdir()
        setup = Setup(self.wanted.model, SessionSpec(), feeds, graph=graph, shapes=self.wanted.shapes, label=label)
        if self.wanted.inputs is not None:
            save_feeds(caller_feeds(self.wanted.inputs, graph, limit=MAX_FEEDS, until=self.deadline), feeds)
            return replace(setup, inputs_are_real=True)
        self.progress("making inputs")
        with ChildTrialHost() as host:
            host.prepare(setup, self.deadline)
        return setup

    def rewrite(self) -> tuple[Path, Gate | None, tuple[str, ...]]:
        """Fix shapes and quantise; the file to compile, the gate, notes."""
        if not self.strategy.transforms:
            return self.wanted.model, None, ()
        self.progress("rewriting the model")
        request = {
            "task": "rewrite",
            "setup": setup_plain(self.setup),
            "strategy": self.strategy.as_dict(),
            "thresholds": thresholds_plain(self.thresholds),
        }
        told = self.errand("compile", request, self.deadline)
        gate = None if told["gate"] is None else Gate(**told["gate"])
        return Path(told["model"]), gate, tuple(told["notes"])

    def compile(self, source: Path, key: CompiledKey, directory: Path) -> Outcome:
        """Compile what was rewritten, and hold the device's answers against the caller's model."""
        self.progress("compiling the model")
        return compile_model(
            replace(self.setup, model_file=source, feeds=self._checked_feeds()),
            self.strategy,
            key,
            directory,
            self.deadline,
            self.thresholds,
            must_pay=False,
            original=self.wanted.model,
            errand=self.errand,
        )

    def _checked_feeds(self) -> Path:
        """Some of the inputs held back from calibration, the first ones where there are too few."""
        from ort_metainfer.model.inputs import load_feeds, save_feeds
        from ort_metainfer.rewrites.sampling import held_back

        checked = self.folder / "checked"
        checked.mkdir()
        save_feeds(held_back(load_feeds(self.setup.feeds))[1][:CHECKED_FEEDS], checked)
        return checked


def _too_far(figures: Mapping[str, float], thresholds: Thresholds) -> str | None:
    """Why what lay in the cache already is not accurate enough now: it may have been made for a looser policy."""
    error, top1 = figures.get("whole_error", 0.0), figures.get("whole_top1", 1.0)
    if error <= thresholds.max_error and top1 >= (thresholds.top1 or 0.0):
        return None
    kept = f"relative L2 error {error:.1e}, the top answer kept in {top1:.1%}"
    return f"the compiled model in the cache was made for a looser accuracy: {kept}"


def _prepared(
    outcome: Outcome, strategy: Strategy, gate: Gate | None, notes: tuple[str, ...], original_bytes: int
) -> Prepared:
    compiled: Compiled | None = outcome.compiled
    return Prepared(
        failure=None if compiled is not None else outcome.reason,
        strategy=strategy,
        gate=gate,
        folder=None if compiled is None else compiled.folder,
        figures=outcome.figures,
        placement=outcome.placement,
        size_bytes=0 if compiled is None else compiled.size_bytes,
        original_bytes=original_bytes,
        notes=(*notes, *([outcome.reason] if outcome.reason.startswith("compiled already") else [])),
    )


def _delivered(prepared: Prepared, source: Path, out: Path, strategy: str) -> Prepared:
    """The same, copied to ``out``.

    Raises:
        CacheError: it cannot be written.
    """
    assert prepared.folder is not None
    done = replace(prepared, folder=out, strategy_file=out / STRATEGY_FILE)
    deliver(prepared.folder, source, out, strategy, done.as_dict())
    return done
