"""The machine in words: what is not told is said to be untold, never left out or called quiet."""

from __future__ import annotations

from dataclasses import replace

from ort_metainfer.cli.machine import accelerator_text, state_lines
from ort_metainfer.problem import AcceleratorState, HardwareState

NOTHING = HardwareState(when=0.0, window_s=0.1)


def test_a_system_that_tells_nothing_is_not_called_quiet() -> None:
    lines = dict(state_lines(NOTHING))
    assert list(lines) == ["load", "clock", "temperature", "throttling", "memory"]
    assert all(text.startswith("not told by this system") for text in lines.values())


def test_what_is_told_is_shown() -> None:
    state = replace(
        NOTHING,
        others_cpu=0.0,
        top_clock_mhz=3412.4,
        governor="powersave",
        boost=True,
        temperature_c=61.5,
        throttled="",
        memory_available_mb=2000.0,
    )
    assert dict(state_lines(state)) == {
        "load": "quiet",
        "clock": "3412 MHz (fastest core), governor powersave, boost on",
        "temperature": "62 degrees",
        "throttling": "none while looking",
        "memory": "2000 MB are available",
    }


def test_a_throttled_machine_is_busy() -> None:
    lines = dict(state_lines(replace(NOTHING, others_cpu=0.0, throttled="2 thermal events of a core")))
    assert lines["throttling"] == "2 thermal events of a core"
    assert lines["load"].startswith("busy: the processor is slowed down: 2 thermal events of a core")


def test_an_accelerator_is_one_line_of_what_its_driver_tells() -> None:
    full = AcceleratorState("NVIDIA H200 #0", 1980.0, 1024.0, 131072.0, 52.0, 0.8, "heat (driver)", 412.5)
    assert accelerator_text(full) == (
        "NVIDIA H200 #0, 1980 MHz, 52 degrees, 80% busy, 412 W, 1024 of 131072 MB used, slowed down: heat (driver)"
    )
    assert accelerator_text(AcceleratorState("intel_vpu accel0", 0.0, 96.0)) == "intel_vpu accel0, 0 MHz, 96 MB used"
    assert ("accelerator", "xe card0") in list(state_lines(replace(NOTHING, devices=(AcceleratorState("xe card0"),))))
