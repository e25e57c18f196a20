"""Fixing input shapes: by input and axis, outputs and inner values follow, and the results stay the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_metainfer.errors import InputsError, ModelError
from ort_metainfer.model.graph import describe
from ort_metainfer.rewrites import files
from ort_metainfer.rewrites.fixed_shapes import fix_shapes

Dims = list[Any]


def image_model(dims: Dims, output: Dims, name: str = "weights") -> Any:
    """Convolution, then everything but the batch flattened by sizes read from the shape, as exporters write it."""
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", name], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Shape", ["c"], ["s"]),
        helper.make_node("Slice", ["s", "zero", "one"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["c", "to"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "image",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)],
        [
            numpy_helper.from_array(weight, name),
            numpy_helper.from_array(np.array([0]), "zero"),
            numpy_helper.from_array(np.array([1]), "one"),
            numpy_helper.from_array(np.array([-1]), "rest"),
        ],
        value_info=[helper.make_tensor_value_info("c", TensorProto.FLOAT, ["stale", 4, "?", "?"])],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    helper.set_model_props(model, {"labels": "a,b"})
    return model


def saved(model: Any, path: Path) -> Path:
    onnx.save(model, str(path))
    return path


def run(path: Path, feed: dict[str, np.ndarray]) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feed)[0]


def test_height_and_width_of_one_name_get_their_own_sizes(tmp_path: Path) -> None:
    source = saved(image_model([-1, 3, "?", "?"], [-1, "?"]), tmp_path / "m.onnx")
    result = fix_shapes(source, {"x": (2, 3, 5, 7)}, tmp_path / "fixed.onnx")
    graph = describe(result.path)
    assert result.changed
    assert graph.inputs[0].shape == (2, 3, 5, 7)
    assert graph.outputs[0].shape == (2, 4 * 5 * 7)
    feed = {"x": np.random.default_rng(1).random((2, 3, 5, 7), dtype=np.float32)}
    np.testing.assert_array_equal(run(result.path, feed), run(source, feed))


def test_a_named_dimension_that_two_inputs_share_may_differ_between_them(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Concat", ["a", "b"], ["y"], axis=0)],
        "two",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "ab"],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", 2])],
    )
    source = saved(
        helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx"
    )
    result = fix_shapes(source, {"a": (1, 2), "b": (3, 2)}, tmp_path / "fixed.onnx")
    assert [spec.shape for spec in describe(result.path).inputs] == [(1, 2), (3, 2)]
    assert describe(result.path).outputs[0].shape == (4, 2)


def test_no_name_of_a_dimension_is_left_behind(tmp_path: Path) -> None:
    source = saved(image_model(["n", 3, "h", "w"], ["n", "k"]), tmp_path / "m.onnx")
    model = onnx.load(str(fix_shapes(source, {"x": (1, 3, 4, 4)}, tmp_path / "fixed.onnx").path))
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    assert {dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim} == {""}
    assert [dim.dim_value for dim in next(v for v in values if v.name == "c").type.tensor_type.shape.dim] == [
        1,
        4,
        4,
        4,
    ]


def test_metadata_stays(tmp_path: Path) -> None:
    source = saved(image_model(["n", 3, "h", "w"], ["n", "k"]), tmp_path / "m.onnx")
    model = onnx.load(str(fix_shapes(source, {"x": (1, 3, 4, 4)}, tmp_path / "fixed.onnx").path))
    assert [(entry.key, entry.value) for entry in model.metadata_props] == [("labels", "a,b")]


def test_the_original_is_not_touched(tmp_path: Path) -> None:
    source = saved(image_model(["n", 3, "h", "w"], ["n", "k"]), tmp_path / "m.onnx")
    before = source.read_bytes()
    fix_shapes(source, {"x": (1, 3, 4, 4)}, tmp_path / "fixed.onnx")
    assert source.read_bytes() == before


def test_shapes_that_were_fixed_already_change_nothing(tmp_path: Path) -> None:
    source = saved(image_model([1, 3, 4, 4], [1, 64]), tmp_path / "m.onnx")
    assert not fix_shapes(source, {}, tmp_path / "a.onnx").changed
    assert not fix_shapes(source, {"x": (1, 3, 4, 4)}, tmp_path / "b.onnx").changed


def test_an_output_whose_shape_depends_on_values_is_told(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["y"])],
        "count",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [1, "found"])],
    )
    source = saved(
        helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx"
    )
    result = fix_shapes(source, {"x": (4,)}, tmp_path / "fixed.onnx")
    assert result.notes == ("the shape of output y is not known before it runs",)
    feed = {"x": np.array([0, 1, 0, 2], np.float32)}
    np.testing.assert_array_equal(run(result.path, feed), [[1, 3]])


@pytest.mark.parametrize(
    ("shapes", "blame"),
    [
        ({}, "open dimensions; give its shape: x:1,..."),
        ({"z": (1,)}, "no input 'z'; its inputs: x"),
        ({"x": (1, 3, 4, 4), "z": (1,)}, "'z'"),
        ({"x": (1, 3, 4)}, r"\[1, 3, 4\]"),
        ({"x": (1, 5, 4, 4)}, r"\[1, 5, 4, 4\]"),
        ({"x": (0, 3, 4, 4)}, "must be positive"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], blame: str
) -> None:
    source = saved(image_model(["n", 3, "h", "w"], ["n", "k"]), tmp_path / "m.onnx")
    with pytest.raises(InputsError, match=blame):
        fix_shapes(source, shapes, tmp_path / "fixed.onnx")
    assert not (tmp_path / "fixed.onnx").exists()


def test_a_compiled_model_must_not_be_rewritten(tmp_path: Path) -> None:
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", main_context=1)
    graph = helper.make_graph(
        [node],
        "compiled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
    )
    source = saved(
        helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("com.microsoft", 1)]),
        tmp_path / "m.onnx",
    )
    with pytest.raises(ModelError, match="must not be rewritten: it holds EPContext"):
        fix_shapes(source, {"x": (1,)}, tmp_path / "fixed.onnx")


def test_external_data_of_the_original_comes_along_from_another_folder(tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    model = image_model(["n", 3, "h", "w"], ["n", "k"])
    onnx.save_model(model, str(folder / "m.onnx"), save_as_external_data=True, location="m.weights", size_threshold=100)
    result = fix_shapes(folder / "m.onnx", {"x": (1, 3, 4, 4)}, tmp_path / "fixed.onnx")
    feed = {"x": np.ones((1, 3, 4, 4), np.float32)}
    np.testing.assert_array_equal(run(result.path, feed), run(folder / "m.onnx", feed))
    (folder / "m.weights").unlink()
    assert run(result.path, feed).shape == (1, 64)


def test_missing_external_data_is_told_by_name(tmp_path: Path) -> None:
    model = image_model(["n", 3, "h", "w"], ["n", "k"])
    onnx.save_model(
        model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="m.weights", size_threshold=100
    )
    (tmp_path / "m.weights").unlink()
    with pytest.raises(ModelError, match=r"m\.onnx.*external data"):
        fix_shapes(tmp_path / "m.onnx", {"x": (1, 3, 4, 4)}, tmp_path / "fixed.onnx")


def test_large_weights_go_to_a_file_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = saved(image_model(["n", 3, "h", "w"], ["n", "k"]), tmp_path / "m.onnx")
    monkeypatch.setattr(files, "EXTERNAL_ABOVE_BYTES", 100)
    monkeypatch.setattr(files, "SMALLEST_EXTERNAL_BYTES", 100)
    result = fix_shapes(source, {"x": (1, 3, 4, 4)}, tmp_path / "fixed.onnx")
    again = fix_shapes(source, {"x": (1, 3, 4, 4)}, tmp_path / "fixed.onnx")
    assert (tmp_path / "fixed.onnx.data").stat().st_size == 4 * 3 * 3 * 3 * 4, "written anew, not appended to"
    feed = {"x": np.ones((1, 3, 4, 4), np.float32)}
    np.testing.assert_array_equal(run(again.path, feed), run(source, feed))
    assert result == again


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    source = saved(image_model(["n", 3, "h", "w"], ["n", "k"]), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="cannot write"):
        fix_shapes(source, {"x": (1, 3, 4, 4)}, tmp_path / "nowhere" / "fixed.onnx")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("ppocr_cls", {"x": (1, 3, 48, 192)}),
        ("ppocr_v6_rec", {"x": (1, 3, 48, 320)}),
        ("ppocr_v6_det", {"x": (1, 3, 320, 640)}),
        ("doc_orientation", {"x": (2, 3, 224, 224)}),
        ("opennsfw_resnet50", {"input:0": (1, 224, 224, 3)}),
        ("minilm_l3_fp32", {"input_ids": (1, 16), "attention_mask": (1, 16)}),
    ],
)
def test_real_models_keep_their_results(
    zoo_model: Any, tmp_path: Path, name: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    source = zoo_model(name)
    result = fix_shapes(source, shapes, tmp_path / "fixed.onnx")
    graph = describe(result.path)
    assert all(isinstance(dim, int) for spec in (*graph.inputs, *graph.outputs) for dim in spec.shape or ())
    rng = np.random.default_rng(0)
    feed: dict[str, Any] = {
        spec.name: rng.integers(0, 2, spec.shape) if spec.dtype == "int64" else rng.random(spec.shape, dtype=np.float32)  # type: ignore[arg-type]
        for spec in graph.inputs
    }
    np.testing.assert_allclose(run(result.path, feed), run(source, feed), rtol=1e-3, atol=1e-5)
