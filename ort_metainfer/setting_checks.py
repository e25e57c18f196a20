"""What each setting may be: checks that turn a keyword, a file's value or a variable's text into the value."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ort_metainfer.errors import SettingsError

__all__ = [
    "Check",
    "anything",
    "buckets",
    "callers",
    "flag",
    "inputs_kept",
    "loss",
    "metric",
    "one_of",
    "path",
    "provider_names",
    "rule_names",
    "seconds",
    "shapes",
    "slowdown",
    "trials",
]

DEFAULT_CAPTURE = 16
"""Inputs that are kept where capturing is just switched on: twice what a decision looks at."""

MAX_CAPTURE = 1000

MAX_TRIALS = 10_000
"""An exhaustive search over the largest declared space takes fewer."""

MAX_BUCKETS = 64
"""Each holds the model's weights once more."""

MAX_CALLERS = 1024

Check = Callable[[Any, str], Any]
"""Given a value and where it comes from (the beginning of a message), returns the value that counts, or raises a
SettingsError."""


def _number(value: Any) -> float:
    """The number that ``value`` says; NaN, which no range holds, where it says none."""
    try:
        return float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return float("nan")


def _whole(value: Any) -> int:
    """The whole number that ``value`` says; -1, which no range here holds, where it says none."""
    try:
        return -1 if isinstance(value, bool) else int(str(value))
    except ValueError:
        return -1


def one_of(*allowed: str) -> Check:
    """One of these words, in small or capital letters."""

    def check(value: Any, source: str) -> str:
        if not isinstance(value, str) or value.lower() not in allowed:
            raise SettingsError(f"{source}{value!r} is not allowed; use one of {', '.join(allowed)}")
        return value.lower()

    return check


def seconds(value: Any, source: str) -> float:
    """Seconds above 0, a day at most."""
    number = _number(value)
    if not 0 < number <= 86_400:
        raise SettingsError(f"{source}{value!r} is not allowed; use seconds above 0 and up to 86400")
    return number


def loss(value: Any, source: str) -> float:
    """A finite number, 0 or more."""
    number = _number(value)
    if not 0 <= number < float("inf"):
        raise SettingsError(f"{source}{value!r} is not allowed; use a number, 0 or more")
    return number


def slowdown(value: Any, source: str) -> float:
    """How many times as long something may take: 1 to 10."""
    number = _number(value)
    if not 1 <= number <= 10:
        raise SettingsError(f"{source}{value!r} is not allowed; use a ratio from 1 to 10")
    return number


def metric(value: Any, source: str) -> str:
    """The name of a user's metric."""
    from ort_metainfer.trials.metric import name_of

    return name_of(value, source)


def inputs_kept(value: Any, source: str) -> int:
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


def buckets(value: Any, source: str) -> int:
    """How many sessions of fixed shapes."""
    number = _whole(value)
    if not 0 <= number <= MAX_BUCKETS:
        raise SettingsError(f"{source}{value!r} is not allowed; use a number of sessions from 0 to {MAX_BUCKETS}")
    return number


def trials(value: Any, source: str) -> int:
    """How many strategies a decision may try."""
    number = _whole(value)
    if not 1 <= number <= MAX_TRIALS:
        raise SettingsError(f"{source}{value!r} is not allowed; use a number of strategies from 1 to {MAX_TRIALS}")
    return number


def callers(value: Any, source: str) -> int:
    """How many threads call one session at once: one alone is what the other objectives are for."""
    number = _whole(value)
    if not 2 <= number <= MAX_CALLERS:
        raise SettingsError(f"{source}{value!r} is not allowed; use a number of callers from 2 to {MAX_CALLERS}")
    return number


def rule_names(value: Any, source: str) -> tuple[str, ...]:
    """Names of rules; which there are is known only where they are loaded, so an unknown one is refused there."""
    names = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        raise SettingsError(f"{source}{value!r} is not allowed; use names of rules, separated by commas")
    return tuple(dict.fromkeys(names))


def flag(value: Any, source: str) -> bool:
    """Yes or no, in the usual words."""
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise SettingsError(f"{source}{value!r} is not allowed; use one of true, false")


def provider_names(value: Any, source: str) -> tuple[str, ...]:
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


def path(value: Any, source: str) -> str:
    """A path, made absolute."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise SettingsError(f"{source}{value!r} is not allowed; use a path")
    return os.path.abspath(os.path.expanduser(os.fsdecode(value)))


def shapes(value: Any, source: str) -> dict[str, tuple[int, ...]]:
    """``{"x": (1, 3, 224, 224)}``, or the same as text: ``x:1,3,224,224;mask:1,128``."""
    wanted = SettingsError(
        f"{source}{value!r} is not allowed; use a mapping of input name to sizes (0 for what "
        "begins empty, as a past of no tokens), or text like name:1,3,224,224;name2:1,128"
    )
    try:
        if isinstance(value, str):
            value = {
                n.strip(): s.split(",") if s.strip() else []
                for n, _, s in (part.rpartition(":") for part in value.split(";") if part)
            }
        sizes = {str(name): tuple(int(size) for size in shape) for name, shape in value.items()}
    except (AttributeError, TypeError, ValueError):
        raise wanted from None
    if not sizes or any(size < 0 for shape in sizes.values() for size in shape) or not all(sizes):
        raise wanted
    return sizes


def anything(value: Any, source: str) -> Any:
    """Whatever it is: it is looked at where it is used."""
    return value
