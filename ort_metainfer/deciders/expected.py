"""What to expect of a trial whose outcome is only known with a spread. Pure."""

from __future__ import annotations

from math import erf, exp, pi, sqrt

from ort_metainfer.deciders.prediction import Prediction

__all__ = ["expected_improvement", "probability_of_beating"]


def expected_improvement(prediction: Prediction, best: float) -> float:
    """By how much the outcome is expected to exceed ``best``, counting shortfalls as nothing; in log units.

    For an outcome normal with mean ``m`` and standard deviation ``s``, with z = (m - best) / s:
    ``s (z Phi(z) + phi(z))`` (Mockus 1975; Jones, Schonlau and Welch 1998, "Efficient Global Optimization").

    Args:
        prediction: mean and spread of ln(speed-up).
        best: ln(speed-up) of the best measured so far; 0 is the default's.
    """
    gap = prediction.log_speedup - best
    if prediction.spread <= 0:
        return max(0.0, gap)
    z = gap / prediction.spread
    return prediction.spread * (z * _cumulative(z) + exp(-z * z / 2) / sqrt(2 * pi))


def probability_of_beating(prediction: Prediction, bar: float) -> float:
    """Chance that the outcome lies above ``bar`` (ln(speed-up)), for the same normal outcome."""
    if prediction.spread <= 0:
        return float(prediction.log_speedup > bar)
    return _cumulative((prediction.log_speedup - bar) / prediction.spread)


def _cumulative(z: float) -> float:
    return (1 + erf(z / sqrt(2))) / 2
