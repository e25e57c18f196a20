"""A learned model as it lies on disk and answers: a forest in ONNX, and a card in JSON that says what it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ort_metainfer.errors import LearningError
from ort_metainfer.learning.features import VERSION
from ort_metainfer.learning.forest_run import ForestRun, as_matrix
from ort_metainfer.learning.support import Question, Support, refusal
from ort_metainfer.learning.tasks import Floats

__all__ = ["CARD", "FOREST", "Card", "LearnedModel", "load", "save"]

FOREST, CARD = "forest.onnx", "card.json"

FORMAT = 1
"""Of the card; another one is not read."""

DIGITS = 6
"""Significant digits of the support's figures on the card."""


@dataclass(frozen=True)
class Card:
    """What a model is.

    Attributes:
        names: of the features it takes, in order.
        answer: what a tree answers: ``log_speedup`` (natural log of baseline over strategy, positive is faster).
        trained_at: ISO 8601; ``newest_record`` is when the last record it saw was measured.
        records: how many it learned from; ``structures``: of how many graphs.
        hardware: device, as a cache key has it -> records of it.
        scores: figures of the evaluation it was accepted on, by name.
        sources: where the data come from, with their licences.
        features_version: of :mod:`.features`.
    """

    names: tuple[str, ...]
    answer: str = "log_speedup"
    trained_at: str = ""
    newest_record: str = ""
    records: int = 0
    structures: int = 0
    hardware: Mapping[str, int] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    features_version: int = VERSION
    format: int = FORMAT


class LearnedModel:
    """A forest with its card and what it supports. It is asked and never acts.

    Args:
        card: what it is.
        support: what it was trained on.
        forest: the ONNX file, or its bytes.

    Raises:
        LearningError: the forest cannot be run, or is not the card's.
    """

    def __init__(self, card: Card, support: Support, forest: Path | bytes) -> None:
        self.card, self.support = card, support
        self.forest = forest
        self._run = ForestRun(forest)
        if self._run.columns != len(card.names):
            raise LearningError(
                f"the forest takes {self._run.columns} features, its card names {len(card.names)}: files of two models"
            )

    def expected(self, rows: Sequence[Mapping[str, float]]) -> NDArray[np.float32]:
        """What each tree expects of each candidate: rows x trees of log speed-up over the baseline.

        Args:
            rows: features by name (:func:`.examples.row_features`); names that were not trained on are left out.
        """
        return self._run.expected(as_matrix(rows, self.card.names))

    def refusal(self, question: Question) -> str | None:
        """Why it is not to be asked; None where it may be (see :mod:`.support`)."""
        return refusal(self.support, question)


def save(model: LearnedModel, folder: Path) -> None:
    """Write the forest and the card; the card last, so that a half-written model is none."""
    folder.mkdir(parents=True, exist_ok=True)
    content = model.forest if isinstance(model.forest, bytes) else model.forest.read_bytes()
    (folder / CARD).unlink(missing_ok=True)
    (folder / FOREST).write_bytes(content)
    plain = {"card": asdict(model.card), "support": _plain(model.support)}
    half = folder / f"{CARD}.half"
    half.write_text(json.dumps(plain, indent=1, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")
    half.replace(folder / CARD)


def load(folder: Path) -> LearnedModel:
    """A model from its folder.

    Raises:
        LearningError: there is none, it cannot be read, or another version of the package wrote it.
    """
    try:
        plain = json.loads((folder / CARD).read_text(encoding="utf-8"))
        pairs = {name: tuple(plain["card"][name]) for name in ("names", "sources")}
        card = Card(**{**plain["card"], **pairs})
        support = _support(plain["support"])
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise LearningError(
            f"{folder / CARD}: no card of a learned model ({error}); train again: learn train"
        ) from error
    if (card.format, card.features_version) != (FORMAT, VERSION):
        raise LearningError(
            f"{folder / CARD}: written for format {card.format} and features {card.features_version}, "
            f"this is {FORMAT} and {VERSION}; train again: learn train"
        )
    return LearnedModel(card, support, folder / FOREST)


def _plain(support: Support) -> dict[str, Any]:
    arrays = {name: _numbers(getattr(support, name)) for name in ("low", "high", "centre", "scale")}
    return {
        "kinds": dict(support.kinds),
        "strategies": sorted(support.strategies),
        "operators": sorted(support.operators),
        "names": list(support.names),
        **arrays,
        "exemplars": [_numbers(each) for each in support.exemplars],
        "threshold": None if np.isnan(support.threshold) else float(f"{support.threshold:.{DIGITS}g}"),
    }


def _numbers(values: Floats) -> list[float | None]:
    return [None if np.isnan(value) else float(f"{value:.{DIGITS}g}") for value in values.tolist()]


def _support(plain: Mapping[str, Any]) -> Support:
    def array(values: Sequence[float | None]) -> Floats:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    names = tuple(plain["names"])
    exemplars = [array(each) for each in plain["exemplars"]]
    return Support(
        kinds=dict(plain["kinds"]),
        strategies=frozenset(plain["strategies"]),
        operators=frozenset(plain["operators"]),
        names=names,
        **{name: array(plain[name]) for name in ("low", "high", "centre", "scale")},
        exemplars=np.array(exemplars, dtype=np.float64).reshape(len(exemplars), len(names)),
        threshold=np.nan if plain["threshold"] is None else float(plain["threshold"]),
    )
