"""How often a truly faster candidate is adopted, and after how many pairs: faster_by.py [TIMES] [--load SHARE].

The gain is in the graph: a chain of equal matrix products, some of which stand there twice, with an element-wise
maximum of the two. The baseline runs every node, since its graph optimiser is off. The candidate is level basic, which
merges what stands there twice and changes nothing else (a maximum of a value with itself stays): for ``--gain 1.1`` a
product in ten is merged. Both counts are printed as onnxruntime's own optimiser left them.

Each time is a whole race and duel within the default budget of 15 s, less what describing and preparing takes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from load import load
from onnx import TensorProto, helper, numpy_helper

from ort_metainfer.decision import Proposal, Timing, Trial
from ort_metainfer.problem import SessionSpec
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.client import ChildTrialHost
from ort_metainfer.trials.task import Setup, Thresholds
from ort_metainfer.trials.timing import quantile

BUDGET_S = 15.0
RACE_SHARE, DUEL_SHARE = 0.5, 0.9  # of what is left, as a deliberation gives them
CANDIDATE = Strategy(session_options={"graph_optimization_level": "basic"})
BASELINE = SessionSpec({"graph_optimization_level": "ORT_DISABLE_ALL"})
ROWS, WIDTH, PRODUCTS = 64, 384, 20


def write_model(path: Path, twice: int) -> None:
    """``PRODUCTS`` products in a chain, the first ``twice`` of them computed twice."""
    rng = np.random.default_rng(0)
    weights, nodes, value = [], [], "x"
    for number in range(PRODUCTS):
        weight = (rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{number}"))
        copies = [f"p{number}_{copy}" for copy in range(2 if number < twice else 1)]
        nodes += [helper.make_node("MatMul", [value, f"w{number}"], [copy]) for copy in copies]
        value = copies[0]
        if len(copies) > 1:
            value = f"m{number}"
            nodes.append(helper.make_node("Max", copies, [value]))
    shape = [ROWS, WIDTH]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", value)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)


def products_left(path: Path, level: str) -> Counter[str]:
    """Operators of the graph that a session of that level runs."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(path.with_suffix(f".{level}.onnx"))
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node)


def one_trial(model: Path, objective: str) -> Trial:
    """The race and the duel of one decision."""
    ends = time.monotonic() + BUDGET_S

    def until(share: float) -> float:
        return time.monotonic() + share * (ends - time.monotonic())

    with tempfile.TemporaryDirectory() as folder, ChildTrialHost() as host:
        setup = Setup(model, BASELINE, Path(folder), objective=objective, callers=2)
        thresholds = Thresholds().aiming(objective)
        host.prepare(setup, until(0.5))
        proposal = Proposal(CANDIDATE, "figures", "faster by construction")
        (trial,) = host.race(setup, [proposal], thresholds, until(RACE_SHARE))
        return host.duel(setup, trial, thresholds, until(DUEL_SHARE))


def rounds_of(timing: Timing | None) -> int:
    """Pairs that a contest took."""
    return 0 if timing is None else timing.rounds


def main() -> None:
    """Count adoptions and pairs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("times", nargs="?", type=int, default=20)
    parser.add_argument("--load", type=float, default=0.5)
    parser.add_argument("--busy", type=int, default=1)
    parser.add_argument("--gain", type=float, default=1.1)
    parser.add_argument("--objective", default="latency")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "chain.onnx"
        write_model(model, round((given.gain - 1) * PRODUCTS))
        before, after = products_left(model, "ORT_DISABLE_ALL"), products_left(model, "ORT_ENABLE_BASIC")
        print(f"baseline runs {dict(before)}, candidate {dict(after)}")
        trials = []
        with load(given.load, given.busy):
            for number in range(given.times):
                trial = one_trial(model, given.objective)
                trials.append(trial)
                race, duel = rounds_of(trial.timing), rounds_of(trial.duel)
                how = "adopted" if trial.passed else "NOT"
                print(f"{number + 1}: {how}: race {race}, duel {duel} pairs: {trial.verdict}", flush=True)
    pairs = sorted(rounds_of(trial.timing) + rounds_of(trial.duel) for trial in trials)
    print(
        f"adopted {sum(trial.passed for trial in trials)} of {len(trials)}, {given.gain:g} times as fast, under a load"
    )
    middle, most = quantile(pairs, 0.5), quantile(pairs, 0.9)
    print(f"of {given.busy} x {given.load:g}; pairs of race and duel together: P50 {middle:g}, P90 {most:g}")


if __name__ == "__main__":
    main()
