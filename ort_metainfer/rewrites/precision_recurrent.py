"""LSTM with weights in 8-bit integers, its input and its state quantised while running."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ort_metainfer.rewrites.base import Context, Outcome, Parameter
from ort_metainfer.rewrites.building import Builder
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.integers import Integers, quantise_matrix
from ort_metainfer.rewrites.node_rewrite import NodeRewrite, Plan, Surroundings
from ort_metainfer.rewrites.patterns import attribute, constant, constant_size, dtype
from ort_metainfer.rewrites.products import CHOICE, check_names, chosen

__all__ = ["REWRITES", "Int8Lstm"]

WEIGHTS = (1, 2)
"""Places of the weights for the input and for the state."""

OPTIONAL_INPUTS = 8
"""Up to the peepholes; DynamicQuantizeLSTM has the scales behind them."""


class Int8Lstm(NodeRewrite):
    """LSTM of constant weights as com.microsoft.DynamicQuantizeLSTM; directions, peepholes, states and lengths stay.

    What onnxruntime 1.32 computes was held against the float operator with weights rounded the same way, in all three
    directions, with and without bias, first states, lengths and peepholes, with clipping, coupled gates and other
    activations: off by the rounding of activations alone.
    """

    name = "int8-lstm"
    dimension = "precision"
    promise = "lossy"
    operators = ("LSTM",)
    providers = ("CPUExecutionProvider",)
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "per_channel": Parameter(bool, True, "a scale for each unit of each gate, in place of one a direction"),
        "reduce_range": Parameter(bool, False, "weights in 7 bits: x86 processors without VNNI saturate with 8"),
        **CHOICE,
    }
    evidence = (
        "never measured to pay: no speed was taken; its error is 0.01 per channel on small layers, and 0.015 on Silero "
        "VAD behind fold-constants"
    )
    sources = (
        "https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.DynamicQuantizeLSTM",
    )

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Replace every LSTM that can be, subgraphs included."""
        check_names(self.name, draft.ir, parameters)
        return super().rewrite(draft, context, parameters)

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """One of constant float32 weights that the kernel takes."""
        if node.domain:
            return None
        reason = chosen(node, around.parameters) or _unfit(node)
        return reason or Plan(node, lambda make: _quantised(make, node, around.parameters))


def _unfit(node: Any) -> str | None:
    if attribute(node, "layout", 0):
        return "it has the batch first, which the integer operator cannot"
    for place in WEIGHTS:
        if dtype(node.inputs[place]) != "FLOAT":
            return f"its weight is {str(dtype(node.inputs[place])).lower()}"
        array = constant(node.inputs[place]) if constant_size(node.inputs[place]) else None
        if array is None or array.ndim != 3:
            return "its weights are not constant (fold-constants first, where they are made of constants)"
        if not np.isfinite(array).all():
            return "its weights hold NaN or infinity"
    return None


def _quantised(make: Builder, node: Any, parameters: Mapping[str, Any]) -> list[Any]:
    """The outputs that somebody uses."""
    given = [*node.inputs, *[None] * OPTIONAL_INPUTS][:OPTIONAL_INPUTS]
    scales: list[np.ndarray] = []
    for place in WEIGHTS:
        array = constant(given[place])
        assert array is not None
        integers = _integers(array, parameters["per_channel"], parameters["reduce_range"])
        given[place] = make.constant(integers.values)
        scales += [integers.scale, integers.zero_point]
    kept = {name: given.value for name, given in node.attributes.items()}
    made = make.many("DynamicQuantizeLSTM", *given, *scales, count=3, domain="com.microsoft", **kept)
    wanted = [bool(value.name) and bool(value.uses() or value.is_graph_output()) for value in node.outputs]
    return [value if used else None for value, used in zip(made, wanted, strict=False)]


def _integers(weight: np.ndarray, per_channel: bool, reduce_range: bool) -> Integers:
    """A weight [directions, 4 * units, columns] as the kernel wants it: [directions, columns, 4 * units]."""
    parts = [quantise_matrix(np.asarray(each.T), per_channel, reduce_range, unsigned=False) for each in weight]
    return Integers(
        np.stack([part.values for part in parts]),
        np.stack([part.scale for part in parts]),
        np.stack([part.zero_point for part in parts]),
    )


REWRITES = (Int8Lstm(),)
