"""Rewrites that compute with fewer bits: what comes out, what stays in float with which reason, and what must hold."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_metainfer.errors import RewriteError, StrategyError
from ort_metainfer.model.graph import describe
from ort_metainfer.problem import Device
from ort_metainfer.rewrites.base import Context, Outcome
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.quantiser import shadows
from ort_metainfer.rewrites.registry import get_rewrite
from ort_metainfer.rewrites.rewriting import rewrite_model
from tests.random_graphs import build, random_plan
from tests.rewrite_conformance import check_rewrite
from tests.rewrite_run import apply_to_bytes
from tests.rewrite_trials import Subject, campaign, report

NAMES = ("float16", "int8-dynamic", "int8-static", "int8-operators", "int8-weights", "int4-weights")
BOUNDS = {
    "float16": 2e-3,
    "int8-dynamic": 3e-2,
    "int8-static": 0.15,
    "int8-operators": 0.15,
    "int8-weights": 2e-2,
    "int4-weights": 0.2,
}
ROWS, WIDTH = 8, 64

Feed = dict[str, np.ndarray]


def perceptron(opset: int = 17, scales: tuple[float, ...] = (), overridable: str = "", constants: bool = False) -> Any:
    """MatMul, Add, Relu, Gemm, Softmax; ``scales`` blow up columns of the input."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((WIDTH, WIDTH)) / 8,
        "b1": rng.standard_normal(WIDTH) / 10,
        "w2": rng.standard_normal((10, WIDTH)) / 8,
        "b2": rng.standard_normal(10) / 10,
    }
    if scales:
        factor = np.ones(WIDTH)
        factor[: len(scales)] = scales
        weights["factor"] = factor
    tensors = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    nodes = [helper.make_node("Constant", [], [t.name], value=t) for t in tensors] if constants else []
    source = "x"
    if scales:
        nodes.append(helper.make_node("Mul", ["x", "factor"], ["wide"], name="spread"))
        source = "wide"
    nodes += [
        helper.make_node("MatMul", [source, "w1"], ["m"], name="first"),
        helper.make_node("Add", ["m", "b1"], ["a"], name="bias"),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["y"], name="second", transB=1),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])]
    if overridable:
        inputs.append(helper.make_tensor_value_info(overridable, TensorProto.FLOAT, weights[overridable].shape))
    graph = helper.make_graph(
        nodes,
        "perceptron",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
        [] if constants else tensors,
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])
    helper.set_model_props(model, {"labels": "a,b"})
    return model


def feeds(count: int = 4, rows: int = ROWS) -> list[Feed]:
    rng = np.random.default_rng(5)
    return [{"x": rng.standard_normal((rows, WIDTH)).astype(np.float32)} for _ in range(count)]


def saved(model: Any, folder: Path) -> Path:
    file = folder / "float.onnx"
    onnx.save(model, str(file))
    return file


def applied(
    name: str, file: Path, folder: Path, given: Any = None, device: Device | None = None, **parameters: Any
) -> tuple[Path, Outcome]:
    rewrite = get_rewrite(name)
    parameters = {**({"block_size": 32} if name == "int8-weights" else {}), **parameters}
    folder.mkdir(exist_ok=True)
    context = Context(folder, describe(file), feeds() if given is None else given, True, device=device)
    draft = Draft(file, folder)
    outcome = rewrite.rewrite(draft, context, rewrite.complete(rewrite.transform(**parameters)))
    return draft.save(folder / "out" / "model.onnx")[0], outcome


