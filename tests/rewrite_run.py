"""Carrying out one rewrite as the pipeline does, running what comes of it, and comparing the two within a promise."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from ort_metainfer.model.graph import describe
from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Context, Outcome, Rewrite
from ort_metainfer.rewrites.draft import Draft

Feeds = Mapping[str, Any]

TOLERANCES = {"exact": 1e-6, "float32-equivalent": 1e-5}
"""Promise -> relative L2 error; ``exact`` allows for another order of summation."""

NOISE_FACTOR = 20.0
"""How far beyond what a rounding error of its inputs does to it an ill-conditioned graph may be off."""

LEVELS = {
    "off": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "default": onnxruntime.SessionOptions().graph_optimization_level,
}

FULL_PRECISION = {"session.qdq_matmulnbits_accuracy_level": "1"}
"""Without it onnxruntime's default level computes a product with dequantised weights in int8 (seen: 2e-3 off)."""


@dataclass(frozen=True)
class Applied:
    """What a rewrite made of a model: the model it wrote, and what it said."""

    file: Path
    outcome: Outcome

    @property
    def model(self) -> Any:
        """The rewritten model, external data left where it is."""
        return onnx.load(str(self.file), load_external_data=False)


def apply(
    rewrite: Rewrite,
    file: Path,
    folder: Path,
    graph: Graph,
    feeds: Sequence[Feeds] = (),
    parameters: Mapping[str, Any] | None = None,
) -> Applied:
    """Rewrite the model in ``file`` into ``folder``, as :func:`ort_metainfer.rewrites.rewriting.rewrite_model` does."""
    shapes = {spec.name: tuple(feeds[0][spec.name].shape) for spec in graph.inputs if feeds and _shaped(feeds[0], spec)}
    (folder / "scratch").mkdir(parents=True, exist_ok=True)
    context = Context(folder / "scratch", graph, tuple(feeds), feeds_are_real=True, shapes=shapes)
    draft = Draft(file, folder / "scratch")
    outcome = rewrite.rewrite(draft, context, rewrite.complete(rewrite.transform(**(parameters or {}))))
    return Applied(draft.save(folder / "rewritten.onnx")[0], outcome)


def _shaped(feeds: Feeds, spec: Any) -> bool:
    return hasattr(feeds.get(spec.name), "shape")


def apply_to_bytes(
    rewrite: Rewrite,
    model: bytes,
    feeds: Sequence[Feeds] = (),
    parameters: Mapping[str, Any] | None = None,
    graph: Graph | None = None,
) -> tuple[bytes, Outcome]:
    """The same for a model in memory; nothing is left on disk."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.onnx")
        file.write_bytes(model)
        applied = apply(rewrite, file, Path(folder, "out"), graph or describe(model), feeds, parameters)
        return applied.file.read_bytes(), applied.outcome


def session(model: bytes | Path, level: str = "off") -> onnxruntime.InferenceSession:
    """One thread on the CPU provider."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = LEVELS[level]
    options.log_severity_level = 4
    for key, value in FULL_PRECISION.items():
        options.add_session_config_entry(key, value)
    given = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def fitting_feeds(rewrite: Rewrite, feeds: Sequence[Feeds]) -> list[int]:
    """Places of the feeds that the result must take: where shapes are fixed, those of the first one's shapes."""
    if "shapes" not in rewrite.needs:
        return list(range(len(feeds)))
    shapes = [{name: getattr(value, "shape", None) for name, value in feed.items()} for feed in feeds]
    return [place for place, found in enumerate(shapes) if found == shapes[0]]


def outputs(model: bytes | Path, feeds: Sequence[Feeds], level: str = "off") -> list[list[Any]]:
    """Every output for every feed."""
    made = session(model, level)
    return [made.run(None, dict(feed)) for feed in feeds]


def arrays(value: Any) -> Iterator[np.ndarray]:
    """The tensors in an output: of a sequence each, of an absent optional none."""
    if isinstance(value, list):
        for item in value:
            yield from arrays(item)
    elif value is not None:
        yield np.asarray(value)


def error_of(got: Any, expected: Any) -> float:
    """Relative L2 error over all tensors of an output; infinite where anything but a finite number differs."""
    pairs = list(zip(arrays(got), arrays(expected), strict=False))
    if len(pairs) != sum(1 for _ in arrays(expected)) or len(pairs) != sum(1 for _ in arrays(got)):
        return float("inf")
    return max((_tensor_error(a, b) for a, b in pairs), default=0.0)


