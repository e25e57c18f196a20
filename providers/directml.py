"""Any GPU with DirectX 12, and NPUs, through DirectML: in the package onnxruntime-directml, on Windows.

Its document calls it to be in sustained engineering: no new development. Not offered: ``enable_graph_capture`` (needs
fixed addresses). Not run on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ort_metainfer.hardware.devices import onnxruntime_hardware
from ort_metainfer.hardware.drivers import Accelerator
from ort_metainfer.providers.base import Option, option_table
from ort_metainfer.providers.built_in import BuiltInProvider
from ort_metainfer.providers.capabilities import Capabilities, Constraints, Failing, Preferences
from ort_metainfer.strategy import Strategy

__all__ = ["DirectMlProvider"]

DOCUMENT = "onnxruntime.ai, docs/execution-providers/DirectML-ExecutionProvider"
PULL_REQUESTS = "onnxruntime, pull requests 17612 and 18559"
CHOOSING = ("performance_preference", "device_filter")
"""Options that choose the device; beside a device's number they would not count."""


class DirectMlProvider(BuiltInProvider):
    """Switches off what it cannot run with: memory patterns and parallel execution. Not run on hardware."""

    name: ClassVar[str] = "DmlExecutionProvider"
    kinds: ClassVar[tuple[str, ...]] = ("gpu", "npu")
    install: ClassVar[str] = "run: pip install onnxruntime-directml (replaces onnxruntime)"
    systems: ClassVar[tuple[str, ...]] = ("win32",)
    shown_on: ClassVar[tuple[str, ...]] = ()
    device_words: ClassVar[str] = "DirectX 12 device"
    options: ClassVar[Mapping[str, Option]] = option_table(
        Option(
            name="performance_preference",
            values=("default", "high_performance", "minimum_power"),
            default="default",
            meaning="which device where there are several; in place of a device's number",
            source=PULL_REQUESTS,
        ),
        Option(
            name="device_filter",
            values=("gpu", "npu", "any"),
            default="gpu",
            meaning="which class of device; in place of a device's number. What NPUs compute float32 in is not stated",
            lossy_values=("npu", "any"),
            source=f"{PULL_REQUESTS}, issue 24068; the default: not checked",
        ),
        Option(
            name="disable_metacommands",
            values=("false", "true"),
            default="false",
            meaning="do without the vendor's own kernels, which is slower, and a way around a driver's bug",
            source="onnxruntime, issue 22466 and onnxruntime/core/providers/dml/dml_provider_factory.cc",
        ),
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        constraints=Constraints(
            notes=(
                "opsets: up to 17 with DirectML 1.12 by its document, up to 20 with 1.15 as others tell; what is later "
                "it calls unsupported and slow, not refused",
                "fixed shapes are much faster: weights and constants are then prepared at creation",
                "one thread at a time may call run",
            ),
            source=DOCUMENT,
        ),
        preferences=Preferences(precisions=("float16", "float32"), source="not checked"),
        failings=(
            Failing(
                symptom="an error, or a warning that memory patterns are switched off",
                cause="it supports neither memory patterns nor parallel execution",
                remedy="enable_mem_pattern=False and sequential execution, which this adapter sets",
                source=f"{DOCUMENT}; onnxruntime, issue 6970",
            ),
            Failing(
                symptom="it runs on the weaker of two GPUs",
                cause="device 0 is the one of the primary display",
                remedy="performance_preference=high_performance, or another device's number",
                source=DOCUMENT,
            ),
        ),
        driver="what onnxruntime's devices tell (os_driver_version); there is no file to read on Windows",
        sources=(DOCUMENT, PULL_REQUESTS),
    )

    def attach(self, options: Any, strategy: Strategy) -> list[tuple[str, dict[str, str]]] | None:
        """As the base class does, with memory patterns and parallel execution off."""
        from onnxruntime import ExecutionMode

        providers = super().attach(options, strategy)
        options.enable_mem_pattern = False
        options.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        return providers

    def _device_options(self, device: str | None, given: Mapping[str, str]) -> dict[str, str]:
        return {} if any(name in given for name in CHOOSING) else super()._device_options(device, given)

    def _found(self) -> tuple[Accelerator, ...]:
        """What onnxruntime's own discovery sees; its order need not be DirectML's, so only a lone device is named."""
        seen = [one for one in onnxruntime_hardware() if one.kind in self.kinds]
        if len(seen) != 1:
            return ()
        [one] = seen
        return (Accelerator(one.kind, one.description or f"{one.vendor_id:#06x}:{one.device_id:#06x}", one.vendor),)