def run(file: Path, given: list[Feed]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return [session.run(None, feed)[0] for feed in given]


def error(file: Path, original: Path) -> float:
    """Worst relative L2 on inputs that nothing was calibrated on."""
    unseen = feeds(9)[4:]
    pairs = zip(run(original, unseen), run(file, unseen), strict=True)
    return max(float(np.linalg.norm(b - a) / np.linalg.norm(a)) for a, b in pairs)


def operators(file: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(str(file)).graph.node)


@pytest.mark.parametrize("name", [*NAMES, "bfloat16"])
def test_it_keeps_to_the_contract(name: str) -> None:
    check_rewrite(get_rewrite(name))


@pytest.mark.parametrize("name", NAMES)
def test_random_graphs_stay_finite_and_near(name: str) -> None:
    rewrite = get_rewrite(name)
    record = campaign(rewrite, (Subject(build(random_plan(seed))) for seed in range(5000, 5040)))
    assert not record.faults, report(rewrite, record)


@pytest.mark.parametrize("name", NAMES)
def test_both_products_are_converted_and_the_result_is_near(name: str, tmp_path: Path) -> None:
    file = saved(perceptron(), tmp_path)
    made, outcome = applied(name, file, tmp_path / "work")
    assert outcome.changed >= 2
    assert 0 < error(made, file) < BOUNDS[name]


@pytest.mark.parametrize("name", NAMES)
def test_another_batch_size_than_the_one_calibrated_on_works(name: str, tmp_path: Path) -> None:
    made, _ = applied(name, saved(perceptron(), tmp_path), tmp_path / "work")
    assert run(made, feeds(1, rows=3))[0].shape == (3, 10)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_caller_sees_stays(name: str, tmp_path: Path) -> None:
    file = saved(perceptron(), tmp_path)
    made, _ = applied(name, file, tmp_path / "work")
    before, after = describe(file), describe(made)
    assert (before.inputs, before.outputs, before.ir_version) == (after.inputs, after.outputs, after.ir_version)
    assert after.opsets["ai.onnx"] == 17
    assert [(p.key, p.value) for p in onnx.load(str(made)).metadata_props] == [("labels", "a,b")]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_question_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    file = saved(perceptron(), tmp_path)
    first, second = (applied(name, file, tmp_path / folder)[0].read_bytes() for folder in ("one", "two"))
    assert first == second


@pytest.mark.parametrize("name", NAMES)
def test_weights_in_constant_nodes_are_found(name: str, tmp_path: Path) -> None:
    file = saved(perceptron(constants=True), tmp_path)
    made, outcome = applied(name, file, tmp_path / "work")
    assert outcome.changed >= 2 and error(made, file) < BOUNDS[name]


@pytest.mark.parametrize("name", NAMES)
def test_an_excluded_node_stays_in_float(name: str, tmp_path: Path) -> None:
    file = saved(perceptron(), tmp_path)
    whole, _ = applied(name, file, tmp_path / "whole")
    without, outcome = applied(name, file, tmp_path / "without", exclude=["second"])
    only, _ = applied(name, file, tmp_path / "only", only=["second"])
    sizes = [len(path.read_bytes()) for path in (whole, without, only)]
    assert sizes[0] < sizes[1] < sizes[2], "the second product is the smaller one"
    assert ("second", "excluded") in [(site.node, site.reason) for site in outcome.sites]
    assert "Gemm" in operators(without)


@pytest.mark.parametrize("name", NAMES)
def test_a_node_can_be_named_by_its_output(name: str, tmp_path: Path) -> None:
    file = saved(perceptron(), tmp_path)
    by_name, _ = applied(name, file, tmp_path / "name", exclude=["second"])
    by_output, _ = applied(name, file, tmp_path / "output", exclude=["y"])
    assert by_name.read_bytes() == by_output.read_bytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("parameter", ["exclude", "only"])
def test_a_name_that_no_node_has_is_refused_with_the_nearest_ones(name: str, parameter: str, tmp_path: Path) -> None:
    file = saved(perceptron(), tmp_path)
    with pytest.raises(StrategyError, match=f"{name}: {parameter} names 'secnod', .* did you mean 'second'"):
        applied(name, file, tmp_path / "work", **{parameter: ["first", "secnod"]})


@pytest.mark.parametrize("name", NAMES)
def test_a_weight_that_a_caller_may_replace_keeps_its_meaning(name: str, tmp_path: Path) -> None:
    file = saved(perceptron(overridable="w1"), tmp_path)
    made, _ = applied(name, file, tmp_path / "work")
    given = [{**feed, "w1": np.eye(WIDTH, dtype=np.float32)} for feed in feeds(2)]
    pairs = zip(run(file, given), run(made, given), strict=True)
    assert max(float(np.linalg.norm(b - a) / np.linalg.norm(a)) for a, b in pairs) < BOUNDS[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_without_products_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "relu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, WIDTH])],
    )
    file = saved(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), tmp_path)
    assert "the model has no" in (get_rewrite(name).objection(describe(file)) or "").replace("none of", "no")
    assert applied(name, file, tmp_path / "work")[1].changed == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_quantised_model_is_left_as_it_is(name: str, tmp_path: Path) -> None:
    made, _ = applied("int8-static", saved(perceptron(), tmp_path), tmp_path / "work")
    assert "quantised already (qdq)" in (get_rewrite(name).objection(describe(made)) or "")


