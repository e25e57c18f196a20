"""A float model as a quantised one (QDQ), calibrated on real inputs, by onnxruntime's own quantiser.

Nothing here judges whether the result is good enough: that is the accuracy gate's, on inputs held back from
calibration (see :mod:`ort_metainfer.rewrites.sampling`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx.version_converter
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType

from ort_metainfer.errors import InputsError, ModelError
from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.files import EXTERNAL_ABOVE_BYTES, Rewritten, drop_unused_domains, open_model, save

__all__ = ["SCHEMES", "Recipe", "quantise"]

SCHEMES: Mapping[str, tuple[Any, Any]] = {
    "u8s8": (QuantType.QUInt8, QuantType.QInt8),
    "s8s8": (QuantType.QInt8, QuantType.QInt8),
    "a16w8": (QuantType.QUInt16, QuantType.QInt8),
}
"""Scheme -> types of activations and weights."""

CALIBRATIONS: Mapping[str, Any] = {
    "minmax": CalibrationMethod.MinMax,
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
}

OLDEST_OPSET = 13
"""Quantisation per channel needs the attribute ``axis``, which QuantizeLinear has from this opset on."""

Feed = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Recipe:
    """How to quantise.

    Attributes:
        scheme: one of ``SCHEMES``: ``u8s8`` (activations in 8 bits, what x86 CPUs are quick with), ``s8s8`` (both
            symmetric, what TensorRT wants), ``a16w8`` (activations in 16 bits: nearer to float, NPUs only).
        per_channel: a scale for each output channel of a weight, in place of one for all.
        calibration: how a tensor's range follows from what was seen: ``minmax``, ``entropy`` or ``percentile``.
        flavour: ``plain``, or ``qnn``: prepared and typed as Qualcomm's NPU wants it.
        operators: operators to quantise; empty: all that can be.
        exclude_operators: operators left in float.
        exclude_nodes: nodes left in float, by name.

    Raises:
        ModelError: a value that there is not.
    """

    scheme: str = "u8s8"
    per_channel: bool = True
    calibration: str = "minmax"
    flavour: Literal["plain", "qnn"] = "plain"
    operators: tuple[str, ...] = ()
    exclude_operators: tuple[str, ...] = ()
    exclude_nodes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        choices = {"scheme": SCHEMES, "calibration": CALIBRATIONS, "flavour": ("plain", "qnn")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ModelError(f"quantisation {name} must be one of {', '.join(allowed)}, got {getattr(self, name)}")
        for name in ("operators", "exclude_operators", "exclude_nodes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {
            name: list(getattr(self, name)) for name in ("operators", "exclude_operators", "exclude_nodes")
        }


def quantise(model: str | os.PathLike[str], feeds: Sequence[Feed], target: Path, recipe: Recipe) -> Rewritten:
    """Write ``model`` with QuantizeLinear and DequantizeLinear around what ``recipe`` says.

    Args:
        model: the float model's file.
        feeds: real inputs to calibrate on.
        target: file to write.
        recipe: how.

    Raises:
        ModelError: the model cannot be read, is quantised already, must not be rewritten, or the quantiser refuses it.
        InputsError: there are no feeds, or the model does not run with them.
    """
    label = f"model {os.fspath(model)}"
    if not feeds:
        raise InputsError(f"{label} cannot be quantised without real inputs to calibrate on: give some")
    proto, graph = open_model(model)
    _check(graph, label)
    _check_names(proto, recipe, label)
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        prepared = _prepared(proto, graph, Path(folder), recipe, label)
        _check_feeds(prepared, feeds, label)
        quantised = _quantised(prepared, feeds, Path(folder) / "quantised.onnx", recipe, graph, label)
    onnx.helper.set_model_props(quantised, metadata)
    drop_unused_domains(quantised)
    save(quantised, target, graph.weight_bytes)
    return Rewritten(target, True, _notes(quantised))


def _check(graph: Graph, label: str) -> None:
    if graph.quantisation != "none":
        raise ModelError(f"{label} is quantised already ({graph.quantisation}); give the float model")
    if graph.weight_bytes > EXTERNAL_ABOVE_BYTES:
        opset = graph.opsets.get("ai.onnx", 0)
        if opset < OLDEST_OPSET:
            raise ModelError(f"{label} is of opset {opset} and too large to be converted; export it with opset 17")


def _check_names(proto: Any, recipe: Recipe, label: str) -> None:
    nodes = {node.name for node in proto.graph.node}
    stray = [name for name in recipe.exclude_nodes if name not in nodes]
    if stray:
        raise ModelError(f"{label} has no node named {stray[0]!r}, which is to be left in float")


def _prepared(proto: Any, graph: Graph, folder: Path, recipe: Recipe, label: str) -> Path:
    """The model as the quantiser wants it: a recent opset, constants folded, shapes inferred, batch norms fused."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    plain, prepared = folder / "plain.onnx", folder / "prepared.onnx"
    try:
        if graph.opsets.get("ai.onnx", OLDEST_OPSET) < OLDEST_OPSET:
            proto = onnx.version_converter.convert_version(proto, OLDEST_OPSET)
        del proto.metadata_props[:]  # qnn_preprocess_model of onnxruntime 1.32 raises TypeError over any
        save(proto, plain, graph.weight_bytes)
        large = graph.weight_bytes > EXTERNAL_ABOVE_BYTES
        quant_pre_process(
            str(_fused_for_qnn(plain, large) if recipe.flavour == "qnn" else plain),
            str(prepared),
            skip_symbolic_shape=True,  # it trips over exporters' shape arithmetic, and fixed shapes do not need it
            save_as_external_data=large,
            all_tensors_to_one_file=large,
        )
        return prepared
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{label} cannot be prepared for quantisation: {_line(error)}") from error


