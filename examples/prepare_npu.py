#!/usr/bin/env python3
"""Prepare a float model for an NPU, offline: fixed shapes, a quantised form, the compiled model; then use it.

usage: prepare_npu.py MODEL --shape x:1,3,224,224 --inputs 'calib/*.npz' [--provider QNN] [--accuracy fast]
                      [--cache-dir FOLDER]

INPUTS are real ones, at least four, better some dozens: .npz files with arrays named like the model's inputs. One in
four is held back from calibration, and the quantised model is judged on those, against MODEL on the CPU.

Recipes are tried in order, the coarsest first; the first that passes the gate is compiled. On x86-64
the package onnxruntime-qnn brings the simulator of Qualcomm's NPU: what it computes is right, what it takes says
nothing about the device. Exit status: 0 prepared, 1 no recipe is accurate enough, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ort_metainfer as ort
from ort_metainfer.errors import MetainferError
from ort_metainfer.model.inputs import caller_feeds
from ort_metainfer.places import cache_directory
from ort_metainfer.preparing import Preparation, Prepared, prepare_model
from ort_metainfer.providers import get_provider
from ort_metainfer.settings import resolve

RECIPES: tuple[dict[str, Any], ...] = (  # 8-bit activations first, as the NPU's adapter states its preferences
    {"scheme": "u8s8"},
    {"scheme": "u8s8", "calibration": "percentile"},
    {"scheme": "a16w8"},
)


def main(words: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(words)
    try:
        asked = ort.Settings(input_shapes=given.shape, accuracy=given.accuracy, cache_dir=given.cache_dir)
        prepared = prepare(given.model, given.provider, asked, given.inputs)
    except (MetainferError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if prepared is None:
        print("no recipe is accurate enough; give more inputs, or leave operators in float", file=sys.stderr)
        return 1
    use(given.model, prepared, asked, given.inputs)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Prepare a float model for an NPU, offline.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--shape", help="shapes of the inputs: x:1,3,224,224;mask:1,128")
    parser.add_argument("--inputs", required=True, help="real inputs: a .npz file or a glob of them")
    parser.add_argument("--provider", default="QNN")
    parser.add_argument("--accuracy", default="fast", help="balanced or fast")
    parser.add_argument("--cache-dir", help="where the result is kept")
    return parser


def prepare(model: Path, provider: str, asked: ort.Settings, inputs: str) -> Prepared | None:
    """The first recipe's result that is accurate enough; None where none is."""
    for wanted in preparations(model, provider, asked, inputs):
        prepared = prepare_model(wanted, cache_directory(resolve(asked)[0]))
        name = " ".join(str(value) for value in (wanted.recipe or {}).values() if isinstance(value, str))
        print(f"{name:<24}{prepared.failure or 'compiled'}")
        if prepared.failure is None:
            return prepared
    return None


def preparations(model: Path, provider: str, asked: ort.Settings, inputs: str) -> Iterator[Preparation]:
    for recipe in RECIPES:
        yield Preparation(
            model=model,
            provider=get_provider(provider).name,
            shapes=asked.input_shapes or {},
            inputs=inputs,
            recipe=recipe,
            accuracy=asked.accuracy or "fast",
        )


def use(model: Path, prepared: Prepared, asked: ort.Settings, inputs: str) -> None:
    """A session as a program makes it: the original model, and the strategy that names what was prepared."""
    assert prepared.strategy_file is not None
    settings = ort.Settings(strategy=prepared.strategy_file, cache_dir=asked.cache_dir)
    started = time.perf_counter()
    session = ort.InferenceSession(str(model), metainfer=settings)
    print(f"session created in {time.perf_counter() - started:.2f} s with {session.strategy.describe()}")
    feed = caller_feeds(inputs, None, limit=1)[0]
    names = [output.name for output in session.get_outputs()]
    shapes = {name: list(value.shape) for name, value in zip(names, session.run(None, feed), strict=True)}
    print(f"it answers with {shapes}; relative L2 error on the device {prepared.figures['whole_error']:.1e}")
    print(f"for any program: ORT_METAINFER_STRATEGY={prepared.strategy_file}")


if __name__ == "__main__":
    sys.exit(main())
