"""Which adapters there are: ours, the CPU's first, and third parties' from the entry-point group of this name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ort_metainfer.errors import ProviderError
from ort_metainfer.problem import Device
from ort_metainfer.providers.acl import AclProvider
from ort_metainfer.providers.base import Availability, Provider
from ort_metainfer.providers.cann import CannProvider
from ort_metainfer.providers.coreml import CoreMlProvider
from ort_metainfer.providers.cpu import CpuProvider
from ort_metainfer.providers.cuda import CudaProvider
from ort_metainfer.providers.directml import DirectMlProvider
from ort_metainfer.providers.dnnl import DnnlProvider
from ort_metainfer.providers.ggml import GgmlProvider
from ort_metainfer.providers.migraphx import MiGraphXProvider
from ort_metainfer.providers.nnapi import NnapiProvider
from ort_metainfer.providers.nxrt import NxrtProvider
from ort_metainfer.providers.openvino import OpenVinoProvider
from ort_metainfer.providers.qnn import QnnProvider
from ort_metainfer.providers.rocm import RocmProvider
from ort_metainfer.providers.tensorrt import TensorRtProvider
from ort_metainfer.providers.tensorrt_rtx import TensorRtRtxProvider
from ort_metainfer.providers.vitisai import VitisAiProvider
from ort_metainfer.providers.webgpu import WebGpuProvider
from ort_metainfer.providers.xnnpack import XnnpackProvider
from ort_metainfer.strategy import Strategy

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "ENTRY_POINT_GROUP",
    "BrokenProvider",
    "all_providers",
    "get_provider",
    "usable_providers",
    "without_adapter",
]

ENTRY_POINT_GROUP = "ort_metainfer.providers"
OURS: tuple[Provider, ...] = (
    CpuProvider(),
    OpenVinoProvider(),
    NxrtProvider(),
    QnnProvider(),
    WebGpuProvider(),
    GgmlProvider(),
    TensorRtRtxProvider(),
    TensorRtProvider(),
    CudaProvider(),
    MiGraphXProvider(),
    DirectMlProvider(),
    CoreMlProvider(),
    CannProvider(),
    VitisAiProvider(),
    NnapiProvider(),
    DnnlProvider(),
    XnnpackProvider(),
    AclProvider(),
    RocmProvider(),
)
SUFFIX = "ExecutionProvider"
SIMULATED = f"Simulated{SUFFIX}"


class BrokenProvider(Provider):
    """Stands for a third party's adapter that could not be loaded; ``doctor`` shows why."""

    name = ""
    kinds = ()

    def __init__(self, name: str, reason: str) -> None:
        self.name = name  # type: ignore[misc]  # each broken one has its own
        self.reason = reason

    def availability(self) -> Availability:
        """Never usable."""
        return Availability(False, None, self.reason)

    def devices(self) -> tuple[Device, ...]:
        """None.

        Raises:
            ProviderError: always.
        """
        raise ProviderError(self.reason)

    def versions(self) -> dict[str, str]:
        """None."""
        return {}

    def attach(self, options: Any, strategy: Strategy) -> None:
        """Refuse.

        Raises:
            StrategyError: it sets an option: a broken adapter has none.
            ProviderError: otherwise.
        """
        self.check(strategy)
        raise ProviderError(self.reason)


def all_providers() -> tuple[Provider, ...]:
    """Every adapter, the CPU's first, third parties' last; loads their entry points at the first call.

    Before the third parties' stand plug-in packages that are installed and that no adapter speaks for.
    """
    return (*OURS, *_discovered(), *_third_parties())


def get_provider(name: str) -> Provider:
    """The adapter of that name, with or without ``ExecutionProvider``.

    Raises:
        ProviderError: there is none; with the names there are.
    """
    found = _find(name)
    if found is None:
        known = ", ".join(provider.name for provider in all_providers())
        raise ProviderError(f"no adapter for execution provider {name!r}; known: {known}")
    return found


