"""WebGPU: any GPU with a Vulkan, Direct3D 12 or Metal driver, a plug-in in the package onnxruntime-ep-webgpu.

Seen with 0.4.0 on Linux under onnxruntime 1.32.0, on a software rasteriser (SwiftShader), and not run on a GPU:

* It offers one device and picks the adapter itself. Where onnxruntime sees no GPU it offers none, unless the user sets
  ``ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1``; then it offers one even where there is no Vulkan at all, and creation
  raises EPFail.
* An option it does not know it takes without a word; a value it does not know raises EPFail.
* ``enableGraphCapture`` is not among the options here: with it, ``run()`` raises ValueError (it wants
  ``run_with_iobinding`` and fixed device tensors), so it cannot be chosen on a caller's behalf.
* With its own default layout, NHWC, some convolutions are wrong: kernel 3 with 9, 15, 33 or 129 input channels (right
  with 3, 5, 7, 17, 31, 65, 127, 128 or 130), and by them silero_vad. With NCHW all of them are right. So this adapter
  asks for NCHW unless a strategy says otherwise.
* Nothing compiled is kept: shaders are compiled in every process, at the first run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from ort_metainfer.hardware.devices import onnxruntime_hardware
from ort_metainfer.hardware.drivers import amd_gpu_driver_version, nvidia_driver_version
from ort_metainfer.hardware.files import SYSTEM, SystemFiles
from ort_metainfer.problem import Device
from ort_metainfer.providers.base import INT_MAX, Availability, Option, option_table
from ort_metainfer.providers.capabilities import Capabilities, CompiledModel, Constraints, Failing, Preferences
from ort_metainfer.providers.plugin import PlugIn
from ort_metainfer.providers.plugin_provider import PlugInProvider, hardware_name, memory_mb, told

__all__ = ["WebGpuProvider"]

NAME = "WebGpuExecutionProvider"
SOURCE = "onnxruntime, core/providers/webgpu/webgpu_provider_factory.cc and webgpu_provider_options.h"
SEEN = "seen with onnxruntime-ep-webgpu 0.4.0 on SwiftShader"
PLUG_IN = PlugIn(
    distribution="onnxruntime-ep-webgpu",
    module="onnxruntime_ep_webgpu",
    registration=NAME,
    offers=lambda ep_name: ep_name == NAME,
)
SOFTWARE = "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"
"""Set to 1 by a user who wants a software rasteriser, before anything is registered."""

LOADER = "libvulkan.so.1"
LOADER_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
ON_OFF = ("0", "1")
CACHE_MODES = ("disabled", "lazyRelease", "simple", "bucket")


def _cache(name: str, default: str, what: str, *, left_out: str = "", source: str = SOURCE) -> Option:
    modes = tuple(mode for mode in CACHE_MODES if mode != left_out)
    return Option(name, modes, default, f"how {what} are kept for the next use", source=source)


class WebGpuProvider(PlugInProvider):
    """One device, whichever adapter Dawn (Google's implementation of WebGPU) picks. Exact in float32."""

    name: ClassVar[str] = NAME
    kinds: ClassVar[tuple[str, ...]] = ("gpu",)
    plug_in: ClassVar[PlugIn] = PLUG_IN
    oldest_onnxruntime: ClassVar[str] = "1.24.4"
    proven: ClassVar[str] = "a software rasteriser (SwiftShader) only"
    options: ClassVar[Mapping[str, Option]] = option_table(
        Option(
            name="preferredLayout",
            values=("NCHW", "NHWC"),
            default="NCHW",
            meaning="memory layout that convolutions are given; NHWC, the provider's own default, is wrong for some",
            lossy_values=("NHWC",),
            source=f"{SOURCE}; the error: {SEEN}",
        ),
        Option(
            name="powerPreference",
            values=("high-performance", "low-power"),
            default="high-performance",
            meaning="which of several GPUs; the first session of a process decides",
            source=SOURCE,
        ),
        Option(
            name="dawnBackendType",
            values=("D3D12", "Vulkan"),
            default="",
            meaning="graphics interface; unset, the system's own; the first session of a process decides",
            source=SOURCE,
        ),
        _cache("storageBufferCacheMode", "bucket", "buffers of tensors"),
        _cache(
            "uniformBufferCacheMode",
            "simple",
            "buffers of parameters",
            left_out="bucket",
            source=f"{SOURCE}; without bucket, which gives wrong results: {SEEN}",
        ),
        _cache("queryResolveBufferCacheMode", "disabled", "buffers of timestamps"),
        _cache("defaultBufferCacheMode", "disabled", "other buffers"),
        Option("enableInt64", ON_OFF, "0", "run operators on int64 on the GPU, too", source=SOURCE),
        Option(
            name="validationMode",
            values=("disabled", "wgpuOnly", "basic", "full"),
            default="basic",
            meaning="how much every dispatch is checked; disabled is quickest; the first session of a process decides",
            source=SOURCE,
        ),
        Option("enableRobustness", ON_OFF, "", "bounds checks in shaders", source=SOURCE),
        Option(
            name="maxNumPendingDispatches",
            values=(),
            default="16",
            meaning="dispatches that are collected before they are handed to the GPU",
            source=SOURCE,
            numbers=(1, INT_MAX),
        ),
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        constraints=Constraints(
            dtypes=("float32", "float16", "int32", "uint32", "bool"),
            notes=(
                "float16 where the adapter has the feature shader-f16 (SwiftShader has not)",
                "int64 stays on the CPU unless enableInt64=1",
                "open shapes are taken; shapes that change cost buffers anew",
            ),
            source=f"{SOURCE}; {SEEN}",
        ),
        preferences=Preferences(layouts=("NCHW",), precisions=("float16", "float32"), source=SEEN),
        compiled=CompiledModel(
            form="none",
            notes=("shaders are compiled in every process at the first run: count it as start-up time",),
            source=SEEN,
        ),
        failings=(
            Failing("no device", "onnxruntime sees no GPU", f"a GPU's driver, or {SOFTWARE}=1 for software", SEEN),
            Failing(
                "creation raises EPFail", "no Vulkan loader, or no adapter", f"install {LOADER} and a driver", SEEN
            ),
            Failing("an option has no effect", "its name is misspelt: taken without a word", "check its name", SEEN),
            Failing(
                symptom="powerPreference, dawnBackendType or validationMode has no effect",
                cause="an earlier session of the process opened the adapter",
                remedy="set them in the first session",
                source=SEEN,
            ),
            Failing(
                symptom="wrong results, nothing said (silero_vad: relative error 0.2 to 0.5)",
                cause="convolutions in layout NHWC, its own default, with some numbers of input channels (9, 33, 129)",
                remedy="preferredLayout=NCHW, which this adapter asks for",
                source=SEEN,
            ),
            Failing("wrong results, nothing said (two MatMul)", "uniformBufferCacheMode=bucket", "simple", SEEN),
            Failing("run() raises ValueError", "enableGraphCapture=1", "leave it off, or use run_with_iobinding", SEEN),
        ),
        driver="NVIDIA and AMD: see hardware/drivers.py; Mesa's version is told by no file: the kernel's stands for it",
        sources=(SOURCE, SEEN),
    )

    def versions(self) -> dict[str, str]:
        """The package's, and the graphics driver's."""
        found = super().versions()
        driver = self.driver_version()
        return {**found, "graphics driver": driver} if found and driver else found

    def driver_version(self) -> str | None:
        """NVIDIA's driver, else the running kernel's graphics drivers; the rasteriser's name where it is software."""
        if _gpu() is None:
            return _software_driver() if _software_is_allowed() else None
        return nvidia_driver_version() or amd_gpu_driver_version() or _kernel()

    def _given(self, name: str, properties: Mapping[str, str]) -> dict[str, str]:
        return {"preferredLayout": "NCHW", **properties}

    def _found_here(self, package: str, version: str) -> Availability:
        has_gpu = _gpu() is not None
        if not has_gpu and not _software_is_allowed():
            reason = f"{package} is installed; onnxruntime sees no GPU here (set {SOFTWARE}=1 for a software adapter)"
            return Availability(False, "plug-in", reason, version)
        if sys.platform == "linux" and not has_vulkan_loader():
            reason = f"{package} needs the Vulkan loader {LOADER}; install it (Debian: apt install libvulkan1)"
            return Availability(False, "plug-in", reason, version)
        if has_gpu:
            return Availability(True, "plug-in", f"{package} is installed", version)
        reason = f"{package} may use a software adapter, as {SOFTWARE}=1 says; used only where named: providers=WebGpu"
        return Availability(True, "plug-in", reason, version, emulated=True)

    def _not_installed(self) -> str:
        reason = super()._not_installed()
        return reason if _gpu() is not None else f"{reason}; onnxruntime sees no GPU here"

    def _no_device(self) -> str:
        return (
            f"{PLUG_IN.distribution} {PLUG_IN.version} offers no device; if {SOFTWARE} was set in this process, it may "
            "have come too late: set it before Python starts"
        )

    def _device(self, name: str, offered: Any) -> Device:
        emulated = offered.device.type.name != "GPU"
        return Device(
            provider=self.name,
            kind="gpu",
            name=f"software rasteriser {_software_driver()}" if emulated else hardware_name(offered),
            vendor="" if emulated else offered.device.vendor,
            driver=self.driver_version() or told(offered).get("version"),
            memory_mb=None if emulated else memory_mb(offered),
            emulated=emulated,
        )


def _gpu() -> Any:
    return next((found for found in onnxruntime_hardware() if found.kind == "gpu"), None)


def _software_is_allowed() -> bool:
    return os.environ.get(SOFTWARE) == "1"


def _software_driver() -> str:
    """Name of the driver that the user chose for the Vulkan loader, by its file; empty where he chose none."""
    chosen = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES") or ""
    return Path(chosen.split(os.pathsep)[0]).stem if chosen else "(the system's choice)"


def _kernel(files: SystemFiles = SYSTEM) -> str | None:
    """The kernel, which brings the drivers of graphics that have no version of their own."""
    kernel = files.read("/proc/sys/kernel/osrelease")
    return f"Linux {kernel.strip()}" if kernel else None


@lru_cache(maxsize=4)
def has_vulkan_loader(files: SystemFiles = SYSTEM) -> bool:
    """Whether the dynamic linker would find the Vulkan loader: in LD_LIBRARY_PATH, its cache or the usual folders."""
    own = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    if any((folder / LOADER).exists() for folder in own):
        return True
    if LOADER in (files.read("/etc/ld.so.cache", 4_000_000) or ""):
        return True
    return any(LOADER in files.names(folder) for folder in LOADER_FOLDERS)
