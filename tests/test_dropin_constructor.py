"""Each form of the constructor call, right or wrong, ends as it ends with plain onnxruntime."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

import ort_metainfer
from tests.dropin_cases_options import ort_format
from tests.dropin_models import X, dense, saved, with_threads
from tests.dropin_modes import MODES, switch_to
from tests.dropin_observe import Make, attempt, error_of, options_state, recorded

Base = onnxruntime.InferenceSession
Ours = ort_metainfer.InferenceSession
CPU = "CPUExecutionProvider"
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return switch_to(request.param, tmp_path, monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return saved(dense(), tmp_path / "model.onnx")


class BytesPath:
    """A PathLike that answers with bytes, as os.fspath allows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> bytes:
        return os.fsencode(self.path)


def _file(folder: Path) -> str:
    return saved(dense(), folder / "model.onnx")


class OwnOptions(onnxruntime.SessionOptions):
    """A user's subclass."""


CONSTRUCTOR_CALLS: dict[str, Callable[[Path], Arguments]] = {
    "path": lambda folder: ((_file(folder),), {}),
    "PathLike": lambda folder: ((Path(_file(folder)),), {}),
    "PathLike of bytes": lambda folder: ((BytesPath(Path(_file(folder))),), {}),
    "bytes": lambda folder: ((dense().SerializeToString(),), {}),
    "path as bytes": lambda folder: ((os.fsencode(_file(folder)),), {}),
    "path by keyword": lambda folder: ((), {"path_or_bytes": _file(folder)}),
    "path by a wrong keyword": lambda folder: ((), {"path": _file(folder)}),
    "ORT format": lambda folder: ((str(ort_format(folder)),), {}),
    "ORT format bytes": lambda folder: ((ort_format(folder).read_bytes(),), {}),
    "options positional": lambda folder: ((_file(folder), with_threads(2)), {}),
    "options keyword": lambda folder: ((_file(folder),), {"sess_options": with_threads(2)}),
    "options None": lambda folder: ((_file(folder), None, None, None), {}),
    "options of a subclass": lambda folder: ((_file(folder), OwnOptions()), {}),
    "options of a wrong type": lambda folder: ((_file(folder), {"threads": 2}), {}),
    "global thread pool without one": lambda folder: ((_file(folder), _without_own_threads()), {}),
    "providers empty": lambda folder: ((_file(folder),), {"providers": []}),
    "providers names": lambda folder: ((_file(folder),), {"providers": [CPU]}),
    "providers positional": lambda folder: ((_file(folder), None, [CPU], [{}]), {}),
    "providers as a tuple": lambda folder: ((_file(folder),), {"providers": (CPU,)}),
    "providers with options": lambda folder: ((_file(folder),), {"providers": [(CPU, {"a": 1})]}),
    "providers and options": lambda folder: ((_file(folder),), {"providers": [CPU], "provider_options": [{"a": 1}]}),
    "providers twice": lambda folder: ((_file(folder),), {"providers": [CPU, CPU]}),
    "providers and too few options": lambda folder: ((_file(folder),), {"providers": [CPU], "provider_options": []}),
    "providers pairs and options": lambda folder: (
        (_file(folder),),
        {"providers": [(CPU, {})], "provider_options": [{}]},
    ),
    "provider_options no dict": lambda folder: ((_file(folder),), {"providers": [CPU], "provider_options": ["a"]}),
    "provider_options no sequence": lambda folder: ((_file(folder),), {"providers": [CPU], "provider_options": 5}),
    "provider_options alone": lambda folder: ((_file(folder),), {"provider_options": [{}]}),
    "providers a list pair": lambda folder: ((_file(folder),), {"providers": [[CPU, {}]]}),
    "providers a text": lambda folder: ((_file(folder),), {"providers": "CPU"}),
    "providers a set": lambda folder: ((_file(folder),), {"providers": {CPU}}),
    "providers a number": lambda folder: ((_file(folder),), {"providers": 5}),
    "providers with None inside": lambda folder: ((_file(folder),), {"providers": [None, CPU]}),
    "provider unknown": lambda folder: ((_file(folder),), {"providers": ["NoSuchProvider", CPU]}),
    "provider not built in": lambda folder: ((_file(folder),), {"providers": ["CUDAExecutionProvider", CPU]}),
    "provider unknown, no fallback": lambda folder: (
        (_file(folder),),
        {"providers": ["NoSuchProvider"], "enable_fallback": 0},
    ),
    "two TensorRT providers": lambda folder: (
        (_file(folder),),
        {"providers": ["TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider", "CUDAExecutionProvider"]},
    ),
    "TensorRT and CUDA, not built in": lambda folder: (
        (_file(folder),),
        {"providers": ["TensorrtExecutionProvider", "CUDAExecutionProvider"]},
    ),
    "disabled_optimizers list": lambda folder: ((_file(folder),), {"disabled_optimizers": ["ConstantFolding"]}),
    "disabled_optimizers empty": lambda folder: ((_file(folder),), {"disabled_optimizers": set()}),
    "disabled_optimizers number": lambda folder: ((_file(folder),), {"disabled_optimizers": 3}),
    "enable_fallback": lambda folder: ((_file(folder),), {"enable_fallback": "1"}),
    "enable_fallback no number": lambda folder: ((_file(folder),), {"enable_fallback": "no"}),
    "read_config_from_model": lambda folder: ((_file(folder),), {"read_config_from_model": 1}),
    "unknown keyword": lambda folder: ((_file(folder),), {"no_such_keyword": object()}),
    "bytearray": lambda folder: ((bytearray(dense().SerializeToString()),), {}),
    "memoryview": lambda folder: ((memoryview(dense().SerializeToString()),), {}),
    "ModelProto": lambda folder: ((dense(),), {}),
    "None": lambda folder: ((None,), {}),
    "number": lambda folder: ((3,), {}),
    "empty text": lambda folder: (("",), {}),
    "text with a zero byte": lambda folder: (("a\0b",), {}),
    "surrogate in the path": lambda folder: (("caf\udce9.onnx",), {}),
    "nothing": lambda folder: ((), {}),
    "five positionals": lambda folder: ((_file(folder), None, None, None, None), {}),
    "options twice": lambda folder: ((_file(folder), None), {"sess_options": None}),
}


