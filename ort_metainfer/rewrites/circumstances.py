"""What a strategy's rewrites look at beside the model, in a few words: with other inputs another model comes out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ort_metainfer.errors import StrategyError
from ort_metainfer.rewrites.registry import get_rewrite
from ort_metainfer.rewrites.sampling import held_back
from ort_metainfer.strategy import Transform

__all__ = ["CAPTURED", "circumstances", "look_at_feeds"]

CAPTURED = "captured"
"""Stands for whatever had been kept of earlier runs: that changes from run to run, and is no reason to rewrite anew."""

Feed = Mapping[str, Any]


def look_at_feeds(transforms: Sequence[Transform]) -> bool:
    """Whether any of them calibrates, or may (whatever changes the precision)."""
    return any("feeds" in rewrite.needs or rewrite.dimension == "precision" for rewrite in _rewrites(transforms))


def circumstances(
    transforms: Sequence[Transform], shapes: Mapping[str, tuple[int, ...]], feeds: Sequence[Feed] | str
) -> str:
    """What of shapes and feeds the transforms look at; empty where they look at nothing.

    Args:
        transforms: a strategy's.
        shapes: input -> shape that the session is run with, where the caller said.
        feeds: inputs at hand, or a word for them.
    """
    parts = []
    if shapes and any("shapes" in rewrite.needs for rewrite in _rewrites(transforms)):
        parts.append("shapes " + " ".join(f"{name}{list(shapes[name])}" for name in sorted(shapes)))
    if feeds and look_at_feeds(transforms):
        parts.append(f"inputs {feeds if isinstance(feeds, str) else _digest(held_back(feeds)[0])}")
    return "; ".join(parts)


def _rewrites(transforms: Sequence[Transform]) -> list[Any]:
    """The rewrites; one that there is not, as in a file by hand, looks at nothing and is refused elsewhere."""
    found = []
    for transform in transforms:
        try:
            found.append(get_rewrite(transform.name))
        except StrategyError:
            continue
    return found


def _digest(feeds: Sequence[Feed]) -> str:
    digest = hashlib.sha256()
    for feed in feeds:
        for name in sorted(feed):
            array = np.asarray(feed[name])
            digest.update(repr((name, array.dtype.str, array.shape)).encode())
            digest.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
    return digest.hexdigest()[:16]
