"""What every graph rewrite states and does; one class a rewrite, all held to one conformance suite.

A rewrite is a pure change of a model: the same model, parameters and context give the same bytes. It never times
anything and never decides whether it is worth it: the gates do.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ort_metainfer.errors import StrategyError
from ort_metainfer.problem import Device, Graph
from ort_metainfer.strategy import Transform

if TYPE_CHECKING:
    from ort_metainfer.rewrites.draft import Draft

__all__ = ["Context", "Outcome", "Parameter", "Promise", "Rewrite", "Site"]

Promise = Literal["exact", "float32-equivalent", "lossy"]
"""``exact``: the same numbers bit by bit, up to the order in which a kernel sums. ``float32-equivalent``: the same
function in other operators, equal within float32 rounding. ``lossy``: less precision, judged by the accuracy gate on
real inputs only."""

Dimension = Literal["operators", "fusion", "layout", "shapes", "precision"]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a rewrite.

    Attributes:
        kind: its Python type: ``str``, ``int``, ``float``, ``bool``, ``list`` (of text) or ``dict`` (text -> number).
        default: what it is where a strategy does not say.
        meaning: one sentence.
        values: what it may be; empty: anything of its kind.
        numbers: lowest and highest value, both allowed; None where it is no number or has no bounds.
    """

    kind: type
    default: Any
    meaning: str
    values: tuple[Any, ...] = ()
    numbers: tuple[float, float] | None = None

    def objection(self, value: Any) -> str | None:
        """What is wrong with ``value``; None where nothing is."""
        if type(value) is not self.kind:
            return f"must be {self.kind.__name__}, got {value!r}"
        if isinstance(value, list) and not all(isinstance(item, str) for item in value):
            return f"must be a list of text, got {value!r}"
        if self.values and value not in self.values:
            return f"must be one of {', '.join(map(str, self.values))}, got {value!r}"
        return None if self.numbers is None else _outside(value, *self.numbers)


def _outside(value: Any, lowest: float, highest: float) -> str | None:
    return None if lowest <= value <= highest else f"must be from {lowest:g} to {highest:g}, got {value:g}"


@dataclass(frozen=True)
class Context:
    """What a rewrite may look at beside the model.

    Attributes:
        folder: a folder of its own for temporary files.
        graph: the model's features before any rewrite.
        feeds: inputs the model runs with, for calibration; empty where there are none.
        feeds_are_real: whether they came from the caller or were captured.
        shapes: input name -> shape the session will be run with.
        device: where the model will run; None where any.
        deadline: time.monotonic() value by which it must be done; None: no limit.
    """

    folder: Path
    graph: Graph
    feeds: Sequence[Mapping[str, Any]] = ()
    feeds_are_real: bool = False
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    device: Device | None = None
    deadline: float | None = None

    def left_s(self) -> float:
        """Seconds left; infinite without a deadline."""
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()


@dataclass(frozen=True)
class Site:
    """One place that a rewrite looked at: the node it is about, and why it was left alone (empty: it is rewritten)."""

    node: str
    reason: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a rewrite did.

    Attributes:
        changed: nodes (or subgraphs) rewritten; 0 means that the model is as it was, and ``notes`` says why.
        sites: every place looked at, with the reason where it was left alone; at most the first hundred.
        notes: one sentence each, for ``explain``.
        figures: numbers worth keeping (bytes saved, calibration feeds used).
    """

    changed: int
    sites: tuple[Site, ...] = ()
    notes: tuple[str, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)


class Rewrite(ABC):
    """One graph rewrite.

    Attributes:
        name: what a strategy calls it, in words with hyphens (``gelu-to-native``).
        version: raised when it gives other bytes for the same model; entries of the cache made with another are stale.
        dimension: which of the five dimensions it belongs to.
        promise: what it keeps of the results (see :data:`Promise`).
        parameters: what a strategy may set.
        providers: execution providers its result is legal for; empty: all (com.microsoft operators are the CPU's,
            CUDA's and a few others').
        needs: what it cannot do without: ``feeds`` (calibration inputs), ``shapes`` (given input shapes).
        evidence: where it paid and where not, as measured; "never measured to pay" keeps it off by default.
        on_by_default: whether it was measured to pay, so that a rule that knows it may propose it unasked.
        sources: documents, papers or issues it rests on.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    dimension: ClassVar[Dimension]
    promise: ClassVar[Promise]
    parameters: ClassVar[Mapping[str, Parameter]] = {}
    providers: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    evidence: ClassVar[str] = "never measured to pay"
    on_by_default: ClassVar[bool] = False
    sources: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        """Why it has nothing to do for a model of these features; None where it may have. Cheap: no model is read."""

    @abstractmethod
    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Change the draft in place, or leave it as it is.

        Args:
            draft: the model, as an onnx_ir model or as a file, whichever is asked for.
            context: what may be looked at beside it.
            parameters: complete and checked (see :meth:`complete`).

        Raises:
            RewriteError: it cannot be carried out; the draft is then not used any further.
        """

    def complete(self, transform: Transform) -> dict[str, Any]:
        """The transform's parameters, checked, with defaults for those it does not set.

        Raises:
            StrategyError: one it does not have, or a value outside its domain; or another version of the rewrite.
        """
        given: dict[str, Any] = {}
        for name, value in transform.parameters.items():
            parameter = self.parameters.get(name)
            if parameter is None:
                known = ", ".join(self.parameters) or "none"
                raise StrategyError(f"rewrite {self.name} has no parameter {name!r}; known: {known}")
            objection = parameter.objection(value)
            if objection is not None:
                raise StrategyError(f"rewrite {self.name}: parameter {name} {objection}")
            given[name] = value
        if transform.version != self.version:
            raise StrategyError(
                f"rewrite {self.name} is version {self.version} here, the strategy was made with version "
                f"{transform.version}; decide anew (tune --force) or edit the number"
            )
        return {name: parameter.default for name, parameter in self.parameters.items()} | given

    def transform(self, **parameters: Any) -> Transform:
        """A strategy's entry for this rewrite.

        Raises:
            StrategyError: a parameter it does not have, or a value outside its domain.
        """
        made = Transform(self.name, self.version, parameters)
        self.complete(made)
        return made
