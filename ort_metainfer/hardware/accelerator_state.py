"""What GPUs and NPUs are doing: clock, memory, heat, utilisation, throttling; from NVML and from Linux's sysfs.

Sources. AMD: kernel documentation ``gpu/amdgpu/thermal.rst`` and ``driver-misc.rst`` (amdgpu). Intel GPU:
``i915/gt/intel_gt_sysfs_pm.c`` (i915), ``xe_gt_freq.c``, ``xe_gt_throttle.c``, ``xe_gt_idle.c`` (xe). Intel NPU:
``drivers/accel/ivpu/ivpu_sysfs.c``. NVIDIA: NVML API reference, read through the package ``nvidia-ml-py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Protocol

from ort_metainfer.hardware.files import SYSTEM, SystemFiles
from ort_metainfer.problem import AcceleratorState

__all__ = ["Nvml", "PynvmlReader", "accelerator_states", "busy_counters", "has_nvidia_driver", "nvml"]

BYTES_PER_MB = 1_048_576
NVIDIA_VENDOR = "0x10de"

NVIDIA_MARKS = (
    "/proc/driver/nvidia/version",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/Windows/System32/nvml.dll",
)
"""Files that are there where an NVIDIA driver is: Linux, its Windows subsystem, Windows."""

NVML_THROTTLING: Mapping[int, str] = {
    0x08: "hardware slowdown",
    0x20: "heat (driver)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""Bits of NVML's clocks event reasons that mean slower than a card under load ordinarily is. Idle, clocks set by a
person, boost groups and the power cap do not: see ``AcceleratorState.throttled``."""

POWER_LIMIT = re.compile(r"(psys_)?pl[0-9]$")
"""Intel's reasons that are power limits (PL1, PL2, PL4)."""


class Nvml(Protocol):
    """What is needed of NVIDIA's management library; a test gives its own."""

    def states(self) -> tuple[AcceleratorState, ...]:
        """Every GPU that the driver shows."""
        ...


class PynvmlReader:
    """NVML through the module ``pynvml``; a figure that a GPU does not support is None.

    Args:
        library: the module, initialised.
    """

    def __init__(self, library: Any) -> None:
        self._library = library

    def states(self) -> tuple[AcceleratorState, ...]:
        """See :class:`Nvml`."""
        count = self._ask(self._library.nvmlDeviceGetCount) or 0
        return tuple(state for index in range(count) if (state := self._state(index)) is not None)

    def _state(self, index: int) -> AcceleratorState | None:
        library = self._library
        handle = self._ask(library.nvmlDeviceGetHandleByIndex, index)
        if handle is None:  # it fell off the bus, or this process may not see it
            return None
        name = self._ask(library.nvmlDeviceGetName, handle) or "NVIDIA GPU"
        memory = self._ask(library.nvmlDeviceGetMemoryInfo, handle)
        rates = self._ask(library.nvmlDeviceGetUtilizationRates, handle)
        power_mw = self._ask(library.nvmlDeviceGetPowerUsage, handle)
        return AcceleratorState(
            name=f"{name.decode() if isinstance(name, bytes) else name} #{index}",
            clock_mhz=_float(self._ask(library.nvmlDeviceGetClockInfo, handle, library.NVML_CLOCK_SM)),
            memory_used_mb=None if memory is None else memory.used / BYTES_PER_MB,
            memory_total_mb=None if memory is None else memory.total / BYTES_PER_MB,
            temperature_c=_float(self._ask(library.nvmlDeviceGetTemperature, handle, library.NVML_TEMPERATURE_GPU)),
            utilisation=None if rates is None else rates.gpu / 100,
            throttled=self._throttled(handle),
            power_w=None if power_mw is None else power_mw / 1000,
        )

    def _throttled(self, handle: Any) -> str | None:
        new, old = (f"nvmlDeviceGetCurrentClocks{name}Reasons" for name in ("Event", "Throttle"))
        ask = getattr(self._library, new, None) or getattr(self._library, old)
        reasons = self._ask(ask, handle)
        if reasons is None and hasattr(self._library, old):  # a driver older than the package knows only the old name
            reasons = self._ask(getattr(self._library, old), handle)
        return None if reasons is None else ", ".join(text for bit, text in NVML_THROTTLING.items() if reasons & bit)

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._library.NVMLError:
            return None


