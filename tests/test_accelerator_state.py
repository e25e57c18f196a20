"""GPUs and NPUs tell what they tell: from made-up trees of files, and from a made-up NVML."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ort_metainfer.hardware.accelerator_state import PynvmlReader, accelerator_states, busy_counters, nvml
from ort_metainfer.hardware.state import Clock, LoadWatch
from ort_metainfer.problem import AcceleratorState
from tests.system_tree import write_tree

AMD = {
    "/sys/class/drm/card1/device/vendor": "0x1002",
    "/sys/class/drm/card1/device/uevent": "DRIVER=amdgpu\nPCI_ID=1002:744C",
    "/sys/class/drm/card1/device/gpu_busy_percent": 37,
    "/sys/class/drm/card1/device/mem_info_vram_used": 512 * 2**20,
    "/sys/class/drm/card1/device/mem_info_vram_total": 8192 * 2**20,
    "/sys/class/drm/card1/device/pp_dpm_sclk": "0: 500Mhz\n1: 1893Mhz *\n2: 2482Mhz",
    "/sys/class/drm/card1/device/hwmon/hwmon3/temp1_input": 61_000,
    "/sys/class/drm/card1/device/hwmon/hwmon3/temp2_input": 74_000,
    "/sys/class/drm/card1/device/hwmon/hwmon3/temp2_crit": 110_000,
    "/sys/class/drm/card1/device/hwmon/hwmon3/power1_average": 183_000_000,
    "/sys/class/drm/card1-DP-1/status": "connected",
    "/sys/class/drm/renderD128/device/vendor": "0x1002",
}
I915 = {
    "/sys/class/drm/card0/device/vendor": "0x8086",
    "/sys/class/drm/card0/device/uevent": "DRIVER=i915",
    "/sys/class/drm/card0/gt_act_freq_mhz": 300,
    "/sys/class/drm/card0/gt/gt0/rps_act_freq_mhz": 1350,
    "/sys/class/drm/card0/gt/gt0/rc6_residency_ms": 10_000,
    "/sys/class/drm/card0/gt/gt0/throttle_reason_status": 1,
    "/sys/class/drm/card0/gt/gt0/throttle_reason_pl1": 1,
    "/sys/class/drm/card0/gt/gt0/throttle_reason_thermal": 0,
}
XE = {
    "/sys/class/drm/card0/device/vendor": "0x8086",
    "/sys/class/drm/card0/device/uevent": "DRIVER=xe",
    "/sys/class/drm/card0/device/tile0/gt0/freq0/act_freq": 2400,
    "/sys/class/drm/card0/device/tile0/gt0/freq0/throttle/status": 1,
    "/sys/class/drm/card0/device/tile0/gt0/freq0/throttle/reason_prochot": 1,
    "/sys/class/drm/card0/device/tile0/gt0/freq0/throttle/reason_thermal": 1,
    "/sys/class/drm/card0/device/tile0/gt0/freq0/throttle/reason_pl2": 1,
    "/sys/class/drm/card0/device/tile0/gt0/gtidle/idle_residency_ms": 500,
}
NPU = {
    "/sys/class/accel/accel0/device/uevent": "DRIVER=intel_vpu",
    "/sys/class/accel/accel0/device/npu_busy_time_us": 4_000_000,
    "/sys/class/accel/accel0/device/npu_memory_utilization": 96 * 2**20,
    "/sys/class/accel/accel0/device/npu_current_frequency_mhz": 1400,
}


def test_an_amd_card_tells_clock_memory_heat_use_and_power(tmp_path: Path) -> None:
    (card,) = accelerator_states(write_tree(tmp_path, AMD))
    assert card == AcceleratorState("amdgpu card1", 1893.0, 512.0, 8192.0, 74.0, 0.37, None, 183.0)


def test_an_amd_card_that_sleeps_has_no_level_in_force(tmp_path: Path) -> None:
    tree = write_tree(tmp_path, AMD | {"/sys/class/drm/card1/device/pp_dpm_sclk": "0: 500Mhz\n1: 1893Mhz"})
    assert accelerator_states(tree)[0].clock_mhz is None


def test_an_intel_card_at_its_power_limit_is_not_slowed_down(tmp_path: Path) -> None:
    (card,) = accelerator_states(write_tree(tmp_path, I915))
    assert (card.name, card.clock_mhz, card.throttled, card.utilisation) == ("i915 card0", 1350.0, "", None)
    write_tree(tmp_path, {"/sys/class/drm/card0/gt/gt0/throttle_reason_thermal": 1})
    assert accelerator_states(write_tree(tmp_path, {}))[0].throttled == "thermal"


def test_the_newer_intel_driver_is_read_too(tmp_path: Path) -> None:
    (card,) = accelerator_states(write_tree(tmp_path, XE))
    assert (card.name, card.clock_mhz, card.throttled) == ("xe card0", 2400.0, "prochot, thermal")


def test_an_old_intel_card_without_reasons_says_nothing_of_throttling(tmp_path: Path) -> None:
    tree = write_tree(tmp_path, {path: text for path, text in I915.items() if "/gt/" not in path})
    assert (accelerator_states(tree)[0].clock_mhz, accelerator_states(tree)[0].throttled) == (300.0, None)


def test_an_npus_use_is_what_its_counter_grew_by(tmp_path: Path) -> None:
    before = busy_counters(write_tree(tmp_path, NPU))
    tree = write_tree(tmp_path, {"/sys/class/accel/accel0/device/npu_busy_time_us": 4_500_000})
    (npu,) = accelerator_states(tree, None, before, 2.0)
    assert npu == AcceleratorState("intel_vpu accel0", 1400.0, 96.0, utilisation=0.25)
    assert accelerator_states(tree)[0].utilisation is None


def test_an_intel_cards_use_is_the_time_it_was_not_powered_down(tmp_path: Path) -> None:
    before = busy_counters(write_tree(tmp_path, I915))
    tree = write_tree(tmp_path, {"/sys/class/drm/card0/gt/gt0/rc6_residency_ms": 10_600})
    assert accelerator_states(tree, None, before, 1.0)[0].utilisation == pytest.approx(0.4)


@given(before=st.integers(0, 10**9), after=st.integers(0, 10**9), window_s=st.floats(0, 100))
def test_use_is_a_share_whatever_the_counters_say(before: int, after: int, window_s: float) -> None:
    from ort_metainfer.hardware.accelerator_state import _utilisation

    for kind in ("busy_us", "idle_ms"):
        for share in _utilisation({"npu": (kind, before)}, {"npu": (kind, after)}, window_s).values():
            assert 0.0 <= share <= 1.0
            assert after >= before and window_s > 0


def test_a_card_of_an_unknown_driver_is_left_out(tmp_path: Path) -> None:
    virtual = {
        "/sys/class/drm/card0/device/vendor": "0x1af4",
        "/sys/class/drm/card0/device/uevent": "DRIVER=virtio-pci",
    }
    nvidia = {"/sys/class/drm/card1/device/vendor": "0x10de", "/sys/class/drm/card1/device/uevent": "DRIVER=nvidia"}
    assert accelerator_states(write_tree(tmp_path, virtual | nvidia)) == ()


class NVMLError(Exception):
    """As the library's."""


