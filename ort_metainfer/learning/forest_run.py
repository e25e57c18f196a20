"""Asking a forest through onnxruntime itself; no scikit-learn, no onnx."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ort_metainfer.errors import LearningError
from ort_metainfer.spec import SessionSpec
from ort_metainfer.strategy import Strategy

__all__ = ["ForestRun", "as_matrix"]


def as_matrix(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> NDArray[np.float32]:
    """Features by name as rows x columns; NaN where a feature is not known."""
    missing = float("nan")
    values = [row.get(name, missing) for row in rows for name in names]
    return np.array(values, dtype=np.float32).reshape(len(rows), len(names))


class ForestRun:
    """A forest in a session of plain onnxruntime, on one thread of the CPU.

    Args:
        model: the ONNX file, or its bytes.

    Raises:
        LearningError: it is no such forest.
    """

    def __init__(self, model: Path | bytes) -> None:
        from ort_metainfer.options import open_session  # a plain session also while onnxruntime is patched

        options = {"intra_op_num_threads": 1, "inter_op_num_threads": 1, "log_severity_level": 3}
        given = model if isinstance(model, bytes) else str(model)
        try:
            self._session = open_session(given, SessionSpec(options), Strategy(provider="CPUExecutionProvider"))
        except Exception as error:  # onnxruntime raises what it likes for a file that is no model
            name = "a model in memory" if isinstance(model, bytes) else str(model)
            raise LearningError(f"{name} is no forest that onnxruntime can run: {error}") from error
        self._input = self._session.get_inputs()[0]

    @property
    def columns(self) -> int:
        """How many features it takes."""
        return int(self._input.shape[1])

    def expected(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Each tree's answer for each row: rows x trees."""
        rows = np.ascontiguousarray(features, dtype=np.float32)
        if not len(rows):
            return np.empty((0, int(self._session.get_outputs()[0].shape[1])), dtype=np.float32)
        answer: NDArray[np.float32] = self._session.run(None, {self._input.name: rows})[0]
        return answer
