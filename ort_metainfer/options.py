"""SessionOptions, seen and made: what the caller set, as plain values; and the options of a strategy, made from them.

onnxruntime's SessionOptions can be neither copied nor enumerated, so the methods that leave nothing visible are
watched from import on (:func:`watch`). A caller's object is never changed: a strategy gets options of its own.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnxruntime
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession as PlainSession

from ort_metainfer.spec import SessionSpec

if TYPE_CHECKING:  # this module is part of ``import ort_metainfer``, which must cost next to nothing
    from ort_metainfer.strategy import Strategy

__all__ = ["apply", "open_session", "options_of", "spec_of", "unwatch", "watch"]

_Options = onnxruntime.SessionOptions

PROPERTIES: Mapping[str, Any] = {
    name: getattr(_Options(), name) for name in dir(_Options) if isinstance(getattr(_Options, name), property)
}
"""Every property of SessionOptions with its default."""

GRAPH_LEVEL = {
    "disable": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "layout": getattr(
        onnxruntime.GraphOptimizationLevel, "ORT_ENABLE_LAYOUT", onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    ),
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
EXECUTION_MODE = {
    "sequential": onnxruntime.ExecutionMode.ORT_SEQUENTIAL,
    "parallel": onnxruntime.ExecutionMode.ORT_PARALLEL,
}

NAMED: Mapping[str, Mapping[str, Any]] = {
    "graph_optimization_level": GRAPH_LEVEL,
    "execution_mode": EXECUTION_MODE,
}
"""Session options that a strategy gives by name."""

OPAQUE_METHODS = (
    "add_external_initializers",
    "add_external_initializers_from_files_in_memory",
    "add_free_dimension_override_by_denotation",
    "add_initializer",
    "add_provider",
    "add_provider_for_devices",
    "register_custom_ops_library",
    "set_ep_context_data_read_func",
    "set_load_cancellation_flag",
    "set_provider_selection_policy",
    "set_provider_selection_policy_delegate",
)
"""Calls that leave nothing behind that could be read and given to other options."""

REFUSED_CONFIG = {
    "ep.context_enable": "it compiles the model to a file",
    "session.compile_only": "it compiles the model to a file",
    "session.load_model_format": "the model's format is set",
    "session.model_external_initializers_file_folder_path": "the folder of external data is set",
    "session.use_ort_model_bytes_directly": "onnxruntime shares the model's bytes",
}
"""Config entries with which nothing is decided, and why."""


class _Seen:
    """What was called on one SessionOptions object."""

    __slots__ = ("config", "free_dimensions", "opaque")

    def __init__(self) -> None:
        self.config: dict[str, str] = {}
        self.free_dimensions: dict[str, int] = {}
        self.opaque: list[str] = []


_seen: weakref.WeakKeyDictionary[Any, _Seen] = weakref.WeakKeyDictionary()
_originals: dict[str, Any] = {}


def watch() -> None:
    """Start to record what is called on each SessionOptions made from now on; calling it again changes nothing."""
    if _originals:
        return
    _wrap("__init__", lambda seen: None)
    _wrap("add_session_config_entry", lambda seen, key, value: seen.config.__setitem__(key, value))
    _wrap("add_free_dimension_override_by_name", lambda seen, name, size: seen.free_dimensions.__setitem__(name, size))
    for name in OPAQUE_METHODS:
        if hasattr(_Options, name):
            _wrap(name, functools.partial(lambda name, seen, *_args, **_keywords: seen.opaque.append(name), name))


def unwatch() -> None:
    """Put onnxruntime's own methods back; options made while watching stay known."""
    while _originals:
        name, original = _originals.popitem()
        setattr(_Options, name, original)


def _wrap(name: str, record: Callable[..., Any]) -> None:
    """Record calls of one method after onnxruntime has accepted them."""
    original = getattr(_Options, name)

    @functools.wraps(original)
    def recorded(self: Any, *args: Any, **keywords: Any) -> Any:
        result = original(self, *args, **keywords)
        if name == "__init__":
            _seen[self] = _Seen()
        elif (seen := _seen.get(self)) is not None:
            try:
                record(seen, *args, **keywords)
            except TypeError:  # a form of the call that is not known here
                seen.opaque.append(name)
        return result

    _originals[name] = original
    setattr(_Options, name, recorded)


