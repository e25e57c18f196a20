"""What a decision in the background is told: the session and its settings in plain values, its inputs as files."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ort_metainfer.errors import InputsError
from ort_metainfer.settings import Settings
from ort_metainfer.spec import SessionSpec

__all__ = ["QUIET_WAIT_S", "Job", "job_of"]

QUIET_WAIT_S = 600.0
"""How long a child waits for a quiet machine before it gives up: a server under load is asked at its next start."""

MARGIN_S = 30.0
"""What a child may take beyond waiting and deciding: to start, to read a large model, to compile."""

INPUTS_S = 1.0
"""Time after which no further item is taken from the caller's inputs: his session waits meanwhile."""


@dataclass(frozen=True)
class Job:
    """One decision to make.

    Attributes:
        key: names it among those that wait: model and policy.
        label: what to call the model in a message.
        request: what the child is told, plain values.
        folder: holds inputs and model that the caller did not give as files; removed when the job has ended, by
            the child too: a parent that was killed removes nothing.
        seconds: what the child may take.
    """

    key: str
    label: str
    request: dict[str, Any]
    folder: Path | None = field(default=None, compare=False)
    seconds: float = QUIET_WAIT_S


def job_of(source: str | bytes, key: str, label: str, spec: SessionSpec, settings: Settings) -> Job:
    """The job for a session, its inputs taken as arrays now: what the caller holds cannot be given to another process.

    Raises:
        InputsError: the inputs are too large, or cannot be read.
    """
    seconds = QUIET_WAIT_S + float(settings.budget_s or 0) + MARGIN_S
    folder = Path(tempfile.mkdtemp(prefix=f"ort_metainfer-{os.getpid()}-"))
    try:
        model, inputs = _model_place(source, folder), _inputs_place(settings.inputs, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    request = {
        "key": key,
        "model": model,
        "as_bytes": isinstance(source, bytes),
        "spec": spec.as_dict(),
        "settings": settings.as_dict() | {"mode": "auto", "inputs": inputs},
        "quiet_wait_s": QUIET_WAIT_S,
        "seconds": seconds,
        "parent": os.getpid(),
        "folder": str(folder),
    }
    return Job(key, label, request, folder, seconds)


def _model_place(source: str | bytes, folder: Path) -> str:
    """The model as a file; the caller's own where he gave one, its path as he spelt it."""
    if isinstance(source, str):
        return os.path.join(os.getcwd(), source)
    file = folder / "model.onnx"
    file.write_bytes(source)
    return str(file)


def _inputs_place(inputs: Any, folder: Path) -> str | None:
    """The inputs as files; the caller's own where he named some."""
    if inputs is None:
        return None
    if isinstance(inputs, (str, os.PathLike)):
        return os.path.join(os.getcwd(), os.fsdecode(inputs))
    return str(_kept(inputs, folder / "inputs"))


def _kept(inputs: Any, folder: Path) -> Path:
    """The caller's inputs as files: eight at most, and no more bytes than are kept of a model's real runs."""
    from ort_metainfer.model.capture import MAX_TOTAL_BYTES
    from ort_metainfer.model.feeds import caller_feeds, save_feeds

    feeds = caller_feeds(inputs, None, until=time.monotonic() + INPUTS_S)
    fitting: list[dict[str, Any]] = []
    total = 0
    for feed in feeds:
        total += sum(array.nbytes for array in feed.values())
        if total > MAX_TOTAL_BYTES:
            break
        fitting.append(feed)
    if not fitting:
        raise InputsError(
            f"the first of inputs takes {total >> 20} MB, and a decision in the background is given at most "
            f"{MAX_TOTAL_BYTES >> 20} MB of them; name .npz files, or decide ahead of time (ort-metainfer tune)"
        )
    save_feeds(fitting, folder)
    return folder
