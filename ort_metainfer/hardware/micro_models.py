"""Tiny models, made in memory, that do one kind of work each: what the probe times.

Every model's input and output are small, whatever it computes in between, so that a copy to a device and back does not
hide the device: an outer product spreads a column over a matrix, and a product with a column gathers it again. Weights
are deterministic. ir_version 10 and opset 17, which onnxruntime 1.23 loads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

__all__ = [
    "IR_VERSION",
    "OPSET",
    "MicroModel",
    "Network",
    "attention",
    "convolutions",
    "element_wise",
    "empty",
    "gather",
    "layer_normalisation",
    "lstm",
    "matmuls",
    "random",
    "relay",
    "softmax",
]

IR_VERSION = 10
OPSET = 17
BLOCK = 4096
"""Random numbers drawn at most; larger tensors repeat them, or making the models would cost more than timing them."""

ELEMENT = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int8": TensorProto.FLOAT,  # quantised in the graph, float32 outside
}
"""What the working tensors of a model are declared as, by the type it is named for."""

ACTIVATION_SCALE, ACTIVATION_ZERO = np.float32(0.05), np.uint8(128)
WEIGHT_SCALE, WEIGHT_ZERO = np.float32(0.01), np.int8(0)

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class MicroModel:
    """A model in ONNX's binary form, and inputs for it by name."""

    model: bytes
    feeds: Mapping[str, Array]


def random(*shape: int, scale: float = 1.0, seed: int = 0) -> Array:
    """Float32 from a normal distribution of standard deviation ``scale``, the same for the same arguments."""
    size = math.prod(shape)
    block = np.random.default_rng([seed, size % BLOCK]).standard_normal(min(size, BLOCK)).astype(np.float32)
    return np.resize(block * np.float32(scale), shape)


class Network:
    """A graph under construction; values are named by the node that makes them.

    Args:
        dtype: type that the work is done in: ``float32``, ``float16``, ``bfloat16``, or ``int8`` (QDQ: uint8
            activations and int8 weights, one scale a tensor).
    """

    def __init__(self, dtype: str = "float32") -> None:
        self.dtype = dtype
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.feeds: dict[str, Array] = {}

    def add(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """A node; returns the name of its last output."""
        number = len(self.nodes)
        names = [*[""] * (outputs - 1), f"{op_type.lower()}{number}"]
        node = helper.make_node(op_type, list(inputs), names, name=f"node{number}_{op_type}", **attributes)
        self.nodes.append(node)
        return names[-1]

    def constant(self, array: Array) -> str:
        """An initializer as it is."""
        name = f"constant{len(self.initializers)}"
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.initializers.append(helper.make_tensor(name, element, array.shape, array.tobytes(), raw=True))
        return name

    def weight(self, array: Array) -> str:
        """An initializer of float32 values in the network's type; what is quantised is dequantised."""
        if self.dtype == "float16":
            return self.constant(array.astype(np.float16))
        if self.dtype == "bfloat16":
            name = f"constant{len(self.initializers)}"
            halves = (array.view(np.uint32) >> 16).astype(np.uint16)  # the upper half of a float32 is a bfloat16
            tensor = helper.make_tensor(name, TensorProto.BFLOAT16, array.shape, halves.tobytes(), raw=True)
            self.initializers.append(tensor)
            return name
        if self.dtype == "int8":
            quantised = np.clip(np.rint(array / WEIGHT_SCALE), -127, 127).astype(np.int8)
            scale, zero = self.constant(np.array(WEIGHT_SCALE)), self.constant(np.array(WEIGHT_ZERO))
            return self.add("DequantizeLinear", self.constant(quantised), scale, zero)
        return self.constant(array)

    def input(self, array: Array) -> str:
        """A graph input with its value, float32 or integers outside, in the network's type from here on."""
        name = f"x{len(self.feeds)}"
        self.feeds[name] = array
        return self.settle(name) if array.dtype == np.float32 else name

    def settle(self, value: str) -> str:
        """``value`` in the network's type: cast where it enters, quantised after each step of a quantised network."""
        if self.dtype == "int8":
            scale, zero = self.constant(np.array(ACTIVATION_SCALE)), self.constant(np.array(ACTIVATION_ZERO))
            return self.add("DequantizeLinear", self.add("QuantizeLinear", value, scale, zero), scale, zero)
        if self.dtype != "float32" and value in self.feeds:
            return self.add("Cast", value, to=ELEMENT[self.dtype])
        return value

    def step(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """A node of the work itself."""
        return self.settle(self.add(op_type, *inputs, outputs=outputs, **attributes))

    def spread(self, rows: int, width: int) -> str:
        """A matrix of rows x width from an input of rows x 1; work: rows x width multiply-accumulates."""
        column = self.input(random(rows, 1, seed=1))
        return self.step("MatMul", column, self.weight(random(1, width, seed=2)))

    def collect(self, matrix: str, width: int, *shape: int) -> MicroModel:
        """The model whose output is ``matrix`` times a column; work: rows x width multiply-accumulates."""
        column = self.weight(random(width, 1, scale=width**-0.5, seed=3))
        return self.model(self.step("MatMul", matrix, column), *shape, 1)

    def model(self, value: str, *shape: int, element: int = TensorProto.FLOAT) -> MicroModel:
        """The model whose only output is ``value``, of that shape; types of two bytes leave as float32."""
        if self.dtype in ("float16", "bfloat16"):
            value = self.add("Cast", value, to=TensorProto.FLOAT)
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in self.feeds.items()
        ]
        outputs = [helper.make_tensor_value_info(value, element, shape)]
        graph = helper.make_graph(self.nodes, "micro", inputs, outputs, self.initializers)
        model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)])
        return MicroModel(model.SerializeToString(), dict(self.feeds))


