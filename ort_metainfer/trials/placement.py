"""Which nodes of a created session run where, and why a provider left what it left.

A provider that onnxruntime lists for a session may have taken nothing of it: QNN on a model with open dimensions, ggml
on any convolutional network (own observations). Only the graph's assignment tells.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ort_metainfer.decision import Placement, Trial
from ort_metainfer.problem import Graph
from ort_metainfer.trials.task import Setup

__all__ = ["RECORD_ASSIGNMENT", "explained", "placement_from_dict", "placement_of", "with_reasons"]

RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"
"""Session configuration entry without which onnxruntime does not keep the assignment."""

MAX_NAMED = 6

PRODUCTS = re.compile(r"(Conv|MatMul|Gemm|Attention|LSTM|GRU|RNN|EPContext)")
"""In the names of operators that are where the time goes, those of onnxruntime's fused and quantised forms too; and of
the node that holds what a provider compiled, however much that is."""


def placement_of(session: Any, provider: str) -> Placement | None:
    """Where the nodes of ``session`` run; None where onnxruntime was not asked to record it, or cannot (1.23 cannot).

    A provider that compiles takes a subgraph at a time, one that brings kernels takes node by node: then the number of
    connected pieces is not told, and ``partitions`` is 0.
    """
    ask = getattr(session, "get_provider_graph_assignment_info", None)
    if ask is None:
        return None
    try:
        subgraphs = [(_base(graph.ep_name, provider), graph.get_nodes()) for graph in ask()]
    except Exception:  # noqa: BLE001 (onnxruntime raises one of its dozen classes where it was not recorded)
        return None
    nodes: Counter[str] = Counter()
    left: Counter[str] = Counter()
    products: Counter[bool] = Counter()
    for name, members in subgraphs:
        nodes[name] += len(members)
        products[name == provider] += sum(PRODUCTS.search(node.op_type) is not None for node in members)
        if name != provider:
            left.update(_operator(node) for node in members)
    pieces = [len(members) for name, members in subgraphs if name == provider]
    return Placement(
        provider,
        dict(nodes),
        dict(sorted(left.items())),
        len(pieces) if max(pieces, default=0) > 1 else 0,
        products=products[True],
        all_products=products.total(),
    )


def _base(name: str, provider: str) -> str:
    """OpenVINO's meta device calls itself ``OpenVINOExecutionProvider.AUTO``: still the provider that was asked for."""
    return provider if name.startswith(f"{provider}.") else name


def _operator(node: Any) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def explained(
    placement: Placement | None, graph: Graph | None, shapes: Mapping[str, tuple[int, ...]]
) -> Placement | None:
    """``placement`` with the reasons that the provider's adapter knows; as it was where there is nothing to explain.

    Args:
        placement: of a session.
        graph: the model's features, where known.
        shapes: input name -> shape the session will be run with.
    """
    if placement is None or graph is None or placement.taken == placement.total:
        return placement
    from ort_metainfer.errors import ProviderError
    from ort_metainfer.providers import get_provider

    try:
        constraints = get_provider(placement.provider).capabilities.constraints
    except ProviderError:
        return placement
    reasons = list(constraints.objections(graph, shapes)) if placement.taken == 0 else []
    if lacking := constraints.lacking(placement.left):
        reasons.append(f"it has no {_some(lacking)}")
    if not reasons:
        reasons.append(f"it did not take {_some(tuple(placement.left))}; onnxruntime does not say why")
    return replace(placement, reasons=tuple(reasons))


def with_reasons(trial: Trial, setup: Setup) -> Trial:
    """``trial`` with the reasons told, in its placement and in the words of the gate that names it."""
    shapes = setup.shapes if trial.strategy.static_shapes else {}  # otherwise the session keeps its open dimensions
    before, after = trial.placement, explained(trial.placement, setup.graph, shapes)
    if before is None or after is None or before == after:
        return trial
    told = tuple(replace(gate, detail=gate.detail.replace(before.describe(), after.describe())) for gate in trial.gates)
    return replace(trial, placement=after, gates=told)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MAX_NAMED])
    return f"{shown} and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else shown


def placement_from_dict(plain: Mapping[str, Any]) -> Placement:
    """The inverse of ``dataclasses.asdict``, also after a trip through JSON."""
    return Placement(**{**plain, "reasons": tuple(plain.get("reasons", ()))})
