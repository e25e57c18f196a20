"""Whether values read from JSON are what the fields of a dataclass declare: somebody else may have written the file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

__all__ = ["is_as_declared"]


def is_as_declared(value: object) -> bool:
    """Whether each field of the dataclass instance ``value``, and of those inside, holds what its annotation says.

    Numbers are finite; an int may stand for a float, and a bool stands for no number.
    """
    owner: Any = type(value)
    return all(_fits(getattr(value, name), kind) for name, kind in _kinds(owner).items())


@lru_cache(maxsize=32)
def _kinds(owner: type[Any]) -> Mapping[str, Any]:
    hints = get_type_hints(owner)
    return {field.name: hints[field.name] for field in fields(owner)}


def _fits(value: object, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if origin is tuple:
        return isinstance(value, tuple) and _fit_all(value, inner)
    if origin is Mapping:
        is_one = isinstance(value, dict)
        return is_one and all(_fits(key, inner[0]) and _fits(one, inner[1]) for key, one in value.items())  # type: ignore[attr-defined]
    if is_dataclass(kind):
        return isinstance(value, kind) and is_as_declared(value)  # type: ignore[arg-type]
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _fit_all(values: tuple[object, ...], kinds: tuple[Any, ...]) -> bool:
    if kinds[-1] is Ellipsis:
        return all(_fits(value, kinds[0]) for value in values)
    return len(values) == len(kinds) and all(_fits(value, kind) for value, kind in zip(values, kinds, strict=True))
