"""What describe() says about a model: counted by hand on models made on the spot, and on the zoo."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ort_metainfer.errors import InputsError, ModelError
from ort_metainfer.model.graph import describe
from ort_metainfer.problem import Graph, TensorSpec

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node, value = helper.make_node, helper.make_tensor_value_info


def weight(name: str, *dims: int, kind: int = FLOAT) -> TensorProto:
    """An initialiser of ones."""
    return numpy_helper.from_array(np.ones(dims, helper.tensor_dtype_to_np_dtype(kind)), name)


def integers(name: str, *values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def model_of(
    nodes: Sequence[NodeProto],
    inputs: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
    weights: Sequence[TensorProto] = (),
    opset: int = 18,
    ir_version: int = 10,
    **others: Any,
) -> ModelProto:
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(weights))
    domains = sorted({item.domain for item in nodes if item.domain})
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version, **others)


def described(*arguments: Any, shapes: dict[str, tuple[int, ...]] | None = None, **others: Any) -> Graph:
    return describe(model_of(*arguments, **others).SerializeToString(), shapes or {})


def runs(model: ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


class TestDeclarations:
    def test_a_dimension_is_a_size_a_name_or_unnamed(self) -> None:
        inputs = [
            value("x", FLOAT, ["N", 3, None, -1, "", "?", 0]),
            value("scalar", TensorProto.FLOAT16, []),
            value("free", BOOL, None),
        ]
        graph = described([node("Identity", ["x"], ["y"])], inputs, [value("y", FLOAT, None)])
        assert graph.inputs == (
            TensorSpec("x", "float32", ("N", 3, None, None, None, None, 0)),
            TensorSpec("scalar", "float16", ()),
            TensorSpec("free", "bool", None),
        )
        assert graph.outputs == (TensorSpec("y", "float32", None),)
        assert graph.symbolic_dims == ("N",)

    @pytest.mark.parametrize(
        ("element", "name"),
        [
            (TensorProto.DOUBLE, "float64"),
            (TensorProto.INT8, "int8"),
            (TensorProto.UINT16, "uint16"),
            (TensorProto.STRING, "string"),
            (TensorProto.BFLOAT16, "bfloat16"),
            (TensorProto.FLOAT8E4M3FN, "float8e4m3fn"),
            (TensorProto.INT4, "int4"),
            (TensorProto.COMPLEX64, "complex64"),
            (12345, "unknown type 12345"),
        ],
    )
    def test_types_have_numpy_names(self, element: int, name: str) -> None:
        graph = described([node("Identity", ["x"], ["y"])], [value("x", element, [1])])
        assert graph.inputs[0].dtype == name

    def test_what_is_no_tensor_is_named_as_onnxruntime_names_it(self) -> None:
        tensor = helper.make_tensor_type_proto(FLOAT, None)
        sequence = helper.make_value_info("s", helper.make_sequence_type_proto(tensor))
        optional = helper.make_value_info(
            "o", helper.make_optional_type_proto(helper.make_tensor_type_proto(INT64, [2]))
        )
        nodes = [node("SequenceLength", ["s"], ["n"]), node("OptionalHasElement", ["o"], ["b"])]
        model = model_of(nodes, [sequence, optional], [value("n", INT64, []), value("b", BOOL, [])])
        theirs = {item.name: item.type for item in runs(model).get_inputs()}
        ours = {spec.name: spec.dtype for spec in describe(model.SerializeToString()).inputs}
        assert ours == theirs
        assert describe(model.SerializeToString()).inputs[0].shape is None

    def test_a_map_in_a_sequence_is_named_as_onnxruntime_names_it(self) -> None:
        kind = onnx.TypeProto()
        kind.sequence_type.elem_type.map_type.key_type = INT64
        kind.sequence_type.elem_type.map_type.value_type.CopyFrom(helper.make_tensor_type_proto(FLOAT, None))
        zipmap = node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
        model = model_of([zipmap], [value("x", FLOAT, [1, 2])], [helper.make_value_info("y", kind)])
        theirs = runs(model).get_outputs()[0].type
        assert describe(model.SerializeToString()).outputs[0].dtype == theirs == "seq(map(int64,tensor(float)))"

    @pytest.mark.parametrize(("ir_version", "overridable"), [(10, ["w"]), (3, [])])
    def test_an_input_with_an_initialiser_may_be_overridden_as_onnxruntime_has_it(
        self, ir_version: int, overridable: list[str]
    ) -> None:
        inputs = [value("x", FLOAT, [2]), value("w", FLOAT, [2])]
        add = node("Add", ["x", "w"], ["y"])
        model = model_of([add], inputs, [value("y", FLOAT, None)], [weight("w", 2)], opset=8, ir_version=ir_version)
        graph = describe(model.SerializeToString())
        assert [spec.name for spec in graph.inputs] == [item.name for item in runs(model).get_inputs()] == ["x"]
        assert [spec.name for spec in graph.overridable] == overridable
        assert [item.name for item in runs(model).get_overridable_initializers()] == overridable


def constant(**attributes: Any) -> NodeProto:
    return node("Constant", [], ["c"], **attributes)


def branch(*nodes: NodeProto, result: str = "r", weights: Sequence[TensorProto] = ()) -> GraphProto:
    return helper.make_graph(list(nodes), "branch", [], [value(result, FLOAT, None)], list(weights))


def nested_ifs(depth: int) -> GraphProto:
    """A branch in which an If lies in an If, ``depth`` times; a Relu is the innermost."""
    if depth == 0:
        return branch(node("Relu", ["x"], ["r"]))
    other = branch(node("Identity", ["x"], ["r"]))
    return branch(node("If", ["flag"], ["r"], then_branch=nested_ifs(depth - 1), else_branch=other))


class TestCounts:
    def test_subgraphs_count_and_domains_are_named(self) -> None:
        body = helper.make_graph(
            [node("Relu", ["inner"], ["grown"]), node("Identity", ["go"], ["on"])],
            "body",
            [value("i", INT64, []), value("go", BOOL, []), value("inner", FLOAT, [2])],
            [value("on", BOOL, []), value("grown", FLOAT, [2])],
        )
        nodes = [
            node("Loop", ["trips", "flag", "x"], ["looped"], body=body),
            node("Gelu", ["looped"], ["z"], domain="com.microsoft"),
            node("Relu", ["z"], ["y"], domain="ai.onnx"),
        ]
        inputs = [value("x", FLOAT, [2]), value("trips", INT64, []), value("flag", BOOL, [])]
        graph = described(nodes, inputs, [value("y", FLOAT, [2])])
        assert graph.operators == {"Identity": 1, "Loop": 1, "Relu": 2, "com.microsoft.Gelu": 1}
        assert graph.node_count == 5
        assert graph.has_control_flow

    def test_ifs_nested_twentyfive_deep_are_followed_to_the_end(self) -> None:
        inputs = [value("x", FLOAT, [2]), value("flag", BOOL, [])]
        outer = node("If", ["flag"], ["y"], then_branch=nested_ifs(24), else_branch=nested_ifs(0))
        graph = described([outer], inputs, [value("y", FLOAT, [2])])
        assert graph.operators == {"Identity": 24, "If": 25, "Relu": 2}

    def test_ten_thousand_nodes_are_counted(self) -> None:
        nodes = [node("Relu", [f"v{place}"], [f"v{place + 1}"]) for place in range(9_999)]
        nodes.append(node("MatMul", ["v9999", "w"], ["y"]))
        graph = described(nodes, [value("v0", FLOAT, [2, 3])], [value("y", FLOAT, None)], [weight("w", 3, 4)])
        assert graph.node_count == 10_000
        assert graph.macs == 2 * 3 * 4

    def test_the_body_of_a_function_counts_once_however_often_it_is_called(self) -> None:
        graph = describe(with_functions(calls=3).SerializeToString())
        assert graph.operators == {"MatMul": 1, "mine.Block": 3}
        # a domain whose functions the model brings along is none that lacks schemas
        assert graph.blockers == ("model-local functions",)

    @pytest.mark.parametrize(
        ("attributes", "count", "size"),
        [
            ({"value": weight("w", 2, 3)}, 6, 24),
            ({"value_floats": [1.0, 2.0, 3.0]}, 3, 12),
            ({"value_int": 7}, 1, 8),
            ({"value_ints": [1, 2]}, 2, 16),
            ({"value_strings": ["ab", "c"]}, 2, 3),
        ],
    )
    def test_constant_nodes_count_as_weights(self, attributes: dict[str, Any], count: int, size: int) -> None:
        graph = described([constant(**attributes)], [], [value("c", FLOAT, None)])
        assert (graph.parameter_count, graph.weight_bytes) == (count, size)

    def test_weights_count_wherever_they_lie_and_by_their_own_width(self) -> None:
        packed = TensorProto(name="packed", data_type=TensorProto.INT4, dims=[5], raw_data=b"abc")
        text = helper.make_tensor("text", TensorProto.STRING, [2], [b"abc", b"d"])
        inner = branch(node("Add", ["x", "v"], ["r"]), weights=[weight("v", 7, kind=TensorProto.DOUBLE)])
        choice = node("If", ["flag"], ["y"], then_branch=inner, else_branch=branch(node("Identity", ["x"], ["r"])))
        weights = [weight("half", 4, kind=TensorProto.FLOAT16), packed, text, weight("empty", 0, 8)]
        graph = described(
            [choice], [value("x", FLOAT, [7]), value("flag", BOOL, [])], [value("y", FLOAT, [7])], weights
        )
        assert graph.parameter_count == 4 + 5 + 2 + 0 + 7
        assert graph.weight_bytes == 8 + 3 + 4 + 0 + 56

    def test_external_data_is_named_and_counted_without_being_there(self, tmp_path: Path) -> None:
        def outside(name: str, location: str) -> TensorProto:
            tensor = TensorProto(name=name, data_type=FLOAT, dims=[100, 10], data_location=TensorProto.EXTERNAL)
            tensor.external_data.add(key="location", value=location)
            return tensor

        inner = branch(node("MatMul", ["x", "b"], ["r"]), weights=[outside("b", "sub/inner.bin")])
        choice = node("If", ["flag"], ["y"], then_branch=inner, else_branch=branch(node("MatMul", ["x", "a"], ["r"])))
        inputs = [value("x", FLOAT, [1, 100]), value("flag", BOOL, [])]
        model = model_of([choice], inputs, [value("y", FLOAT, None)], [outside("a", "w.bin"), outside("c", "w.bin")])
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        graph = describe(path)
        assert graph.external_files == ("w.bin", "sub/inner.bin")
        assert graph.parameter_count == 3000
        assert graph.macs == 1000

    def test_a_model_without_inputs_has_none(self) -> None:
        graph = described([node("RandomNormal", [], ["y"], shape=[2])], [], [value("y", FLOAT, [2])])
        assert graph.inputs == ()
        assert graph.random_operators == ("RandomNormal",)

    def test_opsets_name_the_onnx_domain(self) -> None:
        model = model_of([node("Gelu", ["x"], ["y"], domain="com.microsoft")], [value("x", FLOAT, [1])])
        assert describe(model.SerializeToString()).opsets == {"ai.onnx": 18, "com.microsoft": 1}

    def test_a_graph_survives_json(self) -> None:
        ids = [value("ids", INT64, ["N"]), value("x", FLOAT, ["A", 3])]
        nodes = [node("Gather", ["x", "ids"], ["y"]), node("Gather", ["table", "ids"], ["z"])]
        outputs = [value("y", FLOAT, None), value("z", FLOAT, None)]
        graph = described(nodes, ids, outputs, [weight("table", 9, 2)])
        assert graph.index_inputs
        assert Graph.from_dict(json.loads(json.dumps(graph.as_dict()))) == graph


def with_functions(calls: int, body: Sequence[NodeProto] | None = None, name: str = "Block") -> ModelProto:
    """Calls of a function in sequence that, by default, multiplies by a weight of [4, 4]."""
    steps = [node(name, [f"v{place}", "w"], [f"v{place + 1}"], domain="mine") for place in range(calls)]
    model = model_of(steps, [value("v0", FLOAT, [2, 4])], [value(f"v{calls}", FLOAT, [2, 4])], [weight("w", 4, 4)])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
    inside = body or [node("MatMul", ["a", "b"], ["c"])]
    model.functions.append(helper.make_function("mine", name, ["a", "b"], ["c"], list(inside), imports))
    return model


class TestKinds:
    @pytest.mark.parametrize(
        ("operators", "kind"),
        [
            (["Conv", "MatMul"], "none"),
            (["QuantizeLinear", "DequantizeLinear", "Conv"], "qdq"),
            (["com.microsoft.QuantizeLinear", "com.microsoft.DequantizeLinear", "Conv"], "qdq"),
            (["QuantizeLinear", "QLinearConv", "DequantizeLinear"], "qoperator"),
            (["com.microsoft.QLinearAdd"], "qoperator"),
            (["DynamicQuantizeLinear", "ConvInteger"], "dynamic"),
            (["com.microsoft.DynamicQuantizeLSTM", "DequantizeLinear"], "dynamic"),
            (["com.microsoft.MatMulNBits"], "weight-only"),
            (["DequantizeLinear", "MatMul"], "weight-only"),
        ],
    )
    def test_quantisation_is_told_from_the_operators_even_where_they_lack_inputs(
        self, operators: list[str], kind: str
    ) -> None:
        nodes = []
        for place, name in enumerate(operators):
            domain, _, operator = name.rpartition(".")
            nodes.append(node(operator, ["x"], [f"y{place}"], domain=domain))
        assert described(nodes, [value("x", FLOAT, [1])]).quantisation == kind

    @pytest.mark.parametrize(
        ("mode", "random_operators"), [(None, ()), (False, ()), (True, ("Dropout",)), ("input", ("Dropout",))]
    )
    def test_dropout_is_random_where_it_may_be_training(self, mode: Any, random_operators: tuple[str, ...]) -> None:
        inputs, weights = [value("x", FLOAT, [2])], []
        if mode == "input":
            inputs.append(value("mode", BOOL, []))
        elif mode is not None:
            weights.append(numpy_helper.from_array(np.array(mode), "mode"))
        dropout = node("Dropout", ["x", "", "mode"] if mode is not None else ["x"], ["y"])
        assert described([dropout], inputs, [value("y", FLOAT, [2])], weights).random_operators == random_operators

    def test_random_operators_in_subgraphs_are_found(self) -> None:
        inner = branch(node("RandomUniformLike", ["x"], ["r"]))
        choice = node("If", ["flag"], ["y"], then_branch=inner, else_branch=branch(node("Identity", ["x"], ["r"])))
        graph = described([choice], [value("x", FLOAT, [2]), value("flag", BOOL, [])], [value("y", FLOAT, None)])
        assert graph.random_operators == ("RandomUniformLike",)

    @pytest.mark.parametrize(
        ("operator", "domain", "blockers"),
        [
            ("EPContext", "com.microsoft", ("EPContext",)),
            ("Gradient", "ai.onnx.preview.training", ("training",)),
            ("Adam", "ai.onnx.preview.training", ("training",)),
            ("Thing", "my.company", ("custom domain my.company",)),
            ("StringJoin", "ai.onnx.contrib", ("custom domain ai.onnx.contrib",)),
            ("Scaler", "ai.onnx.ml", ()),
            ("Conv", "com.microsoft.nchwc", ()),
        ],
    )
    def test_what_forbids_rewriting_is_named(self, operator: str, domain: str, blockers: tuple[str, ...]) -> None:
        graph = described([node(operator, ["x"], ["y"], domain=domain)], [value("x", FLOAT, [1])])
        assert graph.blockers == blockers

    def test_a_domain_imported_but_not_used_forbids_nothing(self) -> None:
        model = model_of([node("Relu", ["x"], ["y"])], [value("x", FLOAT, [1])])
        model.opset_import.append(helper.make_opsetid("ai.onnx.training", 1))
        model.opset_import.append(helper.make_opsetid("org.pytorch.aten", 1))
        assert describe(model.SerializeToString()).blockers == ()

    def test_a_function_of_the_domain_excuses_only_itself(self) -> None:
        model = with_functions(calls=1)
        model.graph.node.append(node("Other", ["v1"], ["z"], domain="mine"))
        assert describe(model.SerializeToString()).blockers == ("model-local functions", "custom domain mine")

    def test_sparse_initialisers_forbid_rewriting_and_count_by_what_they_store(self) -> None:
        model = model_of([node("MatMul", ["x", "s"], ["y"])], [value("x", FLOAT, [1, 4])], [value("y", FLOAT, None)])
        stored = numpy_helper.from_array(np.ones(3, np.float32), "s")
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(stored, integers("at", 0, 5, 9), [4, 4]))
        graph = describe(model.SerializeToString())
        assert graph.blockers == ("sparse initializers",)
        assert graph.parameter_count == 3


X, IDS = [value("x", FLOAT, [2, 6, 10, 10])], [value("ids", INT64, ["N", "S"])]


class TestMacs:
    @pytest.mark.parametrize(
        ("operator", "inputs", "weights", "attributes", "macs"),
        [
            ("Conv", [[2, 6, 10, 10]], [(4, 6, 3, 3)], {}, 2 * 4 * 8 * 8 * 6 * 9),
            ("Conv", [[2, 6, 10, 10]], [(6, 1, 3, 3)], {"group": 6, "pads": [1] * 4}, 2 * 6 * 100 * 9),
            ("ConvTranspose", [[1, 6, 5]], [(6, 4, 3)], {"strides": [2]}, 6 * 5 * 4 * 3),
            ("MatMul", [[7, 2, 3]], [(3, 5)], {}, 7 * 2 * 3 * 5),
            ("MatMul", [[3]], [(3,)], {}, 3),
            ("MatMul", [[0, 3]], [(3, 5)], {}, 0),
            ("Gemm", [[3, 2]], [(3, 5)], {"transA": 1}, 2 * 3 * 5),
            ("Gemm", [[2, 3]], [(5, 3)], {"transB": 1}, 2 * 3 * 5),
            ("LSTM", [[4, 2, 3]], [(1, 20, 3), (1, 20, 5)], {"hidden_size": 5}, 4 * 2 * 4 * 5 * (3 + 5)),
            (
                "GRU",
                [[4, 2, 3]],
                [(2, 15, 3), (2, 15, 5)],
                {"hidden_size": 5, "direction": "bidirectional"},
                4 * 2 * 2 * 3 * 5 * 8,
            ),
            ("RNN", [[4, 2, 3]], [(1, 5, 3), (1, 5, 5)], {"hidden_size": 5}, 4 * 2 * 5 * 8),
            ("Einsum", [[2, 3, 4]], [(2, 4, 5)], {"equation": "bij, bjk -> bik"}, 2 * 3 * 4 * 5),
            ("Einsum", [[2, 3, 4]], [(2, 4, 5)], {"equation": "...ij,...jk->...ik"}, None),
            ("Relu", [[2, 3]], [], {}, None),
            ("com.microsoft.FusedMatMul", [[7, 3, 2]], [(5, 3)], {"transA": 1, "transB": 1}, 7 * 2 * 3 * 5),
            ("com.microsoft.FusedConv", [[1, 6, 9]], [(4, 6, 3)], {"activation": "Relu"}, 4 * 7 * 6 * 3),
            ("com.microsoft.MatMulNBits", [[2, 64]], [(8, 2, 16)], {"K": 64, "N": 8, "bits": 4}, 2 * 64 * 8),
            (
                "com.microsoft.Attention",
                [[2, 7, 12]],
                [(12, 36), (36,)],
                {"num_heads": 3},
                2 * 7 * 12 * 36 + 2 * (2 * 7 * 7 * 12),
            ),
        ],
    )
    def test_one_operator_counts_by_its_formula(
        self, operator: str, inputs: Any, weights: Any, attributes: dict[str, Any], macs: int | None
    ) -> None:
        domain, _, name = operator.rpartition(".")
        made = [weight(f"w{place}", *dims) for place, dims in enumerate(weights)]
        given = [value(f"x{place}", FLOAT, dims) for place, dims in enumerate(inputs)]
        names = [item.name for item in (*given, *made)]
        graph = described([node(name, names, ["y"], domain=domain, **attributes)], given, [], made)
        assert graph.macs == macs

    @pytest.mark.parametrize("quantised", ["MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv"])
    def test_integer_forms_count_as_the_float_ones(self, quantised: str) -> None:
        is_conv, whole = "Conv" in quantised, TensorProto.UINT8
        dims, kernel = ([1, 3, 8, 8], (4, 3, 3, 3)) if is_conv else ([2, 3], (3, 5))
        made = [weight("w", *kernel, kind=whole), weight("s"), weight("z", kind=whole)]
        names = ["x", "s", "z", "w", "s", "z", "s", "z"] if quantised.startswith("QLinear") else ["x", "w"]
        graph = described([node(quantised, names, ["y"])], [value("x", whole, dims)], [], made)
        assert graph.macs == (4 * 36 * 27 if is_conv else 2 * 3 * 5)

    def test_shapes_are_followed_behind_operators_that_onnx_does_not_know(self) -> None:
        nodes = [
            node("SkipLayerNormalization", ["x", "x", "gamma"], ["a"], domain="com.microsoft"),
            node("FastGelu", ["a"], ["b"], domain="com.microsoft"),
            node("MatMul", ["b", "w"], ["y"]),
        ]
        inputs = [value("x", FLOAT, [2, 7, 12])]
        graph = described(nodes, inputs, [value("y", FLOAT, None)], [weight("gamma", 12), weight("w", 12, 5)])
        assert graph.macs == 2 * 7 * 12 * 5

    def test_shapes_are_followed_through_computed_shapes(self) -> None:
        """The position slice of BERT exports: its end is computed, and ONNX alone loses the size there."""
        nodes = [
            node("Shape", ["ids"], ["shape"]),
            node("Gather", ["shape", "one"], ["length"]),
            node("Slice", ["positions", "zero", "length", "one"], ["cut"]),
            node("Gather", ["table", "cut"], ["rows"]),
            node("MatMul", ["rows", "w"], ["y"]),
        ]
        weights = [integers("one", 1), integers("zero", 0), weight("table", 64, 8), weight("w", 8, 8)]
        weights.append(numpy_helper.from_array(np.arange(64)[None], "positions"))
        graph = described(nodes, IDS, [value("y", FLOAT, None)], weights, shapes={"ids": (1, 16)})
        assert graph.macs == 16 * 8 * 8

    def test_given_shapes_reach_every_dimension_of_the_same_name(self) -> None:
        inputs = [value("a", FLOAT, ["N", 3]), value("b", FLOAT, ["N", 4])]
        nodes = [node("MatMul", ["a", "v"], ["y"]), node("MatMul", ["b", "w"], ["z"])]
        weights, outputs = (
            [weight("v", 3, 5), weight("w", 4, 5)],
            [value("y", FLOAT, ["N", 5]), value("z", FLOAT, None)],
        )
        assert described(nodes, inputs, outputs, weights).macs is None
        assert described(nodes, inputs, outputs, weights, shapes={"a": (7, 3)}).macs == 7 * 5 * (3 + 4)

    def test_an_input_without_a_rank_takes_the_given_shape(self) -> None:
        multiply = node("MatMul", ["x", "w"], ["y"])
        weights, free = [weight("w", 3, 5)], [value("x", FLOAT, None)]
        assert described([multiply], free, [], weights, shapes={"x": (2, 3)}).macs == 2 * 3 * 5

    def test_an_if_counts_as_its_larger_branch(self) -> None:
        small = branch(node("MatMul", ["x", "w"], ["r"]))
        large = branch(node("MatMul", ["x", "w"], ["m"]), node("MatMul", ["m", "w"], ["r"]))
        choice = node("If", ["flag"], ["y"], then_branch=small, else_branch=large)
        inputs = [value("x", FLOAT, [2, 4]), value("flag", BOOL, [])]
        graph = described([choice], inputs, [value("y", FLOAT, None)], [weight("w", 4, 4)])
        assert graph.macs == 2 * (2 * 4 * 4)

    def test_a_loop_counts_as_often_as_its_known_trips(self) -> None:
        body = helper.make_graph(
            [node("MatMul", ["state", "w"], ["next"]), node("Identity", ["go"], ["on"])],
            "body",
            [value("i", INT64, []), value("go", BOOL, []), value("state", FLOAT, [2, 4])],
            [value("on", BOOL, []), value("next", FLOAT, [2, 4])],
        )
        weights = [weight("w", 4, 4), integers("trips", 6)]
        inputs = [value("x", FLOAT, [2, 4])]
        loop = node("Loop", ["trips", "", "x"], ["y"], body=body)
        assert described([loop], inputs, [value("y", FLOAT, None)], weights).macs == 6 * 2 * 4 * 4

    def test_a_subgraph_is_inferred_with_the_constants_around_it(self) -> None:
        inner = branch(node("Pad", ["x", "pads"], ["wide"]), node("MatMul", ["wide", "w"], ["r"]))
        choice = node("If", ["flag"], ["y"], then_branch=inner, else_branch=branch(node("Identity", ["x"], ["r"])))
        inputs = [value("x", FLOAT, [2, 4]), value("flag", BOOL, [])]
        weights = [integers("pads", 0, 1, 0, 1), weight("w", 6, 5)]
        assert described([choice], inputs, [value("y", FLOAT, None)], weights).macs == 2 * 6 * 5

    def test_every_call_of_a_function_is_work(self) -> None:
        assert describe(with_functions(calls=3).SerializeToString()).macs == 3 * 2 * 4 * 4

    def test_a_function_that_calls_itself_is_left_folded(self) -> None:
        model = with_functions(calls=1, body=[node("Block", ["a", "b"], ["c"], domain="mine")])
        graph = describe(model.SerializeToString())
        assert graph.macs is None
        assert graph.operators == {"mine.Block": 2}

    def test_functions_that_would_unfold_to_millions_of_nodes_are_left_folded(self) -> None:
        model = with_functions(calls=1, name="F0")
        imports = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
        for depth in range(1, 30):  # each calls the one before twice: 2 ** 29 MatMuls
            twice = [node(f"F{depth - 1}", ["a", "b"], ["m"], domain="mine")]
            twice.append(node(f"F{depth - 1}", ["m", "b"], ["c"], domain="mine"))
            model.functions.append(helper.make_function("mine", f"F{depth}", ["a", "b"], ["c"], twice, imports))
        model.graph.node[0].op_type = "F29"
        graph = describe(model.SerializeToString())
        assert graph.macs is None
        assert graph.node_count == 1 + 1 + 2 * 29

    def test_shape_arithmetic_that_would_fill_the_memory_is_not_carried_out(self) -> None:
        nodes = [node("ConstantOfShape", ["huge"], ["big"]), node("Range", ["zero", "most", "one"], ["long"])]
        whole = [numpy_helper.from_array(np.array(n), name) for name, n in (("zero", 0), ("most", 2**60), ("one", 1))]
        weights = [integers("huge", 2**20, 2**20, 2**20), *whole]
        graph = described(nodes, [], [value("big", FLOAT, None), value("long", INT64, None)], weights)
        assert graph.node_count == 2

    @pytest.mark.parametrize(
        ("shapes", "culprit"),
        [
            ({"nope": (1,)}, "nope"),
            ({"x": (2, 6, 10)}, "'x'"),
            ({"x": (2, 6, 10, 11)}, "11"),
            ({"x": (2, 6, 10, -1)}, "-1"),
        ],
    )
    def test_shapes_that_do_not_fit_are_refused_by_name(self, shapes: Any, culprit: str) -> None:
        with pytest.raises(InputsError, match=culprit):
            described([node("Relu", ["x"], ["y"])], X, [], shapes=shapes)


class TestIndexBounds:
    TABLES = (weight("large", 100, 4), weight("small", 30, 4))

    def bounds(self, *nodes: NodeProto, inputs: Any = IDS, weights: Sequence[TensorProto] = ()) -> dict[str, int]:
        return dict(described(nodes, inputs, [], [*self.TABLES, *weights]).index_bounds)

    def test_the_smallest_table_bounds(self) -> None:
        nodes = [node("Gather", ["large", "ids"], ["y"]), node("Gather", ["small", "ids"], ["z"])]
        assert self.bounds(*nodes) == {"ids": 30}

    def test_the_axis_looked_up_is_the_one_that_counts(self) -> None:
        assert self.bounds(node("Gather", ["small", "ids"], ["y"], axis=-1)) == {"ids": 4}

    def test_an_input_is_followed_through_what_keeps_its_values(self) -> None:
        nodes = [
            node("Cast", ["ids"], ["a"], to=TensorProto.INT32),
            node("Mul", ["a", "mask"], ["b"]),
            node("Reshape", ["b", "flat"], ["c"]),
            node("Unsqueeze", ["c", "zero"], ["d"]),
            node("Where", ["flag", "d", "pad"], ["e"]),
            node("Gather", ["small", "e"], ["y"]),
        ]
        inputs = [*IDS, value("mask", TensorProto.INT32, ["N", "S"]), value("flag", BOOL, [])]
        weights = [integers("flat", -1), integers("zero", 0), weight("pad", kind=TensorProto.INT32)]
        assert self.bounds(*nodes, inputs=inputs, weights=weights)["ids"] == 30

    def test_an_offset_lowers_the_bound(self) -> None:
        nodes = [node("Add", ["two", "ids"], ["a"]), node("Gather", ["small", "a"], ["y"])]
        assert self.bounds(*nodes, weights=[integers("two", 2)]) == {"ids": 28}

    @pytest.mark.parametrize("operator", ["Mul", "Mod", "Clip", "CumSum"])
    def test_what_changes_values_ends_the_search(self, operator: str) -> None:
        nodes = [node(operator, ["ids", "two"], ["a"]), node("Gather", ["small", "a"], ["y"])]
        assert self.bounds(*nodes, weights=[numpy_helper.from_array(np.array(2), "two")]) == {}

    def test_a_table_in_a_constant_node_bounds(self) -> None:
        nodes = [constant(value=weight("t", 7, 2)), node("GatherElements", ["c", "ids"], ["y"])]
        assert self.bounds(*nodes) == {"ids": 7}

    def test_one_hot_bounds_by_its_depth(self) -> None:
        weights = [numpy_helper.from_array(np.array(11), "depth"), weight("two", 2)]
        assert self.bounds(node("OneHot", ["ids", "depth", "two"], ["y"]), weights=weights) == {"ids": 11}

    def test_an_index_vector_is_bounded_by_the_smallest_axis_it_addresses(self) -> None:
        assert self.bounds(node("GatherND", ["large", "at"], ["y"]), inputs=[value("at", INT64, [5, 2])]) == {"at": 4}

    def test_an_embedding_of_onnxruntime_bounds(self) -> None:
        names = ["ids", "", "large", "small", "", "g", "b"]
        embed = node("EmbedLayerNormalization", names, ["y", "m"], domain="com.microsoft")
        assert self.bounds(embed, weights=[weight("g", 4), weight("b", 4)]) == {"ids": 100}

    def test_a_lookup_in_a_subgraph_bounds_unless_the_name_is_hidden_there(self) -> None:
        def choice(*inside: NodeProto) -> NodeProto:
            other = branch(node("Identity", ["x"], ["r"]))
            return node("If", ["flag"], ["y"], then_branch=branch(*inside), else_branch=other)

        inputs = [*IDS, value("flag", BOOL, []), value("x", FLOAT, [1])]
        seen = choice(node("Gather", ["small", "ids"], ["r"]))
        hidden = choice(node("CumSum", ["ids", "zero"], ["i"]), node("Gather", ["small", "i"], ["r"]))
        zero = [numpy_helper.from_array(np.array(0), "zero")]
        assert self.bounds(seen, inputs=inputs) == {"ids": 30}
        assert self.bounds(hidden, inputs=inputs, weights=zero) == {}

    def test_branches_may_use_one_name_for_different_values(self) -> None:
        one = branch(node("Identity", ["ids"], ["i"]), node("Gather", ["small", "i"], ["r"]))
        two = branch(node("CumSum", ["ids", "zero"], ["i"]), node("Gather", ["large", "i"], ["r"]))
        inputs = [*IDS, value("flag", BOOL, [])]
        zero = [numpy_helper.from_array(np.array(0), "zero")]
        choice = node("If", ["flag"], ["y"], then_branch=one, else_branch=two)
        assert self.bounds(choice, inputs=inputs, weights=zero) == {"ids": 30}

    def test_a_table_made_of_an_input_bounds_by_that_inputs_size(self) -> None:
        inputs = [value("edges", INT64, [2, "E"]), value("atoms", FLOAT, ["A", 8])]
        nodes = [
            node("Gather", ["edges", "first"], ["source"]),
            node("Relu", ["atoms"], ["states"]),
            node("Gather", ["states", "source"], ["y"]),
        ]
        graph = described(nodes, inputs, [], [numpy_helper.from_array(np.array(0), "first")])
        assert graph.index_inputs == {"edges": ("atoms", 0)}
        assert graph.index_bounds == {}

    def test_such_a_table_is_found_behind_a_reshape_and_without_names(self) -> None:
        inputs = [value("edges", INT64, [None]), value("atoms", FLOAT, [None, 8])]
        nodes = [
            node("Shape", ["atoms"], ["shape"]),
            node("Slice", ["shape", "zero", "one"], ["count"]),
            node("Concat", ["count", "split"], ["target"], axis=0),
            node("Reshape", ["atoms", "target"], ["states"]),
            node("Gather", ["states", "edges"], ["y"]),
        ]
        weights = [integers("zero", 0), integers("one", 1), integers("split", 2, 4)]
        assert described(nodes, inputs, [], weights).index_inputs == {"edges": ("atoms", 0)}
        fixed = described(nodes, inputs, [], weights, shapes={"edges": (5,), "atoms": (9, 8)})
        assert fixed.index_bounds == {"edges": 9}


class TestWhatIsNoModel:
    @pytest.mark.parametrize(
        "content",
        [b"", b"\x00", b"not a model at all", b"\x18\x00\x00\x00ORTM" + b"\x00" * 64, bytes(range(256))],
        ids=["empty", "zero", "text", "ort format", "bytes"],
    )
    def test_it_is_refused_by_name(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "broken.onnx"
        path.write_bytes(content)
        for asked in (path, str(path)):
            with pytest.raises(ModelError, match=r"broken\.onnx"):
                describe(asked)
        with pytest.raises(ModelError, match=f"model of {len(content)} bytes"):
            describe(content)

    def test_a_missing_file_or_a_folder_is_refused_by_name(self, tmp_path: Path) -> None:
        for asked in (tmp_path / "absent.onnx", tmp_path):
            with pytest.raises(ModelError, match=asked.name):
                describe(asked)

    def test_a_name_that_is_no_utf8_makes_a_damaged_model(self) -> None:
        model = model_of([node("Relu", ["input_name"], ["y"])], [value("input_name", FLOAT, [1])])
        for culprit in (b"input_name", b"Relu"):
            with pytest.raises(ModelError, match="UTF-8"):
                describe(model.SerializeToString().replace(culprit, b"\xff" * len(culprit)))

    def test_however_a_file_is_damaged_it_is_described_or_refused(self) -> None:
        original = sample_model().SerializeToString()
        rng, outcomes = random.Random(20), Counter[str]()
        for _ in range(300):
            content = bytearray(original)
            if rng.random() < 0.3:
                del content[rng.randrange(len(content)) :]
            else:
                content[rng.randrange(len(content))] = rng.randrange(256)
            try:
                describe(bytes(content))
                outcomes["described"] += 1
            except ModelError:
                outcomes["refused"] += 1
        assert outcomes["described"] > 20
        assert outcomes["refused"] > 20

    def test_the_bytes_given_are_not_changed_by_describing(self, tmp_path: Path) -> None:
        content = sample_model().SerializeToString()
        path = tmp_path / "model.onnx"
        path.write_bytes(content)
        assert describe(path) == describe(content)
        assert path.read_bytes() == content


def sample_model() -> ModelProto:
    """A bit of everything: shapes computed, a subgraph, a function, several domains."""
    model = with_functions(calls=2)
    model.graph.node.extend(
        [
            node("Shape", ["v2"], ["shape"]),
            node("Reshape", ["v2", "shape"], ["same"]),
            node("Gelu", ["same"], ["g"], domain="com.microsoft"),
            node("If", ["flag"], ["y"], then_branch=nested_ifs(2), else_branch=nested_ifs(0)),
            node("Gather", ["w", "ids"], ["rows"]),
        ]
    )
    model.graph.input.extend([value("x", FLOAT, ["N", 4]), value("flag", BOOL, []), value("ids", INT64, ["S"])])
    model.graph.output.extend([value("y", FLOAT, None), value("rows", FLOAT, None)])
    return model


NODES = {
    "ppocr_v6_det": 464,
    "ppocr_v6_rec": 480,
    "ppocr_cls": 566,
    "doc_orientation": 115,
    "opennsfw_resnet50": 126,
    "minilm_l3_fp32": 354,
    "t5_encoder_int8": 985,
    "t5_decoder_int8": 1786,
    "kokoro_int8": 3614,
    "silero_vad": 689,
    "silero_vad_ifless": 90,
    "magika_v3": 95,
    "spindle_unet1d": 227,
    "painn_gnn": 568,
    "sk_mlp_tiny": 11,
    "sk_tree_tiny": 1,
}
"""Nodes of the zoo's models, as their authors' tools count them (subgraphs included)."""


def everything_in(message: Any) -> Iterator[Any]:
    """Every message below another: the same figures by another way, protobuf reflection."""
    for field, content in message.ListFields():
        if field.message_type is not None:
            for item in [content] if hasattr(content, "ListFields") else content:
                yield item
                yield from everything_in(item)


def operators_in(messages: Sequence[Any]) -> dict[str, int]:
    nodes = [item for item in messages if isinstance(item, NodeProto)]
    return dict(Counter(f"{item.domain}.{item.op_type}".removeprefix("ai.onnx.").lstrip(".") for item in nodes))


def weight_bytes_in(messages: Sequence[Any]) -> int:
    tensors = [tensor for item in messages if isinstance(item, GraphProto) for tensor in item.initializer]
    constants = [item.attribute[0] for item in messages if isinstance(item, NodeProto) and item.op_type == "Constant"]
    tensors += [attribute.t for attribute in constants if attribute.type == AttributeProto.TENSOR]
    listed = sum(
        8 * (len(item.ints) or 1) for item in constants if item.type in (AttributeProto.INT, AttributeProto.INTS)
    )
    return listed + sum(numpy_helper.to_array(tensor).nbytes for tensor in tensors)


@pytest.mark.slow
@pytest.mark.parametrize("name", NODES)
def test_a_real_model_is_described_as_it_is(zoo_model: Callable[[str], Path], name: str) -> None:
    path = zoo_model(name)
    graph, session = describe(path), onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    messages = list(everything_in(onnx.load(path)))
    assert {name.removeprefix("ai.onnx."): count for name, count in graph.operators.items()} == operators_in(messages)
    assert graph.weight_bytes == weight_bytes_in(messages)
    assert graph.node_count == NODES[name]
    assert [spec.name for spec in graph.inputs] == [item.name for item in session.get_inputs()]
    assert [spec.name for spec in graph.outputs] == [item.name for item in session.get_outputs()]
    assert graph.blockers == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shapes", "macs"),
    [
        # three layers: four projections, two of the feed-forward net, scores and their use
        ("minilm_l3_fp32", (1, 64), 3 * (4 * 64 * 384 * 384 + 2 * 64 * 384 * 1536 + 2 * 64 * 64 * 384)),
        ("sk_mlp_tiny", (1, 4), 4 * 64 + 64 * 64 + 64 * 1),
    ],
)
def test_the_work_of_a_real_model_is_counted(
    zoo_model: Callable[[str], Path], name: str, shapes: tuple[int, ...], macs: int
) -> None:
    path = zoo_model(name)
    assert describe(path, {spec.name: shapes for spec in describe(path).inputs}).macs == macs
