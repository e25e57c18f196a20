"""The strategy: what is changed about a session, as one frozen, replayable record and as a file people edit.

A strategy with nothing in it is the session plain onnxruntime would have made. Its dimensions: graph transforms
(operators, fusion, layout, precision), the provider with its options, session options (scheduling, graph level), and
static shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ort_metainfer.errors import StrategyError

__all__ = ["GRAPH_LEVELS", "SESSION_OPTIONS", "Strategy", "Transform", "freeze"]

Scalar = str | int | float | bool

LARGEST_SIZE, LARGEST_OPTION = 2**63 - 1, 2**31 - 1
"""What onnxruntime can hold of a dimension, and of a whole number among the session options."""

GRAPH_LEVELS = ("disable", "basic", "extended", "layout", "all")
"""Names of onnxruntime.GraphOptimizationLevel without their ``ORT_ENABLE_`` (``ORT_DISABLE_ALL`` is ``disable``)."""

EXECUTION_MODES = ("sequential", "parallel")

SESSION_OPTIONS: Mapping[str, type] = MappingProxyType(
    {
        "intra_op_num_threads": int,
        "inter_op_num_threads": int,
        "execution_mode": str,
        "graph_optimization_level": str,
        "enable_mem_pattern": bool,
        "enable_cpu_mem_arena": bool,
        "enable_mem_reuse": bool,
    }
)
"""Properties of onnxruntime.SessionOptions that a strategy may set, with their types."""


def freeze(values: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A read-only copy with sorted keys, so that equal strategies print and hash alike."""
    return MappingProxyType({key: values[key] for key in sorted(values)} if values else {})


def _brief(value: Any) -> str:
    """A parameter's value in a few words: of a long list, how long it is."""
    return f"{len(value)} names" if isinstance(value, list) and len(value) > 2 else str(value)


