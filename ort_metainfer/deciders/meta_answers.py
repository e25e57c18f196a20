"""The meta-model's answers for one problem, source by source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import exp, hypot
from typing import TYPE_CHECKING

from ort_metainfer.deciders.expected import probability_of_beating
from ort_metainfer.deciders.meta_candidates import candidates
from ort_metainfer.deciders.meta_conditions import can_run, objection
from ort_metainfer.deciders.meta_exceptions import exceptions_for
from ort_metainfer.deciders.meta_expectation import RESIDUAL, Asked
from ort_metainfer.deciders.meta_ranking import chosen
from ort_metainfer.deciders.prediction import Prediction
from ort_metainfer.decision import Proposal, Refusal
from ort_metainfer.learning.graph_features import graph_features
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

if TYPE_CHECKING:
    from ort_metainfer.deciders.meta_model import Experience, Model
    from ort_metainfer.deciders.rules import RuleLibrary
    from ort_metainfer.learning.find_db import Known

__all__ = ["Answers"]

NAME = "meta-model"

ELSEWHERE = 0.1
"""Spread, in natural log units, of a gain carried over to a device one unit of distance away. A choice."""

AGAIN = 0.02
"""The same of one measured on this very machine."""

LEAST_GAIN = 0.01
"""What find-db must expect of a strategy, in natural log units: identical sessions differ by so much."""

SUREST = 0.99
"""Nothing is surer before it is measured here."""

Answer = Proposal | Refusal


class Answers:
    """Everything experience says of one problem.

    Args:
        experience: what there is to go by.
        rules: the library that has the last word on every strategy.
        problem: what is to be decided.
        most: proposals at most, beside people's exceptions.
    """

    def __init__(self, experience: Experience, rules: RuleLibrary, problem: Problem, most: int) -> None:
        self._experience, self._rules, self._problem, self._most = experience, rules, problem, most

    @cached_property
    def _graph(self) -> Mapping[str, float]:
        return graph_features(self._problem.graph, self._problem.work, self._problem.shapes)

    def in_order(self) -> Iterator[Answer]:
        """What was measured for this structure, what people made of such decisions, the learned ranking."""
        model = self._experience.model
        known = list(self._known(self._most - (1 if model is not None and self._most > 1 else 0)))
        yield from known
        proposed = [answer.strategy for answer in known if isinstance(answer, Proposal)]
        yield from self._exceptions([*proposed, Strategy()])
        if model is not None:
            yield from self._ranking(model, proposed)

    def _known(self, room: int) -> Iterator[Answer]:
        """Winners of this very structure elsewhere, the nearest device's first."""
        if self._experience.find_db is None:
            return
        for known in self._experience.find_db.lookup(self._problem):
            if room <= 0 or known.log_ratio < LEAST_GAIN:
                return
            answer = self._checked(Proposal(known.strategy, NAME, _words(known), _source(known)))
            room -= isinstance(answer, Proposal)
            if answer is not None:
                yield answer

    def _exceptions(self, strategies: Sequence[Strategy]) -> Iterator[Answer]:
        rules = self._experience.exceptions
        if not rules:
            return
        wanted = (answer for answer in self._rules.propose(self._problem, ()) if isinstance(answer, Proposal))
        about = [*strategies, *(proposal.strategy for proposal in wanted)]
        for proposal in exceptions_for(self._problem, rules, self._graph, about):
            answer = self._checked(proposal)
            if answer is not None:
                yield answer

    def _checked(self, proposal: Proposal) -> Answer | None:
        """The proposal, completed, or why it is none here; None where there is nothing here that it is about."""
        if not can_run(self._problem, proposal.strategy):
            return None
        refusal = objection(self._problem, proposal.strategy)
        if refusal is None:
            proposal = self._rules.completed(self._problem, proposal)
            refusal = self._rules.refuse(self._problem, proposal.strategy)
        return proposal if refusal is None else replace(refusal, by=f"{NAME}/{refusal.by.partition('/')[2] or 'probe'}")

    def _ranking(self, model: Model, proposed: Sequence[Strategy]) -> Iterator[Answer]:
        asked = Asked(model, self._problem, self._graph)
        unseen = asked.unseen_classes()
        yield from unseen
        if len(unseen) == len({device.kind for device in self._problem.devices}):
            return
        strategies, dropped = candidates(self._problem, self._rules)
        yield from dropped
        kept, refusals = asked.supported(strategies)
        yield from refusals
        room = self._most - len(proposed)
        new = [strategy for strategy in kept if strategy not in proposed]
        nearness = [asked.place(strategy).nearness for strategy in new]
        found = chosen(new, asked.expected(new), room, residual=RESIDUAL, nearness=nearness)
        yield from (Proposal(one.strategy, NAME, f"learned ranking: {one.reason}", asked.source) for one in found)
        if kept and not found and not proposed:
            yield Refusal(NAME, NAME, f"nothing learned speaks for any of {len(kept)} strategies", asked.source)


def _words(known: Known) -> str:
    """``1.50x expected (1.4 to 1.6), confidence 97%: ...``."""
    spread = hypot(known.spread, AGAIN if known.distance == 0 else ELSEWHERE * (0.5 + known.distance))
    prediction = Prediction(known.log_ratio, spread)
    low, high = (exp(known.log_ratio + sign * spread) for sign in (-1, 1))
    sure = min(SUREST, probability_of_beating(prediction, LEAST_GAIN))
    return f"expected {prediction.speedup:.2f}x ({low:.2f} to {high:.2f}), confidence {sure:.0%}: {known.because}"


def _source(known: Known) -> str:
    return f"{known.layer} records of this structure, distance {known.distance:.2f}"