def _without_own_threads() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.use_per_session_threads = False
    return options


def outcome(make: Make, arguments: Arguments) -> dict[str, Any]:
    """What comes of one constructor call: a session's answers, or the error; what was printed and warned."""
    seen: dict[str, Any] = {}
    args, keywords = arguments
    options = [value for value in (*args, *keywords.values()) if isinstance(value, onnxruntime.SessionOptions)]
    before = [options_state(value) for value in options]
    with recorded(seen):
        try:
            session = make(*args, **keywords)
        except Exception as error:  # noqa: BLE001 (the error is what is compared)
            seen["error"] = error_of(error)
        else:
            names = (
                "_model_path",
                "_model_bytes",
                "_read_config_from_model",
                "_fallback_providers",
                "_enable_fallback",
            )
            seen |= {name: getattr(session, name) for name in names}
            seen["providers"] = (session.get_providers(), session.get_provider_options())
            seen["run"] = attempt(lambda: session.run(None, X))
    assert [options_state(value) for value in options] == before
    return seen


@pytest.mark.parametrize("form", CONSTRUCTOR_CALLS)
def test_each_form_of_the_constructor_call_ends_as_with_plain_onnxruntime(form: str, mode: str, tmp_path: Path):
    build = CONSTRUCTOR_CALLS[form]
    assert outcome(Ours, build(tmp_path)) == outcome(Base, build(tmp_path))


def test_a_fallback_of_the_caller_s_own_provider_prints_what_plain_onnxruntime_prints(path: str, mode: str):
    seen = outcome(Ours, ((path,), {"providers": ["NoSuchProvider"]}))
    assert "EP Error" in seen["stdout"]
    assert seen["_enable_fallback"] is False


@pytest.mark.skipif(not os.path.exists("/dev/stdin"), reason="standard input has no path here")
def test_a_model_that_comes_through_a_pipe_is_left_to_onnxruntime(tiny_model: Callable[..., Path]) -> None:
    """What is read from a pipe is gone: onnxruntime would get a model without its beginning."""
    program = 'import ort_metainfer; print(ort_metainfer.InferenceSession("/dev/stdin").adaptation.reason)'
    ended = subprocess.run(
        [sys.executable, "-c", program],
        input=tiny_model("MatMul").read_bytes(),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"no regular file" in ended.stdout
