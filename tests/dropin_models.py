"""The pieces that the models of the drop-in cases are built from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from tests.dropin_observe import Call

F = TensorProto.FLOAT
IR = 8
OPSET = 17

Build = Callable[[Path], Call]


@dataclass(frozen=True)
class Case:
    """One unusual use of a session.

    Attributes:
        number: its number in the list of unusual cases; several may share one.
        build: writes the model into a folder (the current directory is the folder's ``cwd``) and says how it is used.
        refused: whether plain onnxruntime refuses to make the session; None where versions differ.
        adapted: whether a strategy file is applied; False where the session must be left alone, None where either is
            right.
        slow: takes seconds or gigabytes of address space.
    """

    number: int
    build: Build
    refused: bool | None
    adapted: bool | None
    slow: bool

    @property
    def name(self) -> str:
        """For test ids."""
        return f"{self.number:02d}-{self.build.__name__}"


CASES: list[Case] = []


def case(
    number: int, *, refused: bool | None = False, adapted: bool | None = True, slow: bool = False
) -> Callable[[Build], Build]:
    """Register a builder; see :class:`Case`."""

    def register(build: Build) -> Build:
        CASES.append(Case(number, build, refused, adapted if refused is False else None, slow))
        return build

    return register


def values(*shape: int, seed: int = 1) -> np.ndarray:
    """Reproducible float32 values around zero."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def info(name: str, shape: Sequence[int | str | None] | None, kind: int = F) -> onnx.ValueInfoProto:
    """A graph input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def tensor(name: str, array: np.ndarray) -> TensorProto:
    """An initializer."""
    return numpy_helper.from_array(np.asarray(array), name)


def external(name: str, array: np.ndarray, file: Path, location: str, offset: int = 0) -> TensorProto:
    """An initializer whose bytes are written into ``file`` at ``offset`` and are found by ``location``."""
    data = array.tobytes()
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("r+b" if file.exists() else "w+b") as out:
        out.seek(offset)
        out.write(data)
    proto = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    return point_outside(proto, location, offset, len(data))


def point_outside(proto: TensorProto, location: str, offset: int, length: int) -> TensorProto:
    """Say where an initializer's bytes lie."""
    proto.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        proto.external_data.add(key=key, value=str(value))
    return proto


def model(
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[onnx.ValueInfoProto],
    initializers: Iterable[TensorProto] = (),
    *,
    name: str = "graph",
    ir: int = IR,
    opsets: dict[str, int] | None = None,
    **fields: Any,
) -> onnx.ModelProto:
    """A model with a fixed IR version and opset, so that old and new onnx write the same."""
    graph = helper.make_graph(list(nodes), name, list(inputs), list(outputs), list(initializers))
    imports = [helper.make_opsetid(domain, version) for domain, version in (opsets or {"": OPSET}).items()]
    return helper.make_model(graph, ir_version=ir, opset_imports=imports, producer_name="cases", **fields)


def dense(weight: TensorProto | None = None, bias: TensorProto | None = None, **fields: Any) -> onnx.ModelProto:
    """y = Softmax(Relu(x @ W) + b): x [N, 8], W [8, 4], b [4]."""
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["xw"], name="matmul"),
        helper.make_node("Relu", ["xw"], ["r"], name="relu"),
        helper.make_node("Add", ["r", "b"], ["rb"], name="add"),
        helper.make_node("Softmax", ["rb"], ["y"], name="softmax", axis=-1),
    ]
    weight = tensor("W", values(8, 4)) if weight is None else weight
    bias = tensor("b", values(4, seed=2)) if bias is None else bias
    return model(nodes, [info("x", ["N", 8])], [info("y", ["N", 4])], [weight, bias], **fields)


def saved(proto: onnx.ModelProto, file: Path) -> str:
    """Write the model as it is (no external data is gathered); its path as text."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(proto.SerializeToString())
    return str(file)


def with_threads(threads: int) -> onnxruntime.SessionOptions:
    """The caller's options with a number of threads of his own."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return options


X = {"x": values(3, 8, seed=3)}
