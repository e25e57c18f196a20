"""Branches that fixed shapes make impossible: they are replaced by ones that raise.

A branch that is never taken with these shapes (the one for another sampling rate, say) is inferred with them all the
same, and onnxruntime refuses the whole model where that fails. A run that takes such a branch raises, as it would
have inside the branch, and the guard of fixed shapes then asks the general session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import onnx
import onnx.shape_inference

from ort_metainfer.model.inference import REFUSALS, infer
from ort_metainfer.model.walking import graphs_of, subgraphs

__all__ = ["close_dead_branches", "inference_failure"]

MOST_BRANCHES = 64
"""Each is tried in turn, with all the model inferred again."""

FIRST_OPSET = 11
"""SequenceConstruct and SequenceAt."""

SEQUENCE_TYPES = frozenset((*range(1, 14),)) - {8}
"""Numbers and booleans of ONNX's first element types, which Cast makes of a boolean; no strings."""

Shapes = Mapping[str, tuple[int, ...]]


def inference_failure(bare: Any, shapes: Shapes) -> str | None:
    """What strict inference says against the skeleton ``bare`` with ``shapes``; None where nothing."""
    inferred, _ = infer(bare, shapes)
    try:
        onnx.shape_inference.infer_shapes(inferred, strict_mode=True)
    except REFUSALS as error:
        return " ".join(str(error).split())
    return None


def close_dead_branches(proto: Any, bare: Any, shapes: Shapes) -> tuple[int, str | None]:
    """Close, in place, each branch of an If that cannot be inferred with ``shapes``.

    Args:
        proto: the model, with its weights.
        bare: its skeleton, all of whose Ifs have the names they have in ``proto``; the same is done to it.
        shapes: input -> shape.

    Returns:
        How many were closed, and what strict inference still says against the model; None where nothing.
    """
    failure = inference_failure(bare, shapes)
    if failure is None or _opset(proto) < FIRST_OPSET:
        return 0, failure
    closed = 0
    for name, which in list(_branches(bare.graph))[:MOST_BRANCHES]:
        attempt = onnx.ModelProto()
        attempt.CopyFrom(bare)
        if not _close(attempt, name, which):
            continue
        then = inference_failure(attempt, shapes)
        if then == failure or not _close(proto, name, which):
            continue  # what is wrong lies elsewhere
        bare.CopyFrom(attempt)
        closed, failure = closed + 1, then
        if failure is None:
            break
    return closed, failure


def _opset(proto: Any) -> int:
    return max((opset.version for opset in proto.opset_import if opset.domain in ("", "ai.onnx")), default=0)


def _branches(graph: Any) -> Iterator[tuple[str, str]]:
    """First output of an If, and the name of its branch; inner ones first: as little as possible is closed."""
    for node in graph.node:
        for inner in subgraphs(node):
            yield from _branches(inner)
        if _is_if(node):
            yield from ((node.output[0], attribute.name) for attribute in node.attribute if attribute.HasField("g"))


def _is_if(node: Any) -> bool:
    return node.op_type == "If" and node.domain in ("", "ai.onnx") and bool(node.output) and bool(node.output[0])


def _close(proto: Any, name: str, which: str) -> bool:
    """Close the branch ``which`` of the one If whose first output is ``name``; False where that cannot be done."""
    found = [node for graph in graphs_of(proto) for node in graph.node if _is_if(node) and node.output[0] == name]
    if len(found) != 1:
        return False
    branch = next(attribute.g for attribute in found[0].attribute if attribute.name == which)
    types = [value.type.tensor_type.elem_type for value in branch.output]
    if not types or not all(kind in SEQUENCE_TYPES for kind in types):
        return False
    raising = [
        node for place, kind in enumerate(types) for node in _raising(found[0].input[0], name, which, place, kind)
    ]
    outputs = [
        onnx.helper.make_value_info(_name(name, which, place, "at"), onnx.helper.make_tensor_type_proto(kind, None))
        for place, kind in enumerate(types)
    ]
    branch.CopyFrom(
        onnx.helper.make_graph(raising, f"{which} of {name}, impossible with the fixed shapes", [], outputs)
    )
    return True


def _raising(condition: str, name: str, which: str, place: int, kind: int) -> Iterator[Any]:
    """The second of a sequence of one: raises on the CPU, the only provider that takes sequences. Made of a value that
    is known in a run only, so that nothing computes it before."""
    make, told = onnx.helper.make_node, [_name(name, which, place, part) for part in ("value", "list", "second", "at")]
    second = onnx.helper.make_tensor("second", onnx.TensorProto.INT64, [], [1])
    yield make("Cast", [condition], [told[0]], told[0], to=kind)
    yield make("SequenceConstruct", [told[0]], [told[1]], told[1])
    yield make("Constant", [], [told[2]], told[2], value=second)
    yield make("SequenceAt", [told[1], told[2]], [told[3]], told[3])


def _name(name: str, which: str, place: int, part: str) -> str:
    return f"{name}:{which}:{place}:{part}"
