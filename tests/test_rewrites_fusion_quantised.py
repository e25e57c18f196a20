"""Quantised graphs in the form kernels are found by; onnxruntime's own optimisers by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from ort_metainfer.errors import StrategyError
from ort_metainfer.rewrites.fusion_quantised import CancelQuantisation, ClipIntoQuantiser, DequantisePerConsumer
from ort_metainfer.rewrites.ort_optimizers import CONFIG_KEY, KEPT, ORT_OPTIMIZERS, SUSPECTS, disabling
from ort_metainfer.strategy import Strategy
from tests.oldest_onnxruntime import IS_OLDEST
from tests.operator_graphs import assert_left_alone, assert_rewritten, graph, operators, overridable, rewritten

FLAT = "(float[N,8] x) => (float[N,8] y)"
S, ZERO = np.float32(0.1), np.uint8(7)


def pairs(**change: Any) -> bytes:
    arrays = {"s": S, "z": ZERO, "s2": S, "z2": ZERO} | change
    body = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) r = QuantizeLinear(d, s2, z2)"
    return graph(FLAT, f"{body} y = DequantizeLinear(r, s2, z2)", **arrays)


def test_the_second_of_two_equal_pairs_goes() -> None:
    assert assert_rewritten(CancelQuantisation(), pairs()) == {"QuantizeLinear": 1, "DequantizeLinear": 1}


def test_pairs_along_an_axis_cancel_too() -> None:
    scales = np.linspace(0.05, 0.2, 8, dtype=np.float32)
    body = """q = QuantizeLinear<axis = 1>(x, s, z) d = DequantizeLinear<axis = 1>(q, s, z)
        r = QuantizeLinear<axis = 1>(d, s, z) y = DequantizeLinear<axis = 1>(r, s, z)"""
    model = graph(FLAT, body, s=scales, z=np.zeros(8, np.int8))
    assert assert_rewritten(CancelQuantisation(), model) == {"QuantizeLinear": 1, "DequantizeLinear": 1}


def test_every_integer_comes_back_as_itself() -> None:
    """What cancelling rests on: (q - z) * s / s rounds to q - z, for every integer and awkward scales."""
    for kind in (np.uint8, np.int8, np.int16, np.uint16):
        limits = np.iinfo(kind)
        q = np.arange(limits.min, limits.max + 1, dtype=kind)
        for scale in (0.1, 1 / 3, 7e-5, 123.456, 1.1754944e-38):
            real = (q.astype(np.float32) - np.float32(3)) * np.float32(scale)
            assert np.array_equal(np.rint(real / np.float32(scale)) + 3, q.astype(np.float32))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"s2": np.float32(0.2)}, "another scale"),
        ({"z2": np.uint8(8)}, "another scale or zero"),
        ({"z2": np.int8(7)}, "another type"),
        ({"s": np.float32(1e-40), "s2": np.float32(1e-40)}, "normal positive"),
    ],
)
def test_pairs_that_differ_stay(change: dict[str, Any], reason: str) -> None:
    assert_left_alone(CancelQuantisation(), pairs(**change), reason)


def test_a_scale_that_a_caller_may_override_stays() -> None:
    assert_left_alone(CancelQuantisation(), overridable(pairs(), "s2"), "not constant")


CLIPPED = {
    "Relu with the zero point at the end": ("Relu(x)", {"z": np.uint8(0)}),
    "Clip at the ends": ("Clip(x, l, h)", {"z": np.uint8(0), "l": np.float32(0), "h": np.float32(25.5)}),
    "Clip beyond": ("Clip(x, l, h)", {"z": np.int8(3), "l": np.float32(-20), "h": np.float32(20)}),
}


@pytest.mark.parametrize("name", CLIPPED)
def test_a_clip_that_saturation_does_goes(name: str) -> None:
    clip, arrays = CLIPPED[name]
    model = graph(FLAT, f"a = {clip} q = QuantizeLinear(a, s, z) y = DequantizeLinear(q, s, z)", s=S, **arrays)
    assert assert_rewritten(ClipIntoQuantiser(), model) == {"QuantizeLinear": 1, "DequantizeLinear": 1}


@pytest.mark.parametrize(
    ("clip", "arrays", "reason"),
    [
        ("Relu(x)", {"z": np.uint8(3)}, "reach beyond"),
        ("Clip(x, l, h)", {"z": np.uint8(0), "l": np.float32(0), "h": np.float32(6)}, "reach beyond"),
    ],
)
def test_a_clip_within_what_the_integers_reach_stays(clip: str, arrays: dict[str, Any], reason: str) -> None:
    model = graph(FLAT, f"a = {clip} q = QuantizeLinear(a, s, z) y = DequantizeLinear(q, s, z)", s=S, **arrays)
    assert_left_alone(ClipIntoQuantiser(), model, reason)


def test_a_clip_that_others_use_stays() -> None:
    body = "a = Relu(x) q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z) y = Add(d, a)"
    assert_left_alone(ClipIntoQuantiser(), graph(FLAT, body, s=S, z=np.uint8(0)), "used elsewhere")


def test_every_consumer_gets_its_own() -> None:
    body = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) a = Exp(d) b = Abs(d) c = Mul(d, d)"
    model = graph(FLAT, f"{body} e = Add(a, b) y = Add(e, c)", s=S, z=ZERO)
    after, outcome = rewritten(DequantisePerConsumer(), model)
    assert outcome.changed == 2 and operators(after)["DequantizeLinear"] == 3
    assert all(len(set(node.input)) == 1 for node in after.graph.node if node.op_type == "Mul")


def test_an_output_keeps_the_first_and_a_branch_what_it_captures() -> None:
    body = """q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) a = Exp(d)
        y = If(flag) <then_branch = then () => (float[N,8] t) { t = Abs(d) },
                      else_branch = other () => (float[N,8] e) { e = Neg(d) }>"""
    signature = "(float[N,8] x, bool flag) => (float[N,8] y, float[N,8] a, float[N,8] d)"
    after, outcome = rewritten(DequantisePerConsumer(), graph(signature, body, s=S, z=ZERO))
    assert outcome.changed == 1 and operators(after)["DequantizeLinear"] == 2


def test_one_consumer_is_enough() -> None:
    model = graph(FLAT, "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)", s=S, z=ZERO)
    assert_left_alone(DequantisePerConsumer(), model, "one consumer")


# onnxruntime's own optimisers

TINY = graph(FLAT, "y = Abs(x)")


def applied(capfd: pytest.CaptureFixture[str], names: str) -> set[str]:
    """The transformers that a session's log says it applies."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.log_verbosity_level = 0, 1
    if names:
        options.add_session_config_entry(CONFIG_KEY, names)
    capfd.readouterr()
    onnxruntime.InferenceSession(TINY, options, providers=["CPUExecutionProvider"])
    return set(re.findall(r"Applying graph transformer (\S+) on step 1", capfd.readouterr().err))


