"""How the models are made that operators are tried with: one node, or one with what belongs around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper
from onnx.shape_inference import infer_shapes

from ort_metainfer.hardware.micro_models import IR_VERSION, OPSET, MicroModel, Network, random

__all__ = [
    "IMAGE",
    "KERNEL3",
    "MATRIX",
    "MICROSOFT",
    "PADDED3",
    "SQUARE3",
    "OperatorCase",
    "QuantisedNode",
    "bfloat16_cast",
    "bfloat16_matmul",
    "branches",
    "case",
    "integers",
    "loop",
    "numbers",
]

MICROSOFT = "com.microsoft"

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class OperatorCase:
    """One operator as it is tried; ``build`` makes the model."""

    name: str
    build: Callable[[], MicroModel]


@dataclass(frozen=True)
class _Node:
    """One node: graph inputs first, then constants, in the order of the operator's inputs (None: left out).

    Attributes:
        operator: with its domain in front where that is not ONNX's.
        inputs: arrays given at run time.
        constants: arrays that are part of the model.
        dtype: what floating-point arrays are converted to.
        element: element type of the output; 0 is the first input's.
        outputs: how many.
        opset: version of ONNX's domain.
    """

    operator: str
    inputs: tuple[Array, ...]
    constants: tuple[Array | None, ...]
    attributes: Mapping[str, Any]
    dtype: str
    element: int
    outputs: int
    opset: int

    def __call__(self) -> MicroModel:
        inputs = [self._typed(array) for array in self.inputs]
        constants = [None if array is None else self._typed(array) for array in self.constants]
        names = [f"x{number}" for number in range(len(inputs))]
        kept = [(f"c{number}", array) for number, array in enumerate(constants) if array is not None]
        rest = ["" if array is None else f"c{number}" for number, array in enumerate(constants)]
        element = self.element or helper.np_dtype_to_tensor_dtype(inputs[0].dtype)
        results = ["y", *(f"y{number}" for number in range(1, self.outputs))]
        domain, _, operator = self.operator.rpartition(".")
        node = helper.make_node(operator, names + rest, results, name="node", domain=domain, **self.attributes)
        return _model([node], dict(zip(names, inputs, strict=True)), dict(kept), {"y": element}, self.opset)

    def _typed(self, array: Array) -> Array:
        return array.astype(self.dtype) if array.dtype == np.float32 else array


def _model(
    nodes: list[Any], feeds: dict[str, Array], constants: dict[str, Array], outputs: dict[str, int], opset: int = OPSET
) -> MicroModel:
    """A model whose outputs are declared by their type; their shapes are inferred, here or by onnxruntime."""
    graph = helper.make_graph(
        nodes,
        "operator",
        [_declared(name, array) for name, array in feeds.items()],
        [helper.make_tensor_value_info(name, element, None) for name, element in outputs.items()],
        [_tensor(name, array) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    model = infer_shapes(helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets))
    return MicroModel(model.SerializeToString(), feeds)


def _declared(name: str, array: Array) -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def _tensor(name: str, array: Array) -> Any:
    element = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor(name, element, array.shape, array.tobytes(), raw=True)


def numbers(*shape: int) -> Array:
    """Between 0 and 1: inside the domain of every function tried here."""
    return np.random.default_rng(len(shape)).random(shape, np.float32)


def integers(*values: int) -> Array:
    """A vector."""
    return np.array(values, np.int64)


def case(
    name: str,
    *inputs: Array,
    constants: tuple[Array | None, ...] = (),
    dtype: str = "float32",
    element: int = 0,
    outputs: int = 1,
    opset: int = OPSET,
    **attributes: Any,
) -> OperatorCase:
    """A case of one node; the operator is what stands before the stroke in ``name``.

    Args:
        name: the case's.
        inputs: arrays given at run time.
        constants: arrays that are part of the model, after the inputs (None: left out).
        dtype: what floating-point arrays are converted to.
        element: element type of the output; 0 is the first input's.
        outputs: how many.
        opset: version of ONNX's domain.
        attributes: the node's.
    """
    operator = name.partition("/")[0]
    return OperatorCase(name, _Node(operator, inputs, constants, attributes, dtype, element, outputs, opset))


IMAGE = numbers(1, 8, 8, 8)
MATRIX = numbers(8, 16)
SQUARE3 = random(8, 8, 3, 3, scale=0.1)
KERNEL3: dict[str, Any] = {"kernel_shape": [3, 3]}
PADDED3: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}


@dataclass(frozen=True)
class QuantisedNode:
    """An operator between dequantised inputs and a quantised output: what quantised models are made of."""

    operator: str

    def __call__(self) -> MicroModel:
        """The model."""
        network = Network("int8")
        is_flat = self.operator in ("MatMul", "Add", "Sigmoid")
        inputs = [network.input(MATRIX if is_flat else IMAGE)]
        if self.operator == "Add":
            inputs.append(network.input(MATRIX))
        if self.operator in ("Conv", "MatMul"):
            inputs.append(network.weight(SQUARE3 if self.operator == "Conv" else random(16, 8, scale=0.1)))
        shapes = {"MatMul": (8, 8), "MaxPool": (1, 8, 6, 6), "GlobalAveragePool": (1, 8, 1, 1)}
        attributes: dict[str, Any] = {"Conv": PADDED3, "MaxPool": KERNEL3}.get(self.operator, {})
        value = network.step(self.operator, *inputs, **attributes)
        return network.model(value, *shapes.get(self.operator, MATRIX.shape if is_flat else IMAGE.shape))


def bfloat16_matmul() -> MicroModel:
    """A product of bfloat16 matrices, float32 outside."""
    network = Network("bfloat16")
    return network.model(network.step("MatMul", network.input(MATRIX), network.weight(random(16, 8))), 8, 8)


def bfloat16_cast() -> MicroModel:
    """There and back: numpy has no such type."""
    network = Network("bfloat16")
    return network.model(network.input(MATRIX), *MATRIX.shape)


def branches() -> MicroModel:
    """A condition that is known at run time only, and a sum or a difference."""

    def branch(operator: str) -> Any:
        out = helper.make_tensor_value_info(f"{operator}_y", TensorProto.FLOAT, MATRIX.shape)
        return helper.make_graph([helper.make_node(operator, ["x1", "x1"], [out.name])], operator, [], [out])

    node = helper.make_node("If", ["x0"], ["y"], name="node", then_branch=branch("Add"), else_branch=branch("Mul"))
    return _model([node], {"x0": np.array(True), "x1": MATRIX}, {}, {"y": TensorProto.FLOAT})


def loop() -> MicroModel:
    """Three trips, each adding a matrix to one that is carried along."""
    carried = [helper.make_tensor_value_info(name, TensorProto.FLOAT, MATRIX.shape) for name in ("before", "after")]
    goes_on = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("goes_on", "still")]
    trip = helper.make_tensor_value_info("trip", TensorProto.INT64, [])
    nodes = [helper.make_node("Add", ["before", "x1"], ["after"]), helper.make_node("Identity", ["goes_on"], ["still"])]
    body = helper.make_graph(nodes, "body", [trip, goes_on[0], carried[0]], [goes_on[1], carried[1]])
    node = helper.make_node("Loop", ["x0", "go", "x1"], ["y"], name="node", body=body)
    feeds = {"x0": np.array(3, np.int64), "x1": MATRIX}
    return _model([node], feeds, {"go": np.array(True)}, {"y": TensorProto.FLOAT})
