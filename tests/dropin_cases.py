"""The unusual uses in which a session of this package must be just what plain onnxruntime gives: all of them."""

from tests import dropin_cases_graphs, dropin_cases_options, dropin_cases_weights
from tests.dropin_models import CASES, Case

__all__ = ["CASES", "Case", "dropin_cases_graphs", "dropin_cases_options", "dropin_cases_weights"]
