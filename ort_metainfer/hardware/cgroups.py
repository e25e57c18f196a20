"""What the control groups around this process leave it: CPU time and memory, versions 1 and 2.

A limit may sit on the process's own group or on any group above it (Docker sets one, Kubernetes another one above), and
the smallest holds. Interfaces: Linux kernel documentation, ``admin-guide/cgroup-v2.rst`` and
``scheduler/sched-bwc.rst``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from ort_metainfer.hardware.files import SYSTEM, SystemFiles

__all__ = ["Group", "groups", "memory_left_bytes", "quota_cores"]


class Group(NamedTuple):
    """One control group: its folder, and whether it is of version 2."""

    folder: PurePosixPath
    is_v2: bool


def groups(controller: str, files: SystemFiles = SYSTEM) -> Iterator[Group]:
    """This process's groups that may limit ``controller`` (``cpu``, ``memory``), each from its own up to the mount."""
    member = _membership(files)
    for line in (files.read("/proc/self/mountinfo") or "").splitlines():
        mount, _, source = line.partition(" - ")
        fields, kind = mount.split(), source.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        is_v2 = kind[0] == "cgroup2"
        if not is_v2 and controller not in kind[2].split(","):
            continue
        path = member.get("" if is_v2 else controller)
        if path is None:
            continue
        top = PurePosixPath(fields[4])
        folder = top / _below(path, fields[3])
        for current in (folder, *folder.parents):
            yield Group(current, is_v2)
            if current == top:
                break


def quota_cores(files: SystemFiles = SYSTEM) -> float | None:
    """The CPU quota in cores (1.5 is possible), the smallest of all groups around this process; None without one."""
    quotas = [quota for group in groups("cpu", files) if (quota := _quota(group, files)) is not None]
    return min(quotas, default=None)


def memory_left_bytes(files: SystemFiles = SYSTEM) -> int | None:
    """Memory the groups around this process still allow, file cache that can be dropped counted as free.

    None where no group sets a limit. Used memory less inactive file pages is what Kubernetes calls the working set.
    """
    left = [rest for group in groups("memory", files) if (rest := _memory_left(group, files)) is not None]
    return min(left, default=None)


def _membership(files: SystemFiles) -> dict[str, str]:
    """Controller -> group of this process; version 2's under the empty name."""
    member: dict[str, str] = {}
    for line in (files.read("/proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        member |= dict.fromkeys(controllers.split(","), path)
    return member


def _below(path: str, mounted: str) -> str:
    """``path`` relative to the mount that shows ``mounted``; the mount itself where it lies outside (a namespace)."""
    mounted = mounted.rstrip("/")
    inside = path == mounted or path.startswith(f"{mounted}/")
    return path[len(mounted) :].lstrip("/") if inside and ".." not in path.split("/") else ""


def _quota(group: Group, files: SystemFiles) -> float | None:
    if group.is_v2:
        words = (files.read(f"{group.folder}/cpu.max", 64) or "").split()
        quota, period = (int(word) if word.isdecimal() else None for word in [*words, "", ""][:2])
    else:
        quota = files.number(f"{group.folder}/cpu.cfs_quota_us")
        period = files.number(f"{group.folder}/cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 and period > 0 else None


def _memory_left(group: Group, files: SystemFiles) -> int | None:
    limit_file, used_file, cache_name = (
        ("memory.max", "memory.current", "inactive_file")
        if group.is_v2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    )
    limit, used = files.number(f"{group.folder}/{limit_file}"), files.number(f"{group.folder}/{used_file}")
    if limit is None or used is None or limit >= 2**60:  # version 1 says "no limit" with a number of that size
        return None
    statistics = (line.split() for line in (files.read(f"{group.folder}/memory.stat") or "").splitlines())
    cache = next((int(words[1]) for words in statistics if words[:1] == [cache_name] and len(words) == 2), 0)
    return max(0, limit - used + cache)
