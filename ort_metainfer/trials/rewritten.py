"""The rewritten model of a candidate: made once in a child, kept beside the inputs for the next child of the decision.

Made under another name and renamed: a folder that bears the right name is whole, whatever killed its maker.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ort_metainfer.errors import RewriteError
from ort_metainfer.strategy import Transform
from ort_metainfer.trials.task import Setup

__all__ = [
    "MODEL_FILE",
    "model_files",
    "notes_in",
    "notes_of",
    "opened_with",
    "references_of",
    "rewritten_folder",
    "rewritten_model",
]

MODEL_FILE = "model.onnx"
NOTES_FILE = "notes.json"
REFERENCES_FILE = "references.json"
"""External data files of the original that the model needs too."""

MAX_NOTES = 12


def rewritten_folder(setup: Setup, transforms: Sequence[Transform]) -> Path:
    """Where the model rewritten by ``transforms`` lies, or will lie, while a decision is made."""
    plain = [[transform.name, transform.version, dict(transform.parameters)] for transform in transforms]
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]
    return setup.feeds / "rewritten" / digest


def rewritten_model(
    setup: Setup,
    transforms: Sequence[Transform],
    feeds: Sequence[Mapping[str, Any]],
    deadline: float,
    is_whole: bool = False,
) -> Path:
    """The file of the model rewritten by ``transforms``; made where it is not there yet.

    Args:
        setup: the session under trial, its graph known.
        transforms: in order.
        feeds: inputs; those that rewrites calibrate on are some of them.
        deadline: a time.monotonic() value.
        is_whole: whether the file must be a model by itself, for what works on files. Otherwise weights may stay in
            the original's external data files, and it takes :func:`opened_with` to run it.

    Raises:
        RewriteError: it cannot be made; with the reason.
        StrategyError: a transform that there is not, or a parameter outside its domain.
    """
    from ort_metainfer.rewrites.base import Context
    from ort_metainfer.rewrites.rewriting import rewrite_model
    from ort_metainfer.rewrites.sampling import held_back

    final = rewritten_folder(setup, transforms)
    if is_whole:
        final = final.with_name(f"{final.name}-whole")
    if final.is_dir():
        return final / MODEL_FILE
    if setup.graph is None:
        raise RewriteError(f"{setup.label}: its features are not known, so it is not rewritten")
    if setup.as_bytes and setup.graph.external_files:
        raise RewriteError(f"{setup.label}: given as bytes with weights in files, whose folder bytes do not tell")
    part = final.with_name(f".{final.name}-{os.getpid()}")
    work = part.with_name(f"{part.name}-work")
    for folder in (part, work):
        os.makedirs(folder, mode=0o700)
    try:
        calibrated, _ = held_back(feeds)
        # the caller's word only: those of the inputs at hand would make a model that is wrong for the next ones
        context = Context(work, setup.graph, calibrated, setup.inputs_are_real, setup.shapes, deadline=deadline)
        made = rewrite_model(setup.model_file, transforms, context, part / MODEL_FILE, may_refer=not is_whole)
        notes = [f"{done.name}: {note}" for done, outcome in made.outcomes for note in outcome.notes]
        changed = [f"{done.name}: {outcome.changed} rewritten" for done, outcome in made.outcomes]
        (part / NOTES_FILE).write_text(json.dumps([*changed, *notes][:MAX_NOTES]), encoding="utf-8")
        if made.referenced:
            (part / REFERENCES_FILE).write_text(json.dumps(dict(made.referenced)), encoding="utf-8")
        os.rename(part, final)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(part, ignore_errors=True)
    return final / MODEL_FILE


def notes_of(setup: Setup, transforms: Sequence[Transform]) -> tuple[str, ...]:
    """What the rewrites said they did, one line each; empty where there is nothing to read."""
    return notes_in(rewritten_folder(setup, transforms))


def notes_in(folder: Path) -> tuple[str, ...]:
    """The same, of a rewritten model's folder."""
    try:
        plain = json.loads((folder / NOTES_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    return tuple(str(note) for note in plain)


def model_files(folder: Path) -> list[Path]:
    """What of a rewritten model's folder is the model."""
    return [path for path in sorted(folder.iterdir()) if path.name not in (NOTES_FILE, REFERENCES_FILE)]


def references_of(folder: Path) -> dict[str, str]:
    """External data files of the original that the model in ``folder`` needs (see ``rewrites.references.Places``)."""
    try:
        plain = json.loads((folder / REFERENCES_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {str(stated): str(location) for stated, location in plain.items()}


def opened_with(file: Path, original: Path) -> tuple[str | bytes, dict[str, str]]:
    """What to give onnxruntime for a rewritten model: the model, and config entries of the session.

    Raises:
        RewriteError: the original's external data is no longer where it was.
    """
    from ort_metainfer.rewrites.references import FOLDER_KEY, folder_of, given_to_onnxruntime

    references = references_of(file.parent)
    if not references:
        return str(file), {}
    folder = folder_of(original.parent, references)
    if folder is None:
        raise RewriteError(f"{original}: its external data ({', '.join(references)}) is no longer where it was")
    given = given_to_onnxruntime(file)
    return given if isinstance(given, bytes) else str(given), {FOLDER_KEY: str(folder)}
