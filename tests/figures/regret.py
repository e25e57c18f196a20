"""How far what is decided lies behind the best: regret.py curve FOLDER [MODELS], regret.py duel FOLDER MODEL INPUTS.

``FOLDER`` holds the files that ``oracle.py`` wrote. Regret is best / chosen - 1, in latency.

``curve`` replays each file: deciders choose one strategy after another, whose outcome is looked up. It prints, for each
number of trials, the mean regret over the files of: random choice in the declared space, and among what the file holds
(means of many); the rules alone; a fixed portfolio, greedily chosen on the other models' files; the cost model without
rules; the search with its priors alone; rules first, then the search; and all of it, with the cost model as it is and
as the other models' files teach it. Needs no quiet machine.

``duel`` decides anew (default budget, then ``max_trials=30``) and races what was chosen against the file's best.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import log, prod
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from ort_metainfer.adapt import policy_of, tune
from ort_metainfer.deciders.cost_model import CostModel
from ort_metainfer.deciders.prediction import Prediction, Predictor
from ort_metainfer.deciders.rules import RuleLibrary
from ort_metainfer.deciders.search import Search
from ort_metainfer.deciders.search_candidates import has_failed
from ort_metainfer.deciders.search_space import Dimension, space
from ort_metainfer.decision import Gate, Proposal, Refusal, Timing, Trial
from ort_metainfer.hardware.devices import cpu_device
from ort_metainfer.learning.record import Record
from ort_metainfer.learning.records import record_of
from ort_metainfer.model.inputs import save_feeds
from ort_metainfer.model.workload import workload
from ort_metainfer.problem import Graph, HardwareState, Model, Problem, SessionSpec
from ort_metainfer.settings import Settings, resolve
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.client import ChildTrialHost
from ort_metainfer.trials.task import Setup, Thresholds

QUIET = HardwareState(when=0.0, window_s=1.0, others_cpu=0.0, steal=0.0)
STEPS = (1, 2, 3, 5, 8, 10, 15, 20, 30)
DRAWS = 200
RACE_S = 25.0


@dataclass(frozen=True)
class Case:
    """One file of the oracle: the problem, and every trial."""

    name: str
    problem: Problem
    trials: dict[Strategy, Trial]

    @property
    def finals(self) -> list[Trial]:
        """Trials of the long last race; the highest of a hundred short ones is mostly the luckiest."""
        return [trial for trial in self.trials.values() if trial.by == "final"]

    @property
    def best(self) -> float:
        return max([1.0, *(gain_of(trial) for trial in self.finals)])

    @property
    def best_strategy(self) -> Strategy:
        best = max(self.finals, key=gain_of, default=None)
        return best.strategy if best is not None and gain_of(best) > 1.02 else Strategy()


def gain_of(trial: Trial) -> float:
    return trial.timing.speedup if trial.timing is not None and not has_failed(trial) else 0.0


def read_case(file: Path, models: Path | None) -> Case:
    """The case of a file; with the model's work, node by node, where the model lies in ``models``."""
    plain = json.loads(gzip.decompress(file.read_bytes()))
    shapes = {name: tuple(shape) for name, shape in plain["shapes"].items()}
    settings, _ = resolve(Settings(accuracy=plain["accuracy"]))
    spec = SessionSpec()
    model = models / plain["model"] / "model.onnx" if models is not None else None
    problem = Problem(
        Model("sha256:" + "0" * 64, 0, path=plain["model"]),
        Graph.from_dict(plain["graph"]),
        (replace(cpu_device(), cores=plain["cores"], features=tuple(plain["features"])),),
        policy_of(settings, spec),
        spec,
        QUIET,
        shapes,
        True,
        work=workload(model, shapes) if model is not None and model.exists() else (),
    )
    trials = [_trial(each) for each in plain["trials"]]
    return Case(file.name.removesuffix(".json.gz"), problem, {trial.strategy: trial for trial in trials})


def _trial(plain: dict[str, Any]) -> Trial:
    timing = None if plain["timing"] is None else Timing(**plain["timing"])
    gates = tuple(Gate(gate["name"], gate["passed"], gate["detail"]) for gate in plain["gates"])
    return Trial(
        Strategy.from_dict(plain["strategy"]), plain["by"], gates, plain["failure"], timing, error=plain["error"]
    )


Chooser = Callable[[list[Trial]], Strategy | None]


class Table:
    """The rules' vetoes, and one against whatever the file does not hold."""

    def __init__(self, case: Case, rules: RuleLibrary | None = None) -> None:
        self.case, self.rules = case, rules or RuleLibrary()

    def refuse(self, problem: Problem, strategy: Strategy) -> Refusal | None:
        if strategy not in self.case.trials:
            return Refusal(strategy.describe(), "figures", "not in the file")
        return self.rules.refuse(problem, strategy)


