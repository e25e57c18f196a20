"""Described chips: their figures, the analytic model's sanity, the trial host, and that nothing simulated is kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_metainfer.adapt import Request, decide, settings_for
from ort_metainfer.decision import Decision, Gate, Proposal, Trial
from ort_metainfer.errors import ProviderError
from ort_metainfer.hardware.profile import Profile
from ort_metainfer.hardware.profiles import Instruments, profile_device
from ort_metainfer.hardware.simulation import BOUNDS, Estimate, Precision, estimate
from ort_metainfer.model.inputs import save_feeds
from ort_metainfer.model.workload import NodeWork, workload
from ort_metainfer.problem import CacheKey, Graph, Model, SessionSpec
from ort_metainfer.providers import all_providers, get_provider, usable_providers
from ort_metainfer.providers.chips import Chip, all_chips, get_chip, load_chips
from ort_metainfer.providers.simulated import SIMULATED, SimulatedProvider, device_of, profile_of
from ort_metainfer.remember import remember
from ort_metainfer.settings import Settings
from ort_metainfer.strategy import Strategy
from ort_metainfer.strategy_cache.store import StrategyCache, open_cache
from ort_metainfer.trials.accuracy import Comparison
from ort_metainfer.trials.fake import FakeTrialHost
from ort_metainfer.trials.simulated import NO_WORK, NOT_MODELLED, SimulatedTrialHost
from ort_metainfer.trials.task import Setup, Thresholds, is_simulated
from tests import provider_conformance

CHIPS = all_chips()
T4 = Strategy(provider=SIMULATED, device="nvidia-t4")
FLOAT = TensorProto.FLOAT


def reckon(
    chip: str | Chip, work: tuple[NodeWork, ...], precision: Precision = "as is", fixed: bool = True
) -> Estimate:
    described = CHIPS[chip] if isinstance(chip, str) else chip
    host = CHIPS[described.host or described.name]
    return estimate(described, host, work, ["y"], precision=precision, fixed_shapes=fixed)


def node(operator: str, name: str, reads: Mapping[str, int], out: int, **fields: Any) -> NodeWork:
    """Made-up work of one node whose result has ``out`` bytes."""
    defaults: dict[str, Any] = {"dtype": "float32", "output": (out // 4,), "writes": {name: out}}
    return NodeWork(name, operator, reads=dict(reads), **{**defaults, **fields})


def convolutions(count: int, macs: int = 100_000_000, **fields: Any) -> tuple[NodeWork, ...]:
    """A chain of equal convolutions of 0.8 MB activations and 2.4 MB weights."""
    names = ["x", *(f"v{index}" for index in range(1, count)), "y"]
    return tuple(
        node(
            "Conv", after, {before: 802_816}, 802_816, macs=macs, weights={f"w{after}": 2_359_296}, channels=(256, 256)
        )
        for before, after in pairwise(names)
    )


# Descriptions


def test_there_are_chips_of_every_kind_each_figure_with_a_unit_and_a_source() -> None:
    kinds = [chip.kind for chip in CHIPS.values()]
    assert len([kind for kind in kinds if kind != "cpu"]) >= 24
    assert all(kinds.count(kind) >= 3 for kind in ("gpu", "npu", "dsp", "fpga", "cpu"))
    for chip in CHIPS.values():
        for name, figure in chip.figures().items():
            assert figure.value >= 0 and figure.source and figure.stated, (chip.name, name)
            assert figure.unit in ("MAC/s", "B/s", "B", "s", "W", "1"), (chip.name, name)
        assert all(figure.unit == "MAC/s" and figure.value > 0 for figure in chip.peak.values())


def test_an_operation_is_half_a_multiply_accumulate() -> None:
    assert CHIPS["nvidia-t4"].peak["int8"].value == pytest.approx(65e12)
    assert CHIPS["nvidia-t4"].peak["int8"].stated == "130 TOP/s"
    assert CHIPS["cadence-vision-c5"].peak["int8"].value == pytest.approx(1e12)


def test_what_is_not_stated_is_absent() -> None:
    assert CHIPS["hailo-8"].bandwidth is None and CHIPS["hailo-8"].memory is None
    assert "memory" not in CHIPS["hailo-8"].figures()
    assert "float16" not in CHIPS["google-coral-edge-tpu"].peak


@pytest.mark.parametrize("kind", ["gpu", "npu", "fpga"])
def test_a_narrower_type_is_never_slower(kind: str) -> None:
    for chip in (chip for chip in CHIPS.values() if chip.kind == kind):
        rates = [chip.peak[dtype].value for dtype in ("float32", "float16", "int8") if dtype in chip.peak]
        assert rates == sorted(rates), chip.name


def test_a_chip_is_found_by_part_of_its_name_and_an_ambiguous_one_is_told() -> None:
    assert get_chip("T4").name == "nvidia-t4" and get_chip("coral").name == "google-coral-edge-tpu"
    with pytest.raises(ProviderError, match=r"several.*jetson-agx.*jetson-orin-nx"):
        get_chip("jetson")
    with pytest.raises(ProviderError, match="no described chips match 'abacus'"):
        get_chip("abacus")


MINE = """
schema = 1
[sources]
[defaults.cpu]
launch = { value = 1, unit = "us", source = "assumed: x" }
[link.shared]
latency = { value = 1, unit = "us", source = "assumed: x" }
[family.all]
source = "assumed: x"
[[chip]]
name = "mine"
title = "Mine"
vendor = "me"
kind = "cpu"
link = "shared"
family = "all"
bandwidth = { value = 1, unit = "GB/s", source = "assumed: x" }
[chip.peak]
float32 = { value = 1, unit = "TOP/s", source = "assumed: x" }
"""


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("", ""), None),
        (("schema = 1", "schema = 2"), "schema"),
        (('unit = "GB/s"', 'unit = "GB"'), None),
        (('unit = "TOP/s"', 'unit = "GB/s"'), "no figure in MAC/s"),
        (('unit = "TOP/s"', 'unit = "parsec"'), "parsec"),
        (("vendor =", "colour = 1\nvendor ="), "unknown key 'colour'"),
        (('kind = "cpu"', 'kind = "tpu"'), "kind 'tpu'"),
        (("vendor =", 'host = "other"\nvendor ='), "host"),
        (("bandwidth =", "memory ="), "bandwidth"),
        (('source = "assumed: x" }\n[link', 'source = "nowhere" }\n[link'), "nowhere"),
        (("[[chip]]", "[[chip"), "not TOML"),
    ],
)
def test_a_file_of_ones_own_is_read_and_what_is_wrong_with_it_is_named(
    change: tuple[str, str], complaint: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "chips.toml"
    file.write_text(MINE.replace(*change, 1))
    if complaint is None:
        assert load_chips(file)["mine"].peak["float32"].value == 0.5e12
        return
    with pytest.raises(ProviderError, match=complaint):
        load_chips(file)


# The analytic model


def test_an_estimate_is_the_sum_of_its_parts_deterministic_and_says_simulated() -> None:
    work = convolutions(5)
    for name in CHIPS:
        found = reckon(name, work)
        assert found == reckon(name, work)
        assert found.simulated
        assert found.p50_ms == pytest.approx(sum(getattr(found, f"{part}_ms") for part in BOUNDS))
        assert found.bound in BOUNDS
        assert found.nodes + found.nodes_on_host == 5


def test_the_roofline_by_hand() -> None:
    """One convolution on a T4: 100 MMAC in int8 against 0.6 MB of weights; its activations stay in the cache."""
    found = reckon("nvidia-t4", convolutions(1), "int8")
    fill = (802_816 / 4) / (40 * 2048)
    compute_s = 100e6 / (65e12 * 0.45 * min(1.0, fill))
    memory_s = 589_824 / (320e9 * 0.8)
    assert found.compute_ms + found.memory_ms == pytest.approx(1000 * max(compute_s, memory_s))
    assert found.dispatch_ms == pytest.approx(0.005 + 0.020)
    assert found.transfer_ms == pytest.approx(2 * (0.010 + 1000 * 200_704 / (15.75e9 * 0.8)))


def test_a_gpu_gains_from_fewer_bits_where_arithmetic_is_what_takes_the_time() -> None:
    work = convolutions(20)
    whole, half, byte = (reckon("nvidia-t4", work, precision).p50_ms for precision in ("as is", "float16", "int8"))
    assert byte < half < whole


def test_more_arithmetic_gains_nothing_where_memory_takes_the_time() -> None:
    """Ten passes over 200 MB: twice the peak changes nothing, twice the bandwidth halves the memory's part."""
    names = ["x", *"abcdefghi", "y"]
    work = tuple(node("Softmax", after, {before: 200_000_000}, 200_000_000) for before, after in pairwise(names))
    chip = CHIPS["nvidia-jetson-agx-orin-64gb"]
    fast = replace(chip, peak={name: replace(figure, value=figure.value * 2) for name, figure in chip.peak.items()})
    assert chip.bandwidth is not None
    wide = replace(chip, bandwidth=replace(chip.bandwidth, value=chip.bandwidth.value * 2))
    plain = reckon(chip, work)
    assert plain.bound == "memory"
    assert reckon(fast, work).p50_ms == plain.p50_ms
    assert reckon(wide, work).memory_ms == pytest.approx(plain.memory_ms / 2)


