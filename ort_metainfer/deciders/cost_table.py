"""A model's work as arrays, one row for each group of nodes that run as one: what the cost model reckons with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ort_metainfer.deciders.cost_kinds import KINDS, PRODUCTS, kind_of, kind_of_group, kind_of_operator
from ort_metainfer.hardware.fusing import ELEMENT_WISE, Group, fuse
from ort_metainfer.hardware.simulation import crossing_values, uninterrupted_parts
from ort_metainfer.model.work import CONTROL_FLOW, NodeWork
from ort_metainfer.problem import Graph, Problem

__all__ = ["WorkTable", "table_of", "table_of_graph"]

Floats = npt.NDArray[np.float64]

SHAPE_BYTES = 512
"""Integer results up to this size are taken for sizes of tensors: 64 dimensions of 8 bytes. A choice."""

QUANTISED_IN_PLACE = frozenset({"Relu", "Clip", "Add", "LeakyRelu", "Sigmoid", "QuantizeLinear", "DequantizeLinear"})
"""Element-wise operators that runtimes carry out on 8-bit integers, or inside the product before
(onnxruntime, core/optimizer/qdq_transformer/selectors_actions/qdq_selector_action_transformer.cc)."""


@dataclass(frozen=True)
class WorkTable:
    """One row a group. Amounts are those of one launch; sizes not known count as nothing.

    Attributes:
        kind: index in :data:`~ort_metainfer.deciders.cost_kinds.KINDS`.
        macs: multiply-accumulates.
        activations: bytes of activations read and written; ``weights`` of weights read.
        launches: how often it is launched in one run of the model.
        nodes: nodes in it.
        strays: element-wise nodes of it that do not work on 8-bit integers.
        is_float32: whether it computes in float32; ``is_quantised`` in 8-bit integers.
        is_shape: whether it only reckons sizes of tensors.
        on_device: whether it runs on the device asked for; else on the CPU beside it.
        unfused: nodes, beyond one a group, that a runtime that fuses nothing would launch.
        views: nodes that move no data, which onnxruntime launches all the same.
        sizes: nodes whose result follows from shapes alone: launched as long as the shapes are open.
        parts: uninterrupted pieces of the graph on the device.
        crossings: values that cross between device and host; ``crossing_bytes`` their bytes.
        is_coarse: whether it was guessed from counts of operators, for want of the nodes.
    """

    kind: npt.NDArray[np.int64]
    macs: Floats
    activations: Floats
    weights: Floats
    launches: Floats
    nodes: Floats
    strays: Floats
    is_float32: npt.NDArray[np.bool_]
    is_quantised: npt.NDArray[np.bool_]
    is_shape: npt.NDArray[np.bool_]
    on_device: npt.NDArray[np.bool_]
    unfused: int = 0
    views: int = 0
    sizes: int = 0
    parts: int = 1
    crossings: int = 0
    crossing_bytes: float = 0.0
    is_coarse: bool = False

    @property
    def is_product(self) -> npt.NDArray[np.bool_]:
        """Whether its work is multiply-accumulates."""
        return (self.kind < len(PRODUCTS)) & (self.macs > 0)

    def rows(self, kind: str) -> npt.NDArray[np.bool_]:
        """Which groups are of ``kind``."""
        return np.asarray(self.kind == KINDS.index(kind))


def table_of(work: Sequence[NodeWork], outputs: Sequence[str], on_device: Sequence[bool] | None = None) -> WorkTable:
    """The table of a model whose nodes are known.

    Args:
        work: the model's.
        outputs: names of its outputs.
        on_device: for each node, whether the device runs it; None: all.
    """
    placed = [True] * len(work) if on_device is None else list(on_device)
    groups = fuse(work, placed, outputs)
    crossings = crossing_values(groups)
    costly = [node for node in work if not (node.is_view or node.folded or node.operator in CONTROL_FLOW)]
    return WorkTable(
        kind=np.array([KINDS.index(kind_of_group(group.nodes)) for group in groups], np.int64),
        macs=_column(groups, lambda group: sum(node.macs or 0 for node in group.nodes) / group.steps),
        activations=_column(groups, lambda group: sum(group.activations.values()) / group.steps),
        weights=_column(groups, lambda group: group.weight_bytes / group.steps),
        launches=_column(groups, lambda group: group.runs * group.steps),
        nodes=_column(groups, lambda group: len(group.nodes)),
        strays=_column(groups, _strays),
        is_float32=_flags(groups, lambda group: _leader(group).dtype == "float32" and not _leader(group).quantised),
        is_quantised=_flags(groups, lambda group: _leader(group).quantised),
        is_shape=_flags(groups, _is_shape),
        on_device=_flags(groups, lambda group: group.on_chip),
        unfused=len(costly) - len(groups),
        views=sum(node.is_view and not node.folded for node in work),
        sizes=sum(node.folded for node in work),
        parts=uninterrupted_parts(groups),
        crossings=len(crossings),
        crossing_bytes=float(sum(crossings.values())),
    )


def table_of_graph(problem: Problem) -> WorkTable:
    """A guess where the nodes are not known: the graph's multiply-accumulates and weights, shared out evenly.

    Every operator counted is a group of its own, its activations are not known and count as nothing.
    """
    graph = problem.graph
    counts = {name: count for name, count in graph.operators.items() if count > 0 and name not in CONTROL_FLOW}
    names = [name for name, count in counts.items() for _ in range(count) if name not in ("Constant", "Identity")]
    kinds = np.array([KINDS.index(kind_of_operator(name)) for name in names], np.int64)
    is_product = kinds < len(PRODUCTS)
    share = 1.0 / max(1, int(is_product.sum()))
    joined = np.array([name in ELEMENT_WISE for name in names], np.bool_)
    kept = ~joined if (~joined).any() else np.ones(len(names), np.bool_)
    size = int(kept.sum())
    quantised = np.full(size, graph.quantisation in ("qdq", "qoperator", "dynamic"))
    return WorkTable(
        kind=kinds[kept],
        macs=np.where(is_product[kept], (graph.macs or 0) * share, 0.0),
        activations=np.full(size, _boundary_bytes(graph, problem) / max(1, size)),
        weights=np.where(is_product[kept], graph.weight_bytes * share, 0.0),
        launches=np.ones(size),
        nodes=np.ones(size),
        strays=np.zeros(size),
        is_float32=~quantised,
        is_quantised=quantised & is_product[kept],
        is_shape=np.zeros(size, np.bool_),
        on_device=np.ones(size, np.bool_),
        unfused=len(names) - size,
        crossings=len(graph.inputs) + len(graph.outputs),
        crossing_bytes=_boundary_bytes(graph, problem),
        is_coarse=True,
    )


def _leader(group: Group) -> NodeWork:
    return max(group.nodes, key=lambda node: node.macs or 0)


def _strays(group: Group) -> int:
    others = (node for node in group.nodes if kind_of(node) not in PRODUCTS)
    return sum(node.operator not in QUANTISED_IN_PLACE for node in others)


def _is_shape(group: Group) -> bool:
    return all(
        not node.macs and node.dtype in ("int64", "int32") and 0 <= (node.written_bytes or 0) <= SHAPE_BYTES
        for node in group.nodes
    )


def _boundary_bytes(graph: Graph, problem: Problem) -> float:
    from ort_metainfer.deciders.traits import input_bytes

    return float(input_bytes(problem)) if graph.inputs else 0.0


def _column(groups: Sequence[Group], value: Callable[[Group], float]) -> Floats:
    return np.array([value(group) for group in groups], np.float64)


def _flags(groups: Sequence[Group], value: Callable[[Group], bool]) -> npt.NDArray[np.bool_]:
    return np.array([value(group) for group in groups], np.bool_)
