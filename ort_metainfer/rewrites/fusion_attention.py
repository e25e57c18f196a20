"""Attention as one operator of onnxruntime's own, and the fusions of whole transformers that onnxscript has."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from ort_metainfer.errors import RewriteError
from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.attending import Attention, attention_of
from ort_metainfer.rewrites.base import Context, Outcome, Parameter, Rewrite
from ort_metainfer.rewrites.building import Builder
from ort_metainfer.rewrites.contributed import KERNELS, MICROSOFT, SOURCES
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.fusing import NOT_DONE_BY_ORT, Fusion, Keep
from ort_metainfer.rewrites.known_shapes import sizes_of
from ort_metainfer.rewrites.node_rewrite import Plan, Surroundings
from ort_metainfer.rewrites.patterns import all_graphs, constant, constant_size, dtype, learn_types, produced

__all__ = ["REWRITES", "FuseAttention", "FuseTransformer"]


class FuseAttention(Fusion):
    """Scaled dot-product attention with its heads split and joined, as com.microsoft.MultiHeadAttention.

    A mask is made as large as the scores, which the operator asks for. Dimensions of inputs that are declared under one
    name are taken to be equal. A mask that would make the scores larger is an error to the operator.
    """

    name = "fuse-attention"
    evidence = NOT_DONE_BY_ORT + "MiniLM 127, 118 (behind fold-shapes, masks trusted)"
    operators = ("Reshape",)
    also = ("Softmax",)
    providers = KERNELS["MultiHeadAttention"]
    sources = SOURCES
    trusts_names = True
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "trust_masks": Parameter(
            bool, False, "whether a mask of open sizes is taken to broadcast to the scores, and never the other way"
        )
    }

    def find(self, node: Any, around: Surroundings) -> Plan | Keep | str | None:
        """The reshape that joins the heads, with the rest of the pattern before it."""
        joined = produced(node.inputs[0], "Transpose")
        found = None if joined is None else attention_of(joined)
        if not isinstance(found, Attention):
            return found
        if dtype(found.query) != "FLOAT":
            return f"the CPU's kernel takes no {dtype(found.query) or 'unknown type'}"
        shape, plain = constant(node.inputs[1]), _joins_only(node, joined)
        if not plain and (shape is None or (shape.reshape(-1)[2:] == 0).any()):
            return "the shape in which the heads are joined is not constant"
        mask = _mask_objection(found, around.parameters["trust_masks"])
        if mask is not None:
            return mask
        if plain:
            return Plan(node, lambda make: _attended(found, make), found.nodes)
        return Plan(node, lambda make: make("Reshape", _attended(found, make), shape), found.nodes)


def _joins_only(node: Any, joined: Any) -> bool:
    """Whether the reshape is known to make one dimension of the heads and their size, and nothing else."""
    before, after = sizes_of(joined.outputs[0]), sizes_of(node.outputs[0])
    if before is None or after is None or len(before) != 4 or len(after) != 3 or None in before:
        return False
    return before[:2] == after[:2] and after[2] == int(before[2] or 0) * int(before[3] or 0)


def _mask_objection(found: Attention, trusted: bool) -> str | None:
    """Why the mask may not be one of the scores' shape or broadcast to it."""
    if found.mask is None:
        return None
    mask, scores = sizes_of(found.mask), sizes_of(found.scores)
    if mask is None or scores is None or len(mask) > 4:
        return "the shape of the mask is not known"
    if trusted and (len(mask) < 3 or mask[-3] in (1, found.heads)):
        return None
    for axis in range(-len(mask), 0):
        if mask[axis] != 1 and (mask[axis] is None or mask[axis] != scores[axis]):
            return "the mask is not known to have the shape of the scores"
    return None


def _attended(found: Attention, make: Builder) -> Any:
    query, key, value = (_flat(part, make) for part in (found.query, found.key, found.value))
    bias = None if found.mask is None else _bias(found, make)
    given = {"num_heads": found.heads, "scale": found.scale}
    inputs = [query, key, value] if bias is None else [query, key, value, None, None, bias]
    return make("MultiHeadAttention", *inputs, domain=MICROSOFT, **given)


def _flat(value: Any, make: Builder) -> Any:
    """[batch, time, heads, size] as [batch, time, heads * size]: what the heads were split from, if that is plain."""
    sizes = sizes_of(value) or ()
    width = int(sizes[2] or 0) * int(sizes[3] or 0)
    split = produced(value, "Reshape")
    before = None if split is None else sizes_of(split.inputs[0])
    if (
        before is not None
        and len(before) == 3
        and before[0] is not None
        and (*before[:2], width) == (*sizes[:2], before[2])
    ):
        return split.inputs[0]
    return make("Reshape", value, np.asarray([0, 0, width], np.int64))


def _bias(found: Attention, make: Builder) -> Any:
    """The mask in four dimensions, with the last two those of the scores."""
    sizes = sizes_of(found.mask) or ()
    mask = found.mask
    if len(sizes) < 4:
        mask = make.unsqueeze(mask, list(range(4 - len(sizes))))
    wanted = sizes_of(found.scores) or ()
    if len(sizes) > 1 and None not in sizes and sizes[-2:] == wanted[-2:]:
        return mask
    times = make.slice(make("Shape", found.query), [1], [2], [0]), make.slice(make("Shape", found.key), [1], [2], [0])
    ones = np.asarray([1, 1], np.int64)
    return make("Expand", mask, make("Concat", ones, *times, axis=0))


