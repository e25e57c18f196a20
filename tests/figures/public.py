"""Choices on hardware never seen, from public tables, against a study's figures: public.py [--all] FOLDER [OUTPUT].

FOLDER holds the tables (see README, "Choices on hardware never seen"). Every forest is grown anew for what it may not
see. Grown are those of the study's figures (three references); with ``--all`` every table, split and number of
references: about an hour on one core. OUTPUT, a folder, gets the whole document and the page of curves.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ort_metainfer.learning.evidence import survey_tables
from ort_metainfer.learning.held_out import Split
from ort_metainfer.learning.page import page

BARS: Sequence[tuple[str, Split, int, int, float, float]] = (
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


def main(folder: Path, output: Path | None, everything: bool) -> None:
    """Print reached against wanted."""
    splits: tuple[Split, ...] = ("both-models", "both", "device")
    if everything:
        document = survey_tables(folder, splits=splits, tell=print)
    else:
        wanted = dict.fromkeys((table, split, references) for table, split, references, *_ in BARS)
        document = {"tables": []}
        for table, split, references in wanted:
            found = survey_tables(folder, tables=(table,), splits=(split,), references=(references,), tell=print)
            document = {**found, "tables": [*document["tables"], *found["tables"]]}
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
    words = [word for word in sys.argv[1:] if word != "--all"]
    main(Path(words[0]), Path(words[1]) if len(words) > 1 else None, "--all" in sys.argv)
