"""Sessions made from a compiled model: as if from the caller's, and from that where anything is wrong with it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_metainfer
from ort_metainfer import compilation, compiled, session
from ort_metainfer.compiled_key import CompiledKey
from ort_metainfer.decision import Decision
from ort_metainfer.model.graph import describe
from ort_metainfer.model.inputs import save_feeds
from ort_metainfer.preparing import Preparation, Prepared, prepare_model
from ort_metainfer.problem import Graph
from ort_metainfer.settings import Settings
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.fake import FakeTrialHost, Scripted
from ort_metainfer.trials.task import Feeds, Setup
from tests.test_adapt import favour
from tests.test_compiled import FEED, conv_model, flip, here

LEVEL = "graph_optimization_level"


class Host(FakeTrialHost):
    """Trials by the script, errands for real."""

    errand = staticmethod(here)

    def prepare(self, setup: Setup, deadline: float) -> Feeds:
        save_feeds([FEED], setup.feeds)
        return super().prepare(setup, deadline)


def large(path: Path) -> Graph:
    """Its features, made large enough for the rules to propose a graph level."""
    return replace(describe(path), operators={"MatMul": 20, "Relu": 20}, node_count=40, macs=10**9)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model old enough to be remembered by its stamp; whatever is compiled of it is worth it."""
    path = tmp_path / "m.onnx"
    onnx.save(conv_model(), str(path))
    os.utime(path, (1_700_000_000, 1_700_000_000))
    for name, value in (("MIN_CREATION_MS", 0.0), ("MIN_SAVED_MS", -1e9), ("MIN_RATIO", 0.0), ("MIN_TIME_S", 0.0)):
        monkeypatch.setattr(compilation, name, value)
    host = Host(favour(LEVEL), graph=large(path))
    monkeypatch.setattr("ort_metainfer.trials.client.ChildTrialHost", lambda: host)
    return path


