"""Making the nodes that take the place of others: names that are free, constants, and ONNX's changes of spelling.

Operators whose parameters moved from attributes to inputs from one opset to the next are spelled here for the opset at
hand (axes of Squeeze, Unsqueeze, ReduceSum: 13; of the other reductions: 18; Split: 13; Pad and Clip: 11; Slice: 10).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ort_metainfer.rewrites.patterns import FIRST_OVERRIDABLE_IR, all_graphs, dims

__all__ = ["Builder", "Names", "Size", "replace"]

Size = int | tuple[int, int]
"""Of a shape to be made: a number, or (axis of some value, factor)."""


class Names:
    """Names that no value and no node of a model has."""

    def __init__(self, model: Any) -> None:
        self._taken: set[str] = set()
        for graph in all_graphs(model):
            self._taken.update(value.name for value in (*graph.inputs, *graph.initializers.values()))
            for node in graph:
                self._taken.add(node.name or "")
                self._taken.update(value.name or "" for value in node.outputs)

    def fresh(self, base: str) -> str:
        """``base``, with a number behind it where it is taken."""
        name, count = base, 0
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name


class Builder:
    """Makes nodes to stand before ``place``; called like a function it makes one and gives its output.

    Args:
        place: the node to be replaced.
        names: of the whole model.
        label: what new names carry.
        opset: of the ONNX domain.
        ir_version: of the model.
    """

    def __init__(self, place: Any, names: Names, label: str, opset: int, ir_version: int) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.opset = opset
        self._graph, self._names, self._inline = place.graph, names, ir_version < FIRST_OVERRIDABLE_IR
        self._base = f"{place.outputs[0].name}/{label}"

    def __call__(self, operator: str, *inputs: Any, domain: str = "", **attributes: Any) -> Any:
        """The first output of a new node; arrays among ``inputs`` become constants, None is an input left out."""
        return self.many(operator, *inputs, count=1, domain=domain, **attributes)[0]

    def many(self, operator: str, *inputs: Any, count: int, domain: str = "", **attributes: Any) -> list[Any]:
        """All outputs of a new node."""
        import onnx_ir

        given = [self.constant(value) if isinstance(value, np.ndarray | np.generic) else value for value in inputs]
        base = f"{self._base}/{operator}"
        outputs = [onnx_ir.Value(name=self._names.fresh(base)) for _ in range(count)]
        kept = {name: value for name, value in attributes.items() if value is not None}
        node = onnx_ir.node(
            operator, given, kept, domain=domain, outputs=outputs, name=self._names.fresh(f"{base}/node")
        )
        self.nodes.append(node)
        return outputs

    def constant(self, array: np.ndarray | np.generic) -> Any:
        """A constant of the graph (of a node Constant where an initialiser would have to be an input: IR below 4)."""
        import onnx_ir

        name = self._names.fresh(f"{self._base}/constant")
        tensor = onnx_ir.tensor(np.ascontiguousarray(array).reshape(np.shape(array)), name=name)
        if self._inline:
            node = onnx_ir.node("Constant", [], {"value": tensor}, outputs=[onnx_ir.Value(name=name)])
            node.name = self._names.fresh(f"{name}/node")
            self.nodes.append(node)
            return node.outputs[0]
        value = onnx_ir.Value(
            name=name, type=onnx_ir.TensorType(tensor.dtype), shape=onnx_ir.Shape(np.shape(array)), const_value=tensor
        )
        self._graph.register_initializer(value)
        self.constants.append(value)
        return value

    def _with_axes(self, operator: str, value: Any, axes: Sequence[int], since: int, **attributes: Any) -> Any:
        if self.opset < since:
            return self(operator, value, axes=list(axes), **attributes)
        return self(operator, value, np.asarray(axes, np.int64), **attributes)

    def unsqueeze(self, value: Any, axes: Sequence[int]) -> Any:
        """New dimensions of one; below opset 11 ``axes`` must not be negative."""
        return self._with_axes("Unsqueeze", value, axes, 13)

    def squeeze(self, value: Any, axes: Sequence[int]) -> Any:
        """Without these dimensions of one."""
        return self._with_axes("Squeeze", value, axes, 13)

    def mean(self, value: Any, axes: Sequence[int], keepdims: int = 1) -> Any:
        """Mean over ``axes``."""
        return self._with_axes("ReduceMean", value, axes, 18, keepdims=keepdims)

    def sum(self, value: Any, axes: Sequence[int], keepdims: int = 1) -> Any:
        """Sum over ``axes``."""
        return self._with_axes("ReduceSum", value, axes, 13, keepdims=keepdims)

    def split(self, value: Any, sizes: Sequence[int], axis: int) -> list[Any]:
        """Parts of these sizes."""
        if len(sizes) == 1:
            return [value]
        if self.opset < 13:
            return self.many("Split", value, count=len(sizes), axis=axis, split=list(sizes))
        return self.many("Split", value, np.asarray(sizes, np.int64), count=len(sizes), axis=axis)

    def slice(self, value: Any, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int]) -> Any:
        """From ``starts`` to before ``ends``."""
        if self.opset < 10:
            return self("Slice", value, starts=list(starts), ends=list(ends), axes=list(axes))
        return self("Slice", value, *(np.asarray(numbers, np.int64) for numbers in (starts, ends, axes)))

    def pad(self, value: Any, pads: Sequence[int]) -> Any:
        """Zeros before and behind each axis: all befores first."""
        if self.opset < 11:
            return self("Pad", value, pads=list(pads), mode="constant")
        return self("Pad", value, np.asarray(pads, np.int64), mode="constant")

    def clip(self, value: Any, low: float, high: float, kind: Any = np.float32) -> Any:
        """Limited to ``low`` and ``high``."""
        if self.opset < 11:
            return self("Clip", value, min=low, max=high)
        return self("Clip", value, np.asarray(low, kind), np.asarray(high, kind))

    def reshape(self, value: Any, sizes: Sequence[Size], like: Any = None) -> Any:
        """In the shape of ``sizes``; those that are an axis (of ``like``) and a factor are read there."""
        return self("Reshape", value, self.shape(sizes, like if like is not None else value))

    def shape(self, sizes: Sequence[Size], like: Any) -> Any:
        """A shape as a value: constant where all sizes are known, else made of the shape ``like`` will have."""
        known = dims(like) or ()
        settled = [_settled(size, known) for size in sizes]
        if all(size is not None for size in settled):
            return self.constant(np.asarray(settled, np.int64))
        whole = self("Shape", like)
        parts = [
            np.asarray([number], np.int64) if number is not None else self._measured(whole, size)
            for number, size in zip(settled, sizes, strict=True)
        ]
        return self("Concat", *parts, axis=0)

    def _measured(self, whole: Any, size: Any) -> Any:
        axis, factor = size
        part = self.slice(whole, [axis], [axis + 1], [0])
        return part if factor == 1 else self("Mul", part, np.asarray([factor], np.int64))


def _settled(size: Size, known: Sequence[int | None]) -> int | None:
    if isinstance(size, int):
        return size
    axis, factor = size
    found = known[axis] if axis < len(known) else None
    return None if found is None else found * factor


def replace(node: Any, values: Sequence[Any], builder: Builder) -> None:
    """Put ``values`` in the place of ``node``'s outputs (None: nobody uses that one), and drop what nobody uses then.

    The new values take over the names, so that graph outputs are called as before.
    """
    fresh = {id(output) for new in builder.nodes for output in new.outputs}
    pairs: list[tuple[Any, Any]] = []
    for old, new in zip(node.outputs, values, strict=False):
        if new is not None and (id(new) in fresh or not old.is_graph_output()):
            fresh.discard(id(new))
            pairs.append((old, new))
        elif new is not None:
            pairs.append((old, builder("Identity", new)))
    node.graph.insert_before(node, builder.nodes)
    made = {id(output) for new in builder.nodes for output in new.outputs}
    for old, new in pairs:
        if id(new) in made and not any(other is new for _, other in pairs if _ is not old):
            name, old.name = old.name, f"{old.name}/replaced"
            new.name, new.type, new.shape = name, old.type, old.shape
            new.meta.update(old.meta)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    drop(node)
    for value in builder.constants:
        if not value.uses() and value.name in value.graph.initializers:
            del value.graph.initializers[value.name]


def drop(node: Any) -> None:
    """Remove a node nobody uses, and what was there only for it; inputs and outputs of the graph stay."""
    waiting = [node]
    while waiting:
        dead = waiting.pop()
        if dead.graph is None or any(value.uses() or value.is_graph_output() for value in dead.outputs):
            continue
        if any(given.type.name in ("GRAPH", "GRAPHS") for given in dead.attributes.values()):
            continue
        inputs = [value for value in dead.inputs if value is not None]
        dead.graph.remove(dead, safe=True)
        for value in inputs:
            if value.producer() is not None:
                waiting.append(value.producer())
            elif value.is_initializer() and not (value.uses() or value.is_graph_input() or value.is_graph_output()):
                del value.graph.initializers[value.name]
