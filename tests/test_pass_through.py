"""A model that cannot be rewritten safely is not, by whatever way a rewrite is asked for; and the reason is told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ort_metainfer
from ort_metainfer.adapt import Request, decide, settings_for
from ort_metainfer.cli.report import refusal_lines
from ort_metainfer.compilation import worth_trying
from ort_metainfer.deciders.rules import RuleLibrary
from ort_metainfer.decision import Refusal
from ort_metainfer.model.graph import describe
from ort_metainfer.problem import SessionSpec
from ort_metainfer.rewrites.registry import get_rewrite
from ort_metainfer.rewrites.rewriting import blocker
from ort_metainfer.settings import Settings
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.fake import FakeTrialHost, Scripted
from ort_metainfer.trials.task import Feeds
from tests.made_problems import problem

WIDTH = 512
X = {"x": np.random.default_rng(0).standard_normal((2, WIDTH)).astype(np.float32)}
INT8 = Strategy(transforms=(get_rewrite("int8-dynamic").transform(),))


def products(first: str = "MatMul", domain: str = "") -> onnx.ModelProto:
    """x -> MatMul -> MatMul -> y, the first one by another name if asked: something worth quantising."""
    weights = [
        numpy_helper.from_array(np.random.default_rng(i).standard_normal((WIDTH, WIDTH)).astype(np.float32), name)
        for i, name in enumerate(("v", "w"))
    ]
    nodes = [
        helper.make_node(first, ["x", "v"], ["h"], domain=domain),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, WIDTH])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, WIDTH])]
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(
        helper.make_graph(nodes, "products", inputs, outputs, weights), ir_version=10, opset_imports=opsets
    )


def with_functions() -> onnx.ModelProto:
    model = products("Product", "local")
    body = [helper.make_node("MatMul", ["a", "b"], ["c"])]
    model.functions.append(
        helper.make_function("local", "Product", ["a", "b"], ["c"], body, [helper.make_opsetid("", 17)])
    )
    return model


def with_sparse() -> onnx.ModelProto:
    model = products()
    del model.graph.initializer[0]
    kept = helper.make_tensor("v", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    where = helper.make_tensor("v_indices", TensorProto.INT64, [3], [0, 13, 31])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(kept, where, [WIDTH, WIDTH]))
    return model


def with_training() -> onnx.ModelProto:
    model = products()
    model.training_info.add()
    return model


def with_custom_domain() -> onnx.ModelProto:
    return products("Product", "org.example")


BLOCKED: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "functions": (with_functions, "model-local functions is not rewritten: a change inside one"),
    "sparse initialisers": (with_sparse, "sparse initializers is not rewritten: the graph library loses them"),
    "training": (with_training, "training is not rewritten"),
    "a custom domain": (with_custom_domain, "custom domain org.example is not rewritten: nothing is known"),
}
"""What a model holds -> the model, and words of the reason."""

RUNNABLE = [name for name in BLOCKED if name != "a custom domain"]


@pytest.fixture
def blocked(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    make, words = BLOCKED[request.param]
    path = tmp_path / "model.onnx"
    onnx.save(make(), str(path))
    return path, words


def decided_by(host: FakeTrialHost, model: Path) -> Any:
    settings, _ = settings_for(Settings(accuracy="fast", inputs=[X]))
    return decide(Request(str(model), SessionSpec(), settings), host)


def host_for(model: Path) -> FakeTrialHost:
    return FakeTrialHost(lambda _: Scripted(), graph=describe(model), feeds=Feeds(1, True, "given", {"x": (2, WIDTH)}))


@pytest.mark.parametrize("blocked", BLOCKED, indirect=True)
def test_no_trial_rewrites_it_options_are_tried_and_explain_tells(blocked: tuple[Path, str]) -> None:
    model, words = blocked
    host = host_for(model)
    decision = decided_by(host, model)
    assert host.raced and not any(strategy.transforms for strategy in host.raced)
    (told,) = [line for line in refusal_lines(decision.as_dict()) if line.startswith("rewrites of the model")]
    assert words in told


def test_of_a_model_that_may_be_rewritten_nothing_of_the_kind_is_told(tmp_path: Path) -> None:
    onnx.save(products(), str(tmp_path / "model.onnx"))
    decision = decided_by(host_for(tmp_path / "model.onnx"), tmp_path / "model.onnx")
    assert not [refusal for refusal in decision.refusals if refusal.by == "rewrites"]


@pytest.mark.parametrize("blocked", BLOCKED, indirect=True)
def test_the_rules_forbid_any_strategy_that_would_rewrite_it(blocked: tuple[Path, str]) -> None:
    refused = RuleLibrary().refuse(replace(problem(), graph=describe(blocked[0])), INT8)
    assert isinstance(refused, Refusal)


def test_functions_do_not_keep_a_model_from_being_compiled(tmp_path: Path) -> None:
    onnx.save(with_functions(), str(tmp_path / "model.onnx"))
    graph = describe(tmp_path / "model.onnx")
    assert blocker(graph) is not None and worth_trying(graph, 1000.0) is None


def by_file(tmp_path: Path) -> Settings:
    file = tmp_path / "strategy.toml"
    file.write_text(INT8.to_toml())
    return Settings(strategy=str(file))


@pytest.mark.slow
@pytest.mark.parametrize("blocked", RUNNABLE, indirect=True)
def test_a_strategy_file_that_rewrites_it_leaves_plain_onnxruntime_and_the_reason(
    blocked: tuple[Path, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, words = blocked
    with caplog.at_level(logging.WARNING):
        session = ort_metainfer.InferenceSession(str(model), metainfer=by_file(tmp_path))
    plain = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, X)[0], plain.run(None, X)[0])
    assert session.strategy.is_default and words in session.adaptation.reason and words in caplog.text


@pytest.mark.parametrize("how", ["by its suffix", "by its bytes"])
def test_onnxruntimes_own_format_passes_through(how: str, tmp_path: Path) -> None:
    onnx.save(products(), str(tmp_path / "model.onnx"))
    options = onnxruntime.SessionOptions()
    file = tmp_path / "model.ort"
    options.optimized_model_filepath = str(file)
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), options, providers=["CPUExecutionProvider"])
    given: Any = file.read_bytes() if how == "by its bytes" else str(file)
    session = ort_metainfer.InferenceSession(given)
    assert session.strategy.is_default and session.adaptation.reason == "the model is in ORT format"
    asked = ort_metainfer.InferenceSession(given, metainfer=by_file(tmp_path))
    assert asked.strategy.is_default and "ORT format" in asked.adaptation.reason
    assert asked.run(None, X)[0].shape == (2, WIDTH)


@pytest.mark.parametrize("content", [b"encrypted" * 100, bytes(range(256)) * 8, b""])
def test_unknown_bytes_get_onnxruntimes_own_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(Exception) as plain:
        onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    for settings in (None, by_file(tmp_path)):
        with pytest.raises(type(plain.value)) as ours:
            ort_metainfer.InferenceSession(str(tmp_path / "model.onnx"), metainfer=settings)
        assert str(ours.value) == str(plain.value)


def test_a_domain_without_schema_gets_onnxruntimes_own_error(tmp_path: Path) -> None:
    onnx.save(with_custom_domain(), str(tmp_path / "model.onnx"))
    with pytest.raises(Exception) as plain:
        onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    with pytest.raises(type(plain.value)) as ours:
        ort_metainfer.InferenceSession(str(tmp_path / "model.onnx"), metainfer=by_file(tmp_path))
    assert str(ours.value) == str(plain.value)
