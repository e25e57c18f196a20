"""Whether the scales in a quantised model can be right: not zero, finite, and wide enough for what was seen.

A scale that is wrong does not stop a model from running; it only makes it wrong. So each is looked at, and each fault
is told with the value's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

from ort_metainfer.rewrites.observing import observe

__all__ = ["CLIPPED_SHARE", "LOST_SHARE", "USED_LEVELS", "constant_scales", "range_faults", "scale_faults"]

CLIPPED_SHARE, LOST_SHARE = 0.05, 0.02
"""Share of a value's elements outside its range, and relative L2 error by that, from which on it is a fault."""

USED_LEVELS = 16
"""A value that fills fewer levels than this has hardly anything left of it."""

SCALE_INPUTS: Mapping[str, tuple[int, ...]] = {
    "DequantizeLinear": (1,),
    "DynamicQuantizeLSTM": (8, 10),
    "MatMulNBits": (2,),
    "QGemm": (1, 4, 7),
    "QLinearAdd": (1, 4, 6),
    "QLinearConv": (1, 4, 6),
    "QLinearMatMul": (1, 4, 6),
    "QLinearMul": (1, 4, 6),
    "QuantizeLinear": (1,),
}
"""Operator -> places of its scales."""

Ranges = dict[str, tuple[float, float, float]]
"""Value -> lowest and highest that its integers can say, and the scale."""


def scale_faults(model: Any) -> Iterator[tuple[str, str]]:
    """Name of the scale and what is wrong with it, for every constant scale of a model."""
    for name, array in constant_scales(model):
        if not np.isfinite(array).all():
            yield name, f"scale {name} is NaN or infinite in {int(np.sum(~np.isfinite(array)))} of {array.size} places"
        elif (array == 0).any():
            yield name, f"scale {name} is zero in {int(np.sum(array == 0))} of {array.size} places"
        elif (array < 0).any() and not _may_be_negative(model, name):
            yield name, f"scale {name} is negative in {int(np.sum(array < 0))} of {array.size} places"


def _may_be_negative(model: Any, name: str) -> bool:
    """MatMulNBits takes the sign of the largest weight into a block's scale."""
    return any(node.op_type == "MatMulNBits" and node.input[2] == name for node in model.graph.node)


def constant_scales(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Every scale that is an initialiser: of QuantizeLinear and its like, and of integer products."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    dynamic = {node.output[1] for node in model.graph.node if node.op_type == "DynamicQuantizeLinear"}
    seen: set[str] = set()
    for node in model.graph.node:
        names = [node.input[place] for place in SCALE_INPUTS.get(node.op_type, ()) if place < len(node.input)]
        if node.op_type == "Mul" and dynamic.intersection(node.input):
            names = [name for name in node.input if name not in dynamic]
        for name in names:
            if name in constants and name not in seen:
                seen.add(name)
                yield name, np.asarray(onnx.numpy_helper.to_array(constants[name]), np.float32)


def activation_bounds(model: Any) -> Ranges:
    """What every activation with a fixed scale can be at most."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    found: Ranges = {}
    for node in model.graph.node:
        if node.op_type != "QuantizeLinear" or len(node.input) < 3 or node.input[0] in constants:
            continue
        if node.input[1] not in constants or node.input[2] not in constants:
            continue
        scale, zero = (onnx.numpy_helper.to_array(constants[name]) for name in node.input[1:3])
        if scale.size != 1 or zero.dtype.kind not in "iu":
            continue
        info, step = np.iinfo(zero.dtype), float(scale.reshape(()))
        low, high = ((edge - int(zero.reshape(()))) * step for edge in (info.min, info.max))
        found[node.input[0].removesuffix("_QuantizeLinear_Input")] = (low, high, step)
    return found


def range_faults(
    model: Any, float_file: Path, feeds: Sequence[Mapping[str, Any]], deadline: float | None = None
) -> dict[str, str]:
    """Activation -> what is wrong with its range, judged by what the float model has there."""
    bounds = activation_bounds(model)
    produced = _values(onnx.load(str(float_file), load_external_data=False))
    names = [name for name in bounds if name in produced]
    seen: dict[str, _Seen] = {}
    for name, _, array in observe(float_file, names, feeds, deadline):
        if array.size:
            seen.setdefault(name, _Seen(*bounds[name])).add(array.astype(np.float64))
    return {name: text for name, found in seen.items() if (text := found.fault(name))}


@dataclass
class _Seen:
    """What a value was seen to be, beside what its integers can say."""

    low: float
    high: float
    step: float
    count: int = 0
    outside: int = 0
    lost: float = 0.0
    power: float = 0.0
    least: float = np.inf
    most: float = -np.inf

    def add(self, array: np.ndarray) -> None:
        beyond = array - np.clip(array, self.low - self.step, self.high + self.step)
        self.count += array.size
        self.outside += int(np.count_nonzero(beyond))
        self.lost += float(np.sum(beyond**2))
        self.power += float(np.sum(array**2))
        self.least, self.most = min(self.least, float(array.min())), max(self.most, float(array.max()))

    def fault(self, name: str) -> str | None:
        went = f"it goes from {self.least:.3g} to {self.most:.3g}"
        share, lost = self.outside / self.count, (self.lost / self.power) ** 0.5 if self.power else 0.0
        if share > CLIPPED_SHARE or lost > LOST_SHARE:
            return f"{share:.1%} of {name} are clipped: {went}, its range from {self.low:.3g} to {self.high:.3g}"
        levels = (self.most - self.least) / self.step if self.step > 0 else 0.0
        if levels < USED_LEVELS and self.most > self.least:
            return f"{name} uses {levels:.0f} of its levels only: {went}, a level is {self.step:.3g}"
        return None


def _values(model: Any) -> set[str]:
    return {name for node in model.graph.node for name in node.output} | {value.name for value in model.graph.input}
