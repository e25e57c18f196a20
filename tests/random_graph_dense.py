"""Matrix products and what is made of them: linear layers, einsum, attention, rotary positions, embeddings."""

from __future__ import annotations

import math

import numpy as np

from tests.random_graph_elementwise import activated
from tests.random_graph_norms import composed_layer_norm
from tests.random_graph_sketch import INT64, Sketch, Value


def linear(s: Sketch, value: Value, width: int, bias: bool = True) -> Value:
    """MatMul with a weight, and an Add."""
    product = s.emit(
        "MatMul", [value, s.weight(value.shape[-1], width, fan_in=value.shape[-1])], (*value.shape[:-1], width)
    )
    return s.binary("Add", product, s.weight(width)) if bias else product


def gemm(s: Sketch) -> None:
    value = s.pick(2)
    depth, width = value.shape[1], s.size(1, 8)
    swapped = int(s.chance(0.4))
    shape = (width, depth) if swapped else (depth, width)
    inputs = [value, s.weight(*shape, fan_in=depth)]
    given: dict[str, float] = {}
    if s.chance(0.25):
        given = {"alpha": s.choose(1.0, 0.5), "beta": s.choose(1.0, 2.0)}
    if s.chance(0.75):
        inputs.append(s.weight(*s.choose((width,), (1, width), (1,))))
    value = s.emit("Gemm", inputs, (value.shape[0], width), transB=swapped, **given)
    if s.chance(0.3):
        value = s.binary(s.choose("Add", "Mul"), value, s.near_one(width))
    s.keep(activated(s, value) if s.chance(0.4) else value)


def matmul(s: Sketch) -> None:
    value = linear(s, s.pick(2, 3, 4), s.size(1, 8), bias=s.chance(0.7))
    s.keep(activated(s, value) if s.chance(0.4) else value)


def flat_gemm(s: Sketch) -> None:
    value = s.pick(3, 4)
    if s.chance(0.4):
        value = s.transpose(value, (0, *range(2, value.rank), 1))
    flat = math.prod(value.shape[1:])
    if s.chance(0.5):
        value = s.emit("Flatten", [value], (value.shape[0], flat), axis=1)
    else:
        value = s.reshape(value, (value.shape[0], flat))
    if s.chance(0.3):
        s.keep(linear(s, value, 3))
    else:
        s.keep(s.emit("Gemm", [value, s.weight(3, flat, fan_in=flat), s.weight(3)], (value.shape[0], 3), transB=1))


def transposed_products(s: Sketch) -> None:
    """Products of what was transposed just before: the value, the weight, or both."""
    value = s.pick(2)
    depth, width = value.shape[1], s.size(1, 6)
    weight, swapped = s.weight(depth, width, fan_in=depth), 0
    if s.chance(0.5):
        given = Value(s.weight(width, depth, fan_in=depth), (width, depth))
        weight = s.transpose(given, (1, 0)).name
    elif s.chance(0.5):
        given = Value(weight, (depth, width))
        weight, swapped = s.transpose(given, (1, 0)).name, 1
    shape = (value.shape[0], width)
    if swapped or s.chance(0.5):
        turned = s.chance(0.6)
        left = s.transpose(value, (1, 0)) if turned else value
        s.keep(s.emit("Gemm", [left, weight, s.weight(width)], shape, transA=int(turned), transB=swapped))
    else:
        s.keep(s.emit("MatMul", [value, weight], shape))


def shared_inputs(s: Sketch) -> None:
    """Several products of one value, as for queries, keys and values, joined again."""
    value = s.pick(2, 3)
    parts = [linear(s, value, 4, bias=s.chance(0.5)) for _ in range(s.size(2, 3))]
    s.keep(s.emit("Concat", parts, (*value.shape[:-1], 4 * len(parts)), axis=-1))


def einsum(s: Sketch) -> None:
    if s.opset < 12:
        return matmul(s)
    value = s.pick(2, 3, 4)
    depth, width = value.shape[-1], s.size(1, 6)
    letters = "bcd"[: value.rank - 1]
    if value.rank == 4 and s.chance(0.4):
        other = s.weight(value.shape[1], value.shape[1], fan_in=value.shape[1])
        s.keep(s.emit("Einsum", [value, other], value.shape, equation="bchw,cd->bdhw"))
    elif value.rank == 3 and s.chance(0.4):
        shape = (value.shape[0], value.shape[1], value.shape[1])
        s.keep(s.emit("Einsum", [value, value], shape, equation=s.choose("bik,bjk->bij", "bik, bjk -> bij")))
    elif s.chance(0.3):
        other = s.weight(width, depth, fan_in=depth)
        shape = (*value.shape[:-1], width)
        s.keep(s.emit("Einsum", [value, other], shape, equation=f"{letters}i,ji->{letters}j"))
    else:
        other = s.weight(depth, width, fan_in=depth)
        shape = (*value.shape[:-1], width)
        s.keep(s.emit("Einsum", [value, other], shape, equation=f"{letters}i,ij->{letters}j"))
    return None


