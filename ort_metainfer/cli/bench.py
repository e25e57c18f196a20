"""``bench``: what a program gains, tuned against plain onnxruntime, in fresh processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from ort_metainfer.cli.arguments import as_json, model_argument, settings_options
from ort_metainfer.cli.bench_child import PLAIN, TUNED, Job
from ort_metainfer.cli.output import console, only_json, print_json, progress
from ort_metainfer.cli.report import gain_lines
from ort_metainfer.errors import TrialCrashed, TrialError, TrialTimeout
from ort_metainfer.scratch import scratch_folder
from ort_metainfer.settings import Settings
from ort_metainfer.strategy import Strategy

if TYPE_CHECKING:
    from ort_metainfer.decision import Decision

__all__ = ["ORDERS", "bench"]

ORDERS = ((PLAIN[0], TUNED[0], TUNED[1], PLAIN[1]), (TUNED[0], PLAIN[0], PLAIN[1], TUNED[1]))
"""One child process for each: creation order alone can make the same session a third faster."""

CONFIDENCE = 0.95
BUSY_CORES = 0.1
PREPARE_S = 30.0
CHILD_EXTRA_S = 300.0
"""What a child may take beyond its time for rounds: creation of four sessions, and the fewest rounds that count."""


@click.command()
@model_argument
@settings_options
@click.option("--rounds", type=click.IntRange(5, 200), default=20, show_default=True, help="Turns of each session.")
@click.option("--seconds", type=click.FloatRange(1), default=60.0, show_default=True, help="Limit for all the timing.")
@as_json
def bench(model: Path, settings: Settings, rounds: int, seconds: float, as_json: bool) -> None:
    """Time MODEL tuned against plain onnxruntime; it is tuned first where the cache does not know it.

    Two fresh processes hold two plain and two tuned sessions each, made in opposite orders; they take turns in random
    order. The speed-up is the median of the paired ratios with its 95% interval; the band is how far two identical
    sessions lay apart.
    """
    with only_json(as_json), progress(f"bench {model.name}") as step:
        document = measure(model, settings, rounds, seconds, step)
    if as_json:
        print_json(document)
    else:
        console().print("\n".join(bench_lines(document)))


def measure(
    model: Path, settings: Settings, rounds: int, seconds: float, step: Callable[[str], None]
) -> dict[str, Any]:
    """Tune where need be, then time.

    Raises:
        MetainferError: it cannot be tuned, or a child process came to nothing.
    """
    from ort_metainfer.adapt import tune
    from ort_metainfer.learning.recording_bench import keep_bench

    step("tuning")
    decision = tune(model, settings, progress=step, record_as="bench")
    with scratch_folder() as folder:
        _write_feeds(model, settings, decision, folder)
        answers = []
        for number, order in enumerate(ORDERS, 1):
            step(f"timing, process {number} of {len(ORDERS)}")
            fields = {name: value for name, value in settings.as_dict().items() if value is not None}
            fields |= {"inputs": settings.inputs} if settings.inputs is not None else {}
            job = Job(str(model), fields, str(folder), order, rounds, seconds / len(ORDERS), seed=number)
            answers.append(_child(job))
    document = summarise(decision, answers)
    keep_bench(model, settings, decision, document)
    return document


def _write_feeds(model: Path, settings: Settings, decision: Decision, folder: Path) -> None:
    """The caller's inputs, or synthetic ones like those the decision rests on.

    Raises:
        InputsError: there are none that the model takes.
    """
    from ort_metainfer.model.feeds import caller_feeds, save_feeds
    from ort_metainfer.problem import SessionSpec
    from ort_metainfer.trials.client import ChildTrialHost
    from ort_metainfer.trials.task import Setup

    host, deadline = ChildTrialHost(), time.monotonic() + PREPARE_S
    setup = Setup(model, SessionSpec(), folder, graph=decision.graph, shapes=settings.input_shapes or {})
    try:
        graph = decision.graph or host.describe(setup, deadline)
        if settings.inputs is not None:
            save_feeds(caller_feeds(settings.inputs, graph), folder)
        host.prepare(setup, deadline)
    finally:
        host.close()


def _child(job: Job) -> dict[str, Any]:
    from ort_metainfer.trials.child import interpreter

    limit_s = job.limit_s + CHILD_EXTRA_S
    command = [interpreter(), "-P", "-m", "ort_metainfer.cli.bench_child"]
    paths = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # the same modules in reach as here
    environment = {**os.environ, "PYTHONPATH": paths}
    words = json.dumps(asdict(job))
    try:
        done = subprocess.run(command, input=words, capture_output=True, text=True, timeout=limit_s, env=environment)
    except subprocess.TimeoutExpired as error:
        raise TrialTimeout(f"timing {job.model} took more than {limit_s:.0f} s; give fewer --rounds") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise TrialCrashed(f"the process that times {job.model} ended with status {done.returncode}: {last}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def summarise(decision: Decision, answers: list[dict[str, Any]]) -> dict[str, Any]:
    """One document out of what the children said; a ratio pairs turns of one round of one process only.

    Raises:
        TrialError: the tuned sessions did not run what was decided.
    """
    from ort_metainfer.trials.timing import Turn, compare

    for answer in answers:
        if Strategy.from_dict(answer["strategy"]) != decision.strategy:
            raise TrialError(f"the timed sessions ran {answer['strategy']}, decided was {decision.strategy.describe()}")
    rounds = [
        {name: Turn.from_dict(turn) for name, turn in turns.items()} for answer in answers for turns in answer["rounds"]
    ]
    timing = compare(rounds, TUNED, PLAIN, CONFIDENCE)
    worst = max(answers, key=lambda answer: answer["error"])
    return {
        "strategy": decision.strategy.as_dict(),
        "timing": None if timing is None else asdict(timing),
        **{name: worst[name] for name in ("error", "errors", "mismatch", "top1")},
        "creation_ms": {
            kind: [answer["creation_ms"][name] for answer in answers for name in names]
            for kind, names in (("plain", PLAIN), ("tuned", TUNED))
        },
        "processes": [{name: answer[name] for name in ("before", "after", "providers")} for answer in answers],
        "decision": decision.as_dict(),
    }


def bench_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """The result in words."""
    timing = document["timing"]
    yield f"strategy      {Strategy.from_dict(document['strategy']).describe()}"
    yield from gain_lines(timing)
    for kind, prefix in (("plain", "baseline_"), ("tuned", "")):
        p50, p90 = timing[f"{prefix}p50_ms"], timing[f"{prefix}p90_ms"]
        created = document["creation_ms"][kind]
        spread = f"{median(created):.0f} ms ({min(created):.0f} to {max(created):.0f})"
        yield f"{kind:<14}P50 {p50:.3f} ms, P90 {p90:.3f} ms a run; created in {spread}"
    yield f"output error  {document['error']:.1e} relative L2" + (
        f"; {document['mismatch']}" if document["mismatch"] else ""
    )
    others = [process[when]["others_cpu"] or 0.0 for process in document["processes"] for when in ("before", "after")]
    if max(others) > BUSY_CORES:
        yield f"note          other processes used up to {max(others):.2f} cores: measure again when it is quiet"
