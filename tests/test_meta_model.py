"""The meta-model's place among the deciders, as long as none is trained."""

from __future__ import annotations

from ort_metainfer.deciders.base import Decider
from ort_metainfer.deciders.meta_model import MetaModel
from ort_metainfer.decision import Refusal
from tests.decider_conformance import DeciderConformance
from tests.made_problems import problem


class TestConformance(DeciderConformance):
    def make(self) -> Decider:
        return MetaModel()


def test_it_says_that_there_is_no_model_and_proposes_nothing() -> None:
    (answer,) = MetaModel().propose(problem(), ())
    assert answer == Refusal("meta-model", "meta-model", "no model yet: none is shipped or trained")
