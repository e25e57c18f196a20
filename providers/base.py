"""What every execution-provider adapter states and does; one adapter a file, all held to one conformance suite."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from ort_metainfer.errors import ProviderError, StrategyError
from ort_metainfer.problem import Device
from ort_metainfer.providers.capabilities import Capabilities
from ort_metainfer.strategy import Strategy

__all__ = ["INT_MAX", "Availability", "Option", "Provider", "option_table"]

INT_MAX = 2**31 - 1
"""Upper end of an option whose document gives none: a provider reads it as a C int, or as something wider."""


@dataclass(frozen=True)
class Availability:
    """Whether a provider can be used here, found out without importing or registering anything.

    ``how`` is ``built-in`` (compiled into this onnxruntime), ``plug-in`` (a package with a library to register) or
    None. ``reason`` is one sentence for ``doctor``: what it found, or what is missing and what to install.
    ``emulated`` where all it offers here is a simulator or a software rasteriser: its results count, its timing says
    nothing. Such a provider is used only where the user names it.
    """

    usable: bool
    how: Literal["built-in", "plug-in"] | None
    reason: str
    version: str | None = None
    emulated: bool = False


@dataclass(frozen=True)
class Option:
    """One provider option that a strategy may set.

    Attributes:
        values: what it may be; empty: any text, or any number in ``numbers``.
        lossy_values: those that do not keep float32 results.
        source: the document or measurement it rests on.
        numbers: lowest and highest integer it may be; None where it is no number.
        since: first version of the provider (see :meth:`Provider.option_version`) that has it; empty: not stated.
        until: first version that has it no more; empty: still there.
    """

    name: str
    values: tuple[str, ...]
    default: str
    meaning: str
    lossy_values: tuple[str, ...] = ()
    source: str = ""
    numbers: tuple[int, int] | None = None
    since: str = ""
    until: str = ""

    def objection(self, value: str, version: str | None) -> str | None:
        """What is wrong with ``value`` for this option in ``version`` of the provider; None where nothing is known."""
        if self.values and value not in self.values:
            return f"must be one of {', '.join(self.values)}, got {value!r}"
        if self.numbers is not None and not _is_between(value, *self.numbers):
            return f"must be a whole number from {self.numbers[0]} to {self.numbers[1]}, got {value!r}"
        if version is None or not (self.since or self.until):
            return None
        from packaging.version import InvalidVersion, Version

        try:
            installed = Version(version)
        except InvalidVersion:
            return None
        if self.since and installed < Version(self.since):
            return f"needs version {self.since} or later, installed is {version}"
        if self.until and installed >= Version(self.until):
            return f"is gone since version {self.until}, installed is {version}"
        return None


def option_table(*options: Option) -> Mapping[str, Option]:
    """Options by their names, as :attr:`Provider.options` wants them; not to be changed."""
    return MappingProxyType({option.name: option for option in options})


def _is_between(value: str, lowest: int, highest: int) -> bool:
    try:
        return lowest <= int(value) <= highest
    except ValueError:
        return False


class Provider(ABC):
    """One execution provider.

    Attributes:
        name: onnxruntime's name for it.
        kinds: device classes it can run on (``cpu``, ``gpu``, ``npu``, ``dsp``, ``fpga``).
        options: what a strategy may set.
        default_is_lossy: whether, with no option set, it may compute float32 models in less (OpenVINO does on AMX).
        run_on_hardware: whether its tests run on real hardware of that class; otherwise docs say "not run on hardware".
        proven: what its tests ran it on where that is no real hardware of that class (``the x86-64 simulator only``);
            empty: nothing, unless ``run_on_hardware``.
        exact: options that together make it keep float32 results; empty where it needs none, or where nothing does: one
            that is lossy by default and states none here counts as lossy whatever is set.
        opt_in: whether it is used only where the user names it (a provider that is not yet released, say).
        capabilities: what it demands of a graph, prefers, keeps compiled, and how it fails.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    options: ClassVar[Mapping[str, Option]] = {}
    default_is_lossy: ClassVar[bool] = False
    run_on_hardware: ClassVar[bool] = False
    proven: ClassVar[str] = ""
    exact: ClassVar[Mapping[str, str]] = {}
    opt_in: ClassVar[bool] = False
    capabilities: ClassVar[Capabilities] = Capabilities()

    @abstractmethod
    def availability(self) -> Availability:
        """Whether it can be used, in under 2 ms: no import of its package, no library registered."""

    @abstractmethod
    def devices(self) -> tuple[Device, ...]:
        """Its devices, best first; may register a library.

        Raises:
            ProviderError: it is not usable, its library does not load, or it offers no device; with what to do.
        """

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Versions its results rest on, for the manifest; cheap like :meth:`availability`."""

    @abstractmethod
    def attach(self, options: Any, strategy: Strategy) -> list[tuple[str, dict[str, str]]] | None:
        """Make ``options`` (SessionOptions) run on this provider; a plug-in's library is registered if need be.

        Returns:
            What to give InferenceSession as ``providers``, or None where the devices were added to ``options``.

        Raises:
            ProviderError: it cannot be used here.
            StrategyError: an option it does not have, or a value outside its domain.
        """

    def is_lossy(self, strategy: Strategy) -> bool:
        """Whether ``strategy`` may compute float32 models in less than float32 on this provider.

        It may where a value says so, and where it does by default unless all of ``exact`` is set.
        """
        given = self.check(strategy)
        if any(value in self.options[name].lossy_values for name, value in given.items()):
            return True
        if not self.default_is_lossy:
            return False
        return not self.exact or any(given.get(name) != value for name, value in self.exact.items())

    def check(self, strategy: Strategy) -> Mapping[str, str]:
        """The strategy's provider options, each known and inside its domain.

        Raises:
            StrategyError: otherwise.
        """
        for name, value in strategy.provider_options.items():
            option = self.options.get(name)
            if option is None:
                known = ", ".join(self.options) or "none"
                raise StrategyError(f"{self.name} has no option {name!r}; known: {known}")
            objection = option.objection(value, self.option_version())
            if objection is not None:
                raise StrategyError(f"{self.name} option {name} {objection}")
        return strategy.provider_options

    def option_version(self) -> str | None:
        """The version that the options' ``since`` and ``until`` are about; None where the provider is not installed."""
        return self.availability().version

    def driver_version(self) -> str | None:
        """Version of the device's driver, read from the system's files; None where there is none or it does not say."""
        return None

    def chosen_device(self, strategy: Strategy, offered: Sequence[str] = ()) -> str | None:
        """The strategy's device, or the first of ``offered`` (the provider's own names) where it names none.

        Raises:
            ProviderError: it names one that is not offered here.
        """
        if strategy.device is None:
            return offered[0] if offered else None
        if strategy.device not in offered:
            there_is = f"it offers {', '.join(offered)}" if offered else "its devices have no names"
            raise ProviderError(f"{self.name} offers no device {strategy.device!r} here; {there_is}")
        return strategy.device
