"""What the cost model rests on: the profiler's events, the child's answers, what is kept of them and what is not."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_metainfer.deciders.cost_calibration import measured_by_kind
from ort_metainfer.errors import TrialTimeout
from ort_metainfer.groundwork import OPERATORS_MIN_S, Groundwork
from ort_metainfer.hardware.profile import Profile
from ort_metainfer.hardware.profiles import PROFILES, versions_of
from ort_metainfer.model.inputs import save_feeds
from ort_metainfer.model.work import NodeWork, OperatorTime
from ort_metainfer.model.workload import workload
from ort_metainfer.problem import SessionSpec
from ort_metainfer.strategy_cache.store import StrategyCache, open_cache
from ort_metainfer.trials.channel import setup_plain
from ort_metainfer.trials.client import ChildTrialHost
from ort_metainfer.trials.operator_profiles import WARM_UPS, operator_times, serve
from ort_metainfer.trials.task import Setup
from tests.cost_cases import case, chain
from tests.made_problems import CPU, CUDA_GPU, device

SHAPES: Mapping[str, tuple[int, ...]] = {"x": (2, 16)}


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    """A product and a softmax of an open batch, with one feed."""
    weight = numpy_helper.from_array(np.ones((16, 16), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["v"], name="product"),
        helper.make_node("Softmax", ["v"], ["y"], name="last"),
    ]
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 16]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "made", sides[:1], sides[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    file = tmp_path / "model.onnx"
    file.write_bytes(model.SerializeToString())
    feeds = tmp_path / "feeds"
    feeds.mkdir()
    save_feeds([{"x": np.ones((2, 16), np.float32)}], feeds)
    return Setup(file, SessionSpec(), feeds)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[StrategyCache]:
    opened = open_cache(tmp_path / "cache")
    yield opened
    opened.close()


class Told:
    """A host that answers from a script and counts what it was asked."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers, self.asked = answers, list[str]()

    def inquire(self, do: str, setup: Setup, deadline: float, **more: Any) -> dict[str, Any]:
        self.asked.append(do)
        answer = self.answers[do]
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)


def ground(cache: StrategyCache, host: object, left_s: float = 10.0) -> Groundwork:
    return Groundwork(cache, host, lambda share: time.monotonic() + share * left_s, lambda: left_s)


def event(name: str, start: float, took: float, category: str = "Node", operator: str = "Conv") -> dict[str, Any]:
    about = {"op_name": operator, "provider": CPU}
    return {"cat": category, "name": name, "ts": start, "dur": took, "args": about}


def run(start: float) -> dict[str, Any]:
    return {"cat": "Session", "name": "model_run", "ts": start, "dur": 90.0, "args": {}}


def test_an_operators_time_is_its_median_over_the_runs_after_those_to_warm_up() -> None:
    took = [9000.0] * WARM_UPS + [10.0, 20.0, 60.0]
    events = [e for i, us in enumerate(took) for e in (run(100.0 * i), event("a_kernel_time", 100.0 * i + 1, us))]
    assert operator_times(events) == (OperatorTime("a", "Conv", CPU, 0.02),)


def test_a_node_that_runs_several_times_in_a_run_takes_all_of_them() -> None:
    start = 100.0 * WARM_UPS
    runs = [run(100.0 * index) for index in range(WARM_UPS + 1)]
    inner = [event("a_kernel_time", start + offset, 5.0) for offset in (1, 10, 20)]
    loop = event("loop_kernel_time", start, 80.0, operator="Loop")
    assert operator_times([*runs, *inner, loop]) == (OperatorTime("a", "Conv", CPU, 0.015),)


def test_events_that_are_no_kernels_or_in_no_run_are_left_out() -> None:
    runs = [run(100.0 * index) for index in range(WARM_UPS + 1)]
    strays = [
        event("a_fence_before", 100.0 * WARM_UPS + 1, 5.0),
        event("b_kernel_time", 1e9, 5.0),
        event("c_kernel_time", 100.0 * WARM_UPS + 1, 5.0, category="Session"),
        {"ph": "M"},
    ]
    assert operator_times([*runs, *strays]) == ()
    assert operator_times([]) == ()


def test_work_is_asked_for_once_for_each_model_and_shapes(cache: StrategyCache, setup: Setup) -> None:
    work = workload(setup.model_file, SHAPES)
    host = Told({"workload": {"work": [node.as_dict() for node in work]}})
    for _ in range(2):
        assert ground(cache, host).work("sha256:a", setup, SHAPES) == work
    assert host.asked == ["workload"]
    ground(cache, host).work("sha256:b", setup, SHAPES)
    ground(cache, host).work("sha256:a", setup, {"x": (3, 16)})
    assert host.asked == ["workload"] * 3


def test_operator_times_are_kept_for_the_session_that_they_are_of(cache: StrategyCache, setup: Setup) -> None:
    told = OperatorTime("a", "Conv", CPU, 1.5)
    host = Told({"profile_operators": {"operators": [asdict(told)]}})
    for _ in range(2):
        assert ground(cache, host).operators("sha256:a", setup, SHAPES, [device()]) == (told,)
    assert len(host.asked) == 1
    pinned = replace(setup, baseline=SessionSpec(properties={"intra_op_num_threads": 1}))
    ground(cache, host).operators("sha256:a", pinned, SHAPES, [device()])
    ground(cache, host).operators("sha256:a", setup, SHAPES, [device(cores=3.0)])
    assert len(host.asked) == 3


