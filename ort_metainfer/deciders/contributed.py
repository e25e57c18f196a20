"""Rules of third parties, from the entry-point group ``ort_metainfer.rules``: loaded once, held to the same form.

What an entry point names is a :class:`~ort_metainfer.deciders.rule.Rule` or a tuple of them. One that does not load, or
is no sound rule, is told once and left out; one that raises or answers nonsense while it is asked, likewise, from
then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any, get_args

from ort_metainfer.deciders.rule import ALL_DEVICES, BINDING_PRIORITY, Dimension, Rule
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

__all__ = ["ENTRY_POINT_GROUP", "contributed_rules"]

ENTRY_POINT_GROUP = "ort_metainfer.rules"

MOST_PROPOSED = 1000
"""More strategies than one rule has any use for: whoever says more may never end."""

Check = Callable[..., Any]
"""Asks a third party's function and sees to it that what it answers is what was asked for."""

log = logging.getLogger("ort_metainfer")


@lru_cache(maxsize=1)
def contributed_rules() -> tuple[Rule, ...]:
    """Every sound rule of a third party, in the order of their entry points' names."""
    from importlib import metadata

    found: list[Rule] = []
    for point in sorted(metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda point: (point.name, point.value)):
        place = f"{point.name} = {point.value}"
        try:
            loaded = point.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001 (a third party's code may raise anything)
            log.warning("rule %s does not load: %s: %s", place, type(error).__name__, error)
            continue
        for rule in loaded if isinstance(loaded, tuple | list) else (loaded,):
            fault = fault_of(rule, {known.name for known in found})
            if fault is not None:
                log.warning("rule %s of %s is left out: %s", getattr(rule, "name", repr(rule)), place, fault)
                continue
            found.append(guarded(rule, place))
    return tuple(found)


def fault_of(rule: object, taken: Iterable[str]) -> str | None:
    """Why ``rule`` cannot be taken into the library; None where it can."""
    if not isinstance(rule, Rule):
        return "it is no Rule"
    if not isinstance(rule.name, str) or not rule.name.isidentifier() or rule.name in set(taken):
        return "it has no name of letters, digits and underscores, or one that is taken"
    if type(rule.priority) is not int or not 0 <= rule.priority < BINDING_PRIORITY:
        return f"its priority must be a whole number from 0 to {BINDING_PRIORITY - 1}: above stands the caller's word"
    if rule.dimension not in get_args(Dimension):
        return f"its dimension must be one of {', '.join(get_args(Dimension))}"
    if not rule.devices or not set(rule.devices) <= set(ALL_DEVICES):
        return f"its devices must be some of {', '.join(ALL_DEVICES)}"
    if not all(isinstance(text, str) and text.strip() for text in (rule.reason, rule.source)):
        return "it needs a reason and a source"
    if rule.proposes is None and rule.requires is None and rule.forbids is None:
        return "it neither proposes, requires nor forbids anything"
    return None


def _said(function: Callable[..., Any], *arguments: Any) -> bool:
    return bool(function(*arguments))


def _proposed(function: Callable[..., Any], problem: Problem) -> tuple[Strategy, ...]:
    found = tuple(islice(function(problem), MOST_PROPOSED + 1))
    if len(found) > MOST_PROPOSED:
        raise ValueError(f"it proposes more than {MOST_PROPOSED} strategies")
    for each in found:
        _expect_strategy(each, "proposes")
    return found


def _required(function: Callable[..., Any], problem: Problem, strategy: Strategy) -> Strategy | None:
    answer = function(problem, strategy)
    if answer is None:
        return None
    _expect_strategy(answer, "requires")
    if function(problem, answer) != answer:
        raise ValueError("asked again of its own answer, it requires something else")
    return answer  # type: ignore[no-any-return]


def _expect_strategy(answer: object, word: str) -> None:
    if not isinstance(answer, Strategy):
        raise TypeError(f"it {word} {answer!r:.80}, which is no Strategy")


def guarded(rule: Rule, place: str) -> Rule:
    """The same rule, which has nothing to say any more once one of its functions has raised or answered nonsense."""
    broken: list[str] = []

    def watched(function: Callable[..., Any] | None, otherwise: Callable[..., Any], check: Check = _said) -> Any:
        def call(*arguments: Any) -> Any:
            if broken:
                return otherwise(*arguments)
            try:
                return check(function, *arguments)
            except (Exception, SystemExit) as error:  # noqa: BLE001 (a third party's code may raise anything)
                broken.append(rule.name)
                log.warning("rule %s of %s is left out: %s: %s", rule.name, place, type(error).__name__, error)
                return otherwise(*arguments)

        return None if function is None else call

    return replace(
        rule,
        when=tuple(watched(condition, lambda problem: False) for condition in rule.when),
        matters=watched(rule.matters, lambda problem: False),
        proposes=watched(rule.proposes, lambda problem: (), _proposed),
        requires=watched(rule.requires, lambda problem, strategy: strategy, _required),
        forbids=watched(rule.forbids, lambda problem, strategy: False),
    )
