"""Strategy files: what was decided, as TOML that a person can read, and edit.

A file's first line holds the SHA-256 of the rest. Where they no longer agree a person edited it: it then wins over the
cache and is never overwritten. The digest stands in the file rather than in the cache so that an edit is honoured after
the cache was lost or set aside as damaged. An empty file is nobody's work and counts as not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from pathlib import Path

from ort_metainfer.errors import StrategyError
from ort_metainfer.problem import CacheKey
from ort_metainfer.strategy import Strategy

__all__ = ["edited_strategy", "remove_strategy_files", "strategy_file_path", "write_strategy_file"]

_SEAL = "# ort-metainfer wrote this; SHA-256 of the rest: "


def strategy_file_path(directory: Path, key: CacheKey) -> Path:
    """Where the strategy of ``key`` is written: 12 hex digits of the model's hash, 16 of the key's.

    The name follows from the key alone, so that a renamed model still finds its file.
    """
    model = re.sub(r"[^0-9A-Za-z]", "", key.model.removeprefix("sha256:"))[:12] or "model"
    digest = hashlib.sha256(str(key).encode()).hexdigest()[:16]
    return Path(directory) / "strategies" / f"{model}-{digest}.toml"


def write_strategy_file(directory: Path, key: CacheKey, strategy: Strategy, comment: str) -> Path | None:
    """Write a strategy down, all of it or nothing (temporary file, flushed, renamed; 0600).

    Where a person edited the file of ``key``, that one stays as it is and this goes to ``NAME.new.toml`` beside it.

    Returns:
        The file written, None where it cannot be.
    """
    path = strategy_file_path(directory, key)
    try:
        if _is_edited(path):
            comment += f"\nNot in force, and written anew by each decision: {path.name}, which was edited, wins."
            path = path.with_suffix(".new.toml")
        os.makedirs(path.parent, mode=0o700, exist_ok=True)
        _replace(path, _sealed(strategy.to_toml(_printable(comment))))
    except (OSError, UnicodeEncodeError):
        return None
    return path


def edited_strategy(directory: Path, key: CacheKey) -> Strategy | None:
    """The strategy of ``key``'s file where a person edited that; None where there is no file, or none edited.

    Raises:
        StrategyError: it was edited into something that is no strategy; the message names file and field.
    """
    path = strategy_file_path(directory, key)
    try:
        if not _is_edited(path):
            return None
    except OSError as error:
        raise StrategyError(f"cannot read strategy file {path}: {error.strerror or error}") from error
    return Strategy.read(path)


def remove_strategy_files(directory: Path) -> None:
    """Remove every strategy file; an edited one is renamed to ``NAME.toml.kept`` instead.

    Raises:
        OSError: one cannot be removed.
    """
    for path in sorted((Path(directory) / "strategies").glob("*.toml")):
        if _is_edited(path) and not path.name.endswith(".new.toml"):
            os.replace(path, path.with_suffix(".toml.kept"))
        else:
            path.unlink(missing_ok=True)


def _printable(comment: str) -> str:
    """The comment with what TOML forbids in one written as escapes: a model's path may hold any character."""
    return "".join(c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in comment)


def _is_edited(path: Path) -> bool:
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return False
    head, _, rest = content.partition(b"\n")
    return bool(content) and head != _seal(rest)


def _sealed(text: str) -> bytes:
    rest = text.encode()
    return _seal(rest) + b"\n" + rest


def _seal(rest: bytes) -> bytes:
    return f"{_SEAL}{hashlib.sha256(rest).hexdigest()}".encode()


def _replace(path: Path, content: bytes) -> None:
    """Put a whole file in the place of ``path``."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
