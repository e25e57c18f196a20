"""Which inputs to calibrate on, and which to judge on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["HELD_BACK_SHARE", "held_back"]

HELD_BACK_SHARE = 4
"""One feed in so many is kept for judging, where there are as many."""

Feed = Mapping[str, Any]


def held_back(feeds: Sequence[Feed]) -> tuple[list[Feed], list[Feed]]:
    """Feeds to calibrate on, and feeds to judge on: apart where there are four or more, else the same ones."""
    if len(feeds) < HELD_BACK_SHARE:
        return list(feeds), list(feeds)
    judged = [feed for index, feed in enumerate(feeds) if index % HELD_BACK_SHARE == HELD_BACK_SHARE - 1]
    return [feed for index, feed in enumerate(feeds) if index % HELD_BACK_SHARE != HELD_BACK_SHARE - 1], judged
