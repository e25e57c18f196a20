"""The operators that are tried out on a device.

Names are the operator's, with a variant or a type behind a stroke: ``Conv``, ``Conv/depthwise``, ``MatMul/float16``,
``Conv/qdq``. Operators of onnxruntime's own domain are named as onnxruntime names them, ``com.microsoft.Gelu``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import TensorProto

from ort_metainfer.hardware.micro_models import OPSET, random
from ort_metainfer.hardware.operator_models import (
    IMAGE,
    KERNEL3,
    MATRIX,
    MICROSOFT,
    PADDED3,
    SQUARE3,
    Array,
    OperatorCase,
    QuantisedNode,
    bfloat16_cast,
    bfloat16_matmul,
    branches,
    case,
    integers,
    loop,
    numbers,
)

__all__ = ["CASES", "case_named"]

BYTES = (MATRIX * 255).astype(np.uint8)
SCALE, ZERO8, ZERO8S = np.array(0.02, np.float32), np.array(128, np.uint8), np.array(0, np.int8)
WEIGHTS8 = (random(16, 8) * 40).clip(-127, 127).astype(np.int8)
FILTERS8 = (random(8, 8, 3, 3) * 40).clip(-127, 127).astype(np.int8)
RECURRENT_X = numbers(4, 1, 8)


def _convolutions() -> Iterator[OperatorCase]:
    yield case("Conv", IMAGE, constants=(SQUARE3, random(8)), **PADDED3)
    yield case("Conv/1x1", IMAGE, constants=(random(8, 8, 1, 1),), kernel_shape=[1, 1])
    yield case("Conv/depthwise", IMAGE, constants=(random(8, 1, 3, 3),), group=8, **PADDED3)
    yield case("Conv/grouped", IMAGE, constants=(random(8, 4, 3, 3),), group=2, **PADDED3)
    yield case("Conv/dilated", IMAGE, constants=(SQUARE3,), dilations=[2, 2], **KERNEL3)
    yield case("Conv/strided", IMAGE, constants=(SQUARE3,), strides=[2, 2], **PADDED3)
    yield case("Conv/1d", numbers(1, 8, 32), constants=(random(8, 8, 3),), kernel_shape=[3])
    yield case("Conv/3d", numbers(1, 4, 6, 6, 6), constants=(random(4, 4, 3, 3, 3),), kernel_shape=[3, 3, 3])
    yield case("Conv/float16", IMAGE, constants=(SQUARE3,), dtype="float16", **PADDED3)
    yield case("ConvTranspose", IMAGE, constants=(SQUARE3,), strides=[2, 2], **KERNEL3)
    yield case("ConvInteger", (IMAGE * 255).astype(np.uint8), constants=(FILTERS8,), element=TensorProto.INT32)
    scales = (SCALE, ZERO8, FILTERS8, SCALE, ZERO8S, SCALE, ZERO8)
    yield case("QLinearConv", (IMAGE * 255).astype(np.uint8), constants=scales, **PADDED3)
    pooled: tuple[tuple[str, dict[str, Any]], ...] = (("MaxPool", KERNEL3), ("AveragePool", KERNEL3))
    for name, attributes in (*pooled, ("GlobalAveragePool", {}), ("GlobalMaxPool", {}), ("LpPool", KERNEL3)):
        yield case(name, IMAGE, **attributes)
    yield case("MaxPool/ceil", IMAGE, ceil_mode=1, strides=[2, 2], **KERNEL3)


def _products() -> Iterator[OperatorCase]:
    weight = random(16, 8)
    yield case("Gemm", MATRIX, constants=(random(8, 16), random(8)), transB=1)
    yield case("MatMul", MATRIX, constants=(weight,))
    yield case("MatMul/batched", numbers(2, 3, 8, 16), numbers(2, 3, 16, 8))
    yield case("MatMul/float16", MATRIX, constants=(weight,), dtype="float16")
    yield OperatorCase("MatMul/bfloat16", bfloat16_matmul)
    yield case("MatMul/float64", MATRIX, constants=(weight,), dtype="float64")
    yield case("MatMulInteger", BYTES, constants=(WEIGHTS8,), element=TensorProto.INT32)
    quantised = (SCALE, ZERO8, WEIGHTS8, SCALE, ZERO8S, SCALE, ZERO8)
    yield case("QLinearMatMul", BYTES, constants=quantised)
    yield case("Einsum", numbers(2, 4, 8), numbers(2, 8, 4), equation="bij,bjk->bik")
    yield case("Einsum/outer", numbers(4), numbers(8), equation="i,j->ij")
    blocks = np.full((8, 1, 8), 0x88, np.uint8)
    four_bits: dict[str, Any] = {"K": 16, "N": 8, "bits": 4, "block_size": 16}
    yield case(f"{MICROSOFT}.MatMulNBits", MATRIX, constants=(blocks, random(8)), **four_bits)
    dynamic = (WEIGHTS8, SCALE)
    yield case(f"{MICROSOFT}.DynamicQuantizeMatMul", MATRIX, constants=dynamic, element=TensorProto.FLOAT)
    yield case(f"{MICROSOFT}.FusedMatMul", MATRIX, constants=(weight,), alpha=0.5)


def _recurrent() -> Iterator[OperatorCase]:
    def weights(gates: int, directions: int = 1) -> tuple[Array, Array]:
        return random(directions, gates * 8, 8, scale=0.2), random(directions, gates * 8, 8, scale=0.2, seed=1)

    yield case("LSTM", RECURRENT_X, constants=weights(4), hidden_size=8)
    yield case("LSTM/bidirectional", RECURRENT_X, constants=weights(4, 2), hidden_size=8, direction="bidirectional")
    yield case("LSTM/float16", RECURRENT_X, constants=weights(4), hidden_size=8, dtype="float16")
    yield case("GRU", RECURRENT_X, constants=weights(3), hidden_size=8)
    yield case("GRU/linear_before_reset", RECURRENT_X, constants=weights(3), hidden_size=8, linear_before_reset=1)
    yield case("RNN", RECURRENT_X, constants=weights(1), hidden_size=8)


def _transformers() -> Iterator[OperatorCase]:
    tokens, wide = numbers(1, 4, 16), random(16)
    yield case("LayerNormalization", tokens, constants=(wide, wide))
    yield case("LayerNormalization/float16", tokens, constants=(wide, wide), dtype="float16")
    yield case("RMSNormalization", tokens, constants=(wide,), opset=23)
    heads = numbers(1, 2, 4, 8)
    yield case("Attention", heads, heads, heads, opset=23)
    rotation = (numbers(4, 4), numbers(4, 4), integers(0, 1, 2, 3).reshape(1, 4))
    yield case("RotaryEmbedding", heads, constants=rotation, opset=23)
    yield case(f"{MICROSOFT}.Attention", tokens, constants=(random(16, 48), random(48)), num_heads=2)
    yield case(f"{MICROSOFT}.MultiHeadAttention", tokens, tokens, tokens, num_heads=2)
    yield case(f"{MICROSOFT}.SkipLayerNormalization", tokens, tokens, constants=(wide, wide))
    yield case("SimplifiedLayerNormalization", tokens, constants=(wide,))  # onnxruntime's, in ONNX's domain
    yield case(f"{MICROSOFT}.EmbedLayerNormalization", *_embedding(), element=TensorProto.FLOAT, outputs=2)
    for name in ("Gelu", "FastGelu", "BiasGelu", "QuickGelu"):
        yield case(f"{MICROSOFT}.{name}", tokens, constants=(wide,) if name == "BiasGelu" else ())


def _embedding() -> tuple[Array, ...]:
    """Token and segment numbers, three tables, scale and bias of the normalisation."""
    numbers = np.zeros((1, 4), np.int32)
    return numbers, numbers, random(8, 16), random(4, 16), random(2, 16), random(16), random(16)


def _normalisations() -> Iterator[OperatorCase]:
    eight = random(8)
    positive = np.abs(eight) + 0.1
    yield case("BatchNormalization", IMAGE, constants=(eight, eight, eight, positive))
    yield case("InstanceNormalization", IMAGE, constants=(eight, eight))
    yield case("GroupNormalization", IMAGE, constants=(eight, eight), num_groups=2, opset=21)
    yield case("LpNormalization", MATRIX, axis=1)
    yield case("LRN", IMAGE, size=3)
    yield case("MeanVarianceNormalization", IMAGE)
    for name in ("Softmax", "LogSoftmax", "Hardmax"):
        yield case(name, MATRIX, axis=-1)
    yield case("Softmax/float16", MATRIX, axis=-1, dtype="float16")


def _element_wise() -> Iterator[OperatorCase]:
    for name in ("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "PRelu"):
        yield case(name, MATRIX, numbers(16))
    yield case("Add/float16", MATRIX, numbers(16), dtype="float16")
    yield case("Add/int64", integers(1, 2, 3), integers(1, 2, 3))
    yield case("Mod/fmod", MATRIX, MATRIX + 1, fmod=1)
    unary = ("Relu", "LeakyRelu", "Elu", "Selu", "Celu", "Sigmoid", "HardSigmoid", "Tanh", "Softplus", "Softsign")
    more = ("Erf", "Exp", "Log", "Sqrt", "Reciprocal", "Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Sin", "Cos")
    for name in (*unary, *more, "HardSwish", "ThresholdedRelu", "Identity"):
        yield case(name, MATRIX)
    for name in ("Gelu", "Mish"):
        yield case(name, MATRIX, opset=20)
    yield case("Clip", MATRIX, constants=(np.array(0.2, np.float32), np.array(0.8, np.float32)))
    for name in ("Greater", "Less", "Equal"):
        yield case(name, MATRIX, MATRIX, element=TensorProto.BOOL)
    truth = MATRIX > 0.5
    yield case("And", truth, truth)
    yield case("Not", truth)
    yield case("Where", truth, MATRIX, MATRIX, element=TensorProto.FLOAT)
    elements = (TensorProto.FLOAT16, TensorProto.INT64, TensorProto.INT8, TensorProto.BOOL)
    for name, element in zip(("float16", "int64", "int8", "bool"), elements, strict=True):
        yield case(f"Cast/{name}", MATRIX, element=element, to=element)
    yield OperatorCase("Cast/bfloat16", bfloat16_cast)


def _reductions() -> Iterator[OperatorCase]:
    for name in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceLogSumExp"):
        yield case(name, MATRIX, axes=[1])
    yield case("ReduceSum", MATRIX, constants=(integers(1),))
    yield case("ArgMax", MATRIX, axis=1, element=TensorProto.INT64)
    yield case("TopK", MATRIX, constants=(integers(3),), outputs=2)
    yield case("CumSum", MATRIX, constants=(np.array(1, np.int64),))
    yield case("NonZero", MATRIX, element=TensorProto.INT64)
    yield case("Unique", numbers(8), outputs=2)
    boxes = np.sort(numbers(1, 6, 4), axis=-1)
    few, share = integers(2), np.array([0.5], np.float32)
    yield case("NonMaxSuppression", boxes, numbers(1, 1, 6), constants=(few, share, share), element=TensorProto.INT64)


def _shapes() -> Iterator[OperatorCase]:
    yield case("Reshape", MATRIX, constants=(integers(16, 8),))
    yield case("Transpose", IMAGE, perm=[0, 2, 3, 1])
    yield case("Concat", MATRIX, MATRIX, axis=1)
    yield case("Split", MATRIX, constants=(integers(8, 8),), axis=1, outputs=2)
    yield case("Slice", MATRIX, constants=(integers(0), integers(8), integers(1), integers(2)))
    yield case("Squeeze", numbers(1, 8), constants=(integers(0),))
    yield case("Unsqueeze", MATRIX, constants=(integers(0),))
    yield case("Flatten", IMAGE)
    yield case("Expand", numbers(1, 16), constants=(integers(8, 16),))
    yield case("Tile", MATRIX, constants=(integers(2, 1),))
    yield case("Shape", MATRIX, element=TensorProto.INT64)
    yield case(
        "OneHot", integers(0, 2, 1), constants=(integers(3), np.array([0, 1], np.float32)), element=TensorProto.FLOAT
    )
    yield case("Range", *(np.array(value, np.int64) for value in (0, 8, 1)))
    yield case("Trilu", MATRIX)
    yield case("DepthToSpace", IMAGE, blocksize=2)
    yield case("DepthToSpace/CRD", IMAGE, blocksize=2, mode="CRD")
    yield case("SpaceToDepth", IMAGE, blocksize=2)
    for mode in ("constant", "reflect", "edge", "wrap"):
        opset = 19 if mode == "wrap" else OPSET
        yield case(f"Pad/{mode}", IMAGE, constants=(integers(0, 0, 1, 1, 0, 0, 1, 1),), mode=mode, opset=opset)
    larger = (None, np.array([1, 1, 2, 2], np.float32))
    for mode in ("nearest", "linear", "cubic"):
        yield case(f"Resize/{mode}", IMAGE, constants=larger, mode=mode)
    corners: dict[str, Any] = {"coordinate_transformation_mode": "align_corners"}
    yield case("Resize/linear_align_corners", IMAGE, constants=larger, mode="linear", **corners)
    grid = numbers(1, 4, 4, 2) * 2 - 1
    yield case("GridSample", IMAGE, grid)
    yield case("GridSample/nearest", IMAGE, grid, mode="nearest")
    rois = np.array([[0, 0, 4, 4]], np.float32)
    yield case("RoiAlign", IMAGE, rois, constants=(integers(0),), output_height=2, output_width=2)


def _indexing() -> Iterator[OperatorCase]:
    picks = integers(0, 3, 1)
    yield case("Gather", MATRIX, constants=(picks,), axis=0)
    yield case("Gather/input_indices", MATRIX, picks, axis=0)
    yield case("GatherElements", MATRIX, constants=(np.zeros((8, 4), np.int64),), axis=1)
    yield case("GatherND", MATRIX, constants=(integers(0, 1, 2, 3).reshape(2, 2),))
    places = np.zeros((1, 16), np.int64)
    yield case("ScatterElements", MATRIX, constants=(places, numbers(1, 16)), axis=0)
    yield case("ScatterND", MATRIX, constants=(integers(1, 3).reshape(2, 1), numbers(2, 16)))
    yield case("EyeLike", numbers(4, 4))
    yield OperatorCase("If", branches)
    yield OperatorCase("Loop", loop)


def _quantised() -> Iterator[OperatorCase]:
    yield case("QuantizeLinear", MATRIX, constants=(SCALE, ZERO8), element=TensorProto.UINT8)
    yield case("DequantizeLinear", BYTES, constants=(SCALE, ZERO8), element=TensorProto.FLOAT)
    yield case("DynamicQuantizeLinear", MATRIX, element=TensorProto.UINT8, outputs=3)
    for operator in ("Conv", "MatMul", "Add", "Sigmoid", "MaxPool", "GlobalAveragePool"):
        yield OperatorCase(f"{operator}/qdq", QuantisedNode(operator))


CASES: tuple[OperatorCase, ...] = (
    *_convolutions(),
    *_products(),
    *_transformers(),
    *_normalisations(),
    *_quantised(),
    *_element_wise(),
    *_shapes(),
    *_reductions(),
    *_indexing(),
    *_recurrent(),
)

_BY_NAME: Mapping[str, OperatorCase] = MappingProxyType({entry.name: entry for entry in CASES})


def case_named(name: str) -> OperatorCase:
    """The case of that name.

    Raises:
        KeyError: there is none.
    """
    return _BY_NAME[name]
