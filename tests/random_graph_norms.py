"""Normalisations, composed as exporters compose them and native."""

from __future__ import annotations

import math

import numpy as np

from tests.random_graph_elementwise import activated
from tests.random_graph_sketch import Sketch, Value


def composed_layer_norm(s: Sketch, value: Value, axes: tuple[int, ...] = (-1,)) -> Value:
    """Mean and variance by reduction, without scale and bias."""
    centred = s.binary("Sub", value, s.reduce("ReduceMean", value, axes))
    square = s.binary("Mul", centred, centred) if s.chance(0.4) else s.binary("Pow", centred, s.scalar(2.0))
    variance = s.reduce("ReduceMean", square, axes)
    deviation = s.unary("Sqrt", s.binary("Add", variance, s.constant(s.choose(1e-5, 1e-3, 1e-12))))
    if s.chance(0.2):
        return s.binary("Mul", centred, s.unary("Reciprocal", deviation))
    return s.binary("Div", centred, deviation)


def layer_norm(s: Sketch) -> None:
    value = s.pick(3) if s.chance(0.5) else s.pick(2, 3)
    if value.shape[-1] < 2:
        value = s.add_input(3)
    skip = s.chance(0.4)
    if skip:
        value = s.keep(s.binary("Add", value, activated(s, value)))
    width = value.shape[-1]
    if s.opset >= 17 and s.chance(0.55):
        given = [value, s.near_one(width), *([s.weight(width)] if s.chance(0.8) else [])]
        s.keep(s.emit("LayerNormalization", given, value.shape, axis=s.choose(-1, value.rank - 1), epsilon=1e-5))
        return
    value = composed_layer_norm(s, value)
    if s.chance(0.85):
        value = s.binary("Mul", value, s.near_one(width))
        value = s.binary("Add", value, s.weight(width)) if s.chance(0.85) else value
    s.keep(value)


def rms_norm(s: Sketch) -> None:
    value = s.pick(2, 3)
    skip = s.chance(0.4)
    if skip:
        value = s.keep(s.binary("Add", value, activated(s, value)))
    if s.opset >= 23 and s.chance(0.5):
        s.keep(s.emit("RMSNormalization", [value, s.near_one(value.shape[-1])], value.shape, epsilon=1e-5))
        return
    square = s.binary("Pow", value, s.scalar(2.0)) if s.chance(0.6) else s.binary("Mul", value, value)
    mean = s.binary("Add", s.reduce("ReduceMean", square, (-1,)), s.scalar(1e-6))
    root = s.unary("Sqrt", mean)
    if s.chance(0.5):
        value = s.binary("Div", value, root)
    elif s.chance(0.5):
        value = s.binary("Mul", value, s.unary("Reciprocal", root))
    else:
        one = Value(s.scalar(1.0), mean.shape)
        value = s.binary("Mul", value, s.emit("Div", [one, root], mean.shape))
    s.keep(s.binary("Mul", value, s.near_one(value.shape[-1])))


def image(s: Sketch, least: int = 2) -> Value:
    """A value of rank 3 or 4 with more than a pixel."""
    value = s.pick(3, 4)
    return value if math.prod(value.shape[2:]) >= least else s.keep(s.add_input(4))


def instance_norm(s: Sketch) -> None:
    value = image(s, 4)
    channels = value.shape[1]
    if s.chance(0.4):
        given = [value, s.near_one(channels), s.weight(channels)]
        s.keep(s.emit("InstanceNormalization", given, value.shape, epsilon=1e-4))
        return
    value = composed_layer_norm(s, value, tuple(range(2, value.rank)))
    spread = (1, channels, *(1,) * (value.rank - 2))
    if s.chance(0.8):
        scaled = s.binary("Mul", value, s.constant(s.rng.uniform(0.5, 1.5, spread)))
        value = s.binary("Add", scaled, s.constant(s.rng.uniform(-1, 1, spread)))
    s.keep(value)


def group_norm(s: Sketch) -> None:
    value = image(s, 4)
    channels = value.shape[1]
    groups = s.divisor(channels)
    if s.opset >= 18 and s.chance(0.4):
        numbers = channels if s.opset >= 21 else groups
        given = [value, s.near_one(numbers), s.weight(numbers)]
        s.keep(s.emit("GroupNormalization", given, value.shape, num_groups=groups))
        return
    total = channels // groups * math.prod(value.shape[2:])
    grouped = s.reshape(value, (value.shape[0], groups, total))
    if s.chance(0.6):
        ones, zeros = np.ones(groups), np.zeros(groups)
        given = [grouped, s.constant(ones), s.constant(zeros)]
        normal = s.emit("InstanceNormalization", given, grouped.shape, epsilon=1e-5)
    else:
        normal = composed_layer_norm(s, grouped)
    normal = s.reshape(normal, value.shape)
    spread = (1, channels, *(1,) * (value.rank - 2))
    if s.chance(0.4):
        spread = spread[1:]
    scaled = s.binary("Mul", normal, s.constant(s.rng.uniform(0.5, 1.5, spread)))
    s.keep(s.binary("Add", scaled, s.constant(s.rng.uniform(-1, 1, spread))))


def batch_norm(s: Sketch) -> None:
    s.keep(batch_normalised(s, s.pick(2, 3, 4)))


def batch_normalised(s: Sketch, value: Value) -> Value:
    """BatchNormalization with statistics of its own."""
    channels = value.shape[1]
    given = [value, s.near_one(channels), s.weight(channels), s.weight(channels), s.near_one(channels)]
    return s.emit("BatchNormalization", given, value.shape, epsilon=1e-5)


def lp_norm(s: Sketch) -> None:
    value = s.pick(2, 3)
    norm = s.reduce("ReduceL2", value, (-1,))
    s.keep(s.binary("Div", value, s.binary("Add", norm, s.scalar(0.1))))


BLOCKS = {block.__name__: block for block in (layer_norm, rms_norm, instance_norm, group_norm, batch_norm, lp_norm)}
