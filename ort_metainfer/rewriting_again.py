"""The rewritten model of a strategy that was decided, or that a person wrote, made where it is not in the cache.

A strategy is replayable: the same model and the same transforms give the same bytes. What calibrates on inputs needs
them again: the caller's, or those captured of earlier runs. With others, or none, it gives another model than the one
whose accuracy was verified: a decision is not applied with that. A person's strategy file is, and each set of inputs
then has a rewritten model of its own; a session that gives none takes the one used last.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ort_metainfer._version import VERSION
from ort_metainfer.compiled import Compiled, compiled_for, digest_folder, keep, made_with_any_inputs, part_folder
from ort_metainfer.compiled_key import REWRITTEN, CompiledKey
from ort_metainfer.compiled_start import with_its_weights
from ort_metainfer.errors import InputsError, MetainferError, NotRewritten, RewriteError
from ort_metainfer.places import cache_directory
from ort_metainfer.scratch import scratch_folder

if TYPE_CHECKING:
    from ort_metainfer.settings import Settings
    from ort_metainfer.spec import SessionSpec
    from ort_metainfer.strategy import Strategy

__all__ = ["note_verified", "rewrite_again"]

log = logging.getLogger("ort_metainfer")

VERIFIED = "rewritten"
"""Table of the cache: name of a rewritten model's folder -> digests of what passed the gates, and its inputs."""

UNCHANGED = "unchanged"
"""Table of the cache: name that a rewritten model's folder would have -> why there is none."""


@dataclass(frozen=True)
class _Inputs:
    """What rewrites may look at beside the model; ``word`` stands for the feeds in a key."""

    feeds: Sequence[Mapping[str, Any]] = ()
    word: str = ""


def rewrite_again(
    keyword: Settings | None,
    source: str | bytes,
    key: CompiledKey,
    spec: SessionSpec,
    strategy: Strategy,
    name: str | None = None,
) -> Compiled | str:
    """The rewritten model of a strategy, made in a child within ``budget_s`` and kept; or one sentence why not.

    Of a person's strategy one that is there for the inputs and shapes of this session is taken. Under ``mode=cached``
    nothing is made. That nothing was rewritten is remembered: no child is started for it again.

    Args:
        keyword: the session's settings.
        source: the caller's model.
        key: what the rewritten model is for.
        spec: what the caller set.
        strategy: whose transforms are carried out.
        name: the folder of what a decision was verified with, which is gone: what is made must be that; None: a
            person's word is enough.
    """
    from ort_metainfer.adapt import settings_for

    settings = settings_for(keyword)[0]
    inputs = _given(settings, key.model)
    if name is None:
        found = with_its_weights(_found(settings, key, strategy, inputs), source)
        if isinstance(found, Compiled):
            return found
    if settings.mode == "cached":
        return "it is not in the cache, and mode is cached"
    if not inputs.feeds:
        inputs = _captured(settings, key.model)
    return _made_once(source, _with_inputs(key, strategy, settings, inputs), spec, strategy, settings, inputs, name)


def _found(settings: Any, key: CompiledKey, strategy: Strategy, inputs: _Inputs) -> Compiled | str:
    """What is there for these inputs; for any where the session gives none."""
    directory = cache_directory(settings)
    if not inputs.feeds and not settings.input_shapes:  # whether the strategy looks at inputs need not be found out
        return made_with_any_inputs(directory, key)
    wanted = _with_inputs(key, strategy, settings, inputs)
    if not inputs.feeds and not wanted.inputs:
        return made_with_any_inputs(directory, key)
    return compiled_for(directory, wanted)


def _made_once(
    source: str | bytes,
    key: CompiledKey,
    spec: SessionSpec,
    strategy: Strategy,
    settings: Any,
    inputs: _Inputs,
    name: str | None,
) -> Compiled | str:
    from ort_metainfer.rewrites.circumstances import look_at_feeds
    from ort_metainfer.strategy_cache.store import open_cache

    cache = open_cache(cache_directory(settings))
    known = cache.get(UNCHANGED, key.folder_name)
    if known is not None and known.get("package") == VERSION:
        return str(known["reason"])
    names = ", ".join(transform.name for transform in strategy.transforms)
    log.info("rewriting a model once (%s), for at most %g s", names, settings.budget_s)
    try:
        # first the place to keep it: where that cannot be had, every start would rewrite for nothing
        with part_folder(cache_directory(settings)) as part, scratch_folder() as folder:
            made = _made(source, spec, strategy, settings, inputs, folder)
            return _kept(made, part, cache_directory(settings), key, name)
    except NotRewritten as error:
        if inputs.feeds or not look_at_feeds(strategy.transforms):  # else it may be for want of inputs
            cache.put(UNCHANGED, key.folder_name, {"reason": str(error), "package": VERSION})
        return str(error)
    except (MetainferError, OSError) as error:
        return str(error)


