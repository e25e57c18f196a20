"""The structural hash: what a re-export changes leaves it as it is, what another architecture has does not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_metainfer.learning.structure import structure_of
from ort_metainfer.model.graph import describe
from ort_metainfer.model.inference import unfold
from ort_metainfer.problem import Graph

NAMES = "doc_orientation kokoro_int8 magika_v3 minilm_l3_fp32 opennsfw_resnet50 painn_gnn ppocr_cls ppocr_v6_det"
NAMES += " ppocr_v6_rec silero_vad silero_vad_ifless sk_mlp_tiny sk_tree_tiny spindle_unet1d t5_decoder_int8"
NAMES += " t5_encoder_int8"


def network(
    width: int = 8,
    batch: int | str = 1,
    activation: str = "Relu",
    dynamic: bool = False,
    seed: int = 0,
    opset: int = 17,
    extra: bool = False,
) -> Any:
    """Conv, activation, Reshape, Gemm: with a fixed target, or one computed from the input's shape."""
    rng = np.random.default_rng(seed)
    weights = {
        "w": rng.standard_normal((width, 3, 3, 3)).astype(np.float32),
        "m": rng.standard_normal((width * 36, 5)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node(activation, ["c"], ["a"]),
        *([helper.make_node(activation, ["a"], ["a2"])] if extra else []),
    ]
    if dynamic:
        weights |= {"zero": np.array([0], np.int64), "rest": np.array([-1], np.int64)}
        nodes += [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Gather", ["s", "zero"], ["n"]),
            helper.make_node("Concat", ["n", "rest"], ["t"], axis=0),
        ]
    else:
        weights["t"] = np.array([batch if isinstance(batch, int) else 1, width * 36], np.int64)
    nodes += [
        helper.make_node("Reshape", ["a2" if extra else "a", "t"], ["f"]),
        helper.make_node("Gemm", ["f", "m"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 5])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", opset)])


def structure(model: Any) -> str:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return structure_of(unfold(copy).graph)


def renamed(model: Any) -> Any:
    """Every value and node under another name."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    _rename(model.graph)
    return model


def _rename(graph: Any) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = f"other_{value.name}"
    for sparse in graph.sparse_initializer:
        sparse.values.name = f"other_{sparse.values.name}"
    for number, node in enumerate(graph.node):
        node.name = f"n{number}"
        node.input[:] = [f"other_{name}" if name else "" for name in node.input]
        node.output[:] = [f"other_{name}" if name else "" for name in node.output]
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _rename(inner)


def shuffled(model: Any, seed: int = 0) -> Any:
    """The main graph's nodes and weights in another order."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for part in (model.graph.node, model.graph.initializer, model.graph.value_info):
        items = list(part)
        random.Random(seed).shuffle(items)
        kept = [type(item).FromString(item.SerializeToString()) for item in items]
        del part[:]
        part.extend(kept)
    return model


def rebatched(model: Any, size: int) -> Any:
    """The first dimension of every input and output with another size."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    initialised = {tensor.name for tensor in model.graph.initializer}
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.name not in initialised and dims:
            dims[0].dim_value = size
    return model


def test_names_order_and_weights_do_not_matter() -> None:
    wanted = structure(network())
    assert structure(renamed(network())) == wanted
    assert {structure(shuffled(network(), seed)) for seed in range(10)} == {wanted}
    assert structure(network(seed=1)) == wanted
    assert len(wanted) == 32 and int(wanted, 16) > 0


def test_the_batch_does_not_matter_nor_whether_it_is_open() -> None:
    assert {structure(network(batch=batch)) for batch in (1, 2, 8, "N")} == {structure(network())}


def test_a_shape_that_is_computed_is_one_that_is_given() -> None:
    assert structure(network(dynamic=True, batch="N")) == structure(network())


def test_a_newer_opset_of_the_same_operators_does_not_matter() -> None:
    wanted = structure(network())
    assert {structure(network(opset=opset)) for opset in (13, 14, 17, 21)} == {wanted}
    assert structure(onnx.version_converter.convert_version(network(opset=13), 18)) == wanted


def test_axes_that_became_an_input_do_not_matter() -> None:
    def squeezed(opset: int) -> Any:
        given = opset >= 13
        graph = helper.make_graph(
            [
                helper.make_node(
                    "Squeeze", ["x", *(["axes"] if given else [])], ["y"], **({} if given else {"axes": [1]})
                )
            ],
            "squeeze",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 1, 4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
            [numpy_helper.from_array(np.array([1], np.int64), "axes")] if given else [],
        )
        return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])

    assert structure(squeezed(11)) == structure(squeezed(17))


def test_a_constant_node_an_identity_and_an_explicit_default_do_not_matter() -> None:
    model = network()
    tensor = next(item for item in model.graph.initializer if item.name == "w")
    kept = onnx.TensorProto.FromString(tensor.SerializeToString())
    model.graph.initializer.remove(tensor)
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w0"], value=kept))
    model.graph.node.insert(1, helper.make_node("Identity", ["w0"], ["w"]))
    gemm = model.graph.node[-1]
    gemm.attribute.append(helper.make_attribute("transB", 0))
    gemm.attribute.append(helper.make_attribute("alpha", 1.0))
    assert structure(model) == structure(network())


@pytest.mark.parametrize(
    "other",
    [
        network(width=16),
        network(activation="Sigmoid"),
        network(extra=True),
    ],
    ids=["wider", "another activation", "deeper"],
)
def test_another_architecture_is_another_structure(other: Any) -> None:
    assert structure(other) != structure(network())


def test_an_attribute_tells_architectures_apart() -> None:
    strided = network()
    strided.graph.node[0].attribute.append(helper.make_attribute("dilations", [2, 2]))
    assert structure(strided) != structure(network())


def test_what_is_used_twice_is_told_from_what_is_computed_twice_only_by_its_count() -> None:
    def summed(operands: list[str]) -> Any:
        nodes = [helper.make_node("Relu", ["x"], [name]) for name in dict.fromkeys(operands)]
        graph = helper.make_graph(
            [*nodes, helper.make_node("Add", operands, ["y"])],
            "sum",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        )
        return helper.make_model(graph)

    assert structure(summed(["a", "a"])) != structure(summed(["a", "b"]))


def test_bodies_of_control_flow_count() -> None:
    def gated(operator: str) -> Any:
        def body(inner: str) -> Any:
            output = helper.make_tensor_value_info("o", TensorProto.FLOAT, [4])
            return helper.make_graph([helper.make_node(inner, ["x"], ["o"])], inner, [], [output])

        branch = helper.make_node("If", ["c"], ["y"], then_branch=body(operator), else_branch=body("Relu"))
        graph = helper.make_graph(
            [branch],
            "gated",
            [
                helper.make_tensor_value_info("c", TensorProto.BOOL, []),
                helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        )
        return helper.make_model(graph)

    assert structure(gated("Abs")) != structure(gated("Neg"))
    assert structure(renamed(gated("Abs"))) == structure(gated("Abs"))


def test_describe_tells_it_and_json_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(network(batch="N"), str(path))
    graph = describe(path)
    assert graph.structure == structure(network())
    assert Graph.from_dict(graph.as_dict()).structure == graph.structure
    without = {name: value for name, value in graph.as_dict().items() if name != "structure"}
    assert Graph.from_dict(without).structure == ""  # kept by an earlier release


def variants(model: Any) -> Iterator[Any]:
    yield renamed(model)
    yield shuffled(renamed(model))
    yield rebatched(model, 1)
    yield rebatched(model, 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES.split())
def test_real_models_keep_their_structure(name: str, zoo_model: Callable[[str], Path]) -> None:
    model = onnx.load(str(zoo_model(name)))
    assert {structure(other) for other in variants(model)} == {structure(model)}


@pytest.mark.slow
def test_real_models_have_different_structures(zoo: Path) -> None:
    found = {path.parent.name: structure(onnx.load(str(path))) for path in sorted(zoo.glob("models/*/model.onnx"))}
    assert len(set(found.values())) == len(found)
