"""The reference networks: five small models, one per kind of work, made on the spot and the same everywhere.

What a strategy does to them on a machine says more about what it will do to a user's model than any description of the
hardware (measured for this project on published latencies of ncnn on 98 devices: one such network took the share of
choices within 5% of the best from 64 to 79%, three to 85%). Weights come from numpy's legacy generator, whose stream is
frozen (NEP 19), and from uniform numbers only, which no mathematics library can round differently. Whoever changes a
network raises ``profile.SCHEMA``: figures of different networks must not be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["NETWORKS", "reference_feed", "reference_model"]

IR_VERSION, OPSET = 10, 17
"""Old enough for onnxruntime 1.23, new enough for LayerNormalization."""

Array = npt.NDArray[np.float32]


class _Builder:
    """Collects nodes and weights; every method returns the name of what it made."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.RandomState(seed)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []

    def uniform(self, shape: Sequence[int], fan_in: int = 1) -> Array:
        """Numbers of variance 1 / ``fan_in``."""
        numbers: npt.NDArray[np.float64] = self._random.random_sample(tuple(shape))
        scaled: Array = ((numbers * 2 - 1) * np.sqrt(3.0 / fan_in)).astype(np.float32)
        return scaled

    def constant(self, values: npt.NDArray[Any]) -> str:
        """An initialiser."""
        from onnx import numpy_helper

        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def weight(self, shape: Sequence[int], fan_in: int) -> str:
        """An initialiser of random numbers."""
        return self.constant(self.uniform(shape, fan_in))

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """One node; its first output."""
        from onnx import helper

        names = [f"t{len(self._nodes)}_{index}" if index else f"t{len(self._nodes)}" for index in range(outputs)]
        self._nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0]

    def conv(self, source: str, channels: int, width: int, kernel: int = 3, group: int = 1) -> str:
        """A convolution from ``channels`` to ``width`` that keeps the size of the image."""
        fan_in = channels // group * kernel * kernel
        weights = self.weight((width, channels // group, kernel, kernel), fan_in)
        bias = self.weight((width,), 100)
        pads = [kernel // 2] * 4
        return self.node("Conv", source, weights, bias, group=group, kernel_shape=[kernel] * 2, pads=pads)

    def dense(self, source: str, rows: int, columns: int) -> str:
        """MatMul and a bias."""
        product = self.node("MatMul", source, self.weight((rows, columns), rows))
        return self.node("Add", product, self.weight((columns,), 100))

    def model(self, name: str, shape: Sequence[int], output: str, output_shape: Sequence[int]) -> bytes:
        """The finished model: input ``x``, output ``output``."""
        from onnx import TensorProto, helper

        graph = helper.make_graph(
            self._nodes,
            f"reference_{name}",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, list(output_shape))],
            self._weights,
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="ort-metainfer")
        serialised: bytes = model.SerializeToString(deterministic=True)
        return serialised


def _conv(name: str, shape: Sequence[int]) -> bytes:
    """Dense 3x3 convolutions with residuals: 85 million multiply-accumulates, cache-resident."""
    build, channels = _Builder(1), shape[1]
    state = "x"
    for _ in range(2):
        inner = build.node("Relu", build.conv(state, channels, channels))
        state = build.node("Relu", build.node("Add", state, build.conv(inner, channels, channels)))
    return build.model(name, shape, state, shape)


def _depthwise(name: str, shape: Sequence[int]) -> bytes:
    """Depthwise convolutions and element-wise operators: memory-bound, next to no arithmetic per byte."""
    build, channels = _Builder(2), shape[1]
    state = "x"
    for _ in range(3):
        inner = build.conv(state, channels, channels, group=channels)
        gate = build.node("Sigmoid", inner)
        inner = build.node("Mul", inner, gate)
        inner = build.node("Mul", inner, build.weight((1, channels, 1, 1), 1))
        state = build.node("Add", state, inner)
    return build.model(name, shape, state, shape)


def _transformer(name: str, shape: Sequence[int], heads: int = 4) -> bytes:
    """One encoder block in plain operators: layer normalisation, attention, a GELU in Erf."""
    build, (_, tokens, width) = _Builder(3), shape
    split = build.constant(np.array([1, tokens, heads, width // heads], np.int64))
    joined = build.constant(np.array([1, tokens, width], np.int64))
    normal = _normalised(build, "x", width)

    def head(perm: Sequence[int]) -> str:
        return build.node("Transpose", build.node("Reshape", build.dense(normal, width, width), split), perm=list(perm))

    query, key, value = head((0, 2, 1, 3)), head((0, 2, 3, 1)), head((0, 2, 1, 3))
    scale = build.constant(np.array((width // heads) ** -0.5, np.float32))
    scores = build.node("Softmax", build.node("Mul", build.node("MatMul", query, key), scale), axis=-1)
    mixed = build.node("Transpose", build.node("MatMul", scores, value), perm=[0, 2, 1, 3])
    state = build.node("Add", "x", build.dense(build.node("Reshape", mixed, joined), width, width))
    inner = build.dense(_normalised(build, state, width), width, 4 * width)
    root = build.constant(np.array(np.sqrt(2.0), np.float32))
    one, half = (build.constant(np.array(number, np.float32)) for number in (1.0, 0.5))
    bell = build.node("Add", build.node("Erf", build.node("Div", inner, root)), one)
    inner = build.node("Mul", build.node("Mul", inner, bell), half)
    state = build.node("Add", state, build.dense(inner, 4 * width, width))
    return build.model(name, shape, state, shape)


def _normalised(build: _Builder, source: str, width: int) -> str:
    scale, bias = build.constant(np.ones(width, np.float32)), build.constant(np.zeros(width, np.float32))
    return build.node("LayerNormalization", source, scale, bias, axis=-1, epsilon=1e-5)


def _gemm(name: str, shape: Sequence[int]) -> bytes:
    """A chain of square Gemm: 57 million multiply-accumulates in four calls."""
    build, width = _Builder(4), shape[1]
    state = "x"
    for _ in range(4):
        bias = build.weight((width,), 100)
        state = build.node("Relu", build.node("Gemm", state, build.weight((width, width), width // 2), bias))
    return build.model(name, shape, state, shape)


def _many_small(name: str, shape: Sequence[int]) -> bytes:
    """Eleven hundred operators that do next to nothing each: the runtime's own cost per node."""
    build, (_, width) = _Builder(5), shape
    wide, back = (build.constant(np.array(dims, np.int64)) for dims in ([1, 8, width // 8], [1, width]))
    state, half = "x", build.constant(np.array(0.5, np.float32))
    for _ in range(100):
        square = build.node("Transpose", build.node("Reshape", state, wide), perm=[0, 2, 1])
        mean = build.node("ReduceMean", square, axes=[1], keepdims=1)
        square = build.node("Tanh", build.node("Sub", square, mean))
        square = build.node("Concat", square, mean, axis=1)
        square = build.node("Slice", square, *(build.constant(np.array([n], np.int64)) for n in (0, width // 8, 1)))
        turned = build.node("Transpose", square, perm=[0, 2, 1])
        state = build.node("Add", build.node("Mul", state, half), build.node("Reshape", turned, back))
    return build.model(name, shape, state, shape)


Maker = Callable[[str, Sequence[int]], bytes]

NETWORKS: Mapping[str, tuple[Maker, tuple[int, ...]]] = MappingProxyType(
    {
        "conv": (_conv, (1, 32, 48, 48)),
        "depthwise": (_depthwise, (1, 96, 56, 56)),
        "transformer": (_transformer, (1, 96, 192)),
        "gemm": (_gemm, (96, 384)),
        "many_small": (_many_small, (1, 64)),
    }
)
"""Name -> what makes it, and the shape of its one input ``x``. Each takes about 0.3 to 5 ms on one core."""


@lru_cache(maxsize=len(NETWORKS))
def reference_model(name: str) -> bytes:
    """The ONNX model of that name, serialised; the same bytes in every process.

    Raises:
        KeyError: there is no network of that name.
    """
    make, shape = NETWORKS[name]
    return make(name, shape)


def reference_feed(name: str) -> dict[str, Array]:
    """The network's fixed input.

    Raises:
        KeyError: there is no network of that name.
    """
    return {"x": _Builder(100).uniform(NETWORKS[name][1])}
