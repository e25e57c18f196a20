"""Which nodes bring the error, whether a wrong scale is noticed, and what mixed precision leaves in float."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_metainfer.errors import InputsError, RewriteError, StrategyError
from ort_metainfer.rewrites.earning import earn
from ort_metainfer.rewrites.registry import get_rewrite
from ort_metainfer.rewrites.scales import range_faults, scale_faults
from ort_metainfer.rewrites.sensitivity import NodeError, measure_sensitivity
from ort_metainfer.rewrites.variants import macs_of
from ort_metainfer.strategy import Transform

WIDTH = 64

Feed = dict[str, np.ndarray]


def chain(file: Path, bad: int | None = 1, layers: int = 4) -> Path:
    """Products one after another, each after a scaling to about one; what number ``bad`` takes has one large column
    that its weight does not look at, so that 8 bits for all columns leave the others few levels."""
    rng = np.random.default_rng(0)
    nodes, tensors, value = [], [], "x"
    for layer in range(layers):
        factor = np.ones(WIDTH, np.float32)
        weight = (rng.standard_normal((WIDTH, WIDTH)) / 8).astype(np.float32)
        if layer == bad:
            factor[0], weight[0] = 300.0, 0.0
        tensors += [numpy_helper.from_array(factor, f"f{layer}"), numpy_helper.from_array(weight, f"w{layer}")]
        nodes += [
            helper.make_node("Mul", [value, f"f{layer}"], [f"s{layer}"], name=f"scale{layer}"),
            helper.make_node("MatMul", [f"s{layer}", f"w{layer}"], [f"m{layer}"], name=f"product{layer}"),
        ]
        value = f"m{layer}"
    nodes[-1].output[0] = "y"
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])],
        tensors,
    )
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), str(file))
    return file


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return chain(tmp_path / "float.onnx")


def feeds(count: int = 8) -> list[Feed]:
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((4, WIDTH)).astype(np.float32)} for _ in range(count)]


RECIPES = [("int8-dynamic", {}), ("int8-static", {}), ("int8-operators", {}), ("int4-weights", {"block_size": 64})]


@pytest.mark.parametrize("name", ["int8-dynamic", "int8-static", "int8-operators"])
def test_the_node_with_the_wide_input_comes_first(name: str, source: Path) -> None:
    found = measure_sensitivity(source, Transform(name), feeds(3))
    assert [node.node for node in found.worst(1)] == ["product1"]
    assert {node.node for node in found.nodes} == {f"product{layer}" for layer in range(4)}
    worst, others = found.nodes[0], found.nodes[1:]
    assert worst.alone is not None and worst.gain is not None
    assert worst.alone > 3 * max(node.alone or 0 for node in others)
    assert worst.gain > 0.5 * found.comparison.error


@pytest.mark.parametrize(("name", "parameters"), RECIPES)
def test_local_error_and_noise_ratio_say_the_same(name: str, parameters: dict[str, Any], source: Path) -> None:
    found = measure_sensitivity(source, Transform(name, 1, parameters), feeds(2))
    assert len(found.nodes) == 4
    for node in found.nodes:
        assert 0 < node.error < 2 and node.sqnr_db == pytest.approx(-20 * np.log10(node.error))
        assert node.macs == 4 * WIDTH * WIDTH and node.operator == "MatMul"


def test_float16_nodes_are_measured_as_well(source: Path) -> None:
    found = measure_sensitivity(source, Transform("float16"), feeds(2))
    assert len(found.nodes) == 4 and all(0 < node.error < 1e-2 for node in found.nodes)


def test_measuring_twice_gives_the_same(source: Path) -> None:
    first, second = (measure_sensitivity(source, Transform("int8-static"), feeds(2)) for _ in range(2))
    assert first == second


def test_folded_and_nameless_nodes_are_found(tmp_path: Path) -> None:
    model = onnx.load(str(chain(tmp_path / "named.onnx")))
    for node in model.graph.node:
        node.name = ""
    onnx.save(model, str(tmp_path / "nameless.onnx"))
    found = measure_sensitivity(tmp_path / "nameless.onnx", Transform("int8-dynamic"), feeds(2))
    assert {node.node for node in found.nodes} == {"m0", "m1", "m2", "y"}
    static = measure_sensitivity(tmp_path / "nameless.onnx", Transform("int8-static"), feeds(2))
    assert {node.node for node in static.nodes} == {"m0", "m1", "m2", "y"}


def test_without_time_what_was_not_measured_is_left_open(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ort_metainfer.rewrites import sensitivity

    monkeypatch.setattr(sensitivity, "ALONE_SHARE", -1.0)
    monkeypatch.setattr(sensitivity, "GAINS_SHARE", -1.0)
    found = measure_sensitivity(source, Transform("int8-dynamic"), feeds(2), time.monotonic() + 600)
    assert {(node.alone, node.gain) for node in found.nodes} == {(None, None)}
    assert found.notes == ("time was up: 4 of 4 nodes were not measured alone",)
    errors = [node.error for node in found.nodes]
    assert errors == sorted(errors, reverse=True)


def test_a_rewrite_that_leaves_no_nodes_out_is_refused(source: Path) -> None:
    with pytest.raises(StrategyError, match="there is no graph rewrite 'int3'"):
        measure_sensitivity(source, Transform("int3"), feeds(2))
    with pytest.raises(RewriteError, match="leaves nothing quantised"):
        measure_sensitivity(source, Transform("int8-dynamic", 1, {"only": ["scale1"]}), feeds(2))


# scales


def quantised(source: Path, folder: Path, change: Callable[[Any], None]) -> Any:
    """The statically quantised chain with its initialisers changed."""
    from ort_metainfer.model.graph import describe
    from ort_metainfer.rewrites.base import Context
    from ort_metainfer.rewrites.rewriting import rewrite_model

    context = Context(folder, describe(source), feeds(), True)
    file = rewrite_model(source, [get_rewrite("int8-static").transform()], context, folder / "q.onnx").file
    model = onnx.load(str(file))
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    change(tensors)
    return model


def scaled(name: str, factor: float) -> Callable[[Any], None]:
    def change(tensors: Any) -> None:
        array = numpy_helper.to_array(tensors[name]) * np.float32(factor)
        tensors[name].CopyFrom(numpy_helper.from_array(array.astype(np.float32), name))

    return change


def test_right_scales_have_no_faults(source: Path, tmp_path: Path) -> None:
    model = quantised(source, tmp_path, lambda tensors: None)
    assert list(scale_faults(model)) == []
    assert [name for name in range_faults(model, source, feeds()) if name != "s1"] == []


@pytest.mark.parametrize(
    ("name", "factor", "words"),
    [
        ("w2_scale", 0.0, "scale w2_scale is zero in 64 of 64 places"),
        ("w2_scale", float("nan"), "scale w2_scale is NaN or infinite in 64 of 64 places"),
        ("w2_scale", -1.0, "scale w2_scale is negative in 64 of 64 places"),
        ("s2_scale", float("inf"), "scale s2_scale is NaN or infinite in 1 of 1 places"),
    ],
)
def test_a_scale_that_cannot_be_right_is_told(
    name: str, factor: float, words: str, source: Path, tmp_path: Path
) -> None:
    assert dict(scale_faults(quantised(source, tmp_path, scaled(name, factor)))) == {name: words}


def test_a_range_that_clips_is_told_with_its_share(source: Path, tmp_path: Path) -> None:
    model = quantised(source, tmp_path, scaled("s2_scale", 0.1))
    text = range_faults(model, source, feeds())["s2"]
    share = float(text.split("%")[0])
    assert 10 < share < 90 and "of s2 are clipped" in text


def test_a_range_that_is_far_too_wide_is_told(source: Path, tmp_path: Path) -> None:
    model = quantised(source, tmp_path, scaled("s2_scale", 50.0))
    assert "of its levels only" in range_faults(model, source, feeds())["s2"]


def test_wrong_scales_stand_beside_the_nodes_they_belong_to(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ort_metainfer.rewrites import precision_static

    real = precision_static.restore

    def spoil(result: Any, original: Any) -> None:
        real(result, original)
        tensors = {tensor.name: tensor for tensor in result.graph.initializer}
        for name, factor in (("s2_scale", 0.1), ("w3_scale", 0.0)):
            if name in tensors:
                scaled(name, factor)(tensors)

    monkeypatch.setattr(precision_static, "restore", spoil)
    found = measure_sensitivity(source, Transform("int8-static"), feeds(2))
    told = {node.node: node.faults for node in found.nodes}
    assert any("s2 are clipped" in fault for fault in told["product2"])
    assert any("w3_scale is zero" in fault for fault in told["product3"])
    assert any(line.startswith("product3: scale w3_scale is zero") for line in found.faults)
    assert "w3_scale is zero" in found.table()


def test_a_line_for_people_holds_every_figure() -> None:
    node = NodeError("conv", "Conv", 0.1, 20.0, 0.05, 0.02, 10, ("scale x is zero",))
    assert node.describe() == (
        "conv (Conv), error 1.0e-01, SQNR 20 dB, alone 5.0e-02, left out gains 2.0e-02, scale x is zero"
    )


# earning


@pytest.mark.parametrize("name", ["int8-dynamic", "int8-static"])
def test_only_the_sensitive_node_is_left_in_float(name: str, source: Path) -> None:
    transform, earned = earn(source, get_rewrite(name), {}, feeds(), 6e-2, top1=0.0)
    assert earned.passed and transform.parameters["exclude"] == ["product1"]
    assert earned.final is not None and earned.final.share == pytest.approx(0.75)
    assert [len(step.excluded) for step in earned.steps] == [0, 1]
    assert (earned.calibrated, earned.judged) == (6, 2)
    assert "product1" in earned.table() and "near enough with 1 nodes left in float" in earned.table()


def test_nothing_is_left_out_where_everything_is_near_enough(tmp_path: Path) -> None:
    file = chain(tmp_path / "good.onnx", bad=None)
    transform, earned = earn(file, get_rewrite("int8-dynamic"), {"smooth": 0.5}, feeds(), 6e-2, top1=0.0)
    assert earned.passed and dict(transform.parameters) == {"smooth": 0.5}
    assert earned.sensitivity is None and len(earned.steps) == 1


def test_between_two_powers_of_two_it_looks_for_the_fewest(tmp_path: Path) -> None:
    file = chain(tmp_path / "long.onnx", bad=None, layers=12)
    loose = earn(file, get_rewrite("int8-dynamic"), {}, feeds(), 1.0, top1=0.0)[1].steps[0].comparison.error
    _, earned = earn(file, get_rewrite("int8-dynamic"), {}, feeds(), 0.75 * loose, top1=0.0)
    assert earned.passed
    counts = {len(step.excluded): step.passed for step in earned.steps}
    least = min(count for count, passed in counts.items() if passed)
    assert least > 2 and counts[least - 1] is False, counts


def test_a_tolerance_that_leaves_nothing_worth_while_is_told(source: Path) -> None:
    _, earned = earn(source, get_rewrite("int4-weights"), {"block_size": 64}, feeds(), 1e-6)
    assert not earned.passed and "nothing worth quantising is left" in earned.detail
    assert earned.sensitivity is not None and len(earned.sensitivity.nodes) == 4


def test_excluded_nodes_stay_excluded(source: Path) -> None:
    transform, earned = earn(source, get_rewrite("int8-dynamic"), {"exclude": ["product3"]}, feeds(), 6e-2, top1=0.0)
    assert earned.passed and transform.parameters["exclude"] == ["product3", "product1"]


def test_without_inputs_nothing_is_earned(source: Path) -> None:
    with pytest.raises(InputsError, match="judged on real inputs, and there are none"):
        earn(source, get_rewrite("int8-dynamic"), {}, [], 1e-1)


def test_a_deadline_that_is_over_ends_it_after_the_first_trial(source: Path) -> None:
    _, earned = earn(source, get_rewrite("int8-dynamic"), {}, feeds(), 1e-6, deadline=time.monotonic())
    assert not earned.passed and len(earned.steps) == 1 and "time was up" in earned.detail


def test_multiplications_are_counted_for_the_shapes_of_a_feed(source: Path) -> None:
    assert macs_of(source, feeds(1)[0]) == dict.fromkeys(("m0", "m1", "m2", "y"), 4 * WIDTH * WIDTH)


# real models


def real_feeds(zoo: Path, name: str) -> list[Feed]:
    """Images and token ids that are not random noise, made without other packages than numpy."""
    rng = np.random.default_rng(0)
    if name == "minilm_l3_fp32":
        ids = [np.minimum(1996 + rng.zipf(1.3, (1, 64)), 30000).astype(np.int64) for _ in range(8)]
        return [{"input_ids": each, "attention_mask": np.ones_like(each)} for each in ids]
    waves = [np.linspace(0, period, 224) for period in rng.uniform(2, 12, 8)]
    images = [np.sin(wave)[None, :, None, None] * np.cos(wave[::-1])[None, None, :, None] for wave in waves]
    return [{"input:0": (np.repeat(image, 3, 3) * 120).astype(np.float32)} for image in images]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("parameters", "least"), [({"smooth": 0.65}, 0.8), ({"per_channel": False}, 0.8)])
def test_an_encoder_earns_8_bits(
    parameters: dict[str, Any], least: float, zoo: Path, zoo_model: Callable[[str], Path]
) -> None:
    file, given = zoo_model("minilm_l3_fp32"), real_feeds(zoo, "minilm_l3_fp32")
    _, earned = earn(file, get_rewrite("int8-dynamic"), parameters, given, 1e-1, deadline=time.monotonic() + 300)
    assert earned.passed, earned.table()
    assert earned.final is not None and (earned.final.share is None or earned.final.share >= least)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_residual_network_earns_8_bits(zoo: Path, zoo_model: Callable[[str], Path], tmp_path: Path) -> None:
    model = onnx.version_converter.convert_version(onnx.load(str(zoo_model("opennsfw_resnet50"))), 13)
    model.ir_version = 8
    onnx.save(model, str(tmp_path / "raised.onnx"))
    given = real_feeds(zoo, "opennsfw_resnet50")
    _, earned = earn(tmp_path / "raised.onnx", get_rewrite("int8-static"), {}, given, 1e-1)
    assert earned.passed, earned.table()
