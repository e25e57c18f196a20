"""Quantising: which scheme comes out, what is carried over, and what is refused with which reason."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_metainfer.errors import InputsError, ModelError
from ort_metainfer.model.graph import describe
from ort_metainfer.rewrites import quantise as module
from ort_metainfer.rewrites.quantise import Recipe, quantise
from ort_metainfer.rewrites.sampling import held_back

SHAPE = (1, 3, 8, 8)


def network(opset: int = 17) -> Any:
    """Conv, Relu, Conv, global pooling and a Gemm: what the quantiser sees of a small image classifier."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((8, 3, 3, 3)) / 3,
        "b1": rng.standard_normal(8) / 10,
        "w2": rng.standard_normal((8, 8, 3, 3)) / 5,
        "w3": rng.standard_normal((8, 4)),
        "b3": rng.standard_normal(4),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="second", pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c2"], ["g"], name="pool"),
        helper.make_node("Flatten", ["g"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], name="last"),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, ir_version=7, opset_imports=[helper.make_opsetid("", opset)])
    helper.set_model_props(model, {"labels": "cat,dog"})
    return model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    onnx.save(network(), str(tmp_path / "float.onnx"))
    return tmp_path / "float.onnx"


def feeds(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.random(SHAPE, dtype=np.float32)} for _ in range(count)]


def run(path: Path, feed: dict[str, np.ndarray]) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feed)[0]


def error(path: Path, source: Path) -> float:
    """Relative L2 on inputs that were not calibrated on."""
    wanted = [run(source, feed) for feed in feeds(4, seed=9)]
    got = [run(path, feed) for feed in feeds(4, seed=9)]
    return float(np.linalg.norm(np.subtract(got, wanted)) / np.linalg.norm(wanted))


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(str(path)).graph.node)


def zero_points(path: Path) -> set[str]:
    """Types of the zero points of activations and weights."""
    model = onnx.load(str(path))
    types = {tensor.name: TensorProto.DataType.Name(tensor.data_type) for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type.endswith("QuantizeLinear")]
    nodes += [node for node in model.graph.node if node.op_type.endswith("DequantizeLinear")]
    return {types[node.input[2]] for node in nodes if len(node.input) > 2 and node.input[2] in types}


@pytest.mark.parametrize(
    ("scheme", "flavour", "types", "bound"),
    [
        ("u8s8", "plain", {"UINT8", "INT8", "INT32"}, 0.05),
        ("u8s8", "qnn", {"UINT8", "INT8", "INT32"}, 0.05),
        ("s8s8", "plain", {"INT8", "INT32"}, 0.05),
        ("a16w8", "plain", {"UINT16", "INT8", "INT32"}, 0.02),
        ("a16w8", "qnn", {"UINT16", "INT8", "INT32"}, 0.02),
    ],
)
def test_each_scheme_gives_its_types_and_stays_near_the_float_model(
    source: Path, tmp_path: Path, scheme: str, flavour: Any, types: set[str], bound: float
) -> None:
    result = quantise(source, feeds(6), tmp_path / "q.onnx", Recipe(scheme, flavour=flavour))
    assert zero_points(result.path) == types
    assert 0 < error(result.path, source) < bound
    assert describe(result.path).quantisation == "qdq"


@pytest.mark.parametrize("calibration", ["minmax", "entropy", "percentile"])
def test_every_calibration_gives_a_model_that_runs(source: Path, tmp_path: Path, calibration: str) -> None:
    result = quantise(source, feeds(6), tmp_path / "q.onnx", Recipe(calibration=calibration))
    assert error(result.path, source) < 0.2


def test_calibrations_differ(source: Path, tmp_path: Path) -> None:
    made = [
        quantise(source, feeds(6), tmp_path / f"{name}.onnx", Recipe(calibration=name)).path.read_bytes()
        for name in ("minmax", "percentile")
    ]
    assert made[0] != made[1]


def test_weights_have_a_scale_for_each_channel_or_one_for_all(source: Path, tmp_path: Path) -> None:
    shapes = {}
    for per_channel in (True, False):
        result = quantise(source, feeds(4), tmp_path / f"{per_channel}.onnx", Recipe(per_channel=per_channel))
        tensors = {tensor.name: list(tensor.dims) for tensor in onnx.load(str(result.path)).graph.initializer}
        shapes[per_channel] = tensors["w2_scale"]
    assert shapes == {True: [8], False: []}


def test_operators_and_nodes_can_be_left_in_float(source: Path, tmp_path: Path) -> None:
    whole = quantise(source, feeds(4), tmp_path / "whole.onnx", Recipe())
    no_gemm = quantise(source, feeds(4), tmp_path / "gemm.onnx", Recipe(exclude_operators=("Gemm",)))
    no_node = quantise(source, feeds(4), tmp_path / "node.onnx", Recipe(exclude_nodes=("second",)))
    only = quantise(source, feeds(4), tmp_path / "only.onnx", Recipe(operators=("Gemm",)))
    counts = [operators(result.path)["DequantizeLinear"] for result in (whole, no_gemm, no_node, only)]
    assert counts[0] > max(counts[1:])
    weights = [{t.name for t in onnx.load(str(r.path)).graph.initializer} for r in (no_gemm, no_node, only)]
    assert "w3" in weights[0] and "w2_quantized" in weights[0]
    assert "w2" in weights[1] and "w3_quantized" in weights[1]
    assert "w1" in weights[2] and "w3_quantized" in weights[2]


