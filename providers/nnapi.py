"""Android's accelerators through NNAPI: in onnxruntime's packages for Android.

Python's binding creates it without any of its flags (``onnxruntime_pybind_state.cc``), so there are no options to set:
float16 relaxation, NCHW and the ban of NNAPI's own CPU need the C or Java interface. The session config entry
``ep.nnapi.partitioning_stop_ops`` names operators after which nothing more is taken.

Whether accelerators keep float32 without the relaxation is not stated; the flag ``CPU_ONLY`` is described as the one
without loss of precision. So it counts as lossy. Not run on hardware.
"""

from __future__ import annotations

from typing import ClassVar

from ort_metainfer.hardware.drivers import Accelerator, system_on_chip
from ort_metainfer.providers.built_in import BuiltInProvider
from ort_metainfer.providers.capabilities import Capabilities, Constraints, Failing, Preferences

__all__ = ["NnapiProvider"]

DOCUMENT = "onnxruntime.ai, docs/execution-providers/NNAPI-ExecutionProvider"
HEADER = "onnxruntime, include/onnxruntime/core/providers/nnapi/nnapi_provider_factory.h"
BINDING = "onnxruntime, onnxruntime/python/onnxruntime_pybind_state.cc"
UNARY = ["Abs", "Cast", "Elu", "Exp", "Floor", "Identity", "Log", "Neg", "Relu", "Sigmoid", "Sin", "Sqrt", "Tanh"]
BINARY = ["Add", "Div", "Max", "Min", "Mul", "Pow", "Sub"]
SHAPING = ["Concat", "Flatten", "Reshape", "Resize", "Slice", "Squeeze", "Transpose"]
WEIGHTED = ["AveragePool", "Conv", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "MatMul", "MaxPool", "Clip", "Softmax"]
QUANTISED = ["DequantizeLinear", "QLinearConv", "QLinearMatMul", "QuantizeLinear"]
OWN = [f"com.microsoft.QLinear{name}" for name in ("Add", "AveragePool", "Sigmoid")]


class NnapiProvider(BuiltInProvider):
    """One device that stands for whatever NNAPI drives: it shares the graph out itself. Not run on hardware."""

    name: ClassVar[str] = "NnapiExecutionProvider"
    kinds: ClassVar[tuple[str, ...]] = ("npu", "gpu", "dsp")
    install: ClassVar[str] = "use onnxruntime's package for Android"
    systems: ClassVar[tuple[str, ...]] = ("android",)
    shown_on: ClassVar[tuple[str, ...]] = ()
    device_words: ClassVar[str] = "Android accelerator"
    default_is_lossy: ClassVar[bool] = True
    capabilities: ClassVar[Capabilities] = Capabilities(
        constraints=Constraints(
            operators=frozenset({*UNARY, *BINARY, *SHAPING, *WEIGHTED, *QUANTISED, *OWN}),
            notes=(
                "two-dimensional convolutions, pools and Resize, with constant weights and scales",
                "open shapes: not stated in its document",
            ),
            source=f"{DOCUMENT} (Supported ops)",
        ),
        preferences=Preferences(layouts=("NHWC", "NCHW"), source=f"{HEADER} (NNAPI_FLAG_USE_NCHW)"),
        failings=(
            Failing(
                symptom="slower than the CPU provider",
                cause="NNAPI runs what no accelerator takes on its own reference CPU code",
                remedy="the CPU provider; forbidding that CPU needs the C or Java interface",
                source=f"{DOCUMENT} (NNAPI_FLAG_CPU_DISABLED)",
            ),
        ),
        driver="none to read: NNAPI's drivers come with the Android release",
        sources=(DOCUMENT, HEADER, BINDING),
    )

    def _found(self) -> tuple[Accelerator, ...]:
        name = system_on_chip(self.files)
        return (Accelerator(self.kinds[0], name, ""),) if name else ()

    def _device_options(self, device: str | None, given: object) -> dict[str, str]:
        """None: it has no options from Python."""
        return {}
