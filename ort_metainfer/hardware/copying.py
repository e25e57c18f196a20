"""Copies between the host's memory and a device's, by onnxruntime itself, without a model that would have to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["CopyError", "allocate", "copy_runner"]

BUILT_IN = {"Cuda": "cuda", "Cann": "cann", "DML": "dml"}
"""Name of a memory, as onnxruntime gives it -> how OrtValue calls its device."""


class CopyError(Exception):
    """Nothing can be copied to or from the memory that a session takes its inputs in."""


def copy_runner(session: Any, size_bytes: int, to_device: bool) -> Callable[[], object]:
    """A function that copies ``size_bytes`` once, to the memory that ``session`` takes its inputs in or back from it.

    Its first copy is done here. With onnxruntime 1.23 and later.

    Raises:
        CopyError: the provider takes its inputs in the host's memory, or onnxruntime cannot copy there.
    """
    import onnxruntime

    memory = _input_memory(session)
    host = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(max(1, size_bytes // 4), np.float32))
    try:
        device = allocate(memory, host)
        source, target = ([host], [device]) if to_device else ([device], [host])
        onnxruntime.copy_tensors([host], [device])
        onnxruntime.copy_tensors(source, target)
    except Exception as error:
        raise CopyError(f"onnxruntime cannot copy to {memory.name}: {' '.join(str(error).split())[:300]}") from error
    return lambda: onnxruntime.copy_tensors(source, target)


def _input_memory(session: Any) -> Any:
    import onnxruntime

    if not hasattr(session, "get_input_memory_infos") or not hasattr(onnxruntime, "copy_tensors"):
        raise CopyError(f"onnxruntime {onnxruntime.__version__} does not say which memory a session's inputs are in")
    memory = session.get_input_memory_infos()[0]
    if memory.name.lower().startswith("cpu"):
        raise CopyError("the provider takes its inputs in the host's memory")
    return memory


def allocate(memory: Any, host: Any, dtype: Any = np.float32) -> Any:
    """A tensor like ``host`` in ``memory``; built-in providers' memory is allocated by its device.

    Raises:
        Exception: onnxruntime's, where none can be had there.
    """
    import onnxruntime

    try:
        return onnxruntime.OrtValue.ortvalue_from_shape_and_type(host.shape(), dtype, memory_info=memory)
    except Exception:
        device = BUILT_IN.get(memory.name)
        if device is None:
            raise
        return onnxruntime.OrtValue.ortvalue_from_shape_and_type(host.shape(), dtype, device, memory.device_id)
