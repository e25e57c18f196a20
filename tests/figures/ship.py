"""The records and the model that come with the package: ship.py [--into FOLDER] [--most N] FILE [...].

``FILE`` is a file of records (``gather.py``, ``learn export``) or one of ``oracle.py`` (``MODEL-ACCURACY.json.gz``); of
the latter the structure of the graph must be known to it. Written are, in the package itself or below ``--into``:

- ``learning/shipped/records.jsonl.gz``: of each case (graph, device, shapes, policy) at most N (24) trials, the best
  and an even choice of the others, for find-db and for retraining;
- ``learning/pretrained/``: the model learned from all of them, with its card;
- ``learning/shipped/README.md``: what they are, in figures.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ort_metainfer.decision import Gate, Timing, Trial
from ort_metainfer.hardware.devices import cpu_device
from ort_metainfer.learning import in_use
from ort_metainfer.learning.examples import examples_of
from ort_metainfer.learning.features import kind_named
from ort_metainfer.learning.learned import LearnedModel, save
from ort_metainfer.learning.record import Record
from ort_metainfer.learning.record_files import read_records, write_records
from ort_metainfer.learning.records import record_of
from ort_metainfer.learning.retraining import lessons
from ort_metainfer.learning.train import held_out_regret, train
from ort_metainfer.problem import Device, Graph, HardwareState, Model, Policy, Problem, SessionSpec
from ort_metainfer.strategy import Strategy

CPU = "CPUExecutionProvider"
UNKNOWN = HardwareState(when=0.0, window_s=0.0)
SOURCE = "own measurements, tests/figures/gather.py and oracle.py"


def records_in(file: Path) -> list[Record]:
    """The records of one file, whichever kind it is; simulated ones are left out."""
    plain = None
    if file.name.endswith(".json.gz"):
        plain = json.loads(gzip.decompress(file.read_bytes()))
    found = read_records(file).records if plain is None else list(of_oracle(plain))
    return [record for record in found if not record.simulated]


def of_oracle(plain: dict[str, Any]) -> Iterator[Record]:
    """What ``oracle.py`` wrote, as records of its machine."""
    try:
        graph = Graph.from_dict(plain["graph"])
    except KeyError as error:
        raise SystemExit(f"{plain['model']}: {error} of its graph is not in the file; run oracle.py again") from error
    if not graph.structure:
        raise SystemExit(f"{plain['model']}: its graph's structure is not in the file; run oracle.py again")
    machine = plain["machine"]
    cpu = replace(cpu_device(), cores=plain.get("cores"), features=tuple(plain.get("features", ())))
    trials = [_trial(each) for each in plain["trials"]]
    shapes = {name: tuple(shape) for name, shape in plain["shapes"].items()}
    providers = (CPU, *dict.fromkeys(t.strategy.provider for t in trials if t.strategy.provider not in (None, CPU)))
    others = [_device(trial.strategy) for trial in trials if trial.strategy.provider not in (None, CPU)]
    problem = Problem(
        Model(f"structure:{graph.structure}", graph.weight_bytes, path=plain["model"]),
        graph,
        (cpu, *dict.fromkeys(others)),
        Policy(plain["accuracy"], "latency", tuple(filter(None, providers))),
        SessionSpec(),
        UNKNOWN,
        shapes,
        True,
    )
    yield from (record_of(problem, trial, "bench", device=machine, versions=plain["versions"]) for trial in trials)


def _device(strategy: Strategy) -> Device:
    return Device(str(strategy.provider), kind_named(strategy) or "cpu", "", provider_device=strategy.device)


def _trial(plain: dict[str, Any]) -> Trial:
    timings = {name: None if plain.get(name) is None else Timing(**plain[name]) for name in ("timing", "duel")}
    gates = tuple(Gate(gate["name"], gate["passed"], gate["detail"]) for gate in plain["gates"])
    states = {name: _state(plain.get(name)) for name in ("before", "after")}
    figures = {name: plain.get(name) for name in ("creation_ms", "peak_memory_mb", "error")}
    strategy = Strategy.from_dict(plain["strategy"])
    return Trial(strategy, plain["by"], gates, plain["failure"], **timings, **states, **figures)


def _state(plain: dict[str, Any] | None) -> HardwareState | None:
    return None if plain is None else HardwareState.from_dict(plain)


def thinned(records: Iterable[Record], most: int) -> list[Record]:
    """Of each case the better half of ``most`` from the top, and as many spread evenly over what is left."""
    cases: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        case = (record.structure, record.device, record.shapes, record.accuracy, record.objective)
        cases.setdefault(case, []).append(record)
    kept: list[Record] = []
    for rows in cases.values():
        rows.sort(
            key=lambda row: (-(row.log_ratio if row.is_verdict and row.log_ratio is not None else -9), row.identity)
        )
        top, rest = rows[: most // 2], rows[most // 2 :]
        places = np.unique(np.linspace(0, len(rest) - 1, min(len(rest), most - len(top))).round().astype(int))
        kept += [*top, *(rest[place] for place in places)]
    return kept


def with_scores(model: LearnedModel, records: Sequence[Record]) -> LearnedModel:
    """The model, its card told how well its recipe chose on hardware held out."""
    regret = held_out_regret(examples_of(records))
    scores = {"cases_held_out": float(len(regret))}
    if len(regret):
        scores |= {"mean_regret": float(regret.mean()), "within_5_percent": float((regret <= 0.05).mean())}
        scores["within_15_percent"] = float((regret <= 0.15).mean())
    return LearnedModel(replace(model.card, scores=scores), model.support, model.forest)


def readme(records: Sequence[Record], model: LearnedModel) -> str:
    """What is shipped, in figures."""
    card = model.card
    scores = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in card.scores.items())
    devices = "<br>".join(f"{device} ({count})" for device, count in card.hardware.items())
    ranges = zip(model.support.names, model.support.low, model.support.high, strict=True)
    told = [f"| `{name}` | {low:.4g} | {high:.4g} |" for name, low, high in ranges if name.startswith("graph/ln_")]
    return "\n".join(
        [
            "# Shipped records and model",
            "",
            "`records.jsonl.gz` holds records of trials that come with the package, one JSON object a line, as",
            "`ort-metainfer learn export FILE.jsonl.gz` writes them. Find-db proposes first what they say of a graph",
            "of the same structure; a user's own records, and those imported, speak before them. `../pretrained`",
            "holds the model learned from them: a forest as ONNX, and its card.",
            "",
            "| | |",
            "|---|---|",
            f"| records | {len(records)}, of {len({each.structure for each in records})} graphs |",
            f"| learned from | {card.records} of them that say how fast a strategy is, or that it failed |",
            f"| devices | {devices} |",
            f"| providers | {', '.join(sorted({each.provider for each in records}))} |",
            f"| first choice on hardware held out | {scores} |",
            f"| sources | {'; '.join(card.sources)} |",
            f"| trained | {card.trained_at} |",
            "| holds of a model | its hash, the hash of its structure, named features; no name, no weight, no path |",
            "",
            "Sizes seen in training; what lies further beyond them than a factor of two is not ranked:",
            "",
            "| feature | least | most |",
            "|---|---|---|",
            *told,
            "",
        ]
    )


def main() -> None:
    """Read, thin, train, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--into", type=Path, default=Path(in_use.__file__).parent.parent)
    parser.add_argument("--most", type=int, default=24)
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args()
    found = {record.identity: record for file in options.files for record in records_in(file)}
    kept = thinned(found.values(), options.most)
    everything = lessons(found.values())
    model = with_scores(train(everything, sources=(SOURCE,)), everything)
    shipped = options.into / "learning" / "shipped"
    shipped.mkdir(parents=True, exist_ok=True)
    write_records(shipped / "records.jsonl.gz", kept)
    save(model, options.into / "learning" / in_use.shipped_folder().name)
    (shipped / "README.md").write_text(readme(kept, model), encoding="utf-8")
    size_kb = (shipped / "records.jsonl.gz").stat().st_size / 1024
    print(f"{len(kept)} of {len(found)} records shipped ({size_kb:.0f} KB); learned from {model.card.records}")
    print(f"scores on hardware held out: {dict(model.card.scores)}")


if __name__ == "__main__":
    main()
