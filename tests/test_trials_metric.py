"""A user's own metric: how it is named, found and asked, and that it replaces the tolerances."""

from __future__ import annotations

import math
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ort_metainfer.errors import SettingsError
from ort_metainfer.settings import Settings, resolve
from ort_metainfer.trials.accuracy import Comparison, compare_outputs
from ort_metainfer.trials.bench import judge
from ort_metainfer.trials.gates import accurate
from ort_metainfer.trials.metric import load_metric, loss_of, name_of
from ort_metainfer.trials.task import Thresholds

ONE = np.ones((1, 4), np.float32)


@pytest.fixture(autouse=True)
def metrics(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """An importable module of a user's."""
    module = types.ModuleType("users_metrics")
    code = """
import numpy as np
def largest(reference, candidate):
    return max(float(np.abs(c[n] - r[n]).max()) for r, c in zip(reference, candidate) for n in r)
def fails(reference, candidate): raise RuntimeError("no ground truth\\nhere")
def nothing(reference, candidate): return float("nan")
def negative(reference, candidate): return -1.0
def text(reference, candidate): return "good"
def greedy(reference, candidate): reference[0]["y"][0, 0] = 9; return 0.0
def perfect(reference, candidate): return 0.0
class Scores:
    @staticmethod
    def mean(reference, candidate): return 0.25
number = 3
"""
    exec(compile(code, "users_metrics.py", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "users_metrics", module)
    return module


def test_the_loss_is_of_all_inputs_with_outputs_by_name() -> None:
    seen = loss_of("users_metrics:largest", ["a", "b"], [[ONE, ONE]] * 2, [[ONE, ONE], [ONE, ONE * 1.5]])
    assert seen == pytest.approx(0.5)
    assert loss_of("users_metrics:Scores.mean", ["a"], [[ONE]], [[ONE]]) == 0.25


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_module:f", "cannot be imported: ModuleNotFoundError"),
        ("users_metrics:missing", "cannot be imported: AttributeError"),
        ("no-such-entry-point", "no entry point of that name in the group ort_metainfer.metrics"),
        ("users_metrics:number", "no function but a int"),
        ("users_metrics:fails", "it failed: RuntimeError: no ground truth here"),
        ("users_metrics:nothing", "it gives nan, which is no loss"),
        ("users_metrics:negative", "it gives -1.0, which is no loss"),
        ("users_metrics:text", "it failed: ValueError"),
        ("users_metrics:greedy", "read-only"),
    ],
)
def test_what_goes_wrong_is_the_gates_reason(name: str, why: str) -> None:
    gate, _ = judge(["y"], [[ONE]], [[ONE]], Thresholds(metric=name))
    assert not gate.passed
    assert gate.detail.startswith(f"metric {name!r}: ")
    assert why in gate.detail
    assert ONE[0, 0] == 1


def test_an_entry_point_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch, metrics: types.ModuleType) -> None:
    class Entry:
        def load(self) -> Any:
            return metrics.perfect  # type: ignore[attr-defined]

    asked: list[Any] = []
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **what: asked.append(what) or [Entry()])
    assert load_metric("words-wrong") is metrics.perfect  # type: ignore[attr-defined]
    assert asked == [{"group": "ort_metainfer.metrics", "name": "words-wrong"}]


def test_the_metric_replaces_the_tolerances_both_ways() -> None:
    far = compare_outputs(["y"], [[ONE]], [[ONE * 1.4]])
    passed = accurate(far, Thresholds(metric="m:f", metric_threshold=0.5), loss=0.4)
    assert passed.passed
    assert passed.detail.startswith("metric 'm:f' gives a loss of 0.4, at most 0.5 is allowed")
    assert "relative L2 4.0e-01" in passed.detail
    assert passed.figures["loss"] == 0.4
    refused = accurate(compare_outputs(["y"], [[ONE]], [[ONE]]), Thresholds(metric="m:f", metric_threshold=0.5), loss=1)
    assert not refused.passed
    assert not accurate(Comparison(), Thresholds(metric="m:f"), loss=math.inf).passed


def test_a_nan_never_passes_whatever_the_metric_says() -> None:
    broken = ONE.copy()
    broken[0, 0] = np.nan
    gate, _ = judge(["y"], [[ONE]], [[broken]], Thresholds(metric="users_metrics:perfect", metric_threshold=1))
    assert not gate.passed
    assert "NaN or infinity" in gate.detail


def test_the_metric_judges_lengths_too() -> None:
    names, longer = ["y"], np.ones((1, 5), np.float32)
    assert judge(names, [[ONE]], [[longer]], Thresholds(metric="users_metrics:perfect", metric_threshold=0))[0].passed


def test_a_function_of_a_module_is_named_and_found_again(metrics: types.ModuleType) -> None:
    largest: Callable[..., float] = metrics.largest  # type: ignore[attr-defined]
    assert name_of(largest, "metric=") == "users_metrics:largest"
    assert load_metric(Settings(metric=largest, metric_threshold=1).metric or "") is largest


@pytest.mark.parametrize("value", [lambda r, c: 0.0, 7, "a b", "", "m:f:g", type("Local", (), {}), Path("m.py")])
def test_what_another_process_could_not_import_is_refused(value: Any) -> None:
    with pytest.raises(SettingsError, match="metric="):
        Settings(metric=value, metric_threshold=1.0)


def test_a_function_of_the_program_itself_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(reference: Any, candidate: Any) -> float:
        return 0.0

    own.__module__, own.__qualname__ = "__main__", "own"
    monkeypatch.setattr(sys.modules["__main__"], "own", own, raising=False)
    with pytest.raises(SettingsError, match="trials run in other processes"):
        name_of(own, "metric=")


def test_a_metric_without_a_threshold_is_told_and_not_used(tmp_path: Path) -> None:
    settings, problems = resolve(Settings(metric="m:f"), {}, tmp_path / "none.toml")
    assert settings.metric is None
    assert "metric_threshold" in str(problems[0])
    settings, problems = resolve(Settings(metric="m:f", metric_threshold=0), {}, tmp_path / "none.toml")
    assert (settings.metric, settings.metric_threshold, problems) == ("m:f", 0.0, [])


def test_a_metric_is_part_of_the_policy() -> None:
    from ort_metainfer.adapt import policy_of
    from ort_metainfer.problem import SessionSpec

    plain, _ = resolve(None, {}, Path(os.devnull))
    own, _ = resolve(Settings(metric="m:f", metric_threshold=0.1), {}, Path(os.devnull))
    other, _ = resolve(Settings(metric="m:f", metric_threshold=0.2), {}, Path(os.devnull))
    policies = {str(policy_of(settings, SessionSpec())) for settings in (plain, own, other)}
    assert len(policies) == 3
