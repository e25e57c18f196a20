"""What is expected of a strategy before anything was measured: reckoning, priors and reference networks, combined.

Three sources speak of provider, threads, graph level and fixed shapes: the analytic reckoning, the priors of the
searched space, and what the nearest strategy of the fingerprint does on this machine. Each is taken for a normal of its
own spread, and they are combined by precision. The rewrites are reckoned as what they change on top, and combined with
their priors in the same way. Of every other option only its prior is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, log, sqrt

from ort_metainfer.deciders.cost_parts import Part, parts_of
from ort_metainfer.deciders.cost_reckoning import Expected, Reckoning
from ort_metainfer.deciders.search_rewrites import expected_gain
from ort_metainfer.deciders.search_space import Dimension, declared_space
from ort_metainfer.deciders.traits import CPU, has_convolutions
from ort_metainfer.hardware.reference_strategies import BASELINE, REFERENCE_STRATEGIES
from ort_metainfer.learning.features import references_of
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

__all__ = ["Expectation", "Expectations"]

SMALLEST = 0.01
"""Least spread of anything that was not measured on this model: identical sessions differ by so much (own A/A
measurement)."""

GUESS = 0.15
"""Spread of an option of which nothing is known. A choice."""

TOGETHER = 0.05
"""Spread, in log units, of the assumption that gains of several parts multiply: each combination's own. A choice."""

UNKNOWN_PROVIDER_SPREAD = 0.7
"""Spread of a provider without a prior: a factor of two. Assumed."""

REFERENCE_SPREAD = 0.35
"""How far a model's ratio lies from the mean over the reference networks: ratios of one provider to another reached
from 0.6x to 2.5x over models (own measurement)."""

OTHER_SETTING_SPREAD = 0.15
"""Added for each setting in which the nearest reference strategy differs. Assumed."""

PLACING_KEYS = frozenset({"provider", "intra_op_num_threads", "graph_optimization_level", "static_shapes"})
"""Keys of the dimensions that are reckoned together; the names of the parts that belong to them are the same."""


@dataclass(frozen=True)
class Expectation:
    """ln(speed-up) expected of a strategy, and how much each of its parts leaves open.

    Attributes:
        log_ratio: the mean.
        parts: part -> spread, in log units; the whole variance is the sum of their squares.
        source: what it rests on.
    """

    log_ratio: float
    parts: tuple[tuple[Part, float], ...] = ()
    source: str = ""

    @property
    def spread(self) -> float:
        """Of the whole."""
        return sqrt(sum(spread**2 for _, spread in self.parts))


class Expectations:
    """Expectations for one problem; equal strategies get equal answers, each worked out once.

    Args:
        problem: for which model and machine.
        scales: see :class:`~ort_metainfer.deciders.cost_reckoning.Reckoning`.
        references: strategy of the fingerprint -> its log ratio on this machine; None: those of the profiles.
    """

    def __init__(
        self,
        problem: Problem,
        scales: Mapping[str, float] | None = None,
        references: Mapping[str, float] | None = None,
    ) -> None:
        self.problem, self.reckoning = problem, Reckoning(problem, scales)
        has_cpu = any(device.provider == CPU for device in problem.devices)
        self._dimensions: Sequence[Dimension] = declared_space(problem) if has_cpu else ()
        self._references = _references(problem) if references is None else references
        self._known: dict[Strategy, Expectation | None] = {}

    def of(self, strategy: Strategy) -> Expectation | None:
        """What is expected of ``strategy``; None where nothing is known of it."""
        if strategy not in self._known:
            self._known[strategy] = self._expected(strategy)
        return self._known[strategy]

    def provider_of(self, strategy: Strategy) -> str:
        """The provider that it runs on."""
        return strategy.provider or self.reckoning.baseline.provider

    def _expected(self, strategy: Strategy) -> Expectation | None:
        provider, own = self.provider_of(strategy), self.reckoning.baseline.provider
        parts = parts_of(strategy, provider, is_callers=provider == own)
        if not any(device.provider == provider for device in self.problem.devices):
            return None
        bare = replace(strategy, transforms=())
        placing = [part for part in parts if part.kind in ("provider", "option") or part.name in PLACING_KEYS]
        rewrites = [part for part in parts if part.kind == "transform"]
        said: list[tuple[Sequence[Part], Expected]] = []
        if placing:
            said.append((placing, self._placed(bare, provider)))
        if rewrites:
            said.append((rewrites, _combined((self._rewrites_prior(strategy), self._change(strategy, bare)))))
        said += [
            ((part,), self._prior(strategy, part.name))
            for part in parts
            if part not in placing and part not in rewrites
        ]
        joined = _joined(said)
        if len(parts) < 2:
            return joined
        combination = Part("together", f"together {strategy.describe()}", "", share=0.0)
        return replace(joined, parts=(*joined.parts, (combination, TOGETHER)))

    def _placed(self, bare: Strategy, provider: str) -> Expected:
        """Of provider, threads, graph level and fixed shapes; a guess counts only where nothing else is known."""
        prior, reckoned = self._placing_prior(bare), self.reckoning.expected(bare)
        known = [expected for expected in (reckoned, self._reference(bare, provider)) if expected is not None]
        return _combined(known if known and _is_guess(prior) else [prior, *known])

    def _placing_prior(self, bare: Strategy) -> Expected:
        """Priors of provider, threads, graph level and fixed shapes, multiplied."""
        found = [self._of_dimension(bare, dimension) for dimension in self._dimensions if dimension.keys & PLACING_KEYS]
        known = [prior for prior in found if prior is not None]
        if any(map(_is_guess, known)):
            known = [prior for prior in known if _is_guess(prior)]
        return Expected(
            sum(prior.log_ratio for prior in known),
            sqrt(sum(prior.spread**2 for prior in known)) or UNKNOWN_PROVIDER_SPREAD,
            "; ".join(dict.fromkeys(prior.source for prior in known if prior.source)),
        )

    def _rewrites_prior(self, strategy: Strategy) -> Expected:
        gain, spread, source = expected_gain(strategy.transforms)
        return Expected(log(gain), max(spread, SMALLEST), source)

    def _prior(self, strategy: Strategy, name: str) -> Expected:
        """Of one option that nothing reckons: its prior in the searched space."""
        dimension = next((d for d in self._dimensions if name in d.keys), None)
        found = None if dimension is None else self._of_dimension(strategy, dimension)
        return found or Expected(0.0, GUESS, "")

    def _of_dimension(self, strategy: Strategy, dimension: Dimension) -> Expected | None:
        """The prior of what ``strategy`` sets in a dimension; None where it sets nothing."""
        part = dimension.part_of(strategy)
        if part.is_default:
            return None
        is_about_others = "graph_optimization_level" in dimension.keys and has_convolutions(self.problem)
        least = GUESS if is_about_others else SMALLEST  # levels were measured on graphs without convolutions
        for choice in dimension.choices:
            if choice.part == part:
                return Expected(log(choice.prior), max(choice.spread, least), choice.source)
        return Expected(0.0, UNKNOWN_PROVIDER_SPREAD if "provider" in dimension.keys else GUESS, "")

    def _change(self, strategy: Strategy, bare: Strategy) -> Expected | None:
        """What the rewrites change, by reckoning: the whole less the same without them."""
        with_them, without = self.reckoning.expected(strategy), self.reckoning.expected(bare)
        if with_them is None or without is None:
            return None
        doubt = self.reckoning.doubt_of_rewrites(strategy)
        return Expected(with_them.log_ratio - without.log_ratio, max(doubt, SMALLEST), with_them.source)

    def _reference(self, bare: Strategy, provider: str) -> Expected | None:
        """What the nearest strategy of the fingerprint does on this machine, over plain onnxruntime's."""
        nearest = _nearest(bare, provider, self._references)
        base = self._references.get(BASELINE)
        if nearest is None or base is None or self.reckoning.baseline.provider != CPU:
            return None
        name, apart = nearest
        ratio = base - self._references[name]
        return Expected(ratio, hypot(REFERENCE_SPREAD, apart * OTHER_SETTING_SPREAD), f"reference networks: {name}")


