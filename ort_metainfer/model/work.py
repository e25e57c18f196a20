"""What one node of a model does in one run: data only, so that who reckons with it need not import onnx."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["CONTROL_FLOW", "NodeWork", "OperatorTime"]

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
"""What they do is what the nodes inside do, which are listed on their own."""


@dataclass(frozen=True)
class OperatorTime:
    """What one node of a session took, as onnxruntime's profiler tells: after its own optimiser.

    Attributes:
        name: the node's name; of fused nodes one that onnxruntime gave.
        operator: its operator, without the domain.
        provider: that ran it.
        p50_ms: median over the runs; of a node that runs several times in one run, all of them together.
    """

    name: str
    operator: str
    provider: str
    p50_ms: float


@dataclass(frozen=True)
class NodeWork:
    """What one node does in one run of it; sizes in bytes, None where a shape is not known.

    Attributes:
        name: the node's name, or that of its first output.
        operator: its operator, with the domain before it where that is not ONNX's own.
        dtype: element type of its first input: what it computes in.
        output: shape of its first output; None where it is not known.
        macs: multiply-accumulates, by the formulas of :func:`ort_metainfer.model.macs.count_macs`; None for operators
            that do none (element-wise work, pooling, normalisation) and where shapes are not known.
        reads: activation -> bytes read of it.
        weights: weight -> bytes read of it. Of a table (Gather) the rows read, not the table.
        writes: output -> bytes written.
        channels: for convolutions, matrix products and recurrent nodes: length summed over per kernel element (input
            channels of a group, K) and output channels (N); None for others.
        runs: how often it runs in one run of the model: more than once inside a Loop or Scan of known trip count.
        steps: steps that follow one another inside it (recurrent nodes), else 1.
        quantised: whether it computes on 8-bit integers or fewer: QLinear and Integer operators, and float operators
            whose inputs all come out of a DequantizeLinear, which runtimes fuse to such.
        folded: whether its result is known from the shapes alone: onnxruntime folds it, or it is next to nothing.
        is_view: whether it moves no data.
        inside: operator of the control flow it lies in; None in the main graph.
    """

    name: str
    operator: str
    dtype: str
    output: tuple[int, ...] | None
    macs: int | None = None
    reads: Mapping[str, int | None] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)
    writes: Mapping[str, int | None] = field(default_factory=dict)
    channels: tuple[int, int] | None = None
    runs: int = 1
    steps: int = 1
    quantised: bool = False
    folded: bool = False
    is_view: bool = False
    inside: str | None = None

    @property
    def read_bytes(self) -> int | None:
        """Bytes of activations read; None where one is not known."""
        return _sum(self.reads)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights read."""
        return sum(self.weights.values())

    @property
    def written_bytes(self) -> int | None:
        """Bytes written; None where one output's size is not known."""
        return _sum(self.writes)

    @property
    def elements(self) -> int | None:
        """Elements of the first output."""
        return None if self.output is None else math.prod(self.output)

    @property
    def is_known(self) -> bool:
        """Whether every size of it is known."""
        return self.read_bytes is not None and self.written_bytes is not None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> NodeWork:
        """The inverse of :meth:`as_dict`, also after a trip through JSON."""
        pairs = {name: None if plain[name] is None else tuple(plain[name]) for name in ("output", "channels")}
        return cls(**{**plain, **pairs})


def _sum(sizes: Mapping[str, int | None]) -> int | None:
    known = [size for size in sizes.values() if size is not None]
    return sum(known) if len(known) == len(sizes) else None
