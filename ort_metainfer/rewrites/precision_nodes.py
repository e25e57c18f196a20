"""The same product in a float model and in its lossy form: where its result stands in both, and how far that is off."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

from ort_metainfer.rewrites.observing import OpenWith, observe
from ort_metainfer.rewrites.scales import range_faults, scale_faults

__all__ = ["Twin", "faults_by_node", "local_errors", "looking_into", "relative_error", "same_twins", "twins_of"]

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "LSTM", "MatMul")
"""Operators that are looked at; what lies between them is off by what they are."""

ONNX_DOMAINS = ("", "ai.onnx")

BEFORE_ROUNDING = "_QuantizeLinear_Input"
"""What the quantiser adds to the name of a model's output before it is rounded."""

AS_INTEGERS = "_quantized"
"""What it adds to the name of a value that stands in integers only."""

VALUES_AT_ONCE = 16

Feed = Mapping[str, Any]
Observe = Callable[[Sequence[str]], Iterator[tuple[str, int, Any]]]
"""Values by their names, for every feed: name, number of the feed, array."""


@dataclass(frozen=True)
class Twin:
    """Where the result of one node stands.

    Attributes:
        operator: what the float model computes there.
        before: the value in the float model.
        after: the value in the other one.
        scale: of ``after`` where it stands in integers; None where it is a float.
        zero_point: and its zero point.
    """

    operator: str
    before: str
    after: str
    scale: float | None = None
    zero_point: int = 0

    def real(self, array: np.ndarray) -> np.ndarray:
        """``after`` as real numbers."""
        wide = array.astype(np.float64)
        return wide if self.scale is None else (wide - self.zero_point) * self.scale


def same_twins(model: Any) -> dict[str, Twin]:
    """Every product of a model beside itself: for a session that computes it in less than another does."""
    return {label: Twin(node.op_type, node.output[0], node.output[0]) for label, node in _products(model)}


def twins_of(float_model: Any, model: Any) -> dict[str, Twin]:
    """Label -> where its result stands in both, for every product that is another one in the second."""
    there = _There.of(model)
    made = {name for node in float_model.graph.node for name in node.output}
    found = {label: there.twin(node, label) for label, node in _products(float_model)}
    return {label: twin for label, twin in found.items() if twin is not None and twin.before in made}


def _products(model: Any) -> Iterator[tuple[str, Any]]:
    """Every product with its label: its name, or that of its first output where it has none or shares it."""
    counts = Counter(node.name for node in model.graph.node)
    for node in model.graph.node:
        if node.op_type in PRODUCTS and node.domain in ONNX_DOMAINS and node.output and node.output[0]:
            yield node.name if node.name and counts[node.name] == 1 else node.output[0], node


@dataclass(frozen=True)
class _There:
    """The lossy model, as it is looked into."""

    named: Mapping[str, Any]
    makers: Mapping[str, Any]
    rounded: Mapping[str, str]
    constants: Mapping[str, Any]

    @classmethod
    def of(cls, model: Any) -> _There:
        nodes = model.graph.node
        back = {node.input[0]: node.output[0] for node in nodes if node.op_type == "DequantizeLinear"}
        return cls(
            {node.name: node for node in nodes if node.name},
            {name: node for node in nodes for name in node.output},
            {
                node.input[0]: back[node.output[0]]
                for node in nodes
                if node.op_type == "QuantizeLinear" and node.output[0] in back
            },
            {tensor.name: tensor for tensor in model.graph.initializer},
        )

    def twin(self, node: Any, label: str) -> Twin | None:
        """Where the result of a float node stands here; None where it is computed as it was."""
        named, maker = self.named.get(label), self.makers.get(node.output[0])
        if named is not None and named.op_type == node.op_type and self._has_dequantised_weight(named):
            result = named.output[0]
            return Twin(node.op_type, result.removesuffix(BEFORE_ROUNDING), self.rounded.get(result, result))
        if maker is not None and (maker.op_type != node.op_type or list(maker.input) != list(node.input)):
            return Twin(node.op_type, node.output[0], node.output[0])
        return self._in_integers(node) if maker is None else None

    def _has_dequantised_weight(self, node: Any) -> bool:
        maker = self.makers.get(node.input[1]) if len(node.input) > 1 else None
        return maker is not None and maker.op_type == "DequantizeLinear"

    def _in_integers(self, node: Any) -> Twin | None:
        """The result of a node whose output nobody wants as a float any more."""
        result, scale, zero = (f"{node.output[0]}{ending}" for ending in (AS_INTEGERS, "_scale", "_zero_point"))
        if result not in self.makers or scale not in self.constants or zero not in self.constants:
            return None
        step, offset = (onnx.numpy_helper.to_array(self.constants[name]).reshape(-1) for name in (scale, zero))
        return Twin(node.op_type, node.output[0], result, float(step[0]), int(offset[0]))


def local_errors(
    twins: Mapping[str, Twin],
    expected: Observe,
    got: Observe,
    deadline: float | None = None,
) -> dict[str, float]:
    """Label -> relative L2 error of its result, worst feed; some values at a time, spread over the whole model.

    Args:
        twins: the nodes.
        expected: looks into the float model.
        got: looks into the other one.
        deadline: a time.monotonic() value past which no more are begun.
    """
    found: dict[str, float] = {}
    labels = list(twins)
    rounds = math.ceil(len(labels) / VALUES_AT_ONCE)
    for start in range(rounds):
        if deadline is not None and time.monotonic() > deadline:
            break
        some = labels[start::rounds]
        wanted = {
            (name, feed): array for name, feed, array in expected(list(dict.fromkeys(twins[x].before for x in some)))
        }
        given = {(name, feed): array for name, feed, array in got(list(dict.fromkeys(twins[x].after for x in some)))}
        for label in some:
            errors = list(_errors(twins[label], wanted, given))
            if errors:
                found[label] = max(errors)
    return {label: found[label] for label in labels if label in found}


def _errors(twin: Twin, wanted: Mapping[Any, Any], given: Mapping[Any, Any]) -> Iterator[float]:
    for (name, feed), array in wanted.items():
        if name == twin.before and (twin.after, feed) in given:
            yield relative_error(array, twin.real(given[twin.after, feed]))


def relative_error(expected: np.ndarray, got: np.ndarray) -> float:
    """Relative L2 distance; infinite where a shape or a NaN differs, or where something stands in place of zeros."""
    if expected.shape != got.shape:
        return math.inf
    wide, other = expected.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(wide)
    if not np.array_equal(finite, np.isfinite(other)):
        return math.inf
    norm = float(np.linalg.norm(wide[finite]))
    distance = float(np.linalg.norm(other[finite] - wide[finite]))
    return distance / norm if norm else (0.0 if not distance else math.inf)


def faults_by_node(
    model: Any, float_file: Path, feeds: Sequence[Feed], twins: Mapping[str, Twin], deadline: float | None = None
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Label -> what is wrong with its scales; and what belongs to no node that is looked at, as notes."""
    found = dict(scale_faults(model))
    found |= range_faults(model, float_file, feeds, deadline)
    results = {twin.after: label for label, twin in twins.items()}
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


def looking_into(
    file: Path, feeds: Sequence[Feed], deadline: float | None = None, open_with: OpenWith | None = None
) -> Observe:
    """Looks into a model; on the CPU provider with nothing fused, unless ``open_with`` makes the session."""
    return lambda names: observe(file, names, feeds, deadline, open_with)
