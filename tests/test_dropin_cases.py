"""In 44 unusual uses nothing can be told apart from plain onnxruntime, whether a strategy is applied or not."""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

import ort_metainfer
from ort_metainfer import Settings
from tests.dropin_cases import CASES, Case
from tests.dropin_modes import STRATEGY, strategy_file, switch_to
from tests.dropin_observe import Make, observe

PARAMETERS = [pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.slow else []) for case in CASES]


def adapted(folder: Path, strategy: str = STRATEGY) -> Make:
    settings = Settings(strategy=strategy_file(folder, strategy))
    return lambda *args, **keywords: ort_metainfer.InferenceSession(*args, metainfer=settings, **keywords)


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
def test_with_a_strategy_applied_only_speed_may_change(case: Case, seen, tmp_path: Path):
    plain = seen(case, onnxruntime.InferenceSession)
    assert_same(seen(case, adapted(tmp_path)), plain)


@pytest.mark.parametrize("case", PARAMETERS)
def test_with_onnxruntime_patched_only_speed_may_change(case: Case, seen, tmp_path: Path, monkeypatch):
    plain = seen(case, onnxruntime.InferenceSession)
    switch_to("strategy", tmp_path, monkeypatch)
    with ort_metainfer.patch():
        assert_same(seen(case, onnxruntime.InferenceSession), plain)


UNSEEDED = (34,)
"""Two sessions stand behind a guarded one, and each counts its own random draws."""


@pytest.mark.parametrize("size", [2, 3], ids=["other shapes", "its own shapes"])
@pytest.mark.parametrize("case", [given for given in PARAMETERS if given.values[0].number not in UNSEEDED])
def test_with_shapes_fixed_only_speed_may_change(case: Case, size: int, seen, tmp_path: Path):
    plain = seen(case, onnxruntime.InferenceSession)
    assert_same(seen(case, adapted(tmp_path, f"[strategy.static_shapes]\nN = {size}\n")), plain)


@pytest.mark.parametrize("case", [given for given in PARAMETERS if given.values[0].adapted is not None])
def test_the_strategy_is_applied_where_it_may_be_and_nowhere_else(case: Case, tmp_path, monkeypatch):
    """Without this the test above could pass because the strategy is never applied."""
    (tmp_path / "case" / "cwd").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "case" / "cwd")
    call = case.build(tmp_path / "case")
    options = {} if call.options is None else {"sess_options": call.options}
    session = adapted(tmp_path)(call.model, **options, **call.keywords)
    assert (session.get_session_options().intra_op_num_threads == 1) == case.adapted


KEPT: list[Any] = []


class Careless(onnxruntime.InferenceSession):
    """A drop-in with one fault."""

    fault = ""

    def __init__(self, model: Any, sess_options: Any = None, **keywords: Any) -> None:
        getattr(self, self.fault)(sess_options)
        super().__init__(Path(model).read_bytes() if self.fault == "reads_bytes" else model, sess_options, **keywords)

    def changes_options(self, options: Any) -> None:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")

    def keeps_itself(self, options: Any) -> None:
        KEPT.append(self)

    def prints(self, options: Any) -> None:
        print("fast!")

    def warns(self, options: Any) -> None:
        warnings.warn("fast!", stacklevel=2)

    def logs(self, options: Any) -> None:
        logging.getLogger("ort_metainfer").warning("fast!")

    def writes(self, options: Any) -> None:
        Path("cache").write_text("fast!")

    def reads_bytes(self, options: Any) -> None:
        """In the constructor above."""

    def fails(self, options: Any) -> None:
        raise RuntimeError("fast!")


FAULTS = {
    "changes_options": "caller's options unchanged",
    "keeps_itself": "freed",
    "prints": "stdout",
    "warns": "warnings",
    "logs": "logged",
    "writes": "files",
    "reads_bytes": "model",
    "fails": "created",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_careless_drop_in_does_is_noticed(fault: str, seen, monkeypatch: pytest.MonkeyPatch):
    """Without this the tests above could pass because nothing is looked at."""
    case = next(case for case in CASES if case.name == "29-free_dimension_by_name")
    monkeypatch.setattr(Careless, "fault", fault)
    careless, plain = seen(case, Careless), seen(case, onnxruntime.InferenceSession)
    KEPT.clear()
    assert careless[FAULTS[fault]] != plain[FAULTS[fault]]
    with pytest.raises(AssertionError, match=FAULTS[fault]):
        assert_same(careless, plain)
