"""Writing a quantised model with onnxruntime's own quantiser: as pairs around operators, or as integer operators.

What is quantised, and in which ranges, is settled before; here it is put into the quantiser's words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ort_metainfer.rewrites.calibration import Ranges
from ort_metainfer.rewrites.islands import LIGHT, PRODUCTS
from ort_metainfer.rewrites.quantiser import quiet

__all__ = ["known_operators", "with_integer_operators", "with_pairs"]

CHANNELS_OPSET, OLDEST_OPSET, WIDE_TYPES_OPSET = 13, 10, 21
"""QuantizeLinear has had ``axis`` since the first, is there since the second, takes 16 bits since the third;
onnxruntime's own (domain com.microsoft) has all of it in any opset."""

QNN = "qnn"


def known_operators(coverage: str, there: set[str]) -> list[str]:
    """Of the operators in a model, those that the quantiser quantises at a coverage (see ``int8-static``)."""
    from onnxruntime.quantization.execution_providers.qnn.quant_config import OP_TYPES_TO_EXCLUDE
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    if coverage == "products":
        return sorted(there & {*PRODUCTS, *LIGHT})
    return sorted(there - OP_TYPES_TO_EXCLUDE if coverage == QNN else there & {*QDQRegistry, *QLinearOpsRegistry})


def with_pairs(
    file: Path, nodes: Sequence[str], operators: Sequence[str], ranges: Ranges, parameters: Mapping[str, Any]
) -> Any:
    """A ModelProto with QuantizeLinear and DequantizeLinear around nodes.

    Args:
        file: the float model, every node with a name of its own.
        nodes: names of those that are quantised.
        operators: and their operators.
        ranges: of every activation among them.
        parameters: of ``int8-static``, complete.
    """
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    model, opset = _read(file)
    activations, weights = _types(parameters["scheme"])
    options: dict[str, Any] = {
        "ActivationSymmetric": _is_symmetric(parameters),
        "WeightSymmetric": True,
        "UseQDQContribOps": opset < _needed(parameters),
        "MatMulConstBOnly": parameters["coverage"] == "products",
    }
    if parameters["coverage"] == QNN:
        options |= _for_qnn(file, operators, parameters) | {"UseQDQContribOps": options["UseQDQContribOps"]}
    if parameters["float_outputs"]:
        options["OpTypesToExcludeOutputQuantization"] = list(PRODUCTS)
    with quiet():
        quantiser = QDQQuantizer(
            model,
            parameters["per_channel"],
            parameters["reduce_range"],
            weights,
            activations,
            _as_data(ranges),
            list(nodes),
            [],
            list(operators),
            options,
        )
        quantiser.quantize_model()
    return quantiser.model.model


def with_integer_operators(
    file: Path, nodes: Sequence[str], operators: Sequence[str], ranges: Ranges, parameters: Mapping[str, Any]
) -> Any:
    """A ModelProto with QLinearConv, QLinearMatMul and their like in the place of nodes; see :func:`with_pairs`."""
    from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
    from onnxruntime.quantization.quant_utils import QuantizationMode

    model, _ = _read(file)
    activations, weights = _types(parameters["scheme"])
    options = {
        "ActivationSymmetric": _is_symmetric(parameters),
        "WeightSymmetric": True,
        "MatMulConstBOnly": True,
    }
    with quiet():
        quantiser = ONNXQuantizer(
            model,
            parameters["per_channel"],
            parameters["reduce_range"],
            QuantizationMode.QLinearOps,
            True,
            weights,
            activations,
            _as_data(ranges),
            list(nodes),
            [],
            list(operators),
            options,
        )
        quantiser.quantize_model()
    return quantiser.model.model


def _read(file: Path) -> tuple[Any, int]:
    from onnxruntime.quantization.quant_utils import load_model_with_shape_infer

    model = load_model_with_shape_infer(file)
    return model, next(given.version for given in model.opset_import if given.domain in ("", "ai.onnx"))


def _types(scheme: str) -> tuple[Any, Any]:
    """Types of activations and weights."""
    from onnxruntime.quantization import QuantType

    activations = {"u8s8": QuantType.QUInt8, "s8s8": QuantType.QInt8, "a16w8": QuantType.QUInt16}
    return activations[scheme], QuantType.QInt8


def _is_symmetric(parameters: Mapping[str, Any]) -> bool:
    return bool(parameters["symmetric"]) or parameters["scheme"] == "s8s8"


def _needed(parameters: Mapping[str, Any]) -> int:
    """Opset from which on ONNX' own QuantizeLinear does."""
    if parameters["scheme"] == "a16w8":
        return WIDE_TYPES_OPSET
    return CHANNELS_OPSET if parameters["per_channel"] else OLDEST_OPSET


def _as_data(ranges: Ranges) -> Any:
    import numpy as np
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData

    seen = {name: TensorData(lowest=np.float32(low), highest=np.float32(high)) for name, (low, high) in ranges.items()}
    return TensorsData(CalibrationMethod.MinMax, seen)


def _for_qnn(file: Path, operators: Sequence[str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What onnxruntime's recipe for Qualcomm's NPU adds: types of single tensors, least ranges."""
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

    activations, weights = _types(parameters["scheme"])
    config = get_qnn_qdq_config(
        str(file),
        None,
        activation_type=activations,
        weight_type=weights,
        per_channel=parameters["per_channel"],
        activation_symmetric=_is_symmetric(parameters),
        op_types_to_quantize=list(operators),
    )
    found: dict[str, Any] = config.extra_options
    return found