def test_a_tiny_model_loses_on_a_card_to_the_processor_beside_it() -> None:
    work = convolutions(2, macs=1000)
    work = tuple(
        replace(w, weights={}, reads=dict.fromkeys(w.reads, 64), writes=dict.fromkeys(w.writes, 64)) for w in work
    )
    for name in ("nvidia-t4", "nvidia-a100-80gb-pcie", "amd-mi300x", "amd-alveo-u250", "huawei-ascend-910"):
        card = reckon(name, work, "int8")
        assert card.bound in ("dispatch", "transfer")
        assert card.p50_ms > reckon(CHIPS[name].host or "", work, "int8").p50_ms


def test_a_chip_that_needs_fixed_shapes_leaves_an_open_model_to_the_host() -> None:
    work = convolutions(3)
    found = reckon("intel-npu-3720", work, fixed=False)
    assert (found.nodes, found.nodes_on_host, found.parts) == (0, 3, 0)
    assert "fixed shapes" in found.reasons[0]
    assert found.p50_ms == found.host_ms == pytest.approx(reckon("intel-core-ultra-7-155h", work).p50_ms)
    assert reckon("intel-npu-3720", work).nodes == 3


def test_a_chip_for_quantised_models_leaves_a_float_one_to_the_host() -> None:
    for name in ("google-coral-edge-tpu", "hailo-8", "amd-zcu102-b4096", "qualcomm-hexagon-698"):
        found = reckon(name, convolutions(3))
        assert (found.nodes, found.bound) == (0, "host") and "quantised" in found.reasons[0]
        assert reckon(name, convolutions(3), "int8").nodes == 3