# int8-dynamic


def test_one_scale_for_a_weight_is_further_off_than_one_a_column(tmp_path: Path) -> None:
    model = perceptron()
    weight = numpy_helper.to_array(model.graph.initializer[0]).copy()
    weight[:, 0] *= 50
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w1"))
    file = saved(model, tmp_path)
    errors = [
        error(applied("int8-dynamic", file, tmp_path / str(each), per_channel=each)[0], file) for each in (True, False)
    ]
    assert errors[0] < errors[1] / 2


def test_smoothing_helps_where_few_columns_of_an_activation_are_large(tmp_path: Path) -> None:
    file = saved(perceptron(scales=(100.0, 60.0)), tmp_path)
    plain, smoothed = (
        error(applied("int8-dynamic", file, tmp_path / str(share), smooth=share)[0], file) for share in (0.0, 0.7)
    )
    assert smoothed < plain / 2


def test_smoothing_without_inputs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RewriteError, match=r"smooth = 0\.5 needs inputs"):
        applied("int8-dynamic", saved(perceptron(), tmp_path), tmp_path / "work", given=(), smooth=0.5)


def test_products_of_one_activation_share_its_quantisation(tmp_path: Path) -> None:
    model = perceptron()
    model.graph.node.insert(1, helper.make_node("MatMul", ["x", "w1"], ["n"], name="twin"))
    model.graph.output.append(helper.make_tensor_value_info("n", TensorProto.FLOAT, None))
    made, outcome = applied("int8-dynamic", saved(model, tmp_path), tmp_path / "work")
    assert outcome.changed == 3 and operators(made)["DynamicQuantizeLinear"] == 2


def test_weights_that_are_not_finite_stay(tmp_path: Path) -> None:
    model = perceptron()
    weight = numpy_helper.to_array(model.graph.initializer[0]).copy()
    weight[0, 0] = np.inf
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w1"))
    _, outcome = applied("int8-dynamic", saved(model, tmp_path), tmp_path / "work")
    assert ("first", "its weight holds NaN or infinity") in [(site.node, site.reason) for site in outcome.sites]


def test_an_opset_without_dynamic_quantisation_is_refused(tmp_path: Path) -> None:
    file = saved(perceptron(opset=9), tmp_path)
    assert get_rewrite("int8-dynamic").objection(describe(file)) == "the model is of opset 9; this needs 11"


# int8-weights, int4-weights


def test_smaller_blocks_are_nearer(tmp_path: Path) -> None:
    file = saved(perceptron(), tmp_path)
    errors = [error(applied("int4-weights", file, tmp_path / str(size), block_size=size)[0], file) for size in (16, 64)]
    assert errors[0] < errors[1]


def test_a_weight_smaller_than_a_block_stays(tmp_path: Path) -> None:
    _, outcome = applied("int8-weights", saved(perceptron(), tmp_path), tmp_path / "work", block_size=128)
    assert outcome.changed == 0 and "less than a block" in " ".join(outcome.notes)


def test_zero_points_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    file = saved(perceptron(), tmp_path)
    for symmetric, inputs in ((True, 3), (False, 4)):
        made, _ = applied("int4-weights", file, tmp_path / str(symmetric), symmetric=symmetric)
        nodes = [node for node in onnx.load(str(made)).graph.node if node.op_type == "MatMulNBits"]
        assert {len(node.input) for node in nodes} == {inputs} and error(made, file) < BOUNDS["int4-weights"]


# float16, bfloat16


def test_numbers_too_large_for_float16_are_clipped_and_told(tmp_path: Path) -> None:
    model = perceptron()
    bias = numpy_helper.to_array(model.graph.initializer[3]).copy()
    bias[:2] = 1e6, 1e-12
    model.graph.initializer[3].CopyFrom(numpy_helper.from_array(bias, "b2"))
    _, outcome = applied("float16", saved(model, tmp_path), tmp_path / "work", given=())
    assert any("1 numbers in weights are beyond 65504" in note for note in outcome.notes)
    assert any("1 numbers in weights are too small" in note for note in outcome.notes)
    assert any("nobody looked whether values overflow" in note for note in outcome.notes)


def test_nodes_whose_values_overflow_float16_stay(tmp_path: Path) -> None:
    file = saved(perceptron(scales=(1e6,)), tmp_path)
    made, outcome = applied("float16", file, tmp_path / "work")
    assert any(site.node == "first" and "was seen to reach" in site.reason for site in outcome.sites)
    assert error(made, file) < BOUNDS["float16"]


