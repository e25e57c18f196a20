"""What changed between two states is told, and nothing else; a processor's throttling is found where it is counted."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ort_metainfer.decision import Decision
from ort_metainfer.hardware import throttling
from ort_metainfer.hardware.drift import drift, has_heat, together
from ort_metainfer.hardware.profile import Profile
from ort_metainfer.problem import AcceleratorState, Device, HardwareState
from ort_metainfer.strategy import Strategy
from tests.system_tree import write_tree

GPU = AcceleratorState("NVIDIA H200 #0", 1980.0, 1000.0, 100_000.0, 50.0, 0.9, "", 400.0)
CALM = HardwareState(
    when=100.0,
    window_s=1.0,
    others_cpu=0.0,
    steal=0.0,
    temperature_c=55.0,
    memory_available_mb=8000.0,
    top_clock_mhz=3000.0,
    throttled="",
    governor="performance",
    boost=True,
    devices=(GPU,),
)


def with_gpu(**changes: object) -> HardwareState:
    return replace(CALM, devices=(replace(GPU, **changes),))


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (replace(CALM, top_clock_mhz=2800.0), "the clock went from 3000 to 2800 MHz"),
        (replace(CALM, top_clock_mhz=3200.0), "the clock went from 3000 to 3200 MHz"),
        (replace(CALM, throttled="2 thermal events of a core"), "slowed down: 2 thermal events of a core"),
        (replace(CALM, others_cpu=1.5), "load went from 0.0 to 1.5 cores"),
        (replace(CALM, temperature_c=70.0), "the processor's temperature rose from 55 to 70"),
        (replace(CALM, memory_available_mb=100.0), "memory is nearly gone: 100 MB"),
        (replace(CALM, steal=0.2), "share went from 0% to 20%"),
        (with_gpu(clock_mhz=1500.0), "the clock of NVIDIA H200 #0 went from 1980 to 1500 MHz"),
        (with_gpu(throttled="heat (driver)"), "NVIDIA H200 #0 was slowed down: heat (driver)"),
        (with_gpu(temperature_c=80.0), "NVIDIA H200 #0's temperature rose from 50 to 80"),
        (with_gpu(memory_used_mb=99_000.0), "the memory of NVIDIA H200 #0 is nearly gone"),
    ],
)
def test_each_change_is_a_reason_of_its_own(after: HardwareState, words: str) -> None:
    (reason,) = drift(CALM, after)
    assert words in reason


@pytest.mark.parametrize(
    "after",
    [
        CALM,
        replace(CALM, top_clock_mhz=2900.0, clock_mhz=800.0),
        replace(CALM, others_cpu=0.2, steal=0.04),
        replace(CALM, temperature_c=64.0, memory_available_mb=900.0),
        replace(CALM, temperature_c=20.0),
        replace(CALM, devices=()),
        with_gpu(utilisation=0.05, clock_mhz=345.0),
        with_gpu(utilisation=None, clock_mhz=345.0),
    ],
)
def test_small_changes_and_an_idle_devices_clock_are_none(after: HardwareState) -> None:
    assert drift(CALM, after) == ()


def test_load_that_goes_away_is_a_change_too() -> None:
    assert len(drift(replace(CALM, others_cpu=1.5), CALM)) == 1


def test_a_load_that_was_there_all_along_is_no_change() -> None:
    busy = replace(CALM, others_cpu=1.5)
    assert drift(busy, replace(busy, others_cpu=1.4)) == ()


def test_in_a_short_window_a_few_ticks_are_no_load() -> None:
    """Three ticks of 10 ms in 0.1 s look like 0.3 cores."""
    short = replace(CALM, window_s=0.1)
    assert drift(short, replace(short, others_cpu=0.5)) == ()
    assert drift(short, replace(short, others_cpu=0.7)) != ()


def test_memory_that_was_short_all_along_is_no_change() -> None:
    assert drift(replace(CALM, memory_available_mb=150.0), replace(CALM, memory_available_mb=140.0)) == ()


KNOWN = st.one_of(st.none(), st.floats(0, 1e5))


@given(st.tuples(KNOWN, KNOWN, KNOWN, KNOWN, KNOWN), st.floats(0, 100))
def test_what_is_not_known_on_one_side_is_no_reason(figures: tuple[float | None, ...], window_s: float) -> None:
    names = ("others_cpu", "steal", "temperature_c", "memory_available_mb", "top_clock_mhz")
    known = HardwareState(1.0, window_s, **dict(zip(names, figures, strict=True)))
    nothing = HardwareState(1.0, window_s)
    assert drift(nothing, known) == drift(known, nothing) == drift(None, known) == drift(known, None) == ()
    assert drift(known, known) == ()


def test_throttling_is_a_reason_however_it_was_before() -> None:
    slow = replace(CALM, throttled="1 thermal events of a package")
    assert drift(slow, slow) and drift(None, slow)
    assert has_heat(drift(CALM, slow)) and has_heat(drift(CALM, replace(CALM, temperature_c=90.0)))
    assert not has_heat(drift(CALM, replace(CALM, others_cpu=2.0)))


def test_states_of_several_windows_are_one_by_time() -> None:
    states = [replace(CALM, others_cpu=0.4, window_s=1.0), replace(CALM, others_cpu=0.0, window_s=3.0, when=104.0)]
    whole = together(states)
    assert whole is not None
    assert (whole.others_cpu, whole.window_s, whole.when) == (pytest.approx(0.1), 4.0, 104.0)
    assert together([]) is None
    unknown = together([replace(CALM, others_cpu=None)] * 2)
    assert unknown is not None and unknown.others_cpu is None


def test_a_throttled_processor_or_device_is_not_quiet() -> None:
    assert CALM.busy_reason is None
    assert "slowed down: 3 thermal" in str(replace(CALM, throttled="3 thermal events of a core").busy_reason)
    assert "NVIDIA H200 #0 is slowed down" in str(with_gpu(throttled="heat (driver)").busy_reason)


def test_a_state_survives_json_inside_a_decision_and_a_profile() -> None:
    plain = json.loads(json.dumps(Decision(Strategy(), "default", "", state=CALM).as_dict()))
    assert HardwareState.from_dict(plain["state"]) == CALM
    profile = Profile(Device("CPUExecutionProvider", "cpu", "AMD EPYC"), {}, before=CALM, after=CALM)
    assert Profile.from_dict(json.loads(json.dumps(profile.as_dict()))) == profile


def test_a_state_of_another_version_is_read_as_far_as_it_is_known() -> None:
    old = {"when": 1.0, "window_s": 0.2, "others_cpu": 0.5}
    assert HardwareState.from_dict(old) == HardwareState(1.0, 0.2, 0.5)
    newer = {**asdict(CALM), "fan_rpm": 900, "devices": [{**asdict(GPU), "tensor_clock_mhz": 1.0}]}
    assert HardwareState.from_dict(newer) == CALM
    with pytest.raises(KeyError, match="window_s"):
        HardwareState.from_dict({"when": 1.0})


EVENTS = "/sys/devices/system/cpu/cpu{}/thermal_throttle/{}_throttle_count"


def test_throttling_is_what_the_counters_grew_by(tmp_path: Path) -> None:
    tree = write_tree(tmp_path, {EVENTS.format(core, kind): 5 for core in (0, 1) for kind in ("core", "package")})
    before = throttling.counts(tree)
    assert throttling.reasons(before, throttling.counts(tree), tree) == ""
    write_tree(tmp_path, {EVENTS.format(core, "package"): 8 for core in (0, 1)} | {EVENTS.format(1, "core"): 6})
    told = throttling.reasons(before, throttling.counts(tree), tree)
    assert told == "1 thermal events of a core, 3 thermal events of a package"


def test_where_nothing_counts_throttling_it_is_not_known(tmp_path: Path) -> None:
    tree = write_tree(tmp_path, {"/sys/devices/system/cpu/cpu0/online": 1})
    assert throttling.reasons(throttling.counts(tree), throttling.counts(tree), tree) is None


def test_the_kernels_own_cooling_of_a_processor_is_throttling_and_a_fan_is_not(tmp_path: Path) -> None:
    devices = {
        "/sys/class/thermal/cooling_device0/type": "cpufreq-cpu0",
        "/sys/class/thermal/cooling_device0/cur_state": 0,
        "/sys/class/thermal/cooling_device1/type": "pwm-fan",
        "/sys/class/thermal/cooling_device1/cur_state": 3,
    }
    tree = write_tree(tmp_path, devices)
    assert throttling.reasons({}, {}, tree) == ""
    write_tree(tmp_path, {"/sys/class/thermal/cooling_device0/cur_state": 2})
    assert throttling.reasons({}, {}, tree) == "cpufreq-cpu0 lowers the clock for heat (step 2)"


def test_governor_and_boost_are_told(tmp_path: Path) -> None:
    folder = "/sys/devices/system/cpu"
    tree = write_tree(tmp_path, {f"{folder}/cpu{core}/cpufreq/scaling_governor": "powersave" for core in (0, 1)})
    assert (throttling.governor(tree), throttling.boost(tree)) == ("powersave", None)
    write_tree(tmp_path, {f"{folder}/cpu1/cpufreq/scaling_governor": "performance", f"{folder}/cpufreq/boost": 1})
    assert (throttling.governor(tree), throttling.boost(tree)) == ("performance+powersave", True)
    write_tree(tmp_path, {f"{folder}/intel_pstate/no_turbo": 1})
    assert throttling.boost(tree) is False
