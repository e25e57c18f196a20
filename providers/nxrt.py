"""nxrt's CPU provider: a plug-in in the package nxrt-ep-cpu, exact in float32, still a development release.

Seen with 0.1.0.dev6: it takes small MatMul and LayerNormalization graphs whole, next to nothing of real models (2 nodes
of 147 of a MiniLM, none of a ResNet), and one model failed while running. So it is used only where the user names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ort_metainfer.providers.base import Option
from ort_metainfer.providers.capabilities import Capabilities, CompiledModel, Constraints, Failing, Preferences
from ort_metainfer.providers.plugin import PlugIn
from ort_metainfer.providers.plugin_provider import PlugInProvider

__all__ = ["NxrtProvider"]

NAME = "cpu_ep"
SEEN = "seen with nxrt-ep-cpu 0.1.0.dev6 on x86-64 Linux"
PLUG_IN = PlugIn(
    distribution="nxrt-ep-cpu", module="nxrt_ep_cpu", registration=NAME, offers=lambda ep_name: ep_name == NAME
)


class NxrtProvider(PlugInProvider):
    """It has no options; it calls itself ``cpu_ep``."""

    name: ClassVar[str] = NAME
    kinds: ClassVar[tuple[str, ...]] = ("cpu",)
    options: ClassVar[Mapping[str, Option]] = {}
    run_on_hardware: ClassVar[bool] = True
    opt_in: ClassVar[bool] = True
    plug_in: ClassVar[PlugIn] = PLUG_IN
    install: ClassVar[str] = "pip install --pre nxrt-ep-cpu"
    capabilities: ClassVar[Capabilities] = Capabilities(
        constraints=Constraints(
            dtypes=("float32",),
            notes=("takes chains of MatMul, Add, LayerNormalization and Softmax; no convolution",),
            source=SEEN,
        ),
        preferences=Preferences(precisions=("float32",), source=SEEN),
        compiled=CompiledModel(form="none", source=SEEN),
        failings=(
            Failing("listed, and takes nothing or next to it", "operators that it lacks", "count nodes", SEEN),
            Failing("run() raises on a real model", "not known", "leave it to the CPU provider", SEEN),
        ),
        driver="runs on the CPU: none",
        sources=(SEEN,),
    )
