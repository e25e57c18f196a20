"""The story of a decision, told with a trial host that follows a script: what is asked, tried, kept, found again."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ort_metainfer
from ort_metainfer import adapt
from ort_metainfer.adapt import Request, decide, policy_of, settings_for
from ort_metainfer.cli.report import trial_lines
from ort_metainfer.decision import Decision
from ort_metainfer.errors import CacheError, InputsError, StrategyError, TrialCrashed, TrialTimeout
from ort_metainfer.failures import EXPIRY_S
from ort_metainfer.hardware.devices import cpu_device
from ort_metainfer.problem import HardwareState, SessionSpec
from ort_metainfer.settings import Settings
from ort_metainfer.strategy import Strategy
from ort_metainfer.strategy_cache.lock import deciding
from ort_metainfer.strategy_cache.store import open_cache
from ort_metainfer.trials.fake import FAKE_GRAPH, FakeTrialHost, Scripted
from ort_metainfer.trials.task import Feeds

QUIET = HardwareState(when=0.0, window_s=0.2, others_cpu=0.0, steal=0.0)
BUSY = replace(QUIET, others_cpu=1.5)
BIG_GRAPH = replace(FAKE_GRAPH, operators={"MatMul": 20, "Relu": 20}, node_count=40, macs=10**9)


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ort_metainfer.hardware.state.observe", lambda *_: QUIET)


def ask(model: Path, host: FakeTrialHost | None = None, **settings: Any) -> Decision:
    resolved, problems = settings_for(Settings(**settings))
    assert not problems
    return decide(Request(str(model), SessionSpec(), resolved), host)


def favour(option: str, speedup: float = 1.5, **outcome: Any) -> Callable[[Strategy], Scripted]:
    """A script in which every strategy that sets ``option`` is faster and all others change nothing."""

    def script(strategy: Strategy) -> Scripted:
        has = option in strategy.session_options or option in strategy.session_config
        return Scripted(speedup=speedup, **outcome) if has else Scripted()

    return script


def test_a_winner_is_adopted_remembered_and_found_again_without_a_trial(tiny_model: Callable[..., Path]) -> None:
    model = tiny_model("MatMul")
    host = FakeTrialHost(favour("graph_optimization_level"), graph=BIG_GRAPH)
    first = ask(model, host)
    assert first.origin in ("rules", "search")
    assert "graph_optimization_level" in first.strategy.session_options
    assert first.cache == "miss"
    assert first.winner is not None and first.winner.passed
    assert first.strategy_file is not None and Strategy.read(first.strategy_file) == first.strategy

    second = ask(model, untouched := FakeTrialHost())
    assert (second.cache, second.origin, second.strategy) == ("hit", "cache", first.strategy)
    assert untouched.calls == []


def test_that_the_default_won_is_remembered_too(tiny_model: Callable[..., Path]) -> None:
    model = tiny_model("MatMul")
    first = ask(model, FakeTrialHost(graph=BIG_GRAPH))
    assert first.strategy.is_default and first.origin == "default"
    assert "none of" in first.reason
    assert ask(model).cache == "hit"


def test_what_the_duel_does_not_confirm_is_not_adopted(tiny_model: Callable[..., Path]) -> None:
    host = FakeTrialHost(favour("graph_optimization_level", duel_speedup=0.99), graph=BIG_GRAPH)
    decision = ask(tiny_model("MatMul"), host)
    assert decision.strategy.is_default
    assert host.dueled


def test_a_candidate_that_is_wrong_is_not_adopted_however_fast(tiny_model: Callable[..., Path]) -> None:
    host = FakeTrialHost(favour("graph_optimization_level", speedup=9.0, error=1e-3), graph=BIG_GRAPH)
    decision = ask(tiny_model("MatMul"), host)
    assert decision.strategy.is_default
    wrong = [t for t in decision.trials if "graph_optimization_level" in t.strategy.session_options]
    assert wrong and all(not trial.passed and "1.0e-03" in trial.verdict for trial in wrong)


def test_what_was_never_timed_is_not_called_the_best(tiny_model: Callable[..., Path]) -> None:
    wrong = ask(tiny_model("MatMul"), FakeTrialHost(lambda _: Scripted(error=1.0), graph=BIG_GRAPH))
    assert "the best was" not in wrong.reason and "; for instance " in wrong.reason
    slow = ask(tiny_model("Conv"), FakeTrialHost(lambda _: Scripted(speedup=0.9), graph=BIG_GRAPH))
    assert "; the best was " in slow.reason


def test_other_versions_make_an_entry_stale_and_its_strategy_is_tried_first(tiny_model: Callable[..., Path]) -> None:
    model = tiny_model("MatMul")
    first = ask(model, FakeTrialHost(favour("graph_optimization_level"), graph=BIG_GRAPH))
    cache = open_cache(adapt.cache_directory(settings_for(None)[0]))
    entry = cache.get("entries", str(first.key))
    assert entry is not None
    entry["manifest"]["versions"]["onnxruntime"] = "1.0.0"
    assert cache.put("entries", str(first.key), entry)

    again = ask(model, host := FakeTrialHost(favour("graph_optimization_level"), graph=BIG_GRAPH))
    assert again.cache == "stale" and "onnxruntime was 1.0.0" in again.cache_reason
    assert host.raced[0] == first.strategy
    assert ask(model).cache == "hit"


def test_a_provider_that_was_upgraded_makes_a_default_that_won_stale(
    tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("MatMul")
    ask(model, FakeTrialHost(graph=BIG_GRAPH))
    assert ask(model).cache == "hit"
    monkeypatch.setattr("ort_metainfer.providers.cpu.CpuProvider.versions", lambda self: {"a package": "2"})
    again = ask(model, host := FakeTrialHost(graph=BIG_GRAPH))
    assert again.cache == "stale" and "a package was" in again.cache_reason and "race" in host.calls


def test_cached_mode_only_looks_up(tiny_model: Callable[..., Path]) -> None:
    host = FakeTrialHost()
    decision = ask(tiny_model(), host, mode="cached")
    assert decision.strategy.is_default and decision.cache == "miss" and host.calls == []
    assert "never decided" in decision.reason


def test_a_miss_names_the_part_of_the_key_that_is_new(tiny_model: Callable[..., Path]) -> None:
    model = tiny_model("MatMul", batch="N")
    ask(model, FakeTrialHost())
    decision = ask(model, mode="cached", objective="pipeline")
    assert decision.cache_reason.startswith("policy is 'strict|pipeline|")
    assert "device" not in decision.cache_reason


def test_a_provider_that_takes_its_process_down_leaves_the_cpu(
    tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise TrialCrashed("asking a provider for its devices: it died of signal 11")

    monkeypatch.setattr(host := FakeTrialHost(favour("graph_optimization_level"), graph=BIG_GRAPH), "devices", crash)
    decision = ask(tiny_model("MatMul"), host)
    assert "graph_optimization_level" in decision.strategy.session_options
    assert any("signal 11" in refusal.reason for refusal in decision.refusals)


def test_of_several_providers_only_the_one_that_takes_its_process_down_is_refused(
    tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(setup: Any, names: Sequence[str], deadline: float) -> Any:
        if "cpu_ep" in names:
            raise TrialCrashed("it died of signal 6")
        return [cpu_device()], [(name, "no such device") for name in names[1:]]

    monkeypatch.setattr(host := FakeTrialHost(graph=BIG_GRAPH), "devices", answer)
    names = ("CPUExecutionProvider", "cpu_ep", "ggml")
    allowed = replace(policy_of(settings_for(None)[0], SessionSpec()), providers=names)
    monkeypatch.setattr(adapt, "policy_of", lambda settings, spec: allowed)
    told = {refusal.subject: refusal.reason for refusal in ask(tiny_model("MatMul"), host).refusals}
    assert told["cpu_ep"] == "it died of signal 6; it is not used"
    assert told["ggml"] == "no such device"


def test_a_provider_that_is_named_and_cannot_be_used_is_a_refusal_that_says_why(
    tiny_model: Callable[..., Path],
) -> None:
    decision = ask(tiny_model("MatMul"), FakeTrialHost(graph=BIG_GRAPH), providers=("CPU", "ROCM", "Azure"))
    told = {refusal.subject: refusal.reason for refusal in decision.refusals}
    assert "use MIGraphX instead" in told["ROCMExecutionProvider"]
    assert "no adapter knows it" in told["AzureExecutionProvider"]
    assert "CPUExecutionProvider" not in told


def test_an_edited_strategy_file_wins_over_the_entry(tiny_model: Callable[..., Path]) -> None:
    model = tiny_model("MatMul")
    first = ask(model, FakeTrialHost(graph=BIG_GRAPH))
    assert first.strategy_file is not None
    file = Path(first.strategy_file)
    file.write_text(file.read_text() + "\n[override.session_options]\nintra_op_num_threads = 1\n")
    second = ask(model)
    assert second.origin == "override" and second.strategy.session_options == {"intra_op_num_threads": 1}
    file.write_text("[strategy]\nnonsense = 1\n")
    with pytest.raises(StrategyError, match="nonsense"):
        ask(model)


def test_an_edited_strategy_file_wins_where_the_database_is_lost(tiny_model: Callable[..., Path]) -> None:
    model = tiny_model("MatMul")
    first = ask(model, FakeTrialHost(graph=BIG_GRAPH))
    assert first.strategy_file is not None
    file = Path(first.strategy_file)
    file.write_text(file.read_text() + "\n[override.session_options]\nintra_op_num_threads = 1\n")
    (file.parents[1] / "strategies.sqlite").unlink()
    again = ask(model, host := FakeTrialHost(graph=BIG_GRAPH))
    assert again.origin == "override" and again.strategy.session_options == {"intra_op_num_threads": 1}
    assert host.calls == ["describe"] and not file.with_suffix(".new.toml").exists()


def test_where_nothing_may_be_decided_what_was_verified_in_less_time_is_used(tiny_model: Callable[..., Path]) -> None:
    model = tiny_model("MatMul")
    first = ask(model, FakeTrialHost(favour("graph_optimization_level"), graph=BIG_GRAPH), budget_s=5)
    cache = open_cache(adapt.cache_directory(settings_for(None)[0]))
    entry = cache.get("entries", str(first.key))
    assert entry is not None and not first.strategy.is_default
    cut = entry | {"complete": False, "incomplete_reason": "no time was left for 1 of 6 strategies"}
    assert cache.put("entries", str(first.key), cut)
    found = ask(model, mode="cached", budget_s=50)
    assert (found.cache, found.strategy) == ("hit", first.strategy)
    assert ask(model, FakeTrialHost(graph=BIG_GRAPH), budget_s=50).cache == "stale"


def test_a_lossy_decision_made_without_inputs_is_made_anew_with_them(tiny_model: Callable[..., Path]) -> None:
    model = tiny_model("MatMul")
    ask(model, FakeTrialHost(graph=BIG_GRAPH), accuracy="fast")
    real = Feeds(1, True, "given", {"x": (1, 8)})
    inputs = {"x": np.zeros((1, 4), np.float32)}
    again = ask(model, host := FakeTrialHost(graph=BIG_GRAPH, feeds=real), accuracy="fast", inputs=inputs)
    assert again.cache == "stale" and "without real inputs" in again.cache_reason and "race" in host.calls
    assert ask(model, accuracy="fast").cache == "hit"
    assert ask(model, accuracy="fast", inputs=inputs).cache == "hit"


def test_scheduling_that_won_on_a_busy_machine_is_left_alone_and_marked(tiny_model: Callable[..., Path]) -> None:
    host = FakeTrialHost(favour("intra_op_num_threads", before=QUIET, after=BUSY), graph=replace(BIG_GRAPH, macs=1000))
    decision = ask(tiny_model("MatMul"), host)
    assert any("intra_op_num_threads" in strategy.session_options for strategy in host.dueled)
    assert decision.strategy.is_default and not decision.complete
    assert "machine busy" in decision.incomplete_reason


def one_thread(**outcome: Any) -> FakeTrialHost:
    """A host on which one thread is the fastest by far."""
    return FakeTrialHost(favour("intra_op_num_threads", **outcome), graph=replace(BIG_GRAPH, macs=1000))


UNTOLD = HardwareState(when=0.0, window_s=0.2)


@pytest.mark.parametrize("after", [None, UNTOLD])
def test_a_load_that_could_have_been_told_and_was_not_is_not_taken_for_none(
    after: HardwareState | None, tiny_model: Callable[..., Path]
) -> None:
    decision = ask(tiny_model("MatMul"), host := one_thread(after=after))
    assert any("intra_op_num_threads" in strategy.session_options for strategy in host.dueled)
    assert decision.strategy.is_default and not decision.complete
    assert "load not known" in decision.incomplete_reason


def test_where_no_load_is_ever_told_the_duel_decides_and_the_record_says_so_once(
    tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows and macOS: otherwise nothing that depends on load could ever be adopted there."""
    monkeypatch.setattr("ort_metainfer.hardware.state.observe", lambda *_: UNTOLD)
    decision = ask(tiny_model("MatMul"), one_thread(before=UNTOLD, after=UNTOLD))
    assert decision.winner is not None and "intra_op_num_threads" in decision.strategy.session_options
    assert [flag for trial in decision.trials for flag in trial.flags if "does not tell" in flag] == list(
        decision.winner.flags
    )
    assert decision.complete


