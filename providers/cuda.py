"""NVIDIA's GPUs through CUDA and cuDNN: in the package onnxruntime-gpu, or as a plug-in that registers itself.

TF32 is on by default, on GPUs since Ampere (``use_tf32``): float32 operands of matrix products and convolutions are
rounded to 10 bits of mantissa. So without ``use_tf32=0`` it is lossy; the environment variable ``NVIDIA_TF32_OVERRIDE``
set to 0 does the same for all of a process.

Not offered, because a plain ``session.run`` does not work with them: ``enable_cuda_graph`` (needs IO binding),
``user_compute_stream`` and the external allocators (addresses of the caller's). Nor ``do_copy_in_default_stream=0``:
its document warns of races. Not run on hardware.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar

from ort_metainfer.hardware.drivers import Accelerator, nvidia_driver_version, nvidia_gpus, visible
from ort_metainfer.providers.base import Option, option_table
from ort_metainfer.providers.built_in import BuiltInProvider
from ort_metainfer.providers.capabilities import Capabilities, Constraints, Failing, Preferences
from ort_metainfer.strategy import Strategy

__all__ = ["CudaProvider", "NvidiaProvider"]

DOCUMENT = "onnxruntime.ai, docs/execution-providers/CUDA-ExecutionProvider"
HEADER = "onnxruntime, include/onnxruntime/core/providers/cuda/cuda_provider_options.h"
BINDING = "onnxruntime, onnxruntime/python/onnxruntime_pybind_state.cc"
ON_OFF = ("0", "1")
TF32_VARIABLE = "NVIDIA_TF32_OVERRIDE"
DRIVER = "NVIDIA's kernel driver: /proc/driver/nvidia/version (its README, Using the /proc File System Interface)"
NOT_LOADED = Failing(
    symptom="warning 'Failed to create CUDAExecutionProvider', and the session runs on the CPU",
    cause="libraries of CUDA or cuDNN are missing, or of another major version than onnxruntime was built with",
    remedy="pip install 'onnxruntime-gpu[cuda,cudnn]' and call onnxruntime.preload_dlls() first",
    source=f"{BINDING}; {DOCUMENT}",
)


class NvidiaProvider(BuiltInProvider):
    """What CUDA's adapter and TensorRT's share: the GPUs, their driver, and TF32. Not run on hardware."""

    kinds: ClassVar[tuple[str, ...]] = ("gpu",)
    systems: ClassVar[tuple[str, ...]] = ("linux", "win32")
    device_words: ClassVar[str] = "NVIDIA GPU"
    default_is_lossy: ClassVar[bool] = True
    driver_name: ClassVar[str] = "nvidia-driver"
    variables: ClassVar[tuple[str, ...]] = (TF32_VARIABLE,)

    def driver_version(self) -> str | None:
        """NVIDIA's kernel driver's; on Jetson the release of its Linux."""
        return nvidia_driver_version(self.files)

    def is_lossy(self, strategy: Strategy) -> bool:
        """The base class's answer, but TF32 may be switched off for the whole process."""
        tf32_is_off = os.environ.get(TF32_VARIABLE) == "0"
        given = self.check(strategy)
        if tf32_is_off:
            others = (name for name in given if name != "use_tf32")
            return any(given[name] in self.options[name].lossy_values for name in others)
        return super().is_lossy(strategy)

    def _found(self) -> tuple[Accelerator, ...]:
        """CUDA numbers GPUs by speed unless CUDA_DEVICE_ORDER says PCI_BUS_ID: unlike ones then get one name."""
        gpus = nvidia_gpus(self.files)
        models = list(dict.fromkeys(gpu.name for gpu in gpus))
        if len(models) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
            either = f"one of: {', '.join(models)}"
            gpus = tuple(gpu._replace(name=either) for gpu in gpus)
        return visible(gpus, os.environ, "CUDA_VISIBLE_DEVICES")


class CudaProvider(NvidiaProvider):
    """Runs float32, float16 and bfloat16 graphs as they are; what it has no kernel for stays on the CPU.

    Not run on hardware.
    """

    name: ClassVar[str] = "CUDAExecutionProvider"
    other_names: ClassVar[tuple[str, ...]] = ("CudaPluginExecutionProvider",)
    install: ClassVar[str] = "run: pip install onnxruntime-gpu (replaces onnxruntime)"
    exact: ClassVar[Mapping[str, str]] = {"use_tf32": "0"}
    options: ClassVar[Mapping[str, Option]] = option_table(
        Option(
            name="cudnn_conv_algo_search",
            values=("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
            default="EXHAUSTIVE",
            meaning="how cuDNN's convolution algorithm is found: by benchmarking all, by heuristics, or one fixed",
            source=DOCUMENT,
        ),
        Option(
            name="cudnn_conv_use_max_workspace",
            values=ON_OFF,
            default="1",
            meaning="let cuDNN use as much memory as its best algorithm wants; 0 holds it to 32 MB",
            source=DOCUMENT,
        ),
        Option(
            name="cudnn_conv1d_pad_to_nc1d",
            values=ON_OFF,
            default="0",
            meaning="run 1-D convolutions as [N, C, 1, D] instead of [N, C, D, 1]",
            source=DOCUMENT,
        ),
        Option(
            name="use_tf32",
            values=ON_OFF,
            default="1",
            meaning="round float32 operands of products and convolutions to TF32 on GPUs since Ampere",
            lossy_values=("1",),
            source=f"{DOCUMENT}; pull requests 19357 and 19426",
            since="1.18",
        ),
        Option(
            name="prefer_nhwc",
            values=ON_OFF,
            default="0",
            meaning="run convolutions channels-last, which tensor cores want; adds transposes at the borders",
            source=DOCUMENT,
            since="1.20",
        ),
        Option(
            name="fuse_conv_bias",
            values=ON_OFF,
            default="0",
            meaning="fuse bias and activation into convolutions through cuDNN's frontend; compiles at the first run",
            source=HEADER,
        ),
        Option(
            name="enable_skip_layer_norm_strict_mode",
            values=ON_OFF,
            default="0",
            meaning="normalise by the exact kernel: more accurate, slower",
            source=DOCUMENT,
        ),
        Option(
            name="use_ep_level_unified_stream",
            values=ON_OFF,
            default="0",
            meaning="one CUDA stream for all threads that run the session",
            source=DOCUMENT,
        ),
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        constraints=Constraints(
            notes=("open shapes run; cuDNN searches anew for each shape of a convolution",),
            source=DOCUMENT,
        ),
        preferences=Preferences(
            layouts=("NHWC", "NCHW"),
            precisions=("float16", "bfloat16", "tf32", "float32"),
            source=f"{DOCUMENT} (tensor cores, prefer_nhwc); the order of precisions: not checked",
        ),
        failings=(
            NOT_LOADED,
            Failing(
                symptom="the first run, and each with a new shape, takes far longer than the next",
                cause="cudnn_conv_algo_search=EXHAUSTIVE benchmarks every algorithm",
                remedy="cudnn_conv_algo_search=HEURISTIC, or fixed shapes",
                source=DOCUMENT,
            ),
        ),
        driver=DRIVER,
        sources=(DOCUMENT, HEADER),
    )
