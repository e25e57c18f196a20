"""Drop-in cases 11-22, 30-32, 34-36, 41: what stands in the graph and what flows through it."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from tests.dropin_models import F, X, case, dense, info, model, saved, tensor, values
from tests.dropin_observe import Call

I64, BOOL, STRING = TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING


if importlib.util.find_spec("onnxruntime_extensions"):  # brings a library of custom ops; not among our dependencies

    @case(11, adapted=False)
    def custom_op_library(folder: Path) -> Call:
        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(importlib.import_module("onnxruntime_extensions").get_library_path())
        node = helper.make_node("StringUpper", ["s"], ["y"], domain="ai.onnx.contrib")
        opsets = {"": 17, "ai.onnx.contrib": 1}
        proto = model([node], [info("s", ["N"], STRING)], [info("y", ["N"], STRING)], opsets=opsets)
        return Call(saved(proto, folder / "model.onnx"), {"s": np.array(["one", "zwei"], dtype=object)}, options)


@case(11, refused=True)
def custom_op_library_missing(folder: Path) -> Call:
    """Registering the library fails, so the op is unknown; the model names its domain without importing it."""
    options = onnxruntime.SessionOptions()
    try:
        options.register_custom_ops_library(str(folder / "libcustom.so"))
    except Exception as error:  # noqa: BLE001 (onnxruntime's own class, Fail, differs between versions)
        assert "libcustom.so" in str(error)
    proto = model(
        [helper.make_node("CustomOp", ["x"], ["y"], domain="example.ops")], [info("x", [8])], [info("y", [8])]
    )
    return Call(saved(proto, folder / "model.onnx"), {"x": values(8)}, options)


@case(12, refused=True)
def unregistered_op(folder: Path) -> Call:
    node = helper.make_node("NoSuchOp", ["x"], ["y"], domain="example.ops")
    proto = model([node], [info("x", [8])], [info("y", [8])], opsets={"": 17, "example.ops": 1})
    return Call(saved(proto, folder / "model.onnx"), {"x": values(8)})


@case(13)
def contrib_ops(folder: Path) -> Call:
    nodes = [
        helper.make_node("FusedMatMul", ["x", "W"], ["xw"], domain="com.microsoft", alpha=0.5),
        helper.make_node("Gelu", ["xw"], ["y"], domain="com.microsoft"),
    ]
    opsets = {"": 17, "com.microsoft": 1}
    proto = model(nodes, [info("x", ["N", 8])], [info("y", ["N", 4])], [tensor("W", values(8, 4))], opsets=opsets)
    return Call(saved(proto, folder / "model.onnx"), X)


@case(14)
def local_functions(folder: Path) -> Call:
    body = [helper.make_node("Mul", ["a", "a"], ["aa"]), helper.make_node("Add", ["aa", "a"], ["b"])]
    function = helper.make_function("local", "SquarePlus", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    nodes = [
        helper.make_node("SquarePlus", ["x"], ["t"], domain="local"),
        helper.make_node("SquarePlus", ["t"], ["y"], domain="local"),
    ]
    opsets = {"": 17, "local": 1}
    proto = model(nodes, [info("x", ["N", 8])], [info("y", ["N", 8])], opsets=opsets, functions=[function])
    return Call(saved(proto, folder / "model.onnx"), X)


@case(15)
def sparse_initializer(folder: Path) -> Call:
    proto = model([helper.make_node("MatMul", ["x", "W"], ["y"])], [info("x", ["N", 8])], [info("y", ["N", 4])])
    kept = helper.make_tensor("W", F, [3], [1.0, 2.0, 3.0])
    where = helper.make_tensor("W_indices", I64, [3], [0, 13, 31])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(kept, where, [8, 4]))
    return Call(saved(proto, folder / "model.onnx"), X)


def _if_node() -> onnx.NodeProto:
    then = helper.make_graph([helper.make_node("Add", ["x", "x"], ["t"])], "then", [], [info("t", None)])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["e"])], "else", [], [info("e", None)])
    return helper.make_node("If", ["c"], ["branched"], then_branch=then, else_branch=other)


def _loop_node() -> onnx.NodeProto:
    body = helper.make_graph(
        [helper.make_node("Add", ["state", "branched"], ["next"]), helper.make_node("Identity", ["go"], ["goes"])],
        "body",
        [info("i", [], I64), info("go", [], BOOL), info("state", None)],
        [info("goes", [], BOOL), info("next", None)],
    )
    return helper.make_node("Loop", ["trips", "", "x"], ["looped"], body=body)


def _scan_node() -> onnx.NodeProto:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["sum", "row"], ["sum_next"]),
            helper.make_node("Identity", ["sum_next"], ["row_out"]),
        ],
        "rows",
        [info("sum", [8]), info("row", [8])],
        [info("sum_next", [8]), info("row_out", [8])],
    )
    return helper.make_node("Scan", ["start", "looped"], ["total", "y"], num_scan_inputs=1, body=body)


@case(16)
def if_loop_scan(folder: Path) -> Call:
    constants = [tensor("trips", np.array(3)), tensor("start", np.zeros(8, np.float32))]
    inputs = [info("x", ["N", 8]), info("c", [], BOOL)]
    outputs = [info("y", ["N", 8]), info("total", [8])]
    proto = model([_if_node(), _loop_node(), _scan_node()], inputs, outputs, constants)
    return Call(saved(proto, folder / "model.onnx"), {**X, "c": np.array(True)})


@case(17)
def overridable_initializer_left(folder: Path) -> Call:
    proto = dense()
    proto.graph.input.append(info("b", [4]))
    return Call(saved(proto, folder / "model.onnx"), X)


@case(17)
def overridable_initializer_given(folder: Path) -> Call:
    call = overridable_initializer_left(folder)
    return Call(call.model, {**X, "b": values(4, seed=7)})


@case(18)
def ir_version_3(folder: Path) -> Call:
    proto = dense(ir=3)
    proto.graph.input.extend([info("W", [8, 4]), info("b", [4])])
    proto.opset_import[0].version = 8
    return Call(saved(proto, folder / "model.onnx"), X)


def _optional(folder: Path, feeds: dict[str, np.ndarray | None]) -> Call:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(F, ["N"]))
    nodes = [
        helper.make_node("OptionalHasElement", ["o"], ["has"]),
        helper.make_node("Optional", ["x"], ["again"]),
        helper.make_node("OptionalGetElement", ["again"], ["y"]),
    ]
    inputs = [helper.make_value_info("o", kind), info("x", ["N"])]
    proto = model(nodes, inputs, [info("has", [], BOOL), info("y", ["N"])], opsets={"": 18})
    return Call(saved(proto, folder / "model.onnx"), feeds)


@case(19)
def optional_given(folder: Path) -> Call:
    return _optional(folder, {"o": values(5), "x": values(5)})


@case(19)
def optional_none(folder: Path) -> Call:
    return _optional(folder, {"o": None, "x": values(5)})


@case(20)
def sequence(folder: Path) -> Call:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(F, None))
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x2"], ["s"]),
        helper.make_node("SequenceInsert", ["s", "x"], ["s3"]),
        helper.make_node("SequenceLength", ["s3"], ["n"]),
    ]
    outputs = [helper.make_value_info("s3", kind), info("n", [], I64)]
    proto = model(nodes, [info("x", ["N"]), info("x2", ["M"])], outputs)
    return Call(saved(proto, folder / "model.onnx"), {"x": values(2), "x2": values(5)})


@case(21)
def zip_map(folder: Path) -> Call:
    node = helper.make_node("ZipMap", ["p"], ["z"], domain="ai.onnx.ml", classlabels_strings=["cat", "dog", "ünï"])
    kind = helper.make_sequence_type_proto(onnx.TypeProto(map_type=onnx.TypeProto.Map(key_type=STRING)))
    kind.sequence_type.elem_type.map_type.value_type.CopyFrom(helper.make_tensor_type_proto(F, []))
    nodes = [helper.make_node("Softmax", ["x"], ["p"]), node]
    outputs = [helper.make_value_info("z", kind), info("p", ["N", 3])]
    proto = model(nodes, [info("x", ["N", 3])], outputs, opsets={"": 17, "ai.onnx.ml": 1})
    return Call(saved(proto, folder / "model.onnx"), {"x": values(4, 3)}, binding=False)  # plain: segmentation fault


@case(22)
def string_tensors(folder: Path) -> Call:
    nodes = [
        helper.make_node("Concat", ["s", "more"], ["all"], axis=0),
        helper.make_node(
            "StringNormalizer", ["all"], ["y"], case_change_action="UPPER", stopwords=["stop"], locale="C"
        ),
    ]
    more = helper.make_tensor("more", STRING, [2], [b"stop", b"drei"])
    proto = model(nodes, [info("s", ["N"], STRING)], [info("y", [None], STRING)], [more])
    return Call(saved(proto, folder / "model.onnx"), {"s": np.array(["one", "", "zwei"], dtype=object)})


@case(30)
def no_input(folder: Path) -> Call:
    node = helper.make_node("Constant", [], ["y"], value=tensor("c", values(2, 2)))
    return Call(saved(model([node], [], [info("y", [2, 2])]), folder / "model.onnx"))


@case(30)
def scalar(folder: Path) -> Call:
    proto = model([helper.make_node("Exp", ["x"], ["y"])], [info("x", [])], [info("y", [])])
    return Call(saved(proto, folder / "model.onnx"), {"x": np.array(0.5, np.float32)})


@case(30)
def zero_size(folder: Path) -> Call:
    return Call(saved(dense(), folder / "model.onnx"), {"x": np.zeros((0, 8), np.float32)})


@case(30)
def input_is_output(folder: Path) -> Call:
    return Call(saved(model([], [info("x", ["N"])], [info("x", ["N"])]), folder / "model.onnx"), {"x": values(3)})


def _through(folder: Path, kind: int, opset: int, ir: int) -> Call:
    """Float to a low-precision type and back; the value of that type is an output too."""
    nodes = [helper.make_node("Cast", ["x"], ["low"], to=kind), helper.make_node("Cast", ["low"], ["y"], to=F)]
    outputs = [info("low", ["N"], kind), info("y", ["N"])]
    proto = model(nodes, [info("x", ["N"])], outputs, opsets={"": opset}, ir=ir)
    return Call(saved(proto, folder / "model.onnx"), {"x": values(6) * 3})


@case(31)
def float16(folder: Path) -> Call:
    nodes = [helper.make_node("MatMul", ["x", "W"], ["y"])]
    weight = tensor("W", values(8, 4).astype(np.float16))
    kind = TensorProto.FLOAT16
    proto = model(nodes, [info("x", ["N", 8], kind)], [info("y", ["N", 4], kind)], [weight])
    return Call(saved(proto, folder / "model.onnx"), {"x": X["x"].astype(np.float16)})


@case(31)
def bfloat16(folder: Path) -> Call:
    return _through(folder, TensorProto.BFLOAT16, 17, 8)


@case(31)
def float8(folder: Path) -> Call:
    return _through(folder, TensorProto.FLOAT8E4M3FN, 19, 9)


@case(31, refused=None)
def int4(folder: Path) -> Call:
    return _through(folder, TensorProto.INT4, 21, 10)


@case(32)
def metadata(folder: Path) -> Call:
    proto = dense(name="a graph's name", doc_string="what it does", domain="org.example", model_version=7)
    proto.graph.doc_string, proto.producer_version = "the graph", "1.2.3"
    helper.set_model_props(proto, {"labels": '["a", "b"]', "empty": "", "ünï": "ö", "long": "x" * 5000})
    return Call(saved(proto, folder / "model.onnx"), X)


@case(34)
def random_ops_with_seed(folder: Path) -> Call:
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["r"], seed=5.0),
        helper.make_node("RandomUniform", [], ["u"], shape=[8], seed=6.0),
        helper.make_node("Add", ["r", "u"], ["y"]),
    ]
    return Call(saved(model(nodes, [info("x", ["N", 8])], [info("y", ["N", 8])]), folder / "model.onnx"), X)


@case(34)
def random_ops_of_the_global_seed(folder: Path) -> Call:
    """Without a seed of its own each kernel takes the global one and its node's index, so the graph must stay."""
    onnxruntime.set_seed(11)
    nodes = [
        helper.make_node("Identity", ["x"], ["x1"]),
        helper.make_node("RandomNormalLike", ["x1"], ["r"]),
        helper.make_node("RandomUniformLike", ["x1"], ["u"]),
        helper.make_node("Add", ["r", "u"], ["y"]),
    ]
    return Call(saved(model(nodes, [info("x", ["N", 8])], [info("y", ["N", 8])]), folder / "model.onnx"), X)


