"""What a machine has to go by, read from disk: the edge at which the meta-model gets its experience."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ort_metainfer.learning.exceptions import exception_list
from ort_metainfer.learning.find_db import FindDb
from ort_metainfer.learning.record_store import RecordStore

if TYPE_CHECKING:
    from ort_metainfer.deciders.meta_model import MetaModel
    from ort_metainfer.deciders.prediction import Predictor
    from ort_metainfer.deciders.rules import RuleLibrary
    from ort_metainfer.learning.learned import LearnedModel

__all__ = ["learned_model", "meta_model", "predictor"]


def learned_model(directory: Path) -> tuple[LearnedModel | None, str]:
    """The model to ask, one's own before the shipped one, and why there is none.

    It is read once as long as its card stays as it is: a decision asks for it more than once.

    Args:
        directory: the cache directory.
    """
    from ort_metainfer.learning.in_use import own_folder, shipped_folder
    from ort_metainfer.learning.learned import CARD

    cards = [folder / CARD for folder in (own_folder(directory), shipped_folder())]
    stamps = tuple(card.stat().st_mtime_ns if card.is_file() else 0 for card in cards)
    if not any(stamps):  # onnxruntime is not asked for nothing
        return None, "none is shipped or trained"
    model = _read(directory, stamps)
    return model, "" if model is not None else f"what lies in {own_folder(directory)} cannot be read; learn train again"


@lru_cache(maxsize=2)
def _read(directory: Path, stamps: tuple[int, ...]) -> LearnedModel | None:
    from ort_metainfer.learning.in_use import model_in_use

    return model_in_use(directory)


def meta_model(directory: Path, rules: RuleLibrary, most: int) -> MetaModel:
    """The decider with everything this machine has to go by.

    Args:
        directory: the cache directory.
        rules: the library of this decision.
        most: how many proposals the first race has room for.
    """
    from ort_metainfer.deciders.meta_model import MetaModel

    model, why = learned_model(directory)
    exceptions = exception_list(RecordStore(directory).read(overrides=True))
    return MetaModel(model, FindDb(directory), exceptions=exceptions, rules=rules, why=why, most=most)


def predictor(directory: Path) -> Predictor:
    """What the search goes by: the cost model as records taught it, with the learned ranking where there is one.

    Args:
        directory: the cache directory.
    """
    from ort_metainfer.deciders.meta_prior import blended
    from ort_metainfer.learning.cost_lessons import cost_model_in_use

    return blended(cost_model_in_use(directory), learned_model(directory)[0])