def _fused_for_qnn(plain: Path, large: bool) -> Path:
    """Operators fused as the NPU has them; the file itself where there was nothing to do."""
    from onnxruntime.quantization.execution_providers.qnn import qnn_preprocess_model

    fused = plain.with_name("fused.onnx")
    changed = qnn_preprocess_model(str(plain), str(fused), save_as_external_data=large, all_tensors_to_one_file=large)
    return fused if changed else plain


def _check_feeds(prepared: Path, feeds: Sequence[Feed], label: str) -> None:
    """That every feed runs: the quantiser's own message for one that does not names neither."""
    from ort_metainfer.options import open_session
    from ort_metainfer.problem import SessionSpec
    from ort_metainfer.strategy import Strategy

    session = open_session(str(prepared), SessionSpec(providers=(("CPUExecutionProvider", {}),)), Strategy())
    for number, feed in enumerate(feeds):
        try:
            session.run(None, dict(feed))
        except Exception as error:
            raise InputsError(f"{label} refuses input {number}: {_line(error)}") from error


class _Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime ships no types
    """Feeds, one at a time, as the calibrator asks for them."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._feeds: Iterator[Feed] = iter(feeds)

    def get_next(self) -> Any:
        """The next feed; None where there is none left."""
        feed = next(self._feeds, None)
        return None if feed is None else dict(feed)


def _quantised(prepared: Path, feeds: Sequence[Feed], target: Path, recipe: Recipe, graph: Graph, label: str) -> Any:
    """The quantised ModelProto, its weights loaded."""
    from onnxruntime.quantization import quantize

    try:
        quantize(str(prepared), str(target), _config(prepared, feeds, recipe, graph.weight_bytes))
    except Exception as error:
        raise ModelError(f"{label} cannot be quantised: {_line(error)}") from error
    return onnx.load(str(target))


def _config(prepared: Path, feeds: Sequence[Feed], recipe: Recipe, weight_bytes: int) -> Any:
    from onnxruntime.quantization import StaticQuantConfig
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

    activations, weights = SCHEMES[recipe.scheme]
    symmetric = recipe.scheme == "s8s8"
    common: dict[str, Any] = {
        "calibrate_method": CALIBRATIONS[recipe.calibration],
        "activation_type": activations,
        "weight_type": weights,
        "per_channel": recipe.per_channel,
        "op_types_to_quantize": _operators(prepared, recipe),
        "nodes_to_exclude": list(recipe.exclude_nodes),
    }
    if recipe.flavour == "qnn":
        config = get_qnn_qdq_config(str(prepared), _Reader(feeds), activation_symmetric=symmetric, **common)
    else:
        extra = {"ActivationSymmetric": symmetric, "WeightSymmetric": True}
        config = StaticQuantConfig(_Reader(feeds), extra_options=extra, **common)
    config.use_external_data_format = weight_bytes > EXTERNAL_ABOVE_BYTES
    return config


def _operators(prepared: Path, recipe: Recipe) -> list[str]:
    """Operators to quantise: those asked for, or all of the model that the quantiser knows, less the excluded."""
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    there = {node.op_type for node in onnx.load(str(prepared), load_external_data=False).graph.node}
    known = there & ({*QDQRegistry, *QLinearOpsRegistry} if recipe.flavour == "plain" else there)
    wanted = known & set(recipe.operators) if recipe.operators else known
    left = sorted(wanted - set(recipe.exclude_operators))
    if not left:
        raise ModelError("it holds no operator that is to be quantised")
    return left


def _notes(quantised: Any) -> tuple[str, ...]:
    count = sum(node.op_type == "QuantizeLinear" for node in quantised.graph.node)
    return (f"{count} tensors are quantised in {len(quantised.graph.node)} nodes",)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
