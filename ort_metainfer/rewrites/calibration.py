"""The range of every activation, seen over given inputs, by onnxruntime's calibrators; kept beside for another use."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ort_metainfer.errors import RewriteError
from ort_metainfer.rewrites.observing import plain_session, question
from ort_metainfer.rewrites.quantiser import quiet

__all__ = ["METHODS", "Ranges", "activation_ranges"]

METHODS = ("minmax", "entropy", "percentile")

Ranges = Mapping[str, tuple[float, float]]
"""Value -> lowest and highest of what it was seen to be, as far as the method keeps outliers."""

Feed = Mapping[str, Any]


class _OneFeed:
    """A calibration data reader of one input, so that a calibrator holds the activations of one run at a time."""

    def __init__(self, feed: Feed) -> None:
        self._feeds = [dict(feed)]

    def get_next(self) -> Any:
        """The feed, once."""
        return self._feeds.pop() if self._feeds else None


def activation_ranges(
    file: Path,
    operators: Sequence[str],
    feeds: Sequence[Feed],
    method: str,
    percentile: float,
    folder: Path,
    deadline: float | None = None,
) -> Ranges:
    """Ranges of all activations that one of ``operators`` takes or gives.

    Args:
        file: the float model.
        operators: names of ONNX operators.
        feeds: inputs.
        method: ``minmax``, ``entropy`` (histogram cut where least information is lost) or ``percentile``.
        percentile: share of values inside the range, in percent, for that method.
        folder: where the answer is kept, so that the same question is not worked out twice.
        deadline: a time.monotonic() value.

    Raises:
        RewriteError: no time left, or the model does not run with a feed.
    """
    kept = folder / f"ranges-{question(file, (*sorted(operators), method, str(percentile)), feeds)}.json"
    if kept.exists():
        return {name: (low, high) for name, (low, high) in json.loads(kept.read_text()).items()}
    with quiet():
        found = _collected(file, operators, feeds, method, percentile, folder, deadline)
    kept.write_text(json.dumps(found))
    return found


def _collected(
    file: Path,
    operators: Sequence[str],
    feeds: Sequence[Feed],
    method: str,
    percentile: float,
    folder: Path,
    deadline: float | None,
) -> dict[str, tuple[float, float]]:
    calibrator = _calibrator(file, operators, method, percentile, folder / "augmented.onnx")
    if not calibrator.select_tensors_to_calibrate(calibrator.model)[0]:
        return {}  # nothing of it is float32
    calibrator.augment_graph()
    calibrator.infer_session = plain_session(Path(calibrator.augmented_model_path), optimised=False)  # its own is noisy
    for number, feed in enumerate(feeds):
        if deadline is not None and time.monotonic() > deadline:
            raise RewriteError(f"{file}: no time left to calibrate; {number} of {len(feeds)} inputs were run")
        try:
            calibrator.collect_data(_OneFeed(feed))
        except Exception as error:
            raise RewriteError(f"{file}: cannot be calibrated on input {number}: {error}") from error
    found = calibrator.compute_data()
    return {name: _range(data) for name, data in found.items()}


def _calibrator(file: Path, operators: Sequence[str], method: str, percentile: float, augmented: Path) -> Any:
    from onnxruntime.quantization import calibrate

    given: dict[str, Any] = {"op_types_to_calibrate": list(operators), "augmented_model_path": str(augmented)}
    if method == "entropy":
        return calibrate.EntropyCalibrater(file, **given)
    if method == "percentile":
        return calibrate.PercentileCalibrater(file, percentile=percentile, **given)
    return calibrate.MinMaxCalibrater(file, **given)


def _range(data: Any) -> tuple[float, float]:
    low, high = data.range_value
    return float(np.asarray(low).min()), float(np.asarray(high).max())