def test_values_that_are_no_tensors_are_not_looked_at(tmp_path: Path) -> None:
    """Two of a sequence that differ in shape make no array."""
    model = perceptron()
    model.graph.node.append(helper.make_node("SequenceConstruct", ["x", "y"], ["both"]))
    model.graph.output.append(helper.make_tensor_sequence_value_info("both", TensorProto.FLOAT, None))
    assert applied("float16", saved(model, tmp_path), tmp_path / "work")[1].changed


def test_casts_stand_at_the_borders_only(tmp_path: Path) -> None:
    made, _ = applied("float16", saved(perceptron(), tmp_path), tmp_path / "work")
    assert operators(made)["Cast"] == 2


def test_bfloat16_is_refused_unless_a_device_runs_it(tmp_path: Path) -> None:
    file = saved(perceptron(), tmp_path)
    graph, rewrite = describe(file), get_rewrite("bfloat16")
    assert "no device is named" in (rewrite.objection(graph) or "")
    cpu = Context(tmp_path, graph, device=Device("CPUExecutionProvider", "cpu", "any"))
    assert "CPUExecutionProvider does not run it" in (rewrite.objection(graph, cpu) or "")


def test_bfloat16_is_written_for_a_device_that_runs_it(tmp_path: Path) -> None:
    file = saved(perceptron(), tmp_path)
    device = Device("CUDAExecutionProvider", "gpu", "any")
    made, outcome = applied("bfloat16", file, tmp_path / "work", device=device)
    assert outcome.changed == 4
    model = onnx.load(str(made))
    onnx.checker.check_model(model, full_check=True)
    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    assert list(kinds.values()) == [TensorProto.BFLOAT16] * 4
    assert (describe(made).inputs, describe(made).outputs) == (describe(file).inputs, describe(file).outputs)


# int8-static


