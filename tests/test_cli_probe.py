"""``probe`` and what ``devices`` shows of it: over a store with made-up profiles, and once for real."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from ort_metainfer.__main__ import main
from ort_metainfer.cli import figures
from ort_metainfer.cli import probe as cli_probe
from ort_metainfer.errors import ProviderError, TrialCrashed, TrialError, TrialTimeout
from ort_metainfer.hardware import profiles
from ort_metainfer.hardware.devices import cpu_device
from ort_metainfer.hardware.discovery import offered_devices
from ort_metainfer.hardware.profile import Feature, Measurement, Profile, ReferenceTiming
from ort_metainfer.hardware.profiles import PROFILES, Instruments, versions_of
from ort_metainfer.problem import Device, HardwareState
from ort_metainfer.strategy_cache.lock import deciding
from ort_metainfer.strategy_cache.store import open_cache
from ort_metainfer.trials import faults

Outcome = tuple[int, str, str]
Command = Callable[..., Outcome]

POINTS = (
    Measurement("matmul/float32/64", 262144.0, "MAC", p50_ms=0.01, spread=0.02, runs=9),
    Measurement("matmul/float32/512", 1.34e8, "MAC", p50_ms=1.0, spread=0.02, runs=9, flag="unsteady"),
    Measurement("matmul/bfloat16/512", 1.34e8, "MAC", refusal="no kernel"),
    Measurement("lstm/float32/32", 4e6, "MAC", p50_ms=0.5, taken=False),
    Measurement("empty/float32/1", 0.0, "", p50_ms=0.003),
)
TIMINGS = (
    ReferenceTiming("conv", "cpu", p50_ms=0.5, spread=0.02, log_ratio=-0.35, creation_ms=9.0, error=0.0, taken=1.0),
    ReferenceTiming("conv", "cpu-basic", p50_ms=1.0, log_ratio=0.35, creation_ms=5.0, error=2e-7, flag="unsteady: x"),
    ReferenceTiming("gemm", "cpu", p50_ms=0.25, spread=0.02, log_ratio=0.0, creation_ms=3.0, error=0.0, taken=1.0),
    ReferenceTiming("gemm", "cpu-basic", refusal="no such kernel"),
)
FEATURES = (
    Feature("peak_macs_per_s/float32", 1.34e11, "MAC/s", "probe", spread=0.02),
    Feature("bandwidth_bytes_per_s", 2.75e10, "B/s", "derived", spread=0.6, flag="unsteady"),
    Feature("cache/L1d", 49152.0, "B", "static"),
)


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
def kept(tmp_path: Path) -> Profile:
    """A profile of this machine's CPU under today's versions, in the cache that commands read."""
    device = cpu_device()
    profile = Profile(
        device,
        versions_of(device),
        FEATURES,
        POINTS,
        TIMINGS,
        {"MatMul": True},
        HardwareState(when=1.0, window_s=0.1, others_cpu=1.5),
        HardwareState(when=2.0, window_s=0.1, others_cpu=0.0),
        "2026-01-02T03:04:05+00:00",
        12.5,
    )
    assert open_cache(tmp_path / "cache").put(PROFILES, profile.key, profile.as_dict())
    return profile


@pytest.fixture
def instruments(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What measuring will give: ``{"rate": ...}``; nothing is really measured."""
    figures_to_give = {"rate": 1.34e11}

    def probe(device: Device, deadline: float, say: Any) -> Profile:
        say("matmul")
        return Profile(device, {}, (replace(FEATURES[0], value=figures_to_give["rate"]),), POINTS)

    quiet = HardwareState(when=1.0, window_s=0.1, others_cpu=0.0)
    real = Instruments(probe, lambda device, deadline, say: TIMINGS, versions_of, lambda: quiet)
    monkeypatch.setattr(profiles.Instruments, "real", classmethod(lambda cls: real))
    return figures_to_give


# probe


@pytest.mark.parametrize("budget", ["nan", "inf", "-5", "1", "abc", "1e9"])
def test_a_budget_that_is_no_number_of_seconds_is_wrong_usage(command: Command, budget: str) -> None:
    status, out, err = command("probe", "--budget-s", budget)
    assert (status, out) == (2, "") and "--budget-s" in err


