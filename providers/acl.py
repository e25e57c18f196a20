"""Arm's CPUs through the Arm Compute Library: community-maintained, in builds of one's own; gone from onnxruntime 1.32.

The same goes for Arm NN, which has no adapter here. Not run on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ort_metainfer.providers.base import Option, option_table
from ort_metainfer.providers.built_in import BuiltInOnCpu
from ort_metainfer.providers.capabilities import Capabilities, Constraints

__all__ = ["AclProvider"]

DOCUMENT = "onnxruntime.ai, docs/execution-providers/community-maintained/ACL-ExecutionProvider"


class AclProvider(BuiltInOnCpu):
    """Keeps float32 unless fast math is asked for. Not run on hardware."""

    name: ClassVar[str] = "ACLExecutionProvider"
    install: ClassVar[str] = "no package for Python has it: build onnxruntime with --use_acl, on Arm"
    options: ClassVar[Mapping[str, Option]] = option_table(
        Option(
            name="enable_fast_math",
            values=("false", "true"),
            default="false",
            meaning="let the library compute float32 in bfloat16 where the CPU has it",
            lossy_values=("true",),
            source=f"{DOCUMENT}; that it is bfloat16: not checked",
        ),
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        constraints=Constraints(notes=("which operators it has is not documented: try them",), source=DOCUMENT),
        driver="none: it runs on the CPU",
        sources=(DOCUMENT,),
    )
