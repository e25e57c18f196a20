"""Every rewrite that computes with fewer bits; all of them lossy, judged by the accuracy gate on real inputs."""

from __future__ import annotations

from ort_metainfer.rewrites import (
    precision_dynamic,
    precision_float,
    precision_recurrent,
    precision_static,
    precision_weights,
)

__all__ = ["REWRITES"]

REWRITES = (
    *precision_float.REWRITES,
    *precision_dynamic.REWRITES,
    *precision_recurrent.REWRITES,
    *precision_static.REWRITES,
    *precision_weights.REWRITES,
)
