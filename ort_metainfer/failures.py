"""What went wrong while deciding, remembered for a day: a failure is no result, but need not be met at each start."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ort_metainfer.problem import Model, Policy

if TYPE_CHECKING:
    from ort_metainfer.strategy_cache.store import StrategyCache

__all__ = ["EXPIRY_S", "recall_failure", "remember_failure"]

EXPIRY_S = 86_400.0
"""After this a failure is forgotten: a driver was mended, a package upgraded, memory freed."""


def recall_failure(cache: StrategyCache, model: Model, policy: Policy, budget_s: float) -> str | None:
    """Why deciding for this model failed within the last day with no smaller budget, or None."""
    row = cache.get("failures", _key(model, policy))
    try:
        if row is None or budget_s > float(row["budget_s"]) or not 0 <= time.time() - float(row["when"]) < EXPIRY_S:
            return None
        return f"{row['reason']} (remembered for a day; ort-metainfer tune --force tries again)"
    except (KeyError, TypeError, ValueError):
        return None


def remember_failure(cache: StrategyCache, model: Model, policy: Policy, budget_s: float, reason: str) -> None:
    """Remember it; where the cache cannot be written it is met again."""
    cache.put("failures", _key(model, policy), {"when": time.time(), "budget_s": budget_s, "reason": reason})


def _key(model: Model, policy: Policy) -> str:
    from ort_metainfer.hardware.devices import device_string

    return f"{model.hash} {device_string()} {policy}"
