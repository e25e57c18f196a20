"""A strategy's parts, for telling how alike two strategies are: what one was measured to gain moves the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from ort_metainfer.deciders.cost_rates import Floats
from ort_metainfer.strategy import Strategy

__all__ = ["Part", "loadings", "parts_of"]

VALUES_SHARE = 0.3
"""Share of a part's variance that it has in common with other values of the same setting. A choice: two thread counts
are more alike than a thread count and a rewrite."""

REWRITE_SHARE = 0.8
"""The same of one rewrite with other parameters: two ways to calibrate ran 2.36x and 2.45x where 1.65x was expected of
both (own measurement, under load)."""


@dataclass(frozen=True)
class Part:
    """One setting of a strategy.

    Attributes:
        kind: ``provider``, ``option``, ``session``, ``static`` or ``transform``.
        setting: which setting, scoped by provider where it means something on that provider only.
        value: its value.
        name: the setting's own name.
        share: of its variance that other values of the setting have in common with it.
    """

    kind: str
    setting: str
    value: str
    name: str = ""
    share: float = VALUES_SHARE


def parts_of(strategy: Strategy, provider: str, is_callers: bool) -> tuple[Part, ...]:
    """The parts of ``strategy``.

    Args:
        provider: that it runs on.
        is_callers: whether the caller's own session runs on that one too: naming it then changes nothing.
    """
    return tuple(_parts(strategy, provider, is_callers))


def _parts(strategy: Strategy, provider: str, is_callers: bool) -> Iterator[Part]:
    if not is_callers or strategy.device is not None:
        yield Part("provider", f"provider {provider}", strategy.device or "")
    for name, value in strategy.provider_options.items():
        yield Part("option", f"{provider} {name}", value, name)
    for name, given in (*strategy.session_options.items(), *strategy.session_config.items()):
        yield Part("session", f"{provider} {name}", str(given), name)
    if strategy.static_shapes:
        yield Part("static", f"{provider} static shapes", "", "static_shapes")
    for transform in strategy.transforms:
        setting = f"{provider} {transform.name}"
        yield Part("transform", setting, transform.describe(), transform.name, REWRITE_SHARE)


def loadings(strategies: Sequence[Sequence[tuple[Part, float]]]) -> tuple[list[str], Floats]:
    """Columns and one row a strategy, so that the product of two rows is the covariance of what is unknown of them.

    A part of spread s loads on its value with s sqrt(1 - share) and on its setting with s sqrt(share).

    Args:
        strategies: for each, its parts with their spreads in log units.
    """
    columns: dict[str, int] = {}
    entries: list[tuple[int, int, float]] = []
    for row, parts in enumerate(strategies):
        for part, spread in parts:
            value = columns.setdefault(f"{part.setting}={part.value}", len(columns))
            entries.append((row, value, spread * sqrt(1 - part.share)))
            if part.share:
                setting = columns.setdefault(part.setting, len(columns))
                entries.append((row, setting, spread * sqrt(part.share)))
    table = np.zeros((len(strategies), len(columns)))
    for row, column, weight in entries:
        table[row, column] += weight
    return list(columns), table
