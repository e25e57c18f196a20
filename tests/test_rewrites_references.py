"""Weights that a rewrite leaves as they are stay in the original's external data files; all else is written."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ort_metainfer
from ort_metainfer.adapt import key_of, settings_for
from ort_metainfer.compilation import with_rewritten
from ort_metainfer.compiled import Compiled, compiled_for
from ort_metainfer.compiled_key import compiled_key
from ort_metainfer.decision import Decision, Proposal
from ort_metainfer.errors import RewriteError
from ort_metainfer.model.fingerprint import fingerprint, remember_graph
from ort_metainfer.model.graph import describe
from ort_metainfer.places import cache_directory
from ort_metainfer.problem import CacheKey, SessionSpec
from ort_metainfer.remember import remember
from ort_metainfer.rewrites import draft as drafts
from ort_metainfer.rewrites.base import Context
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.observing import plain_session
from ort_metainfer.rewrites.references import folder_of, given_to_onnxruntime
from ort_metainfer.rewrites.registry import get_rewrite
from ort_metainfer.rewrites.rewriting import Rewritten, rewrite_model
from ort_metainfer.settings import Settings
from ort_metainfer.strategy import Strategy
from ort_metainfer.strategy_cache.store import open_cache
from ort_metainfer.trials.client import ChildTrialHost
from ort_metainfer.trials.rewritten import opened_with, rewritten_model
from ort_metainfer.trials.task import Setup, Thresholds

GELU = get_rewrite("gelu-to-contributed").transform()
IDS = {"ids": np.array([3, 0, 2], np.int64)}


def gelu_of(rows: int, width: int, table: Any) -> onnx.ModelProto:
    """ids -> Gather from a table -> GELU spelled out with Erf -> y."""
    constants = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["h"]),
        helper.make_node("Div", ["h", "root"], ["scaled"]),
        helper.make_node("Erf", ["scaled"], ["erf"]),
        helper.make_node("Add", ["erf", "one"], ["shifted"]),
        helper.make_node("Mul", ["h", "shifted"], ["product"]),
        helper.make_node("Mul", ["product", "half"], ["y"]),
    ]
    small = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", width])]
    graph = helper.make_graph(nodes, "gelu", inputs, outputs, [*small, table], doc_string="what the graph is for")
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    model.doc_string, model.producer_name, model.domain, model.model_version = "what it is for", "someone", "org", 7
    model.metadata_props.add(key="labels", value="a,b,c")
    return model


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A model whose table lies in ``model/weights.bin``."""
    values = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    path = tmp_path / "model" / "m.onnx"
    path.parent.mkdir()
    model = gelu_of(8, 64, numpy_helper.from_array(values, "table"))
    onnx.save(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=1024)
    return path


def rewritten(model: Path, folder: Path, may_refer: bool = True) -> Rewritten:
    folder.mkdir(exist_ok=True)
    context = Context(folder, describe(model))
    return rewrite_model(model, [GELU], context, folder / "model.onnx", may_refer=may_refer)


def run(made: Rewritten, original: Path) -> Any:
    folder = folder_of(original.parent, made.referenced)
    assert folder is not None
    return plain_session(given_to_onnxruntime(made.file), folder).run(None, IDS)[0]


def expected(original: Path) -> Any:
    return plain_session(original).run(None, IDS)[0]


def test_unchanged_weights_stay_in_the_originals_file(outside: Path, tmp_path: Path) -> None:
    made = rewritten(outside, tmp_path / "made")
    assert made.referenced == {"weights.bin": "weights.bin"} and made.files == (made.file,)
    assert made.file.stat().st_size < 2048 < (outside.parent / "weights.bin").stat().st_size + 1024
    np.testing.assert_allclose(run(made, outside), expected(outside), rtol=1e-5, atol=1e-6)


def test_the_callers_own_file_keeps_its_one_name(outside: Path, tmp_path: Path) -> None:
    """With a hard link to it onnx and onnx_ir would refuse to read the original."""
    rewritten(outside, tmp_path / "made")
    assert (outside.parent / "weights.bin").stat().st_nlink == 1
    assert onnx.load(str(outside)).graph.initializer


