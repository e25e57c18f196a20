"""Qualcomm's QNN: the NPU (Hexagon HTP), GPU and reference CPU backends, a plug-in in the package onnxruntime-qnn.

On x86-64 the package brings the *simulator* of the NPU: it executes, exactly as far as quantised graphs go, and slowly.
So there it is emulated, and good for preparing a compiled model, not for timing.

Seen with 2.7.0 on x86-64 Linux under onnxruntime 1.32.0: without ``backend_type`` creation raises; asked for by name in
``providers=`` it is dropped without a word; with open shapes it takes nothing, without a word. Everything about Arm is
from its documentation and not run on hardware.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

from ort_metainfer.errors import ProviderError, StrategyError
from ort_metainfer.hardware.drivers import system_on_chip
from ort_metainfer.hardware.files import SYSTEM, SystemFiles
from ort_metainfer.problem import Device
from ort_metainfer.providers.base import INT_MAX, Availability, Option, option_table
from ort_metainfer.providers.capabilities import Capabilities, CompiledModel, Constraints, Failing, Preferences
from ort_metainfer.providers.plugin import PlugIn
from ort_metainfer.providers.plugin_provider import PlugInProvider, told
from ort_metainfer.strategy import Strategy

__all__ = ["QnnProvider"]

NAME = "QNNExecutionProvider"
DOCUMENT = "onnxruntime-qnn, docs/execution_providers/QNN-ExecutionProvider.md"
SEEN = "seen with onnxruntime-qnn 2.7.0 on x86-64 Linux"
PLUG_IN = PlugIn(
    distribution="onnxruntime-qnn",
    module="onnxruntime_qnn",
    registration=NAME,
    offers=lambda ep_name: ep_name == NAME,
)
X86 = ("x86_64", "amd64")
BACKENDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"htp": ("npu", "QnnHtp"), "gpu": ("gpu", "QnnGpu"), "cpu": ("cpu", "QnnCpu")}
)
"""Backend, best first -> its device class, and the library that must lie in the package."""
HARDWARE_TYPES: Mapping[str, str] = MappingProxyType({"npu": "htp", "gpu": "gpu"})
"""Class of the hardware that onnxruntime offers the provider on -> backend that drives it."""

PERFORMANCE_MODES = (
    "default",
    "burst",
    "sustained_high_performance",
    "high_performance",
    "balanced",
    "low_balanced",
    "high_power_saver",
    "power_saver",
    "low_power_saver",
    "extreme_power_saver",
)
ON_OFF = ("0", "1")


class QnnProvider(PlugInProvider):
    """The adapter always says which backend; without an option that is the NPU's."""

    name: ClassVar[str] = NAME
    kinds: ClassVar[tuple[str, ...]] = ("npu", "gpu", "cpu")
    default_is_lossy: ClassVar[bool] = True
    exact: ClassVar[Mapping[str, str]] = MappingProxyType({"enable_htp_fp16_precision": "0"})
    plug_in: ClassVar[PlugIn] = PLUG_IN
    oldest_onnxruntime: ClassVar[str] = "1.24.2"
    proven: ClassVar[str] = "the x86-64 simulator only"
    options: ClassVar[Mapping[str, Option]] = option_table(
        Option("backend_type", tuple(BACKENDS), "htp", "NPU, GPU, or the reference CPU backend", source=DOCUMENT),
        Option(
            name="htp_performance_mode",
            values=PERFORMANCE_MODES,
            default="default",
            meaning="clocks and voltage that are voted for while it runs: burst is the fastest, and the hottest",
            source=DOCUMENT,
        ),
        Option(
            name="htp_graph_finalization_optimization_mode",
            values=("0", "1", "2", "3"),
            default="0",
            meaning="how long to look for a better graph at creation; 3 looks longest, 1 is quicker than 0",
            source=DOCUMENT,
        ),
        Option(
            name="enable_htp_fp16_precision",
            values=ON_OFF,
            default="1",
            meaning="compute float32 graphs in float16; on x86-64 Linux, 1 demands soc_model",
            lossy_values=("1",),
            source=f"{DOCUMENT}; the demand: message in the library, 2.7.0",
        ),
        Option(
            name="htp_bf16_enable",
            values=("1",),
            default="",
            meaning="compute float32 graphs in bfloat16; unset is off; demands soc_model 88 or above",
            lossy_values=("1",),
            source=DOCUMENT,
        ),
        Option(
            "vtcm_mb", (), "0", "tightly coupled memory, MB; 0 leaves it to QNN", source=DOCUMENT, numbers=(0, INT_MAX)
        ),
        Option("soc_model", (), "0", "number of the chip that is compiled for", source=DOCUMENT, numbers=(0, INT_MAX)),
        Option(
            name="htp_arch",
            values=("0", "68", "69", "73", "75", "79", "81"),
            default="0",
            meaning="version of the NPU that is compiled for; 0 leaves it to QNN; soc_model wins over it",
            source=f"{DOCUMENT} (up to 75) and QAIRT's QnnHtpDevice.h",
        ),
        Option(
            name="offload_graph_io_quantization",
            values=ON_OFF,
            default="1",
            meaning="leave the quantisation of inputs and outputs to the CPU; 0 takes it to the NPU",
            source=DOCUMENT,
        ),
        Option(
            name="qnn_context_priority",
            values=("low", "normal", "normal_high", "high"),
            default="normal",
            meaning="priority against other programs that use the NPU",
            source=DOCUMENT,
        ),
        Option("rpc_control_latency", (), "0", "microseconds; 0: not set", source=DOCUMENT, numbers=(0, INT_MAX)),
        Option("enable_htp_spill_fill_buffer", ON_OFF, "0", "one spill buffer for all contexts", source=DOCUMENT),
        Option(
            "enable_htp_shared_memory_allocator", ON_OFF, "0", "inputs without a copy (libcdsprpc)", source=DOCUMENT
        ),
        Option("extended_udma", ON_OFF, "0", "wider DMA addressing, where the NPU has it", source=DOCUMENT),
        Option(
            name="enable_block_quant_weight_optimization",
            values=ON_OFF,
            default="0",
            meaning="the quick path for weights that are quantised in blocks",
            source=DOCUMENT,
        ),
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        constraints=Constraints(
            static_shapes=True,
            quantised="preferred",
            dtypes=("float32", "float16", "int32", "int16", "uint16", "int8", "uint8", "bool"),
            max_rank=5,
            notes=(
                "the NPU computes quantised graphs (QDQ, 8 or 16 bit activations); float32 graphs run as float16",
                "int64 is taken for indices and shapes only",
            ),
            source=f"{DOCUMENT}; {SEEN}",
        ),
        preferences=Preferences(layouts=("NHWC",), precisions=("int8", "a16w8", "float16"), source=DOCUMENT),
        compiled=CompiledModel(
            form="EPContext",
            options={"ep.context_enable": "1", "ep.context_file_path": "{folder}/model_ctx.onnx"},
            invalidated_by=("model", "provider", "device", "options", "shapes"),
            notes=(
                "compiled for one soc_model or htp_arch; QNN loads older contexts on newer chips, not the other way",
                "a second start of a ResNet-18 took 0.04 s in place of 1.84 s, with the same outputs",
            ),
            source=f"{DOCUMENT}, QNN context binary cache feature; {SEEN}",
        ),
        failings=(
            Failing("runs on the CPU, no node is taken", "an open dimension", "fix the shapes", SEEN),
            Failing("runs on the CPU, not even listed", "asked for by name", "attach it by its devices", SEEN),
            Failing("creation raises Fail", "no backend_type on a host without Qualcomm hardware", "give it", SEEN),
            Failing(
                symptom="creation raises: Failed to finalize QNN graph, error 1002",
                cause="some float32 graphs",
                remedy="quantise the model (QDQ)",
                source=SEEN,
            ),
            Failing("runs on the CPU after an error in the log", "libQnnCpu.so is not in the package", "use htp", SEEN),
            Failing(
                symptom="creation raises: soc_model is not specified",
                cause="enable_htp_fp16_precision=1 on x86-64 Linux, or htp_bf16_enable=1, without it",
                remedy="set soc_model to the chip that is compiled for",
                source="message in the library, 2.7.0",
            ),
        ),
        driver="the chip: /sys/devices/soc0/machine and soc_id; no version of firmware or driver is told",
        sources=(DOCUMENT, SEEN),
    )

    def _found_here(self, package: str, version: str) -> Availability:
        if _is_simulated():
            reason = f"{package} brings the NPU's simulator for x86-64; used only where named: providers=QNN"
            return Availability(True, "plug-in", reason, version, emulated=True)
        if not _has_qualcomm_hardware():
            return Availability(
                False, "plug-in", f"{package} is installed; there is no Qualcomm hardware here", version
            )
        return Availability(True, "plug-in", f"{package} is installed", version)

    def _named(self, offered: Sequence[Any]) -> Mapping[str, list[Any]]:
        """Backend -> OrtEpDevices. What is offered on CPU hardware stands for the NPU where no NPU is offered."""
        named: dict[str, list[Any]] = {backend: [] for backend in BACKENDS}
        for device in offered:
            kind = device.device.type.name.lower()
            named[HARDWARE_TYPES.get(kind, "cpu")].append(device)
        on_cpu = named["cpu"]
        if not named["htp"]:
            named["htp"] = on_cpu
        if not _has_library(on_cpu, "QnnCpu"):
            named["cpu"] = []
        return named

    def _device(self, name: str, offered: Any) -> Device:
        kind, _ = BACKENDS[name]
        emulated = _is_simulated() and name == "htp"
        return Device(
            provider=self.name,
            kind=kind,
            name="Hexagon HTP simulator" if emulated else _hardware_name(name),
            vendor="Qualcomm",
            provider_device=name,
            driver=self.plug_in.version,
            emulated=emulated,
        )

    def _chosen(self, strategy: Strategy, offered: Mapping[str, list[Any]]) -> str:
        """The backend that an option names, else the device, else the best."""
        asked = strategy.provider_options.get("backend_type")
        if asked is None:
            return super()._chosen(strategy, offered)
        if strategy.device not in (None, asked):
            raise StrategyError(
                f"{self.name}: backend_type is {asked} and the device {strategy.device}: say one of them"
            )
        if asked not in offered:
            raise ProviderError(f"{self.name} offers no backend {asked!r} here; it offers {', '.join(offered)}")
        return asked

    def _given(self, name: str, properties: Mapping[str, str]) -> dict[str, str]:
        return {**properties, "backend_type": name}


