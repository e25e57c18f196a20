"""Preparing a model for a device ahead of time: fixed shapes, a quantised form, the compiled model; each step gated.

What an NPU wants and a float model with open shapes is not. The accuracy gate holds the quantised model against the
float one on the CPU provider, on real inputs that were held back from calibration; what the device computes is then
held against the float model as well.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ort_metainfer.compilation import Errand, Outcome, compile_model, in_a_child, worth_trying
from ort_metainfer.compiled import Compiled, strategy_file
from ort_metainfer.compiled_key import CompiledKey, compiled_key
from ort_metainfer.decision import Gate, Placement
from ort_metainfer.errors import CacheError, InputsError, ModelError
from ort_metainfer.problem import Graph, SessionSpec
from ort_metainfer.scratch import scratch_folder
from ort_metainfer.strategy import Strategy, Transform
from ort_metainfer.trials.channel import setup_plain, thresholds_plain
from ort_metainfer.trials.task import Setup, Thresholds

if TYPE_CHECKING:
    from ort_metainfer.providers.base import Provider

__all__ = ["Preparation", "Prepared", "prepare_model"]

MAX_FEEDS = 200
"""Inputs taken for calibration and judging."""

CHECKED_FEEDS = 4
"""Inputs that the device is checked on: a simulator takes seconds for each."""

REPORT_FILE = "report.json"


@dataclass(frozen=True)
class Preparation:
    """What is to be prepared.

    Attributes:
        model: the float model's file.
        provider: execution provider to compile for, by name.
        device: the provider's own name for one of its devices.
        provider_options: the adapter's options.
        shapes: input -> shape that it will be run with.
        inputs: real inputs, as ``Settings.inputs``.
        recipe: how to quantise, as ``rewrites.quantise.Recipe.as_dict``; None leaves the model in float.
        accuracy: ``strict``, ``balanced`` or ``fast``; the last two need real inputs.
        out: folder to write to (it must not exist, or be empty); None leaves the result in the cache.
        budget_s: seconds it may take.
    """

    model: Path
    provider: str = "CPUExecutionProvider"
    device: str | None = None
    provider_options: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: Any = field(default=None, repr=False)
    recipe: Mapping[str, Any] | None = None
    accuracy: str = "strict"
    out: Path | None = None
    budget_s: float = 300.0


@dataclass(frozen=True)
class Prepared:
    """What came of it.

    Attributes:
        failure: why there is no compiled model, one sentence; None where there is.
        strategy: what a session needs to use it: name its file in ``Settings.strategy``.
        gate: the accuracy gate over the quantised model; None where it was not quantised.
        folder: where the compiled model lies.
        strategy_file: where the strategy lies.
        figures: milliseconds and errors.
        placement: which nodes run where.
        size_bytes: the compiled model; ``original_bytes`` the model it was made from.
        notes: what a person may want to know, a sentence each.
    """

    failure: str | None
    strategy: Strategy
    gate: Gate | None = None
    folder: Path | None = None
    strategy_file: Path | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    placement: Placement | None = None
    size_bytes: int = 0
    original_bytes: int = 0
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as ``--json`` prints them."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain |= {name: None if plain[name] is None else str(plain[name]) for name in ("folder", "strategy_file")}
        plain |= {name: None if plain[name] is None else asdict(plain[name]) for name in ("gate", "placement")}
        return plain | {"strategy": self.strategy.as_dict(), "notes": list(self.notes), "figures": dict(self.figures)}


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
        ProviderError: the provider cannot be used here.
        CacheError: ``wanted.out`` is in use.
        TrialError: a child process could not do its work.
    """
    from ort_metainfer.model.fingerprint import fingerprint
    from ort_metainfer.model.graph import describe
    from ort_metainfer.providers import get_provider

    deadline, provider = time.monotonic() + wanted.budget_s, get_provider(wanted.provider)
    _check_out(wanted.out)
    model, graph = fingerprint(wanted.model, None), describe(wanted.model)
    _check(wanted, graph, provider)
    strategy = _strategy(wanted, provider)
    provider.check(strategy)
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
        return prepared if wanted.out is None else _deliver(prepared, source, wanted.out, text)


def _check_out(out: Path | None) -> None:
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CacheError(f"{out} is there already and not an empty folder; name another, or remove it")


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


def _strategy(wanted: Preparation, provider: Provider) -> Strategy:
    from ort_metainfer.rewrites import FIXED_SHAPES_VERSION, QUANTISE_VERSION

    transforms = []
    if wanted.shapes:
        from ort_metainfer.rewrites.shapes import shape_text

        shapes = {name: shape_text(shape) for name, shape in wanted.shapes.items()}
        transforms.append(Transform("fixed-shapes", FIXED_SHAPES_VERSION, {"shapes": shapes}))
    if wanted.recipe is not None:
        transforms.append(Transform("static-qdq", QUANTISE_VERSION, wanted.recipe))
    return Strategy(
        transforms=tuple(transforms),
        provider=provider.name,
        device=wanted.device,
        provider_options=wanted.provider_options,
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
        self.thresholds = Thresholds.of(wanted.accuracy)
        self.setup = self._setup(graph)

    def _setup(self, graph: Graph) -> Setup:
        from ort_metainfer.model.inputs import caller_feeds, save_feeds
        from ort_metainfer.trials.client import ChildTrialHost

        feeds, label = self.folder / "feeds", str(self.wanted.model)
        feeds.mkdir()
        setup = Setup(self.wanted.model, SessionSpec(), feeds, graph=graph, shapes=self.wanted.shapes, label=label)
        if self.wanted.inputs is not None:
            save_feeds(caller_feeds(self.wanted.inputs, graph, limit=MAX_FEEDS, until=self.deadline), feeds)
            return setup
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
            "setup": setup_plain(self.setup) | {"graph": None},
            "recipe": self.wanted.recipe,
            "thresholds": thresholds_plain(self.thresholds),
            "folder": str(self.folder),
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


def _deliver(prepared: Prepared, source: Path, out: Path, strategy: str) -> Prepared:
    """Copy everything to ``out``: all of it or nothing.

    Raises:
        CacheError: it cannot be written.
    """
    assert prepared.folder is not None
    part = out.with_name(f".{out.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        shutil.copytree(prepared.folder, part)
        for file in source.parent.glob(f"{source.name}*"):
            shutil.copy(file, part / f"source{file.name.removeprefix(source.stem)}")
        done = replace(prepared, folder=out, strategy_file=out / "strategy.toml")
        (part / "strategy.toml").write_text(strategy, encoding="utf-8")
        (part / REPORT_FILE).write_text(json.dumps(done.as_dict(), indent=2, allow_nan=False), encoding="utf-8")
        if out.is_dir():
            out.rmdir()  # empty, or it raises
        os.rename(part, out)
    except (OSError, ValueError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise CacheError(f"cannot write {out}: {error}") from error
    return done