def test_who_does_not_ask_for_it_gets_a_model_by_itself(outside: Path, tmp_path: Path) -> None:
    made = rewritten(outside, tmp_path / "made", may_refer=False)
    assert not made.referenced and made.file.stat().st_size > 2048
    np.testing.assert_allclose(plain_session(made.file).run(None, IDS)[0], expected(outside), rtol=1e-5, atol=1e-6)


def test_what_is_new_and_large_takes_all_weights_to_a_file_beside_the_model(
    outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "INLINE_LIMIT_BYTES", -1)
    made = rewritten(outside, tmp_path / "made")
    assert not made.referenced and [path.name for path in made.files] == ["model.onnx", "model.onnx.data"]
    np.testing.assert_allclose(plain_session(made.file).run(None, IDS)[0], expected(outside), rtol=1e-5, atol=1e-6)


def test_weights_that_a_rewrite_replaced_are_written(outside: Path, tmp_path: Path) -> None:
    import onnx_ir

    (tmp_path / "work").mkdir()
    draft = Draft(outside, tmp_path / "work")
    value = draft.ir.graph.initializers["table"]
    value.const_value = onnx_ir.tensor(value.const_value.numpy() * 2, name="table")
    draft.save(tmp_path / "made.onnx", may_refer=True)
    assert not draft.referenced
    assert not np.allclose(plain_session(tmp_path / "made.onnx").run(None, IDS)[0], expected(outside))