@case(35, refused=True)
def future_ir(folder: Path) -> Call:
    return Call(saved(dense(ir=999), folder / "model.onnx"), X)


@case(35, refused=True)
def future_opset(folder: Path) -> Call:
    return Call(saved(dense(opsets={"": 999}), folder / "model.onnx"), X)


@case(36)
def refused_by_the_checker(folder: Path) -> Call:
    """onnxruntime runs it; onnx.checker does not take a graph without a name."""
    proto = dense()
    proto.graph.name = ""
    return Call(saved(proto, folder / "model.onnx"), X)


@case(36)
def output_without_shape(folder: Path) -> Call:
    proto = dense()
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return Call(saved(proto, folder / "model.onnx"), X)


@case(36, refused=True)
def unsorted_cycle(folder: Path) -> Call:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    return Call(saved(model(nodes, [info("x", [8])], [info("b", [8])]), folder / "model.onnx"), {"x": values(8)})


@case(41)
def qdq(folder: Path) -> Call:
    def quantised(source: str, scale: str, zero: str, target: str) -> list[onnx.NodeProto]:
        return [
            helper.make_node("QuantizeLinear", [source, scale, zero], [f"{target}_q"]),
            helper.make_node("DequantizeLinear", [f"{target}_q", scale, zero], [target]),
        ]

    nodes = [
        *quantised("x", "xs", "xz", "xd"),
        helper.make_node("DequantizeLinear", ["W", "ws", "wz"], ["Wd"]),
        helper.make_node("MatMul", ["xd", "Wd"], ["m"]),
        *quantised("m", "ms", "mz", "y"),
    ]
    weight = np.random.default_rng(1).integers(-128, 127, (8, 4)).astype(np.int8)
    scales = [tensor(name, np.float32(scale)) for name, scale in (("xs", 0.02), ("ws", 0.01), ("ms", 0.05))]
    zeros = [tensor("xz", np.uint8(128)), tensor("wz", np.int8(0)), tensor("mz", np.uint8(128))]
    initializers = [tensor("W", weight), *scales, *zeros]
    proto = model(nodes, [info("x", ["N", 8])], [info("y", ["N", 4])], initializers)
    return Call(saved(proto, folder / "model.onnx"), X)
