"""AMD's GPUs through ROCm's libraries: a provider that onnxruntime removed in 1.23, in favour of MIGraphX's.

Packages of before then still have it (onnxruntime-rocm up to 1.22), and this project needs onnxruntime 1.23: the
adapter is here so that ``doctor`` says what to do. Not run on hardware.
"""

from __future__ import annotations

from typing import ClassVar

from ort_metainfer.providers.capabilities import Capabilities, Failing
from ort_metainfer.providers.migraphx import AmdGpuProvider

__all__ = ["RocmProvider"]

REMOVED = "onnxruntime, pull request 25181 (Delete ROCM EP) and the release notes of 1.23"


class RocmProvider(AmdGpuProvider):
    """States no options: there is no release to set them in. Not run on hardware."""

    name: ClassVar[str] = "ROCMExecutionProvider"
    install: ClassVar[str] = "use MIGraphX instead"
    systems: ClassVar[tuple[str, ...]] = ("linux",)
    capabilities: ClassVar[Capabilities] = Capabilities(
        failings=(
            Failing("onnxruntime does not know the provider", "it was removed in 1.23", "use MIGraphX", REMOVED),
        ),
        driver="/sys/module/amdgpu/version (AMD's package of the driver), else /opt/rocm/.info/version",
        sources=(REMOVED,),
    )
