"""The same model in another opset of the ONNX domain, for a provider that stops at one.

Only what is known to mean the same is taken over: operators whose versions differ in types or in attributes that the
node does not have, and those whose parameters became inputs, which are respelled. Everything else refuses the whole
conversion, by name. Below opset 11 axes must not be negative; no conversion goes there. Models of opset 7 to 10 are
first brought to 11 by onnx's own converter, which is complete upwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from ort_metainfer.errors import RewriteError
from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Context, Outcome, Parameter, Rewrite, Site
from ort_metainfer.rewrites.building import Builder, Names, replace
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.node_rewrite import MOST_SITES
from ort_metainfer.rewrites.opset_versions import verdict_on
from ort_metainfer.rewrites.patterns import all_graphs, learn_types

__all__ = ["REWRITES", "ConvertOpset"]

OLDEST, LEAST, MOST = 7, 11, 23

QUANTISERS, QUANTISED_BROKEN = ("QuantizeLinear", "DequantizeLinear"), 21
"""Own observation: from opset 21 onnxruntime 1.32 gives some 8-bit quantisers a type that it then refuses."""

BODIES = ("If", "Loop", "Scan")
"""Own observation: onnx's converter gives Scan of opset 8 another meaning."""


class ConvertOpset(Rewrite):
    """The whole model in the opset asked for, up or down."""

    name = "convert-opset"
    dimension = "operators"
    promise = "float32-equivalent"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "target": Parameter(int, 17, "opset of the ONNX domain to convert to", numbers=(LEAST, MOST))
    }

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        """A model of an opset that is not converted."""
        opset = graph.opsets.get("ai.onnx", 0)
        return None if OLDEST <= opset <= MOST else f"opset {opset} is none of {OLDEST} to {MOST}"

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Convert every node, or none."""
        model, target = draft.ir, parameters["target"]
        source = int(model.graph.opset_imports.get("", 0))
        if source == target or not OLDEST <= source <= MOST:
            return Outcome(0, notes=(f"the model is of opset {source}, and {target} is asked for",))
        if model.functions:
            return Outcome(0, notes=("the model has functions of its own, which are not converted",))
        if target >= QUANTISED_BROKEN and any(node.op_type in QUANTISERS for node in model.graph):
            return Outcome(0, notes=(f"quantised models are not converted to opset {QUANTISED_BROKEN} or later",))
        if source < LEAST:
            if any(node.op_type in BODIES for node in model.graph):
                return Outcome(0, notes=(f"below opset {LEAST}, models with {', '.join(BODIES)} are left alone",))
            _bring_to_11(draft, context)
            model, source = draft.ir, LEAST
            if source == target:
                return Outcome(len(model.graph), notes=(f"opset brought to {target} by onnx's converter",))
        learn_types(model)
        nodes = [node for graph in all_graphs(model) for node in graph if not node.domain]
        verdicts = [(node, verdict_on(node, source, target)) for node in nodes]
        refused = [Site(_label(node), said) for node, said in verdicts if isinstance(said, str)]
        if refused:
            kinds = Counter(f"{site.reason}" for site in refused)
            return Outcome(0, tuple(refused[:MOST_SITES]), tuple(f"{reason} ({n})" for reason, n in kinds.items())[:5])
        names = Names(model)
        changed = [(node, said) for node, said in verdicts if callable(said)]
        for node, make in changed:
            builder = Builder(node, names, self.name, target, model.ir_version)
            made = make(builder)
            replace(node, made if isinstance(made, list) else [made], builder)
        model.graph.opset_imports[""] = target
        sites = tuple(Site(_label(node)) for node, _ in changed[:MOST_SITES])
        return Outcome(len(nodes), sites, (f"opset {source} to {target}: {len(changed)} nodes respelled",))


def _bring_to_11(draft: Draft, context: Context) -> None:
    """Opset 11, by onnx's converter; what that does not carry over (metadata, IR version) is put back.

    Raises:
        RewriteError: it cannot convert the model; with its words.
    """
    import onnx
    from onnx import version_converter

    before = onnx.load(str(draft.file()))
    try:
        after = version_converter.convert_version(before, LEAST)
    except Exception as error:
        raise RewriteError(f"onnx's converter does not bring the model to opset {LEAST}: {error}") from error
    after.ir_version = before.ir_version
    for name in ("metadata_props", "opset_import"):
        del getattr(after, name)[:]
    after.metadata_props.extend(before.metadata_props)
    after.opset_import.extend(before.opset_import)
    for imported in after.opset_import:
        if imported.domain in ("", "ai.onnx"):
            imported.version = LEAST
    for name in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        setattr(after, name, getattr(before, name))
    after.graph.doc_string = before.graph.doc_string
    target = context.folder / "opset11.onnx"
    onnx.save(after, str(target))
    draft.take(target)


def _label(node: Any) -> str:
    return f"{node.name or (node.outputs[0].name if node.outputs else '')} ({node.op_type})"


REWRITES: tuple[Rewrite, ...] = (ConvertOpset(),)
