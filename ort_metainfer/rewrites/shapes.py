"""Shapes: open dimensions replaced by the sizes a session will be run with, and what follows from them computed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from ort_metainfer.errors import InputsError
from ort_metainfer.problem import Graph, TensorSpec
from ort_metainfer.rewrites import FIXED_SHAPES_VERSION
from ort_metainfer.rewrites.base import Context, Outcome, Parameter, Rewrite, Site
from ort_metainfer.rewrites.draft import Draft

__all__ = ["REWRITES", "FixedShapes", "shape_from_text", "shape_text"]

Shapes = dict[str, tuple[int, ...]]

MOST_ELEMENTS = 64
"""Larger results are not folded: shapes, axes and scales are smaller."""

EXACT_IN_FLOAT = frozenset(
    (
        *("Add", "Cast", "Ceil", "Concat", "ConstantOfShape", "Div", "Floor", "Gather", "Identity", "Mul", "Reshape"),
        *("Slice", "Squeeze", "Sub", "Unsqueeze"),
    )
)
"""Operators whose float results IEEE 754 settles to the last bit, whoever computes them."""

NUMBERS = re.compile(r"\s*\d+\s*(,\s*\d+\s*)*")


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as the rewrite's parameter holds it: ``1,3,224,224``."""
    return ",".join(map(str, shape))


def shape_from_text(name: str, text: Any) -> tuple[int, ...]:
    """The inverse of :func:`shape_text`; a scalar's is empty.

    Raises:
        InputsError: it is no shape of positive sizes.
    """
    shape = tuple(map(int, text.split(","))) if isinstance(text, str) and NUMBERS.fullmatch(text) else None
    if text == "":
        return ()
    if shape is None or min(shape) < 1:
        raise InputsError(f"the shape of input {name!r} must be sizes like 1,3,224,224, got {text!r}")
    return shape


class FixedShapes(Rewrite):
    """Input dimensions fixed by input and axis, inner shapes inferred, shape arithmetic computed.

    Exact for these shapes. A session made of the result refuses others; the drop-in's then runs the general one.
    """

    name = "fixed-shapes"
    version = FIXED_SHAPES_VERSION
    dimension = "shapes"
    promise = "exact"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "shapes": Parameter(dict, {}, "input -> sizes as text (1,3,224,224); empty: the shapes the session is run with")
    }
    needs = ("shapes",)
    evidence = (
        "on two cores of an AMD EPYC, on the CPU provider: 1.03 [1.03, 1.04] on a small classifier and 0.88-1.01 on "
        "seven others; with OpenVINO's float32 1.35 on a 1-D U-Net and 1.12 on a ResNet-50 (1.31 and 1.06 with open "
        "dimensions), but 1.80 on a page classifier, which open dimensions ran 2.53"
    )

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        """Nothing is open, or an open input is no tensor, or its shape is not known."""
        open_inputs = [spec for spec in graph.inputs if _is_open(spec)]
        if not open_inputs:
            return "the shape of every input is fixed already"
        strange = next((spec.name for spec in open_inputs if "(" in spec.dtype), None)
        if strange is not None:
            return f"input {strange} is no tensor"
        return None

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Fix, infer, fold.

        Raises:
            InputsError: a shape in ``parameters`` that is none, or does not fit the model.
        """
        given: Shapes = {name: shape_from_text(name, text) for name, text in parameters["shapes"].items()}
        reason = self.objection(context.graph)
        shapes = given or {
            spec.name: context.shapes[spec.name] for spec in context.graph.inputs if _wanted(spec, context)
        }
        reason = reason or _unfixable(context.graph, shapes, given=bool(given))
        if reason is not None:
            return Outcome(0, notes=(reason,))
        from ort_metainfer.rewrites.fixed_shapes import fix_shapes

        result = fix_shapes(draft.file(), shapes, context.folder / "fixed-shapes.onnx")
        draft.take(result.path)
        before, after = fold_shape_arithmetic(draft.ir)
        opened = [spec for spec in context.graph.inputs if _is_open(spec)]
        sites = tuple(Site(f"input {spec.name}") for spec in opened)
        notes = (*result.notes, f"{before - after} nodes fewer: shape arithmetic is computed, what did nothing is gone")
        return Outcome(len(opened) + before - after, sites[:100], notes, {"nodes before": before, "nodes after": after})


def _is_open(spec: TensorSpec) -> bool:
    return spec.shape is None or not all(isinstance(dim, int) for dim in spec.shape)


def _wanted(spec: TensorSpec, context: Context) -> bool:
    return "(" not in spec.dtype and spec.name in context.shapes


def _unfixable(graph: Graph, shapes: Shapes, given: bool) -> str | None:
    """Why the shapes the session is run with cannot be fixed; those ``given`` on purpose are refused with an error."""
    if given:
        return None
    for spec in graph.inputs:
        if _is_open(spec) and spec.name not in shapes:
            return f"the shape of input {spec.name} is not known"
        if any(size < 1 for size in shapes.get(spec.name, ())):
            return f"input {spec.name} is empty in the shapes the session is run with"
        declared = spec.shape
        if declared is not None and spec.name in shapes and not _fits(declared, shapes[spec.name]):
            return f"input {spec.name} is declared as {spec}, but run with {shape_text(shapes[spec.name])}"
    return None


def _fits(declared: tuple[Any, ...], shape: tuple[int, ...]) -> bool:
    return len(declared) == len(shape) and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(declared, shape, strict=True)
    )


def fold_shape_arithmetic(model: Any) -> tuple[int, int]:
    """Compute what depends on shapes alone, where inner shapes are known; the number of nodes before and after."""
    import onnx_ir.passes.common
    from onnxscript.optimizer import fold_constants

    before = _node_count(model)
    defaults = [(graph, dict(graph.initializers)) for graph in (model.graph, *model.graph.subgraphs())]
    fold_constants(model, should_fold=_is_shape_arithmetic, output_size_limit=MOST_ELEMENTS * 8)
    onnx_ir.passes.common.RemoveUnusedNodesPass()(model)
    for graph, values in defaults:  # that of an input nobody looks at any more is dropped too: callers may leave it out
        for name, value in values.items():
            if value.is_graph_input() and name not in graph.initializers:
                graph.initializers[name] = value
    return before, _node_count(model)


def _is_shape_arithmetic(node: Any) -> bool | None:
    """Whether to fold a node of constants: small integers, and small floats where any two libraries agree."""
    for value in node.outputs:
        if value.dtype is None or (value.shape is not None and _elements(value.shape) > MOST_ELEMENTS):
            return False
        if value.dtype.name not in ("INT64", "INT32", "BOOL") and node.op_type not in EXACT_IN_FLOAT:
            return False
    return None


def _elements(shape: Any) -> int:
    sizes = [dim for dim in shape if isinstance(dim, int)]
    count = 1
    for size in sizes:
        count *= size
    return count


def _node_count(model: Any) -> int:
    return sum(1 for graph in (model.graph, *model.graph.subgraphs()) for _ in graph)


REWRITES = (FixedShapes(),)
