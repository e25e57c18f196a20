"""The child: ``python -m ort_metainfer.trials.worker``. Takes requests on standard input, answers with events.

Whatever happens here happens to this process only. It ends by itself when its parent does: at the end of standard
input, and on Linux by a signal from the kernel.
"""

from __future__ import annotations

import importlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ort_metainfer.errors import MetainferError
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials import faults
from ort_metainfer.trials.channel import Channel, decode, setup_from, thresholds_from

__all__ = ["main"]

MARGIN_S = 0.15
"""A child plans to end this much before its deadline, so that its last words arrive."""

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask Linux to kill this process when the parent's thread that started it ends; elsewhere nothing."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    try:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):  # a C library without prctl: the end of standard input remains
        return


def read_requests() -> queue.Queue[dict[str, Any]]:
    """Requests as they come; the end of standard input ends the process, whatever it is doing."""
    requests: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            request = decode(line)
            if request is not None:
                requests.put(request)
        os._exit(0)

    threading.Thread(target=read, name="requests", daemon=True).start()
    return requests


def describe(request: dict[str, Any], channel: Channel, until: float) -> dict[str, Any]:
    """See :meth:`ort_metainfer.trials.task.TrialHost.describe`."""
    from ort_metainfer.trials.rehearsal import read_graph

    channel.say("describing", session="model")
    faults.strike("describing", "model")
    return {"graph": read_graph(setup_from(request["setup"])).as_dict()}


def devices(request: dict[str, Any], channel: Channel, until: float) -> dict[str, Any]:
    """See :meth:`ort_metainfer.trials.task.TrialHost.devices`."""
    from ort_metainfer.errors import ProviderError
    from ort_metainfer.providers import get_provider

    found: list[dict[str, Any]] = []
    refused: list[tuple[str, str]] = []
    for name in request["providers"]:
        channel.say("discovering", session=name)
        faults.strike("discovering", name)
        try:
            found += [asdict(device) for device in get_provider(name).devices()]
        except ProviderError as error:
            refused.append((name, str(error)))
    return {"devices": found, "refused": refused}


def prepare(request: dict[str, Any], channel: Channel, until: float) -> dict[str, Any]:
    """See :meth:`ort_metainfer.trials.task.TrialHost.prepare`."""
    from ort_metainfer.trials import rehearsal

    return {"feeds": asdict(rehearsal.prepare(setup_from(request["setup"]), channel, until))}


def race(request: dict[str, Any], channel: Channel, until: float) -> dict[str, Any]:
    """See :meth:`ort_metainfer.trials.task.TrialHost.race`."""
    from ort_metainfer.trials.contest import Race

    candidates = [(entry["index"], Strategy.from_dict(entry["strategy"])) for entry in request["candidates"]]
    bench = _bench(request, channel, until)
    return Race(bench, candidates, thresholds_from(request["thresholds"]), request["with_noise"]).hold()


def duel(request: dict[str, Any], channel: Channel, until: float) -> dict[str, Any]:
    """See :meth:`ort_metainfer.trials.task.TrialHost.duel`."""
    from ort_metainfer.trials.contest import hold_duel

    strategy = Strategy.from_dict(request["strategy"])
    return hold_duel(_bench(request, channel, until), strategy, thresholds_from(request["thresholds"]))


def _bench(request: dict[str, Any], channel: Channel, until: float) -> Any:
    from ort_metainfer.model.inputs import load_feeds
    from ort_metainfer.trials.bench import Bench

    setup = setup_from(request["setup"])
    return Bench(setup, load_feeds(setup.feeds), channel, until, seed=request["seed"])


Task = Callable[[dict[str, Any], Channel, float], dict[str, Any]]

TASKS: Mapping[str, Task] = {
    "describe": describe,
    "devices": devices,
    "prepare": prepare,
    "race": race,
    "duel": duel,
}

ERRANDS: Mapping[str, str] = {
    "probe": "ort_metainfer.hardware.probing",
    "fingerprint": "ort_metainfer.hardware.fingerprinting",
    "operators": "ort_metainfer.hardware.operators",
    "compile": "ort_metainfer.compiling",
    "earn": "ort_metainfer.rewrites.earning_errand",
    "peak": "ort_metainfer.trials.peak_errand",
    "nodes": "ort_metainfer.rewrites.precision_report",
    "workload": "ort_metainfer.trials.workload_errand",
    "profile_operators": "ort_metainfer.trials.operator_profiles",
}
"""Errand -> module whose ``serve(request, channel, until)`` carries it out, as the tasks above do theirs; it says what
it is about to do (``checking``, ``opening`` with a session's name), gives partial results as events of its own, and
ends by ``until``, a time.monotonic() value."""


def task_named(name: str) -> Task:
    """The function that carries out ``name``; modules of errands are imported only here."""
    if name in TASKS:
        return TASKS[name]
    serve: Task = importlib.import_module(ERRANDS[name]).serve
    return serve


def answer(request: dict[str, Any], channel: Channel) -> None:
    """Carry out one request and say how it ended."""
    from ort_metainfer.trials.bench import Refused, complaint

    until = time.monotonic() + float(request["seconds"]) - MARGIN_S
    try:
        channel.say("done", **task_named(request["do"])(request, channel, until))
    except (MetainferError, Refused) as error:
        channel.say("failed", error=type(error).__name__, message=str(error))
    except Exception as error:  # noqa: BLE001 (the boundary of the process: the parent gets every error)
        channel.say("failed", error=type(error).__name__, message=f"{type(error).__name__}: {complaint(error)}")


def main() -> None:
    """Serve until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    die_with_parent()
    channel = Channel()
    requests = read_requests()
    import numpy  # noqa: F401 (imported now, not on a request's time)
    import onnxruntime  # noqa: F401

    channel.say("ready")
    while True:
        answer(requests.get(), channel)


if __name__ == "__main__":
    main()
