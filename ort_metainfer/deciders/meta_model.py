"""The decider that goes by experience: this very graph on other devices, the learned ranking, what people changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ort_metainfer.decision import Proposal, Refusal, Trial
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ort_metainfer.deciders.rules import RuleLibrary
    from ort_metainfer.learning.exceptions import ExceptionRule
    from ort_metainfer.learning.find_db import Known
    from ort_metainfer.learning.learned import Card
    from ort_metainfer.learning.support import Support

__all__ = ["Experience", "Lookup", "MetaModel", "Model"]

MOST = 3
"""Proposals, beside people's exceptions: the first race of six has room for the rules' own. Measuring three of a
ranking came within 5% of the best in 98% of cases on hardware never seen (public measurements; the first one: 73%)."""

NAME = "meta-model"


class Model(Protocol):
    """What was learned of records; pure to ask (:class:`~ort_metainfer.learning.learned.LearnedModel`)."""

    card: Card
    support: Support

    def expected(self, rows: Sequence[Mapping[str, float]]) -> NDArray[np.float32]:
        """Candidates x trees, ln(baseline / strategy)."""
        ...


class Lookup(Protocol):
    """What was measured for a structure elsewhere (:class:`~ort_metainfer.learning.find_db.FindDb`)."""

    def lookup(self, problem: Problem) -> Sequence[Known]:
        """The most promising first."""
        ...


@dataclass(frozen=True)
class Experience:
    """What a machine has to go by.

    Attributes:
        model: the learned ranking; None where there is none, and ``why`` says why.
        find_db: what was measured for structures.
        exceptions: what people changed repeatedly.
    """

    model: Model | None = None
    find_db: Lookup | None = None
    exceptions: tuple[ExceptionRule, ...] = ()
    why: str = "none is shipped or trained"


NONE = Experience()


class MetaModel:
    """Proposes what experience speaks for, and refuses to where there is none.

    First what was measured for this structure on other devices, the nearest device's winner first; then what people
    made of such decisions repeatedly; then the learned ranking, up to :data:`MOST`. The ranking is not asked where the
    class of a device was never seen, a strategy's preconditions do not hold by the device's probe, or the case lies
    outside of what was learned, in this order; each is a refusal with its reason. With nothing to go by it says so.

    Args:
        model: the learned ranking.
        find_db: what was measured for structures.
        exceptions: what people changed repeatedly.
        rules: the library whose vetoes hold, and whose proposals are ranked; None makes one.
        why: why there is no model.
        most: proposals at most, beside exceptions.
    """

    name = NAME

    def __init__(
        self,
        model: Model | None = None,
        find_db: Lookup | None = None,
        *,
        exceptions: Sequence[ExceptionRule] = (),
        rules: RuleLibrary | None = None,
        why: str = NONE.why,
        most: int = MOST,
    ) -> None:
        self._experience = Experience(model, find_db, tuple(exceptions), why)
        self._rules, self._most = rules, most

    def propose(self, problem: Problem, history: Sequence[Trial]) -> Iterable[Proposal | Refusal]:
        """See the class; each proposal says what is expected, how sure that is, and what it rests on."""
        if self._experience.model is None:
            yield Refusal(NAME, NAME, f"no model yet: {self._experience.why}")
        experience = self._experience
        has_any = experience.model is not None or experience.find_db is not None or experience.exceptions
        if not has_any or "EPContext" in problem.graph.blockers:
            return
        seen = {Strategy(), *(trial.strategy for trial in history)}
        for answer in self._answers(problem):
            if isinstance(answer, Refusal):
                yield answer
            elif answer.strategy not in seen:
                seen.add(answer.strategy)
                yield answer

    def _answers(self, problem: Problem) -> Iterator[Proposal | Refusal]:
        from ort_metainfer.deciders.meta_answers import Answers

        if self._rules is None:
            from ort_metainfer.deciders.rules import RuleLibrary

            self._rules = RuleLibrary()
        yield from Answers(self._experience, self._rules, problem, self._most).in_order()
