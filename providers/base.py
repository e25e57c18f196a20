"""What every execution-provider adapter states and does; one adapter a file, all held to one conformance suite."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ort_metainfer.errors import ProviderError, StrategyError
from ort_metainfer.problem import Device
from ort_metainfer.strategy import Strategy

__all__ = ["Availability", "Option", "Provider"]


@dataclass(frozen=True)
class Availability:
    """Whether a provider can be used here, found out without importing or registering anything.

    ``how`` is ``built-in`` (compiled into this onnxruntime), ``plug-in`` (a package with a library to register) or
    None. ``reason`` is one sentence for ``doctor``: what it found, or what is missing and what to install.
    """

    usable: bool
    how: Literal["built-in", "plug-in"] | None
    reason: str
    version: str | None = None


@dataclass(frozen=True)
class Option:
    """One provider option that a strategy may set; no ``values`` means any text.

    ``lossy_values`` are those that do not keep float32 results; ``source`` is the document or measurement it rests on.
    """

    name: str
    values: tuple[str, ...]
    default: str
    meaning: str
    lossy_values: tuple[str, ...] = ()
    source: str = ""


class Provider(ABC):
    """One execution provider.

    Attributes:
        name: onnxruntime's name for it.
        kinds: device classes it can run on (``cpu``, ``gpu``, ``npu``, ``dsp``, ``fpga``).
        options: what a strategy may set.
        default_is_lossy: whether, with no option set, it may compute float32 models in less (OpenVINO does on AMX).
        run_on_hardware: whether its tests run on real hardware of that class; otherwise docs say "not run on hardware".
        opt_in: whether it is used only where the user names it (a provider that is not yet released, say).
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    options: ClassVar[Mapping[str, Option]] = {}
    default_is_lossy: ClassVar[bool] = False
    run_on_hardware: ClassVar[bool] = False
    opt_in: ClassVar[bool] = False

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
        """Whether ``strategy`` may compute float32 models in less than float32 on this provider."""
        chosen = {name: value for name, value in self.check(strategy).items() if self.options[name].lossy_values}
        if not chosen:  # nothing that bears on precision was set
            return self.default_is_lossy
        return any(value in self.options[name].lossy_values for name, value in chosen.items())

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
            if option.values and value not in option.values:
                raise StrategyError(
                    f"{self.name} option {name} must be one of {', '.join(option.values)}, got {value!r}"
                )
        return strategy.provider_options

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
