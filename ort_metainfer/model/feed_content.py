"""What is in an input: whether it is small enough to be kept, and the hashes that tell it from others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["MAX_INPUT_BYTES", "MAX_TEXT_BYTES", "content_hash", "is_small", "shapes_hash"]

MAX_INPUT_BYTES = 16 << 20
"""Larger inputs are not kept: writing one would hold up its run for too long."""

MAX_TEXT_BYTES = 64 << 10
"""Strings that an input may hold: text tells more of people than numbers do, and takes long to store."""


def is_small(feed: Mapping[str, Any]) -> bool:
    """Within the bounds; strings are counted by their characters."""
    numbers = sum(array.nbytes for array in feed.values() if array.dtype != object)
    texts = [array for array in feed.values() if array.dtype == object]
    if numbers > MAX_INPUT_BYTES or sum(array.size for array in texts) > MAX_TEXT_BYTES:
        return False
    return sum(len(item) for array in texts for item in array.flat) <= MAX_TEXT_BYTES


def shapes_hash(feed: Mapping[str, Any]) -> str:
    """Twelve hex digits of the names, types and shapes."""
    told = sorted((name, str(array.dtype), list(array.shape)) for name, array in feed.items())
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:12]


def content_hash(feed: Mapping[str, Any], salt: bytes) -> str:
    """Thirty-two hex digits of all that is in it, and of ``salt``."""
    import numpy as np

    digest = hashlib.sha256(salt)
    for name in sorted(feed):
        array = feed[name]
        if array.dtype == object:
            content: Any = json.dumps([str(item) for item in array.flat]).encode()
        else:
            content = np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.size else b""
        digest.update(json.dumps([name, str(array.dtype), list(array.shape)]).encode())
        digest.update(content)
    return digest.hexdigest()[:32]