def _with_inputs(key: CompiledKey, strategy: Strategy, settings: Any, inputs: _Inputs) -> CompiledKey:
    from ort_metainfer.rewrites.circumstances import circumstances

    told = circumstances(strategy.transforms, settings.input_shapes or {}, inputs.word or inputs.feeds)
    return replace(key, inputs=told)


def note_verified(directory: Path, kept: Compiled) -> None:
    """Remember what a rewritten model that passed the gates looks like, and what it was made with."""
    from ort_metainfer.strategy_cache.store import open_cache

    row = {"files": digest_folder(kept.folder), "inputs": kept.key.inputs}
    open_cache(directory).put(VERIFIED, kept.folder.name, row)


def _given(settings: Any, model_hash: str) -> _Inputs:
    """The caller's inputs; none where there are none, or an iterator has no more."""
    from ort_metainfer.model.fingerprint import known_graph
    from ort_metainfer.model.inputs import caller_feeds
    from ort_metainfer.strategy_cache.store import open_cache

    graph = None if settings.inputs is None else known_graph(open_cache(cache_directory(settings)), model_hash)
    if graph is None:
        return _Inputs()
    try:
        return _Inputs(caller_feeds(settings.inputs, graph))
    except InputsError as error:
        log.info("inputs are not used: %s", error)
        return _Inputs()


def _captured(settings: Any, model_hash: str) -> _Inputs:
    """What earlier runs left."""
    from ort_metainfer.model.capture import Reservoir
    from ort_metainfer.model.fingerprint import known_graph
    from ort_metainfer.rewrites.circumstances import CAPTURED
    from ort_metainfer.strategy_cache.store import open_cache

    directory = cache_directory(settings)
    graph = known_graph(open_cache(directory), model_hash)
    feeds = [] if graph is None else Reservoir(directory, model_hash).feeds(graph, settings.input_shapes)
    return _Inputs(list(feeds), CAPTURED) if feeds else _Inputs()


def _made(
    source: str | bytes, spec: SessionSpec, strategy: Strategy, settings: Any, inputs: _Inputs, folder: Path
) -> Path:
    """The folder with the rewritten model, made in a child process."""
    from ort_metainfer.model.inputs import save_feeds
    from ort_metainfer.trials.channel import setup_plain
    from ort_metainfer.trials.errand import run_errand
    from ort_metainfer.trials.task import Setup

    file = folder / "given.onnx"
    if isinstance(source, bytes):
        file.write_bytes(source)
    else:
        file = Path(source)
    save_feeds(inputs.feeds, folder)
    as_bytes, shapes = isinstance(source, bytes), settings.input_shapes or {}
    setup = Setup(file, spec, folder, as_bytes, shapes=shapes, inputs_are_real=bool(inputs.feeds))
    request = {"task": "transform", "setup": setup_plain(setup), "strategy": strategy.as_dict()}
    deadline = time.monotonic() + float(settings.budget_s or 0)
    return Path(run_errand("compile", request, deadline)["folder"])


def _kept(made: Path, part: Path, directory: Path, key: CompiledKey, name: str | None) -> Compiled:
    """The rewritten model in its place; for a decision only where it is what was verified.

    Raises:
        RewriteError: it is not.
        OSError: it cannot be kept.
    """
    from ort_metainfer.strategy_cache.store import open_cache
    from ort_metainfer.trials.rewritten import model_files, references_of

    for path in model_files(made):
        shutil.copyfile(path, part / path.name)
    verified = None if name is None else open_cache(directory).get(VERIFIED, name)
    if verified is not None:
        if verified["files"] != digest_folder(part):
            raise RewriteError(
                "made anew it is not the model that was verified, since it is calibrated on inputs and those are not "
                "given"
            )
        key = replace(key, inputs=str(verified.get("inputs", "")))  # so that it is found by its name
    return keep(directory, part, Compiled(part, REWRITTEN, key, referenced=references_of(made)))
