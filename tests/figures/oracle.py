"""The best strategy there is, by trying them all: oracle.py OUTPUT_FOLDER [--strict|--fast] MODEL INPUTS [...].

``INPUTS`` is a folder of .npz files. On a quiet machine; takes minutes a model. Three stages, each against plain
onnxruntime in the same process:

1. every choice of every dimension of the declared space alone;
2. every combination over providers, rewrites, shapes, graph levels and threads of those choices that did not fail a
   gate and did not lose alone (median below 0.97, whole interval below 1), the 100 that the product of their gains
   promises most of first;
3. the small session options on top of the four best, in pairs on top of the best; then the six best of all race for
   long.

What was tried, with every figure, is written to ``OUTPUT_FOLDER/MODEL-ACCURACY.json.gz``: the machine is named in it.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, islice, product
from pathlib import Path
from typing import Any

import numpy as np

from ort_metainfer._version import VERSION
from ort_metainfer.adapt import policy_of
from ort_metainfer.deciders.rules import RuleLibrary
from ort_metainfer.deciders.search import Search
from ort_metainfer.deciders.search_candidates import has_failed
from ort_metainfer.deciders.search_space import Choice, Dimension
from ort_metainfer.decision import Decision, Proposal, Trial
from ort_metainfer.hardware.state import observe
from ort_metainfer.model.fingerprint import fingerprint
from ort_metainfer.model.inputs import save_feeds
from ort_metainfer.problem import Problem, SessionSpec
from ort_metainfer.settings import Settings, resolve
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.client import ChildTrialHost
from ort_metainfer.trials.offered import devices_to_try
from ort_metainfer.trials.task import Setup, Thresholds

MAIN = ("provider", "rewrites", "static shapes", "graph level", "threads")
TOGETHER, BASE_S, EACH_S, FINAL_S = 6, 2.0, 0.3, 40.0
ROUNDS, TURN_S, RUNS = 6, 0.11, 2
"""For combinations: rounds, and what a turn takes beside that many runs."""

LOSES, BEST, FINALISTS, MOST = 0.97, 4, 6, 100
LIMIT_S = 60.0


def until(seconds: float) -> float:
    return time.monotonic() + seconds


class Oracle:
    """Tries everything for one problem."""

    def __init__(self, host: ChildTrialHost, setup: Setup, problem: Problem, thresholds: Thresholds) -> None:
        self.host, self.setup, self.problem, self.thresholds = host, setup, problem, thresholds
        self.rules = RuleLibrary()
        self.dimensions = Search(self.rules.refuse).space(problem)
        self.trials: dict[Strategy, Trial] = {}

    def run(self) -> list[Trial]:
        self.race([(d.name, c.part) for d in self.dimensions for c in d.choices])
        wanted = [s for answer in (self.rules.propose(self.problem, ()),) for s in answer if isinstance(s, Proposal)]
        self.race([(proposal.by, proposal.strategy) for proposal in wanted])
        self.race([("combination", s) for s in islice(sorted(self.combined(), key=self.promise), MOST)])
        for place, parent in enumerate(self.best(BEST)):
            self.race([("small options", s) for s in self.small(parent, in_pairs=place == 0)])
        finalists = self.best(FINALISTS)
        proposals = [Proposal(strategy, "final", "") for strategy in finalists]
        for trial in self.host.race(self.setup, proposals, self.thresholds, until(FINAL_S)) if proposals else ():
            if trial.timing is not None:
                self.trials[trial.strategy] = trial
        return list(self.trials.values())

    def race(self, named: Sequence[tuple[str, Strategy]]) -> None:
        """Those not tried yet, six at a time."""
        new = {s: by for by, s in named if s not in self.trials and not s.is_default}
        allowed = [s for s in new if self.rules.refuse(self.problem, s) is None]
        for start in range(0, len(allowed), TOGETHER):
            batch = [Proposal(strategy, new[strategy], "") for strategy in allowed[start : start + TOGETHER]]
            limit = until(BASE_S + EACH_S * len(batch) + ROUNDS * (len(batch) + 2) * self.turn_s)
            for trial in self.host.race(self.setup, batch, self.thresholds, limit):
                self.trials[trial.strategy] = trial
            print(f"  {len(self.trials)} tried, best {max(self.speedups(), default=1.0):.3f}", flush=True)

    @property
    def turn_s(self) -> float:
        timed = [t.timing.baseline_p50_ms for t in self.trials.values() if t.timing is not None]
        return TURN_S + (RUNS * min(timed) / 1000 if timed else 0.3)

    def promise(self, strategy: Strategy) -> float:
        """Less for more: minus the product of what its parts gained alone, where that is known."""
        gain = 1.0
        for dimension in self.dimensions:
            trial = self.trials.get(dimension.part_of(strategy))
            gain *= trial.timing.speedup if trial is not None and trial.timing is not None else 1.0
        return -gain

    def speedups(self) -> Iterator[float]:
        return (t.timing.speedup for t in self.trials.values() if t.timing is not None and not has_failed(t))

    def best(self, count: int) -> list[Strategy]:
        timed = [t for t in self.trials.values() if t.timing is not None and not has_failed(t)]
        timed.sort(key=lambda t: -t.timing.speedup if t.timing else 0.0)
        return [t.strategy for t in timed[:count]]

    def is_able(self, dimension: Dimension, choice: Choice) -> bool:
        """Whether it neither failed nor lost alone; what means nothing alone may still help another."""
        trial = self.trials.get(choice.part)
        if trial is None:
            return True
        timing = trial.timing
        return not has_failed(trial) and (timing is None or timing.speedup >= LOSES or timing.speedup_high >= 1)

    def combined(self) -> Iterator[Strategy]:
        mains = [d for d in self.dimensions if d.name in MAIN]
        options = [[(d, None), *((d, c) for c in d.choices if self.is_able(d, c))] for d in mains]
        for chosen in product(*options):
            strategy = Strategy()
            for dimension, choice in chosen:
                strategy = dimension.put(strategy, choice.part) if choice is not None else strategy
            if all(choice is None or choice.fits(self.problem, strategy) for _, choice in chosen):
                yield strategy

    def small(self, parent: Strategy, in_pairs: bool) -> Iterator[Strategy]:
        smalls = [(d, c) for d in self.dimensions if d.name not in MAIN for c in d.choices if self.is_able(d, c)]
        for dimension, choice in smalls:
            if choice.fits(self.problem, made := dimension.put(parent, choice.part)):
                yield made
        for (one, first), (other, second) in combinations(smalls if in_pairs else (), 2):
            made = other.put(one.put(parent, first.part), second.part)
            if one.name != other.name and first.fits(self.problem, made) and second.fits(self.problem, made):
                yield made


def search_all(model: Path, inputs: Path, accuracy: str) -> dict[str, Any]:
    """Everything tried for one model, as plain values."""
    feeds = [dict(np.load(file)) for file in sorted(inputs.glob("*.npz"))]
    shapes = {name: tuple(map(int, value.shape)) for name, value in feeds[0].items()}
    same = all({name: value.shape for name, value in feed.items()} == shapes for feed in feeds)
    settings, _ = resolve(Settings(accuracy=accuracy, input_shapes=shapes if same else None))
    with tempfile.TemporaryDirectory() as folder, ChildTrialHost() as host:
        save_feeds(feeds, Path(folder))
        setup = Setup(model, SessionSpec(), Path(folder), shapes=shapes if same else {}, inputs_are_real=True)
        setup = replace(setup, label=model.parent.name, graph=host.describe(setup, until(LIMIT_S)))
        host.prepare(setup, until(LIMIT_S))
        policy = policy_of(settings, setup.baseline)
        devices, _ = devices_to_try(host, setup, policy.providers, lambda: until(LIMIT_S))
        assert setup.graph is not None
        problem = Problem(
            fingerprint(model, None),
            setup.graph,
            devices,
            policy,
            setup.baseline,
            observe(1.0),
            dict(setup.shapes),
            True,
        )
        began = time.monotonic()
        trials = Oracle(host, setup, problem, Thresholds.of(accuracy)).run()
    decision = Decision(Strategy(), "default", "oracle", trials=tuple(trials), state=observe(0.5)).as_dict()
    return {
        "model": setup.label,
        "accuracy": accuracy,
        "seconds": round(time.monotonic() - began, 1),
        "versions": {"ort_metainfer": VERSION, "onnxruntime": __import__("onnxruntime").__version__},
        "machine": str(problem.cpu),
        "cores": problem.cpu.cores,
        "features": list(problem.cpu.features),
        "graph": setup.graph.as_dict(),
        "shapes": {name: list(shape) for name, shape in setup.shapes.items()},
        "state": [observe(0.5).others_cpu, decision["state"]["others_cpu"]],
        "trials": decision["trials"],
    }


def main(output: str, *words: str) -> None:
    """Try, print the best, write the file."""
    policies = [word[2:] for word in words if word.startswith("--")] or ["strict", "fast"]
    pairs = [word for word in words if not word.startswith("--")]
    for model, inputs in zip(pairs[::2], pairs[1::2], strict=True):
        for accuracy in policies:
            found = search_all(Path(model), Path(inputs), accuracy)
            name = f"{found['model']}-{accuracy}.json.gz"
            Path(output).mkdir(parents=True, exist_ok=True)
            text = json.dumps(found, separators=(",", ":"), default=str).replace(model, str(found["model"]))
            (Path(output) / name).write_bytes(gzip.compress(text.encode(), mtime=0))
            timed = [t for t in found["trials"] if t["timing"]]
            best = max(timed, key=lambda t: t["timing"]["speedup"], default=None)
            words_ = "nothing" if best is None else f"{best['timing']['speedup']:.3f}x {best['strategy']}"
            print(f"{name}: {len(found['trials'])} tried in {found['seconds']} s, best {words_}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
