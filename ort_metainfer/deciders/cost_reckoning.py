"""The analytic part of the cost model for one problem: which nodes run where, at which rates, how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, log

from ort_metainfer.deciders.cost_configuration import Configuration, configuration_of
from ort_metainfer.deciders.cost_kinds import PRODUCTS, kind_of_operator
from ort_metainfer.deciders.cost_latency import Latency, latency_of
from ort_metainfer.deciders.cost_rates import Rates, rates_of
from ort_metainfer.deciders.cost_table import WorkTable, table_of, table_of_graph
from ort_metainfer.deciders.traits import CPU
from ort_metainfer.hardware.profile import Profile
from ort_metainfer.model.work import NodeWork
from ort_metainfer.problem import Device, Problem
from ort_metainfer.strategy import Strategy

__all__ = ["Expected", "Reckoning"]

SAME_DEVICE_SPREAD = 0.06
"""How far a ratio of two latencies on the same device in the same types lies off: own measurement, thread counts lay
within 6% of the power law on twelve of sixteen models."""

LAUNCH_SPREAD = 0.5
"""The same for the share of the time that is launches: what one takes is only assumed. One thread ran a network of many
small nodes 1.17x where 0.81x was reckoned (own measurement)."""

COARSE_SPREAD = 0.2
"""Added where the nodes are not known and work is shared out by counts. Assumed."""


@dataclass(frozen=True)
class Expected:
    """ln(baseline / strategy) by reckoning, with its spread and what it rests on."""

    log_ratio: float
    spread: float
    source: str


class Reckoning:
    """What is worked out once for a problem; it answers for any number of strategies.

    Args:
        problem: for which model and machine; one without a CPU device has no baseline to reckon with.
        scales: kind -> measured over reckoned time of the baseline, where onnxruntime's profiler was asked.
    """

    def __init__(self, problem: Problem, scales: Mapping[str, float] | None = None) -> None:
        self.problem, self.scales = problem, scales
        self._cpu = next((device for device in problem.devices if device.provider == CPU), None)
        self._tables: dict[tuple[str, str | None, bool, str], WorkTable] = {}
        self._rates: dict[Device, Rates] = {}
        self._latencies: dict[Configuration, Latency | None] = {}
        self._is_coarse = not problem.work or any(map(_is_unknown_product, problem.work))
        self.baseline = configuration_of(problem, Strategy())

    def latency(self, configuration: Configuration) -> Latency | None:
        """What one run takes; None where the device is not known."""
        if configuration not in self._latencies:
            self._latencies[configuration] = self._reckoned(configuration)
        return self._latencies[configuration]

    def expected(self, strategy: Strategy) -> Expected | None:
        """What is expected of ``strategy``; None where nothing can be reckoned."""
        configuration = configuration_of(self.problem, strategy)
        before, after = self.latency(self.baseline), self.latency(configuration)
        if before is None or after is None or before.seconds <= 0 or after.seconds <= 0:
            return None
        spread, source = self._doubt(configuration)
        return Expected(log(before.seconds / after.seconds), spread, source)

    def doubt_of_rewrites(self, strategy: Strategy) -> float:
        """Spread of what the rewrites of ``strategy`` change: their own, and the device's where types change."""
        configuration = configuration_of(self.problem, strategy)
        device = self._device(configuration)
        changes_types = configuration.effect.dtype is not None
        doubt = self._rates_of(device).spread if changes_types and device is not None else 0.0
        return hypot(configuration.effect.spread, doubt)

    def _reckoned(self, configuration: Configuration) -> Latency | None:
        device = self._device(configuration)
        if device is None or self._cpu is None or (self._is_coarse and not _is_countable(self.problem)):
            return None
        host = self._rates_of(self._cpu)
        own = host if device == self._cpu else self._rates_of(device)
        table = self._table(device, configuration)
        if not table.kind.size:
            return None
        return latency_of(table, configuration, own, host, self._threads(device), self.scales)

    def _device(self, configuration: Configuration) -> Device | None:
        offered = [device for device in self.problem.devices if device.provider == configuration.provider]
        named = [device for device in offered if device.provider_device == configuration.device]
        found = next(iter(named if configuration.device is not None else offered), None)
        if found is not None and found.kind == "cpu" and self._cpu is not None and found is not self._cpu:
            features = tuple(dict.fromkeys((*found.features, *self._cpu.features)))
            return replace(found, cores=found.cores or self._cpu.cores, features=features)
        return found

    def _threads(self, device: Device) -> int:
        cores = device.cores or (self._cpu.cores if self._cpu is not None else None)
        return max(1, int(cores or 1))

    def _rates_of(self, device: Device) -> Rates:
        if device not in self._rates:
            self._rates[device] = rates_of(device, _profile_of(self.problem, device))
        return self._rates[device]

    def _table(self, device: Device, configuration: Configuration) -> WorkTable:
        key = (device.provider, device.provider_device, configuration.has_fixed_sizes, configuration.dtype)
        if key not in self._tables:
            self._tables[key] = self._placed(device, configuration)
        return self._tables[key]

    def _placed(self, device: Device, configuration: Configuration) -> WorkTable:
        if self._is_coarse:
            return table_of_graph(self.problem)
        outputs = [spec.name for spec in self.problem.graph.outputs]
        return table_of(self.problem.work, outputs, _placement(self.problem, device, configuration))

    def _doubt(self, configuration: Configuration) -> tuple[float, str]:
        """Spread of the ratio, and what it rests on."""
        own, base = self._device(configuration), self._device(self.baseline)
        assert own is not None and base is not None  # both have a latency
        rates = self._rates_of(own)
        coarse = COARSE_SPREAD if self._is_coarse else 0.0
        if own != base:
            spread = hypot(rates.spread, self._rates_of(base).spread)
        elif configuration.dtype != self.baseline.dtype or configuration.effect.dtype:
            spread = rates.spread
        else:
            spread, coarse = SAME_DEVICE_SPREAD, coarse / 2
        if configuration == self.baseline:
            return 0.0, rates.source
        launches = LAUNCH_SPREAD * self._launch_share(configuration)
        return hypot(spread, configuration.effect.spread, coarse, launches), rates.source

    def _launch_share(self, configuration: Configuration) -> float:
        latencies = [self.latency(configuration), self.latency(self.baseline)]
        return max((min(1.0, one.launch_s / one.seconds) for one in latencies if one is not None), default=0.0)


