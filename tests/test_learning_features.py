"""Named features: each described, each made by something, each missing where nothing is known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from ort_metainfer.deciders.rules import RuleLibrary
from ort_metainfer.deciders.search import Search
from ort_metainfer.decision import Proposal
from ort_metainfer.hardware.profile import Feature, Profile, ReferenceTiming
from ort_metainfer.learning.features import (
    DEVICE,
    FEATURES,
    GRAPH,
    STRATEGY,
    aligned_reference,
    described,
    device_features,
    family_of,
    graph_features,
    references_of,
    strategy_features,
)
from ort_metainfer.learning.operator_classes import CLASSES, NODE_CLASSES, class_of, operator_class
from ort_metainfer.model.work import NodeWork
from ort_metainfer.problem import Graph
from ort_metainfer.strategy import Strategy, Transform
from tests.made_problems import CUDA_GPU, OPENVINO, OPENVINO_CPU, device, problem, some_problems

RECORDED = Path(__file__).parent / "recorded" / "zoo_graphs.json"
GRAPHS = {name: Graph.from_dict(plain) for name, plain in json.loads(RECORDED.read_text()).items()}


def node(operator: str, reads: int = 400, writes: int = 400, **more: Any) -> NodeWork:
    """A node whose figures are known."""
    name = more.pop("name", f"{operator}-out")
    source = more.pop("source", "x")
    return NodeWork(
        name=name,
        operator=operator,
        dtype=more.pop("dtype", "float32"),
        output=more.pop("output", (1, writes // 4)),
        reads={source: reads},
        writes={name: writes},
        **more,
    )


def made_work() -> tuple[NodeWork, ...]:
    """One node of every class."""
    return (
        node("Conv", 12_000, 64_000, macs=27 * 16_000, channels=(3, 16), output=(1, 16, 1000), name="a"),
        node("Conv", 64_000, 64_000, macs=9 * 16_000, channels=(1, 16), output=(1, 16, 1000), name="b", source="a"),
        node("Conv", 64_000, 128_000, macs=16 * 32_000, channels=(16, 32), output=(1, 32, 1000), name="c", source="b"),
        node("MatMul", 4_000, 400, macs=100_000, quantised=True, dtype="float32", name="d", source="c"),
        node("com.microsoft.Attention", 400, 400, macs=5_000, name="e", source="d"),
        node("LSTM", 400, 400, macs=5_000, steps=7, runs=2, name="f", source="e"),
        *(node(name) for name in ("Softmax", "Relu", "MaxPool", "ReduceMean", "Transpose", "Range", "QuantizeLinear")),
        *(node(name) for name in ("STFT", "ai.onnx.ml.Scaler", "own.domain.Thing")),
        node("Reshape", 0, 0, is_view=True),
        node("If", 0, 0),
        replace(node("Add"), reads={"x": None}),
    )


def all_graph_vectors() -> Iterator[dict[str, float]]:
    for graph in GRAPHS.values():
        yield graph_features(graph)
        yield graph_features(graph, made_work())
    for made in some_problems():
        yield graph_features(made.graph, made.work, made.shapes)


def all_strategy_vectors() -> Iterator[dict[str, float]]:
    for made in islice(some_problems(), 0, None, 3):
        for decider in (RuleLibrary(), Search(max_trials=30)):
            for answer in decider.propose(made, ()):
                if isinstance(answer, Proposal):
                    yield strategy_features(answer.strategy, made)
                    yield strategy_features(answer.strategy)


def made_profile() -> Profile:
    features = [Feature(name.replace("*", "made"), 2.0, what.unit, "probe") for name, what in DEVICE.items()]
    return Profile(device(), {}, tuple(features))


def test_every_feature_of_a_graph_is_described_and_every_one_described_is_made() -> None:
    made = {name for vector in all_graph_vectors() for name in vector}
    assert made == set(GRAPH)


def test_every_feature_of_a_strategy_is_described_and_every_one_described_is_made() -> None:
    made = {name for vector in all_strategy_vectors() for name in vector}
    assert made | {"reference/aligned"} == set(STRATEGY)


def test_every_feature_of_a_device_is_described_and_every_pattern_stands_for_some() -> None:
    made = device_features(device(features=("avx2",), memory_mb=1.0), made_profile())
    assert [name for name in made if described(name) is None] == []
    assert [name for name in DEVICE if name.replace("*", "made") not in made] == []


def test_each_description_has_a_unit_and_a_meaning_and_names_do_not_collide() -> None:
    assert all(what.unit and what.meaning and "{" not in what.meaning for what in FEATURES.values())
    assert len(FEATURES) == len(GRAPH) + len(DEVICE) + len(STRATEGY)
    assert described("no/such/feature") is None


def test_all_are_finite_floats_and_shares_sum_to_one() -> None:
    for vector in [*all_graph_vectors(), *all_strategy_vectors()]:
        assert all(type(value) is float and math.isfinite(value) for value in vector.values())
        for prefix in ("node_share/", "macs_share/", "bytes_share/"):
            shares = [value for name, value in vector.items() if name.startswith(prefix)]
            assert not shares or sum(shares) == pytest.approx(1.0)


def test_what_is_not_known_is_not_there() -> None:
    bare = graph_features(replace(GRAPHS["minilm_l3_fp32"], macs=None))
    assert not {"ln_macs", "ln_depth", "ln_bytes_moved", "ln_batch", "ln_input_elements"} & set(bare)
    assert not [name for name in bare if name.startswith(("macs_share/", "bytes_share/"))]
    assert "cores" not in device_features(device(cores=None))
    assert not {"threads", "weight_bits_used", "activation_bits_used"} & set(strategy_features(Strategy()))
    flagged = replace(made_profile(), features=(Feature("dispatch_ms", 1.0, "ms", "probe", flag="unsteady"),))
    assert "dispatch_ms" not in device_features(device(), flagged)


def test_shapes_given_close_dimensions_and_tell_the_batch() -> None:
    graph = GRAPHS["minilm_l3_fp32"]
    given = {spec.name: (8, 128) for spec in graph.inputs}
    vector = graph_features(graph, (), given)
    assert vector["open_dims"] == 2 * len(graph.inputs) and vector["open_dims_left"] == 0
    assert vector["ln_batch"] == pytest.approx(math.log(9))
    assert vector["ln_input_elements"] == pytest.approx(math.log1p(8 * 128 * len(graph.inputs)))
    assert vector["ln_input_bytes"] == pytest.approx(math.log1p(8 * 8 * 128 * len(graph.inputs)))


def test_convolutions_are_told_apart_by_their_shapes() -> None:
    kinds = [class_of(found) for found in made_work()[:3]]
    assert kinds == ["conv_dense", "conv_depthwise", "conv_1x1"]
    grey = node("Conv", 4 * 1600, 4 * 16 * 400, macs=9 * 6400, channels=(1, 16), output=(1, 16, 20, 20))
    assert class_of(grey) == "conv_dense"  # one input channel in all is no depthwise convolution
    assert class_of(NodeWork("c", "Conv", "float32", None)) == "conv_dense"


def test_work_is_summed_over_runs_and_views_do_none() -> None:
    once = graph_features(GRAPHS["sk_mlp_tiny"], [node("MatMul", macs=1000)])
    twice = graph_features(GRAPHS["sk_mlp_tiny"], [node("MatMul", macs=1000, runs=2), node("Reshape", is_view=True)])
    assert math.expm1(once["ln_macs"]) == pytest.approx(1000)
    assert math.expm1(twice["ln_macs"]) == pytest.approx(2000)
    assert math.exp(once["ln_intensity"]) == pytest.approx(1000 / 800)
    assert math.expm1(twice["ln_bytes_moved"]) == pytest.approx(1600)


def test_depth_and_width_follow_the_flow_of_data() -> None:
    chain = [node("Relu", source="x", name="a"), node("Relu", source="a", name="b"), node("Relu", source="b", name="c")]
    wide = [node("Relu", source="x", name=name) for name in "abc"]
    deep, flat = (graph_features(GRAPHS["sk_mlp_tiny"], work) for work in (chain, wide))
    assert (math.expm1(deep["ln_depth"]), math.exp(deep["ln_width"])) == pytest.approx((3, 1))
    assert (math.expm1(flat["ln_depth"]), math.exp(flat["ln_width"])) == pytest.approx((1, 3))


def test_every_operator_of_the_zoo_but_a_few_has_a_class() -> None:
    strays = {name for graph in GRAPHS.values() for name in graph.operators if operator_class(name) == "other"}
    assert strays == set()
    assert set(CLASSES) - {"conv_dense", "conv_1x1", "conv_depthwise"} == set(NODE_CLASSES) - {"conv"}


def test_every_rewrite_of_ours_belongs_to_a_family() -> None:
    from ort_metainfer.rewrites.registry import all_rewrites

    ours = [rewrite for rewrite in all_rewrites() if type(rewrite).__module__.startswith("ort_metainfer.")]
    strays = [rewrite.name for rewrite in ours if family_of(Transform(rewrite.name)) == "other"]
    assert strays == []  # name it in learning/strategy_features.py
    assert family_of(Transform("somebody-elses")) == "other"


def test_a_strategy_is_told_by_where_it_runs_how_and_in_what_precision() -> None:
    made = problem(cores=4.0, others=(OPENVINO_CPU, CUDA_GPU))
    plain = strategy_features(Strategy(), made)
    assert plain["provider/CPU"] == 1 and plain["on/cpu"] == 1 and plain["threads"] == 4 and plain["threads_given"] == 0
    assert plain["graph_level"] == 4 and plain["spinning"] == 1 and plain["activation_bits_used"] == 32
    one = strategy_features(Strategy(session_options={"intra_op_num_threads": 1}), made)
    assert (one["threads"], one["threads_per_core"], one["threads_given"]) == (1, 0.25, 1)
    gpu = strategy_features(Strategy(provider="CUDAExecutionProvider"), made)
    assert gpu["on/gpu"] == 1 and "activation_bits_used" not in gpu  # TF32 or not: the provider chooses
    exact = Strategy(provider=OPENVINO, provider_options={"INFERENCE_PRECISION_HINT": "f32"})
    assert strategy_features(exact, made)["activation_bits_used"] == 32
    quantised = Strategy(transforms=(Transform("fold-constants"), Transform("int8-static")))
    bits = strategy_features(quantised, made)
    assert (bits["weight_bits_used"], bits["activation_bits_used"], bits["transforms"]) == (8, 8, 2)
    assert bits["transform/int8_static"] == bits["transform/folding"] == 1 and bits["transform/layout"] == 0
    weights = strategy_features(Strategy(transforms=(Transform("int4-weights"),)), made)
    assert (weights["weight_bits_used"], weights["activation_bits_used"]) == (4, 32)


def test_the_callers_own_provider_counts_where_the_strategy_names_none() -> None:
    made = problem(others=(CUDA_GPU,), callers_providers=(("CUDAExecutionProvider", {}),))
    vector = strategy_features(Strategy(session_options={"graph_optimization_level": "basic"}), made)
    assert vector["provider/CUDA"] == 1 and vector["on/gpu"] == 1


def test_references_are_means_of_what_nothing_speaks_against() -> None:
    timings = (
        ReferenceTiming("a", "cpu", log_ratio=0.2),
        ReferenceTiming("b", "cpu", log_ratio=0.4),
        ReferenceTiming("c", "cpu", log_ratio=9.0, flag="disturbed"),
        ReferenceTiming("a", "openvino-f32", refusal="no"),
    )
    assert references_of(replace(made_profile(), references=timings)) == {"cpu": pytest.approx(0.3)}
    assert references_of(None) == {}


def test_a_strategy_is_aligned_with_the_nearest_of_the_fingerprint() -> None:
    references = {"cpu": 0.1, "cpu-1-thread": 0.5, "openvino-f32": -0.7, "openvino-default": -0.9}
    one = Strategy(session_options={"intra_op_num_threads": 1})
    exact = Strategy(provider=OPENVINO, provider_options={"INFERENCE_PRECISION_HINT": "f32"})
    assert aligned_reference(Strategy(), "CPUExecutionProvider", references) == 0.1
    assert aligned_reference(one, "CPUExecutionProvider", references) == 0.5
    assert aligned_reference(exact, OPENVINO, references) == -0.7
    assert aligned_reference(Strategy(provider=OPENVINO), OPENVINO, references) == -0.9
    assert aligned_reference(Strategy(provider="QNNExecutionProvider"), "QNNExecutionProvider", references) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_recorded_graphs_are_what_describe_says_and_their_work_has_features(
    name: str, zoo_model: Callable[[str], Path]
) -> None:
    from ort_metainfer.model.graph import describe
    from ort_metainfer.model.workload import workload

    path = zoo_model(name)
    graph = describe(path)
    assert graph == GRAPHS[name]
    vector = graph_features(graph, workload(path))
    assert set(vector) <= set(GRAPH) and all(map(math.isfinite, vector.values()))
    assert vector["ln_depth"] > 0 or name == "sk_tree_tiny"