def _is_guess(prior: Expected) -> bool:
    """Whether no measurement stands behind a prior."""
    return not prior.source or prior.source.startswith("guess")


def _combined(said: Sequence[Expected | None]) -> Expected:
    """Normals that speak of the same thing, combined by precision; one at least is there.

    They are not independent (the same measurements stand behind several), so that together they are as sure as the
    surest of them, and no surer.
    """
    known = [expected for expected in said if expected is not None]
    weights = [1 / max(expected.spread, SMALLEST) ** 2 for expected in known]
    mean = sum(weight * expected.log_ratio for weight, expected in zip(weights, known, strict=True)) / sum(weights)
    return Expected(mean, min(e.spread for e in known), "; ".join(dict.fromkeys(e.source for e in known if e.source)))


def _joined(said: Sequence[tuple[Sequence[Part], Expected]]) -> Expectation:
    """The whole strategy: means add up; what is open of parts reckoned together is shared out evenly among them."""
    parts = [(part, expected.spread / sqrt(len(group))) for group, expected in said for part in group]
    sources = dict.fromkeys(expected.source for _, expected in said if expected.source)
    return Expectation(sum(expected.log_ratio for _, expected in said), tuple(parts), "; ".join(sources))


def _references(problem: Problem) -> dict[str, float]:
    """The fingerprint's ratios of every profile; a strategy's own provider's profile says the last word of it."""
    found: dict[str, float] = {}
    for profile in problem.profiles.values():
        found.update(_relative(references_of(profile)))
    return found


def _relative(references: Mapping[str, float]) -> dict[str, float]:
    """Ratios over the baseline's: each profile's geometric mean is over strategies of its own."""
    base = references.get(BASELINE)
    return {} if base is None else {name: ratio - base for name, ratio in references.items()}


def _nearest(bare: Strategy, provider: str, references: Mapping[str, float]) -> tuple[str, int] | None:
    """The strategy of the fingerprint's list that differs in the fewest settings, and in how many.

    None where the nearest is plain onnxruntime: what it leaves out is not known then.
    """
    best: tuple[str, int] | None = None
    for name, reference in REFERENCE_STRATEGIES.items():
        if name in references and reference.provider == provider:
            apart = len(_settings(bare) ^ _settings(reference))
            if best is None or apart < best[1]:
                best = name, apart
    return None if best is None or best[0] == BASELINE else best


def _settings(strategy: Strategy) -> set[tuple[str, str]]:
    tables = (strategy.provider_options, strategy.session_options, strategy.session_config)
    own = {("device", strategy.device)} if strategy.device is not None else set()
    return own | {(key, str(value)) for table in tables for key, value in table.items()}
