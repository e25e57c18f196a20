"""Norms and activations with the sums before them: SkipLayerNormalization, EmbedLayerNormalization, BiasGelu."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ort_metainfer.rewrites.base import Parameter, Rewrite
from ort_metainfer.rewrites.building import Builder
from ort_metainfer.rewrites.contributed import KERNELS, MICROSOFT, SOURCES
from ort_metainfer.rewrites.fusing import DONE_BY_ORT, NOT_DONE_BY_ORT, Fusion, Keep
from ort_metainfer.rewrites.known_shapes import sizes_of
from ort_metainfer.rewrites.node_rewrite import Plan, Surroundings
from ort_metainfer.rewrites.patterns import attribute, constant, constant_size, dims, dtype, produced

__all__ = ["REWRITES", "FuseBiasGelu", "FuseEmbedLayerNorm", "FuseSkipLayerNorm"]

DEFAULT_EPSILON = 1e-5


class FuseSkipLayerNorm(Fusion):
    """LayerNormalization of a sum as com.microsoft.SkipLayerNormalization, which can give the sum as well."""

    name = "fuse-skip-layer-norm"
    operators = ("LayerNormalization",)
    also = ("Add",)
    providers = KERNELS["SkipLayerNormalization"]
    evidence = NOT_DONE_BY_ORT + "Kokoro 2777, 2765; MiniLM 129, 123"
    sources = SOURCES
    knows_sizes = True

    def find(self, node: Any, around: Surroundings) -> Plan | Keep | str | None:
        """A sum of two tensors of one shape before it."""
        add = produced(node.inputs[0], "Add")
        if add is None:
            return None
        reason = _plain_norm(node)
        if reason is not None:
            return reason
        left, right = (sizes_of(value) for value in add.inputs)
        if left is None or left != right or None in left or len(left) != 3:
            return "its two operands are not known to have one shape of three dimensions"
        used = len(add.outputs[0].uses()) > 1 or add.outputs[0].is_graph_output()
        if not used:
            return Plan(node, lambda make: _skip_norm(make, add, node)[0], [add])
        if node.outputs[0].is_graph_output() or not all(value.is_initializer() for value in node.inputs[1:] if value):
            return "its sum is used elsewhere, and it cannot be made as early as that"
        if add.graph is not node.graph:
            return "its parts lie in different graphs"
        return Plan(add, lambda make: _with_sum(make, add, node))


def _plain_norm(node: Any) -> str | None:
    """Why a LayerNormalization is not the one that the fused operators do."""
    known = dims(node.inputs[0])
    if known is None or attribute(node, "axis", -1) not in (-1, len(known) - 1):
        return "it does not normalise the last dimension only"
    if attribute(node, "stash_type", 1) != 1 or dtype(node.inputs[0]) != "FLOAT":
        return "it does not compute in float32"
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        return "its statistics are used"
    if len(dims(node.inputs[1]) or ()) != 1 or (len(node.inputs) > 2 and len(dims(node.inputs[2]) or ()) != 1):
        return "its scale or shift is no vector"
    return None


def _skip_norm(make: Builder, add: Any, node: Any, count: int = 1) -> list[Any]:
    given = {"epsilon": float(attribute(node, "epsilon", DEFAULT_EPSILON))}
    inputs = [*add.inputs, *node.inputs[1:]]
    made = make.many("SkipLayerNormalization", *inputs, count=count, domain=MICROSOFT, **given)
    for unused in made[1:3]:
        unused.name = ""
    return made


def _with_sum(make: Builder, add: Any, node: Any) -> Any:
    """The sum, after putting the normalised one in the place of ``node``'s."""
    made = _skip_norm(make, add, node, count=4)
    old = node.outputs[0]
    made[0].type, made[0].shape = old.type, old.shape
    old.replace_all_uses_with(made[0])
    node.graph.remove(node, safe=True)
    return made[3]


class FuseBiasGelu(Fusion):
    """Gelu or FastGelu of a sum with a constant vector as com.microsoft.BiasGelu or FastGelu with a bias."""

    name = "fuse-bias-gelu"
    operators = ("Gelu", "com.microsoft.Gelu", "com.microsoft.FastGelu")
    also = ("Add",)
    providers = KERNELS["BiasGelu"]
    evidence = DONE_BY_ORT + " for the form with Erf on the CPU, CUDA and DirectML providers"
    sources = SOURCES

    def find(self, node: Any, around: Surroundings) -> Plan | Keep | str | None:
        """A sum with a vector as long as the last dimension before it."""
        add = produced(node.inputs[0], "Add")
        if add is None or len(node.inputs) > 1:
            return None
        if dtype(node.inputs[0]) != "FLOAT":
            return f"the CPU's kernel takes no {dtype(node.inputs[0]) or 'unknown type'}"
        pairs = [tuple(add.inputs), tuple(add.inputs)[::-1]]
        found = next(((value, bias) for value, bias in pairs if _is_vector_along(bias, value)), None)
        if found is None:
            return "what is added is no constant vector as long as the last dimension"
        fast = node.op_type == "FastGelu" or attribute(node, "approximate", "none") == "tanh"
        operator = "FastGelu" if fast else "BiasGelu"
        return Plan(node, lambda make: make(operator, *found, domain=MICROSOFT), [add])


