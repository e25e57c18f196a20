"""What else the machine is doing: other processes' CPU, steal, run queue, clocks, heat, memory, accelerators.

The kernel counts in ticks of 10 ms: over a window of 0.1 s the resolution is a tenth of a core (over 1 s, a hundredth),
and a single tick is noise and reported as none. Where the system tells nothing (no /proc), fields are None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from statistics import median

from ort_metainfer.hardware import accelerator_state, processes, throttling
from ort_metainfer.hardware.cgroups import memory_left_bytes
from ort_metainfer.hardware.files import SYSTEM, SystemFiles
from ort_metainfer.problem import HardwareState

__all__ = ["Clock", "LoadWatch", "observe"]

NOISE_TICKS = 1
BYTES_PER_MB = 1_048_576
CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "x86_pkg_temp", "soc_thermal")


def _ticks_per_second() -> int:
    return os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True)
class Clock:
    """Time as this module takes it: ``monotonic`` for windows, ``epoch`` for the record, ``sleep`` to wait."""

    monotonic: Callable[[], float] = time.monotonic
    epoch: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    ticks_per_s: int = field(default_factory=_ticks_per_second)


@dataclass(frozen=True)
class Reading:
    """What counts on from moment to moment, read at ``at_s``."""

    at_s: float
    machine: processes.MachineTicks | None
    processes: processes.Table
    throttling: Mapping[str, int]
    busy: Mapping[str, tuple[str, int]]


class LoadWatch:
    """Watches the machine from construction on; this process and its descendants do not count as load.

    Args:
        files: where /proc and /sys are.
        clock: what time it is.
        pid: the process whose tree is "ours"; default the caller's.
        nvml: how to ask NVIDIA's driver; default through ``nvidia-ml-py`` where both are there.
    """

    def __init__(
        self,
        files: SystemFiles = SYSTEM,
        clock: Clock | None = None,
        pid: int | None = None,
        nvml: accelerator_state.Nvml | None = None,
    ) -> None:
        self._files = files
        self._clock = Clock() if clock is None else clock
        self._pid = os.getpid() if pid is None else pid
        self._nvml = accelerator_state.nvml(files) if nvml is None else nvml
        self._first = self._last = self._read()

    def stop(self, exclude_pids: Collection[int] = ()) -> HardwareState:
        """The state over the whole time since construction; may be called again for a longer stretch.

        Args:
            exclude_pids: further processes that, with their descendants, do not count as load.
        """
        return self._state(self._first, self._read(), exclude_pids)

    def lap(self, exclude_pids: Collection[int] = ()) -> HardwareState:
        """The state since the last lap, the first since construction; the next one begins now."""
        now = self._read()
        state = self._state(self._last, now, exclude_pids)
        self._last = now
        return state

    def _read(self) -> Reading:
        machine = processes.machine_ticks(self._files)
        return Reading(
            self._clock.monotonic(),
            machine,
            processes.process_ticks(self._files),
            throttling.counts(self._files),
            accelerator_state.busy_counters(self._files),
        )

    def _state(self, before: Reading, now: Reading, exclude_pids: Collection[int]) -> HardwareState:
        files, window_s, clocks = self._files, now.at_s - before.at_s, clocks_mhz(self._files)
        return HardwareState(
            when=self._clock.epoch(),
            window_s=window_s,
            others_cpu=self._others_cpu(before, now, exclude_pids),
            steal=_steal(before.machine, now.machine),
            runnable=self._runnable(now.processes, exclude_pids),
            clock_mhz=median(clocks) if clocks else None,
            temperature_c=temperature_c(files),
            memory_available_mb=memory_available_mb(files),
            top_clock_mhz=max(clocks, default=None),
            throttled=throttling.reasons(before.throttling, now.throttling, files),
            governor=throttling.governor(files),
            boost=throttling.boost(files),
            devices=accelerator_state.accelerator_states(files, self._nvml, before.busy, window_s),
        )

    def _others_cpu(self, before: Reading, now: Reading, exclude_pids: Collection[int]) -> float | None:
        window_s = now.at_s - before.at_s
        if now.machine is None or before.machine is None or window_s * self._clock.ticks_per_s < 1:
            return None
        own = processes.ticks_spent(before.processes, now.processes, self._pid, exclude_pids)
        others = now.machine.busy - before.machine.busy - own
        return others / self._clock.ticks_per_s / window_s if others > NOISE_TICKS else 0.0

    def _runnable(self, table: processes.Table, exclude_pids: Collection[int]) -> int | None:
        """Scheduling entities the kernel counts as runnable (field 4 of /proc/loadavg), less our own threads."""
        words = (self._files.read("/proc/loadavg") or "").split()
        runnable, slash, _ = words[3].partition("/") if len(words) > 3 else ("", "", "")
        if not slash or not runnable.isdecimal():
            return None
        ours = processes.own_tree(table, {self._pid, *exclude_pids})
        return max(0, int(runnable) - processes.running_threads(self._files, ours))


def _steal(before: processes.MachineTicks | None, now: processes.MachineTicks | None) -> float | None:
    if now is None or before is None or now.total <= before.total:
        return None
    stolen = now.steal - before.steal
    return stolen / (now.total - before.total) if stolen > NOISE_TICKS else 0.0


def observe(window_s: float = 0.1, files: SystemFiles = SYSTEM, clock: Clock | None = None) -> HardwareState:
    """Watch the machine for ``window_s`` seconds; 0.1 s resolves a tenth of a core, no less (see the module)."""
    clock = Clock() if clock is None else clock
    watch = LoadWatch(files, clock)
    clock.sleep(window_s)
    return watch.stop()


def clocks_mhz(files: SystemFiles = SYSTEM) -> list[float]:
    """Clock of every core that tells it (a virtual machine shows a constant or nothing, not its clock)."""
    readings = [files.number(f"{core}/cpufreq/scaling_cur_freq") for core in throttling.cores(files)]
    return [khz / 1000 for khz in readings if khz]


def temperature_c(files: SystemFiles = SYSTEM) -> float | None:
    """The hottest CPU sensor: hardware monitors by the chip's name, else thermal zones by their type."""
    monitors = [f"/sys/class/hwmon/{name}" for name in files.names("/sys/class/hwmon")]
    readings = [
        files.number(f"{folder}/{entry}")
        for folder in monitors
        if (files.read(f"{folder}/name") or "").strip() in CPU_SENSORS
        for entry in files.names(folder)
        if entry.startswith("temp") and entry.endswith("_input")
    ]
    zones = [f"/sys/class/thermal/{name}" for name in files.names("/sys/class/thermal") if name.startswith("thermal")]
    readings += [files.number(f"{z}/temp") for z in zones if (files.read(f"{z}/type") or "").strip() in CPU_SENSORS]
    thousandths = [reading for reading in readings if reading is not None]
    return max(thousandths) / 1000 if thousandths else None


def memory_available_mb(files: SystemFiles = SYSTEM) -> float | None:
    """Memory (MB of 2**20 bytes) that an application could still get, a cgroup's limit counted."""
    lines = (line.split() for line in (files.read("/proc/meminfo") or "").splitlines())
    system = next((int(words[1]) * 1024 for words in lines if words[:1] == ["MemAvailable:"]), None)
    left = [amount for amount in (system, memory_left_bytes(files)) if amount is not None]
    return min(left) / BYTES_PER_MB if left else None
