"""Tables that others measured on hardware nobody here owns, read into the common form of :mod:`.tasks`.

They lie in the folder that ``ORT_METAINFER_PUBLIC_DATA`` names and are no part of this package; what was learned from
them may be, with its card.
"""

from __future__ import annotations

import csv
import gzip
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ort_metainfer.errors import InputsError
from ort_metainfer.learning.tasks import Floats

__all__ = ["VARIABLE", "family_of", "number", "one_hot", "public_folder", "read_rows"]

VARIABLE = "ORT_METAINFER_PUBLIC_DATA"
"""Names the folder with the tables; there is none by default."""


def public_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder that the environment names; None where it names none."""
    given = environment.get(VARIABLE)
    return Path(given) if given else None


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a gzipped CSV file.

    Raises:
        InputsError: it cannot be read.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as text:
            return list(csv.DictReader(text))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise InputsError(f"{path}: not a readable table ({error}); see the README on public tables") from error


def number(text: str) -> float:
    """A figure as it stands in a table; NaN where there is none."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def one_hot(prefix: str, words: Sequence[str], known: Sequence[str]) -> dict[str, Floats]:
    """A column of ones and zeros for each word of ``known``."""
    return {f"{prefix}={word}": np.array([each == word for each in words], dtype=np.float64) for word in known}


def family_of(model: str, stems: Sequence[tuple[str, str]]) -> str:
    """The family of the first stem that occurs in a model's name; its own name where none does."""
    return next((family for stem, family in stems if re.search(stem, model)), model)
