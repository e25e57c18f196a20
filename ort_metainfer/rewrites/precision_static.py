"""Activations and weights in 8 bits, ranges fixed beforehand on real inputs; written as QuantizeLinear pairs (QDQ)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from ort_metainfer.errors import RewriteError
from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Context, Outcome, Parameter, Rewrite
from ort_metainfer.rewrites.calibration import METHODS, Ranges, activation_ranges
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.islands import LIGHT, PRODUCTS, Island, island_of
from ort_metainfer.rewrites.observing import question
from ort_metainfer.rewrites.products import CHOICE
from ort_metainfer.rewrites.quantiser import (
    LARGEST_BYTES,
    lift_constants,
    load_whole,
    name_nodes,
    optimised,
    quiet,
    restore,
)

__all__ = ["REWRITES", "Int8Static"]

MOST_SITES = 100
OLDEST_OPSET, CHANNELS_OPSET = 10, 13
"""QLinearConv, which onnxruntime runs in the end, came with the first; QuantizeLinear's axis with the second, and
onnxruntime's own QuantizeLinear has it in any opset."""

OUTPUT_TYPE_OPSET = 21
LATEST_KERNEL_OPSET, LATEST_KERNEL_RELEASE = 23, (1, 24)

SCHEMES = ("u8s8", "s8s8", "a16w8")


class Int8Static(Rewrite):
    """Convolutions and products, and what lies between them, with QuantizeLinear and DequantizeLinear around them.

    Opsets below 13 get onnxruntime's own of those two (domain com.microsoft).
    """

    name = "int8-static"
    dimension = "precision"
    promise = "lossy"
    needs = ("feeds",)
    providers = (
        "CPUExecutionProvider",
        "CUDAExecutionProvider",
        "DmlExecutionProvider",
        "OpenVINOExecutionProvider",
        "QNNExecutionProvider",
    )
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "scheme": Parameter(str, "u8s8", "types of activations and weights", values=SCHEMES),
        "per_channel": Parameter(bool, True, "a scale for each output channel of a weight, in place of one for all"),
        "calibration": Parameter(str, "minmax", "how a range follows from what was seen", values=METHODS),
        "percentile": Parameter(
            float, 99.99, "share of values inside the range, for that calibration", numbers=(50.0, 100.0)
        ),
        "symmetric": Parameter(bool, False, "activations' ranges around zero (those of s8s8 always are)"),
        "reduce_range": Parameter(bool, False, "weights in 7 bits: x86 processors without VNNI saturate with 8"),
        "between": Parameter(bool, True, "what lies between products (Add, pooling, Concat) stays in 8 bits too"),
        "float_outputs": Parameter(bool, False, "products give float32: their outputs are not rounded again"),
        "fold": Parameter(bool, True, "onnxruntime's basic optimisations first: batch norms go into weights"),
        **CHOICE,
    }
    evidence = (
        "U8S8 per channel on two cores of an AMD EPYC with VNNI: 1.71 on magika, 1.67 on a 1-D U-Net, 1.13 on a "
        "text detector, 1.05 on a small classifier, 0.66 on a network with HardSwish between its convolutions; S8S8 is "
        "slower than float32 on x86"
    )
    sources = ("https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html",)

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        """Nothing to quantise, quantised already, nothing to calibrate on, or a form that the quantiser cannot take."""
        if not graph.count(*PRODUCTS):
            return f"the model has no {', '.join(PRODUCTS)}"
        if graph.quantisation != "none":
            return f"the model is quantised already ({graph.quantisation})"
        if graph.ir_version < 4:
            return f"the model is of IR version {graph.ir_version}, where every weight is an input; this needs 4"
        if graph.weight_bytes > LARGEST_BYTES:
            return f"the model has {graph.weight_bytes / 1e9:.1f} GB of weights, the quantiser takes less than 2"
        if context is not None and not context.feeds:
            return "there are no inputs to calibrate on"
        return _too_old(graph.opsets.get("ai.onnx", 0))

    def prepared(self, file: Path, folder: Path, parameters: Mapping[str, Any]) -> Path:
        """The float model that node names refer to: optimised, and every node with a name."""
        fold = bool(parameters.get("fold", self.parameters["fold"].default))
        return prepare(file, load_whole(file), folder, fold)[1]

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Fold, calibrate, choose what is quantised, and have onnxruntime's quantiser do it."""
        source = draft.file()
        original = load_whole(source)
        opset = next((given.version for given in original.opset_import if given.domain in ("", "ai.onnx")), 0)
        now = replace(
            context.graph, opsets={**context.graph.opsets, "ai.onnx": opset}
        )  # an earlier rewrite may raise it
        reason = self.objection(now, context) or _unsafe(opset, parameters["scheme"], context)
        if reason is not None:
            return Outcome(0, notes=(reason,))
        prepared, file = prepare(source, original, context.folder, parameters["fold"])
        ranges = activation_ranges(
            file,
            (*PRODUCTS, *LIGHT),
            context.feeds,
            parameters["calibration"],
            parameters["percentile"],
            context.folder,
            context.deadline,
        )
        island = island_of(prepared.graph, parameters, ranges)
        notes = [f"there is no node {name}" for name in _stray(original, prepared, parameters)]
        if not island.products:
            notes += list(dict.fromkeys(site.reason for site in island.sites if site.reason))[:3]
            return Outcome(0, island.sites[:MOST_SITES], tuple(notes or ["nothing that can be quantised"]))
        with quiet():
            result = _quantised(file, island, ranges, parameters)
        restore(result, original)
        target = context.folder / "int8-static.onnx"
        target.write_bytes(result.SerializeToString(deterministic=True))
        draft.take(target)
        figures = {"feeds": float(len(context.feeds)), "nodes in 8 bits": float(len(island.nodes))}
        return Outcome(len(island.products), island.sites[:MOST_SITES], tuple(notes), figures)


