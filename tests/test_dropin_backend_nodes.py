"""onnx's own node tests end the same with plain onnxruntime and with ours, strategy applied: a yardstick nobody here
chose."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ort_metainfer
from tests.dropin_models import saved
from tests.dropin_modes import switch_to
from tests.dropin_observe import Make, error_of, plain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EVERY = 1 if os.environ.get("ORT_METAINFER_FULL") == "1" else 10
"""One case in ten, all of them with ORT_METAINFER_FULL=1; read before the tests' environment is isolated."""

Outcome = tuple[str, Any]


@pytest.fixture(scope="module")
def node_cases() -> list[Any]:
    from onnx.backend.test.case.node import collect_testcases

    return sorted(collect_testcases(None), key=lambda case: case.name)[::EVERY]


def outcome(make: Make, case: Any, folder: Path) -> Outcome:
    """How one case ends, and the outputs bit by bit or the error."""
    path = saved(case.model, folder / "model.onnx")
    onnxruntime.set_seed(1)
    try:
        session = make(path)
    except Exception as error:  # noqa: BLE001 (the error is what is compared)
        return "load refused", error_of(error)
    kinds, outputs = [], []
    for given, expected in case.data_sets:
        names = [node.name for node in session.get_inputs()]
        feeds = {name: _fed(value) for name, value in zip(names, given, strict=False)}
        try:
            outputs.append(session.run(None, feeds))
        except Exception as error:  # noqa: BLE001 (the error is what is compared)
            return "run refused", error_of(error)
        kinds.append("pass" if _close(outputs[-1], expected, case) else "mismatch")
    return ("mismatch" if "mismatch" in kinds else "pass"), plain(outputs)


def _fed(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value


def _close(outputs: Sequence[Any], expected: Sequence[Any], case: Any) -> bool:
    try:
        for ours, theirs in zip(_arrays(outputs), _arrays(expected), strict=True):
            if ours.dtype.kind in "OSU":
                np.testing.assert_array_equal(ours.astype(str), theirs.astype(str))
            else:
                np.testing.assert_allclose(ours, theirs, rtol=case.rtol, atol=case.atol)
    except (AssertionError, ValueError, TypeError):
        return False
    return True


def _arrays(values: Sequence[Any]) -> Iterator[np.ndarray]:
    for value in values:
        if isinstance(value, list):
            yield from _arrays(value)
        else:
            yield np.asarray(value)


def _patched(ours: Make) -> Make:
    def make(path: str) -> onnxruntime.InferenceSession:
        with ort_metainfer.patch():
            return ours(path)

    return make


MAKERS: dict[str, Callable[[], Make]] = {
    "our class": lambda: ort_metainfer.InferenceSession,
    "patched": lambda: _patched(onnxruntime.InferenceSession),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_every_node_case_of_onnx_ends_as_with_plain_onnxruntime(maker: str, node_cases, tmp_path: Path, monkeypatch):
    before = [outcome(onnxruntime.InferenceSession, case, tmp_path) for case in node_cases]
    switch_to("strategy", tmp_path, monkeypatch)
    after = [outcome(MAKERS[maker](), case, tmp_path) for case in node_cases]
    print(len(node_cases), "cases:", dict(Counter(kind for kind, _ in before)))
    different = {
        case.name: (ours, plainly)
        for case, ours, plainly in zip(node_cases, after, before, strict=True)
        if ours != plainly
    }
    assert not different
    assert Counter(kind for kind, _ in before)["pass"] > len(node_cases) / 2, "the yardstick itself is broken"
