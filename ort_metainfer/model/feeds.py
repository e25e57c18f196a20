"""The caller's own inputs, checked against the model, and feeds as files.

A file of feeds is an ``.npz`` whose arrays are numbered, with their names beside them: an input's name may hold
characters that a member of a zip file cannot.
"""

from __future__ import annotations

import glob
import json
import math
import os
import re
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ort_metainfer.errors import InputsError
from ort_metainfer.model.sizes import check_shape
from ort_metainfer.problem import Graph, TensorSpec

__all__ = ["FEEDABLE", "caller_feeds", "load_feeds", "save_feeds", "shapes_of", "write_feed"]

Array = np.ndarray[Any, np.dtype[Any]]
Feed = dict[str, Array]

_NAMES = "__names__"
"""Member that holds the names, as JSON in UTF-8 bytes; array ``aI`` belongs to the I-th."""

FEEDABLE = frozenset(["bool", "string", "float16", "float32", "float64"]) | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
"""Types onnxruntime's Python binding can be fed with as numpy arrays (bfloat16 and the 8-bit floats it refuses)."""

_ACCEPTED = (
    "a dict of arrays, several of them, a function that returns them, an .npz file, a folder or a pattern of them"
)


def caller_feeds(inputs: Any, graph: Graph | None, limit: int = 8, until: float = math.inf) -> list[Feed]:
    """At most ``limit`` feeds from what the caller gave, in the types the model declares.

    Args:
        inputs: a dict of arrays; a list, iterator or generator of dicts (no more than ``limit`` are taken from it); a
            function that returns one of these; the path of an ``.npz`` file, of a folder of such, or a pattern.
            OrtValues and what numpy can convert are accepted as arrays.
        graph: the model's features; None checks no names, types and shapes.
        limit: at least 1.
        until: a time.monotonic() value after which no further item is taken. The first is waited for in any case.

    Raises:
        InputsError: nothing was given or it cannot be read, a name is unknown or missing, an array cannot be converted
            without loss, or its shape contradicts a declared rank or size.
    """
    if callable(inputs) and not isinstance(inputs, (Mapping, Iterable)):
        inputs = inputs()
    feeds = []
    for index, feed in enumerate(islice(_each(inputs), limit)):
        if not isinstance(feed, Mapping):
            raise InputsError(f"inputs must be {_ACCEPTED}; item {index} is a {type(feed).__name__}")
        arrays = {str(name): _array(str(name), value) for name, value in feed.items()}
        feeds.append(arrays if graph is None else _checked(arrays, graph, index))
        if time.monotonic() > until:
            break
    if not feeds:
        raise InputsError(f"inputs hold no feed; they must be {_ACCEPTED}")
    return feeds


def _each(inputs: Any) -> Iterator[Any]:
    if isinstance(inputs, (str, os.PathLike)):
        return map(_read, _files(os.fspath(inputs)))
    if isinstance(inputs, Mapping):
        return iter([inputs])
    if isinstance(inputs, Iterable) and not isinstance(inputs, (bytes, np.ndarray)):
        return iter(inputs)
    raise InputsError(f"inputs must be {_ACCEPTED}, got {type(inputs).__name__}")


def _files(place: str | bytes) -> Sequence[Path]:
    path = Path(os.fsdecode(place))
    if path.is_dir():
        found = list(path.glob("*.npz"))
    elif path.exists():
        return [path]
    else:
        found = [Path(name) for name in glob.glob(str(path), recursive=True)]
    if not found:
        raise InputsError(f"inputs: no .npz file at {path}")
    return sorted(found, key=_number_order)


