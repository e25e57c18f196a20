"""The operators that are tried out on a device: each a model of one node, or of one node with what belongs around it.

Names are the operator's, with a variant or a type behind a stroke: ``Conv``, ``Conv/depthwise``, ``MatMul/float16``,
``Conv/qdq``. Operators of onnxruntime's own domain are named as onnxruntime names them, ``com.microsoft.Gelu``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper
from onnx.shape_inference import infer_shapes

from ort_metainfer.hardware.micro_models import IR_VERSION, OPSET, MicroModel, Network, random

__all__ = ["CASES", "OperatorCase", "case_named"]

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


def _x(*shape: int) -> Array:
    """Between 0 and 1: inside the domain of every function tried here."""
    return np.random.default_rng(len(shape)).random(shape, np.float32)


def _i(*values: int) -> Array:
    return np.array(values, np.int64)


def _case(
    name: str,
    *inputs: Array,
    constants: tuple[Array | None, ...] = (),
    dtype: str = "float32",
    element: int = 0,
    outputs: int = 1,
    opset: int = OPSET,
    **attributes: Any,
) -> OperatorCase:
    operator = name.partition("/")[0]
    return OperatorCase(name, _Node(operator, inputs, constants, attributes, dtype, element, outputs, opset))


IMAGE = _x(1, 8, 8, 8)
MATRIX = _x(8, 16)
SQUARE3 = random(8, 8, 3, 3, scale=0.1)
BYTES = (MATRIX * 255).astype(np.uint8)
KERNEL3 = {"kernel_shape": [3, 3]}
PADDED3 = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
SCALE, ZERO8, ZERO8S = np.array(0.02, np.float32), np.array(128, np.uint8), np.array(0, np.int8)
WEIGHTS8 = (random(16, 8) * 40).clip(-127, 127).astype(np.int8)
FILTERS8 = (random(8, 8, 3, 3) * 40).clip(-127, 127).astype(np.int8)
RECURRENT_X = _x(4, 1, 8)


def _convolutions() -> Iterator[OperatorCase]:
    yield _case("Conv", IMAGE, constants=(SQUARE3, random(8)), **PADDED3)
    yield _case("Conv/1x1", IMAGE, constants=(random(8, 8, 1, 1),), kernel_shape=[1, 1])
    yield _case("Conv/depthwise", IMAGE, constants=(random(8, 1, 3, 3),), group=8, **PADDED3)
    yield _case("Conv/grouped", IMAGE, constants=(random(8, 4, 3, 3),), group=2, **PADDED3)
    yield _case("Conv/dilated", IMAGE, constants=(SQUARE3,), dilations=[2, 2], **KERNEL3)
    yield _case("Conv/strided", IMAGE, constants=(SQUARE3,), strides=[2, 2], **PADDED3)
    yield _case("Conv/1d", _x(1, 8, 32), constants=(random(8, 8, 3),), kernel_shape=[3])
    yield _case("Conv/3d", _x(1, 4, 6, 6, 6), constants=(random(4, 4, 3, 3, 3),), kernel_shape=[3, 3, 3])
    yield _case("Conv/float16", IMAGE, constants=(SQUARE3,), dtype="float16", **PADDED3)
    yield _case("ConvTranspose", IMAGE, constants=(SQUARE3,), strides=[2, 2], **KERNEL3)
    yield _case("ConvInteger", (IMAGE * 255).astype(np.uint8), constants=(FILTERS8,), element=TensorProto.INT32)
    scales = (SCALE, ZERO8, FILTERS8, SCALE, ZERO8S, SCALE, ZERO8)
    yield _case("QLinearConv", (IMAGE * 255).astype(np.uint8), constants=scales, **PADDED3)
    pooled: tuple[tuple[str, dict[str, Any]], ...] = (("MaxPool", KERNEL3), ("AveragePool", KERNEL3))
    for name, attributes in (*pooled, ("GlobalAveragePool", {}), ("GlobalMaxPool", {}), ("LpPool", KERNEL3)):
        yield _case(name, IMAGE, **attributes)
    yield _case("MaxPool/ceil", IMAGE, ceil_mode=1, strides=[2, 2], **KERNEL3)


def _products() -> Iterator[OperatorCase]:
    weight = random(16, 8)
    yield _case("Gemm", MATRIX, constants=(random(8, 16), random(8)), transB=1)
    yield _case("MatMul", MATRIX, constants=(weight,))
    yield _case("MatMul/batched", _x(2, 3, 8, 16), _x(2, 3, 16, 8))
    yield _case("MatMul/float16", MATRIX, constants=(weight,), dtype="float16")
    yield OperatorCase("MatMul/bfloat16", _bfloat16_matmul)
    yield _case("MatMul/float64", MATRIX, constants=(weight,), dtype="float64")
    yield _case("MatMulInteger", BYTES, constants=(WEIGHTS8,), element=TensorProto.INT32)
    quantised = (SCALE, ZERO8, WEIGHTS8, SCALE, ZERO8S, SCALE, ZERO8)
    yield _case("QLinearMatMul", BYTES, constants=quantised)
    yield _case("Einsum", _x(2, 4, 8), _x(2, 8, 4), equation="bij,bjk->bik")
    yield _case("Einsum/outer", _x(4), _x(8), equation="i,j->ij")
    blocks = np.full((8, 1, 8), 0x88, np.uint8)
    four_bits = {"K": 16, "N": 8, "bits": 4, "block_size": 16}
    yield _case(f"{MICROSOFT}.MatMulNBits", MATRIX, constants=(blocks, random(8)), **four_bits)
    dynamic = (WEIGHTS8, SCALE)
    yield _case(f"{MICROSOFT}.DynamicQuantizeMatMul", MATRIX, constants=dynamic, element=TensorProto.FLOAT)
    yield _case(f"{MICROSOFT}.FusedMatMul", MATRIX, constants=(weight,), alpha=0.5)


def _recurrent() -> Iterator[OperatorCase]:
    def weights(gates: int, directions: int = 1) -> tuple[Array, Array]:
        return random(directions, gates * 8, 8, scale=0.2), random(directions, gates * 8, 8, scale=0.2, seed=1)

    yield _case("LSTM", RECURRENT_X, constants=weights(4), hidden_size=8)
    yield _case("LSTM/bidirectional", RECURRENT_X, constants=weights(4, 2), hidden_size=8, direction="bidirectional")
    yield _case("LSTM/float16", RECURRENT_X, constants=weights(4), hidden_size=8, dtype="float16")
    yield _case("GRU", RECURRENT_X, constants=weights(3), hidden_size=8)
    yield _case("GRU/linear_before_reset", RECURRENT_X, constants=weights(3), hidden_size=8, linear_before_reset=1)
    yield _case("RNN", RECURRENT_X, constants=weights(1), hidden_size=8)


def _transformers() -> Iterator[OperatorCase]:
    tokens, wide = _x(1, 4, 16), random(16)
    yield _case("LayerNormalization", tokens, constants=(wide, wide))
    yield _case("LayerNormalization/float16", tokens, constants=(wide, wide), dtype="float16")
    yield _case("RMSNormalization", tokens, constants=(wide,), opset=23)
    heads = _x(1, 2, 4, 8)
    yield _case("Attention", heads, heads, heads, opset=23)
    rotation = (_x(4, 4), _x(4, 4), _i(0, 1, 2, 3).reshape(1, 4))
    yield _case("RotaryEmbedding", heads, constants=rotation, opset=23)
    yield _case(f"{MICROSOFT}.Attention", tokens, constants=(random(16, 48), random(48)), num_heads=2)
    yield _case(f"{MICROSOFT}.MultiHeadAttention", tokens, tokens, tokens, num_heads=2)
    yield _case(f"{MICROSOFT}.SkipLayerNormalization", tokens, tokens, constants=(wide, wide))
    yield _case("SimplifiedLayerNormalization", tokens, constants=(wide,))  # onnxruntime's, in ONNX's domain
    yield _case(f"{MICROSOFT}.EmbedLayerNormalization", *_embedding(), element=TensorProto.FLOAT, outputs=2)
    for name in ("Gelu", "FastGelu", "BiasGelu", "QuickGelu"):
        yield _case(f"{MICROSOFT}.{name}", tokens, constants=(wide,) if name == "BiasGelu" else ())


def _embedding() -> tuple[Array, ...]:
    """Token and segment numbers, three tables, scale and bias of the normalisation."""
    numbers = np.zeros((1, 4), np.int32)
    return numbers, numbers, random(8, 16), random(4, 16), random(2, 16), random(16), random(16)


def _normalisations() -> Iterator[OperatorCase]:
    eight = random(8)
    positive = np.abs(eight) + 0.1
    yield _case("BatchNormalization", IMAGE, constants=(eight, eight, eight, positive))
    yield _case("InstanceNormalization", IMAGE, constants=(eight, eight))
    yield _case("GroupNormalization", IMAGE, constants=(eight, eight), num_groups=2, opset=21)
    yield _case("LpNormalization", MATRIX, axis=1)
    yield _case("LRN", IMAGE, size=3)
    yield _case("MeanVarianceNormalization", IMAGE)
    for name in ("Softmax", "LogSoftmax", "Hardmax"):
        yield _case(name, MATRIX, axis=-1)
    yield _case("Softmax/float16", MATRIX, axis=-1, dtype="float16")


def _element_wise() -> Iterator[OperatorCase]:
    for name in ("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "PRelu"):
        yield _case(name, MATRIX, _x(16))
    yield _case("Add/float16", MATRIX, _x(16), dtype="float16")
    yield _case("Add/int64", _i(1, 2, 3), _i(1, 2, 3))
    yield _case("Mod/fmod", MATRIX, MATRIX + 1, fmod=1)
    unary = ("Relu", "LeakyRelu", "Elu", "Selu", "Celu", "Sigmoid", "HardSigmoid", "Tanh", "Softplus", "Softsign")
    more = ("Erf", "Exp", "Log", "Sqrt", "Reciprocal", "Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Sin", "Cos")
    for name in (*unary, *more, "HardSwish", "ThresholdedRelu", "Identity"):
        yield _case(name, MATRIX)
    for name in ("Gelu", "Mish"):
        yield _case(name, MATRIX, opset=20)
    yield _case("Clip", MATRIX, constants=(np.array(0.2, np.float32), np.array(0.8, np.float32)))
    for name in ("Greater", "Less", "Equal"):
        yield _case(name, MATRIX, MATRIX, element=TensorProto.BOOL)
    truth = MATRIX > 0.5
    yield _case("And", truth, truth)
    yield _case("Not", truth)
    yield _case("Where", truth, MATRIX, MATRIX, element=TensorProto.FLOAT)
    elements = (TensorProto.FLOAT16, TensorProto.INT64, TensorProto.INT8, TensorProto.BOOL)
    for name, element in zip(("float16", "int64", "int8", "bool"), elements, strict=True):
        yield _case(f"Cast/{name}", MATRIX, element=element, to=element)
    yield OperatorCase("Cast/bfloat16", _bfloat16_cast)


def _reductions() -> Iterator[OperatorCase]:
    for name in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceLogSumExp"):
        yield _case(name, MATRIX, axes=[1])
    yield _case("ReduceSum", MATRIX, constants=(_i(1),))
    yield _case("ArgMax", MATRIX, axis=1, element=TensorProto.INT64)
    yield _case("TopK", MATRIX, constants=(_i(3),), outputs=2)
    yield _case("CumSum", MATRIX, constants=(np.array(1, np.int64),))
    yield _case("NonZero", MATRIX, element=TensorProto.INT64)
    yield _case("Unique", _x(8), outputs=2)
    boxes = np.sort(_x(1, 6, 4), axis=-1)
    few, share = _i(2), np.array([0.5], np.float32)
    yield _case("NonMaxSuppression", boxes, _x(1, 1, 6), constants=(few, share, share), element=TensorProto.INT64)


def _shapes() -> Iterator[OperatorCase]:
    yield _case("Reshape", MATRIX, constants=(_i(16, 8),))
    yield _case("Transpose", IMAGE, perm=[0, 2, 3, 1])
    yield _case("Concat", MATRIX, MATRIX, axis=1)
    yield _case("Split", MATRIX, constants=(_i(8, 8),), axis=1, outputs=2)
    yield _case("Slice", MATRIX, constants=(_i(0), _i(8), _i(1), _i(2)))
    yield _case("Squeeze", _x(1, 8), constants=(_i(0),))
    yield _case("Unsqueeze", MATRIX, constants=(_i(0),))
    yield _case("Flatten", IMAGE)
    yield _case("Expand", _x(1, 16), constants=(_i(8, 16),))
    yield _case("Tile", MATRIX, constants=(_i(2, 1),))
    yield _case("Shape", MATRIX, element=TensorProto.INT64)
    yield _case("OneHot", _i(0, 2, 1), constants=(_i(3), np.array([0, 1], np.float32)), element=TensorProto.FLOAT)
    yield _case("Range", *(np.array(value, np.int64) for value in (0, 8, 1)))
    yield _case("Trilu", MATRIX)
    yield _case("DepthToSpace", IMAGE, blocksize=2)
    yield _case("DepthToSpace/CRD", IMAGE, blocksize=2, mode="CRD")
    yield _case("SpaceToDepth", IMAGE, blocksize=2)
    for mode in ("constant", "reflect", "edge", "wrap"):
        opset = 19 if mode == "wrap" else OPSET
        yield _case(f"Pad/{mode}", IMAGE, constants=(_i(0, 0, 1, 1, 0, 0, 1, 1),), mode=mode, opset=opset)
    larger = (None, np.array([1, 1, 2, 2], np.float32))
    for mode in ("nearest", "linear", "cubic"):
        yield _case(f"Resize/{mode}", IMAGE, constants=larger, mode=mode)
    corners = {"coordinate_transformation_mode": "align_corners"}
    yield _case("Resize/linear_align_corners", IMAGE, constants=larger, mode="linear", **corners)
    grid = _x(1, 4, 4, 2) * 2 - 1
    yield _case("GridSample", IMAGE, grid)
    yield _case("GridSample/nearest", IMAGE, grid, mode="nearest")
    rois = np.array([[0, 0, 4, 4]], np.float32)
    yield _case("RoiAlign", IMAGE, rois, constants=(_i(0),), output_height=2, output_width=2)


def _indexing() -> Iterator[OperatorCase]:
    picks = _i(0, 3, 1)
    yield _case("Gather", MATRIX, constants=(picks,), axis=0)
    yield _case("Gather/input_indices", MATRIX, picks, axis=0)
    yield _case("GatherElements", MATRIX, constants=(np.zeros((8, 4), np.int64),), axis=1)
    yield _case("GatherND", MATRIX, constants=(_i(0, 1, 2, 3).reshape(2, 2),))
    places = np.zeros((1, 16), np.int64)
    yield _case("ScatterElements", MATRIX, constants=(places, _x(1, 16)), axis=0)
    yield _case("ScatterND", MATRIX, constants=(_i(1, 3).reshape(2, 1), _x(2, 16)))
    yield _case("EyeLike", _x(4, 4))
    yield OperatorCase("If", _branches)
    yield OperatorCase("Loop", _loop)


def _quantised() -> Iterator[OperatorCase]:
    yield _case("QuantizeLinear", MATRIX, constants=(SCALE, ZERO8), element=TensorProto.UINT8)
    yield _case("DequantizeLinear", BYTES, constants=(SCALE, ZERO8), element=TensorProto.FLOAT)
    yield _case("DynamicQuantizeLinear", MATRIX, element=TensorProto.UINT8, outputs=3)
    for operator in ("Conv", "MatMul", "Add", "Sigmoid", "MaxPool", "GlobalAveragePool"):
        yield OperatorCase(f"{operator}/qdq", _Qdq(operator))


@dataclass(frozen=True)
class _Qdq:
    """An operator between dequantised inputs and a quantised output: what quantised models are made of."""

    operator: str

    def __call__(self) -> MicroModel:
        network = Network("int8")
        is_flat = self.operator in ("MatMul", "Add", "Sigmoid")
        inputs = [network.input(MATRIX if is_flat else IMAGE)]
        if self.operator == "Add":
            inputs.append(network.input(MATRIX))
        if self.operator in ("Conv", "MatMul"):
            inputs.append(network.weight(SQUARE3 if self.operator == "Conv" else random(16, 8, scale=0.1)))
        shapes = {"MatMul": (8, 8), "MaxPool": (1, 8, 6, 6), "GlobalAveragePool": (1, 8, 1, 1)}
        attributes = {"Conv": PADDED3, "MaxPool": KERNEL3}.get(self.operator, {})
        value = network.step(self.operator, *inputs, **attributes)
        return network.model(value, *shapes.get(self.operator, MATRIX.shape if is_flat else IMAGE.shape))


def _bfloat16_matmul() -> MicroModel:
    network = Network("bfloat16")
    return network.model(network.step("MatMul", network.input(MATRIX), network.weight(random(16, 8))), 8, 8)


def _bfloat16_cast() -> MicroModel:
    """There and back: numpy has no such type."""
    network = Network("bfloat16")
    return network.model(network.input(MATRIX), *MATRIX.shape)


def _branches() -> MicroModel:
    """A condition that is known at run time only, and a sum or a difference."""

    def branch(operator: str) -> Any:
        out = helper.make_tensor_value_info(f"{operator}_y", TensorProto.FLOAT, MATRIX.shape)
        return helper.make_graph([helper.make_node(operator, ["x1", "x1"], [out.name])], operator, [], [out])

    node = helper.make_node("If", ["x0"], ["y"], name="node", then_branch=branch("Add"), else_branch=branch("Mul"))
    return _model([node], {"x0": np.array(True), "x1": MATRIX}, {}, {"y": TensorProto.FLOAT})


def _loop() -> MicroModel:
    """Three trips, each adding a matrix to one that is carried along."""
    carried = [helper.make_tensor_value_info(name, TensorProto.FLOAT, MATRIX.shape) for name in ("before", "after")]
    goes_on = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("goes_on", "still")]
    trip = helper.make_tensor_value_info("trip", TensorProto.INT64, [])
    nodes = [helper.make_node("Add", ["before", "x1"], ["after"]), helper.make_node("Identity", ["goes_on"], ["still"])]
    body = helper.make_graph(nodes, "body", [trip, goes_on[0], carried[0]], [goes_on[1], carried[1]])
    node = helper.make_node("Loop", ["x0", "go", "x1"], ["y"], name="node", body=body)
    feeds = {"x0": np.array(3, np.int64), "x1": MATRIX}
    return _model([node], feeds, {"go": np.array(True)}, {"y": TensorProto.FLOAT})


CASES: tuple[OperatorCase, ...] = (
    *_convolutions(),
    *_products(),
    *_transformers(),
    *_normalisations(),
    *_quantised(),
    *_element_wise(),
    *_shapes(),
    *_reductions(),
    *_indexing(),
    *_recurrent(),
)

_BY_NAME: Mapping[str, OperatorCase] = MappingProxyType({case.name: case for case in CASES})


def case_named(name: str) -> OperatorCase:
    """The case of that name.

    Raises:
        KeyError: there is none.
    """
    return _BY_NAME[name]