def _is_vector_along(bias: Any, value: Any) -> bool:
    sizes, whole = dims(bias), dims(value)
    return constant_size(bias) is not None and sizes is not None and bool(whole) and sizes == (whole or ())[-1:]


@dataclass(frozen=True)
class _LookUp:
    """A row of a table for each index; the nodes that do it."""

    table: Any
    indices: Any
    node: Any


class FuseEmbedLayerNorm(Fusion):
    """LayerNormalization of two or three looked-up embeddings as com.microsoft.EmbedLayerNormalization.

    The fused operator refuses negative indices, with which Gather counts from the end: unless a strategy says that
    there are none, only constant ones are fused.
    """

    name = "fuse-embed-layer-norm"
    operators = ("LayerNormalization",)
    also = ("Gather", "Add")
    providers = KERNELS["EmbedLayerNormalization"]
    evidence = DONE_BY_ORT + " where token, segment and position are looked up as BERT does"
    sources = SOURCES
    trusts_names = True
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "trust_indices": Parameter(bool, False, "whether indices that are not constant are taken not to be negative")
    }

    def find(self, node: Any, around: Surroundings) -> Plan | Keep | str | None:
        """A sum of look-ups before it."""
        found = list(_looked_up(node.inputs[0]))
        parts = [part for part, _ in found if isinstance(part, _LookUp)]
        if len(parts) < 2:
            return None
        reason = _plain_norm(node)
        if reason is not None or len(parts) != len(found) - sum(part is None for part, _ in found) or len(parts) > 3:
            return reason or "it is not the sum of two or three look-ups"
        if len(node.inputs) < 3:
            return "it has no shift"
        if not around.parameters["trust_indices"] and not all(_is_never_negative(part.indices) for part in parts):
            return "its indices may be negative"
        ordered = _ordered(parts)
        if ordered is None:
            return "the shapes of its indices are not known to fit"
        inner = [adds for _, adds in found if adds is not None] + [part.node for part in parts]
        return Plan(node, lambda make: _embed(make, ordered, node), inner)


def _is_never_negative(indices: Any) -> bool:
    array = constant(indices)
    return array is not None and bool((array >= 0).all())


def _looked_up(value: Any) -> Iterator[tuple[_LookUp | str | None, Any]]:
    """The look-ups that a value is the sum of, or a word for anything else; and the Adds between."""
    add = produced(value, "Add")
    if add is not None:
        yield None, add
        for part in add.inputs:
            yield from _looked_up(part)
        return
    node = produced(value, "Gather")
    table = None if node is None else node.inputs[0]
    if node is None or attribute(node, "axis", 0) != 0 or constant_size(table) is None or len(dims(table) or ()) != 2:
        yield "something else", None
        return
    yield _LookUp(table, node.inputs[1], node), None


def _ordered(parts: list[_LookUp]) -> list[_LookUp | None] | None:
    """Token, segment (or None) and position; the last is the one whose indices are the same for the whole batch."""
    sizes = [sizes_of(part.indices) for part in parts]
    if any(size is None or len(size) != 2 or None in size for size in sizes):
        return None
    whole = [place for place, size in enumerate(sizes) if size is not None and size[0] != 1]
    alike = [place for place, size in enumerate(sizes) if size is not None and size[0] == 1]
    if len(alike) == 1 and whole:
        position = alike[0]
    elif not alike and len(whole) > 1:
        position = whole[-1]
    else:
        return None
    rest = [place for place in range(len(parts)) if place != position]
    like = sizes[rest[0]] or ()
    if any(sizes[place] != like for place in rest) or (sizes[position] or ())[1:] != like[1:]:
        return None
    return [parts[rest[0]], parts[rest[1]] if len(rest) > 1 else None, parts[position]]


def _embed(make: Builder, ordered: list[_LookUp | None], node: Any) -> Any:
    token, segment, position = ordered
    indices = [None if part is None else _as_int32(make, part.indices) for part in ordered]
    tables = [None if part is None else part.table for part in (token, position, segment)]
    inputs = [indices[0], indices[1], *tables, *node.inputs[1:3], None, indices[2]]
    given = {"epsilon": float(attribute(node, "epsilon", DEFAULT_EPSILON))}
    made = make.many("EmbedLayerNormalization", *inputs, count=2, domain=MICROSOFT, **given)
    return made[0]


def _as_int32(make: Builder, value: Any) -> Any:
    import onnx_ir

    return value if dtype(value) == "INT32" else make("Cast", value, to=int(onnx_ir.DataType.INT32))


REWRITES: tuple[Rewrite, ...] = (FuseSkipLayerNorm(), FuseBiasGelu(), FuseEmbedLayerNorm())
