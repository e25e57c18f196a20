"""CPUs through Google's XNNPACK: in onnxruntime's packages for Android and iOS, or a build of one's own.

It has threads of its own beside onnxruntime's, and both contend: its document advises ``intra_op_num_threads`` of the
provider at the number of physical cores, onnxruntime's at 1, and no spinning. Not run on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ort_metainfer.providers.base import INT_MAX, Option, option_table
from ort_metainfer.providers.built_in import BuiltInOnCpu
from ort_metainfer.providers.capabilities import Capabilities, Constraints, Failing, Preferences

__all__ = ["XnnpackProvider"]

DOCUMENT = "onnxruntime.ai, docs/execution-providers/Xnnpack-ExecutionProvider"


class XnnpackProvider(BuiltInOnCpu):
    """Float32 stays float32. Not run on hardware."""

    name: ClassVar[str] = "XnnpackExecutionProvider"
    install: ClassVar[str] = "no package for Python has it: build onnxruntime with --use_xnnpack"
    options: ClassVar[Mapping[str, Option]] = option_table(
        Option(
            name="intra_op_num_threads",
            values=(),
            default="1",
            meaning="XNNPACK's own threads; advised: the physical cores, with onnxruntime's own at 1",
            source=DOCUMENT,
            numbers=(1, INT_MAX),
        ),
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        constraints=Constraints(
            operators=frozenset(
                {
                    "AveragePool",
                    "Conv",
                    "ConvTranspose",
                    "Gemm",
                    "MatMul",
                    "MaxPool",
                    "QLinearConv",
                    "Resize",
                    "Softmax",
                }
                | {f"com.microsoft.QLinear{name}" for name in ("AveragePool", "Softmax", "ConvTranspose")}
            ),
            notes=(
                "two-dimensional convolutions, pools and products, with constant weights and scales",
                "Softmax since opset 13 along the last axis only; Resize bilinear only",
            ),
            source=f"{DOCUMENT} (Supported ops)",
        ),
        preferences=Preferences(layouts=("NHWC",), precisions=("float32", "int8"), source="not checked"),
        failings=(
            Failing(
                symptom="slower than the CPU provider, with all cores busy",
                cause="its threads and onnxruntime's spin against each other",
                remedy="session.intra_op.allow_spinning=0 and intra_op_num_threads=1 of the session",
                source=f"{DOCUMENT} (Recommended configuration)",
            ),
        ),
        driver="none: it runs on the CPU",
        sources=(DOCUMENT,),
    )
