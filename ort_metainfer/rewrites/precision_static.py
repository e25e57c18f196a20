"""Activations and weights in 8 bits, ranges fixed beforehand on real inputs; written as QuantizeLinear pairs (QDQ)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from ort_metainfer.errors import RewriteError
from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Context, Outcome, Parameter, Rewrite
from ort_metainfer.rewrites.calibration import METHODS, Ranges, activation_ranges
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.islands import PRODUCTS, everything_of, island_of
from ort_metainfer.rewrites.observing import question
from ort_metainfer.rewrites.precision_writing import (
    CHANNELS_OPSET,
    QNN,
    known_operators,
    with_integer_operators,
    with_pairs,
)
from ort_metainfer.rewrites.products import CHOICE, refuse_stray_names
from ort_metainfer.rewrites.quantiser import (
    LARGEST_BYTES,
    fused_for_qnn,
    lift_constants,
    load_whole,
    name_nodes,
    optimised,
    restore,
)

__all__ = ["REWRITES", "Int8Operators", "Int8Static"]

MOST_SITES = 100
OLDEST_OPSET = 10
"""QLinearConv, which onnxruntime runs in the end, came with it."""

OUTPUT_TYPE_OPSET = 21
LATEST_KERNEL_OPSET, LATEST_KERNEL_RELEASE = 23, (1, 24)

SCHEMES = ("u8s8", "s8s8", "a16w8")
COVERAGES = ("products", "all", QNN)
PAIRS_ONLY = ("coverage", "float_outputs")
"""Parameters that say something of QuantizeLinear pairs only."""


class Int8Static(Rewrite):
    """Convolutions and products, and what lies between them, with QuantizeLinear and DequantizeLinear around them.

    Opsets below 13 get onnxruntime's own of those two (domain com.microsoft).
    """

    name = "int8-static"
    dimension = "precision"
    promise = "lossy"
    needs = ("feeds",)
    providers: ClassVar[tuple[str, ...]] = (
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
        "coverage": Parameter(
            str,
            "products",
            "products and what lies between them; all: every operator that the quantiser knows, for NPUs; qnn: as "
            "Qualcomm's NPU wants it",
            values=COVERAGES,
        ),
        "operators": Parameter(list, [], "operators that may be quantised; empty: all of the coverage"),
        "exclude_operators": Parameter(list, [], "operators left in float"),
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
        return prepare(file, load_whole(file), folder, {**self._defaults(), **parameters})[1]

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Fold, calibrate, choose what is quantised, and have onnxruntime's quantiser do it."""
        parameters = {**self._defaults(), **parameters}
        source = draft.file()
        original = load_whole(source)
        opset = next((given.version for given in original.opset_import if given.domain in ("", "ai.onnx")), 0)
        now = replace(
            context.graph, opsets={**context.graph.opsets, "ai.onnx": opset}
        )  # an earlier rewrite may raise it
        reason = self.objection(now, context) or _unsafe(opset, parameters["scheme"], context)
        reason = reason or self._lacks(opset, parameters)
        if reason is not None:
            return Outcome(0, notes=(reason,))
        prepared, file = prepare(source, original, context.folder, parameters)
        _check_names(self.name, original, prepared, parameters)
        operators = _operators(prepared, parameters)
        if not operators:
            return Outcome(0, notes=("it holds no operator that is to be quantised",))
        ranges = activation_ranges(
            file,
            operators,
            context.feeds,
            parameters["calibration"],
            parameters["percentile"],
            context.folder,
            context.deadline,
        )
        choose = island_of if parameters["coverage"] == "products" else everything_of
        island = choose(prepared.graph, {**parameters, "operators": operators}, ranges)
        if not island.products:
            notes = list(dict.fromkeys(site.reason for site in island.sites if site.reason))[:3]
            return Outcome(0, island.sites[:MOST_SITES], tuple(notes or ["nothing that can be quantised"]))
        try:
            result = self._write(file, island.nodes, operators, ranges, parameters)
        except Exception as error:  # noqa: BLE001 (1.23's raises KeyError and ValueError on graphs that 1.32's takes)
            return Outcome(0, notes=(f"onnxruntime's quantiser does not take it: {type(error).__name__}: {error}",))
        restore(result, original)
        target = context.folder / f"{self.name}.onnx"
        target.write_bytes(result.SerializeToString(deterministic=True))
        draft.take(target)
        figures = {"feeds": float(len(context.feeds)), "nodes in 8 bits": float(len(island.nodes))}
        return Outcome(len(island.products), island.sites[:MOST_SITES], figures=figures)

    def _lacks(self, opset: int, parameters: Mapping[str, Any]) -> str | None:
        """What the form written lacks in a model of that opset."""
        return None

    def _defaults(self) -> dict[str, Any]:
        """Of every parameter that writing looks at, those included that a strategy cannot set."""
        return {name: parameter.default for name, parameter in Int8Static.parameters.items()}

    def _write(
        self, file: Path, nodes: Sequence[str], operators: Sequence[str], ranges: Ranges, parameters: Mapping[str, Any]
    ) -> Any:
        return with_pairs(file, nodes, operators, ranges, parameters)