class Flat:
    """The cost model's word, and nothing else where it knows nothing."""

    name = "flat"

    def __init__(self, model: Predictor) -> None:
        self.model = model

    def predict(
        self, problem: Problem, strategies: Sequence[Strategy], history: Sequence[Trial]
    ) -> list[Prediction | None]:
        return [answer or Prediction(0.0, 0.3) for answer in self.model.predict(problem, strategies, history)]


def by_search(case: Case, predictor: Predictor | None, with_rules: bool) -> Chooser:
    table = Table(case)
    search = Search(table.refuse, 1000, predictor)
    proposals = [p.strategy for p in table.rules.propose(case.problem, ()) if isinstance(p, Proposal)]
    first = [strategy for strategy in proposals if with_rules and strategy in case.trials]

    def choose(history: list[Trial]) -> Strategy | None:
        tried = {trial.strategy for trial in history}
        left = [strategy for strategy in first if strategy not in tried]
        if left:
            return left[0]
        return next((p.strategy for p in search.propose(case.problem, history) if isinstance(p, Proposal)), None)

    return choose


def by_rules(case: Case) -> Chooser:
    proposals = [p.strategy for p in RuleLibrary().propose(case.problem, ()) if isinstance(p, Proposal)]
    known = [strategy for strategy in proposals if strategy in case.trials]
    return lambda history: known[len(history)] if len(history) < len(known) else None


def regrets(case: Case, choose: Chooser) -> list[float]:
    """Regret after each number of trials in ``STEPS``."""
    history: list[Trial] = []
    best, found = 1.0, []
    for step in range(1, STEPS[-1] + 1):
        strategy = choose(history)
        if strategy is not None:
            history.append(case.trials[strategy])
            best = max(best, gain_of(history[-1]))
        if step in STEPS:
            found.append(max(0.0, case.best / best - 1))
    return found


def by_chance(case: Case) -> list[float]:
    """The mean over many orders of what the file holds: mostly what promised well."""
    rng, runs = random.Random(0), []
    for _ in range(DRAWS):
        order = rng.sample(list(case.trials), len(case.trials))
        runs.append(following([gain_of(case.trials[strategy]) for strategy in order], case.best))
    return [mean(column) for column in zip(*runs, strict=True)]


def by_chance_in_space(case: Case) -> list[float]:
    """The mean over many draws from the declared space without what rules forbid, each dimension for itself.

    What the file does not hold counts as the product of what its parts gained alone, and nothing where one failed.
    """
    rng, runs = random.Random(0), []
    dimensions = space(case.problem, Table(case).rules.refuse)
    for _ in range(DRAWS):
        gains = []
        for _ in range(STEPS[-1]):
            strategy = Strategy()
            for dimension in dimensions:
                choice = rng.choice((None, *dimension.choices))
                if choice is not None and choice.fits(case.problem, strategy):
                    strategy = dimension.put(strategy, choice.part)
            gains.append(supposed(case, dimensions, strategy))
        runs.append(following(gains, case.best))
    return [mean(column) for column in zip(*runs, strict=True)]


def supposed(case: Case, dimensions: Sequence[Dimension], strategy: Strategy) -> float:
    """What a strategy gains, by the file or by its parts."""
    if strategy in case.trials:
        return gain_of(case.trials[strategy])
    parts = [part for dimension in dimensions if not (part := dimension.part_of(strategy)).is_default]
    return prod(gain_of(case.trials[part]) if part in case.trials else 1.0 for part in parts)


def following(gains: Sequence[float], best: float) -> list[float]:
    """Regret after each number of ``STEPS`` of trials with these gains."""
    reached = list(accumulate([1.0, *gains], max))
    return [max(0.0, best / reached[min(step, len(gains))] - 1) for step in STEPS]


def by_portfolio(case: Case, cases: Sequence[Case]) -> Chooser:
    """A fixed order, learned without a model: next always what would have helped most, on average over other models.

    What the file does not hold was found not to apply: it costs no trial.
    """
    model = case.name.rpartition("-")[0]
    others = [other for other in cases if other.name.rpartition("-")[0] != model]
    known = list(dict.fromkeys(strategy for other in others for strategy in other.trials))
    reached, order = [1.0] * len(others), list[Strategy]()
    while len(order) < STEPS[-1]:

        def helped(strategy: Strategy, reached: Sequence[float] = reached) -> float:
            gains = (gain_of(other.trials[strategy]) if strategy in other.trials else 0.0 for other in others)
            return sum(log(max(gain, best) / best) for gain, best in zip(gains, reached, strict=True))

        order.append(max((strategy for strategy in known if strategy not in order), key=helped))
        gains = [gain_of(o.trials[order[-1]]) if order[-1] in o.trials else 0.0 for o in others]
        reached = [max(pair) for pair in zip(reached, gains, strict=True)]
    there = [strategy for strategy in order if strategy in case.trials]
    return lambda history: there[len(history)] if len(history) < len(there) else None