def _is_unknown_product(node: NodeWork) -> bool:
    return node.macs is None and not node.folded and kind_of_operator(node.operator) in PRODUCTS


def _is_countable(problem: Problem) -> bool:
    """Whether counts of operators say how much work there is: the graph's products are counted, or it has none."""
    return problem.graph.macs is not None or not any(
        kind_of_operator(name) in PRODUCTS for name in problem.graph.operators
    )


def _profile_of(problem: Problem, device: Device) -> Profile | None:
    if device.simulated:
        return _described_profile(device)
    first = problem.device(device.provider)
    same = first is not None and first.provider_device == device.provider_device
    return problem.profiles.get(device.provider) if same else None


def _described_profile(device: Device) -> Profile | None:
    from ort_metainfer.errors import ProviderError
    from ort_metainfer.providers.chips import get_chip
    from ort_metainfer.providers.simulated import profile_of

    try:
        return profile_of(get_chip(device.provider_device or device.name))
    except ProviderError:
        return None


def _placement(problem: Problem, device: Device, configuration: Configuration) -> Sequence[bool]:
    """For each node, whether ``device`` runs it: by its description, by what it took when it was tried, else all."""
    if device.simulated:
        return _described_placement(problem, device, configuration)
    profile = problem.profiles.get(device.provider)
    if profile is None or device.provider == CPU:
        return [True] * len(problem.work)
    return [profile.operators.get(node.operator, True) for node in problem.work]


def _described_placement(problem: Problem, device: Device, configuration: Configuration) -> Sequence[bool]:
    from ort_metainfer.errors import ProviderError
    from ort_metainfer.hardware.placing import Placing
    from ort_metainfer.hardware.simulation import as_precision
    from ort_metainfer.providers.chips import get_chip

    try:
        placing = Placing(get_chip(device.provider_device or device.name), configuration.has_fixed_sizes)
    except ProviderError:
        return [True] * len(problem.work)
    wanted = configuration.dtype.partition("@")[0]
    precision = wanted if wanted in ("float16", "bfloat16", "int8") else "as is"
    return [placing.takes(node) for node in as_precision(problem.work, precision)]  # type: ignore[arg-type]
