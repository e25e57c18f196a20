"""Which hardware this process may use: the CPU with what of it is ours, and what onnxruntime itself sees beside it.

Nothing here registers a library or imports a provider's package, and files are read once per process, because what it
says is part of every cache key.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ort_metainfer.hardware.cgroups import quota_cores
from ort_metainfer.hardware.files import SYSTEM, SystemFiles

if TYPE_CHECKING:  # the device string is part of every cached start, which must cost next to nothing
    from ort_metainfer.problem import Device

__all__ = ["Hardware", "accelerators", "cpu_device", "device_string", "device_text", "forget", "onnxruntime_hardware"]

CPU_PROVIDER = "CPUExecutionProvider"

FEATURES: Mapping[str, str] = MappingProxyType(
    {name: name for name in ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8")}
    | {"asimd": "asimd", "neon": "neon", "sve": "sve", "i8mm": "i8mm", "bf16": "bf16", "asimddp": "dotprod"}
)
"""Linux's flag -> our name, for what changes which kernel onnxruntime or a provider picks (x86 flags, then Arm's)."""

VENDORS: Mapping[str, str] = MappingProxyType(
    {"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "HygonGenuine": "Hygon", "0x41": "ARM", "0x61": "Apple"}
    | {"0x51": "Qualcomm", "0x48": "HiSilicon", "0xc0": "Ampere", "0x46": "Fujitsu", "0x4e": "NVIDIA"}
)
"""What /proc/cpuinfo says (x86 vendor_id, Arm implementer) -> vendor."""

ARM_PARTS: Mapping[str, str] = MappingProxyType(
    {"0xd03": "Cortex-A53", "0xd08": "Cortex-A72", "0xd0b": "Cortex-A76", "0xd0c": "Neoverse-N1"}
    | {"0xd40": "Neoverse-V1", "0xd49": "Neoverse-N2", "0xd4f": "Neoverse-V2"}
)
"""Arm Ltd's part numbers (its Technical Reference Manuals, register MIDR_EL1); others are named by their number."""

CPUINFO_LIMIT_BYTES = 16_384  # the kernel makes the text as it is read, core by core


class Hardware(NamedTuple):
    """One piece of hardware that onnxruntime discovered; ``vendor_id`` is the PCI vendor's (Intel: 0x8086)."""

    kind: str
    vendor: str
    vendor_id: int
    device_id: int
    description: str = ""


def cpu_device(files: SystemFiles = SYSTEM) -> Device:
    """The CPU as this process may use it: affinity and cgroup quotas counted.

    Read once per process and affinity mask; a quota that changes later is not noticed.
    """
    from ort_metainfer.problem import Device

    cpu = _cpu(files, _usable_cpus())
    return Device(
        provider=CPU_PROVIDER,
        kind="cpu",
        name=cpu.name,
        vendor=cpu.vendor,
        features=cpu.features,
        cores=cpu.cores,
        lasting_limit=cpu.is_limited,
    )


def accelerators() -> tuple[Device, ...]:
    """Hardware other than CPUs that onnxruntime sees, whether or not a provider for it is installed."""
    from ort_metainfer.problem import Device

    return tuple(
        Device(provider="", kind=hardware.kind, name=_name_of(hardware), vendor=hardware.vendor)
        for hardware in onnxruntime_hardware()
        if hardware.kind != "cpu"
    )


def device_string() -> str:
    """CPU and accelerators in one text, for the cache key: ``cpu:AMD EPYC/avx2+avx512f/2c+gpu:0x10de:0x2335``."""
    cpu = _cpu(SYSTEM, _usable_cpus())
    others = [device_text(found.kind, _name_of(found)) for found in onnxruntime_hardware() if found.kind != "cpu"]
    return "+".join([device_text("cpu", cpu.name, cpu.features, cpu.cores), *others])


def device_text(kind: str, name: str, features: Sequence[str] = (), cores: float | None = None) -> str:
    """One device in one word, as the cache key has it: ``cpu:AMD EPYC/avx2+avx512f/2c``."""
    words = [f"{kind}:{name}", *(["+".join(features)] if features else [])]
    return "/".join(words if cores is None else [*words, f"{cores:g}c"])


