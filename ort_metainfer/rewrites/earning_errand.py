"""The errand ``earn``: what must stay in float for a quantised model to keep to the policy, found in this child."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ort_metainfer.errors import RewriteError
from ort_metainfer.rewrites.earning import Earned, earn
from ort_metainfer.rewrites.registry import get_rewrite
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.bench import Speaker
from ort_metainfer.trials.channel import setup_from
from ort_metainfer.trials.rewritten import rewritten_model

__all__ = ["serve"]

WORST = 5


def serve(request: Mapping[str, Any], channel: Speaker, until: float) -> dict[str, Any]:
    """Earn the last transform of a strategy, on the model as the transforms before it make it.

    Returns:
        ``parameters`` of the transform, ``passed``, ``detail``, ``worst`` nodes and the whole ``table``.

    Raises:
        RewriteError: the model or a rewrite fails, or there are no real inputs.
    """
    from ort_metainfer.model.inputs import load_feeds

    setup, strategy = setup_from(request["setup"]), Strategy.from_dict(request["strategy"])
    if not setup.inputs_are_real:
        raise RewriteError(f"{setup.label}: precision is judged on real inputs, and there are none")
    *before, last = strategy.transforms
    channel.say("rewriting", session="sensitivity")
    feeds = load_feeds(setup.feeds)
    source = rewritten_model(setup, before, feeds, until, is_whole=True) if before else setup.model_file
    rewrite = get_rewrite(last.name)
    parameters = rewrite.complete(last)
    top1 = request["top1"] or 0.0
    found, report = earn(source, rewrite, parameters, feeds, request["tolerance"], top1, until)
    return {
        "parameters": {name: value for name, value in found.parameters.items() if value != _default(rewrite, name)},
        "passed": report.passed,
        "detail": report.detail,
        "worst": _worst(report),
        "table": report.table(),
    }


def _default(rewrite: Any, name: str) -> Any:
    return rewrite.parameters[name].default


def _worst(report: Earned) -> Sequence[str]:
    if report.sensitivity is None:
        return []
    return [f"{node.node} ({node.error:.1e})" for node in report.sensitivity.worst(WORST)]