def test_an_operator_the_chip_lacks_goes_to_the_host_and_its_values_cross_twice() -> None:
    before, after = convolutions(2)
    work = (before, node("NonZero", "z", {"v1": 802_816}, 802_816), replace(after, reads={"z": 802_816}))
    whole, split = reckon("intel-npu-4", convolutions(2)), reckon("intel-npu-4", work)
    assert split.left == {"NonZero": 1} and split.parts == 2 and "NonZero" in split.reasons[0]
    rate = 136.5e9 * 0.7
    assert split.transfer_ms - whole.transfer_ms == pytest.approx(2 * (0.005 + 1000 * 802_816 / rate))
    assert split.dispatch_ms - whole.dispatch_ms == pytest.approx(0.150)


def test_what_does_not_fit_the_chips_memory_runs_on_the_host() -> None:
    work = tuple(replace(w, weights={next(iter(w.weights)): 3_000_000_000}) for w in convolutions(6))
    found = reckon("nvidia-t4", work)
    assert (found.fits, found.nodes) == (False, 0) and "16 GB" in found.reasons[0]
    assert reckon("nvidia-a100-80gb-pcie", work).fits is True
    assert reckon("apple-ane-m1", work).fits is None, "it shares the machine's memory"


def test_weights_stay_on_a_chip_that_keeps_them_until_they_no_longer_fit() -> None:
    small, large = reckon("google-coral-edge-tpu", convolutions(4), "int8"), convolutions(40)
    assert small.memory_ms == 0
    assert reckon("google-coral-edge-tpu", large, "int8").bound == "memory", "they come over the link in every run"


