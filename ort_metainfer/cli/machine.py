"""The state of the machine in words, a line for each thing that a measurement depends on."""

from __future__ import annotations

from collections.abc import Iterator

from ort_metainfer.problem import AcceleratorState, HardwareState

__all__ = ["state_lines"]

UNTOLD = "not told by this system"


def state_lines(state: HardwareState) -> Iterator[tuple[str, str]]:
    """Name and text of each line; what the system does not tell is said, not left out."""
    yield "load", _load(state)
    yield "clock", _clock(state)
    yield "temperature", UNTOLD if state.temperature_c is None else f"{state.temperature_c:.0f} degrees"
    yield "throttling", UNTOLD if state.throttled is None else state.throttled or "none while looking"
    left = state.memory_available_mb
    yield "memory", UNTOLD if left is None else f"{left:.0f} MB are available"
    for device in state.devices:
        yield "accelerator", accelerator_text(device)


def _load(state: HardwareState) -> str:
    if state.busy_reason:
        return f"busy: {state.busy_reason}; threads and spinning are left alone while it is"
    if not state.is_load_known:
        return f"{UNTOLD}; threads and spinning are judged by repeated paired runs alone"
    return "quiet"


def _clock(state: HardwareState) -> str:
    words = [] if state.top_clock_mhz is None else [f"{state.top_clock_mhz:.0f} MHz (fastest core)"]
    words += [] if state.governor is None else [f"governor {state.governor}"]
    words += [] if state.boost is None else [f"boost {'on' if state.boost else 'off'}"]
    return ", ".join(words) or UNTOLD


def accelerator_text(device: AcceleratorState) -> str:
    """One line: what the driver tells, and no more."""
    figures = (
        (device.clock_mhz, "{:.0f} MHz"),
        (device.temperature_c, "{:.0f} degrees"),
        (device.utilisation, "{:.0%} busy"),
        (device.power_w, "{:.0f} W"),
        (device.memory_used_mb, "{:.0f} MB used" if device.memory_total_mb is None else "{:.0f}"),
    )
    words = [text.format(value) for value, text in figures if value is not None]
    if device.memory_used_mb is not None and device.memory_total_mb is not None:
        words[-1] += f" of {device.memory_total_mb:.0f} MB used"
    words += [f"slowed down: {device.throttled}"] if device.throttled else []
    return ", ".join([device.name, *words])
