"""Choices on hardware never seen, from public tables, against a study's figures: public.py FOLDER [OUTPUT_FOLDER].

FOLDER holds the tables (see README, "Choices on hardware never seen"). Every forest is grown anew for what it may not
see: about an hour on one core. OUTPUT_FOLDER gets the whole document and the page of curves.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ort_metainfer.learning.evidence import survey_tables
from ort_metainfer.learning.page import page

BARS: Sequence[tuple[str, str, int, int, float, float]] = (
    ("aihub", "both-models", 3, 1, 0.215, 0.751),
    ("aihub", "both-models", 3, 2, 0.052, 0.944),
    ("aihub", "both-models", 3, 3, 0.003, 0.983),
    ("ncnn", "both-models", 3, 1, 0.049, 0.902),
    ("ncnn", "both-models", 3, 2, 0.005, 0.988),
    ("aihub", "device", 3, 1, 1.0, 0.90),
)
"""Table, what is unseen, reference models, candidates measured; mean regret at most, share within 5% at least."""


def figure(document: Mapping[str, Any], table: str, split: str, references: int, measured: int) -> Mapping[str, Any]:
    """The meta-model's score."""
    wanted = {"policy": "meta-model", "references": references, "measured": measured}
    return next(
        score
        for each in document["tables"]
        if (each["table"], each["split"]) == (table, split)
        for score in each["scores"]
        if all(score[name] == value for name, value in wanted.items())
    )


def main(folder: Path, output: Path | None) -> None:
    """Print reached against wanted."""
    document = survey_tables(folder, splits=("both-models", "both", "device"), tell=print)
    for table, split, references, measured, regret, within in BARS:
        reached = figure(document, table, split, references, measured)
        print(
            f"{table:6} {split:12} top-{measured}  {reached['mean_regret']:6.2%} / {reached['within_5']:6.2%}  "
            f"wanted {regret:.1%} / {within:.1%}"
        )
    refused = [each for each in document["gate"] if each["held_out"] == "class"]
    print(f"classes held out: {sum(each['refused'] for each in refused)} of {len(refused)} refused")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        (output / "public.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
        (output / "public.html").write_text(page(document), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
