"""onnxruntime's own CPU provider: always there, exact, the reference of every comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ort_metainfer.hardware.devices import CPU_PROVIDER, cpu_device
from ort_metainfer.problem import Device
from ort_metainfer.providers.base import Availability, Option, Provider
from ort_metainfer.providers.capabilities import Capabilities, CompiledModel, Constraints, Failing, Preferences
from ort_metainfer.strategy import Strategy

__all__ = ["CpuProvider"]

SEEN = "seen with onnxruntime 1.32.0 on x86-64 Linux"


class CpuProvider(Provider):
    """What speeds it up are session options (threads, spinning, graph level); of its own it has none to set."""

    name: ClassVar[str] = CPU_PROVIDER
    kinds: ClassVar[tuple[str, ...]] = ("cpu",)
    options: ClassVar[Mapping[str, Option]] = {}
    run_on_hardware: ClassVar[bool] = True
    capabilities: ClassVar[Capabilities] = Capabilities(
        constraints=Constraints(
            opsets=(7, None),
            notes=(
                "float16 and bfloat16 graphs run mostly through casts to float32",
                "integers: QDQ with uint8 activations and int8 weights is quick on x86; int8 activations are not",
            ),
            source=f"onnxruntime documentation, ONNX Runtime compatibility (ONNX opset 7 and later); {SEEN}",
        ),
        preferences=Preferences(layouts=("NCHW",), precisions=("int8", "float32"), source=SEEN),
        compiled=CompiledModel(
            form="optimised model",
            options={"optimized_model_filepath": "{folder}/optimised.onnx"},
            invalidated_by=("model", "onnxruntime", "device", "options"),
            notes=(
                "above level extended it holds layouts of the CPU at hand; it is loaded with graph optimisation off",
                "a second start of a ResNet-18 took 0.08 s in place of 0.19 s",
            ),
            source=f"onnxruntime documentation, Graph Optimizations, Online/Offline Mode; {SEEN}",
        ),
        failings=(
            Failing("NOT_IMPLEMENTED at creation", "an operator or type without a kernel", "another provider", SEEN),
            Failing(
                symptom="short runs take many times as long on a busy machine",
                cause="worker threads spin and hinder one another",
                remedy="one thread, or session.intra_op.allow_spinning=0",
                source=SEEN,
            ),
        ),
        driver="none",
        sources=(SEEN,),
    )

    def availability(self) -> Availability:
        """Always usable: every onnxruntime has it compiled in."""
        import onnxruntime

        reason = f"part of onnxruntime {onnxruntime.__version__}"
        return Availability(True, "built-in", reason, onnxruntime.__version__)

    def devices(self) -> tuple[Device, ...]:
        """The one CPU, as far as this process may use it."""
        return (cpu_device(),)

    def versions(self) -> dict[str, str]:
        """onnxruntime's, whose part it is."""
        import onnxruntime

        return {"onnxruntime": onnxruntime.__version__}

    def attach(self, options: Any, strategy: Strategy) -> list[tuple[str, dict[str, str]]]:
        """The provider by its name; nothing is added to ``options``."""
        self.chosen_device(strategy)
        return [(self.name, dict(self.check(strategy)))]
