"""Find-db: what was measured for this very graph on other devices, the nearest devices' winners first.

The lookup itself is a pure function over records (:func:`known_strategies`); :class:`FindDb` reads them. Three layers,
the first that knows a strategy on a device speaks for it: the user's own records, those imported from a fleet, those
shipped with the package.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ort_metainfer.errors import RecordError
from ort_metainfer.learning.features import device_features, graph_features, provider_of, references_of
from ort_metainfer.learning.names import Names
from ort_metainfer.learning.record import Record
from ort_metainfer.learning.record_checks import checked_record
from ort_metainfer.learning.records import device_of, machine_text
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

__all__ = ["LAYERS", "FindDb", "Known", "distance", "known_strategies", "shipped_records"]

LAYERS = ("own", "imported", "shipped")
"""In order of precedence."""

SHIPPED = "records.jsonl.gz"

KIND_APART = 4.0
"""Distance between devices of different kinds: further than any two of one kind."""

UNKNOWN_APART = 1.0
"""Distance where nothing of either device is known that the other one has too: neither near nor far."""

STRICT_ERROR = 1e-4
"""Relative L2 up to which a result counts as float32's: that of the policy ``strict``."""

_ACCURACY = ("strict", "balanced", "fast")
_COUNTED = ("cores", "physical_cores", "memory_bytes", "device_memory_bytes", "dispatch_ms", "cache/L2", "cache/L3")
_PREFIXES = ("peak_macs_per_s/", "rate/", "bandwidth_", "cache_bandwidth_", "transfer_", "ratio/")


@dataclass(frozen=True)
class Known:
    """One strategy that was measured for this structure.

    Attributes:
        strategy: with this model's own names; what a record leaves out (lists of nodes) is not set.
        log_ratio: expected ln(baseline / strategy): the mean over devices, near ones counting more; positive is faster.
        spread: how far devices lay apart in it (standard deviation); 0 where there is one.
        devices: on how many devices it was measured.
        nearest: the nearest of them, as a cache key names it.
        distance: how far that is: 0 is this very machine.
        layer: ``own``, ``imported`` or ``shipped``: whose record the nearest one is.
    """

    strategy: Strategy
    log_ratio: float
    spread: float
    devices: int
    nearest: str
    distance: float
    layer: str

    @property
    def because(self) -> str:
        """In a few words."""
        where = f"{self.devices} devices" if self.devices > 1 else "one device"
        return f"{math.exp(self.log_ratio):.2f}x for this graph on {where}, the nearest {self.nearest} ({self.layer})"


@dataclass(frozen=True)
class _Seen:
    """One strategy on one device."""

    record: Record
    layer: int
    distance: float


class FindDb:
    """Reads what is known of a structure.

    Args:
        directory: the cache directory, where own and imported records are; None: shipped ones only.
        shipped: the package's file; None: the one in ``learning/shipped``.
    """

    def __init__(self, directory: Path | None, shipped: Path | None = None) -> None:
        self._directory, self._shipped = directory, shipped
        self._read: dict[str, list[tuple[str, Record]]] = {}

    def lookup(self, problem: Problem) -> list[Known]:
        """What was measured for the problem's structure; see :func:`known_strategies`."""
        structure = problem.graph.structure
        if not structure:  # described by an earlier release
            return []
        if structure not in self._read:
            self._read[structure] = list(self._records(structure))
        from ort_metainfer.hardware.devices import device_string

        return known_strategies(problem, self._read[structure], device_string())

    def _records(self, structure: str) -> Iterator[tuple[str, Record]]:
        if self._directory is not None:
            from ort_metainfer.learning.record_store import RecordStore

            for record in RecordStore(self._directory).read(structure):
                yield ("imported" if record.path == "import" else "own"), record
        yield from (("shipped", record) for record in shipped_records(structure, self._shipped))


def shipped_records(structure: str | None = None, file: Path | None = None) -> list[Record]:
    """Records that come with the package, all or those of one structure; none where it ships none.

    Lines of other structures are passed over unread.
    """
    source = file if file is not None else resources.files("ort_metainfer.learning") / "shipped" / SHIPPED
    mark = None if structure is None else structure.encode()
    found = []
    try:
        with source.open("rb") as raw, gzip.GzipFile(fileobj=raw) as lines:
            for line in lines:
                if mark is None or mark in line:
                    found.append(checked_record(json.loads(line)))
    except (OSError, EOFError, ValueError, RecordError):  # not shipped, or damaged: then without
        return found
    return [record for record in found if structure is None or record.structure == structure]


def known_strategies(problem: Problem, records: Iterable[tuple[str, Record]], here: str = "") -> list[Known]:
    """Strategies measured for the problem's structure that can run here, the most promising first.

    First each device's best, the nearest device's before the others'; then the rest by what is expected of them. Those
    expected to lose come last, with a negative ratio.

    Args:
        problem: what is to be decided.
        records: layer and record; those of other structures, objectives, providers not allowed here, or a looser
            accuracy than the problem's are passed over.
        here: this machine as a cache key has it; empty: as the problem's devices say.
    """
    names = Names(problem.graph, problem.work)
    seen = _latest(problem, ((LAYERS.index(layer), record) for layer, record in records), names, here)
    known = {strategy: _summary(strategy, on) for strategy, on in seen.items()}
    order = dict.fromkeys([*_winners(seen), *sorted(known, key=lambda strategy: -known[strategy].log_ratio)])
    ranked = [known[strategy] for strategy in order]
    return [one for one in ranked if one.log_ratio > 0] + [one for one in ranked if one.log_ratio <= 0]


