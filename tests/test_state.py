"""Load is what other processes do: our own tree never counts, whatever its processes do in between."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ort_metainfer.hardware import processes
from ort_metainfer.hardware.files import SYSTEM, SystemFiles
from ort_metainfer.hardware.processes import ProcessTicks, ticks_spent
from ort_metainfer.hardware.state import Clock, LoadWatch, clocks_mhz, memory_available_mb, observe, temperature_c
from ort_metainfer.problem import HardwareState
from tests.system_tree import write_tree

ME = 100


@dataclass
class FakeTime:
    now_s: float = 1000.0

    def clock(self) -> Clock:
        return Clock(monotonic=lambda: self.now_s, epoch=lambda: self.now_s + 1e9, sleep=self.pass_s, ticks_per_s=100)

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds


def stat(
    pid: int, parent: int, ticks: int, waited: int = 0, started: int = 7, state: str = "S", name: str = "python"
) -> str:
    """A line of /proc/PID/stat: fields 3 to 22 and some that follow."""
    before, between = "0 " * 9, "20 0 1 0"
    return f"{pid} ({name}) {state} {parent} {before}{ticks} 0 {waited} 0 {between} {started} 1000 10 0 0"


def machine_line(busy: int, idle: int, steal: int = 0) -> str:
    return f"cpu  {busy} 0 0 {idle} 0 0 0 {steal} 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0"


def process(pid: int, parent: int, ticks: int, waited: int = 0, **rest: int | str) -> dict[str, str]:
    line = stat(pid, parent, ticks, waited, **rest)  # type: ignore[arg-type]
    return {f"/proc/{pid}/stat": line, f"/proc/{pid}/task/{pid}/stat": line}


def remove(root: Path, pid: int) -> None:
    for file in ("stat", f"task/{pid}/stat"):
        (root / f"proc/{pid}/{file}").unlink()


@pytest.fixture
def watch(tmp_path: Path) -> Callable[..., tuple[LoadWatch, FakeTime]]:
    """Starts a watch on a two-core machine with nothing but this process and what is given."""

    def start(extra: dict[str, str] | None = None) -> tuple[LoadWatch, FakeTime]:
        time = FakeTime()
        files = {"/proc/stat": machine_line(1000, 5000), "/proc/loadavg": "0.1 0.1 0.1 1/90 4000", **(extra or {})}
        files = {**process(1, 0, 50), **process(ME, 1, 200), **files}
        return LoadWatch(write_tree(tmp_path, files), time.clock(), ME), time

    return start


def test_what_this_process_does_is_no_load(watch: Callable[..., tuple[LoadWatch, FakeTime]], tmp_path: Path) -> None:
    load, time = watch()
    time.pass_s(2.0)
    write_tree(tmp_path, {"/proc/stat": machine_line(1400, 5000), **process(ME, 1, 600)})
    state = load.stop()
    assert (state.others_cpu, state.window_s, state.when) == (0.0, 2.0, 1002.0 + 1e9)
    assert state.busy_reason is None


def test_what_others_do_is_counted_in_cores(watch: Callable[..., tuple[LoadWatch, FakeTime]], tmp_path: Path) -> None:
    load, time = watch()
    time.pass_s(2.0)
    write_tree(tmp_path, {"/proc/stat": machine_line(1400, 5000), **process(ME, 1, 300)})
    state = load.stop()
    assert state.others_cpu == pytest.approx(1.5)
    assert state.busy_reason == "other processes use 1.50 cores"


def test_a_child_that_was_waited_for_is_no_load(
    watch: Callable[..., tuple[LoadWatch, FakeTime]], tmp_path: Path
) -> None:
    load, time = watch(process(200, ME, 40))
    time.pass_s(1.0)
    remove(tmp_path, 200)
    write_tree(tmp_path, {"/proc/stat": machine_line(1100, 5100), **process(ME, 1, 200, waited=140)})
    assert load.stop().others_cpu == 0.0


def test_living_descendants_are_no_load(watch: Callable[..., tuple[LoadWatch, FakeTime]], tmp_path: Path) -> None:
    load, time = watch()
    time.pass_s(1.0)
    write_tree(
        tmp_path,
        {"/proc/stat": machine_line(1100, 5100), **process(200, ME, 30, started=9), **process(201, 200, 70, started=9)},
    )
    assert load.stop().others_cpu == 0.0


def test_a_grandchild_whose_parent_ended_stays_ours(
    watch: Callable[..., tuple[LoadWatch, FakeTime]], tmp_path: Path
) -> None:
    load, time = watch({**process(200, ME, 10), **process(201, 200, 20)})
    time.pass_s(1.0)
    remove(tmp_path, 200)
    write_tree(
        tmp_path, {"/proc/stat": machine_line(1100, 5100), **process(201, 1, 120), **process(ME, 1, 200, waited=10)}
    )
    assert load.stop().others_cpu == 0.0


def test_excluded_processes_and_their_children_are_no_load(
    watch: Callable[..., tuple[LoadWatch, FakeTime]], tmp_path: Path
) -> None:
    load, time = watch({**process(300, 1, 500), **process(301, 300, 40)})
    time.pass_s(1.0)
    write_tree(tmp_path, {"/proc/stat": machine_line(1100, 5100), **process(300, 1, 560), **process(301, 300, 80)})
    assert load.stop().others_cpu == pytest.approx(1.0)
    assert load.stop(exclude_pids=[300]).others_cpu == 0.0


def test_an_excluded_process_that_is_gone_takes_nothing_away(
    watch: Callable[..., tuple[LoadWatch, FakeTime]], tmp_path: Path
) -> None:
    load, time = watch(process(300, 1, 500))
    time.pass_s(1.0)
    remove(tmp_path, 300)
    write_tree(tmp_path, {"/proc/stat": machine_line(1200, 5000), **process(ME, 1, 300)})
    assert load.stop(exclude_pids=[300, 9999]).others_cpu == pytest.approx(1.0)


def test_a_process_id_used_again_counts_from_nothing() -> None:
    before = {ME: ProcessTicks(1, 10, 7), 200: ProcessTicks(1, 900, 8)}
    after = {ME: ProcessTicks(1, 10, 7), 200: ProcessTicks(ME, 30, 50)}
    assert ticks_spent(before, after, ME) == 30


def test_a_single_tick_is_noise(watch: Callable[..., tuple[LoadWatch, FakeTime]], tmp_path: Path) -> None:
    load, time = watch()
    time.pass_s(0.1)
    write_tree(tmp_path, {"/proc/stat": machine_line(1001, 5018, steal=1)})
    state = load.stop()
    assert (state.others_cpu, state.steal, state.busy_reason) == (0.0, 0.0, None)
    write_tree(tmp_path, {"/proc/stat": machine_line(1002, 5016, steal=2)})
    state = load.stop()
    assert (state.others_cpu, state.steal) == (pytest.approx(0.2), pytest.approx(0.1))


def test_a_window_shorter_than_a_tick_says_nothing(watch: Callable[..., tuple[LoadWatch, FakeTime]]) -> None:
    load, time = watch()
    time.pass_s(0.005)
    state = load.stop()
    assert (state.others_cpu, state.steal) == (None, None)


def test_steal_is_a_share_of_all_time(watch: Callable[..., tuple[LoadWatch, FakeTime]], tmp_path: Path) -> None:
    load, time = watch()
    time.pass_s(1.0)
    write_tree(tmp_path, {"/proc/stat": machine_line(1000, 5150, steal=50)})
    state = load.stop()
    assert state.steal == pytest.approx(0.25)
    assert state.busy_reason == "the hypervisor takes 25% of the time"


def test_our_own_runnable_threads_are_not_counted(
    watch: Callable[..., tuple[LoadWatch, FakeTime]], tmp_path: Path
) -> None:
    load, time = watch()
    time.pass_s(1.0)
    mine = {f"/proc/{ME}/task/{thread}/stat": stat(thread, 1, 0, state="R") for thread in (ME, 101, 102)}
    write_tree(tmp_path, {"/proc/loadavg": "0.1 0.1 0.1 5/90 4000", **mine})
    assert load.stop().runnable == 2


def test_a_command_may_call_itself_anything(watch: Callable[..., tuple[LoadWatch, FakeTime]], tmp_path: Path) -> None:
    load, time = watch(process(300, 1, 0, name="x) R 1 (y"))
    time.pass_s(1.0)
    write_tree(tmp_path, {"/proc/stat": machine_line(1100, 5100), **process(300, 1, 100, name="x) R 1 (y")})
    assert load.stop(exclude_pids=[300]).others_cpu == 0.0


def test_without_proc_nothing_is_claimed(tmp_path: Path) -> None:
    time = FakeTime()
    state = observe(0.5, SystemFiles(tmp_path), time.clock())
    assert state.window_s == 0.5
    assert state == HardwareState(when=state.when, window_s=0.5), "every other field is not known"
    assert not state.is_load_known


@pytest.mark.parametrize("text", ["", "cpu", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8 9"])
def test_a_stat_file_of_another_form_says_nothing(tmp_path: Path, text: str) -> None:
    assert processes.machine_ticks(write_tree(tmp_path, {"/proc/stat": text})) is None


def test_the_clock_is_the_median_core_and_the_fastest_is_told_beside_it(tmp_path: Path) -> None:
    khz = {0: 3_400_000, 1: 800_000, 2: 3_000_000}
    files = {f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq": value for core, value in khz.items()}
    tree = write_tree(tmp_path, {**files, "/sys/devices/system/cpu/cpufreq/x": ""})
    assert clocks_mhz(tree) == [3400.0, 800.0, 3000.0]
    state = observe(0.5, tree, FakeTime().clock())
    assert (state.clock_mhz, state.top_clock_mhz) == (3000.0, 3400.0)


def test_the_hottest_cpu_sensor_counts_and_no_other(tmp_path: Path) -> None:
    sensors: dict[str, str | int] = {
        "/sys/class/hwmon/hwmon0/name": "nvme",
        "/sys/class/hwmon/hwmon0/temp1_input": 90_000,
        "/sys/class/hwmon/hwmon1/name": "k10temp",
        "/sys/class/hwmon/hwmon1/temp1_input": 61_500,
        "/sys/class/hwmon/hwmon1/temp1_max": 95_000,
        "/sys/class/thermal/thermal_zone0/type": "x86_pkg_temp",
        "/sys/class/thermal/thermal_zone0/temp": 58_000,
        "/sys/class/thermal/thermal_zone1/type": "iwlwifi_1",
        "/sys/class/thermal/thermal_zone1/temp": 77_000,
    }
    assert temperature_c(write_tree(tmp_path, sensors)) == 61.5


def test_available_memory_is_the_smaller_of_machine_and_group(tmp_path: Path) -> None:
    files = write_tree(tmp_path, {"/proc/meminfo": "MemTotal: 4096000 kB\nMemAvailable: 2048000 kB"})
    assert memory_available_mb(files) == 2000.0
    group = {
        "/proc/self/cgroup": "0::/app",
        "/proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
        "/sys/fs/cgroup/app/memory.max": 300 * 2**20,
        "/sys/fs/cgroup/app/memory.current": 100 * 2**20,
    }
    assert memory_available_mb(write_tree(tmp_path, group)) == 200.0


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["spawn", "work", "end"]), st.integers(0, 30), st.integers(1, 9)), max_size=40
)


class FakeKernel:
    """Processes that spawn, work and end; parents wait for their children, as a well-behaved program does."""

    def __init__(self) -> None:
        self.table = {1: ProcessTicks(0, 5, 0), ME: ProcessTicks(1, 11, 1), 50: ProcessTicks(1, 3, 1)}
        self.moment = 2
        self.ours = {ME}
        self.spent_by_us = 0

    def step(self, action: str, choice: int, ticks: int) -> None:
        self.moment += 1
        pid = sorted(self.table)[choice % len(self.table)]
        process = self.table[pid]
        if action == "spawn":
            child = max(self.table) + 1
            self.table[child] = ProcessTicks(pid, 0, self.moment)
            self.ours |= {child} if pid in self.ours else set()
        elif action == "work":
            self.table[pid] = ProcessTicks(process.parent, process.spent + ticks, process.started)
            self.spent_by_us += ticks if pid in self.ours else 0
        elif pid not in (1, ME) and all(other.parent != pid for other in self.table.values()):
            parent = self.table[process.parent]
            waited = parent.spent + process.spent
            self.table[process.parent] = ProcessTicks(parent.parent, waited, parent.started)
            del self.table[pid]
            self.ours.discard(pid)


@given(earlier=STEPS, during=STEPS)
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_our_processes_do_their_ticks_are_ours_to_the_tick(earlier: list[Step], during: list[Step]) -> None:
    kernel = FakeKernel()
    for step in earlier:
        kernel.step(*step)
    before, spent = dict(kernel.table), kernel.spent_by_us
    for step in during:
        kernel.step(*step)
    assert ticks_spent(before, kernel.table, ME) == kernel.spent_by_us - spent


BURN = "import time\nwhile time.process_time() < 0.3: pass\n"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts in Linux's own ticks")
def test_a_real_childs_cpu_time_is_found_alive_and_after_its_end() -> None:
    command = [sys.executable, "-c", f"{BURN}print('burnt', flush=True); input()"]
    before = processes.process_ticks(SYSTEM)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == b"burnt\n"
        alive = ticks_spent(before, processes.process_ticks(SYSTEM), os.getpid())
        child.stdin.close()
    ended = ticks_spent(before, processes.process_ticks(SYSTEM), os.getpid())
    assert 25 <= alive <= ended, "0.3 s of CPU time are 30 ticks, give or take what the kernel's sampling misses"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's own files")
def test_this_machine_can_be_observed() -> None:
    state = observe(0.05)
    assert state.others_cpu is not None and state.others_cpu >= 0
    assert state.steal is not None and 0 <= state.steal <= 1
    assert state.runnable is not None and state.runnable >= 0
    assert state.memory_available_mb is not None and state.memory_available_mb > 0
    assert state.window_s >= 0.05
