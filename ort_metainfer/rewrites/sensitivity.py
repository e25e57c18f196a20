"""How much error each quantised node of a model brings, measured on inputs: the order in which nodes are left out.

Three figures for a node, from cheap to dear: how far its output is off when everything is quantised; how far the
model's outputs are off when it alone is; how much nearer they come when it alone is left out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ort_metainfer.errors import RewriteError
from ort_metainfer.rewrites.observing import observe
from ort_metainfer.rewrites.registry import get_rewrite
from ort_metainfer.rewrites.scales import range_faults, scale_faults
from ort_metainfer.rewrites.variants import Variants, macs_of
from ort_metainfer.strategy import Transform
from ort_metainfer.trials.accuracy import Comparison

__all__ = ["NodeError", "Sensitivity", "measure_sensitivity", "sensitivity_of"]

MOST_GAINS = 8
"""Nodes for which it is also tried what leaving them out alone gains."""

MOST_FEEDS = 4
"""Feeds that single nodes are measured on."""

ALONE_SHARE, GAINS_SHARE = 0.5, 0.2
"""Shares of the time that is left when they begin: the search that wants the order comes behind them."""

Feed = Mapping[str, Any]


@dataclass(frozen=True)
class NodeError:
    """What one quantised node does to a model.

    Attributes:
        node: its name, or that of its first output.
        operator: what it computes.
        error: relative L2 error of its output with everything quantised, worst feed; what it was given is off already.
        sqnr_db: signal to quantisation noise of the same in decibels, worst feed; infinite where nothing is off.
        alone: relative L2 error of the model's outputs with this node alone quantised; None where time ran out.
        gain: by how much the error of the model's outputs falls with this node alone left out; None where not tried.
        macs: multiply-accumulates, 0 where not known.
        faults: what is wrong with its scales, a sentence each.
    """

    node: str
    operator: str
    error: float
    sqnr_db: float
    alone: float | None = None
    gain: float | None = None
    macs: int = 0
    faults: tuple[str, ...] = ()

    def describe(self) -> str:
        """One line for people."""
        words = [f"{self.node} ({self.operator})", f"error {self.error:.1e}", f"SQNR {self.sqnr_db:.0f} dB"]
        words += [] if self.alone is None else [f"alone {self.alone:.1e}"]
        words += [] if self.gain is None else [f"left out gains {self.gain:.1e}"]
        return ", ".join([*words, *self.faults])


@dataclass(frozen=True)
class Sensitivity:
    """The quantised nodes of a model, most sensitive first.

    Attributes:
        nodes: those that were measured.
        comparison: the model with everything quantised against the float one.
        notes: what a person should know: faults of scales, what time did not suffice for.
    """

    nodes: tuple[NodeError, ...]
    comparison: Comparison
    notes: tuple[str, ...] = ()

    def worst(self, count: int) -> tuple[NodeError, ...]:
        """The most sensitive ones."""
        return self.nodes[:count]

    @property
    def faults(self) -> tuple[str, ...]:
        """Everything wrong with scales, by node."""
        return tuple(f"{node.node}: {fault}" for node in self.nodes for fault in node.faults)

    def table(self, count: int = 10) -> str:
        """The worst nodes, a line each."""
        return "\n".join(node.describe() for node in self.worst(count))


def measure_sensitivity(
    model_file: Path,
    transform: Transform,
    feeds: Sequence[Feed],
    deadline: float | None = None,
    folder: Path | None = None,
) -> Sensitivity:
    """Measure every quantised node of a model.

    Args:
        model_file: the float model.
        transform: a lossy rewrite that leaves single nodes out by the parameters ``exclude`` and ``only``.
        feeds: real inputs; it calibrates on them as well.
        deadline: a time.monotonic() value; what is not measured by then is left open, never guessed.
        folder: for temporary files; None makes one and removes it.

    Raises:
        RewriteError: the rewrite fails, or leaves nothing quantised.
        StrategyError: there is no such rewrite, or it cannot leave nodes out.
    """
    import tempfile

    if folder is None:
        with tempfile.TemporaryDirectory() as made:
            return measure_sensitivity(model_file, transform, feeds, deadline, Path(made))
    rewrite = get_rewrite(transform.name)
    rewrite.complete(transform)
    variants = Variants(Path(model_file), rewrite, transform.parameters, feeds, feeds, folder, deadline)
    return sensitivity_of(variants)


def sensitivity_of(variants: Variants) -> Sensitivity:
    """The same on a variants that is there already."""
    file = variants.quantise()
    if file is None:
        raise RewriteError(f"{variants.rewrite.name} leaves nothing quantised")
    float_model = onnx.load(str(variants.float_file), load_external_data=False)
    model = onnx.load(str(file), load_external_data=False)
    pairs = _pairs(float_model, model)
    comparison = variants.compare(file)
    macs = macs_of(variants.float_file, variants.judged[0] if variants.judged else {})
    found = _local_errors(variants, file, pairs)
    faults, notes = _faults(variants, onnx.load(str(file)), pairs)
    nodes = [
        replace(error, macs=macs.get(pairs[label][1], 0), faults=faults.get(label, ()))
        for label, error in found.items()
    ]
    nodes = _alone(variants, sorted(nodes, key=lambda node: (-node.error, node.node)), notes)
    nodes.sort(key=_rank)
    return Sensitivity(tuple(_gains(variants, nodes, comparison)), comparison, tuple(notes))


def _rank(node: NodeError) -> tuple[bool, float, str]:
    """By what a node does alone; behind them those of which that is not known, by how far their output is off."""
    return node.alone is None, -(node.error if node.alone is None else node.alone), node.node


PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "LSTM", "MatMul")

BEFORE_ROUNDING = "_QuantizeLinear_Input"
"""What the quantiser adds to the name of a model's output before it is rounded."""

