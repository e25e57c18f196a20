"""Recurrent operators unrolled: every direction, with and without state, or left alone with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ort_metainfer.rewrites.operators_recurrent import UnrollRecurrent
from tests.operator_graphs import assert_left_alone, assert_rewritten, graph, operators, overridable, rewritten

RNG = np.random.default_rng(11)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, INPUTS, HIDDEN = 4, 3, 5


def normal(*shape: int) -> np.ndarray:
    return (np.asarray(RNG.standard_normal(shape)) * 0.5).astype(np.float32)


def recurrent(
    operator: str,
    attributes: str = "",
    bias: bool = True,
    state: str = "",
    outputs: str = "y, h",
    opset: int = 14,
    steps: str = str(STEPS),
) -> bytes:
    """A model of one; ``state`` is ``constant``, ``input`` or nothing."""
    count = 2 if "bidirectional" in attributes else 1
    gates = GATES[operator]
    weights: dict[str, Any] = {"w": normal(count, gates * HIDDEN, INPUTS), "r": normal(count, gates * HIDDEN, HIDDEN)}
    if bias:
        weights["b"] = normal(count, 2 * gates * HIDDEN)
    inputs = ["x", "w", "r", "b" if bias else "", "", "", ""]
    signature = f"float[{steps},2,{INPUTS}] x"
    for place, name in ((5, "h0"), (6, "c0")):
        if state and (name == "h0" or operator == "LSTM"):
            inputs[place] = name
            if state == "constant":
                weights[name] = normal(count, 2, HIDDEN)
            else:
                signature += f", float[{count},N,{HIDDEN}] {name}"
    while inputs[-1] == "":
        inputs.pop()
    given = f"hidden_size={HIDDEN}" + (f", {attributes}" if attributes else "")
    shapes = {
        "y": f"float[A,{count},B,{HIDDEN}] y",
        "h": f"float[{count},B,{HIDDEN}] h",
        "c": f"float[{count},B,{HIDDEN}] c",
    }
    results = ", ".join(shapes[name] for name in outputs.replace(" ", "").split(",") if name)
    body = f"{outputs} = {operator}<{given}>({', '.join(inputs)})"
    signature = signature.replace(",2,", ",N,", 1) if state != "constant" else signature
    return graph(f"({signature}) => ({results})", body, opset=opset, **weights)


@pytest.mark.parametrize("state", ["", "constant", "input"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("operator", GATES)
def test_every_direction_is_unrolled(operator: str, direction: str, bias: bool, state: str) -> None:
    made = recurrent(operator, f'direction="{direction}"', bias, state, "y, h, c" if operator == "LSTM" else "y, h")
    assert operator not in assert_rewritten(UnrollRecurrent(), made)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("state", ["", "input"])
def test_gru_with_the_reset_gate_behind_the_product_is_unrolled(state: str, bias: bool) -> None:
    made = recurrent("GRU", 'linear_before_reset=1, direction="bidirectional"', bias, state)
    assert "GRU" not in assert_rewritten(UnrollRecurrent(), made)


@pytest.mark.parametrize("outputs", ["y", ", h", ", , c", "y, , c"])
def test_only_outputs_that_are_used_are_made(outputs: str) -> None:
    after, _ = rewritten(UnrollRecurrent(), recurrent("LSTM", outputs=outputs))
    assert operators(after)["Concat"] == (2 if "y" in outputs else 0) + ("h" in outputs) + ("c" in outputs)


@pytest.mark.parametrize("opset", [11, 14, 18, 21])
def test_opsets_with_other_spellings_of_split_and_squeeze(opset: int) -> None:
    assert_rewritten(UnrollRecurrent(), recurrent("LSTM", opset=opset))


def test_one_step_leaves_no_constant_that_nobody_uses() -> None:
    after, _ = rewritten(UnrollRecurrent(), recurrent("GRU", steps="1"))
    used = {name for node in after.graph.node for name in node.input}
    assert {tensor.name for tensor in after.graph.initializer} <= used


def test_default_gates_named_in_full_are_the_default() -> None:
    made = recurrent("LSTM", 'direction="bidirectional", activations=["Sigmoid","Tanh","Tanh","sigmoid","tanh","tanh"]')
    assert "LSTM" not in assert_rewritten(UnrollRecurrent(), made)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (recurrent("LSTM", 'activations=["Sigmoid","Tanh","Relu"]'), "Relu"),
        (recurrent("GRU", "clip=1.0"), "clips"),
        (recurrent("LSTM", "input_forget=1"), "couples"),
        (recurrent("RNN", 'activations=["Relu"]'), "Relu"),
        (recurrent("RNN", steps="S"), "not known"),
        (overridable(recurrent("LSTM"), "r"), "not constant"),
        (overridable(recurrent("LSTM"), "b"), "not constant"),
    ],
)
def test_what_is_not_the_ordinary_cell_stays(made: bytes, reason: str) -> None:
    assert_left_alone(UnrollRecurrent(), made, reason)


def test_more_steps_than_asked_for_stay() -> None:
    assert_left_alone(UnrollRecurrent(), recurrent("LSTM", steps="5"), "more than 4", most_steps=4)
    assert_rewritten(UnrollRecurrent(), recurrent("LSTM", steps="5"), most_steps=5)


def test_sequences_with_lengths_and_peepholes_stay() -> None:
    weights = {"w": normal(1, 20, 3), "r": normal(1, 20, 5), "b": normal(1, 40), "p": normal(1, 15)}
    signature = "(float[4,2,3] x, int32[2] l) => (float[4,1,2,5] y)"
    body = "y = LSTM<hidden_size=5>(x, w, r, b, l)"
    made = graph(signature, body, **{name: weights[name] for name in "wrb"})
    _, outcome = rewritten(UnrollRecurrent(), made, {"x": normal(4, 2, 3), "l": np.array([4, 2], np.int32)})
    assert "lengths" in outcome.sites[0].reason
    made = graph("(float[4,2,3] x) => (float[4,1,2,5] y)", "y = LSTM<hidden_size=5>(x, w, r, b, , , , p)", **weights)
    assert_left_alone(UnrollRecurrent(), made, "peepholes")
