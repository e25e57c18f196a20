"""The child process of ``bench``: two plain sessions and two tuned ones, made in one order, timed in turns.

``python -m ort_metainfer.cli.bench_child`` takes a :class:`Job` as JSON on stdin and answers with JSON on stdout.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ort_metainfer.settings import Settings
from ort_metainfer.trials.timing import MIN_ROUNDS, Turn, interleave
from ort_metainfer.trials.turn import SystemClock, TurnPlan, take_turn

__all__ = ["PLAIN", "TUNED", "Job", "main"]

PLAIN = ("plain 1", "plain 2")
TUNED = ("tuned 1", "tuned 2")


@dataclass(frozen=True)
class Job:
    """What one child does.

    Attributes:
        model: the model's path.
        settings: fields of :class:`Settings`, by which the tuned sessions find their strategy in the cache.
        feeds: folder of ``0.npz``, ``1.npz``, ...; the first is timed, all are compared.
        order: names of the sessions, in the order in which they are made.
        rounds: turns that each session takes, at most.
        limit_s: no round begins later than this, once the fewest rounds that tell anything are done.
        seed: of the order of turns.
    """

    model: str
    settings: Mapping[str, Any]
    feeds: str
    order: tuple[str, ...]
    rounds: int
    limit_s: float
    seed: int


def main() -> None:
    """Do the job on stdin; what libraries print goes to stderr."""
    job = Job(**json.load(sys.stdin))
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    json.dump(carry_out(job), answer)
    answer.close()


def carry_out(job: Job) -> dict[str, Any]:
    """Make the sessions, compare their outputs, time them."""
    from ort_metainfer.hardware.state import observe

    feeds = _feeds(Path(job.feeds))
    sessions, creation_ms = _create(job)
    before = observe(0.2)
    verdict = _compare(sessions[PLAIN[0]], sessions[TUNED[0]], feeds)
    rounds = _rounds(job, {name: _runner(session, feeds[0]) for name, session in sessions.items()})
    tuned = sessions[TUNED[0]].adaptation
    return {
        "rounds": [{name: turn.as_dict() for name, turn in turns.items()} for turns in rounds],
        "creation_ms": creation_ms,
        "strategy": tuned.strategy.as_dict() if tuned else {},
        "cache": tuned.cache if tuned else "unused",
        "providers": {name: session.get_providers() for name, session in sessions.items()},
        "before": asdict(before),
        "after": asdict(observe(0.2)),
        **verdict,
    }


def _create(job: Job) -> tuple[dict[str, Any], dict[str, float]]:
    """The sessions by name, as a program would make them, and how long each took."""
    import onnxruntime

    from ort_metainfer.session import InferenceSession

    settings = Settings(**{**job.settings, "mode": "cached"})
    sessions: dict[str, Any] = {}
    creation_ms: dict[str, float] = {}
    for name in job.order:
        started = time.perf_counter()
        if name in TUNED:
            sessions[name] = InferenceSession(job.model, metainfer=settings)
        else:
            sessions[name] = onnxruntime.InferenceSession(job.model)
        creation_ms[name] = (time.perf_counter() - started) * 1e3
    return sessions, creation_ms


def _feeds(folder: Path) -> list[dict[str, Any]]:
    from ort_metainfer.model.feeds import load_feeds

    return load_feeds(folder)


def _runner(session: Any, feed: Mapping[str, Any]) -> Any:
    return lambda: session.run(None, feed)


def _compare(plain: Any, tuned: Any, feeds: list[dict[str, Any]]) -> dict[str, Any]:
    from ort_metainfer.trials.accuracy import compare_outputs

    names = [output.name for output in plain.get_outputs()]
    reference, candidate = ([session.run(None, feed) for feed in feeds] for session in (plain, tuned))
    found = compare_outputs(names, reference, candidate)
    return {"error": found.error, "errors": dict(found.errors), "mismatch": found.mismatch, "top1": found.top1}


def _rounds(job: Job, runs: Mapping[str, Any]) -> list[dict[str, Turn]]:
    """Every session takes one turn a round, in an order drawn anew; under ``pipeline`` its copy runs in between."""
    clock, generator = SystemClock(), random.Random(job.seed)
    started = clock.now_s()
    runs[PLAIN[0]]()
    plan = _plan(job, (clock.now_s() - started) * 1e3)
    twins = {**dict(zip(PLAIN, reversed(PLAIN), strict=True)), **dict(zip(TUNED, reversed(TUNED), strict=True))}
    is_pipeline = job.settings.get("objective") == "pipeline"
    rounds: list[dict[str, Turn]] = []
    while len(rounds) < job.rounds and (len(rounds) < MIN_ROUNDS or clock.now_s() - started < job.limit_s):
        names = interleave(runs, generator)
        rounds.append({n: take_turn(runs[n], plan, clock, runs[twins[n]] if is_pipeline else None) for n in names})
    return rounds


def _plan(job: Job, latency_ms: float) -> TurnPlan:
    """How sessions take turns, by the objective in force."""
    from ort_metainfer.hardware.cgroups import quota_cores
    from ort_metainfer.keys import policy_of
    from ort_metainfer.settings import resolve
    from ort_metainfer.spec import SessionSpec

    policy = policy_of(resolve(Settings(**job.settings))[0], SessionSpec())
    return TurnPlan.of(latency_ms, policy.objective, policy.callers, quota_cores() is not None)


if __name__ == "__main__":
    main()
