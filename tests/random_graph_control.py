"""Quantised pairs, recurrent layers, and graphs within graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import helper

from tests.random_graph_convolutions import BLOCKS as CONVOLUTIONS
from tests.random_graph_dense import BLOCKS as DENSE
from tests.random_graph_elementwise import BLOCKS as ELEMENTWISE
from tests.random_graph_layout import BLOCKS as LAYOUT
from tests.random_graph_norms import BLOCKS as NORMS
from tests.random_graph_repeats import BLOCKS as REPEATS
from tests.random_graph_sketch import BOOL, FLOAT, INT64, Sketch, Value


def quantised(s: Sketch, value: Value, positive: bool = False) -> Value:
    """QuantizeLinear and DequantizeLinear over the whole tensor, twice at times; ``positive``: of numbers from 0 on."""
    kind = s.choose(np.uint8, np.int8 if s.opset < 21 else np.uint8)  # see quantised_images
    middle = 0 if positive or kind == np.int8 else 128
    scale, zero = s.constant(s.choose(0.02, 0.05)), s.constant(middle, kind)
    s.steps = True
    for _ in range(s.choose(1, 1, 1, 2)):
        stepped = s.emit_many("QuantizeLinear", [value, scale, zero], 1)[0]
        value = s.emit("DequantizeLinear", [stepped, scale, zero], value.shape)
    return value


def stored(s: Sketch, shape: tuple[int, ...], axis: int) -> str:
    """An int8 weight with its DequantizeLinear, one scale a channel where the opset has it."""
    numbers = s.constant(s.rng.integers(-127, 128, shape), np.int8)
    if s.opset >= 13 and s.chance(0.5):
        scale, zero = s.constant(s.rng.uniform(0.002, 0.01, shape[axis])), s.constant(np.zeros(shape[axis]), np.int8)
        return s.emit_many("DequantizeLinear", [numbers, scale, zero], 1, axis=axis)[0]
    return s.emit_many("DequantizeLinear", [numbers, s.constant(0.005), s.constant(0, np.int8)], 1)[0]


def quantised_pairs(s: Sketch) -> None:
    value, positive = s.pick(), s.chance(0.4)
    if positive and s.chance(0.5):
        value = s.unary("Relu", value)
    elif positive:
        value = s.emit("Clip", [value, s.constant(0.0), s.constant(s.choose(1.0, 20.0))], value.shape)
    value = quantised(s, value, positive)
    if value.rank == 4:
        out = s.size(1, 4)
        inputs = [value, stored(s, (out, value.shape[1], 1, 1), 0)]
        value = s.emit("Conv", inputs, (value.shape[0], out, *value.shape[2:]))
    elif value.rank in (2, 3):
        width = s.size(1, 6)
        value = s.emit("MatMul", [value, stored(s, (value.shape[-1], width), 1)], (*value.shape[:-1], width))
    s.keep(quantised(s, value) if s.chance(0.6) else value)


def quantised_images(s: Sketch) -> None:
    """Convolutions and pooling in 8-bit integers, one after the other."""
    value = s.pick(4)
    # Of int8 onnxruntime 1.32 makes, from opset 21 on, quantisers around a Reshape that it then refuses.
    kind = s.choose(np.uint8, np.int8 if s.opset < 21 else np.uint8)
    zero = s.constant(128 if kind == np.uint8 else 0, kind)
    scale = s.constant(0.05)
    s.steps = True
    inner, shape = s.emit_many("QuantizeLinear", [value, scale, zero], 1)[0], value.shape
    for _ in range(s.size(1, 3)):
        if s.opset >= 12 and s.chance(0.3):
            inner = s.emit_many("MaxPool", [inner], 1, kernel_shape=[1, 1], strides=[1, 1])[0]
            continue
        out = s.size(1, 4)
        weight = s.constant(s.rng.integers(-127, 128, (out, shape[1], 1, 1)), np.int8)
        given = [inner, scale, zero, weight, s.constant(0.005), s.constant(0, np.int8), scale, zero]
        if s.chance(0.5):
            given.append(s.constant(s.rng.integers(-99, 99, out), np.int32))
        inner, shape = s.emit_many("QLinearConv", given, 1)[0], (shape[0], out, *shape[2:])
    s.keep(s.emit("DequantizeLinear", [inner, scale, zero], shape))


def stored_weights(s: Sketch) -> None:
    """Weights in int8, computed with in float."""
    value = s.pick(2, 3)
    width = s.size(1, 6)
    s.keep(s.emit("MatMul", [value, stored(s, (value.shape[-1], width), 1)], (*value.shape[:-1], width)))


def recurrent(s: Sketch) -> None:
    value = s.pick(3)
    n, time, depth = value.shape
    op, gates = s.choose(("LSTM", 4), ("LSTM", 4), ("GRU", 3), ("GRU", 3), ("RNN", 1))
    hidden, direction = s.size(2, 4), s.choose("forward", "forward", "reverse", "bidirectional")
    ways = 2 if direction == "bidirectional" else 1
    given = {"hidden_size": hidden, "direction": direction}
    if op == "GRU" and s.chance(0.6):
        given["linear_before_reset"] = 1
    weights = [s.weight(ways, gates * hidden, size, fan_in=size) for size in (depth, hidden)]
    bias = [s.weight(ways, 2 * gates * hidden)] if s.chance(0.8) else []
    outputs = s.emit_many(op, [s.transpose(value, (1, 0, 2)), *weights, *bias], s.size(1, 2), **given)
    whole = Value(outputs[0], (time, ways, n, hidden))
    if ways == 1:
        whole = s.axes_node("Squeeze", whole, [1], (time, n, hidden))
        s.keep(s.transpose(whole, (1, 0, 2)))
    else:
        s.keep(s.reshape(s.transpose(whole, (2, 0, 1, 3)), (n, time, ways * hidden)))
    if len(outputs) > 1 and s.chance(0.6):
        s.keep(s.transpose(Value(outputs[1], (ways, n, hidden)), (1, 0, 2)))


PLAIN: dict[str, Callable[[Sketch], None]] = {
    **ELEMENTWISE,
    **NORMS,
    **CONVOLUTIONS,
    **DENSE,
    **LAYOUT,
    **REPEATS,
}
INSIDE = tuple(name for name in PLAIN if name not in ("embedding", "sorted_out"))


def grown(s: Sketch, inside: Sketch) -> list[Value]:
    """One or two blocks in a branch; the values they made."""
    before = len(inside.pool)
    for _ in range(s.size(1, 2)):
        PLAIN[s.choose(*INSIDE)](inside)
    made = {name for node in inside.nodes for name in node.output}
    return [value for value in inside.pool[before:] if value.name in made]


def condition(s: Sketch) -> None:
    """If: each branch computes with values of the outer graph."""
    flag = Value(s.fresh("flag"), ())
    s.declare(flag, lambda rng, n: np.array(n % 2 == 0), BOOL)
    value = s.pick()
    branches = []
    for _ in range(2):
        inside = s.branch()
        made = grown(s, inside)
        last = made[-1] if made else inside.unary("Neg", value)
        mean = inside.reduce("ReduceMean", last, tuple(range(1, last.rank)))
        flat = inside.reshape(mean, (last.shape[0], 1))
        branches.append(inside.graph_of([flat]))
    s.keep(s.emit("If", [flag.name], (value.shape[0], 1), then_branch=branches[0], else_branch=branches[1]))


def loop(s: Sketch) -> None:
    """Loop: two rounds over a carried value, with a weight of the outer graph."""
    value = s.pick(2, 3)
    outer_weight = s.weight(value.shape[-1])
    inside = s.branch()
    state, turn, go = Value(inside.fresh("state"), value.shape), inside.fresh("turn"), inside.fresh("go")
    inside.pool = [state]
    scaled = inside.unary("Tanh", inside.binary("Add", state, outer_weight))
    if s.chance(0.5):
        inside.pool.append(scaled)
        ELEMENTWISE[s.choose("gelu_erf", "hard_swish", "activation", "divisions")](inside)
        scaled = inside.unary("Tanh", inside.pool[-1])
    going = inside.emit_many("Identity", [go], 1)[0]
    inputs = [
        helper.make_tensor_value_info(turn, INT64, []),
        helper.make_tensor_value_info(go, BOOL, []),
        helper.make_tensor_value_info(state.name, FLOAT, [None] * value.rank),
    ]
    body = inside.graph_of([scaled], inputs)
    body.output.insert(0, helper.make_tensor_value_info(going, BOOL, []))
    start = [s.constant(2, np.int64), s.constant(True, bool), value]
    s.keep(s.emit("Loop", start, value.shape, body=body))


BLOCKS = {
    **PLAIN,
    **{
        block.__name__: block
        for block in (quantised_pairs, quantised_images, stored_weights, recurrent, condition, loop)
    },
}
