"""``ort-metainfer inputs``: what is kept of real runs is listed, and deleted with one command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ort_metainfer.__main__ import main
from ort_metainfer.model.capture import Reservoir
from ort_metainfer.model.captured import reservoirs
from ort_metainfer.model.fingerprint import fingerprint

Outcome = tuple[int, str, str]
Command = Callable[..., Outcome]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs ``inputs`` with these words in this process; gives exit status, stdout and stderr."""

    def run(*words: str) -> Outcome:
        with pytest.raises(SystemExit) as left:
            main(("inputs", *words))
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return run


@pytest.fixture
def models(tiny_model: Callable[..., Path], tmp_path: Path) -> dict[str, Path]:
    """Two models of which inputs are kept: two of the first, in two kinds of shapes, one of the second."""
    paths = {kind: tiny_model(kind) for kind in ("MatMul", "Conv")}
    for kind, rows in (("MatMul", 1), ("MatMul", 2), ("Conv", 1)):
        reservoir = Reservoir(tmp_path / "cache", fingerprint(paths[kind], None).hash)
        reservoir.offer({"x": np.ones((rows, 2), np.float32)}, str(paths[kind]))
    return paths


def counts(tmp_path: Path) -> dict[str, int]:
    return {Path(found.label).stem: found.inputs for found in reservoirs(tmp_path / "cache")}


def test_models_are_listed_with_what_is_kept_of_them(command: Command, models: dict[str, Path], tmp_path: Path) -> None:
    status, out, _ = command("list")
    assert status == 0
    assert f"3 inputs of 2 models in {tmp_path / 'cache' / 'inputs'}" in out
    (line,) = [line for line in out.splitlines() if str(models["MatMul"]) in line]
    assert line.split()[2:5] == ["2", "2", "0.0"]
    assert fingerprint(models["MatMul"], None).hash.removeprefix("sha256:").startswith(line.split()[0])


def test_the_list_as_json_is_one_document(command: Command, models: dict[str, Path], tmp_path: Path) -> None:
    status, out, _ = command("list", "--json")
    document = json.loads(out)
    assert status == 0
    assert [(row["label"], row["inputs"], row["kinds"]) for row in document["models"]] == [
        (str(models["Conv"]), 1, 1),
        (str(models["MatMul"]), 2, 2),
    ]


@pytest.mark.parametrize("how", ["path", "id", "hash", "moved file", "path that is gone"])
def test_those_of_one_model_are_deleted(how: str, command: Command, models: dict[str, Path], tmp_path: Path) -> None:
    path, model_hash = models["MatMul"], fingerprint(models["MatMul"], None).hash
    named = {"path": str(path), "path that is gone": str(path), "id": model_hash[7:19], "hash": model_hash}.get(how)
    if how == "moved file":
        named = str(path.rename(tmp_path / "elsewhere.onnx"))
    if how == "path that is gone":
        path.unlink()
    status, out, _ = command("delete", str(named))
    assert (status, out) == (0, f"2 inputs removed from {tmp_path / 'cache' / 'inputs'}\n")
    assert counts(tmp_path) == {"conv": 1}


def test_all_are_deleted_with_one_word(command: Command, models: dict[str, Path], tmp_path: Path) -> None:
    status, out, _ = command("delete", "--all", "--json")
    assert (status, json.loads(out)["removed"]) == (0, 3)
    assert not (tmp_path / "cache" / "inputs").exists()
    assert command("list")[1].startswith("0 inputs of 0 models")
    assert command("delete", "--all")[0] == 0


@pytest.mark.parametrize("words", [(), ("m.onnx", "--all")])
def test_it_is_asked_whose_inputs(words: tuple[str, ...], command: Command, models: dict[str, Path]) -> None:
    status, _, err = command("delete", *words)
    assert status == 2
    assert "name a MODEL, or give --all" in err


@pytest.mark.parametrize("name", ["nobody.onnx", "ffffffffffff", ""])
def test_a_model_of_which_nothing_is_kept_is_an_error(name: str, command: Command, models: dict[str, Path]) -> None:
    status, out, err = command("delete", name)
    assert (status, out) == (1, "")
    assert "`ort-metainfer inputs list` lists their ids" in err


def test_another_cache_directory_can_be_named(command: Command, models: dict[str, Path], tmp_path: Path) -> None:
    assert command("delete", "--all", "--cache-dir", str(tmp_path / "none"))[0] == 0
    assert sum(counts(tmp_path).values()) == 3
