"""Why a measurement is not to be trusted: what changed between the machine's state before it and the one after. Pure.

A figure that is not known on one side is no reason: what a system does not tell cannot be said to have changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ort_metainfer.problem import AcceleratorState, HardwareState

__all__ = ["drift", "has_heat", "together"]

CLOCK_SHARE = 0.05
"""A clock that moved by more changes a latency by about as much. A choice: twice the 2% that a gain must exceed."""

TEMPERATURE_RISE_C = 10.0
"""A choice: well above what sensors jump by from reading to reading (1 to 3 degrees), below what a processor climbs
from idle to full load (30 and more), after which it lowers its clock."""

LOAD_CORES = 0.25
LOAD_TICKS = 3
TICK_S = 0.010
"""How far other processes' CPU use may change, in cores: a choice; and what the kernel's counting by ticks (10 ms on
Linux) blurs, which matters in a short window."""

STEAL_SHARE = 0.05
"""How far the hypervisor's share may grow. A choice: above the 2% from which a machine counts as busy, since a round's
window is short."""

MEMORY_LEFT_MB = 256.0
MEMORY_LEFT_SHARE = 0.10
"""Memory is nearly gone below both: the system begins to drop file pages and to swap. A choice."""

DEVICE_FULL = 0.97
"""Share of a device's own memory in use from which allocations begin to fail or to spill to the host. A choice."""

WORKING = 0.2
"""Utilisation from which a device's clock is that of work: an idle device's follows its power management."""

HEAT = ("temperature", "slowed down")


def drift(before: HardwareState | None, after: HardwareState | None) -> tuple[str, ...]:
    """Reasons why a measurement between two states is not to be trusted; empty where nothing speaks against it.

    Args:
        before: the state the measurement began in; None where it is not known.
        after: the state while it ran.
    """
    if after is None:
        return ()
    reasons = [] if before is None else [*_load(before, after), *_clock(before, after), *_warmth(before, after)]
    if after.throttled:
        reasons.append(f"the processor was slowed down: {after.throttled}")
    earlier = {} if before is None else {device.name: device for device in before.devices}
    for device in after.devices:
        reasons += _device(earlier.get(device.name), device)
    return tuple(reasons)


def has_heat(reasons: Sequence[str]) -> bool:
    """Whether one of :func:`drift`'s reasons is heat, which a pause can mend."""
    return any(word in reason for reason in reasons for word in HEAT)


def together(states: Sequence[HardwareState]) -> HardwareState | None:
    """One state over several windows: load and steal by time, the rest as it was last; None for no state."""
    if not states:
        return None
    last, window_s = states[-1], sum(state.window_s for state in states)
    known = {name: value for name in ("others_cpu", "steal") if (value := _by_time(states, name)) is not None}
    throttled = next((state.throttled for state in reversed(states) if state.throttled), last.throttled)
    return HardwareState(**{**vars(last), **known, "window_s": window_s, "throttled": throttled})


def _by_time(states: Sequence[HardwareState], name: str) -> float | None:
    told = [(value, state.window_s) for state in states if (value := getattr(state, name)) is not None]
    total_s = sum(window_s for _, window_s in told)
    return sum(value * window_s for value, window_s in told) / total_s if total_s > 0 else None


def _load(before: HardwareState, after: HardwareState) -> Iterator[str]:
    if before.others_cpu is not None and after.others_cpu is not None:
        shortest_s = min(before.window_s, after.window_s)
        blur = LOAD_TICKS * TICK_S / shortest_s if shortest_s > 0 else float("inf")
        if abs(after.others_cpu - before.others_cpu) > LOAD_CORES + blur:
            yield f"other processes' load went from {before.others_cpu:.1f} to {after.others_cpu:.1f} cores"
    if before.steal is not None and after.steal is not None and after.steal - before.steal > STEAL_SHARE:
        yield f"the hypervisor's share went from {before.steal:.0%} to {after.steal:.0%}"
    left, was = after.memory_available_mb, before.memory_available_mb
    if left is not None and was is not None and left < min(MEMORY_LEFT_MB, MEMORY_LEFT_SHARE * was):
        yield f"memory is nearly gone: {left:.0f} MB are available"


def _clock(before: HardwareState, after: HardwareState) -> Iterator[str]:
    """By the fastest core, which is one that works; the median core is often idle."""
    if before.top_clock_mhz and after.top_clock_mhz and _moved(before.top_clock_mhz, after.top_clock_mhz):
        yield f"the clock went from {before.top_clock_mhz:.0f} to {after.top_clock_mhz:.0f} MHz"


def _warmth(before: HardwareState, after: HardwareState) -> Iterator[str]:
    if before.temperature_c is not None and after.temperature_c is not None:
        yield from _risen("the processor's", before.temperature_c, after.temperature_c)


def _device(before: AcceleratorState | None, after: AcceleratorState) -> Iterator[str]:
    if after.throttled:
        yield f"{after.name} was slowed down: {after.throttled}"
    if before is None:
        return
    works = min(before.utilisation or 0.0, after.utilisation or 0.0) >= WORKING
    if works and before.clock_mhz and after.clock_mhz and _moved(before.clock_mhz, after.clock_mhz):
        yield f"the clock of {after.name} went from {before.clock_mhz:.0f} to {after.clock_mhz:.0f} MHz"
    if before.temperature_c is not None and after.temperature_c is not None:
        yield from _risen(f"{after.name}'s", before.temperature_c, after.temperature_c)
    if _fullness(after) > DEVICE_FULL >= _fullness(before):
        yield f"the memory of {after.name} is nearly gone"


def _fullness(device: AcceleratorState) -> float:
    used, total = device.memory_used_mb, device.memory_total_mb
    return used / total if used is not None and total else 0.0


def _moved(before: float, after: float) -> bool:
    return abs(after - before) > CLOCK_SHARE * before


def _risen(whose: str, before_c: float, after_c: float) -> Iterator[str]:
    if after_c - before_c > TEMPERATURE_RISE_C:
        yield f"{whose} temperature rose from {before_c:.0f} to {after_c:.0f} degrees"
