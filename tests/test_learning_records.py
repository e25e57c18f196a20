"""From trial to record: the figures that count, none of the model's names, and one for each trial of every path."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from ort_metainfer.adapt import Request, decide, settings_for
from ort_metainfer.decision import Decision, Trial
from ort_metainfer.learning.names import Names, failure_kind
from ort_metainfer.learning.record import SCHEMA, Record
from ort_metainfer.learning.record_store import RecordStore
from ort_metainfer.learning.recording import keep_trials
from ort_metainfer.learning.recording_bench import bench_trial, keep_bench
from ort_metainfer.learning.records import OVERRIDE_WEIGHT, device_of, machine_text, record_of
from ort_metainfer.model.work import NodeWork
from ort_metainfer.places import cache_directory
from ort_metainfer.problem import HardwareState, Problem, SessionSpec, TensorSpec
from ort_metainfer.settings import Settings
from ort_metainfer.strategy import Strategy, Transform
from ort_metainfer.trials.fake import FAKE_GRAPH, FakeTrialHost, Scripted
from ort_metainfer.trials.ledger import NO_TIME
from tests.learning_cases import ONE_THREAD, STRUCTURE, failed, known_problem, override, record
from tests.made_problems import CUDA_GPU, OPENVINO, OPENVINO_CPU, timing, trial

SECRET = "secret"
SECRET_INPUTS = (
    TensorSpec("secret_patient_scan", "float32", ("secret_batch", 3, 224, "secret_width")),
    TensorSpec("secret_mask", "int64", (1, None)),
)


def secret_problem() -> Problem:
    """A problem every name of which could tell what the model is for."""
    made = known_problem(inputs=SECRET_INPUTS, shapes={"secret_patient_scan": (2, 3, 224, 64)}, others=(OPENVINO_CPU,))
    work = (
        NodeWork("secret_conv", "Conv", "float32", (2, 8, 224, 64), reads={"secret_patient_scan": 9}, writes={"s": 9}),
    )
    outputs = (TensorSpec("secret_diagnosis", "float32", None),)
    graph = replace(made.graph, outputs=outputs, external_files=("secret_weights.bin",))
    return replace(made, work=work, graph=graph, model=replace(made.model, path="/home/me/secret_model.onnx"))


def secret_trial() -> Trial:
    """A trial with a name wherever one may stand."""
    strategy = Strategy(
        transforms=(
            Transform(
                "int8-static", 1, {"exclude": ["secret_conv", "secret_other"], "scheme": "u8s8", "percentile": 9.5}
            ),
            Transform("fixed-shapes", 1, {"shapes": {"secret_patient_scan": "2,3,224,64"}}),
            Transform("somebody-elses", 1, {"table": {"secret_conv": 2}, "note": "secret_conv", "float": "/secret/x"}),
            Transform("float16", 1, {"block": ["Conv", "Relu"]}),
        ),
        provider=OPENVINO,
        provider_options={"CACHE_DIR": "/home/me/secret", "RESHAPE": "secret_mask[1,8]", "NUM_STREAMS": "2"},
        session_config={"session.made": "secret_batch", "session.intra_op.allow_spinning": "0"},
        static_shapes={"secret_batch": 2, "secret_width": 64},
    )
    failure = "opening: Non-zero status code while running Conv node. Name:'secret_conv' in /home/me/secret_model.onnx"
    return Trial(
        strategy, "rules", failure=failure, flags=("race: secret_conv was slow", "race: 2 of 9 rounds set aside")
    )


def test_nothing_that_a_model_was_called_is_in_a_record() -> None:
    made = record_of(secret_problem(), secret_trial(), "session")
    text = json.dumps(made.as_dict())
    assert SECRET not in text.lower() and "/home" not in text
    assert made.shapes == "float32[2,3,224,64] int64[1,?]"
    assert made.failure == "crashed" and made.flags == ("left out", "race: 2 of 9 rounds set aside")


def test_what_tells_no_name_stays() -> None:
    strategy = record_of(secret_problem(), secret_trial(), "session").strategy
    static, fixed, other, half = (dict(transform.parameters) for transform in strategy.transforms)
    assert static == {"exclude": ["2 left out"], "scheme": "u8s8", "percentile": 9.5}
    assert fixed == {"shapes": {"input0": "2,3,224,64"}}
    assert other == {"table": {"1 left out": 0}, "note": "left out", "float": "left out"}
    assert half == {"block": ["Conv", "Relu"]}
    assert strategy.provider_options["NUM_STREAMS"] == "2"
    assert strategy.session_config["session.intra_op.allow_spinning"] == "0"
    assert dict(strategy.static_shapes) == {"dim0": 2, "dim1": 64}


def test_open_dimensions_keep_their_places_without_their_names() -> None:
    made = replace(secret_problem(), shapes={})
    assert record_of(made, secret_trial(), "session").shapes == "float32[dim0,3,224,dim1] int64[1,?]"


def test_another_models_names_are_put_in_by_position_and_the_rest_is_not_set() -> None:
    kept = record_of(secret_problem(), secret_trial(), "session").strategy
    inputs = (TensorSpec("image", "float32", ("n", 3, 224, "w")), TensorSpec("mask", "int64", (1, None)))
    there = Names(replace(secret_problem().graph, inputs=inputs)).into(kept)
    static, fixed, other, _ = (dict(transform.parameters) for transform in there.transforms)
    assert static == {"scheme": "u8s8", "percentile": 9.5} and other == {}
    assert fixed == {"shapes": {"image": "2,3,224,64"}}
    assert dict(there.static_shapes) == {"n": 2, "w": 64}
    assert dict(there.provider_options) == {"NUM_STREAMS": "2"}
    fewer = Names(replace(secret_problem().graph, inputs=inputs[1:])).into(kept)
    assert dict(fewer.static_shapes) == {}


def test_a_number_is_no_name_even_where_a_tensor_is_called_so() -> None:
    graph = replace(known_problem().graph, inputs=(TensorSpec("0", "float32", (1,)),))
    assert Names(graph).text("0") == "0" and Names(graph).text("0.5") == "0.5"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (NO_TIME, "no time"),
        ("opening: its process took 900 MB, 800 MB are allowed; killed", "took too much memory"),
        ("timing did not end within 3.0 s; killed", "hung"),
        ("the default session failed in the trial process: x", "the default session failed"),
        ("in the confirming duel, outputs differ", "refuted in the duel"),
        ("opening: signal 6", "crashed"),
        (None, None),
    ],
)
def test_a_failure_is_told_by_its_kind(words: str | None, kind: str | None) -> None:
    assert failure_kind(words) == kind


def test_the_duels_figures_count_before_the_races_as_logarithms() -> None:
    state = HardwareState(when=1_700_000_000.0, window_s=1.0, others_cpu=0.3)
    tried = replace(
        trial(ONE_THREAD, 1.1), duel=timing(1.5), before=state, after=replace(state, others_cpu=0.1), error=1e-7
    )
    made = record_of(known_problem(), tried, "tune", versions={"onnxruntime": "1.32.0"})
    assert made.log_ratio == pytest.approx(math.log(1.5)) and made.band == pytest.approx(math.log(1.01))
    assert made.log_ratio_low == pytest.approx(math.log(1.5 * 0.99)) and made.rounds == 9
    assert made.p50_ms == pytest.approx(10 / 1.5) and made.baseline_p90_ms == 11
    assert made.others_cpu == 0.3 and made.measured_at == "2023-11-14T22:13:20+00:00"
    assert made.gates == {"compiles": True, "accurate": True} and made.is_verdict
    assert (made.structure, made.path, made.by, made.schema) == (STRUCTURE, "tune", "rules", SCHEMA)
    assert made.error == 1e-7 and made.versions == {"onnxruntime": "1.32.0"}


def test_what_was_not_accurate_crashed_or_is_of_another_schema_is_no_verdict() -> None:
    assert not record_of(known_problem(), trial(ONE_THREAD, failed="accurate"), "tune").is_verdict
    assert not record_of(known_problem(), trial(ONE_THREAD, failed="crash"), "tune").is_verdict
    assert not record(schema=SCHEMA + 1).is_verdict
    assert record().is_verdict


def test_the_device_is_that_of_the_strategy_the_machine_that_of_the_key() -> None:
    about = known_problem(others=(OPENVINO_CPU, CUDA_GPU))
    made = record_of(about, trial(Strategy(provider="CUDAExecutionProvider"), 2.0), "tune")
    assert (made.kind, made.provider) == ("gpu", "CUDAExecutionProvider")
    assert made.device == machine_text(about) == "cpu:a cpu/4c+gpu:a gpu"
    assert made.profile["kind/gpu"] == 1
    assert device_of(about, Strategy(provider=OPENVINO)) == OPENVINO_CPU
    assert device_of(about, Strategy(provider="QNNExecutionProvider")) == about.cpu  # offers none here
    assert record_of(about, trial(ONE_THREAD, 2.0), "tune", device="cpu:key").device == "cpu:key"


def test_json_and_back_is_the_same_record() -> None:
    for made in (record(), record_of(secret_problem(), secret_trial(), "x"), override(ONE_THREAD, Strategy())):
        back = Record.from_dict(json.loads(json.dumps(made.as_dict())))
        assert back == made and back.identity == made.identity
    plain = {**record().as_dict(), "from a later release": 1}
    assert Record.from_dict(plain) == record()


def test_path_and_weight_are_no_part_of_the_identity_but_figures_are() -> None:
    assert record(path="import", weight=3.0).identity == record().identity
    assert record(speedup=1.6).identity != record().identity
    assert record(measured_at="2025-01-01").identity != record().identity
    once, again = override(ONE_THREAD, Strategy()), override(ONE_THREAD, Strategy(), at="2025-02-02")
    assert replace(once, measured_at="2030-01-01").identity == once.identity  # met at another start
    assert again.identity != once.identity and once.weight == OVERRIDE_WEIGHT


# every path


BIG_GRAPH = replace(FAKE_GRAPH, operators={"MatMul": 20, "Relu": 20}, node_count=40, macs=10**9, structure=STRUCTURE)


def script(strategy: Strategy) -> Scripted:
    return Scripted(speedup=1.5) if "graph_optimization_level" in strategy.session_options else Scripted()


def host() -> FakeTrialHost:
    return FakeTrialHost(script, graph=BIG_GRAPH)


def ask(model: Path, path: str = "session", **settings: Any) -> Decision:
    resolved, problems = settings_for(Settings(**settings))
    assert not problems
    return decide(Request(str(model), SessionSpec(), resolved, path=path), host())


def kept() -> list[Record]:
    return RecordStore(cache_directory(settings_for(None)[0])).read()


def test_each_trial_of_a_decision_is_a_record(tiny_model: Callable[..., Path]) -> None:
    decision = ask(tiny_model("MatMul"))
    found = kept()
    assert len(found) == len(decision.trials) > 3
    assert {made.path for made in found} == {"session"}
    assert {made.by for made in found} == {trial.by for trial in decision.trials}
    assert decision.key is not None and decision.manifest is not None
    for made in found:
        assert (made.model, made.structure, made.device) == (decision.key.model, STRUCTURE, decision.key.device)
        assert made.versions == decision.manifest.versions
    winner = next(made for made in found if made.strategy == decision.strategy)
    assert winner.log_ratio == pytest.approx(math.log(1.5)) and winner.gates == dict.fromkeys(
        ("compiles", "accurate", "pays"), True
    )


def test_a_cached_start_records_nothing_more(tiny_model: Callable[..., Path]) -> None:
    model = tiny_model("MatMul")
    ask(model)
    count = len(kept())
    assert ask(model).cache == "hit"
    assert len(kept()) == count


@pytest.mark.parametrize("path", ["tune", "bench", "prewarm"])
def test_the_path_says_what_asked(path: str, tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from ort_metainfer import adapt

    seen: list[str] = []
    real = adapt.decide

    def watched(request: Request, _: Any = None) -> Decision:
        seen.append(request.path)
        return real(request, host())

    monkeypatch.setattr(adapt, "decide", watched)
    adapt.tune(tiny_model("MatMul"), **({} if path == "tune" else {"record_as": path}))
    assert seen == [path] and {made.path for made in kept()} == {path}


def test_the_prewarm_script_and_bench_say_so(tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import runpy

    import ort_metainfer
    from ort_metainfer import adapt
    from ort_metainfer.cli import bench

    seen: list[str] = []

    def noted(*_: Any, record_as: str = "tune", **__: Any) -> Decision:
        seen.append(record_as)
        raise ValueError("not here")

    monkeypatch.setattr(adapt, "tune", noted)
    monkeypatch.setitem(vars(ort_metainfer), "tune", noted)  # setattr would find, and leave, the one just put there
    model = tiny_model("MatMul")
    script = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "prewarm.py"), run_name="prewarm")
    assert script["main"]([str(model)]) == 1
    with pytest.raises(ValueError, match="not here"):
        bench.measure(model, Settings(), 5, 1.0, lambda _: None)
    assert seen == ["prewarm", "bench"]


def test_with_records_off_nothing_is_kept(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    decision = ask(tiny_model("MatMul"), records=False)
    assert decision.trials and not (tmp_path / "cache" / "records.sqlite").exists()


def test_what_there_was_no_time_for_and_what_was_simulated_is_no_record(tmp_path: Path) -> None:
    trials = [failed(ONE_THREAD, NO_TIME), replace(trial(ONE_THREAD, 2.0), simulated=True)]
    assert keep_trials(tmp_path, known_problem(), trials, "tune", Decision(Strategy(), "default", "")) == 0
    assert keep_trials(tmp_path, None, [trial(ONE_THREAD, 2.0)], "tune", Decision(Strategy(), "default", "")) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_written_costs_no_decision(
    tiny_model: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache" / "records.sqlite").mkdir(parents=True)  # nothing can be opened there
    caplog.set_level("DEBUG", "ort_metainfer.learning")
    decision = ask(tiny_model("MatMul"), log="debug")
    assert decision.winner is not None
    told = [entry for entry in caplog.records if "records" in entry.message]
    assert {entry.levelname for entry in told} == {"DEBUG"}
    assert sum("cannot write records" in entry.message for entry in told) == 1


# what people change


def edited(decision: Decision, text: str) -> None:
    assert decision.strategy_file is not None
    Path(decision.strategy_file).write_text(text, encoding="utf-8")


def test_a_strategy_file_that_was_edited_is_an_override_recorded_once(tiny_model: Callable[..., Path]) -> None:
    model = tiny_model("MatMul")
    decision = ask(model)
    edited(decision, "[strategy.session_options]\nintra_op_num_threads = 1\n")
    for _ in range(3):
        assert ask(model).origin == "override"
    (made,) = (made for made in kept() if made.replaced is not None)
    assert made.strategy == ONE_THREAD and made.replaced == decision.strategy and made.path == made.by == "override"
    assert decision.manifest is not None and made.replaced_at == decision.manifest.decided_at
    assert made.weight == OVERRIDE_WEIGHT and made.structure == STRUCTURE and not made.is_verdict


def test_the_setting_strategy_is_one_too_where_the_model_is_known(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    model, file = tiny_model("MatMul"), tmp_path / "mine.toml"
    file.write_text(ONE_THREAD.to_toml(), encoding="utf-8")
    ask(model, strategy=file)
    assert kept() == []  # nothing was decided that it could replace
    decision = ask(model)
    ask(model, strategy=file)
    (made,) = (made for made in kept() if made.replaced is not None)
    assert (made.strategy, made.replaced) == (ONE_THREAD, decision.strategy)


def test_with_records_off_no_override_is_kept(tiny_model: Callable[..., Path]) -> None:
    model = tiny_model("MatMul")
    edited(ask(model, records=False), "[strategy.session_options]\nintra_op_num_threads = 1\n")
    assert ask(model, records=False).origin == "override" and kept() == []


# bench


def bench_document(**more: Any) -> dict[str, Any]:
    quiet = {"when": 1.7e9, "window_s": 1.0, "others_cpu": 0.0}
    busy = {**quiet, "others_cpu": 0.4}
    return {
        "timing": asdict(timing(1.4)),
        "mismatch": None,
        "error": 1e-6,
        "creation_ms": {"plain": [1.0, 2.0, 3.0], "tuned": [4.0, 5.0, 6.0]},
        "processes": [{"before": quiet, "after": busy}, {"before": quiet, "after": quiet}],
        **more,
    }


def test_what_bench_measured_is_a_record(tiny_model: Callable[..., Path]) -> None:
    model = tiny_model("MatMul")
    decision = ask(model)
    assert keep_bench(model, Settings(), decision, bench_document())
    made = kept()[-1]
    assert (made.path, made.strategy, made.rounds) == ("bench", decision.strategy, 9)
    assert made.log_ratio == pytest.approx(math.log(1.4)) and made.creation_ms == 5.0 and made.others_cpu == 0.4
    assert made.is_verdict and made.structure == STRUCTURE


def test_bench_takes_the_graphs_features_from_the_decision_which_looked_at_its_nodes(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    model = tiny_model("MatMul")
    decision = ask(model)
    store = RecordStore(tmp_path / "cache")
    rich = replace(store.read()[0], graph={**store.read()[0].graph, "ln_macs": 1.0, "ln_depth": 2.0}, rounds=99)
    store.add([rich])
    keep_bench(model, Settings(), decision, bench_document())
    assert kept()[-1].path == "bench" and kept()[-1].graph == rich.graph


def test_a_bench_of_an_override_says_what_it_is_worth(tiny_model: Callable[..., Path]) -> None:
    model = tiny_model("MatMul")
    first = ask(model)
    edited(first, "[strategy.session_options]\nintra_op_num_threads = 1\n")
    assert keep_bench(model, Settings(), ask(model), bench_document())
    made = kept()[-1]
    assert (made.path, made.strategy, made.replaced) == ("override", ONE_THREAD, first.strategy)
    assert made.is_verdict and made.weight == OVERRIDE_WEIGHT


def test_a_bench_of_plain_onnxruntime_or_with_records_off_is_no_record(tiny_model: Callable[..., Path]) -> None:
    decision = ask(tiny_model("MatMul"), records=False)
    assert not keep_bench(tiny_model("MatMul"), Settings(records=False), decision, bench_document())
    assert bench_trial(Decision(Strategy(), "default", ""), bench_document()) is None
    assert bench_trial(decision, bench_document(timing=None)) is None
    wrong = bench_trial(decision, bench_document(mismatch="another shape"))
    assert wrong is not None and [gate.passed for gate in wrong.gates] == [True, False]
