"""Small networks for the tests of plug-in providers: each of them one that some provider gets wrong, or takes whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

SEED = 0


def save(path: Path, nodes: list[Any], shape: list[int | str], weights: dict[str, Any]) -> Path:
    """A model from float input ``x`` to output ``y``."""
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]), str(path))
    return path


def noise(*shape: int) -> Any:
    return (np.random.default_rng(SEED).standard_normal(shape) * 0.2).astype(np.float32)


def convolutions(path: Path, batch: int | str = 1) -> Path:
    """Two convolutions, pooling, a product."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("MatMul", ["f", "w3"], ["y"]),
    ]
    weights = {"w1": noise(8, 3, 3, 3), "w2": noise(8, 8, 3, 3), "w3": noise(8, 10)}
    return save(path, nodes, [batch, 3, 32, 32], weights)


def perceptron(path: Path, rows: int = 4, inputs: int = 64, then: str | None = None) -> Path:
    """Two products with a Relu between them, and one more operator at the end where ``then`` names it."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w2"], ["c" if then else "y"]),
        *([helper.make_node(then, ["c"], ["y"])] if then else []),
    ]
    return save(path, nodes, [rows, inputs], {"w1": noise(inputs, 128), "w2": noise(128, 10)})


def odd_convolution(path: Path) -> Path:
    """Nine input channels, kernel 3: WebGPU 0.4.0 is wrong on it in layout NHWC."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    return save(path, [node], [1, 9, 8, 8], {"w": noise(16, 9, 3, 3)})


def sliced_convolution(path: Path) -> Path:
    """Half of the channels of what a Conv computes: ggml 0.2.0 takes others."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], strides=[128]),
        helper.make_node("Slice", ["a", "from", "to", "axis"], ["y"]),
    ]
    bounds = {name: np.array([value], np.int64) for name, value in (("from", 0), ("to", 129), ("axis", 1))}
    return save(path, nodes, [1, 1, 640], {"w": noise(258, 1, 256), **bounds})


def static_voice_detector(source: Path, path: Path) -> Path:
    """silero_vad for 16 kHz and 512 samples at a time, its If resolved by onnxruntime's own optimiser."""
    model = onnx.load(str(source))
    rate = next(value for value in model.graph.input if value.name == "sr")
    model.graph.input.remove(rate)
    model.graph.initializer.append(numpy_helper.from_array(np.array(16000, np.int64), "sr"))
    shapes = {"input": [1, 512], "state": [2, 1, 128]}
    for value in model.graph.input:
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, shapes[value.name]))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return path
