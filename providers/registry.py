"""Which adapters there are: ours, the CPU's first, and third parties' from the entry-point group of this name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ort_metainfer.errors import ProviderError
from ort_metainfer.problem import Device
from ort_metainfer.providers.base import Availability, Provider
from ort_metainfer.strategy import Strategy

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "ENTRY_POINT_GROUP",
    "HOMES",
    "BrokenProvider",
    "all_providers",
    "get_provider",
    "our_providers",
    "usable_providers",
    "without_adapter",
]

ENTRY_POINT_GROUP = "ort_metainfer.providers"
SUFFIX = "ExecutionProvider"
HOMES: Mapping[str, str] = MappingProxyType(
    {
        f"CPU{SUFFIX}": "cpu.CpuProvider",
        f"OpenVINO{SUFFIX}": "openvino.OpenVinoProvider",
        "cpu_ep": "nxrt.NxrtProvider",
        f"QNN{SUFFIX}": "qnn.QnnProvider",
        f"WebGpu{SUFFIX}": "webgpu.WebGpuProvider",
        "ggml": "ggml.GgmlProvider",
        f"NvTensorRTRTX{SUFFIX}": "tensorrt_rtx.TensorRtRtxProvider",
        f"Tensorrt{SUFFIX}": "tensorrt.TensorRtProvider",
        f"CUDA{SUFFIX}": "cuda.CudaProvider",
        f"MIGraphX{SUFFIX}": "migraphx.MiGraphXProvider",
        f"Dml{SUFFIX}": "directml.DirectMlProvider",
        f"CoreML{SUFFIX}": "coreml.CoreMlProvider",
        f"CANN{SUFFIX}": "cann.CannProvider",
        f"VitisAI{SUFFIX}": "vitisai.VitisAiProvider",
        f"Nnapi{SUFFIX}": "nnapi.NnapiProvider",
        f"Dnnl{SUFFIX}": "dnnl.DnnlProvider",
        f"Xnnpack{SUFFIX}": "xnnpack.XnnpackProvider",
        f"ACL{SUFFIX}": "acl.AclProvider",
        f"ROCM{SUFFIX}": "rocm.RocmProvider",
    }
)
"""Name of each of our adapters -> module and class: one is imported when it is asked for, so that a cached start pays
for the provider it uses and no other. The CPU's is first."""

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
    return (*our_providers(), *_discovered(), *_third_parties())


def our_providers() -> tuple[Provider, ...]:
    """The adapters of this package, the CPU's first."""
    return tuple(_ours(name) for name in HOMES)


@lru_cache(maxsize=len(HOMES))
def _ours(name: str) -> Provider:
    module, _, kind = HOMES[name].partition(".")
    made: Provider = getattr(import_module(f"ort_metainfer.providers.{module}"), kind)()
    return made


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
        allowed = [provider for provider in our_providers() if not provider.opt_in]
    else:
        found = {id(provider): provider for name in names if (provider := _find(name)) is not None}
        ranks = {name: rank for rank, name in enumerate(HOMES)}
        allowed = sorted(found.values(), key=lambda p: (ranks.get(p.name, len(ranks)), p.name))
    cpu = _ours(next(iter(HOMES)))
    others = [provider for provider in allowed if provider is not cpu]
    return (cpu, *(provider for provider in others if _is_wanted(provider.availability(), named=names is not None)))


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
    ours = next((known for known in HOMES if known in spellings), None)
    if ours is not None:
        return _ours(ours)
    others = (*_third_parties(), *_discovered())
    return next((provider for provider in others if provider.name in spellings), None)


@lru_cache(maxsize=1)
def _discovered() -> tuple[Provider, ...]:
    from ort_metainfer.providers.discovered import discover
    from ort_metainfer.start import PLUG_IN_MODULES

    return discover(PLUG_IN_MODULES, {*HOMES, *(provider.name for provider in _third_parties())})


@lru_cache(maxsize=1)
def _simulated() -> Provider:
    """Described chips: no provider of onnxruntime's, so not among :func:`all_providers`; only who names it gets it."""
    from ort_metainfer.providers.simulated import SimulatedProvider

    return SimulatedProvider()


@lru_cache(maxsize=1)
def _third_parties() -> tuple[Provider, ...]:
    from importlib import metadata  # seldom needed, and it brings the e-mail parser along

    taken = set(HOMES)
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
        except (Exception, SystemExit) as error:  # noqa: BLE001 (a third party's may raise anything; doctor shows it)
            yield BrokenProvider(
                point.name, f"{source} does not load: {type(error).__name__}: {error}; fix or remove it"
            )
            continue
        if isinstance(made, Provider) and isinstance(getattr(made, "name", None), str) and made.name:
            yield made
        else:
            yield BrokenProvider(point.name, f"{source} is no ort_metainfer.providers.Provider with a name; fix it")