def test_with_little_time_the_profiler_is_not_asked(cache: StrategyCache, setup: Setup) -> None:
    host = Told({"profile_operators": {"operators": []}})
    short = ground(cache, host, left_s=OPERATORS_MIN_S / 2)
    assert short.operators("sha256:a", setup, SHAPES, [device()]) == () and host.asked == []


def test_where_a_session_takes_longer_than_its_share_the_profiler_is_not_asked_in_vain(
    cache: StrategyCache, setup: Setup
) -> None:
    host = Told({"profile_operators": {"operators": []}})
    slow = Groundwork(cache, host, lambda share: share, lambda: 10.0, session_s=2.0)
    assert slow.operators("sha256:a", setup, SHAPES, [device()]) == () and host.asked == []
    quick = Groundwork(cache, host, lambda share: share, lambda: 10.0, session_s=0.5)
    assert quick.operators("sha256:a", setup, SHAPES, [device()]) == () and len(host.asked) == 1


def test_a_child_that_dies_or_a_host_that_is_not_asked_costs_nothing(cache: StrategyCache, setup: Setup) -> None:
    dead = Told({"workload": TrialTimeout("no"), "profile_operators": TrialTimeout("no")})
    for host in (dead, object()):
        assert ground(cache, host).work("sha256:a", setup, SHAPES) == ()
        assert ground(cache, host).operators("sha256:a", setup, SHAPES, [device()]) == ()
    assert cache.keys("workloads") == [] and cache.keys("operators") == []


@pytest.mark.parametrize("row", [{}, {"schema": 1}, {"schema": 1, "entries": [{"unheard": 1}]}, {"schema": 99}])
def test_what_another_release_kept_is_asked_for_again(cache: StrategyCache, setup: Setup, row: dict[str, Any]) -> None:
    node = NodeWork("y", "Relu", "float32", (1,))
    host = Told({"workload": {"work": [node.as_dict()]}})
    ground(cache, host).work("sha256:a", setup, SHAPES)
    cache.put("workloads", cache.keys("workloads")[0], row)
    assert ground(cache, host).work("sha256:a", setup, SHAPES) == (node,)
    assert len(host.asked) == 2


def test_the_kept_profile_of_each_providers_first_device_is_there(cache: StrategyCache) -> None:
    cpu = device(cores=2.0)
    assert ground(cache, object()).profiles([cpu]) == {}
    kept = Profile(cpu, versions_of(cpu), measured_at="2026-01-01T00:00:00+00:00")
    cache.put(PROFILES, kept.key, kept.as_dict())
    unheard = device("UnheardExecutionProvider", "npu")
    found = ground(cache, object()).profiles([cpu, device(cores=64.0), CUDA_GPU, unheard])
    assert found == {CPU: kept}


def test_times_by_kind_are_told_by_the_name_of_any_node_or_result_of_a_group() -> None:
    given = case(chain(("Conv", 1000, 400), ("Relu", 0, 400), ("Softmax", 0, 400)))
    times = [("v0", 1.0), ("v1_nchwc", 2.0), ("y", 4.0)]
    told = tuple(OperatorTime(name, "Unheard", CPU, ms) for name, ms in times)
    unnamed = OperatorTime("new", "FusedMatMul", CPU, 8.0)
    seconds = measured_by_kind(replace(given, operators=(*told, unnamed)))
    assert sum(seconds.values()) == pytest.approx(0.015)
    assert seconds["softmax"] == pytest.approx(0.004) and seconds["matmul"] == pytest.approx(0.008)


def test_the_profilers_file_lies_in_the_parents_folder(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child whose time is over is killed; what it wrote then goes with what its parent removes."""

    class Refusing:
        def __init__(self, given: Setup, *_: Any) -> None:
            self.prefix = Path(given.baseline.properties["profile_file_prefix"])

        def open(self, *_: Any, **__: Any) -> None:
            raise TrialTimeout(str(self.prefix.parent.parent))

    monkeypatch.setattr("ort_metainfer.trials.operator_profiles.Bench", Refusing)
    with pytest.raises(TrialTimeout, match=rf"^{re.escape(str(setup.feeds))}$"):
        serve({"setup": setup_plain(setup)}, Told({}), float("inf"))


@pytest.mark.slow
def test_a_real_child_tells_work_and_operator_times(cache: StrategyCache, setup: Setup) -> None:
    with ChildTrialHost() as host:
        given = Groundwork(cache, host, lambda share: time.monotonic() + 60, lambda: 60.0)
        assert given.work("sha256:a", setup, SHAPES) == workload(setup.model_file, SHAPES)
        operators = given.operators("sha256:a", setup, SHAPES, [device()])
    assert {operator.name for operator in operators} == {"product", "last"}
    assert all(operator.p50_ms >= 0 and operator.provider == CPU for operator in operators)
    assert not list(setup.feeds.parent.glob("*.json"))