def test_what_is_kept_is_shown_and_not_measured_again(
    command: Command, kept: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_child(*args: Any) -> Any:
        raise AssertionError("nothing is to be measured")

    monkeypatch.setattr(profiles, "measure_profile", no_child)
    status, out, _ = command("probe", "--provider", "CPU")
    assert status == 0
    for part in (
        "kept from      2026-01-02T03:04:05+00:00, in 12 s",
        "before         other processes use 1.50 cores",
        "after          quiet",
        "matmul/float32",
        "64: 26.2 GMAC/s",
        "512: 134 GMAC/s!",
        "512: refused",
        "32: 8 GMAC/s on the CPU",
        "1: 0.003 ms",
        "-0.35 (0.5 ms)",
        "+0.35 (1 ms)!",
        "refused",
        "! conv/cpu-basic: unsteady: x",
        "! gemm/cpu-basic: no such kernel",
        "134 GMAC/s",
        "48 KiB",
    ):
        assert part in out, part


def test_json_is_one_document_with_the_whole_profile(command: Command, kept: Profile) -> None:
    status, out, _ = command("probe", "--provider", "CPUExecutionProvider", "--json")
    document = json.loads(out)
    assert status == 0
    (row,) = document["devices"]
    assert Profile.from_dict(row["profile"]) == kept
    assert (row["was_kept"], row["changes"], row["effects"]) == (True, None, [])


def test_against_last_says_what_did_not_repeat_and_keeps_it_flagged(
    command: Command, kept: Profile, instruments: dict[str, float]
) -> None:
    instruments["rate"] = 0.67e11
    status, out, _ = command("probe", "--provider", "CPU", "--against-last", "--json")
    (row,) = json.loads(out)["devices"]
    assert status == 0 and not row["was_kept"]
    assert [(change["feature"], change["large"]) for change in row["changes"]] == [("peak_macs_per_s/float32", True)]
    told = command("probe", "--provider", "CPU")[1]
    assert "not repeatable: 1.34e+11 MAC/s when it was measured before, 6.7e+10 now" in told


def test_a_second_measurement_that_agrees_is_told_so(
    command: Command, kept: Profile, instruments: dict[str, float]
) -> None:
    out = command("probe", "--provider", "CPU", "--against-last")[1]
    assert "repeatability  1 of 1 measured features within 15%" in out


def test_against_last_without_a_last_says_so(command: Command, instruments: dict[str, float]) -> None:
    out = command("probe", "--provider", "CPU", "--against-last")[1]
    assert "nothing was kept of these versions to compare with" in out


def test_effects_of_other_versions_are_told(
    command: Command, kept: Profile, instruments: dict[str, float], tmp_path: Path
) -> None:
    store, older = open_cache(tmp_path / "cache"), replace(kept, versions={**kept.versions, "onnxruntime": "1.0.0"})
    assert store.put(PROFILES, older.key, older.as_dict()) and store.delete(PROFILES, kept.key)
    instruments["rate"] = 2e11
    out = command("probe", "--provider", "CPU")[1]
    assert "toolchain effects" in out
    assert "peak_macs_per_s/float32: 1.34e+11 MAC/s became 2e+11 (1.49x) with onnxruntime 1.0.0 -> " in out


def test_a_provider_that_is_not_there_is_an_error_that_says_why(command: Command) -> None:
    status, _, err = command("probe", "--provider", "NobodysProvider")
    assert status == 1 and "no adapter" in err
    status, _, err = command("probe", "--provider", "CPU", "--device", "GPU.7")
    assert status == 1 and "no device to measure; there is: CPUExecutionProvider cpu" in err


def test_a_cache_that_cannot_be_written_is_told(
    command: Command, instruments: dict[str, float], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    status, out, err = command("probe", "--provider", "CPU", "--cache-dir", str(tmp_path / "file" / "cache"))
    assert status == 1 and "cannot write strategy cache" in err
    assert "134 GMAC/s" in out  # what was measured is not lost


# one at a time


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", "OpenVINOExecutionProvider"])
def test_what_another_process_measures_is_waited_for_whatever_the_provider(
    provider: str, instruments: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, told = open_cache(tmp_path / "cache"), []
    device = replace(cpu_device(), provider=provider)
    monkeypatch.setattr(cli_probe, "WAIT_FACTOR", 0.0)
    with deciding(store.directory, f"probe cpu {cpu_device().name}", 0) as is_ours:
        assert is_ours
        with ThreadPoolExecutor(1) as other:  # another thread stands for another process
            waiting = other.submit(cli_probe.measure, device, store, 25.0, False, told.append)
            with pytest.raises(TrialError, match="another process has been measuring it"):
                waiting.result()
    assert any("waiting for it to end" in text for text in told)
    told.clear()
    if provider == "CPUExecutionProvider":
        assert cli_probe.measure(device, store, 25.0, False, told.append).profile.measurements
        assert not any("waiting" in text for text in told)


def test_what_was_measured_meanwhile_is_shown_and_not_measured_again(
    instruments: dict[str, float], tmp_path: Path
) -> None:
    store, device = open_cache(tmp_path / "cache"), cpu_device()
    waits, told = threading.Event(), []

    def tell(text: str) -> None:
        told.append(text)
        waits.set()

    with ThreadPoolExecutor(1) as other:
        with deciding(store.directory, f"probe cpu {device.name}", 0):
            second = other.submit(cli_probe.measure, device, store, 25.0, False, tell)
            assert waits.wait(60)
            first = cli_probe._measured(device, store, 25.0, False, lambda text: None)
        assert not first.was_kept
        assert second.result().was_kept
    assert second.result().profile == first.profile


def test_what_is_kept_is_shown_while_another_process_measures(kept: Profile, tmp_path: Path) -> None:
    store = open_cache(tmp_path / "cache")
    with deciding(store.directory, f"probe cpu {cpu_device().name}", 0), ThreadPoolExecutor(1) as other:
        told: list[str] = []
        assert other.submit(cli_probe.measure, cpu_device(), store, 25.0, False, told.append).result().was_kept
    assert not told


# devices


@pytest.mark.slow
def test_devices_shows_the_main_features_of_what_was_measured_and_all_on_demand(
    command: Command, kept: Profile
) -> None:
    out = command("devices")[1]
    assert "peak_macs_per_s/float32 134 GMAC/s, bandwidth_bytes_per_s 27.5 GB/s (!)" in out
    assert "cache/L1d" not in out
    assert "cache/L1d" in command("devices", "--features")[1]


@pytest.mark.slow
def test_devices_in_json_has_each_devices_features(command: Command, kept: Profile) -> None:
    rows = {row["provider"]: row for row in json.loads(command("devices", "--json")[1])}
    (device,) = rows["CPUExecutionProvider"]["devices"]
    assert device["profile"] == [asdict(feature) for feature in FEATURES]
    assert {"driver", "vendor", "memory_mb", "emulated"} <= set(device)


def test_a_device_line_marks_what_is_no_hardware() -> None:
    from ort_metainfer.cli.devices import device_line

    npu = Device("QNN", "npu", "Hexagon", "Qualcomm", "htp", driver="2.7", memory_mb=2048.0, emulated=True)
    assert device_line(asdict(npu)) == "npu: htp Hexagon, Qualcomm, driver 2.7, 2 GiB [emulated]"
    assert device_line(asdict(cpu_device())).startswith("cpu: ")


# Asking for devices


class Asked:
    """Plays children that are asked for devices: some providers take theirs down."""

    def __init__(self, crashing: Sequence[str] = (), error: type[Exception] = TrialCrashed) -> None:
        self.crashing, self.error, self.requests = crashing, error, []

    def __call__(
        self, do: str, request: Mapping[str, Any], deadline: float, on_event: Callable[[dict[str, Any]], None]
    ) -> dict[str, Any]:
        assert do == "devices"
        self.requests.append(list(request["providers"]))
        for name in request["providers"]:
            on_event({"event": "discovering", "session": name})
            if name in self.crashing:
                raise self.error(f"{name} died")
        found = [asdict(Device(name, "gpu", f"GPU of {name}")) for name in request["providers"] if name != "Empty"]
        return {"devices": found, "refused": [("Empty", "no device")] if "Empty" in request["providers"] else []}


def test_a_library_that_takes_its_process_down_costs_its_own_provider_only() -> None:
    asked = Asked(crashing=["B"])
    found, refused = offered_devices(["CPUExecutionProvider", "A", "B", "C"], float("inf"), asked)
    assert [device.provider for device in found] == ["CPUExecutionProvider", "A", "C"]
    assert refused == [("B", "B died")]
    assert asked.requests == [["A", "B", "C"], ["A", "C"]]


def test_a_provider_that_offers_nothing_says_why() -> None:
    found, refused = offered_devices(["A", "Empty"], float("inf"), Asked())
    assert [device.provider for device in found] == ["A"] and refused == [("Empty", "no device")]


def test_when_the_time_is_up_nobody_else_is_asked() -> None:
    asked = Asked(crashing=["A"], error=TrialTimeout)
    found, refused = offered_devices(["A", "B"], 0.0, asked)
    assert found == [] and refused == [("A", "A died"), ("B", "there was no time left to ask it for its devices")]
    assert len(asked.requests) == 1


def test_a_process_that_cannot_be_started_is_an_error() -> None:
    def nothing(*args: Any) -> dict[str, Any]:
        raise TrialError("cannot start a process for trials")

    with pytest.raises(TrialError):
        offered_devices(["A"], float("inf"), nothing)


def test_the_cpu_alone_needs_no_process() -> None:
    assert offered_devices(["CPUExecutionProvider"], 0.0, Asked(crashing=["never"]))[0] == [cpu_device()]


# Words


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.12e11, "MAC/s", "112 GMAC/s"),
        (2.75e10, "B/s", "27.5 GB/s"),
        (12.0, "B/s", "12 B/s"),
        (49152.0, "B", "48 KiB"),
        (25276510208.0, "B", "23.54 GiB"),
        (0.31, "ms", "0.31 ms"),
        (2.0, "1", "2"),
        (-0.3857, "ln", "-0.39 (0.68x)"),
        (1e4, "ln", "+10000.00"),
        (0.0, "MAC/s", "0 MAC/s"),
        (3000.0, "MHz", "3e+03 MHz"),
    ],
)
def test_figures_are_told_with_their_unit(value: float, unit: str, text: str) -> None:
    assert figures.figure_text(value, unit) == text


