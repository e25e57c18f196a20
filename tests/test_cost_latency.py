"""The cost model's reckoning: what each group takes, by hand; what threads, types, rewrites and places change."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest

from ort_metainfer.deciders.cost_configuration import Configuration, configuration_of
from ort_metainfer.deciders.cost_effects import EFFECTS, combined, effect_of
from ort_metainfer.deciders.cost_kinds import KINDS, kind_of, kind_of_operator
from ort_metainfer.deciders.cost_latency import THREAD_EXPONENT, latency_of
from ort_metainfer.deciders.cost_rates import rates_of
from ort_metainfer.deciders.cost_reckoning import Reckoning
from ort_metainfer.deciders.cost_table import table_of
from ort_metainfer.hardware.micro_benchmarks import BENCHMARKS
from ort_metainfer.hardware.profile import Measurement
from ort_metainfer.model.work import NodeWork
from ort_metainfer.problem import Problem, SessionSpec
from ort_metainfer.rewrites.registry import all_rewrites
from ort_metainfer.strategy import Strategy, Transform
from tests.cost_cases import BANDWIDTH, CALL_S, LAUNCH_S, PEAK, adding, case, chain, probed, product
from tests.made_problems import CPU, CUDA, CUDA_GPU, OPENVINO, OPENVINO_CPU, QNN, QNN_NPU, device

HEAVY = 1_000_000_000
DEFAULT = Strategy()
ONE_THREAD = Strategy(session_options={"intra_op_num_threads": 1})
ON_CUDA = Strategy(provider=CUDA, provider_options={"use_tf32": "0"})


def seconds(problem: Problem, strategy: Strategy = DEFAULT) -> float:
    latency = Reckoning(problem).latency(configuration_of(problem, strategy))
    assert latency is not None
    return latency.seconds


def test_a_product_takes_the_longer_of_arithmetic_and_memory_and_a_launch() -> None:
    heavy = case((product("x", "y", HEAVY, weights=1000),))
    assert seconds(heavy) == pytest.approx(HEAVY / PEAK + LAUNCH_S + CALL_S)
    starved = case((product("x", "y", 1000, weights=40_000_000),))
    assert seconds(starved) == pytest.approx((40_000_000 + 2 * 4096) / BANDWIDTH + LAUNCH_S + CALL_S)


def test_an_element_wise_node_joins_the_product_before_it() -> None:
    joined = chain(("MatMul", HEAVY, 4096), ("Relu", 0, 4096))
    assert seconds(case(joined)) == pytest.approx(HEAVY / PEAK + LAUNCH_S + CALL_S)
    apart = chain(("MatMul", HEAVY, 4096), ("Softmax", 0, 4096))
    assert seconds(case(apart)) == pytest.approx(HEAVY / PEAK + 2 * 4096 / BANDWIDTH + 2 * LAUNCH_S + CALL_S)


def test_steps_and_runs_are_launched_one_after_another() -> None:
    recurrent = product("x", "y", 1_000_000, operator="LSTM", steps=10, runs=3)
    assert seconds(case((recurrent,))) == pytest.approx(3 * 1_000_000 / PEAK + 30 * LAUNCH_S + CALL_S)


def test_one_thread_slows_down_what_would_have_used_several_and_saves_waking_them() -> None:
    heavy, light = case((product("x", "y", HEAVY),)), case((product("x", "y", 1000),))
    slower = 4**THREAD_EXPONENT
    assert seconds(heavy, ONE_THREAD) == pytest.approx(slower * HEAVY / PEAK + LAUNCH_S / 2 + CALL_S)
    assert seconds(light, ONE_THREAD) < seconds(light)


def test_how_threads_scale_is_taken_from_the_probe_where_it_was_measured() -> None:
    made = case((product("x", "y", HEAVY),))
    flat = replace(made, profiles={CPU: probed(made.cpu, **{"ratio/threads/matmul": 1.0})})
    assert seconds(flat, ONE_THREAD) == pytest.approx(HEAVY / PEAK + LAUNCH_S / 2 + CALL_S)


def test_more_threads_than_cores_gain_nothing() -> None:
    heavy = case((product("x", "y", HEAVY),))
    many = Strategy(session_options={"intra_op_num_threads": 64})
    assert seconds(heavy, many) == pytest.approx(seconds(heavy))


def test_rates_follow_the_probes_curve_between_its_points_without_the_call() -> None:
    cpu = device(cores=4.0)
    points = [
        Measurement("matmul/float32/64", 2e6, "MAC", p50_ms=0.105),
        Measurement("matmul/float32/512", 2e8, "MAC", p50_ms=1.005),
    ]
    rates = rates_of(cpu, probed(cpu, points))
    small, large = 2e6 / 1e-4, 2e8 / 1e-3
    got = rates.macs_per_s("matmul", "float32", np.array([1.0, 1e6, 1e7, 1e8, 1e12]))
    assert got == pytest.approx([small, small, (small * large) ** 0.5, large, large])
    assert rates.macs_per_s("lstm", "float32", np.array([1e6])) == pytest.approx([PEAK])


def test_points_that_were_refused_or_left_to_the_cpu_are_on_no_curve() -> None:
    cpu = device(cores=4.0)
    points = [
        Measurement("matmul/float32/64", 2e6, "MAC", p50_ms=1.0, taken=False),
        Measurement("matmul/float32/512", 2e8, "MAC", refusal="no"),
        Measurement("nonsense", 2e8, "MAC", p50_ms=1.0),
        Measurement("empty/float32/1", 0, "", p50_ms=0.01),
    ]
    assert rates_of(cpu, probed(cpu, points)).curves == {}


def test_kinds_are_those_that_the_probe_measures() -> None:
    assert set(KINDS) <= {point.kind for point in BENCHMARKS}


@pytest.mark.parametrize(
    ("channels", "macs", "kind"),
    [((64, 64), 9 * 64, "conv3x3"), ((64, 64), 64, "conv1x1"), ((1, 64), 9, "depthwise3x3")],
)
def test_a_convolution_is_told_by_its_channels_and_kernel(channels: tuple[int, int], macs: int, kind: str) -> None:
    node = NodeWork("y", "Conv", "float32", (1, 64, 8, 8), macs * 64 * 64, {}, {}, {}, channels=channels)
    assert kind_of(node) == kind


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("com.microsoft.FusedMatMul", "matmul"),
        ("com.microsoft.nchwc.Conv", "conv3x3"),
        ("com.microsoft.SkipLayerNormalization", "layer_norm"),
        ("BatchNormalization", "element_wise"),
        ("Softmax", "softmax"),
        ("Transpose", "gather"),
        ("Unheard", "element_wise"),
    ],
)
def test_an_operator_alone_tells_its_kind(operator: str, kind: str) -> None:
    assert kind_of_operator(operator) == kind


def test_another_device_pays_for_its_calls_and_copies() -> None:
    made = case((product("x", "y", HEAVY, size=8192),), others=(CUDA_GPU,))
    gpu = probed(
        CUDA_GPU,
        **{
            "peak_macs_per_s/float32": 1e13,
            "transfer_to_device_bytes_per_s": 1e9,
            "transfer_from_device_bytes_per_s": 2e9,
            "transfer_to_device_latency_ms": 0.01,
        },
    )
    placed = replace(made, profiles={**made.profiles, CUDA: gpu})
    expected = HEAVY / 1e13 + LAUNCH_S + CALL_S + 2 * 1e-5 + 2 * 8192 / 1e9
    assert seconds(placed, ON_CUDA) == pytest.approx(expected)


def test_what_a_device_does_not_take_runs_on_the_cpu_and_crosses_over() -> None:
    work = chain(("MatMul", HEAVY, 8192), ("Softmax", 0, 8192), ("MatMul", HEAVY, 8192))
    made = case(work, others=(CUDA_GPU,))
    gpu = probed(CUDA_GPU, transfer_to_device_bytes_per_s=1e9, transfer_to_device_latency_ms=0.01)
    whole = replace(made, profiles={**made.profiles, CUDA: gpu})
    split = replace(made, profiles={**made.profiles, CUDA: replace(gpu, operators={"Softmax": False})})
    assert seconds(split, ON_CUDA) - seconds(whole, ON_CUDA) == pytest.approx(CALL_S + 2 * (1e-5 + 8192 / 1e9))


def test_static_int8_computes_at_the_int8_rate_with_a_quarter_of_the_bytes() -> None:
    made = case((product("x", "y", HEAVY, weights=4_000_000),))
    probed_int8 = replace(made, profiles={CPU: probed(made.cpu, **{"peak_macs_per_s/int8": 4 * PEAK})})
    int8 = Strategy(transforms=(Transform("int8-static"),))
    assert seconds(probed_int8, int8) == pytest.approx(HEAVY / (4 * PEAK) + LAUNCH_S + CALL_S)
    memory_bound = replace(probed_int8, work=(product("x", "y", 1000, weights=40_000_000),))
    assert seconds(memory_bound, int8) == pytest.approx((10_000_000 + 2048) / BANDWIDTH + LAUNCH_S + CALL_S)


def test_dynamic_int8_leaves_convolutions_alone_and_pays_for_quantising_its_inputs() -> None:
    int8 = Strategy(transforms=(Transform("int8-dynamic"),))
    conv = case((product("x", "y", HEAVY, operator="Conv"),))
    assert seconds(conv, int8) == pytest.approx(seconds(conv))
    matmul = case((product("x", "y", HEAVY, size=1_000_000),))
    added = 1.25 * 2_000_000 / BANDWIDTH + LAUNCH_S
    assert seconds(matmul, int8) == pytest.approx(seconds(matmul) + added)


def test_activations_between_products_that_int8_cannot_do_cost_static_quantisation_a_pass() -> None:
    int8 = Strategy(transforms=(Transform("int8-static"),))
    friendly = case(chain(("Conv", HEAVY, 1_000_000), ("Relu", 0, 1_000_000)))
    stray = case(chain(("Conv", HEAVY, 1_000_000), ("HardSwish", 0, 1_000_000)))
    assert seconds(stray) == pytest.approx(seconds(friendly))
    assert seconds(stray, int8) > seconds(friendly, int8)


def test_reckoning_with_sizes_vanishes_with_fixed_shapes() -> None:
    sizes = NodeWork("s", "Gather", "int64", (1,), None, {"x": 8}, {}, {"s": 8})
    made = case((sizes, product("x", "y", HEAVY)))
    folded = Strategy(transforms=(Transform("fold-shapes"),))
    assert seconds(made) - seconds(made, folded) == pytest.approx(LAUNCH_S + 8 / BANDWIDTH)


def test_no_optimiser_launches_every_node_and_leaves_the_layout() -> None:
    made = case(chain(("Conv", HEAVY, 4096), ("Relu", 0, 4096)))
    plain = Strategy(session_options={"graph_optimization_level": "disable"})
    assert seconds(made, plain) > 1.5 * seconds(made)
    pinned = replace(made, baseline=SessionSpec(properties={"graph_optimization_level": "ORT_DISABLE_ALL"}))
    assert seconds(pinned) == pytest.approx(seconds(made, plain))


def test_bfloat16_needs_to_be_asked_for_and_is_reckoned_at_its_rate() -> None:
    made = case((product("x", "y", HEAVY),), others=(OPENVINO_CPU,))
    fast = probed(OPENVINO_CPU, **{"peak_macs_per_s/bfloat16": 8 * PEAK})
    made = replace(made, profiles={**made.profiles, OPENVINO: fast})
    bf16 = Strategy(provider=OPENVINO, provider_options={"INFERENCE_PRECISION_HINT": "bf16"})
    f32 = Strategy(provider=OPENVINO, provider_options={"INFERENCE_PRECISION_HINT": "f32"})
    assert seconds(made, f32) / seconds(made, bf16) == pytest.approx(8, rel=0.02)
    assert seconds(made, Strategy(provider=OPENVINO)) == pytest.approx(seconds(made, bf16))


def test_a_device_without_a_profile_is_reckoned_from_described_chips_with_more_doubt() -> None:
    made = case((product("x", "y", HEAVY),), others=(CUDA_GPU, QNN_NPU))
    for strategy in (Strategy(provider=CUDA), Strategy(provider=QNN)):
        expected = Reckoning(made).expected(strategy)
        assert expected is not None and expected.spread > 0.7 and "described chips" in expected.source
    near = Reckoning(made).expected(ONE_THREAD)
    assert near is not None and near.spread < 0.1


@pytest.mark.parametrize("flags", [(), ("avx512f",), ("asimd", "asimddp"), ("unheard",)])
def test_a_processor_without_a_profile_is_reckoned_by_its_instructions_and_cores(flags: tuple[str, ...]) -> None:
    few, many = (rates_of(device(cores=cores, features=flags), None) for cores in (2.0, 8.0))
    assert many.peaks["float32"] == pytest.approx(4 * few.peaks["float32"])
    assert many.bandwidth == pytest.approx(4 * few.bandwidth)


def test_without_nodes_the_counts_of_the_graph_are_reckoned_with_more_doubt() -> None:
    fine = case((product("x", "y", HEAVY),))
    coarse = case(())
    one = Reckoning(coarse).expected(ONE_THREAD)
    assert one is not None and one.log_ratio == pytest.approx(-log(4**THREAD_EXPONENT), abs=0.05)
    known = Reckoning(fine).expected(ONE_THREAD)
    assert known is not None and one.spread > known.spread


@pytest.mark.parametrize("macs", [None, 0])
def test_products_of_unknown_size_are_not_reckoned(macs: int | None) -> None:
    unknown = replace(product("x", "y", 0), macs=None, output=None, reads={"x": None})
    made = case((unknown,), macs=None)
    assert Reckoning(made).expected(ONE_THREAD) is None


def test_scales_stretch_what_the_host_takes_by_kind() -> None:
    made = case(chain(("MatMul", HEAVY, 4096), ("Softmax", 0, 4096)))
    table, rates = table_of(made.work, ["y"]), rates_of(made.cpu, made.profiles[CPU])
    plain = latency_of(table, Configuration(CPU), rates, rates, 4)
    twice = latency_of(table, Configuration(CPU), rates, rates, 4, {"matmul": 2.0})
    assert twice.by_kind["matmul"] == pytest.approx(2 * plain.by_kind["matmul"])
    assert twice.by_kind["softmax"] == plain.by_kind["softmax"]


def test_every_declared_effect_is_of_a_rewrite_and_states_its_source() -> None:
    names = [rewrite.name for rewrite in all_rewrites()]
    for key, effect in EFFECTS.items():
        assert any(name == key or (key[-1] == "-" and name.startswith(key)) for name in names), key
        assert effect.source and effect.spread > 0
        assert effect.kinds <= set(KINDS)


def test_effects_add_up_and_an_unknown_rewrite_only_adds_doubt() -> None:
    both = combined((Transform("fold-shapes"), Transform("int8-static")))
    assert both.folds_sizes and both.dtype == "int8"
    assert both.spread == pytest.approx((effect_of("fold-shapes").spread ** 2 + 0.3**2) ** 0.5)
    made = case((product("x", "y", HEAVY), adding("y", "z", 4096)))
    unheard = Strategy(transforms=(Transform("unheard"),))
    assert seconds(made, unheard) == pytest.approx(seconds(made))
    assert exp(combined(unheard.transforms).spread) < 1.1


def test_the_more_of_the_time_is_launches_the_less_sure_it_is() -> None:
    heavy, light = case((product("x", "y", HEAVY),)), case((product("x", "y", 1000),))
    spreads = [expected.spread for made in (heavy, light) if (expected := Reckoning(made).expected(ONE_THREAD))]
    assert len(spreads) == 2 and spreads[1] > 1.5 * spreads[0]
