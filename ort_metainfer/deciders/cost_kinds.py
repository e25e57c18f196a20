"""Which of the probe's micro-benchmarks a node is like: the cost model reckons it at that one's rate."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ort_metainfer.hardware.fusing import ELEMENT_WISE
from ort_metainfer.model.work import NodeWork

__all__ = ["KINDS", "PRODUCTS", "kind_of", "kind_of_group", "kind_of_operator"]

PRODUCTS = ("conv3x3", "conv1x1", "depthwise3x3", "matmul", "attention", "lstm")
"""Kinds whose work is multiply-accumulates."""

MOVING = ("element_wise", "layer_norm", "softmax", "gather")
"""Kinds whose work is bytes moved."""

KINDS = (*PRODUCTS, *MOVING)
"""As the probe names them (:mod:`~ort_metainfer.hardware.micro_benchmarks`)."""

_CONVOLUTIONS = ("Conv", "FusedConv", "ConvTranspose", "ConvInteger", "QLinearConv", "NhwcFusedConv")
_RECURRENT = ("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM")
_ATTENTION = ("Attention", "MultiHeadAttention", "GroupQueryAttention", "QAttention")
_NORMS = ("Normalization", "LayerNorm", "EmbedLayerNorm", "LRN")
_SOFTMAX = ("Softmax", "LogSoftmax", "BiasSoftmax")
_MOVES = (
    "Gather",
    "Scatter",
    "Transpose",
    "Concat",
    "Slice",
    "Split",
    "Pad",
    "Resize",
    "Expand",
    "Tile",
    "SpaceToDepth",
)
_PRODUCT_NAMES = ("MatMul", "Gemm", "Einsum")


def kind_of(node: NodeWork) -> str:
    """The kind that a node is like; one without multiply-accumulates is told by its operator alone."""
    named = kind_of_operator(node.operator)
    if not node.macs:
        return named if named in MOVING else "element_wise"
    if named in ("conv3x3", "matmul") and node.channels is not None:
        return _convolution(node) if named == "conv3x3" else "matmul"
    return named if named in PRODUCTS else "matmul"


def _convolution(node: NodeWork) -> str:
    """Depthwise where one channel is summed over; 1x1 where the kernel has one element.

    Multiply-accumulates are outputs x channels summed over x kernel elements.
    """
    assert node.channels is not None
    summed, _ = node.channels
    if summed <= 1:
        return "depthwise3x3"
    outputs = math.prod(node.output) if node.output else 0
    return "conv1x1" if outputs and (node.macs or 0) <= outputs * summed else "conv3x3"


def kind_of_operator(operator: str) -> str:
    """The kind of an operator of which nothing else is known, with or without its domain."""
    plain = operator.rpartition(".")[2]
    families = (
        ("conv3x3", _CONVOLUTIONS),
        ("lstm", _RECURRENT),
        ("attention", _ATTENTION),
        ("softmax", _SOFTMAX),
    )
    found = next((kind for kind, names in families if plain in names), None)
    if found is not None:
        return found
    if any(name in plain for name in _PRODUCT_NAMES):
        return "matmul"
    if any(name in plain for name in _NORMS) and plain != "BatchNormalization":
        return "layer_norm"
    return "gather" if plain.startswith(_MOVES) else "element_wise"


def kind_of_group(nodes: Sequence[NodeWork]) -> str:
    """The kind of nodes that run as one: of the one with the most multiply-accumulates, else of the first that is not
    element-wise, else element-wise."""
    hungriest = max(nodes, key=lambda node: node.macs or 0)
    if hungriest.macs:
        return kind_of(hungriest)
    return next((kind_of(node) for node in nodes if node.operator not in ELEMENT_WISE), "element_wise")
