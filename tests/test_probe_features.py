"""Features derived from the probe's points: what counts, what is left out, what is flagged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ort_metainfer.hardware.derived import COMPARED, EMULATED, derive_features
from ort_metainfer.hardware.micro_benchmarks import NAMED
from ort_metainfer.hardware.profile import Feature, Measurement


def point(name: str, p50_ms: float | None = 1.0, **fields: object) -> Measurement:
    """A point of the probe's own list, as if measured."""
    benchmark = NAMED[name]
    bare = Measurement(name, benchmark.work, benchmark.work_unit, p50_ms, p50_ms, 0.03, 10)
    return replace(bare, **fields)  # type: ignore[arg-type]


def features(*points: Measurement) -> dict[str, Feature]:
    return {feature.name: feature for feature in derive_features(points)}


def test_the_empty_graph_gives_the_dispatch_overhead() -> None:
    dispatch = features(point("empty/float32/1", 0.004))["dispatch_ms"]
    assert (dispatch.value, dispatch.unit, dispatch.origin, dispatch.spread) == (0.004, "ms", "probe", 0.03)


def test_peak_compute_is_the_best_rate_over_kinds_and_sizes_of_a_type() -> None:
    found = features(
        point("matmul/float32/512", 2.0), point("conv3x3/float32/64x56", 2.0), point("matmul/int8/512", 1.0)
    )
    assert found["peak_macs_per_s/float32"].value == NAMED["conv3x3/float32/64x56"].work / 0.002
    assert found["peak_macs_per_s/int8"].value == NAMED["matmul/int8/512"].work / 0.001
    assert found["peak_macs_per_s/float32"].unit == "MAC/s"


def test_another_configuration_is_another_feature() -> None:
    found = features(point("matmul/float32/512", 1.0), point("matmul/float32/512@1-thread", 3.0))
    assert found["peak_macs_per_s/float32"].value == 3 * found["peak_macs_per_s/float32@1-thread"].value
    assert found["ratio/threads/matmul"].value == pytest.approx(3.0)


@pytest.mark.parametrize("fields", [{"refusal": "NOT_IMPLEMENTED", "p50_ms": None}, {"taken": False}])
def test_what_was_refused_or_left_to_the_cpu_gives_no_feature(fields: dict[str, object]) -> None:
    found = features(point("matmul/float32/512"), point("matmul/bfloat16/512", **fields))
    assert not [name for name in found if "bfloat16" in name]


def test_bandwidth_is_that_of_the_largest_size_and_the_caches_that_of_smaller_ones() -> None:
    large, small = "element_wise/float32/8192x1024", "element_wise/float32/256x1024"
    found = features(point(large, 10.0), point(small, 0.1))
    assert found["bandwidth_bytes_per_s"].value == NAMED[large].work / 0.010
    assert found["cache_bandwidth_bytes_per_s"].value == NAMED[small].work / 0.0001


def test_without_a_size_beyond_the_caches_there_is_no_bandwidth() -> None:
    assert "bandwidth_bytes_per_s" not in features(point("element_wise/float32/256x1024"))


def test_a_flagged_point_that_might_be_the_best_flags_the_feature() -> None:
    clean, doubtful = point("matmul/float32/512", 1.0), point("matmul/float32/1024", 10.0, flag="disturbed: x")
    peak = features(clean, doubtful)["peak_macs_per_s/float32"]
    assert peak.value == clean.rate
    assert peak.flag == "disturbed: x"


def test_a_flagged_point_that_is_far_from_the_best_does_not() -> None:
    found = features(point("matmul/float32/512", 1.0), point("matmul/float32/64", 1.0, flag="unsteady"))
    assert found["peak_macs_per_s/float32"].flag is None
    assert found["ratio/small_to_large_matmul"].flag == "unsteady"


def test_where_all_points_are_flagged_the_feature_is() -> None:
    found = features(point("matmul/float32/512", flag="unsteady"))
    assert {feature.flag for feature in found.values()} == {"unsteady"}


def test_a_ratio_s_spread_holds_both_points() -> None:
    found = features(
        point("matmul/float32/512", spread=0.03), point("conv3x3/float32/64x56", spread=0.04, flag="unsteady")
    )
    assert found["ratio/conv3x3_to_matmul"].spread == pytest.approx(0.05)
    assert found["ratio/conv3x3_to_matmul"].flag == "unsteady"


def test_a_ratio_compares_work_done_and_not_time() -> None:
    found = features(point("matmul/float32/512", 1.0), point("lstm/float32/32x256", 1.0))
    expected = NAMED["lstm/float32/32x256"].work / NAMED["matmul/float32/512"].work
    assert found["ratio/lstm_to_matmul"].value == pytest.approx(expected)


def test_copies_give_latency_by_the_smallest_and_bandwidth_by_the_best() -> None:
    found = features(point("to_device/float32/4096", 0.02), point("to_device/float32/4194304", 1.0))
    assert found["transfer_to_device_latency_ms"].value == 0.02
    assert found["transfer_to_device_bytes_per_s"].value == pytest.approx(4194304 / 0.001)
    assert not [name for name in found if "from_device" in name]


def test_a_round_trip_gives_the_slope_between_its_sizes() -> None:
    found = features(point("round_trip/float32/4096", 1.0), point("round_trip/float32/4194304", 3.0))
    assert found["round_trip_bytes_per_s"].value == pytest.approx(2 * (4194304 - 4096) / 0.002)


def test_a_round_trip_that_noise_made_faster_for_more_bytes_gives_nothing() -> None:
    assert "round_trip_bytes_per_s" not in features(
        point("round_trip/float32/4096", 3.0), point("round_trip/float32/4194304", 1.0)
    )


def test_everything_of_an_emulated_device_is_flagged() -> None:
    found = derive_features([point("empty/float32/1"), point("matmul/float32/512")], emulated=True)
    assert {feature.flag for feature in found} == {EMULATED}


def test_every_ratio_names_points_that_there_are() -> None:
    assert {name for pair in COMPARED.values() for name in pair} <= set(NAMED)


def test_no_points_no_features() -> None:
    assert derive_features([]) == ()


def test_names_of_features_are_unique() -> None:
    found = derive_features([point(name) for name in NAMED])
    assert len({feature.name for feature in found}) == len(found)
    assert all(feature.value > 0 for feature in found)
