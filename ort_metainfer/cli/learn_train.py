"""``learn train``: a model learned from this machine's records, put in use where it chooses no worse."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ort_metainfer.cli.arguments import as_json
from ort_metainfer.cli.learn_records import cache_dir, complain, record_store
from ort_metainfer.cli.output import console, print_json

__all__ = ["train"]


@click.command("train")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Where to; by default where it is used.")
@click.option("--seed", type=int, default=0, show_default=True, help="Equal records and seeds give an equal model.")
@click.option("--anyway", is_flag=True, help="Put it in use even where it chooses worse than the one in use.")
@cache_dir
@as_json
def train(out: Path | None, seed: int, anyway: bool, cache_dir: str | None, as_json: bool) -> None:
    """Learn from what was tried, here and in imported records. Needs the extra ort-metainfer[train].

    The new model takes the place of the one in use only if it chooses no worse on hardware that neither has seen.
    """
    from ort_metainfer.learning.retraining import retrain

    store = record_store(cache_dir)
    found = retrain(store.path.parent, out=out, anyway=anyway, seed=seed)
    complain(store)
    kept, folder, result, model = found.kept, found.folder, found.contest, found.model
    card = model.card
    if as_json:
        taught = asdict(found.cost_model)
        plain = {"kept": kept, "folder": str(folder), "contest": asdict(result), "card": asdict(card)}
        print_json({**plain, "cost_model": taught})
        return
    console().print(
        f"learned from {card.records} verdicts on {len(card.hardware)} devices and {card.structures} graphs; "
        f"{result.reason}; " + (f"in use: {folder}" if kept else "the one in use stays")
    )
    console().print(found.cost_model.reason)