@pytest.fixture
def created_from(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What onnxruntime was given, session by session."""
    given: list[str] = []
    plain = session._plain_create

    def create(self: Any, *args: Any) -> None:
        given.append(str(self._model_path) if self._model_path is not None else "bytes")
        plain(self, *args)

    monkeypatch.setattr(session, "_plain_create", create)
    session._said.clear()
    yield given
    session._said.clear()


def assert_same(got: Any, want: Any) -> None:
    """Up to the order in which kernels sum: graph levels have others."""
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def start(model: Path, **settings: Any) -> Any:
    return ort_metainfer.InferenceSession(str(model), metainfer=Settings(**settings) if settings else None)


def folder_of(decision: Decision | None) -> Path:
    assert decision is not None and decision.compiled is not None, decision
    return Path(os.environ["ORT_METAINFER_CACHE_DIR"]) / "compiled" / decision.compiled


def plain(model: Path) -> Any:
    return onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])


def test_a_decision_is_followed_by_compiling_and_every_session_is_made_from_it(
    model: Path, created_from: list[str]
) -> None:
    first = start(model)
    compiled_file = str(folder_of(first.adaptation) / "model.onnx")
    assert created_from == [compiled_file]
    second = start(model)
    assert created_from == [compiled_file] * 2
    assert not second._metainfer_is_told, "the shortcut was taken"
    assert second.adaptation.compiled == first.adaptation.compiled
    assert_same(second.run(None, FEED)[0], plain(model).run(None, FEED)[0])


def test_the_full_look_up_finds_it_too(model: Path, created_from: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first = start(model)
    monkeypatch.setattr("ort_metainfer.start.recall", lambda *_: None)
    second = start(model)
    assert second.adaptation.cache == "hit" and second.adaptation.compiled == first.adaptation.compiled
    assert len(set(created_from)) == 1 and "compiled" in created_from[0]


def test_a_default_that_won_is_compiled_as_well(
    model: Path, created_from: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(lambda _: Scripted(), graph=large(model))
    monkeypatch.setattr("ort_metainfer.trials.client.ChildTrialHost", lambda: host)
    assert start(model).strategy.is_default
    again = start(model)
    assert again.strategy.is_default and len(created_from) == 2 and "compiled" in created_from[1]
    assert_same(again.run(None, FEED)[0], plain(model).run(None, FEED)[0])


def test_what_a_caller_can_ask_is_as_it_would_be(model: Path, created_from: list[str]) -> None:
    start(model)
    made, want = start(model), plain(model)
    assert "compiled" in created_from[-1]
    names = (
        "custom_metadata_map",
        "description",
        "domain",
        "graph_description",
        "graph_name",
        "producer_name",
        "version",
    )
    assert [getattr(made.get_modelmeta(), name) for name in names] == [
        getattr(want.get_modelmeta(), name) for name in names
    ]
    for ask in ("get_inputs", "get_outputs", "get_overridable_initializers"):
        assert [(v.name, v.type, v.shape) for v in getattr(made, ask)()] == [
            (v.name, v.type, v.shape) for v in getattr(want, ask)()
        ]
    assert made._model_path == str(model)
    level = made.strategy.session_options[LEVEL]
    assert made.get_session_options().graph_optimization_level.name.lower().endswith(str(level)), "not: disabled"
    other = {"x": np.ones((5, 3, 8, 8), np.float32)}
    assert_same(made.run(None, other)[0], want.run(None, other)[0])


def test_a_model_given_as_bytes_is_served_from_it_too(model: Path, created_from: list[str]) -> None:
    content = model.read_bytes()
    for _ in range(2):
        made: Any = ort_metainfer.InferenceSession(content)
        assert "compiled" in created_from[-1]
        assert made._model_bytes == content and made._model_path is None
    assert_same(made.run(None, FEED)[0], plain(model).run(None, FEED)[0])


def test_fixed_shapes_are_compiled_in_and_other_calls_run_on_the_general_session(
    model: Path, created_from: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(strategy: Strategy) -> Scripted:
        return Scripted(speedup=1.5 if strategy.static_shapes else 1.0)

    host = Host(script, graph=large(model))
    monkeypatch.setattr("ort_metainfer.trials.client.ChildTrialHost", lambda: host)
    for _ in range(2):
        made = start(model, input_shapes={"x": (2, 3, 8, 8)})
        assert dict(made.strategy.static_shapes) == {"n": 2} and "compiled" in created_from[-1]
    assert [value.shape for value in made.get_inputs()] == [["n", 3, 8, 8]]
    for feed in (FEED, {"x": np.ones((5, 3, 8, 8), np.float32)}):
        assert_same(made.run(None, feed)[0], plain(model).run(None, feed)[0])


def test_no_time_and_no_figures_are_reasons_that_are_told(
    model: Path, created_from: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "MIN_TIME_S", 1e9)
    assert start(model).adaptation.compiled_reason == "no time was left to compile it"
    monkeypatch.setattr(compilation, "_creation_ms", lambda _: None)
    other = start(model, budget_s=14, accuracy="balanced").adaptation
    assert other.compiled is None and "was not measured" in other.compiled_reason
    assert created_from == [str(model)] * 2


def test_set_providers_later_works(model: Path) -> None:
    made = start(model)
    made.set_providers(["CPUExecutionProvider"])
    assert_same(made.run(None, FEED)[0], plain(model).run(None, FEED)[0])


def test_through_patch_it_is_the_same(model: Path, created_from: list[str]) -> None:
    start(model)
    with ort_metainfer.patch():
        made = onnxruntime.InferenceSession(str(model))
    assert "compiled" in created_from[-1]
    assert made.get_modelmeta().producer_name == "us"


def test_switched_off_nothing_is_compiled(model: Path, created_from: list[str]) -> None:
    made = start(model, compiled="off")
    assert made.adaptation.compiled is None and created_from == [str(model)]
    assert not (Path(os.environ["ORT_METAINFER_CACHE_DIR"]) / "compiled").exists()


def test_switched_off_later_it_is_not_used_and_not_lost(
    model: Path, created_from: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start(model)
    monkeypatch.setenv("ORT_METAINFER_COMPILED", "off")
    for _ in range(2):
        made = start(model)
        assert created_from[-1] == str(model) and made.adaptation.compiled is None
    monkeypatch.delenv("ORT_METAINFER_COMPILED")
    start(model)
    assert "compiled" in created_from[-1]


def test_a_model_that_changed_is_not_served_from_the_old_one(model: Path, created_from: list[str]) -> None:
    old = folder_of(start(model).adaptation)
    onnx.save(conv_model(scale=3.0), str(model))
    made = start(model)
    assert str(old) not in created_from[-1]
    assert_same(made.run(None, FEED)[0], plain(model).run(None, FEED)[0])


def test_another_version_of_onnxruntime_is_another_compiled_model(
    model: Path, created_from: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start(model)
    monkeypatch.setattr("ort_metainfer.strategy_cache.manifest._onnxruntime", lambda: "9.9 another")
    start(model)  # the shortcut, whose circumstances are told apart by start._software
    assert created_from[-1] == str(model)


@pytest.mark.parametrize("damage", ["flipped", "cut short", "gone"])
def test_a_damaged_one_is_dropped_said_once_and_the_original_is_used(
    model: Path, created_from: list[str], caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    folder = folder_of(start(model).adaptation)
    file = folder / "model.onnx"
    {"flipped": flip, "cut short": lambda path: os.truncate(path, 50), "gone": Path.unlink}[damage](file)
    with caplog.at_level(logging.WARNING, "ort_metainfer"):
        for _ in range(2):
            made = start(model)
            assert created_from[-1] == str(model)
            assert_same(made.run(None, FEED)[0], plain(model).run(None, FEED)[0])
    assert [record.message for record in caplog.records if "compiled model" in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1 and "damaged" in caplog.records[0].message
    assert not folder.exists()
    assert (
        made.get_session_options()
        .graph_optimization_level.name.lower()
        .endswith(str(made.strategy.session_options[LEVEL]))
    )


@pytest.mark.parametrize("strict", [False, True])
def test_one_that_onnxruntime_refuses_is_dropped_too(
    model: Path, created_from: list[str], caplog: pytest.LogCaptureFixture, strict: bool
) -> None:
    """Whole by its digests, and no model all the same."""
    decision = start(model, strict=strict).adaptation
    folder = folder_of(decision)
    found = compiled.compiled_for(folder.parent.parent, read_key(folder))
    assert isinstance(found, compiled.Compiled)
    with compiled.part_folder(folder.parent.parent) as part:
        (part / "model.onnx").write_bytes(b"no model at all")
        compiled.keep(folder.parent.parent, part, found)
    with caplog.at_level(logging.WARNING, "ort_metainfer"):
        made = start(model, strict=strict)
    assert created_from[-2:] == [str(folder / "model.onnx"), str(model)]
    assert [record.message.split(" is dropped")[0] for record in caplog.records] == [f"the compiled model in {folder}"]
    assert made.adaptation.strategy == decision.strategy, "the strategy stays in force"
    assert_same(made.run(None, FEED)[0], plain(model).run(None, FEED)[0])
    assert not folder.exists()


def test_one_that_the_provider_calls_unsupported_is_not_even_tried(
    model: Path, created_from: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(start(model).adaptation)
    monkeypatch.setattr("ort_metainfer.compiled_start.unsupported", lambda _: "Npu says EP_UNSUPPORTED")
    start(model)
    assert created_from[-1] == str(model) and not folder.exists()


def test_a_mistake_of_the_caller_is_still_onnxruntimes_to_tell(model: Path, created_from: list[str]) -> None:
    start(model)
    made = start(model)
    assert "compiled" in created_from[-1]
    with pytest.raises(Exception, match=r"Invalid (input|Feed)|[Ii]nvalid"):
        made.run(None, {"x": np.ones((1, 4, 8, 8), np.float32)})


def read_key(folder: Path) -> CompiledKey:
    return compiled._read_record(folder).key


# ---- prepared ahead of time ------------------------------------------------------------------------------------------


@pytest.fixture
def prepared(model: Path, tmp_path: Path) -> Prepared:
    save_feeds([FEED], tmp_path / "feeds")
    wanted = Preparation(model, shapes={"x": (2, 3, 8, 8)}, inputs=str(tmp_path / "feeds"))
    return prepare_model(wanted, Path(os.environ["ORT_METAINFER_CACHE_DIR"]), errand=here)


def test_the_strategy_of_a_prepared_model_makes_sessions_from_it(
    model: Path, prepared: Prepared, created_from: list[str]
) -> None:
    assert prepared.failure is None and prepared.folder is not None
    made = start(model, strategy=prepared.strategy_file)
    assert created_from == [str(prepared.folder / "model.onnx")]
    assert [value.shape for value in made.get_inputs()] == [["n", 3, 8, 8]], "as the model declares them"
    assert_same(made.run(None, FEED)[0], plain(model).run(None, FEED)[0])
    assert len(created_from) == 1
    other = {"x": np.ones((5, 3, 8, 8), np.float32)}
    assert_same(made.run(None, other)[0], plain(model).run(None, other)[0])


def test_without_the_prepared_model_its_strategy_says_what_to_do(
    model: Path, prepared: Prepared, created_from: list[str], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    assert prepared.folder is not None and prepared.strategy_file is not None
    strategy = tmp_path / "kept.toml"
    strategy.write_text(prepared.strategy_file.read_text())
    compiled.discard(prepared.folder)
    assert not prepared.strategy_file.exists()
    with caplog.at_level(logging.WARNING, "ort_metainfer"):
        made = start(model, strategy=strategy, mode="cached")
    assert created_from == [str(model)]
    assert "mode is cached" in caplog.text and "ort-metainfer compile" in caplog.text
    assert_same(made.run(None, FEED)[0], plain(model).run(None, FEED)[0])
    with pytest.raises(ort_metainfer.errors.StrategyError, match="the rewritten model is not there"):
        start(model, strategy=strategy, mode="cached", strict=True)


@pytest.mark.slow
def test_another_model_is_not_served_from_the_prepared_one(
    prepared: Prepared, created_from: list[str], tmp_path: Path, zeroed: Callable[[Path], Path]
) -> None:
    other = zeroed(tmp_path / "other.onnx")
    made = start(other, strategy=prepared.strategy_file)
    assert prepared.folder is not None
    assert Path(created_from[-1]).parent not in (prepared.folder, other.parent), "its shapes are fixed in a copy of it"
    assert not made.run(None, FEED)[0].any()


@pytest.fixture
def zeroed() -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        onnx.save(conv_model(scale=0.0), str(path))
        return path

    return write
