"""How figures, deaths and failures are told: digits enough, what to do, and an exit status that says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from ort_metainfer import adapt
from ort_metainfer.__main__ import main
from ort_metainfer.cli.advice import advice
from ort_metainfer.cli.report import speedup_text, trial_lines
from ort_metainfer.decision import Decision, Timing, Trial
from ort_metainfer.ratios import ratio_text, speedup_words
from ort_metainfer.strategy import Strategy, Transform

Outcome = tuple[int, str, str]
Command = Callable[..., Outcome]

SLOW = Timing(8, 300.0, 330.0, 1.0, 1.1, 0.00333, 0.0032, 0.0035, 1.03, None)
OPENVINO = Strategy(provider="OpenVINOExecutionProvider")
SPINNING = Strategy(session_config={"session.intra_op.allow_spinning": "0"})
DIED = "its process died (SIGABRT); its last words: terminate called"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process; gives exit status, stdout and stderr."""

    def run(*words: str) -> Outcome:
        with pytest.raises(SystemExit) as left:
            main(words)
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return run


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (2.5, "2.50"),
        (0.987, "0.99"),
        (0.1, "0.10"),
        (0.0333, "0.033"),
        (0.000512, "0.00051"),
        (300.0, "300.00"),
        (0, "0.00"),
    ],
)
def test_a_ratio_has_digits_enough(ratio: float, text: str) -> None:
    assert ratio_text(ratio) == text


def test_what_is_hundreds_of_times_slower_is_told_so() -> None:
    assert speedup_words(2.5, 2.25, 2.75) == "2.50x [2.25, 2.75]"
    told = speedup_text(asdict(SLOW))
    assert told.startswith("0.0033x [0.0032, 0.0035] (300 times slower), 8 rounds")
    assert Trial(OPENVINO, "rules", timing=SLOW).verdict.startswith("0.0033x [0.0032, 0.0035] (300 times slower)")


@pytest.mark.parametrize(
    ("strategy", "what"),
    [
        (OPENVINO, "to have OpenVINO left out"),
        (SPINNING, "set session.intra_op.allow_spinning in your own SessionOptions"),
        (Strategy(transforms=(Transform("gelu-to-native", 1, {}),)), "rewrite gelu-to-native"),
        (Strategy(), "plain onnxruntime itself"),
    ],
)
def test_a_process_that_died_comes_with_what_to_do(strategy: Strategy, what: str) -> None:
    plain = json.loads(
        json.dumps(Decision(Strategy(), "rules", "", trials=(Trial(strategy, "rules", failure=DIED),)).as_dict())
    )
    told = "\n".join(trial_lines(plain))
    assert DIED in told
    assert what in told


@pytest.mark.parametrize("failure", [None, "no kernel for this operator"])
def test_other_failures_need_no_such_advice(failure: str | None) -> None:
    assert advice({"strategy": OPENVINO.as_dict(), "failure": failure}) is None


@pytest.mark.parametrize("content", [b"", b"\x00\xffnot a model" * 20, None], ids=["empty", "garbage", "cut short"])
@pytest.mark.parametrize("words", [(), ("--json",)], ids=["words", "json"])
def test_tune_of_a_damaged_model_fails_with_onnxruntimes_words(
    content: bytes | None, words: tuple[str, ...], command: Command, tiny_model: Any, tmp_path: Path
) -> None:
    path = tmp_path / "damaged.onnx"
    path.write_bytes(tiny_model("MatMul").read_bytes()[:-9] if content is None else content)
    status, out, err = command("tune", str(path), *words)
    assert (status, out) == (1, "")
    assert "ONNXRuntimeError" in err and "damaged.onnx" in err


@pytest.mark.parametrize(("complete", "status"), [(False, 1), (True, 0)])
def test_tune_that_a_remembered_failure_stops_says_so_by_its_status(
    complete: bool, status: int, command: Command, tiny_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decision = Decision(Strategy(), "pass-through", "no inputs fit", complete=complete)
    monkeypatch.setattr(adapt, "tune", lambda *given, **named: replace(decision))
    told = command("tune", str(tiny_model("MatMul")))
    assert told[0] == status
    assert "no inputs fit" in told[1]


def test_explain_says_which_setting_it_ignores(
    command: Command,
    tiny_model: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("ort_metainfer.session._said", set())
    monkeypatch.setenv("ORT_METAINFER_OBJECTIVE", "p99")
    status, out, _ = command("explain", str(tiny_model("MatMul")))
    assert status == 0 and "strategy" in out
    (line,) = [record.getMessage() for record in caplog.records if "p99" in record.getMessage()]
    assert "use one of latency, tail" in line and line.endswith("this setting is ignored")
