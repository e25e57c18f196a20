"""Which learned model answers: the user's own, trained on this machine's records, else the one shipped."""

from __future__ import annotations

import logging
from pathlib import Path

from ort_metainfer.errors import LearningError
from ort_metainfer.learning.learned import CARD, LearnedModel, load

__all__ = ["model_in_use", "own_folder", "shipped_folder"]

log = logging.getLogger("ort_metainfer.learning")


def own_folder(cache_directory: Path) -> Path:
    """Where the user's own model lies, beside the records it was trained on."""
    return cache_directory / "learned"


def shipped_folder() -> Path:
    """Where the model that comes with the package lies."""
    return Path(__file__).parent / "pretrained"


def model_in_use(cache_directory: Path | None) -> LearnedModel | None:
    """The user's own model, else the shipped one; None where there is neither. One that cannot be read is passed over.

    Args:
        cache_directory: of the strategy cache; None: only the shipped one is looked for.
    """
    own = [] if cache_directory is None else [own_folder(cache_directory)]
    for folder in (*own, shipped_folder()):
        if not (folder / CARD).exists():
            continue
        try:
            return load(folder)
        except LearningError as error:
            log.warning("%s", error)
    return None
