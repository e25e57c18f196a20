"""Figures of an evaluation are what their names say, for policies with known answers."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from ort_metainfer.cli.application import application
from ort_metainfer.errors import InputsError
from ort_metainfer.learning import policies
from ort_metainfer.learning.evaluate import calibration, regrets, score, verdict, verdicts
from ort_metainfer.learning.evidence import survey_records, survey_tables
from ort_metainfer.learning.held_out import HeldOut, predict_held_out
from ort_metainfer.learning.page import page
from ort_metainfer.learning.record_store import RecordStore
from ort_metainfer.learning.record_tasks import DEFAULT, tasks_of
from ort_metainfer.learning.support import Question, learn_support, refusal
from tests.made_learning import made_records, made_tasks

pytest.importorskip("sklearn", reason="training needs the extra train")


def answered(expected: dict[str, list[float]]) -> HeldOut:
    """Two cases of three candidates (latency 1, 1.1 and 3), answered by configuration."""
    tasks = made_tasks(1, 2)
    latency = {"1": 1.0, "4": 1.1, "gpu": 3.0}
    tasks = replace(tasks, latency_ms=np.array([latency[each] for each in tasks.configuration.tolist()]))
    return HeldOut(tasks, np.array([expected[each] for each in tasks.configuration.tolist()], dtype=np.float32), 0)


def test_regret_falls_with_measurements_and_is_over_the_best_known() -> None:
    table = regrets(answered({"gpu": [0.0], "4": [1.0], "1": [2.0]}), most=4)
    np.testing.assert_allclose(table, [[2.0, 0.1, 0.0, 0.0]] * 2, atol=1e-12)


def test_scores_count_cases_within_5_and_15_percent_and_the_gap_to_the_default() -> None:
    first, second, third = score("p", "device", answered({"gpu": [0.0], "4": [1.0], "1": [2.0]}), default=4.0, most=3)
    assert (first.mean_regret, first.within_5, first.within_15, first.gap_closed) == (2.0, 0.0, 0.0, 0.5)
    assert (round(second.mean_regret, 9), second.within_5, second.within_15) == (0.1, 0.0, 1.0)
    assert (third.within_5, third.gap_closed) == (1.0, 1.0)
    assert (
        score("p", "device", answered({"gpu": [0.0], "4": [1.0], "1": [2.0]}), most=1)[0].as_dict()["gap_closed"]
        is None
    )


@pytest.mark.parametrize(("regret", "word"), [(0.049, "done"), (0.05, "between"), (0.15, "between"), (0.151, "failed")])
def test_a_device_class_is_judged_at_5_and_15_percent(regret: float, word: str) -> None:
    assert verdict(regret) == word


def test_verdicts_are_by_class_after_so_many_measurements() -> None:
    held_out = answered({"gpu": [0.0], "4": [1.0], "1": [2.0]})
    assert [(each.kind, each.word) for each in verdicts(held_out, 1)] == [("cpu", "failed")]
    assert [(each.kind, each.word) for each in verdicts(held_out, 3)] == [("cpu", "done")]


def test_calibration_is_the_share_of_sure_choices_that_end_within_5_percent() -> None:
    sure = answered({"gpu": [0.0, 0.0], "4": [1.0, 1.0], "1": [2.0, 2.0]})  # sure, and wrong
    assert [(each.cases, each.within_5) for each in calibration(sure, at=[0.9])] == [(2, 0.0)]
    unsure = answered({"1": [0.0, 1.0], "4": [3.0, 3.0], "gpu": [1.1, 0.0]})
    assert calibration(unsure, at=[0.9])[0].cases == 0


def test_average_and_portfolio_find_what_the_rows_to_learn_from_say() -> None:
    tasks = made_tasks()
    first = {"1": 0.0, "4": 1.0, "gpu": 2.0}
    ranked = replace(tasks, latency_ms=np.array([np.exp(first[each]) for each in tasks.configuration.tolist()]))
    for learner in (policies.average(), policies.portfolio()):
        table = regrets(predict_held_out(ranked, learner, "device", references=0))
        assert (table == 0).all()


def test_the_forest_learns_a_law_that_no_fixed_list_can_follow() -> None:
    tasks = made_tasks(devices=10, models=20)
    found = {
        name: regrets(predict_held_out(tasks, learner, "both-models", references=3, groups=4))[:, 0].mean()
        for name, learner in (
            ("average", policies.average()),
            ("forest", policies.forest(20)),
            ("forest over references", policies.forest(20, over="reference_at_size")),
        )
    }
    assert found["forest"] < found["average"] / 2
    assert found["forest over references"] < found["average"] / 2


def test_what_was_measured_for_the_same_model_elsewhere_counts_near_devices_more() -> None:
    tasks = made_tasks(devices=8, models=16)
    near = regrets(predict_held_out(tasks, policies.lookup("elsewhere"), "device", references=3))[:, 0].mean()
    even = regrets(predict_held_out(tasks, policies.lookup("elsewhere_even"), "device", references=3))[:, 0].mean()
    assert near < even


def support_of(seed: int = 0):
    random = np.random.default_rng(seed)
    cases = random.uniform(0.0, 1.0, (60, 3))
    hardware = np.array([f"h{number % 6}" for number in range(60)])
    kinds = np.where(np.isin(hardware, ["h0", "h1", "h2"]), "cpu", "gpu")
    return learn_support(
        ["a", "b", "c"], cases, hardware, kinds, strategies=frozenset({"x"}), operators=frozenset({"Conv"})
    )


def test_the_gate_asks_for_the_class_first_then_the_strategy_then_the_range_then_the_distance() -> None:
    support, middle = support_of(), {"a": 0.5, "b": 0.5, "c": 0.5}
    assert refusal(support, Question("cpu", middle, frozenset({"x"}), frozenset({"Conv"}))) is None
    far = {"a": 9.0, "b": 0.5, "c": 0.5}
    assert "class fpga" in (refusal(support, Question("fpga", far, frozenset({"y"}))) or "")
    assert "strategy of kind y" in (refusal(support, Question("cpu", far, frozenset({"y"}))) or "")
    assert "operator Scan" in (refusal(support, Question("cpu", far, frozenset({"x"}), frozenset({"Scan"}))) or "")
    assert "a is 9, trained on" in (refusal(support, Question("cpu", far)) or "")
    lonely = replace(support, exemplars=support.exemplars[:1], threshold=1e-6)
    assert "the nearest case seen lies" in (refusal(lonely, Question("cpu", middle)) or "")


def test_what_is_not_known_is_not_held_against_a_question() -> None:
    assert refusal(support_of(), Question("gpu", {"a": 0.5})) is None


def test_held_out_hardware_of_the_same_law_passes_the_distance_in_99_of_100_cases() -> None:
    support = support_of()
    random = np.random.default_rng(9)
    questions = [Question("cpu", dict(zip("abc", row, strict=True))) for row in random.uniform(0.05, 0.95, (100, 3))]
    assert sum(refusal(support, each) is None for each in questions) >= 90


def test_records_become_cases_with_the_default_as_a_candidate() -> None:
    records = made_records(models=2)
    tasks = tasks_of([*records, *records[:1]])
    assert len(set(tasks.case.tolist())) == 3 * 2
    assert sum(each == DEFAULT for each in tasks.configuration.tolist()) == 6
    best = {tasks.configuration[case[tasks.latency_ms[case].argmin()]] for case in tasks.cases()}
    assert best and DEFAULT not in best
    assert set(tasks_of(records, "cores").hardware.tolist()) == {"2 cores", "4 cores", "8 cores"}
    assert set(tasks_of(records, "provider").hardware.tolist()) == {"CPUExecutionProvider", "OpenVINOExecutionProvider"}


def test_the_order_of_records_which_may_be_best_first_says_nothing_to_a_policy_that_rates_all_alike() -> None:
    records = made_records(devices=[("cpu:a/2c", 2.0)], models=3)
    best_first = sorted(records, key=lambda record: -(record.log_ratio or 0.0))
    for other in (best_first, best_first[::-1]):
        candidates = [tasks_of(given).configuration.tolist() for given in (records, other)]
        assert sorted(candidates[0]) == sorted(candidates[1])
        by_case = [
            {s: [c for c, m in zip(t.configuration, t.model, strict=True) if m == s] for s in ("s0", "s1", "s2")}
            for t in (tasks_of(records), tasks_of(other))
        ]
        assert by_case[0] == by_case[1]


def test_simulated_records_are_never_evaluated_with_measured_ones() -> None:
    records = made_records(models=2)
    mixed = [*records, *(replace(each, simulated=True, device="cpu:s/1c") for each in records)]
    assert "cpu:s/1c" not in " ".join(tasks_of(mixed).device.tolist())
    assert set(tasks_of(mixed, simulated=True).hardware.tolist()) == {"cpu:s/1c"}


def test_an_unknown_table_is_told_with_those_that_are_known(tmp_path) -> None:
    with pytest.raises(InputsError, match="'other' is no public table"):
        survey_tables(tmp_path, tables=["other"])


def test_the_page_holds_every_policy_and_loads_nothing_from_outside() -> None:
    document = survey_records(made_records(models=6), references=[0, 3], trees=6, splits=["both"])
    text = page(document)
    assert "meta-model, 3 references" in text and "<svg" in text and "<polyline" in text
    assert not re.search(r"https?://|<script|<link|@import|src=", text)
    assert page({"tables": []}).startswith("<!doctype html>")


def test_learn_evaluate_prints_one_document_and_writes_a_page(tmp_path) -> None:
    RecordStore(tmp_path).add(made_records(models=5))
    words = ["learn", "evaluate", "--json", "--trees", "4", "--references", "0", "--split", "device"]
    result = CliRunner().invoke(
        application, [*words, "--cache-dir", str(tmp_path), "--page", str(tmp_path / "page.html")]
    )
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    policies_told = {each["policy"] for each in document["tables"][0]["scores"]}
    assert {"default", "best on average", "static portfolio", "lookup", "meta-model"} <= policies_told
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_learn_evaluate_says_what_to_do_where_nothing_is_recorded(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("ort_metainfer.learning.find_db.shipped_records", list)
    result = CliRunner().invoke(application, ["learn", "evaluate", "--cache-dir", str(tmp_path)])
    assert result.exit_code == 0 and "tune some models first" in result.output
