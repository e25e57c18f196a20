"""NVIDIA's TensorRT for RTX: GPUs from Ampere on, a plug-in in the packages onnxruntime-ep-nv-tensorrt-rtx-cu12/-cu13.

Written from its sources and documentation (0.3 to 0.5), and not run on hardware. Importing the package has effects: it
writes links beside its libraries, loads them for the whole process and changes LD_LIBRARY_PATH. So it is imported only
where it is used. It is another thing than the TensorRT provider that onnxruntime-gpu has built in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ort_metainfer.hardware.devices import onnxruntime_hardware
from ort_metainfer.hardware.drivers import nvidia_driver_version
from ort_metainfer.problem import Device
from ort_metainfer.providers.base import Availability, Option, option_table
from ort_metainfer.providers.capabilities import Capabilities, CompiledModel, Constraints, Failing, Preferences
from ort_metainfer.providers.plugin import PlugIn, distribution_version
from ort_metainfer.providers.plugin_provider import PlugInProvider, hardware_name, memory_mb, told

__all__ = ["TensorRtRtxProvider"]

NAME = "NvTensorRTRTXExecutionProvider"
OPTIONS = "NVIDIA/TensorRT-RTX-EP-ABI, src/tensorrt_rtx_provider_options.h"
NOTES = "NVIDIA/TensorRT-RTX-EP-ABI, doc/TECHNICAL_NOTES.md"
FACTORY = "NVIDIA/TensorRT-RTX-EP-ABI, src/tensorrt_rtx_provider_factory.cc"
PACKAGE = "NVIDIA/TensorRT-RTX-EP-ABI, python/onnxruntime_ep_nv_tensorrt_rtx/__init__.py"
DISTRIBUTIONS = ("onnxruntime-ep-nv-tensorrt-rtx-cu13", "onnxruntime-ep-nv-tensorrt-rtx-cu12")
MODULE = "onnxruntime_ep_nv_tensorrt_rtx"
PLUG_IN = PlugIn(
    distribution="onnxruntime-ep-nv-tensorrt-rtx",
    module=MODULE,
    registration=NAME,
    offers=lambda ep_name: ep_name in (NAME, "nv_tensorrt_rtx"),
)
"""It takes over the name it is registered under; its own documents use both."""

NVIDIA_VENDOR_ID = 0x10DE
ON_OFF = ("0", "1")


class TensorRtRtxProvider(PlugInProvider):
    """Computes in the types of the model: it has no switch for less."""

    name: ClassVar[str] = NAME
    kinds: ClassVar[tuple[str, ...]] = ("gpu",)
    plug_in: ClassVar[PlugIn] = PLUG_IN
    oldest_onnxruntime: ClassVar[str] = "1.24"
    install: ClassVar[str] = f"pip install {DISTRIBUTIONS[0]} (CUDA 12: {DISTRIBUTIONS[1]})"
    options: ClassVar[Mapping[str, Option]] = option_table(
        Option(
            name="enable_cuda_graph",
            values=ON_OFF,
            default="",
            meaning="capture and replay; its header gives 1 as the default, earlier documents 0",
            source=OPTIONS,
        ),
        Option("nv_profile_min_shapes", (), "", "smallest shapes: name:1x3x224x224,other:1x8", source=OPTIONS),
        Option("nv_profile_opt_shapes", (), "", "shapes to be quickest at", source=OPTIONS),
        Option("nv_profile_max_shapes", (), "", "largest shapes; without the three, 0 to 32767", source=NOTES),
        Option("nv_multi_profile_enable", ON_OFF, "0", "several profiles, one chosen for each run", source=OPTIONS),
        Option(
            name="nv_max_workspace_size",
            values=(),
            default="0",
            meaning="bytes of GPU memory while an engine is built; 0: TensorRT's choice",
            source=OPTIONS,
            numbers=(0, 2**63 - 1),
        ),
        Option(
            name="nv_max_shared_mem_size",
            values=(),
            default="0",
            meaning="bytes of shared memory that kernels may use; 0: TensorRT's choice",
            source=OPTIONS,
            numbers=(0, 2**63 - 1),
        ),
        Option("nv_use_external_data_initializer", ON_OFF, "1", "read weights where they lie", source=OPTIONS),
        Option("nv_runtime_cache_path", (), "", "folder for kernels compiled at run time", source=OPTIONS),
        Option(
            name="nv_weight_streaming_budget",
            values=(),
            default="0",
            meaning="weights that stay on the GPU: 0 all, 1 as few as can be, bytes, 4M, 50%, -1 its choice",
            source=OPTIONS,
        ),
        Option("nv_op_types_to_exclude", (), "", "operators left to others: A,B", source=OPTIONS),
        Option("nv_use_sync_gpu_allocator", ON_OFF, "0", "allocate without CUDA's memory pools", source=NOTES),
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        constraints=Constraints(
            dtypes=("float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"),
            notes=(
                "GPUs of compute capability 8.0 (Ampere) and later",
                "open shapes are taken, best with a profile; one as wide as the default costs allocations in every run",
            ),
            source=f"{FACTORY}; {NOTES}",
        ),
        preferences=Preferences(layouts=("NCHW",), precisions=("float16", "bfloat16", "int8", "float32"), source=NOTES),
        compiled=CompiledModel(
            form="EPContext",
            options={"ep.context_enable": "1", "nv_runtime_cache_path": "{folder}"},
            invalidated_by=("model", "provider", "options", "shapes"),
            notes=(
                "an EPContext holds an engine that is portable across GPUs",
                "what is compiled at load, for the GPU at hand, is kept in the folder nv_runtime_cache_path",
            ),
            source=f"{OPTIONS}; onnxruntime documentation, NVIDIA TensorRT RTX Execution Provider",
        ),
        failings=(
            Failing(
                symptom="registration raises: libcuda.so.1 is missing",
                cause="no NVIDIA driver, and it wants one even to compile for another machine",
                remedy="install the driver",
                source="seen with 0.5.0 on a machine without a GPU",
            ),
            Failing(
                "creation raises on an option", "0.3.0 and later refuse names they do not know", "drop it", OPTIONS
            ),
            Failing(
                symptom="other CUDA libraries of the process behave otherwise",
                cause="importing the package loads its libraries for the whole process and changes LD_LIBRARY_PATH",
                remedy="use it in a process of its own",
                source=PACKAGE,
            ),
        ),
        driver="NVIDIA's: see hardware/drivers.py; on Windows not read",
        sources=(OPTIONS, NOTES, FACTORY, PACKAGE),
    )

    def versions(self) -> dict[str, str]:
        """The package's, and the NVIDIA driver's."""
        found = _installed()
        driver = self.driver_version()
        return {**found, "nvidia driver": driver} if found and driver else found

    def driver_version(self) -> str | None:
        """NVIDIA's, from the system's files."""
        return nvidia_driver_version()

    def _found_here(self, package: str, version: str) -> Availability:
        name, number = next(iter(_installed().items()), (package, version))
        if not any(found.vendor_id == NVIDIA_VENDOR_ID for found in onnxruntime_hardware()):
            reason = f"{name} {number} is installed; onnxruntime sees no NVIDIA GPU here"
            return Availability(False, "plug-in", reason, number)
        return Availability(True, "plug-in", f"{name} {number} is installed", number)

    def _named(self, offered: Sequence[Any]) -> Mapping[str, list[Any]]:
        """GPU 0, 1, ... in onnxruntime's order."""
        return {f"gpu:{index}": [device] for index, device in enumerate(offered)}

    def _device(self, name: str, offered: Any) -> Device:
        return Device(
            provider=self.name,
            kind="gpu",
            name=hardware_name(offered),
            vendor="NVIDIA",
            provider_device=name,
            driver=self.driver_version() or told(offered).get("version"),
            memory_mb=memory_mb(offered),
        )


def _installed() -> dict[str, str]:
    """The distribution that brought the module, with its version: one of two, for CUDA 13 or 12."""
    if PLUG_IN.version is None:
        return {}
    found = {name: distribution_version(name, MODULE) for name in DISTRIBUTIONS}
    told_versions = {name: version for name, version in found.items() if version is not None}
    return told_versions or {PLUG_IN.distribution: PLUG_IN.version}