def _number_order(path: Path) -> list[tuple[int, str]]:
    """Sorts ``2.npz`` before ``10.npz``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def _array(name: str, value: Any) -> Array:
    """A numpy array of what was given; an OrtValue or a tensor of another library converts itself."""
    convert: Callable[[], Any] | None = getattr(value, "numpy", None)
    try:
        array = np.asarray(convert() if callable(convert) else value)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists, OrtValues that are no tensors
        raise InputsError(f"input {name!r} is a {type(value).__name__} that cannot become an array: {error}") from error
    if array.dtype.kind in "US":
        return np.char.decode(array, "utf-8").astype(object) if array.dtype.kind == "S" else array.astype(object)
    if array.dtype.kind == "O" and not all(isinstance(item, (str, bytes)) for item in array.flat):
        raise InputsError(f"input {name!r} holds Python objects that are no strings")
    return array


def _checked(feed: Feed, graph: Graph, index: int) -> Feed:
    wanted = {spec.name: spec for spec in graph.inputs}
    known = wanted | {spec.name: spec for spec in graph.overridable}
    unknown, missing = [name for name in feed if name not in known], [name for name in wanted if name not in feed]
    if unknown or missing:
        wrong = [
            *(["unknown: " + ", ".join(unknown)] if unknown else []),
            *(["missing: " + ", ".join(missing)] if missing else []),
        ]
        raise InputsError(f"feed {index} has the wrong names ({'; '.join(wrong)}); the model takes {', '.join(known)}")
    checked = {}
    for name, array in feed.items():
        checked[name] = _converted(array, known[name])
        check_shape(known[name], array.shape)
    return checked


def _converted(array: Array, spec: TensorSpec) -> Array:
    """The array in the type the model declares, if no value changes by that."""
    is_text = array.dtype == object
    if spec.dtype == "string" or is_text:
        if spec.dtype == "string" and is_text:
            return array
        raise InputsError(
            f"input {spec.name!r} must be of type {spec.dtype}, got {'strings' if is_text else array.dtype}"
        )
    if spec.dtype not in FEEDABLE:
        raise InputsError(f"input {spec.name!r} is of type {spec.dtype}, which onnxruntime takes no numpy arrays for")
    wanted = np.dtype(spec.dtype)
    if array.dtype == wanted:
        return array
    converted = None
    if array.dtype.kind in "biuf" and wanted.kind in "biuf":
        with np.errstate(all="ignore"):
            converted = array.astype(wanted)
    if converted is None or not _same_values(array, converted):
        raise InputsError(
            f"input {spec.name!r} must be {spec.dtype}; its {array.dtype} values do not convert without loss"
        )
    return converted


def _same_values(array: Array, converted: Array) -> bool:
    """Whether a conversion and its reverse give back the array, and no value changed its sign by wrapping around."""
    with np.errstate(all="ignore"):
        back = converted.astype(array.dtype)
    return np.array_equal(back, array, equal_nan=array.dtype.kind == "f") and np.array_equal(converted < 0, array < 0)


def shapes_of(feeds: Sequence[Mapping[str, Array]]) -> dict[str, tuple[int, ...]]:
    """Input -> shape in the first feed; nothing where there is none."""
    return {name: tuple(array.shape) for name, array in feeds[0].items()} if feeds else {}


def save_feeds(feeds: Sequence[Mapping[str, Array]], folder: Path) -> None:
    """Write ``0.npz``, ``1.npz``, ... into ``folder``, readable by the owner alone; numbered files of before go.

    Raises:
        InputsError: an array cannot be stored without pickling (a type numpy has no name for, a string that ends in a
            NUL).
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in _numbered(folder):
        old.unlink()
    for index, feed in enumerate(feeds):
        write_feed(feed, folder / f"{index}.npz")


def write_feed(feed: Mapping[str, Array], path: Path) -> None:
    """Write one feed to a new file, readable by the owner alone.

    Raises:
        InputsError: an array cannot be stored without pickling.
        OSError: the file is there already, or cannot be written.
    """
    members: dict[str, Any] = {f"a{place}": _storable(name, feed[name]) for place, name in enumerate(feed)}
    members[_NAMES] = np.frombuffer(json.dumps(list(feed)).encode(), np.uint8)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    with os.fdopen(handle, "wb") as file:
        np.savez(file, **members)


def _numbered(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("*.npz") if path.stem.isdigit()), key=_number_order)


def _storable(name: str, array: Array) -> Array:
    if array.dtype.kind == "V":
        raise InputsError(f"input {name!r} of type {array.dtype} cannot be stored")
    if array.dtype != object:
        return array
    text = np.array([_text(item) for item in array.flat], dtype=str).reshape(array.shape)
    if any(stored != _text(item) for stored, item in zip(text.flat, array.flat, strict=True)):
        raise InputsError(f"input {name!r} holds a string that ends in a NUL, which cannot be stored")
    return text


def _text(item: Any) -> str:
    return item.decode() if isinstance(item, bytes) else str(item)


def load_feeds(folder: Path) -> list[Feed]:
    """What :func:`save_feeds` wrote, in order.

    Raises:
        InputsError: there is none, or a file cannot be read.
    """
    files = _numbered(folder)
    if not files:
        raise InputsError(f"no feeds (0.npz, 1.npz, ...) in {folder}")
    return [_read(path) for path in files]


def _read(path: Path) -> Feed:
    """The arrays of an ``.npz`` file by input name: one of ours, or one whose members are named after the inputs."""
    try:
        file = np.load(path, allow_pickle=False)
        arrays = {}
        if isinstance(file, np.lib.npyio.NpzFile):
            with file:
                arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise InputsError(f"inputs: {path} cannot be read as .npz without pickle: {error}") from error
    if not arrays:
        raise InputsError(f"inputs: {path} holds no named arrays; an .npz file with one per input is needed")
    if _NAMES in arrays:
        arrays = _named(path, arrays)
    return {name: array.astype(object) if array.dtype.kind == "U" else array for name, array in arrays.items()}


def _named(path: Path, arrays: Feed) -> Feed:
    try:
        names = json.loads(arrays[_NAMES].tobytes())
        return {str(name): arrays[f"a{place}"] for place, name in enumerate(names)}
    except (ValueError, KeyError, TypeError) as error:
        raise InputsError(f"inputs: {path} is damaged: {error!r}") from error
