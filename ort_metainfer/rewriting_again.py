"""The rewritten model of a strategy that was decided, or that a person wrote, made where it is not in the cache.

A strategy is replayable: the same model and the same transforms give the same bytes. What calibrates on inputs needs
them again: the caller's, or those captured of earlier runs. With others, or none, it gives another model than the one
whose accuracy was verified: a decision is not applied with that.
"""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ort_metainfer.compiled import Compiled, digest_folder, keep, part_folder
from ort_metainfer.compiled_key import REWRITTEN, CompiledKey
from ort_metainfer.errors import MetainferError, RewriteError
from ort_metainfer.places import cache_directory

if TYPE_CHECKING:
    from ort_metainfer.settings import Settings
    from ort_metainfer.spec import SessionSpec
    from ort_metainfer.strategy import Strategy

__all__ = ["note_verified", "rewrite_again"]

log = logging.getLogger("ort_metainfer")

VERIFIED = "rewritten"
"""Table of the cache: name of a rewritten model's folder -> digests of what passed the gates."""


def rewrite_again(
    keyword: Settings | None, source: str | bytes, key: CompiledKey, spec: SessionSpec, strategy: Strategy
) -> Compiled | str:
    """Make the rewritten model in a child, within ``budget_s``, and keep it; or one sentence why not.

    Under ``mode=cached`` nothing is made.
    """
    from ort_metainfer.adapt import settings_for
    from ort_metainfer.scratch import scratch_folder

    settings = settings_for(keyword)[0]
    if settings.mode == "cached":
        return "it is not in the cache, and mode is cached"
    names = ", ".join(transform.name for transform in strategy.transforms)
    log.info("rewriting a model once (%s), for at most %g s", names, settings.budget_s)
    try:
        # first the place to keep it: where that cannot be had, every start would rewrite for nothing
        with part_folder(cache_directory(settings)) as part, scratch_folder() as folder:
            made = _made(source, key, spec, strategy, settings, folder)
            return _kept(made, part, cache_directory(settings), key, is_decided=settings.strategy is None)
    except (MetainferError, OSError) as error:
        return str(error)


def _made(
    source: str | bytes, key: CompiledKey, spec: SessionSpec, strategy: Strategy, settings: Any, folder: Path
) -> Path:
    """The folder with the rewritten model, made in a child process."""
    from ort_metainfer.trials.channel import setup_plain
    from ort_metainfer.trials.errand import run_errand
    from ort_metainfer.trials.task import Setup

    file = folder / "given.onnx"
    if isinstance(source, bytes):
        file.write_bytes(source)
    else:
        file = Path(source)
    are_real = _give_inputs(settings, key.model, folder)
    as_bytes, shapes = isinstance(source, bytes), settings.input_shapes or {}
    setup = Setup(file, spec, folder, as_bytes, shapes=shapes, inputs_are_real=are_real)
    request = {"task": "transform", "setup": setup_plain(setup), "strategy": strategy.as_dict()}
    deadline = time.monotonic() + float(settings.budget_s or 0)
    return Path(run_errand("compile", request, deadline)["folder"])


def _give_inputs(settings: Any, model_hash: str, folder: Path) -> bool:
    """Put real inputs where rewrites find them: the caller's, else captured ones; whether there are any."""
    from ort_metainfer.model.capture import Reservoir
    from ort_metainfer.model.fingerprint import known_graph
    from ort_metainfer.model.inputs import caller_feeds, save_feeds
    from ort_metainfer.strategy_cache.store import open_cache

    directory = cache_directory(settings)
    graph = known_graph(open_cache(directory), model_hash)
    if graph is None:
        return False
    if settings.inputs is not None:
        feeds = list(caller_feeds(settings.inputs, graph))
    else:
        feeds = list(Reservoir(directory, model_hash).feeds(graph, settings.input_shapes))
    save_feeds(feeds, folder)
    return bool(feeds)


def note_verified(directory: Path, folder: Path) -> None:
    """Remember what the rewritten model in ``folder``, which passed the gates, looks like."""
    from ort_metainfer.strategy_cache.store import open_cache

    open_cache(directory).put(VERIFIED, folder.name, {"files": digest_folder(folder)})


def _kept(made: Path, part: Path, directory: Path, key: CompiledKey, is_decided: bool) -> Compiled:
    from ort_metainfer.strategy_cache.store import open_cache
    from ort_metainfer.trials.rewritten import model_files, references_of

    for path in model_files(made):
        shutil.copyfile(path, part / path.name)
    verified = open_cache(directory).get(VERIFIED, key.folder_name) if is_decided else None  # a person's word is enough
    if verified is not None and verified["files"] != digest_folder(part):
        raise RewriteError(
            "made anew it is not the model that was verified, since it is calibrated on inputs and those are not given"
        )
    return keep(directory, part, Compiled(part, REWRITTEN, key, referenced=references_of(made)))
