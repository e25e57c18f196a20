"""Which rewrites there are: ours, and third parties' from the entry-point group of this name."""

from __future__ import annotations

import logging
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from typing import get_args

from ort_metainfer.errors import StrategyError
from ort_metainfer.rewrites.base import Promise, Rewrite

__all__ = ["ENTRY_POINT_GROUP", "all_rewrites", "get_rewrite"]

ENTRY_POINT_GROUP = "ort_metainfer.rewrites"

FAMILIES: tuple[str, ...] = (
    "operators",
    "operators_gelu",
    "operators_hard_swish",
    "operators_norm",
    "operators_channel_norm",
    "operators_linear",
    "operators_einsum",
    "operators_spatial",
    "operators_convolution",
    "operators_separable",
    "operators_dimensional",
    "operators_recurrent",
    "operators_opset",
    "layout",
    "layout_channels",
    "layout_quantised",
    "layout_weights",
    "shapes",
    "fusion",
    "fusion_padding",
    "fusion_affine",
    "fusion_quantised",
    "fusion_fused",
    "fusion_normalization",
    "fusion_attention",
    "fusion_parallel",
    "fusion_constants",
    "fusion_duplicates",
    "fusion_reshapes",
    "fusion_transposes",
    "precision",
)
"""Modules of this package that hold rewrites, each with a tuple ``REWRITES`` of instances."""

log = logging.getLogger("ort_metainfer")


@lru_cache(maxsize=1)
def all_rewrites() -> tuple[Rewrite, ...]:
    """Every rewrite, ours first; a third party's that does not load is told once and left out."""
    ours = [rewrite for family in FAMILIES for rewrite in import_module(f"ort_metainfer.rewrites.{family}").REWRITES]
    return (*ours, *_third_parties({rewrite.name for rewrite in ours}))


def get_rewrite(name: str) -> Rewrite:
    """The rewrite of that name.

    Raises:
        StrategyError: there is none; with the names that are like it, else those there are.
    """
    known = {rewrite.name: rewrite for rewrite in all_rewrites()}
    if name in known:
        return known[name]
    near = get_close_matches(name, known)
    told = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
    raise StrategyError(f"there is no graph rewrite {name!r}; {told}")


def _third_parties(taken: set[str]) -> list[Rewrite]:
    from importlib import metadata

    found: list[Rewrite] = []
    for point in sorted(metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda point: (point.name, point.value)):
        try:
            made = point.load()()
        except (Exception, SystemExit) as error:  # noqa: BLE001 (a third party's code may raise anything)
            log.warning("rewrite %s = %s does not load: %s: %s", point.name, point.value, type(error).__name__, error)
            continue
        fault = _fault(made, taken)
        if fault is not None:
            log.warning("rewrite %s = %s is left out: %s", point.name, point.value, fault)
            continue
        taken.add(made.name)
        found.append(made)
    return found


def _fault(made: object, taken: set[str]) -> str | None:
    """Why what an entry point made cannot be taken for a rewrite: one that is broken must not cost all the others."""
    if not isinstance(made, Rewrite):
        return "it is no Rewrite"
    if not isinstance(getattr(made, "name", None), str) or made.name in taken:
        return "it has no name, or one that is taken"
    if getattr(made, "promise", None) not in get_args(Promise):
        return f"its promise must be one of {', '.join(get_args(Promise))}"
    return None
