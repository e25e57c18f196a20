"""Models of unusual make: graphs within graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from tests.odd_models import BOOL, IMAGE, INT64, OddModel, classic, data, info, made, node, odd, weight


def branches(then: list[Any], other: list[Any], weights: tuple[Any, ...] = ()) -> dict[str, Any]:
    """Two branches that give ``t`` and ``e``."""
    shape: list[None] = [None] * 4
    return {
        "then_branch": helper.make_graph(then, "then", [], [info("t", *shape)], list(weights)),
        "else_branch": helper.make_graph(other, "else", [], [info("e", *shape)]),
    }


FLAGS = tuple({"x": data(*IMAGE), "flag": np.array(flag)} for flag in (True, False))


@odd
def captured_values() -> OddModel:
    nodes, weights = classic("x", "y0")
    inner, _ = classic("x", "t")
    both = branches(inner, [node("Mul", ["y0_relu", "y0_relu"], ["e"])])
    nodes += [node("If", ["flag"], ["z"], **both), node("Add", ["y0", "z"], ["y"])]
    inputs = [info("x", *IMAGE), info("flag", kind=BOOL)]
    y = info("y", 1, 3, 4, 4)
    return made("If: values and weights captured from outside", nodes, inputs, [y], weights, FLAGS)


@odd
def captured_only() -> OddModel:
    """A transposed and transposed-back value that only a branch uses; weights of the same names inside."""
    nodes = [
        node("Transpose", ["x"], ["a"], perm=[0, 2, 3, 1]),
        node("Transpose", ["a"], ["b"], perm=[0, 3, 1, 2]),
        node("Identity", ["b"], ["c"]),
    ]
    both = branches([node("Add", ["c", "w"], ["t"])], [node("Abs", ["b"], ["e"])], (weight("w", 4),))
    nodes.append(node("If", ["flag"], ["y"], **both))
    inputs = [info("x", *IMAGE), info("flag", kind=BOOL)]
    return made("If: values that only a branch uses", nodes, inputs, [info("y", *IMAGE)], feeds=FLAGS)


@odd
def nested_captures() -> OddModel:
    inner = branches([node("Add", ["x", "w"], ["t"])], [node("Sub", ["outer", "w"], ["e"])])
    both = branches([node("If", ["flag"], ["t"], **inner)], [node("If", ["other"], ["e"], **inner)])
    nodes = [node("Abs", ["x"], ["outer"]), node("Not", ["flag"], ["other"]), node("If", ["flag"], ["y"], **both)]
    inputs = [info("x", *IMAGE), info("flag", kind=BOOL)]
    return made("If within If", nodes, inputs, [info("y", *IMAGE)], (weight("w", 4),), FLAGS)


@odd
def constant_condition() -> OddModel:
    both = branches([node("Add", ["x", "w"], ["t"])], [node("Abs", ["x"], ["e"])])
    nodes = [node("If", ["flag"], ["y"], **both)]
    flag = numpy_helper.from_array(np.array(True), "flag")
    weights, feeds = (weight("w", 4), flag), ({"x": data(*IMAGE)},)
    return made("If with a constant condition", nodes, [info("x", *IMAGE)], [info("y", *IMAGE)], weights, feeds)


@odd
def loops() -> OddModel:
    body = helper.make_graph(
        [
            node("MatMul", ["state", "k"], ["m"]),
            node("Add", ["m", "captured"], ["s"]),
            node("Tanh", ["s"], ["next"]),
            node("Identity", ["go"], ["going"]),
            node("Identity", ["next"], ["seen"]),
        ],
        "body",
        [info("turn", kind=INT64), info("go", kind=BOOL), info("state", 2, 3)],
        [info("going", kind=BOOL), info("next", 2, 3), info("seen", 2, 3)],
    )
    nodes = [node("Abs", ["x"], ["captured"]), node("Loop", ["n", "", "x"], ["y", "all"], body=body)]
    inputs = [info("x", 2, 3), info("n", kind=INT64)]
    feeds = tuple({"x": data(2, 3), "n": np.array(n)} for n in (3, 0))
    outputs = [info("y", None, None), info("all", None, None, None)]
    return made("Loop, a captured value and no turns", nodes, inputs, outputs, (weight("k", 3, 3),), feeds)


@odd
def scans() -> OddModel:
    body = helper.make_graph(
        [node("MatMul", ["row", "k"], ["m"]), node("Add", ["state", "m"], ["next"]), node("Abs", ["next"], ["seen"])],
        "body",
        [info("state", 3), info("row", 3)],
        [info("next", 3), info("seen", 3)],
    )
    nodes = [node("Scan", ["start", "x"], ["end", "y"], body=body, num_scan_inputs=1)]
    weights, feeds = (weight("k", 3, 3), weight("start", 3, seed=2)), ({"x": data(4, 3)},)
    return made("Scan", nodes, [info("x", "n", 3)], [info("end", 3), info("y", "n", 3)], weights, feeds)
