"""What a guarded session shows as its inputs and outputs: to the letter what plain onnxruntime shows.

Not what the file declares: onnxruntime refines the shapes of outputs, and keeps names of dimensions that are none
(``?``). So plain onnxruntime is asked, when somebody wants to know, and its answer is kept in the cache: only the first
start pays for that.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnxruntime

from ort_metainfer.problem import Graph, TensorSpec
from ort_metainfer.spec import NEUTRAL_PROPERTIES, SessionSpec

if TYPE_CHECKING:
    from ort_metainfer.strategy_cache.store import StrategyCache

__all__ = ["Declared", "DeclaredArg"]

TABLE = "shown"

_ORT_TYPE = {
    "float32": "float",
    "float64": "double",
}

Sides = tuple[Sequence[Any], Sequence[Any]]


@dataclass(frozen=True)
class DeclaredArg:
    """An input or output as the model declares it, with the attributes of onnxruntime.NodeArg."""

    name: str
    type: str
    shape: list[int | str | None]

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"

    @classmethod
    def of(cls, spec: TensorSpec, sizes: Mapping[str, int] | None = None) -> DeclaredArg:
        """``tensor(float)`` and the like from a described tensor; ``sizes`` are those the caller fixed by name."""
        kind = spec.dtype if "(" in spec.dtype else f"tensor({_ORT_TYPE.get(spec.dtype, spec.dtype)})"
        known = sizes or {}
        return cls(spec.name, kind, [known.get(dim, dim) if isinstance(dim, str) else dim for dim in spec.shape or ()])


class Declared:
    """The inputs and outputs of one session, found out when asked for.

    Args:
        spec: the caller's session.
        graph: the model's features; None where they are not known.
        ask: makes the caller's plain session; its inputs and outputs.
        rows: the cache; None where there is none to ask.
        model_hash: whose; None where it is not known.
    """

    def __init__(
        self,
        spec: SessionSpec,
        graph: Graph | None,
        ask: Callable[[], Sides],
        rows: Callable[[], StrategyCache | None],
        model_hash: str | None,
    ) -> None:
        self._spec, self._graph, self._ask, self._rows, self._model_hash = spec, graph, ask, rows, model_hash
        self._lock = threading.Lock()
        self._told: tuple[list[DeclaredArg], list[DeclaredArg]] | None = None

    def inputs(self) -> list[DeclaredArg]:
        """As get_inputs() tells them; from the model's features where these tell every dimension."""
        graph = self._graph
        if self._told is None and graph is not None and all(_is_told(spec) for spec in graph.inputs):
            return [DeclaredArg.of(spec, self._spec.free_dimensions) for spec in graph.inputs]
        return list(self._sides()[0])

    def outputs(self) -> list[DeclaredArg]:
        """As get_outputs() tells them."""
        return list(self._sides()[1])

    def _sides(self) -> tuple[list[DeclaredArg], list[DeclaredArg]]:
        with self._lock:
            if self._told is None:
                self._told = self._kept() or self._asked()
            return self._told

    def _kept(self) -> tuple[list[DeclaredArg], list[DeclaredArg]] | None:
        rows = self._rows() if self._model_hash else None
        row = None if rows is None else rows.get(TABLE, self._key())
        try:
            return None if row is None else (_args(row["inputs"]), _args(row["outputs"]))
        except (KeyError, TypeError, ValueError):  # damaged, or written by another release
            return None

    def _asked(self) -> tuple[list[DeclaredArg], list[DeclaredArg]]:
        inputs, outputs = ([DeclaredArg(arg.name, arg.type, list(arg.shape)) for arg in side] for side in self._ask())
        rows = self._rows() if self._model_hash else None
        if rows is not None:
            plain = {name: [vars(arg) for arg in side] for name, side in (("inputs", inputs), ("outputs", outputs))}
            rows.put(TABLE, self._key(), plain)
        return inputs, outputs

    def _key(self) -> str:
        """The model, and all that its plain session is made from."""
        spec = self._spec.as_dict()
        spec["properties"] = {
            name: spec["properties"][name] for name in spec["properties"] if name not in NEUTRAL_PROPERTIES
        }
        made_of = json.dumps([onnxruntime.__version__, spec], sort_keys=True, default=str)
        return f"{self._model_hash} {hashlib.sha256(made_of.encode()).hexdigest()[:16]}"


def _is_told(spec: TensorSpec) -> bool:
    """Whether onnxruntime shows this input as it was described: a nameless dimension may have a name like ``?``."""
    return "(" not in spec.dtype and all(dim is not None for dim in spec.shape or ())


def _args(rows: Sequence[Mapping[str, Any]]) -> list[DeclaredArg]:
    return [DeclaredArg(str(row["name"]), str(row["type"]), [_dim(dim) for dim in row["shape"]]) for row in rows]


def _dim(dim: Any) -> int | str | None:
    if dim is not None and type(dim) not in (int, str):
        raise TypeError(f"no dimension: {dim!r}")
    known: int | str | None = dim
    return known
