"""How long a described chip would take for a model: a stated analytic model, not a measurement.

Nodes the chip has run there, the others on the host beside it. Nodes of one place that can be fused form a group
(a matrix operator with the element-wise chain behind it, and the DequantizeLinear before it). One run takes

    sum over groups of   max( MACs / (peak x efficiency x fill),  bytes / (bandwidth x efficiency) ) + launch
    + call      for each uninterrupted part of the graph on the chip
    + transfer  latency + bytes / link, for every value that crosses between host and chip, inputs and outputs too

* peak: the chip's dense rate in the element type computed in (:func:`~ort_metainfer.hardware.placing.rate_of`).
* fill: how much of the chip one group occupies: the share of the padded channels that is real (in the matrix units,
  which types below 32 bits run on), times outputs / (compute units x tile) where that is below one (NVIDIA, Matrix
  Multiplication Background User's Guide: tile and wave quantisation).
* bytes: weights, and activations that do not fit into half of the on-chip memory. Weights stay on chips that keep them.
* A memory that a chip lacks is the host's, behind the link.

Each group counts as compute, memory or dispatch (its launch) by what its time is made of. Efficiencies, launch, call
and latency are in ``chips.toml``, each with its source or named as an assumption. What is left out: clocks, heat, power
limits, cache behaviour beyond the above, the quality of a vendor's kernels, what else the machine does. The same chip
and work always give the same answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from ort_metainfer.hardware.fusing import Group, fuse
from ort_metainfer.hardware.placing import Placing, arithmetic_of, rate_of
from ort_metainfer.model.work import CONTROL_FLOW, NodeWork
from ort_metainfer.providers.chips import Chip

__all__ = [
    "BOUNDS",
    "PRECISIONS",
    "Estimate",
    "Precision",
    "as_precision",
    "crossing_values",
    "estimate",
    "uninterrupted_parts",
]

Precision = Literal["as is", "float16", "bfloat16", "int8"]
PRECISIONS: tuple[Precision, ...] = ("as is", "float16", "bfloat16", "int8")
BOUNDS = ("compute", "memory", "transfer", "dispatch", "host")

_BYTES = {"float16": 2, "bfloat16": 2, "int8": 1}
_RESIDENT_SHARE = 0.5
"""Share of the on-chip memory that an activation may take to stay there: the rest holds weights and the next result."""


@dataclass(frozen=True)
class Estimate:
    """What the model says; times in milliseconds of one run. Always simulated, never measured.

    Attributes:
        chip: the chip's name; ``host`` that of the processor beside it.
        precision: what the model's floats were taken to be turned into.
        compute_ms: of groups bound by arithmetic; ``memory_ms`` of those bound by memory.
        transfer_ms: between host and chip.
        dispatch_ms: launches and calls.
        host_ms: what the host runs of the graph.
        nodes: nodes on the chip; ``nodes_on_host`` on the host. Views and what is folded are not counted.
        left: operator -> nodes left to the host.
        reasons: why they are left, a sentence each.
        parts: uninterrupted parts of the graph on the chip.
        memory_bytes: weights, and the largest group's activations.
        fits: whether that fits the chip's own memory; None where it has none or it is not stated.
        computed_in: element type of the model -> type computed in.
        unknown: nodes whose sizes are not known: counted as launched, without work.
    """

    chip: str
    host: str
    precision: str
    compute_ms: float
    memory_ms: float
    transfer_ms: float
    dispatch_ms: float
    host_ms: float
    nodes: int
    nodes_on_host: int
    macs: int
    memory_bytes: int
    fits: bool | None = None
    left: Mapping[str, int] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    parts: int = 0
    computed_in: Mapping[str, str] = field(default_factory=dict)
    unknown: int = 0
    simulated: bool = True

    @property
    def p50_ms(self) -> float:
        """All of it; a deterministic model has no spread."""
        return self.compute_ms + self.memory_ms + self.transfer_ms + self.dispatch_ms + self.host_ms

    @property
    def bound(self) -> str:
        """What takes the largest part: one of :data:`BOUNDS`."""
        return max(BOUNDS, key=lambda name: float(getattr(self, f"{name}_ms")))


def as_precision(work: Sequence[NodeWork], precision: Precision) -> tuple[NodeWork, ...]:
    """``work`` as if the model's float32 values were held in another type; for ``int8``, as if it were quantised.

    What a conversion adds of nodes (QuantizeLinear, Cast) is fused away on chips made for the type, and is left out.
    """
    if precision == "as is":
        return tuple(work)
    return tuple(_converted(node, precision) for node in work)


def _converted(node: NodeWork, precision: Precision) -> NodeWork:
    if node.dtype != "float32":
        return node
    share = _BYTES[precision] / 4
    return replace(
        node,
        dtype=precision,
        quantised=precision == "int8",
        reads={name: None if size is None else int(size * share) for name, size in node.reads.items()},
        weights={name: int(size * share) for name, size in node.weights.items()},
        writes={name: None if size is None else int(size * share) for name, size in node.writes.items()},
    )


def estimate(
    chip: Chip,
    host: Chip,
    work: Sequence[NodeWork],
    outputs: Sequence[str],
    *,
    precision: Precision = "as is",
    fixed_shapes: bool = True,
) -> Estimate:
    """How long ``chip`` beside ``host`` would take for one run.

    Args:
        chip: where the model is to run; a processor runs it alone.
        host: what runs the nodes that ``chip`` lacks.
        work: the model's, of :func:`ort_metainfer.model.workload.workload`.
        outputs: names of the model's outputs, which go back to the host.
        precision: what the model is taken to be converted to.
        fixed_shapes: whether the session has fixed shapes; a chip that needs them takes nothing otherwise.
    """
    work = as_precision(work, precision)
    placed = Placing(chip, fixed_shapes)
    on_chip = [placed.takes(node) for node in work]
    needed = _memory_bytes(work, on_chip)
    fits = None if chip.memory is None else needed <= chip.memory.value
    if chip.memory is not None and not fits:
        placed.refuse_all(f"{needed / 1e9:.1f} GB are needed, and its memory has {chip.memory.stated}")
        on_chip = [False] * len(work)
    return _Account(chip, host, precision, work, on_chip, outputs, placed, needed, fits).settle()


def _memory_bytes(work: Sequence[NodeWork], on_chip: Sequence[bool]) -> int:
    """Weights that the chip's nodes read, each once, and the activations of its hungriest node."""
    mine = [node for node, taken in zip(work, on_chip, strict=True) if taken]
    weights: dict[str, int] = {}
    for node in mine:
        for name, size in node.weights.items():
            weights[name] = max(size, weights.get(name, 0))
    return sum(weights.values()) + max(((n.read_bytes or 0) + (n.written_bytes or 0) for n in mine), default=0)


