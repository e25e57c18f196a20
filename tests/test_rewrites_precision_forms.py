"""Other forms of 8 bits: integer operators in place of pairs, LSTM, and what an NPU wants quantised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_metainfer.model.graph import describe
from ort_metainfer.rewrites.registry import get_rewrite
from ort_metainfer.rewrites.scales import constant_scales
from tests.rewrite_conformance import check_rewrite
from tests.test_rewrites_precision import (
    Feed,
    applied,
    convolutions,
    error,
    image_error,
    images,
    operators,
    perceptron,
    run,
    saved,
)

# int8-operators


@pytest.mark.parametrize("scheme", ["u8s8", "s8s8"])
@pytest.mark.parametrize("per_channel", [True, False])
def test_integer_operators_answer_as_the_pairs_do_at_the_default_level(
    scheme: str, per_channel: bool, tmp_path: Path
) -> None:
    """onnxruntime makes integer operators of pairs by itself; both come from the same ranges."""
    file, given = saved(convolutions(), tmp_path), {"scheme": scheme, "per_channel": per_channel}
    pairs, _ = applied("int8-static", file, tmp_path / "pairs", images(), **given)
    made, outcome = applied("int8-operators", file, tmp_path / "made", images(), **given)
    assert outcome.changed == 3
    assert {"QLinearConv", "QLinearAdd", "QLinearMatMul", "QLinearGlobalAveragePool"} <= operators(made).keys()
    assert image_error(made, file) < 0.1
    for one, other in zip(run(pairs, images()), run(made, images()), strict=True):
        assert np.linalg.norm(one - other) / np.linalg.norm(one) < 0.02, "a level or two of the last rounding"


def test_a_gemm_with_its_bias_becomes_an_integer_one(tmp_path: Path) -> None:
    file = saved(perceptron(), tmp_path)
    made, _ = applied("int8-operators", file, tmp_path / "made")
    pairs, _ = applied("int8-static", file, tmp_path / "pairs")
    assert operators(made)["QGemm"] >= 1 and error(made, file) < 1.05 * error(pairs, file)


def test_no_scheme_without_integer_kernels_can_be_asked_for() -> None:
    rewrite = get_rewrite("int8-operators")
    assert "a16w8" not in rewrite.parameters["scheme"].values
    assert rewrite.providers == ("CPUExecutionProvider",)
    assert not {"coverage", "float_outputs"} & rewrite.parameters.keys()


def test_scales_of_integer_operators_are_looked_at(tmp_path: Path) -> None:
    made, _ = applied("int8-operators", saved(convolutions(), tmp_path), tmp_path / "made", images())
    model = onnx.load(str(made))
    conv = next(node for node in model.graph.node if node.op_type == "QLinearConv")
    assert {conv.input[place] for place in (1, 4, 6)} <= {name for name, _ in constant_scales(model)}


# what is quantised


def test_every_operator_the_quantiser_knows_is_quantised_for_an_npu(tmp_path: Path) -> None:
    file = saved(convolutions(), tmp_path)
    some, few = applied("int8-static", file, tmp_path / "some", images())
    whole, all_of_them = applied("int8-static", file, tmp_path / "whole", images(), coverage="all")
    assert all_of_them.changed > few.changed
    assert {"pool", "end"} <= {site.node for site in all_of_them.sites if not site.reason}
    assert operators(whole)["QuantizeLinear"] > operators(some)["QuantizeLinear"]
    assert image_error(whole, file) < 0.15


def test_a_qnn_form_has_16_bit_pairs_of_onnxruntimes_own_below_opset_21(tmp_path: Path) -> None:
    file = saved(convolutions(), tmp_path)
    made, _ = applied("int8-static", file, tmp_path / "made", images(), coverage="qnn", scheme="a16w8")
    model = onnx.load(str(made))
    assert {node.domain for node in model.graph.node if node.op_type == "QuantizeLinear"} == {"com.microsoft"}
    assert image_error(made, file) < 0.02


def test_metadata_does_not_stop_the_fusions_for_qnn(tmp_path: Path) -> None:
    made, outcome = applied("int8-static", saved(perceptron(), tmp_path), tmp_path / "made", coverage="qnn")
    assert outcome.changed >= 2
    assert [(entry.key, entry.value) for entry in onnx.load(str(made)).metadata_props] == [("labels", "a,b")]


@pytest.mark.parametrize("coverage", ["products", "all", "qnn"])
def test_operators_can_be_chosen_and_left_out(coverage: str, tmp_path: Path) -> None:
    file = saved(convolutions(), tmp_path)
    made, _ = applied("int8-static", file, tmp_path / "no", images(), coverage=coverage, exclude_operators=["MatMul"])
    only, _ = applied("int8-static", file, tmp_path / "only", images(), coverage=coverage, operators=["MatMul"])
    names = [{tensor.name for tensor in onnx.load(str(each)).graph.initializer} for each in (made, only)]
    assert "w3" in names[0] and "w2_quantized" in names[0]
    assert "w3_quantized" in names[1] and "w2" in names[1]
    _, outcome = applied("int8-static", file, tmp_path / "none", images(), coverage=coverage, operators=["LSTM"])
    assert outcome.changed == 0 and "no operator that is to be quantised" in outcome.notes[0]


# int8-lstm

STEPS, BATCH, WIDTH, UNITS = 7, 3, 12, 16


def recurrent(direction: str = "forward", inputs: str = "xWRB", **attributes: Any) -> Any:
    """An LSTM; ``inputs``: x, W, R, B (bias), S (lengths), H and C (first states), P (peepholes)."""
    rng, directions = np.random.default_rng(0), 2 if direction == "bidirectional" else 1
    spread = np.linspace(0.1, 3, 4 * UNITS)[None, :, None]
    arrays = {
        "W": rng.standard_normal((directions, 4 * UNITS, WIDTH)) * 0.3 * spread,
        "R": rng.standard_normal((directions, 4 * UNITS, UNITS)) * 0.3 * spread,
        "B": rng.standard_normal((directions, 8 * UNITS)) * 0.2,
        "H": rng.standard_normal((directions, BATCH, UNITS)),
        "C": rng.standard_normal((directions, BATCH, UNITS)),
        "P": rng.standard_normal((directions, 3 * UNITS)) * 0.2,
    }
    tensors = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    tensors.append(numpy_helper.from_array(np.array([STEPS, 3, 1], np.int32), "S"))
    node = helper.make_node(
        "LSTM",
        [name if name in inputs else "" for name in "xWRBSHCP"],
        ["y", "h", "c"],
        name="lstm",
        hidden_size=UNITS,
        direction=direction,
        **attributes,
    )
    graph = helper.make_graph(
        [node],
        "recurrent",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, BATCH, WIDTH])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "yhc"],
        [tensor for tensor in tensors if tensor.name in inputs],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def sequences(count: int = 3) -> list[Feed]:
    rng = np.random.default_rng(2)
    return [{"x": rng.standard_normal((STEPS, BATCH, WIDTH)).astype(np.float32)} for _ in range(count)]


def rounded(model: Any, per_channel: bool) -> Any:
    """The float model with the weights that 8 bits leave: what is left then is the rounding of activations."""
    for tensor in model.graph.initializer:
        if tensor.name in "WR":
            array = numpy_helper.to_array(tensor)
            scale = np.abs(array).max(axis=2 if per_channel else (1, 2), keepdims=True) / 127
            tensor.CopyFrom(numpy_helper.from_array((np.rint(array / scale) * scale).astype(np.float32), tensor.name))
    return model


def all_outputs(file: Path) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return [np.concatenate([value.ravel() for value in session.run(None, feed)]) for feed in sequences()]


def distance(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    return max(float(np.linalg.norm(b - a) / np.linalg.norm(a)) for a, b in zip(one, other, strict=True))


CASES: list[dict[str, Any]] = [
    {},
    {"direction": "reverse"},
    {"direction": "bidirectional"},
    {"inputs": "xWR"},
    {"inputs": "xWRBS"},
    {"inputs": "xWRBS", "direction": "bidirectional"},
    {"inputs": "xWRBHC", "direction": "bidirectional"},
    {"inputs": "xWRBP"},
    {"clip": 0.5},
    {"input_forget": 1},
    {"activations": ["HardSigmoid", "Relu", "Softsign"]},
]


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())) or "plain")
def test_the_integer_lstm_computes_what_the_float_one_does_with_rounded_weights(
    case: dict[str, Any], per_channel: bool, tmp_path: Path
) -> None:
    file = saved(recurrent(**case), tmp_path)
    made, outcome = applied("int8-lstm", file, tmp_path / "made", sequences(), per_channel=per_channel)
    assert outcome.changed == 1 and operators(made) == {"DynamicQuantizeLSTM": 1}
    onnx.save(rounded(recurrent(**case), per_channel), str(tmp_path / "rounded.onnx"))
    assert 0 < distance(all_outputs(tmp_path / "rounded.onnx"), all_outputs(made)) < 0.02
    assert distance(all_outputs(file), all_outputs(made)) < (0.03 if per_channel else 0.1)


def test_a_scale_for_each_unit_is_nearer_than_one_for_all(tmp_path: Path) -> None:
    file = saved(recurrent(), tmp_path)
    errors = [
        distance(
            all_outputs(file),
            all_outputs(applied("int8-lstm", file, tmp_path / str(each), sequences(), per_channel=each)[0]),
        )
        for each in (True, False)
    ]
    assert errors[0] < errors[1]


def test_what_the_integer_lstm_cannot_is_left_with_the_reason(tmp_path: Path) -> None:
    model = recurrent("forward", "xWRB", layout=1)
    _, outcome = applied("int8-lstm", saved(model, tmp_path), tmp_path / "batch", sequences())
    assert outcome.changed == 0 and "has the batch first" in outcome.sites[0].reason
    model = recurrent()
    model.graph.input.append(helper.make_tensor_value_info("W", TensorProto.FLOAT, None))
    _, outcome = applied("int8-lstm", saved(model, tmp_path), tmp_path / "given", sequences())
    assert outcome.changed == 0 and "not constant" in outcome.sites[0].reason
    _, outcome = applied("int8-lstm", saved(recurrent(), tmp_path), tmp_path / "left", sequences(), exclude=["lstm"])
    assert outcome.changed == 0 and outcome.sites[0].reason == "excluded"


def test_an_output_nobody_looks_at_costs_nothing(tmp_path: Path) -> None:
    model = recurrent()
    del model.graph.output[1:]
    file = saved(model, tmp_path)
    made, _ = applied("int8-lstm", file, tmp_path / "made", sequences())
    assert describe(made).outputs == describe(file).outputs
    assert distance(all_outputs(file), all_outputs(made)) < 0.03


@pytest.mark.parametrize("name", ["int8-lstm", "int8-operators"])
def test_it_keeps_to_the_contract(name: str) -> None:
    check_rewrite(get_rewrite(name))
