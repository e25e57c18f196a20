"""Running a model with values inside it as its outputs, a few at a time so that memory stays bounded."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ort_metainfer.errors import InputsError, RewriteError

__all__ = ["FOLDER_KEY", "MOST_VALUES", "OpenWith", "exposing", "observe", "plain_session", "question"]

MOST_VALUES = 32
"""Values looked at in one session."""

FOLDER_KEY = "session.model_external_initializers_file_folder_path"
"""Where a session made from bytes looks for external data."""

OpenWith = Callable[[bytes, Path], Any]
"""Makes a session of a model's bytes, whose external data lies in a folder."""


def question(file: Path, words: Sequence[str], feeds: Sequence[Mapping[str, Any]]) -> str:
    """A name for what is asked of a model: equal for equal bytes, words and feeds (32 hexadecimal digits)."""
    digest = hashlib.sha256(file.read_bytes())
    digest.update(repr(list(words)).encode())
    for feed in feeds:
        for name in sorted(feed):
            array = np.asarray(feed[name])
            digest.update(repr((name, array.dtype.str, array.shape)).encode())
            digest.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
    return digest.hexdigest()[:32]


def plain_session(model: Path | bytes, folder: Path | None = None, optimised: bool = True) -> Any:
    """A session on the CPU provider that says nothing.

    Args:
        model: a file or its bytes.
        folder: of bytes, where their external data lies.
        optimised: whether onnxruntime may fuse nodes; without, every node is computed as it stands.
    """
    from onnxruntime import GraphOptimizationLevel, SessionOptions
    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession

    options = SessionOptions()
    options.log_severity_level = 4
    if not optimised:
        options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    if folder is not None:
        options.add_session_config_entry(FOLDER_KEY, str(folder))
    given = model if isinstance(model, bytes) else str(model)
    return InferenceSession(given, options, providers=["CPUExecutionProvider"])


def exposing(file: Path, names: Sequence[str], open_with: OpenWith | None = None) -> Any:
    """A session whose outputs are the values ``names``; on the CPU provider and with nothing fused, unless
    ``open_with`` makes it.

    Raises:
        RewriteError: onnxruntime does not take it.
    """
    import onnx

    model = onnx.load(str(file), load_external_data=False)
    given = {value.name: value for value in model.graph.output}
    del model.graph.output[:]
    model.graph.output.extend(given.get(name) or onnx.ValueInfoProto(name=name) for name in names)
    given_bytes, folder = model.SerializeToString(), file.resolve().parent
    try:
        if open_with is not None:
            return open_with(given_bytes, folder)
        return plain_session(given_bytes, folder, optimised=False)
    except Exception as error:  # onnxruntime's many classes
        raise RewriteError(f"{file}: values inside it cannot be looked at: {error}") from error


def observe(
    file: Path,
    names: Sequence[str],
    feeds: Sequence[Mapping[str, Any]],
    deadline: float | None = None,
    open_with: OpenWith | None = None,
) -> Iterator[tuple[str, int, np.ndarray]]:
    """Every tensor for every feed: its name, the feed's number, the array. Sequences and maps are left out.

    Args:
        file: the model.
        names: values inside it.
        feeds: its inputs.
        deadline: a time.monotonic() value; what is not looked at by then is left out.
        open_with: makes the session; None: see :func:`exposing`.

    Raises:
        InputsError: the model does not run with a feed.
        RewriteError: onnxruntime does not take the model.
    """
    for start in range(0, len(names), MOST_VALUES):
        some = list(names[start : start + MOST_VALUES])
        session = exposing(file, some, open_with)
        for number, feed in enumerate(feeds):
            if deadline is not None and time.monotonic() > deadline:
                return
            try:
                values = session.run(some, dict(feed))
            except Exception as error:
                raise InputsError(f"{file}: refuses input {number}: {error}") from error
            for name, value in zip(some, values, strict=True):
                if isinstance(value, np.ndarray):
                    yield name, number, value
