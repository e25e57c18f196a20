"""Writes ``zoo_features.json``: the features of the zoo's graphs, which tests take in their place. No weights in it.

Run with the folder of the zoo and the file that makes its inputs: ``record_zoo_features.py FOLDER INPUTS.PY``.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from ort_metainfer.model.graph import describe


def record(zoo: Path, maker: Path) -> dict[str, Any]:
    """Each model's features with open shapes, and with those of its first real input."""
    spec = importlib.util.spec_from_file_location("zoo_inputs", maker)
    assert spec is not None and spec.loader is not None
    inputs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(inputs)
    found: dict[str, Any] = {}
    for file in sorted(zoo.glob("models/*/model.onnx")):
        feed = inputs.make_inputs(zoo, file.parent.name)
        graph = describe(file)
        ranks = {spec.name: len(spec.shape or ()) for spec in graph.inputs}
        shapes = {name: value.shape for name, value in feed.items() if value.ndim == ranks.get(name)}
        macs = describe(file, shapes).macs
        plain = {name: list(shape) for name, shape in shapes.items()}
        found[file.parent.name] = {"graph": graph.as_dict(), "shapes": plain, "macs": macs}
    return found


if __name__ == "__main__":
    zoo, maker = Path(sys.argv[1]), Path(sys.argv[2])
    target = Path(__file__).with_name("zoo_features.json")
    target.write_text(json.dumps(record(zoo, maker), indent=1, sort_keys=True) + "\n", encoding="utf-8")
