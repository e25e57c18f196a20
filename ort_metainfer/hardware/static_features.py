"""What the system tells of a device without measuring: cores, caches, instruction sets, memory, limits.

A fact that cannot be read is not a feature: never a zero. Interfaces: Linux kernel documentation, ``ABI/testing/
sysfs-devices-system-cpu`` (caches, topology, clocks) and ``proc(5)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ort_metainfer.hardware.cgroups import memory_left_bytes, quota_cores
from ort_metainfer.hardware.files import SYSTEM, SystemFiles
from ort_metainfer.hardware.profile import Feature
from ort_metainfer.problem import Device

__all__ = ["static_features"]

CPU_FOLDER = "/sys/devices/system/cpu"
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
CACHE_KINDS = {"Data": "d", "Instruction": "i", "Unified": ""}
HYBRID = {"performance_cores": "/sys/devices/cpu_core/cpus", "efficiency_cores": "/sys/devices/cpu_atom/cpus"}
"""Logical CPUs of each kind on Intel's hybrid processors; the folders are there on those only."""


def static_features(device: Device, files: SystemFiles = SYSTEM) -> tuple[Feature, ...]:
    """Features of origin ``static``.

    Args:
        device: what they are of; the machine's own facts are added where it is a CPU.
        files: where /proc and /sys are.
    """
    return tuple(Feature(name, float(value), unit, "static") for name, value, unit in _facts(device, files))


def _facts(device: Device, files: SystemFiles) -> Iterator[tuple[str, float, str]]:
    for flag in device.features:
        yield f"isa/{flag}", 1, "1"
    if device.cores is not None:
        yield "cores", device.cores, "1"
        yield "limited", device.lasting_limit, "1"
    if device.memory_mb is not None:
        yield "device_memory_bytes", device.memory_mb * 2**20, "B"
    if device.kind == "cpu":
        yield from _processor(files)
        yield from _caches(files)
        yield from _memory(files)


def _processor(files: SystemFiles) -> Iterator[tuple[str, float, str]]:
    online = listed(files.read(f"{CPU_FOLDER}/online"))
    if online:
        yield "logical_cores", len(online), "1"
    siblings = {files.read(f"{CPU_FOLDER}/cpu{number}/topology/thread_siblings_list") for number in online}
    if siblings and None not in siblings:
        yield "physical_cores", len(siblings), "1"
    for name, path in HYBRID.items():
        if cpus := listed(files.read(path)):
            yield name, len(cpus), "1"
    quota = quota_cores(files)
    if quota is not None:
        yield "quota_cores", quota, "1"
    highest_khz = [files.number(f"{CPU_FOLDER}/cpu{number}/cpufreq/cpuinfo_max_freq") for number in online]
    if known := [khz for khz in highest_khz if khz]:
        yield "highest_clock_mhz", max(known) / 1000, "MHz"
    nodes = listed(files.read("/sys/devices/system/node/online"))
    if nodes:
        yield "memory_nodes", len(nodes), "1"


def _caches(files: SystemFiles) -> Iterator[tuple[str, float, str]]:
    """Each cache that the first core sees, and how many logical cores share it."""
    folder = f"{CPU_FOLDER}/cpu0/cache"
    for index in files.names(folder):
        level = files.number(f"{folder}/{index}/level")
        kind = CACHE_KINDS.get((files.read(f"{folder}/{index}/type") or "").strip())
        size = size_bytes(files.read(f"{folder}/{index}/size"))
        if level is None or kind is None or size is None:
            continue
        yield f"cache/L{level}{kind}", size, "B"
        if sharers := listed(files.read(f"{folder}/{index}/shared_cpu_list")):
            yield f"cache/L{level}{kind}/sharers", len(sharers), "1"


def _memory(files: SystemFiles) -> Iterator[tuple[str, float, str]]:
    lines = (line.split() for line in (files.read("/proc/meminfo") or "").splitlines())
    total = next((int(words[1]) * 1024 for words in lines if words[:1] == ["MemTotal:"] and len(words) > 1), None)
    if total is not None:
        yield "memory_bytes", total, "B"
    limited = memory_left_bytes(files)
    if limited is not None:
        yield "memory_limited", 1, "1"


def listed(text: str | None) -> list[int]:
    """The kernel's list of numbers: ``0-2,5`` is 0, 1, 2, 5; empty where it is none."""
    try:
        ranges = [part.partition("-") for part in (text or "").strip().split(",") if part]
        return [number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)]
    except ValueError:
        return []


def size_bytes(text: str | None) -> int | None:
    """The kernel's size of a cache: ``48K`` is 49152; None where it is none."""
    found = re.fullmatch(r"(\d+)([KMG]?)", (text or "").strip())
    return int(found[1]) * UNITS[found[2]] if found else None
