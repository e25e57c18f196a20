"""Taking a model's names out of what is recorded, and putting another model's in where positions say which.

A record tells nothing of a model but hashes and figures. Names of inputs, dimensions and nodes are what people and
their exporters chose: an input becomes its position (``input0``), an open dimension its (``dim1``), a list of nodes its
length (``3 left out``), and text that holds a path or any known name is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ort_metainfer.model.work import NodeWork
from ort_metainfer.problem import Graph
from ort_metainfer.strategy import Strategy, Transform

__all__ = ["LEFT_OUT", "Names", "failure_kind"]

LEFT_OUT = "left out"
"""How a value ends that could not be kept; one that ends so is not replayed."""

_NUMBERS = re.compile(r"[-+\d.,:x ]*")
_WORD = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_NO_SHAPES: Mapping[str, tuple[int, ...]] = MappingProxyType({})
MAX_TEXT = 120

_FAILURES = (
    ("no time", "no time"),
    ("MB", "took too much memory"),
    ("did not end within", "hung"),
    ("default session failed", "the default session failed"),
    ("confirming duel", "refuted in the duel"),
)


def failure_kind(failure: str | None) -> str | None:
    """What kind of failure it was; its own words may name nodes and files."""
    if failure is None:
        return None
    return next((kind for mark, kind in _FAILURES if mark in failure), "crashed")


class Names:
    """The names of one model.

    Args:
        graph: its features.
        work: its nodes, where they are known.
    """

    def __init__(self, graph: Graph, work: Sequence[NodeWork] = ()) -> None:
        self._operators = frozenset(graph.operators)
        self._inputs = [spec.name for spec in graph.inputs]
        self._dims = list(graph.symbolic_dims)
        specs = (*graph.inputs, *graph.outputs, *graph.overridable)
        known = {*self._dims, *graph.external_files, *(spec.name for spec in specs)}
        known.update(name for node in work for name in (node.name, *node.reads, *node.weights, *node.writes))
        known.update(dim for spec in specs for dim in spec.shape or () if isinstance(dim, str))
        self._known = frozenset(known)
        self._graph = graph

    def shapes_text(self, shapes: Mapping[str, tuple[int, ...]] = _NO_SHAPES) -> str:
        """Inputs as a cache key has them, but without names: ``float32[1,3,224,224] int64[dim0,dim1]``."""
        words = []
        for spec in self._graph.inputs:
            shape = shapes.get(spec.name, spec.shape)
            dims = ["*"] if shape is None else [self._dim_text(dim) for dim in shape]
            words.append(f"{spec.dtype}[{','.join(dims)}]")
        return " ".join(words)

    def _dim_text(self, dim: int | str | None) -> str:
        if isinstance(dim, str):
            return f"dim{self._dims.index(dim)}" if dim in self._dims else "?"
        return "?" if dim is None else str(dim)

    def text(self, value: str) -> str:
        """``value``, or that it is left out: where it is long, holds a path, or a name of the model."""
        if _NUMBERS.fullmatch(value):
            return value
        is_path = "/" in value or "\\" in value
        told = {value, *re.split(r"[^\w.]+", value)}
        named = any(word in self._known and not _NUMBERS.fullmatch(word) for word in told)
        return LEFT_OUT if is_path or named or len(value) > MAX_TEXT else value

    def without(self, strategy: Strategy) -> Strategy:
        """The strategy without names."""
        return replace(
            strategy,
            transforms=tuple(self._transform(transform) for transform in strategy.transforms),
            provider_options={key: self.text(value) for key, value in strategy.provider_options.items()},
            session_config={key: self.text(value) for key, value in strategy.session_config.items()},
            static_shapes={
                f"dim{self._dims.index(name)}": size
                for name, size in strategy.static_shapes.items()
                if name in self._dims
            },
        )

    def _transform(self, transform: Transform) -> Transform:
        return replace(transform, parameters={key: self._value(value) for key, value in transform.parameters.items()})

    def _value(self, value: Any) -> Any:
        if isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return value if _WORD.fullmatch(value) and value not in self._known else LEFT_OUT
        if isinstance(value, list):
            strays = [item for item in value if item not in self._operators]
            return [f"{len(value)} {LEFT_OUT}"] if strays else value
        if isinstance(value, Mapping):
            if all(name in self._inputs for name in value):
                return {f"input{self._inputs.index(name)}": self._plain(size) for name, size in value.items()}
            return {f"{len(value)} {LEFT_OUT}": 0}
        return LEFT_OUT

    def _plain(self, value: Any) -> Any:
        return self.text(value) if isinstance(value, str) else value

    def into(self, strategy: Strategy) -> Strategy:
        """The strategy of a record with this model's names; what was left out is not set, what has no place is dropped.

        A transform without its list of nodes is then carried out on all of them: the gates judge it.
        """
        return replace(
            strategy,
            transforms=tuple(self._named(transform) for transform in strategy.transforms),
            provider_options=_kept(strategy.provider_options),
            session_config=_kept(strategy.session_config),
            static_shapes=dict(self._sizes(strategy.static_shapes)),
        )

    def _sizes(self, sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        for place, size in sizes.items():
            number = place.removeprefix("dim")
            if number.isdigit() and int(number) < len(self._dims):
                yield self._dims[int(number)], size

    def _named(self, transform: Transform) -> Transform:
        kept = {}
        for key, value in transform.parameters.items():
            texts: Iterable[Any] = value if isinstance(value, list | Mapping) else [value]
            if any(isinstance(text, str) and text.endswith(LEFT_OUT) for text in texts):
                continue
            kept[key] = self._by_input(value) if isinstance(value, Mapping) else value
        return replace(transform, parameters=kept)

    def _by_input(self, value: Mapping[str, Any]) -> dict[str, Any]:
        places = {f"input{number}": name for number, name in enumerate(self._inputs)}
        return {places[place]: size for place, size in value.items() if place in places}


def _kept(options: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in options.items() if not value.endswith(LEFT_OUT)}
