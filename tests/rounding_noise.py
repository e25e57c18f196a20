"""What rounding alone does to a graph: every float value of it disturbed by as much as one rounding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.rewrite_run import error_of, outputs

__all__ = ["disturbed", "rounding_noise"]

ROUNDING = float(np.finfo(np.float32).eps)

ROUNDS = 4


def rounding_noise(model: bytes, feeds: Sequence[Mapping[str, Any]], level: str = "off") -> float:
    """The largest relative L2 error of some rounds; 0 where a disturbed graph does not run or is not finite."""
    expected = outputs(model, feeds, level)
    worst = 0.0
    for seed in range(ROUNDS):
        try:
            got = outputs(disturbed(model, seed), feeds, level)
        except Exception:  # noqa: BLE001 (an operator younger than opset 21; nothing is then excused)
            return 0.0
        pairs = (pair for ours, theirs in zip(got, expected, strict=True) for pair in zip(ours, theirs, strict=True))
        worst = max(worst, *(error_of(a, b) for a, b in pairs))
    return worst if np.isfinite(worst) else 0.0


def disturbed(model: bytes, seed: int) -> bytes:
    """The model with noise of one rounding on everything that a node reads, in subgraphs too.

    In opset 21 at most: onnxruntime has no RandomUniformLike of opset 22.
    """
    copy = onnx.shape_inference.infer_shapes(onnx.load_from_string(model))
    for opset in copy.opset_import:
        opset.version = min(opset.version, 21)
    _disturb(copy.graph, seed * 10_000)
    return bytes(copy.SerializeToString())


def _disturb(graph: Any, seed: int) -> None:
    names = _float_names(graph)
    noisy = {name: f"{name}/noisy{seed}" for name in names}
    given = {value.name for value in (*graph.input, *graph.initializer)}
    nodes: list[Any] = [made for name in names if name in given for made in _noise(name, noisy[name], seed)]
    for place, node in enumerate(graph.node):
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _disturb(attribute.g, seed + 97 * place + 1)
        if node.op_type not in EXACT_INPUTS:
            for at, name in enumerate(node.input[:1] if node.op_type == "Pow" else node.input):
                node.input[at] = noisy.get(name, name)
        nodes.append(node)
        nodes += [made for name in node.output if name in noisy for made in _noise(name, noisy[name], seed + place)]
    del graph.node[:]
    graph.node.extend(nodes)


EXACT_INPUTS = ("Resize", "QuantizeLinear", "DequantizeLinear", "Clip", "Pad", "Range", "TopK", "Greater")
"""Operators for which a rounding of an input is a step, or another shape."""


def _float_names(graph: Any) -> list[str]:
    kinds = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info)}
    kinds |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    made = {name for node in graph.node for name in node.output}
    there = made | {value.name for value in (*graph.input, *graph.initializer)}
    return [name for name, kind in kinds.items() if kind == TensorProto.FLOAT and name in there]


def _noise(name: str, noisy: str, seed: int) -> Iterator[Any]:
    low, high = 1 - ROUNDING, 1 + ROUNDING
    yield helper.make_node("RandomUniformLike", [name], [f"{noisy}/r"], low=low, high=high, seed=float(seed + 1))
    yield helper.make_node("Mul", [name, f"{noisy}/r"], [noisy])
