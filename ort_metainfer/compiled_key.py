"""What a compiled model is for, as a key; in which form a provider keeps one, and how it is loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ort_metainfer.hardware.devices import CPU_PROVIDER, device_string
from ort_metainfer.spec import NEUTRAL_PROPERTIES, SessionSpec
from ort_metainfer.strategy import Strategy

__all__ = [
    "EP_CONTEXT",
    "OPTIMISED",
    "REWRITTEN",
    "CompiledKey",
    "canonical",
    "compiled_key",
    "form_of",
    "loading_strategy",
]

OPTIMISED, EP_CONTEXT, REWRITTEN = "optimised model", "EPContext", "rewritten model"
"""Forms that are kept here: the first two see ``providers.capabilities.CompiledModel``; the last is a model as a
strategy's transforms made it, which is compiled no further."""


@dataclass(frozen=True)
class CompiledKey:
    """What a compiled model is for; whatever differs makes it another one.

    Attributes:
        model: hash of the caller's model.
        device: the machine's devices, as in the cache key.
        session: what the caller set, as JSON.
        strategy: what is laid over it, as JSON: fixed shapes, rewrites and provider options are part of it.
        versions: onnxruntime with its build, the provider's package, the device's driver.
        inputs: what rewrites looked at beside the model (see ``rewrites.circumstances``); empty where nothing.
    """

    model: str
    device: str
    session: str
    strategy: str
    versions: Mapping[str, str] = field(default_factory=dict)
    inputs: str = ""

    @property
    def folder_name(self) -> str:
        """12 hex digits of the model's hash, 16 of the whole key's."""
        told = {name: value for name, value in asdict(self).items() if name != "inputs" or value}
        digest = hashlib.sha256(canonical(told)).hexdigest()[:16]
        return f"{self.model.removeprefix('sha256:')[:12]}-{digest}"


def form_of(spec: SessionSpec, strategy: Strategy) -> str | None:
    """In which form a session of this kind is kept compiled; None where it is not.

    The optimised model is the CPU provider's, and may only be used where no other provider looks at the graph.
    """
    if strategy.provider in (None, CPU_PROVIDER):
        others = [name for name, _ in spec.providers if name != CPU_PROVIDER] if strategy.provider is None else []
        return None if others else OPTIMISED
    from ort_metainfer.errors import ProviderError
    from ort_metainfer.providers import get_provider

    try:
        form = get_provider(strategy.provider).capabilities.compiled.form
    except ProviderError:
        return None
    return form if form == EP_CONTEXT else None


def compiled_key(model_hash: str, spec: SessionSpec, strategy: Strategy) -> CompiledKey:
    """The key of what this process would compile.

    Raises:
        ProviderError: the strategy's provider has no adapter here.
    """
    from ort_metainfer.providers import get_provider
    from ort_metainfer.strategy_cache.manifest import current_manifest

    told: dict[str, str] = {}
    if strategy.provider is not None:
        provider = get_provider(strategy.provider)
        told, driver = dict(provider.versions()), provider.driver_version()
        told |= {} if driver is None else {f"{strategy.provider} driver": driver}
    versions = dict(current_manifest(strategy.provider, told).versions)
    versions.pop("ort_metainfer")  # of no influence on what a provider compiles
    properties = {name: value for name, value in spec.properties.items() if name not in NEUTRAL_PROPERTIES}
    session = canonical(spec._replace(properties=properties).as_dict()).decode()
    return CompiledKey(model_hash, device_string(), session, canonical(strategy.as_dict()).decode(), versions)


def loading_strategy(strategy: Strategy, form: str) -> Strategy:
    """The strategy to open the compiled model with: what is in it already is not done again."""
    if form != OPTIMISED:
        return replace(strategy, transforms=())
    options = {**strategy.session_options, "graph_optimization_level": "disable"}
    return replace(strategy, transforms=(), session_options=options)


def canonical(plain: Any) -> bytes:
    """Plain values as JSON that is the same whenever they are."""
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
