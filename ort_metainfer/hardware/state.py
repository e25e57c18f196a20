"""What else the machine is doing: other processes' CPU, steal, run queue, clock, heat, memory, over a stretch of time.

The kernel counts in ticks of 10 ms: over a window of 0.1 s the resolution is a tenth of a core (over 1 s, a hundredth),
and a single tick is noise and reported as none. Where the system tells nothing (no /proc), fields are None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from statistics import median

from ort_metainfer.hardware import processes
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


class LoadWatch:
    """Watches the machine from construction on; this process and its descendants do not count as load.

    Args:
        files: where /proc and /sys are.
        clock: what time it is.
        pid: the process whose tree is "ours"; default the caller's.
    """

    def __init__(self, files: SystemFiles = SYSTEM, clock: Clock | None = None, pid: int | None = None) -> None:
        self._files = files
        self._clock = Clock() if clock is None else clock
        self._pid = os.getpid() if pid is None else pid
        self._processes = processes.process_ticks(files)
        self._machine = processes.machine_ticks(files)
        self._began = self._clock.monotonic()

    def stop(self, exclude_pids: Collection[int] = ()) -> HardwareState:
        """The state over the whole time since construction; may be called again for a longer stretch.

        Args:
            exclude_pids: further processes that, with their descendants, do not count as load.
        """
        machine = processes.machine_ticks(self._files)
        window_s = self._clock.monotonic() - self._began
        table = processes.process_ticks(self._files)
        return HardwareState(
            when=self._clock.epoch(),
            window_s=window_s,
            others_cpu=self._others_cpu(machine, table, exclude_pids, window_s),
            steal=self._steal(machine),
            runnable=self._runnable(table, exclude_pids),
            clock_mhz=clock_mhz(self._files),
            temperature_c=temperature_c(self._files),
            memory_available_mb=memory_available_mb(self._files),
        )

    def _others_cpu(
        self,
        machine: processes.MachineTicks | None,
        table: processes.Table,
        exclude_pids: Collection[int],
        window_s: float,
    ) -> float | None:
        if machine is None or self._machine is None or window_s * self._clock.ticks_per_s < 1:
            return None
        own = processes.ticks_spent(self._processes, table, self._pid, exclude_pids)
        others = machine.busy - self._machine.busy - own
        return others / self._clock.ticks_per_s / window_s if others > NOISE_TICKS else 0.0

    def _steal(self, machine: processes.MachineTicks | None) -> float | None:
        if machine is None or self._machine is None or machine.total <= self._machine.total:
            return None
        stolen = machine.steal - self._machine.steal
        return stolen / (machine.total - self._machine.total) if stolen > NOISE_TICKS else 0.0

    def _runnable(self, table: processes.Table, exclude_pids: Collection[int]) -> int | None:
        """Scheduling entities the kernel counts as runnable (field 4 of /proc/loadavg), less our own threads."""
        words = (self._files.read("/proc/loadavg") or "").split()
        runnable, slash, _ = words[3].partition("/") if len(words) > 3 else ("", "", "")
        if not slash or not runnable.isdecimal():
            return None
        ours = processes.own_tree(table, {self._pid, *exclude_pids})
        return max(0, int(runnable) - processes.running_threads(self._files, ours))


def observe(window_s: float = 0.1, files: SystemFiles = SYSTEM, clock: Clock | None = None) -> HardwareState:
    """Watch the machine for ``window_s`` seconds; 0.1 s resolves a tenth of a core, no less (see the module)."""
    clock = Clock() if clock is None else clock
    watch = LoadWatch(files, clock)
    clock.sleep(window_s)
    return watch.stop()


def clock_mhz(files: SystemFiles = SYSTEM) -> float | None:
    """Median clock of the cores; None where it cannot be read (a virtual machine shows a constant, not its clock)."""
    cpu_folder = "/sys/devices/system/cpu"
    cores = [name for name in files.names(cpu_folder) if name.startswith("cpu") and name[3:].isdecimal()]
    readings = [files.number(f"{cpu_folder}/{core}/cpufreq/scaling_cur_freq") for core in cores]
    khz = [reading for reading in readings if reading]
    return median(khz) / 1000 if khz else None


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