def has_nvidia_driver(files: SystemFiles = SYSTEM) -> bool:
    """Whether an NVIDIA driver is there."""
    return any(files.read(mark, 1) is not None for mark in NVIDIA_MARKS)


def nvml(files: SystemFiles = SYSTEM) -> Nvml | None:
    """NVML's reader; None without an NVIDIA driver, without the package (extra ``nvidia``), or where it fails."""
    return _pynvml() if has_nvidia_driver(files) else None


@cache
def _pynvml() -> Nvml | None:
    """Loaded and initialised once a process: initialising may take longer than a measurement."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return None
    except pynvml.NVMLError:
        return None
    return PynvmlReader(pynvml)


def busy_counters(files: SystemFiles = SYSTEM) -> dict[str, tuple[str, int]]:
    """Folder of a device -> what it counts and how far it has got, for those that tell utilisation by a counter.

    ``busy_us`` grows while the device works, ``idle_ms`` while it is powered down.
    """
    counters: dict[str, tuple[str, int]] = {}
    for folder in [*_cards(files), *_npus(files)]:
        for kind, path in (
            ("busy_us", f"{folder}/device/npu_busy_time_us"),
            ("idle_ms", f"{folder}/gt/gt0/rc6_residency_ms"),
            ("idle_ms", f"{folder}/device/tile0/gt0/gtidle/idle_residency_ms"),
        ):
            if (value := files.number(path)) is not None:
                counters[folder] = (kind, value)
    return counters


def accelerator_states(
    files: SystemFiles = SYSTEM,
    reader: Nvml | None = None,
    earlier: Mapping[str, tuple[str, int]] | None = None,
    window_s: float = 0.0,
) -> tuple[AcceleratorState, ...]:
    """Every accelerator that can be read.

    Args:
        files: where /sys is.
        reader: NVML, where it is there.
        earlier: :func:`busy_counters` of ``window_s`` seconds ago; without it, counted utilisation is not known.
        window_s: length of the window.
    """
    utilisation = _utilisation(earlier or {}, busy_counters(files), window_s)
    cards = [_card(files, folder, utilisation.get(folder)) for folder in _cards(files)]
    npus = [_npu(files, folder, utilisation.get(folder)) for folder in _npus(files)]
    return (*(() if reader is None else reader.states()), *(card for card in cards if card is not None), *npus)


def _utilisation(
    earlier: Mapping[str, tuple[str, int]], now: Mapping[str, tuple[str, int]], window_s: float
) -> dict[str, float]:
    if window_s <= 0:
        return {}
    shares = {}
    for folder, (kind, value) in now.items():
        before = earlier.get(folder)
        if before is not None and before[0] == kind and value >= before[1]:
            counted_s = (value - before[1]) / (1e6 if kind == "busy_us" else 1e3)
            share = counted_s / window_s if kind == "busy_us" else 1 - counted_s / window_s
            shares[folder] = min(1.0, max(0.0, share))
    return shares


def _cards(files: SystemFiles) -> list[str]:
    folder = "/sys/class/drm"
    return [f"{folder}/{name}" for name in files.names(folder) if re.fullmatch(r"card\d+", name)]


def _npus(files: SystemFiles) -> list[str]:
    folder = "/sys/class/accel"
    return [f"{folder}/{name}" for name in files.names(folder) if _has_npu_counter(files, f"{folder}/{name}")]


def _has_npu_counter(files: SystemFiles, folder: str) -> bool:
    return files.number(f"{folder}/device/npu_busy_time_us") is not None


def _card(files: SystemFiles, folder: str, utilisation: float | None) -> AcceleratorState | None:
    """A graphics card of sysfs; None for one that another way tells of, or whose driver is none of these."""
    vendor = (files.read(f"{folder}/device/vendor", 16) or "").strip()
    driver = _driver(files, f"{folder}/device")
    if vendor == NVIDIA_VENDOR:
        return None
    if driver == "amdgpu":
        return _amd(files, folder)
    return _intel(files, folder, driver, utilisation) if driver in ("i915", "xe") else None


def _driver(files: SystemFiles, device: str) -> str:
    lines = (files.read(f"{device}/uevent", 4096) or "").splitlines()
    return next((line.partition("=")[2] for line in lines if line.startswith("DRIVER=")), "")


def _amd(files: SystemFiles, folder: str) -> AcceleratorState:
    device = f"{folder}/device"
    busy = files.number(f"{device}/gpu_busy_percent")
    product = (files.read(f"{device}/product_name", 128) or "").strip()
    return AcceleratorState(
        name=f"{product or 'amdgpu'} {folder.rpartition('/')[2]}",
        clock_mhz=_marked_level_mhz(files.read(f"{device}/pp_dpm_sclk", 4096) or ""),
        memory_used_mb=_mb(files.number(f"{device}/mem_info_vram_used")),
        memory_total_mb=_mb(files.number(f"{device}/mem_info_vram_total")),
        temperature_c=_hottest_c(files, device),
        utilisation=None if busy is None else busy / 100,
        power_w=_power_w(files, device),
    )


def _marked_level_mhz(levels: str) -> float | None:
    """The level of a ``pp_dpm`` file that is in force: its line ends with a star (``1: 1200Mhz *``)."""
    found = re.search(r"([0-9]+)\s*mhz\s*\*", levels, re.IGNORECASE)
    return float(found.group(1)) if found else None


def _intel(files: SystemFiles, folder: str, driver: str, utilisation: float | None) -> AcceleratorState:
    i915, xe = f"{folder}/gt/gt0", f"{folder}/device/tile0/gt0/freq0"
    paths = (f"{i915}/rps_act_freq_mhz", f"{folder}/gt_act_freq_mhz", f"{xe}/act_freq")
    clock = next((mhz for path in paths if (mhz := files.number(path)) is not None), None)
    return AcceleratorState(
        name=f"{driver} {folder.rpartition('/')[2]}",
        clock_mhz=_float(clock),
        temperature_c=_hottest_c(files, f"{folder}/device"),
        utilisation=utilisation,
        throttled=_intel_throttled(files, ((i915, "throttle_reason_"), (f"{xe}/throttle", "reason_"))),
        power_w=_power_w(files, f"{folder}/device"),
    )


def _intel_throttled(files: SystemFiles, places: tuple[tuple[str, str], ...]) -> str | None:
    """Reasons whose file says 1, power limits left out; None where there are no such files."""
    flags: dict[str, int | None] = {}
    for folder, prefix in places:
        names = [name for name in files.names(folder) if name.startswith(prefix)]
        flags |= {name.removeprefix(prefix): files.number(f"{folder}/{name}") for name in names}
    flags.pop("status", None)
    if all(value is None for value in flags.values()):
        return None
    return ", ".join(name for name, value in flags.items() if value and not POWER_LIMIT.match(name))


def _npu(files: SystemFiles, folder: str, utilisation: float | None) -> AcceleratorState:
    device = f"{folder}/device"
    return AcceleratorState(
        name=f"{_driver(files, device) or 'NPU'} {folder.rpartition('/')[2]}",
        clock_mhz=_float(files.number(f"{device}/npu_current_frequency_mhz")),
        memory_used_mb=_mb(files.number(f"{device}/npu_memory_utilization")),
        utilisation=utilisation,
    )


def _monitor_files(files: SystemFiles, device: str) -> Iterator[str]:
    for monitor in files.names(f"{device}/hwmon"):
        yield from (f"{device}/hwmon/{monitor}/{name}" for name in files.names(f"{device}/hwmon/{monitor}"))


def _hottest_c(files: SystemFiles, device: str) -> float | None:
    paths = [path for path in _monitor_files(files, device) if re.search(r"/temp\d+_input$", path)]
    readings = [reading for path in paths if (reading := files.number(path)) is not None]
    return max(readings) / 1000 if readings else None


def _power_w(files: SystemFiles, device: str) -> float | None:
    paths = [path for path in _monitor_files(files, device) if re.search(r"/power1_(average|input)$", path)]
    readings = [reading for path in paths if (reading := files.number(path)) is not None]
    return readings[0] / 1e6 if readings else None


def _mb(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / BYTES_PER_MB


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)
