"""People's repeated changes as proposals: what they would make of a strategy that is about to be tried. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ort_metainfer.deciders.traits_devices import device_of
from ort_metainfer.decision import Proposal
from ort_metainfer.errors import StrategyError
from ort_metainfer.learning.exceptions import NOTHING, Change, ExceptionRule, similar_exceptions
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import SESSION_OPTIONS, Strategy

__all__ = ["changed", "exceptions_for"]

SOURCE = "people's own changes on this machine (learn exceptions)"


def exceptions_for(
    problem: Problem, rules: Sequence[ExceptionRule], graph: Mapping[str, float], strategies: Sequence[Strategy]
) -> Iterator[Proposal]:
    """What people made repeatedly of strategies like these, for graphs like this one, on such devices.

    Args:
        problem: what is to be decided.
        rules: the exception list.
        graph: the graph's features.
        strategies: what is about to be tried, the default among it; the first that a change fits is changed.
    """
    used: set[Change] = set()
    for strategy in strategies:
        device = device_of(problem, strategy)
        if device is None:
            continue
        for rule in similar_exceptions(rules, strategy, device.kind, graph):
            made = None if rule.change in used else changed(strategy, rule.change)
            if made is not None and not made.is_default:
                used.add(rule.change)
                reason = f"people changed this before: {rule.describe()}; so it is tried in place of {_word(strategy)}"
                yield Proposal(made, "meta-model", reason, SOURCE)


def _word(strategy: Strategy) -> str:
    return "the default" if strategy.is_default else strategy.describe()


def changed(strategy: Strategy, change: Change) -> Strategy | None:
    """The strategy with one setting as people had it; None where its words do not say how it was set."""
    name, value = change.setting, None if change.after == NOTHING else change.after
    try:
        if name == "provider":
            return replace(strategy, provider=value, device=None, provider_options={})
        if name == "device":
            return replace(strategy, device=value)
        if name in SESSION_OPTIONS:
            typed = None if value is None else _typed(SESSION_OPTIONS[name], value)
            return replace(strategy, session_options=_put(strategy.session_options, name, typed))
        if name.startswith(("session.", "optimization.", "ep.", "mlas.")):
            return replace(strategy, session_config=_put(strategy.session_config, name, value))
        if "/" in name:
            return _rewritten(strategy, name.partition("/")[2], value)
        if strategy.provider is not None and name != "static_shapes":
            return replace(strategy, provider_options=_put(strategy.provider_options, name, value))
    except (StrategyError, ValueError):
        return None
    return None


def _put(table: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    kept = {key: each for key, each in table.items() if key != name}
    return kept if value is None else {**kept, name: value}


def _typed(kind: type, text: str) -> Any:
    return text == "True" if kind is bool else kind(text)


def _rewritten(strategy: Strategy, name: str, words: str | None) -> Strategy | None:
    """With or without a rewrite; one with parameters is not put together again from words."""
    from ort_metainfer.rewrites.registry import get_rewrite

    kept = tuple(transform for transform in strategy.transforms if transform.name != name)
    if words is None:
        return replace(strategy, transforms=kept)
    return replace(strategy, transforms=(*kept, get_rewrite(name).transform())) if words == "yes" else None
