"""OpenVINO with sizes fixed by name: constants without elements, which the plug-in takes for inputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from ort_metainfer.providers.openvino import OpenVinoProvider, _leave_constants
from ort_metainfer.strategy import Strategy
from tests.rewrite_models import model_of, noise

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = "optimization.disable_specified_optimizers"

PADDED = """g (float[N,4,2] x) => (float[N,?,2] y) {
    r = Relu (x)
    n = Shape <end = 1> (x)
    missing = Concat <axis = 0> (n, none, two)
    zeros = ConstantOfShape (missing)
    p = Concat <axis = 1> (r, zeros)
    y = MatMul (p, w)
}"""
"""What pads to a multiple of four makes of four: a constant of no elements, once N is known."""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "ConstantFolding"),
        ("A;B", "A;B;ConstantFolding"),
        ("ConstantFolding", "ConstantFolding"),
        ("", "ConstantFolding"),
    ],
)
def test_what_was_left_out_already_stays_so(before: str | None, after: str) -> None:
    options = onnxruntime.SessionOptions()
    if before is not None:
        options.add_session_config_entry(LEFT_OUT, before)
    _leave_constants(options)
    assert options.get_session_config_entry(LEFT_OUT) == after


@pytest.mark.slow
@pytest.mark.parametrize("name", ["padded", "spindle_unet1d"])
def test_the_plug_in_runs_what_holds_a_constant_of_no_elements(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    try:
        metadata.version("onnxruntime-ep-openvino")
    except metadata.PackageNotFoundError:
        pytest.skip("onnxruntime-ep-openvino is not installed; run: pip install --no-deps onnxruntime-ep-openvino")
    if name == "padded":
        model, dimension = tmp_path / "padded.onnx", "N"
        onnx.save(model_of(PADDED, none=np.array([0]), two=np.array([2]), w=noise(2, 2)), model)
    else:
        model, dimension = request.getfixturevalue("zoo_model")(name), "batch_size"
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    strategy = Strategy(provider=OpenVinoProvider.name, provider_options=options, static_shapes={dimension: 1})
    command = [sys.executable, str(ROOT / "tests" / "provider_run.py"), str(model), json.dumps(strategy.as_dict())]
    folders = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "vendor_override")])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": folders}, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert set(report["nodes"]) == {OpenVinoProvider.name}
    assert report["error"] < 1e-5
