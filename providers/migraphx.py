"""AMD's GPUs through MIGraphX, which compiles each part of the graph it takes for the shapes it sees.

In the package onnxruntime-migraphx, or AMD's wheels for its ROCm. It succeeds the ROCm provider (see ``rocm.py``).

The environment variables ``ORT_MIGRAPHX_*`` win over options: with ``ORT_MIGRAPHX_FP16_ENABLE=1`` a session is lossy
whatever a strategy says. Not offered: INT8 by a calibration table (it names the inputs of one model), limits of memory,
and external allocators (addresses of the caller's). Not run on hardware.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar

from ort_metainfer.hardware.drivers import Accelerator, amd_gpu_driver_version, amd_gpus, visible
from ort_metainfer.providers.base import Option, option_table
from ort_metainfer.providers.built_in import BuiltInProvider
from ort_metainfer.providers.capabilities import Capabilities, CompiledModel, Constraints, Failing, Preferences
from ort_metainfer.strategy import Strategy

__all__ = ["AmdGpuProvider", "MiGraphXProvider"]

DOCUMENT = "onnxruntime.ai, docs/execution-providers/MIGraphX-ExecutionProvider"
SOURCE = "onnxruntime, onnxruntime/core/providers/migraphx/migraphx_execution_provider_info.cc"
OFF_ON = ("False", "True")
LOSSY_VARIABLES = tuple(f"ORT_MIGRAPHX_{name}_ENABLE" for name in ("FP16", "BF16", "FP8", "INT8"))


class AmdGpuProvider(BuiltInProvider):
    """What the adapters for AMD's GPUs share: the GPUs and their driver. Not run on hardware."""

    kinds: ClassVar[tuple[str, ...]] = ("gpu",)
    device_words: ClassVar[str] = "AMD GPU"
    driver_name: ClassVar[str] = "amdgpu"

    def driver_version(self) -> str | None:
        """The amdgpu module's where it has one, else ROCm's."""
        return amd_gpu_driver_version(self.files)

    def _found(self) -> tuple[Accelerator, ...]:
        return visible(amd_gpus(self.files), os.environ, "HIP_VISIBLE_DEVICES")


class MiGraphXProvider(AmdGpuProvider):
    """Computes float32 in float32 unless an option or its environment says otherwise. Not run on hardware."""

    name: ClassVar[str] = "MIGraphXExecutionProvider"
    variables: ClassVar[tuple[str, ...]] = LOSSY_VARIABLES
    install: ClassVar[str] = "run: pip install onnxruntime-migraphx (replaces onnxruntime), and install ROCm"
    systems: ClassVar[tuple[str, ...]] = ("linux", "win32")
    options: ClassVar[Mapping[str, Option]] = option_table(
        Option("migraphx_fp16_enable", OFF_ON, "False", "compute in float16", ("True",), f"{DOCUMENT}; {SOURCE}"),
        Option("migraphx_bf16_enable", OFF_ON, "False", "compute in bfloat16", ("True",), SOURCE),
        Option("migraphx_fp8_enable", OFF_ON, "False", "compute in 8-bit floats", ("True",), SOURCE),
        Option(
            name="migraphx_exhaustive_tune",
            values=OFF_ON,
            default="False",
            meaning="time every kernel when compiling: much longer to create, perhaps faster to run",
            source=f"{DOCUMENT}; {SOURCE}",
        ),
        Option("migraphx_model_cache_dir", (), "", "folder of compiled models; empty: none kept", source=SOURCE),
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        constraints=Constraints(
            notes=("open shapes run; a part is compiled anew for each shape of its inputs (not checked)",),
            source=DOCUMENT,
        ),
        preferences=Preferences(
            precisions=("float16", "bfloat16", "float32"), source=f"{SOURCE}; the order: not checked"
        ),
        compiled=CompiledModel(
            form="engine files",
            options={"migraphx_model_cache_dir": "{folder}"},
            invalidated_by=("model", "onnxruntime", "provider", "driver", "device", "options", "shapes"),
            notes=(
                "files named .mxr; ORT_MIGRAPHX_MODEL_CACHE_PATH does the same",
                "what invalidates them is not documented: the caution of every compiled GPU program is taken",
            ),
            source=f"{DOCUMENT}; {SOURCE}",
        ),
        failings=(
            Failing(
                symptom="results in float16 though no option asks for it",
                cause="an ORT_MIGRAPHX_*_ENABLE variable in the environment, which wins over options",
                remedy="unset it",
                source=f"{DOCUMENT} (Environment Variables)",
            ),
            Failing(
                symptom="the first run with a new shape takes long",
                cause="the part is compiled for that shape",
                remedy="fixed shapes, and migraphx_model_cache_dir",
                source="not checked",
            ),
        ),
        driver="/sys/module/amdgpu/version (AMD's package of the driver), else /opt/rocm/.info/version",
        sources=(DOCUMENT, SOURCE),
    )

    def is_lossy(self, strategy: Strategy) -> bool:
        """Also where the environment demands it."""
        demanded = any(os.environ.get(name, "0") not in ("", "0") for name in LOSSY_VARIABLES)
        return super().is_lossy(strategy) or demanded
