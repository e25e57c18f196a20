"""What records taught the cost model, as it lies on disk: written by ``learn train``, read by every decision."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ort_metainfer.deciders.cost_model import CostModel
from ort_metainfer.deciders.cost_quality import cost_quality
from ort_metainfer.deciders.cost_residuals import Learned
from ort_metainfer.errors import LearningError
from ort_metainfer.learning.in_use import own_folder, shipped_folder
from ort_metainfer.learning.record import Record

__all__ = ["LESSONS", "Taught", "cost_model_in_use", "teach"]

LESSONS = "cost.json"

_log = logging.getLogger("ort_metainfer.learning")


@dataclass(frozen=True)
class Taught:
    """What became of teaching the cost model.

    Attributes:
        kept: whether decisions reckon with it from now on.
        reason: why, or why not, in words.
        quality: figures of :func:`~ort_metainfer.deciders.cost_quality.cost_quality`; empty with fewer than two models.
    """

    kept: bool
    reason: str
    quality: dict[str, float]


def teach(records: Sequence[Record], folder: Path, *, anyway: bool = False) -> Taught:
    """Fit the cost model to records and write that, if it predicts models held out no worse than without them.

    Args:
        records: of any models and devices; verdicts on speed are taken, each once, and none that was simulated.
        folder: where to; made if need be.
        anyway: write it whatever it is worth.

    Raises:
        LearningError: it cannot be written.
    """
    records = list({record.identity: record for record in records if not record.simulated}.values())
    quality = cost_quality(records)
    if not quality:
        return Taught(False, "the cost model stays as it is: there are no verdicts on two models to compare", {})
    learned, plain = (quality[f"median_absolute_percentage_error{end}"] for end in ("", "_unlearned"))
    words = f"the cost model is {learned:.1f}% off on models held out, {plain:.1f}% without these records"
    if learned > plain and not anyway:
        return Taught(False, f"{words}: it stays as it is", quality)
    _write(CostModel().fit(records).to_json(), folder)
    return Taught(True, words, quality)


def _write(text: str, folder: Path) -> None:
    file = folder / LESSONS
    half = file.with_suffix(".half")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        half.write_text(text + "\n", encoding="utf-8")
        half.replace(file)
    except OSError as error:
        raise LearningError(f"cannot write the cost model to {file}: {error.strerror or error}") from error


def cost_model_in_use(directory: Path) -> CostModel:
    """The cost model with what this machine's records taught it, else with what was shipped, else with nothing.

    Args:
        directory: the cache directory.
    """
    for file in (own_folder(directory) / LESSONS, shipped_folder() / LESSONS):
        try:
            stamp = file.stat().st_mtime_ns
        except OSError:
            continue
        if (learned := _read(file, stamp)) is not None:
            return CostModel(learned)
    return CostModel()


@lru_cache(maxsize=4)
def _read(file: Path, stamp: int) -> Learned | None:
    """What the file taught; ``stamp`` makes a file that was written anew another one."""
    try:
        learned = CostModel.from_json(file.read_text(encoding="utf-8")).learned
    except (OSError, UnicodeDecodeError) as error:
        _log.warning("%s cannot be read (%s): the cost model reckons without it", file, error)
        return None
    if not learned.columns:
        _log.warning("%s holds nothing that this version can read; learn train writes it again", file)
        return None
    return learned
