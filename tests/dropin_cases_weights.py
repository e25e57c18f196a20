"""Drop-in cases 01-10, 37, 39, 44: where the weights lie and how the model is named."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from tests.dropin_models import X, case, dense, external, info, model, point_outside, saved, tensor, values
from tests.dropin_observe import Call

IN_MEMORY = hasattr(onnxruntime.SessionOptions, "add_external_initializers_from_files_in_memory")
"""Since onnxruntime 1.24; before, the case has a file."""

FOLDER_OPTION = "session.model_external_initializers_file_folder_path"


def _outside(folder: Path, location: str, file: Path | None = None) -> onnx.ModelProto:
    """The dense model, its weight in ``file`` and found by ``location``."""
    return dense(external("W", values(8, 4), file or folder / location, location))


@case(1)
def external_data(folder: Path) -> Call:
    return Call(saved(_outside(folder, "weights.bin"), folder / "model.onnx"), X)


@case(2)
def external_data_in_subfolder_at_offsets(folder: Path) -> Call:
    file = folder / "deep" / "er" / "part.bin"
    weight = external("W", values(8, 4), file, "deep/er/part.bin", offset=4096)
    bias = external("b", values(4, seed=2), file, "deep/er/part.bin", offset=64)
    return Call(saved(dense(weight, bias), folder / "model.onnx"), X)


@case(3, refused=None)
def bytes_with_data_in_current_directory(folder: Path) -> Call:
    return Call(_outside(folder, "weights.bin", Path.cwd() / "weights.bin").SerializeToString(), X)


@case(4, adapted=False)
def bytes_with_folder_option(folder: Path) -> Call:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(FOLDER_OPTION, str(folder / "data"))
    proto = _outside(folder, "weights.bin", folder / "data" / "weights.bin")
    return Call(proto.SerializeToString(), X, options)


@case(5, refused=True)
def missing_data(folder: Path) -> Call:
    path = saved(_outside(folder, "weights.bin"), folder / "model.onnx")
    (folder / "weights.bin").unlink()
    return Call(path, X)


@case(5, refused=True)
def truncated_data(folder: Path) -> Call:
    path = saved(_outside(folder, "weights.bin"), folder / "model.onnx")
    os.truncate(folder / "weights.bin", 100)
    return Call(path, X)


@case(6, refused=None)  # onnxruntime 1.24 and later refuse to leave the model's folder
def escaping_location(folder: Path) -> Call:
    proto = _outside(folder, "../weights.bin", folder / "weights.bin")
    return Call(saved(proto, folder / "inner" / "model.onnx"), X)


@case(7, adapted=False)
def add_external_initializers(folder: Path) -> Call:
    path = saved(_outside(folder, "weights.bin"), folder / "model.onnx")
    (folder / "weights.bin").unlink()
    options, value = onnxruntime.SessionOptions(), onnxruntime.OrtValue.ortvalue_from_numpy(values(8, 4, seed=9))
    options.add_external_initializers(["W"], [value])
    return Call(path, X, options, keep=(value,))


@case(8, adapted=False if IN_MEMORY else None)
def add_external_initializers_from_files_in_memory(folder: Path) -> Call:
    path = saved(_outside(folder, "weights.bin"), folder / "model.onnx")
    data = (folder / "weights.bin").read_bytes()
    (folder / "weights.bin").unlink()
    options = onnxruntime.SessionOptions()
    if IN_MEMORY:
        options.add_external_initializers_from_files_in_memory(["weights.bin"], [data], [len(data)])
    else:
        (folder / "weights.bin").write_bytes(data)
    return Call(path, X, options, keep=(data,))


@case(9, adapted=False)
def add_initializer(folder: Path) -> Call:
    options, value = onnxruntime.SessionOptions(), onnxruntime.OrtValue.ortvalue_from_numpy(values(8, 4, seed=9))
    options.add_initializer("W", value)
    return Call(saved(dense(), folder / "model.onnx"), X, options, keep=(value,))


@case(10, slow=True)
def external_data_above_2_gb(folder: Path) -> Call:
    rows, columns = (1 << 31) // 64 + 3, 64
    with (folder / "weights.bin").open("wb") as out:  # sparse: a hole of 2 GiB that takes no room on disk
        out.truncate(rows * columns)
        out.seek((rows - 1) * columns)
        out.write(bytes(range(columns)))
    table = TensorProto(name="W", data_type=TensorProto.UINT8, dims=(rows, columns))
    point_outside(table, "weights.bin", 0, rows * columns)
    nodes = [helper.make_node("Gather", ["W", "i"], ["y"], axis=0)]
    proto = model(nodes, [info("i", ["N"], TensorProto.INT64)], [info("y", ["N", 64], TensorProto.UINT8)], [table])
    return Call(saved(proto, folder / "model.onnx"), {"i": np.array([0, rows - 1])})


@case(37)
def unicode_path(folder: Path) -> Call:
    return Call(
        saved(_outside(folder / "dänk ünï 模型", "gewicht ß.bin"), folder / "dänk ünï 模型" / "модель é.onnx"), X
    )


@case(37, refused=None)
def symlinked_model(folder: Path) -> Call:
    """The data lie beside the link's target; which versions look there differs."""
    saved(_outside(folder / "real", "weights.bin"), folder / "real" / "model.onnx")
    (folder / "links").mkdir()
    (folder / "links" / "model.onnx").symlink_to(folder / "real" / "model.onnx")
    return Call(folder / "links" / "model.onnx", X)


@case(37)
def symlinked_folder(folder: Path) -> Call:
    saved(_outside(folder / "real", "weights.bin"), folder / "real" / "model.onnx")
    (folder / "link").symlink_to(folder / "real", target_is_directory=True)
    return Call(str(folder / "link" / "model.onnx"), X)


@case(37)
def relative_path(folder: Path) -> Call:
    saved(_outside(Path.cwd() / "models", "weights.bin"), Path.cwd() / "models" / "model.onnx")
    return Call("models/model.onnx", X)


@case(39)
def external_data_inside_if(folder: Path) -> Call:
    def branch(name: str, offset: int, seed: int) -> onnx.GraphProto:
        weight = external(f"W_{name}", values(8, 4, seed=seed), folder / "branches.bin", "branches.bin", offset)
        node = helper.make_node("MatMul", ["x", f"W_{name}"], [f"y_{name}"])
        return helper.make_graph([node], name, [], [info(f"y_{name}", ["N", 4])], [weight])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("yes", 0, 1), else_branch=branch("no", 4096, 2))
    inputs = [info("c", [], TensorProto.BOOL), info("x", ["N", 8])]
    return Call(saved(model([node], inputs, [info("y", ["N", 4])]), folder / "m.onnx"), {"c": np.array(False), **X})


@case(44, slow=True)
def bytes_of_100_mb(folder: Path) -> Call:
    weight = np.full((26_000_000 // 8, 8), 0.25, np.float32)
    nodes = [helper.make_node("Gather", ["W", "i"], ["y"])]
    inputs, outputs = [info("i", ["N"], TensorProto.INT64)], [info("y", ["N", 8])]
    proto = model(nodes, inputs, outputs, [tensor("W", weight)])
    return Call(proto.SerializeToString(), {"i": np.array([3, 77])})
