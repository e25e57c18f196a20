"""Compiled models: kept whole or not at all, found by what they are for, dropped when damaged."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as binding

from ort_metainfer import compilation, compiled, compiling
from ort_metainfer.compilation import Outcome, compile_model, pays, worth_trying
from ort_metainfer.compiled import Compiled, compiled_for
from ort_metainfer.compiled_key import CompiledKey, compiled_key, form_of
from ort_metainfer.errors import TrialCrashed, TrialTimeout
from ort_metainfer.model.inputs import save_feeds
from ort_metainfer.problem import SessionSpec, TensorSpec
from ort_metainfer.strategy import Strategy
from ort_metainfer.strategy_cache.store import open_cache
from ort_metainfer.trials.bench import Refused
from ort_metainfer.trials.fake import FAKE_GRAPH
from ort_metainfer.trials.task import Setup, Thresholds

KEY = CompiledKey("sha256:" + "ab" * 32, "cpu:one", "{}", "{}", {"onnxruntime": "1"})
CPU = SessionSpec(providers=(("CPUExecutionProvider", {}),))


def kept(directory: Path, key: CompiledKey = KEY, content: bytes = b"blob" * 100, **fields: Any) -> Compiled:
    """A compiled model in the cache, whatever its files hold."""
    with compiled.part_folder(directory) as part:
        (part / compiled.MODEL_FILE).write_bytes(b"model" * 50)
        (part / "model.bin").write_bytes(content)
        return compiled.keep(directory, part, Compiled(part, "EPContext", key, **fields))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "compiled").iterdir())


class TestKeeping:
    def test_what_was_kept_is_found_as_it_was(self, tmp_path: Path) -> None:
        made = kept(tmp_path, metadata={"version": 2**63 - 1, "custom_metadata_map": {"a": "b"}}, figures={"x": 1.5})
        assert compiled_for(tmp_path, KEY) == made
        assert made.size_bytes == 650 and made.made_at
        assert made.model_file.read_bytes() == b"model" * 50

    def test_only_its_owner_may_read_it(self, tmp_path: Path) -> None:
        made = kept(tmp_path)
        assert {stat.S_IMODE(path.stat().st_mode) for path in made.folder.iterdir()} == {0o600}
        assert stat.S_IMODE(made.folder.stat().st_mode) == stat.S_IMODE(made.folder.parent.stat().st_mode) == 0o700

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("model", "sha256:" + "cd" * 32),
            ("device", "cpu:another"),
            ("session", '{"config":{"a":"1"}}'),
            ("strategy", '{"provider":"QNNExecutionProvider"}'),
            ("versions", {"onnxruntime": "2"}),
            ("versions", {"onnxruntime": "1", "QNNExecutionProvider driver": "3"}),
        ],
    )
    def test_anything_that_differs_is_another_one_and_the_difference_is_told(
        self, tmp_path: Path, field: str, value: Any
    ) -> None:
        kept(tmp_path)
        found = compiled_for(tmp_path, replace(KEY, **{field: value}))
        assert isinstance(found, str)
        assert ("nothing compiled from this model" if field == "model" else f"{field} differ") in found

    def test_a_newer_one_of_the_same_purpose_takes_the_place_of_the_older(self, tmp_path: Path) -> None:
        old = kept(tmp_path)
        other = kept(tmp_path, replace(KEY, strategy='{"device":"X"}'))
        new = kept(tmp_path, replace(KEY, versions={"onnxruntime": "2"}))
        assert names(tmp_path) == sorted([other.folder.name, new.folder.name])
        assert not old.folder.exists()

    def test_the_same_key_again_replaces_it(self, tmp_path: Path) -> None:
        kept(tmp_path, content=b"old")
        made = kept(tmp_path, content=b"new")
        assert compiled_for(tmp_path, KEY) == made
        assert (made.folder / "model.bin").read_bytes() == b"new"
        assert names(tmp_path) == [made.folder.name]

    def test_those_unused_longest_make_room(self, tmp_path: Path) -> None:
        keys = [replace(KEY, device=f"cpu:{number}") for number in range(4)]
        made = [kept(tmp_path, key) for key in keys]
        for age, entry in zip((40, 10, 30, 20), made, strict=True):
            os.utime(entry.folder / compiled.RECORD_FILE, (1_700_000_000 - age,) * 2)
        sizes = [sum(path.stat().st_size for path in entry.folder.iterdir()) for entry in made]
        removed = compiled.prune(tmp_path, keep_names=(made[0].folder.name,), max_bytes=sum(sizes) - 1)
        assert [made[2].folder] == removed, "the first is the oldest, and just made"
        compiled.prune(tmp_path, max_bytes=0)
        assert names(tmp_path) == []

    def test_a_look_up_counts_as_use(self, tmp_path: Path) -> None:
        made = kept(tmp_path)
        os.utime(made.folder / compiled.RECORD_FILE, (1, 1))
        compiled_for(tmp_path, KEY)
        assert (made.folder / compiled.RECORD_FILE).stat().st_mtime > 1_600_000_000

    def test_clearing_the_cache_removes_them(self, tmp_path: Path) -> None:
        kept(tmp_path)
        open_cache(tmp_path).clear()
        assert names(tmp_path) == []


def flip(path: Path, place: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def put_a_folder_there(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: Mapping[str, Callable[[Path], object]] = {
    "a bit in the blob": lambda folder: flip(folder / "model.bin"),
    "a bit in the model": lambda folder: flip(folder / "model.onnx", 7),
    "the blob is cut short": lambda folder: os.truncate(folder / "model.bin", 10),
    "the blob is longer": lambda folder: (folder / "model.bin").write_bytes(b"blob" * 101),
    "the blob is gone": lambda folder: (folder / "model.bin").unlink(),
    "the model is gone": lambda folder: (folder / "model.onnx").unlink(),
    "the record is empty": lambda folder: (folder / "compiled.json").write_bytes(b""),
    "the record is cut short": lambda folder: os.truncate(folder / "compiled.json", 200),
    "the record is no object": lambda folder: (folder / "compiled.json").write_text("[1]"),
    "a word in the record": lambda folder: (folder / "compiled.json").write_text(
        (folder / "compiled.json").read_text().replace("cpu:one", "cpu:two")
    ),
    "the blob is a folder": lambda folder: put_a_folder_there(folder / "model.bin"),
}


class TestDamage:
    @pytest.mark.parametrize("damage", DAMAGE)
    def test_it_is_noticed_told_and_dropped(self, tmp_path: Path, damage: str) -> None:
        folder = kept(tmp_path).folder
        DAMAGE[damage](folder)
        found = compiled_for(tmp_path, KEY)
        assert isinstance(found, str) and "damaged and is dropped" in found and folder.name in found
        assert not folder.exists()
        assert isinstance(compiled_for(tmp_path, KEY), str)

    def test_every_single_bit_of_the_record_counts(self, tmp_path: Path) -> None:
        made = kept(tmp_path)
        whole = (made.folder / compiled.RECORD_FILE).read_bytes()
        for place in range(0, len(whole), 7):
            made = kept(tmp_path)
            flip(made.folder / compiled.RECORD_FILE, place)
            assert compiled_for(tmp_path, KEY) != made

    def test_where_nothing_can_be_removed_it_is_not_used_all_the_same(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = kept(tmp_path).folder
        flip(folder / "model.bin")
        monkeypatch.setattr("os.rename", refuse(errno.EROFS))
        assert isinstance(compiled_for(tmp_path, KEY), str)
        assert folder.exists()

    def test_a_cache_that_may_only_be_read_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made = kept(tmp_path)
        monkeypatch.setattr("os.utime", refuse(errno.EROFS))
        assert compiled_for(tmp_path, KEY) == made

    def test_what_another_user_owns_is_left_where_it_is(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = kept(tmp_path).folder
        monkeypatch.setattr(compiled, "_facts", refuse(errno.EACCES))
        found = compiled_for(tmp_path, KEY)
        assert isinstance(found, str) and "cannot be read" in found and "damaged" not in found
        assert folder.exists()

    def test_half_a_folder_is_never_found(self, tmp_path: Path) -> None:
        """What a process leaves that was killed while it compiled, and while it wrote the record."""
        place = tmp_path / "compiled"
        left = place / "ort_metainfer-999999999-cafe"
        left.mkdir(parents=True)
        (left / "model.onnx").write_bytes(b"half")
        assert isinstance(compiled_for(tmp_path, KEY), str)
        made = kept(tmp_path)
        assert left.exists(), "it may be another container's"
        os.utime(left, (1, 1))
        assert kept(tmp_path) is not None and not left.exists()
        assert names(tmp_path) == [made.folder.name]

    def test_what_an_interrupted_removal_left_goes_with_the_next(self, tmp_path: Path) -> None:
        place = tmp_path / "compiled" / ".old.cafe"
        place.mkdir(parents=True)
        (place / "model.bin").write_bytes(b"x")
        kept(tmp_path)
        assert not place.exists()

    def test_a_failure_while_it_is_made_leaves_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError, match="interrupted"), compiled.part_folder(tmp_path) as part:
            (part / "model.onnx").write_bytes(b"half")
            raise RuntimeError("interrupted")
        assert names(tmp_path) == []


def refuse(number: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


class TestKeys:
    def test_options_that_only_print_are_no_part_of_it(self) -> None:
        plain = compiled_key(KEY.model, SessionSpec(), Strategy())
        assert compiled_key(KEY.model, SessionSpec(properties={"enable_profiling": True}), Strategy()) == plain
        assert compiled_key(KEY.model, SessionSpec(properties={"intra_op_num_threads": 1}), Strategy()) != plain

    def test_it_survives_a_trip_through_json(self, tmp_path: Path) -> None:
        key = compiled_key(KEY.model, CPU, Strategy(provider="CPUExecutionProvider"))
        assert CompiledKey(**json.loads(json.dumps(asdict(key)))) == key

    @pytest.mark.parametrize(
        ("spec", "strategy", "form"),
        [
            (SessionSpec(), Strategy(), "optimised model"),
            (CPU, Strategy(), "optimised model"),
            (SessionSpec(), Strategy(provider="CPUExecutionProvider"), "optimised model"),
            (SessionSpec(providers=(("CUDAExecutionProvider", {}),)), Strategy(), None),
            (SessionSpec(), Strategy(provider="QNNExecutionProvider"), "EPContext"),
            (SessionSpec(), Strategy(provider="cpu_ep"), None),
            (SessionSpec(), Strategy(provider="NobodysExecutionProvider"), None),
        ],
    )
    def test_the_form_is_the_providers(self, spec: SessionSpec, strategy: Strategy, form: str | None) -> None:
        assert form_of(spec, strategy) == form


class TestCompatibility:
    @pytest.fixture
    def answers(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """What onnxruntime says for each device in turn."""
        said: list[str] = []

        class Device:
            ep_name = "NpuExecutionProvider"

        class Verdict:
            def __init__(self, name: str) -> None:
                self.name = name

        monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: [Device(), Device()])
        ask = lambda devices, text: Verdict(said.pop(0))  # noqa: E731
        monkeypatch.setattr(binding, "get_model_compatibility_for_ep_devices", ask)
        return said

    @pytest.mark.parametrize(
        ("verdicts", "objection"),
        [
            (["EP_SUPPORTED_OPTIMAL", "EP_UNSUPPORTED"], None),
            (["EP_NOT_APPLICABLE", "EP_NOT_APPLICABLE"], None),
            (["EP_UNSUPPORTED", "EP_UNSUPPORTED"], "NpuExecutionProvider says EP_UNSUPPORTED"),
            (["EP_SUPPORTED_PREFER_RECOMPILATION"] * 2, "NpuExecutionProvider says EP_SUPPORTED_PREFER_RECOMPILATION"),
        ],
    )
    def test_one_device_that_runs_it_is_enough(
        self, answers: list[str], verdicts: list[str], objection: str | None, tmp_path: Path
    ) -> None:
        answers += verdicts
        made = Compiled(tmp_path, "EPContext", KEY, compatibility={"NpuExecutionProvider": "v2"})
        assert compiled.unsupported(made) == objection

    def test_a_provider_that_raises_over_the_question_objects_to_nothing(
        self, answers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """QNN does, for a device that is no NPU: seen with its simulator."""

        def fail(*_: Any) -> Any:
            raise RuntimeError("only supports OrtHardwareDeviceType_NPU")

        monkeypatch.setattr(binding, "get_model_compatibility_for_ep_devices", fail)
        made = Compiled(tmp_path, "EPContext", KEY, compatibility={"NpuExecutionProvider": "v2"})
        assert compiled.unsupported(made) is None

    def test_an_onnxruntime_that_cannot_say_objects_to_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(binding, "get_model_compatibility_for_ep_devices", raising=False)
        assert compiled.unsupported(Compiled(tmp_path, "EPContext", KEY, compatibility={"Npu": "v2"})) is None


# ---- compiling for real, in this process, on the CPU provider --------------------------------------------------------


def conv_model(scale: float = 1.0) -> Any:
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((8, 3, 3, 3)) * scale).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "named",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8, 8, 8])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)], producer_name="us")
    helper.set_model_props(model, {"labels": "a,b"})
    return model


FEED = {"x": np.random.default_rng(1).random((2, 3, 8, 8), dtype=np.float32)}


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    onnx.save(conv_model(), str(tmp_path / "m.onnx"))
    feeds = tmp_path / "feeds"
    save_feeds([FEED], feeds)
    return Setup(tmp_path / "m.onnx", SessionSpec(), feeds)


class Speaker:
    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []

    def say(self, event: str, **fields: Any) -> None:
        self.said.append((event, fields.get("session")))


def here(do: str, request: Mapping[str, Any], deadline: float) -> Mapping[str, Any]:
    """The errand carried out in this process."""
    assert do == "compile"
    return compiling.serve(json.loads(json.dumps(request)), Speaker(), deadline)


def compile_here(setup: Setup, directory: Path, strategy: Strategy = Strategy(), **more: Any) -> Outcome:  # noqa: B008
    more = {"must_pay": False, "errand": here, **more}
    key = compiled_key(KEY.model, setup.baseline, strategy)
    deadline = time.monotonic() + 60
    return compile_model(setup, strategy, key, directory, deadline, Thresholds.of("strict"), **more)


class TestCompiling:
    def test_the_optimised_model_gives_the_same_results_and_its_figures_are_kept(
        self, setup: Setup, tmp_path: Path
    ) -> None:
        outcome = compile_here(setup, tmp_path)
        assert outcome.compiled is not None
        assert outcome.figures["error"] == 0 and outcome.figures["rounds"] >= 1
        assert {"creation_ms", "load_ms", "compile_ms"} <= set(outcome.figures)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(str(outcome.compiled.model_file), options)
        plain = onnxruntime.InferenceSession(str(setup.model_file))
        np.testing.assert_array_equal(session.run(None, FEED)[0], plain.run(None, FEED)[0])
        kinds = {
            node.op_type for node in onnx.load(str(outcome.compiled.model_file), load_external_data=False).graph.node
        }
        assert "Relu" not in kinds, "it was fused"
        assert outcome.compiled.metadata["producer_name"] == "us"
        assert outcome.compiled.metadata["custom_metadata_map"] == {"labels": "a,b"}

    def test_the_second_time_it_is_taken_as_it_lies_there(self, setup: Setup, tmp_path: Path) -> None:
        first = compile_here(setup, tmp_path)
        second = compile_here(setup, tmp_path, errand=lambda *_: pytest.fail("compiled again"))
        assert second.compiled == first.compiled and second.reason.startswith("compiled already")

    def test_one_of_two_at_the_same_time_compiles(self, setup: Setup, tmp_path: Path) -> None:
        calls, started, results = [], threading.Event(), []

        def slow(do: str, request: Mapping[str, Any], deadline: float) -> Mapping[str, Any]:
            calls.append(do)
            started.set()
            assert second.is_alive() or second.ident is None
            return here(do, request, deadline)

        second = threading.Thread(target=lambda: results.append(compile_here(setup, tmp_path, errand=slow)))
        first = threading.Thread(target=lambda: results.append(compile_here(setup, tmp_path, errand=slow)))
        first.start()
        started.wait(30)
        second.start()
        first.join()
        second.join()
        assert len(calls) == 1
        assert results[0].compiled == results[1].compiled is not None

    def test_what_does_not_pay_is_not_kept(self, setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compilation, "MIN_SAVED_MS", 1e9)
        outcome = compile_here(setup, tmp_path, must_pay=True)
        assert outcome.compiled is None and outcome.reason.startswith("not worth keeping: created in")
        assert names(tmp_path) == []

    def test_what_is_too_large_is_not_kept(self, setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compilation, "MAX_TOTAL_BYTES", 100)
        assert compile_here(setup, tmp_path).reason.startswith("too large")
        assert names(tmp_path) == []

    @pytest.mark.parametrize("error", [TrialCrashed("its process died"), TrialTimeout("compiling did not end")])
    def test_a_child_that_dies_or_hangs_leaves_nothing_but_the_reason(
        self, setup: Setup, tmp_path: Path, error: Exception
    ) -> None:
        def fail(do: str, request: Mapping[str, Any], deadline: float) -> Mapping[str, Any]:
            Path(request["folder"], "model.onnx").write_bytes(b"half")
            raise error

        assert compile_here(setup, tmp_path, errand=fail) == Outcome(None, str(error), {})
        assert names(tmp_path) == []

    @pytest.mark.parametrize("place", ["ort_metainfer.compiled._settle", "os.rename", "os.makedirs"])
    def test_a_full_disk_or_a_folder_that_may_only_be_read_costs_the_compiled_model_alone(
        self, setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
    ) -> None:
        (tmp_path / "compiled").mkdir()
        monkeypatch.setattr(place, refuse(errno.ENOSPC))
        outcome = compile_here(setup, tmp_path)
        assert outcome.compiled is None and "cannot be kept" in outcome.reason and "No space left" in outcome.reason
        monkeypatch.undo()
        assert names(tmp_path) == []

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs the limits of POSIX")
    def test_a_disk_that_fills_up_while_onnxruntime_writes_is_told(self, setup: Setup, tmp_path: Path) -> None:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

        def limited(do: str, request: Mapping[str, Any], deadline: float) -> Mapping[str, Any]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
            try:
                return here(do, request, deadline)
            except Refused as error:
                raise TrialCrashed(str(error)) from error
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        outcome = compile_here(setup, tmp_path, errand=limited)
        assert outcome.compiled is None and outcome.reason
        assert names(tmp_path) == []

    def test_a_compiled_model_that_computes_something_else_is_refused(
        self, setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def wrong(folder: Path, *_: Any) -> dict[str, str]:
            onnx.save(conv_model(scale=1.01), str(folder / "model.onnx"))
            return {}

        monkeypatch.setattr(compiling, "compile_into", wrong)
        with pytest.raises(Refused, match="the compiled model is not the original: output 'y'"):
            compile_here(setup, tmp_path)

    def test_a_compiled_model_that_declares_something_else_is_refused(
        self, setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def other(folder: Path, *_: Any) -> dict[str, str]:
            model = conv_model()
            model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
            onnx.save(model, str(folder / "model.onnx"))
            return {}

        monkeypatch.setattr(compiling, "compile_into", other)
        with pytest.raises(Refused, match="declares other inputs"):
            compile_here(setup, tmp_path)

    def test_a_provider_that_compiles_nothing_is_told(self, setup: Setup, tmp_path: Path) -> None:
        strategy = Strategy(provider="CPUExecutionProvider")
        with pytest.raises(Refused, match=r"compiled no node|does not compile"):
            compiling.compile_into(tmp_path, str(setup.model_file), CPU, strategy, "EPContext")

    def test_a_rewritten_model_is_held_against_the_callers_own(self, setup: Setup, tmp_path: Path) -> None:
        onnx.save(conv_model(scale=1.01), str(tmp_path / "rewritten.onnx"))
        rewritten = replace(setup, model_file=tmp_path / "rewritten.onnx")
        with pytest.raises(Refused, match="what the device computes is not the original model"):
            compile_here(rewritten, tmp_path, original=setup.model_file)

    def test_a_model_given_as_bytes_is_compiled_too(self, setup: Setup, tmp_path: Path) -> None:
        assert compile_here(replace(setup, as_bytes=True), tmp_path).compiled is not None

    def test_a_session_of_another_provider_is_not_touched(self, setup: Setup, tmp_path: Path) -> None:
        outcome = compile_here(setup, tmp_path, Strategy(provider="cpu_ep"), errand=lambda *_: pytest.fail("asked"))
        assert outcome.compiled is None and "keeps no compiled models" in outcome.reason

    @pytest.mark.slow
    @pytest.mark.parametrize(("kind", "blame"), [("crash", "SIGABRT"), ("hang", "compiling the model did not end")])
    def test_a_real_child_that_dies_or_hangs_over_it_costs_nothing_else(
        self, setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, blame: str
    ) -> None:
        monkeypatch.setenv("ORT_METAINFER_TRIAL_FAULT", f"compiling:compiled:{kind}")
        key = compiled_key(KEY.model, SessionSpec(), Strategy())
        deadline = time.monotonic() + (4 if kind == "hang" else 60)
        outcome = compile_model(setup, Strategy(), key, tmp_path, deadline, Thresholds.of("strict"), must_pay=False)
        assert outcome.compiled is None and blame in outcome.reason
        assert names(tmp_path) == []

    @pytest.mark.slow
    def test_a_real_child_compiles(self, setup: Setup, tmp_path: Path) -> None:
        outcome = compile_here(setup, tmp_path, errand=None)
        assert outcome.compiled is not None and compiled_for(tmp_path, outcome.compiled.key) == outcome.compiled


class TestPolicy:
    @pytest.mark.parametrize(
        ("plain", "load", "worth"),
        [
            (200.0, 100.0, True),
            (200.0, 149.0, True),
            (200.0, 160.0, False),
            (60.0, 5.0, True),
            (50.0, 5.0, False),
            (1000.0, 900.0, False),
            (100.0, 100.0, False),
            (100.0, 150.0, False),
        ],
    )
    def test_loading_must_save_enough_time_and_a_share_of_it(self, plain: float, load: float, worth: bool) -> None:
        assert pays({"creation_ms": plain, "load_ms": load})[0] is worth

    @pytest.mark.parametrize(
        ("change", "creation_ms", "blame"),
        [
            ({}, 500.0, None),
            ({}, None, None),
            ({}, 20.0, "created in 20 ms already"),
            ({"blockers": ("EPContext",)}, 500.0, "EPContext"),
            ({"random_operators": ("RandomNormal",)}, 500.0, "RandomNormal"),
            ({"overridable": (TensorSpec("w", "float32", (1,)),)}, 500.0, "may replace some of its weights"),
        ],
    )
    def test_what_is_not_even_tried(self, change: dict[str, Any], creation_ms: float | None, blame: str | None) -> None:
        reason = worth_trying(replace(FAKE_GRAPH, **change), creation_ms)
        assert reason is None if blame is None else reason is not None and blame in reason