@pytest.mark.skipif(not onnxruntime.__version__.startswith("1.32."), reason="the names are those of onnxruntime 1.32")
def test_transformers_are_those_that_onnxruntime_has_and_all_can_be_switched_off(
    capfd: pytest.CaptureFixture[str],
) -> None:
    there = applied(capfd, "")
    transformers = {optimizer.name for optimizer in ORT_OPTIMIZERS if not optimizer.rule}
    assert there == transformers | set(KEPT)
    assert applied(capfd, disabling(transformers)[CONFIG_KEY]) == set(KEPT)


W, B = np.ones((3, 2, 3, 3), np.float32), np.full((3, 1, 1), 2, np.float32)
FOUR = "(float[1,2,4,4] x) => (float[A,B,C,D] y)"
BATCH = "BatchNormalization(a, b, b, b, b)"
RULES = {
    "EliminateIdentity": graph(FLAT, "a = Relu(x) b = Identity(a) y = Abs(b)"),
    "EliminateDropout": graph(FLAT, "a = Relu(x) b = Dropout(a) y = Abs(b)"),
    "ExpandElimination": graph(FLAT, "a = Relu(x) b = Expand(a, s) y = Abs(b)", s=[1, 1]),
    "CastElimination": graph(FLAT, "a = Relu(x) b = Cast<to = 1>(a) y = Abs(b)"),
    "PreShapeNodeElimination": graph("(float[N,S] x) => (int64[2] y)", "a = Cast<to = 11>(x) y = Shape(a)"),
    "NoopElimination": graph(FLAT, "a = Relu(x) b = Add(a, z) y = Abs(b)", z=np.zeros(1, np.float32)),
    "DivMulFusion": graph("(float[N,8] x, float[N,8] z) => (float[N,8] y)", "a = Div(o, x) y = Mul(a, z)", o=S / S),
    "FuseReluClip": graph(FLAT, "a = Relu(x) y = Clip(a, l, h)", l=np.float32(-1), h=np.float32(6)),
    "GemmSumFusion": graph("(float[2,4] x) => (float[2,3] y)", "a = Gemm(x, w) y = Sum(a, b)",
                           w=np.ones((4, 3), np.float32), b=np.ones((2, 3), np.float32)),
    "GemmTransposeFusion": graph("(float[2,4] x) => (float[4,3] y)", "a = Transpose<perm = [1,0]>(x) y = Gemm(a, w)",
                                 w=np.ones((2, 3), np.float32)),
    "NotWhereFusion": graph("(bool[N,8] x) => (float[N,8] y)", "a = Not(x) y = Where(a, p, q)", p=S, q=np.float32(1)),
    "ConvAddFusion": graph(FOUR, "a = Conv(x, w) y = Add(a, b)", w=W, b=B),
    "ConvMulFusion": graph(FOUR, "a = Conv(x, w) y = Mul(a, b)", w=W, b=B),
    "ConvBNFusion": graph(FOUR, f"a = Conv(x, w) y = {BATCH}", w=W, b=B.reshape(-1)),
    "Pad_Fusion": graph(FOUR, "a = Pad(x, p) y = Conv(a, w)", w=W, p=[0, 0, 1, 1, 0, 0, 1, 1]),
    "MatMul_BatchNormalization_Fusion": graph(
        "(float[2,4] x) => (float[2,3] y)", f"a = MatMul(x, w) y = {BATCH}", w=np.ones((4, 3), np.float32),
        b=B.reshape(-1)),
    "ReluQuantRewrite": graph("(float[N,8] x) => (uint8[N,8] y)", "a = Relu(x) y = QuantizeLinear(a, s, z)", s=S,
                              z=np.uint8(0)),
}  # fmt: skip