@pytest.mark.parametrize(("option", "adopted"), [("intra_op_num_threads", False), ("graph_optimization_level", True)])
def test_a_machine_that_was_never_steady_keeps_scheduling_out_and_nothing_else(
    option: str, adopted: bool, tiny_model: Callable[..., Path]
) -> None:
    graph = replace(BIG_GRAPH, macs=1000) if option.startswith("intra") else BIG_GRAPH
    decision = ask(tiny_model("MatMul"), FakeTrialHost(favour(option, is_steady=False), graph=graph))
    assert (option in decision.strategy.session_options) == adopted
    assert decision.complete == adopted
    assert adopted or "machine not steady" in decision.incomplete_reason


def test_what_speaks_against_figures_is_kept_and_explained(tiny_model: Callable[..., Path]) -> None:
    flag = "duel: 2 of 14 rounds set aside, since the clock went from 3000 to 2500 MHz"
    host = FakeTrialHost(favour("graph_optimization_level", flags=(flag,)), graph=BIG_GRAPH)
    plain = json.loads(json.dumps(ask(tiny_model("MatMul"), host).as_dict()))
    assert f"    note      {flag}" in list(trial_lines(plain))
    for trial in plain["trials"]:
        del trial["flags"]  # as an older version kept it
    assert not any("note" in line for line in trial_lines(plain))


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"feeds": InputsError("input 'x' is a sequence, which cannot be made up")}, "give inputs="),
        ({"graph": replace(BIG_GRAPH, blockers=("EPContext",))}, "compiled"),
    ],
)
def test_what_cannot_be_tried_is_found_out_once(
    told: dict[str, Any], reason: str, tiny_model: Callable[..., Path]
) -> None:
    model = tiny_model("MatMul")
    first = ask(model, FakeTrialHost(**told))
    assert first.origin == "pass-through" and reason in first.reason
    again = ask(model, host := FakeTrialHost(**told))
    assert again.cache == "hit" and reason in again.reason and host.calls == []
    real = FakeTrialHost(graph=BIG_GRAPH, feeds=Feeds(1, True, "given", {"x": (1, 8)}))
    assert ask(model, real, inputs={"x": np.zeros((1, 4), np.float32)}).cache == "stale"


