"""CPU time of processes and of the whole machine, counted in the kernel's ticks (Linux; proc(5))."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ort_metainfer.hardware.files import SystemFiles

__all__ = [
    "MachineTicks",
    "ProcessTicks",
    "machine_ticks",
    "own_tree",
    "process_ticks",
    "running_threads",
    "ticks_spent",
]


@dataclass(frozen=True)
class MachineTicks:
    """Ticks since boot over all CPUs: spent on processes and interrupts, taken by the hypervisor, and altogether."""

    busy: int
    steal: int
    total: int


@dataclass(frozen=True)
class ProcessTicks:
    """Ticks of one process, its threads and those of its children that ended and were waited for.

    ``started`` is its start time; with the process id it names a process for good.
    """

    parent: int
    spent: int
    started: int


Table = Mapping[int, ProcessTicks]


def machine_ticks(files: SystemFiles) -> MachineTicks | None:
    """The first line of /proc/stat, or None where there is none."""
    words = (files.read("/proc/stat", 4096) or "").partition("\n")[0].split()
    if len(words) < 9 or words[0] != "cpu":
        return None
    user, nice, system, idle, iowait, irq, softirq, steal = (int(word) for word in words[1:9])
    busy = user + nice + system + irq + softirq  # time of guests is part of user and nice
    return MachineTicks(busy, steal, busy + idle + iowait + steal)


def process_ticks(files: SystemFiles) -> dict[int, ProcessTicks]:
    """Every process that can be seen, by its id."""
    table: dict[int, ProcessTicks] = {}
    for name in files.names("/proc"):
        if name.isdecimal() and (words := _stat(files, f"/proc/{name}/stat")):
            table[int(name)] = ProcessTicks(int(words[1]), sum(int(word) for word in words[11:15]), int(words[19]))
    return table


def own_tree(table: Table, roots: Collection[int]) -> set[int]:
    """``roots`` that are alive and all their living descendants."""
    children: dict[int, list[int]] = {}
    for pid, process in table.items():
        children.setdefault(process.parent, []).append(pid)
    tree: set[int] = set()
    todo = [pid for pid in roots if pid in table]
    while todo:
        pid = todo.pop()
        if pid not in tree:
            tree.add(pid)
            todo += children.get(pid, [])
    return tree


def ticks_spent(before: Table, after: Table, pid: int, others: Collection[int] = ()) -> int:
    """Ticks that process ``pid``, ``others`` and all their descendants spent between two tables.

    A process that ended in between is found in what its parent waited for, less what it had spent before. One that
    ended unwaited for, or whose parent ended first, is missed: its time then counts as another process's.
    """
    roots = {pid, *others}
    old_tree = own_tree(before, roots)
    survivors = {p for p in old_tree if p in after and after[p].started == before[p].started}
    tree = own_tree(after, roots | survivors)
    spent = sum(after[p].spent for p in tree)
    known = {p for p in tree if p in before and before[p].started == after[p].started}
    waited_for = {p for p in old_tree - survivors if before[p].parent in old_tree}
    return max(0, spent - sum(before[p].spent for p in known | waited_for))


def running_threads(files: SystemFiles, pids: Collection[int]) -> int:
    """Threads of ``pids`` that are running or waiting to run."""
    folders = [f"/proc/{pid}/task" for pid in pids]
    states = (_stat(files, f"{folder}/{thread}/stat") for folder in folders for thread in files.names(folder))
    return sum(words[:1] == ["R"] for words in states)


def _stat(files: SystemFiles, path: str) -> list[str]:
    """Fields of a stat file from the state on (field 3 of proc(5)); the command's name before it may hold anything."""
    words = (files.read(path, 4096) or "").rpartition(")")[2].split()
    return words if len(words) > 20 else []
