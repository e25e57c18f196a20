"""ggml's kernels (CPU, Vulkan, Metal), a third party's plug-in in the package onnxruntime-ggml.

Seen with 0.2.0 on the CPU under onnxruntime 1.32.0. It is used only where the user names it, because it can be wrong
without a word. A Slice of what a Conv computed is another part of it: silero_vad with fixed shapes is off by 0.1 to 1
(relative). More dangerous, because a comparison with fresh inputs does not show it, is its option ``sticky``, which
this adapter always switches off. It is on by default, keeps float inputs of 256 KiB and more from the run before, and
looks at samples of a new one to see whether it changed: after changing 100 of 262144 values the result was that of the
unchanged input.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from ort_metainfer.providers.base import INT_MAX, Option, option_table
from ort_metainfer.providers.capabilities import Capabilities, Constraints, Failing, Preferences
from ort_metainfer.providers.plugin import PlugIn
from ort_metainfer.providers.plugin_provider import PlugInProvider

__all__ = ["GgmlProvider"]

NAME = "ggml"
DOCUMENT = "thewh1teagle/onnxruntime-ggml, docs/OPTIONS.md"
SEEN = "seen with onnxruntime-ggml 0.2.0 on x86-64 Linux"
PLUG_IN = PlugIn(
    distribution="onnxruntime-ggml",
    module="onnxruntime_ggml",
    registration=NAME,
    offers=lambda ep_name: ep_name == NAME,
)
LOG = "ORT_GGML_LOG"
MISSING = ("MaxPool", "AveragePool", "Gelu", "GlobalAveragePool", "HardSigmoid", "If")


class GgmlProvider(PlugInProvider):
    """Stores matrices in float16 unless told otherwise; takes a graph whole or not at all."""

    name: ClassVar[str] = NAME
    kinds: ClassVar[tuple[str, ...]] = ("cpu",)
    default_is_lossy: ClassVar[bool] = True
    exact: ClassVar[Mapping[str, str]] = MappingProxyType({"weights": "f32"})
    run_on_hardware: ClassVar[bool] = True
    opt_in: ClassVar[bool] = True
    plug_in: ClassVar[PlugIn] = PLUG_IN
    install: ClassVar[str] = (
        "pip install --no-deps onnxruntime-ggml (without --no-deps, pip puts an older onnxruntime in place of yours)"
    )
    options: ClassVar[Mapping[str, Option]] = option_table(
        Option(
            name="weights",
            values=("f16", "f32"),
            default="f16",
            meaning="type that matrices of weights are stored in; a value it does not know means f16",
            lossy_values=("f16",),
            source=f"{DOCUMENT}; relative error 3e-7 with f32, 2.9e-4 with f16 (one MatMul, own measurement)",
        ),
        Option(
            name="threads",
            values=(),
            default="",
            meaning="threads; unset, half the cores, eight at most; it does not heed intra_op_num_threads",
            source=DOCUMENT,
            numbers=(1, INT_MAX),
        ),
        Option(
            name="partial",
            values=("0", "1"),
            default="0",
            meaning="take what it has where a graph begins or ends with an operator that it lacks",
            source=DOCUMENT,
        ),
        Option("accel", ("0", "1"), "0", "add ggml's BLAS backend (macOS)", source=DOCUMENT),
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        constraints=Constraints(
            dtypes=("float32", "float16", "int64", "int32", "bool"),
            missing=frozenset(MISSING),
            max_rank=4,
            notes=(
                "takes a graph whole or not at all, unless partial=1: one operator that it lacks leaves all to the CPU",
            ),
            source=f"{DOCUMENT}; {SEEN}; rank: ggml.h, GGML_MAX_DIMS",
        ),
        preferences=Preferences(layouts=("NCHW",), precisions=("float16", "float32"), source=DOCUMENT),
        failings=(
            Failing(
                symptom="wrong results, nothing said (silero_vad with fixed shapes: relative error 0.1 to 1)",
                cause="a Slice along the channels of what a Conv computed",
                remedy="compare with the CPU provider; leave such a model to it",
                source=SEEN,
            ),
            Failing(
                symptom="the result of the run before",
                cause="sticky=1, its default: a large input changed where no sample was taken",
                remedy="sticky=0, which this adapter always sets",
                source=f"{DOCUMENT}, sticky; {SEEN}",
            ),
            Failing("runs on the CPU, listed all the same", "one operator that it lacks", "partial=1", SEEN),
            Failing(
                symptom="partial=1, and still it takes nothing; the log tells of nodes that cannot be fused",
                cause="the operator that it lacks stands between others that it has: it claims them as one",
                remedy="partial=1 helps only where what it lacks is at an end of the graph",
                source=SEEN,
            ),
            Failing("creation raises EPFail", "device=gpu without a GPU that Vulkan or Metal offers", "leave it", SEEN),
            Failing("lines on the standard error stream", "it logs at level info", f"set {LOG}=error", SEEN),
            Failing(
                symptom="onnxruntime is an older one all of a sudden",
                cause="the package demands onnxruntime<1.31, and pip obeys",
                remedy="install it with --no-deps; it runs with 1.32.0",
                source=SEEN,
            ),
        ),
        driver="runs on the CPU; on a GPU it says nothing of the driver",
        sources=(DOCUMENT, SEEN),
    )

    def _offered(self) -> dict[str, list[Any]]:
        """As ever, but quietly: what it logs is read once, when its library is loaded."""
        os.environ.setdefault(LOG, "error")
        return super()._offered()

    def _given(self, name: str, properties: Mapping[str, str]) -> dict[str, str]:
        """On the CPU, which is what was tried, and without reusing inputs of the run before."""
        return {"device": "cpu", **properties, "sticky": "0"}
