"""Retraining on a machine's own records: from the store to the model in use, if it deserves the place."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ort_metainfer.errors import LearningError
from ort_metainfer.learning.cost_lessons import Taught, teach
from ort_metainfer.learning.exceptions import weighed
from ort_metainfer.learning.find_db import shipped_records
from ort_metainfer.learning.in_use import model_in_use, own_folder
from ort_metainfer.learning.learned import LearnedModel, save
from ort_metainfer.learning.record import Record
from ort_metainfer.learning.record_store import RecordStore
from ort_metainfer.learning.train import Contest, contest, train

__all__ = ["Retrained", "lessons", "retrain"]

_log = logging.getLogger("ort_metainfer.learning")

SAYS_NOTHING = ("no time", "the default session failed")
"""Failures that are none of the strategy's."""


@dataclass(frozen=True)
class Retrained:
    """How a retraining ended.

    Attributes:
        model: what was learned.
        kept: whether it was written, and so is in use from now on where it lies where that is looked for.
        contest: the comparison with the model in use on hardware held out.
        folder: where it was written, or would have been.
        cost_model: what the same records taught the cost model.
    """

    model: LearnedModel
    kept: bool
    contest: Contest
    folder: Path
    cost_model: Taught


def lessons(records: Iterable[Record]) -> list[Record]:
    """What is learned from: each record once, what people chose with its weight, and what failed as no gain.

    A strategy that failed a gate leaves the default in force: trying it gained nothing. So it counts as one of the
    default's speed, and a strategy that often fails is expected to gain less than one that never does.
    """
    once = {record.identity: record for record in records if not record.strategy.is_default}
    return [_outcome(record) for record in weighed(list(once.values()))]


def _outcome(record: Record) -> Record:
    if record.is_verdict or record.simulated or not _has_failed(record):
        return record
    return replace(record, failure=None, log_ratio=0.0, gates={**record.gates, "accurate": True})


def _has_failed(record: Record) -> bool:
    crashed = record.failure is not None and record.failure not in SAYS_NOTHING
    return crashed or not record.gates.get("compiles", True) or not record.gates.get("accurate", True)


def retrain(directory: Path, *, out: Path | None = None, anyway: bool = False, seed: int = 0) -> Retrained:
    """Learn from the records in the cache directory and the shipped ones, and put the model to use if it is not worse.

    The model in use, one's own or the shipped one, is held against the new one on hardware that neither has seen. The
    cost model is taught first: that needs no scikit-learn, and lasts where the rest fails.

    Args:
        directory: the cache directory.
        out: where to write it instead; then it is written whatever it is worth.
        anyway: put it to use also where it chooses worse.
        seed: equal records and seeds give an equal model.

    Raises:
        LearningError: there is too little to learn from, scikit-learn is not installed, or the model cannot be written.
    """
    known, folder = [*shipped_records(), *RecordStore(directory).read()], out or own_folder(directory)
    taught = teach(known, folder, anyway=anyway or out is not None)
    _log.info("%s", taught.reason)
    records = lessons(known)
    model = train(records, sources=("records of this machine, and those shipped or imported",), seed=seed)
    compared = contest(records, model_in_use(directory), seed=seed)
    kept = compared.wins or anyway or out is not None
    if kept:
        try:
            save(model, folder)
        except OSError as error:
            raise LearningError(f"cannot write the model to {folder}: {error.strerror or error}") from error
    return Retrained(model, kept, compared, folder, taught)