def _tensor_error(got: np.ndarray, expected: np.ndarray) -> float:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return float("inf")
    if expected.dtype.kind not in "fc":
        return 0.0 if np.array_equal(got, expected) else float("inf")
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = got.astype(wide), expected.astype(wide)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return float("inf")
    a, b = a[finite], b[finite]
    norm = max(float(np.linalg.norm(b)), FLOOR * b.size**0.5)
    return float(np.linalg.norm(a - b)) / norm if b.size else 0.0


FLOOR = 1e-2
"""Root mean square below which an output counts as this large: what is left where large numbers cancel out is noise."""


def tolerance_for(promise: str, output: Any) -> float:
    """The promise's tolerance, and no less than two roundings of the output's type."""
    kinds = [array.dtype for array in arrays(output) if array.dtype.kind == "f"]
    widest = max((float(np.finfo(dtype).eps) for dtype in kinds), default=0.0)
    return max(TOLERANCES[promise], 2 * widest if widest > 1e-6 else 0.0)


def difference(
    got: Sequence[Sequence[Any]], expected: Sequence[Sequence[Any]], promise: str, bound: float | None = None
) -> str | None:
    """Where ``got`` differs from ``expected`` by more than the promise (or ``bound``); None where it does not."""
    for feed, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            error = error_of(a, b)
            if not error <= (tolerance_for(promise, b) if bound is None else bound):
                return f"output {place} with feed {feed} is off by {error:.2g} (relative L2), {promise}"
    return None


def broken_surface(before: Any, after: Any, rewrite: Rewrite) -> list[str]:
    """What a caller or a provider sees that must have stayed: names, types, opsets, metadata, defaults of inputs."""
    faults: list[str] = []
    for what in ("input", "output"):
        old, new = ([_declared(value) for value in getattr(model.graph, what)] for model in (before, after))
        if [spec[:2] for spec in old] != [spec[:2] for spec in new]:
            faults.append(f"{what}s were {old}, are {new}")
        elif rewrite.dimension != "shapes":
            faults += [
                f"{what} {a[0]} was {a[2]}, is {b[2]}" for a, b in zip(old, new, strict=True) if _moved(a, b, what)
            ]
    opsets = {o.domain: o.version for o in after.opset_import}
    for known in before.opset_import:
        if opsets.get(known.domain) != known.version and not ("opset" in rewrite.name and known.domain == ""):
            faults.append(f"opset of {known.domain or 'ai.onnx'} was {known.version}, is {opsets.get(known.domain)}")
    kept = {p.key: p.value for p in after.metadata_props}
    faults += [f"metadata_props lost {p.key}" for p in before.metadata_props if kept.get(p.key) != p.value]
    if before.ir_version != after.ir_version:
        faults.append(f"ir_version was {before.ir_version}, is {after.ir_version}")
    faults += _lost_defaults(before.graph, after.graph)
    if not rewrite.providers:
        faults += [
            f"com.microsoft.{name} without stated providers" for name in _contributed(after) - _contributed(before)
        ]
    return faults


def _declared(value: Any) -> tuple[str, Any, list[Any] | None]:
    """Name, type without its shape, and the shape with None where a dimension is open."""
    kind = onnx.TypeProto()
    kind.CopyFrom(value.type)
    dims = None
    if kind.HasField("tensor_type") and kind.tensor_type.HasField("shape"):
        dims = [
            dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else None)
            for dim in kind.tensor_type.shape.dim
        ]
    kind.tensor_type.ClearField("shape") if kind.HasField("tensor_type") else None
    return value.name, kind.SerializeToString(deterministic=True), dims


def _moved(old: Any, new: Any, what: str) -> bool:
    """Whether a declared shape is another one; an output's open dimensions may have been worked out."""
    if what == "input" or old[2] is None or new[2] is None:
        return bool(old[2] != new[2] and not (what == "output" and old[2] is None))
    return len(old[2]) != len(new[2]) or any(a is not None and a != b for a, b in zip(old[2], new[2], strict=True))


def _lost_defaults(before: Any, after: Any) -> Iterator[str]:
    inputs = {value.name for value in before.input}
    new = {tensor.name: tensor for tensor in after.initializer}
    for tensor in before.initializer:
        if tensor.name not in inputs or tensor.data_location == onnx.TensorProto.EXTERNAL:
            continue
        there = new.get(tensor.name)
        if there is None or not np.array_equal(onnx.numpy_helper.to_array(there), onnx.numpy_helper.to_array(tensor)):
            yield f"the default of input {tensor.name} is gone or another one"


def _contributed(model: Any) -> set[str]:
    from ort_metainfer.model.walking import nodes_of

    return {node.op_type for node in nodes_of(model) if node.domain == "com.microsoft"}
