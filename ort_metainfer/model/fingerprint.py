"""The identity of a model: what it holds, not what it is called; and what was found out about it before.

A model's hash is SHA-256 over its bytes and its external data. A memo keyed by path spares reading a file again as long
as size, modification time and inode are the same, of the model and of each file beside it: then a start costs stats.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ort_metainfer.errors import ModelError
from ort_metainfer.model.onnx_file import EXTERNAL_MARKER, check_frame, external_locations
from ort_metainfer.problem import Graph, Model, TensorSpec

if TYPE_CHECKING:
    from ort_metainfer.strategy_cache.store import StrategyCache

__all__ = ["files_behind", "fingerprint", "known_graph", "remember_graph", "signature"]

_CHUNK_BYTES = 1 << 20
_SETTLED_NS = 2_000_000_000
"""Age below which a file is not remembered: another write in the same tick of its clock would go unnoticed. Two seconds
is the coarsest clock in use, that of FAT."""


class _Stamp(NamedTuple):
    """What tells one state of a file from another without reading it."""

    size: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True)
class _Memo:
    """A hash, and the state of the files it was made from."""

    stamp: _Stamp
    hash: str
    external: tuple[tuple[str, _Stamp], ...] = ()

    @property
    def size_bytes(self) -> int:
        return self.stamp.size + sum(stamp.size for _, stamp in self.external)

    def as_dict(self) -> dict[str, Any]:
        external = [[location, *stamp] for location, stamp in self.external]
        return {**self.stamp._asdict(), "hash": self.hash, "external": external}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any] | None) -> _Memo | None:
        """The inverse of :meth:`as_dict`; None for a row that is none."""
        try:
            row = plain or {}
            stamp = _Stamp(int(row["size"]), int(row["mtime_ns"]), int(row["inode"]))
            external = tuple((str(name), _Stamp(*map(int, rest))) for name, *rest in row["external"])
            return cls(stamp, row["hash"], external) if str(row["hash"]).startswith("sha256:") else None
        except (KeyError, TypeError, ValueError):
            return None


_memos: dict[str, _Memo] = {}


def fingerprint(path_or_bytes: str | os.PathLike[Any] | bytes, cache: StrategyCache | None) -> Model:
    """The model's identity.

    The hash covers the file's bytes and then, for each external data file in order of location, its location, size and
    bytes. External data of a model given as bytes is looked for where onnxruntime looks: in the working directory.

    Args:
        path_or_bytes: a file's path, or the bytes of a model, as onnxruntime.InferenceSession takes them.
        cache: where hashes of unchanged files are remembered between processes; None remembers in this one only.

    Returns:
        The model; ``size_bytes`` counts external data too, ``path`` is absolute.

    Raises:
        ModelError: it cannot be read, is no complete ONNX model, lacks an external data file, is no regular file, or
            changed while it was read.
    """
    if isinstance(path_or_bytes, bytes):
        return _of_bytes(path_or_bytes)
    try:
        path = _absolute(os.fsdecode(path_or_bytes))
    except (TypeError, OSError) as error:
        raise ModelError(f"no model: {path_or_bytes!r} is neither a path nor bytes ({error})") from error
    try:
        return _of_file(path, cache)
    except OSError as error:
        raise ModelError(f"cannot read model {error.filename or path}: {error.strerror or error}") from error
    except ValueError as error:  # a path that no file can have: a NUL in it, a lone surrogate
        raise ModelError(f"cannot read model {path!r}: {error}") from error


def files_behind(path: str | os.PathLike[Any]) -> list[list[Any]] | None:
    """The files a fingerprint of this process rests on: path, size, modification time and inode of each.

    None where none was made, or the files are too young to be told apart by those.
    """
    memo = _memos.get(_absolute(os.fsdecode(path)))
    if memo is None:
        return None
    absolute = _absolute(os.fsdecode(path))
    beside = [(os.path.join(os.path.dirname(absolute), location), stamp) for location, stamp in memo.external]
    return [[file, *stamp] for file, stamp in [(absolute, memo.stamp), *beside]]


def signature(inputs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Inputs as they stand in a cache key: ``x:float32[1,3,224,224] mask:int64[batch,seq]``.

    Args:
        inputs: as the model declares them, in order.
        shapes: input -> shape it will have, in place of the declared one.
    """
    return " ".join(str(replace(spec, shape=shapes.get(spec.name, spec.shape))) for spec in inputs)


def known_graph(cache: StrategyCache, model_hash: str) -> Graph | None:
    """What was remembered of a model's graph; None where nothing was, or another release remembered it differently."""
    plain = cache.get("models", model_hash)
    try:
        return None if plain is None else Graph.from_dict(plain)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def remember_graph(cache: StrategyCache, model_hash: str, graph: Graph) -> bool:
    """Remember what was found out about a model's graph; False where the cache cannot be written."""
    return cache.put("models", model_hash, graph.as_dict())


