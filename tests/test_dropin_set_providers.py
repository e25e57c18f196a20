"""set_providers() makes the session again from what the caller gave, as with plain onnxruntime."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest

import ort_metainfer
from tests.dropin_models import X, dense, saved, values
from tests.dropin_modes import MODES, switch_to
from tests.dropin_observe import Make, attempt, recorded

Base = onnxruntime.InferenceSession
Ours = ort_metainfer.InferenceSession
CPU = "CPUExecutionProvider"


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return switch_to(request.param, tmp_path, monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return saved(dense(), tmp_path / "model.onnx")


def _set_providers(session: Base, *arguments: Any) -> Any:
    seen: dict[str, Any] = {}
    with recorded(seen):
        seen["set"] = attempt(lambda: session.set_providers(*arguments))
        seen["run"] = attempt(lambda: session.run(None, X))
        seen["fallback"] = (session._fallback_providers, session._enable_fallback, session.get_providers())
    return seen


@pytest.mark.parametrize(
    "arguments", [(), ([],), ([CPU],), ([(CPU, {"a": 1})],), ([CPU], [{}]), (["NoSuchProvider"],), ("CPU",), (5,)]
)
def test_set_providers_ends_as_with_plain_onnxruntime(arguments: tuple[Any, ...], path: str, mode: str):
    assert _set_providers(Ours(path), *arguments) == _set_providers(Base(path), *arguments)


def test_set_providers_reads_the_file_again(path: str, mode: str):
    def changed(kind: Make) -> Any:
        session = kind(saved(dense(), Path(path)))
        saved(dense(bias=onnx.numpy_helper.from_array(values(4, seed=5), "b")), Path(path))
        return _set_providers(session, [CPU])

    assert changed(Ours) == changed(Base)


def test_set_providers_finds_the_file_gone(path: str, mode: str):
    def removed(kind: Make) -> Any:
        session = kind(saved(dense(), Path(path)))
        os.unlink(path)
        return _set_providers(session, [CPU])

    assert removed(Ours) == removed(Base)


def test_set_providers_takes_what_was_changed_on_the_options_since(path: str, mode: str):
    def changed(kind: Make) -> Any:
        options = onnxruntime.SessionOptions()
        session = kind(path, options)
        options.add_free_dimension_override_by_name("N", 2)
        options.inter_op_num_threads = 5
        seen = _set_providers(session, [CPU])
        return seen, session.get_session_options().inter_op_num_threads

    assert changed(Ours) == changed(Base)


def test_a_session_that_lost_its_binding_after_set_providers_refuses_it(path: str, mode: str):
    def refused(kind: Make) -> Any:
        session = kind(path)
        binding = session.io_binding()
        session.set_providers([CPU])
        return attempt(lambda: session.run_with_iobinding(binding))

    assert refused(Ours) == refused(Base)
