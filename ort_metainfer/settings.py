"""Settings: keyword over environment over user file over defaults, as one frozen record.

Environment: ``ORT_METAINFER_`` and the field's name in capitals (``ORT_METAINFER_BUDGET_S=30``). User file:
``config.toml`` in the platform's configuration directory (``ORT_METAINFER_CONFIG`` names another), the same names in
lower case.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ort_metainfer.errors import SettingsError
from ort_metainfer.places import config_place as config_file

__all__ = ["FIELDS", "Settings", "config_file", "resolve", "sources"]

PREFIX = "ORT_METAINFER_"

DEFAULT_CAPTURE = 16
"""Inputs that are kept where capturing is just switched on: twice what a decision looks at."""

MAX_CAPTURE = 1000

MAX_TRIALS = 10_000
"""An exhaustive search over the largest declared space takes fewer."""

OTHER_VARIABLES = frozenset({"CONFIG", "ZOO", "FULL", "OPENVINO_PYTHON", "TRIAL_FAULT"})
"""Variables that are no settings: where the user's file is, and what the tests use."""


@dataclass(frozen=True)
class Settings:
    """What the user wants; a field left at None comes from the environment, the user's file, or the default.

    Attributes:
        mode: ``auto`` decides where the cache does not know; ``cached`` only looks up; ``off`` is plain onnxruntime.
        budget_s: seconds a decision may take at most; default 15.
        accuracy: ``strict`` (float32 results kept, relative L2 at most 1e-4), ``balanced`` (1e-2) or ``fast`` (1e-1);
            the last two also keep the top answer in 99% of rows, and need real inputs.
        providers: execution providers allowed, by name; default all usable. A caller's own list narrows it further.
        cache_dir: where strategies are kept; default the platform's cache directory.
        strategy: a strategy file that is applied and wins over everything.
        input_shapes: input name -> shape that the session will be run with.
        inputs: real inputs: a dict, a list or iterator of dicts, a callable that returns one of these, or a path or
            glob of .npz files.
        objective: ``latency``, the session runs alone; ``pipeline``, others of this process run between its runs.
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


Check = Callable[[Any, str], Any]


def _one_of(*allowed: str) -> Check:
    def check(value: Any, source: str) -> str:
        if not isinstance(value, str) or value.lower() not in allowed:
            raise SettingsError(f"{source}{value!r} is not allowed; use one of {', '.join(allowed)}")
        return value.lower()

    return check


def _seconds(value: Any, source: str) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = float("nan")
    if isinstance(value, bool) or not 0 < seconds <= 86_400:
        raise SettingsError(f"{source}{value!r} is not allowed; use seconds above 0 and up to 86400")
    return seconds


def _loss(value: Any, source: str) -> float:
    try:
        loss = float(value)
    except (TypeError, ValueError):
        loss = float("nan")
    if isinstance(value, bool) or not 0 <= loss < float("inf"):
        raise SettingsError(f"{source}{value!r} is not allowed; use a number, 0 or more")
    return loss


def _metric(value: Any, source: str) -> str:
    from ort_metainfer.trials.metric import name_of

    return name_of(value, source)


MAX_BUCKETS = 64
"""Each holds the model's weights once more."""


def _count(value: Any, source: str) -> int:
    """How many inputs to keep: 0 for off, a number, or ``DEFAULT_CAPTURE`` for on."""
    words = {"true": 1, "yes": 1, "on": 1, "false": 0, "no": 0, "off": 0}
    try:
        count = words[value.lower()] if isinstance(value, str) and value.lower() in words else int(str(value))
    except ValueError:
        count = int(value) if isinstance(value, bool) else -1
    if not 0 <= count <= MAX_CAPTURE:
        raise SettingsError(
            f"{source}{value!r} is not allowed; use true, false, or how many inputs to keep, {MAX_CAPTURE} at most"
        )
    return DEFAULT_CAPTURE if count == 1 else count


def _buckets(value: Any, source: str) -> int:
    try:
        number = -1 if isinstance(value, bool) else int(str(value))
    except ValueError:
        number = -1
    if not 0 <= number <= MAX_BUCKETS:
        raise SettingsError(f"{source}{value!r} is not allowed; use a number of sessions from 0 to {MAX_BUCKETS}")
    return number


