"""Small models of unusual make that every rewrite must leave working: each a valid model that onnxruntime runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
IR, OPSET = 8, 17

Feed = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class OddModel:
    """One of them.

    Attributes:
        name: what is unusual about it.
        model: as it stands in memory.
        feeds: what it is run with.
        external: whether its weights go to a file beside it.
    """

    name: str
    model: Any
    feeds: tuple[Feed, ...]
    external: bool = False

    def save(self, folder: Path) -> Path:
        """Write it into ``folder``."""
        file = folder / "model.onnx"
        given = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0} if self.external else {}
        copy = onnx.ModelProto()
        copy.CopyFrom(self.model)
        onnx.save(copy, str(file), **given)
        return file


BUILDERS: list[Callable[[], OddModel]] = []


def odd(build: Callable[[], OddModel]) -> Callable[[], OddModel]:
    """Register a builder."""
    BUILDERS.append(build)
    return build


@cache
def odd_models() -> tuple[OddModel, ...]:
    """All of them."""
    from tests import odd_models_nested, odd_models_typed  # noqa: F401 (they register theirs)

    return tuple(build() for build in BUILDERS)


def info(name: str, *shape: Any, kind: int = FLOAT) -> Any:
    """A tensor's declaration."""
    return helper.make_tensor_value_info(name, kind, list(shape))


def weight(name: str, *shape: int, seed: int = 0) -> Any:
    """A float initialiser."""
    return numpy_helper.from_array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32), name)