def records_of(case: Case) -> Iterator[Record]:
    for trial in case.trials.values():
        yield record_of(case.problem, trial, "bench")


def learned(case: Case, cases: Sequence[Case]) -> CostModel:
    """What the files of other models teach."""
    model = case.name.rpartition("-")[0]
    others = [other for other in cases if other.name.rpartition("-")[0] != model]
    return CostModel().fit([record for other in others for record in records_of(other)])


def curve(folder: str, models: str = "") -> None:
    """Print the table."""
    cases = [read_case(file, Path(models) if models else None) for file in sorted(Path(folder).glob("*.json.gz"))]
    ways: dict[str, Callable[[Case], list[float]]] = {
        "random": by_chance_in_space,
        "random, of the file": by_chance,
        "rules only": lambda case: regrets(case, by_rules(case)),
        "static portfolio": lambda case: regrets(case, by_portfolio(case, cases)),
        "cost model, no prior": lambda case: regrets(case, by_search(case, Flat(CostModel()), False)),
        "search, priors only": lambda case: regrets(case, by_search(case, None, False)),
        "rules + search": lambda case: regrets(case, by_search(case, None, True)),
        "full, unlearned": lambda case: regrets(case, by_search(case, CostModel(), True)),
        "full": lambda case: regrets(case, by_search(case, learned(case, cases), True)),
    }
    print(f"{len(cases)} files; mean (median, worst) regret in % after so many trials")
    print(f"{'':22}" + "".join(f"{step:>18}" for step in STEPS))
    for name, way in ways.items():
        rows = [way(case) for case in cases]
        columns = zip(*rows, strict=True)
        cells = [f"{100 * mean(c):5.1f} ({100 * median(c):4.1f},{100 * max(c):5.1f})" for c in columns]
        print(f"{name:22}" + "".join(f"{cell:>18}" for cell in cells), flush=True)


def decide(model: Path, feeds: Path, case: Case, **more: Any) -> tuple[Strategy, int, float, str]:
    """What is decided from an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        shapes = case.problem.shapes or None
        settings = Settings(
            cache_dir=cache, accuracy=case.problem.policy.accuracy, inputs=str(feeds), input_shapes=shapes, **more
        )
        decision = tune(model, settings, force=True)
        return decision.strategy, len(decision.trials), decision.decided_in_s, decision.stopped


def duel(folder: str, *words: str) -> None:
    """Decide anew and race the choice against the best known."""
    found: dict[str, list[float]] = {"default budget": [], "30 trials": []}
    for model, inputs in zip(map(Path, words[::2]), map(Path, words[1::2]), strict=True):
        for file in sorted(Path(folder).glob(f"{model.parent.name}-*.json.gz")):
            case = read_case(file, None)
            for name, more in (("default budget", {}), ("30 trials", {"budget_s": 120.0, "max_trials": 30})):
                strategy, trials, seconds, stopped = decide(model, inputs, case, **more)
                regret = behind(model, inputs, case, strategy)
                found[name].append(regret)
                print(
                    f"{case.name:28} {name:15} regret {100 * regret:5.1f}%  {trials} trials, {seconds:.1f} s: "
                    f"{strategy.describe()[:90]} | {stopped[:60]}",
                    flush=True,
                )
    for name, values in found.items():
        ordered = sorted(values)
        tail = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
        print(f"{name}: median {100 * median(ordered):.1f}%, 90th percentile {100 * tail:.1f}%, of {len(ordered)}")


def behind(model: Path, inputs: Path, case: Case, chosen: Strategy) -> float:
    """Regret by one long race of both against plain onnxruntime; never below 0."""
    best = case.best_strategy
    if chosen == best:
        return 0.0
    feeds = [dict(np.load(file)) for file in sorted(inputs.glob("*.npz"))]
    with tempfile.TemporaryDirectory() as folder, ChildTrialHost() as host:
        save_feeds(feeds, Path(folder))
        setup = Setup(model, SessionSpec(), Path(folder), shapes=case.problem.shapes, inputs_are_real=True)
        setup = replace(setup, graph=case.problem.graph)
        host.prepare(setup, time.monotonic() + RACE_S)
        pair = [Proposal(strategy, "figures", "") for strategy in (chosen, best) if not strategy.is_default]
        thresholds = replace(Thresholds.of(case.problem.policy.accuracy), min_speedup=0.0)
        trials = host.race(setup, pair, thresholds, time.monotonic() + RACE_S)
        gains = {trial.strategy: gain_of(trial) or 1.0 for trial in trials} | {Strategy(): 1.0}
    return max(0.0, gains[best] / gains[chosen] - 1)


if __name__ == "__main__":
    {"curve": curve, "duel": duel}[sys.argv[1]](*sys.argv[2:])