def _trials(value: Any, source: str) -> int:
    try:
        number = 0 if isinstance(value, bool) else int(str(value))
    except ValueError:
        number = 0
    if not 1 <= number <= MAX_TRIALS:
        raise SettingsError(f"{source}{value!r} is not allowed; use a number of strategies from 1 to {MAX_TRIALS}")
    return number


def _rules(value: Any, source: str) -> tuple[str, ...]:
    """Names of rules; which there are is known only where they are loaded, so an unknown one is refused there."""
    names = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        raise SettingsError(f"{source}{value!r} is not allowed; use names of rules, separated by commas")
    return tuple(dict.fromkeys(names))


def _flag(value: Any, source: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise SettingsError(f"{source}{value!r} is not allowed; use one of true, false")


def _names(value: Any, source: str) -> tuple[str, ...]:
    """Provider names as onnxruntime spells them; ``openvino`` is OpenVINOExecutionProvider."""
    names = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) and name for name in names):
        raise SettingsError(f"{source}{value!r} is not allowed; use provider names, separated by commas")
    return tuple(dict.fromkeys(_provider_name(name, source) for name in names))


def _provider_name(name: str, source: str) -> str:
    import onnxruntime

    from ort_metainfer.errors import ProviderError
    from ort_metainfer.providers.registry import HOMES, get_provider

    known: list[str] = [*HOMES, *onnxruntime.get_all_providers()]
    spelt = {whole.removesuffix("ExecutionProvider").lower(): whole for whole in reversed(known)}
    whole = spelt.get(name.lower().removesuffix("executionprovider"))
    if whole is not None:
        return whole
    try:
        return get_provider(name).name  # a third party's
    except ProviderError:
        choice = ", ".join(dict.fromkeys(whole.removesuffix("ExecutionProvider") for whole in known))
        raise SettingsError(f"{source}{name!r} is no execution provider; use some of {choice}") from None


def _path(value: Any, source: str) -> str:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise SettingsError(f"{source}{value!r} is not allowed; use a path")
    return os.path.abspath(os.path.expanduser(os.fsdecode(value)))


def _shapes(value: Any, source: str) -> dict[str, tuple[int, ...]]:
    """``{"x": (1, 3, 224, 224)}``, or the same as text: ``x:1,3,224,224;mask:1,128``."""
    wanted = SettingsError(
        f"{source}{value!r} is not allowed; use a mapping of input name to positive sizes, "
        "or text like name:1,3,224,224;name2:1,128"
    )
    try:
        if isinstance(value, str):
            value = {
                n.strip(): s.split(",") if s.strip() else []
                for n, _, s in (part.rpartition(":") for part in value.split(";") if part)
            }
        shapes = {str(name): tuple(int(size) for size in shape) for name, shape in value.items()}
    except (AttributeError, TypeError, ValueError):
        raise wanted from None
    if not shapes or any(size < 0 for shape in shapes.values() for size in shape) or not all(shapes):
        raise wanted
    return shapes


def _anything(value: Any, source: str) -> Any:
    return value


FIELDS: Mapping[str, Check] = {
    "mode": _one_of("auto", "cached", "off"),
    "budget_s": _seconds,
    "accuracy": _one_of("strict", "balanced", "fast"),
    "providers": _names,
    "cache_dir": _path,
    "strategy": _path,
    "input_shapes": _shapes,
    "inputs": _anything,
    "objective": _one_of("latency", "pipeline"),
    "metric": _metric,
    "metric_threshold": _loss,
    "capture": _count,
    "buckets": _buckets,
    "compiled": _one_of("auto", "off"),
    "max_trials": _trials,
    "rules_off": _rules,
    "records": _flag,
    "strict": _flag,
    "log": _one_of("off", "error", "warning", "info", "debug"),
}
"""Setting -> the check that turns a keyword, a file's value or an environment variable's text into its value."""

DEFAULTS = Settings(
    mode="auto",
    budget_s=15.0,
    accuracy="strict",
    objective="latency",
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
        The settings, every field but ``inputs``, ``input_shapes``, ``providers``, ``strategy``, ``cache_dir`` and the
        metric's set; and what was wrong in the environment or the file: a bad value counts as not given. A metric
        without a threshold says nothing, and counts as not given too.
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
