"""What onnxruntime's profiler says of the baseline, held against the reckoning: how far off each kind is."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log

from ort_metainfer.deciders.cost_kinds import KINDS, kind_of, kind_of_operator
from ort_metainfer.deciders.cost_reckoning import Reckoning
from ort_metainfer.deciders.traits import CPU
from ort_metainfer.problem import Problem

__all__ = ["measured_by_kind", "scales_of"]

LEAST_SHARE = 0.01
"""Kinds with less of the baseline's time than this are not scaled: what they take is noise."""

LARGEST = 20.0
"""Largest factor taken for a difference in rate; beyond it shapes or placement are not what was reckoned with."""


def measured_by_kind(problem: Problem) -> dict[str, float]:
    """Kind -> seconds of one run of the baseline, by the profiler; empty where it was not asked.

    A node keeps its name through onnxruntime's optimiser where it is not fused with another one of its rank; where no
    node of that name is known its operator alone tells the kind.
    """
    kinds = {node.name: kind_of(node) for node in problem.work}
    found: dict[str, float] = {}
    for operator in problem.operators:
        kind = kinds.get(operator.name) or kind_of_operator(operator.operator)
        found[kind] = found.get(kind, 0.0) + operator.p50_ms / 1000
    return found


def scales_of(problem: Problem) -> Mapping[str, float]:
    """Kind -> measured over reckoned time of the baseline on the CPU; empty where nothing was measured."""
    measured = measured_by_kind(problem)
    whole = sum(measured.values())
    reckoning = Reckoning(problem)
    if not whole or reckoning.baseline.provider != CPU:
        return {}
    latency = reckoning.latency(reckoning.baseline)
    if latency is None:
        return {}
    scales = {}
    for kind in KINDS:
        seconds, reckoned = measured.get(kind, 0.0), latency.by_kind.get(kind, 0.0)
        if seconds > LEAST_SHARE * whole and reckoned > 0:
            scales[kind] = exp(min(log(LARGEST), max(-log(LARGEST), log(seconds / reckoned))))
    return scales
