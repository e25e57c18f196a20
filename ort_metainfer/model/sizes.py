"""Sizes for the dimensions a model leaves open."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from ort_metainfer.errors import InputsError
from ort_metainfer.problem import Graph, TensorSpec

__all__ = ["GUESSES", "SIZES", "input_shapes"]

SIZES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "batch": (1,),
        "sequence": (64, 16, 128, 1, 32, 256),
        "past": (16, 64, 0),
        "side": (224, 320, 64, 640, 32, 256),
        "signal": (512, 16_000, 576, 4096, 1024, 48_000),
        "channels": (3, 1, 4),
        "other": (1, 16, 32, 64, 3, 8),
    }
)
"""Kind of dimension -> its sizes, one a guess, from the start again where a later guess finds none.

sequence: tokens, steps, atoms; past: cached steps; side: height and width, multiples of 32 as detectors want;
signal: samples (512 at 16 kHz is the window of voice activity detectors).
"""

GUESSES = max(map(len, SIZES.values()))
"""How many guesses of sizes there are, numbered from 0, the likeliest first."""

_BY_WHOLE_NAME = MappingProxyType(
    {
        **dict.fromkeys(("n", "b", "bs", "bsz"), "batch"),
        **dict.fromkeys(("t", "l", "s"), "sequence"),
        **dict.fromkeys(("h", "w"), "side"),
        "c": "channels",
    }
)
_BY_PART = (
    ("past", "past"),
    ("batch", "batch"),
    ("height", "side"),
    ("width", "side"),
    ("channel", "channels"),
    ("sample", "signal"),
    ("seq", "sequence"),
    ("len", "sequence"),
    ("time", "sequence"),
    ("frame", "sequence"),
    ("token", "sequence"),
    ("step", "sequence"),
    ("num_", "sequence"),
)
"""The first part a name contains decides."""

_SIGNALS = ("audio", "wav", "signal", "speech", "pcm", "samples")
_STATES = ("state", "hidden", "cache", "h0", "c0")


def input_shapes(graph: Graph, shapes: Mapping[str, tuple[int, ...]], guess: int = 0) -> dict[str, tuple[int, ...]]:
    """A shape for every input: as given, else as declared with open dimensions filled from ``SIZES``.

    Dimensions of the same name have the same size; a name that is a sum (``past + 1``) is computed where its terms are
    known.

    Raises:
        InputsError: ``guess`` is out of range, ``shapes`` name an unknown input or contradict a declared one, or an
            input has no declared rank and no shape is given.
    """
    if not 0 <= guess < GUESSES:
        raise InputsError(f"guess must be between 0 and {GUESSES - 1}, got {guess}")
    specs = {spec.name: spec for spec in graph.inputs}
    stray = next((name for name in shapes if name not in specs), None)
    if stray is not None:
        raise InputsError(f"shapes name the input {stray!r}, which the model does not have; its inputs: {list(specs)}")
    for name, shape in shapes.items():
        check_shape(specs[name], shape)
    symbols = _symbols(graph, shapes, guess)
    return {
        spec.name: tuple(shapes[spec.name]) if spec.name in shapes else _fill(spec, symbols, guess)
        for spec in graph.inputs
    }


def check_shape(spec: TensorSpec, shape: tuple[int, ...]) -> None:
    """Raise InputsError where ``shape`` has another rank than declared, or another size where one is declared."""
    declared = spec.shape
    if any(size < 0 for size in shape):
        raise InputsError(f"input {spec.name!r}: a size must not be negative, got {list(shape)}")
    if not declared:
        return  # onnxruntime checks nothing either where a scalar is declared: silero_vad is fed [1] by its own users
    fits = len(declared) == len(shape) and all(
        dim == size for dim, size in zip(declared, shape, strict=True) if isinstance(dim, int)
    )
    if not fits:
        raise InputsError(f"input {spec.name!r} has shape {list(shape)}, but the model declares {spec}")


def _symbols(graph: Graph, shapes: Mapping[str, tuple[int, ...]], guess: int) -> dict[str, int]:
    """A size for every symbolic dimension: that of a given shape, else a guess by name and place."""
    symbols: dict[str, int] = {}
    for spec in graph.inputs:
        for dim, size in zip(spec.shape or (), shapes.get(spec.name, ()), strict=False):
            if isinstance(dim, str):
                symbols.setdefault(dim, size)
    guessed: dict[str, int] = {}
    for spec in graph.inputs:
        for axis, dim in enumerate(spec.shape or ()):
            if isinstance(dim, str) and dim not in symbols:
                guessed.setdefault(dim, _size(spec, axis, guess))
    symbols |= {name: size for name, size in guessed.items() if "+" not in name}
    symbols |= {name: _sum(name, symbols, guessed[name]) for name in guessed if "+" in name}
    return symbols | _totals(symbols, guessed)


def _sum(name: str, symbols: Mapping[str, int], otherwise: int) -> int:
    terms = [term.strip() for term in name.split("+")]
    sizes = [int(term) if term.isdigit() else symbols.get(term) for term in terms]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else otherwise


def _totals(symbols: Mapping[str, int], guessed: Mapping[str, int]) -> dict[str, int]:
    """``total_sequence_length`` is what is cached and what is new, as the exporters of decoders use the name."""
    past = next((size for name, size in symbols.items() if name.startswith("past")), None)
    new = symbols.get("sequence_length", symbols.get("seq_len"))
    if past is None or new is None:
        return {}
    return {name: past + new for name in guessed if name.startswith("total_seq")}


def _fill(spec: TensorSpec, symbols: Mapping[str, int], guess: int) -> tuple[int, ...]:
    if spec.shape is None:
        raise InputsError(f"input {spec.name!r} declares no rank, so that no shape can be guessed; give its shape")
    return tuple(
        dim if isinstance(dim, int) else symbols[dim] if dim is not None else _size(spec, axis, guess)
        for axis, dim in enumerate(spec.shape)
    )


def _size(spec: TensorSpec, axis: int, guess: int) -> int:
    sizes = SIZES[_kind(spec, axis)]
    return sizes[guess % len(sizes)]


def _kind(spec: TensorSpec, axis: int) -> str:
    """What a dimension is, by its name, else by its place."""
    shape = spec.shape or ()
    name = str(shape[axis] or "").lower()
    kind = _BY_WHOLE_NAME.get(name) or next((kind for part, kind in _BY_PART if part in name), None)
    if kind == "sequence" and _is_signal(spec):
        return "signal"
    return kind or _kind_by_place(spec, axis, len(shape))


def _kind_by_place(spec: TensorSpec, axis: int, rank: int) -> str:
    if rank == 1:
        return "signal" if _is_signal(spec) else "batch"
    if axis == 0 or (axis == 1 and rank == 3 and any(part in spec.name.lower() for part in _STATES)):
        return "batch"
    if rank >= 4:
        channels = rank - 1 if isinstance((spec.shape or ())[-1], int) and (spec.shape or ())[1] is None else 1
        return "channels" if axis == channels else "side"
    if rank == 2:
        return "signal" if _is_signal(spec) else "sequence" if "int" in spec.dtype else "other"
    return "sequence"


def _is_signal(spec: TensorSpec) -> bool:
    """Whether an input holds samples of a waveform: floats named so, or as rows of open length."""
    shape, name = spec.shape or (), re.sub(r"[^a-z0-9]", "", spec.name.lower())
    if not spec.dtype.startswith("float") or len(shape) > 3 or (len(shape) == 3 and shape[1] != 1):
        return False
    return any(part in name for part in _SIGNALS) or (
        len(shape) == 2 and not any(isinstance(dim, int) for dim in shape)
    )
