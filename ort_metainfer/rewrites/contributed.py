"""Operators of onnxruntime's own domain, and the execution providers that have kernels for them in float32.

Sources: onnxruntime's docs/OperatorKernels.md (CPU, CUDA, DirectML) and
onnxruntime/contrib_ops/webgpu/webgpu_contrib_kernels.cc; the CPU's kernels as 1.32's ``get_all_opkernel_def`` says.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["KERNELS", "MICROSOFT", "SOURCES"]

MICROSOFT = "com.microsoft"

CPU, CUDA, DML, WEBGPU = (f"{name}ExecutionProvider" for name in ("CPU", "CUDA", "Dml", "WebGpu"))

KERNELS: Mapping[str, tuple[str, ...]] = {
    "BiasGelu": (CPU, CUDA, DML, WEBGPU),
    "EmbedLayerNormalization": (CPU, CUDA, DML),
    "FastGelu": (CPU, CUDA, DML, WEBGPU),
    "FusedConv": (CPU, CUDA, WEBGPU),
    "FusedGemm": (CPU,),
    "FusedMatMul": (CPU, CUDA, DML),
    "MultiHeadAttention": (CPU, CUDA, DML, WEBGPU),
    "RotaryEmbedding": (CPU, CUDA, DML, WEBGPU),
    "SkipLayerNormalization": (CPU, CUDA, DML, WEBGPU),
}
"""Operator of com.microsoft -> providers."""

SOURCES = (
    "https://github.com/microsoft/onnxruntime/blob/main/docs/OperatorKernels.md",
    "https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md",
)