def _unsafe(opset: int, scheme: str, context: Context) -> str | None:
    """Why the CPU provider would not load the result; None where it would, or where another one runs it.

    onnxruntime 1.32 moves int8 pairs, makes uint8 of them, and forgets the attribute output_dtype that QuantizeLinear
    has since opset 21: it then refuses its own graph. 1.23.2 has no kernel for the QuantizeLinear of opset 23, 1.24.4
    has one.
    """
    on_cpu = context.device is None or context.device.provider == "CPUExecutionProvider"
    if on_cpu and opset >= LATEST_KERNEL_OPSET and _onnxruntime_release() < LATEST_KERNEL_RELEASE:
        return f"onnxruntime before 1.24 has no QuantizeLinear of opset {opset}; upgrade it"
    if scheme == "s8s8" and opset >= OUTPUT_TYPE_OPSET and on_cpu:
        return f"s8s8 in opset {opset}: onnxruntime's CPU provider does not always load it; use u8s8"
    return None


def _onnxruntime_release() -> tuple[int, ...]:
    import onnxruntime
    from packaging.version import Version

    return Version(onnxruntime.__version__).release


def _too_old(opset: int) -> str | None:
    if opset < OLDEST_OPSET:
        return f"the model is of opset {opset}, which has no integer convolution; this needs {OLDEST_OPSET}"
    return None


def prepare(source: Path, original: Any, folder: Path, fold: bool) -> tuple[Any, Path]:
    """The model as the quantiser wants it, and a file of it, kept for the next time.

    Args:
        source: its file.
        original: its content.
        folder: where the prepared model goes.
        fold: whether onnxruntime's basic optimisations are applied.

    Raises:
        RewriteError: onnxruntime does not take the model.
    """
    file = folder / f"prepared-{question(source, ('prepared', str(fold)), ())}.onnx"
    if file.exists():
        return load_whole(file), file
    try:
        prepared = optimised(original, folder) if fold else _copy(original)
    except Exception as error:  # onnxruntime's many classes
        raise RewriteError(f"{source}: cannot be prepared for quantisation: {error}") from error
    if not fold:
        lift_constants(prepared.graph)
    name_nodes(prepared.graph)
    file.write_bytes(prepared.SerializeToString(deterministic=True))
    return prepared, file


def _copy(model: Any) -> Any:
    twin = type(model)()
    twin.CopyFrom(model)
    return twin


def _stray(original: Any, prepared: Any, parameters: Mapping[str, Any]) -> list[str]:
    nodes = (*original.graph.node, *prepared.graph.node)
    there = {name for node in nodes for name in (node.name, *node.output)}
    return [name for name in dict.fromkeys((*parameters["exclude"], *parameters["only"])) if name not in there]


def _quantised(file: Path, island: Island, ranges: Ranges, parameters: Mapping[str, Any]) -> Any:
    """The quantised ModelProto."""
    import numpy as np
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
    from onnxruntime.quantization.quant_utils import load_model_with_shape_infer

    activations = {"u8s8": QuantType.QUInt8, "s8s8": QuantType.QInt8, "a16w8": QuantType.QUInt16}
    seen = {name: TensorData(lowest=np.float32(low), highest=np.float32(high)) for name, (low, high) in ranges.items()}
    model = load_model_with_shape_infer(file)
    opset = next(given.version for given in model.opset_import if given.domain in ("", "ai.onnx"))
    needed = CHANNELS_OPSET if parameters["per_channel"] else OLDEST_OPSET
    options = {
        "ActivationSymmetric": parameters["symmetric"] or parameters["scheme"] == "s8s8",
        "WeightSymmetric": True,
        "UseQDQContribOps": opset < needed,
        "MatMulConstBOnly": True,
    }
    if parameters["float_outputs"]:
        options["OpTypesToExcludeOutputQuantization"] = list(PRODUCTS)
    quantiser = QDQQuantizer(
        model,
        parameters["per_channel"],
        parameters["reduce_range"],
        QuantType.QInt8,
        activations[parameters["scheme"]],
        TensorsData(CalibrationMethod.MinMax, seen),
        list(island.nodes),
        [],
        sorted({*PRODUCTS, *LIGHT}),
        options,
    )
    quantiser.quantize_model()
    return quantiser.model.model


REWRITES = (Int8Static(),)
