"""A made-up machine: /proc and /sys as a folder of text files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ort_metainfer.hardware.files import SystemFiles


def write_tree(root: Path, files: Mapping[str, str | int]) -> SystemFiles:
    """Write ``files`` (absolute path -> text) below ``root``, over what is there, and read the machine from it."""
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return SystemFiles(root)


def cpuinfo(*blocks: Mapping[str, str]) -> str:
    """The text of /proc/cpuinfo: one block a core."""
    return "\n\n".join("\n".join(f"{key}\t: {value}" for key, value in block.items()) for block in blocks)


EPYC = {
    "processor": "0",
    "vendor_id": "AuthenticAMD",
    "model name": "AMD EPYC",
    "cpu MHz": "2596.122",
    "flags": "fpu sse2 avx avx2 avx512f avx_vnni avx512_bf16 avx512_vnni hypervisor",
}
XEON = {
    "vendor_id": "GenuineIntel",
    "model name": "Intel(R) Xeon(R) Processor",
    "flags": "fpu avx2 avx512f avx512_vnni amx_bf16 amx_int8 amx_tile",
}
LITTLE = {"CPU implementer": "0x41", "CPU part": "0xd03", "Features": "fp asimd evtstrm aes"}
BIG = {"CPU implementer": "0x41", "CPU part": "0xd0b", "Features": "fp asimd evtstrm aes asimddp"}
GRAVITON3 = {"CPU implementer": "0x41", "CPU part": "0xd40", "Features": "fp asimd asimddp sve i8mm bf16"}