def test_an_element_wise_node_is_launched_with_the_one_before_it() -> None:
    (conv,) = convolutions(1)
    conv = replace(conv, writes={"c": 802_816})
    relu = node("Relu", "y", {"c": 802_816}, 802_816)
    pair = reckon("nvidia-t4", (conv, relu))
    assert pair.dispatch_ms == reckon("nvidia-t4", convolutions(1)).dispatch_ms
    again = node("Softmax", "z", {"c": 802_816}, 802_816)
    assert reckon("nvidia-t4", (conv, relu, again)).dispatch_ms == pytest.approx(pair.dispatch_ms + 2 * 0.005), (
        "somebody else reads it, too"
    )


def test_padded_channels_cost_what_they_are_padded_to() -> None:
    thin = tuple(replace(w, channels=(8, 256)) for w in convolutions(1))
    chip = CHIPS["huawei-ascend-310p"]
    full, padded = (
        reckon(chip, convolutions(1, macs=10**12), "int8"),
        reckon(chip, (replace(thin[0], macs=10**12),), "int8"),
    )
    assert padded.compute_ms == pytest.approx(2 * full.compute_ms)


# The provider and its devices


def test_the_adapter_keeps_the_contract() -> None:
    provider = SimulatedProvider()
    for check in ("identity", "options", "availability", "versions", "lossiness", "capabilities"):
        getattr(provider_conformance, f"check_{check}")(provider)


def test_it_is_used_only_where_it_is_named_and_listed_nowhere() -> None:
    assert SIMULATED not in [provider.name for provider in usable_providers()]
    assert SIMULATED not in [provider.name for provider in all_providers()]
    assert [provider.name for provider in usable_providers([SIMULATED])][1:] == [SIMULATED]
    assert get_provider("Simulated") is get_provider(SIMULATED)
    assert get_provider("Simulated").opt_in


def test_every_device_is_marked_and_its_text_begins_with_simulated() -> None:
    devices = SimulatedProvider().devices()
    assert [device.provider_device for device in devices] == list(CHIPS)
    assert all(device.simulated and str(device).startswith("simulated:") for device in devices)


def test_a_session_on_it_runs_on_the_cpu_provider(tiny_model: Callable[..., Path]) -> None:
    options = onnxruntime.SessionOptions()
    providers = SimulatedProvider().attach(options, T4)
    session = onnxruntime.InferenceSession(str(tiny_model("MatMul")), options, providers=providers)
    assert session.get_providers() == ["CPUExecutionProvider"]
    with pytest.raises(ProviderError, match="no such device"):
        SimulatedProvider().attach(options, replace(T4, device="abacus"))


def test_a_profile_has_features_of_simulated_origin_and_none_for_what_is_not_stated() -> None:
    profile = profile_of(CHIPS["nvidia-t4"])
    assert profile.simulated and {feature.origin for feature in profile.features} == {"simulated"}
    assert profile["peak_macs_per_s/int8"].value == pytest.approx(65e12)
    assert profile["dispatch_ms"].value == pytest.approx(0.020)
    assert "simulated:" in profile.key
    assert "bandwidth_bytes_per_s" not in profile_of(CHIPS["hailo-8"])
    assert Profile.from_dict(profile.as_dict()) == profile
    assert profile_of(CHIPS["intel-npu-3720"])["bandwidth_bytes_per_s"].flag, "a doubtful figure is flagged"


