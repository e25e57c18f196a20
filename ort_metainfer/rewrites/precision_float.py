"""Float32 as float16 or bfloat16, between casts; inputs and outputs of the model stay what they are.

onnxruntime.transformers.float16 does the like for whole models; here every node is asked by its schema, single nodes
stay out by name or because their values were seen to be too large, and subgraphs and overridable inputs are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Context, Outcome, Parameter, Rewrite, Site
from ort_metainfer.rewrites.building import Builder, Names, drop
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.float_islands import KEPT, PRODUCTS, connected, slots_of, unfit, untyped
from ort_metainfer.rewrites.observing import observe
from ort_metainfer.rewrites.patterns import all_graphs, constant, constant_size, dtype, learn_types
from ort_metainfer.rewrites.products import CHOICE, check_names, label_of

__all__ = ["REWRITES", "BFloat16", "Float16"]

MOST_SITES = 100

HEADROOM = 0.5
"""Share of the type's largest number that a value seen in the feeds may reach: other inputs go further."""


@dataclass
class _Work:
    """What is known while one graph is converted."""

    kind: str
    largest: float
    least: float
    names: Names
    opset: int
    ir_version: int
    clipped: int = 0
    vanished: int = 0


class _Narrow(Rewrite):
    """Nodes whose operator takes a narrower float type, in islands that hold a product."""

    dimension = "precision"
    promise = "lossy"
    kind: ClassVar[str]
    largest: ClassVar[float]
    least: ClassVar[float]
    oldest_opset: ClassVar[int]
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "block": Parameter(list, [], "further operators left in float32"),
        **CHOICE,
    }

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        """No product, or an opset that has no such type."""
        if not graph.count(*PRODUCTS):
            return f"the model has none of {', '.join(PRODUCTS)}"
        if graph.quantisation != "none":
            return f"the model is quantised already ({graph.quantisation})"
        opset = graph.opsets.get("ai.onnx", 0)
        if opset < self.oldest_opset:
            return f"the model is of opset {opset}; {self.kind.lower()} needs {self.oldest_opset}"
        return None

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Convert every island, subgraphs included."""
        reason = self.objection(context.graph, context)
        if reason is not None:
            return Outcome(0, notes=(reason,))
        before = draft.file()
        learn_types(draft.ir)
        large = self._too_large(draft.ir.graph, before, context)
        model = draft.ir
        learn_types(model)
        graphs, work = all_graphs(model), self._work(model)
        check_names(self.name, model, parameters)
        notes: list[str] = []
        sites: list[Site] = []
        changed = 0
        for graph in graphs:
            island, found = self._island(graph, parameters, large, work.opset)
            sites += found
            _convert(graph, island, work)
            changed += len(island)
        if not changed:
            notes += list(dict.fromkeys(site.reason for site in sites if site.reason))[:3] or ["nothing to convert"]
        notes += _notes(work, bool(context.feeds))
        return Outcome(changed, tuple(sites[:MOST_SITES]), tuple(notes))

    def _work(self, model: Any) -> _Work:
        opset = int(model.graph.opset_imports.get("", 0))
        return _Work(self.kind, self.largest, self.least, Names(model), opset, model.ir_version)

    def _too_large(self, graph: Any, file: Path, context: Context) -> dict[str, float]:
        """Values of the main graph that were seen to be larger than the type is safe for -> the largest."""
        names = [
            value.name
            for node in graph
            if node.op_type not in KEPT
            for value in node.outputs
            if value.name and dtype(value) == "FLOAT"
        ]
        found: dict[str, float] = {}
        for name, _, array in observe(file, names if context.feeds else [], context.feeds, context.deadline):
            finite = array[np.isfinite(array)] if array.dtype == np.float32 else array[:0]
            largest = float(np.abs(finite).max(initial=0.0))
            if largest > self.largest * HEADROOM:
                found[name] = max(largest, found.get(name, 0.0))
        return found

    def _island(
        self, graph: Any, parameters: Mapping[str, Any], large: Mapping[str, float], opset: int
    ) -> tuple[list[Any], list[Site]]:
        fit, sites = [], []
        for node in graph:
            reason = unfit(node, parameters, large) or untyped(node, self.kind, opset)
            if reason is None:
                fit.append(node)
            if node.op_type in PRODUCTS:
                sites.append(Site(label_of(node), reason or ""))
        return connected(fit), sites


def _convert(graph: Any, island: Sequence[Any], work: _Work) -> None:
    """Make the island's nodes compute in the narrower type, with casts where others look."""
    inside = {id(node): {(side, place) for side, place, _ in slots_of(node, work.kind, work.opset)} for node in island}
    narrow: set[int] = set()
    for node in island:
        for place, value in enumerate(node.outputs):
            if ("out", place) in inside[id(node)]:
                _narrow_output(graph, node, value, inside, work)
                narrow.add(id(value))
    casts: dict[int, Any] = {}
    taken: list[Any] = []  # kept, so that ids stay taken
    for node in island:
        builder = Builder(node, work.names, work.kind.lower(), work.opset, work.ir_version)
        for place, value in enumerate(node.inputs):
            if ("in", place) in inside[id(node)] and id(value) not in narrow:
                if id(value) not in casts:
                    casts[id(value)] = _narrowed(value, builder, work)
                    taken.append(value)
                node.replace_input_with(place, casts[id(value)])
        graph.insert_before(node, builder.nodes)
    for value in taken:
        _forget(value)


