"""Transposes placed on random graphs of little else: values in several orders of their axes, used in all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_metainfer.rewrites.layout import TransposesPlaced
from tests.rewrite_models import operators
from tests.rewrite_run import apply_to_bytes, difference, outputs

PLACED = TransposesPlaced()
SIZES = (2, 3, 4, 5)
ORDERS = ((0, 2, 3, 1), (0, 3, 1, 2), (0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2), (1, 0, 2, 3))


class Drawing:
    """A graph of transposes, element-wise operators and operators that need their own order."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng((seed, 11))
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.shapes: dict[str, tuple[int, ...]] = {"x": SIZES}
        for _ in range(int(self.rng.integers(6, 22))):
            self.step()

    def pick(self) -> str:
        names = list(self.shapes)
        return names[-1] if self.rng.random() < 0.5 else names[int(self.rng.integers(len(names)))]

    def emit(self, kind: str, inputs: list[str], shape: tuple[int, ...], **given: Any) -> None:
        name = f"v{len(self.shapes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **given))
        self.shapes[name] = shape

    def constant(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(self.rng.standard_normal(shape).astype(np.float32), name))
        return name

    def step(self) -> None:
        value = self.pick()
        shape = self.shapes[value]
        kind = self.rng.choice(["transpose"] * 6 + ["unary"] * 3 + ["pair"] * 4 + ["constant", "mean", "concat", "own"])
        if kind == "transpose":
            order = ORDERS[int(self.rng.integers(len(ORDERS)))]
            self.emit("Transpose", [value], tuple(shape[axis] for axis in order), perm=order)
        elif kind == "unary":
            self.emit(str(self.rng.choice(["Relu", "Tanh", "Neg"])), [value], shape)
        elif kind == "pair":
            fitting = [name for name, other in self.shapes.items() if other == shape]
            self.emit(str(self.rng.choice(["Add", "Mul"])), [value, str(self.rng.choice(fitting))], shape)
        elif kind == "constant":
            self.emit("Add", [value, self.constant(*shape[-int(self.rng.integers(1, 4)) :])], shape)
        elif kind == "mean":
            axis = int(self.rng.integers(4))
            self.emit("ReduceMean", [value], tuple(1 if at == axis else n for at, n in enumerate(shape)), axes=[axis])
        elif kind == "concat" and shape[3] < 20:
            self.emit("Concat", [value, value], (*shape[:3], shape[3] * 2), axis=-1)
        elif self.rng.random() < 0.5:
            self.emit("Conv", [value, self.constant(shape[1], shape[1], 1, 1)], shape)
        else:
            self.emit("MatMul", [value, self.constant(shape[3], shape[3])], shape)

    def model(self) -> onnx.ModelProto:
        used = {name for node in self.nodes for name in node.input}
        ends = [name for name in self.shapes if name != "x" and (name not in used or self.rng.random() < 0.15)]
        graph = helper.make_graph(
            self.nodes,
            "drawn",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, SIZES)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shapes[name]) for name in ends],
            self.weights,
        )
        return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])


def check(seed: int) -> tuple[int, int]:
    """Elements transposed before and after, the results being the same."""
    model = Drawing(seed).model()
    feeds = [{"x": np.random.default_rng(seed).standard_normal(SIZES).astype(np.float32)}]
    before = model.SerializeToString()
    made, outcome = apply_to_bytes(PLACED, before, feeds)
    off = difference(outputs(made, feeds), outputs(before, feeds), "exact", bound=1e-4)
    assert off is None, f"seed {seed}: {off}\n{onnx.printer.to_text(model.graph)}"
    after = onnx.load_from_string(made)
    assert [value.name for value in after.graph.output] == [value.name for value in model.graph.output]
    figures = outcome.figures or {"elements transposed before": 0, "elements transposed after": 0}
    if not outcome.changed:
        assert operators(after) == operators(model)
    return int(figures["elements transposed before"]), int(figures["elements transposed after"])


def assert_never_more(seeds: range) -> None:
    costs = [check(seed) for seed in seeds]
    assert all(after <= before for before, after in costs), [
        seed for seed, (before, after) in zip(seeds, costs, strict=True) if after > before
    ]
    assert sum(after for _, after in costs) < 0.8 * sum(before for before, _ in costs)


def test_results_stay_and_no_graph_transposes_more() -> None:
    assert_never_more(range(120))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_results_stay_and_no_graph_transposes_more_in_thousands() -> None:
    assert_never_more(range(120, 3120))
