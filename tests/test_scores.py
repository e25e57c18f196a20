"""Which outputs the graph says are scores of classes: by their last operator, not by their shape alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from ort_metainfer.model.graph import describe
from ort_metainfer.model.scores import score_outputs
from ort_metainfer.problem import Graph

FLOAT = TensorProto.FLOAT


def model(nodes: list[tuple[Any, ...]], shape: Any = (2, 4), kind: int = FLOAT, opset: int = 17) -> ModelProto:
    """x [2, 3] -> the nodes (operator, inputs, output, attributes) -> y; w [3, 4] and b [4] are weights."""
    made = [helper.make_node(op, inputs, [output], **more) for op, inputs, output, more in nodes]
    weights = [numpy_helper.from_array(np.ones(size, np.float32), name) for name, size in (("w", (3, 4)), ("b", (4,)))]
    inputs = [helper.make_tensor_value_info("x", FLOAT, [2, 3]), helper.make_tensor_value_info("z", FLOAT, [2, 4])]
    graph = helper.make_graph(made, "g", inputs, [helper.make_tensor_value_info("y", kind, shape)], weights)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", opset)])


PRODUCT = ("MatMul", ["x", "w"], "h", {})

YES: dict[str, ModelProto] = {
    "a product": model([("MatMul", ["x", "w"], "y", {})]),
    "a Gemm": model([("Gemm", ["x", "w", "b"], "y", {})]),
    "three axes": model([("MatMul", ["x", "w"], "y", {})], shape=("n", "t", 4)),
    "classes not counted": model([("MatMul", ["x", "w"], "y", {})], shape=("n", "classes")),
    "a bias": model([PRODUCT, ("Add", ["b", "h"], "y", {})]),
    "softmax": model([("Softmax", ["z"], "y", {})]),
    "softmax of old": model([("Softmax", ["z"], "y", {})], opset=11),
    "log of softmax": model([("LogSoftmax", ["z"], "y", {"axis": 1})]),
    "softmax spelled out": model(
        [("Exp", ["z"], "e", {}), ("ReduceSum", ["e"], "s", {}), ("Div", ["e", "s"], "y", {})]
    ),
    "what only passes on": model([PRODUCT, ("Identity", ["h"], "i", {}), ("Cast", ["i"], "y", {"to": FLOAT})]),
}

NO: dict[str, ModelProto] = {
    "an activation": model([PRODUCT, ("Relu", ["h"], "y", {})]),
    "a sum of two values": model([PRODUCT, ("Add", ["h", "z"], "y", {})]),
    "a normalised embedding": model([PRODUCT, ("LpNormalization", ["h"], "y", {})]),
    "a division by anything": model([PRODUCT, ("Div", ["h", "z"], "y", {})]),
    "four axes": model([("MatMul", ["x", "w"], "y", {})], shape=(1, 1, 2, 4)),
    "one axis": model([("MatMul", ["x", "w"], "y", {})], shape=(4,)),
    "one class": model([("MatMul", ["x", "w"], "y", {})], shape=(2, 1)),
    "integers": model([PRODUCT, ("Cast", ["h"], "y", {"to": TensorProto.INT64})], kind=TensorProto.INT64),
    "softmax along another axis": model([("Softmax", ["z"], "y", {"axis": 0})]),
    "softmax of old over two axes": model([("Softmax", ["z"], "y", {})], shape=(1, 2, 4), opset=11),
    "an input": model([], shape=(2, 4)),
}


@pytest.mark.parametrize("name", YES)
def test_scores_are_told_by_the_last_operator(name: str) -> None:
    assert score_outputs(YES[name]) == ("y",)


@pytest.mark.parametrize("name", NO)
def test_all_else_is_left_to_errors(name: str) -> None:
    assert score_outputs(NO[name]) == ()


def test_a_cycle_of_names_ends() -> None:
    assert score_outputs(model([("Identity", ["h"], "y", {}), ("Identity", ["y"], "h", {})])) == ()


def test_described_graphs_remember_them() -> None:
    graph = describe(YES["a bias"].SerializeToString())
    assert graph.scores == ("y",) == Graph.from_dict(graph.as_dict()).scores
    with pytest.raises(KeyError):  # described by an earlier release: it is described again
        Graph.from_dict({name: value for name, value in graph.as_dict().items() if name != "scores"})
