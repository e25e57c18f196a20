"""``ort-metainfer estimate``: a planning table in which every line says that it is simulated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from ort_metainfer.__main__ import main
from ort_metainfer.providers.chips import all_chips

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process; gives exit status, stdout and stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(words)
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return run


def test_every_line_of_the_table_says_simulated(command: Command, tiny_model: Callable[..., Path]) -> None:
    status, out, _ = command("estimate", str(tiny_model("Conv")))
    assert status == 0
    rows = [line for line in out.splitlines() if " ms " in line]
    assert len(rows) == len(all_chips())
    assert all("simulated" in line for line in rows)
    assert out.splitlines()[-1].startswith("simulated: ")
    assert "nothing was measured" in out


def test_json_says_simulated_in_the_whole_and_for_each_chip(command: Command, tiny_model: Callable[..., Path]) -> None:
    _, out, _ = command("estimate", str(tiny_model("MatMul")), "--chip", "t4", "--chip", "coral", "--json")
    document = json.loads(out)
    assert document["simulated"] is True and "nothing was measured" in document["note"]
    assert {row["chip"] for row in document["chips"]} == {"nvidia-t4", "google-coral-edge-tpu"}
    for row in document["chips"]:
        assert row["simulated"] is True and row["p50_ms"] > 0
        assert row["bound"] in ("compute", "memory", "transfer", "dispatch", "host")
    times = [row["p50_ms"] for row in document["chips"]]
    assert times == sorted(times)


def test_a_model_that_moves_no_data_takes_no_time_and_is_not_compared(command: Command, tmp_path: Path) -> None:
    shapes: dict[str, list[int]] = {"x": [4], "y": [4, 1]}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    unsqueeze = helper.make_node("Unsqueeze", ["x", "axes"], ["y"])
    graph = helper.make_graph([unsqueeze], "g", values[:1], values[1:], [axes])
    path = tmp_path / "view.onnx"
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]), str(path))
    status, out, err = command("estimate", str(path), "--json")
    assert status == 0, err
    rows = json.loads(out)["chips"]
    assert {row["speedup_over_host"] for row in rows if row["p50_ms"] == 0} == {None}
    assert command("estimate", str(path))[0] == 0


def test_a_guessed_shape_is_told_and_keeps_the_model_off_chips_that_need_fixed_ones(
    command: Command, tiny_model: Callable[..., Path]
) -> None:
    model = str(tiny_model("Conv", batch="N"))
    _, out, _ = command("estimate", model, "--chip", "npu-4", "--json")
    document = json.loads(out)
    (row,) = document["chips"]
    assert document["shapes_guessed"] == ["x"] and row["nodes"] == 0 and "fixed shapes" in row["reasons"][0]
    assert "(guessed: x)" in command("estimate", model, "--chip", "npu-4")[1]
    document = json.loads(command("estimate", model, "--chip", "npu-4", "--shape", "x:2,3,8,8", "--json")[1])
    (row,) = document["chips"]
    assert document["shapes"] == {"x": [2, 3, 8, 8]} and document["shapes_guessed"] == [] and row["nodes"] == 1


def test_precision_turns_a_float_model_into_one_for_a_quantised_chip(
    command: Command, tiny_model: Callable[..., Path]
) -> None:
    def row(*words: str) -> dict[str, Any]:
        document = json.loads(command("estimate", str(tiny_model("Conv")), "--chip", "coral", *words, "--json")[1])
        found: dict[str, Any] = document["chips"][0]
        return found

    assert row()["nodes"] == 0 and row()["bound"] == "host"
    assert row("--precision", "int8")["nodes"] == 1
    assert row("--precision", "int8")["computed_in"] == {"int8": "int8"}


def test_the_processor_beside_can_be_chosen_and_must_be_one(command: Command, tiny_model: Callable[..., Path]) -> None:
    model = str(tiny_model("Conv"))
    document = json.loads(command("estimate", model, "--chip", "t4", "--host", "epyc", "--json")[1])
    assert document["chips"][0]["host"] == "amd-epyc-7763"
    status, out, err = command("estimate", model, "--host", "nvidia-t4")
    assert (status, out) == (1, "") and "nvidia-t4" in err and len(err.splitlines()) == 1


def test_list_gives_every_chip_and_figure_with_its_source(command: Command) -> None:
    status, out, _ = command("estimate", "--list")
    assert status == 0
    assert out.count("[described, not here: simulated]") == len(all_chips())
    assert "130 TOP/s" in out and "NVIDIA T4 Tensor Core GPU datasheet" in out and "DOUBTFUL" in out
    document = json.loads(command("estimate", "--list", "--chip", "hailo", "--json")[1])
    (chip,) = document["chips"]
    assert document["simulated"] is True
    assert "bandwidth" not in chip["figures"], "what is not stated is absent"
    assert all(figure["source"] and figure["unit"] for figure in chip["figures"].values())


def test_descriptions_of_ones_own(command: Command, tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    text = Path(next(iter(all_chips().values())).origin).read_text(encoding="utf-8")
    own.write_text(text.replace('title = "NVIDIA T4"', 'title = "My Card"'), encoding="utf-8")
    words = ["estimate", str(tiny_model("Conv")), "--descriptions", str(own), "--chip", "my card", "--json"]
    assert json.loads(command(*words)[1])["chips"][0]["title"] == "My Card"
    own.write_text("schema = 9\n", encoding="utf-8")
    status, _, err = command(*words)
    assert status == 1 and "schema" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        ([], 2, "MODEL"),
        (["missing.onnx"], 2, "missing.onnx"),
        (["--list", "--chip", "abacus"], 1, "abacus"),
        (["MODEL", "--shape", "x=1,2"], 2, "input_shapes"),
        (["MODEL", "--shape", "nope:1,2"], 1, "nope"),
        (["MODEL", "--precision", "int3"], 2, "int3"),
    ],
)
def test_what_is_wrong_is_told_in_the_usual_way(
    words: list[str], status: int, told: str, command: Command, tiny_model: Callable[..., Path]
) -> None:
    model = str(tiny_model("Conv"))
    code, out, err = command("estimate", *[model if word == "MODEL" else word for word in words])
    assert (code, out) == (status, "") and told in err and "Traceback" not in err


def test_it_leaves_nothing_in_the_cache(command: Command, tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    assert command("estimate", str(tiny_model("Conv")), "--chip", "t4")[0] == 0
    assert not (tmp_path / "cache").exists()