class Int8Operators(Int8Static):
    """The same in integer operators (QLinearConv, QLinearMatMul, QGemm and their like), with nothing left to fuse.

    onnxruntime makes these of the pairs by itself as it loads a model; here they stand in the file.
    """

    name = "int8-operators"
    providers = ("CPUExecutionProvider",)
    parameters: ClassVar[Mapping[str, Parameter]] = {
        **{name: Int8Static.parameters[name] for name in Int8Static.parameters if name not in PAIRS_ONLY},
        "scheme": Parameter(str, "u8s8", "types of activations and weights", values=("u8s8", "s8s8")),
    }
    evidence = (
        "never measured to pay: with onnxruntime 1.32 its results are those of int8-static, whose pairs are fused into "
        "the same kernels at the default graph level"
    )

    def _lacks(self, opset: int, parameters: Mapping[str, Any]) -> str | None:
        """A weight or addend that float nodes read too is dequantised for them: by channel, that takes opset 13."""
        if opset < CHANNELS_OPSET and parameters["per_channel"]:
            return f"scales by channel need opset {CHANNELS_OPSET}, not {opset}: convert-opset, or per_channel=false"
        return None

    def _write(
        self, file: Path, nodes: Sequence[str], operators: Sequence[str], ranges: Ranges, parameters: Mapping[str, Any]
    ) -> Any:
        return with_integer_operators(file, nodes, operators, ranges, parameters)


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


def prepare(source: Path, original: Any, folder: Path, parameters: Mapping[str, Any]) -> tuple[Any, Path]:
    """The model as the quantiser wants it, and a file of it, kept for the next time.

    Args:
        source: its file.
        original: its content.
        folder: where the prepared model goes.
        parameters: ``fold``: whether onnxruntime's basic optimisations are applied; ``coverage``: for ``qnn``,
            operators are fused as that NPU has them.

    Raises:
        RewriteError: onnxruntime does not take the model.
    """
    fold, for_qnn = bool(parameters["fold"]), parameters["coverage"] == QNN
    file = folder / f"prepared-{question(source, ('prepared', str(fold), str(for_qnn)), ())}.onnx"
    if file.exists():
        return load_whole(file), file
    try:
        given = fused_for_qnn(original, folder) if for_qnn else original
        prepared = optimised(given, folder) if fold else _copy(given)
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


def _check_names(rewrite: str, original: Any, prepared: Any, parameters: Mapping[str, Any]) -> None:
    """See :func:`ort_metainfer.rewrites.products.check_names`; a node may be called as before it was prepared, too."""
    nodes = (*original.graph.node, *prepared.graph.node)
    refuse_stray_names(rewrite, {name for node in nodes for name in (node.name, *node.output) if name}, parameters)


def _operators(prepared: Any, parameters: Mapping[str, Any]) -> list[str]:
    """Operators of the model that may be quantised, sorted."""
    there = {node.op_type for node in prepared.graph.node if node.domain in ("", "ai.onnx")}
    wanted = set(parameters["operators"] or there) - set(parameters["exclude_operators"])
    return [name for name in known_operators(parameters["coverage"], there) if name in wanted]


REWRITES = (Int8Static(), Int8Operators())
