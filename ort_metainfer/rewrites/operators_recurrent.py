"""LSTM, GRU and RNN over a fixed number of steps, unrolled into matrix products and gates.

The formulas are those of the ONNX operators of these names. The products with the input are taken for all steps at
once; a state that begins as zero costs no product in its first step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ort_metainfer.rewrites.base import Parameter, Rewrite
from ort_metainfer.rewrites.building import Builder
from ort_metainfer.rewrites.node_rewrite import OperatorRewrite, Plan, Surroundings
from ort_metainfer.rewrites.patterns import attribute, constant, dims, dtype

__all__ = ["REWRITES", "UnrollRecurrent"]

_DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}

_SEQUENCE_LENGTHS, _FIRST_STATE, _FIRST_CELL, _PEEPHOLES = 4, 5, 6, 7
"""Places of the optional inputs."""


class UnrollRecurrent(OperatorRewrite):
    """LSTM, GRU or RNN of constant weights over a known number of steps, as Gemm-like products, Sigmoid and Tanh."""

    name = "unroll-recurrent"
    operators = ("LSTM", "GRU", "RNN")
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "most_steps": Parameter(int, 64, "steps beyond which it is left alone: each is ten nodes", numbers=(1, 1024))
    }

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """One whose steps, weights and gates are the ordinary ones."""
        reason = _objection(node)
        if reason is not None:
            return reason
        steps = (dims(node.inputs[0]) or (None,))[0]
        if not steps:
            return "the number of its steps is not known"
        if steps > around.parameters["most_steps"]:
            return f"it has {steps} steps, more than {around.parameters['most_steps']}"
        weights = [constant(node.inputs[place]) for place in (1, 2)]
        bias = constant(_input(node, 3))
        if any(array is None for array in weights) or (_input(node, 3) is not None and bias is None):
            return "its weights are not constant"
        return Plan(node, lambda make: _unrolled(make, node, steps, weights, bias))


def _input(node: Any, place: int) -> Any:
    return node.inputs[place] if len(node.inputs) > place else None


def _objection(node: Any) -> str | None:
    if dtype(node.inputs[0]) != "FLOAT":
        return f"a {node.op_type} of {dtype(node.inputs[0]) or 'unknown type'} is left alone"
    if _input(node, _SEQUENCE_LENGTHS) is not None:
        return "its sequences have lengths of their own"
    if _input(node, _PEEPHOLES) is not None and node.op_type == "LSTM":
        return "it has peepholes"
    given = attribute(node, "activations")
    if given is not None and any(
        [name.lower() for name in given[start : start + len(_DEFAULTS[node.op_type])]]
        != [name.lower() for name in _DEFAULTS[node.op_type]]
        for start in range(0, len(given), len(_DEFAULTS[node.op_type]))
    ):
        return f"its gates are {', '.join(given)}"
    if "clip" in node.attributes or attribute(node, "input_forget", 0) or attribute(node, "layout", 0):
        return "it clips, couples its gates, or has the batch first"
    return None


def _unrolled(make: Builder, node: Any, steps: int, weights: list[Any], bias: Any) -> list[Any]:
    """The outputs that somebody uses."""
    direction = attribute(node, "direction", "forward")
    backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    used = [value.uses() or value.is_graph_output() for value in node.outputs]
    sequences, lasts = [], []
    for number, reverse in enumerate(backwards):
        cell = _CELLS[node.op_type](
            make, node, weights[0][number], weights[1][number], None if bias is None else bias[number]
        )
        states = cell.run(number, len(backwards), steps, reverse)
        sequences.append(states)
        lasts.append((states[0 if reverse else -1], cell.cell_state))
    wanted = used + [False] * 3
    return [
        _sequence(make, sequences) if wanted[0] else None,
        _stacked(make, [last[0] for last in lasts]) if wanted[1] else None,
        _stacked(make, [last[1] for last in lasts]) if wanted[2] else None,
    ][: len(node.outputs)]


def _sequence(make: Builder, sequences: list[list[Any]]) -> Any:
    """[steps, directions, batch, hidden] of states by direction and step."""
    directions = []
    for states in sequences:
        steps = [make.unsqueeze(state, [0, 1]) for state in states]
        directions.append(make("Concat", *steps, axis=0))
    return make("Concat", *directions, axis=1)


def _stacked(make: Builder, states: list[Any]) -> Any:
    """[directions, batch, hidden] of one state a direction."""
    return make("Concat", *[make.unsqueeze(state, [0]) for state in states], axis=0)


class _Cell(ABC):
    """One direction: its weights ready for products from the right, its state as it goes on."""

    gates: ClassVar[int]

    def __init__(self, make: Builder, node: Any, weight: np.ndarray, recurrence: np.ndarray, bias: Any) -> None:
        self.make, self.node = make, node
        self.hidden = recurrence.shape[1]
        both = np.zeros(2 * self.gates * self.hidden, np.float32) if bias is None else bias
        self.input_bias, self.state_bias = np.split(both, 2)
        self.weight, self.recurrence = weight.T.copy(), recurrence.T.copy()
        self.state: Any = None
        self.cell_state: Any = None

    def run(self, number: int, directions: int, steps: int, reverse: bool) -> list[Any]:
        """The state after each step, in the order of the sequence."""
        self.state = self._first(_FIRST_STATE, number, directions)
        self.cell_state = self._first(_FIRST_CELL, number, directions) if self.node.op_type == "LSTM" else None
        made = self.make("Add", self.make("MatMul", self.node.inputs[0], self.weight), self.bias())
        parts = self.make.split(made, [1] * steps, 0)
        self.prepare()
        order = range(steps)[::-1] if reverse else range(steps)
        states: list[Any] = [None] * steps
        for step in order:
            self.step(self.make.squeeze(parts[step], [0]))
            states[step] = self.state
        return states

    def _first(self, place: int, number: int, directions: int) -> Any:
        """The state before the first step; None for zero."""
        value = _input(self.node, place)
        if value is None:
            return None
        if directions > 1:
            value = self.make.slice(value, [number], [number + 1], [0])
        return self.make.squeeze(value, [0])

    def bias(self) -> np.ndarray:
        """What is added to the product with the input."""
        return np.asarray(self.input_bias + self.state_bias)

    def prepare(self) -> None:
        """Make the constants that every step uses."""
        self.recurrence = self.make.constant(self.recurrence)

    def split(self, value: Any, count: int) -> list[Any]:
        """Gates side by side, apart."""
        return self.make.split(value, [self.hidden] * count, 1)

    def blend(self, value: Any) -> Any:
        """``value`` plus the product with the state, if there is a state."""
        if self.state is None:
            return value
        return self.make("Add", value, self.make("MatMul", self.state, self.recurrence))

    @abstractmethod
    def step(self, value: Any) -> None:
        """Go on by one step; ``value`` is the product with the input, [batch, gates * hidden]."""


class _Rnn(_Cell):
    gates = 1

    def step(self, value: Any) -> None:
        self.state = self.make("Tanh", self.blend(value))


class _Lstm(_Cell):
    gates = 4

    def step(self, value: Any) -> None:
        into, out, forget, new = self.split(self.blend(value), 4)
        made = self.make("Mul", self.make("Sigmoid", into), self.make("Tanh", new))
        if self.cell_state is not None:
            made = self.make("Add", self.make("Mul", self.make("Sigmoid", forget), self.cell_state), made)
        self.cell_state = made
        self.state = self.make("Mul", self.make("Sigmoid", out), self.make("Tanh", made))


class _Gru(_Cell):
    gates = 3

    def bias(self) -> np.ndarray:
        both = np.array(self.input_bias, np.float32)
        both[: 2 * self.hidden] += self.state_bias[: 2 * self.hidden]
        if not self.after:  # the reset gate comes before the product: its bias is added outside
            both[2 * self.hidden :] += self.state_bias[2 * self.hidden :]
        return both

    @property
    def after(self) -> bool:
        """Whether the reset gate is applied after the product with the state."""
        return bool(attribute(self.node, "linear_before_reset", 0))

    def prepare(self) -> None:
        self.gate_weight = self.make.constant(np.ascontiguousarray(self.recurrence[:, : 2 * self.hidden]))
        self.new_weight = self.make.constant(np.ascontiguousarray(self.recurrence[:, 2 * self.hidden :]))
        self.new_bias = self.make.constant(np.ascontiguousarray(self.state_bias[2 * self.hidden :]))
        self.one = self.make.constant(np.float32(1))

    def step(self, value: Any) -> None:
        make = self.make
        gates, new = make.split(value, [2 * self.hidden, self.hidden], 1)
        if self.state is not None:
            gates = make("Add", gates, make("MatMul", self.state, self.gate_weight))
        update, reset = self.split(make("Sigmoid", gates), 2)
        carried = self._carried(reset)
        new = make("Tanh", new if carried is None else make("Add", new, carried))
        made = make("Mul", make("Sub", self.one, update), new)
        self.state = made if self.state is None else make("Add", made, make("Mul", update, self.state))

    def _carried(self, reset: Any) -> Any:
        """What the state gives to the new one."""
        make = self.make
        if self.after:
            past = self.new_bias
            if self.state is not None:
                past = make("Add", make("MatMul", self.state, self.new_weight), past)
            return make("Mul", reset, past)
        return None if self.state is None else make("MatMul", make("Mul", reset, self.state), self.new_weight)


_CELLS: Mapping[str, type[_Cell]] = {"LSTM": _Lstm, "GRU": _Gru, "RNN": _Rnn}

REWRITES: tuple[Rewrite, ...] = (UnrollRecurrent(),)