def _forget(value: Any) -> None:
    """Remove a constant that nobody uses any more."""
    if value.uses() or value.is_graph_output() or value.is_graph_input() or constant_size(value) is None:
        return
    if value.producer() is not None:
        drop(value.producer())
    elif value.is_initializer():
        del value.graph.initializers[value.name]


def _narrow_output(graph: Any, node: Any, value: Any, inside: Mapping[int, Any], work: _Work) -> None:
    """Change one output's type; whoever wants float32 gets a cast, which takes the name."""
    import onnx_ir

    uses = [(use.node, use.idx) for use in value.uses()]
    kept = [(user, place) for user, place in uses if ("in", place) in inside.get(id(user), ())]
    if value.is_graph_output() or len(kept) < len(uses):
        wide = onnx_ir.Value(name=value.name, type=value.type, shape=value.shape)
        wide.meta.update(value.meta)
        value.replace_all_uses_with(wide, replace_graph_outputs=True)
        value.name = work.names.fresh(f"{value.name}/{work.kind.lower()}")
        for user, place in kept:
            user.replace_input_with(place, value)
        cast = onnx_ir.node("Cast", [value], {"to": onnx_ir.DataType.FLOAT.value}, outputs=[wide])
        cast.name = work.names.fresh(f"{value.name}/cast")
        graph.insert_after(node, cast)
    value.type = onnx_ir.TensorType(onnx_ir.DataType[work.kind])


def _narrowed(value: Any, builder: Builder, work: _Work) -> Any:
    """A value that is float32, in the narrower type."""
    import onnx_ir

    if constant_size(value) is None:
        return builder("Cast", value, to=onnx_ir.DataType[work.kind].value)
    array = constant(value)
    assert array is not None
    over = np.isfinite(array) & (np.abs(array) > work.largest)
    work.clipped += int(over.sum())
    bounded = np.where(over, np.sign(array) * np.float32(work.largest), array)
    result = bounded.astype(onnx_ir.DataType[work.kind].numpy())
    vanished = (result == 0) & (array != 0)
    if vanished.any():  # zero would turn a guard against division by it into none
        work.vanished += int(vanished.sum())
        result = np.where(vanished, (np.sign(array) * np.float32(work.least)).astype(result.dtype), result)
    return builder.constant(result)


def _notes(work: _Work, observed: bool) -> Iterator[str]:
    if work.clipped:
        yield f"{work.clipped} numbers in weights are beyond {work.largest:g} and were clipped to it"
    if work.vanished:
        kind = work.kind.lower()
        yield f"{work.vanished} numbers in weights are too small for {kind} and were raised to {work.least:g}"
    if not observed:
        yield "without inputs nobody looked whether values overflow"


class Float16(_Narrow):
    """Float16: half the memory traffic, and twice the arithmetic where the device has it.

    With inputs at hand, nodes whose values come near the largest float16 (65504) stay in float32.
    """

    name = "float16"
    kind = "FLOAT16"
    largest = 65504.0
    least = 5.9604645e-08
    oldest_opset = 7
    evidence = (
        "never measured to pay here: onnxruntime's CPU provider has no float16 kernel for MatMul, Gemm, Conv, LSTM and "
        "most of what lies between (1.32, x86-64: for Attention, LayerNormalization and what moves data only), casts "
        "them back to float32 and is slower for it; meant for GPUs and NPUs"
    )


class BFloat16(_Narrow):
    """Bfloat16: the range of float32 with 8 bits of precision, on devices that compute in it.

    onnxruntime's CPU provider has no kernels for products in it (1.32 has some for LayerNormalization, Einsum and what
    moves data). OpenVINO's CPU device uses it unasked, by its precision hint.
    """

    name = "bfloat16"
    kind = "BFLOAT16"
    largest = 3.3895314e38
    least = 1.1754944e-38
    oldest_opset = 13
    providers = (
        "CUDAExecutionProvider",
        "MIGraphXExecutionProvider",
        "NvTensorRTRTXExecutionProvider",
        "TensorrtExecutionProvider",
    )
    evidence = "never measured to pay: no device with a provider that takes bfloat16 models was at hand"

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        """As for float16; or no device was named that runs it."""
        device = None if context is None else context.device
        if device is None or device.provider not in self.providers:
            where = "no device is named" if device is None else f"{device.provider} does not run it"
            return f"bfloat16 models are not for every provider, and {where}: it is for {', '.join(self.providers)}"
        return super().objection(graph, context)


REWRITES = (Float16(), BFloat16())
