"""Which nodes a runtime would run as one kernel, for the analytic model of :mod:`~ort_metainfer.hardware.simulation`.

The rule is what runtimes have in common (onnxruntime's documentation on graph optimisations, TensorRT's on layer
fusion): an element-wise node whose input nobody else reads joins the node that makes it; a DequantizeLinear joins the
node that reads it; views cost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ort_metainfer.model.work import CONTROL_FLOW, NodeWork

__all__ = ["ELEMENT_WISE", "Group", "fuse"]

ELEMENT_WISE = frozenset(
    {
        *("Abs", "Add", "BatchNormalization", "Cast", "Clip", "Div", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid"),
        *("HardSwish", "LeakyRelu", "Log", "Mish", "Mul", "Neg", "PRelu", "Pow", "QuantizeLinear", "Reciprocal"),
        *("Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Sub", "Tanh", "ThresholdedRelu", "Where"),
        *("com.microsoft.BiasGelu", "com.microsoft.FastGelu", "com.microsoft.Gelu", "com.microsoft.QuickGelu"),
        *("com.microsoft.QuantizeLinear",),
    }
)

_DEQUANTIZE = ("DequantizeLinear", "com.microsoft.DequantizeLinear")


@dataclass
class Group:
    """Nodes that run as one.

    Attributes:
        on_chip: whether they run on the chip; otherwise on the host.
        taken: value made outside -> bytes read of it.
        made: names of all values made inside.
        written: value needed outside -> bytes.
        given_out: those of them that are outputs of the model.
    """

    nodes: list[NodeWork]
    on_chip: bool
    taken: Mapping[str, int]
    made: frozenset[str]
    written: Mapping[str, int]
    given_out: Mapping[str, int]

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights read in one run of it."""
        return sum({name: size for node in self.nodes for name, size in node.weights.items()}.values())

    @property
    def activations(self) -> dict[str, int]:
        """Bytes of every activation that goes in or out."""
        return {**self.taken, **self.written}

    @property
    def runs(self) -> int:
        """How often it runs in one run of the model."""
        return max(node.runs for node in self.nodes)

    @property
    def steps(self) -> int:
        """Steps that follow one another inside it."""
        return max(node.steps for node in self.nodes)


def fuse(work: Sequence[NodeWork], on_chip: Sequence[bool], outputs: Sequence[str]) -> list[Group]:
    """The groups of a model, in the order of its graph; views, folded nodes and control flow itself are in none.

    Args:
        work: the model's.
        on_chip: for each node, where it runs.
        outputs: names of the model's outputs.
    """
    return _Fusion(work, outputs).groups(on_chip)


class _Fusion:
    def __init__(self, work: Sequence[NodeWork], outputs: Sequence[str]) -> None:
        self._work = work
        self._same: dict[str, str] = {}  # a view's result -> the value it shows
        for node in work:
            if node.is_view and node.reads:
                self._same |= dict.fromkeys(node.writes, self._behind(next(iter(node.reads))))
        self._outputs = {self._behind(name): name for name in outputs}
        self._readers = Counter(name for node in self._costly() for name in self._reads(node))
        self._members: list[list[int]] = []
        self._of_value: dict[str, int] = {}

    def _behind(self, name: str) -> str:
        return self._same.get(name, name)

    def _costly(self) -> list[NodeWork]:
        return [node for node in self._work if _costs(node)]

    def _reads(self, node: NodeWork) -> dict[str, int]:
        """Value -> bytes, views seen through; 0 where the size is not known."""
        return {self._behind(name): size or 0 for name, size in node.reads.items()}

    def groups(self, on_chip: Sequence[bool]) -> list[Group]:
        for index, node in enumerate(self._work):
            if _costs(node):
                self._place(index, node, on_chip)
        return [self._group(members, on_chip[members[-1]]) for members in self._members if members]

    def _place(self, index: int, node: NodeWork, on_chip: Sequence[bool]) -> None:
        number = self._host_group(index, node, on_chip)
        if number is None:
            number = len(self._members)
            self._members.append([])
        self._absorb_dequantized(number, node, on_chip[index], on_chip)
        self._members[number].append(index)
        self._of_value |= dict.fromkeys(node.writes, number)

    def _host_group(self, index: int, node: NodeWork, on_chip: Sequence[bool]) -> int | None:
        """The group that an element-wise node joins: of the last input that only it reads."""
        if node.operator not in ELEMENT_WISE:
            return None
        joined = [
            number
            for name in self._reads(node)
            if self._readers[name] == 1
            and name not in self._outputs
            and (number := self._of_value.get(name)) is not None
            and self._is_like(number, node, on_chip[index], on_chip)
            and self._work[self._members[number][-1]].operator not in _DEQUANTIZE
        ]
        return max(joined, default=None)

    def _is_like(self, number: int, node: NodeWork, taken: bool, on_chip: Sequence[bool]) -> bool:
        last = self._members[number][-1]
        other = self._work[last]
        return on_chip[last] == taken and (other.runs, other.inside) == (node.runs, node.inside)

    def _absorb_dequantized(self, number: int, node: NodeWork, taken: bool, on_chip: Sequence[bool]) -> None:
        """A DequantizeLinear that only this node reads is done as its input is read."""
        for name in self._reads(node):
            other = self._of_value.get(name)
            if other is None or other == number or self._readers[name] != 1 or not self._members[other]:
                continue
            members = self._members[other]
            alone = len(members) == 1 and self._work[members[0]].operator in _DEQUANTIZE
            if alone and self._is_like(other, node, taken, on_chip):
                self._members[number] += members
                self._members[other] = []
                self._of_value[name] = number

    def _group(self, members: Sequence[int], on_chip: bool) -> Group:
        nodes = [self._work[index] for index in members]
        made = {name: size or 0 for node in nodes for name, size in node.writes.items()}
        taken: dict[str, int] = {}
        inside: Counter[str] = Counter()
        for node in nodes:
            for name, size in self._reads(node).items():
                inside[name] += 1
                if name not in made:
                    taken[name] = size
        given_out = {self._outputs[name]: size for name, size in made.items() if name in self._outputs}
        written = {n: size for n, size in made.items() if n in self._outputs or self._readers[n] > inside[n]}
        return Group(nodes, on_chip, taken, frozenset(made), written, given_out)


def _costs(node: NodeWork) -> bool:
    return not (node.is_view or node.folded or node.operator in CONTROL_FLOW)
