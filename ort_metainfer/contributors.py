"""Distributions that contribute rules or rewrites: what is proposed, and with it each decision, rests on them too."""

from __future__ import annotations

from functools import lru_cache

__all__ = ["GROUPS", "contributors"]

GROUPS = ("ort_metainfer.rules", "ort_metainfer.rewrites")
"""The entry-point groups that say what may be proposed."""


@lru_cache(maxsize=1)
def contributors() -> dict[str, str]:
    """Distribution -> its version, of all with an entry point of ``GROUPS``; once per process, as their rules are."""
    from importlib import metadata

    points = [point for group in GROUPS for point in metadata.entry_points(group=group)]
    found = {point.dist.name: point.dist.version for point in points if point.dist is not None}
    return dict(sorted(found.items()))