def heads_of(s: Sketch, value: Value, heads: int, perm: tuple[int, ...] = (0, 2, 1, 3)) -> Value:
    """[batch, time, width] -> [batch, heads, time, width / heads], or the last two swapped."""
    n, t, width = value.shape
    return s.transpose(s.reshape(value, (n, t, heads, width // heads)), perm)


def attend(s: Sketch, query: Value, key: Value, value: Value, mask: bool) -> Value:
    """softmax(q k / sqrt(d)) v over values with heads; ``key`` has its last two axes swapped."""
    n, heads, time, width = query.shape
    scale = math.sqrt(width)
    where = s.choose("div", "mul", "before", "both")
    if where == "before":
        query = s.binary("Mul", query, s.scalar(1 / scale))
    if where == "both":
        query = s.binary("Mul", query, s.scalar(1 / math.sqrt(scale)))
        key = s.binary("Mul", key, s.scalar(1 / math.sqrt(scale)))
    scores = s.emit("MatMul", [query, key], (n, heads, time, key.shape[-1]))
    if where == "div":
        scores = s.binary("Div", scores, s.scalar(scale))
    if where == "mul":
        scores = s.binary("Mul", scores, s.scalar(1 / scale))
    if mask:
        allowed = np.tril(np.ones((time, key.shape[-1])))
        scores = s.binary("Add", scores, s.constant(np.where(allowed, 0, -1e4)[None, None]))
    weights = s.unary("Softmax", scores, axis=-1 if s.opset >= 13 else 3)
    return s.emit("MatMul", [weights, value], query.shape)


def rotated(s: Sketch, value: Value) -> Value:
    """Rotary positions, as exported: x cos + (-x2, x1) sin."""
    time, width = value.shape[-2:]
    half = width // 2
    angles = np.outer(np.arange(time), 1 / 100 ** (np.arange(half) / half))
    tables = [s.constant(np.concatenate([f(angles)] * 2, axis=-1)[None, None]) for f in (np.cos, np.sin)]
    if s.chance(0.5):
        left, right = s.split(value, -1, [half, half])
    else:
        axes, shape = s.ints(value.rank - 1), (*value.shape[:-1], half)
        left = s.emit("Slice", [value, s.ints(0), s.ints(half), axes], shape)
        right = s.emit("Slice", [value, s.ints(half), s.ints(2**31 - 1), axes], shape)
    turned = s.emit("Concat", [s.unary("Neg", right), left], value.shape, axis=-1)
    return s.binary("Add", s.binary("Mul", value, tables[0]), s.binary("Mul", turned, tables[1]))


def attention(s: Sketch) -> None:
    value = s.pick(3)
    if value.shape[-1] % 2:
        value = s.keep(linear(s, value, 4))
    width = value.shape[-1]
    heads = s.choose(*[d for d in (1, 2, 4) if width % (2 * d) == 0] or [1])
    turn = s.chance(0.3) and width // heads % 2 == 0
    if s.chance(0.3):
        packed = linear(s, value, 3 * width)
        query, key, content = s.split(packed, 2, [width] * 3)
    else:
        bias = s.chance(0.7)
        query, key, content = (linear(s, value, width, bias) for _ in range(3))
    query, content = heads_of(s, query, heads), heads_of(s, content, heads)
    if turn:
        query, key = rotated(s, query), s.transpose(rotated(s, heads_of(s, key, heads)), (0, 1, 3, 2))
    else:
        key = heads_of(s, key, heads, (0, 2, 3, 1))
    mixed = s.transpose(attend(s, query, key, content, s.chance(0.4)), (0, 2, 1, 3))
    out = linear(s, s.reshape(mixed, value.shape), width)
    if s.chance(0.5):
        out = composed_layer_norm(s, s.binary("Add", out, value))
        out = s.binary("Add", s.binary("Mul", out, s.near_one(width)), s.weight(width))
    s.keep(out)


def shared_keys(s: Sketch) -> None:
    """Attention whose keys and values serve several heads each (GQA)."""
    value = s.pick(3)
    n, time, _ = value.shape
    heads, few, width = 4, 2, 4
    query = heads_of(s, linear(s, value, heads * width, False), heads)
    tables = []
    for _ in range(2):
        part = heads_of(s, linear(s, value, few * width, False), few)
        wide = s.axes_node("Unsqueeze", part, [2], (n, few, 1, time, width))
        repeated = s.emit(
            "Expand", [wide, s.ints(1, few, heads // few, time, width)], (n, few, heads // few, time, width)
        )
        tables.append(s.reshape(repeated, (n, heads, time, width)))
    mixed = attend(s, query, s.transpose(tables[0], (0, 1, 3, 2)), tables[1], s.chance(0.5))
    s.keep(s.reshape(s.transpose(mixed, (0, 2, 1, 3)), (n, time, heads * width)))


def embedding(s: Sketch) -> None:
    """Words and positions looked up, added, normalised."""
    words, time, width = 10, s.size(2, 5), s.choose(4, 8)
    ids = Value(s.fresh("ids"), (s.batch, time))
    s.declare(ids, lambda rng, n: rng.integers(0, words, (n, time)).astype(np.int64), INT64)
    found = s.emit("Gather", [s.weight(words, width), ids], (s.batch, time, width))
    if s.chance(0.5):
        value = s.binary("Add", found, s.constant(s.rng.standard_normal((1, time, width))))
    else:
        places = s.constant(np.arange(time)[None], np.int64)
        row = s.emit("Gather", [s.weight(time + 2, width), places], (1, time, width))
        value = s.binary("Add", found, row.name)
    if s.opset >= 17 and s.chance(0.6):
        value = s.emit("LayerNormalization", [value, s.near_one(width), s.weight(width)], value.shape, axis=-1)
    elif s.chance(0.7):
        normal = composed_layer_norm(s, value)
        value = s.binary("Add", s.binary("Mul", normal, s.near_one(width)), s.weight(width))
    s.keep(value)


BLOCKS = {
    block.__name__: block
    for block in (
        gemm,
        matmul,
        flat_gemm,
        transposed_products,
        shared_inputs,
        einsum,
        attention,
        shared_keys,
        embedding,
    )
}
