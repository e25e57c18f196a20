"""What records teach the cost model reaches decisions, and only where it predicts no worse."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from math import isnan
from pathlib import Path

import pytest

from ort_metainfer.deciders.cost_model import CostModel
from ort_metainfer.errors import LearningError
from ort_metainfer.learning.cost_lessons import LESSONS, cost_model_in_use, teach
from ort_metainfer.learning.evidence import survey_records
from ort_metainfer.learning.experience import predictor
from ort_metainfer.learning.in_use import own_folder
from ort_metainfer.learning.page import page
from ort_metainfer.learning.record import Record
from ort_metainfer.strategy import Strategy
from tests.cost_cases import case, chain, record

NO_SPINNING = Strategy(session_config={"session.intra_op.allow_spinning": "0"})
EXTENDED = Strategy(session_options={"graph_optimization_level": "extended"})


@pytest.fixture(autouse=True)
def shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "shipped"
    monkeypatch.setattr("ort_metainfer.learning.cost_lessons.shipped_folder", lambda: folder)
    return folder


def alike(gain: float = 1.3, models: int = 6) -> list[Record]:
    """Models on which spinning hurts all alike."""
    return [record(f"m{n}", each, g) for n in range(models) for each, g in ((NO_SPINNING, gain), (EXTENDED, 1.0))]


def gain_expected(model: CostModel) -> float:
    (answer,) = model.predict(case(chain(("MatMul", 1 << 24, 1 << 16))), [NO_SPINNING], ())
    assert answer is not None
    return answer.speedup


def test_what_was_taught_is_what_the_next_decision_goes_by(tmp_path: Path) -> None:
    before = gain_expected(cost_model_in_use(tmp_path))
    taught = teach(alike(), own_folder(tmp_path))
    assert taught.kept and "off on models held out" in taught.reason
    model = predictor(tmp_path)
    assert isinstance(model, CostModel) and model.learned.models == 6
    assert gain_expected(model) > before + 0.1


def test_one_s_own_lessons_come_before_the_shipped_ones(tmp_path: Path, shipped: Path) -> None:
    teach(alike(0.7), shipped)
    assert gain_expected(cost_model_in_use(tmp_path)) < 0.9
    teach(alike(1.3), own_folder(tmp_path))
    assert gain_expected(cost_model_in_use(tmp_path)) > 1.1


def test_records_that_mislead_about_models_held_out_change_nothing(tmp_path: Path) -> None:
    misleading = [record("m0", NO_SPINNING, 3.0, shapes=f"n={n}") for n in range(2)]
    misleading += [record("m1", NO_SPINNING, 0.97, shapes=f"n={n}") for n in range(9)]
    taught = teach(misleading, own_folder(tmp_path))
    assert not taught.kept and "stays as it is" in taught.reason
    assert not own_folder(tmp_path).exists()
    assert teach(misleading, own_folder(tmp_path), anyway=True).kept
    assert cost_model_in_use(tmp_path).learned.models == 2


def test_simulated_records_teach_nothing_and_doubles_no_more_than_once(tmp_path: Path) -> None:
    simulated = [replace(each, simulated=True) for each in alike()]
    assert teach(simulated, tmp_path / "simulated").quality == {}
    once, twice = (teach(records, tmp_path / "twice") for records in (alike(), [*alike(), *simulated, *alike()]))
    assert once.kept and twice.reason == once.reason and twice.quality["trials"] == once.quality["trials"] == 12


@pytest.mark.parametrize("models", [0, 1])
def test_one_model_is_too_little_to_compare(tmp_path: Path, models: int) -> None:
    taught = teach(alike(models=models), tmp_path)
    assert (taught.kept, taught.quality) == (False, {})
    assert "two models" in taught.reason


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 99}', '{"schema": 1, "weights": 3}', "\udcff"])
def test_a_damaged_file_is_passed_over_with_a_warning(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = own_folder(tmp_path) / LESSONS
    file.parent.mkdir()
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with caplog.at_level(logging.WARNING, "ort_metainfer.learning"):
        assert cost_model_in_use(tmp_path) == CostModel()
    assert str(file) in caplog.text


def test_a_file_written_anew_is_read_anew(tmp_path: Path) -> None:
    folder = own_folder(tmp_path)
    teach(alike(1.3), folder)
    first = gain_expected(cost_model_in_use(tmp_path))
    teach(alike(1.6), folder)
    os.utime(folder / LESSONS, ns=(1, 1))
    assert gain_expected(cost_model_in_use(tmp_path)) > first


def test_where_it_cannot_be_written_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LearningError, match=r"cannot write the cost model to .*cost\.json"):
        teach(alike(), tmp_path / "file")


def test_the_evaluation_of_records_says_how_far_off_the_cost_model_is() -> None:
    document = survey_records(alike(), splits=())
    quality = document["cost_model"]
    assert quality["models"] == 6 and quality["trials"] == 12
    assert quality["median_absolute_percentage_error"] <= quality["median_absolute_percentage_error_unlearned"]
    assert isnan(quality["spearman"])  # two candidates a model have no rank correlation
    assert "The cost model" in page(document)
    assert "The cost model" not in page(survey_records([], splits=()))
