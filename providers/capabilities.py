"""What an adapter states about its provider beyond its options: constraints, preferences, compiled models, failures.

Data only. Everything stated names its source; what is not known is left empty, which reads "not stated", never "none".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ort_metainfer.problem import Graph

__all__ = ["Capabilities", "CompiledModel", "Constraints", "Failing", "Preferences"]


@dataclass(frozen=True)
class Constraints:
    """What a graph must be like for the provider to take it.

    Attributes:
        static_shapes: every input dimension must be a number, or it takes nothing.
        quantised: ``any`` (float graphs too), ``preferred`` (float graphs run, much slower or in less precision),
            ``required`` (takes nothing that is not quantised).
        dtypes: element types it computes in, numpy names (``float16``, ``bfloat16`` too); empty: not stated.
        opsets: lowest and highest version of the ONNX domain; None where a bound is not stated.
        operators: operators it has; empty: not stated. Tried out on the device where there is one: see the probe.
        missing: operators it is known not to have.
        max_rank: highest tensor rank; None: not stated.
        notes: further constraints, a sentence each.
        source: where this is from.
    """

    static_shapes: bool = False
    quantised: Literal["any", "preferred", "required"] = "any"
    dtypes: tuple[str, ...] = ()
    opsets: tuple[int | None, int | None] = (None, None)
    operators: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()
    max_rank: int | None = None
    notes: tuple[str, ...] = ()
    source: str = ""

    def objections(self, graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
        """Why the provider would take nothing of ``graph``, a sentence each; empty where nothing speaks against it.

        Args:
            graph: the model's features.
            shapes: input name -> shape the session will be run with, for inputs whose shapes a strategy fixes.
        """
        found = []
        if self.static_shapes and (open_inputs := _open_inputs(graph, shapes)):
            found.append(f"it needs fixed shapes, and {', '.join(open_inputs)} has open dimensions: give input_shapes=")
        if self.quantised == "required" and graph.quantisation not in ("qdq", "qoperator"):
            found.append(f"it takes quantised (QDQ) graphs only, and this one's quantisation is {graph.quantisation}")
        opset, (lowest, highest) = graph.opsets.get("ai.onnx", graph.opsets.get("")), self.opsets
        if opset is not None and lowest is not None and opset < lowest:
            found.append(f"it knows opset {lowest} and later, the model has {opset}")
        if opset is not None and highest is not None and opset > highest:
            found.append(f"it knows opsets up to {highest}, the model has {opset}")
        return tuple(found)

    def lacking(self, operators: Iterable[str]) -> tuple[str, ...]:
        """Those of ``operators`` that, as far as is stated, the provider leaves to the CPU, in their order."""
        stated = self.operators
        return tuple(op for op in operators if op in self.missing or (stated and op not in stated))


def _open_inputs(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    return [
        spec.name
        for spec in graph.inputs
        if spec.name not in shapes and (spec.shape is None or not all(isinstance(dim, int) for dim in spec.shape))
    ]


@dataclass(frozen=True)
class Preferences:
    """What the device is made for, best first: for rules, and for who prepares a model.

    Attributes:
        layouts: ``NCHW``, ``NHWC``.
        precisions: ``float32``, ``tf32``, ``bfloat16``, ``float16``, ``int8``, ``a16w8`` (int16 activations, int8
            weights), ``int4-weights``.
        channel_alignment: channels are best a multiple of this; None: not stated.
        source: where this is from.
    """

    layouts: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    channel_alignment: int | None = None
    source: str = ""


@dataclass(frozen=True)
class CompiledModel:
    """How the provider keeps what it compiled, so that the next start need not.

    Attributes:
        form: ``EPContext`` (an ONNX model holding or naming the compiled blob), ``engine files``, ``blobs``,
            ``optimised model`` (the CPU provider's) or ``none``.
        options: provider or session option -> value or meaning, that switches it on; ``{folder}`` stands for a folder.
        invalidated_by: what a compiled model does not survive: ``model``, ``onnxruntime``, ``provider``, ``driver``,
            ``device``, ``options``, ``shapes``.
        notes: a sentence each.
        source: where this is from.
    """

    form: Literal["EPContext", "engine files", "blobs", "optimised model", "none"] = "none"
    options: Mapping[str, str] = field(default_factory=dict)
    invalidated_by: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Failing:
    """One way the provider fails: what is seen, when, what to do."""

    symptom: str
    cause: str
    remedy: str
    source: str = ""


@dataclass(frozen=True)
class Capabilities:
    """Everything that an adapter states; ``driver`` says in words how the driver's version is read."""

    constraints: Constraints = Constraints()
    preferences: Preferences = Preferences()
    compiled: CompiledModel = CompiledModel()
    failings: tuple[Failing, ...] = ()
    driver: str = ""
    sources: tuple[str, ...] = ()
