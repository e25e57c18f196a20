"""What onnxruntime's profiler says of the baseline, held against the reckoning: how far off each kind is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import exp, log

from ort_metainfer.deciders.cost_kinds import KINDS, kind_of_group, kind_of_operator
from ort_metainfer.deciders.cost_reckoning import Reckoning
from ort_metainfer.deciders.traits import CPU
from ort_metainfer.hardware.fusing import fuse
from ort_metainfer.model.work import NodeWork
from ort_metainfer.problem import Problem

__all__ = ["measured_by_kind", "scales_of"]

LEAST_SHARE = 0.01
"""Kinds with less of the baseline's time than this are not scaled: what they take is noise."""

LAYOUT_SUFFIX = "_nchwc"
"""Ends the names of nodes in the processor's own layout (onnxruntime, core/optimizer/nchwc_transformer.cc)."""

LARGEST = 20.0
"""Largest factor taken for a difference in rate; beyond it shapes or placement are not what was reckoned with."""


def measured_by_kind(problem: Problem) -> dict[str, float]:
    """Kind -> seconds of one run of the baseline, by the profiler; empty where it was not asked.

    A node that onnxruntime fused others into is named after one of them or after its result, with a suffix where the
    layout changed: each of these names tells the group, and thereby the kind. Where none does, the operator has to.
    """
    kinds = _kinds_by_name(problem)
    found: dict[str, float] = {}
    for operator in problem.operators:
        plain = operator.name.removesuffix(LAYOUT_SUFFIX)
        kind = kinds.get(operator.name) or kinds.get(plain) or kind_of_operator(operator.operator)
        found[kind] = found.get(kind, 0.0) + operator.p50_ms / 1000
    return found


def _kinds_by_name(problem: Problem) -> dict[str, str]:
    outputs = [spec.name for spec in problem.graph.outputs]
    groups = fuse(problem.work, [True] * len(problem.work), outputs)
    return {name: kind for group in groups for kind in (kind_of_group(group.nodes),) for name in _names(group.nodes)}


def _names(nodes: Iterable[NodeWork]) -> Iterator[str]:
    for node in nodes:
        yield node.name
        yield from node.writes


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
