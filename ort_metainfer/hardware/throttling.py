"""Whether the processor was slowed down, and how its clock is chosen (Linux's sysfs).

Sources: ``drivers/thermal/intel/therm_throt.c`` (counters, Intel), kernel documentation ``driver-api/thermal/
sysfs-api.rst`` and ``cpu-cooling-api.rst`` (cooling devices, any processor), ``admin-guide/pm/cpufreq.rst`` and
``intel_pstate.rst`` (governor, boost). AMD processors count no such events: there only the clock tells.
"""

from __future__ import annotations

from collections.abc import Mapping

from ort_metainfer.hardware.files import SYSTEM, SystemFiles

__all__ = ["boost", "cores", "counts", "governor", "reasons"]

CPU_FOLDER = "/sys/devices/system/cpu"
COOLING = "/sys/class/thermal"
COOLING_KINDS = ("cpufreq-", "thermal-cpufreq-", "Processor")
"""Types of cooling devices that lower the processor's clock. Fans, idle injection and other devices' are left out."""


def cores(files: SystemFiles = SYSTEM) -> list[str]:
    """The folder of every logical core."""
    names = files.names(CPU_FOLDER)
    return [f"{CPU_FOLDER}/{name}" for name in names if name.startswith("cpu") and name[3:].isdecimal()]


def counts(files: SystemFiles = SYSTEM) -> dict[str, int]:
    """Counter -> thermal events so far; empty where the processor counts none."""
    found: dict[str, int] = {}
    for core in cores(files):
        for kind in ("core", "package"):
            path = f"{core}/thermal_throttle/{kind}_throttle_count"
            if (count := files.number(path)) is not None:
                found[path] = count
    return found


def reasons(before: Mapping[str, int], after: Mapping[str, int], files: SystemFiles = SYSTEM) -> str | None:
    """Why the processor was slowed down between two :func:`counts`, or is now; empty where it was not.

    None where neither a counter nor a cooling device tells. Every core of a package counts the package's events, so
    that the largest growth is the number of events.
    """
    words = []
    for kind in ("core", "package"):
        grown = [after[path] - before[path] for path in after if path in before and f"/{kind}_" in path]
        if grown and max(grown) > 0:
            words.append(f"{max(grown)} thermal events of a {kind}")
    cooling = _cooling(files)
    words += [f"{name} lowers the clock for heat (step {step})" for name, step in cooling.items() if step > 0]
    return ", ".join(words) if words or after or cooling else None


def _cooling(files: SystemFiles) -> dict[str, int]:
    """Type of each of the processor's cooling devices -> how far it is turned on; one of each type."""
    steps: dict[str, int] = {}
    for name in files.names(COOLING):
        kind = (files.read(f"{COOLING}/{name}/type", 64) or "").strip()
        step = files.number(f"{COOLING}/{name}/cur_state")
        if name.startswith("cooling_device") and kind.startswith(COOLING_KINDS) and step is not None:
            steps[kind] = max(step, steps.get(kind, 0))
    return steps


def governor(files: SystemFiles = SYSTEM) -> str | None:
    """How the clock is chosen; several, joined, where cores differ; None where it is not told."""
    texts = [files.read(f"{core}/cpufreq/scaling_governor", 64) for core in cores(files)]
    names = sorted({text.strip() for text in texts if text})
    return "+".join(names) or None


def boost(files: SystemFiles = SYSTEM) -> bool | None:
    """Whether the clock may rise above the nominal one; None where it is not told."""
    off = files.number(f"{CPU_FOLDER}/intel_pstate/no_turbo")
    if off is not None:
        return off == 0
    on = files.number(f"{CPU_FOLDER}/cpufreq/boost")
    return None if on is None else on == 1