def _latest(
    problem: Problem, records: Iterable[tuple[int, Record]], names: Names, here: str
) -> dict[Strategy, dict[str, _Seen]]:
    """Strategy -> device -> what speaks for it there: of the first layer that knows, the latest of the nearest work."""
    seen: dict[Strategy, dict[str, _Seen]] = {}
    graph = graph_features(problem.graph, problem.work, problem.shapes)
    apart: dict[tuple[str, str], float] = {}
    for layer, record in records:
        if not _speaks(problem, record):
            continue
        strategy = names.into(record.strategy)
        place = record.device, record.provider
        if place not in apart:
            apart[place] = distance(problem, record, here)
        on = seen.setdefault(strategy, {})
        there, far = on.get(record.device), apart[place] + _work_apart(graph, record.graph)
        if there is None or (layer, far) <= (there.layer, there.distance):
            on[record.device] = _Seen(record, layer, far)
    return {strategy: on for strategy, on in seen.items() if not strategy.is_default}


def _speaks(problem: Problem, record: Record) -> bool:
    """Whether a record says something about this problem."""
    if not record.is_verdict or record.structure != problem.graph.structure or record.simulated:
        return False
    if record.provider not in problem.policy.providers or problem.device(record.provider) is None:
        return False
    if record.objective != problem.policy.objective:
        return False
    allowed = problem.policy.accuracy if problem.inputs_are_real else "strict"
    strict_enough = record.error is not None and record.error <= STRICT_ERROR
    return strict_enough or _level(record.accuracy) <= _level(allowed)


def _level(accuracy: str) -> int:
    return _ACCURACY.index(accuracy) if accuracy in _ACCURACY else len(_ACCURACY)


def _summary(strategy: Strategy, on: Mapping[str, _Seen]) -> Known:
    """What is expected of a strategy: this machine's own figure where there is one, else the mean by nearness."""
    nearest = min(on.values(), key=lambda seen: (seen.distance, seen.layer))
    here = [seen for seen in on.values() if seen.distance == 0]
    counted = here or list(on.values())
    weights = [math.exp(-seen.distance) for seen in counted]
    ratios = [seen.record.log_ratio or 0.0 for seen in counted]
    mean = math.fsum(w * r for w, r in zip(weights, ratios, strict=True)) / math.fsum(weights)
    spread = math.sqrt(math.fsum((ratio - mean) ** 2 for ratio in ratios) / len(ratios))
    layer = LAYERS[nearest.layer]
    return Known(strategy, mean, spread, len(on), nearest.record.device, nearest.distance, layer)


def _winners(seen: Mapping[Strategy, Mapping[str, _Seen]]) -> list[Strategy]:
    """Each device's best strategy, the nearest device's first."""
    best: dict[str, tuple[float, int, float, Strategy]] = {}
    for strategy, on in seen.items():
        for device, one in on.items():
            ratio = one.record.log_ratio or 0.0
            if device not in best or ratio > best[device][2]:
                best[device] = (one.distance, one.layer, ratio, strategy)
    return [strategy for *_, strategy in sorted(best.values(), key=lambda item: item[:3])]


def distance(problem: Problem, record: Record, here: str = "") -> float:
    """How far the record's device is from the one here that would run its strategy; 0 for the same machine.

    Two devices of different kinds are :data:`KIND_APART`. Of one kind: the mean over the features both have of how far
    they lie apart (a factor of e is 1, an instruction set that one lacks is 1), and the mean difference of what the
    reference networks' strategies do on both, which counts like all features together: it says more than they do.

    Args:
        problem: for its devices and their profiles.
        record: for its device.
        here: this machine as a cache key has it; empty: as the problem's devices say.
    """
    device, provider = device_of(problem, record.strategy), provider_of(record.strategy, problem)
    if record.device == (here or machine_text(problem)) and record.kind == device.kind:
        return 0.0
    profile = problem.profiles.get(provider)
    features = _apart(device_features(device, profile), record.profile)
    references = _mean([abs(a - b) for a, b in _common(references_of(profile), record.references)])
    parts = [part for part in (features, references) if part is not None]
    within = sum(parts) / len(parts) if parts else UNKNOWN_APART
    return max(within, 1e-6) + (KIND_APART if record.kind != device.kind else 0.0)


def _apart(one: Mapping[str, float], other: Mapping[str, float]) -> float | None:
    ratios = [
        min(3.0, abs(math.log(one[name] / other[name])))
        for name in one
        if name in other and (name in _COUNTED or name.startswith(_PREFIXES)) and one[name] > 0 and other[name] > 0
    ]
    sets = [{name for name in features if name.startswith("isa/")} for features in (one, other)]
    if sets[0] or sets[1]:
        ratios.append(len(sets[0] ^ sets[1]) / len(sets[0] | sets[1]))
    return _mean(ratios)


def _common(one: Mapping[str, float], other: Mapping[str, float]) -> list[tuple[float, float]]:
    return [(value, other[name]) for name, value in one.items() if name in other]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _work_apart(here: Mapping[str, float], there: Mapping[str, float]) -> float:
    """How far the work of one run differs, of the same structure at another batch or resolution: a factor of e is 1."""
    known = [name for name in ("ln_macs", "ln_input_elements", "ln_batch") if name in here and name in there]
    return abs(here[known[0]] - there[known[0]]) if known else 0.0
