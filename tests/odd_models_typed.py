"""Models of unusual make: shapes and types."""

from __future__ import annotations

import numpy as np
from onnx import helper, numpy_helper

from tests.odd_models import BOOL, FLOAT, IMAGE, INT64, STRING, OddModel, data, info, made, node, odd, weight


@odd
def zero_sizes() -> OddModel:
    nodes = [
        node("Abs", ["x"], ["a"]),
        node("Concat", ["a", "w"], ["b"], axis=0),
        node("MatMul", ["b", "k"], ["c"]),
        node("ReduceSum", ["x"], ["y"], keepdims=0),
    ]
    weights = (weight("w", 0, 3), weight("k", 3, 2))
    outputs = [info("c", None, None), info("y")]
    return made(
        "tensors without elements", nodes, [info("x", "n", 3)], outputs, weights, ({"x": data(0, 3)}, {"x": data(2, 3)})
    )


@odd
def scalars() -> OddModel:
    nodes = [
        node("Mul", ["x", "w"], ["a"]),
        node("Add", ["a", "w"], ["b"]),
        node("Abs", ["b"], ["y"]),
    ]
    return made("tensors of rank zero", nodes, [info("x")], [info("y")], (weight("w"),), ({"x": data()},))


@odd
def strings() -> OddModel:
    words = helper.make_tensor("w", STRING, [2], ["ä".encode(), b"b"])  # onnx 1.17 encodes text as ASCII
    nodes = [node("Equal", ["s", "w"], ["e"]), node("Concat", ["s", "w"], ["y"], axis=0)]
    inputs, outputs = [info("s", 2, kind=STRING)], [info("y", 4, kind=STRING), info("e", 2, kind=BOOL)]
    return made("strings", nodes, inputs, outputs, (words,), ({"s": np.array(["ä", "c"], object)},), opset=19)


@odd
def other_types() -> OddModel:
    kinds = {"d": np.float64, "h": np.float16, "i": np.int32, "l": np.int64}
    nodes, inputs, outputs, weights, feed = [], [], [], [], {}
    for name, kind in kinds.items():
        elem = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        nodes += [node("Mul", [name, f"{name}w"], [f"{name}m"]), node("Add", [f"{name}m", f"{name}w"], [f"{name}y"])]
        inputs.append(info(name, 3, kind=elem))
        outputs.append(info(f"{name}y", 3, kind=elem))
        weights.append(numpy_helper.from_array(np.array([1, 2, 3], kind), f"{name}w"))
        feed[name] = np.array([3, -2, 1], kind)
    return made("float64, float16 and integers", nodes, inputs, outputs, tuple(weights), (feed,))


@odd
def integer_division() -> OddModel:
    w = numpy_helper.from_array(np.array([2, 3, -4], np.int64), "w")
    nodes = [node("Div", ["x", "w"], ["d"]), node("Pow", ["d", "two"], ["y"])]
    two = numpy_helper.from_array(np.array(2.0, np.float32), "two")
    inputs, outputs = [info("x", 3, kind=INT64)], [info("y", 3, kind=INT64)]
    return made("division of integers by a constant", nodes, inputs, outputs, (w, two), ({"x": np.array([7, -7, 9])},))


@odd
def unusual_floats() -> OddModel:
    w = numpy_helper.from_array(np.array([np.inf, np.nan, 0.0, -0.0, 1e-45], np.float32), "w")
    nodes = [node("Add", ["x", "w"], ["a"]), node("Mul", ["a", "w"], ["b"]), node("Div", ["b", "w"], ["y"])]
    return made("infinities, NaN and zeros in a weight", nodes, [info("x", 5)], [info("y", 5)], (w,), ({"x": data(5)},))


@odd
def unknown_ranks() -> OddModel:
    nodes = [
        node("Reshape", ["x", "shape"], ["a"]),
        node("Add", ["a", "w"], ["b"]),
        node("Abs", ["b"], ["y"]),
    ]
    inputs = [info("x", "n", 4), info("shape", "r", kind=INT64)]
    feeds = ({"x": data(2, 4), "shape": np.array([2, 2, 2])}, {"x": data(3, 4), "shape": np.array([6, 2])})
    y = helper.make_tensor_value_info("y", FLOAT, None)
    return made("ranks that only the run tells", nodes, inputs, [y], (weight("w", 2),), feeds)


@odd
def sequences() -> OddModel:
    nodes = [
        node("SequenceConstruct", ["x", "x"], ["s"]),
        node("SequenceInsert", ["s", "w"], ["t"]),
        node("ConcatFromSequence", ["t"], ["y"], axis=0),
    ]
    kind = helper.make_tensor_sequence_value_info("t", FLOAT, None)
    return made(
        "sequences", nodes, [info("x", 2, 3)], [info("y", 6, 3), kind], (weight("w", 2, 3),), ({"x": data(2, 3)},)
    )


@odd
def optionals() -> OddModel:
    nodes = [
        node("Optional", ["x"], ["o"]),
        node("OptionalHasElement", ["o"], ["h"]),
        node("OptionalGetElement", ["o"], ["g"]),
        node("Abs", ["g"], ["y"]),
    ]
    outputs = [info("y", 2), info("h", kind=BOOL)]
    return made("optionals", nodes, [info("x", 2)], outputs, feeds=({"x": data(2)},), opset=18)


@odd
def skipped_inputs() -> OddModel:
    nodes = [
        node("Clip", ["x", "", "high"], ["a"]),
        node("Resize", ["a", "", "scales"], ["b"], mode="nearest"),
        node("Dropout", ["b"], ["c", ""]),
        node("Identity", ["c"], ["y"]),
    ]
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    weights = (scales, numpy_helper.from_array(np.array(0.5, np.float32), "high"))
    feeds = ({"x": data(*IMAGE)},)
    return made(
        "optional inputs and outputs left out", nodes, [info("x", *IMAGE)], [info("y", 1, 2, 8, 8)], weights, feeds
    )
