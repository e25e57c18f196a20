"""What onnxruntime's quantiser wants of a model, and what has to be put right in what it leaves behind.

It needs weights as initialisers, names that are taken once and known types; it writes its own opset imports, IR
version, metadata and inferred shapes.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ort_metainfer.errors import RewriteError

__all__ = [
    "LARGEST_BYTES",
    "captured",
    "fused_for_qnn",
    "lift_constants",
    "load_whole",
    "name_nodes",
    "optimised",
    "quiet",
    "restore",
]

LARGEST_BYTES = 1_900_000_000
"""The quantiser works on protobuf messages, which end at 2 GB."""

ONNX_DOMAINS = ("", "ai.onnx")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what onnxruntime.quantization prints and logs from the caller's output: it logs to the root logger, and by
    doing so would set that up where nobody else has."""
    root, silent = logging.getLogger(), logging.NullHandler()

    def of_others(record: logging.LogRecord) -> bool:
        return "quantization" not in record.pathname

    root.addHandler(silent)
    root.addFilter(of_others)
    try:
        with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
            yield
    finally:
        root.removeFilter(of_others)
        root.removeHandler(silent)


def load_whole(file: Path) -> Any:
    """A ModelProto with its weights.

    Raises:
        RewriteError: it cannot be read.
    """
    import onnx

    try:
        return onnx.load(str(file))
    except Exception as error:  # protobuf's, onnx' and the system's classes
        raise RewriteError(f"{file}: cannot be read: {error}") from error


def lift_constants(graph: Any) -> None:
    """Constants that are tensors become initialisers of their graph; the quantiser looks for weights there only.

    Those that are outputs of the graph stay as they are.
    """
    outputs = {value.name for value in graph.output}
    kept = []
    for node in graph.node:
        given = [attribute.t for attribute in node.attribute if attribute.name == "value"]
        is_inner = not outputs.intersection(node.output)
        if node.op_type == "Constant" and node.domain in ONNX_DOMAINS and given and is_inner:
            tensor = graph.initializer.add()
            tensor.CopyFrom(given[0])
            tensor.name = node.output[0]
        else:
            kept.append(node)
    if len(kept) < len(graph.node):
        copies = [copy_of(node) for node in kept]
        del graph.node[:]
        graph.node.extend(copies)


def copy_of(node: Any) -> Any:
    """The same node, of no graph."""
    import onnx

    twin = onnx.NodeProto()
    twin.CopyFrom(node)
    return twin


def name_nodes(graph: Any) -> None:
    """Every node gets a name of its own: its own where it has one alone, else that of its first output."""
    counts = Counter(node.name for node in graph.node)
    taken = {name for name, count in counts.items() if name and count == 1}
    for node in graph.node:
        if node.name in taken:
            continue
        base = name = next((output for output in node.output if output), node.op_type)
        number = 1
        while name in taken:
            name, number = f"{base}_{number}", number + 1
        taken.add(name)
        node.name = name


def captured(graph: Any) -> set[str]:
    """Names that subgraphs use."""
    return {name for inner in _subgraphs(graph) for name in _used(inner)}


def _subgraphs(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        for attribute in node.attribute:
            yield from ([attribute.g] if attribute.HasField("g") else attribute.graphs)


def _used(graph: Any) -> Iterator[str]:
    yield from (name for node in graph.node for name in node.input)
    yield from (value.name for value in graph.output)
    for inner in _subgraphs(graph):
        yield from _used(inner)


def optimised(model: Any, folder: Path) -> Any:
    """The model after onnxruntime's basic optimisations: batch norms in weights, constants folded; or, where that would
    bring operators which are not in ONNX or change what a caller sees, the model itself with its constants lifted."""
    import onnx
    from onnxruntime import GraphOptimizationLevel, SessionOptions
    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession

    target = folder / "optimised.onnx"
    options = SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    result = onnx.load(str(target))
    target.unlink()
    if not _strange(model, result):
        return result
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    lift_constants(twin.graph)
    return twin


def fused_for_qnn(model: Any, folder: Path) -> Any:
    """The model with operators fused as Qualcomm's NPU has them."""
    import onnx
    from onnxruntime.quantization.execution_providers.qnn import qnn_preprocess_model

    plain, fused = folder / "plain.onnx", folder / "fused.onnx"
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    del twin.metadata_props[:]  # qnn_preprocess_model of onnxruntime 1.32 raises TypeError over any
    onnx.save(twin, str(plain))
    with quiet():
        changed = qnn_preprocess_model(str(plain), str(fused))
    return onnx.load(str(fused)) if changed else twin


def _strange(model: Any, result: Any) -> bool:
    import onnx

    opset = next((given.version for given in model.opset_import if given.domain in ONNX_DOMAINS), 0)
    before = {(node.domain, node.op_type) for node in model.graph.node}
    for node in result.graph.node:
        if (node.domain, node.op_type) in before:
            continue
        if node.domain not in ONNX_DOMAINS or not onnx.defs.has(node.op_type, opset):
            return True
    return shadows(result.graph) or any(_names(model, what) != _names(result, what) for what in ("input", "output"))


def shadows(graph: Any, around: frozenset[str] = frozenset()) -> bool:
    """Whether a subgraph makes a value under a name that a graph around it has taken: onnxruntime refuses that.

    Its own optimiser makes such models (seen with 1.23.2: ``gemm_input_reshape_arg`` in a graph and in a branch of it).
    """
    own = {name for node in graph.node for name in node.output if name}
    if not own.isdisjoint(around):
        return True
    taken = around | own | {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    return any(shadows(inner, taken) for inner in _subgraphs(graph))


def _names(model: Any, what: str) -> list[str]:
    return [value.name for value in getattr(model.graph, what)]


def restore(result: Any, original: Any) -> None:
    """Give a quantised model back what the tools changed of the original: IR version, opsets, metadata, declarations,
    and who made it. Domains that nodes need and the original did not import are imported in version 1."""
    result.ir_version = original.ir_version
    for name in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        setattr(result, name, getattr(original, name))
    _replace(result.metadata_props, original.metadata_props)
    known = {given.domain for given in original.opset_import}
    needed = {node.domain for node in _all_nodes(result.graph)} - known - set(ONNX_DOMAINS)
    _replace(result.opset_import, original.opset_import)
    for domain in sorted(needed):
        result.opset_import.add(domain=domain, version=1)
    for what in ("input", "output"):
        _replace(getattr(result.graph, what), getattr(original.graph, what))
    result.graph.name, result.graph.doc_string = original.graph.name, original.graph.doc_string
    _keep_defaults(result.graph, original.graph)
    there = {name for node in result.graph.node for name in node.output}
    _replace(result.graph.value_info, [value for value in original.graph.value_info if value.name in there])


def _keep_defaults(result: Any, original: Any) -> None:
    """An input that a caller may leave out keeps its initialiser, used or not."""
    inputs, there = {value.name for value in original.input}, {tensor.name for tensor in result.initializer}
    result.initializer.extend(
        tensor for tensor in original.initializer if tensor.name in inputs and tensor.name not in there
    )


def _all_nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for inner in _subgraphs(graph):
        yield from _all_nodes(inner)


def _replace(field: Any, values: Any) -> None:
    copies = list(values)
    del field[:]
    field.extend(copies)
