"""The session the caller asked for, in plain values. On the path of every cached start: imports next to nothing."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = ["NEUTRAL_PROPERTIES", "THREAD_VARIABLES", "SessionSpec"]

NEUTRAL_PROPERTIES = frozenset(
    {"enable_profiling", "profile_file_prefix", "logid", "log_severity_level", "log_verbosity_level"}
)
"""SessionOptions properties that write files or print: no part of what is decided, and left out of trials."""

THREAD_VARIABLES = {
    "intra_op_num_threads": "ORT_INTRA_OP_NUM_THREADS",
    "inter_op_num_threads": "ORT_INTER_OP_NUM_THREADS",
}
"""SessionOptions property -> the environment variable that onnxruntime takes it from where a program sets none
(microsoft/onnxruntime#29688); 0 is its own default."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class SessionSpec(NamedTuple):
    """The session the caller asked for, in plain values, so that another process can make the same.

    Attributes:
        properties: SessionOptions properties that differ from their defaults, by name: plain values, enums by their
            name.
        config: session config entries the caller added.
        free_dimensions: overrides the caller added by name.
        providers: the caller's providers in order, each with its options; empty where none were given.
    """

    properties: Mapping[str, Any] = _NOTHING
    config: Mapping[str, str] = _NOTHING
    free_dimensions: Mapping[str, int] = _NOTHING
    providers: tuple[tuple[str, Mapping[str, str]], ...] = ()

    def pinned(self) -> dict[str, str]:
        """What the caller set, as policy text."""
        chosen = {name: value for name, value in self.properties.items() if name not in NEUTRAL_PROPERTIES}
        pins = {name: str(value) for name, value in {**chosen, **self.config}.items()}
        pins |= {f"dim:{name}": str(size) for name, size in self.free_dimensions.items()}
        return pins | {f"{name}.{key}": value for name, options in self.providers for key, value in options.items()}

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in JSON."""
        return {
            "properties": dict(self.properties),
            "config": dict(self.config),
            "free_dimensions": dict(self.free_dimensions),
            "providers": [[name, dict(options)] for name, options in self.providers],
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> SessionSpec:
        """The inverse of :meth:`as_dict`."""
        providers = tuple((name, dict(options)) for name, options in plain["providers"])
        return cls(plain["properties"], plain["config"], plain["free_dimensions"], providers)
