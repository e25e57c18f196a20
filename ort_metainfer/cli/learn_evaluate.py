"""``learn evaluate``: how well choices turn out on hardware and models that were held out."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ort_metainfer.cli.arguments import as_json
from ort_metainfer.cli.learn_records import cache_dir, complain, record_store
from ort_metainfer.cli.output import console, only_json, print_json, table

if TYPE_CHECKING:
    from ort_metainfer.learning.held_out import Split
    from ort_metainfer.learning.record_tasks import Hold

__all__ = ["evaluate"]

SPLITS = ("device", "model", "family", "both-models", "both")


@click.command("evaluate")
@click.option(
    "--public",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar="ORT_METAINFER_PUBLIC_DATA",
    help="A folder with public tables: evaluate on these, not on records.",
)
@click.option("--table", "tables", multiple=True, help="A public table; several times for several. By default two.")
@click.option("--split", "splits", multiple=True, type=click.Choice(SPLITS), help="What is unseen.")
@click.option("--references", multiple=True, type=click.IntRange(0, 50), help="Reference models measured on a device.")
@click.option(
    "--hold",
    type=click.Choice(["hardware", "provider", "cores", "kind"]),
    default="hardware",
    show_default=True,
    help="What of the records counts as one piece of hardware.",
)
@click.option("--trees", type=click.IntRange(2), default=100, show_default=True, help="Of each forest.")
@click.option("--page", "page_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the curves as HTML.")
@cache_dir
@as_json
def evaluate(
    public: Path | None,
    tables: Sequence[str],
    splits: Sequence[Split],
    references: Sequence[int],
    hold: Hold,
    trees: int,
    page_file: Path | None,
    cache_dir: str | None,
    as_json: bool,
) -> None:
    """Hold hardware, models or both out of what was measured, and see what would have been chosen there.

    Needs the extra ort-metainfer[train]. Every forest is grown anew for what it may not see: this takes minutes.
    """
    from ort_metainfer.learning.evidence import survey_records, survey_tables
    from ort_metainfer.learning.find_db import shipped_records
    from ort_metainfer.learning.page import page

    given: dict[str, Any] = {"trees": trees, "tell": lambda line: print(line, file=sys.stderr)}
    given |= {name: value for name, value in (("splits", splits), ("references", references)) if value}
    with only_json(as_json):
        if public is not None:
            document = survey_tables(public, **given | ({"tables": tables} if tables else {}))
        else:
            store = record_store(cache_dir)
            document = survey_records([*shipped_records(), *store.read()], hold=hold, **given)
            complain(store)
    if page_file is not None:
        page_file.write_text(page(document), encoding="utf-8")
    if as_json:
        print_json(document)
    else:
        _print(document)


def _print(document: Mapping[str, Any]) -> None:
    out = console()
    for each in document["tables"]:
        out.print(f"{each['table']}, unseen: {each['split']} ({each['cases']} choices on {each['devices']} devices)")
        most = max((score["measured"] for score in each["scores"]), default=0)
        grid = table("mean regret / within 5%", "references", *(f"top-{count + 1}" for count in range(most)))
        rows: dict[tuple[str, int], list[str]] = {}
        for score in each["scores"]:
            cell = f"{score['mean_regret']:.1%} / {score['within_5']:.1%}"
            rows.setdefault((score["policy"], score["references"]), []).append(cell)
        for (policy, count), cells in rows.items():
            grid.add_row(policy, str(count), *cells)
        out.print(grid)
        for verdict in each["verdicts"]:
            out.print(
                f"  {verdict['kind']}, top-{verdict['measured']} of {verdict['cases']}: {verdict['word']} "
                f"({verdict['mean_regret']:.1%})"
            )
    if quality := document.get("cost_model"):
        out.print(_about_cost_model(quality))
    refused = [each for each in document.get("gate") or [] if each["held_out"] == "class"]
    for each in refused:
        out.print(f"{each['archive']} {each['device']}: {'refused' if each['refused'] else 'asked'}: {each['reason']}")
    if not document["tables"]:
        out.print("no verdicts are recorded: tune some models first, or give --public FOLDER")


def _about_cost_model(quality: Mapping[str, float]) -> str:
    def pair(end: str) -> str:
        rank = quality[f"spearman{end}"]
        words = "" if isnan(rank) else f", rank correlation {rank:.2f}"
        return f"{quality[f'median_absolute_percentage_error{end}']:.1f}% median absolute error{words}"

    rests = f"{quality['trials']:.0f} trials of {quality['models']:.0f} models, each held out"
    return f"cost model, {rests}: {pair('')}; taught nothing: {pair('_unlearned')}"
