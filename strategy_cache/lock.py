"""One decision per key at a time, among all processes and threads that share a cache directory."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["deciding"]


@contextmanager
def deciding(directory: Path, key: str, wait_s: float) -> Iterator[bool]:
    """Whether this caller is the one to decide ``key``, for the time of the ``with`` block.

    A lock of the operating system on a file below ``directory/locks``: a holder that is killed frees it. The file
    stays, empty, and is used again: removing it would let two callers lock two files of one name.

    Args:
        wait_s: seconds to wait for another holder; 0 looks once.

    Yields:
        True: decide, and where that was preceded by a wait look into the cache first. False: another still decides,
        or this very thread already does. True as well where no lock can be had (a read-only directory, a file system
        without locks): nobody could write a decision there, and no decision is kept from being made.
    """
    lock, is_ours = _acquired(directory, key, max(0.0, wait_s))
    try:
        yield is_ours
    finally:
        if lock is not None:
            lock.release()


def _acquired(directory: Path, key: str, wait_s: float) -> tuple[Any, bool]:
    """The lock where it is held, and whether to decide."""
    from filelock import FileLock, Timeout  # not needed by a session whose strategy is known

    folder = Path(directory) / "locks"
    name = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    options: dict[str, Any] = {"mode": 0o600, "thread_local": False}
    if "fallback_to_soft" in inspect.signature(FileLock.__init__).parameters:
        options["fallback_to_soft"] = False  # a soft lock outlives a killed holder
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        lock = FileLock(folder / f"{name}.lock", **options)
        lock.acquire(timeout=wait_s, poll_interval=0.02)
    except Timeout:
        return None, False
    except RuntimeError as error:  # filelock's word for a thread that would wait for itself
        return None, isinstance(error, NotImplementedError)  # older releases: no flock here
    except OSError:
        return None, True
    return lock, True