Pair = tuple[str, str, str]
"""Operator, the value in the float model, and the one in the quantised model."""


def _pairs(float_model: Any, model: Any) -> dict[str, Pair]:
    """Label -> where its result stands in both models, for every product that is another one in the second."""
    named = {node.name: node for node in model.graph.node if node.name}
    makers = {name: node for node in model.graph.node for name in node.output}
    rounded = _rounded(model)
    counts: dict[str, int] = {}
    for node in float_model.graph.node:
        counts[node.name] = counts.get(node.name, 0) + 1
    found: dict[str, Pair] = {}
    for node in float_model.graph.node:
        if node.op_type not in PRODUCTS or node.domain not in ("", "ai.onnx"):
            continue
        label = node.name if node.name and counts[node.name] == 1 else node.output[0]
        twin = named.get(label)
        maker = makers.get(node.output[0])
        if twin is not None and twin.op_type == node.op_type and _has_dequantised_weight(twin, makers):
            result = twin.output[0]
            found[label] = (node.op_type, result.removesuffix(BEFORE_ROUNDING), rounded.get(result, result))
        elif maker is not None and (maker.op_type != node.op_type or list(maker.input) != list(node.input)):
            found[label] = (node.op_type, node.output[0], node.output[0])
    return {label: pair for label, pair in found.items() if _both(pair, float_model, model)}


def _both(pair: Pair, float_model: Any, model: Any) -> bool:
    return all(
        any(name in node.output for node in graph.node)
        for name, graph in ((pair[1], float_model.graph), (pair[2], model.graph))
    )


def _has_dequantised_weight(node: Any, makers: Mapping[str, Any]) -> bool:
    maker = makers.get(node.input[1]) if len(node.input) > 1 else None
    return maker is not None and maker.op_type == "DequantizeLinear"


