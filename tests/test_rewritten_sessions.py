"""Strategies that rewrite the model: tried in a child, kept in the cache, applied, made again where they are gone."""

from __future__ import annotations

import logging
import shutil
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ort_metainfer
from ort_metainfer import rewriting_again
from ort_metainfer.compilation import with_rewritten
from ort_metainfer.compiled import Compiled, compiled_for
from ort_metainfer.compiled_key import compiled_key
from ort_metainfer.decision import Decision, Proposal
from ort_metainfer.errors import RewriteError, StrategyError
from ort_metainfer.model.fingerprint import fingerprint, remember_graph
from ort_metainfer.model.graph import describe
from ort_metainfer.model.inputs import save_feeds
from ort_metainfer.problem import CacheKey, SessionSpec
from ort_metainfer.rewrites import registry
from ort_metainfer.rewrites.registry import get_rewrite
from ort_metainfer.rewriting_again import rewrite_again
from ort_metainfer.settings import Settings
from ort_metainfer.strategy import Strategy
from ort_metainfer.strategy_cache.store import open_cache
from ort_metainfer.trials import rewritten
from ort_metainfer.trials.client import ChildTrialHost
from ort_metainfer.trials.task import Setup, Thresholds
from tests.made_rewrites import AbsToMax

NATIVE = Strategy(transforms=(get_rewrite("gelu-to-contributed").transform(),))
NOTHING = Strategy(transforms=(get_rewrite("instance-norm-to-native").transform(),))


