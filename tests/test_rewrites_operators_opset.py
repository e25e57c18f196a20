"""Models carried to another opset: the same numbers there, or nothing done and the operator named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_metainfer.model.graph import describe
from ort_metainfer.rewrites.base import Context
from ort_metainfer.rewrites.operators_opset import ConvertOpset
from ort_metainfer.rewrites.registry import get_rewrite
from ort_metainfer.rewrites.rewriting import rewrite_model
from tests.operator_graphs import assert_left_alone, graph, overridable, rewritten
from tests.rewrite_run import apply_to_bytes

ROWS = "(float[N,S,8] x) => (float[N,S,8] y)"


def opset_of(model: Any) -> int:
    return next(entry.version for entry in model.opset_import if entry.domain == "")


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


OLD = {
    "axes of reductions": ("m = ReduceMean<axes=[-1]>(x) y = Sub(x, m)", {}),
    "axes of ReduceSum": ("m = ReduceSum<axes=[1]>(x) y = Sub(x, m)", {}),
    "axes of Unsqueeze and Squeeze": ("a = Unsqueeze<axes=[0]>(x) b = Relu(a) y = Squeeze<axes=[0]>(b)", {}),
    "sizes of Split": ("a, b = Split<axis=2, split=[3,5]>(x) c = Neg(a) y = Concat<axis=2>(c, b)", {}),
    "equal parts of Split": ("a, b = Split<axis=2>(x) c = Neg(a) y = Concat<axis=2>(c, b)", {}),
    "Softmax over the last axis": ("y = Softmax<axis=2>(x)", {}),
    "Softmax over the last axis, negative": ("y = LogSoftmax<axis=-1>(x)", {}),
    "a ratio of Dropout": ("y = Dropout<ratio=0.3>(x)", {}),
    "types only": (
        "a = Add(x, x) b = Relu(a) c = MatMul(b, w) y = Clip(c, z)",
        {"w": np.eye(8, dtype=np.float32), "z": np.float32(0)},
    ),
    "all axes": ("m = ReduceMax(x) y = Sub(x, m)", {}),
    "GELU": ("a = Erf(x) b = Pow(a, t) y = Mul(b, x)", {"t": np.float32(2)}),
}


@pytest.mark.parametrize("target", [12, 13, 17, 18, 21, 23])
@pytest.mark.parametrize("name", OLD)
def test_up_and_down_again(name: str, target: int) -> None:
    body, weights = OLD[name]
    old = graph(ROWS, body, opset=11, **weights)
    newer, outcome = rewritten(ConvertOpset(), old, target=target)
    assert outcome.changed == len(newer.graph.node) or (outcome.changed and opset_of(newer) == target), outcome
    assert opset_of(newer) == target
    onnx.checker.check_model(newer, full_check=True)
    again, outcome = rewritten(ConvertOpset(), newer.SerializeToString(), target=11)
    assert outcome.changed and opset_of(again) == 11, outcome
    onnx.checker.check_model(again, full_check=True)


def test_subgraphs_are_converted_too() -> None:
    body = """y = If (c) <
        then_branch = t () => (float[N,S,8] u) { m = ReduceMean<axes=[-1]>(x) u = Sub(x, m) },
        else_branch = e () => (float[N,S,8] v) { v = Neg(x) }>"""
    made = graph("(float[N,S,8] x, bool c) => (float[N,S,8] y)", body, opset=13)
    after, outcome = rewritten(ConvertOpset(), made, target=18)
    assert outcome.changed and opset_of(after) == 18


def test_operators_of_other_domains_stay() -> None:
    made = graph(ROWS, "a = com.microsoft.Gelu(x) y = Relu(a)", opset=12)
    after, _ = rewritten(ConvertOpset(), made, target=20)
    assert [(node.domain, node.op_type) for node in after.graph.node] == [("com.microsoft", "Gelu"), ("", "Relu")]


@pytest.mark.parametrize(
    ("made", "target", "reason"),
    [
        (graph(ROWS, "y = Softmax<axis=1>(x)", opset=11), 13, "another axis than the last"),
        (graph(ROWS, "y = Softmax<axis=1>(x)", opset=13), 12, "another axis than the last"),
        (graph(ROWS, "y = LayerNormalization(x, g)", g=np.ones(8, np.float32)), 16, "not in opset 16"),
        (graph(ROWS, "y = Gelu(x)", opset=20), 19, "Gelu is not in opset 19"),
        (graph(ROWS, "y = Reshape<allowzero=1>(x, s)", s=ints(3, 5, 8)), 13, "no allowzero"),
        (graph("(float[N,8] x) => (int64[K] y)", "y = Shape<start=1>(x)", opset=15), 14, "no start"),
        (overridable(graph(ROWS, "m = ReduceMean(x, a) y = Sub(x, m)", opset=18, a=ints(-1)), "a"), 17, "not constant"),
        (graph(ROWS, "m = ReduceSum<noop_with_empty_axes=1>(x) y = Sub(x, m)", opset=13), 12, "without axes"),
        (graph("(bfloat16[N,8] x) => (bfloat16[N,8] y)", "y = Identity(x)", opset=13), 12, "BFLOAT16"),
        (
            graph("(float[N,2,S,8] x) => (float[A,B,C,D] y)", "y = AveragePool<kernel_shape=[2,2], ceil_mode=1>(x)"),
            19,
            "ceil_mode",
        ),
        (graph(ROWS, "y = Relu(x)", opset=6), 13, "opset 6"),
        (graph(ROWS, "y = Relu(x)", opset=17), 17, "is asked for"),
    ],
)
def test_what_would_mean_something_else_is_refused(made: bytes, target: int, reason: str) -> None:
    after, outcome = apply_to_bytes(ConvertOpset(), made, [], {"target": target})
    told = [*outcome.notes, *(site.reason for site in outcome.sites)]
    assert not outcome.changed and any(reason in text for text in told), told
    assert opset_of(onnx.load_from_string(after)) == opset_of(onnx.load_from_string(made))


def test_an_attribute_that_says_the_default_is_left_out() -> None:
    body = "i = Cast<to=7, saturate=1>(x) y = Cast<to=1>(i)"
    after, outcome = rewritten(ConvertOpset(), graph(ROWS, body, opset=19), target=13)
    assert outcome.changed and opset_of(after) == 13


def test_double_precision_is_refused() -> None:
    made = graph("(double[N,8] x) => (double[N,8] y)", "y = Elu(x)", opset=18)
    assert_left_alone(ConvertOpset(), made, "Elu of DOUBLE", target=17)


def test_a_model_older_than_the_least_is_objected_to() -> None:
    assert_left_alone(ConvertOpset(), graph(ROWS, "y = Relu(x)", opset=6), "opset 6")


@pytest.mark.parametrize("target", [12, 13, 19])
def test_quantised_models_keep_their_scales(target: int) -> None:
    body = "q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, z) y = Relu(a)"
    made = graph(ROWS, body, opset=11 if target > 12 else 13, s=np.float32(0.1), z=np.uint8(128))
    after, outcome = rewritten(ConvertOpset(), made, target=target)
    assert outcome.changed and opset_of(after) == target
    wide = graph(ROWS, body, opset=13, s=np.full(5, 0.1, np.float32), z=np.full(5, 128, np.uint8))
    if target == 12:
        feed = {"x": np.ones((3, 5, 8), np.float32)}
        _, outcome = rewritten(ConvertOpset(), wide, feed, target=12)
        assert not outcome.changed and "not one constant number" in outcome.notes[0]


def _of_opset_9(tmp_path: Path) -> Path:
    """Clip by attributes, Upsample and a Gemm: spelled otherwise since 11, 10 and 11; with a name in its metadata."""
    weight = np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Clip", ["x"], ["c"], min=-0.5, max=0.5),
        helper.make_node("Flatten", ["c"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "old",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, ir_version=4, opset_imports=[helper.make_opsetid("", 9)], producer_name="someone")
    model.metadata_props.add(key="labels", value="a,b")
    path = tmp_path / "old.onnx"
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize("target", [11, 13, 17])
def test_a_model_older_than_opset_11_is_brought_up_by_onnx_s_converter(tmp_path: Path, target: int) -> None:
    path = _of_opset_9(tmp_path)
    transform = get_rewrite("convert-opset").transform(target=target)
    made = rewrite_model(path, [transform], Context(tmp_path, describe(path)), tmp_path / "out" / "new.onnx")
    new = onnx.load(str(made.file))
    assert {entry.domain: entry.version for entry in new.opset_import}[""] == target
    assert new.producer_name == "someone" and new.metadata_props[0].value == "a,b" and new.graph.name == "old"
    feed = {"x": np.random.default_rng(1).standard_normal((2, 3, 4)).astype(np.float32)}
    results = [
        onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"]).run(None, feed)[0]
        for file in (path, made.file)
    ]
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)