class _Account:
    """Adds up what groups, calls and transfers take."""

    def __init__(
        self,
        chip: Chip,
        host: Chip,
        precision: str,
        work: Sequence[NodeWork],
        on_chip: Sequence[bool],
        outputs: Sequence[str],
        placed: Placing,
        needed: int,
        fits: bool | None,
    ) -> None:
        self.chip, self.host, self.precision, self.placed = chip, host, precision, placed
        self.work, self.on_chip, self.needed, self.fits = work, on_chip, needed, fits
        self.groups = fuse(work, on_chip, outputs)
        self.spent = dict.fromkeys(BOUNDS, 0.0)
        self.computed_in: dict[str, str] = {}
        weights = sum(group.weight_bytes for group in self.groups if group.on_chip)
        own = chip.on_chip.value if chip.on_chip else None
        self.keeps_weights = chip.keeps_weights and (own is None or weights <= own)

    def settle(self) -> Estimate:
        for group in self.groups:
            self._charge(group)
        parts = uninterrupted_parts(self.groups)
        self.spent["dispatch"] += parts * self.chip.usage["call"].value
        self.spent["transfer"] += 0.0 if self.chip.kind == "cpu" else self._transfer_s()
        counted = [
            (node, taken)
            for node, taken in zip(self.work, self.on_chip, strict=True)
            if not (node.is_view or node.folded or node.operator in CONTROL_FLOW)
        ]
        left, spent = Counter(node.operator for node, taken in counted if not taken), self.spent
        return Estimate(
            self.chip.name,
            self.host.name,
            self.precision,
            spent["compute"] * 1000,
            spent["memory"] * 1000,
            spent["transfer"] * 1000,
            spent["dispatch"] * 1000,
            spent["host"] * 1000,
            nodes=sum(taken for _, taken in counted),
            nodes_on_host=left.total(),
            macs=sum((node.macs or 0) * node.runs for node in self.work),
            memory_bytes=self.needed,
            fits=self.fits,
            left=dict(left.most_common()),
            reasons=tuple(self.placed.reasons),
            parts=parts,
            computed_in=dict(sorted(self.computed_in.items())),
            unknown=sum(not node.is_known for node, _ in counted),
        )

    def _charge(self, group: Group) -> None:
        chip = self.chip if group.on_chip else self.host
        compute, memory = self._compute_s(group, chip), self._memory_s(group, chip)
        launches = chip.usage["launch"].value * group.runs * group.steps
        if not group.on_chip:
            self.spent["host"] += max(compute, memory) + launches
            return
        self.spent["dispatch"] += launches
        self.spent["compute" if compute >= memory else "memory"] += max(compute, memory)

    def _compute_s(self, group: Group, chip: Chip) -> float:
        seconds = 0.0
        for node in group.nodes:
            if not node.macs:
                continue
            found = rate_of(chip, arithmetic_of(node))
            if found is None:  # a host without the type computes in what it has
                found = next(iter((name, figure.value) for name, figure in chip.peak.items()))
            if group.on_chip:
                self.computed_in[arithmetic_of(node)] = found[0]
            fill = _fill(node, chip, found[0])
            seconds += node.macs * node.runs / (found[1] * chip.usage["compute_efficiency"].value * fill)
        return seconds

    def _memory_s(self, group: Group, chip: Chip) -> float:
        own = chip.on_chip.value * _RESIDENT_SHARE if chip.on_chip else 0.0
        activations = sum(size for size in group.activations.values() if size > own)
        weights = 0 if group.on_chip and self.keeps_weights else group.weight_bytes
        if chip.bandwidth is None:  # neither memory of its own nor the host's beside it: all over the link
            activations = 0  # what its compiler cannot keep on the chip, it tiles
            return weights / _link_rate(chip)
        rate = chip.bandwidth.value * chip.usage["memory_efficiency"].value
        return (activations + weights) * group.runs / rate

    def _transfer_s(self) -> float:
        rate = _link_rate(self.chip)
        crossing = crossing_values(self.groups)
        return sum(self.chip.link.latency.value + size / rate for size in crossing.values())


