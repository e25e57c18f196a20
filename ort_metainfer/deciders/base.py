"""What every decider is: asked for proposals, it answers with strategies worth a trial and with what it rules out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from ort_metainfer.decision import Proposal, Refusal, Trial
from ort_metainfer.problem import Problem

__all__ = ["Decider"]


@runtime_checkable
class Decider(Protocol):
    """Policy: it is asked and never acts. It reads no file, starts no process, looks at no clock.

    Attributes:
        name: who a proposal is by; one of the origins of :class:`~ort_metainfer.decision.Decision`.
    """

    name: str

    def propose(self, problem: Problem, history: Sequence[Trial]) -> Iterable[Proposal | Refusal]:
        """Strategies worth a trial, most promising first, and what was ruled out with the reason.

        Equal arguments give an equal answer. ``history`` holds the trials made so far for this problem, whoever
        proposed them; no strategy in it is proposed again. A decider that learns from trials is asked again with the
        longer history.
        """
        ...
