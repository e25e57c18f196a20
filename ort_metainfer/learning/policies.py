"""Ways to choose, from doing nothing to the forest, each as a learner that can be held out against the others."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from ort_metainfer.learning.held_out import Learner
from ort_metainfer.learning.tasks import Floats, Tasks, Words

__all__ = ["average", "forest", "in_order", "lookup", "portfolio"]

UNSEEN = 50.0
"""Log latency that a policy gives what it does not know: last, whatever else there is."""

WORST = 3.0
"""Natural log units beyond which a choice counts no worse in a portfolio (see :mod:`.choice`)."""


def forest(trees: int = 100, seed: int = 0, over: str | None = None) -> Learner:
    """The learned model.

    Args:
        trees: how many.
        seed: of growing.
        over: a column that already is a guess of the answer: the trees learn how far off it is. None: they learn all.
    """

    def learn_and_answer(tasks: Tasks, learn: NDArray[np.bool_], test: NDArray[np.bool_]) -> NDArray[np.floating]:
        from ort_metainfer.learning.growing import grow

        guess = np.nan_to_num(tasks.column(over)) if over else np.zeros(len(tasks))
        grown = grow(tasks.features[learn], (tasks.target - guess)[learn], trees=trees, seed=seed)
        return grown.predict(tasks.features[test]) + guess[test][:, None].astype(np.float32)

    return learn_and_answer


def in_order(*patterns: str) -> Learner:
    """A fixed taste: configurations that match the first pattern, then the second, and so on; nothing is learned."""

    def answer(tasks: Tasks, learn: NDArray[np.bool_], test: NDArray[np.bool_]) -> NDArray[np.floating]:
        ranks = [
            next((rank for rank, pattern in enumerate(patterns) if re.fullmatch(pattern, word)), len(patterns))
            for word in tasks.configuration[test].tolist()
        ]
        return np.array(ranks, dtype=np.float64)[:, None]

    return answer


def average() -> Learner:
    """Best on average: how each configuration did, over all models and devices to learn from."""

    def answer(tasks: Tasks, learn: NDArray[np.bool_], test: NDArray[np.bool_]) -> NDArray[np.floating]:
        cases = tasks.case[learn].astype(np.str_)
        parts = _effects_of_cases(tasks.log_ms[learn], cases, tasks.configuration[learn])
        return np.array([parts.get(each, UNSEEN) for each in tasks.configuration[test].tolist()])[:, None]

    return answer


def _effects_of_cases(log_ms: Floats, case: Words, configuration: NDArray[np.str_]) -> dict[str, float]:
    """Two-way least squares by alternating means: there are too many cases to solve for at once."""
    _, of_case = np.unique(case, return_inverse=True)
    names, of_configuration = np.unique(configuration, return_inverse=True)
    part = np.zeros(len(names))
    for _ in range(20):
        level = np.bincount(of_case, log_ms - part[of_configuration]) / np.bincount(of_case)
        part = np.bincount(of_configuration, log_ms - level[of_case]) / np.bincount(of_configuration)
    return dict(zip(names.tolist(), part.tolist(), strict=True))


def portfolio(size: int = 8) -> Learner:
    """A fixed list that together lost least: each next one is that which lowers the mean regret most."""

    def answer(tasks: Tasks, learn: NDArray[np.bool_], test: NDArray[np.bool_]) -> NDArray[np.floating]:
        order = _greedy(tasks.take(learn), size)
        rank = {name: float(number) for number, name in enumerate(order)}
        return np.array([rank.get(each, UNSEEN) for each in tasks.configuration[test].tolist()])[:, None]

    return answer


def _greedy(tasks: Tasks, size: int) -> list[str]:
    """Configurations in the order of a greedy portfolio; a case without any of them counts as the worst."""
    names, place = np.unique(tasks.configuration, return_inverse=True)
    regret = np.full((int(tasks.case.max()) + 1, len(names)), WORST)
    best = np.full(len(regret), np.inf)
    np.minimum.at(best, tasks.case, tasks.log_ms)
    regret[tasks.case, place] = np.minimum(tasks.log_ms - best[tasks.case], WORST)
    order: list[int] = []
    so_far = np.full(len(regret), WORST)
    while len(order) < min(size, len(names)):
        left = [each for each in range(len(names)) if each not in order]
        order.append(min(left, key=lambda each: float(np.expm1(np.minimum(so_far, regret[:, each])).mean())))
        so_far = np.minimum(so_far, regret[:, order[-1]])
    return [str(names[each]) for each in order]


def lookup(*columns: str) -> Learner:
    """What was measured for this very model on other devices, or for the references on this one; no forest.

    Args:
        columns: the first of them that the table has is the guess.
    """

    def answer(tasks: Tasks, learn: NDArray[np.bool_], test: NDArray[np.bool_]) -> NDArray[np.floating]:
        found = tasks.column(next(each for each in columns if each in tasks.names))[test]
        return np.where(np.isnan(found), UNSEEN, found)[:, None]

    return answer
