"""``tune``: decide now, and say what was decided."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ort_metainfer.cli.arguments import as_json, model_argument, settings_options
from ort_metainfer.cli.output import console, only_json, print_json, progress
from ort_metainfer.cli.report import decision_lines
from ort_metainfer.settings import Settings

if TYPE_CHECKING:
    from ort_metainfer.decision import Decision

__all__ = ["tune"]


@click.command()
@model_argument
@settings_options
@click.option("--force", is_flag=True, help="Decide anew, even where the cache knows.")
@as_json
def tune(model: Path, settings: Settings, force: bool, as_json: bool) -> None:
    """Decide which strategy makes MODEL fastest here, verify it, remember it.

    Exit status 1 where nothing could be decided: onnxruntime does not load MODEL, or no inputs fit it.
    """
    from ort_metainfer.adapt import tune as decide

    with only_json(as_json), progress(f"tuning {model.name}") as step:
        decision = decide(model, settings, force=force, progress=step)
        if decision.origin == "pass-through":
            _open(model)
    if as_json:
        print_json(decision.as_dict())
    else:
        console().print("\n".join(decision_lines(decision.as_dict())))
    if _came_to_nothing(decision):
        sys.exit(1)


def _open(model: Path) -> None:
    """Let plain onnxruntime say what is wrong with a model that could not be looked at, if anything is.

    Raises:
        Exception: onnxruntime's own.
    """
    from ort_metainfer.options import open_session
    from ort_metainfer.problem import SessionSpec
    from ort_metainfer.strategy import Strategy

    open_session(str(model), SessionSpec(), Strategy())


def _came_to_nothing(decision: Decision) -> bool:
    """Whether a failure that is remembered stands in the way, as of a model that takes no inputs known here."""
    return decision.origin == "pass-through" and not decision.complete
