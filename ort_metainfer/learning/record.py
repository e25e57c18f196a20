"""One trial as one row: what was tried, on what, with which outcome. Data only.

A row holds nothing of the model but its hash, the hash of its structure and named features; no path, no name of a
tensor, no weight, no input.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ort_metainfer.strategy import Strategy

__all__ = ["SCHEMA", "Record"]

SCHEMA = 1
"""Raised when a field or the meaning of a feature changes; rows of other schemas are kept and not trained on."""

_OVERRIDE = ("model", "structure", "device", "shapes", "strategy", "accuracy", "objective", "replaced", "replaced_at")
"""What makes two overrides the same one."""


@dataclass(frozen=True)
class Record:
    """One strategy tried for one model on one device; latencies in milliseconds of one run.

    Attributes:
        model: ``sha256:...`` of the model's bytes.
        structure: hash of the graph's structure: operators, attributes and edges, without weights, names and sizes of
            dynamic dimensions, so that a re-export or another batch size still matches.
        graph: named features of the graph (``learning/features.py``); what is not known is not there.
        device: the device's text, as it stands in a cache key.
        kind: ``cpu``, ``gpu``, ``npu``, ``dsp`` or ``fpga``, of the device that the strategy runs on.
        provider: the provider that the strategy runs on.
        profile: named features of that device, unflagged ones of its profile; empty where it was never probed.
        references: strategy's name in the fingerprint's fixed list -> mean log ratio over the reference networks.
        shapes: the session's input shapes, as they stand in a cache key.
        strategy: transforms, provider, options.
        accuracy: the policy; ``objective`` likewise.
        by: who proposed it; ``path``: ``session``, ``tune``, ``bench``, ``prewarm``, ``override`` or ``import``.
        gates: verdicts in order, name -> whether it was passed.
        failure: why there is no verdict; None otherwise.
        baseline_p50_ms: plain onnxruntime's, in the same process; ``baseline_p90_ms`` likewise.
        p50_ms: the strategy's; ``p90_ms`` likewise.
        log_ratio: ln(baseline / strategy), the median of paired ratios; positive is faster; ``log_ratio_low`` and
            ``log_ratio_high`` are its interval. From the duel where one was held, else from the race.
        band: ln of how far two identical sessions lay apart.
        rounds: paired rounds it rests on.
        creation_ms: to create the session; ``peak_memory_mb`` likewise.
        device_ms: median of a run that copies nothing to or from the device; ``transfer_ms``: what that saves. On a CPU
            all and nothing. None where it cannot be told.
        error: worst relative L2.
        others_cpu: cores that other processes used meanwhile; None where it is not known.
        flags: what speaks against the figures.
        versions: package, onnxruntime, provider and driver.
        simulated: whether an analytic model gave the figures.
        measured_at: ISO 8601, to the second.
        weight: how much it counts in training: above 1 where a person overrode.
        replaced: what a person's override replaced; None where this is no override. One that was never timed has no
            figures.
        replaced_at: when that had been decided; empty where nothing had been.
    """

    model: str
    structure: str
    graph: Mapping[str, float]
    device: str
    kind: str
    provider: str
    strategy: Strategy
    shapes: str = ""
    profile: Mapping[str, float] = field(default_factory=dict)
    references: Mapping[str, float] = field(default_factory=dict)
    accuracy: str = "strict"
    objective: str = "latency"
    by: str = ""
    path: str = ""
    gates: Mapping[str, bool] = field(default_factory=dict)
    failure: str | None = None
    baseline_p50_ms: float | None = None
    baseline_p90_ms: float | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    log_ratio: float | None = None
    log_ratio_low: float | None = None
    log_ratio_high: float | None = None
    band: float | None = None
    rounds: int = 0
    creation_ms: float | None = None
    peak_memory_mb: float | None = None
    device_ms: float | None = None
    transfer_ms: float | None = None
    error: float | None = None
    others_cpu: float | None = None
    flags: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    simulated: bool = False
    measured_at: str = ""
    weight: float = 1.0
    schema: int = SCHEMA
    replaced: Strategy | None = None
    replaced_at: str = ""

    @property
    def is_verdict(self) -> bool:
        """Whether it says how fast an accurate strategy is: what learners of speed take."""
        timed = self.schema == SCHEMA and self.failure is None and self.log_ratio is not None
        return timed and self.gates.get("accurate", True)

    @property
    def identity(self) -> str:
        """Hash of what it says: the same row that comes by another path, or counts for more, is the same record.

        An override without figures is the same as long as what it replaced is, however often it is met.
        """
        plain = self.as_dict()
        if self.replaced is not None and not self.rounds:
            plain = {name: plain[name] for name in _OVERRIDE}
        text = json.dumps({**plain, "path": "", "weight": 1}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in JSON."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "strategy"}
        plain["flags"] = list(self.flags)
        plain["replaced"] = None if self.replaced is None else self.replaced.as_dict()
        tables = ("graph", "profile", "references", "gates", "versions")
        return {**plain, **{name: dict(plain[name]) for name in tables}, "strategy": self.strategy.as_dict()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Record:
        """The inverse of :meth:`as_dict`; fields that another version wrote besides are left out.

        Raises:
            KeyError, TypeError: something is missing.
            StrategyError: the strategy is none.
        """
        known = {name: value for name, value in plain.items() if name in cls.__dataclass_fields__}
        strategy = Strategy.from_dict(plain["strategy"])
        replaced = None if plain.get("replaced") is None else Strategy.from_dict(plain["replaced"])
        more = {"strategy": strategy, "replaced": replaced, "flags": tuple(plain.get("flags") or ())}
        return cls(**{**known, **more})
