"""onnx's own node tests give the same results after every rewrite that applies: models that nobody here chose."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from ort_metainfer.model.graph import describe
from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Rewrite
from ort_metainfer.rewrites.registry import all_rewrites
from ort_metainfer.rewrites.rewriting import blocker
from tests.rewrite_conformance import outcome_faults
from tests.rewrite_run import LEVELS, apply_to_bytes, broken_surface, difference, outputs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EVERY = int(os.environ.get("ORT_METAINFER_NODE_CASES_EVERY", "1"))
"""One case in so many; read before the tests' environment is isolated."""

KEPT = [
    pytest.param(rewrite, id=rewrite.name)
    for rewrite in all_rewrites()
    if rewrite.promise != "lossy" and (not rewrite.providers or "CPUExecutionProvider" in rewrite.providers)
]


@dataclass(frozen=True)
class NodeCase:
    """A node test that onnxruntime runs: the model, its features, what goes in, and what came out at each level."""

    name: str
    proto: Any
    model: bytes
    graph: Graph
    feeds: tuple[dict[str, Any], ...]
    expected: dict[str, list[list[Any]]]


@lru_cache(maxsize=1)
def node_cases() -> tuple[NodeCase, ...]:
    from onnx.backend.test.case.node import collect_testcases

    collected = sorted(collect_testcases(None), key=lambda case: case.name)[::EVERY]
    return tuple(made for made in map(node_case, collected) if made is not None)


def node_case(case: Any) -> NodeCase | None:
    """The case as it runs here; None where onnxruntime refuses it, or a second run gives something else."""
    model = case.model.SerializeToString()
    names = [value.name for value in case.model.graph.input]
    feeds = tuple({n: fed(v) for n, v in zip(names, given, strict=False)} for given, _ in case.data_sets)
    try:
        expected = {level: outputs(model, feeds, level) for level in LEVELS}
        again = outputs(model, feeds)
    except Exception:  # noqa: BLE001 (what onnxruntime does not run says nothing about a rewrite)
        return None
    graph = describe(model)
    if difference(again, expected["off"], "exact") or blocker(graph):
        return None
    return NodeCase(case.name, case.model, model, graph, feeds, expected)


def fed(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value


def faults_on(rewrite: Rewrite, case: NodeCase) -> list[str]:
    """What is wrong after the rewrite; nothing where it has nothing to do."""
    import onnx

    if rewrite.objection(case.graph) is not None:
        return []
    try:
        made, outcome = apply_to_bytes(rewrite, case.model, case.feeds, graph=case.graph)
        faults = outcome_faults(outcome) + broken_surface(case.proto, onnx.load_from_string(made), rewrite)
        for level, expected in case.expected.items():
            promise = rewrite.promise if level == "off" else "float32-equivalent"
            off = difference(outputs(made, case.feeds, level), expected, promise)
            faults += [f"level {level}: {off}"] if off else []
    except Exception as error:  # noqa: BLE001 (a rewrite or the session of its result: either is the fault)
        return [f"{type(error).__name__}: {error}"]
    return faults


@pytest.mark.parametrize("rewrite", KEPT)
def test_every_node_case_gives_the_same_after_the_rewrite(rewrite: Rewrite) -> None:
    found = {case.name: faults_on(rewrite, case) for case in node_cases()}
    broken = {name: faults for name, faults in found.items() if faults}
    assert not broken, "\n".join(f"{name}: {'; '.join(faults)}" for name, faults in broken.items())


def test_most_node_cases_run_here() -> None:
    from onnx.backend.test.case.node import collect_testcases

    assert len(node_cases()) * EVERY > len(collect_testcases(None)) / 2
