"""Carrying out a strategy's transforms: one model file in, one rewritten model file out, or a reason why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ort_metainfer.decision import Refusal
from ort_metainfer.errors import MetainferError, NotRewritten, RewriteError
from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Context, Outcome, Promise
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.references import out_of_reach
from ort_metainfer.rewrites.registry import get_rewrite
from ort_metainfer.strategy import Transform

__all__ = ["FUNCTIONS", "Rewritten", "blocker", "promise_of", "refused_for", "rewrite_model"]

RANK: tuple[Promise, ...] = ("exact", "float32-equivalent", "lossy")

FUNCTIONS = "model-local functions"

WHY: Mapping[str, str] = MappingProxyType(
    {
        FUNCTIONS: "a change inside one is a change for all its callers, whatever their shapes and types",
        "sparse initializers": "the graph library loses them",
        "training": "it computes what it was trained with besides",
        "EPContext": "it was compiled for a provider already",
    }
)
"""Blocker of a graph -> why; a domain of its own has operators of which nothing is known."""

UNREADABLE_TYPES = ("seq(map", "map(")
"""Types that onnx_ir cannot read (ZipMap's): seen with onnx-ir 1.1."""


@dataclass(frozen=True)
class Rewritten:
    """A rewritten model.

    Attributes:
        files: the model's file first, then external data beside it.
        outcomes: what each transform did, in order.
        referenced: external data files of the original that the model needs too (see ``Draft.referenced``).
    """

    files: tuple[Path, ...]
    outcomes: tuple[tuple[Transform, Outcome], ...]
    referenced: Mapping[str, str] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """The model."""
        return self.files[0]


def blocker(graph: Graph) -> str | None:
    """Why a model of these features must not be rewritten at all; None where it may."""
    if graph.blockers:
        reasons = dict.fromkeys(WHY.get(name, "nothing is known of its operators") for name in graph.blockers)
        return f"a graph with {', '.join(graph.blockers)} is not rewritten: {'; '.join(reasons)}"
    strange = [spec.name for spec in (*graph.inputs, *graph.outputs) if spec.dtype.startswith(UNREADABLE_TYPES)]
    return f"{strange[0]} is a map, which the graph library cannot read" if strange else None


def refused_for(graph: Graph) -> list[Refusal]:
    """What is told of a model that no strategy may rewrite; empty where one may."""
    reason = blocker(graph)
    return [] if reason is None else [Refusal("rewrites of the model", "rewrites", reason)]


def promise_of(transforms: Sequence[Transform]) -> Promise:
    """What the transforms together keep of the results: the least of their promises.

    Raises:
        StrategyError: there is no such rewrite.
    """
    ranks = [RANK.index(get_rewrite(transform.name).promise) for transform in transforms]
    return RANK[max(ranks, default=0)]


def rewrite_model(
    model_file: Path, transforms: Sequence[Transform], context: Context, target: Path, may_refer: bool = False
) -> Rewritten:
    """Rewrite a model.

    Args:
        model_file: the original, never changed.
        transforms: in the order they are applied.
        context: what rewrites may look at.
        target: the file to write; its folder is made.
        may_refer: whether weights that stay as they are may be left in the original's external data files.

    Raises:
        StrategyError: a transform that there is not, or with parameters it does not have.
        NotRewritten: the model must not be rewritten, or none of them changed anything.
        RewriteError: a rewrite failed, there was no time left, or external data lies where onnxruntime does not look.
    """
    reason = blocker(context.graph)
    if reason is not None:
        raise NotRewritten(f"{model_file}: {reason}")
    strays = out_of_reach(model_file, context.graph.external_files)
    if strays:
        raise RewriteError(f"{model_file}: external data outside its folder is not read: {', '.join(strays)}")
    steps = [(transform, get_rewrite(transform.name)) for transform in transforms]
    complete = [rewrite.complete(transform) for transform, rewrite in steps]
    draft = Draft(model_file, context.folder)
    outcomes: list[tuple[Transform, Outcome]] = []
    for (transform, rewrite), parameters in zip(steps, complete, strict=True):
        if context.left_s() <= 0:
            raise RewriteError(f"{model_file}: no time left for rewrite {transform.name}")
        outcomes.append((transform, _carry_out(rewrite, draft, context, parameters, model_file)))
    if not any(outcome.changed for _, outcome in outcomes):
        raise NotRewritten(f"{model_file}: nothing to rewrite: {_why(outcomes)}")
    files = draft.save(target, may_refer)
    return Rewritten(tuple(files), tuple(outcomes), draft.referenced)


def _carry_out(rewrite: Any, draft: Draft, context: Context, parameters: Any, model_file: Path) -> Outcome:
    try:
        outcome: Outcome = rewrite.rewrite(draft, context, parameters)
    except MetainferError:
        raise
    except Exception as error:  # third parties' libraries raise whatever they like; the culprit is named here
        raise RewriteError(f"{model_file}: rewrite {rewrite.name} failed: {type(error).__name__}: {error}") from error
    return outcome


def _why(outcomes: Sequence[tuple[Transform, Outcome]]) -> str:
    told = (f"{transform.name}: {' '.join(outcome.notes) or 'no site'}" for transform, outcome in outcomes)
    return "; ".join(dict.fromkeys(told))