def data(*shape: int, seed: int = 1) -> np.ndarray:
    """A float feed."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def made(
    name: str,
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    weights: tuple[Any, ...] = (),
    feeds: tuple[Feed, ...] = ({},),
    external: bool = False,
    opset: int = OPSET,
) -> OddModel:
    """A model of these parts."""
    graph = helper.make_graph(nodes, "odd", inputs, outputs, list(weights))
    model = helper.make_model(graph, ir_version=IR, opset_imports=[helper.make_opsetid("", opset)])
    return OddModel(name, model, feeds, external)


def node(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    """A node without a name."""
    return helper.make_node(op, inputs, outputs, **attributes)


def classic(x: str, y: str, weights: str = "") -> tuple[list[Any], tuple[Any, ...]]:
    """Conv, BatchNormalization, Relu, Transpose twice, Gemm-like product: something for many a rewrite."""
    w = [f"{weights}{letter}" for letter in ("w", "s", "b", "m", "v", "k", "c")]
    nodes = [
        node("Conv", [x, w[0]], [f"{y}_conv"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", [f"{y}_conv", *w[1:5]], [f"{y}_bn"]),
        node("Relu", [f"{y}_bn"], [f"{y}_relu"]),
        node("Transpose", [f"{y}_relu"], [f"{y}_t"], perm=[0, 2, 3, 1]),
        node("Transpose", [f"{y}_t"], [f"{y}_tt"], perm=[0, 3, 1, 2]),
        node("MatMul", [f"{y}_tt", w[5]], [f"{y}_mm"]),
        node("Add", [f"{y}_mm", w[6]], [y]),
    ]
    positive = numpy_helper.from_array(np.array([0.5, 1.0, 1.5], np.float32), w[4])
    shapes: list[tuple[int, ...]] = [(3, 2, 3, 3), (3,), (3,), (3,)]
    drawn = [weight(name, *shape, seed=i) for i, (name, shape) in enumerate(zip(w[:4], shapes, strict=True))]
    return nodes, (*drawn, positive, weight(w[5], 4, 4, seed=8), weight(w[6], 4, seed=9))


IMAGE = (1, 2, 4, 4)
"""What ``classic`` takes; its result is [1, 3, 4, 4]."""

# graphs with little in them


@odd
def no_nodes() -> OddModel:
    return made("no nodes, the output is the input", [], [info("x", 2)], [info("x", 2)], feeds=({"x": data(2)},))


@odd
def no_inputs() -> OddModel:
    nodes = [node("Constant", [], ["c"], value=weight("", 2, 2)), node("Abs", ["c"], ["y"])]
    return made("only constants", nodes, [], [info("y", 2, 2)])


@odd
def output_is_initialiser() -> OddModel:
    return made(
        "an output that is an initialiser", [node("Abs", ["x"], ["y"])], [info("x", 2)], [info("w", 3), info("y", 2)],
        (weight("w", 3),), ({"x": data(2)},),
    )  # fmt: skip


@odd
def output_is_input() -> OddModel:
    return made(
        "an output that is an input", [node("Abs", ["x"], ["y"])], [info("x", 2)], [info("x", 2), info("y", 2)],
        feeds=({"x": data(2)},),
    )  # fmt: skip


@odd
def identity_outputs() -> OddModel:
    nodes = [
        node("Relu", ["x"], ["r"]),
        *(node("Identity", [a], [b]) for a, b in [("r", "y1"), ("r", "y2"), ("x", "y3"), ("w", "y4")]),
    ]
    outputs = [info(name, 2) for name in ("y1", "r", "y2", "y3", "y4")]
    return made(
        "one value under several output names", nodes, [info("x", 2)], outputs, (weight("w", 2),), ({"x": data(2)},)
    )


@odd
def unused_parts() -> OddModel:
    nodes = [node("Abs", ["x"], ["y"]), node("Abs", ["x"], ["nobody_wants_it"])]
    inputs = [info("x", 2), info("unused", 3)]
    feeds = ({"x": data(2), "unused": data(3)},)
    return made(
        "an input, a node and a weight that nobody uses", nodes, inputs, [info("y", 2)], (weight("w", 3),), feeds
    )


# defaults and sharing


def all_overridable(name: str, nodes: list[Any], weights: tuple[Any, ...], x: Any, y: Any, feed: Feed) -> OddModel:
    """Every weight is an input too; run without and with other values."""
    inputs = [x, *(info(w.name, *w.dims) for w in weights)]
    other = {w.name: np.abs(numpy_helper.to_array(w)) * 2 + 0.25 for w in weights}
    return made(name, nodes, inputs, [y], weights, (feed, dict(feed) | other))


@odd
def overridable_classic() -> OddModel:
    nodes, weights = classic("x", "y")
    x, y = info("x", *IMAGE), info("y", 1, 3, 4, 4)
    return all_overridable("weights that are inputs with a default", nodes, weights, x, y, {"x": data(*IMAGE)})


@odd
def overridable_sums() -> OddModel:
    nodes = [
        node("Mul", ["a", "b"], ["ab"]),
        node("Add", ["x", "ab"], ["s"]),
        node("Abs", ["s"], ["t"]),
        node("Mul", ["t", "zero"], ["u"]),
        node("Add", ["u", "one"], ["y"]),
    ]
    constants = [("zero", [0.0, 0.0]), ("one", [1.0, 1.0])]
    neutral = [numpy_helper.from_array(np.array(number, np.float32), name) for name, number in constants]
    weights = (weight("a", 2), weight("b", 2, seed=3), *neutral)
    x, y = info("x", 2), info("y", 2)
    return all_overridable("constants that a caller may override", nodes, weights, x, y, {"x": data(2)})


@odd
def shared_weights() -> OddModel:
    nodes, weights = classic("x", "y1")
    more, _ = classic("x", "y2")
    nodes += [*more, node("Mul", ["c", "c"], ["cc"]), node("Add", ["y2", "cc"], ["y3"])]
    outputs = [info(name, 1, 3, 4, 4) for name in ("y1", "y3")]
    feeds = ({"x": data(*IMAGE)},)
    return made("weights shared by several nodes", nodes, [info("x", *IMAGE)], outputs, weights, feeds)


@odd
def every_value_is_output() -> OddModel:
    nodes, weights = classic("x", "y")
    outputs = [info(n.output[0], None, None, None, None) for n in nodes]
    feeds = ({"x": data(*IMAGE)},)
    return made("every value is a graph output", nodes, [info("x", *IMAGE)], outputs, weights, feeds)


@odd
def weights_in_nodes() -> OddModel:
    nodes, weights = classic("x", "y")
    constants = [node("Constant", [], [w.name], value=w) for w in weights]
    feeds = ({"x": data(*IMAGE)},)
    return made("weights in Constant nodes", constants + nodes, [info("x", *IMAGE)], [info("y", 1, 3, 4, 4)], (), feeds)


# names and what stands beside the graph


@odd
def strange_names() -> OddModel:
    nodes, weights = classic("größe/入力:0", "y y", "重み ")
    nodes[0].name, nodes[1].name, nodes[2].name = "größe/入力:0", "y y", "\N{SNOWMAN}/..//"
    inputs, outputs = [info("größe/入力:0", *IMAGE)], [info("y y", 1, 3, 4, 4)]
    return made(
        "names beyond ASCII",
        nodes,
        inputs,
        outputs,
        weights,
        ({"größe/入力:0": data(*IMAGE)},),
    )


@odd
def metadata() -> OddModel:
    nodes, weights = classic("x", "y")
    feeds = ({"x": data(*IMAGE)},)
    made_ = made(
        "metadata, documentation, versions", nodes, [info("x", *IMAGE)], [info("y", 1, 3, 4, 4)], weights, feeds
    )
    helper.set_model_props(made_.model, {"names": "{0: 'person'}", "größe": "klein", "empty": ""})
    made_.model.producer_name, made_.model.model_version, made_.model.domain = "somebody", 7, "de.beispiel"
    made_.model.doc_string = made_.model.graph.doc_string = "documented"
    return made_


@odd
def external_weights() -> OddModel:
    nodes, weights = classic("x", "y")
    feeds = ({"x": data(*IMAGE)},)
    y = info("y", 1, 3, 4, 4)
    return made("weights in a file beside it", nodes, [info("x", *IMAGE)], [y], weights, feeds, external=True)


@odd
def local_function() -> OddModel:
    opset = [helper.make_opsetid("", OPSET)]
    body = [node("Abs", ["a"], ["b"]), node("Add", ["b", "a"], ["c"])]
    function = helper.make_function("local", "Twice", ["a"], ["c"], body, opset)
    nodes = [helper.make_node("Twice", ["x"], ["t"], domain="local"), node("Abs", ["t"], ["y"])]
    result = made("a function of its own", nodes, [info("x", 2)], [info("y", 2)], feeds=({"x": data(2)},))
    result.model.functions.append(function)
    result.model.opset_import.append(helper.make_opsetid("local", 1))
    return result
