"""The CPU is described as this process may use it, from a made-up /proc and /sys, and from this machine's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnxruntime.capi import onnxruntime_pybind11_state as binding

from ort_metainfer.hardware import devices
from ort_metainfer.hardware.cgroups import memory_left_bytes, quota_cores
from ort_metainfer.hardware.files import SystemFiles
from tests.system_tree import BIG, EPYC, GRAVITON3, LITTLE, XEON, cpuinfo, write_tree

V2_MOUNT = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw"
V1_MOUNT = "33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct"
V1_MEMORY = "35 30 0:31 / /sys/fs/cgroup/memory rw shared:11 - cgroup cgroup rw,memory"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    devices.forget()
    yield
    devices.forget()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SystemFiles]:
    """A four-core machine whose cores this process may all use."""
    monkeypatch.setattr(devices, "_usable_cpus", lambda: 4)

    def make(extra: Mapping[str, str | int] | None = None, block: Mapping[str, str] = EPYC) -> SystemFiles:
        files = {"/proc/cpuinfo": cpuinfo(block, block, block, block), "/sys/devices/system/cpu/online": "0-3"}
        return write_tree(tmp_path, {**files, **(extra or {})})

    return make


def in_group(path: str, mount: str = V2_MOUNT, controllers: str = "") -> dict[str, str]:
    return {"/proc/self/cgroup": f"0:{controllers}:{path}", "/proc/self/mountinfo": mount}


def test_an_amd_server_is_named_with_the_instructions_that_matter(machine: Callable[..., SystemFiles]) -> None:
    cpu = devices.cpu_device(machine())
    assert (cpu.provider, cpu.kind, cpu.name, cpu.vendor) == ("CPUExecutionProvider", "cpu", "AMD EPYC", "AMD")
    assert str(cpu) == "cpu:AMD EPYC/avx2+avx512_bf16+avx512_vnni+avx512f+avx_vnni/4c"


def test_amx_is_seen_where_the_model_name_is_masked(machine: Callable[..., SystemFiles]) -> None:
    cpu = devices.cpu_device(machine(block=XEON))
    assert cpu.vendor == "Intel"
    assert cpu.features == ("amx_bf16", "amx_int8", "avx2", "avx512_vnni", "avx512f")


def test_arm_cores_are_named_by_their_part_and_share_only_common_features() -> None:
    name, vendor, features = devices.parse_cpuinfo(cpuinfo(LITTLE, LITTLE, BIG, BIG))
    assert (name, vendor, features) == ("ARM Cortex-A53+Cortex-A76", "ARM", ("asimd",))


def test_arm_matrix_instructions_are_features() -> None:
    name, _, features = devices.parse_cpuinfo(cpuinfo(GRAVITON3, GRAVITON3))
    assert (name, features) == ("ARM Neoverse-V1", ("asimd", "bf16", "dotprod", "i8mm", "sve"))


def test_an_unknown_arm_part_keeps_its_number() -> None:
    assert devices.parse_cpuinfo(cpuinfo({**BIG, "CPU part": "0xfff"}))[0] == "ARM 0xfff"


def test_a_text_cut_in_the_middle_of_a_flags_line_loses_no_feature(machine: Callable[..., SystemFiles]) -> None:
    text = cpuinfo(*[{**EPYC, "padding": "x" * 3000}] * 12)
    files = machine({"/proc/cpuinfo": text})
    cut = text.encode()[: devices.CPUINFO_LIMIT_BYTES]
    assert len(cut) < len(text)
    assert devices.describe_cpu(files)[2] == devices.parse_cpuinfo(cpuinfo(EPYC))[2]
    for end in range(len(text) // 2, len(text) // 2 + 3200, 7):
        assert devices.parse_cpuinfo(text[:end])[2] == devices.parse_cpuinfo(cpuinfo(EPYC))[2]


def test_without_proc_the_platform_module_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCESSOR_IDENTIFIER", "Intel64 Family 6 Model 85 Stepping 4, GenuineIntel")
    assert devices.describe_cpu(SystemFiles(tmp_path), "win32")[:2] == (
        "Intel64 Family 6 Model 85 Stepping 4, GenuineIntel",
        "Intel",
    )


def test_without_any_source_the_name_is_still_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROCESSOR_IDENTIFIER", raising=False)
    monkeypatch.setattr(devices.platform, "processor", lambda: "")
    monkeypatch.setattr(devices.platform, "machine", lambda: "")
    assert devices.describe_cpu(SystemFiles(tmp_path), "plan9")[0] == "unknown CPU"


def test_a_mac_is_described_by_sysctl() -> None:
    values = {"machdep.cpu.brand_string": "Apple M4", "hw.optional.AdvSIMD": "1", "hw.optional.arm.FEAT_BF16": "1"}
    described = devices.describe_mac(lambda name: values.get(name, "0" if name.startswith("hw.") else ""))
    assert described == ("Apple M4", "Apple", ("asimd", "bf16"))


def test_a_quota_of_one_and_a_half_cores_is_a_lasting_limit(machine: Callable[..., SystemFiles]) -> None:
    cpu = devices.cpu_device(machine({**in_group("/app"), "/sys/fs/cgroup/app/cpu.max": "150000 100000"}))
    assert (cpu.cores, cpu.lasting_limit) == (1.5, True)
    assert str(cpu).endswith("/1.5c")


def test_no_quota_is_no_limit(machine: Callable[..., SystemFiles]) -> None:
    cpu = devices.cpu_device(machine({**in_group("/app"), "/sys/fs/cgroup/app/cpu.max": "max 100000"}))
    assert (cpu.cores, cpu.lasting_limit) == (4.0, False)


def test_a_quota_above_the_machine_is_no_limit(machine: Callable[..., SystemFiles]) -> None:
    cpu = devices.cpu_device(machine({**in_group("/"), "/sys/fs/cgroup/cpu.max": "800000 100000"}))
    assert (cpu.cores, cpu.lasting_limit) == (4.0, False)


def test_an_affinity_mask_is_a_lasting_limit(
    machine: Callable[..., SystemFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = machine()
    assert devices.cpu_device(files).lasting_limit is False
    monkeypatch.setattr(devices, "_usable_cpus", lambda: 3)
    cpu = devices.cpu_device(files)
    assert (cpu.cores, cpu.lasting_limit) == (3.0, True), "a changed mask must not be answered from memory"


def test_the_smallest_quota_on_the_way_to_the_root_holds(tmp_path: Path) -> None:
    files = write_tree(
        tmp_path,
        {
            **in_group("/kube/pod/container"),
            "/sys/fs/cgroup/kube/pod/container/cpu.max": "400000 100000",
            "/sys/fs/cgroup/kube/pod/cpu.max": "75000 50000",
            "/sys/fs/cgroup/kube/cpu.max": "max 100000",
        },
    )
    assert quota_cores(files) == 1.5


@given(quotas=st.lists(st.one_of(st.none(), st.integers(1_000, 6_400_000)), min_size=1, max_size=6))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_nesting_the_quota_is_the_minimum(
    quotas: list[int | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folders = ["/sys/fs/cgroup" + "/g" * depth for depth in range(len(quotas))]
    texts = {f"{f}/cpu.max": f"{'max' if q is None else q} 100000" for f, q in zip(folders, quotas, strict=True)}
    files = write_tree(tmp_path_factory.mktemp("machine"), {**in_group("/g" * (len(quotas) - 1) or "/"), **texts})
    numbers = [quota / 100_000 for quota in quotas if quota is not None]
    assert quota_cores(files) == (min(numbers) if numbers else None)


def test_version_one_quotas_are_read_from_the_cpu_controller(tmp_path: Path) -> None:
    folder = "/sys/fs/cgroup/cpu,cpuacct/docker/abc"
    quota = {f"{folder}/cpu.cfs_quota_us": 250_000, f"{folder}/cpu.cfs_period_us": 100_000}
    assert quota_cores(write_tree(tmp_path, {**in_group("/docker/abc", V1_MOUNT, "cpu,cpuacct"), **quota})) == 2.5


def test_version_one_says_minus_one_for_no_quota(tmp_path: Path) -> None:
    folder = "/sys/fs/cgroup/cpu,cpuacct"
    quota = {f"{folder}/cpu.cfs_quota_us": -1, f"{folder}/cpu.cfs_period_us": 100_000}
    assert quota_cores(write_tree(tmp_path, {**in_group("/", V1_MOUNT, "cpu,cpuacct"), **quota})) is None


def test_a_container_sees_its_own_group_at_the_mount(tmp_path: Path) -> None:
    """Docker with version 1 names the host's path and mounts only that group."""
    mount = "33 30 0:29 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu"
    quota = {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": 50_000, "/sys/fs/cgroup/cpu/cpu.cfs_period_us": 100_000}
    assert quota_cores(write_tree(tmp_path, {**in_group("/docker/abc", mount, "cpu"), **quota})) == 0.5


@pytest.mark.parametrize("path", ["/../../other", "/elsewhere/gone"])
def test_a_group_that_cannot_be_seen_leaves_the_mount_itself(tmp_path: Path, path: str) -> None:
    quota = {"/sys/fs/cgroup/cpu.max": "200000 100000"}
    assert quota_cores(write_tree(tmp_path, {**in_group(path), **quota})) == 2.0


@pytest.mark.parametrize("text", ["", "rubbish", "100000", "100000 0", "-5 100000", "1e5 100000"])
def test_an_unreadable_quota_is_no_quota(tmp_path: Path, text: str) -> None:
    assert quota_cores(write_tree(tmp_path, {**in_group("/"), "/sys/fs/cgroup/cpu.max": text})) is None


def test_where_both_versions_are_mounted_both_count(tmp_path: Path) -> None:
    unified = V2_MOUNT.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    files = write_tree(
        tmp_path,
        {
            "/proc/self/cgroup": "2:cpu,cpuacct:/a\n0::/b",
            "/proc/self/mountinfo": f"{V1_MOUNT}\n{unified}",
            "/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": 300_000,
            "/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": 100_000,
            "/sys/fs/cgroup/unified/b/cpu.max": "100000 100000",
        },
    )
    assert quota_cores(files) == 1.0


def test_memory_left_counts_droppable_cache_as_free(tmp_path: Path) -> None:
    group = {
        "/sys/fs/cgroup/app/memory.max": 1_000_000,
        "/sys/fs/cgroup/app/memory.current": 900_000,
        "/sys/fs/cgroup/app/memory.stat": "anon 500000\ninactive_file 300000\nactive_file 100000",
    }
    assert memory_left_bytes(write_tree(tmp_path, {**in_group("/app"), **group})) == 400_000


def test_version_one_without_a_memory_limit_says_so_with_a_huge_number(tmp_path: Path) -> None:
    folder = "/sys/fs/cgroup/memory/app"
    group = {f"{folder}/memory.limit_in_bytes": 9_223_372_036_854_771_712, f"{folder}/memory.usage_in_bytes": 5}
    assert memory_left_bytes(write_tree(tmp_path, {**in_group("/app", V1_MEMORY, "memory"), **group})) is None


def test_version_one_memory_limits_are_read(tmp_path: Path) -> None:
    folder = "/sys/fs/cgroup/memory/app"
    group = {
        f"{folder}/memory.limit_in_bytes": 700,
        f"{folder}/memory.usage_in_bytes": 500,
        f"{folder}/memory.stat": "inactive_file 1\ntotal_inactive_file 50",
    }
    assert memory_left_bytes(write_tree(tmp_path, {**in_group("/app", V1_MEMORY, "memory"), **group})) == 250


class CountingFiles(SystemFiles):
    reads: ClassVar[list[str]] = []

    def read(self, path: str, limit_bytes: int = 65_536) -> str | None:
        self.reads.append(path)
        return super().read(path, limit_bytes)


def test_the_second_question_reads_no_file(machine: Callable[..., SystemFiles]) -> None:
    files = CountingFiles(machine().root)
    first = devices.cpu_device(files)
    assert "/proc/cpuinfo" in files.reads
    files.reads.clear()
    assert devices.cpu_device(files) == first
    assert files.reads == []
    devices.forget()
    devices.cpu_device(files)
    assert "/proc/cpuinfo" in files.reads


def fake_hardware(kind: str, vendor: str, vendor_id: int, device_id: int, **metadata: str) -> Any:
    return SimpleNamespace(
        type=SimpleNamespace(name=kind), vendor=vendor, vendor_id=vendor_id, device_id=device_id, metadata=metadata
    )


def test_accelerators_are_part_of_the_device_string(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        fake_hardware("CPU", "AMD", 0x1022, 0),
        fake_hardware("GPU", "NVIDIA", 0x10DE, 0x2335),
        fake_hardware("NPU", "Intel", 0x8086, 0x643E, Description="Intel(R) AI Boost"),
    ]
    monkeypatch.setattr(binding, "get_hardware_devices", lambda: found, raising=False)
    assert [(device.kind, device.vendor) for device in devices.accelerators()] == [("gpu", "NVIDIA"), ("npu", "Intel")]
    assert devices.device_string() == f"{devices.cpu_device()}+gpu:0x10de:0x2335+npu:Intel(R) AI Boost"


def test_an_onnxruntime_that_lists_no_hardware_names_what_its_providers_run_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = fake_hardware("CPU", "AMD", 0x1022, 0)
    monkeypatch.delattr(binding, "get_hardware_devices", raising=False)
    monkeypatch.setattr(binding, "get_ep_devices", lambda: [SimpleNamespace(device=cpu)] * 2, raising=False)
    assert devices.onnxruntime_hardware() == (devices.Hardware("cpu", "AMD", 0x1022, 0),)
    monkeypatch.delattr(binding, "get_ep_devices")
    assert devices.onnxruntime_hardware() == ()
    assert devices.device_string() == str(devices.cpu_device())


def test_the_same_hardware_twice_is_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = fake_hardware("GPU", "NVIDIA", 0x10DE, 0x2335)
    monkeypatch.setattr(binding, "get_hardware_devices", lambda: [gpu, gpu], raising=False)
    assert devices.device_string().count("gpu:0x10de:0x2335") == 2


@pytest.mark.skipif(sys.platform != "linux", reason="compares with Linux's own files")
def test_this_machine_is_described_from_its_own_files() -> None:
    cpu = devices.cpu_device()
    text = Path("/proc/cpuinfo").read_text()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    assert cpu.name == names[0] if names else cpu.name
    assert all(ours in text or ours == "dotprod" for ours in cpu.features)
    assert cpu.cores is not None and 0 < cpu.cores <= len(os.sched_getaffinity(0))
    assert devices.device_string().startswith(str(cpu))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks to set")
def test_a_mask_set_on_this_process_is_seen() -> None:
    mask = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mask)})
        cpu = devices.cpu_device()
    finally:
        os.sched_setaffinity(0, mask)
    assert cpu.cores is not None and cpu.cores <= 1
    assert cpu.lasting_limit is ((os.cpu_count() or 1) > 1)
