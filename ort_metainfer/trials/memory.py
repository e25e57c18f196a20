"""Resident memory of a process and memory left on the machine, from /proc; None where the system has none."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["available_mb", "peak_resident_mb", "reset_peak", "resident_mb", "total_mb"]

KB_PER_MB = 1024


def resident_mb(pid: int | None = None) -> float | None:
    """Resident memory of a process (default: this one), in MB of 2**20 bytes."""
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / (KB_PER_MB * 1024)


def peak_resident_mb() -> float | None:
    """Highest resident memory of this process since it began, or since :func:`reset_peak`."""
    return _field("/proc/self/status", "VmHWM:")


def reset_peak() -> bool:
    """Let the peak start anew from what is resident now; False where the kernel does not allow it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def available_mb() -> float | None:
    """Memory that an application could still get."""
    return _field("/proc/meminfo", "MemAvailable:")


def total_mb() -> float | None:
    """Memory of the machine."""
    return _field("/proc/meminfo", "MemTotal:")


def _field(path: str, name: str) -> float | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(name):
            return int(line.split()[1]) / KB_PER_MB
    return None
