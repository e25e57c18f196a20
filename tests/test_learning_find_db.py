"""Find-db: what other devices measured for this graph, the nearest first, one's own before a fleet's before ours."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ort_metainfer.hardware.profile import Feature, Profile, ReferenceTiming
from ort_metainfer.learning import find_db
from ort_metainfer.learning.find_db import FindDb, Known, distance, known_strategies, shipped_records
from ort_metainfer.learning.record import Record
from ort_metainfer.learning.record_files import write_records
from ort_metainfer.learning.record_store import RecordStore
from ort_metainfer.learning.records import machine_text
from ort_metainfer.problem import Problem, TensorSpec
from ort_metainfer.strategy import Strategy, Transform
from tests.learning_cases import BASIC, NO_SPINNING, ONE_THREAD, STRUCTURE, known_problem, record
from tests.made_problems import CPU, CUDA_GPU, DYNAMIC_IMAGE, OPENVINO, OPENVINO_CPU, device

HERE = "cpu:a cpu/4c"


def profile(cores: float = 4.0, rate: float = 1e11, one_thread: float = 0.5) -> Profile:
    features = (Feature("cores", cores, "1", "static"), Feature("peak_macs_per_s/float32", rate, "MAC/s", "derived"))
    references = (
        ReferenceTiming("net", "cpu", log_ratio=0.0),
        ReferenceTiming("net", "cpu-1-thread", log_ratio=one_thread),
    )
    return Profile(device(), {}, features, references=references)


def probed(**more: Any) -> Problem:
    return replace(known_problem(**more), profiles={CPU: profile()})


def elsewhere(name: str, strategy: Strategy, speedup: float, measured: Profile | None = None, **more: Any) -> Record:
    """A record of another machine."""
    about = replace(known_problem(), profiles={} if measured is None else {CPU: measured})
    return record(strategy, speedup, about, device=name, **more)


def strategies(known: list[Known]) -> list[Strategy]:
    return [one.strategy for one in known]


def test_the_nearest_devices_winner_comes_first_though_another_gained_more() -> None:
    near = elsewhere("cpu:near", ONE_THREAD, 1.2, profile(rate=1.1e11))
    far = elsewhere("cpu:far", BASIC, 3.0, profile(cores=64, rate=5e12, one_thread=3.0))
    known = known_strategies(probed(), [("own", far), ("own", near)])
    assert strategies(known) == [ONE_THREAD, BASIC]
    assert known[0].nearest == "cpu:near" and known[0].distance < 0.2 < known[1].distance
    assert known[0].log_ratio == pytest.approx(math.log(1.2)) and known[0].devices == 1
    assert known[0].because == "1.20x for this graph on one device, the nearest cpu:near (own)"


def test_each_devices_winner_comes_before_any_second_best() -> None:
    records = [
        elsewhere("cpu:near", ONE_THREAD, 1.5, profile()),
        elsewhere("cpu:near", NO_SPINNING, 1.4, profile()),
        elsewhere("cpu:far", BASIC, 1.1, profile(rate=1e12)),
    ]
    assert strategies(known_strategies(probed(), [("own", one) for one in records])) == [ONE_THREAD, BASIC, NO_SPINNING]


def test_those_expected_to_lose_come_last() -> None:
    records = [elsewhere("cpu:near", ONE_THREAD, 0.7, profile()), elsewhere("cpu:far", BASIC, 1.1)]
    known = known_strategies(probed(), [("own", one) for one in records])
    assert strategies(known) == [BASIC, ONE_THREAD] and known[1].log_ratio < 0


def test_near_devices_count_more_in_what_is_expected() -> None:
    records = [
        elsewhere("cpu:near", ONE_THREAD, 2.0, profile()),
        elsewhere("cpu:far", ONE_THREAD, 0.5, profile(cores=64, rate=1e13, one_thread=4.0)),
    ]
    (known,) = known_strategies(probed(), [("own", one) for one in records])
    assert 0 < known.log_ratio < math.log(2.0) and known.devices == 2
    assert known.spread == pytest.approx(math.sqrt(sum((math.log(r) - known.log_ratio) ** 2 for r in (2.0, 0.5)) / 2))


def test_what_was_measured_on_this_very_machine_is_what_is_expected() -> None:
    records = [elsewhere(HERE, ONE_THREAD, 0.8), elsewhere("cpu:near", ONE_THREAD, 3.0)]
    (known,) = known_strategies(known_problem(), [("shipped", one) for one in records])
    assert machine_text(known_problem()) == HERE
    assert known.log_ratio == pytest.approx(math.log(0.8)) and known.distance == 0 and known.devices == 2


def test_ones_own_record_speaks_before_the_fleets_and_that_before_the_shipped() -> None:
    def expected(*layers: str) -> tuple[float, str]:
        gains = {"own": 1.1, "imported": 1.2, "shipped": 1.3}
        records = [(layer, elsewhere("cpu:other", ONE_THREAD, gains[layer])) for layer in layers]
        (known,) = known_strategies(known_problem(), records)
        return round(math.exp(known.log_ratio), 3), known.layer

    assert expected("shipped", "own", "imported") == (1.1, "own")
    assert expected("own", "shipped") == (1.1, "own")
    assert expected("imported", "shipped") == (1.2, "imported")
    assert expected("shipped") == (1.3, "shipped")


def test_of_one_layer_and_machine_the_latest_counts_and_the_same_batch_before_another() -> None:
    old, new = elsewhere("cpu:other", ONE_THREAD, 1.1), elsewhere("cpu:other", ONE_THREAD, 1.2)
    (known,) = known_strategies(known_problem(), [("own", old), ("own", new)])
    assert math.exp(known.log_ratio) == pytest.approx(1.2)
    large = replace(new, graph={**new.graph, "ln_macs": new.graph["ln_macs"] + 3})
    (known,) = known_strategies(known_problem(), [("own", old), ("own", large)])
    assert math.exp(known.log_ratio) == pytest.approx(1.1)


@pytest.mark.parametrize(
    "change",
    [
        {"structure": "f" * 32},
        {"failure": "crashed"},
        {"log_ratio": None},
        {"gates": {"compiles": True, "accurate": False}},
        {"objective": "pipeline"},
        {"provider": OPENVINO},
        {"simulated": True},
        {"accuracy": "fast", "error": 0.05},
        {"schema": 99},
    ],
)
def test_what_says_nothing_here_is_passed_over(change: dict[str, Any]) -> None:
    assert known_strategies(known_problem(), [("own", elsewhere("cpu:other", ONE_THREAD, 1.5))])
    assert known_strategies(known_problem(), [("own", elsewhere("cpu:other", ONE_THREAD, 1.5, **change))]) == []


def test_a_loose_policys_record_counts_where_it_was_exact_or_the_policy_is_loose_too() -> None:
    loose = elsewhere("cpu:other", ONE_THREAD, 1.5, accuracy="balanced", error=5e-3)
    exact = replace(loose, error=1e-7)
    assert known_strategies(known_problem(), [("own", exact)])
    allowed = known_problem(accuracy="fast", inputs_are_real=True)
    assert known_strategies(allowed, [("own", loose)])
    assert known_strategies(known_problem(accuracy="fast"), [("own", loose)]) == []  # no real inputs to judge it by


def test_the_default_is_nothing_to_propose() -> None:
    assert known_strategies(known_problem(), [("own", elsewhere("cpu:other", Strategy(), 1.2))]) == []


def test_a_strategy_comes_with_this_models_names() -> None:
    theirs = (TensorSpec("image", "float32", ("n", 3, "h", "w")),)
    tried = Strategy(
        transforms=(Transform("int8-static", 1, {"exclude": ["a", "b", "c"], "scheme": "u8s8"}),),
        static_shapes={"n": 1, "w": 640},
    )
    there = record(tried, 1.5, known_problem(inputs=theirs), device="cpu:other")
    (known,) = known_strategies(known_problem(inputs=DYNAMIC_IMAGE), [("own", there)])
    assert dict(known.strategy.static_shapes) == {"N": 1, "W": 640}
    assert dict(known.strategy.transforms[0].parameters) == {"scheme": "u8s8"}


def test_another_kind_of_device_is_further_than_any_of_the_same_kind() -> None:
    here = replace(known_problem(others=(OPENVINO_CPU,)), profiles={CPU: profile()})
    same = elsewhere("cpu:far", ONE_THREAD, 1.5, profile(cores=128, rate=1e15, one_thread=2.0))
    other = elsewhere("gpu:other", Strategy(provider=OPENVINO), 1.5, provider=OPENVINO, kind="gpu")
    assert distance(here, same) < distance(here, other)


def test_distance_grows_with_features_instruction_sets_and_references() -> None:
    here = probed(features=("avx2", "avx512f"))
    base = distance(here, elsewhere("cpu:a", ONE_THREAD, 1.5, profile()))
    assert base > 0
    far = [profile(rate=1e13), profile(one_thread=2.0), profile(cores=64)]
    assert all(distance(here, elsewhere("cpu:a", ONE_THREAD, 1.5, other)) > base for other in far)
    equal = elsewhere("cpu:a", ONE_THREAD, 1.5, profile())
    with_sets = replace(equal, profile={**equal.profile, "isa/avx2": 1.0, "isa/avx512f": 1.0})
    assert distance(here, with_sets) < base
    unknown = replace(equal, profile={}, references={})
    assert distance(known_problem(cores=None), unknown) == find_db.UNKNOWN_APART


def test_a_provider_that_offers_nothing_here_is_passed_over() -> None:
    on_gpu = record(Strategy(provider="CUDAExecutionProvider"), 5.0, known_problem(others=(CUDA_GPU,)), device="gpu:x")
    assert known_strategies(known_problem(), [("own", on_gpu)]) == []
    assert known_strategies(known_problem(others=(CUDA_GPU,)), [("own", on_gpu)])
    narrowed = known_problem(others=(CUDA_GPU,), allowed=(CPU,))
    assert known_strategies(narrowed, [("own", on_gpu)]) == []


def test_the_database_reads_own_imported_and_shipped_records(tmp_path: Path) -> None:
    RecordStore(tmp_path).add([elsewhere("cpu:a", ONE_THREAD, 1.5), elsewhere("cpu:b", BASIC, 1.4, path="import")])
    shipped = tmp_path / "shipped.jsonl.gz"
    write_records(shipped, [elsewhere("cpu:c", NO_SPINNING, 1.3), elsewhere("cpu:c", BASIC, 9.0, structure="f" * 32)])
    known = FindDb(tmp_path, shipped).lookup(known_problem())
    assert {one.strategy: one.layer for one in known} == {
        ONE_THREAD: "own",
        BASIC: "imported",
        NO_SPINNING: "shipped",
    }
    assert strategies(FindDb(None, shipped).lookup(known_problem())) == [NO_SPINNING]
    assert FindDb(tmp_path, shipped).lookup(known_problem("")) == []  # its structure is not known


def test_shipped_records_of_other_structures_are_passed_over_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shipped.jsonl.gz"
    write_records(file, [record(structure=f"{number:032x}") for number in range(20)] + [record()])
    read: list[Any] = []
    real = find_db.checked_record
    monkeypatch.setattr(find_db, "checked_record", lambda plain: read.append(plain) or real(plain))
    assert shipped_records(STRUCTURE, file) == [record()] and len(read) == 1
    assert len(shipped_records(None, file)) == 21


def test_a_package_without_records_or_with_damaged_ones_answers_from_the_rest(tmp_path: Path) -> None:
    assert shipped_records(STRUCTURE, tmp_path / "none.jsonl.gz") == []
    (tmp_path / "damaged.jsonl.gz").write_bytes(b"\x1f\x8brubbish")
    assert shipped_records(STRUCTURE, tmp_path / "damaged.jsonl.gz") == []
    assert all(made.is_verdict or made.failure or not made.gates for made in shipped_records())
