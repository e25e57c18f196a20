"""In 44 unusual uses nothing can be told apart from plain onnxruntime, whether a strategy is applied or not."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

import ort_metainfer
from ort_metainfer import Settings
from tests.dropin_cases import CASES, Case
from tests.dropin_observe import Make, observe

STRATEGY = """
[strategy.session_options]
graph_optimization_level = "extended"
intra_op_num_threads = 1

[strategy.session_config]
"session.intra_op.allow_spinning" = "0"
"""
PARAMETERS = [pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.slow else []) for case in CASES]


@pytest.fixture
def strategy_file(tmp_path: Path) -> Path:
    file = tmp_path / "strategy.toml"
    file.write_text(STRATEGY)
    return file


def adapted(strategy: Path) -> Make:
    return lambda *args, **keywords: ort_metainfer.InferenceSession(
        *args, metainfer=Settings(strategy=strategy), **keywords
    )


def passed_through(*args: Any, **keywords: Any) -> onnxruntime.InferenceSession:
    return ort_metainfer.InferenceSession(*args, metainfer=Settings(mode="off"), **keywords)


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Case, Make], dict[str, Any]]]:
    """Builds a case afresh, always at the same path, and observes one kind of session."""
    folder = tmp_path / "case"

    def run(case: Case, make: Make) -> dict[str, Any]:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "cwd").mkdir(parents=True)
        monkeypatch.chdir(folder / "cwd")
        call = case.build(folder)
        return observe(make, call, folder)

    yield run
    monkeypatch.chdir(tmp_path)


def assert_same(ours: dict[str, Any], plain: dict[str, Any]) -> None:
    different = {name: (ours.get(name), plain.get(name)) for name in ours | plain if ours.get(name) != plain.get(name)}
    assert not different, "ours, plain: " + "\n".join(f"{name}: {pair}" for name, pair in different.items())


def test_every_unusual_use_of_the_list_is_there():
    assert {case.number for case in CASES} == set(range(1, 45))
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", PARAMETERS)
def test_switched_off_it_is_plain_onnxruntime(case: Case, seen):
    plain = seen(case, onnxruntime.InferenceSession)
    if case.refused is not None:
        assert (plain["created"] != "session") == case.refused, plain["created"]
    assert plain["caller's options unchanged"]
    assert all(plain.get("freed", [])), "plain onnxruntime must free it, or the comparison proves nothing"
    assert_same(seen(case, passed_through), plain)


@pytest.mark.parametrize("case", PARAMETERS)
def test_with_a_strategy_applied_only_speed_may_change(case: Case, seen, strategy_file: Path):
    plain = seen(case, onnxruntime.InferenceSession)
    assert_same(seen(case, adapted(strategy_file)), plain)


@pytest.mark.parametrize("case", [given for given in PARAMETERS if given.values[0].adapted is not None])
def test_the_strategy_is_applied_where_it_may_be_and_nowhere_else(case: Case, tmp_path, monkeypatch, strategy_file):
    """Without this the test above could pass because the strategy is never applied."""
    (tmp_path / "case" / "cwd").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "case" / "cwd")
    call = case.build(tmp_path / "case")
    options = {} if call.options is None else {"sess_options": call.options}
    session = adapted(strategy_file)(call.model, **options, **call.keywords)
    assert (session.get_session_options().intra_op_num_threads == 1) == case.adapted
