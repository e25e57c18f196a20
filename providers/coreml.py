"""Apple's Neural Engine, GPU and CPU through Core ML: compiled into onnxruntime's macOS packages.

Core ML chooses, operator by operator, which of the allowed compute units runs it. The Neural Engine computes in
float16, and the older model format (``NeuralNetwork``, the default) casts float32 to float16 on the GPU too, so only
``MLComputeUnits=CPUOnly`` keeps float32 for sure: its header calls that the reference without loss of precision.

Not offered: ``ProfileComputePlan``, which only logs. Not run on hardware.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import ClassVar

from ort_metainfer.hardware.devices import cpu_device
from ort_metainfer.hardware.drivers import Accelerator
from ort_metainfer.providers.base import Option, option_table
from ort_metainfer.providers.built_in import BuiltInProvider
from ort_metainfer.providers.capabilities import Capabilities, CompiledModel, Constraints, Failing, Preferences

__all__ = ["CoreMlProvider"]

DOCUMENT = "onnxruntime.ai, docs/execution-providers/CoreML-ExecutionProvider"
HEADER = "onnxruntime, include/onnxruntime/core/providers/coreml/coreml_provider_factory.h"
SOURCE = "onnxruntime, onnxruntime/core/providers/coreml/coreml_options.cc"
CACHE = "onnxruntime, pull request 23065 (support coreml model cache)"
OFF_ON = ("0", "1")


class CoreMlProvider(BuiltInProvider):
    """One device that stands for all compute units; which of them are allowed is an option. Not run on hardware."""

    name: ClassVar[str] = "CoreMLExecutionProvider"
    kinds: ClassVar[tuple[str, ...]] = ("npu", "gpu", "cpu")
    install: ClassVar[str] = "onnxruntime's macOS packages have it built in: pip install onnxruntime"
    systems: ClassVar[tuple[str, ...]] = ("darwin", "ios")
    shown_on: ClassVar[tuple[str, ...]] = ()
    device_words: ClassVar[str] = "Apple chip"
    default_is_lossy: ClassVar[bool] = True
    exact: ClassVar[Mapping[str, str]] = {"MLComputeUnits": "CPUOnly"}
    driver_name: ClassVar[str] = "macos"
    options: ClassVar[Mapping[str, Option]] = option_table(
        Option(
            name="MLComputeUnits",
            values=("ALL", "CPUAndNeuralEngine", "CPUAndGPU", "CPUOnly"),
            default="ALL",
            meaning="which units may be used; CPUAndNeuralEngine raises on a machine without a Neural Engine",
            lossy_values=("ALL", "CPUAndNeuralEngine", "CPUAndGPU"),
            source=f"{DOCUMENT}; {HEADER}; {SOURCE}",
        ),
        Option(
            name="ModelFormat",
            values=("NeuralNetwork", "MLProgram"),
            default="NeuralNetwork",
            meaning="MLProgram (macOS 12 and later) keeps the types of the graph, and has other operators",
            source=f"{DOCUMENT}; {SOURCE}",
        ),
        Option(
            name="RequireStaticInputShapes",
            values=OFF_ON,
            default="0",
            meaning="leave what has open shapes to the CPU; Core ML runs it more slowly",
            source=f"{DOCUMENT}; {SOURCE}",
        ),
        Option(
            name="EnableOnSubgraphs",
            values=OFF_ON,
            default="0",
            meaning="also take the bodies of If, Loop and Scan",
            source=f"{DOCUMENT}; {SOURCE}",
        ),
        Option(
            name="SpecializationStrategy",
            values=("Default", "FastPrediction"),
            default="Default",
            meaning="FastPrediction prefers latency to the time and space of compiling",
            source=DOCUMENT,
        ),
        Option(
            name="AllowLowPrecisionAccumulationOnGPU",
            values=OFF_ON,
            default="0",
            meaning="sum up in float16 on the GPU",
            lossy_values=("1",),
            source="onnxruntime, pull request 22958",
        ),
        Option(
            name="ModelCacheDirectory",
            values=(),
            default="",
            meaning="folder of compiled models; empty: compiled anew for every session",
            source=CACHE,
            since="1.21",
        ),
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        constraints=Constraints(
            notes=(
                "weights of Conv, Gemm and MatMul should be constants",
                "convolutions and pools of one or two dimensions",
                "the two model formats have different operators; see its document",
            ),
            source=DOCUMENT,
        ),
        preferences=Preferences(precisions=("float16", "float32"), source="not checked"),
        compiled=CompiledModel(
            form="blobs",
            options={"ModelCacheDirectory": "{folder}"},
            invalidated_by=("model", "onnxruntime", "options"),
            notes=(
                "the key is the model's metadata entry for it where there is one, else a hash of the model's path, "
                "else of the names of its inputs and outputs: changed weights under one path are not noticed",
                "it deletes nothing, and reuses what another onnxruntime wrote, which then fails to load: a folder for "
                "each model's hash and each onnxruntime",
            ),
            source=f"{CACHE}; ultralytics/inference, pull request 375 (another onnxruntime's)",
        ),
        failings=(
            Failing(
                symptom="session creation takes seconds to minutes, every time",
                cause="Core ML compiles the model",
                remedy="ModelCacheDirectory with a folder that lasts",
                source="onnxruntime, issue 21761",
            ),
            Failing(
                symptom="'Feature ... is required but not specified' when a session is created",
                cause="the cache holds a model that another onnxruntime compiled",
                remedy="remove the folder",
                source="ultralytics/inference, pull request 375",
            ),
            Failing(
                symptom="'The current system does not have Apple Neural Engine.'",
                cause="MLComputeUnits=CPUAndNeuralEngine on an Intel Mac or in a virtual machine",
                remedy="MLComputeUnits=ALL",
                source=SOURCE,
            ),
        ),
        driver="macOS's own version: Core ML and its drivers are part of it",
        sources=(DOCUMENT, HEADER, SOURCE),
    )

    def driver_version(self) -> str | None:
        """macOS's version."""
        return platform.mac_ver()[0] or None if self.system == "darwin" else None

    def _found(self) -> tuple[Accelerator, ...]:
        """The chip by its CPU's name; one without a Neural Engine (Intel's) counts as a GPU."""
        cpu = cpu_device()
        return (Accelerator("npu" if cpu.vendor == "Apple" else "gpu", cpu.name, cpu.vendor),)

    def _device_options(self, device: str | None, given: Mapping[str, str]) -> dict[str, str]:
        """None: it has no option for a device's number."""
        return {}