# The trial host


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """Three convolutions of 0.12 GMAC each."""
    import onnx

    rng = np.random.default_rng(0)
    nodes, weights, name = [], [], "x"
    for index in range(3):
        weights.append(
            numpy_helper.from_array(rng.standard_normal((64, 64, 3, 3)).astype(np.float32) / 24, f"w{index}")
        )
        after = "y" if index == 2 else f"v{index}"
        nodes.append(helper.make_node("Conv", [name, f"w{index}"], [after], pads=[1, 1, 1, 1]))
        name = after
    shape = [1, 64, 56, 56]
    values = [helper.make_tensor_value_info(name, FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    path = tmp_path / "network.onnx"
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]), str(path))
    return path


@pytest.fixture
def setup(network: Path, tmp_path: Path) -> Setup:
    from ort_metainfer.model.graph import describe

    folder = tmp_path / "feeds"
    folder.mkdir()
    save_feeds([{"x": np.random.default_rng(1).standard_normal((1, 64, 56, 56)).astype(np.float32)}], folder)
    return Setup(network, SessionSpec(), folder, graph=describe(network))


@pytest.fixture
def host() -> Iterator[SimulatedTrialHost]:
    made = SimulatedTrialHost(inner=FakeTrialHost(), processor="amd-ryzen-7-7840hs")
    yield made
    made.close()


def race(host: SimulatedTrialHost, setup: Setup, *strategies: Strategy, seconds: float = 60) -> list[Trial]:
    proposals = [Proposal(strategy, "test", "") for strategy in strategies]
    return host.race(setup, proposals, Thresholds(), time.monotonic() + seconds)


def test_a_trial_says_simulated_in_itself_and_in_every_gate(host: SimulatedTrialHost, setup: Setup) -> None:
    (trial,) = race(host, setup, T4)
    trial = host.duel(setup, trial, Thresholds(), time.monotonic() + 60)
    assert trial.passed and trial.simulated and is_simulated(host)
    assert [gate.name for gate in trial.gates] == ["compiles", "accurate", "pays"]
    assert all("simulated" in gate.detail for gate in trial.gates)
    assert trial.error == 0.0
    assert trial.creation_ms is None, "what the CPU took to create it says nothing of the chip"
    assert trial.placement is not None and trial.placement.describe() == "3 of 3 nodes on Simulated"
    assert trial.timing is not None and trial.timing.rounds == 0


def test_a_chip_that_takes_nothing_does_not_pay(host: SimulatedTrialHost, setup: Setup) -> None:
    (trial,) = race(host, setup, replace(T4, device="google-coral-edge-tpu"))
    trial = host.duel(setup, trial, Thresholds(), time.monotonic() + 60)
    assert not trial.passed and trial.timing is not None and trial.timing.speedup == pytest.approx(1.0)
    assert trial.placement is not None and "quantised" in trial.placement.describe()


def test_chips_are_compared_beside_one_processor(setup: Setup) -> None:
    with pytest.raises(ProviderError, match="no processor"):
        SimulatedTrialHost(processor="nvidia-t4")
    host = SimulatedTrialHost(FakeTrialHost(), ["t4", "agx-orin"])
    devices, refused = host.devices(setup, ["CPUExecutionProvider", SIMULATED, "QNNExecutionProvider"], 0.0)
    assert [device.provider_device for device in devices[1:]] == ["nvidia-t4", "nvidia-jetson-agx-orin-64gb"]
    assert [name for name, _ in refused] == ["QNNExecutionProvider"]
    trials = race(host, setup, T4, replace(T4, device="nvidia-jetson-agx-orin-64gb"))
    assert len({trial.timing.baseline_p50_ms for trial in trials if trial.timing}) == 1


