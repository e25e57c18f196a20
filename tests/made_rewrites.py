"""Rewrites made up for tests: a right one, and wrong ones, each wrong in one way that the suite must catch."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import onnx
from onnx import helper, numpy_helper

from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Context, Outcome, Parameter, Rewrite, Site
from ort_metainfer.rewrites.draft import Draft


class AbsToMax(Rewrite):
    """``Abs(x)`` as ``Max(x, Neg(x))``: of no use, and right."""

    name = "abs-to-max"
    dimension = "operators"
    promise = "exact"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "most": Parameter(int, 100, "how many are replaced at most", numbers=(1, 100)),
        "order": Parameter(str, "negative-last", "which comes first", values=("negative-last", "negative-first")),
    }

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        return None if graph.count("Abs") else "there is no Abs"

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        self.count = 0
        model = onnx.load(str(draft.file()))
        sites = list(self.replaced(model.graph, parameters))
        if not sites:
            return Outcome(0, notes=("there is no Abs",))
        self.spoil(model)
        file = context.folder / f"{self.name}.onnx"
        onnx.save(model, str(file))
        draft.take(file)
        return Outcome(len(sites), tuple(sites[:100]))

    def replaced(self, graph: Any, parameters: Mapping[str, Any]) -> Iterator[Site]:
        """Replace them in this graph and those within."""
        nodes: list[Any] = []
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    yield from self.replaced(attribute.g, parameters)
            if node.op_type != "Abs" or parameters["most"] <= self.count:
                nodes.append(node)
                continue
            self.count += 1
            negative = self.label(node.output[0])
            pair = [node.input[0], negative]
            if parameters["order"] == "negative-first":
                pair.reverse()
            nodes += [helper.make_node("Neg", [node.input[0]], [negative]), helper.make_node("Max", pair, node.output)]
            yield Site(node.name or node.output[0])
        del graph.node[:]
        graph.node.extend(nodes)

    def label(self, value: str) -> str:
        """The name of the value in the middle."""
        return f"{value}_negative"

    def spoil(self, model: Any) -> None:
        """What the wrong ones do beside."""


def renames_an_output(model: Any) -> None:
    old = model.graph.output[0].name
    for node in model.graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name == old:
                    names[place] = "renamed"
    model.graph.output[0].name = "renamed"


def breaks_captures(model: Any) -> None:
    """Rename what the main graph makes, and forget that branches use it."""
    kept = {value.name for value in model.graph.output}
    for node in model.graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name and name not in kept and any(name in other.output for other in model.graph.node):
                    names[place] = f"{name}_new"
                    break


def folds_overridable(model: Any) -> None:
    """Copy every weight before it is used, inputs with a default included: overriding them changes nothing."""
    names = {tensor.name for tensor in model.graph.initializer}
    for tensor in list(model.graph.initializer):
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        copy.name = f"{tensor.name}_folded"
        model.graph.initializer.append(copy)
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name in names:
                node.input[place] = f"{name}_folded"


def drops_defaults(model: Any) -> None:
    """Make inputs with a default plain weights."""
    names = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)


def is_off_by_a_thousandth(model: Any) -> None:
    nodes: list[Any] = []
    for node in model.graph.node:
        nodes.append(node)
        if node.op_type == "Max" and node.output[0].startswith("abs"):
            result = node.output[0]
            node.output[0] = f"{result}_exact"
            factor = numpy_helper.from_array(onnx.numpy_helper.np.float32(1.001), "")
            nodes.append(helper.make_node("Constant", [], [f"{result}_factor"], value=factor))
            nodes.append(helper.make_node("Mul", [f"{result}_exact", f"{result}_factor"], [result]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def bakes_the_batch_in(model: Any) -> None:
    """Fix every open dimension of the inputs."""
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = 2


def raises_a_version(model: Any) -> None:
    for opset in model.opset_import:
        opset.version += 1


def contributes_operators(model: Any) -> None:
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model.graph.node.append(helper.make_node("Gelu", [model.graph.input[0].name], ["g"], domain="com.microsoft"))


SPOILT: dict[str, tuple[Callable[[Any], None], str]] = {
    "renames-an-output": (renames_an_output, "outputs were"),
    "breaks-captures": (breaks_captures, "does not run"),
    "folds-overridable": (folds_overridable, "off by"),
    "drops-defaults": (drops_defaults, "inputs were"),
    "is-off-by-a-thousandth": (is_off_by_a_thousandth, "off by 0.001"),
    "bakes-the-batch-in": (bakes_the_batch_in, "input "),
    "raises-a-version": (raises_a_version, "opset of ai.onnx"),
    "contributes-operators": (contributes_operators, "without stated providers"),
}
"""Name -> what it does to the model beside, and words of the fault that must be found."""


class NotTheSameTwice(AbsToMax):
    """Gives every value a name of its own."""

    name = "not-the-same-twice"

    def label(self, value: str) -> str:
        return f"{value}_{uuid.uuid4().hex}"


class OtherInAnotherProcess(AbsToMax):
    """Takes names from a text's hash, which every process salts anew."""

    name = "other-in-another-process"

    def label(self, value: str) -> str:
        return f"{value}_{hash(value)}"


class SaysNothing(AbsToMax):
    """Leaves the model alone without a reason."""

    name = "says-nothing"

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        return Outcome(0)


class DeniesIt(AbsToMax):
    """Changes the model and says that it did not."""

    name = "denies-it"

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        super().rewrite(draft, context, parameters)
        return Outcome(0, notes=("there is nothing to do",))


class Raises(AbsToMax):
    """Expects a node."""

    name = "raises"

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        assert next(iter(draft.ir.graph)), "a graph has nodes"
        return super().rewrite(draft, context, parameters)


class WritesToTheOriginal(AbsToMax):
    """Saves over the file it was given."""

    name = "writes-to-the-original"

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        outcome = super().rewrite(draft, context, parameters)
        draft.original.write_bytes(draft.original.read_bytes() + b"")
        if outcome.changed:
            draft.original.write_bytes(draft.file().read_bytes())
        return outcome


class Spoilt(AbsToMax):
    """The right one, with something done to its result."""

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]
        self.spoil = SPOILT[name][0]  # type: ignore[method-assign]


class Careless(AbsToMax):
    """States what it must not state."""

    name = "Careless_1"
    version = 0
    evidence = "it is fast"
    on_by_default = True
    needs = ("luck",)
    providers = ("CPU",)
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "most": Parameter(int, 0, "", numbers=(1, 100)),
        "order": Parameter(str, "negative-last", "which comes first"),
    }
