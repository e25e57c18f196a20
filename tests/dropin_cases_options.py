"""Drop-in cases 23-29, 33, 38, 40, 42, 43: other formats, and what is asked for beside the model."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from tests.dropin_models import X, case, dense, info, model, saved, values
from tests.dropin_observe import Call


@functools.cache
def _ort_format() -> bytes:
    """The dense model in ORT format; made once, because onnxruntime writes a few bytes differently each time."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(Path(folder, "model.ort"))
        options.add_session_config_entry("session.save_model_format", "ORT")
        onnxruntime.InferenceSession(dense().SerializeToString(), options)
        return Path(folder, "model.ort").read_bytes()


def ort_format(folder: Path, name: str = "model.ort") -> Path:
    """The dense model in ORT format, written by onnxruntime itself."""
    (folder / name).write_bytes(_ort_format())
    return folder / name


@case(23, adapted=None)
def ort_format_path(folder: Path) -> Call:
    return Call(str(ort_format(folder)), X)


@case(24, adapted=None)
def ort_format_bytes(folder: Path) -> Call:
    return Call(ort_format(folder).read_bytes(), X)


@case(24, adapted=False)
def ort_format_bytes_used_directly(folder: Path) -> Call:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.load_model_format", "ORT")
    options.add_session_config_entry("session.use_ort_model_bytes_directly", "1")
    return Call(ort_format(folder).read_bytes(), X, options)


@case(25, adapted=False)
def ort_format_with_another_suffix(folder: Path) -> Call:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.load_model_format", "ORT")
    return Call(str(ort_format(folder, "model.bin")), X, options)


@case(25, refused=True)
def ort_format_with_another_suffix_unsaid(folder: Path) -> Call:
    return Call(str(ort_format(folder, "model.onnx")), X)


@case(25, refused=True)
def onnx_format_with_the_ort_suffix(folder: Path) -> Call:
    return Call(saved(dense(), folder / "model.ort"), X)


def _garbage() -> bytes:
    return np.random.default_rng(0).bytes(2000)  # what an encrypted model looks like from outside


@case(26, refused=True)
def garbage_bytes(folder: Path) -> Call:
    return Call(_garbage(), X)


@case(26, refused=True)
def empty_bytes(folder: Path) -> Call:
    return Call(b"", X)


@case(27, refused=True)
def garbage_file(folder: Path) -> Call:
    (folder / "model.onnx").write_bytes(_garbage())
    return Call(str(folder / "model.onnx"), X)


@case(27, refused=True)
def empty_file(folder: Path) -> Call:
    (folder / "model.onnx").write_bytes(b"")
    return Call(str(folder / "model.onnx"), X)


@case(27, refused=True)
def truncated_file(folder: Path) -> Call:
    (folder / "model.onnx").write_bytes(dense().SerializeToString()[:-40])
    return Call(str(folder / "model.onnx"), X)


@case(27, refused=True)
def missing_file(folder: Path) -> Call:
    return Call(str(folder / "no such model.onnx"), X)


@case(27, refused=True)
def folder_for_a_file(folder: Path) -> Call:
    return Call(str(folder), X)


@case(28, refused=True)  # the CPU provider compiles no subgraph, so it has no kernel for the compiled node
def ep_context(folder: Path) -> Call:
    fields = {"ep_cache_context": b"compiled", "embed_mode": 1, "main_context": 1, "source": "SomeProvider"}
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", **fields)
    proto = model([node], [info("x", [8])], [info("y", [8])], opsets={"": 17, "com.microsoft": 1})
    return Call(saved(proto, folder / "model.onnx"), {"x": values(8)})


@case(29)
def free_dimension_by_name(folder: Path) -> Call:
    options = onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_name("N", 3)
    return Call(saved(dense(), folder / "model.onnx"), X, options)


@case(29)
def free_dimension_by_name_run_with_another(folder: Path) -> Call:
    options = onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_name("N", 2)
    return Call(saved(dense(), folder / "model.onnx"), X, options)


@case(29, adapted=False)
def free_dimension_by_denotation(folder: Path) -> Call:
    proto = dense()
    proto.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    options = onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 3)
    return Call(saved(proto, folder / "model.onnx"), X, options)


def _with_ort_config(folder: Path) -> str:
    proto = dense()
    config = {"session_options": {"intra_op_num_threads": 2, "graph_optimization_level": 1, "execution_mode": 0}}
    helper.set_model_props(proto, {"ort_config": json.dumps(config)})
    return saved(proto, folder / "model.onnx")


@case(33, adapted=False)
def options_in_the_model_read(folder: Path) -> Call:
    return Call(_with_ort_config(folder), X, keywords={"read_config_from_model": 1}, shows_options=True)


@case(33)
def options_in_the_model_ignored(folder: Path) -> Call:
    return Call(_with_ort_config(folder), X)


@case(38)
def lora_adapter(folder: Path) -> Call:
    """The adapter's values stand in for the overridable initializers while RunOptions carry it."""
    proto = dense()
    proto.graph.input.append(info("b", [4]))
    written = onnxruntime.AdapterFormat()
    written.set_adapter_version(1)
    written.set_model_version(1)
    written.set_parameters({"b": onnxruntime.OrtValue.ortvalue_from_numpy(values(4, seed=8))})
    written.export_adapter(str(folder / "adapter.onnx_adapter"))
    adapter = onnxruntime.LoraAdapter()
    adapter.Load(str(folder / "adapter.onnx_adapter"))
    run_options = onnxruntime.RunOptions()
    run_options.add_active_adapter(adapter)
    return Call(saved(proto, folder / "model.onnx"), X, run_options=run_options, keep=(adapter,))


@case(40, adapted=False)
def optimized_model_filepath(folder: Path) -> Call:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    return Call(saved(dense(), folder / "model.onnx"), X, options)


@case(42, adapted=False)
def disabled_optimizers(folder: Path) -> Call:
    keywords = {"disabled_optimizers": ["ConstantFolding", "MatMulAddFusion"]}
    return Call(saved(dense(), folder / "model.onnx"), X, keywords=keywords)


def _cpu_devices() -> list[onnxruntime.OrtEpDevice]:
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == "CPUExecutionProvider"]


@case(43, adapted=False)
def add_provider_for_devices(folder: Path) -> Call:
    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices(_cpu_devices(), {})
    return Call(saved(dense(), folder / "model.onnx"), X, options)


@case(43, adapted=False)
def add_provider_for_devices_and_providers(folder: Path) -> Call:
    """Plain onnxruntime warns, and the keyword wins."""
    call = add_provider_for_devices(folder)
    return Call(call.model, X, call.options, keywords={"providers": ["CPUExecutionProvider"]})


@case(43, adapted=False)
def provider_selection_policy(folder: Path) -> Call:
    if any(device.ep_name.startswith("QNN") for device in onnxruntime.get_ep_devices()):
        # onnxruntime's policy would pick it, and plain onnxruntime then fails: QNN wants an option no policy gives
        pytest.skip("another test registered QNN in this process")
    options = onnxruntime.SessionOptions()
    options.set_provider_selection_policy(onnxruntime.OrtExecutionProviderDevicePolicy.PREFER_CPU)
    return Call(saved(dense(), folder / "model.onnx"), X, options)
