"""Models learned from records: what they hold, when one takes another's place, and that experience closes the loop."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from click.testing import CliRunner

from ort_metainfer.cli.application import application
from ort_metainfer.errors import LearningError
from ort_metainfer.learning.choice import measuring_order
from ort_metainfer.learning.examples import case_features, examples_of, row_features
from ort_metainfer.learning.in_use import model_in_use, own_folder
from ort_metainfer.learning.learned import CARD, LearnedModel, load, save
from ort_metainfer.learning.record_store import RecordStore
from ort_metainfer.learning.support import Question
from ort_metainfer.learning.train import contest, train
from tests.made_learning import STRATEGIES, gains, made_records

pytest.importorskip("sklearn", reason="training needs the extra train")

NOW = datetime(2026, 4, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def model() -> LearnedModel:
    return train(made_records(), now=NOW, sources=["made"])


def rows(record):
    return [
        row_features(
            record.graph, record.profile, record.references, each, record.kind, each.provider or "CPUExecutionProvider"
        )
        for each in STRATEGIES
    ]


def first_choice(model: LearnedModel, record) -> int:
    return measuring_order(-model.expected(rows(record)))[0]


def test_it_ranks_strategies_by_what_it_was_taught(model: LearnedModel) -> None:
    right = 0
    records = made_records(devices=[("cpu:new/6c", 6.0)], models=10)[:: len(STRATEGIES)]
    for record in records:
        best = int(np.argmax(gains(record.graph["ln_macs"], record.profile["cores"])))
        right += first_choice(model, record) == best
    assert right >= 8


def test_the_card_says_what_it_was_taught(model: LearnedModel) -> None:
    assert model.card.records == 3 * 12 * 4 and model.card.structures == 12
    assert model.card.hardware == {"cpu:a/2c": 48, "cpu:b/4c": 48, "cpu:c/8c": 48}
    assert model.card.trained_at == "2026-04-01T00:00:00+00:00" and model.card.sources == ("made",)
    assert model.support.kinds == {"cpu": 3}


def test_it_refuses_what_it_was_not_taught(model: LearnedModel) -> None:
    record = made_records()[20]
    features = case_features(record.graph, record.profile)
    assert model.refusal(Question("cpu", features)) is None
    assert "class gpu" in (model.refusal(Question("gpu", features)) or "")
    strange = Question("cpu", features, frozenset({"provider CUDAExecutionProvider"}))
    assert "CUDAExecutionProvider" in (model.refusal(strange) or "")
    assert "graph/ln_macs is 40" in (model.refusal(Question("cpu", {**features, "graph/ln_macs": 40.0})) or "")


def test_on_disk_it_is_the_same(model: LearnedModel, tmp_path) -> None:
    save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    record = made_records()[20]
    np.testing.assert_array_equal(again.expected(rows(record)), model.expected(rows(record)))
    assert again.card == model.card
    question = Question("cpu", {"graph/ln_macs": 40.0})
    assert again.refusal(question) == model.refusal(question)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["card.json", "forest.onnx"]


def test_equal_records_give_an_equal_model(model: LearnedModel) -> None:
    assert train(made_records(), now=NOW, sources=["made"]).forest == model.forest


def test_a_model_of_another_version_or_half_written_is_no_model(model: LearnedModel, tmp_path) -> None:
    save(model, tmp_path)
    plain = json.loads((tmp_path / CARD).read_text())
    (tmp_path / CARD).write_text(json.dumps({**plain, "card": {**plain["card"], "features_version": 0}}))
    with pytest.raises(LearningError, match="train again"):
        load(tmp_path)
    (tmp_path / CARD).write_text("{")
    with pytest.raises(LearningError, match="no card"):
        load(tmp_path)
    names = plain["card"]["names"][:-1]
    (tmp_path / CARD).write_text(json.dumps({**plain, "card": {**plain["card"], "names": names}}))
    with pytest.raises(LearningError, match="files of two models"):
        load(tmp_path)


def test_too_few_verdicts_are_told() -> None:
    with pytest.raises(LearningError, match="8 verdicts are too few"):
        train(made_records(models=1)[:8])


def test_failures_inaccurate_results_and_simulated_figures_are_not_learned_from() -> None:
    one = made_records(models=1)[0]
    odd = [
        replace(one, failure="crashed"),
        replace(one, gates={"compiles": True, "accurate": False}),
        replace(one, log_ratio=None),
        replace(one, simulated=True),
        replace(one, schema=0),
    ]
    assert len(examples_of([one, *odd])) == 1
    assert len(examples_of([one, *odd], simulated=True)) == 1


def test_a_correction_weighs_more_and_much_tried_hardware_less_for_each_row() -> None:
    records = made_records(models=2)
    many = [*records, *made_records(devices=[("cpu:many/2c", 2.0)], models=30)]
    examples = examples_of([*many, replace(records[0], weight=5.0)])
    assert examples.weight[-1] == pytest.approx(5.0 * examples.weight[0])
    assert examples.weight[0] > examples.weight[len(records)]


def test_a_challenger_that_knows_no_less_takes_the_place() -> None:
    records = made_records()
    champion = train(records[:24], now=NOW)  # of one device, and small models only
    result = contest(records, champion)
    assert result.wins and result.cases == 36 and result.challenger_regret <= result.champion_regret
    assert "held-out hardware" in result.reason


def test_a_challenger_taught_nonsense_does_not() -> None:
    champion = train(made_records(devices=[("cpu:x/2c", 2.0), ("cpu:y/4c", 4.0), ("cpu:z/8c", 8.0)]), now=NOW)
    records = made_records()
    random = np.random.default_rng(0)
    spoilt = [
        replace(each, log_ratio=float(random.normal()), device=f"cpu:w{number % 5}/2c")
        for number, each in enumerate(records * 3)
    ]
    result = contest([*spoilt, *records], champion)
    assert not result.wins and result.challenger_regret > result.champion_regret


def test_the_first_model_needs_no_contest() -> None:
    assert contest(made_records(), None).wins


def test_one_device_alone_is_compared_on_models_held_out() -> None:
    records = made_records(devices=[("cpu:a/2c", 2.0)])
    result = contest(records, train(records, now=NOW))
    assert result.held_out == "model" and result.wins


def test_after_20_trials_of_other_models_on_an_odd_device_the_first_proposal_there_is_right() -> None:
    """The loop closes: OpenVINO gains everywhere but on one device, which the first model cannot know."""
    known = made_records()
    large = made_records(devices=[("cpu:odd/4c", 4.0)], models=16, odd=True)
    asked = [record for record in large if record.graph["ln_macs"] > 18][:: len(STRATEGIES)]
    new = [record for record in large if record.structure not in {each.structure for each in asked[:2]}]
    before, after = train(known, now=NOW), train([*known, *new[-20:]], now=NOW)
    for record in asked[:2]:
        truth = gains(record.graph["ln_macs"], record.profile["cores"], odd=True)
        assert truth[first_choice(before, record)] < 0
        assert first_choice(after, record) == int(np.argmax(truth))


def test_learn_train_puts_a_model_in_use_and_says_why(tmp_path) -> None:
    RecordStore(tmp_path).add(made_records())
    command = ["learn", "train", "--json", "--cache-dir", str(tmp_path)]
    first = CliRunner().invoke(application, command)
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout)["kept"]
    assert model_in_use(tmp_path) is not None
    second = json.loads(CliRunner().invoke(application, command).stdout)
    assert second["contest"]["cases"] > 0 and "held-out" in second["contest"]["reason"]
    (own_folder(tmp_path) / CARD).write_text("{")
    assert CliRunner().invoke(application, command).exit_code == 0  # what cannot be read is passed over


def test_learn_train_without_records_says_what_to_do(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("ort_metainfer.learning.find_db.shipped_records", list)
    result = CliRunner().invoke(application, ["learn", "train", "--cache-dir", str(tmp_path)])
    assert result.exit_code == 1 and "tune more models" in result.output
