"""Training on records: a model from what was measured, and whether it may take the place of the one in use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from ort_metainfer.errors import LearningError
from ort_metainfer.learning.examples import Examples, examples_of
from ort_metainfer.learning.forest import Forest, to_onnx
from ort_metainfer.learning.growing import grow
from ort_metainfer.learning.learned import Card, LearnedModel
from ort_metainfer.learning.record import Record
from ort_metainfer.learning.support import Support, learn_support
from ort_metainfer.learning.tasks import Floats

__all__ = ["MINIMUM", "Contest", "contest", "held_out_regret", "train"]

MINIMUM = 20
"""Verdicts below which nothing is learned that the rules do not know."""

TREES = 100

TREES_HELD_OUT = 40
"""Regret of held-out hardware settles with fewer trees, and there is one forest for each piece of hardware."""

MANY = 3_000
"""So many rows more, and leaves hold a row more: a forest of many records stays small enough to load and ask fast."""

MOST_FOLDS = 8
"""Hardware is held out one by one, or in as many groups."""


def train(
    records: Iterable[Record],
    *,
    simulated: bool = False,
    sources: Sequence[str] = (),
    seed: int = 0,
    now: datetime | None = None,
) -> LearnedModel:
    """A model learned from records; its card carries the regret on hardware held out.

    Args:
        records: any; verdicts are taken (see :func:`.examples.examples_of`).
        simulated: learn from simulated figures instead of measured ones.
        sources: where the records come from, for the card.
        seed: equal records and seeds give an equal model.
        now: for the card.

    Raises:
        LearningError: there is too little to learn from, or scikit-learn is not installed.
    """
    examples = examples_of(records, simulated=simulated)
    if len(examples) < MINIMUM:
        raise LearningError(
            f"{len(examples)} verdicts are too few to learn from; {MINIMUM} are needed: tune more models"
        )
    forest = _grown(examples, np.ones(len(examples), dtype=np.bool_), TREES, seed)
    card = Card(
        names=examples.names,
        trained_at=(now or datetime.now(UTC)).isoformat(timespec="seconds"),
        newest_record=max(each.measured_at for each in examples.records),
        records=len(examples),
        structures=len(set(examples.structure.tolist())),
        hardware=dict(sorted(Counter(examples.hardware.tolist()).items())),
        sources=tuple(sources),
    )
    return LearnedModel(card, _support(examples), to_onnx(forest).SerializeToString())


def _grown(examples: Examples, rows: NDArray[np.bool_], trees: int, seed: int) -> Forest:
    return grow(
        examples.features[rows],
        examples.log_speedup[rows],
        weight=examples.weight[rows],
        trees=trees,
        seed=seed,
        thin=1 + int(rows.sum()) // MANY,
    )


def _support(examples: Examples) -> Support:
    """Ranges and distances over what is the same for all candidates of a case."""
    first = np.unique(examples.case, return_index=True)[1]
    columns = [number for number, name in enumerate(examples.names) if not name.startswith("strategy/")]
    return learn_support(
        [examples.names[number] for number in columns],
        examples.features[first][:, columns],
        examples.hardware[first],
        examples.kind[first],
        strategies=examples.strategies,
    )


@dataclass(frozen=True)
class Contest:
    """Whether a challenger may take the champion's place.

    Attributes:
        wins: whether it may.
        reason: in one sentence.
        challenger_regret: mean regret of its first choice on hardware held out; ``champion_regret`` likewise. NaN where
            there was nothing to compare on.
        cases: how many cases that rests on.
        held_out: ``hardware``, or ``model`` where there is one piece of hardware only.
    """

    wins: bool
    reason: str
    challenger_regret: float
    champion_regret: float
    cases: int
    held_out: str


def contest(
    records: Iterable[Record], champion: LearnedModel | None, *, simulated: bool = False, seed: int = 0
) -> Contest:
    """Compare what all records teach with the champion, on hardware that neither has seen.

    Each piece of hardware is held out in turn. The challenger learns from all other records. The champion answers as
    it is where it never saw that hardware; where it did, a forest stands in for it that learns from the records it had
    (by date), without that hardware: else it would be asked what it was told.

    Args:
        records: everything the challenger is to learn from.
        champion: the model in use; None where there is none.
        simulated: learn from simulated figures instead of measured ones.
        seed: as in :func:`train`.
    """
    examples = examples_of(records, simulated=simulated)
    groups, held_out = _groups(examples)
    if champion is None or len(groups) < 2:
        why = "there is no model in use" if champion is None else "one case alone can hold nothing out"
        return Contest(True, why, float("nan"), float("nan"), 0, held_out)
    new, old = np.full(len(examples), np.nan), np.full(len(examples), np.nan)
    earlier = np.array([each.measured_at <= champion.card.newest_record for each in examples.records])
    rows = [dict(_known(examples, number)) for number in range(len(examples))]
    for test in groups:
        new[test] = _answers(examples, ~test, test, seed)
        if not any(each in champion.card.hardware for each in examples.hardware[test]):
            old[test] = champion.expected([rows[each] for each in np.flatnonzero(test)]).mean(axis=1)
        elif (~test & earlier).sum() >= MINIMUM:
            old[test] = _answers(examples, ~test & earlier, test, seed)
    both = ~np.isnan(new) & ~np.isnan(old)
    mine, theirs = (_regrets(examples, each, both) for each in (new, old))
    if not len(mine):
        return Contest(True, "the model in use has no answer to compare with", float("nan"), float("nan"), 0, held_out)
    wins = bool(mine.mean() <= theirs.mean())
    verdict = "not worse" if wins else "worse"
    reason = f"mean regret on held-out {held_out} {mine.mean():.1%} against {theirs.mean():.1%}: {verdict}"
    return Contest(wins, reason, float(mine.mean()), float(theirs.mean()), len(mine), held_out)


def held_out_regret(examples: Examples, seed: int = 0) -> Floats:
    """Regret of the first choice, a case each, on hardware (or models, where there is one hardware) held out."""
    answers = np.full(len(examples), np.nan)
    for test in _groups(examples)[0]:
        answers[test] = _answers(examples, ~test, test, seed)
    return _regrets(examples, answers, ~np.isnan(answers))


def _groups(examples: Examples) -> tuple[list[NDArray[np.bool_]], str]:
    """What is held out together: pieces of hardware; models where there is one piece of hardware only."""
    held_out = "hardware" if len(set(examples.hardware.tolist())) > 1 else "model"
    column = examples.hardware if held_out == "hardware" else examples.structure
    _, number = np.unique(column, return_inverse=True)
    number = number % MOST_FOLDS
    return [number == each for each in np.unique(number)], held_out


def _answers(examples: Examples, learn: NDArray[np.bool_], test: NDArray[np.bool_], seed: int) -> Floats:
    if not learn.any():
        return np.full(int(test.sum()), np.nan)
    forest = _grown(examples, learn, TREES_HELD_OUT, seed)
    return np.asarray(forest.predict(examples.features[test]).mean(axis=1), dtype=np.float64)


def _known(examples: Examples, row: int) -> Iterator[tuple[str, float]]:
    values = examples.features[row]
    return ((name, value) for name, value in zip(examples.names, values.tolist(), strict=True) if value == value)


def _regrets(examples: Examples, expected: Floats, rows: NDArray[np.bool_]) -> Floats:
    """Latency of the first choice over the best known, minus 1; leaving all as it is (0) is a choice too."""
    regrets = []
    for case in np.unique(examples.case[rows]):
        these = np.flatnonzero((examples.case == case) & rows)
        best = int(expected[these].argmax())
        chosen = examples.log_speedup[these][best] if expected[these][best] > 0 else 0.0
        regrets.append(np.expm1(max(0.0, float(examples.log_speedup[these].max())) - chosen))
    return np.array(regrets)
