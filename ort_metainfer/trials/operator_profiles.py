"""The errand ``profile_operators``: the caller's own session run a few times under onnxruntime's profiler, in a child.

The profiler writes a list of events as JSON (onnxruntime, core/common/profiler.cc): one named ``model_run`` for each
run, and one named ``NODE_kernel_time`` for each time that a node ran, with its operator and provider; ``ts`` and
``dur`` in microseconds. What If, Loop and Scan take is that of the nodes inside, which are listed on their own.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from ort_metainfer.model.work import CONTROL_FLOW, OperatorTime
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.bench import Bench, Speaker
from ort_metainfer.trials.channel import setup_from

__all__ = ["operator_times", "serve"]

WARM_UPS = 2
MOST_RUNS = 10
"""Timed runs; medians of a few suffice to tell where the time goes."""

KERNEL = "_kernel_time"
RUN = "model_run"


def serve(request: Mapping[str, Any], channel: Speaker, until: float) -> dict[str, Any]:
    """Profile the caller's session on the first feed.

    Returns:
        ``operators``: a table for each node; empty where there was no time for one run beside those to warm up.

    Raises:
        Refused: the session cannot be created or run.
    """
    from ort_metainfer.model.inputs import load_feeds

    setup = setup_from(request["setup"])
    feed = load_feeds(setup.feeds)[0]
    with TemporaryDirectory(dir=setup.feeds, prefix="profile-") as folder:  # goes with that where this child is killed
        properties = {"enable_profiling": True, "profile_file_prefix": str(Path(folder) / "profile")}
        spec = setup.baseline._replace(properties={**setup.baseline.properties, **properties})
        bench = Bench(replace(setup, baseline=spec), [feed], channel, until)
        opened = bench.open("profile", Strategy(), keep=False)
        bench.announce("checking", "profile")
        for _ in range(WARM_UPS + MOST_RUNS):
            opened.run(feed)
            if time.monotonic() > until:
                break
        events = json.loads(Path(opened.session.end_profiling()).read_text(encoding="utf-8"))
    return {"operators": [asdict(operator) for operator in operator_times(events)]}


def operator_times(events: Iterable[Mapping[str, Any]]) -> tuple[OperatorTime, ...]:
    """Each node's median over the runs, those to warm up left out; none where there are no further runs."""
    listed = list(events)
    runs = sorted((event["ts"], event["ts"] + event["dur"]) for event in listed if event.get("name") == RUN)
    timed = runs[WARM_UPS:]
    taken: dict[tuple[str, str, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for event in listed:
        key, run = _node_of(event), _run_of(event, timed)
        if key is not None and run is not None:
            taken[key][run] += event["dur"] / 1000
    return tuple(OperatorTime(*key, p50_ms=median(per_run.values())) for key, per_run in taken.items())


def _node_of(event: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Name, operator and provider of a node's event; None for any other."""
    name, about = str(event.get("name", "")), event.get("args", {})
    operator = str(about.get("op_name", ""))
    if event.get("cat") != "Node" or not name.endswith(KERNEL) or operator in CONTROL_FLOW:
        return None
    return name.removesuffix(KERNEL), operator, str(about.get("provider", ""))


def _run_of(event: Mapping[str, Any], runs: Sequence[tuple[float, float]]) -> int | None:
    """Index of the run that an event lies in."""
    return next((index for index, (start, end) in enumerate(runs) if start <= event.get("ts", -1) <= end), None)
