"""How much error each quantised node of a model brings, measured on inputs: the order in which nodes are left out.

Three figures for a node, from cheap to dear: how far its output is off when everything is quantised; how far the
model's outputs are off when it alone is; how much nearer they come when it alone is left out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from ort_metainfer.errors import RewriteError
from ort_metainfer.rewrites.precision_nodes import Twin, faults_by_node, local_errors, looking_into, twins_of
from ort_metainfer.rewrites.registry import get_rewrite
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
    twins = twins_of(float_model, model)
    comparison = variants.compare(file)
    macs = macs_of(variants.float_file, variants.judged[0] if variants.judged else {})
    found = _local_errors(variants, file, twins)
    feeds = variants.judged[:MOST_FEEDS]
    faults, notes = faults_by_node(onnx.load(str(file)), variants.float_file, feeds, twins, variants.deadline)
    nodes = [
        replace(error, macs=macs.get(twins[label].before, 0), faults=faults.get(label, ()))
        for label, error in found.items()
    ]
    nodes = _alone(variants, sorted(nodes, key=lambda node: (-node.error, node.node)), notes)
    nodes.sort(key=_rank)
    return Sensitivity(tuple(_gains(variants, nodes, comparison)), comparison, tuple(notes))


def _rank(node: NodeError) -> tuple[bool, float, str]:
    """By what a node does alone; behind them those of which that is not known, by how far their output is off."""
    return node.alone is None, -(node.error if node.alone is None else node.alone), node.node


def _local_errors(variants: Variants, file: Path, twins: Mapping[str, Twin]) -> dict[str, NodeError]:
    """How far each node's output is off with everything quantised; both models are run."""
    feeds = variants.judged[:MOST_FEEDS]
    errors = local_errors(twins, looking_into(variants.float_file, feeds), looking_into(file, feeds))
    return {label: NodeError(label, twins[label].operator, error, _decibels(error)) for label, error in errors.items()}


def _decibels(relative: float) -> float:
    if relative == 0:
        return math.inf
    return -20 * math.log10(relative) if math.isfinite(relative) else -math.inf


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