def spec_of(
    options: Any, providers: Sequence[Any] | None, provider_options: Sequence[Mapping[Any, Any]] | None
) -> SessionSpec | str:
    """The caller's session in plain values, or one sentence why it cannot be told and is left to plain onnxruntime."""
    named = _providers(providers, provider_options)
    if named is None:
        return "the providers are given in a form that onnxruntime itself will judge"
    unknown = _unknown_provider(named)
    if unknown is not None:
        return f"onnxruntime knows no execution provider {unknown!r} and will say so"
    if options is None:
        return SessionSpec(providers=named)
    seen = _seen.get(options)
    if seen is None:
        return "these SessionOptions were made before ort_metainfer was imported, or by onnxruntime itself"
    if seen.opaque:
        return f"SessionOptions.{seen.opaque[0]} was called, whose effect cannot be given to another session"
    for key, why in REFUSED_CONFIG.items():
        if seen.config.get(key, "") not in ("", "0"):
            return f"{key} is set: {why}"
    properties = {
        name: getattr(options, name) for name, default in PROPERTIES.items() if getattr(options, name) != default
    }
    if "optimized_model_filepath" in properties:
        return "optimized_model_filepath is set: onnxruntime writes the optimised model there"
    if "use_per_session_threads" in properties:
        return "the session uses the process's global thread pool"
    plain = {name: getattr(value, "name", value) for name, value in properties.items()}
    return SessionSpec(plain, dict(seen.config), dict(seen.free_dimensions), named)


def _providers(
    providers: Sequence[Any] | None, provider_options: Sequence[Mapping[Any, Any]] | None
) -> tuple[tuple[str, Mapping[str, str]], ...] | None:
    """Providers with their options as text, or None where the form is not one onnxruntime accepts."""
    if providers is None or isinstance(providers, str) or not isinstance(providers, Sequence):
        return None if providers is not None or provider_options else ()
    named: list[tuple[str, Mapping[str, str]]] = []
    if provider_options:
        if len(provider_options) != len(providers) or not all(isinstance(name, str) for name in providers):
            return None
        if not all(isinstance(given, Mapping) for given in provider_options):
            return None
        pairs: list[Any] = list(zip(providers, provider_options, strict=True))
    else:
        pairs = [(entry, {}) if isinstance(entry, str) else entry for entry in providers]
    for pair in pairs:
        if not (
            isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], Mapping)
        ):
            return None
        named.append((pair[0], {str(key): str(value) for key, value in pair[1].items()}))
    return tuple(named)


def _unknown_provider(named: Sequence[tuple[str, Mapping[str, str]]]) -> str | None:
    """The first provider that is neither one of onnxruntime's, built in or not, nor a registered plug-in's."""
    known = {*onnxruntime.get_all_providers(), *onnxruntime.get_available_providers()}
    strange = [name for name, _ in named if name not in known]
    if strange and hasattr(onnxruntime, "get_ep_devices"):
        plugged = {device.ep_name for device in onnxruntime.get_ep_devices()}
        strange = [name for name in strange if name not in plugged]
    return strange[0] if strange else None


def options_of(spec: SessionSpec) -> Any:
    """SessionOptions as the caller set them, in a new object."""
    options = _Options()
    for name, value in spec.properties.items():
        default = PROPERTIES[name]
        setattr(options, name, getattr(type(default), value) if hasattr(default, "name") else value)
    for key, text in spec.config.items():
        options.add_session_config_entry(key, text)
    for dimension, size in spec.free_dimensions.items():
        options.add_free_dimension_override_by_name(dimension, size)
    return options


def apply(options: Any, strategy: Strategy) -> list[tuple[str, dict[str, str]]] | None:
    """Lay a strategy over ``options``.

    Returns:
        What to give InferenceSession as ``providers`` in place of the caller's; None where the strategy names no
        provider, or where its devices were added to ``options`` (then ``options.has_providers()``).

    Raises:
        ProviderError: the strategy's provider cannot be used here.
        StrategyError: it sets a provider option that there is not, or rewrites the graph, which nothing does yet.
    """
    if strategy.transforms:
        from ort_metainfer.errors import StrategyError

        raise StrategyError(f"transforms: there is no graph rewrite {strategy.transforms[0].name!r}; remove the table")
    for name, value in strategy.session_options.items():
        setattr(options, name, NAMED[name][str(value)] if name in NAMED else value)
    for key, text in strategy.session_config.items():
        options.add_session_config_entry(key, text)
    for dimension, size in strategy.static_shapes.items():
        options.add_free_dimension_override_by_name(dimension, size)
    if strategy.provider is None:
        return None
    from ort_metainfer.providers import get_provider

    return get_provider(strategy.provider).attach(options, strategy)


def open_session(
    model: str | bytes, spec: SessionSpec, strategy: Strategy, extra_config: Mapping[str, str] | None = None
) -> PlainSession:
    """The session that the drop-in makes for ``strategy``, as a plain onnxruntime session without its fallback.

    It is never adapted itself, also while onnxruntime is patched.

    Raises:
        ProviderError: the strategy's provider cannot be used here.
        StrategyError: it cannot be applied (see :func:`apply`).
    """
    options = options_of(spec)
    for key, text in (extra_config or {}).items():
        options.add_session_config_entry(key, text)
    providers = apply(options, strategy)
    if providers is None and strategy.provider is None:
        providers = [(name, dict(given)) for name, given in spec.providers]
    session = PlainSession.__new__(PlainSession)
    session._metainfer_stage = "creating"  # a session that is being created is left alone (see session._create)
    session.__init__(model, options, providers=providers, enable_fallback=0)
    return session