def test_a_failure_is_met_once_a_day_and_again_where_asked_for(
    tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, crash = tiny_model("MatMul"), TrialCrashed("reading the model: it died of signal 11")
    with pytest.raises(TrialCrashed):
        ask(model, FakeTrialHost(graph=crash), budget_s=5)
    again = ask(model, host := FakeTrialHost(graph=BIG_GRAPH), budget_s=5)
    assert again.origin == "pass-through" and "signal 11" in again.reason and host.calls == []
    assert ask(model, FakeTrialHost(graph=BIG_GRAPH), budget_s=5, objective="pipeline").origin == "default"
    with pytest.raises(TrialCrashed):
        ask(model, FakeTrialHost(feeds=crash), budget_s=5, strict=True)
    now = time.time()
    monkeypatch.setattr("ort_metainfer.failures.time.time", lambda: now + EXPIRY_S + 1)
    assert ask(model, FakeTrialHost(graph=BIG_GRAPH), budget_s=5).origin == "default"


def test_a_model_that_cannot_be_read_in_time_is_tried_again_with_more(tiny_model: Callable[..., Path]) -> None:
    model, slow = tiny_model("MatMul"), TrialTimeout("reading the model did not end within 4 s; killed")
    assert "within 4 s" in ask(model, FakeTrialHost(graph=slow), budget_s=5).reason
    assert "within 4 s" in ask(model, host := FakeTrialHost(graph=BIG_GRAPH), budget_s=5).reason and host.calls == []
    assert ask(model, FakeTrialHost(graph=BIG_GRAPH), budget_s=50).complete


def test_what_there_was_no_time_for_is_marked(tiny_model: Callable[..., Path]) -> None:
    def late(strategy: Strategy) -> Scripted:
        return Scripted(failure="no time left")

    decision = ask(tiny_model("MatMul"), FakeTrialHost(late, graph=BIG_GRAPH))
    assert not decision.complete and "no time" in decision.incomplete_reason
    assert "could be tried" in decision.reason


def test_a_model_too_slow_for_the_budget_is_said_remembered_and_decided_with_a_larger_one(
    tiny_model: Callable[..., Path],
) -> None:
    model = tiny_model("MatMul")
    slow: Any = TrialTimeout("running the model did not end within 0.4 s; killed")
    first = ask(model, FakeTrialHost(graph=BIG_GRAPH, feeds=slow), budget_s=2)
    assert first.strategy.is_default and not first.complete
    assert "did not end within 0.4 s" in first.reason and "budget_s above 2" in first.reason
    assert ask(model, budget_s=2).cache == "hit"
    again = ask(model, FakeTrialHost(favour("graph_optimization_level"), graph=BIG_GRAPH), budget_s=20)
    assert again.cache == "stale" and "20 s are allowed now" in again.cache_reason
    assert again.complete and not again.strategy.is_default
    assert ask(model, budget_s=2).cache == "hit"


def test_while_another_process_decides_the_session_is_plain(tiny_model: Callable[..., Path]) -> None:
    model = tiny_model("MatMul")
    settings, _ = settings_for(None)
    from ort_metainfer.model.fingerprint import fingerprint

    key = f"{fingerprint(str(model), None).hash} {policy_of(settings, SessionSpec())}"
    with deciding(adapt.cache_directory(settings), key, 1.0) as mine:
        assert mine
        decision = ask(model, host := FakeTrialHost(), budget_s=0.05)
    assert decision.strategy.is_default and not decision.complete and host.calls == []
    assert "another process" in decision.reason


def test_the_callers_providers_limit_those_allowed() -> None:
    settings, _ = settings_for(Settings(providers=("OpenVINOExecutionProvider", "CPUExecutionProvider")))
    only_cpu = policy_of(settings, SessionSpec(providers=(("CPUExecutionProvider", {}),)))
    assert only_cpu.providers == ("CPUExecutionProvider",)
    pinned = policy_of(settings, SessionSpec(properties={"intra_op_num_threads": 2, "logid": "mine"}))
    assert dict(pinned.pinned) == {"intra_op_num_threads": "2"}


@pytest.mark.parametrize(("text", "pinned"), [("3", {"intra_op_num_threads": "3"}), ("0", {}), ("", {})])
def test_threads_that_onnxruntimes_own_variable_sets_are_the_callers_word(
    text: str, pinned: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORT_INTRA_OP_NUM_THREADS", text)
    settings, _ = settings_for(None)
    assert dict(policy_of(settings, SessionSpec()).pinned) == pinned
    in_program = policy_of(settings, SessionSpec(properties={"intra_op_num_threads": 2}))
    assert dict(in_program.pinned) == {"intra_op_num_threads": "2"}


def test_where_nothing_can_be_remembered_nothing_is_decided_and_one_warning_says_so(
    tiny_model: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    elsewhere, model = tmp_path / "file" / "cache", tiny_model("MatMul")
    with caplog.at_level(logging.WARNING, "ort_metainfer"):
        for _ in range(2):
            decision = ask(model, host := FakeTrialHost(graph=BIG_GRAPH), cache_dir=elsewhere)
            assert decision.strategy.is_default and not decision.complete and host.calls == []
    assert len([r for r in caplog.records if "cannot be remembered" in r.message]) == 1
    with pytest.raises(CacheError, match="cannot be remembered"):
        ort_metainfer.tune(model, Settings(cache_dir=elsewhere))
    with pytest.raises(CacheError, match="cannot be remembered"):
        ort_metainfer.InferenceSession(str(model), metainfer=Settings(cache_dir=elsewhere, strict=True))


def test_sessions_that_begin_with_different_providers_share_no_entry() -> None:
    settings, _ = settings_for(None)

    def told(*names: str) -> str:
        return str(policy_of(settings, SessionSpec(providers=tuple((name, {}) for name in names))))

    cuda, cpu = "CUDAExecutionProvider", "CPUExecutionProvider"
    assert len({told(cpu), told(cuda, cpu), told("TensorrtExecutionProvider", cuda, cpu)}) == 3
    assert told(cpu) == told(cpu, cuda) == told(), "the CPU takes everything"


def test_the_whole_decision_is_plain_json(tiny_model: Callable[..., Path]) -> None:
    decision = ask(tiny_model("MatMul"), FakeTrialHost(favour("graph_optimization_level"), graph=BIG_GRAPH))
    text = json.dumps(decision.as_dict(), allow_nan=False)
    assert json.loads(text)["strategy"] == decision.strategy.as_dict()


@pytest.mark.parametrize("failing", ["graph", "feeds"])
def test_what_fails_of_ours_ends_in_a_plain_session_and_strict_raises_it(
    failing: str, tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    error: Any = TrialCrashed("the child died of signal 11; run ort-metainfer doctor")
    host = FakeTrialHost(**{failing: error})
    monkeypatch.setattr("ort_metainfer.trials.client.ChildTrialHost", lambda: host)
    model = tiny_model("MatMul")
    with caplog.at_level(logging.WARNING, "ort_metainfer"):
        session = ort_metainfer.InferenceSession(str(model))
    assert session.run(None, {"x": np.ones((1, 8), np.float32)})[0].shape == (1, 3)
    assert session.adaptation is not None and "signal 11" in session.adaptation.reason
    assert [r for r in caplog.records if "signal 11" in r.message]
    with pytest.raises(TrialCrashed, match="signal 11"):
        ort_metainfer.InferenceSession(str(model), metainfer=Settings(strict=True))


def test_inputs_that_do_not_fit_are_the_callers_mistake(tiny_model: Callable[..., Path]) -> None:
    with pytest.raises(InputsError, match="nope"):
        ask(tiny_model("MatMul"), FakeTrialHost(graph=BIG_GRAPH), inputs={"nope": np.zeros(3, np.float32)})


def test_a_session_says_what_was_decided_and_run_stays_onnxruntimes_own(
    tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = FakeTrialHost(favour("graph_optimization_level"), graph=BIG_GRAPH)
    monkeypatch.setattr("ort_metainfer.trials.client.ChildTrialHost", lambda: host)
    session = ort_metainfer.InferenceSession(str(tiny_model("MatMul")))
    assert session.strategy is not None and session.adaptation is not None
    assert session.strategy == session.adaptation.strategy
    level = session.strategy.session_options["graph_optimization_level"]
    assert session.get_session_options().graph_optimization_level.name.lower().endswith(str(level))
    assert type(session).run is onnxruntime.InferenceSession.run
    before = list(host.calls)
    session.set_providers(["CPUExecutionProvider"])
    assert host.calls == before, "set_providers only looks up"
