"""Real inputs of earlier runs, kept on disk for decisions to come: bounded, each once, different shapes preferred.

A reservoir is a folder, ``inputs/MODEL`` below the cache directory (0700; its files 0600). It holds one ``.npz`` file
an input, named ``SHAPES-CONTENT.npz`` after two hashes, and ``about.json`` with the model's name. The names say it all:
there is no index that could be wrong, and processes need not agree on anything.

Which inputs stay is a function of what was offered, not of when or by whom. Inputs are ordered by their place among
those of the same shapes, and then by the hash of their content; the first ones stay. So every kind of shapes is kept
before a second one of any kind is, and among inputs of the same shapes the choice is uniform over different inputs
(a bottom-k sample: the hash, salted with a seed, is their random number).
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from ort_metainfer.errors import InputsError
from ort_metainfer.model.captured import ABOUT, Kept, folder_of, listed
from ort_metainfer.model.feed_content import content_hash, is_small, shapes_hash
from ort_metainfer.problem import Graph

__all__ = ["MAX_TOTAL_BYTES", "Reservoir", "staying"]

log = logging.getLogger("ort_metainfer")

MAX_TOTAL_BYTES = 64 << 20
"""What the inputs of one model take on disk at most."""

LEFT_BEHIND_S = 3600.0
"""Parts of files older than this were left by a process that was killed."""

_PART = ".part-"


def staying(inputs: Iterable[Kept], count: int, max_bytes: int = MAX_TOTAL_BYTES) -> list[Kept]:
    """Those that stay, the most telling first: one of each kind of shapes before a second of any.

    Args:
        inputs: in any order.
        count: how many may stay.
        max_bytes: what they may take together.
    """
    kinds: defaultdict[str, list[Kept]] = defaultdict(list)
    for kept in sorted(set(inputs), key=lambda kept: kept.content):
        kinds[kept.shapes].append(kept)
    ranked = sorted((rank, kept.content, kept) for kind in kinds.values() for rank, kept in enumerate(kind))
    chosen = [kept for _, _, kept in ranked[:count]]
    while sum(kept.size_bytes for kept in chosen) > max_bytes:
        chosen.pop()
    return chosen


class Reservoir:
    """The inputs kept of one model. Safe between processes: files appear whole, and whoever adds one tidies up.

    Args:
        directory: the cache directory.
        model_hash: whose inputs.
        count: how many are kept at most.
        seed: of the choice among inputs of the same shapes; the same for all who use one directory.
        max_bytes: what they may take together on disk.
    """

    def __init__(
        self, directory: Path, model_hash: str, count: int = 16, seed: int = 0, max_bytes: int = MAX_TOTAL_BYTES
    ) -> None:
        self.folder, self.model_hash = folder_of(directory, model_hash), model_hash
        self.count, self.max_bytes, self._salt = count, max_bytes, f"seed {seed}".encode()

    def kept(self) -> list[Kept]:
        """What is there, the most telling first; nothing where the folder cannot be read."""
        return staying(listed(self.folder), self.count, self.max_bytes)

    @property
    def is_full(self) -> bool:
        """Whether a further input of known shapes could only replace another."""
        return len(self.kept()) >= self.count

    def offer(self, feed: Mapping[str, Any], label: str = "") -> bool:
        """Keep an input, if it is another one than those that are there and belongs among them.

        Args:
            feed: arrays by name, as they were given to a run that succeeded. They are read, not kept.
            label: what to call the model in a list.

        Returns:
            Whether it was written.

        Raises:
            OSError: it cannot be written.
            InputsError: it holds what cannot be stored.
        """
        if not is_small(feed):
            return False
        new = Kept(shapes_hash(feed), content_hash(feed, self._salt), sum(array.nbytes for array in feed.values()))
        there = listed(self.folder)
        if any(kept.file_name == new.file_name for kept in there):
            return False
        if new not in staying([*there, new], self.count, self.max_bytes):
            return False
        self._write(new.file_name, feed, label)
        self._tidy()
        return True

    def _write(self, name: str, feed: Mapping[str, Any], label: str) -> None:
        from ort_metainfer.model.feeds import write_feed

        os.makedirs(self.folder.parent, mode=0o700, exist_ok=True)
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        if not (self.folder / ABOUT).exists():
            about = json.dumps({"model": self.model_hash, "label": label}).encode("utf-8", "surrogatepass")
            _replace(self.folder / ABOUT, lambda part: _write_bytes(part, about))
        _replace(self.folder / name, lambda part: write_feed(feed, part))

    def _tidy(self) -> None:
        """Remove what does not stay, and what a killed process left behind."""
        there = listed(self.folder)
        chosen = set(staying(there, self.count, self.max_bytes))
        for kept in there:
            if kept not in chosen:
                (self.folder / kept.file_name).unlink(missing_ok=True)
        for part in self.folder.glob(f"{_PART}*"):
            with suppress(OSError):
                if time.time() - part.stat().st_mtime > LEFT_BEHIND_S:
                    part.unlink()

    def feeds(
        self, graph: Graph | None, shapes: Mapping[str, Sequence[int]] | None = None, limit: int = 8
    ) -> list[dict[str, Any]]:
        """At most ``limit`` of the inputs kept, the most telling first.

        A file that cannot be read, or does not fit the model, is removed and left out.

        Args:
            graph: the model's features; None checks nothing.
            shapes: input -> shape that it must have, where the session will only be run with that.
            limit: at least 1.
        """
        return list(islice(self._fitting(graph, shapes or {}), limit))

    def has_any(self, shapes: Mapping[str, Sequence[int]] | None = None) -> bool:
        """Whether :meth:`feeds` would find something, as far as shapes tell."""
        if not shapes:
            return bool(listed(self.folder))
        return bool(self.feeds(None, shapes, limit=1))

    def _fitting(self, graph: Graph | None, shapes: Mapping[str, Sequence[int]]) -> Iterator[dict[str, Any]]:
        from ort_metainfer.model.feeds import caller_feeds

        there = listed(self.folder)
        for kept in staying(there, len(there), sum(kept.size_bytes for kept in there)):
            path = self.folder / kept.file_name
            try:
                (feed,) = caller_feeds(path, graph)
            except InputsError as error:
                log.debug("an input kept of an earlier run is removed: %s", error)
                with suppress(OSError):
                    path.unlink(missing_ok=True)
                continue
            if all(name in feed and feed[name].shape == tuple(shape) for name, shape in shapes.items()):
                yield feed

    def delete(self) -> int:
        """Remove all of it; how many inputs that were.

        Raises:
            OSError: it cannot be removed.
        """
        count = len(listed(self.folder))
        if self.folder.exists():
            shutil.rmtree(self.folder)
        return count


def _replace(path: Path, write: Any) -> None:
    """Put a whole file in the place of ``path``; where writing it fails, nothing of it is left."""
    part = path.with_name(f"{_PART}{os.getpid()}-{os.urandom(4).hex()}")
    try:
        write(part)
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def _write_bytes(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
