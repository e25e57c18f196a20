"""Convolutions with what stands around them, pooling, resampling, pixels to channels and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.random_graph_elementwise import activated
from tests.random_graph_norms import batch_normalised, image
from tests.random_graph_sketch import Sketch, Value


def padded(s: Sketch, value: Value) -> tuple[Value, list[int]]:
    """A Pad of zeros (mostly) over the spatial axes, and how much it adds to each."""
    spatial = value.rank - 2
    before = [s.size(0, 2) for _ in range(spatial)]
    after = [s.size(0, 2) for _ in range(spatial)]
    pads = s.ints(0, 0, *before, 0, 0, *after)
    mode = s.choose("constant", "constant", "constant", "edge")
    given: list[Value | str] = [value, pads]
    if mode == "constant" and s.chance(0.6):
        given.append(s.constant(s.choose(0.0, 0.0, 0.0, 1.5)))
    shape = [*value.shape[:2], *(n + a + b for n, a, b in zip(value.shape[2:], before, after, strict=True))]
    return s.emit("Pad", given, shape, mode=mode), [a + b for a, b in zip(before, after, strict=True)]


def convolved(s: Sketch, value: Value, pointwise: bool | None = None) -> Value:
    """One Conv whose kernel fits."""
    channels, spatial = value.shape[1], value.shape[2:]
    depthwise = s.chance(0.2)
    groups = channels if depthwise else s.divisor(channels) if s.chance(0.3) else 1
    out = groups * s.size(1, 3)
    pointwise = s.chance(0.4) if pointwise is None else pointwise
    kernel = [1 if pointwise else min(s.choose(1, 2, 3, 3, 5, 7), size) for size in spatial]
    dilations = [s.size(1, 2) if (k - 1) * 2 < n else 1 for k, n in zip(kernel, spatial, strict=True)]
    strides = [s.choose(1, 1, 1, 2) for _ in spatial]
    reach = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    given: dict[str, Any] = {"strides": strides, "dilations": dilations, "group": groups}
    if s.chance(0.7):
        given["kernel_shape"] = kernel
    mode = s.choose("pads", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID")
    if mode.startswith("SAME"):
        given |= {"auto_pad": mode, "dilations": [1] * len(kernel)}
        sizes = [math.ceil(n / t) for n, t in zip(spatial, strides, strict=True)]
    else:
        before = [s.size(0, r) if mode == "pads" else 0 for r in reach]
        after = [s.size(0, r) if mode == "pads" else 0 for r in reach]
        given |= {"pads": [*before, *after]} if mode == "pads" else {"auto_pad": "VALID"}
        sums = zip(spatial, before, after, reach, strides, strict=True)
        sizes = [(n + a + b - r - 1) // t + 1 for n, a, b, r, t in sums]
    fan_in = channels // groups * math.prod(kernel)
    inputs = [value, s.weight(out, channels // groups, *kernel, fan_in=fan_in)]
    if s.chance(0.6):
        inputs.append(s.weight(out))
    return s.emit("Conv", inputs, (value.shape[0], out, *sizes), **given)


def channel_constant(s: Sketch, value: Value) -> str:
    """A constant of one number a channel, or a scalar."""
    spread = (value.shape[1], *(1,) * (value.rank - 2))
    return s.constant(s.rng.uniform(0.5, 1.5, s.choose((1, *spread), spread, spread, (), (1,))))


def convolution(s: Sketch) -> None:
    value = image(s)
    if s.chance(0.3):
        value, _ = padded(s, value)
    if s.chance(0.15):
        value = batch_normalised(s, value)
    value = convolved(s, value)
    for _ in range(s.choose(0, 1, 1, 2, 3)):
        follow = s.choose("bn", "bn", "Mul", "Add", "Sub", "Div", "act", "act", "hard swish")
        if follow == "bn":
            value = batch_normalised(s, value)
        elif follow == "act":
            value = activated(s, value)
        elif follow == "hard swish":
            gate = s.unary("HardSigmoid", value, alpha=1 / 6, beta=0.5)
            value = s.binary("Mul", value, gate)
        else:
            value = s.binary(follow, value, channel_constant(s, value))
    s.keep(value)


def separable(s: Sketch) -> None:
    """A large kernel that is a column times a row."""
    side, channels = s.size(4, 6), s.size(1, 3)
    value = s.declare_image(channels, side + 3)
    groups = channels if s.chance(0.4) else 1
    out = channels if groups > 1 else s.size(1, 3)
    column = s.rng.standard_normal((out, channels // groups, side, 1))
    kernel = column * s.rng.standard_normal((out, 1, 1, side)) / side
    if groups == 1:
        kernel = np.broadcast_to(kernel[:1], kernel.shape) / channels
    pads = [s.size(0, 2) for _ in range(4)]
    sizes = [side + 3 + pads[axis] + pads[axis + 2] - side + 1 for axis in (0, 1)]
    inputs = [value, s.constant(kernel), *([s.weight(out)] if s.chance(0.5) else [])]
    s.keep(s.emit("Conv", inputs, (value.shape[0], out, *sizes), group=groups, pads=pads))


def enlarged(s: Sketch) -> None:
    """Every pixel repeated in place by Expand or Tile between two reshapes."""
    value = s.pick(4)
    n, c, h, w = value.shape
    down, right = s.choose((2, 2), (2, 1), (1, 2), (3, 2))
    thin = [size for axis, factor in ((h, down), (w, right)) for size in ((axis, 1) if factor > 1 else (axis,))]
    wide = [size for axis, factor in ((h, down), (w, right)) for size in ((axis, factor) if factor > 1 else (axis,))]
    apart = s.reshape(value, (n, c, *thin))
    if s.chance(0.5):
        times = [1, 1, *(b // a if a == 1 else 1 for a, b in zip(thin, wide, strict=True))]
        apart = s.emit("Tile", [apart, s.ints(*times)], (n, c, *wide))
    else:
        apart = s.emit("Expand", [apart, s.ints(1, 1, *wide)], (n, c, *wide))
    s.keep(s.reshape(apart, (n, c, h * down, w * right)))


def residual(s: Sketch) -> None:
    """A pointwise convolution added to its input's own."""
    value = s.pick(4)
    left = convolved(s, value, pointwise=True)
    s.keep(s.binary("Add", left, activated(s, left)) if s.chance(0.5) else left)


