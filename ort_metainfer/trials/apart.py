"""What of a run's time is copying: the same run with its inputs and outputs in the device's own memory.

Measured so on WebGPU over a software Vulkan; on hardware not run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from ort_metainfer.hardware.copying import CopyError, allocate

__all__ = ["bound_ms"]

RUNS = 21
"""At most; the first, which may still set something up, does not count."""

SHARE = 0.3
"""Share of the time left that it may take."""


def bound_ms(
    session: Any, feed: Mapping[str, Any], left_s: float, now_s: Callable[[], float] = time.perf_counter
) -> float | None:
    """Median milliseconds of a run without copies to and from the device.

    None where outputs lie in the host's memory anyway, where onnxruntime does not say where they lie or does not bind
    them, and where the time allows no two runs.

    Args:
        session: an onnxruntime session.
        feed: input name -> array.
        left_s: seconds left.
        now_s: the clock.
    """
    ends = now_s() + SHARE * left_s
    try:
        bound = _bound(session, feed)
        if bound is None:
            return None
        whole_ms: list[float] = []
        copy_ms: list[float] = []
        while len(whole_ms) < RUNS and now_s() < ends:
            times = [now_s()]
            for step in (bound.run, bound.fetch, bound.fetch):
                step()
                times.append(now_s())
            whole_ms.append((times[2] - times[0]) * 1000)
            copy_ms.append((times[3] - times[2]) * 1000)
    except Exception:  # noqa: BLE001 (onnxruntime's many classes: then it cannot be told)
        return None
    left_ms = median(whole_ms[1:]) - median(copy_ms[1:]) if len(whole_ms) > 1 else 0.0
    return left_ms if left_ms > 0 else None


@dataclass
class _Bound:
    """A session bound to its device's memory.

    A device may only have been told what to do when a run returns: an output fetched to the host is one that is there.
    Fetched once more, at once, it costs the copy alone.
    """

    session: Any
    binding: Any
    there: Any
    here: Any

    def run(self) -> None:
        self.session.run_with_iobinding(self.binding)

    def fetch(self) -> None:
        import onnxruntime

        onnxruntime.copy_tensors([self.there], [self.here])


def _bound(session: Any, feed: Mapping[str, Any]) -> _Bound | None:
    """A binding of every input and output to where the session takes and leaves it; None where none is the device's.

    Raises:
        CopyError: something cannot be bound.
        Exception: onnxruntime's.
    """
    import onnxruntime

    if not hasattr(session, "get_input_memory_infos") or not hasattr(onnxruntime, "copy_tensors"):
        return None
    inputs = list(zip(session.get_inputs(), session.get_input_memory_infos(), strict=True))
    outputs = list(zip(session.get_outputs(), session.get_output_memory_infos(), strict=True))
    if all(_is_host(memory) for _, memory in outputs):
        return None
    if any(not isinstance(feed.get(one.name), np.ndarray) for one, _ in inputs):
        raise CopyError("an input is no tensor")
    binding, there = session.io_binding(), dict[int, tuple[Any, Any]]()
    for one, memory in inputs:
        binding.bind_ortvalue_input(one.name, _there(feed[one.name], memory))
    for (one, memory), value in zip(outputs, session.run(None, dict(feed)), strict=True):
        if not isinstance(value, np.ndarray) or value.dtype.kind in "OUS":
            raise CopyError("an output is no tensor of numbers")
        bound = _there(value, memory)
        binding.bind_ortvalue_output(one.name, bound)
        if not _is_host(memory):
            there[value.nbytes] = bound, onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value))
    return _Bound(session, binding, *there[min(there)])


def _is_host(memory: Any) -> bool:
    return str(memory.name).lower().startswith("cpu")


def _there(value: Any, memory: Any) -> Any:
    """A copy of ``value`` in ``memory``."""
    import onnxruntime

    host = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value))
    if _is_host(memory):
        return host
    device = allocate(memory, host, value.dtype.type)
    onnxruntime.copy_tensors([host], [device])
    return device