# For real


@pytest.mark.slow
def test_a_plug_in_that_crashes_when_asked_for_devices_does_not_take_the_command_down(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ort_metainfer.providers import all_providers

    if not any(p.availability().usable for p in all_providers() if p.name != "CPUExecutionProvider"):
        pytest.skip("no provider but the CPU's is installed")
    name = next(p.name for p in all_providers() if p.availability().usable and p.name != "CPUExecutionProvider")
    monkeypatch.setenv(faults.VARIABLE, f"discovering:{name}:crash")
    rows = {row["provider"]: row for row in json.loads(command("devices", "--json")[1])}
    assert rows["CPUExecutionProvider"]["devices"]
    assert rows[name]["usable"] is False and "SIGABRT" in rows[name]["reason"]


@pytest.mark.slow
def test_probe_measures_for_real_and_shows_what_it_kept(command: Command) -> None:
    status, out, err = command("probe", "--provider", "CPU", "--budget-s", "10", "--json")
    assert status == 0, err
    (row,) = json.loads(out)["devices"]
    assert not row["was_kept"]
    profile = Profile.from_dict(row["profile"])
    assert profile.references and profile.measurements and "cores" in profile
    again = json.loads(command("probe", "--provider", "CPU", "--json")[1])["devices"][0]
    assert again["was_kept"] and Profile.from_dict(again["profile"]) == profile


def test_an_unknown_device_of_a_provider_is_no_traceback(command: Command) -> None:
    with pytest.raises(ProviderError, match="no device to measure"):
        from ort_metainfer.cli.probe import chosen_devices

        chosen_devices(("CPU",), ("npu",))
