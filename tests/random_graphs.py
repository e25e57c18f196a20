"""Small random ONNX models whose patterns are those that rewrites look for, from a seed or drawn by hypothesis.

A plan is a list of blocks, each with a seed of its own: leaving one out keeps what the others draw, so that a failing
graph gets smaller by leaving blocks out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies
from onnx import helper

from ort_metainfer.model.walking import walk
from tests.random_graph_control import BLOCKS
from tests.random_graph_float64 import as_float64, runs
from tests.random_graph_sketch import FLOAT, Sketch

__all__ = ["BLOCKS", "Plan", "RandomGraph", "build", "minimised", "plans", "random_plan"]

OPSETS = range(11, 24)
DYNAMIC = ("none", "batch", "all")

MOST_BLOCKS = 4


@dataclass(frozen=True)
class Plan:
    """What a model is drawn from.

    Attributes:
        blocks: name and seed of each block, in order.
        opset: ONNX opset.
        dynamic: see :class:`Sketch`.
        tap: see :class:`Sketch`.
        override: see :class:`Sketch`.
        metadata: whether the model has metadata_props.
        double: whether it computes in float64, if onnxruntime has its operators in that.
    """

    blocks: tuple[tuple[str, int], ...]
    opset: int = 17
    dynamic: str = "none"
    tap: float = 0.0
    override: float = 0.0
    metadata: bool = False
    double: bool = False


@dataclass(frozen=True)
class RandomGraph:
    """A model, and what it is run with.

    Attributes:
        plan: what it was drawn from.
        model: the model; not to be changed.
        feeds: the first leaves out what has a default, the last overrides it and has another batch size if it may.
        steps: whether a rounding error can become a whole step (a quantiser in the middle).
    """

    plan: Plan
    model: Any
    feeds: tuple[Mapping[str, np.ndarray], ...]
    steps: bool

    @cached_property
    def bytes(self) -> bytes:
        """The model, serialised."""
        return self.model.SerializeToString(deterministic=True)

    def text(self) -> str:
        """The model as ONNX text, without its weights."""
        slim = onnx.ModelProto()
        slim.CopyFrom(self.model)
        return f"{self.plan}\n{onnx.printer.to_text(slim)}"


def random_plan(seed: int) -> Plan:
    """The plan of that number; every block gets its turn as the first one of some plan."""
    rng = np.random.default_rng((seed, 1))
    names = sorted(BLOCKS)
    chosen = [names[seed % len(names)], *rng.choice(names, int(rng.integers(0, MOST_BLOCKS)))]
    blocks = tuple((str(name), int(rng.integers(1 << 20))) for name in chosen)
    dynamic = str(rng.choice(DYNAMIC, p=[0.55, 0.3, 0.15]))
    opset = int(rng.choice([*OPSETS, 17, 21, 23]))
    tap = float(rng.choice([0.0, 0.0, 0.1]))
    override = float(rng.choice([0.0, 0.05, 0.5], p=[0.7, 0.2, 0.1]))
    metadata, double = bool(rng.random() < 0.3), bool(rng.random() < 0.12)
    return Plan(blocks, opset, dynamic, tap, override, metadata, double)


def plans() -> strategies.SearchStrategy[Plan]:
    """Plans drawn by hypothesis; they shrink towards few blocks."""
    block = strategies.tuples(strategies.sampled_from(sorted(BLOCKS)), strategies.integers(0, 1 << 20))
    return strategies.builds(
        Plan,
        strategies.lists(block, min_size=1, max_size=MOST_BLOCKS).map(tuple),
        strategies.sampled_from([17, *OPSETS]),
        strategies.sampled_from(DYNAMIC),
        strategies.sampled_from([0.0, 0.1]),
        strategies.sampled_from([0.0, 0.5]),
        strategies.booleans(),
        strategies.booleans(),
    )


def build(plan: Plan) -> RandomGraph:
    """The model of a plan; the same one each time."""
    sketch = Sketch(np.random.default_rng(0), plan.opset, dynamic=plan.dynamic, tap=plan.tap, override=plan.override)
    for name, seed in plan.blocks:
        sketch.rng = np.random.default_rng((seed, 2))
        BLOCKS[name](sketch)
    graph = RandomGraph(plan, _model(sketch, plan), tuple(_feeds(sketch, plan)), sketch.steps)
    return in_float64(graph) if plan.double else graph


def in_float64(graph: RandomGraph) -> RandomGraph:
    """The graph in float64; itself where onnxruntime lacks an operator in that."""
    model = as_float64(graph.model)
    feeds = tuple({name: _widened(array) for name, array in feed.items()} for feed in graph.feeds)
    return replace(graph, model=model, feeds=feeds) if runs(model) else graph


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype == np.float32 else array


def _model(sketch: Sketch, plan: Plan) -> Any:
    made = {name for node in sketch.nodes for name in node.output}
    loose = [value for value in sketch.pool if value.name in made and value.name not in sketch.used]
    ends = list(dict.fromkeys([*loose, *sketch.extra]))
    outputs = [helper.make_tensor_value_info(end.name, FLOAT, [None] * end.rank) for end in ends]
    outputs += [helper.make_tensor_value_info(*spec) for spec in sketch.typed]
    inputs = [spec for spec, _ in (*sketch.inputs, *sketch.overridable)]
    graph = helper.make_graph(sketch.nodes, "random", inputs, outputs, sketch.weights)
    domains = sorted({node.domain for node in walk(graph.node) if node.domain})
    opsets = [helper.make_opsetid("", plan.opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    ir_version = max(8, helper.find_min_ir_version_for(opsets, ignore_unknown=True))
    model = helper.make_model(graph, ir_version=ir_version, opset_imports=opsets)
    model.producer_name = "random graphs"
    if plan.metadata:
        helper.set_model_props(model, {"author": "nobody", "größe": "klein"})
    return model


def _feeds(sketch: Sketch, plan: Plan) -> Iterator[Mapping[str, np.ndarray]]:
    rng = np.random.default_rng(7)
    for batch in (2, 2 if plan.dynamic == "none" else 3):
        yield {spec.name: feed(rng, batch) for spec, feed in sketch.inputs}
    last = {spec.name: feed(rng, 2 if plan.dynamic == "none" else 1) for spec, feed in sketch.inputs}
    if sketch.overridable or plan.dynamic != "none":
        yield last | {spec.name: feed(rng, 2) for spec, feed in sketch.overridable}


def minimised(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """A smaller plan that fails as well: with fewer blocks, and without what it need not have."""
    for position in reversed(range(len(plan.blocks))):
        fewer = replace(plan, blocks=plan.blocks[:position] + plan.blocks[position + 1 :])
        if fewer.blocks and fails(fewer):
            plan = fewer
    for plainer in (
        {"dynamic": "none"},
        {"tap": 0.0},
        {"override": 0.0},
        {"metadata": False},
        {"double": False},
        {"opset": 17},
    ):
        simpler = replace(plan, **plainer)
        if simpler != plan and fails(simpler):
            plan = simpler
    return plan
