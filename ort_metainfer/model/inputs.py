"""Inputs to measure and verify with: made from what a graph declares, or the caller's own."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ort_metainfer.errors import InputsError
from ort_metainfer.model.feeds import FEEDABLE, caller_feeds, load_feeds, save_feeds, shapes_of
from ort_metainfer.model.sizes import GUESSES, input_shapes
from ort_metainfer.problem import Graph, TensorSpec

__all__ = ["GUESSES", "caller_feeds", "input_shapes", "load_feeds", "save_feeds", "shapes_of", "synthetic"]

Array = np.ndarray[Any, np.dtype[Any]]

MAX_FEED_BYTES = 2 << 30
"""Larger inputs are not made: the machine is the user's, and a wrong guess must not fill its memory."""

SAMPLE_RATE_HZ = 16_000
"""What most speech models expect (Whisper, wav2vec 2.0, Silero)."""

_RATES = frozenset({"sr", "sample_rate", "sampling_rate", "samplerate"})
_FACTORS = frozenset({"speed", "scale", "scales", "temperature", "factor", "gain", "alpha", "speedup"})
_THRESHOLDS = frozenset({"threshold", "thresholds", "thresh"})
_DISTANCES = frozenset({"dist", "dists", "distance", "distances", "radius"})
_LENGTHS = frozenset({"length", "lengths", "len", "lens", "seqlen", "seqlens"})
_CHANNELS = (1, 3, 4)
_COARSE = 8
"""Knots per side of a smooth random image: features a few dozen pixels wide, such as detectors answer to."""


def synthetic(graph: Graph, shapes: Mapping[str, tuple[int, ...]], seed: int, guess: int = 0) -> dict[str, Array]:
    """One feed for ``graph``: plausible values in the shapes given, or in those of one of ``GUESSES`` guesses.

    Shapes are :func:`ort_metainfer.model.sizes.input_shapes`. Values follow from type and name:

    * masks and booleans are ones, token types zeros, positions count up, strings are ``a``
    * lengths are the size of the axis they speak of, sample rates 16000, speeds, scales and temperatures 1
    * other integers lie in [0, bound), where the graph bounds them, else in [0, 2)
    * thresholds are a half, distances the absolute value of the unit normal distribution and a tenth
    * images (four axes, 1, 3 or 4 channels) are smooth random fields of unit variance, as 8-bit integers around 128
    * other floats are drawn from the unit normal distribution

    Raises:
        InputsError: ``guess`` is out of range, ``shapes`` do not fit, or an input cannot be made: a sequence, a map, an
            optional, an unknown rank or type, or too large.
    """
    for spec in graph.inputs:
        _check_makeable(spec, spec.name in shapes)
    sizes = input_shapes(graph, shapes, guess)
    total = sum(math.prod(shape) * 8 for shape in sizes.values())
    if total > MAX_FEED_BYTES:
        raise InputsError(f"inputs of shapes {sizes} would take {total >> 20} MB; give smaller shapes or inputs")
    feed = {}
    for index, spec in enumerate(graph.inputs):
        values = _values(spec, graph, sizes, np.random.default_rng((seed, index)))
        kind: Any = object if spec.dtype == "string" else spec.dtype
        feed[spec.name] = np.ascontiguousarray(np.broadcast_to(values, sizes[spec.name]), dtype=kind).reshape(
            sizes[spec.name]
        )
    return feed


def _check_makeable(spec: TensorSpec, has_shape: bool) -> None:
    advice = "give inputs of your own"
    if spec.dtype not in FEEDABLE:
        raise InputsError(f"input {spec.name!r} is of type {spec.dtype}, which cannot be made up; {advice}")
    if spec.shape is None and not has_shape:
        raise InputsError(
            f"input {spec.name!r} declares no rank, so that no shape can be guessed; {advice} or its shape"
        )


