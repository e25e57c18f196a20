"""Records as rows that a model learns from, and a question in the same form: features by name, put together once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ort_metainfer.learning.features import aligned_reference, family_of, strategy_features
from ort_metainfer.learning.record import SCHEMA, Record
from ort_metainfer.learning.tasks import Floats, Words
from ort_metainfer.problem import Device
from ort_metainfer.strategy import Strategy

__all__ = ["Examples", "case_features", "examples_of", "row_features", "strategy_kinds"]


def case_features(graph: Mapping[str, float], profile: Mapping[str, float]) -> dict[str, float]:
    """What is the same for every candidate of a case: features of the graph and of the device."""
    return {f"graph/{name}": value for name, value in graph.items()} | {
        f"device/{name}": value for name, value in profile.items()
    }


def row_features(
    graph: Mapping[str, float],
    profile: Mapping[str, float],
    references: Mapping[str, float],
    strategy: Strategy,
    kind: str,
    provider: str,
) -> dict[str, float]:
    """Everything a model sees of one candidate, by name; what is not known is not there.

    Args:
        graph: features of the graph.
        profile: features of the device that the strategy runs on.
        references: how the fingerprint's strategies do on this machine.
        strategy: the candidate.
        kind: of the device that it runs on.
        provider: that it runs on.
    """
    device = Device(provider, kind, name="", cores=profile.get("cores"))
    named = strategy if strategy.provider else replace(strategy, provider=provider)  # else it runs on the caller's own
    own = strategy_features(named, device)
    aligned = aligned_reference(strategy, provider, references)
    own |= {} if aligned is None else {"reference/aligned": aligned}
    return case_features(graph, profile) | {f"strategy/{name}": value for name, value in own.items()}


def strategy_kinds(strategy: Strategy, provider: str) -> frozenset[str]:
    """What is new about a strategy where training has not seen it: its provider, its families of rewrites, the options
    it sets. Of what never varied no tree says anything."""
    options = (
        *strategy.session_options,
        *strategy.session_config,
        *(["static_shapes"] if strategy.static_shapes else []),
    )
    rewrites = (f"rewrites {family_of(each)}" for each in strategy.transforms)
    return frozenset({f"provider {provider}", *rewrites, *(f"option {name}" for name in options)})


@dataclass(frozen=True, eq=False)
class Examples:
    """Verdicts as a table.

    Attributes:
        names: of the columns.
        features: rows x names; NaN where not known.
        log_speedup: what is learned: ln(baseline / strategy).
        weight: how much a row counts: a person's corrections more, and of hardware with many records each one less.
        structure: the graph's structure, a row each; ``case`` is structure, shapes and device.
        hardware: the device as a cache key has it; ``kind`` is its class.
        records: the rows themselves.
        strategies: every kind of strategy that occurs.
    """

    names: tuple[str, ...]
    features: Floats
    log_speedup: Floats
    weight: Floats
    structure: Words
    case: Words
    hardware: Words
    kind: Words
    records: tuple[Record, ...]
    strategies: frozenset[str]

    def __len__(self) -> int:
        return len(self.records)


def examples_of(records: Iterable[Record], *, simulated: bool = False) -> Examples:
    """What may be learned from: verdicts of the present schema; measured ones, or simulated ones, never both.

    Args:
        records: any.
        simulated: take those that an analytic model gave instead.
    """
    used = [each for each in records if each.is_verdict and each.schema == SCHEMA and each.simulated == simulated]
    rows = [row_features(r.graph, r.profile, r.references, r.strategy, r.kind, r.provider) for r in used]
    names = tuple(sorted({name for row in rows for name in row}))
    features = np.full((len(rows), len(names)), np.nan)
    place = {name: number for number, name in enumerate(names)}
    for number, row in enumerate(rows):
        features[number, [place[name] for name in row]] = list(row.values())
    return Examples(
        names=names,
        features=features,
        log_speedup=np.array([float(each.log_ratio or 0.0) for each in used]),
        weight=np.array([each.weight for each in used]) * _evened([each.device for each in used]),
        structure=np.array([each.structure for each in used], dtype=np.str_),
        case=np.array(["|".join((r.structure, r.shapes, r.device)) for r in used], dtype=np.str_),
        hardware=np.array([each.device for each in used], dtype=np.str_),
        kind=np.array([each.kind for each in used], dtype=np.str_),
        records=tuple(used),
        strategies=frozenset(kind for each in used for kind in strategy_kinds(each.strategy, each.provider)),
    )


def _evened(devices: Sequence[str]) -> Floats:
    """A weight a row, falling with the root of how many rows its device has; 1 on average."""
    _, of_device, counts = np.unique(np.array(devices, dtype=np.str_), return_inverse=True, return_counts=True)
    weight = 1.0 / np.sqrt(counts[of_device])
    return weight / weight.mean() if len(weight) else weight
