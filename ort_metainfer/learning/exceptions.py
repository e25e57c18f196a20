"""What people change again and again in what was decided: the exception list. Pure functions over records.

An override is a record with what it replaced. Its *changes* are the settings in which the two differ, each with the
value before and after. A change is *repeated* where it was made for two models of different structure, or twice for one
model: in two decisions, since the machine had decided again in between. One override that is in force at every start is
made once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ort_metainfer.learning.features import family_of
from ort_metainfer.learning.record import Record
from ort_metainfer.strategy import Strategy

__all__ = ["Change", "ExceptionRule", "changes_of", "exception_list", "similar_exceptions", "weighed"]

REPEATED = 2
"""How often a change is made until it is more than one person's taste on one day."""

ALIKE = 0.5
"""Sum of differences in the shares of node classes up to which two graphs count as similar: of 2 at most. Half of that
means that three quarters of the nodes are of the same classes."""

NOTHING = "(not set)"


@dataclass(frozen=True, order=True)
class Change:
    """One setting that a person changed: ``before`` and ``after`` as text, ``(not set)`` where it was not set."""

    setting: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.setting}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class ExceptionRule:
    """A change that people made repeatedly.

    Attributes:
        change: which.
        kind: kind of device on which the replaced strategy ran; changes on others are another exception.
        models: for how many structures.
        times: in how many decisions.
        last: when it was last made, ISO 8601.
        graphs: features of the graphs it was made for.
    """

    change: Change
    kind: str
    models: int
    times: int
    last: str
    graphs: tuple[Mapping[str, float], ...] = ()

    def describe(self) -> str:
        """In one line."""
        models = f"{self.models} models" if self.models > 1 else "one model"
        return (
            f"{self.change} on {self.kind}, {self.times} times for {models}, last {self.last or 'at an unknown time'}"
        )


def changes_of(before: Strategy, after: Strategy) -> tuple[Change, ...]:
    """The settings in which two strategies differ, sorted."""
    then, now = dict(_settings(before)), dict(_settings(after))
    names = sorted({*then, *now})
    return tuple(
        Change(name, then.get(name, NOTHING), now.get(name, NOTHING))
        for name in names
        if then.get(name) != now.get(name)
    )


def exception_list(records: Iterable[Record]) -> list[ExceptionRule]:
    """Changes that were made repeatedly, the most frequent first."""
    made: dict[tuple[Change, str], list[Record]] = {}
    for record in records:
        if record.replaced is not None:
            for change in changes_of(record.replaced, record.strategy):
                made.setdefault((change, record.kind), []).append(record)
    rules = [_rule(change, kind, overrides) for (change, kind), overrides in made.items()]
    repeated = [rule for rule in rules if rule.models >= REPEATED or rule.times >= REPEATED]
    return sorted(repeated, key=lambda rule: (-rule.models, -rule.times, rule.change))


def similar_exceptions(
    rules: Sequence[ExceptionRule], strategy: Strategy, kind: str, graph: Mapping[str, float]
) -> list[ExceptionRule]:
    """Exceptions that speak about a decision: it set what people changed, on the same kind of device, for a graph like
    one of theirs.

    Args:
        rules: the exception list.
        strategy: what was decided.
        kind: of the device it runs on.
        graph: features of the graph; empty: every graph is like every other.
    """
    now = dict(_settings(strategy))
    return [
        rule
        for rule in rules
        if rule.kind == kind
        and now.get(rule.change.setting, NOTHING) == rule.change.before
        and (not graph or not rule.graphs or min(_unlike(graph, other) for other in rule.graphs) <= ALIKE)
    ]


def weighed(records: Sequence[Record]) -> list[Record]:
    """The records as they count in training: those of a strategy that a person chose for the structure weigh as much as
    the override says, as long as no other override took its place since."""
    chosen: dict[tuple[str, str], Record] = {}
    for record in sorted(records, key=lambda record: record.measured_at):
        if record.replaced is not None:
            chosen[record.structure or record.model, record.kind] = record

    def weight(record: Record) -> float:
        override = chosen.get((record.structure or record.model, record.kind))
        is_choice = override is not None and override.strategy == record.strategy
        return max(record.weight, override.weight) if is_choice and override is not None else record.weight

    return [replace(record, weight=weight(record)) for record in records]


def _rule(change: Change, kind: str, overrides: Sequence[Record]) -> ExceptionRule:
    models = {record.structure or record.model for record in overrides}
    times = {(record.model, record.replaced_at) for record in overrides}
    graphs = {record.structure or record.model: record.graph for record in overrides}
    last = max(record.measured_at for record in overrides)
    return ExceptionRule(change, kind, len(models), len(times), last, tuple(graphs.values()))


def _settings(strategy: Strategy) -> Iterator[tuple[str, str]]:
    """Every setting of a strategy by name; of a rewrite, its family with its parameters."""
    if strategy.provider is not None:
        yield "provider", strategy.provider
    if strategy.device is not None:
        yield "device", strategy.device
    for table in (strategy.provider_options, strategy.session_options, strategy.session_config):
        yield from ((name, str(value)) for name, value in table.items())
    for transform in strategy.transforms:
        words = ", ".join(f"{name}={value}" for name, value in transform.parameters.items())
        yield f"{family_of(transform)}/{transform.name}", words or "yes"
    if strategy.static_shapes:
        yield "static_shapes", "fixed"


def _unlike(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Sum of differences in the shares of node classes: 0 to 2."""
    names = {name for name in (*one, *other) if name.startswith("node_share/")}
    return sum(abs(one.get(name, 0.0) - other.get(name, 0.0)) for name in names)
