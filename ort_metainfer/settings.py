"""Settings: keyword over environment over user file over defaults, as one frozen record.

Environment: ``ORT_METAINFER_`` and the field's name in capitals (``ORT_METAINFER_BUDGET_S=30``). User file:
``config.toml`` in the platform's configuration directory (``ORT_METAINFER_CONFIG`` names another), the same names in
lower case.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ort_metainfer import setting_checks as checks
from ort_metainfer.errors import SettingsError
from ort_metainfer.places import config_place as config_file

__all__ = ["FIELDS", "Settings", "config_file", "resolve", "sources"]

PREFIX = "ORT_METAINFER_"

OBJECTIVES = ("latency", "tail", "throughput", "memory", "pipeline")
"""What a strategy may be chosen for."""

OTHER_VARIABLES = frozenset({"CONFIG", "PUBLIC_DATA", "ZOO", "FULL", "OPENVINO_PYTHON", "TRIAL_FAULT"})
"""Variables that are no settings: where the user's file is, and what the tests use."""


@dataclass(frozen=True)
class Settings:
    """What the user wants; a field left at None comes from the environment, the user's file, or the default.

    Attributes:
        mode: ``auto`` decides where the cache does not know; ``background`` makes the plain session at once and has the
            decision made by a process of low priority, for sessions to come; ``cached`` only looks up; ``off`` is plain
            onnxruntime.
        budget_s: seconds a decision may take at most; default 15.
        accuracy: ``strict`` (float32 results kept, relative L2 at most 1e-4), ``balanced`` (1e-2) or ``fast`` (1e-1);
            the last two also keep the top answer in 99% of rows, and need real inputs.
        providers: execution providers allowed, by name; default all usable. A caller's own list narrows it further.
        cache_dir: where strategies are kept; default the platform's cache directory.
        strategy: a strategy file that is applied and wins over everything.
        input_shapes: input name -> shape that the session will be run with.
        inputs: real inputs: a dict, a list or iterator of dicts, a callable that returns one of these, or a path or
            glob of .npz files.
        objective: ``latency``, the session runs alone; ``pipeline``, others of this process run between its runs;
            ``tail``, the slowest in a hundred runs counts; ``throughput``, several threads call it at once; ``memory``,
            the least memory within ``max_slowdown``.
        callers: for ``throughput``: how many threads call the session at once; default the cores of this process, at
            least 2.
        max_slowdown: for ``memory``: how many times the default's median latency is allowed; default 1.1.
        metric: a function's name, ``module:function``, or an importable function itself, that measures accuracy in
            place of the tolerances of ``accuracy`` (see ``trials/metric.py``); needs ``metric_threshold``.
        metric_threshold: the loss that ``metric`` may give at most.
        capture: how many inputs of real runs are kept on disk at most, for decisions to come; 0 keeps none, ``True`` or
            1 a moderate number (see ``model/capture.py``).
        buckets: how many sessions of fixed shapes one session with open dimensions may keep, each for shapes that it is
            often called with; 0: none.
        compiled: ``auto`` keeps what a provider compiled where loading that is faster, and uses it; ``off`` does not.
        max_trials: how many strategies a decision may try at most; default 30.
        rules_off: names of rules that are left out, as ``explain`` shows them.
        records: keep each trial as a record that learners are trained on; default True. Nothing leaves the machine.
        strict: raise what otherwise is one warning and a plain session.
        log: level of the logger ``ort_metainfer``: ``off``, ``error``, ``warning``, ``info`` or ``debug``.

    Raises:
        SettingsError: a value that is not allowed.
    """

    mode: str | None = None
    budget_s: float | None = None
    accuracy: str | None = None
    providers: tuple[str, ...] | None = None
    cache_dir: str | os.PathLike[str] | None = None
    strategy: str | os.PathLike[str] | None = None
    input_shapes: Mapping[str, tuple[int, ...]] | None = None
    inputs: Any = field(default=None, repr=False, compare=False)
    objective: str | None = None
    callers: int | None = None
    max_slowdown: float | None = None
    metric: Any = None
    metric_threshold: float | None = None
    capture: int | None = None
    buckets: int | None = None
    compiled: str | None = None
    max_trials: int | None = None
    rules_off: tuple[str, ...] | None = None
    records: bool | None = None
    strict: bool | None = None
    log: str | None = None

    def __post_init__(self) -> None:
        for name, check in FIELDS.items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check(value, f"{name}="))

    def as_dict(self) -> dict[str, Any]:
        """Plain values; inputs are named by their type only."""
        plain: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "inputs"}
        for name in ("cache_dir", "strategy"):
            plain[name] = None if plain[name] is None else os.fspath(plain[name])
        shapes = self.input_shapes
        plain["input_shapes"] = None if shapes is None else {name: list(shape) for name, shape in shapes.items()}
        plain["providers"] = None if self.providers is None else list(self.providers)
        plain["rules_off"] = None if self.rules_off is None else list(self.rules_off)
        plain["inputs"] = None if self.inputs is None else type(self.inputs).__name__
        return plain


