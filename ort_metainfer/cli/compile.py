"""``compile``: prepare a model for a device ahead of time, and say what came of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ort_metainfer.cli.arguments import as_json, model_argument
from ort_metainfer.cli.output import console, only_json, print_json, progress
from ort_metainfer.errors import SettingsError
from ort_metainfer.preparing import Preparation, Prepared, prepare_model
from ort_metainfer.settings import Settings

__all__ = ["compile"]

SCHEMES = ("none", "u8s8", "s8s8", "a16w8")
CALIBRATIONS = ("minmax", "entropy", "percentile")
OPTIONS_EXAMPLE = "htp_performance_mode=burst"


@click.command()
@model_argument
@click.option("--provider", default="CPU", show_default=True, help="Execution provider to compile for: QNN, OpenVINO.")
@click.option("--device", help="The provider's own name for one of its devices.")
@click.option("--option", "options", multiple=True, help=f"A provider option, may be repeated: {OPTIONS_EXAMPLE}")
@click.option("--shape", "shapes", multiple=True, help="Shape of an input, may be repeated: x:1,3,224,224")
@click.option("--inputs", help="Real inputs: a .npz file or a glob of them, arrays named like the model's inputs.")
@click.option("--quantise", type=click.Choice(SCHEMES), default="none", show_default=True, help="Write a QDQ form.")
@click.option("--calibration", type=click.Choice(CALIBRATIONS), default="minmax", show_default=True)
@click.option("--per-tensor", is_flag=True, help="One scale for a whole weight, in place of one for each channel.")
@click.option("--exclude-operator", "operators", multiple=True, help="Leave this operator in float, may be repeated.")
@click.option("--exclude-node", "nodes", multiple=True, help="Leave this node in float, may be repeated.")
@click.option("--accuracy", help="strict (the default), balanced or fast; the last two need --inputs.")
@click.option("--out", type=click.Path(path_type=Path), help="Write to this folder too; it must not exist yet.")
@click.option("--cache-dir", help="Where compiled models are kept.")
@click.option("--budget-s", default="300", show_default=True, help="Seconds it may take.")
@as_json
def compile(model: Path, as_json: bool, **given: Any) -> None:
    """Prepare MODEL for a device: fix its shapes, quantise it, compile it; every step is checked against MODEL."""
    wanted, directory = _wanted(model, given)
    with only_json(as_json), progress(f"compiling {model.name}") as step:
        prepared = prepare_model(wanted, directory, step)
    if as_json:
        print_json(prepared.as_dict())
    else:
        console().print("\n".join(_lines(wanted, prepared)))
    sys.exit(0 if prepared.failure is None else 1)


def _wanted(model: Path, given: dict[str, Any]) -> tuple[Preparation, Path]:
    """The preparation that was asked for, and the cache's directory.

    Raises:
        SettingsError: a value that is not allowed.
    """
    from ort_metainfer.places import cache_directory
    from ort_metainfer.settings import resolve

    settings = Settings(
        providers=given["provider"],
        input_shapes=";".join(given["shapes"]) or None,  # type: ignore[arg-type]  # the check turns text into a mapping
        accuracy=given["accuracy"],
        budget_s=given["budget_s"],
        cache_dir=given["cache_dir"],
    )
    if any(size == 0 for shape in (settings.input_shapes or {}).values() for size in shape):
        raise SettingsError(f"--shape {' --shape '.join(given['shapes'])}: what is compiled needs sizes of 1 or more")
    provider = (settings.providers or ("",))[0]
    wanted = Preparation(
        model=model,
        provider=provider,
        device=given["device"],
        provider_options=dict(_pair(text) for text in given["options"]),
        shapes=settings.input_shapes or {},
        inputs=given["inputs"],
        recipe=_recipe(given),
        accuracy=settings.accuracy or "strict",
        out=given["out"],
        budget_s=float(settings.budget_s or 0),
    )
    return wanted, cache_directory(resolve(settings)[0])


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise SettingsError(f"--option {text!r} is not allowed; use NAME=VALUE like {OPTIONS_EXAMPLE}")
    return name, value


def _recipe(given: dict[str, Any]) -> dict[str, Any] | None:
    if given["quantise"] == "none":
        return None
    return {
        "scheme": given["quantise"],
        "per_channel": not given["per_tensor"],
        "calibration": given["calibration"],
        "exclude_operators": list(given["operators"]),
        "exclude": list(given["nodes"]),
    }


def _lines(wanted: Preparation, prepared: Prepared) -> Iterator[str]:
    """What came of it, for people."""
    figures = prepared.figures
    if prepared.gate is not None:
        yield f"quantised   {'accurate' if prepared.gate.passed else 'not accurate'}: {prepared.gate.detail}"
    if prepared.placement is not None:
        yield f"nodes       {prepared.placement.describe()}"
    if "whole_error" in figures:
        yield f"on device   relative L2 error {figures['whole_error']:.1e} against {wanted.model.name} on the CPU"
    if "load_ms" in figures:
        yield f"creation    {figures['creation_ms']:.0f} ms, from the compiled model {figures['load_ms']:.0f} ms"
    if "compile_ms" in figures:
        yield f"compiling   {figures['compile_ms'] / 1000:.1f} s"
    if prepared.failure is None:
        yield f"size        {prepared.size_bytes / 1e6:.1f} MB, the model {prepared.original_bytes / 1e6:.1f} MB"
    yield from (f"note        {note}" for note in prepared.notes)
    yield from _ending(wanted, prepared)


def _ending(wanted: Preparation, prepared: Prepared) -> Iterator[str]:
    if prepared.failure is not None:
        yield f"failed      {prepared.failure}"
        if prepared.gate is not None and not prepared.gate.passed:
            yield "            try --quantise a16w8, another --calibration, more --inputs, --exclude-operator, or a"
            yield "            looser --accuracy"
        return
    yield f"compiled    {prepared.folder}"
    if wanted.out is None:
        yield f"use it      ORT_METAINFER_STRATEGY={prepared.strategy_file}"
    else:
        yield f"use it      onnxruntime.InferenceSession({str(wanted.out / 'model.onnx')!r}, ...) on the device"
