"""A user's own measure of accuracy: named in the settings, imported and asked in the trial's process.

``metric(reference, candidate) -> float`` is given, for each input, the outputs by name of the original model and of the
strategy under trial (read-only arrays; lists and dicts where an output is a sequence or a map). It returns a loss:
0 is perfect, more is worse.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from ort_metainfer.errors import SettingsError

__all__ = ["ENTRY_POINT_GROUP", "Metric", "load_metric", "loss_of", "name_of"]

ENTRY_POINT_GROUP = "ort_metainfer.metrics"

Metric = Callable[[list[dict[str, Any]], list[dict[str, Any]]], float]

_SPELT = re.compile(r"[\w.]+:[\w.]+|[\w.-]+")

WANTED = f"a function as text, module:function, the name of an entry point of the group {ENTRY_POINT_GROUP}"


def name_of(value: Any, source: str) -> str:
    """A metric as text, by which a trial's process finds it.

    Raises:
        SettingsError: it is neither such a text nor a function that another process can import.
    """
    if isinstance(value, str) and _SPELT.fullmatch(value):
        return value
    if not callable(value):
        raise SettingsError(f"{source}{value!r} is not allowed; use {WANTED}, or a function of an imported module")
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    try:
        found = None if module in (None, "__main__") else reduce(getattr, path.split("."), sys.modules[module])
    except (AttributeError, KeyError):
        found = None
    if found is not value:
        raise SettingsError(
            f"{source}{value!r} is not allowed: trials run in other processes, which could not import it; put it at the"
            f" top level of a module (not of the program itself), or use {WANTED}"
        )
    return f"{module}:{path}"


def load_metric(name: str) -> Metric:
    """The function that ``name`` stands for.

    Raises:
        SettingsError: there is none, or importing it fails.
    """
    module, _, path = name.partition(":")
    try:
        found = reduce(getattr, path.split("."), importlib.import_module(module)) if path else _entry_point(name)
    except Exception as error:  # a user's module may raise anything
        raise SettingsError(f"it cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise SettingsError(f"it is no function but a {type(found).__name__}")
    metric: Metric = found
    return metric


def _entry_point(name: str) -> Any:
    from importlib.metadata import entry_points

    found = list(entry_points(group=ENTRY_POINT_GROUP, name=name))
    if not found:
        raise LookupError(f"no entry point of that name in the group {ENTRY_POINT_GROUP}")
    return found[0].load()


def loss_of(
    name: str, names: Sequence[str], reference: Sequence[Sequence[Any]], candidate: Sequence[Sequence[Any]]
) -> float | str:
    """What the metric ``name`` says of outputs, or one sentence why it says nothing.

    Args:
        name: see :func:`load_metric`.
        names: output names.
        reference: for each input, the outputs to be kept.
        candidate: for each input, the outputs to be judged.
    """
    try:
        metric = load_metric(name)
    except SettingsError as error:
        return str(error)
    both = [[_by_name(names, outputs) for outputs in side] for side in (reference, candidate)]
    try:
        loss = float(metric(*both))
    except Exception as error:  # noqa: BLE001 (a user's function may raise anything; it costs the candidate)
        return f"it failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return f"it gives {loss}, which is no loss" if math.isnan(loss) or loss < 0 else loss


def _by_name(names: Sequence[str], outputs: Sequence[Any]) -> dict[str, Any]:
    return {name: _shielded(value) for name, value in zip(names, outputs, strict=True)}


def _shielded(value: Any) -> Any:
    """The same, read-only: the reference is compared with every candidate."""
    if isinstance(value, np.ndarray):
        view = value.view()
        view.flags.writeable = False
        return view
    if isinstance(value, Mapping):
        return {key: _shielded(item) for key, item in value.items()}
    return [_shielded(item) for item in value] if isinstance(value, list | tuple) else value
