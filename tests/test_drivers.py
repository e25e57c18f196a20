"""What the system's files tell of accelerators and drivers, from made-up trees; garbage in them is not believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ort_metainfer.hardware import drivers
from ort_metainfer.hardware.drivers import Accelerator, visible
from ort_metainfer.hardware.files import SystemFiles
from tests.system_tree import write_tree

VERSIONS = (
    drivers.nvidia_driver_version,
    drivers.amd_gpu_driver_version,
    drivers.amd_npu_driver_version,
    drivers.ascend_driver_version,
    drivers.xrt_version,
    drivers.system_on_chip,
)
FINDERS = (
    drivers.nvidia_gpus,
    drivers.amd_gpus,
    drivers.amd_npus,
    drivers.ascend_npus,
    drivers.alveo_cards,
)
TWO = (Accelerator("gpu", "a", "", 0, uuid="GPU-aa11"), Accelerator("gpu", "b", "", 1, uuid="GPU-aa22"))


def test_an_empty_machine_has_nothing(tmp_path: Path) -> None:
    files = SystemFiles(tmp_path)
    assert [read(files) for read in VERSIONS] == [None] * len(VERSIONS)
    assert [find(files) for find in FINDERS] == [()] * len(FINDERS)


@pytest.mark.parametrize("text", ["", "\0\0", "no version here", "[1, 2]", "\ufffd" * 20, "Version=", "0x"])
def test_files_full_of_something_else_are_not_believed(tmp_path: Path, text: str) -> None:
    paths = [
        "/proc/driver/nvidia/version",
        "/etc/nv_tegra_release",
        "/sys/class/drm/card0/device/vendor",
        "/sys/class/accel/accel0/device/vendor",
        "/sys/bus/pci/devices/0000:01:00.0/vendor",
        "/etc/ascend_install.info",
        "/usr/local/Ascend/driver/version.info",
        "/opt/xilinx/xrt/version.json",
    ]
    files = write_tree(tmp_path, dict.fromkeys(paths, text))
    assert [read(files) for read in VERSIONS] == [None] * len(VERSIONS)
    found = [find(files) for find in FINDERS]
    assert found[1:] == [()] * (len(FINDERS) - 1)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 17 22:55:48 UTC 2024", "535.161.08"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build  (x@y)", "580.82.07"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.86.15  Release Build", "570.86.15"),
    ],
)
def test_nvidias_version_is_read_from_either_kernel_module(tmp_path: Path, text: str, version: str) -> None:
    files = write_tree(tmp_path, {"/proc/driver/nvidia/version": f"{text}\nGCC version:  gcc version 12.2.0 (Debian)"})
    assert drivers.nvidia_driver_version(files) == version


def test_the_module_tells_the_version_where_proc_does_not(tmp_path: Path) -> None:
    assert (
        drivers.nvidia_driver_version(write_tree(tmp_path, {"/sys/module/nvidia/version": "550.54.15"})) == "550.54.15"
    )


def test_a_gpu_that_tells_no_model_is_still_one(tmp_path: Path) -> None:
    files = write_tree(tmp_path, {"/proc/driver/nvidia/gpus/0000:01:00.0/information": "IRQ: 5"})
    assert drivers.nvidia_gpus(files) == (Accelerator("gpu", "NVIDIA GPU", "NVIDIA"),)


def test_wsl_shows_a_gpu_without_a_name(tmp_path: Path) -> None:
    files = write_tree(tmp_path, {"/dev/dxg": "", "/usr/lib/wsl/lib/libcuda.so.1": ""})
    assert drivers.nvidia_gpus(files) == (Accelerator("gpu", "GPU of the Windows host", ""),)
    assert drivers.nvidia_driver_version(files) is None


def test_memory_that_is_not_told_is_unknown_and_not_zero(tmp_path: Path) -> None:
    folder = "/sys/class/drm/card0/device"
    files = write_tree(tmp_path, {f"{folder}/vendor": "0x1002", f"{folder}/device": "0x15bf"})
    assert drivers.amd_gpus(files) == (Accelerator("gpu", "AMD GPU 0x15bf", "AMD"),)
    assert drivers.amd_gpus(write_tree(tmp_path, {f"{folder}/mem_info_vram_total": "0"}))[0].memory_mb is None


def test_connectors_and_other_makers_cards_are_no_amd_gpus(tmp_path: Path) -> None:
    files = {"/sys/class/drm/card0-HDMI-A-1/device/vendor": "0x1002", "/sys/class/drm/card1/device/vendor": "0x10de"}
    assert drivers.amd_gpus(write_tree(tmp_path, files)) == ()


def test_cards_are_numbered_as_they_come(tmp_path: Path) -> None:
    files = write_tree(tmp_path, {f"/sys/class/drm/card{n}/device/vendor": "0x1002" for n in (0, 1, 2)})
    assert [gpu.number for gpu in drivers.amd_gpus(files)] == [0, 1, 2]


@pytest.mark.parametrize("text", ["{", "[]", '{"BUILD_VERSION": 3}', '{"VERSION": ""}'])
def test_a_broken_xrt_file_is_no_version(tmp_path: Path, text: str) -> None:
    assert drivers.xrt_version(write_tree(tmp_path, {"/opt/xilinx/xrt/version.json": text})) is None


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (None, ["a", "b"]),
        ("", []),
        ("-1", []),
        ("1", ["b"]),
        ("1,0", ["b", "a"]),
        (" 0 , 1 ", ["a", "b"]),
        ("0,7,1", ["a"]),
        ("NoDevFiles", []),
        ("GPU-aa2", ["b"]),
        ("GPU-aa", []),
    ],
)
def test_the_environment_hides_and_renumbers_devices(value: str | None, names: list[str]) -> None:
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    seen = visible(TWO, environment, "CUDA_VISIBLE_DEVICES")
    assert [device.name for device in seen] == names
    assert [device.number for device in seen] == list(range(len(names)))
