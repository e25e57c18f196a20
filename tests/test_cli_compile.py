"""``ort-metainfer compile``: each step gated, what is told, exit statuses; and the whole way for real on an NPU's
simulator and on OpenVINO."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_metainfer import preparing
from ort_metainfer.__main__ import main
from ort_metainfer.errors import TrialCrashed
from ort_metainfer.strategy import Strategy
from tests.pages import save_pages
from tests.test_compiled import conv_model, here

ROOT = Path(__file__).parent.parent
SHAPE = ("--shape", "x:2,3,8,8")

Outcome = tuple[int, str, str]
Command = Callable[..., Outcome]


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
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 8, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, ir_version=7, opset_imports=[helper.make_opsetid("", opset)])
    helper.set_model_props(model, {"labels": "cat,dog"})
    return model


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command in this process, its errands too; gives exit status, stdout and stderr."""
    monkeypatch.setattr(preparing, "in_a_child", here)

    def run(*words: str) -> Outcome:
        with pytest.raises(SystemExit) as left:
            main(("compile", *words))
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out, err

    return run


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A convolution with open batch."""
    onnx.save(conv_model(), str(tmp_path / "m.onnx"))
    return str(tmp_path / "m.onnx")


@pytest.fixture
def classifier(tmp_path: Path) -> str:
    """A small network with fixed shapes [1, 3, 8, 8]."""
    onnx.save(network(), str(tmp_path / "net.onnx"))
    return str(tmp_path / "net.onnx")


def inputs(folder: Path, shape: tuple[int, ...], count: int = 8, seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    for number in range(count):
        np.savez(folder / f"{number}.npz", x=rng.random(shape, dtype=np.float32))
    return str(folder / "*.npz")


def test_a_float_model_is_fixed_compiled_and_told_how_to_use(command: Command, model: str, tmp_path: Path) -> None:
    status, out, err = command(model, *SHAPE, "--inputs", inputs(tmp_path / "in", (2, 3, 8, 8)))
    assert status == 0, err
    assert "on device   relative L2 error 0.0e+00 against m.onnx on the CPU" in out or "relative L2 error" in out
    assert "compiled    " in out and "use it      ORT_METAINFER_STRATEGY=" in out
    file = next(line.partition("ORT_METAINFER_STRATEGY=")[2] for line in out.splitlines() if "ORT_METAINFER_" in line)
    strategy = Strategy.read(file)
    assert [transform.name for transform in strategy.transforms] == ["fixed-shapes"]
    assert strategy.provider == "CPUExecutionProvider"


def test_a_size_of_nothing_is_refused(command: Command, model: str) -> None:
    status, _, err = command(model, "--shape", "x:0,3,8,8")
    assert status == 2
    assert "sizes of 1 or more" in err


def test_json_is_one_document(command: Command, model: str, tmp_path: Path) -> None:
    status, out, _ = command(model, *SHAPE, "--inputs", inputs(tmp_path / "in", (2, 3, 8, 8)), "--json")
    document = json.loads(out)
    assert status == 0 and document["failure"] is None
    assert document["size_bytes"] > 0 and document["figures"]["load_ms"] > 0
    assert document["strategy"]["transforms"][0]["parameters"] == {"shapes": {"x": "2,3,8,8"}}
    assert Path(document["folder"], "model.onnx").exists()


def test_a_quantised_form_is_judged_on_inputs_held_back_and_compiled(
    command: Command, classifier: str, tmp_path: Path
) -> None:
    given = inputs(tmp_path / "in", (1, 3, 8, 8))
    words = (classifier, "--quantise", "u8s8", "--inputs", given, "--accuracy", "fast", "--json")
    status, out, _ = command(*words)
    document = json.loads(out)
    assert status == 0
    assert document["gate"]["passed"] and 0 < document["gate"]["figures"]["error"] < 0.1
    assert "calibrated on 6 inputs, judged on 2, held back from calibration" in document["notes"]
    assert 0 < document["figures"]["whole_error"] < 0.1
    assert [transform["name"] for transform in document["strategy"]["transforms"]] == ["int8-static"]
    assert any(note.startswith("int8-static: 3 rewritten") for note in document["notes"])
    assert any(note.startswith("worst nodes: ") and "second (Conv)" in note for note in document["notes"])


def test_a_rewritten_model_in_the_cache_is_not_taken_for_a_compiled_one(
    command: Command, classifier: str, tmp_path: Path
) -> None:
    from ort_metainfer.compiled_key import OPTIMISED, REWRITTEN

    words = (classifier, "--inputs", inputs(tmp_path / "in", (1, 3, 8, 8)), "--json")
    record = Path(json.loads(command(*words)[1])["folder"], "compiled.json")
    again = json.loads(command(*words)[1])
    assert any(note.startswith("compiled already") for note in again["notes"])
    record.write_text(record.read_text().replace(json.dumps(OPTIMISED), json.dumps(REWRITTEN)))
    third = json.loads(command(*words)[1])
    assert not any(note.startswith("compiled already") for note in third["notes"])
    assert third["failure"] is None


def test_a_quantised_form_that_is_not_accurate_enough_is_refused_with_what_to_try(
    command: Command, classifier: str, tmp_path: Path
) -> None:
    given = inputs(tmp_path / "in", (1, 3, 8, 8))
    status, out, _ = command(classifier, "--quantise", "u8s8", "--inputs", given)
    assert status == 1
    assert "not accurate: output 'y'" in out and "at most 1e-04" in out
    assert "try --quantise a16w8" in out
    assert not (tmp_path / "cache" / "compiled").exists()


def test_what_was_made_for_a_looser_accuracy_does_not_pass_for_a_stricter_one(
    command: Command, classifier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = inputs(tmp_path / "in", (1, 3, 8, 8))
    words = (classifier, "--quantise", "u8s8", "--inputs", given)
    assert command(*words, "--accuracy", "fast")[0] == 0
    rewrite = preparing._Work.rewrite

    def lenient(self: Any) -> Any:
        source, _, notes = rewrite(self)
        return source, None, notes

    monkeypatch.setattr(preparing._Work, "rewrite", lenient)
    status, out, _ = command(*words, "--accuracy", "strict")
    assert status == 1 and "made for a looser accuracy" in out


@pytest.mark.parametrize(
    ("words", "blame"),
    [
        (("--quantise", "a16w8"), "quantising needs real inputs"),
        (("--accuracy", "fast"), "accuracy fast needs real inputs"),
    ],
)
def test_made_up_inputs_never_justify_a_loss(command: Command, model: str, words: tuple[str, ...], blame: str) -> None:
    status, _, err = command(model, *SHAPE, *words)
    assert status == 1 and blame in err and ".npz" in err


@pytest.mark.parametrize(
    ("words", "status", "blame"),
    [
        (("--provider", "nobody"), 2, "no execution provider"),
        (("--option", "fast"), 2, "NAME=VALUE"),
        (("--option", "fast=1"), 1, "has no option 'fast'"),
        (("--shape", "x:a"), 2, "is not allowed"),
        (("--accuracy", "sloppy"), 2, "strict, balanced, fast"),
        (("--quantise", "int4"), 2, "'none', 'u8s8', 's8s8', 'a16w8'"),
        (("--quantise", "u8s8", "--inputs", "IN", "--exclude-operator", "Cnov"), 1, "no operator 'Cnov'"),
        (("--quantise", "u8s8", "--inputs", "IN", "--exclude-node", "cnov"), 1, "exclude names 'cnov', which no node"),
        (("--shape", "z:1,3,8,8", "--inputs", "IN"), 1, "'z'"),
        (("--shape", "x:2,4,8,8", "--inputs", "IN"), 1, "[2, 4, 8, 8]"),
        (("--inputs", "nowhere/*.npz"), 1, "no .npz file"),
        (("--provider", "QNN"), 1, "it needs fixed shapes, and x has open dimensions"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    command: Command, model: str, tmp_path: Path, words: tuple[str, ...], status: int, blame: str
) -> None:
    given = inputs(tmp_path / "in", (2, 3, 8, 8))
    found, _, err = command(model, *(given if word == "IN" else word for word in words))
    assert (found, blame in err) == (status, True), err


@pytest.mark.parametrize(
    ("provider", "device", "devices", "blame"),
    [
        (
            "OpenVINO",
            "GPU",
            ["CPU", "AUTO"],
            "OpenVINOExecutionProvider offers no device 'GPU' here; it offers CPU, AUTO",
        ),
        ("CPU", "second", [None], "CPUExecutionProvider offers no device 'second' here; its devices have no names"),
        ("QNN", "htp", [], "QNNExecutionProvider offers no device here: its package is not installed"),
    ],
)
def test_a_device_that_there_is_not_is_refused_before_anything_is_rewritten(
    provider: str,
    device: str,
    devices: list[str | None],
    blame: str,
    command: Command,
    classifier: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def only_devices(do: str, request: Any, deadline: float) -> Any:
        assert do == "devices", "nothing else may be begun"
        refused = [] if devices else [(request["providers"][0], "its package is not installed")]
        return {"devices": [{"provider_device": name} for name in devices], "refused": refused}

    monkeypatch.setattr(preparing, "in_a_child", only_devices)
    words = (
        "--provider",
        provider,
        "--device",
        device,
        "--quantise",
        "u8s8",
        "--inputs",
        inputs(tmp_path, (1, 3, 8, 8)),
    )
    status, _, err = command(classifier, *words)
    assert status == 1 and blame in err, err


def test_what_is_quantised_follows_the_provider_and_an_old_opset_is_raised(tmp_path: Path) -> None:
    from ort_metainfer.model.graph import describe
    from ort_metainfer.preparation import Preparation, strategy_for
    from ort_metainfer.providers import get_provider

    onnx.save(network(opset=11), str(tmp_path / "old.onnx"))
    graph = describe(tmp_path / "old.onnx")
    found = {}
    for name in ("CPU", "OpenVINO", "QNN", "VitisAI"):
        provider = get_provider(name)
        wanted = Preparation(tmp_path / "old.onnx", provider.name, recipe={"scheme": "a16w8", "per_channel": True})
        raised, quantised = strategy_for(wanted, graph, provider).transforms
        assert (raised.name, raised.parameters) == ("convert-opset", {"target": 13})
        assert quantised.parameters["scheme"] == "a16w8" and "per_channel" not in quantised.parameters
        found[name] = quantised.parameters.get("coverage", "products")
    assert found == {"CPU": "products", "OpenVINO": "products", "QNN": "qnn", "VitisAI": "all"}


def test_an_old_opset_is_quantised_and_compiled(command: Command, tmp_path: Path) -> None:
    onnx.save(network(opset=11), str(tmp_path / "old.onnx"))
    words = ("--quantise", "u8s8", "--inputs", inputs(tmp_path / "in", (1, 3, 8, 8)), "--accuracy", "fast")
    status, out, err = command(str(tmp_path / "old.onnx"), *words)
    assert status == 0 and "convert-opset: opset 11 to 13" in out, err


def test_large_weights_are_delivered_beside_the_source(
    command: Command, classifier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ort_metainfer.rewrites import draft

    monkeypatch.setattr(draft, "INLINE_LIMIT_BYTES", 100)
    given, out = inputs(tmp_path / "in", (1, 3, 8, 8)), tmp_path / "out"
    words = ("--quantise", "u8s8", "--inputs", given, "--accuracy", "fast", "--out", str(out))
    status, _, err = command(classifier, *words)
    assert status == 0, err
    assert (out / "source.onnx.data").stat().st_size > 500
    session = onnxruntime.InferenceSession(str(out / "source.onnx"), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.zeros((1, 3, 8, 8), np.float32)})[0].shape == (1, 4)


def test_a_model_that_is_compiled_already_is_refused(command: Command, tmp_path: Path) -> None:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft")
    graph = helper.make_graph([node], "g", value[:1], value[1:])
    onnx.save(
        helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("com.microsoft", 1)]),
        str(tmp_path / "ctx.onnx"),
    )
    status, _, err = command(str(tmp_path / "ctx.onnx"))
    assert status == 1 and "holds EPContext" in err


def test_a_folder_gets_everything_a_device_needs(command: Command, classifier: str, tmp_path: Path) -> None:
    given, out = inputs(tmp_path / "in", (1, 3, 8, 8)), tmp_path / "out"
    words = (classifier, "--quantise", "u8s8", "--inputs", given, "--accuracy", "fast", "--out", str(out))
    status, text, err = command(*words)
    assert status == 0, err
    names = {path.name for path in out.iterdir()}
    assert {"model.onnx", "compiled.json", "source.onnx", "strategy.toml", "report.json"} <= names
    assert json.loads((out / "report.json").read_text())["folder"] == str(out)
    feed = dict(np.load(next((tmp_path / "in").iterdir())))
    answers = [
        onnxruntime.InferenceSession(str(out / name), providers=["CPUExecutionProvider"]).run(None, feed)[0]
        for name in ("model.onnx", "source.onnx")
    ]
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-5)
    assert str(out / "model.onnx") in text
    status, _, err = command(*words)
    assert status == 1 and "is there already" in err


def test_a_folder_that_cannot_be_written_is_told_and_left_clean(command: Command, model: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    given = inputs(tmp_path / "in", (2, 3, 8, 8))
    status, _, err = command(model, *SHAPE, "--inputs", given, "--out", str(tmp_path / "file" / "out"))
    assert status == 1 and "cannot write" in err


def test_a_child_that_dies_is_told_and_nothing_is_kept(
    command: Command, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(do: str, request: Any, deadline: float) -> Any:
        raise TrialCrashed("compiling the model: its process died (SIGSEGV)")

    monkeypatch.setattr(preparing, "in_a_child", die)
    status, out, err = command(model, "--inputs", inputs(tmp_path / "in", (2, 3, 8, 8)))
    assert status == 1 and "SIGSEGV" in out + err
    assert list((tmp_path / "cache" / "compiled").iterdir()) == []


# ---- examples/prepare_npu.py -----------------------------------------------------------------------------------------


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("prepare_npu_example", ROOT / "examples" / "prepare_npu.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(preparing, "in_a_child", here)
    return module


def test_the_example_tries_recipes_until_one_is_accurate_enough_and_uses_it(
    example: Any, classifier: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        example, "RECIPES", ({"scheme": "u8s8", "operators": ["LSTM"]}, {"scheme": "u8s8"}, {"scheme": "a16w8"})
    )
    given = inputs(tmp_path / "in", (1, 3, 8, 8))
    words = [classifier, "--inputs", given, "--provider", "CPU"]
    assert example.main([*words]) == 2, "the first has nothing to quantise"
    assert "no operator that is to be quantised" in capsys.readouterr().err
    monkeypatch.setattr(example, "RECIPES", example.RECIPES[1:])
    assert example.main(words) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["u8s8", "compiled"]
    assert "session created" in out and "{'y': [1, 4]}" in out and "ORT_METAINFER_STRATEGY=" in out
    assert example.main([*words, "--accuracy", "strict"]) == 1
    assert "no recipe is accurate enough" in capsys.readouterr().err


# ---- in real processes -----------------------------------------------------------------------------------------------


def process(*words: str, **environment: str) -> subprocess.Popen[str]:
    """``ort-metainfer compile`` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "ort_metainfer", "compile", *words, "--json"],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def document(started: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = started.communicate(timeout=150)
    assert started.returncode == 0, out + err
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.slow
def test_two_processes_compile_the_same_model_once(model: str, tmp_path: Path) -> None:
    given = inputs(tmp_path / "in", (2, 3, 8, 8))
    both = [process(model, *SHAPE, "--inputs", given) for _ in range(2)]
    found = [document(started) for started in both]
    assert found[0]["folder"] == found[1]["folder"]
    assert sorted(any(note.startswith("compiled already") for note in entry["notes"]) for entry in found) == [
        False,
        True,
    ]


@pytest.mark.slow
def test_without_inputs_it_is_checked_on_made_up_ones(model: str) -> None:
    assert document(process(model, *SHAPE))["failure"] is None


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_compiles_leaves_nothing_that_is_used(model: str, tmp_path: Path) -> None:
    given = inputs(tmp_path / "in", (2, 3, 8, 8))
    hanging = process(model, *SHAPE, "--inputs", given, ORT_METAINFER_TRIAL_FAULT="compiling:compiled:hang")
    place = tmp_path / "cache" / "compiled"
    while not (place.is_dir() and any(place.iterdir())):  # the folder it compiles into
        assert hanging.poll() is None, hanging.communicate()
    hanging.kill()
    hanging.communicate()
    left = list(place.iterdir())
    found = document(process(model, *SHAPE, "--inputs", given))
    assert not any(note.startswith("compiled already") for note in found["notes"])
    assert Path(found["folder"]) not in left


SESSION = """
import json, sys, time
import numpy as np, onnxruntime
import ort_metainfer
from ort_metainfer import session as module
from ort_metainfer.options import open_session
from ort_metainfer.spec import SessionSpec
from ort_metainfer.strategy import Strategy
from dataclasses import replace
model, file, source, feed = sys.argv[1:5]
given = []
plain = module._plain_create
module._plain_create = lambda self, *args: (given.append(self._model_path), plain(self, *args))[1]
strategy = Strategy.read(file)
made = ort_metainfer.InferenceSession(model, metainfer=ort_metainfer.Settings(strategy=file, strict=True))
feed = dict(np.load(feed))
uncompiled = open_session(source, SessionSpec(), replace(strategy, transforms=()))
float_model = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
outputs = [session.run(None, feed)[0] for session in (made, uncompiled, float_model)]
other = {name: np.concatenate([value, value]) for name, value in feed.items()}
print(json.dumps({
    "given": given,
    "declared": [value.shape for value in made.get_inputs()],
    "equal": bool((outputs[0] == outputs[1]).all()),
    "error": float(np.linalg.norm(outputs[0] - outputs[2]) / np.linalg.norm(outputs[2])),
    "same_top": bool((outputs[0].argmax(-1) == outputs[2].argmax(-1)).all()),
    "other": list(made.run(None, other)[0].shape),
}))
"""


def session_of(model: Path, found: dict[str, Any], out: Path, feed: Path, **environment: str) -> dict[str, Any]:
    """A session made from what was prepared, in a process of its own, and what it answers."""
    words = [str(model), found["strategy_file"], str(out / "source.onnx"), str(feed)]
    done = subprocess.run(
        [sys.executable, "-c", SESSION, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.fixture
def orientation(zoo_model: Callable[[str], Path]) -> Path:
    return zoo_model("doc_orientation")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("onnxruntime_qnn") is None, reason="needs the package onnxruntime-qnn")
class TestQnn:
    """A float model with open shapes on its way to the NPU, on the x86-64 simulator: what it computes is the NPU's."""

    SHAPE = ("--provider", "QNN", "--shape", "x:1,3,224,224", "--accuracy", "fast")

    def test_the_whole_way(self, orientation: Path, tmp_path: Path) -> None:
        pages, out = save_pages(tmp_path / "pages", 16), tmp_path / "out"
        words = (str(orientation), *self.SHAPE, "--quantise", "u8s8", "--inputs", pages)
        found = document(process(*words, "--out", str(out)))
        assert found["gate"]["passed"] and found["gate"]["figures"]["top1"] == 1.0
        assert found["placement"]["nodes"]["QNNExecutionProvider"] > 300
        assert found["figures"]["error"] == 0, "the compiled model answers as the uncompiled one on the same device"
        assert found["figures"]["whole_error"] < 0.1
        assert {path.suffix for path in out.iterdir()} >= {".onnx", ".bin", ".toml", ".json"}
        again = document(process(*words))
        assert any(note.startswith("compiled already") for note in again["notes"])
        made = session_of(orientation, again, out, tmp_path / "pages" / "3.npz")
        assert made["given"] == [str(Path(again["folder"], "model.onnx"))]
        assert made["declared"] == [["DynamicDimension.0", 3, 224, 224]]
        assert made["equal"] and made["same_top"] and made["error"] < 0.1
        assert made["other"] == [2, 4], "other shapes run on the general session"

    def test_a_form_that_loses_too_much_never_reaches_the_device(self, orientation: Path, tmp_path: Path) -> None:
        words = (str(orientation), *self.SHAPE[:-1], "strict", "--quantise", "u8s8")
        started = process(*words, "--inputs", save_pages(tmp_path / "pages", 8))
        out, err = started.communicate(timeout=150)
        assert started.returncode == 1, err
        assert json.loads(out)["failure"].startswith("the quantised model is not accurate enough")
        assert not (tmp_path / "cache" / "compiled").exists()


OLDER = """
import sys
import numpy as np, onnxruntime
del onnxruntime.ModelCompiler
from pathlib import Path
from ort_metainfer.compiling import compile_into
from ort_metainfer.options import open_session
from ort_metainfer.spec import SessionSpec
from ort_metainfer.strategy import Strategy
model, folder = sys.argv[1], Path(sys.argv[2])
strategy = Strategy(provider="OpenVINOExecutionProvider", provider_options={"INFERENCE_PRECISION_HINT": "f32"})
told = compile_into(folder, model, SessionSpec(), strategy, "EPContext")
feed = {"x": np.ones((1, 3, 224, 224), np.float32)}
made, plain = (open_session(file, SessionSpec(), strategy) for file in (str(folder / "model.onnx"), model))
print(bool((made.run(None, feed)[0] == plain.run(None, feed)[0]).all()), sorted(told))
"""


needs_openvino = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_ep_openvino") is None, reason="needs the package onnxruntime-ep-openvino"
)


@pytest.mark.slow
@needs_openvino
def test_without_onnxruntimes_compiler_its_session_configuration_compiles(orientation: Path, tmp_path: Path) -> None:
    override = os.pathsep.join([str(ROOT / "tests" / "vendor_override"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", OLDER, str(orientation), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": override},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.split() == ["True", "['OpenVINOExecutionProvider']"], done.stderr


@pytest.mark.slow
@needs_openvino
def test_openvino_keeps_its_compiled_model_too(orientation: Path, tmp_path: Path) -> None:
    pages, out = save_pages(tmp_path / "pages", 4), tmp_path / "out"
    override = {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "vendor_override"), str(ROOT)])}
    asked = ("--provider", "OpenVINO", "--option", "INFERENCE_PRECISION_HINT=f32", "--shape", "x:1,3,224,224")
    words = (str(orientation), *asked, "--inputs", pages)
    found = document(process(*words, "--out", str(out), **override))
    assert found["figures"]["error"] == 0 and found["figures"]["whole_error"] < 1e-4
    again = document(process(*words, **override))
    made = session_of(orientation, again, out, tmp_path / "pages" / "1.npz", **override)
    assert made["given"] == [str(Path(again["folder"], "model.onnx"))]
    assert made["equal"] and made["error"] < 1e-4 and made["other"] == [2, 4]
