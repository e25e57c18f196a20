"""onnxruntime's own graph optimisers by the names that switch them off, one by one, where they hurt.

Not a rewrite: a strategy's ``session_config`` holds :data:`CONFIG_KEY` with the names, which says the same as
InferenceSession's keyword ``disabled_optimizers`` (tested), and unlike that stands in SessionOptions. They are those of
onnxruntime 1.32 on its CPU provider: of the transformers as its verbose log lists them, of the rules as switching them
off changes the optimised graph (both are tested). onnxruntime ignores a name it does not know.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ort_metainfer.errors import StrategyError

__all__ = [
    "CONFIG_KEY",
    "KEPT",
    "ORT_OPTIMIZERS",
    "SOURCES",
    "SUSPECTS",
    "OrtOptimizer",
    "also_disabling",
    "disabling",
    "suspects_in",
]

CONFIG_KEY = "optimization.disable_specified_optimizers"
"""Session config entry: names, separated by semicolons."""

SOURCES = (
    "https://onnxruntime.ai/docs/performance/model-optimizations/graph-optimizations.html",
    "https://github.com/microsoft/onnxruntime/blob/main/include/onnxruntime/core/session/"
    "onnxruntime_session_options_config_keys.h",
    "https://github.com/microsoft/onnxruntime/blob/main/onnxruntime/core/optimizer/graph_transformer_utils.cc",
)


@dataclass(frozen=True)
class OrtOptimizer:
    """One of them.

    Attributes:
        name: as :data:`CONFIG_KEY` takes it.
        level: graph optimisation level from which on it runs: ``basic``, ``extended``, ``layout`` or ``all``.
        does: what, in a few words.
        rule: whether it is a rule of a group, which does not appear in the log by itself.
    """

    name: str
    level: str
    does: str
    rule: bool = False


_BASIC = {
    "DoubleQDQPairsRemover": "removes quantised pairs in a row",
    "ConstantSharing": "keeps equal scalar constants once",
    "CommonSubexpressionElimination": "computes equal nodes once",
    "ConstantFolding": "computes what depends on constants alone",
    "MatMulAddFusion": "MatMul and Add into Gemm",
    "ReshapeFusion": "a shape computed for Reshape into a constant",
    "SliceConcatToSpaceToDepthFusion": "Slices and Concat into SpaceToDepth",
    "GeluFusionL1": "composed GELU into Gelu",
    "LayerNormFusionL1": "composed layer normalisation into LayerNormalization",
    "QDQPropagationTransformer": "moves quantised pairs through Reshape, Transpose and the like",
    "WeightBiasQuantization": "quantises weights and biases beside quantised inputs",
    "EnsureUniqueDQForNodeUnit": "a DequantizeLinear for each consumer",
    "WhereDummyDq": "a DequantizeLinear for a constant operand of Where",
    "TransposeOptimizer": "moves and cancels Transposes",
}
_RULES = {
    "EliminateIdentity": "removes Identity",
    "EliminateDropout": "removes Dropout",
    "ExpandElimination": "removes Expand that does nothing",
    "CastElimination": "removes Cast that does nothing",
    "PreShapeNodeElimination": "removes Cast before Shape",
    "NoopElimination": "removes Add of 0, Mul by 1 and the like",
    "DivMulFusion": "1 / x * y into y / x",
    "FuseReluClip": "Relu and Clip into Clip",
    "GemmSumFusion": "Gemm and Sum into Gemm",
    "GemmTransposeFusion": "Transpose into Gemm",
    "NotWhereFusion": "Not into Where",
    "ConvAddFusion": "Add into Conv",
    "ConvMulFusion": "Mul into Conv",
    "ConvBNFusion": "BatchNormalization into Conv",
    "Pad_Fusion": "Pad into Conv and pools",
    "MatMul_BatchNormalization_Fusion": "BatchNormalization into MatMul",
    "ReluQuantRewrite": "removes Relu before QuantizeLinear that saturates",
}
_EXTENDED = {
    "TransposeOptimizer_CPUExecutionProvider": "moves and cancels Transposes, as the CPU's kernels like them",
    "QDQS8ToU8Transformer": "signed into unsigned quantised values, where the processor wants that",
    "QDQSelectorActionTransformer": "quantised groups into quantised kernels",
    "GemmActivationFusion": "an activation into Gemm",
    "MatMulIntegerToFloatFusion": "MatMulInteger and its scales into one",
    "DynamicQuantizeMatMulFusion": "dynamic quantisation and its product into one",
    "ConvActivationFusion": "an activation into Conv",
    "GeluFusionL2": "composed GELU into Gelu",
    "LayerNormFusionL2": "composed layer normalisation into LayerNormalization",
    "SimplifiedLayerNormFusion": "composed RMS normalisation into one",
    "AttentionFusion": "attention into Attention",
    "EmbedLayerNormFusion": "embeddings and their norm into one",
    "GatherSliceToSplitFusion": "Gathers and Slices of one tensor into Split",
    "GatherToSliceFusion": "Gather of a range into Slice",
    "MatmulTransposeFusion": "Transpose into MatMul",
    "BiasGeluFusion": "a bias into Gelu",
    "GroupQueryAttentionFusion": "attention with shared keys into one",
    "SkipLayerNormFusion": "a sum into LayerNormalization",
    "BiasSkipLayerNormFusion": "a bias into SkipLayerNormalization",
    "FastGeluFusion": "composed GELU with Tanh into FastGelu",
    "QuickGeluFusion": "x * sigmoid(a x) into QuickGelu",
    "SwiGluFusion": "gated units into one",
    "BiasSoftmaxFusion": "a bias into Softmax",
    "BiasDropoutFusion": "a bias into Dropout",
    "MatMulScaleFusion": "a constant factor into MatMul",
    "MatMulActivationFusion": "an activation into MatMul",
    "MatMulNBitsFusion": "what is around products with few-bit weights into them",
    "GroupQueryAttentionPreNormFusion": "norms of queries and keys into attention",
    "QDQFinalCleanupTransformer": "removes quantised pairs that are left",
}
_LAYOUT = {
    "NchwcTransformer": "convolutions in blocks of channels",
    "NhwcTransformer": "quantised and half-precision convolutions with channels last",
    "ConvAddActivationFusion": "a sum and an activation into Conv",
}
_ALL = {"FuseFp16InitializerToFp32NodeTransformer": "Casts of half-precision weights into them"}

ORT_OPTIMIZERS: tuple[OrtOptimizer, ...] = tuple(
    OrtOptimizer(name, level, does, rule)
    for level, rule, group in (
        ("basic", False, _BASIC),
        ("basic", True, _RULES),
        ("extended", False, _EXTENDED),
        ("layout", False, _LAYOUT),
        ("all", False, _ALL),
    )
    for name, does in group.items()
)
"""All that can be switched off, in the order of their levels."""

KEPT: tuple[str, ...] = (
    "FreeDimensionOverrideTransformer",
    "Level1_RuleBasedTransformer",
    "Level2_RuleBasedTransformer",
)
"""Not to be switched off: the first does what the caller asked for, the others are groups of rules."""

SUSPECTS: Mapping[str, str] = {
    "NchwcTransformer": "reordering costs more than it saves where convolutions are few, small or of few channels",
    "TransposeOptimizer": "may move a Transpose to where the tensor is larger",
    "TransposeOptimizer_CPUExecutionProvider": "may move a Transpose to where the tensor is larger",
    "MatMulAddFusion": "puts Reshapes around Gemm, and keeps what would fuse with the Add apart",
    "MatmulTransposeFusion": "a product with a transposed factor packs it anew each time",
    "ConvAddActivationFusion": "waits for a second operand that could have been added in parallel",
    "AttentionFusion": "results far off were seen (microsoft/onnxruntime#18945)",
    "QDQSelectorActionTransformer": "accuracy lost by optimising alone (microsoft/onnxruntime#11576); weights in few "
    "bits behind DequantizeLinear are multiplied with activations in int8",
    "ConstantFolding": "may make large tensors of small ones, which are then read from memory",
    "CommonSubexpressionElimination": "keeps a value alive that was cheap to compute again",
}
"""Those that a search may try to switch off, and what they are suspected of; none has been measured to pay."""

CONCERNED: Mapping[str, tuple[str, ...]] = {
    "NchwcTransformer": ("Conv",),
    "TransposeOptimizer": ("Transpose",),
    "TransposeOptimizer_CPUExecutionProvider": ("Transpose",),
    "MatMulAddFusion": ("MatMul",),
    "MatmulTransposeFusion": ("Transpose",),
    "ConvAddActivationFusion": ("Conv",),
    "AttentionFusion": ("Softmax",),
    "QDQSelectorActionTransformer": ("DequantizeLinear",),
    "ConstantFolding": ("ConstantOfShape", "Expand", "Range", "Tile"),
    "CommonSubexpressionElimination": ("Gather", "Shape", "Slice", "Unsqueeze"),
}
"""Suspect -> operators; without any of them in a graph it has next to nothing to do there."""


def suspects_in(operators: Collection[str]) -> tuple[str, ...]:
    """The suspects that have something to do in a graph of these operators."""
    return tuple(name for name in SUSPECTS if not set(CONCERNED[name]).isdisjoint(operators))


def also_disabling(config: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """A strategy's ``session_config`` that switches these off, beside those that it switches off already.

    Raises:
        StrategyError: see :func:`disabling`.
    """
    before = [name for name in config.get(CONFIG_KEY, "").split(";") if name]
    return {**config, **disabling((*before, *names))}


def disabling(names: Iterable[str]) -> dict[str, str]:
    """The ``session_config`` that switches these off; empty for none.

    Raises:
        StrategyError: one that onnxruntime does not have, or that must stay on.
    """
    wanted = sorted(set(names))
    known = {optimizer.name for optimizer in ORT_OPTIMIZERS}
    for name in wanted:
        if name not in known:
            why = "must stay on" if name in KEPT else "is no optimiser of onnxruntime"
            raise StrategyError(f"{name!r} {why}; what can be switched off: {', '.join(sorted(known))}")
    return {CONFIG_KEY: ";".join(wanted)} if wanted else {}
