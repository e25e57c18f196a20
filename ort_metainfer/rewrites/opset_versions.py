"""What an operator of one opset is in another: the same, the same respelled, or something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ort_metainfer.rewrites.building import Builder
from ort_metainfer.rewrites.patterns import attribute, axes_of, constant, constant_size, dims, dtype, rank

__all__ = ["Verdict", "verdict_on"]

_TYPES_ONLY = """
Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh BitShift Cast Ceil Celu Clip Compress Concat
ConcatFromSequence Constant ConstantOfShape Conv ConvInteger ConvTranspose Cos Cosh CumSum DepthToSpace Det
Div DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU Gather GatherElements
GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual HardSigmoid HardSwish Identity If
InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual Log Loop
LpNormalization MatMul MatMulInteger Max MaxPool MeanVarianceNormalization Mean Min Mish Mod Mul Neg
NonMaxSuppression NonZero Not OneHot Or PRelu Pad Pow QLinearConv QLinearMatMul RNN RandomNormal
RandomNormalLike RandomUniform RandomUniformLike Range Reciprocal Relu Reshape ReverseSequence Round Scan
ScatterElements ScatterND Selu SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert
SequenceLength Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softplus Softsign SpaceToDepth SplitToSequence
Sqrt Sub Sum Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu Unique Where Xor
"""
"""Operators whose versions from 11 on differ in types, and in attributes whose default is what they did before."""

_TYPELESS = ("Cast", "Constant", "Identity", "If", "Loop", "Scan")

_REDUCTIONS = (
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
)

Verdict = str | Callable[[Builder], Any] | None
"""Why a node cannot be converted, how to make its replacement, or None: as it is."""


def _schema(operator: str, opset: int) -> Any:
    import onnx.defs

    try:
        return onnx.defs.get_schema(operator, opset, "")
    except onnx.defs.SchemaError:
        return None


def verdict_on(node: Any, source: int, target: int) -> Verdict:
    """What to do with a node of the ONNX domain, its opset changed from ``source`` to ``target``."""
    before, after = _schema(node.op_type, source), _schema(node.op_type, target)
    if node.op_type not in _TYPELESS and any(dtype(value) == "DOUBLE" for value in node.outputs):
        return f"{node.op_type} of DOUBLE, which onnxruntime computes in some versions only"
    if before is None:
        return f"{node.op_type} is not in opset {source}"
    if after is None or after.deprecated:
        return f"{node.op_type} is not in opset {target}"
    if before.since_version == after.since_version:
        return None
    unknown = _unknown_type(node, after)
    if unknown is not None:
        return f"{node.op_type} does not take {unknown} in version {after.since_version}"
    special = _SPECIAL.get(node.op_type)
    if special is not None:
        return special(node, before.since_version, after.since_version)
    if node.op_type in _REDUCTIONS:
        return _axes(node, 18, before.since_version, after.since_version)
    if node.op_type not in _TYPES_ONLY.split():
        return f"{node.op_type} means something else in opset {target}"
    return _fits(node, before, after)


def _unknown_type(node: Any, after: Any) -> str | None:
    """A type among inputs and outputs that a version of the operator does not know."""
    for values, formal in ((node.inputs, after.inputs), (node.outputs, after.outputs)):
        for place, value in enumerate(values):
            kind = dtype(value)
            if kind is None or not formal:
                continue
            known = formal[min(place, len(formal) - 1)].types
            if f"tensor({kind.lower()})" not in known and any(name.startswith("tensor(") for name in known):
                return kind
    return None


def _fits(node: Any, before: Any, after: Any) -> Verdict:
    """Why a node is none of another version of its operator; attributes that say the default are left out there."""
    strange = [name for name in node.attributes if name not in after.attributes]
    said = [name for name in strange if not _is_default(node, name, before)]
    if said:
        return f"{node.op_type} has no {said[0]} in version {after.since_version}"
    if len(node.inputs) > after.max_input or len(node.outputs) > after.max_output:
        return f"{node.op_type} has fewer inputs or outputs in version {after.since_version}"
    for name in set(before.attributes) & set(after.attributes) - set(node.attributes):
        if before.attributes[name].default_value != after.attributes[name].default_value:
            return f"{node.op_type} has another default of {name} in version {after.since_version}"
    if not strange:
        return None
    return lambda make: make.many(node.op_type, *node.inputs, count=len(node.outputs), **_rest(node, *strange))


def _is_default(node: Any, name: str, schema: Any) -> bool:
    import onnx.helper

    default = schema.attributes[name].default_value if name in schema.attributes else None
    return bool(
        default is not None and default.name and onnx.helper.get_attribute_value(default) == attribute(node, name)
    )


def _rest(node: Any, *without: str) -> dict[str, Any]:
    return {name: attribute(node, name) for name in node.attributes if name not in without}


def _axes(node: Any, since: int, before: int, after: int) -> Verdict:
    """Axes become an input, or an attribute again."""
    if (before < since) == (after < since):
        return None
    has = len(node.inputs) > 1 and node.inputs[1] is not None
    axes = axes_of(node, default=[])
    if axes is None:
        return f"{node.op_type} has axes that are not constant"
    if attribute(node, "noop_with_empty_axes", 0) and not axes:
        return f"{node.op_type} without axes means something else"
    if not has and "axes" not in node.attributes:
        return None

    def make(builder: Builder) -> Any:
        rest = _rest(node, "axes", "noop_with_empty_axes")
        if builder.opset < since:
            return builder(node.op_type, node.inputs[0], axes=axes or None, **rest)
        return builder(node.op_type, node.inputs[0], np.asarray(axes, np.int64), **rest)

    return make


def _since_13(node: Any, before: int, after: int) -> Verdict:
    return _axes(node, 13, before, after)


def _split(node: Any, before: int, after: int) -> Verdict:
    """The sizes become an input, or an attribute again; number of parts are an attribute from 18 on."""
    sizes = attribute(node, "split")
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        array = constant(node.inputs[1])
        if array is None:
            return "Split has sizes that are not constant" if after < 13 else None
        sizes = [int(size) for size in array]
    if sizes is None and after >= 18:
        return _parts(node)
    if sizes is None:  # a rest that is smaller is known from 18 on only
        return _parts(node) if before >= 18 else None
    given = sizes

    def make(builder: Builder) -> list[Any]:
        more = {"split": given} if builder.opset < 13 else {}
        inputs = [] if builder.opset < 13 else [np.asarray(given, np.int64)]
        rest = _rest(node, "split", "num_outputs")
        return builder.many("Split", node.inputs[0], *inputs, count=len(node.outputs), **rest, **more)

    return make


def _parts(node: Any) -> Verdict:
    """Equal parts: their size must be known, to be sure that they are equal."""
    known, axis = dims(node.inputs[0]), attribute(node, "axis", 0)
    size = None if known is None else known[axis]
    if size is None or size % len(node.outputs):
        return "Split into parts of unknown size"
    sizes = [size // len(node.outputs)] * len(node.outputs)
    return lambda builder: (
        builder.split(node.inputs[0], sizes, axis) if len(sizes) > 1 else builder("Identity", node.inputs[0])
    )


def _softmax(node: Any, before: int, after: int) -> Verdict:
    """Below 13 all axes from the given one on are taken together: the same only for the last."""
    if (before < 13) == (after < 13):
        return None
    axis, size = attribute(node, "axis", 1 if before < 13 else -1), rank(node.inputs[0])
    if axis != -1 and (size is None or axis % size != size - 1):
        return f"{node.op_type} over another axis than the last means something else"
    return lambda builder: builder(node.op_type, node.inputs[0], axis=-1)


def _dropout(node: Any, before: int, after: int) -> Verdict:
    """Nothing is dropped in inference, whatever the ratio."""
    used = any(value.uses() or value.is_graph_output() for value in node.outputs[1:])
    if used or (len(node.inputs) > 2 and node.inputs[2] is not None):
        return "Dropout whose mask or training mode is used"
    return lambda builder: builder("Dropout", node.inputs[0])


def _resize(node: Any, before: int, after: int) -> Verdict:
    """Later versions do more, and what they share is the same but for one mode that is gone."""
    if after < before and not (before >= 13 and after >= 13):
        return "Resize is not converted down below opset 13"
    mode = attribute(node, "coordinate_transformation_mode", "half_pixel")
    if mode == "tf_half_pixel_for_nn":
        return "Resize has no tf_half_pixel_for_nn in later opsets"
    return _fits(node, _schema("Resize", before), _schema("Resize", after))


def _batch_norm(node: Any, before: int, after: int) -> Verdict:
    used = any(value.uses() or value.is_graph_output() for value in node.outputs[1:])
    if used or attribute(node, "training_mode", 0):
        return "BatchNormalization that trains"
    return lambda builder: builder("BatchNormalization", *node.inputs, **_rest(node, "training_mode"))


def _average_pool(node: Any, before: int, after: int) -> Verdict:
    if attribute(node, "ceil_mode", 0):
        return "AveragePool with ceil_mode is defined otherwise"
    return _fits(node, _schema("AveragePool", before), _schema("AveragePool", after))


def _quantised(node: Any, before: int, after: int) -> Verdict:
    """One scale an axis is known from 13 on."""
    if min(before, after) < 13 and (constant_size(node.inputs[1]) != 1 or rank(node.inputs[1]) != 0):
        return f"{node.op_type} whose scale is not one constant number"
    if min(before, after) < 13:
        return lambda builder: builder(node.op_type, *node.inputs, **_rest(node, "axis"))
    return _fits(node, _schema(node.op_type, before), _schema(node.op_type, after))


_SPECIAL: Mapping[str, Callable[[Any, int, int], Verdict]] = {
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "DequantizeLinear": _quantised,
    "Dropout": _dropout,
    "Hardmax": _softmax,
    "LogSoftmax": _softmax,
    "QuantizeLinear": _quantised,
    "ReduceSum": _since_13,
    "Resize": _resize,
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _since_13,
    "Unsqueeze": _since_13,
}