class FakePynvml:
    """The functions of ``pynvml`` that are used; what ``refuses`` names is not supported by the GPU."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    def __init__(self, *refuses: str, reasons: int = 0) -> None:
        self.refuses, self.reasons = refuses, reasons

    def answer(self, name: str, value: Any) -> Any:
        if name in self.refuses:
            raise NVMLError(name)
        return value

    def nvmlDeviceGetCount(self) -> int:
        return int(self.answer("count", 1))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return self.answer("handle", index + 100)

    def nvmlDeviceGetName(self, handle: int) -> Any:
        return self.answer("name", b"NVIDIA H200")

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return self.answer("memory", SimpleNamespace(used=2**30, total=2**37))

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return self.answer("rates", SimpleNamespace(gpu=80, memory=10))

    def nvmlDeviceGetPowerUsage(self, handle: int) -> Any:
        return self.answer("power", 412_500)

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> Any:
        return self.answer("clock", {1: 1980}[kind])

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> Any:
        return self.answer("temperature", 52)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> Any:
        return self.answer("events", self.reasons)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> Any:
        return self.answer("throttle", self.reasons)


def test_an_nvidia_card_is_read_through_nvml() -> None:
    (card,) = PynvmlReader(FakePynvml()).states()
    assert card == AcceleratorState("NVIDIA H200 #0", 1980.0, 1024.0, 2.0**17, 52.0, 0.8, "", 412.5)


@pytest.mark.parametrize(
    ("reasons", "throttled"),
    [(0x01, ""), (0x04, ""), (0x100, ""), (0x48, "hardware slowdown, heat (hardware)"), (0x24, "heat (driver)")],
)
def test_idle_and_the_power_cap_are_no_throttling(reasons: int, throttled: str) -> None:
    assert PynvmlReader(FakePynvml(reasons=reasons)).states()[0].throttled == throttled


def test_what_a_card_does_not_support_is_not_known() -> None:
    everything = ("name", "memory", "rates", "power", "clock", "temperature", "events", "throttle")
    (card,) = PynvmlReader(FakePynvml(*everything)).states()
    assert card == AcceleratorState("NVIDIA GPU #0")
    assert PynvmlReader(FakePynvml("events", reasons=0x40)).states()[0].throttled == "heat (hardware)"
    assert PynvmlReader(FakePynvml("handle")).states() == PynvmlReader(FakePynvml("count")).states() == ()


def test_without_a_driver_nvml_is_not_even_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ort_metainfer.hardware.accelerator_state._pynvml", lambda: pytest.fail("imported"))
    assert nvml(write_tree(tmp_path, AMD)) is None


def test_with_a_driver_but_without_the_package_the_rest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    from ort_metainfer.hardware import accelerator_state

    accelerator_state._pynvml.cache_clear()
    tree = write_tree(tmp_path, {"/proc/driver/nvidia/version": "NVRM version: 580", **AMD})
    assert nvml(tree) is None
    accelerator_state._pynvml.cache_clear()
    assert [card.name for card in accelerator_states(tree)] == ["amdgpu card1"]


def test_a_watch_tells_every_accelerator(tmp_path: Path) -> None:
    moments = iter([10.0, 12.0])
    clock = Clock(monotonic=lambda: next(moments), epoch=lambda: 0.0, sleep=lambda seconds: None, ticks_per_s=100)
    watch = LoadWatch(write_tree(tmp_path, NPU), clock, 1, PynvmlReader(FakePynvml()))
    write_tree(tmp_path, {"/sys/class/accel/accel0/device/npu_busy_time_us": 5_000_000})
    gpu, npu = watch.stop().devices
    assert (gpu.name, npu.utilisation) == ("NVIDIA H200 #0", 0.5)
