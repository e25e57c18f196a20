"""Which class of work an operator belongs to, for features: a closed list, so that a vector has the same length always.

Convolutions are told apart by their shapes (:func:`class_of`), everything else by its name alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from ort_metainfer.model.work import NodeWork

__all__ = ["CLASSES", "MAC_CLASSES", "NODE_CLASSES", "class_of", "operator_class"]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_MEMBERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "conv": _words("Conv ConvTranspose ConvInteger QLinearConv FusedConv NhwcConv NhwcFusedConv DeformConv"),
        "gemm": _words(
            """
            Gemm MatMul MatMulInteger QLinearMatMul QGemm FusedMatMul FusedGemm Einsum MatMulIntegerToFloat
            DynamicQuantizeMatMul MatMulNBits MatMulBnb4 MatMulFpQ4 GemmFloat8 FusedMatMulActivation TransposeMatMul
            MatMulInteger16
            """
        ),
        "attention": _words(
            """
            Attention MultiHeadAttention QAttention GroupQueryAttention PackedAttention
            DecoderMaskedMultiHeadAttention PackedMultiHeadAttention SparseAttention RotaryEmbedding
            """
        ),
        "norm": _words(
            """
            BatchNormalization LayerNormalization InstanceNormalization GroupNormalization RMSNormalization
            SimplifiedLayerNormalization SkipLayerNormalization GroupNorm LRN SkipSimplifiedLayerNormalization
            EmbedLayerNormalization LpNormalization Softmax LogSoftmax MeanVarianceNormalization SkipGroupNorm
            QuickGroupNorm
            """
        ),
        "elementwise": _words(
            """
            Abs Acos Acosh Add And Asin Asinh Atan Atanh BiasGelu BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
            Cast CastLike Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp FastGelu Floor Gelu Greater GreaterOrEqual
            HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg
            Not Or PRelu Pow QLinearAdd QLinearLeakyRelu QLinearMul QLinearSigmoid QuickGelu Reciprocal Relu Round
            Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh Where Xor ThresholdedRelu
            BiasAdd BiasDropout Dropout Rsqrt Trilu QLinearWhere
            """
        ),
        "pool": _words(
            """
            AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool MaxRoiPool QLinearAveragePool
            QLinearGlobalAveragePool RoiAlign Resize Upsample GridSample MaxUnpool AffineGrid Col2Im
            """
        ),
        "reduce": _words(
            """
            ArgMax ArgMin CumSum CumProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
            ReduceMin ReduceProd ReduceSum ReduceSumSquare TopK Unique NonMaxSuppression NonZero QLinearReduceMean
            Hardmax
            """
        ),
        "move": _words(
            """
            Compress Concat ConcatFromSequence DepthToSpace Expand Flatten Gather GatherND GatherBlockQuantized
            GatherElements OneHot Pad QLinearConcat Reshape ReverseSequence Scatter ScatterElements ScatterND Slice
            SpaceToDepth Split SplitToSequence Squeeze TensorScatter Tile Transpose Unsqueeze
            """
        ),
        "shape": _words("Constant ConstantOfShape EyeLike Range Shape Size"),
        "recurrent": _words("LSTM GRU RNN DynamicQuantizeLSTM AttnLSTM"),
        "control_flow": _words("If Loop Scan SequenceMap"),
        "quantise": _words("QuantizeLinear DequantizeLinear DynamicQuantizeLinear QuantizeBFP DequantizeBFP"),
        "signal": _words("DFT STFT HannWindow HammingWindow BlackmanWindow MelWeightMatrix Rfft Irfft"),
    }
)
"""Class -> operators, without their domains; those of ai.onnx.ml and the other domains are told below."""

_CLASS_OF = {operator: name for name, members in _MEMBERS.items() for operator in members}

NODE_CLASSES = (*_MEMBERS, "classical", "other")
"""Classes that a name alone tells: ``classical`` is ai.onnx.ml (trees, scalers), ``other`` what nothing is known of."""

CONV_CLASSES = ("conv_dense", "conv_1x1", "conv_depthwise")

CLASSES = (*CONV_CLASSES, *NODE_CLASSES[1:])
"""The same with convolutions told apart."""

MAC_CLASSES = (*CONV_CLASSES, "gemm", "attention", "recurrent")
"""Those of them whose multiply-accumulates are counted."""


def operator_class(operator: str) -> str:
    """The class of an operator as ``NodeWork`` and ``Graph`` name it."""
    domain, _, name = operator.rpartition(".")
    if domain == "ai.onnx.ml":
        return "classical"
    known = domain in ("", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc")
    return _CLASS_OF.get(name, "other") if known else "other"


def class_of(node: NodeWork) -> str:
    """The class of a node; of a convolution whose shapes are not known, ``conv_dense``, the usual one."""
    found = operator_class(node.operator)
    return _convolution(node) if found == "conv" else found


def _convolution(node: NodeWork) -> str:
    """Which convolution it is.

    ``channels`` holds the input channels of one group and the output channels. The input's channels are not among the
    figures: its size tells whether there is one for each output channel (depthwise) or one in all (a grey image).
    """
    if node.channels is None or not node.elements or node.macs is None:
        return "conv_dense"
    per_group, outputs = node.channels
    if per_group == 1 and outputs > 1:
        return "conv_depthwise" if _input_elements(node) >= node.elements * 0.8 else "conv_dense"
    kernel = node.macs / (node.elements * per_group)
    return "conv_1x1" if round(kernel) <= 1 else "conv_dense"


def _input_elements(node: NodeWork) -> float:
    """Elements of the activation read, told from its bytes; infinite where they are not known."""
    width = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1}.get(node.dtype, 4)
    size = next(iter(node.reads.values()), None)
    return math.inf if size is None else size / width
