"""An isolated environment for every test, small models made on the spot, and the zoo of real ones where it was
fetched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PREFIX = "ORT_METAINFER_"
ZOO_AT_START = os.environ.get(f"{PREFIX}ZOO")
"""Read before the isolation below removes the variable."""


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test sees the developer's settings or cache, none leaves onnxruntime patched."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(f"{PREFIX}CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv(f"{PREFIX}CONFIG", str(tmp_path / "config.toml"))
    from ort_metainfer import session, story

    story._announced.set()  # what a process says once would otherwise be said by whichever test comes first
    yield

    while session._patches:
        session.unpatch()


@pytest.fixture(scope="session")
def zoo() -> Path:
    """The folder that tests/zoo.py filled: ``models/NAME/model.onnx``."""
    if not ZOO_AT_START:
        pytest.skip(f"{PREFIX}ZOO is unset; fill a folder with `python tests/zoo.py FOLDER` and name it there")
    folder = Path(ZOO_AT_START)
    if not (folder / "models").is_dir():
        pytest.skip(f"{PREFIX}ZOO={folder} holds no models/; fill it with `python tests/zoo.py {folder}`")
    return folder


@pytest.fixture
def zoo_model(zoo: Path) -> Callable[[str], Path]:
    """A model of the zoo by its name; skips the test where that one was not fetched."""

    def find(name: str) -> Path:
        path = zoo / "models" / name / "model.onnx"
        if not path.is_file():
            pytest.skip(f"{name} is not in the zoo at {zoo}; fetch it with `python tests/zoo.py {zoo} {name}`")
        return path

    return find


@pytest.fixture
def tiny_model(tmp_path: Path) -> Callable[..., Path]:
    """Writes a one-node model and returns its path: ``tiny_model("MatMul")``, ``tiny_model("Conv", batch="N")``."""

    def write(kind: str = "Identity", batch: int | str = 1, name: str | None = None) -> Path:
        import onnx

        path = tmp_path / (name or f"{kind.lower()}.onnx")
        onnx.save(_one_node(kind, batch), str(path))
        return path

    return write


def _one_node(kind: str, batch: int | str) -> Any:
    """A model of one node; ir_version 10 and opset 17, so that onnxruntime 1.23 loads what a newer onnx wrote."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[list[int | str], list[int | str], list[np.ndarray]]] = {
        "Identity": ([batch, 4], [batch, 4], []),
        "MatMul": ([batch, 8], [batch, 3], [rng.standard_normal((8, 3)).astype(np.float32)]),
        "Conv": ([batch, 3, 8, 8], [batch, 4, 6, 6], [rng.standard_normal((4, 3, 3, 3)).astype(np.float32)]),
    }
    taken, given, weights = shapes[kind]
    graph = helper.make_graph(
        [helper.make_node(kind, ["x", *("w" for _ in weights)], ["y"])],
        f"tiny_{kind}",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, taken)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, given)],
        [numpy_helper.from_array(weight, "w") for weight in weights],
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