def _rounded(model: Any) -> dict[str, str]:
    """Value -> itself after QuantizeLinear and DequantizeLinear."""
    back = {node.input[0]: node.output[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    return {
        node.input[0]: back[node.output[0]]
        for node in model.graph.node
        if node.op_type == "QuantizeLinear" and node.output[0] in back
    }


def _local_errors(variants: Variants, file: Path, pairs: Mapping[str, Pair]) -> dict[str, NodeError]:
    """How far each node's output is off with everything quantised; both models are run, some values at a time."""
    found: dict[str, NodeError] = {}
    feeds = variants.judged[:MOST_FEEDS]
    labels = list(pairs)
    for start in range(0, len(labels), 16):
        some = labels[start : start + 16]
        expected = {
            (name, feed): array
            for name, feed, array in observe(variants.float_file, _unique(pairs[x][1] for x in some), feeds)
        }
        got = {(name, feed): array for name, feed, array in observe(file, _unique(pairs[x][2] for x in some), feeds)}
        for label in some:
            operator, before, after = pairs[label]
            worst = max(_relative(expected[before, n], got[after, n]) for n in range(len(feeds)))
            found[label] = NodeError(label, operator, worst, _decibels(worst))
    return found


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _relative(expected: np.ndarray, got: np.ndarray) -> float:
    if expected.shape != got.shape:
        return math.inf
    wide = expected.astype(np.float64)
    norm = float(np.linalg.norm(wide))
    distance = float(np.linalg.norm(got.astype(np.float64) - wide))
    if not math.isfinite(distance):
        return math.inf
    return distance / norm if norm else (0.0 if not distance else math.inf)


def _decibels(relative: float) -> float:
    if relative == 0:
        return math.inf
    return -20 * math.log10(relative) if math.isfinite(relative) else -math.inf


def _faults(variants: Variants, model: Any, pairs: Mapping[str, Pair]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Label -> what is wrong with its scales; and what belongs to no node that was measured, as notes."""
    found = dict(scale_faults(model))
    found |= range_faults(model, variants.float_file, variants.judged[:MOST_FEEDS], variants.deadline)
    results = {pair[2]: label for label, pair in pairs.items()}
    users: dict[str, list[Any]] = {}
    for node in model.graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    by_label: dict[str, tuple[str, ...]] = {}
    strays = []
    for name, text in found.items():
        nodes = (*users.get(name, ()), *users.get(f"{name}{BEFORE_ROUNDING}", ()))
        labels = _reached(nodes, users, results)
        for label in labels:
            by_label[label] = (*by_label.get(label, ()), text)
        strays += [] if labels else [f"wrong scale: {text}"]
    return by_label, strays


def _reached(nodes: Sequence[Any], users: Mapping[str, Sequence[Any]], results: Mapping[str, str]) -> list[str]:
    """Labels of the first products behind some nodes."""
    waiting, seen, labels = list(nodes), set(), []
    while waiting:
        node = waiting.pop(0)
        if node.output[0] in seen:
            continue
        seen.add(node.output[0])
        met = [results[name] for name in node.output if name in results]
        labels += met
        if not met:
            waiting += [user for name in node.output for user in users.get(name, ())]
    return list(dict.fromkeys(labels))


def _alone(variants: Variants, nodes: Sequence[NodeError], notes: list[str]) -> list[NodeError]:
    """Each node quantised alone, as far as its share of the time goes."""
    until = variants.until(ALONE_SHARE)
    found = []
    for node in nodes:
        late = time.monotonic() > until
        found.append(node if late else replace(node, alone=variants.error(MOST_FEEDS, only=[node.node])))
    missing = sum(node.alone is None for node in found)
    if missing:
        notes.append(f"time was up: {missing} of {len(nodes)} nodes were not measured alone")
    return found


def _gains(variants: Variants, nodes: Sequence[NodeError], whole: Comparison) -> list[NodeError]:
    """What leaving out each of the worst gains, as far as its share of the time goes."""
    until = variants.until(GAINS_SHARE)
    found = []
    for place, node in enumerate(nodes):
        late = place >= MOST_GAINS or time.monotonic() > until
        found.append(node if late else replace(node, gain=whole.error - variants.error(exclude=[node.node])))
    return found