def optimised(model: bytes, folder: Path, config: dict[str, str]) -> list[str]:
    """The operators that are left after onnxruntime's own optimisation."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    for key, value in config.items():
        options.add_session_config_entry(key, value)
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]


def test_every_rule_is_tried() -> None:
    assert set(RULES) == {optimizer.name for optimizer in ORT_OPTIMIZERS if optimizer.rule}


@pytest.mark.parametrize("name", RULES)
def test_switching_a_rule_off_changes_what_onnxruntime_makes(name: str, tmp_path: Path) -> None:
    if name == "NotWhereFusion" and IS_OLDEST:
        pytest.skip("onnxruntime 1.23 leaves this Not before Where as it is")
    assert len(optimised(RULES[name], tmp_path, disabling([name]))) > len(optimised(RULES[name], tmp_path, {}))


def test_what_is_switched_off_is_a_strategys_config_and_checked() -> None:
    config = disabling(["TransposeOptimizer", "ConstantFolding", "ConstantFolding"])
    assert config == {CONFIG_KEY: "ConstantFolding;TransposeOptimizer"} and disabling([]) == {}
    assert Strategy(session_config=config).describe() == f"{CONFIG_KEY}=ConstantFolding;TransposeOptimizer"
    with pytest.raises(StrategyError, match="'NoSuchThing' is no optimiser"):
        disabling(["NoSuchThing"])
    with pytest.raises(StrategyError, match="must stay on"):
        disabling([KEPT[0]])


def test_suspects_are_optimisers_and_names_are_taken_once() -> None:
    names = [optimizer.name for optimizer in ORT_OPTIMIZERS]
    assert len(set(names)) == len(names) and set(SUSPECTS) <= set(names)
    assert all(
        optimizer.does and optimizer.level in ("basic", "extended", "layout", "all") for optimizer in ORT_OPTIMIZERS
    )
