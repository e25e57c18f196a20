"""For tests and measurements only: on PYTHONPATH, it makes onnxruntime report the CPU as Intel's.

The plug-in package onnxruntime-ep-openvino offers a device only where onnxruntime's hardware discovery says vendor
0x8086, though OpenVINO's CPU library runs on any x86-64. This module rewrites that one number in onnxruntime's own
record, in this process and (through PYTHONPATH) in its children, so that the adapter can be tested on other CPUs.
It acts once, right after the first import of onnxruntime, and raises RuntimeError where memory does not look as
expected.
"""

import ctypes
import sys
from importlib.machinery import PathFinder

INTEL = 0x8086
VALUE_POINTER_OFFSET = 16  # pybind11's instance: the object header, then the pointer to the C++ value


def report_intel_cpu():
    """Set vendor_id of onnxruntime's CPU hardware device to Intel's.

    Raises:
        RuntimeError: the device's memory does not begin with its type, vendor id and device id.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as binding

    if not hasattr(binding, "get_hardware_devices"):
        raise RuntimeError("vendor override: this onnxruntime does not list its hardware devices")
    cpu = next(device for device in binding.get_hardware_devices() if device.type.name == "CPU")
    if cpu.vendor_id == INTEL:
        return
    address = ctypes.c_void_p.from_address(id(cpu) + VALUE_POINTER_OFFSET).value
    record = (ctypes.c_uint32 * 3).from_address(address)
    expected = [int(cpu.type), cpu.vendor_id, cpu.device_id]
    if list(record) != expected:
        raise RuntimeError(f"vendor override: expected {expected} in onnxruntime's device record, found {list(record)}")
    record[1] = INTEL
    if cpu.vendor_id != INTEL:
        raise RuntimeError("vendor override: onnxruntime does not read its vendor id from that record")


class AfterOnnxruntime:
    """Meta-path finder that lets onnxruntime load as ever and then calls report_intel_cpu()."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        """Find onnxruntime where it really is, with a loader that acts after it; nothing for any other module."""
        if name != "onnxruntime":
            return None
        sys.meta_path.remove(cls)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_then_act(module):
                load(module)
                report_intel_cpu()

            spec.loader.exec_module = load_then_act
        return spec


sys.meta_path.insert(0, AfterOnnxruntime)
