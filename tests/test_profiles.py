"""The store of profiles: measured once per versions, compared when measured again, unharmed by what it finds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ort_metainfer.errors import ProviderError, TrialCrashed
from ort_metainfer.hardware.devices import cpu_device
from ort_metainfer.hardware.profile import Feature, Measurement, Profile, ReferenceTiming
from ort_metainfer.hardware.profiles import (
    EFFECTS,
    PROFILES,
    Instruments,
    all_profiles,
    known_effects,
    known_profile,
    profile_device,
    versions_of,
)
from ort_metainfer.hardware.static_features import listed, size_bytes, static_features
from ort_metainfer.problem import Device, HardwareState
from ort_metainfer.strategy_cache.store import StrategyCache
from tests.system_tree import write_tree

DEVICE = Device("CPUExecutionProvider", "cpu", "Some CPU", features=("avx2",), cores=2.0, driver="7")
STATE = HardwareState(when=1.0, window_s=0.1, others_cpu=0.5)


class Bench:
    """Instruments whose figures and versions a test sets; counts how often it was asked."""

    def __init__(self, rate: float = 100.0, version: str = "1.32.0") -> None:
        self.rate, self.version, self.asked = rate, version, 0
        self.latency_ms = 2.0
        self.crash: str | None = None

    def probe(self, device: Device, deadline: float, say: Any) -> Profile:
        self.asked += 1
        if self.crash is not None:
            raise TrialCrashed(self.crash)
        point = Measurement("matmul/float32/64", 262144.0, "MAC", p50_ms=1.0, spread=0.01, runs=10)
        found = Feature("peak_macs_per_s/float32", self.rate, "MAC/s", "probe", spread=0.01)
        return Profile(device, {}, (found,), (point,), operators={"MatMul": True}, before=STATE, after=STATE)

    def fingerprint(self, device: Device, deadline: float, say: Any) -> tuple[ReferenceTiming, ...]:
        return (ReferenceTiming("conv", "cpu", p50_ms=self.latency_ms, spread=0.01, log_ratio=0.0, creation_ms=9.0),)

    def versions(self, device: Device) -> Mapping[str, str]:
        return {"onnxruntime": self.version}

    @property
    def instruments(self) -> Instruments:
        return Instruments(self.probe, self.fingerprint, self.versions, lambda: STATE)


@pytest.fixture
def cache(tmp_path: Path) -> StrategyCache:
    return StrategyCache(tmp_path / "cache")


def measured(cache: StrategyCache, bench: Bench, refresh: bool = False, device: Device = DEVICE) -> Profile:
    return profile_device(device, cache, 5.0, refresh, instruments=bench.instruments)


def test_a_profile_survives_a_trip_through_json_and_the_cache(cache: StrategyCache) -> None:
    bench = Bench()
    made = measured(cache, bench)
    assert Profile.from_dict(json.loads(json.dumps(made.as_dict(), allow_nan=False))) == made
    assert known_profile(cache, DEVICE, {"onnxruntime": "1.32.0"}) == made
    assert made.references[0].network == "conv" and made.measurements[0].runs == 10
    assert made.measured_at and made.seconds >= 0


def test_a_profile_holds_static_facts_the_probe_and_the_fingerprint(cache: StrategyCache) -> None:
    values = dict(measured(cache, Bench()).values())
    assert values["isa/avx2"] == 1.0 and values["cores"] == 2.0
    assert values["peak_macs_per_s/float32"] == 100.0
    assert values["reference/conv/ms"] == 2.0 and values["reference/conv/cpu/creation"] == 9.0


def test_a_device_is_measured_once_per_versions(cache: StrategyCache) -> None:
    bench = Bench()
    first = measured(cache, bench)
    assert measured(cache, bench) == first and bench.asked == 1
    bench.version = "1.33.0"
    measured(cache, bench)
    assert bench.asked == 2
    measured(cache, bench, device=replace(DEVICE, name="Another CPU"))
    assert bench.asked == 3
    assert {profile.versions["onnxruntime"] for profile in all_profiles(cache)} == {"1.32.0", "1.33.0"}
    assert len(all_profiles(cache)) == 3


def test_a_profile_made_in_too_little_time_is_measured_again_and_costs_nothing_that_is_known(
    cache: StrategyCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, hurried = Bench(), Bench()
    monkeypatch.setattr(hurried, "probe", lambda device, deadline, say: Profile(device, {}))
    monkeypatch.setattr(hurried, "fingerprint", lambda device, deadline, say: ())
    thin = measured(cache, hurried)
    assert known_profile(cache, DEVICE, {"onnxruntime": "1.32.0"}) == thin
    whole = measured(cache, bench)
    assert bench.asked == 1 and whole.measurements
    assert measured(cache, hurried, refresh=True).measurements == ()
    assert known_profile(cache, DEVICE, {"onnxruntime": "1.32.0"}) == whole


def test_measured_again_what_does_not_repeat_is_flagged(cache: StrategyCache) -> None:
    bench = Bench()
    measured(cache, bench)
    bench.rate = 60.0
    again = measured(cache, bench, refresh=True)
    assert (again["peak_macs_per_s/float32"].flag or "").startswith("not repeatable")
    assert again["reference/conv/ms"].flag is None
    assert "peak_macs_per_s/float32" not in dict(again.values())
    assert known_profile(cache, DEVICE, {"onnxruntime": "1.32.0"}) == again
    assert list(known_effects(cache, again)) == []


def test_what_another_version_changed_is_recorded_and_flagged_in_both(cache: StrategyCache) -> None:
    bench = Bench()
    measured(cache, bench)
    bench.version, bench.rate, bench.latency_ms = "1.33.0", 60.0, 2.1
    new = measured(cache, bench)
    (effect,) = known_effects(cache, new)
    assert (effect.feature, effect.before, effect.after) == ("peak_macs_per_s/float32", 100.0, 60.0)
    assert effect.versions == {"onnxruntime": ("1.32.0", "1.33.0")}
    old = known_profile(cache, DEVICE, {"onnxruntime": "1.32.0"})
    assert old is not None and list(known_effects(cache, old)) == [effect]
    for profile in (old, new):
        assert "peak_macs_per_s/float32" not in dict(profile.values())
        assert profile["reference/conv/ms"].flag is None


def test_an_effect_is_found_again_when_the_new_version_is_measured_again(cache: StrategyCache) -> None:
    bench = Bench()
    measured(cache, bench)
    bench.version, bench.rate = "1.33.0", 60.0
    measured(cache, bench)
    again = measured(cache, bench, refresh=True)
    assert len(list(known_effects(cache, again))) == 1
    assert (again["peak_macs_per_s/float32"].flag or "").startswith("toolchain effect")


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"schema": 999},
        {"schema": 1},
        {"schema": 1, "device": None, "versions": {}},
        {"schema": 1, "device": {"provider": "x"}, "features": [], "measurements": [], "references": []},
        {"features": [{"name": "a", "value": "many", "unit": "1", "origin": "probe"}]},
        {"features": [{"name": "a", "value": None, "unit": "1", "origin": "probe"}]},
        {"features": [["a", 1.0]]},
        {"features": "none"},
        {"versions": ["1.32.0"]},
        {"device": {"provider": "CPUExecutionProvider"}},
        {"strange": 1},
        {"before": {"when": 1.0}},
        {"before": {"when": 1.0, "window_s": 0.1, "others_cpu": "many"}},
        {"seconds": None},
        {"operators": {"MatMul": "yes"}},
        {"features": [{"name": "a", "value": 1.0, "unit": "1", "origin": "hearsay"}]},
        {"features": [{"name": "a", "value": 1.0, "unit": "1", "origin": "probe", "flag": []}]},
        {"measurements": [{"name": "a", "work": {}, "work_unit": "MAC"}]},
        {"references": [{"network": [1], "strategy": "cpu"}]},
        {"references": [{"network": "conv", "strategy": "cpu", "log_ratio": "x"}]},
        {"references": [{"network": "conv", "strategy": "cpu", "taken": True}]},
    ],
)
def test_a_row_that_is_no_profile_reads_as_absent_and_is_measured_again(
    cache: StrategyCache, row: dict[str, Any]
) -> None:
    bench = Bench()
    made = measured(cache, bench)
    sound = cache.get(PROFILES, made.key)
    assert sound is not None
    whole = row if "schema" in row or not row else {**sound, **row}
    assert cache.put(PROFILES, made.key, whole)
    assert known_profile(cache, DEVICE, bench.versions(DEVICE)) is None
    assert all_profiles(cache) == ()
    measured(cache, bench)
    assert bench.asked == 2 and len(all_profiles(cache)) == 1


@pytest.mark.parametrize(
    "row", [{}, {"effects": 1}, {"effects": [1, {"feature": "a"}, {"versions": 3}, {"versions": {"a": "bcd"}}]}]
)
def test_a_row_that_is_no_effect_reads_as_absent(cache: StrategyCache, row: dict[str, Any]) -> None:
    made = measured(cache, Bench())
    assert cache.put(EFFECTS, f"x > {made.key}", row)
    assert list(known_effects(cache, made)) == []


def test_an_effect_whose_figures_are_none_reads_as_absent(cache: StrategyCache) -> None:
    made, text = measured(cache, Bench()), {"feature": "a", "before": "x", "after": 1.0, "ratio": 1.0, "unit": "ms"}
    assert cache.put(EFFECTS, f"x > {made.key}", {"effects": [{**text, "versions": {"onnxruntime": ["1", "2"]}}]})
    assert list(known_effects(cache, made)) == []


def test_a_profile_under_a_key_that_is_not_its_own_is_not_taken_for_another_device(cache: StrategyCache) -> None:
    made = measured(cache, Bench())
    other = replace(DEVICE, name="Another CPU")
    assert cache.put(PROFILES, Profile(other, made.versions).key, made.as_dict())
    assert known_profile(cache, other, made.versions) is None


def test_a_probe_whose_process_dies_leaves_the_fingerprint(cache: StrategyCache) -> None:
    bench = Bench()
    bench.crash = "its process died (SIGSEGV)"
    made = measured(cache, bench)
    assert made.measurements[0].refusal == "its process died (SIGSEGV)"
    assert "reference/conv/ms" in made and "peak_macs_per_s/float32" not in made


def test_nothing_is_measured_of_a_simulated_device(cache: StrategyCache) -> None:
    bench = Bench()
    with pytest.raises(ProviderError, match="simulated"):
        measured(cache, bench, device=replace(DEVICE, simulated=True))
    assert bench.asked == 0 and all_profiles(cache) == ()


def test_a_cache_that_cannot_be_written_still_gives_the_profile(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    broken = StrategyCache(in_the_way / "cache")
    assert "cores" in measured(broken, Bench())
    assert broken.last_failure is not None


def test_versions_name_onnxruntime_the_package_and_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    from ort_metainfer.providers import get_provider

    assert versions_of(DEVICE)["onnxruntime"] == onnxruntime.__version__
    monkeypatch.setattr(type(get_provider("CPU")), "driver_version", lambda self: "550.1")
    assert versions_of(DEVICE)["driver"] == "550.1"
    with pytest.raises(ProviderError):
        versions_of(replace(DEVICE, provider="NobodysExecutionProvider"))


# Static features


def test_what_the_system_tells_becomes_features_with_units(tmp_path: Path) -> None:
    cpu = "/sys/devices/system/cpu"
    files = write_tree(
        tmp_path,
        {
            f"{cpu}/online": "0-3",
            **{f"{cpu}/cpu{n}/topology/thread_siblings_list": "0-1" if n < 2 else "2-3" for n in range(4)},
            **{f"{cpu}/cpu{n}/cpufreq/cpuinfo_max_freq": 3_000_000 + n for n in range(4)},
            f"{cpu}/cpu0/cache/index0/level": 1,
            f"{cpu}/cpu0/cache/index0/type": "Data",
            f"{cpu}/cpu0/cache/index0/size": "48K",
            f"{cpu}/cpu0/cache/index0/shared_cpu_list": "0-1",
            f"{cpu}/cpu0/cache/index3/level": 3,
            f"{cpu}/cpu0/cache/index3/type": "Unified",
            f"{cpu}/cpu0/cache/index3/size": "32M",
            "/sys/devices/cpu_core/cpus": "0-1",
            "/sys/devices/cpu_atom/cpus": "2-3",
            "/proc/meminfo": "MemTotal:       1024 kB\nMemAvailable: 512 kB",
        },
    )
    told = {feature.name: (feature.value, feature.unit) for feature in static_features(DEVICE, files)}
    assert told == {
        "isa/avx2": (1.0, "1"),
        "cores": (2.0, "1"),
        "limited": (0.0, "1"),
        "logical_cores": (4.0, "1"),
        "physical_cores": (2.0, "1"),
        "performance_cores": (2.0, "1"),
        "efficiency_cores": (2.0, "1"),
        "highest_clock_mhz": (3000.003, "MHz"),
        "cache/L1d": (48 * 1024.0, "B"),
        "cache/L1d/sharers": (2.0, "1"),
        "cache/L3": (32 * 2.0**20, "B"),
        "memory_bytes": (2.0**20, "B"),
    }


def test_what_the_system_does_not_tell_is_absent_never_zero(tmp_path: Path) -> None:
    bare = Device("CPUExecutionProvider", "cpu", "Some CPU")
    assert static_features(bare, write_tree(tmp_path, {})) == ()
    odd = {
        "/sys/devices/system/cpu/cpu0/cache/index0/level": 1,
        "/sys/devices/system/cpu/cpu0/cache/index0/size": "big",
    }
    assert static_features(bare, write_tree(tmp_path, odd)) == ()


def test_a_device_with_memory_of_its_own_has_that_and_not_the_machines(tmp_path: Path) -> None:
    files = write_tree(tmp_path, {"/proc/meminfo": "MemTotal: 1024 kB", "/sys/devices/system/cpu/online": "0-3"})
    gpu = Device("CUDAExecutionProvider", "gpu", "Some GPU", memory_mb=2.0)
    assert [(f.name, f.value) for f in static_features(gpu, files)] == [("device_memory_bytes", 2.0 * 2**20)]


def test_lists_and_sizes_as_the_kernel_writes_them() -> None:
    assert listed("0-2,5\n") == [0, 1, 2, 5]
    assert [listed(text) for text in (None, "", "x", "1-")] == [[], [], [], [1]]
    assert [size_bytes(text) for text in ("48K", "2M", "100", "1T", "", None)] == [
        49152,
        2 * 2**20,
        100,
        None,
        None,
        None,
    ]


@pytest.mark.slow
def test_this_machine_is_profiled_for_real_and_remembered(cache: StrategyCache) -> None:
    device = cpu_device()
    made = profile_device(device, cache, 12.0)
    assert made.references and made.measurements
    assert not made.simulated
    values = {feature.name: feature.value for feature in made.features}
    assert values["reference/conv/ms"] > 0 and values["cores"] > 0
    assert profile_device(device, cache, 12.0) == made
