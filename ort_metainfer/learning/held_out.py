"""Predictions for hardware and models that were held out: what every figure of a learned choice rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ort_metainfer.learning.references import aligned, choose_references
from ort_metainfer.learning.seen_elsewhere import seen_elsewhere
from ort_metainfer.learning.tasks import Tasks

__all__ = ["Fold", "HeldOut", "Split", "folds", "predict_held_out"]

Split = Literal["device", "model", "family", "both", "both-models"]
"""What is new about the test: the device; the model, or its whole family; the device and the family (the model)."""

Learner = Callable[[Tasks, NDArray[np.bool_], NDArray[np.bool_]], NDArray[np.floating]]
"""A table, its rows to learn from, its rows to answer for -> those rows x samples (trees) of log latency."""


@dataclass(frozen=True, eq=False)
class Fold:
    """Rows to learn from and rows to answer for."""

    learn: NDArray[np.bool_]
    test: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Answers for rows that the learner had not seen.

    Attributes:
        expected: rows x samples; NaN in rows that were not asked for: reference models, and what no fold tests.
        references: how many reference models described a device.
    """

    tasks: Tasks
    expected: NDArray[np.float32]
    references: int

    def cases(self) -> Iterator[NDArray[np.intp]]:
        """The rows of each case that was answered."""
        yield from (rows for rows in self.tasks.cases() if not np.isnan(self.expected[rows, 0]).any())


def folds(tasks: Tasks, split: Split, groups: int, seed: int = 0) -> Iterator[Fold]:
    """Every piece of hardware held out in turn, every group of models, or each pair of these.

    Args:
        tasks: the table.
        split: what is to be unseen.
        groups: into how many groups models or families are dealt.
        seed: of the dealing.
    """
    column = tasks.model if split in ("model", "both-models") else tasks.family
    names = np.unique(_alone(column))
    dealt = np.random.default_rng(seed).permutation(len(names)) % groups
    group = dealt[np.searchsorted(names, _alone(column))]
    everything = np.ones(len(tasks), dtype=np.bool_)
    hardware = (
        [tasks.hardware == each for each in np.unique(tasks.hardware)] if split not in ("model", "family") else []
    )
    models = [group == each for each in range(groups)] if split != "device" else []
    for here in hardware or [everything]:
        for these in models or [everything]:
            test = here & these
            learn = (~here if hardware else everything) & (~these if models else everything)
            if test.any() and learn.any():
                yield Fold(learn, test)


def _alone(column: NDArray[np.str_]) -> NDArray[np.str_]:
    """A model without its component: the parts of one network go together."""
    return np.array([str(each).partition("/")[0] for each in column], dtype=np.str_)


def predict_held_out(
    tasks: Tasks,
    learner: Learner,
    split: Split,
    *,
    references: int = 3,
    groups: int = 10,
    seed: int = 0,
    only: Sequence[str] = (),
) -> HeldOut:
    """What a learner says of each row, having seen neither its device nor its model, as ``split`` has it.

    Reference models are chosen anew in each fold, among its rows to learn from, and are neither learned from nor
    answered for: their own figures stand in the features. Of the device held out, only they are looked at.

    Args:
        tasks: the table, features included.
        learner: what is evaluated.
        split: what is unseen.
        references: how many reference models describe a device, 0 for none.
        groups: see :func:`folds`; ``seed`` likewise.
        only: pieces of hardware to hold out; all where empty.
    """
    expected: NDArray[np.float32] | None = None
    for fold in folds(tasks, split, groups, seed):
        if only and not np.isin(tasks.hardware[fold.test], list(only)).any():
            continue
        chosen = choose_references(tasks, fold.learn, references) if references else []
        columns = aligned(tasks, chosen)
        if split == "device":
            columns |= seen_elsewhere(tasks, fold.learn, chosen)
        described = tasks.with_features(columns)
        is_reference = np.isin(tasks.model, chosen)
        learn, test = fold.learn & ~is_reference, fold.test & ~is_reference
        if not test.any():
            continue
        answers = learner(described, learn, test)
        if expected is None:
            expected = np.full((len(tasks), answers.shape[1]), np.nan, dtype=np.float32)
        expected[test] = answers
    if expected is None:
        expected = np.full((len(tasks), 1), np.nan, dtype=np.float32)
    return HeldOut(tasks, expected, references)