@dataclass(frozen=True)
class Transform:
    """One graph rewrite with its parameters; ``version`` is the rewrite's own, so that a changed rewrite is noticed."""

    name: str
    version: int = 1
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, wanted in (("name", str), ("version", int)):
            if type(getattr(self, name)) is not wanted:
                raise StrategyError(f"a transform's {name} must be {wanted.__name__}, got {getattr(self, name)!r}")
        if not isinstance(self.parameters, Mapping):
            raise StrategyError(f"transform {self.name}: parameters must be a table, got {self.parameters!r}")
        for name, value in self.parameters.items():
            if not _is_plain(value):
                raise StrategyError(
                    f"transform {self.name}: parameter {name} holds neither text nor numbers: {value!r}"
                )
        object.__setattr__(self, "parameters", freeze(self.parameters))

    def describe(self) -> str:
        """``int8-static(calibration=percentile)``."""
        given = ", ".join(f"{name}={_brief(value)}" for name, value in self.parameters.items())
        return f"{self.name}({given})" if given else self.name

    def __hash__(self) -> int:
        return hash((self.name, self.version, tuple(self.parameters)))  # names only: a value may be a list

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in JSON and TOML."""
        return {"name": self.name, "version": self.version, "parameters": dict(self.parameters)}


@dataclass(frozen=True)
class Strategy:
    """What is changed about a session; an empty one changes nothing.

    Attributes:
        transforms: graph rewrites, applied in order.
        provider: execution provider that runs the graph; None leaves the caller's providers as they are.
        device: the provider's own name for one of its devices (OpenVINO: ``CPU``, ``AUTO``); None is its first.
        provider_options: the adapter's options (see ``ort_metainfer.providers``), values as text.
        session_options: properties of SessionOptions, by name; those in ``SESSION_OPTIONS``.
            ``graph_optimization_level`` is one of ``GRAPH_LEVELS``, ``execution_mode`` is ``sequential`` or
            ``parallel``.
        session_config: SessionOptions.add_session_config_entry keys and values.
        static_shapes: symbolic dimension name -> size; a call with other shapes runs on the general session.

    Raises:
        StrategyError: an unknown session option, or a value of the wrong type.
    """

    transforms: tuple[Transform, ...] = ()
    provider: str | None = None
    device: str | None = None
    provider_options: Mapping[str, str] = field(default_factory=dict)
    session_options: Mapping[str, Scalar] = field(default_factory=dict)
    session_config: Mapping[str, str] = field(default_factory=dict)
    static_shapes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", tuple(self.transforms))
        for name in ("provider", "device"):
            if not isinstance(getattr(self, name), str | None):
                raise StrategyError(f"{name} must be text, got {getattr(self, name)!r}")
        for name in ("provider_options", "session_options", "session_config", "static_shapes"):
            if not isinstance(getattr(self, name), Mapping):
                raise StrategyError(f"{name} must be a table, got {getattr(self, name)!r}")
            object.__setattr__(self, name, freeze(getattr(self, name)))
        _check_session_options(self.session_options)
        for table, wanted in (("provider_options", str), ("session_config", str), ("static_shapes", int)):
            for key, value in getattr(self, table).items():
                if not isinstance(value, wanted) or isinstance(value, bool):
                    raise StrategyError(f"{table}.{key} must be {wanted.__name__}, got {value!r}")
        if any(not 1 <= size <= LARGEST_SIZE for size in self.static_shapes.values()):
            raise StrategyError(f"static_shapes must be positive 64-bit integers, got {dict(self.static_shapes)}")

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Worked out once: a search looks its strategies up by the thousand."""
        tables = (self.provider_options, self.session_options, self.session_config, self.static_shapes)
        return hash((self.transforms, self.provider, self.device, *(tuple(table.items()) for table in tables)))

    @property
    def is_default(self) -> bool:
        """Whether it leaves plain onnxruntime's session as it is."""
        return self == _DEFAULT

    def as_dict(self) -> dict[str, Any]:
        """Plain values without empty fields, as they stand in JSON and TOML."""
        plain: dict[str, Any] = {}
        for name, value in ((f.name, getattr(self, f.name)) for f in fields(self)):
            if isinstance(value, Mapping) and value:
                plain[name] = dict(value)
            elif isinstance(value, tuple) and value:
                plain[name] = [transform.as_dict() for transform in value]
            elif isinstance(value, str):
                plain[name] = value
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Strategy:
        """The inverse of :meth:`as_dict`.

        Raises:
            StrategyError: an unknown field or a value of the wrong type.
        """
        unknown = set(plain) - {f.name for f in fields(cls)}
        if unknown:
            known = ", ".join(f.name for f in fields(cls))
            raise StrategyError(f"unknown field {sorted(unknown)[0]!r} in a strategy; known: {known}")
        values = dict(plain)
        if not isinstance(plain.get("transforms", []), list | tuple):
            raise StrategyError(f"transforms must be tables ([[strategy.transforms]]), got {plain['transforms']!r}")
        try:
            values["transforms"] = tuple(_transform(given) for given in plain.get("transforms", ()))
            return cls(**values)
        except (TypeError, AttributeError) as error:
            raise StrategyError(f"not a strategy: {error}") from error

    def describe(self) -> str:
        """One line for people: ``OpenVINOExecutionProvider INFERENCE_PRECISION_HINT=f32 intra_op_num_threads=1``."""
        if self.is_default:
            return "default (plain onnxruntime)"
        words = [transform.describe() for transform in self.transforms]
        words += [self.provider] if self.provider else []
        words += [f"device={self.device}"] if self.device else []
        for table in (self.provider_options, self.session_options, self.session_config):
            words += [f"{key}={value}" for key, value in table.items()]
        words += [f"{name}:={size}" for name, size in self.static_shapes.items()]
        return " ".join(words)

    def to_toml(self, comment: str = "") -> str:
        """The strategy as a file a person can read and edit; ``comment`` goes on top, one ``#`` a line."""
        import tomli_w

        head = "".join(f"# {line}\n" for line in comment.splitlines())
        return head + tomli_w.dumps({"strategy": self.as_dict()})

    @classmethod
    def read(cls, path: str | Path) -> Strategy:
        """Read a strategy file: the table ``[strategy]``, with ``[override]`` laid over it field by field.

        Raises:
            StrategyError: the file is missing, no TOML, or holds something a strategy does not have.
        """
        import tomllib

        try:
            plain = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))  # Windows editors begin with a mark
        except OSError as error:
            raise StrategyError(f"cannot read strategy file {path}: {error.strerror or error}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise StrategyError(f"strategy file {path} is not TOML: {error}") from error
        strays = set(plain) - {"strategy", "override"}
        if strays or not plain:
            raise StrategyError(
                f"strategy file {path} must hold the table [strategy] (and may hold [override]), got {sorted(plain)}"
            )
        for table in ("strategy", "override"):
            if not isinstance(plain.get(table, {}), dict):
                raise StrategyError(f"strategy file {path}: {table} must be a table, got {plain[table]!r}")
        merged: dict[str, Any] = dict(plain.get("strategy", {}))
        for name, value in plain.get("override", {}).items():
            both = isinstance(value, dict) and isinstance(merged.get(name), dict)
            merged[name] = {**merged[name], **value} if both else value
        try:
            return cls.from_dict(merged)
        except StrategyError as error:
            raise StrategyError(f"strategy file {path}: {error}") from error


def _transform(plain: Any) -> Transform:
    if not isinstance(plain, Mapping) or "name" not in plain:
        raise StrategyError(f"transforms must be tables with a name ([[strategy.transforms]]), got {plain!r}")
    unknown = sorted(set(plain) - {f.name for f in fields(Transform)})
    if unknown:
        raise StrategyError(f"unknown field {unknown[0]!r} in a transform; known: name, version, parameters")
    return Transform(**plain)


def _is_plain(value: Any) -> bool:
    """Whether JSON can hold it: TOML has dates too."""
    parts = value if isinstance(value, list) else value.values() if isinstance(value, Mapping) else None
    return all(map(_is_plain, parts)) if parts is not None else value is None or isinstance(value, Scalar)


def _check_session_options(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        wanted = SESSION_OPTIONS.get(name)
        if wanted is None:
            raise StrategyError(f"unknown session option {name!r}; known: {', '.join(SESSION_OPTIONS)}")
        if type(value) is not wanted:
            raise StrategyError(f"session_options.{name} must be {wanted.__name__}, got {value!r}")
        if isinstance(value, int) and value > LARGEST_OPTION:
            raise StrategyError(f"session_options.{name} must be at most {LARGEST_OPTION}, got {value}")
    for name, allowed in (("graph_optimization_level", GRAPH_LEVELS), ("execution_mode", EXECUTION_MODES)):
        if name in options and options[name] not in allowed:
            raise StrategyError(f"session_options.{name} must be one of {', '.join(allowed)}, got {options[name]!r}")


_DEFAULT = Strategy()
"""Plain onnxruntime."""