def test_what_the_model_does_not_know_fails_by_saying_so(host: SimulatedTrialHost, setup: Setup) -> None:
    threads = Strategy(session_options={"intra_op_num_threads": 1})
    unknown, odd = replace(T4, device="abacus"), replace(T4, provider_options={"precision": "ternary"})
    trials = race(host, setup, threads, unknown, odd)
    assert trials[0].failure == NOT_MODELLED
    assert "abacus" in str(trials[1].failure) and "precision" in str(trials[2].failure)
    assert all(trial.simulated and trial.timing is None for trial in trials)
    (late,) = race(host, setup, T4, seconds=-1)
    assert "no time" in str(late.failure)


def test_numbers_that_differ_are_caught_on_the_cpu_provider(host: SimulatedTrialHost, setup: Setup) -> None:
    """The accuracy gate is the real one: a reference of other inputs does not pass."""
    from ort_metainfer.trials import simulated

    trial = simulated._judged(
        Trial(T4, "test", simulated=True), setup, Thresholds(max_error=-1.0), time.monotonic() + 60
    )
    assert not trial.gates[-1].passed and trial.gates[-1].name == "accurate"


def test_outputs_that_cannot_be_compared_leave_no_figure_that_json_does_not_have(
    host: SimulatedTrialHost, setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlike = Comparison({"y": math.inf}, "its shape is another")
    refused = [Gate("compiles", True, "created"), Gate("accurate", False, "its shape is another")]
    monkeypatch.setattr("ort_metainfer.trials.simulated.judge_outputs", lambda *_: (refused, unlike))
    (trial,) = race(host, setup, T4)
    assert (trial.error, trial.errors) == (None, {}) and not trial.passed


def test_a_model_in_which_nothing_takes_time_is_not_compared(
    host: SimulatedTrialHost, setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ort_metainfer.trials.simulated.workload", lambda *_: ())
    (trial,) = race(host, setup, T4)
    assert trial.failure == NO_WORK and trial.timing is None


# Never mixed with what was measured


def decided(model: Path, host: Any, **settings: Any) -> Decision:
    resolved, problems = settings_for(Settings(budget_s=60, providers=("CPU", "Simulated"), **settings))
    assert not problems
    return decide(Request(str(model), SessionSpec(), resolved), host)


class _Reader(FakeTrialHost):
    """Reads models and saves inputs in this process."""

    def describe(self, setup: Setup, deadline: float) -> Graph:
        from ort_metainfer.model.graph import describe

        return describe(setup.model_file, setup.shapes)

    def prepare(self, setup: Setup, deadline: float) -> Any:
        from ort_metainfer.model.inputs import synthetic

        assert setup.graph is not None
        save_feeds([synthetic(setup.graph, setup.shapes, 0)], setup.feeds)
        return super().prepare(setup, deadline)


def kept(cache: StrategyCache) -> dict[str, list[str]]:
    return {table: cache.keys(table) for table in ("entries", "decisions", "starts", "profiles", "failures")}


def test_a_decision_on_described_chips_is_told_and_not_remembered(network: Path, tmp_path: Path) -> None:
    decision = decided(network, SimulatedTrialHost(_Reader(), ["t4", "rtx-4090", "coral"], "amd-ryzen-7-7840hs"))
    assert decision.strategy.provider == SIMULATED and decision.winner is not None and decision.winner.simulated
    assert decision.key is not None and decision.key.device.startswith("simulated:")
    assert decision.cache == "unused" and "never remembered" in decision.cache_reason
    assert decision.strategy_file is None and decision.manifest is None
    cache = open_cache(tmp_path / "cache")
    assert not any(kept(cache).values())
    assert not list((tmp_path / "cache").rglob("*.toml"))


def test_a_measured_entry_does_not_answer_a_simulation_and_stays_as_it_is(network: Path, tmp_path: Path) -> None:
    measured = decided(network, _Reader())
    before = kept(open_cache(tmp_path / "cache"))
    assert before["entries"] == [str(measured.key)] and "simulated" not in str(measured.key)
    assert (
        decided(network, SimulatedTrialHost(_Reader(), ["t4", "rtx-4090", "coral"], "amd-ryzen-7-7840hs")).cache
        == "unused"
    )
    assert kept(open_cache(tmp_path / "cache")) == before
    assert decided(network, _Reader()).cache == "hit"


def test_remember_refuses_a_simulated_trial_and_a_simulated_key(tmp_path: Path) -> None:
    cache = open_cache(tmp_path / "cache")
    key = CacheKey("sha256:" + "a" * 64, "cpu:some", "x", "strict|latency|CPU")
    model = Model(key.model, 1, path="m.onnx")
    by_trial = Decision(T4, "rules", "", key, trials=(Trial(T4, "test", simulated=True),))
    by_key = Decision(Strategy(), "default", "", replace(key, device=str(device_of(CHIPS["nvidia-t4"]))))
    for decision in (by_trial, by_key):
        told = remember(cache, tmp_path / "cache", decision, model, 1.0)
        assert told.key is not None and told.key.device.startswith("simulated:") and told.strategy_file is None
    assert not any(kept(cache).values())
    assert remember(cache, tmp_path / "cache", Decision(Strategy(), "default", "", key), model, 1.0).strategy_file
    assert kept(cache)["entries"] == [str(key)]


class _OffersChips(_Reader):
    """A host that measures, in whose process somebody named the simulated provider."""

    def devices(self, setup: Setup, providers: Any, deadline: float) -> Any:
        found, refused = super().devices(setup, [name for name in providers if name != SIMULATED], deadline)
        return [*found, *SimulatedProvider().devices()], refused


def test_a_host_that_measures_never_tries_a_described_chip(network: Path) -> None:
    host = _OffersChips()
    decision = decided(network, host)
    assert all(strategy.provider != SIMULATED for strategy in host.raced)
    assert all(proposal.strategy.provider != SIMULATED for proposal in decision.proposals)
    assert ("SimulatedExecutionProvider", "its devices are descriptions, none of them is here") in [
        (refusal.subject, refusal.reason) for refusal in decision.refusals
    ]


def test_a_simulated_device_is_neither_profiled_nor_kept_among_profiles(tmp_path: Path) -> None:
    cache = open_cache(tmp_path / "cache")

    def never(*arguments: Any) -> Any:
        raise AssertionError("it was measured")

    tools = Instruments(never, never, lambda device: {"simulated": "1"})
    with pytest.raises(ProviderError, match="simulated"):
        profile_device(device_of(CHIPS["nvidia-t4"]), cache, 1.0, refresh=True, instruments=tools)
    assert not any(kept(cache).values())


# Real models


@pytest.mark.slow
def test_a_real_network_gains_from_int8_on_a_gpu_and_from_a_wide_memory_on_an_npu(
    zoo_model: Callable[[str], Path],
) -> None:
    work = workload(zoo_model("opennsfw_resnet50"), {"input:0": (1, 224, 224, 3)})
    assert reckon("nvidia-t4", work, "int8").p50_ms < reckon("nvidia-t4", work).p50_ms
    assert reckon("nvidia-t4", work).nodes_on_host == 0
    assert reckon("google-coral-edge-tpu", work).bound == "host"
    npu = CHIPS["intel-npu-4"]
    assert npu.bandwidth is not None
    wide = replace(npu, bandwidth=replace(npu.bandwidth, value=2 * npu.bandwidth.value))
    assert reckon(npu, work).bound == "memory" and reckon(wide, work).p50_ms < reckon(npu, work).p50_ms


@pytest.mark.slow
def test_a_decision_on_described_chips_by_child_processes(network: Path) -> None:
    host = SimulatedTrialHost(chips=["t4"], processor="arm-cortex-a76-x4")
    try:
        decision = decided(network, host)
    finally:
        host.close()
    assert decision.winner is not None and decision.winner.simulated and decision.strategy.provider == SIMULATED
