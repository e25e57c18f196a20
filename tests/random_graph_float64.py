"""A float32 graph as the same graph in float64, to find what takes every tensor for float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, numpy_helper

from ort_metainfer.model.walking import nodes_of

FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE


def as_float64(model: Any) -> Any:
    """A copy with every float32 weight, input, output and cast in float64."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _widen_graph(copy.graph)
    return copy


def runs(model: Any) -> bool:
    """Whether onnxruntime makes a session of it that would run (recurrent layers refuse float64 only then)."""
    if any(node.op_type in ("GRU", "LSTM", "RNN") for node in nodes_of(model)):
        return False
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001 (onnxruntime's many classes)
        return False
    return True


def _widen_graph(graph: Any) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == FLOAT:
            value.type.tensor_type.elem_type = DOUBLE
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _widen_graph(attribute.g)
            elif attribute.HasField("t"):
                _widen_tensor(attribute.t)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == FLOAT:
                attribute.i = DOUBLE


def _widen_tensor(tensor: Any) -> None:
    if tensor.data_type == FLOAT:
        wide = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
