"""onnxruntime's own optimisers switched off by a strategy: what says it, where it is proposed, and that it helps."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_metainfer.deciders.rules_fusion import FUSION_RULES
from ort_metainfer.deciders.search_space import declared_space
from ort_metainfer.options import open_session
from ort_metainfer.problem import SessionSpec
from ort_metainfer.rewrites.ort_optimizers import (
    CONFIG_KEY,
    ORT_OPTIMIZERS,
    SUSPECTS,
    also_disabling,
    disabling,
    suspects_in,
)
from ort_metainfer.strategy import Strategy
from tests import made_problems
from tests.made_problems import CPU, TRANSFORMER, device, problem

RULE = next(rule for rule in FUSION_RULES if rule.name == "gelu_stays_composed")
GGML = device("ggml", "cpu")


def spelled_gelu(path: Path) -> Path:
    """A product, a GELU by its parts in the opset that has one of its own, and a product."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Div", ["m", "root"], ["d"]),
        helper.make_node("Erf", ["d"], ["e"]),
        helper.make_node("Add", ["e", "one"], ["a"]),
        helper.make_node("Mul", ["m", "a"], ["p"]),
        helper.make_node("Mul", ["p", "half"], ["g"]),
        helper.make_node("MatMul", ["g", "w"], ["y"]),
    ]
    weights = {"w": np.random.default_rng(0).standard_normal((64, 64)) / 8, "root": 2**0.5, "one": 1.0, "half": 0.5}
    graph = helper.make_graph(
        nodes,
        "gelu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 64])],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 20)]), str(path))
    return path


def optimised(path: Path, target: Path, keyword: list[str], config: dict[str, str]) -> list[str]:
    """Operators that onnxruntime is left with."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(target)
    for key, value in config.items():
        options.add_session_config_entry(key, value)
    onnxruntime.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=keyword or None
    )
    return [node.op_type for node in onnx.load(str(target)).graph.node]


def test_the_config_entry_says_what_the_keyword_of_the_constructor_does(tmp_path: Path) -> None:
    model, names = spelled_gelu(tmp_path / "m.onnx"), ["GeluFusionL1", "GeluFusionL2"]
    plain = optimised(model, tmp_path / "plain.onnx", [], {})
    by_keyword = optimised(model, tmp_path / "keyword.onnx", names, {})
    by_config = optimised(model, tmp_path / "config.onnx", [], disabling(names))
    assert "Gelu" in plain and "Erf" in by_keyword and by_config == by_keyword


def test_a_session_of_a_strategy_has_them_switched_off(tmp_path: Path) -> None:
    model = spelled_gelu(tmp_path / "m.onnx")
    strategy = Strategy(session_config=disabling(["GeluFusionL1", "GeluFusionL2"]))
    session = open_session(str(model), SessionSpec(), strategy)
    assert session.get_session_options().get_session_config_entry(CONFIG_KEY) == "GeluFusionL1;GeluFusionL2"
    assert session.run(None, {"x": np.ones((8, 64), np.float32)})[0].shape == (8, 64)


def test_names_are_added_to_those_that_are_there() -> None:
    config = {"other": "1", **disabling(["NchwcTransformer"])}
    assert also_disabling(config, ["GeluFusionL1"]) == {"other": "1", CONFIG_KEY: "GeluFusionL1;NchwcTransformer"}
    assert also_disabling(config, []) == config and also_disabling({}, []) == {}


# the rule


@pytest.mark.parametrize(
    ("operators", "opset", "others", "applies"),
    [
        ({"MatMul": 8, "Erf": 2}, 20, (GGML,), True),
        ({"MatMul": 8, "Erf": 2}, 17, (GGML,), False),
        ({"MatMul": 8, "Tanh": 2}, 20, (GGML,), False),
        ({"MatMul": 8, "Erf": 2}, 20, (), False),
        ({"MatMul": 8, "Erf": 2}, 20, (made_problems.OPENVINO_CPU,), False),
    ],
)
def test_a_gelu_stays_as_it_is_spelled_for_a_provider_that_has_none(
    operators: dict[str, int], opset: int, others: tuple, applies: bool
) -> None:
    made = problem(operators, opset=opset, others=others)
    found = RULE.proposals(made)
    assert [strategy.provider for strategy in found] == (["ggml"] if applies else [])
    assert all(strategy.session_config == {CONFIG_KEY: "GeluFusionL1"} for strategy in found)


def test_whatever_is_tried_there_gets_it_and_nothing_elsewhere() -> None:
    made = problem({"MatMul": 8, "Erf": 2}, opset=20, others=(GGML,))
    assert RULE.requires is not None
    there = Strategy(provider="ggml", session_config=disabling(["ConstantFolding"]))
    required = RULE.requires(made, there)
    assert required is not None and required.session_config == {CONFIG_KEY: "ConstantFolding;GeluFusionL1"}
    assert RULE.requires(made, required) == required
    assert RULE.requires(made, Strategy(provider=CPU)) == Strategy(provider=CPU)


def test_ggml_takes_such_a_model_with_the_optimiser_off_only(tmp_path: Path) -> None:
    try:
        metadata.version("onnxruntime-ggml")
    except metadata.PackageNotFoundError:
        pytest.skip("onnxruntime-ggml is not installed")
    model = spelled_gelu(tmp_path / "m.onnx")
    code = """
import sys
import numpy as np, onnxruntime
from ort_metainfer.options import open_session
from ort_metainfer.problem import SessionSpec
from ort_metainfer.rewrites.ort_optimizers import disabling
from ort_metainfer.strategy import Strategy
feed = {"x": np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)}
wanted = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"]).run(None, feed)[0]
for off in ([], ["GeluFusionL1"]):
    strategy = Strategy(provider="ggml", provider_options={"weights": "f32"}, session_config=disabling(off))
    session = open_session(sys.argv[1], SessionSpec(), strategy, {"session.record_ep_graph_assignment_info": "1"})
    parts = session.get_provider_graph_assignment_info()
    taken = sum(len(part.get_nodes()) for part in parts if part.ep_name == "ggml")
    got = session.run(None, feed)[0]
    print(taken, bool(np.linalg.norm(got - wanted) < 1e-4 * np.linalg.norm(wanted)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(model)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parent.parent,
    )
    lines = [line for line in done.stdout.splitlines() if line.endswith(("True", "False"))]
    assert lines == ["0 True", "7 True"], done.stdout + done.stderr


# the search


def test_the_search_may_switch_off_suspects_that_have_something_to_do() -> None:
    found = {dimension.name: dimension for dimension in declared_space(problem(TRANSFORMER))}["optimisers off"]
    assert found.keys == frozenset({CONFIG_KEY})
    names = [choice.part.session_config[CONFIG_KEY] for choice in found.choices]
    assert names == list(suspects_in(TRANSFORMER)) and "NchwcTransformer" not in names and "MatMulAddFusion" in names
    assert all(choice.prior < 1.02 for choice in found.choices)  # none was measured to pay by itself
    assert all(choice.source.startswith(("guess: ", "own measurement")) for choice in found.choices)
    images = {dimension.name: dimension for dimension in declared_space(problem())}["optimisers off"]
    assert {choice.label: choice.prior for choice in images.choices}["NchwcTransformer off"] < 0.7


def test_every_suspect_says_which_operators_it_is_about() -> None:
    assert suspects_in({"Conv"}) == ("NchwcTransformer", "ConvAddActivationFusion")
    every = {"Conv", "Transpose", "MatMul", "Softmax", "DequantizeLinear", "Expand", "Gather"}
    assert suspects_in(every) == tuple(SUSPECTS)
    assert set(SUSPECTS) <= {optimizer.name for optimizer in ORT_OPTIMIZERS}
