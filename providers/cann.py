"""Huawei's Ascend NPUs through CANN: community-maintained, in the package onnxruntime-cann.

By default it computes float32 graphs in float16 (``precision_mode=force_fp16``) with the faster of two implementations.
Even ``force_fp32`` multiplies in float16 (its other name is ``cube_fp16in_fp32out``): only the graph's own types with
the precise implementations are called exact here.

Not offered: dumping of graphs, limits of memory. Not run on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ort_metainfer.hardware.drivers import Accelerator, ascend_driver_version, ascend_npus
from ort_metainfer.providers.base import Option, option_table
from ort_metainfer.providers.built_in import BuiltInProvider
from ort_metainfer.providers.capabilities import Capabilities, CompiledModel, Constraints, Failing, Preferences

__all__ = ["CannProvider"]

DOCUMENT = "onnxruntime.ai, docs/execution-providers/community-maintained/CANN-ExecutionProvider"
SOURCE = "onnxruntime, onnxruntime/core/providers/cann/cann_execution_provider_info.cc"


class CannProvider(BuiltInProvider):
    """Not run on hardware."""

    name: ClassVar[str] = "CANNExecutionProvider"
    kinds: ClassVar[tuple[str, ...]] = ("npu",)
    install: ClassVar[str] = "run: pip install onnxruntime-cann (replaces onnxruntime), and install CANN"
    systems: ClassVar[tuple[str, ...]] = ("linux",)
    device_words: ClassVar[str] = "Ascend NPU"
    default_is_lossy: ClassVar[bool] = True
    exact: ClassVar[Mapping[str, str]] = {
        "precision_mode": "must_keep_origin_dtype",
        "op_select_impl_mode": "high_precision",
    }
    driver_name: ClassVar[str] = "ascend-driver"
    options: ClassVar[Mapping[str, Option]] = option_table(
        Option(
            name="enable_cann_graph",
            values=("1", "0"),
            default="1",
            meaning="run whole parts by CANN's graph engine; 0 runs operator by operator",
            source=f"{DOCUMENT}; {SOURCE}",
        ),
        Option(
            name="precision_mode",
            values=(
                "force_fp16",
                "force_fp32",
                "allow_fp32_to_fp16",
                "must_keep_origin_dtype",
                "allow_mix_precision",
            ),
            default="force_fp16",
            meaning="what float32 operators are computed in; newer sources call it precision_mode_v2, of other values",
            lossy_values=("force_fp16", "force_fp32", "allow_fp32_to_fp16", "allow_mix_precision"),
            source=f"{DOCUMENT}; {SOURCE}",
        ),
        Option(
            name="op_select_impl_mode",
            values=("high_performance", "high_precision"),
            default="high_performance",
            meaning="which of two implementations some operators use",
            lossy_values=("high_performance",),
            source=DOCUMENT,
        ),
        Option(
            name="optypelist_for_implmode",
            values=(),
            default="",
            meaning="operators that op_select_impl_mode is for: Pooling, SoftmaxV2, LRN, ROIAlign",
            source=DOCUMENT,
        ),
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        constraints=Constraints(
            notes=("operator by operator: two-dimensional convolutions and pools with constant weights only",),
            source=DOCUMENT,
        ),
        preferences=Preferences(precisions=("float16", "float32"), source=f"{DOCUMENT} (the default)"),
        compiled=CompiledModel(
            notes=("it writes .om files by default (dump_om_model), for which no option names a folder",),
            source=DOCUMENT,
        ),
        failings=(
            Failing(
                symptom="an unknown option precision_mode when a session is created",
                cause="newer versions call it precision_mode_v2",
                remedy="leave it out, and accept float16",
                source=SOURCE,
            ),
        ),
        driver="/usr/local/Ascend/driver/version.info, or below the folder named in /etc/ascend_install.info",
        sources=(DOCUMENT, SOURCE),
    )

    def driver_version(self) -> str | None:
        """The Ascend driver's."""
        return ascend_driver_version(self.files)

    def _found(self) -> tuple[Accelerator, ...]:
        return ascend_npus(self.files)