def test_data_behind_links_is_read_and_referred_to_where_it_lies(outside: Path, tmp_path: Path) -> None:
    """The layout of the Hugging Face cache: onnxruntime follows the links, for a model in its own folder only."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    shutil.move(outside, blobs / "aaaa")
    shutil.move(outside.parent / "weights.bin", blobs / "bbbb")
    linked = snapshot / "m.onnx"
    linked.symlink_to("../blobs/aaaa")
    (snapshot / "weights.bin").symlink_to("../blobs/bbbb")
    made = rewritten(linked, tmp_path / "made")
    assert made.referenced == {"weights.bin": "bbbb"}
    np.testing.assert_allclose(run(made, linked), expected(linked), rtol=1e-5, atol=1e-6)
    whole = rewritten(linked, tmp_path / "whole", may_refer=False)
    np.testing.assert_allclose(plain_session(whole.file).run(None, IDS)[0], expected(linked), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("by", ["link", "way up", "absolute path"])
@pytest.mark.parametrize("may_refer", [True, False])
def test_data_that_onnxruntime_does_not_read_no_rewrite_brings_in(
    by: str, may_refer: bool, outside: Path, tmp_path: Path
) -> None:
    """A model from anywhere must not get at files of this machine because it is rewritten."""
    elsewhere = tmp_path / "elsewhere"
    shutil.move(outside.parent / "weights.bin", elsewhere)
    if by == "link":
        (outside.parent / "weights.bin").symlink_to(elsewhere)
    else:
        model = onnx.load(str(outside), load_external_data=False)
        place = "../elsewhere" if by == "way up" else str(elsewhere)
        (stated,) = (entry for entry in model.graph.initializer[-1].external_data if entry.key == "location")
        stated.value = place
        outside.write_bytes(model.SerializeToString())
    with pytest.raises(RewriteError, match="external data outside its folder"):
        rewritten(outside, tmp_path / "made", may_refer)


def test_a_model_that_moved_with_its_data_is_found_and_one_without_is_not(outside: Path, tmp_path: Path) -> None:
    made = rewritten(outside, tmp_path / "made")
    moved = tmp_path / "elsewhere" / "m.onnx"
    shutil.move(outside.parent, moved.parent)
    assert run(made, moved).shape == (3, 64)
    (moved.parent / "weights.bin").unlink()
    assert folder_of(moved.parent, made.referenced) is None


def test_where_the_data_is_gone_the_reason_names_it(outside: Path, tmp_path: Path) -> None:
    setup = Setup(outside, SessionSpec(), tmp_path, graph=describe(outside), label="gelu")
    file = rewritten_model(setup, [GELU], [], float("inf"))
    assert opened_with(file, outside)[1]
    (outside.parent / "weights.bin").unlink()
    with pytest.raises(RewriteError, match=r"weights\.bin.*no longer where it was"):
        opened_with(file, outside)


def test_for_tools_that_work_on_files_a_whole_model_is_made_beside_the_other(outside: Path, tmp_path: Path) -> None:
    setup = Setup(outside, SessionSpec(), tmp_path, graph=describe(outside))
    whole = rewritten_model(setup, [GELU], [], float("inf"), is_whole=True)
    assert opened_with(whole, outside) == (str(whole), {})
    assert rewritten_model(setup, [GELU], [], float("inf")) != whole


def test_a_model_given_as_bytes_does_not_tell_where_its_data_lies(outside: Path, tmp_path: Path) -> None:
    setup = Setup(outside, SessionSpec(), tmp_path, as_bytes=True, graph=describe(outside))
    with pytest.raises(RewriteError, match="given as bytes"):
        rewritten_model(setup, [GELU], [], float("inf"))


@pytest.mark.parametrize("by", ["the graph", "a file"])
def test_what_a_rewrite_says_of_the_model_is_put_back(by: str, outside: Path, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    draft = Draft(outside, tmp_path / "work")
    if by == "a file":
        other = onnx.load(str(draft.file()))
        other.doc_string, other.graph.name, other.producer_name = "mine", "mine", "me"
        other.metadata_props[0].value = "mine"
        onnx.save(other, str(tmp_path / "work" / "other.onnx"))
        draft.take(tmp_path / "work" / "other.onnx")
    else:
        model = draft.ir
        model.doc_string = model.graph.doc_string = model.graph.name = model.producer_name = "mine"
        model.metadata_props["extra"] = "mine"
    file = draft.save(tmp_path / "made.onnx")[0]
    told = [plain_session(path).get_modelmeta() for path in (file, outside)]
    for name in ("description", "graph_description", "graph_name", "producer_name", "domain", "version"):
        assert getattr(told[0], name) == getattr(told[1], name), name
    assert told[0].custom_metadata_map == told[1].custom_metadata_map


def by_file(tmp_path: Path) -> Settings:
    file = tmp_path / "strategy.toml"
    file.write_text(Strategy(transforms=(GELU,)).to_toml())
    return Settings(strategy=str(file), budget_s=120.0)


def compiled_folders() -> list[Path]:
    return sorted((Path(os.environ["ORT_METAINFER_CACHE_DIR"]) / "compiled").iterdir())


def session_as_plain(model: Path, settings: Settings) -> ort_metainfer.InferenceSession:
    session = ort_metainfer.InferenceSession(str(model), metainfer=settings)
    assert session.strategy is not None and session.strategy.transforms == (GELU,)
    np.testing.assert_allclose(session.run(None, IDS)[0], expected(model), rtol=1e-5, atol=1e-6)
    return session


@pytest.mark.slow
class TestSessions:
    def test_a_session_runs_the_rewritten_model_on_the_originals_weights(self, outside: Path, tmp_path: Path) -> None:
        session_as_plain(outside, by_file(tmp_path))
        (folder,) = compiled_folders()
        assert sum(path.stat().st_size for path in folder.iterdir()) < 8192
        stamp = (folder / "model.onnx").stat().st_mtime_ns
        moved = tmp_path / "elsewhere" / "m.onnx"
        shutil.move(outside.parent, moved.parent)
        session_as_plain(moved, by_file(tmp_path))
        assert (folder / "model.onnx").stat().st_mtime_ns == stamp

    def test_other_weights_are_another_model(self, outside: Path, tmp_path: Path) -> None:
        session_as_plain(outside, by_file(tmp_path))
        data = outside.parent / "weights.bin"
        content = bytearray(data.read_bytes())
        content[3] ^= 0x40
        data.write_bytes(content)
        session_as_plain(outside, by_file(tmp_path))
        assert len(compiled_folders()) == 2

    def test_a_layout_that_changed_makes_it_anew(self, outside: Path, tmp_path: Path) -> None:
        session_as_plain(outside, by_file(tmp_path))
        stamp = (compiled_folders()[0] / "model.onnx").stat().st_mtime_ns
        shutil.move(outside.parent / "weights.bin", tmp_path / "blob")
        (outside.parent / "weights.bin").symlink_to(tmp_path / "blob")
        shutil.move(outside, tmp_path / "model-blob")
        outside.symlink_to(tmp_path / "model-blob")
        session_as_plain(outside, by_file(tmp_path))
        (folder,) = compiled_folders()
        assert (folder / "model.onnx").stat().st_mtime_ns != stamp

    def test_a_model_of_more_than_two_gigabytes_is_rewritten_without_copying_it(self, tmp_path: Path) -> None:
        rows, width = 8_600_000, 64
        size = rows * width * 4
        if shutil.disk_usage(tmp_path).free < 2 * size or _available_bytes() < 3 * size:
            pytest.skip("takes 4.4 GB of disk and 6.6 GB of memory")
        table = TensorProto(name="table", data_type=TensorProto.FLOAT, dims=[rows, width])
        table.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", str(size))):
            table.external_data.add(key=key, value=value)
        model = tmp_path / "m.onnx"
        onnx.save(gelu_of(rows, width, table), str(model))
        with open(tmp_path / "weights.bin", "wb") as file:
            file.write(np.random.default_rng(0).standard_normal((4, width)).astype(np.float32).tobytes())
            file.truncate(size)  # sparse: takes no room on the disk
        session = session_as_plain(model, by_file(tmp_path))
        (folder,) = compiled_folders()
        assert sum(path.stat().st_size for path in folder.iterdir()) < 8192
        assert "Gelu" in {
            node.op_type for node in onnx.load(str(folder / "model.onnx"), load_external_data=False).graph.node
        }
        assert session.run(None, {"ids": np.array([rows - 1], np.int64)})[0].tolist() == [[0.0] * width]


def _available_bytes() -> int:
    from ort_metainfer.trials.memory import available_mb

    return int((available_mb() or 0) * 2**20)


def test_the_oldest_onnxruntime_is_given_bytes(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", "1.27.0")
    assert given_to_onnxruntime(outside) == outside.read_bytes()
    monkeypatch.setattr(onnxruntime, "__version__", "1.28.1")
    assert given_to_onnxruntime(outside) == outside


@pytest.mark.slow
def test_what_was_tried_with_the_originals_weights_is_kept_with_them(outside: Path, tmp_path: Path) -> None:
    strategy = Strategy(transforms=(GELU,))
    (tmp_path / "feeds").mkdir()
    setup = Setup(outside, SessionSpec(), tmp_path / "feeds", graph=describe(outside), label="gelu")
    far = time.monotonic() + 60
    with ChildTrialHost() as host:
        host.prepare(setup, far)
        (trial,) = host.race(setup, [Proposal(strategy, "test", "")], Thresholds(), far)
    assert [gate.passed for gate in trial.gates[:2]] == [True, True], trial
    key = CacheKey(fingerprint(str(outside), None).hash, "cpu:x/1c", "ids:int64[n]", "strict|latency|CPU")
    decision = Decision(strategy, "search", "it won", key=key, graph=setup.graph)
    kept = with_rewritten(decision, setup, tmp_path / "cache")
    found = compiled_for(tmp_path / "cache", compiled_key(key.model, SessionSpec(), strategy))
    assert isinstance(found, Compiled) and found.folder.name == kept.compiled
    assert found.referenced == {"weights.bin": "weights.bin"}


def test_a_remembered_decision_runs_on_the_originals_weights_by_the_short_way_too(
    outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in outside.parent.iterdir():
        os.utime(file, (1_700_000_000, 1_700_000_000))  # old enough to be remembered by its stamp
    settings, _ = settings_for(None)
    directory = cache_directory(settings)
    cache = open_cache(directory)
    graph, strategy = describe(outside), Strategy(transforms=(GELU,))
    remember_graph(cache, (model := fingerprint(str(outside), cache)).hash, graph)
    setup = Setup(outside, SessionSpec(), tmp_path / "feeds", graph=graph, label="gelu")
    rewritten_model(setup, [GELU], [], float("inf"))
    key = key_of(model, graph, settings, SessionSpec())
    decision = with_rewritten(Decision(strategy, "search", "it won", key=key, graph=graph), setup, directory)
    assert decision.compiled is not None
    remember(cache, directory, decision, model, 10.0)
    for short in (False, True):
        if short:
            monkeypatch.setattr("ort_metainfer.adapt.decide", lambda *_: pytest.fail("a full look-up"))
        session = ort_metainfer.InferenceSession(str(outside))
        assert session.strategy == strategy and session.adaptation.compiled == decision.compiled
        np.testing.assert_allclose(session.run(None, IDS)[0], expected(outside), rtol=1e-5, atol=1e-6)
    assert session.get_modelmeta().graph_description == "what the graph is for"
