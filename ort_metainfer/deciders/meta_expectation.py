"""Asking the learned ranking about one problem: where it may be asked, and what it expects. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ort_metainfer.deciders.meta_support import Place, place_of
from ort_metainfer.deciders.traits_devices import device_of
from ort_metainfer.decision import Refusal
from ort_metainfer.learning.examples import case_features, row_features, strategy_kinds
from ort_metainfer.learning.features import device_features, provider_of, references_of
from ort_metainfer.problem import Device, Problem
from ort_metainfer.strategy import Strategy

if TYPE_CHECKING:
    from ort_metainfer.deciders.meta_model import Model

__all__ = ["RESIDUAL", "Asked"]

RESIDUAL = 0.1
"""Spread that is added to the trees' own, in natural log units: they share what none of them was told. A choice."""

NAME = "meta-model"


class Asked:
    """One model and one problem.

    Args:
        model: the learned ranking.
        problem: what is to be decided.
        graph: the graph's features.
    """

    def __init__(self, model: Model, problem: Problem, graph: Mapping[str, float]) -> None:
        self._model, self.problem, self._graph = model, problem, graph
        self._places: dict[Device, Place] = {}
        self._described: dict[Device, tuple[dict[str, float], dict[str, float]]] = {}

    @property
    def source(self) -> str:
        """What the model was learned from."""
        card = self._model.card
        devices = f"{len(card.hardware)} devices" if len(card.hardware) != 1 else "one device"
        return f"{card.records} trials of {card.structures} models on {devices}, {card.trained_at[:10]}"

    def unseen_classes(self) -> list[Refusal]:
        """A refusal for each class of device here that was never seen: agreement of the trees says nothing of it."""
        kinds = dict.fromkeys(device.kind for device in self.problem.devices)
        seen = ", ".join(f"{kind} ({count})" for kind, count in sorted(self._model.support.kinds.items())) or "none"
        return [
            Refusal(
                f"the learned ranking on {kind}",
                NAME,
                f"no device of class {kind} was seen in training, only {seen}: it is left to the rules and the search",
                self.source,
            )
            for kind in kinds
            if kind not in self._model.support.kinds
        ]

    def supported(self, strategies: Sequence[Strategy]) -> tuple[list[Strategy], list[Refusal]]:
        """Those that may be asked about, and why others may not: a device at a time, and what no training has seen."""
        kept: list[Strategy] = []
        outside: dict[Device, Refusal] = {}
        strange: dict[str, None] = {}
        for strategy in strategies:
            device = device_of(self.problem, strategy)
            if device is None or device.kind not in self._model.support.kinds:
                continue
            reason, unseen = self.place(strategy).objection, self._unseen(strategy)
            if reason is not None:
                subject = f"the learned ranking on {device.kind} ({device.provider})"
                outside[device] = Refusal(subject, NAME, reason, self.source)
            elif unseen:
                strange.update(dict.fromkeys(unseen))
            else:
                kept.append(strategy)
        return kept, [*outside.values(), *self._told(list(strange))]

    def _told(self, strange: Sequence[str]) -> Iterator[Refusal]:
        if strange:
            reason = f"not seen in training, so left to the rules and the search: {', '.join(strange)}"
            yield Refusal("the learned ranking", NAME, reason, self.source)

    def _unseen(self, strategy: Strategy) -> list[str]:
        """Its provider, options and families of rewrites, as far as no training has seen them."""
        known = self._model.support.strategies
        return sorted(strategy_kinds(strategy, provider_of(strategy, self.problem)) - known) if known else []

    def place(self, strategy: Strategy) -> Place:
        """Where the case lies on the device that the strategy runs on."""
        device = device_of(self.problem, strategy) or self.problem.cpu
        if device not in self._places:
            features, _ = self._features(device)
            self._places[device] = place_of(self._model.support, case_features(self._graph, features))
        return self._places[device]

    def _features(self, device: Device) -> tuple[dict[str, float], dict[str, float]]:
        if device not in self._described:
            profile = self.problem.profiles.get(device.provider)
            self._described[device] = device_features(device, profile), references_of(profile)
        return self._described[device]

    def expected(self, strategies: Sequence[Strategy]) -> NDArray[np.float32]:
        """Candidates x trees, ln(baseline / strategy)."""
        return self._model.expected([self._row(strategy) for strategy in strategies])

    def _row(self, strategy: Strategy) -> dict[str, float]:
        device = device_of(self.problem, strategy) or self.problem.cpu
        features, references = self._features(device)
        provider = provider_of(strategy, self.problem)
        return row_features(self._graph, features, references, strategy, device.kind, provider)
