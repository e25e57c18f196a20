"""What every rewrite shares: the model with its weights, why it must not be rewritten, and writing the result."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx.external_data_helper

from ort_metainfer.errors import ModelError
from ort_metainfer.model.graph import describe
from ort_metainfer.model.parsing import parse
from ort_metainfer.problem import Graph

__all__ = ["EXTERNAL_ABOVE_BYTES", "Rewritten", "open_model", "save"]

EXTERNAL_ABOVE_BYTES = 1 << 30
"""Weights beyond this go to a file beside the model: protobuf refuses messages of 2 GB."""

SMALLEST_EXTERNAL_BYTES = 1024
"""Smaller tensors stay in the model, where shape inference can read them."""


@dataclass(frozen=True)
class Rewritten:
    """The result of a rewrite.

    Attributes:
        path: the new file; external data, if any, lies beside it as ``NAME.data``.
        changed: whether it says anything else than the original.
        notes: what a person may want to know, a sentence each.
    """

    path: Path
    changed: bool
    notes: tuple[str, ...] = ()


def open_model(path: str | os.PathLike[str]) -> tuple[Any, Graph]:
    """The ModelProto with all its weights, and its features.

    Raises:
        ModelError: it cannot be read, or must not be rewritten, with the reason.
    """
    label, graph = f"model {os.fspath(path)}", describe(Path(path))
    if graph.blockers:
        raise ModelError(f"{label} must not be rewritten: it holds {', '.join(graph.blockers)}")
    proto = parse(Path(path))
    try:
        onnx.external_data_helper.load_external_data_for_model(proto, str(Path(path).resolve().parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(f"{label}: its external data cannot be read: {error}") from error
    return proto, graph


def save(proto: Any, target: Path, weight_bytes: int) -> None:
    """Write a model, which is taken over; large weights go to ``NAME.data`` beside it.

    Raises:
        ModelError: it cannot be written.
    """
    outside = weight_bytes > EXTERNAL_ABOVE_BYTES
    data = target.with_name(f"{target.name}.data")
    try:
        data.unlink(missing_ok=True)  # onnx appends to a file that is there
        onnx.save_model(
            proto,
            str(target),
            save_as_external_data=outside,
            all_tensors_to_one_file=True,
            location=data.name,
            size_threshold=SMALLEST_EXTERNAL_BYTES,
        )
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot write {target}: {error}") from error
