"""AMD's NPUs (Ryzen AI) and FPGAs (Zynq, Versal, Alveo) through Vitis AI: in the builds of AMD's installers.

It compiles the graph at creation, which may take minutes, and keeps the result in ``cache_dir/cache_key``. Graphs are
to be quantised (INT8 by AMD's Quark); float32 ones are compiled to bfloat16 with a ``config_file``. So it is always
lossy.

Not offered: logging, analysis and encryption. Not run on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ort_metainfer.hardware.drivers import (
    Accelerator,
    alveo_cards,
    amd_npu_driver_version,
    amd_npus,
    system_on_chip,
    xrt_version,
)
from ort_metainfer.providers.base import Option, option_table
from ort_metainfer.providers.built_in import BuiltInProvider
from ort_metainfer.providers.capabilities import Capabilities, CompiledModel, Constraints, Failing, Preferences

__all__ = ["VitisAiProvider"]

DOCUMENT = "onnxruntime.ai, docs/execution-providers/Vitis-AI-ExecutionProvider"
RYZEN = "ryzenai.docs.amd.com, Model Compilation and Deployment"
ORT_CRATE = "the Rust crate ort 2.0.0-rc.15, src/ep/vitis.rs"
BOARDS = ("zynq", "versal", "kria", "zcu", "vck", "vek", "kv260")
"""Words by which a board's own name tells an FPGA (the document's list of targets)."""


class VitisAiProvider(BuiltInProvider):
    """An NPU where the system shows one, else an FPGA. Not run on hardware."""

    name: ClassVar[str] = "VitisAIExecutionProvider"
    kinds: ClassVar[tuple[str, ...]] = ("npu", "fpga")
    install: ClassVar[str] = "no package on PyPI: install AMD's Ryzen AI Software, or Vitis AI on an embedded board"
    systems: ClassVar[tuple[str, ...]] = ("linux", "win32")
    device_words: ClassVar[str] = "AMD NPU or FPGA"
    default_is_lossy: ClassVar[bool] = True
    driver_name: ClassVar[str] = "npu-driver"
    options: ClassVar[Mapping[str, Option]] = option_table(
        Option(
            "config_file", (), "", "configuration of the compiler; needed for bfloat16", source=f"{RYZEN}; {DOCUMENT}"
        ),
        Option("xclbin", (), "", "binary that configures the NPU, for INT8 on Phoenix and Hawk Point", source=RYZEN),
        Option(
            name="target",
            values=("X2", "X1"),
            default="X2",
            meaning="compiler of INT8 graphs: X2 for Strix, Krackan and later; X1 the older one, for Phoenix too",
            source=ORT_CRATE,
        ),
        Option(
            name="opt_level",
            values=("0", "1", "2", "3", "65536"),
            default="0",
            meaning="how hard the compiler of INT8 graphs tries; 65536 most",
            source=ORT_CRATE,
        ),
        Option(
            name="enable_cache_file_io_in_mem",
            values=("0", "1"),
            default="1",
            meaning="keep the compiled model in memory alone; 0 writes it to cache_dir",
            source="amd/RyzenAI-SW, its examples and issue 324; the default: not checked",
        ),
        Option("cache_dir", (), "", "folder of compiled models; empty: one in the temporary folder", source=DOCUMENT),
        Option("cache_key", (), "", "its subfolder; empty: the MD5 of the model", source=DOCUMENT),
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        constraints=Constraints(
            quantised="preferred",
            notes=("opset 17 is advised", "float32 graphs need a config_file, and run in bfloat16"),
            source=f"{RYZEN}; {DOCUMENT}",
        ),
        preferences=Preferences(precisions=("int8", "bfloat16"), source=DOCUMENT),
        compiled=CompiledModel(
            form="blobs",
            options={"cache_dir": "{folder}", "enable_cache_file_io_in_mem": "0"},
            invalidated_by=("model", "onnxruntime", "provider", "driver", "device", "options"),
            notes=(
                "it does not notice another version of itself or of the NPU's driver: a folder for each",
                "it also writes EPContext models (pull request 20926)",
            ),
            source=f"{RYZEN} (VitisAI EP cache); microsoft/winml-cli, issue 1224",
        ),
        failings=(
            Failing(
                symptom="everything runs on the CPU, without a word",
                cause="with enable_cache_file_io_in_mem=0 the cache was written and could not be used",
                remedy="enable_cache_file_io_in_mem=1, or another cache_dir",
                source="amd/RyzenAI-SW, issue 324",
            ),
            Failing(
                symptom="session creation takes minutes, or crashes once the cache is emptied",
                cause="the graph is compiled; a stale cache hides that it cannot be",
                remedy="empty the cache after every change of driver or provider, and try again",
                source=f"{DOCUMENT}; microsoft/winml-cli, issue 1224",
            ),
        ),
        driver="/sys/module/amdxdna/version and the NPU's fw_version; for FPGAs XRT's version.json; none on Windows",
        sources=(DOCUMENT, RYZEN, ORT_CRATE),
    )

    def driver_version(self) -> str | None:
        """The NPU's driver and firmware, or XRT's version."""
        return amd_npu_driver_version(self.files) or xrt_version(self.files)

    def _found(self) -> tuple[Accelerator, ...]:
        found = amd_npus(self.files) or alveo_cards(self.files)
        board = None if found else system_on_chip(self.files)
        if board is None or not any(word in board.lower() for word in BOARDS):
            return found
        return (Accelerator("fpga", board, "AMD"),)

    def _device_options(self, device: str | None, given: Mapping[str, str]) -> dict[str, str]:
        """None: it has no option for a device's number."""
        return {}
