"""Resize, DepthToSpace, convolutions of unusual make: the same numbers in plain operators, or left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from ort_metainfer.rewrites.operators_convolution import (
    ConvTransposeToConv,
    ConvTransposeToDepthToSpace,
    DilatedConvToDense,
)
from ort_metainfer.rewrites.operators_dimensional import OneDimensionToTwo
from ort_metainfer.rewrites.operators_separable import SeparableConv
from ort_metainfer.rewrites.operators_spatial import DepthToSpaceToReshape, ExpandToResize, ResizeToExpand
from tests.operator_graphs import assert_left_alone, assert_rewritten, feeds_of, graph, overridable, rewritten

RNG = np.random.default_rng(9)


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape)).astype(np.float32)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def floats(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


MODES = {
    "half pixel": 'coordinate_transformation_mode="half_pixel", nearest_mode="round_prefer_floor"',
    "half pixel, ceil": 'coordinate_transformation_mode="half_pixel", nearest_mode="round_prefer_ceil"',
    "torch": 'coordinate_transformation_mode="pytorch_half_pixel"',
    "asymmetric": 'coordinate_transformation_mode="asymmetric", nearest_mode="floor"',
    "default": 'mode="nearest"',
}


@pytest.mark.parametrize("factors", [(1, 1, 2, 2), (1, 1, 3, 1), (1, 1, 4, 5), (1, 2, 1, 3)])
@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("name", MODES)
def test_resize_by_whole_factors_becomes_expand(name: str, opset: int, factors: tuple[int, ...]) -> None:
    made = graph(
        "(float[N,3,S,4] x) => (float[A,B,C,D] y)",
        f"y = Resize<{MODES[name]}>(x, r, s)",
        opset=opset,
        r=floats(),
        s=floats(*factors),
    )
    assert "Resize" not in assert_rewritten(ResizeToExpand(), made)


def test_resize_in_its_older_and_newer_forms_becomes_expand() -> None:
    signature = "(float[N,3,5,4] x) => (float[N,3,10,12] y)"
    forms = [
        graph(signature, "y = Resize(x, s)", opset=10, s=floats(1, 1, 2, 3)),
        graph(signature, "y = Upsample(x, s)", opset=9, s=floats(1, 1, 2, 3)),
        graph(signature.replace("N", "2"), "y = Resize(x, , , z)", opset=13, z=ints(2, 3, 10, 12)),
        graph(signature, "y = Resize<axes=[2,3]>(x, , s)", opset=18, s=floats(2, 3)),
        graph(signature, "y = Resize<axes=[-2,-1]>(x, , , z)", opset=18, z=ints(10, 12)),
    ]
    for made in forms:
        assert not {"Resize", "Upsample"} & set(assert_rewritten(ResizeToExpand(), made))
    open_batch = graph(signature, "y = Resize(x, , , z)", opset=13, z=ints(3, 3, 10, 12))
    assert_left_alone(ResizeToExpand(), open_batch, "sizes before")


@pytest.mark.parametrize(
    ("attributes", "scales", "reason"),
    [
        ('mode="linear"', (1, 1, 2, 2), "interpolates"),
        ('coordinate_transformation_mode="align_corners"', (1, 1, 2, 2), "not whole repetitions"),
        ('coordinate_transformation_mode="asymmetric", nearest_mode="ceil"', (1, 1, 2, 2), "not whole repetitions"),
        ('coordinate_transformation_mode="half_pixel", nearest_mode="floor"', (1, 1, 2, 2), "not whole repetitions"),
        ('coordinate_transformation_mode="asymmetric", nearest_mode="round_prefer_floor"', (1, 1, 3, 3), "not whole"),
        ('mode="nearest"', (1, 1, 1.5, 2), "not whole numbers"),
        ('mode="nearest"', (1, 1, 0.5, 2), "not whole numbers"),
    ],
)
def test_other_resizes_stay(attributes: str, scales: tuple[float, ...], reason: str) -> None:
    made = graph(
        "(float[N,3,6,4] x) => (float[A,B,C,D] y)", f"y = Resize<{attributes}>(x, , s)", opset=13, s=floats(*scales)
    )
    assert_left_alone(ResizeToExpand(), made, reason)
    assert_left_alone(ResizeToExpand(), overridable(made, "s"), reason if "number" not in reason else "not constant")


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("grow", ["Expand", "Tile"])
def test_repetition_between_reshapes_becomes_resize(grow: str, opset: int) -> None:
    body = f"a = Reshape(x, thin) b = {grow}(a, wide) y = Reshape(b, last)"
    made = graph(
        "(float[2,3,5,4] x) => (float[2,3,10,12] y)",
        body,
        opset=opset,
        thin=ints(2, 3, 5, 1, 4, 1),
        wide=ints(1, 1, 1, 2, 1, 3),
        last=ints(2, 3, 10, 12),
    )
    assert assert_rewritten(ExpandToResize(), made) == {"Resize": 1}


@pytest.mark.parametrize(
    ("thin", "wide", "last", "reason"),
    [
        ((2, 3, 1, 5, 1, 4), (1, 1, 2, 1, 3, 1), (2, 3, 10, 12), "each element in place"),
        ((2, 3, 5, 1, 4, 1), (1, 1, 1, 2, 1, 3), (2, 3, 12, 10), "each element in place"),
        ((2, 1, 3, 5, 1, 4), (1, 2, 1, 1, 3, 1), (2, 6, 15, 4), "each element in place"),
        ((2, 3, 1, 5, 4), (1, 1, 2, 1, 1), (2, 6, 5, 4), "no enlargement"),
    ],
)
def test_other_repetitions_stay(thin: Any, wide: Any, last: Any, reason: str) -> None:
    sizes = ",".join(map(str, last))
    body = "a = Reshape(x, thin) b = Expand(a, wide) y = Reshape(b, last)"
    made = graph(
        f"(float[2,3,5,4] x) => (float[{sizes}] y)", body, thin=ints(*thin), wide=ints(*wide), last=ints(*last)
    )
    assert_left_alone(ExpandToResize(), made, reason)


@pytest.mark.parametrize("sizes", ["2,12,3,4", "N,12,S,4", "N,12,S,S"])
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_depth_to_space_becomes_reshapes(kind: str, mode: str, sizes: str) -> None:
    made = graph(
        f"({kind}[{sizes}] x) => ({kind}[A,3,H,W] y)", f'y = DepthToSpace<blocksize=2, mode="{mode}">(x)', opset=13
    )
    after = assert_rewritten(DepthToSpaceToReshape(), made)
    assert "DepthToSpace" not in after and after["Transpose"] == 1


def test_space_to_depth_becomes_reshapes_where_sizes_are_known() -> None:
    made = graph("(float[N,3,4,6] x) => (float[N,27,H,W] y)".replace("27", "12"), "y = SpaceToDepth<blocksize=2>(x)")
    assert assert_rewritten(DepthToSpaceToReshape(), made) == {"Reshape": 2, "Transpose": 1}
    made = graph("(float[N,3,S,6] x) => (float[N,12,H,W] y)", "y = SpaceToDepth<blocksize=2>(x)")
    _, outcome = rewritten(DepthToSpaceToReshape(), made, feeds_of(made, S=4))
    assert "sizes" in outcome.sites[0].reason
    made = graph("(float[N,C,4,6] x) => (float[N,D,8,12] y)", "y = DepthToSpace<blocksize=2>(x)")
    _, outcome = rewritten(DepthToSpaceToReshape(), made, feeds_of(made, C=4))
    assert "channels" in outcome.sites[0].reason


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("block", [2, 3])
def test_conv_transpose_without_overlap_becomes_depth_to_space(block: int, group: int, bias: bool) -> None:
    weights = {"w": normal(4, 6 // group, block, block), **({"b": normal(6)} if bias else {})}
    given = f"group={group}, strides=[{block},{block}], kernel_shape=[{block},{block}]"
    made = graph(
        "(float[N,4,S,3] x) => (float[N,6,H,W] y)",
        f"y = ConvTranspose<{given}>(x, w{', b' if bias else ''})",
        **weights,
    )
    assert assert_rewritten(ConvTransposeToDepthToSpace(), made) == {"Conv": 1, "DepthToSpace": 1}


TRANSPOSED = [
    ("strides=[2,2]", (4, 3, 3, 3)),
    ("strides=[2,2], pads=[1,1,1,1], output_padding=[1,1]", (4, 3, 3, 3)),
    ("strides=[2,1], pads=[0,1,2,1]", (4, 3, 3, 2)),
    ("strides=[3,2], dilations=[2,1], pads=[1,0,1,0]", (4, 3, 3, 4)),
    ("strides=[2,2], group=2", (4, 2, 4, 4)),
    ("strides=[2,2], group=4, pads=[1,1,1,1]", (4, 1, 4, 4)),
    ("strides=[1,1], pads=[2,2,2,2]", (4, 3, 3, 3)),
    ("strides=[4,4]", (4, 3, 2, 2)),
    ("strides=[3,3], pads=[1,1,1,1]", (4, 3, 1, 1)),
    ("strides=[2,2], pads=[2,2,2,2]", (4, 3, 2, 2)),
]


@pytest.mark.parametrize("opset", [9, 13])
@pytest.mark.parametrize("sizes", ["N,4,5,6", "N,4,S,S"])
@pytest.mark.parametrize(("given", "kernel"), TRANSPOSED)
def test_conv_transpose_becomes_conv(given: str, kernel: tuple[int, ...], sizes: str, opset: int) -> None:
    groups = int(given.split("group=")[1][0]) if "group" in given else 1
    outputs = kernel[1] * groups
    body = f"y = ConvTranspose<{given}>(x, w, b)"
    made = graph(
        f"(float[{sizes}] x) => (float[N,{outputs},H,W] y)", body, opset=opset, w=normal(*kernel), b=normal(outputs)
    )
    assert "ConvTranspose" not in assert_rewritten(ConvTransposeToConv(), made)


def test_conv_transpose_of_one_and_three_dimensions_becomes_conv() -> None:
    made = graph("(float[N,4,S] x) => (float[N,3,L] y)", "y = ConvTranspose<strides=[3]>(x, w)", w=normal(4, 3, 5))
    assert assert_rewritten(ConvTransposeToConv(), made)["Conv"] == 1
    deep = graph(
        "(float[N,4,3,3,S] x) => (float[N,2,A,B,C] y)",
        "y = ConvTranspose<strides=[2,1,2]>(x, w)",
        w=normal(4, 2, 2, 3, 2),
    )
    assert assert_rewritten(ConvTransposeToConv(), deep)["Conv"] == 1


@pytest.mark.parametrize("rewrite", [ConvTransposeToConv(), ConvTransposeToDepthToSpace()])
@pytest.mark.parametrize(
    ("given", "reason"),
    [('auto_pad="SAME_UPPER"', "shape of its output"), ("output_shape=[10,12]", "shape of its output")],
)
def test_conv_transpose_whose_pads_follow_from_its_output_stays(rewrite: Any, given: str, reason: str) -> None:
    body = f"y = ConvTranspose<strides=[2,2], {given}>(x, w)"
    made = graph("(float[N,4,5,6] x) => (float[N,3,10,12] y)", body, w=normal(4, 3, 2, 2))
    assert_left_alone(rewrite, made, reason)
    assert_left_alone(rewrite, overridable(made, "w"), "not constant")


def test_blocks_that_are_not_square_or_overlap_are_no_depth_to_space() -> None:
    for given, kernel in (
        ("strides=[2,2]", (4, 3, 3, 3)),
        ("strides=[2,3]", (4, 3, 2, 3)),
        ("strides=[3,3]", (4, 3, 2, 2)),
    ):
        made = graph("(float[N,4,5,6] x) => (float[N,3,H,W] y)", f"y = ConvTranspose<{given}>(x, w)", w=normal(*kernel))
        assert_left_alone(ConvTransposeToDepthToSpace(), made, "not square")


@pytest.mark.parametrize(
    ("given", "kernel"),
    [
        ("dilations=[2,2]", (4, 3, 3, 3)),
        ("dilations=[1,3], pads=[1,3,1,3], strides=[2,1], kernel_shape=[3,3]", (4, 3, 3, 3)),
        ("dilations=[2,2], group=3", (6, 1, 3, 3)),
    ],
)
def test_a_dilated_kernel_is_filled_with_zeros(given: str, kernel: tuple[int, ...]) -> None:
    body = f"y = Conv<{given}>(x, w, b)"
    made = graph("(float[N,3,9,S] x) => (float[N,C,H,W] y)", body, w=normal(*kernel), b=normal(kernel[0]))
    after, outcome = rewritten(DilatedConvToDense(), made, feeds_of(made, S=11))
    assert outcome.changed == 1
    assert not any(a.name == "dilations" for node in after.graph.node for a in node.attribute)


def test_a_kernel_that_would_grow_too_large_or_is_not_dilated_stays() -> None:
    made = graph("(float[N,3,40,40] x) => (float[N,4,H,W] y)", "y = Conv<dilations=[9,9]>(x, w)", w=normal(4, 3, 3, 3))
    assert_left_alone(DilatedConvToDense(), made, "19x19")
    assert_rewritten(DilatedConvToDense(), made, largest_kernel=19)
    plain = graph("(float[N,3,9,9] x) => (float[N,4,H,W] y)", "y = Conv(x, w)", w=normal(4, 3, 3, 3))
    assert_left_alone(DilatedConvToDense(), plain, "not dilated")


SEPARABLE = [
    ("group=6, pads=[2,1,2,1]", (6, 1, 5, 5)),
    ("group=3, strides=[2,1], pads=[1,2,0,1]", (6, 1, 5, 3)),
    ('group=6, auto_pad="SAME_LOWER"', (6, 1, 4, 3)),
    ("pads=[3,3,3,3], dilations=[1,2], strides=[1,2]", (4, 6, 7, 5)),
]


@pytest.mark.parametrize(("given", "kernel"), SEPARABLE)
def test_a_kernel_of_rank_one_becomes_two(given: str, kernel: tuple[int, ...]) -> None:
    outputs, inputs, rows, columns = kernel
    if inputs == 1:
        weight = normal(outputs, 1, rows, 1) * normal(outputs, 1, 1, columns)
    else:
        weight = np.einsum("ci,mj->mcij", normal(inputs, rows), normal(outputs, columns)).astype(np.float32)
    channels = 3 if "group=3" in given else 6
    made = graph(
        f"(float[N,{channels},12,S] x) => (float[N,{outputs},H,W] y)",
        f"y = Conv<{given}>(x, w, b)",
        w=weight,
        b=normal(outputs),
    )
    after, outcome = rewritten(SeparableConv(), made, feeds_of(made, S=13), least_side=3)
    assert outcome.changed == 1 and [node.op_type for node in after.graph.node] == ["Conv", "Conv"]


def test_kernels_that_are_no_product_stay() -> None:
    for given, channels, kernel in (
        ("group=6", 6, (6, 1, 5, 5)),
        ("group=1", 6, (4, 6, 5, 5)),
        ("group=2", 6, (4, 3, 5, 5)),
    ):
        made = graph(
            f"(float[N,{channels},9,9] x) => (float[N,C,H,W] y)", f"y = Conv<{given}>(x, w)", w=normal(*kernel)
        )
        assert_left_alone(SeparableConv(), made, "several channels" if given == "group=2" else "no product")
    near = normal(6, 1, 5, 1) * normal(6, 1, 1, 5) + 1e-4 * normal(6, 1, 5, 5)
    made = graph("(float[N,6,9,9] x) => (float[N,6,H,W] y)", "y = Conv<group=6>(x, w)", w=near)
    assert_left_alone(SeparableConv(), made, "no product")
    flat = graph("(float[N,6,9,9] x) => (float[N,6,H,W] y)", "y = Conv<group=6>(x, w)", w=normal(6, 1, 1, 5))
    assert_left_alone(SeparableConv(), flat, "two sides")


ONE_DIMENSIONAL = {
    "Conv": "y = Conv<pads=[1,2], strides=[2], dilations=[2]>(x, w, b)",
    "Conv same": 'y = Conv<auto_pad="SAME_UPPER", strides=[2], kernel_shape=[3]>(x, w, b)',
    "Conv grouped": "y = Conv<group=4>(x, d)",
    "ConvTranspose": "y = ConvTranspose<strides=[2], pads=[1,0], output_padding=[1]>(x, t)",
    "MaxPool": "y = MaxPool<kernel_shape=[3], strides=[2], pads=[1,1], ceil_mode=1>(x)",
    "AveragePool": "y = AveragePool<kernel_shape=[3], strides=[2], pads=[1,1], count_include_pad=1>(x)",
    "GlobalAveragePool": "y = GlobalAveragePool(x)",
    "GlobalMaxPool": "y = GlobalMaxPool(x)",
}


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("name", ONE_DIMENSIONAL)
def test_one_dimensional_operators_become_two_dimensional(name: str, opset: int) -> None:
    weights = {"w": normal(6, 4, 3), "b": normal(6), "d": normal(4, 1, 3), "t": normal(4, 5, 3)}
    body = ONE_DIMENSIONAL[name]
    used = {
        key: value
        for key, value in weights.items()
        if f" {key}" in body.split("(")[1].replace(",", " ").replace(")", " ")
    }
    made = graph("(float[N,4,S] x) => (float[N,C,L] y)", body, opset=opset, **used)
    after, outcome = rewritten(OneDimensionToTwo(), made, feeds_of(made, S=9))
    assert outcome.changed == 1 and {node.op_type for node in after.graph.node} >= {"Unsqueeze", "Squeeze"}


def test_a_kernel_that_is_an_input_gets_its_height_at_run_time() -> None:
    made = graph("(float[N,4,9] x, float[5,4,3] w) => (float[N,5,L] y)", "y = Conv(x, w)")
    assert assert_rewritten(OneDimensionToTwo(), made)["Unsqueeze"] == 2


def test_two_dimensional_operators_and_used_indices_stay() -> None:
    made = graph("(float[N,4,9,9] x) => (float[N,4,7,7] y)", "y = MaxPool<kernel_shape=[3,3]>(x)")
    assert_left_alone(OneDimensionToTwo(), made, "no one-dimension-to-two")
    indices = graph("(float[N,4,9] x) => (float[N,4,7] y, int64[N,4,7] i)", "y, i = MaxPool<kernel_shape=[3]>(x)")
    assert_left_alone(OneDimensionToTwo(), indices, "indices")


def test_space_to_depth_in_the_order_of_opset_28_becomes_reshapes() -> None:
    if onnx.defs.onnx_opset_version() < 28:
        pytest.skip("onnx knows no opset 28 here")
    body = 'y = SpaceToDepth<blocksize=2, mode="CRD">(x)'
    made = graph("(float[N,3,4,6] x) => (float[N,12,2,3] y)", body, opset=28)
    assert assert_rewritten(DepthToSpaceToReshape(), made) == {"Reshape": 2, "Transpose": 1}
