"""Graph level, static shapes, memory: what depends on the graph and not on the load."""

from __future__ import annotations

from collections.abc import Iterator

from ort_metainfer.deciders.rule import Rule, always
from ort_metainfer.deciders.traits import has_convolutions, is_tiny, runs_on_cpu, static_sizes
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

__all__ = ["GRAPH_RULES"]

VETO_PRIORITY = 10
LEVELS_WITHOUT_LAYOUT = ("disable", "basic", "extended")


def _multiplies_only(problem: Problem) -> bool:
    multiplies = problem.graph.count("MatMul", "Gemm", "MatMulInteger") > 0
    return multiplies and not has_convolutions(problem) and not is_tiny(problem)


def _loses_layout(problem: Problem, strategy: Strategy) -> bool:
    level = strategy.session_options.get("graph_optimization_level")
    return level in LEVELS_WITHOUT_LAYOUT and runs_on_cpu(problem, strategy)


def _given_sizes(problem: Problem) -> Iterator[Strategy]:
    sizes = static_sizes(problem)
    if sizes:
        yield Strategy(static_shapes=sizes)


def _sizes_not_given(problem: Problem, strategy: Strategy) -> bool:
    sizes = static_sizes(problem)
    return any(sizes.get(name) != size for name, size in strategy.static_shapes.items())


def _gives_memory_back(problem: Problem, strategy: Strategy) -> bool:
    options = strategy.session_options
    return options.get("enable_cpu_mem_arena") is False or options.get("enable_mem_reuse") is False


def _changes_what_runs(problem: Problem, strategy: Strategy) -> bool:
    return strategy.provider is not None or bool(strategy.static_shapes)


def _is_blocked(problem: Problem) -> bool:
    from ort_metainfer.rewrites.rewriting import blocker

    return blocker(problem.graph) is not None


GRAPH_RULES = (
    Rule(
        "static_shapes_as_given",
        50,
        "with the sizes known, onnxruntime folds shape arithmetic and plans memory ahead",
        "own measurement: 114 to 39 nodes and 1.35x on a voice detector, 94 to 76 nodes and 1.1-1.4x on magika, "
        "0.9-1.2x on OCR models",
        applies=lambda p: bool(static_sizes(p)),
        proposes=_given_sizes,
    ),
    Rule(
        "extended_level_without_convolutions",
        40,
        "above level extended onnxruntime only changes the layout of convolutions, and this graph has none",
        "own measurement: 1.02x on minilm; onnxruntime documentation: graph optimizations",
        applies=lambda p: _multiplies_only(p) and runs_on_cpu(p, Strategy()),
        proposes=lambda p: (Strategy(session_options={"graph_optimization_level": "extended"}),),
    ),
    Rule(
        "layout_level_for_convolutions",
        VETO_PRIORITY,
        "a lower level loses the blocked layout that makes onnxruntime's convolutions fast",
        "own measurement: level extended 0.64x on a ResNet-50, 0.36x on a PP-LCNet, 0.62x on a MobileNetV3",
        applies=has_convolutions,
        forbids=_loses_layout,
    ),
    Rule(
        "only_sizes_given",
        VETO_PRIORITY,
        "a dimension can be fixed only under its own name and to the one size that the shapes given show",
        "own observation: exporters call several dimensions by one name ('?'), and the run then fails",
        applies=always,
        forbids=_sizes_not_given,
    ),
    Rule(
        "memory_arena_stays",
        VETO_PRIORITY,
        "without the arena and reuse every run asks the system for its memory again",
        "own measurement: without the arena 0.73x on a graph network, 0.94x on a MobileNetV3 and a small MLP",
        applies=always,
        forbids=_gives_memory_back,
    ),
    Rule(
        "blocked_rewrites",
        VETO_PRIORITY,
        "the graph holds what a rewrite could break ({problem.graph.blockers}), or maps, which the graph library loses",
        "microsoft/onnxruntime#10905: rewritten graphs that a provider or another tool no longer takes; own "
        "observation: onnx_ir loses sparse initialisers and cannot read maps",
        applies=_is_blocked,
        forbids=lambda p, strategy: bool(strategy.transforms),
    ),
    Rule(
        "compiled_model_stays",
        VETO_PRIORITY,
        "the model was compiled for one provider, and no other provider or shape can run it",
        "onnxruntime documentation: EP context design; microsoft/onnxruntime#26687",
        applies=lambda p: "EPContext" in p.graph.blockers,
        forbids=_changes_what_runs,
    ),
)
