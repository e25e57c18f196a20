"""The probe's models: valid, deterministic, small at their ends, and doing the work that they are said to do."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest

from ort_metainfer.hardware.micro_benchmarks import BENCHMARKS, COPY_KINDS, ONE_THREAD, UNCONSTRAINED, benchmarks_for
from ort_metainfer.hardware.micro_models import random
from ort_metainfer.model.graph import describe

MODELS = [point for point in BENCHMARKS if point.build is not None and not point.configuration]
LIGHT = [point for point in MODELS if point.work < 1e9 and not point.size.startswith("8192")]


@pytest.mark.parametrize("point", LIGHT, ids=lambda point: point.name)
def test_a_model_is_valid_and_repeatable(point) -> None:
    micro = point.build()
    onnx.checker.check_model(micro.model, full_check=True)
    assert point.build().model == micro.model
    graph = onnx.load_from_string(micro.model)
    assert (graph.ir_version, graph.opset_import[0].version) == (10, 17)
    assert {value.name for value in graph.graph.input} == set(micro.feeds)


@pytest.mark.parametrize("point", [p for p in LIGHT if p.work_unit == "MAC"], ids=lambda point: point.name)
def test_the_work_stated_is_what_the_graph_counts(point) -> None:
    assert describe(point.build().model).macs == point.work


@pytest.mark.parametrize("point", [p for p in LIGHT if p.kind != "round_trip"], ids=lambda point: point.name)
def test_what_goes_in_and_out_is_small_beside_the_work(point) -> None:
    graph = onnx.load_from_string(point.build().model).graph
    elements = sum(
        math.prod(dim.dim_value for dim in value.type.tensor_type.shape.dim) for value in [*graph.input, *graph.output]
    )
    assert elements * 4 <= 256 * 1024
    assert point.work == 0 or elements <= point.work / 10


@pytest.mark.parametrize("kind", ["element_wise", "layer_norm", "softmax", "gather"])
def test_bytes_moved_are_those_of_the_values_between_the_nodes(kind: str) -> None:
    point = next(point for point in LIGHT if point.kind == kind)
    model = onnx.shape_inference.infer_shapes(onnx.load_from_string(point.build().model))
    sizes = {value.name: _bytes(value.type.tensor_type) for value in [*model.graph.value_info, *model.graph.input]}
    sizes |= {tensor.name: len(tensor.raw_data) for tensor in model.graph.initializer}
    moved = sum(sizes.get(name, 0) for node in model.graph.node for name in [*node.input, *node.output])
    if kind == "gather":  # only the rows that are picked are read, not the table
        table = max(len(tensor.raw_data) for tensor in model.graph.initializer)
        moved += _bytes(model.graph.value_info[0].type.tensor_type) - table
    assert moved == pytest.approx(point.work, rel=0.02)


def _bytes(tensor) -> int:
    width = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)).itemsize
    return width * math.prod(dim.dim_value for dim in tensor.shape.dim)


def test_random_tensors_are_the_same_each_time_and_differ_by_seed() -> None:
    assert np.array_equal(random(300, 50, seed=1), random(300, 50, seed=1))
    assert not np.array_equal(random(300, 50, seed=1), random(300, 50, seed=2))


def test_names_are_unique_and_a_larger_point_comes_after_the_smaller_one() -> None:
    names = [point.name for point in BENCHMARKS]
    assert len(set(names)) == len(names)
    for position, point in enumerate(BENCHMARKS):
        assert point.grows_from is None or names.index(point.grows_from) < position
        assert point.kind in COPY_KINDS or point.build is not None


def test_threads_are_tried_on_the_cpu_provider_only() -> None:
    ours = {point.configuration for point in benchmarks_for("CPUExecutionProvider", "cpu", lossy_default=False)}
    others = {point.configuration for point in benchmarks_for("CUDAExecutionProvider", "gpu", lossy_default=False)}
    assert ONE_THREAD in ours
    assert others == {""}


def test_copies_are_tried_on_devices_other_than_a_cpu() -> None:
    moving = {*COPY_KINDS, "round_trip"}
    assert not moving & {point.kind for point in benchmarks_for("x", "cpu", lossy_default=False)}
    assert moving <= {point.kind for point in benchmarks_for("x", "gpu", lossy_default=False)}


def test_the_default_precision_is_tried_where_it_may_be_lossy() -> None:
    configurations = {point.configuration for point in benchmarks_for("x", "cpu", lossy_default=True)}
    assert configurations == {"", UNCONSTRAINED}


def test_what_every_device_must_show_comes_first() -> None:
    first = [point.kind for point in BENCHMARKS[:4]]
    assert first == ["empty", "matmul", "conv3x3", "element_wise"]