def _is_simulated() -> bool:
    """Whether the package's NPU library is the simulator: it is on every x86-64 system."""
    return _machine() in X86


@lru_cache(maxsize=1)
def _machine() -> str:
    return platform.machine().lower()


def _has_qualcomm_hardware(files: SystemFiles = SYSTEM) -> bool:
    """Whether this is one of Qualcomm's chips, as Linux tells it; elsewhere onnxruntime's own discovery decides."""
    from ort_metainfer.hardware.devices import cpu_device, onnxruntime_hardware

    if any("qualcomm" in found.vendor.lower() for found in onnxruntime_hardware()):
        return True
    return cpu_device().vendor == "Qualcomm" or files.read("/sys/devices/soc0/soc_id") is not None


def _has_library(offered: Sequence[Any], name: str) -> bool:
    """Whether a backend's library lies beside the provider's own."""
    folders = {os.path.dirname(told(device).get("library_path", "")) for device in offered}
    return any(os.path.exists(os.path.join(folder, file)) for folder in folders for file in _files(name))


def _files(name: str) -> tuple[str, ...]:
    return (f"lib{name}.so", f"{name}.dll")


def _hardware_name(backend: str, files: SystemFiles = SYSTEM) -> str:
    """The chip as Linux names it, with the part of it that the backend drives."""
    chip = system_on_chip(files) or "Snapdragon"
    return f"{chip} {({'htp': 'Hexagon HTP', 'gpu': 'Adreno'}).get(backend, 'CPU')}"
