"""Which nodes run where is told as it is, with reasons, and a provider that took nothing does not pass."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ort_metainfer.decision import Placement, Trial
from ort_metainfer.problem import SessionSpec
from ort_metainfer.providers import get_provider
from ort_metainfer.providers.capabilities import Capabilities, Constraints
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials import gates
from ort_metainfer.trials.placement import explained, placement_from_dict, placement_of, with_reasons
from ort_metainfer.trials.task import Setup
from tests import made_problems

NPU = "OpenVINOExecutionProvider"
CPU = "CPUExecutionProvider"


@dataclass
class Node:
    op_type: str
    domain: str = ""


class Subgraph:
    def __init__(self, ep_name: str, *operators: str) -> None:
        self.ep_name, self._nodes = ep_name, [Node(*reversed(op.rpartition(".")[::2])) for op in operators]

    def get_nodes(self) -> list[Node]:
        return self._nodes


class Session:
    def __init__(self, *subgraphs: Subgraph) -> None:
        self._subgraphs = subgraphs

    def get_provider_graph_assignment_info(self) -> tuple[Subgraph, ...]:
        return self._subgraphs


def test_nodes_are_counted_by_provider_and_what_was_left_by_operator() -> None:
    session = Session(
        Subgraph(NPU, "Conv", "Relu"), Subgraph(CPU, "TopK"), Subgraph(CPU, "com.microsoft.Gelu"), Subgraph(NPU, "Conv")
    )
    placement = placement_of(session, NPU)
    left = {"TopK": 1, "com.microsoft.Gelu": 1}
    assert placement == Placement(NPU, {NPU: 3, CPU: 2}, left, partitions=2, products=2, all_products=2)
    assert (placement.taken, placement.total) == (3, 5)


def test_the_share_goes_by_products_where_there_are_any_and_by_nodes_where_not() -> None:
    mixed = placement_of(
        Session(Subgraph(NPU, "Conv", "Relu"), Subgraph(CPU, "FusedMatMul", "QLinearConv", "LSTM")), NPU
    )
    plain = placement_of(Session(Subgraph(NPU, "Relu"), Subgraph(CPU, "Add", "Mul", "Softmax")), NPU)
    assert mixed is not None and mixed.share == 0.25
    assert plain is not None and plain.share == 0.25


def test_one_node_of_compiled_work_beside_the_conversions_around_it_is_all_of_the_work() -> None:
    around = Subgraph(CPU, "QuantizeLinear", "DequantizeLinear")
    placement = placement_of(Session(Subgraph(NPU, "EPContext"), around), NPU)
    assert placement is not None and placement.share == 1.0
    assert gates.compiles(5.0, 1, placement=placement, min_share=0.5).passed


def test_what_would_mostly_run_elsewhere_does_not_compile_for_the_provider_and_says_so() -> None:
    mostly = Placement(NPU, {NPU: 30, CPU: 10}, products=1, all_products=4)
    gate = gates.compiles(5.0, 1, placement=mostly, min_share=0.5)
    assert not gate.passed
    assert "mostly run on another provider (25% of the work): not timed" in gate.detail
    assert gates.compiles(5.0, 1, placement=mostly).passed
    assert gates.compiles(5.0, 1, placement=mostly, min_share=0.25).passed


def test_a_provider_of_kernels_has_no_number_of_parts() -> None:
    placement = placement_of(Session(Subgraph(NPU, "Conv"), Subgraph(NPU, "Relu")), NPU)
    assert placement is not None and placement.partitions == 0 and "parts" not in placement.describe()


def test_a_meta_device_counts_as_its_provider() -> None:
    placement = placement_of(Session(Subgraph(f"{NPU}.AUTO", "Conv")), NPU)
    assert placement is not None and placement.nodes == {NPU: 1} and not placement.left


def test_where_onnxruntime_does_not_say_there_is_no_placement() -> None:
    class Silent:
        def get_provider_graph_assignment_info(self) -> Any:
            raise RuntimeError("not recorded")

    assert placement_of(object(), NPU) is None
    assert placement_of(Silent(), NPU) is None


def test_the_sentence_names_both_sides_and_the_reason() -> None:
    placement = Placement("QNNExecutionProvider", {"QNNExecutionProvider": 31, CPU: 18}, {"TopK": 18}, 2, ("no TopK",))
    assert placement.describe() == "31 of 49 nodes on QNN in 2 parts; 18 on CPU because no TopK"


def test_a_provider_that_took_nothing_does_not_pass_however_right_its_results() -> None:
    gate = gates.compiles(5.0, 1, placement=Placement(NPU, {CPU: 9}, {"Conv": 9}))
    assert not gate.passed and "0 of 9 nodes on OpenVINO" in gate.detail


def test_part_of_the_nodes_passes_and_is_told() -> None:
    gate = gates.compiles(5.0, 1, placement=Placement(NPU, {NPU: 4, CPU: 1}, {"TopK": 1}))
    assert gate.passed and "4 of 5 nodes on OpenVINO" in gate.detail and gate.figures["taken"] == 4


def test_a_graph_folded_away_to_nothing_passes() -> None:
    assert gates.compiles(5.0, 1, placement=Placement(NPU, {})).passed


@pytest.fixture
def npu_constraints(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = Constraints(static_shapes=True, missing=frozenset({"TopK"}), source="made up")
    monkeypatch.setattr(type(get_provider(NPU)), "capabilities", Capabilities(constraints=stated))


@pytest.mark.usefixtures("npu_constraints")
class TestReasons:
    fixed = made_problems.problem(inputs=made_problems.FIXED_IMAGE).graph
    dynamic = made_problems.problem(inputs=made_problems.DYNAMIC_IMAGE).graph

    def test_an_operator_it_is_known_not_to_have(self) -> None:
        placement = explained(Placement(NPU, {NPU: 4, CPU: 1}, {"TopK": 1}), self.fixed, {})
        assert placement is not None and placement.reasons == ("it has no TopK",)

    def test_open_dimensions_where_it_took_nothing(self) -> None:
        placement = explained(Placement(NPU, {CPU: 5}, {"Conv": 5}), self.dynamic, {})
        assert placement is not None and "fixed shapes" in placement.reasons[0] and "x" in placement.reasons[0]

    def test_shapes_that_are_given_are_not_open(self) -> None:
        placement = explained(Placement(NPU, {CPU: 5}, {"Conv": 5}), self.dynamic, {"x": (1, 3, 8, 8)})
        assert placement is not None
        assert placement.reasons == ("it did not take Conv; onnxruntime does not say why",)

    def test_nothing_to_explain_stays_as_it_is(self) -> None:
        whole = Placement(NPU, {NPU: 5})
        assert explained(whole, self.fixed, {}) is whole
        assert explained(None, self.fixed, {}) is None

    def test_the_gate_tells_the_reason_too(self) -> None:
        placement = Placement(NPU, {CPU: 5}, {"Conv": 5})
        trial = Trial(Strategy(provider=NPU), "rules", (gates.compiles(1.0, 1, placement=placement),))
        setup = Setup(Path("m.onnx"), SessionSpec(), Path("feeds"), graph=self.dynamic)
        told = with_reasons(replace(trial, placement=placement), setup)
        assert told.placement is not None and told.placement.reasons
        assert "fixed shapes" in told.gates[0].detail and not told.gates[0].passed


def test_a_placement_survives_its_plain_form() -> None:
    placement = Placement(NPU, {NPU: 4, CPU: 1}, {"TopK": 1}, 2, ("it has no TopK",))
    assert placement_from_dict(asdict(placement)) == placement
