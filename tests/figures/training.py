"""How long it takes to train on many records and to ask the result: training.py [RECORDS].

The records are made (an analytic law with noise, marked as simulated): what is timed is the learning, not what it says.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import product

import numpy as np

from ort_metainfer.learning.examples import row_features
from ort_metainfer.learning.features import GRAPH
from ort_metainfer.learning.record import Record
from ort_metainfer.learning.train import contest, train
from ort_metainfer.providers.chips import all_chips
from ort_metainfer.strategy import Strategy

LEVELS = ("disable", "basic", "extended", "all")
STRATEGIES = [
    Strategy(session_options={"intra_op_num_threads": threads, "graph_optimization_level": level})
    for threads, level in product((1, 2, 4, 8), LEVELS)
]
CANDIDATES = 200


def records(count: int) -> Iterator[Record]:
    """Every strategy for models on the described chips, until there are so many."""
    random = np.random.default_rng(0)
    names = sorted(GRAPH)
    chips = list(all_chips().values())[:20]
    for model in range(count):
        graph = dict(zip(names, random.uniform(0, 20, len(names)).tolist(), strict=True))
        for number, chip in enumerate(chips):
            profile = {"cores": 1.0 + number % 8, "memory_bytes": 2.0**30 * (1 + number), "dispatch_ms": 0.01 * number}
            for strategy in STRATEGIES:
                threads = float(strategy.session_options["intra_op_num_threads"])
                gain = 0.02 * graph["ln_macs"] - abs(threads - profile["cores"]) * 0.1 + random.normal(0, 0.05)
                yield Record(
                    f"sha256:{model}", f"s{model}", graph, chip.name, chip.kind, "CPUExecutionProvider", strategy,
                    profile=profile, gates={"accurate": True}, log_ratio=float(gain), simulated=True,
                    measured_at="2026-01-01T00:00:00+00:00",
                )  # fmt: skip


def main(count: int) -> None:
    """Print the seconds."""
    made = [record for record, _ in zip(records(count), range(count), strict=False)]
    started = time.perf_counter()
    model = train(made, simulated=True)
    trained = time.perf_counter()
    result = contest(made, model, simulated=True)
    print(f"{count} records: trained in {trained - started:.1f} s, contest {time.perf_counter() - trained:.1f} s")
    print(result.reason)
    rows = [
        row_features(each.graph, each.profile, {}, each.strategy, each.kind, each.provider)
        for each in made[:CANDIDATES]
    ]
    took = []
    for _ in range(50):
        started = time.perf_counter()
        model.expected(rows)
        took.append(1000 * (time.perf_counter() - started))
    size_mb = len(model.forest) / 1e6 if isinstance(model.forest, bytes) else 0.0
    print(
        f"{CANDIDATES} candidates: P50 {np.median(took):.1f} ms, P90 {np.quantile(took, 0.9):.1f} ms; {size_mb:.1f} MB"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
