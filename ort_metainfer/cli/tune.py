"""``tune``: decide now, and say what was decided."""

from __future__ import annotations

from pathlib import Path

import click

from ort_metainfer.cli.arguments import as_json, model_argument, settings_options
from ort_metainfer.cli.output import console, only_json, print_json, progress
from ort_metainfer.cli.report import decision_lines
from ort_metainfer.settings import Settings

__all__ = ["tune"]


@click.command()
@model_argument
@settings_options
@click.option("--force", is_flag=True, help="Decide anew, even where the cache knows.")
@as_json
def tune(model: Path, settings: Settings, force: bool, as_json: bool) -> None:
    """Decide which strategy makes MODEL fastest here, verify it, remember it."""
    from ort_metainfer.adapt import tune as decide

    with only_json(as_json), progress(f"tuning {model.name}") as step:
        decision = decide(model, settings, force=force, progress=step)
    if as_json:
        print_json(decision.as_dict())
        return
    console().print("\n".join(decision_lines(decision.as_dict())))
