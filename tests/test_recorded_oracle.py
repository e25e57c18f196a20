"""Deciders replayed on a recorded exhaustive search (``tests/recorded/oracle``): who finds the best, and how soon.

Deterministic: outcomes are looked up, nothing is run and nothing timed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

HERE = Path(__file__).parent
FILES = sorted((HERE / "recorded" / "oracle").glob("*.json.gz"))

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def regret() -> Iterator[Any]:
    """The script that replays the files."""
    sys.path.insert(0, str(HERE / "figures"))
    try:
        yield import_module("regret")
    finally:
        sys.path.remove(str(HERE / "figures"))


def test_there_are_eight_models_each_strict_and_fast() -> None:
    names = [file.name.removesuffix(".json.gz").rpartition("-") for file in FILES]
    assert len({model for model, _, _ in names}) >= 8
    assert {accuracy for _, _, accuracy in names} == {"strict", "fast"}
    assert len(names) == 2 * len({model for model, _, _ in names})


def test_all_of_it_finds_the_best_sooner_than_chance_and_the_rules_alone(regret: Any) -> None:
    cases = [regret.read_case(file, None) for file in FILES]

    def mean_regret(way: Callable[[Any], list[float]]) -> dict[int, float]:
        columns = zip(*(way(case) for case in cases), strict=True)
        return dict(zip(regret.STEPS, map(mean, columns), strict=True))

    full = mean_regret(lambda case: regret.regrets(case, regret.by_search(case, regret.CostModel(), True)))
    chance = mean_regret(regret.by_chance_in_space)
    rules = mean_regret(lambda case: regret.regrets(case, regret.by_rules(case)))
    for step in (5, 10):
        assert full[step] < chance[step] and full[step] <= rules[step], (step, full, chance, rules)
    assert full[10] < 0.03