class FuseTransformer(Rewrite):
    """onnxscript's fusions for onnxruntime: attention with rotary positions, caches, shared keys; norms with residuals.

    MultiHeadAttention, GroupQueryAttention, RotaryEmbedding, SkipLayerNormalization, SkipSimplifiedLayerNormalization,
    BiasGelu and what its optimiser does on the way. Taken only where one of the fusions applied, and refused where that
    optimiser would take a small constant for zero or one, or lose an input that has a default.
    """

    name = "fuse-transformer"
    evidence = NOT_DONE_BY_ORT + "MiniLM 129, 124"
    dimension = "fusion"
    promise = "float32-equivalent"
    providers = KERNELS["MultiHeadAttention"]
    sources = ("https://github.com/microsoft/onnxscript/tree/main/onnxscript/rewriter/ort_fusions", *SOURCES)

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        """No attention, or what onnxscript's optimiser does not treat well."""
        if graph.has_control_flow:
            return "onnxscript's optimiser is not let loose on graphs within graphs"
        if graph.overridable:
            return "an input has a default, which onnxscript's optimiser may lose"
        if not graph.count("Softmax", "LayerNormalization", "ReduceMean"):
            return "the model has no Softmax, LayerNormalization or ReduceMean"
        return None

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Fuse a copy, and go on with it if a fusion applied."""
        from onnxscript.rewriter.ort_fusions._core import fuse_xformers

        before = draft.ir
        reason = _objection(before)
        if reason is not None:
            return Outcome(0, notes=(reason,))
        try:
            with _quiet("onnx_ir", "onnxscript"):
                after, counts = fuse_xformers(before.clone())
        except Exception as error:  # a third party's library raises whatever it likes
            raise RewriteError(f"{draft.original}: onnxscript's fusions failed: {error}") from error
        applied = {name: count for name, count in sorted(counts.items()) if count}
        useful = {name: count for name, count in applied.items() if name not in INTERMEDIATE}
        if not useful:
            return Outcome(0, notes=("none of onnxscript's fusions for transformers applies",))
        lost = _lost(before, after)
        if lost is not None:
            return Outcome(0, notes=(lost,))
        for domain, version in before.graph.opset_imports.items():
            after.graph.opset_imports.setdefault(domain, version)
        for old, new in zip(before.graph.outputs, after.graph.outputs, strict=True):
            new.type, new.shape = old.type, old.shape
        draft.go_on_with(after)
        notes = (f"fused: {', '.join(f'{name} {count}' for name, count in useful.items())}",)
        return Outcome(sum(useful.values()), notes=notes, figures={name: float(n) for name, n in useful.items()})


INTERMEDIATE = ("sdpa", "erf_gelu", "gelu", "mha_scale", "mha_bias", "rms_normalization", "cos_sin_cache")
"""Steps on the way to an operator that is counted by itself, or an operator that the ``operators`` rewrites make."""

FUSED = ("Softmax", "LayerNormalization", "ReduceMean", "Erf", "Sin", "Cos")
"""Operators that its patterns are made of."""

NEARLY = {0: 1e-7, 1: 2e-5}
"""Constants that are nearer to these are refused: onnxscript 0.7's matcher compares with math.isclose(rel_tol=1e-5,
abs_tol=1e-8), and drops the addition or the product."""


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Without the warnings of these libraries about what they skip."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _objection(model: Any) -> str | None:
    learn_types(model)
    for graph in all_graphs(model):
        if any(value.is_graph_input() for value in graph.initializers.values()):
            return "an input has a default, which onnxscript's optimiser may lose"
        for node in graph:
            if any(given.type.name in ("GRAPH", "GRAPHS") for given in node.attributes.values()):
                return "onnxscript's optimiser is not let loose on graphs within graphs"
            kind = dtype(node.inputs[0]) if node.op_type in FUSED and node.inputs else "FLOAT"
            if kind != "FLOAT":
                return f"its operators have kernels for float32 everywhere, and this is {kind or 'of unknown type'}"
            if node.op_type in ("Add", "Sub", "Mul", "Div") and any(map(_is_nearly, node.inputs)):
                return "onnxscript's optimiser would take one of its constants for zero or one"
    return None


def _is_nearly(value: Any) -> bool:
    """Whether a constant is nearly but not quite zero or one everywhere."""
    size = constant_size(value)
    array = constant(value) if size and size <= 1 << 16 else None
    if array is None or array.dtype.kind != "f":
        return False
    return any((array != number).any() and (np.abs(array - number) <= off).all() for number, off in NEARLY.items())


def _lost(before: Any, after: Any) -> str | None:
    for what in ("inputs", "outputs"):
        names = [[value.name for value in getattr(model.graph, what)] for model in (before, after)]
        if names[0] != names[1]:
            return f"onnxscript's fusions would change the {what} from {names[0]} to {names[1]}"
    known = {domain: version for domain, version in before.graph.opset_imports.items() if domain}
    if any(after.graph.opset_imports.get(domain, version) != version for domain, version in known.items()):
        return "onnxscript's fusions would change an opset"
    if before.graph.opset_imports.get("") != after.graph.opset_imports.get(""):
        return "onnxscript's fusions would change the opset"
    return None


REWRITES: tuple[Rewrite, ...] = (FuseAttention(), FuseTransformer())