def convolutions(opset: int = 17) -> Any:
    """Conv, BatchNormalization, Relu, and around them a residual Add; then pooling and a product."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((8, 3, 3, 3)) / 3,
        "w2": rng.standard_normal((8, 8, 3, 3)) / 5,
        "w3": rng.standard_normal((8, 4)),
        **{name: np.abs(rng.standard_normal(8)) + 0.5 for name in ("scale", "shift", "mean", "variance")},
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c1", "scale", "shift", "mean", "variance"], ["n1"], name="norm"),
        helper.make_node("Relu", ["n1"], ["r1"], name="relu"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="second", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "r1"], ["s"], name="residual"),
        helper.make_node("GlobalAveragePool", ["s"], ["g"], name="pool"),
        helper.make_node("Flatten", ["g"], ["f"], name="flatten"),
        helper.make_node("MatMul", ["f", "w3"], ["m"], name="last"),
        helper.make_node("Sigmoid", ["m"], ["y"], name="end"),
    ]
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])


def images(count: int = 4) -> list[Feed]:
    rng = np.random.default_rng(6)
    return [{"x": rng.random((2, 3, 8, 8), dtype=np.float32)} for _ in range(count)]


def image_error(file: Path, original: Path) -> float:
    unseen = images(8)[4:]
    pairs = zip(run(original, unseen), run(file, unseen), strict=True)
    return max(float(np.linalg.norm(b - a) / np.linalg.norm(a)) for a, b in pairs)


@pytest.mark.parametrize(("name", "is_shadowed"), [("t", False), ("flag", True), ("m", True)])
def test_a_branch_that_takes_a_name_from_around_it_is_seen(name: str, is_shadowed: bool) -> None:
    output = helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])
    branch = helper.make_graph([helper.make_node("Abs", ["m"], [name])], "branch", [], [output])
    nodes = [helper.make_node("Neg", ["x"], ["m"]), helper.make_node("If", ["flag"], ["y"], then_branch=branch)]
    inputs = [helper.make_tensor_value_info("flag", TensorProto.BOOL, [])]
    assert shadows(helper.make_graph(nodes, "made", inputs, [])) is is_shadowed


def test_a_constant_that_is_an_output_is_there_once(tmp_path: Path) -> None:
    model = perceptron(constants=True)
    model.graph.output.append(helper.make_tensor_value_info("b1", TensorProto.FLOAT, [WIDTH]))
    file, outcome = applied("int8-static", saved(model, tmp_path), tmp_path / "made", fold=False)
    after = onnx.load(str(file)).graph
    made = [*(name for node in after.node for name in node.output), *(tensor.name for tensor in after.initializer)]
    assert outcome.changed and "b1" in made and len(made) == len(set(made))


@pytest.mark.parametrize(("release", "changed"), [("1.23.2", False), ("1.24.4", True)])
def test_the_quantiser_of_opset_23_needs_an_onnxruntime_that_has_it(
    release: str, changed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = saved(perceptron(opset=23), tmp_path)
    monkeypatch.setattr(onnxruntime, "__version__", release)
    _, outcome = applied("int8-static", file, tmp_path / "made")
    assert bool(outcome.changed) is changed
    assert changed or outcome.notes == ("onnxruntime before 1.24 has no QuantizeLinear of opset 23; upgrade it",)


@pytest.mark.parametrize("scheme", ["u8s8", "s8s8", "a16w8"])
@pytest.mark.parametrize("calibration", ["minmax", "entropy", "percentile"])
def test_every_scheme_and_calibration_is_near(scheme: str, calibration: str, tmp_path: Path) -> None:
    file = saved(convolutions(), tmp_path)
    made, outcome = applied("int8-static", file, tmp_path / "work", images(), scheme=scheme, calibration=calibration)
    assert outcome.changed == 3 and 0 < image_error(made, file) < 0.1


@pytest.mark.parametrize("opset", [10, 12])
def test_an_older_opset_keeps_its_number_and_has_scales_for_channels(opset: int, tmp_path: Path) -> None:
    file = saved(convolutions(opset), tmp_path)
    made, _ = applied("int8-static", file, tmp_path / "work", images())
    model = onnx.load(str(made))
    assert {o.domain: o.version for o in model.opset_import} == {"": opset, "com.microsoft": 1}
    assert any(len(t.dims) == 1 and t.name.endswith("_scale") for t in model.graph.initializer)
    assert image_error(made, file) < 0.1


def test_an_opset_without_integer_convolutions_is_refused(tmp_path: Path) -> None:
    file = saved(convolutions(9), tmp_path)
    assert "needs 10" in (get_rewrite("int8-static").objection(describe(file)) or "")


def test_without_inputs_it_is_refused(tmp_path: Path) -> None:
    file = saved(convolutions(), tmp_path)
    graph = describe(file)
    reason = get_rewrite("int8-static").objection(graph, Context(tmp_path, graph))
    assert reason == "there are no inputs to calibrate on"
    assert applied("int8-static", file, tmp_path / "work", ())[1].notes == (reason,)


def test_the_batch_norm_goes_into_the_weights_first(tmp_path: Path) -> None:
    file = saved(convolutions(), tmp_path)
    folded, _ = applied("int8-static", file, tmp_path / "folded", images())
    plain, _ = applied("int8-static", file, tmp_path / "plain", images(), fold=False)
    assert "BatchNormalization" not in operators(folded) and "BatchNormalization" in operators(plain)


def test_what_leads_to_no_product_is_not_rounded(tmp_path: Path) -> None:
    file = saved(convolutions(), tmp_path)
    made, _ = applied("int8-static", file, tmp_path / "work", images())
    model = onnx.load(str(made))
    makers = {name: node for node in model.graph.node for name in node.output}
    assert makers["y"].op_type == "Sigmoid", "the end of the model stays in float"
    added = next(node for node in model.graph.node if node.op_type == "Add")
    assert {makers[name].op_type for name in added.input} == {"DequantizeLinear"}


def test_only_products_where_nothing_between_is_wanted(tmp_path: Path) -> None:
    file = saved(convolutions(), tmp_path)
    counts = [
        applied("int8-static", file, tmp_path / str(each), images(), between=each)[1].figures["nodes in 8 bits"]
        for each in (True, False)
    ]
    assert counts[0] > counts[1]


def test_a_range_that_no_scale_fits_leaves_the_node_in_float(tmp_path: Path) -> None:
    model = perceptron()
    nodes = list(model.graph.node)
    mask = np.zeros(WIDTH, np.float32)
    mask[3] = -3e38
    model.graph.initializer.append(numpy_helper.from_array(mask, "mask"))
    del model.graph.node[:]
    model.graph.node.extend([helper.make_node("Add", ["x", "mask"], ["masked"], name="mask_it"), *nodes])
    model.graph.node[1].input[0] = "masked"
    _, outcome = applied("int8-static", saved(model, tmp_path), tmp_path / "work")
    assert any(site.node.startswith("first") and "no scale fits" in site.reason for site in outcome.sites)


def test_calibration_that_no_time_is_left_for_is_an_error(tmp_path: Path) -> None:
    file = saved(convolutions(), tmp_path)
    rewrite, folder = get_rewrite("int8-static"), tmp_path / "work"
    folder.mkdir()
    context = Context(folder, describe(file), images(), True, deadline=0.0)
    with pytest.raises(RewriteError, match="no time left to calibrate; 0 of 4 inputs"):
        rewrite.rewrite(Draft(file, folder), context, rewrite.complete(rewrite.transform()))


def test_nothing_is_printed_and_no_logging_is_set_up(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import logging

    handlers = list(logging.getLogger().handlers)
    applied("int8-static", saved(convolutions(), tmp_path), tmp_path / "work", images(), calibration="entropy")
    assert capfd.readouterr() == ("", "") and logging.getLogger().handlers == handlers


def test_precisions_follow_each_other(tmp_path: Path) -> None:
    file = saved(perceptron(), tmp_path)
    first = get_rewrite("int8-weights").transform(only=["first"], block_size=32)
    context = Context(tmp_path, describe(file), feeds(), True)
    made = rewrite_model(file, [first, get_rewrite("int8-dynamic").transform()], context, tmp_path / "out.onnx")
    found = operators(made.file)
    assert (found["MatMulNBits"], found["MatMulInteger"]) == (1, 1) and error(made.file, file) < 0.03


def test_a_product_behind_a_transpose_of_its_first_axis_stays(tmp_path: Path) -> None:
    """onnxruntime 1.32 ends the process when it creates a session for that in float16, its optimisations on."""
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((3, 6)).astype(np.float32), "w")
    graph = helper.make_graph(
        [
            helper.make_node("Transpose", ["x"], ["t"], name="move", perm=[1, 0, 2]),
            helper.make_node("MatMul", ["t", "w"], ["m"], name="behind"),
            helper.make_node("Relu", ["m"], ["r"], name="relu"),
            helper.make_node("Transpose", ["r"], ["u"], name="swap", perm=[0, 2, 1]),
            helper.make_node("MatMul", ["u", "m"], ["y"], name="other"),
        ],
        "moving",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 5, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 6, 6])],
        [weight],
    )
    file = saved(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), tmp_path)
    given = [{"x": rng.standard_normal((2, 5, 3)).astype(np.float32)}]
    made, outcome = applied("float16", file, tmp_path / "work", given)
    reasons = {site.node: site.reason for site in outcome.sites}
    assert "crashes" in reasons["behind"] and reasons["other"] == ""
    (expected,), (got,) = run(file, given), run(made, given)
    assert np.linalg.norm(got - expected) < 2e-3 * np.linalg.norm(expected)


# what the evidence says of onnxruntime's CPU provider


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_the_cpu_provider_still_has_no_products_in_a_narrow_float_type(kind: str) -> None:
    """What float16 and bfloat16 say in ``evidence``: should a release get such kernels, they want measuring anew."""
    from onnxruntime.capi import onnxruntime_pybind11_state as binding

    ask = getattr(binding, "get_registered_ep_kernel_defs", None)
    if ask is None:
        pytest.skip("this onnxruntime does not list its kernels")
    if "aarch64" in os.uname().machine or "arm64" in os.uname().machine:
        pytest.skip("on Arm onnxruntime has float16 kernels that x86-64 lacks")
    having = {
        definition.op_name
        for definition in ask("CPUExecutionProvider")
        if f"tensor({kind})" in {each for types in definition.type_constraints.values() for each in types}
    }
    assert having.isdisjoint({"MatMul", "Gemm", "Conv", "LSTM", "Add", "Relu", "Softmax"})
    assert "LayerNormalization" in having


def test_a_product_of_two_activations_with_a_constant_addend_is_left_in_float() -> None:
    sizes = {"a": [2, 2], "b": [2, 6]}
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in sizes.items()]
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["a", "b", "c"], ["y"], name="g", transA=1)],
        "products",
        ends,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 6])],
        [numpy_helper.from_array(np.arange(6, dtype=np.float32), "c")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    feeds = [{"a": np.ones((2, 2), np.float32), "b": np.ones((2, 6), np.float32)}]
    for coverage in ("products", "all", "qnn"):
        _, outcome = apply_to_bytes(get_rewrite("int8-static"), model, feeds, {"coverage": coverage, "fold": False})
        assert outcome.changed == 0 and outcome.notes
