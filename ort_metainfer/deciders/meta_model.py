"""The learned ranking of strategies: its place among the deciders, held until a model is trained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ort_metainfer.decision import Proposal, Refusal, Trial
from ort_metainfer.problem import Problem

__all__ = ["MetaModel"]


class MetaModel:
    """The decider that is asked first, before the rules.

    No model is shipped and none is trained yet, so it proposes nothing and says so: every decision shows in its
    refusals that nothing learned took part in it.
    """

    name = "meta-model"

    def propose(self, problem: Problem, history: Sequence[Trial]) -> Iterable[Proposal | Refusal]:
        """One refusal; see the class."""
        yield Refusal(subject="meta-model", by=self.name, reason="no model yet: none is shipped or trained")
