"""Images enlarged by repetition and blurred by kernels that are products: what few exported models hold."""

from __future__ import annotations

import numpy as np

from tests.random_graph_sketch import Sketch


def enlarged(s: Sketch) -> None:
    """Every pixel repeated: Reshape, Expand, Reshape, or the same by Tile."""
    value = s.pick(4)
    n, c, h, w = value.shape
    up, across = s.choose((2, 2), (3, 2), (2, 3))
    thin = s.reshape(value, (n, c, h, 1, w, 1))
    repeats = s.ints(1, 1, 1, up, 1, across)
    wide = s.emit(s.choose("Expand", "Tile"), [thin, repeats], (n, c, h, up, w, across))
    s.keep(s.reshape(wide, (n, c, h * up, w * across)))


def blurred(s: Sketch) -> None:
    """A depthwise Conv whose kernels are columns times rows, now and then with one element changed."""
    value = s.pick(4)
    n, c, h, w = value.shape
    side = s.choose(4, 5)
    kernel = s.rng.standard_normal((c, 1, side, 1)) * s.rng.standard_normal((c, 1, 1, side)) / side
    if s.chance(0.2):
        kernel[0, 0, 0, 0] += 1.0
    pads = [s.size(0, side - 1) for _ in range(2)]
    weight = s.constant(kernel.astype(np.float32))
    given = {"pads": [*pads, *(side - 1 - pad for pad in pads)], "group": c}
    s.keep(s.emit("Conv", [value, weight], (n, c, h, w), **given))


BLOCKS = {block.__name__: block for block in (enlarged, blurred)}
