"""The work of every node: counted by hand on models made on the spot, and held to describe() on the zoo."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_metainfer.errors import InputsError, ModelError
from ort_metainfer.model.graph import describe
from ort_metainfer.model.sizes import input_shapes
from ort_metainfer.model.workload import NodeWork, workload

FLOAT, HALF, INT8, INT64, UINT8 = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.INT8,
    TensorProto.INT64,
    TensorProto.UINT8,
)
node, value = helper.make_node, helper.make_tensor_value_info


def weight(name: str, *dims: int, kind: int = FLOAT) -> TensorProto:
    return numpy_helper.from_array(np.ones(dims, helper.tensor_dtype_to_np_dtype(kind)), name)


def integers(name: str, *values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def model_of(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: Sequence[TensorProto] = (),
    **others: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(weights))
    domains = sorted({item.domain for item in nodes if item.domain})
    imports = [helper.make_opsetid("", 18), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, **others)


def work_of(*arguments: Any, shapes: Mapping[str, tuple[int, ...]] | None = None) -> dict[str, NodeWork]:
    """Work by the name of the first output."""
    return {next(iter(found.writes)): found for found in workload(model_of(*arguments), shapes or {})}


def test_a_convolution_is_counted_with_its_bytes_weights_apart() -> None:
    found = work_of(
        [node("Conv", ["x", "w", "b"], ["y"], name="conv", strides=[2, 2])],
        [value("x", FLOAT, [1, 3, 9, 9])],
        [value("y", FLOAT, [1, 8, 4, 4])],
        [weight("w", 8, 3, 3, 3), weight("b", 8)],
    )["y"]
    assert found == NodeWork(
        name="conv",
        operator="Conv",
        dtype="float32",
        output=(1, 8, 4, 4),
        macs=8 * 4 * 4 * 3 * 3 * 3,
        reads={"x": 4 * 3 * 9 * 9},
        weights={"w": 4 * 8 * 27, "b": 32},
        writes={"y": 4 * 8 * 16},
        channels=(3, 8),
    )
    assert (found.read_bytes, found.weight_bytes, found.written_bytes) == (972, 896, 512)
    assert (found.elements, found.is_known) == (128, True)


@pytest.mark.parametrize(
    ("operator", "attributes", "shape", "kernel", "macs", "channels"),
    [
        ("Conv", {"group": 8}, [1, 8, 4, 4], (8, 1, 1, 1), 8 * 16, (1, 8)),
        ("ConvTranspose", {"group": 2}, [1, 8, 4, 4], (8, 3, 1, 1), 8 * 16 * 3, (4, 6)),
        ("MatMul", {}, [2, 5, 8], (8, 3), 2 * 5 * 3 * 8, (8, 3)),
        ("Gemm", {"transB": 1}, [5, 8], (3, 8), 5 * 3 * 8, (8, 3)),
    ],
)
def test_channels_are_what_is_summed_over_and_what_comes_out(
    operator: str,
    attributes: dict[str, int],
    shape: list[int],
    kernel: tuple[int, ...],
    macs: int,
    channels: tuple[int, int],
) -> None:
    found = work_of(
        [node(operator, ["x", "w"], ["y"], **attributes)],
        [value("x", FLOAT, shape)],
        [value("y", FLOAT, None)],
        [weight("w", *kernel)],
    )["y"]
    assert (found.macs, found.channels) == (macs, channels)


@pytest.mark.parametrize(("kind", "size", "dtype"), [(FLOAT, 4, "float32"), (HALF, 2, "float16"), (INT64, 8, "int64")])
def test_bytes_follow_the_element_type(kind: int, size: int, dtype: str) -> None:
    found = work_of([node("Add", ["x", "x"], ["y"])], [value("x", kind, [10])], [value("y", kind, None)])["y"]
    assert (found.read_bytes, found.written_bytes, found.dtype, found.macs) == (10 * size, 10 * size, dtype, None)


def test_a_view_moves_nothing_and_a_table_is_read_by_the_row() -> None:
    found = work_of(
        [
            node("Gather", ["table", "ids"], ["rows"]),
            node("Reshape", ["rows", "shape"], ["flat"]),
            node("Slice", ["flat", "zero", "two", "zero"], ["y"]),
        ],
        [value("ids", INT64, [4])],
        [value("y", FLOAT, None)],
        [weight("table", 30_000, 16), integers("shape", 8, 8), integers("zero", 0), integers("two", 2)],
    )
    assert found["rows"].weights == {"table": 4 * 16 * 4}
    assert found["rows"].reads == {"ids": 32}
    assert found["flat"].is_view and found["flat"].read_bytes == found["flat"].written_bytes == 0
    assert found["y"].reads == {"flat": 2 * 8 * 4}


def test_what_shapes_alone_tell_is_folded_and_what_data_tell_is_unknown() -> None:
    found = work_of(
        [
            node("Shape", ["x"], ["dims"]),
            node("Gather", ["dims", "one"], ["length"]),
            node("NonZero", ["x"], ["where"]),
            node("Cast", ["where"], ["y"], to=FLOAT),
        ],
        [value("x", FLOAT, [4, 5])],
        [value("y", FLOAT, None), value("length", INT64, None)],
        [integers("one", 1)],
    )
    assert found["length"].folded and not found["y"].folded
    assert found["y"].output is None and found["y"].written_bytes is None and not found["y"].is_known
    assert found["where"].read_bytes == 80


def quantised(*, weights_only: bool = False) -> dict[str, NodeWork]:
    """QuantizeLinear, DequantizeLinear, Conv with dequantised weights, and a Relu of the result."""
    scale, zero = numpy_helper.from_array(np.float32(0.1), "s"), numpy_helper.from_array(np.uint8(0), "z")
    zero8 = numpy_helper.from_array(np.int8(0), "z8")
    data = "x" if weights_only else "dx"
    return work_of(
        [
            node("QuantizeLinear", ["x", "s", "z"], ["qx"]),
            node("DequantizeLinear", ["qx", "s", "z"], ["dx"]),
            node("DequantizeLinear", ["qw", "s", "z8"], ["dw"]),
            node("Conv", [data, "dw"], ["c"]),
            node("Relu", ["c"], ["y"]),
        ],
        [value("x", FLOAT, [1, 4, 8, 8])],
        [value("y", FLOAT, None), value("dx", FLOAT, None)],
        [weight("qw", 4, 4, 1, 1, kind=INT8), scale, zero, zero8],
    )


def test_a_node_between_dequantize_linear_computes_on_integers_and_its_weights_are_bytes() -> None:
    found = quantised()
    assert found["c"].quantised and found["qx"].quantised and found["dx"].quantised
    assert not found["y"].quantised
    assert found["qx"].writes == {"qx": 256}, "one byte an element"
    assert found["dw"].weights["qw"] == 16
    assert found["dx"].writes == {"dx": 1024}


def test_weights_alone_in_few_bits_are_computed_with_in_float() -> None:
    assert not quantised(weights_only=True)["c"].quantised


def test_integer_operators_are_quantised_and_packed_weights_are_counted_packed() -> None:
    packed = weight("w", 16, 2, 16, kind=UINT8)  # N=16, K=64 in blocks of 32, 4 bits
    found = work_of(
        [
            node("MatMulInteger", ["a", "b"], ["i"]),
            node("MatMulNBits", ["x", "w", "sc"], ["y"], domain="com.microsoft", K=64, N=16, bits=4, block_size=32),
        ],
        [value("a", UINT8, [3, 8]), value("x", FLOAT, [1, 64])],
        [value("i", TensorProto.INT32, None), value("y", FLOAT, None)],
        [weight("b", 8, 5, kind=INT8), packed, weight("sc", 32)],
    )
    assert (found["i"].quantised, found["i"].dtype, found["i"].macs, found["i"].channels) == (
        True,
        "uint8",
        120,
        (8, 5),
    )
    assert (found["y"].quantised, found["y"].macs) == (False, 64 * 16)
    assert found["y"].weights["w"] == 16 * 2 * 16


def test_a_transposed_fused_product_counts_once() -> None:
    found = work_of(
        [node("FusedMatMul", ["x", "w"], ["y"], domain="com.microsoft", transB=1)],
        [value("x", FLOAT, [5, 8])],
        [value("y", FLOAT, None)],
        [weight("w", 3, 8)],
    )
    assert len(found) == 1
    assert (found["y"].operator, found["y"].macs) == ("com.microsoft.FusedMatMul", 120)


def loop(trips: int) -> onnx.ModelProto:
    body = helper.make_graph(
        [node("MatMul", ["h", "w"], ["h2"]), node("Identity", ["c"], ["c2"])],
        "body",
        [value("i", INT64, []), value("c", TensorProto.BOOL, []), value("h", FLOAT, [1, 8])],
        [value("c2", TensorProto.BOOL, []), value("h2", FLOAT, [1, 8])],
    )
    count = numpy_helper.from_array(np.array(trips, np.int64), "n")
    return model_of(
        [node("Loop", ["n", "", "x"], ["y"], body=body)],
        [value("x", FLOAT, [1, 8])],
        [value("y", FLOAT, [1, 8])],
        [count, weight("w", 8, 8)],
    )


def test_what_a_loop_holds_runs_as_often_as_it_does() -> None:
    product, _, around = workload(loop(7))
    assert (product.operator, product.runs, product.macs, product.inside) == ("MatMul", 7, 64, "Loop")
    assert product.weights == {"w": 256}, "a weight of the graph around"
    assert (around.operator, around.macs, around.read_bytes, around.inside) == ("Loop", None, 0, None)
    assert describe(loop(7).SerializeToString()).macs == 7 * 64


def test_of_an_if_the_branch_that_works_more_counts() -> None:
    def branch(name: str, columns: int) -> Any:
        tensor = weight(f"w{name}", 8, columns)
        nodes = [node("MatMul", ["x", f"w{name}"], [f"m{name}"]), node("ReduceSum", [f"m{name}"], [f"o{name}"])]
        return helper.make_graph(nodes, name, [], [value(f"o{name}", FLOAT, None)], [tensor])

    model = model_of(
        [node("If", ["c"], ["y"], then_branch=branch("a", 2), else_branch=branch("b", 5))],
        [value("c", TensorProto.BOOL, []), value("x", FLOAT, [1, 8])],
        [value("y", FLOAT, None)],
    )
    found = workload(model)
    assert [item.name for item in found] == ["mb", "ob", "y"]
    assert found[0].macs == 40 == describe(model.SerializeToString()).macs


def test_a_recurrent_node_tells_its_steps() -> None:
    found = work_of(
        [node("LSTM", ["x", "w", "r"], ["y"], hidden_size=6)],
        [value("x", FLOAT, [9, 1, 4])],
        [value("y", FLOAT, None)],
        [weight("w", 1, 24, 4), weight("r", 1, 24, 6)],
    )["y"]
    assert (found.steps, found.macs, found.channels) == (9, 9 * 4 * 6 * 10, (10, 24))


def test_a_function_is_unfolded() -> None:
    function = helper.make_function(
        "own",
        "Twice",
        ["a"],
        ["b"],
        [node("Relu", ["a"], ["t"]), node("Neg", ["t"], ["b"])],
        [helper.make_opsetid("", 18)],
    )
    model = model_of(
        [node("Twice", ["x"], ["y"], domain="own")],
        [value("x", FLOAT, [4])],
        [value("y", FLOAT, [4])],
        functions=[function],
    )
    assert [item.operator for item in workload(model)] == ["Relu", "Neg"]


def test_open_dimensions_are_unknown_until_they_are_given_also_where_an_output_names_its_own() -> None:
    model = model_of(
        [node("Relu", ["x"], ["y"])], [value("x", FLOAT, ["N", 4])], [value("y", FLOAT, ["other", "names"])]
    )
    assert not workload(model)[0].is_known
    assert workload(model, {"x": (3, 4)})[0].written_bytes == 48


def test_the_model_given_stays_as_it_is_and_what_is_wrong_is_told() -> None:
    model = loop(3)
    before = model.SerializeToString()
    workload(model)
    assert model.SerializeToString() == before
    with pytest.raises(InputsError, match="nope"):
        workload(model, {"nope": (1,)})
    with pytest.raises(ModelError):
        workload(b"no model")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "opennsfw_resnet50",
        "minilm_l3_fp32",
        "ppocr_v6_det",
        "ppocr_v6_rec",
        "silero_vad",
        "magika_v3",
        "doc_orientation",
    ],
)
def test_the_zoo_adds_up_to_what_describe_counts(name: str, zoo_model: Callable[[str], Path]) -> None:
    path = zoo_model(name)
    shapes = input_shapes(describe(path), {})
    graph, found = describe(path, shapes), workload(path, shapes)
    assert sum((item.macs or 0) * item.runs for item in found) == graph.macs
    distinct = {name: size for item in found for name, size in item.weights.items()}
    assert 0 < sum(distinct.values()) <= graph.weight_bytes * 1.01, "constants of folded shapes may add a little"
    known = sum(item.is_known for item in found)
    assert known / len(found) > (0.9 if name == "silero_vad" else 0.999)