def _absolute(path: str) -> str:
    """The absolute path; one with ``..`` is not shortened, since ``link/..`` need not be where the link lies."""
    if os.pardir in path.split(os.sep):
        return os.path.join(os.getcwd(), path)
    return os.path.abspath(path)


def _of_bytes(content: bytes) -> Model:
    label = f"the model of {len(content)} bytes"
    try:
        digest, is_external = _hash_model(io.BytesIO(content), len(content), label)
        external = _stamps(os.getcwd(), external_locations(content, label)) if is_external else ()
        size_bytes = _add_external(digest, os.getcwd(), external, label) if external else 0
    except OSError as error:
        raise ModelError(f"cannot read external data of {label}: {error}") from error
    return Model(f"sha256:{digest.hexdigest()}", len(content) + size_bytes, content=content)


def _of_file(path: str, cache: StrategyCache | None) -> Model:
    key = _memo_key(path)
    stamp = _stamp(path)
    memo = _memos.get(path)
    if memo is None or not _holds(memo, path, stamp):
        memo = _Memo.from_dict(cache.get("files", key)) if cache is not None else None
        if memo is None or not _holds(memo, path, stamp):
            memo = _read(path, stamp)
            if not _is_settled(memo):
                _memos.pop(path, None)  # what was known is of another state of the files
                return Model(memo.hash, memo.size_bytes, path)
            if cache is not None:
                cache.put("files", key, memo.as_dict())
        _memos[path] = memo
    return Model(memo.hash, memo.size_bytes, path)


def _holds(memo: _Memo, path: str, stamp: _Stamp) -> bool:
    """Whether the files are still as the memo has them."""
    folder = os.path.dirname(path)
    try:
        return memo.stamp == stamp and all(_stamp(os.path.join(folder, name)) == then for name, then in memo.external)
    except (OSError, ModelError):
        return False


def _read(path: str, stamp: _Stamp) -> _Memo:
    """Read everything once, and check that nothing changed meanwhile."""
    folder = os.path.dirname(path)
    with _opened(path) as file:
        digest, is_external = _hash_model(file, stamp.size, path)
        external: tuple[tuple[str, _Stamp], ...] = ()
        if is_external:
            file.seek(0)
            external = _stamps(folder, external_locations(file.read(), path))
    _add_external(digest, folder, external, path)
    if _stamp(path) != stamp:
        raise ModelError(f"model {path} changed while it was read")
    return _Memo(stamp, f"sha256:{digest.hexdigest()}", external)


def _hash_model(file: BinaryIO, size_bytes: int, label: str) -> tuple[hashlib._Hash, bool]:
    """The hash so far, and whether some tensor's data may lie outside."""
    check_frame(file, size_bytes, label)
    file.seek(0)
    digest, is_external, tail = hashlib.sha256(), False, b""
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
        seam = tail + chunk[: len(EXTERNAL_MARKER)]
        is_external = is_external or EXTERNAL_MARKER in chunk or EXTERNAL_MARKER in seam
        tail = (
            (tail + chunk)[-len(EXTERNAL_MARKER) :]
            if len(chunk) < len(EXTERNAL_MARKER)
            else chunk[-len(EXTERNAL_MARKER) :]
        )
    return digest, is_external


def _add_external(digest: hashlib._Hash, folder: str, external: Sequence[tuple[str, _Stamp]], label: str) -> int:
    """Hash the external files, each after its location and size (so that no two sets of files read alike).

    Returns:
        Their bytes together.
    """
    for location, stamp in external:
        path = os.path.join(folder, location)
        name = location.encode("utf-8", "surrogateescape")
        digest.update(b"\0external %d %d " % (len(name), stamp.size) + name)
        with _opened(path) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
        if _stamp(path) != stamp:
            raise ModelError(f"external data {path} of {label} changed while it was read")
    return sum(stamp.size for _, stamp in external)


def _stamps(folder: str, locations: Sequence[str]) -> tuple[tuple[str, _Stamp], ...]:
    return tuple((location, _stamp(os.path.join(folder, location))) for location in locations)


def _stamp(path: str) -> _Stamp:
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise ModelError(f"model {path} is no regular file")
    return _Stamp(found.st_size, found.st_mtime_ns, found.st_ino)


def _opened(path: str) -> BinaryIO:
    """The file, which does not wait for a writer where a FIFO took its place after the look at it."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))

    return open(path, "rb", buffering=0, opener=opener)


def _is_settled(memo: _Memo) -> bool:
    now = time.time_ns()
    return all(
        abs(now - stamp.mtime_ns) > _SETTLED_NS for stamp in (memo.stamp, *(stamp for _, stamp in memo.external))
    )


def _memo_key(path: str) -> str:
    """The path; where its name is no UTF-8, its bytes in hex (no absolute path begins like that)."""
    raw = os.fsencode(path)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return f"bytes:{raw.hex()}"
