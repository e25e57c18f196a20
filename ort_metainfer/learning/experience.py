"""What a machine has to go by, read from disk: the edge at which the meta-model gets its experience."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from ort_metainfer.errors import LearningError
from ort_metainfer.learning.exceptions import exception_list
from ort_metainfer.learning.find_db import FindDb
from ort_metainfer.learning.record_store import RecordStore

if TYPE_CHECKING:
    from ort_metainfer.deciders.meta_model import MetaModel
    from ort_metainfer.deciders.rules import RuleLibrary
    from ort_metainfer.learning.learned import LearnedModel

__all__ = ["FOLDER", "meta_model", "model_in_use", "shipped_folder"]

FOLDER = "meta-model"
"""Of the model in the cache directory, and in ``learning/shipped``."""


def shipped_folder() -> Path:
    """Where the model that comes with the package lies; absent where none does."""
    return Path(str(resources.files("ort_metainfer.learning") / "shipped" / FOLDER))


def model_in_use(directory: Path | None) -> tuple[LearnedModel | None, str]:
    """The model to ask, one's own before the shipped one; and why there is none.

    Args:
        directory: the cache directory; None: the shipped one only.
    """
    places = [shipped_folder()] if directory is None else [directory / FOLDER, shipped_folder()]
    why = ""
    for folder in places:
        if not folder.is_dir():
            continue
        try:
            return _loaded(folder, _stamp(folder)), ""
        except LearningError as error:
            why = why or str(error)
    return None, why or "none is shipped or trained"


@lru_cache(maxsize=2)
def _loaded(folder: Path, stamp: int) -> LearnedModel:
    """The model in a folder as it was at ``stamp``: a decision asks for it more than once."""
    from ort_metainfer.learning.learned import load

    return load(folder)


def _stamp(folder: Path) -> int:
    """When its card was written, in ns; 0 where there is none."""
    from ort_metainfer.learning.learned import CARD

    try:
        return (folder / CARD).stat().st_mtime_ns
    except OSError:
        return 0


def meta_model(directory: Path, rules: RuleLibrary, most: int) -> MetaModel:
    """The decider with everything this machine has to go by.

    Args:
        directory: the cache directory.
        rules: the library of this decision.
        most: how many proposals the first race has room for.
    """
    from ort_metainfer.deciders.meta_model import MetaModel

    model, why = model_in_use(directory)
    exceptions = exception_list(RecordStore(directory).read(overrides=True))
    return MetaModel(model, FindDb(directory), exceptions=exceptions, rules=rules, why=why, most=most)
