"""Accelerators and the versions of their drivers, as the system's files tell them: nothing is started, nothing loaded.

Linux only: elsewhere these files do not exist, and every function answers with nothing. What a file does not say stays
unknown: no table of product names is kept here, so a device without a name in the files is called by its PCI numbers.
The files' forms are from the drivers' documentation and source, named at each function; not run on hardware.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ort_metainfer.hardware.files import SYSTEM, SystemFiles

__all__ = [
    "Accelerator",
    "alveo_cards",
    "amd_gpu_driver_version",
    "amd_gpus",
    "amd_npu_driver_version",
    "amd_npus",
    "ascend_driver_version",
    "ascend_npus",
    "nvidia_driver_version",
    "nvidia_gpus",
    "system_on_chip",
    "visible",
    "xrt_version",
]

AMD, HUAWEI, XILINX = 0x1002, 0x19E5, 0x10EE
"""PCI vendor ids (pcisig.com's list): AMD's graphics, Huawei, Xilinx."""
AMD_PROCESSORS = 0x1022
"""AMD's own PCI vendor id, which its NPUs bear."""
PROCESSING_ACCELERATOR = 0x12
"""PCI base class of accelerators that draw nothing (PCI Code and ID Assignment Specification)."""
MB = 2**20


class Accelerator(NamedTuple):
    """One device; ``number`` counts those of its vendor and class in the order of their PCI addresses.

    ``uuid`` is what NVIDIA's environment variables may name it by; empty elsewhere.
    """

    kind: str
    name: str
    vendor: str
    number: int = 0
    memory_mb: float | None = None
    uuid: str = ""


# ---- NVIDIA ---------------------------------------------------------------------------------------------------------


def nvidia_driver_version(files: SystemFiles = SYSTEM) -> str | None:
    """Version of NVIDIA's kernel driver (``550.54.15``), on Jetson the release of its Linux (``L4T 36.3.0``).

    Source: NVIDIA's driver README, "Using the /proc File System Interface"; Jetson: /etc/nv_tegra_release as L4T has it
    (``# R36 (release), REVISION: 3.0, ...``; not checked).
    """
    found = re.search(r"\s(\d{2,4}\.\d+(?:\.\d+)*)\s", files.read("/proc/driver/nvidia/version") or "")
    if found:
        return found[1]
    release = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", files.read("/etc/nv_tegra_release") or "")
    return f"L4T {release[1]}.{release[2]}" if release else _module_version(files, "nvidia")


def nvidia_gpus(files: SystemFiles = SYSTEM) -> tuple[Accelerator, ...]:
    """NVIDIA's GPUs that its driver has taken; a Jetson's one; under WSL one without a name.

    Their memory is not in these files. Source: as :func:`nvidia_driver_version`; WSL: Microsoft's "GPU accelerated ML
    training in WSL", whose device is /dev/dxg.
    """
    folder = "/proc/driver/nvidia/gpus"
    told = [_fields(files.read(f"{folder}/{address}/information") or "") for address in files.names(folder)]
    if told:
        return tuple(
            Accelerator("gpu", one.get("model", "NVIDIA GPU"), "NVIDIA", index, uuid=one.get("gpu uuid", ""))
            for index, one in enumerate(told)
        )
    if files.read("/etc/nv_tegra_release"):
        return (Accelerator("gpu", _device_tree_model(files) or "NVIDIA Jetson", "NVIDIA"),)
    under_wsl = "dxg" in files.names("/dev") and bool(files.names("/usr/lib/wsl/lib"))
    return (Accelerator("gpu", "GPU of the Windows host", ""),) if under_wsl else ()


def visible(devices: Sequence[Accelerator], environment: Mapping[str, str], variable: str) -> tuple[Accelerator, ...]:
    """The devices that ``variable`` (``CUDA_VISIBLE_DEVICES``, ``HIP_VISIBLE_DEVICES``) leaves, renumbered.

    It names them by number or by the beginning of their UUID; what follows a name that fits none is not seen either
    (CUDA C++ Programming Guide, "CUDA Environment Variables").
    """
    text = environment.get(variable)
    if text is None:
        return tuple(devices)
    seen: list[Accelerator] = []
    for word in (part.strip() for part in text.split(",")):
        fits = [device for device in devices if word == str(device.number) or (word and device.uuid.startswith(word))]
        if len(fits) != 1:
            break
        seen.append(fits[0]._replace(number=len(seen)))
    return tuple(seen)


# ---- AMD ------------------------------------------------------------------------------------------------------------


def amd_gpu_driver_version(files: SystemFiles = SYSTEM) -> str | None:
    """``amdgpu 6.8.5`` where the driver is AMD's package (the kernel's own has no version), else ``ROCm 6.4.1``.

    Source: /sys/module/NAME/version is the kernel's; /opt/rocm/.info/version as ROCm's packages have it (not checked).
    """
    module = _module_version(files, "amdgpu")
    if module:
        return f"amdgpu {module}"
    rocm = (files.read("/opt/rocm/.info/version", 256) or "").strip()
    return f"ROCm {rocm}" if rocm else None


def amd_gpus(files: SystemFiles = SYSTEM) -> tuple[Accelerator, ...]:
    """AMD's GPUs with their memory.

    Source: kernel documentation, "amdgpu driver: GPU memory usage information" (``mem_info_vram_total``, bytes) and
    "GPU SR-IOV, product information" (``product_name``, on server boards only).
    """
    found: list[Accelerator] = []
    for card in files.names("/sys/class/drm"):
        device = f"/sys/class/drm/{card}/device"
        if re.fullmatch(r"card\d+", card) and _number(files, f"{device}/vendor") == AMD:
            name = (files.read(f"{device}/product_name", 256) or "").strip()
            memory = files.number(f"{device}/mem_info_vram_total")
            number = _number(files, f"{device}/device") or 0
            named = name or f"AMD GPU {number:#06x}"
            found.append(Accelerator("gpu", named, "AMD", len(found), memory / MB if memory else None))
    return tuple(found)


def amd_npu_driver_version(files: SystemFiles = SYSTEM) -> str | None:
    """``amdxdna 2.18.0`` where the driver is AMD's package, with the firmware's version where the driver tells it.

    Source: the kernel's drivers/accel/amdxdna/amdxdna_sysfs.c (``fw_version``).
    """
    firmware = next((text for _, _, text in _amdxdna(files) if text), None)
    words = [("amdxdna", _module_version(files, "amdxdna")), ("firmware", firmware)]
    return ", ".join(f"{name} {version}" for name, version in words if version) or None


def amd_npus(files: SystemFiles = SYSTEM) -> tuple[Accelerator, ...]:
    """AMD's NPUs. Source: the kernel's drivers/accel/amdxdna/amdxdna_sysfs.c (``vbnv``: the device's name)."""
    return tuple(
        Accelerator("npu", name or f"AMD NPU {device:#06x}", "AMD", index)
        for index, (name, device, _) in enumerate(_amdxdna(files))
    )


def _amdxdna(files: SystemFiles) -> Iterator[tuple[str, int, str]]:
    """Name, PCI device id and firmware of each."""
    for entry in files.names("/sys/class/accel"):
        device = f"/sys/class/accel/{entry}/device"
        if _number(files, f"{device}/vendor") == AMD_PROCESSORS:
            name, firmware = ((files.read(f"{device}/{file}", 256) or "").strip() for file in ("vbnv", "fw_version"))
            yield name, _number(files, f"{device}/device") or 0, firmware


# ---- Xilinx, Huawei, systems on a chip ------------------------------------------------------------------------------


def xrt_version(files: SystemFiles = SYSTEM) -> str | None:
    """Version of AMD's XRT, the runtime of its FPGAs. Source: XRT's installed version.json (not checked)."""
    try:
        told = json.loads(files.read("/opt/xilinx/xrt/version.json") or "{}")
    except ValueError:
        return None
    version = told.get("BUILD_VERSION") or told.get("VERSION") if isinstance(told, dict) else None
    return f"XRT {version}" if isinstance(version, str) and version else None


def alveo_cards(files: SystemFiles = SYSTEM) -> tuple[Accelerator, ...]:
    """Xilinx's accelerator cards on the PCI bus; a card shows as several functions, of which the first counts."""
    found: dict[str, Accelerator] = {}
    for address, number in _pci_accelerators(files, XILINX):
        slot = address.rpartition(".")[0]
        found.setdefault(slot, Accelerator("fpga", f"AMD Xilinx card {number:#06x}", "AMD", len(found)))
    return tuple(found.values())


def ascend_driver_version(files: SystemFiles = SYSTEM) -> str | None:
    """Version of Huawei's Ascend driver; its folder is in /etc/ascend_install.info where it is not the default one.

    Source: /etc/ascend_install.info (``Driver_Install_Path_Param``) as Ascend's Vision SDK reads it; version.info
    beside the driver: not checked.
    """
    installed = _fields(files.read("/etc/ascend_install.info") or "", "=")
    folder = installed.get("driver_install_path_param", "/usr/local/Ascend")
    return _fields(files.read(f"{folder}/driver/version.info") or "", "=").get("version") or None


def ascend_npus(files: SystemFiles = SYSTEM) -> tuple[Accelerator, ...]:
    """Huawei's accelerators on the PCI bus."""
    return tuple(
        Accelerator("npu", f"Huawei Ascend {number:#06x}", "Huawei", index)
        for index, (_, number) in enumerate(_pci_accelerators(files, HUAWEI))
    )


def system_on_chip(files: SystemFiles = SYSTEM) -> str | None:
    """What the chip or the board calls itself. Source: the kernel's Documentation/ABI/testing/sysfs-devices-soc."""
    folder = "/sys/devices/soc0"
    words = [(files.read(f"{folder}/{file}", 256) or "").strip() for file in ("family", "machine")]
    return " ".join(dict.fromkeys(word for word in words if word)) or _device_tree_model(files)


# ---- reading --------------------------------------------------------------------------------------------------------


def _pci_accelerators(files: SystemFiles, vendor: int) -> Iterator[tuple[str, int]]:
    """Address and device id of each processing accelerator of ``vendor``."""
    folder = "/sys/bus/pci/devices"
    for address in files.names(folder):
        if _number(files, f"{folder}/{address}/vendor") == vendor:
            code = _number(files, f"{folder}/{address}/class") or 0
            if code >> 16 == PROCESSING_ACCELERATOR:
                yield address, _number(files, f"{folder}/{address}/device") or 0


def _module_version(files: SystemFiles, module: str) -> str | None:
    return (files.read(f"/sys/module/{module}/version", 256) or "").strip() or None


def _device_tree_model(files: SystemFiles) -> str | None:
    return (files.read("/proc/device-tree/model", 256) or "").strip("\0\n ") or None


def _fields(text: str, separator: str = ":") -> dict[str, str]:
    """Lines of a key and a value -> value by key in lower case."""
    pairs = (line.partition(separator) for line in text.splitlines())
    return {key.strip().lower(): value.strip() for key, found, value in pairs if found}


def _number(files: SystemFiles, path: str) -> int | None:
    """A file that holds one number as sysfs writes ids: ``0x10de``."""
    text = (files.read(path, 64) or "").strip()
    try:
        return int(text, 0)
    except ValueError:
        return None
