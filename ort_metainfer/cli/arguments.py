"""Options that several commands share: the settings as options, ``--json``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from ort_metainfer.settings import Settings

__all__ = ["as_json", "model_argument", "settings_options"]

Function = Callable[..., Any]

SETTINGS_OPTIONS = {  # field of Settings: its help. The values allowed are checked, and named, by Settings itself
    "accuracy": "strict (float32 results kept), balanced or fast; the last two need --inputs.",
    "budget_s": "Seconds that deciding may take.",
    "input_shapes": "Shapes it will be run with: x:1,3,224,224;mask:1,128",
    "inputs": "Real inputs: a .npz file or a glob of them, arrays named like the model's inputs.",
    "providers": "Execution providers allowed, separated by commas: CPU,OpenVINO",
    "objective": "latency, tail (P99), throughput (callers at once), memory, or pipeline (several models in turn).",
    "callers": "For throughput: threads that call the session at once.",
    "max_slowdown": "For memory: how many times plain onnxruntime's median latency is allowed.",
    "cache_dir": "Where strategies are kept.",
}


def settings_options(function: Function) -> Function:
    """Add an option for each setting; ``function`` gets them as one ``settings``, unset fields None.

    Raises:
        SettingsError: a value that is not allowed.
    """

    @wraps(function)
    def command(**options: Any) -> Any:
        fields = {name: options.pop(name) for name in SETTINGS_OPTIONS}
        return function(settings=Settings(**fields), **options)

    for name, text in reversed(SETTINGS_OPTIONS.items()):
        command = click.option(f"--{name.replace('_', '-')}", name, help=text)(command)
    return command


as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")

model_argument = click.argument("model", type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path))
