"""The values of nodes that depend on constants alone, computed by onnxruntime itself without optimisation.

So they are what a session would compute, number by number, on this machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ort_metainfer.rewrites.patterns import constant_size, dims, dtype, tensor_of

__all__ = ["Constants", "computed", "cones"]

NUMPY_TYPES = frozenset(
    ["FLOAT", "DOUBLE", "FLOAT16", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "BOOL"]
)
"""Element types that onnxruntime hands out as NumPy arrays."""

NOT_FOLDED = frozenset(
    [
        "Constant",
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Dropout",
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
    ]
)
"""Random ones, and what quantised kernels are found by."""

GROWING = frozenset(
    [
        "ConstantOfShape",
        "Expand",
        "Tile",
        "Range",
        "Resize",
        "Upsample",
        "Pad",
        "EyeLike",
        "OneHot",
        "ScatterND",
        "GatherND",
    ]
)
"""Operators whose result may be far larger than what they take."""


@dataclass(frozen=True)
class Constants:
    """Part of a graph that depends on constants alone.

    Attributes:
        nodes: in topological order.
        wanted: the values that something else uses.
        taken: the constants that it uses.
        taken_bytes: bytes of those.
    """

    nodes: tuple[Any, ...]
    wanted: tuple[Any, ...]
    taken: tuple[Any, ...]
    taken_bytes: int

    def compute(self, opsets: Mapping[str, int], ir_version: int) -> list[np.ndarray]:
        """What ``wanted`` is.

        Raises:
            Exception: whatever onnxruntime raises for a node it does not run.
        """
        import onnx
        import onnx_ir
        import onnxruntime

        graph = onnx.helper.make_graph(
            [onnx_ir.to_proto(node) for node in self.nodes],
            "constants",
            [],
            [onnx.helper.make_empty_tensor_value_info(value.name) for value in self.wanted],
            [_named(value) for value in self.taken],
        )
        imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=max(ir_version, 4))
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return list(session.run(None, {}))


def _named(value: Any) -> Any:
    import onnx_ir

    proto = onnx_ir.to_proto(tensor_of(value))
    proto.name = value.name
    return proto


@dataclass
class _Part:
    nodes: dict[int, Any] = field(default_factory=dict)
    taken: dict[int, Any] = field(default_factory=dict)


def cones(graph: Any, most_bytes: int) -> list[Constants]:
    """For each value of ``graph`` that depends on constants alone, and that something else uses: what makes it.

    Args:
        graph: one graph; constants of the graphs around it count.
        most_bytes: values known to be larger are not made.
    """
    parts: dict[int, _Part] = {}
    found: list[Constants] = []
    for node in graph:
        part = _part_of(node, parts, most_bytes)
        if part is None:
            continue
        for value in node.outputs:
            parts[id(value)] = part
    for node in graph:
        part = parts.get(id(node.outputs[0])) if node.outputs else None
        if part is None:
            continue
        wanted = [value for value in node.outputs if _is_wanted(value, graph, parts)]
        if wanted:
            taken = tuple(part.taken.values())
            taken_bytes = sum(tensor_of(value).nbytes for value in taken)
            found.append(Constants(tuple(part.nodes.values()), tuple(wanted), taken, taken_bytes))
    return found


def _part_of(node: Any, parts: Mapping[int, _Part], most_bytes: int) -> _Part | None:
    """What a node's results are made of; None where not of constants alone, or not to be computed."""
    if node.domain or node.op_type in NOT_FOLDED or not node.inputs:
        return None
    if any(given.is_ref() or given.type.name in ("GRAPH", "GRAPHS") for given in node.attributes.values()):
        return None
    made = _Part()
    for value in node.inputs:
        if value is None:
            continue
        inner = parts.get(id(value))
        if inner is not None:
            made.nodes.update(inner.nodes)
            made.taken.update(inner.taken)
        elif constant_size(value) is not None and value.name:
            made.taken[id(value)] = value
        else:
            return None
    made.nodes[id(node)] = node
    return made if made.taken and all(_is_small(value, node, most_bytes) for value in node.outputs) else None


def _is_small(value: Any, node: Any, most_bytes: int) -> bool:
    import onnx_ir

    kind, sizes = dtype(value), dims(value)
    if not value.name:
        return True
    if kind not in NUMPY_TYPES:
        return False
    if sizes is None or None in sizes:
        return node.op_type not in GROWING
    return math.prod(size for size in sizes if size is not None) * onnx_ir.DataType[kind].itemsize <= most_bytes


def _is_wanted(value: Any, graph: Any, parts: Mapping[int, _Part]) -> bool:
    """Whether a node uses it that is not itself computed here."""
    return (
        any(
            use.node.graph is not graph or not use.node.outputs or id(use.node.outputs[0]) not in parts
            for use in value.uses()
        )
        and not value.is_graph_output()
    )


def computed(
    parts: Sequence[Constants], opsets: Mapping[str, int], ir_version: int
) -> Iterator[tuple[Constants, list[np.ndarray] | str]]:
    """Each part with the values of what is wanted of it; or why onnxruntime does not compute it.

    All at once where that works: a session costs as much as what it computes here.
    """
    try:
        values = iter(_together(parts).compute(opsets, ir_version)) if parts else iter(())
    except Exception:  # noqa: BLE001 (onnxruntime's many classes; one of the parts is to blame)
        yield from ((part, _alone(part, opsets, ir_version)) for part in parts)
        return
    yield from [(part, [next(values) for _ in part.wanted]) for part in parts]


def _alone(part: Constants, opsets: Mapping[str, int], ir_version: int) -> list[np.ndarray] | str:
    try:
        return part.compute(opsets, ir_version)
    except Exception as error:  # noqa: BLE001 (onnxruntime's many classes)
        return f"onnxruntime does not compute it: {str(error).splitlines()[0]}"


def _together(parts: Sequence[Constants]) -> Constants:
    nodes: dict[int, Any] = {}
    taken: dict[int, Any] = {}
    for part in parts:
        nodes.update((id(node), node) for node in part.nodes)
        taken.update((id(value), value) for value in part.taken)
    wanted = tuple(value for part in parts for value in part.wanted)
    return Constants(tuple(nodes.values()), wanted, tuple(taken.values()), 0)