def _words(name: str) -> set[str]:
    """Words of a name, also of one in camel case, in small letters."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return {word for word in re.split(r"[^a-z]+", parted.lower()) if word}


def _values(spec: TensorSpec, graph: Graph, sizes: Mapping[str, tuple[int, ...]], rng: np.random.Generator) -> Any:
    """Values that broadcast to the input's shape and convert to its type."""
    shape, words = sizes[spec.name], _words(spec.name)
    if spec.dtype == "string":
        return "a"
    if spec.dtype == "bool" or any("mask" in word for word in words):
        return 1
    if spec.name.lower() in _RATES:
        return SAMPLE_RATE_HZ
    if words & _FACTORS:
        return 1
    if words & _LENGTHS:
        return _length(spec, graph, sizes)
    if "int" in spec.dtype:
        return _integers(spec, words, shape, _bound(spec, graph, sizes), rng)
    if words & _THRESHOLDS:
        return 0.5
    if words & _DISTANCES:  # graph networks divide by them
        return 0.1 + np.abs(rng.standard_normal(shape))
    return _smooth_image(shape, rng) if _is_image(shape) else rng.standard_normal(shape)


def _integers(
    spec: TensorSpec, words: set[str], shape: tuple[int, ...], bound: int | None, rng: np.random.Generator
) -> Any:
    highest = min(bound or 2, np.iinfo(spec.dtype).max + 1)
    if "token_type" in spec.name.lower() or "segment" in words:
        return 0
    if "position" in words and shape:
        return np.arange(shape[-1]) % (bound or max(1, shape[-1]))
    if bound is None and spec.dtype == "uint8" and _is_image(shape):
        return np.clip(128 + 50 * _smooth_image(shape, rng), 0, 255)
    return rng.integers(0, highest, shape, dtype=np.dtype(spec.dtype).type)


def _bound(spec: TensorSpec, graph: Graph, sizes: Mapping[str, tuple[int, ...]]) -> int | None:
    bounds = [graph.index_bounds[spec.name]] if spec.name in graph.index_bounds else []
    if spec.name in graph.index_inputs:
        name, axis = graph.index_inputs[spec.name]
        bounds.append(max(1, sizes[name][axis]))
    return min(bounds, default=None)


def _length(spec: TensorSpec, graph: Graph, sizes: Mapping[str, tuple[int, ...]]) -> int:
    """The size of the varying axis of the input whose name the length's begins with, else of the first that has one."""
    stem = re.sub(r"[^a-z0-9]*(seq)?_?len(gth)?s?$", "", spec.name.lower())
    others = [other for other in graph.inputs if other is not spec and len(sizes[other.name]) > 1]
    others.sort(key=lambda other: not (stem and other.name.lower().startswith(stem)))
    for other in others:
        declared: Sequence[Any] = other.shape or ()
        varying = [axis for axis, dim in enumerate(declared) if axis and not isinstance(dim, int)]
        if varying:
            return sizes[other.name][varying[0]]
    return sizes[others[0].name][-1] if others else 1


def _is_image(shape: tuple[int, ...]) -> bool:
    return len(shape) == 4 and (shape[1] in _CHANNELS or shape[3] in _CHANNELS) and min(shape) > 0


def _smooth_image(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """A random field of unit variance, interpolated between ``_COARSE`` knots a side, with a tenth of noise.

    Detectors and classifiers answer to white noise with nearly nothing, which would let errors pass unseen.
    """
    channels_first = shape[1] in _CHANNELS
    height, width = shape[2:] if channels_first else shape[1:3]
    channels = shape[1] if channels_first else shape[3]
    knots = rng.standard_normal((shape[0], channels, _COARSE, _COARSE))
    field = _interpolation(height) @ knots @ _interpolation(width).T
    field = field / (field.std() or 1.0) + 0.1 * rng.standard_normal(field.shape)
    return field if channels_first else np.moveaxis(field, 1, 3)


def _interpolation(size: int) -> Array:
    """The matrix [size, knots] that interpolates linearly between evenly spaced knots."""
    places = np.linspace(0, _COARSE - 1, size)
    return np.maximum(0.0, 1.0 - np.abs(places[:, None] - np.arange(_COARSE)))