def test_metadata_of_the_model_is_carried_over_and_nothing_added(source: Path, tmp_path: Path) -> None:
    for flavour in ("plain", "qnn"):
        result = quantise(source, feeds(4), tmp_path / "q.onnx", Recipe(flavour=flavour))
        props = onnx.load(str(result.path)).metadata_props
        assert [(entry.key, entry.value) for entry in props] == [("labels", "cat,dog")]


def test_no_domain_is_imported_that_no_node_is_of(source: Path, tmp_path: Path) -> None:
    result = quantise(source, feeds(4), tmp_path / "q.onnx", Recipe())
    assert [opset.domain for opset in onnx.load(str(result.path)).opset_import] == [""]


def test_names_and_shapes_of_inputs_and_outputs_stay(source: Path, tmp_path: Path) -> None:
    result = quantise(source, feeds(4), tmp_path / "q.onnx", Recipe("a16w8", flavour="qnn"))
    before, after = describe(source), describe(result.path)
    assert (before.inputs, before.outputs) == (after.inputs, after.outputs)


def test_an_old_opset_is_raised_so_that_channels_can_have_scales(tmp_path: Path) -> None:
    onnx.save(network(opset=11), str(tmp_path / "old.onnx"))
    result = quantise(tmp_path / "old.onnx", feeds(4), tmp_path / "q.onnx", Recipe())
    assert describe(result.path).opsets["ai.onnx"] >= 13
    assert error(result.path, tmp_path / "old.onnx") < 0.05


def test_without_inputs_it_refuses_and_says_what_to_give(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputsError, match="without real inputs"):
        quantise(source, [], tmp_path / "q.onnx", Recipe())


def test_inputs_that_the_model_refuses_are_told_by_number(source: Path, tmp_path: Path) -> None:
    bad = [*feeds(1), {"x": np.zeros((1, 3, 8), np.float32)}]
    with pytest.raises(InputsError, match="refuses input 1"):
        quantise(source, bad, tmp_path / "q.onnx", Recipe())
    assert not (tmp_path / "q.onnx").exists()


def test_a_quantised_model_is_not_quantised_again(source: Path, tmp_path: Path) -> None:
    once = quantise(source, feeds(4), tmp_path / "q.onnx", Recipe())
    with pytest.raises(ModelError, match=r"quantised already \(qdq\)"):
        quantise(once.path, feeds(4), tmp_path / "twice.onnx", Recipe())


def test_an_operator_of_an_unknown_domain_blocks_it(tmp_path: Path) -> None:
    model = network()
    model.graph.node[1].domain = "acme"
    model.opset_import.append(helper.make_opsetid("acme", 1))
    onnx.save(model, str(tmp_path / "custom.onnx"))
    with pytest.raises(ModelError, match="must not be rewritten: it holds custom domain acme"):
        quantise(tmp_path / "custom.onnx", feeds(4), tmp_path / "q.onnx", Recipe())


def test_a_node_that_there_is_not_is_told(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no node named 'third'"):
        quantise(source, feeds(4), tmp_path / "q.onnx", Recipe(exclude_nodes=("third",)))


def test_a_model_with_nothing_to_quantise_is_told(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no operator that is to be quantised"):
        quantise(source, feeds(4), tmp_path / "q.onnx", Recipe(operators=("LSTM",)))


@pytest.mark.parametrize(("field", "value"), [("scheme", "int4"), ("calibration", "guess"), ("flavour", "coreml")])
def test_a_recipe_with_an_unknown_value_is_refused_with_the_choice(field: str, value: str) -> None:
    with pytest.raises(ModelError, match=f"{field} must be one of .*, got {value}"):
        Recipe(**{field: value})  # type: ignore[arg-type]


def test_large_weights_are_written_beside_the_model(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ort_metainfer.rewrites import files

    for place in (files, module):
        monkeypatch.setattr(place, "EXTERNAL_ABOVE_BYTES", 100)
    monkeypatch.setattr(files, "SMALLEST_EXTERNAL_BYTES", 100)
    for flavour in ("plain", "qnn"):
        target = tmp_path / f"{flavour}.onnx"
        quantise(source, feeds(4), target, Recipe(flavour=flavour))
        assert target.with_name(f"{flavour}.onnx.data").exists()
        assert error(target, source) < 0.05
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_one_feed_in_four_is_held_back_for_judging() -> None:
    given = feeds(9)
    calibrated, judged = held_back(given)
    assert judged == [given[3], given[7]]
    assert len(calibrated) == 7
    assert held_back(given[:3]) == (given[:3], given[:3])


def test_the_same_recipe_gives_the_same_model(source: Path, tmp_path: Path) -> None:
    made = [quantise(source, feeds(4), tmp_path / f"{n}.onnx", Recipe()).path.read_bytes() for n in range(2)]
    assert made[0] == made[1]
