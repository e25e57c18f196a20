"""NVIDIA's GPUs through TensorRT, which builds an engine of its own from each part of the graph it takes.

The bridge is in the package onnxruntime-gpu; TensorRT itself must be installed besides, in the version that it was
built with. What TensorRT does not take goes to CUDA, which is therefore listed after it, and the rest to the CPU.

TensorRT uses TF32 by itself and has no option against it (issue 26029): it is always lossy, unless the environment
variable ``NVIDIA_TF32_OVERRIDE`` is 0. Building an engine takes seconds to many minutes, hence the caches.

Not offered: ``trt_cuda_graph_enable`` (needs IO binding and fixed addresses), DLA and explicit profiles (they name the
inputs of one model), and INT8 by a calibration table (likewise); a QDQ graph needs none. Not run on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ort_metainfer.providers.base import INT_MAX, Option, option_table
from ort_metainfer.providers.capabilities import Capabilities, CompiledModel, Constraints, Failing, Preferences
from ort_metainfer.providers.cuda import DRIVER, NOT_LOADED, NvidiaProvider
from ort_metainfer.strategy import Strategy

__all__ = ["TensorRtProvider"]

DOCUMENT = "onnxruntime.ai, docs/execution-providers/TensorRT-ExecutionProvider"
HEADER = "onnxruntime, include/onnxruntime/core/providers/tensorrt/tensorrt_provider_options.h"
CUDA = "CUDAExecutionProvider"
OFF_ON = ("False", "True")
"""Python's binding took no other spelling of a flag for long (onnxruntime_pybind_state.cc)."""


def _flag(name: str, meaning: str, lossy: bool = False, since: str = "", source: str = HEADER) -> Option:
    return Option(name, OFF_ON, "False", meaning, ("True",) if lossy else (), source, since=since)


class TensorRtProvider(NvidiaProvider):
    """Always given together with CUDA. Not run on hardware."""

    name: ClassVar[str] = "TensorrtExecutionProvider"
    install: ClassVar[str] = "run: pip install onnxruntime-gpu (replaces onnxruntime), and install TensorRT"
    options: ClassVar[Mapping[str, Option]] = option_table(
        _flag("trt_fp16_enable", "let TensorRT compute float32 layers in float16", lossy=True),
        _flag(
            "trt_bf16_enable",
            "the same in bfloat16; ignored on GPUs before Ampere",
            lossy=True,
            since="1.23",
            source="pull requests 24743 and 24915 (the version: by their dates)",
        ),
        _flag("trt_int8_enable", "let TensorRT compute in int8; takes a QDQ graph", lossy=True),
        Option(
            name="trt_builder_optimization_level",
            values=(),
            default="3",
            meaning="how hard the engine's builder tries; below 3 builds faster and may run slower",
            source=HEADER,
            numbers=(0, 5),
        ),
        Option(
            name="trt_auxiliary_streams",
            values=(),
            default="-1",
            meaning="streams beside the main one; 0 takes the least memory, -1 leaves it to TensorRT",
            source=HEADER,
            numbers=(-1, INT_MAX),
        ),
        Option(
            name="trt_min_subgraph_size",
            values=(),
            default="1",
            meaning="smaller parts than this many nodes are left to CUDA",
            source=HEADER,
            numbers=(1, INT_MAX),
        ),
        Option(
            name="trt_max_workspace_size",
            values=(),
            default="0",
            meaning="memory in bytes the builder may use; 0: all the device has",
            source=HEADER,
            numbers=(0, 2**63 - 1),
        ),
        _flag("trt_context_memory_sharing_enable", "engines of one session share their working memory"),
        _flag("trt_layer_norm_fp32_fallback", "keep layer normalisation in float32 where the rest is float16"),
        _flag("trt_sparsity_enable", "allow kernels for weights that are zero in the pattern 2:4"),
        _flag("trt_build_heuristics_enable", "choose kernels by heuristics: builds faster"),
        _flag("trt_engine_hw_compatible", "build an engine that other GPUs of Ampere and later can run too; slower"),
        _flag("trt_engine_cache_enable", "keep engines, see trt_engine_cache_path"),
        Option("trt_engine_cache_path", (), "", "folder of the engines; empty: the working directory", source=HEADER),
        _flag("trt_timing_cache_enable", "keep what the builder timed, see trt_timing_cache_path"),
        Option("trt_timing_cache_path", (), "", "its folder; empty: trt_engine_cache_path", source=HEADER),
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        constraints=Constraints(
            notes=(
                "shapes must be known or inferred: run symbolic shape inference first where creation says so",
                "open shapes run; an engine is built anew for a shape outside the range it was built for",
                "NonMaxSuppression, NonZero and RoiAlign are left to CUDA (trt_op_types_to_exclude)",
            ),
            source=f"{DOCUMENT}; {HEADER}",
        ),
        preferences=Preferences(
            precisions=("int8", "float16", "bfloat16", "tf32", "float32"),
            source=f"{DOCUMENT}; the order of precisions: not checked",
        ),
        compiled=CompiledModel(
            form="engine files",
            options={
                "trt_engine_cache_enable": "True",
                "trt_engine_cache_path": "{folder}",
                "trt_timing_cache_enable": "True",
                "trt_timing_cache_path": "{folder}",
            },
            invalidated_by=("model", "onnxruntime", "provider", "device", "options", "shapes"),
            notes=(
                "it does not notice most of these itself: a folder for each of them",
                "trt_dump_ep_context_model writes an EPContext model around the engines",
            ),
            source=f"{DOCUMENT} (the warning at trt_engine_cache_enable)",
        ),
        failings=(
            NOT_LOADED,
            Failing(
                symptom="session creation takes minutes",
                cause="the engine is built",
                remedy="trt_engine_cache_enable and trt_timing_cache_enable with a folder that lasts",
                source=DOCUMENT,
            ),
            Failing(
                symptom="results differ from the CPU's in the third digit, without any option",
                cause="TF32, which TensorRT uses by itself on GPUs since Ampere",
                remedy="NVIDIA_TF32_OVERRIDE=0 in the environment, before the first session",
                source="onnxruntime, issues 6427 and 26029",
            ),
        ),
        driver=f"{DRIVER}; TensorRT's own version is in no file",
        sources=(DOCUMENT, HEADER),
    )

    def attach(self, options: Any, strategy: Strategy) -> list[tuple[str, dict[str, str]]] | None:
        """TensorRT, then CUDA on the same device for what it does not take."""
        import onnxruntime

        providers = super().attach(options, strategy)
        if providers is None or CUDA not in onnxruntime.get_available_providers():
            return providers
        device = providers[0][1]["device_id"]
        return [*providers, (CUDA, {"device_id": device})]
