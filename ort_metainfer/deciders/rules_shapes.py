"""Fixed shapes: what sizes known ahead are good for, which devices cannot do without, how they are expressed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ort_metainfer.deciders.conditions import accelerators_pay, made, on_device, on_provider
from ort_metainfer.deciders.rule import ACCELERATORS, BINDING_PRIORITY, Rule
from ort_metainfer.deciders.traits import fixes_shapes, has_nameless_sizes, has_open_shapes, static_sizes
from ort_metainfer.deciders.traits_devices import device_of, needs_fixed_shapes
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

__all__ = ["SHAPE_RULES"]

REQUIREMENT_PRIORITY = 80
DIRECTML = "DmlExecutionProvider"


def knows_sizes(problem: Problem) -> bool:
    """Whether shapes are given for dimensions that have names."""
    return bool(static_sizes(problem))


def _given_sizes(problem: Problem) -> Iterator[Strategy]:
    yield Strategy(static_shapes=static_sizes(problem))


def _fixed_by_input(problem: Problem) -> Iterator[Strategy]:
    yield Strategy(transforms=(made("fixed-shapes"),))


def _sizes_not_given(problem: Problem, strategy: Strategy) -> bool:
    sizes = static_sizes(problem)
    return any(sizes.get(name) != size for name, size in strategy.static_shapes.items())


def _some_need_them(problem: Problem) -> bool:
    return any(device.kind != "cpu" and needs_fixed_shapes(device) for device in problem.devices)


def _with_fixed_shapes(problem: Problem, strategy: Strategy) -> Strategy | None:
    """Sizes by name where dimensions have names, by input otherwise; None where no shapes are given."""
    device = device_of(problem, strategy)
    if device is None or not needs_fixed_shapes(device) or fixes_shapes(strategy):
        return strategy
    if knows_sizes(problem):
        return replace(strategy, static_shapes={**static_sizes(problem), **strategy.static_shapes})
    if has_nameless_sizes(problem):
        return replace(strategy, transforms=(made("fixed-shapes"), *strategy.transforms))
    return None


def _on_directml(problem: Problem) -> Iterator[Strategy]:
    device = on_provider(problem, DIRECTML)
    if device is not None:
        yield on_device(problem, device, static_shapes=static_sizes(problem))


SHAPE_RULES = (
    Rule(
        "device_needs_fixed_shapes",
        REQUIREMENT_PRIORITY,
        "shapes",
        "this device takes graphs of fixed shapes only: give input_shapes= where the model leaves dimensions open",
        "own measurement: QNN took 0 nodes of a graph with open shapes, in silence; OpenVINO documentation, NPU "
        "device, limitations; AMD DPU product guides (PG338); for what is not QNN not run on hardware",
        when=(has_open_shapes, _some_need_them),
        devices=ACCELERATORS,
        requires=_with_fixed_shapes,
    ),
    Rule(
        "directml_fixed_shapes",
        72,
        "shapes",
        "DirectML chooses kernels and prepares weights at creation, for which it must know the shapes",
        "microsoft/onnxruntime#1825; onnxruntime documentation: DirectML execution provider, performance tuning; not "
        "run on hardware",
        when=(accelerators_pay, knows_sizes, lambda p: on_provider(p, DIRECTML) is not None),
        devices=("gpu", "npu"),
        proposes=_on_directml,
    ),
    Rule(
        "fixed_shapes_by_input",
        51,
        "shapes",
        "the shapes are given, the model's dimensions have no names to fix them by: they are fixed by input and axis",
        "own measurement: Paddle's exporter calls height and width '?'",
        when=(has_nameless_sizes,),
        proposes=_fixed_by_input,
    ),
    Rule(
        "static_shapes_as_given",
        50,
        "shapes",
        "with the sizes known, onnxruntime folds shape arithmetic and plans memory ahead",
        "own measurement: 114 to 39 nodes and 1.35x on a voice detector, 94 to 76 nodes and 1.1-1.4x on magika, "
        "0.9-1.2x on OCR models",
        when=(knows_sizes,),
        proposes=_given_sizes,
    ),
    Rule(
        "only_sizes_given",
        BINDING_PRIORITY,
        "shapes",
        "a dimension can be fixed only under its own name and to the one size that the shapes given show",
        "own observation: exporters call several dimensions by one name ('?'), and the run then fails",
        forbids=_sizes_not_given,
    ),
)
