"""CPUs through Intel's oneDNN: in builds of one's own. Not run on hardware.

The environment variable ``ONEDNN_DEFAULT_FPMATH_MODE`` lets oneDNN compute float32 in less (not checked), so with it
the provider counts as lossy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar

from ort_metainfer.providers.base import INT_MAX, Option, option_table
from ort_metainfer.providers.built_in import BuiltInOnCpu
from ort_metainfer.providers.capabilities import Capabilities, Constraints, Failing, Preferences
from ort_metainfer.strategy import Strategy

__all__ = ["DnnlProvider"]

DOCUMENT = "onnxruntime.ai, docs/execution-providers/oneDNN-ExecutionProvider"
BINDING = "onnxruntime, onnxruntime/python/onnxruntime_pybind_state.cc"
MODE = "ONEDNN_DEFAULT_FPMATH_MODE"


class DnnlProvider(BuiltInOnCpu):
    """Keeps float32 by default. Not run on hardware."""

    name: ClassVar[str] = "DnnlExecutionProvider"
    variables: ClassVar[tuple[str, ...]] = (MODE,)
    install: ClassVar[str] = "no package has it: build onnxruntime with --use_dnnl"
    options: ClassVar[Mapping[str, Option]] = option_table(
        Option(
            name="num_of_threads",
            values=(),
            default="0",
            meaning="oneDNN's threads, in builds with OpenMP; others ignore it; 0 leaves it to oneDNN",
            source=BINDING,
            numbers=(0, INT_MAX),
        ),
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        constraints=Constraints(notes=("which operators it has is not documented: try them",), source=DOCUMENT),
        preferences=Preferences(
            layouts=("NHWC",),
            channel_alignment=16,
            source=f"{DOCUMENT} (Subgraph Optimization: channels in blocks of 16 for AVX512)",
        ),
        failings=(
            Failing(
                symptom="'Invalid OneDNN EP option' when a session is created",
                cause="its binding knows num_of_threads alone",
                remedy="leave out the other option",
                source=BINDING,
            ),
        ),
        driver="none: it runs on the CPU",
        sources=(DOCUMENT, BINDING),
    )

    def is_lossy(self, strategy: Strategy) -> bool:
        """Also where the environment allows oneDNN less than float32."""
        return super().is_lossy(strategy) or os.environ.get(MODE, "STRICT").upper() != "STRICT"