def _fill(node: NodeWork, chip: Chip, dtype: str) -> float:
    """Share of the chip's arithmetic that a node can occupy, above 0 and at most 1."""
    fill = 1.0
    if chip.channel_alignment and node.channels and dtype not in ("float32", "float64"):
        for length in node.channels:
            padded = -(-length // chip.channel_alignment) * chip.channel_alignment
            fill *= length / padded if padded else 1.0
    if chip.units is not None and "tile" in chip.usage and node.elements:
        fill *= min(1.0, node.elements / node.steps / (chip.units.value * chip.usage["tile"].value))
    return fill


def _link_rate(chip: Chip) -> float:
    """Bytes a second between host and chip: the bus's, or that of the memory they share."""
    if chip.link.bandwidth is not None:
        return chip.link.bandwidth.value * (chip.link.efficiency.value if chip.link.efficiency else 1.0)
    assert chip.bandwidth is not None  # a chip that shares the host's memory has one
    return chip.bandwidth.value * chip.usage["memory_efficiency"].value


def uninterrupted_parts(groups: Sequence[Group]) -> int:
    """Uninterrupted runs of groups on the chip, in the order of the graph."""
    places = [False, *(group.on_chip for group in groups)]
    return sum(now and not before for before, now in pairwise(places))


def crossing_values(groups: Sequence[Group]) -> dict[tuple[str, bool], int]:
    """(value, whether to the chip) -> bytes, for what one place makes (or is given) and the other takes."""
    made = {name: group.on_chip for group in groups for name in group.made}
    crossing: dict[tuple[str, bool], int] = {}
    for group in groups:
        for name, size in group.taken.items():
            if made.get(name, False) != group.on_chip:
                crossing[name, group.on_chip] = size
        for name, size in group.given_out.items():
            if group.on_chip:
                crossing[name, False] = size
    return crossing