FIELDS: Mapping[str, checks.Check] = {
    "mode": checks.one_of("auto", "cached", "background", "off"),
    "budget_s": checks.seconds,
    "accuracy": checks.one_of("strict", "balanced", "fast"),
    "providers": checks.provider_names,
    "cache_dir": checks.path,
    "strategy": checks.path,
    "input_shapes": checks.shapes,
    "inputs": checks.anything,
    "objective": checks.one_of(*OBJECTIVES),
    "callers": checks.callers,
    "max_slowdown": checks.slowdown,
    "metric": checks.metric,
    "metric_threshold": checks.loss,
    "capture": checks.inputs_kept,
    "buckets": checks.buckets,
    "compiled": checks.one_of("auto", "off"),
    "max_trials": checks.trials,
    "rules_off": checks.rule_names,
    "records": checks.flag,
    "strict": checks.flag,
    "log": checks.one_of("off", "error", "warning", "info", "debug"),
}
"""Setting -> the check that turns a keyword, a file's value or an environment variable's text into its value."""

DEFAULTS = Settings(
    mode="auto",
    budget_s=15.0,
    accuracy="strict",
    objective="latency",
    max_slowdown=1.1,
    capture=0,
    buckets=0,
    compiled="auto",
    max_trials=30,
    rules_off=(),
    records=True,
    strict=False,
    log="warning",
)


def resolve(
    keyword: Settings | None = None, environment: Mapping[str, str] = os.environ, file: Path | None = None
) -> tuple[Settings, list[SettingsError]]:
    """Merge keyword, environment, user file and defaults.

    Returns:
        The settings, every field but ``inputs``, ``input_shapes``, ``providers``, ``strategy``, ``cache_dir``,
        ``callers`` and the metric's set; and what was wrong in the environment or the file: a bad value counts as not
        given. A metric without a threshold says nothing, and counts as not given too.
    """
    problems = list(_strays(environment))
    given = {name: getattr(keyword, name) for name in FIELDS} if keyword is not None else {}
    chosen = _choose(given, environment, file, problems)
    settings = replace(DEFAULTS, **{name: value for name, (value, _) in chosen.items()})
    if settings.metric is not None and settings.metric_threshold is None:
        problems.append(SettingsError(f"metric={settings.metric!r} needs metric_threshold, the loss that is allowed"))
        settings = replace(settings, metric=None)
    return settings, problems


def _strays(environment: Mapping[str, str]) -> Iterator[SettingsError]:
    """Variables that look like settings and are none: a typing mistake would otherwise go unnoticed."""
    known = {name.upper() for name in FIELDS} | OTHER_VARIABLES
    for variable in sorted(environment):
        name = variable.removeprefix(PREFIX)
        # Kubernetes sets ORT_METAINFER_SERVICE_HOST, ORT_METAINFER_PORT_... where a service bears our name
        if variable.startswith(PREFIX) and name not in known and not name.startswith(("SERVICE_", "PORT")):
            choice = ", ".join(name.upper() for name in FIELDS)
            yield SettingsError(f"{variable} is no setting; known after {PREFIX}: {choice}")


def sources(environment: Mapping[str, str] = os.environ, file: Path | None = None) -> dict[str, str]:
    """Setting -> where its value comes from when no keyword is given: a variable, a file, or ``default``."""
    chosen = _choose({}, environment, file, [])
    return {name: chosen[name][1].removesuffix("=") if name in chosen else "default" for name in FIELDS}


def _choose(
    keyword: Mapping[str, Any], environment: Mapping[str, str], file: Path | None, problems: list[SettingsError]
) -> dict[str, tuple[Any, str]]:
    """The first allowed value of each setting with its source; those that were not allowed go to ``problems``."""
    from_keyword = {name: (value, "") for name, value in keyword.items() if value is not None}
    from_environment = {
        name: (environment[PREFIX + name.upper()], f"{PREFIX}{name.upper()}=")
        for name in FIELDS
        if environment.get(PREFIX + name.upper())
    }
    from_file = _read(config_file(environment) if file is None else file, problems)
    chosen: dict[str, tuple[Any, str]] = {}
    for name, check in FIELDS.items():
        for value, source in (layer[name] for layer in (from_keyword, from_environment, from_file) if name in layer):
            try:
                chosen[name] = check(value, source), source
                break
            except SettingsError as error:
                problems.append(error)
    return chosen


def _read(path: Path, problems: list[SettingsError]) -> dict[str, tuple[Any, str]]:
    """The file's values with their sources; what cannot be read is added to ``problems``."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}  # most users have none
    except (OSError, UnicodeDecodeError) as error:
        problems.append(SettingsError(f"{path} cannot be read: {error}"))
        return {}
    import tomllib

    try:
        plain = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.append(SettingsError(f"{path} is not a readable TOML file: {error}"))
        return {}
    strays = sorted(set(plain) - set(FIELDS))
    if strays:
        problems.append(SettingsError(f"{path}: unknown setting {strays[0]!r}; known: {', '.join(FIELDS)}"))
    return {name: (value, f"{path}: {name}=") for name, value in plain.items() if name in FIELDS}
