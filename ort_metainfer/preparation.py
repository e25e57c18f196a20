"""What is to be prepared for a device, what came of it, and the strategy that says so to a session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ort_metainfer.decision import Gate, Placement
from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.registry import get_rewrite
from ort_metainfer.strategy import Strategy, Transform

if TYPE_CHECKING:
    from ort_metainfer.providers.base import Provider

__all__ = ["Preparation", "Prepared", "strategy_for"]

QUANTISED = "int8-static"
"""The rewrite that quantises."""

CHANNEL_SCALES_OPSET = 13
"""First version of ONNX's operators whose QuantizeLinear takes a scale for each channel."""

COVERAGES = {"QNNExecutionProvider": "qnn", "CPUExecutionProvider": "products", "OpenVINOExecutionProvider": "products"}
"""Provider -> what of a model is quantised for it; for others all that can be."""


@dataclass(frozen=True)
class Preparation:
    """What is to be prepared.

    Attributes:
        model: the float model's file.
        provider: execution provider to compile for, by name.
        device: the provider's own name for one of its devices.
        provider_options: the adapter's options.
        shapes: input -> shape that it will be run with.
        inputs: real inputs, as ``Settings.inputs``.
        recipe: how to quantise: parameters of the rewrite ``int8-static``, ``coverage`` as the provider wants it where
            it is left out; None leaves the model in float.
        accuracy: ``strict``, ``balanced`` or ``fast``; the last two need real inputs.
        out: folder to write to (it must not exist, or be empty); None leaves the result in the cache.
        budget_s: seconds it may take.
    """

    model: Path
    provider: str = "CPUExecutionProvider"
    device: str | None = None
    provider_options: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: Any = field(default=None, repr=False)
    recipe: Mapping[str, Any] | None = None
    accuracy: str = "strict"
    out: Path | None = None
    budget_s: float = 300.0


@dataclass(frozen=True)
class Prepared:
    """What came of it.

    Attributes:
        failure: why there is no compiled model, one sentence; None where there is.
        strategy: what a session needs to use it: name its file in ``Settings.strategy``.
        gate: the accuracy gate over the quantised model; None where it was not quantised.
        folder: where the compiled model lies.
        strategy_file: where the strategy lies.
        figures: milliseconds and errors.
        placement: which nodes run where.
        size_bytes: the compiled model; ``original_bytes`` the model it was made from.
        notes: what a person may want to know, a sentence each.
    """

    failure: str | None
    strategy: Strategy
    gate: Gate | None = None
    folder: Path | None = None
    strategy_file: Path | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    placement: Placement | None = None
    size_bytes: int = 0
    original_bytes: int = 0
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as ``--json`` prints them."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain |= {name: None if plain[name] is None else str(plain[name]) for name in ("folder", "strategy_file")}
        plain |= {name: None if plain[name] is None else asdict(plain[name]) for name in ("gate", "placement")}
        return plain | {"strategy": self.strategy.as_dict(), "notes": list(self.notes), "figures": dict(self.figures)}


def strategy_for(wanted: Preparation, graph: Graph, provider: Provider) -> Strategy:
    """What a session of the prepared model is: its rewrites, the provider and its device.

    Raises:
        StrategyError: the recipe holds what ``int8-static`` does not have.
    """
    return Strategy(
        transforms=(*_fixed(wanted, graph), *_quantised(wanted, graph, provider)),
        provider=provider.name,
        device=wanted.device,
        provider_options=wanted.provider_options,
    )


def _fixed(wanted: Preparation, graph: Graph) -> Iterator[Transform]:
    """Fixed shapes, where they are not yet."""
    from ort_metainfer.rewrites.shapes import shape_text

    if not all(spec.shape == wanted.shapes.get(spec.name, spec.shape) for spec in graph.inputs) or (
        wanted.shapes.keys() - {spec.name for spec in graph.inputs}
    ):
        shapes = {name: shape_text(shape) for name, shape in wanted.shapes.items()}
        yield get_rewrite("fixed-shapes").transform(shapes=shapes)


def _quantised(wanted: Preparation, graph: Graph, provider: Provider) -> Iterator[Transform]:
    """Eight bits, after a later opset where the model's has no scales for channels."""
    if wanted.recipe is None:
        return
    if graph.opsets.get("ai.onnx", CHANNEL_SCALES_OPSET) < CHANNEL_SCALES_OPSET:
        yield get_rewrite("convert-opset").transform(target=CHANNEL_SCALES_OPSET)
    rewrite = get_rewrite(QUANTISED)
    given = {"coverage": COVERAGES.get(provider.name, "all"), **wanted.recipe}
    rewrite.transform(**given)
    yield rewrite.transform(
        **{name: value for name, value in given.items() if value != rewrite.parameters[name].default}
    )