def onnxruntime_hardware() -> tuple[Hardware, ...]:
    """What onnxruntime's own discovery found, CPU included; registers nothing.

    An onnxruntime that cannot list hardware still names the devices of the providers it knows: those then.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as binding

    if hasattr(binding, "get_hardware_devices"):
        return tuple(_hardware(device) for device in binding.get_hardware_devices())
    offered = binding.get_ep_devices() if hasattr(binding, "get_ep_devices") else []
    return tuple(dict.fromkeys(_hardware(device.device) for device in offered))  # several providers, one device


def forget() -> None:
    """Read the CPU anew at the next call (tests; a process whose quota was changed)."""
    _cpu.cache_clear()


def _hardware(device: Any) -> Hardware:
    description = dict(device.metadata).get("Description", "")
    return Hardware(device.type.name.lower(), device.vendor, device.vendor_id, device.device_id, description)


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _name_of(hardware: Hardware) -> str:
    return hardware.description or f"{hardware.vendor_id:#06x}:{hardware.device_id:#06x}"


class _Cpu(NamedTuple):
    """The CPU's facts; ``is_limited`` where affinity or a quota leaves less of it than is online."""

    name: str
    vendor: str
    features: tuple[str, ...]
    cores: float
    is_limited: bool


@lru_cache(maxsize=16)
def _cpu(files: SystemFiles, usable_cpus: int) -> _Cpu:
    online = _online_cpus(files) or os.cpu_count() or usable_cpus
    quota = quota_cores(files)
    cores = min(float(usable_cpus), float(online), *([] if quota is None else [quota]))
    return _Cpu(*describe_cpu(files), cores, cores < online)


def _online_cpus(files: SystemFiles) -> int | None:
    """How many logical CPUs are online: ``0-3,6`` is five."""
    text = (files.read("/sys/devices/system/cpu/online") or "").strip()
    try:
        ranges = [part.partition("-") for part in text.split(",")]
        return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)
    except ValueError:
        return None


def describe_cpu(files: SystemFiles = SYSTEM, system: str = sys.platform) -> tuple[str, str, tuple[str, ...]]:
    """Name, vendor and features: from /proc/cpuinfo, sysctl on macOS, else what Python's platform module knows."""
    cpuinfo = files.read("/proc/cpuinfo", CPUINFO_LIMIT_BYTES)
    if cpuinfo:
        return parse_cpuinfo(cpuinfo)
    if system == "darwin":
        return describe_mac(_sysctl)
    name = os.environ.get("PROCESSOR_IDENTIFIER") or platform.processor() or platform.machine() or "unknown CPU"
    return name, next((vendor for word, vendor in VENDORS.items() if word in name), ""), ()


def parse_cpuinfo(text: str) -> tuple[str, str, tuple[str, ...]]:
    """Name, vendor and features from the text of /proc/cpuinfo, x86 or Arm, also where cores differ."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        values.setdefault(key.strip().lower(), []).append(value.strip())
    flags = [set(line.split()) for line in values.get("flags", values.get("features", []))]
    complete = flags[:-1] or flags  # the last line may be cut where the text was
    common = set.intersection(*complete) if complete else set()
    features = tuple(sorted(ours for flag, ours in FEATURES.items() if flag in common))
    raw_vendor = values.get("vendor_id", values.get("cpu implementer", [""]))[0]
    vendor = VENDORS.get(raw_vendor, raw_vendor)
    for key in ("model name", "cpu model", "cpu", "uarch"):
        if key in values and values[key][0]:
            return values[key][0], vendor, features
    parts = sorted({ARM_PARTS.get(part, part) for part in values.get("cpu part", [])})
    return " ".join([vendor, "+".join(parts)]).strip() or platform.machine(), vendor, features


def describe_mac(sysctl: Callable[[str], str]) -> tuple[str, str, tuple[str, ...]]:
    """Name, vendor and features of a Mac's CPU; ``sysctl`` gives a value as text, empty where there is none.

    Names of Apple's parameters: developer.apple.com, "Determining instruction set characteristics". Written from its
    documentation and not run on hardware.
    """
    name = sysctl("machdep.cpu.brand_string") or platform.machine()
    wanted = {"asimd": "AdvSIMD", "bf16": "arm.FEAT_BF16", "i8mm": "arm.FEAT_I8MM", "dotprod": "arm.FEAT_DotProd"}
    wanted |= {"avx2": "avx2_0", "avx512f": "avx512f"}
    features = tuple(sorted(ours for ours, theirs in wanted.items() if sysctl(f"hw.optional.{theirs}") == "1"))
    return name, next((vendor for vendor in ("Apple", "Intel") if vendor in name), ""), features


def _sysctl(name: str) -> str:
    """One sysctl value as text: strings as they are, integers of 4 or 8 bytes in decimal."""
    import ctypes

    library = ctypes.CDLL(None)
    size = ctypes.c_size_t(256)
    buffer = ctypes.create_string_buffer(256)
    if library.sysctlbyname(name.encode(), buffer, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return ""
    raw = buffer.raw[: size.value]
    if name.startswith("hw.optional."):
        return str(int.from_bytes(raw, sys.byteorder))
    return raw.rstrip(b"\0").decode("utf-8", "replace")