def usable_providers(names: Collection[str] | None = None) -> tuple[Provider, ...]:
    """Adapters that can be used here, cheaply found; the CPU's is always first: onnxruntime falls back on it.

    Args:
        names: those allowed. None allows ours that are neither opt-in nor emulated here. A third party's is used only
            where it is named. A name without an adapter is passed over: a caller may list any provider that onnxruntime
            has.
    """
    if names is None:
        allowed = [provider for provider in OURS if not provider.opt_in]
    else:
        found = {id(provider): provider for name in names if (provider := _find(name)) is not None}
        ranks = {id(provider): rank for rank, provider in enumerate(OURS)}
        allowed = sorted(found.values(), key=lambda p: (ranks.get(id(p), len(ranks)), p.name))
    others = [provider for provider in allowed if provider is not OURS[0]]
    return (OURS[0], *(provider for provider in others if _is_wanted(provider.availability(), named=names is not None)))


def _is_wanted(found: Availability, named: bool) -> bool:
    """Usable, and no emulation that nobody asked for by name."""
    return found.usable and (named or not found.emulated)


def without_adapter() -> tuple[str, ...]:
    """Providers that this onnxruntime lists and that no adapter speaks for: left as the caller gave them."""
    import onnxruntime

    known = {provider.name for provider in all_providers()}
    return tuple(name for name in onnxruntime.get_available_providers() if name.partition(".")[0] not in known)


def _find(name: str) -> Provider | None:
    spellings = {name, f"{name}{SUFFIX}", name.removesuffix(SUFFIX)}
    if SIMULATED in spellings:
        return _simulated()
    ours = next((provider for provider in OURS if provider.name in spellings), None)
    if ours is not None:
        return ours
    others = (*_third_parties(), *_discovered())
    return next((provider for provider in others if provider.name in spellings), None)


@lru_cache(maxsize=1)
def _discovered() -> tuple[Provider, ...]:
    from ort_metainfer.providers.discovered import discover
    from ort_metainfer.start import PLUG_IN_MODULES

    return discover(PLUG_IN_MODULES, {provider.name for provider in (*OURS, *_third_parties())})


@lru_cache(maxsize=1)
def _simulated() -> Provider:
    """Described chips: no provider of onnxruntime's, so not among :func:`all_providers`; only who names it gets it."""
    from ort_metainfer.providers.simulated import SimulatedProvider

    return SimulatedProvider()


@lru_cache(maxsize=1)
def _third_parties() -> tuple[Provider, ...]:
    from importlib import metadata  # seldom needed, and it brings the e-mail parser along

    taken = {provider.name for provider in OURS}
    found = []
    for provider in _load(metadata.entry_points(group=ENTRY_POINT_GROUP)):
        if provider.name in taken:
            reason = f"a third party's adapter for {provider.name} is ignored: there is one of that name already"
            provider = BrokenProvider(f"{provider.name} (second)", reason)
        taken.add(provider.name)
        found.append(provider)
    return tuple(found)


def _load(entry_points: Collection[EntryPoint]) -> Iterator[Provider]:
    """An adapter for each entry point, sorted by name; a broken one where it cannot be loaded or is none."""
    for point in sorted(entry_points, key=lambda point: (point.name, point.value)):
        source = f"entry point {point.name} = {point.value}"
        if point.dist is not None:
            source += f" of {point.dist.name} {point.dist.version}"
        try:
            made = point.load()()
            made.availability()
        except Exception as error:  # noqa: BLE001 (a third party's code may raise anything; doctor shows it)
            yield BrokenProvider(
                point.name, f"{source} does not load: {type(error).__name__}: {error}; fix or remove it"
            )
            continue
        if isinstance(made, Provider) and isinstance(getattr(made, "name", None), str) and made.name:
            yield made
        else:
            yield BrokenProvider(point.name, f"{source} is no ort_metainfer.providers.Provider with a name; fix it")