@pytest.fixture
def gelu_model(tmp_path: Path) -> Path:
    """x -> MatMul -> GELU spelled out with Erf -> y, with something in its metadata."""
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32) / 4
    constants = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5), "w": weight}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Div", ["h", "root"], ["scaled"]),
        helper.make_node("Erf", ["scaled"], ["erf"]),
        helper.make_node("Add", ["erf", "one"], ["shifted"]),
        helper.make_node("Mul", ["h", "shifted"], ["product"]),
        helper.make_node("Mul", ["product", "half"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "gelu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    model.metadata_props.add(key="labels", value="a,b,c")
    path = tmp_path / "gelu.onnx"
    onnx.save(model, str(path))
    return path


FEED = {"x": np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)}


def operators(model: Path) -> set[str]:
    return {node.op_type for node in onnx.load(str(model)).graph.node}


def setup_of(model: Path, tmp_path: Path) -> Setup:
    feeds = tmp_path / "feeds"
    feeds.mkdir(exist_ok=True)
    return Setup(model, SessionSpec(), feeds, graph=describe(model), label="gelu")


def far() -> float:
    return time.monotonic() + 60


def test_a_rewritten_model_is_made_once_and_whole(gelu_model: Path, tmp_path: Path) -> None:
    setup = setup_of(gelu_model, tmp_path)
    first = rewritten.rewritten_model(setup, NATIVE.transforms, [FEED], far())
    stamp = first.stat().st_mtime_ns
    assert "Gelu" in operators(first) and "Erf" not in operators(first)
    assert rewritten.rewritten_model(setup, NATIVE.transforms, [FEED], far()).stat().st_mtime_ns == stamp
    assert [path.name for path in first.parent.parent.iterdir()] == [first.parent.name], "nothing is left beside it"
    assert any("1 rewritten" in note for note in rewritten.notes_of(setup, NATIVE.transforms))


def test_where_nothing_is_to_rewrite_the_reason_is_told_and_nothing_is_left(gelu_model: Path, tmp_path: Path) -> None:
    setup = setup_of(gelu_model, tmp_path)
    with pytest.raises(RewriteError, match="nothing to rewrite: instance-norm-to-native"):
        rewritten.rewritten_model(setup, NOTHING.transforms, [FEED], far())
    assert not list((setup.feeds / "rewritten").iterdir())


def test_a_model_whose_features_are_not_known_is_not_rewritten(gelu_model: Path, tmp_path: Path) -> None:
    with pytest.raises(RewriteError, match="features are not known"):
        rewritten.rewritten_model(replace(setup_of(gelu_model, tmp_path), graph=None), NATIVE.transforms, [], far())


def decision_for(model: Path) -> Decision:
    key = CacheKey(fingerprint(str(model), None).hash, "cpu:x/1c", "x:float32[n,16]", "strict|latency|CPU")
    return Decision(NATIVE, "search", "it won", key=key, graph=describe(model))


def test_what_was_tried_is_what_is_kept(gelu_model: Path, tmp_path: Path) -> None:
    setup, cache = setup_of(gelu_model, tmp_path), tmp_path / "cache"
    made = rewritten.rewritten_model(setup, NATIVE.transforms, [FEED], far())
    decision = with_rewritten(decision_for(gelu_model), setup, cache)
    assert decision.compiled_reason.startswith("the rewritten model is kept; gelu-to-contributed: 1 rewritten")
    assert decision.key is not None and decision.strategy == NATIVE
    kept = compiled_for(cache, compiled_key(decision.key.model, SessionSpec(), NATIVE))
    assert isinstance(kept, Compiled) and kept.folder.name == decision.compiled
    assert kept.model_file.read_bytes() == made.read_bytes()


def test_a_decision_whose_rewritten_model_cannot_be_kept_is_for_plain_onnxruntime(
    gelu_model: Path, tmp_path: Path
) -> None:
    setup, blocked = setup_of(gelu_model, tmp_path), tmp_path / "blocked"
    rewritten.rewritten_model(setup, NATIVE.transforms, [FEED], far())
    blocked.write_text("no folder")
    decision = with_rewritten(decision_for(gelu_model), setup, blocked)
    assert decision.strategy.is_default and not decision.complete and "cannot be kept" in decision.reason


@pytest.mark.slow
def test_a_race_holds_a_rewritten_model_against_the_original(gelu_model: Path, tmp_path: Path) -> None:
    setup = replace(setup_of(gelu_model, tmp_path), graph=None)
    with ChildTrialHost() as host:
        setup = replace(setup, graph=host.describe(setup, far()))
        host.prepare(setup, far())
        proposals = [Proposal(strategy, "test", "") for strategy in (NATIVE, NOTHING)]
        won, refused = host.race(setup, proposals, Thresholds(), far())
    assert [gate.passed for gate in won.gates[:2]] == [True, True] and won.timing is not None
    assert won.error is not None and won.error < 1e-6
    assert not refused.gates[0].passed and "nothing to rewrite" in refused.gates[0].detail


@pytest.fixture
def by_file(tmp_path: Path) -> Settings:
    file = tmp_path / "strategy.toml"
    file.write_text(NATIVE.to_toml())
    return Settings(strategy=str(file))


def test_nothing_is_rewritten_where_it_cannot_be_kept(
    gelu_model: Path,
    by_file: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def made(*_: Any) -> Path:
        raise AssertionError("every start would rewrite for nothing")

    monkeypatch.setattr(rewriting_again, "_made", made)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "compiled").write_text("in the way")
    settings = replace(by_file, cache_dir=tmp_path / "cache")
    with caplog.at_level(logging.WARNING):
        session = ort_metainfer.InferenceSession(str(gelu_model), metainfer=settings)
    assert session.strategy.is_default and "compiled" in caplog.text and "for nothing" not in caplog.text
    session.run(None, FEED)


@pytest.mark.parametrize("value", [[1], ["a", None], [["a"]]])
def test_a_list_of_anything_but_text_is_no_list_of_nodes(value: Any) -> None:
    with pytest.raises(StrategyError, match="list of text"):
        get_rewrite("int8-dynamic").transform(exclude=value)


@pytest.mark.slow
class TestSessions:
    def folders(self) -> list[Path]:
        import os

        return sorted((Path(os.environ["ORT_METAINFER_CACHE_DIR"]) / "compiled").iterdir())

    def check(self, model: Any, settings: Settings) -> ort_metainfer.InferenceSession:
        session = ort_metainfer.InferenceSession(model, metainfer=settings)
        plain = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(session.run(None, FEED)[0], plain.run(None, FEED)[0], rtol=1e-5, atol=1e-6)
        assert [(i.name, i.type, i.shape) for i in session.get_inputs()] == [
            (i.name, i.type, i.shape) for i in plain.get_inputs()
        ]
        assert session.get_modelmeta().custom_metadata_map == {"labels": "a,b,c"}
        assert session.get_modelmeta().graph_name == plain.get_modelmeta().graph_name
        return session

    @pytest.mark.parametrize("as_bytes", [False, True])
    def test_a_strategy_file_with_a_rewrite_is_carried_out_once(
        self, gelu_model: Path, by_file: Settings, as_bytes: bool
    ) -> None:
        model = gelu_model.read_bytes() if as_bytes else str(gelu_model)
        assert self.check(model, by_file).strategy == NATIVE
        (folder,) = self.folders()
        assert "Gelu" in operators(folder / "model.onnx")
        stamp = (folder / "model.onnx").stat().st_mtime_ns
        self.check(model, by_file)
        assert (folder / "model.onnx").stat().st_mtime_ns == stamp

    def test_a_rewritten_model_that_is_gone_or_damaged_is_made_again(self, gelu_model: Path, by_file: Settings) -> None:
        self.check(str(gelu_model), by_file)
        (folder,) = self.folders()
        whole = (folder / "model.onnx").read_bytes()
        (folder / "model.onnx").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        self.check(str(gelu_model), by_file)
        assert (self.folders()[0] / "model.onnx").read_bytes() == whole, "the same bytes again"
        shutil.rmtree(folder)
        self.check(str(gelu_model), by_file)
        assert (self.folders()[0] / "model.onnx").read_bytes() == whole

    def test_a_decision_is_not_applied_with_another_model_than_the_one_that_was_verified(
        self, gelu_model: Path, tmp_path: Path
    ) -> None:
        cache, feeds = tmp_path / "cache", [{"x": FEED["x"] * scale} for scale in (1, 2)]
        smooth = Strategy(transforms=(get_rewrite("int8-dynamic").transform(smooth=0.65),))
        setup = replace(setup_of(gelu_model, tmp_path), inputs_are_real=True)
        save_feeds(feeds, setup.feeds)
        rewritten.rewritten_model(setup, smooth.transforms, feeds, far())
        decision = with_rewritten(replace(decision_for(gelu_model), strategy=smooth), setup, cache)
        assert decision.key is not None and decision.compiled is not None and decision.graph is not None
        remember_graph(open_cache(cache), decision.key.model, decision.graph)
        key = compiled_key(decision.key.model, SessionSpec(), smooth)
        whole = (cache / "compiled" / decision.compiled / "model.onnx").read_bytes()
        shutil.rmtree(cache / "compiled" / decision.compiled)
        ours = Settings(cache_dir=cache)
        others = replace(ours, inputs=[{"x": FEED["x"] * 1000}])
        refused = rewrite_again(others, str(gelu_model), key, SessionSpec(), smooth, decision.compiled)
        assert isinstance(refused, str) and "verified" in refused
        assert isinstance(rewrite_again(ours, str(gelu_model), key, SessionSpec(), smooth, decision.compiled), str)
        given = replace(ours, inputs=feeds)
        again = rewrite_again(given, str(gelu_model), key, SessionSpec(), smooth, decision.compiled)
        assert isinstance(again, Compiled) and again.folder.name == decision.compiled
        assert isinstance(again, Compiled) and again.model_file.read_bytes() == whole

    def test_each_set_of_inputs_has_a_rewritten_model_of_its_own(self, gelu_model: Path, tmp_path: Path) -> None:
        file = tmp_path / "smooth.toml"
        file.write_text(Strategy(transforms=(get_rewrite("int8-dynamic").transform(smooth=0.65),)).to_toml())

        def made(inputs: Any) -> dict[str, bytes]:
            settings = Settings(strategy=str(file), inputs=inputs)
            session = ort_metainfer.InferenceSession(str(gelu_model), metainfer=settings)
            assert session.strategy.transforms
            return {folder.name: (folder / "model.onnx").read_bytes() for folder in self.folders()}

        one, other = [FEED], iter([{"x": FEED["x"] * np.arange(1, 17, dtype=np.float32)}])
        first = made(one)
        both = made(other)
        assert len(first) == 1 and len(both) == 2 and len(set(both.values())) == 2
        stamps = [path.stat().st_mtime_ns for folder in self.folders() for path in folder.glob("model.onnx")]
        assert made(one) == made(other) == made(None) == both  # the iterator has no more
        assert stamps == [path.stat().st_mtime_ns for folder in self.folders() for path in folder.glob("model.onnx")]

    def test_that_nothing_was_rewritten_is_remembered(
        self, gelu_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "nothing.toml"
        file.write_text(NOTHING.to_toml())
        settings = Settings(strategy=str(file))
        first = ort_metainfer.InferenceSession(str(gelu_model), metainfer=settings)
        assert first.strategy.is_default and "nothing to rewrite" in first.adaptation.reason
        monkeypatch.setattr(rewriting_again, "_made", lambda *_: pytest.fail("a child for nothing"))
        again = ort_metainfer.InferenceSession(str(gelu_model), metainfer=settings)
        assert again.adaptation.reason == first.adaptation.reason
        again.run(None, FEED)
        monkeypatch.setattr(rewriting_again, "VERSION", "another")
        with pytest.raises(pytest.fail.Exception):
            ort_metainfer.InferenceSession(str(gelu_model), metainfer=settings)

    def test_under_mode_cached_nothing_is_made(
        self, gelu_model: Path, by_file: Settings, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING):
            session = ort_metainfer.InferenceSession(str(gelu_model), metainfer=replace(by_file, mode="cached"))
        assert session.strategy.is_default and "mode is cached" in caplog.text

    def test_a_rewrite_that_does_not_exist_leaves_plain_onnxruntime_with_one_warning(
        self, gelu_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        file = tmp_path / "strange.toml"
        file.write_text(NATIVE.to_toml().replace("gelu-to-contributed", "gelu-to-gold"))
        with caplog.at_level(logging.WARNING):
            session = ort_metainfer.InferenceSession(str(gelu_model), metainfer=Settings(strategy=str(file)))
        assert session.strategy.is_default and "gelu-to-gold" in caplog.text
        session.run(None, FEED)


@pytest.mark.parametrize("fault", ["no name", "a promise that there is not", "a name that is taken", "none at all"])
def test_a_broken_rewrite_of_a_third_party_costs_nobody_else_s(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = AbsToMax()

    def broken() -> Any:
        if fault == "none at all":
            return 3
        made = {"no name": {"name": None}, "a name that is taken": {"name": "int8-dynamic"}}
        return type("Broken", (AbsToMax,), made.get(fault, {"name": "broken", "promise": "perfect"}))()

    points = [
        SimpleNamespace(name="a", value="a", load=lambda: broken),
        SimpleNamespace(name="b", value="b", load=lambda: lambda: right),
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)
    with caplog.at_level(logging.WARNING):
        assert registry._third_parties({"int8-dynamic"}) == [right]
    assert "a = a is left out" in caplog.text