def squeeze_excite(s: Sketch) -> None:
    value = s.pick(4)
    channels, middle = value.shape[1], s.size(1, 4)
    pool = s.emit("GlobalAveragePool", [value], (*value.shape[:2], 1, 1))
    if s.chance(0.4):
        pool = s.reduce("ReduceMean", value, (2, 3))
    given = [pool, s.weight(middle, channels, 1, 1, fan_in=channels), s.weight(middle)]
    hidden = s.unary("Relu", s.emit("Conv", given, (value.shape[0], middle, 1, 1)))
    gate = s.emit("Conv", [hidden, s.weight(channels, middle, 1, 1, fan_in=middle)], pool.shape)
    s.keep(s.binary("Mul", value, s.unary(s.choose("Sigmoid", "HardSigmoid"), gate)))


def transposed_convolution(s: Sketch) -> None:
    value = image(s)
    channels, spatial = value.shape[1], value.shape[2:]
    groups = s.divisor(channels) if s.chance(0.3) else 1
    each = s.size(1, 3)
    kernel = [s.choose(1, 2, 3, 4) for _ in spatial]
    strides = [s.size(1, 2) if k > 1 else 1 for k in kernel]
    if s.chance(0.3):
        kernel = strides = [2] * len(spatial)
    begin = [s.size(0, (k - 1) // 2) for k in kernel]
    extra = [s.size(0, t - 1) if s.chance(0.3) else 0 for t in strides]
    given = {"strides": strides, "pads": [*begin, *begin], "group": groups, "output_padding": extra}
    sums = zip(spatial, strides, kernel, begin, extra, strict=True)
    sizes = [(n - 1) * t + k - 2 * b + e for n, t, k, b, e in sums]
    inputs = [value, s.weight(channels, each, *kernel, fan_in=channels)]
    if s.chance(0.5):
        inputs.append(s.weight(each * groups))
    value = s.emit("ConvTranspose", inputs, (value.shape[0], each * groups, *sizes), **given)
    s.keep(batch_normalised(s, value) if s.chance(0.3) else value)


def pooling(s: Sketch) -> None:
    value = s.pick(3, 4)
    spatial = value.shape[2:]
    op = s.choose("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax")
    if op.startswith("Global"):
        s.keep(s.emit(op, [value], (*value.shape[:2], *(1 for _ in spatial))))
    elif op.startswith("Reduce"):
        keep = value.rank == 3 or s.chance(0.6)
        s.keep(s.reduce(op, value, tuple(range(2, value.rank)), keep))
    else:
        kernel = [min(s.size(1, 3), n) for n in spatial]
        strides = [s.size(1, 2) for _ in spatial]
        sizes = [(n - k) // t + 1 for n, k, t in zip(spatial, kernel, strides, strict=True)]
        s.keep(s.emit(op, [value], (*value.shape[:2], *sizes), kernel_shape=kernel, strides=strides))


def resampling(s: Sketch) -> None:
    value = s.pick(4)
    factor = [s.choose(1, 2, 2, 3), s.choose(1, 2, 2, 3)]
    shape = (*value.shape[:2], value.shape[2] * factor[0], value.shape[3] * factor[1])
    mode = s.choose("nearest", "nearest", "linear")
    given: dict[str, Any] = {"mode": mode}
    if mode == "nearest":
        given["coordinate_transformation_mode"] = s.choose("asymmetric", "half_pixel")
        given["nearest_mode"] = s.choose("floor", "round_prefer_floor")
    else:
        given["coordinate_transformation_mode"] = s.choose("asymmetric", "half_pixel", "align_corners")
    scales = s.constant(np.array([1, 1, *factor]))
    if s.chance(0.2) and s.opset >= 13 and s.dynamic == "none":
        s.keep(s.emit("Resize", [value, "", "", s.ints(*shape)], shape, **given))
    else:
        s.keep(s.emit("Resize", [value, "" if s.opset >= 13 else s.constant([]), scales], shape, **given))


def pixels(s: Sketch) -> None:
    value = s.pick(4)
    n, c, h, w = value.shape
    if h % 2 == 0 and w % 2 == 0 and s.chance(0.5):
        s.keep(s.emit("SpaceToDepth", [value], (n, c * 4, h // 2, w // 2), blocksize=2))
        return
    if c % 4:
        value = s.emit("Conv", [value, s.weight(4, c, 1, 1, fan_in=c)], (n, 4, h, w))
        c = 4
    shape, mode = (n, c // 4, h * 2, w * 2), s.choose("DCR", "CRD")
    if s.chance(0.5):
        s.keep(s.emit("DepthToSpace", [value], shape, blocksize=2, mode=mode))
        return
    if mode == "DCR":
        wide = s.transpose(s.reshape(value, (n, 2, 2, c // 4, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        wide = s.transpose(s.reshape(value, (n, c // 4, 2, 2, h, w)), (0, 1, 4, 2, 5, 3))
    s.keep(s.reshape(wide, shape))


BLOCKS = {
    block.__name__: block
    for block in (
        convolution,
        separable,
        enlarged,
        residual,
        squeeze_excite,
        transposed_convolution,
        pooling,
        resampling,
        pixels,
    )
}