def empty() -> MicroModel:
    """One Identity of one number: what a run costs when there is nothing to do."""
    network = Network()
    return network.model(network.add("Identity", network.input(random(1))), 1)


def matmuls(size: int, dtype: str) -> MicroModel:
    """Two products of size x size matrices; 2 size^3 + 2 size^2 multiply-accumulates."""
    network = Network(dtype)
    value = network.spread(size, size)
    square = random(size, size, scale=size**-0.5, seed=4)
    for _ in range(2):
        value = network.step("MatMul", value, network.weight(square))
    return network.collect(value, size, size)


def convolutions(channels: int, side: int, kernel: int, dtype: str, depthwise: bool, layers: int) -> MicroModel:
    """So many convolutions of equal shape between two 1x1 ones from and to a single channel.

    Each of the layers does channels x side^2 x (channels, or 1 where depthwise) x kernel^2 multiply-accumulates, the
    two around them channels x side^2 each.
    """
    network = Network(dtype)
    around: dict[str, Any] = {"kernel_shape": [1, 1]}
    value = network.input(random(1, 1, side, side, seed=1))
    value = network.step("Conv", value, network.weight(random(channels, 1, 1, 1, seed=2)), **around)
    group, depth = (channels, 1) if depthwise else (1, channels)
    filters = random(channels, depth, kernel, kernel, scale=(depth * kernel**2) ** -0.5, seed=3)
    within: dict[str, Any] = {"kernel_shape": [kernel, kernel], "pads": [kernel // 2] * 4, "group": group}
    for _ in range(layers):
        value = network.step("Conv", value, network.weight(filters), **within)
    last = network.weight(random(1, channels, 1, 1, scale=channels**-0.5, seed=4))
    return network.model(network.step("Conv", value, last, **around), 1, 1, side, side)


def element_wise(rows: int, width: int) -> MicroModel:
    """Add, Mul, Add, Mul with two constant matrices of rows x width elements, in turns, so that nothing can be folded.

    Bytes moved, were nothing fused: the first reads one matrix and writes one, the others read two and write one, the
    last product reads one: 12 matrices. A provider that fuses moves less, and shows a higher rate.
    """
    network = Network()
    value = network.input(random(rows, 1, seed=1))
    matrices = [network.weight(random(rows, width, scale=0.5, seed=seed)) for seed in (5, 6)]
    for operator, matrix in zip(("Add", "Mul") * 2, matrices * 2, strict=True):
        value = network.step(operator, value, matrix)
    return network.collect(value, width, rows)


def layer_normalisation(rows: int, width: int) -> MicroModel:
    """Four layer normalisations of a matrix; 10 matrices of bytes moved (1 written, 4 x 2, 1 read)."""
    network = Network()
    value = network.spread(rows, width)
    scale, bias = network.weight(random(width, seed=5)), network.weight(random(width, seed=6))
    for _ in range(4):
        value = network.step("LayerNormalization", value, scale, bias, axis=-1)
    return network.collect(value, width, rows)


def softmax(rows: int, width: int) -> MicroModel:
    """Four softmaxes of a matrix; 10 matrices of bytes moved, as in :func:`layer_normalisation`."""
    network = Network()
    value = network.spread(rows, width)
    for _ in range(4):
        value = network.step("Softmax", value, axis=-1)
    return network.collect(value, width, rows)


def attention(steps: int, width: int, heads: int, dtype: str) -> MicroModel:
    """One self-attention block of plain operators, projections included.

    Multiply-accumulates: 4 steps x width^2 for the projections, 2 steps^2 x width for the attention itself, and
    2 steps x width around them.
    """
    network = Network(dtype)
    value = network.spread(steps, width)
    split = network.constant(np.array([steps, heads, width // heads], np.int64))
    query, key, score = (_projected(network, value, width, split, part) for part in range(3))
    scale = network.weight(np.array((width // heads) ** -0.5, np.float32))
    weights = network.add("Softmax", network.add("Mul", network.add("MatMul", query, key), scale), axis=-1)
    mixed = network.add("Transpose", network.add("MatMul", weights, score), perm=[1, 0, 2])
    joined = network.add("Reshape", mixed, network.constant(np.array([steps, width], np.int64)))
    out = network.add("MatMul", joined, network.weight(random(width, width, scale=width**-0.5, seed=9)))
    return network.collect(out, width, steps)


def _projected(network: Network, value: str, width: int, split: str, part: int) -> str:
    """Query, key (transposed) or value, heads first."""
    weight = network.weight(random(width, width, scale=width**-0.5, seed=5 + part))
    parts = network.add("Reshape", network.add("MatMul", value, weight), split)
    return network.add("Transpose", parts, perm=[1, 2, 0] if part == 1 else [1, 0, 2])


def gather(rows: int, width: int, picks: int) -> MicroModel:
    """Rows of a table picked at random; bytes moved: 8 an index, and each row picked read, written and read again."""
    network = Network()
    indices = np.random.default_rng(1).integers(0, rows, picks, dtype=np.int64)
    picked = network.add("Gather", network.constant(random(rows, width)), network.input(indices), axis=0)
    return network.collect(picked, width, picks)


def lstm(steps: int, hidden: int) -> MicroModel:
    """One LSTM of batch 1 whose input is as wide as its state; 8 steps x hidden^2 multiply-accumulates."""
    network = Network()
    value = network.input(random(steps, 1, hidden, seed=1))
    weights = [network.constant(random(1, 4 * hidden, hidden, scale=hidden**-0.5, seed=seed)) for seed in (2, 3)]
    last = network.add("LSTM", value, *weights, outputs=2, hidden_size=hidden)
    return network.model(last, 1, 1, hidden)


def relay(elements: int) -> MicroModel:
    """One Relu whose input and output are as large as asked: what goes to the device and comes back."""
    network = Network()
    return network.model(network.add("Relu", network.input(random(elements))), elements)
