"""Records of what strategies do here, under several conditions: gather.py FOLDER [options] MODEL INPUTS [...].

``INPUTS`` is a folder of .npz files. Each condition is a device to leave out, named in its records:

- ``whole``: the machine as it is;
- ``one-core``, ``two-cores``: pinned to so many cores by affinity;
- ``one-thread``: the caller's own session has one thread, by session option;
- ``quota-1``, ``quota-1.5``: a container's CPU quota of so many cores, where control groups can be made here.

For each condition, model and accuracy: every choice of the declared space alone, what the rules propose, then
combinations in the order of their promise, until the time is up; over every provider that runs here. Each trial is a
record in ``FOLDER/records.jsonl.gz``, as ``ort-metainfer learn import`` reads them; what is there already for a
condition and a model is not tried again. On a quiet machine.

Options: ``--seconds N`` for one model, condition and accuracy (600); ``--conditions a,b``;
``--accuracies strict,fast``; ``--providers A,B``; ``--probe N``: seconds for the profile of each device under each
condition (60; 0: none).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from oracle import MOST, Oracle

from ort_metainfer.adapt import policy_of
from ort_metainfer.decision import Proposal, Trial
from ort_metainfer.errors import MetainferError
from ort_metainfer.groundwork import Groundwork
from ort_metainfer.hardware.profile import Feature
from ort_metainfer.hardware.profiles import profile_device
from ort_metainfer.hardware.state import observe
from ort_metainfer.learning.record import Record
from ort_metainfer.learning.record_files import read_records, write_records
from ort_metainfer.learning.records import machine_text, record_of
from ort_metainfer.model.fingerprint import fingerprint
from ort_metainfer.model.inputs import save_feeds
from ort_metainfer.problem import Device, Problem, SessionSpec
from ort_metainfer.settings import Settings, resolve
from ort_metainfer.strategy import Strategy
from ort_metainfer.strategy_cache.manifest import current_manifest
from ort_metainfer.strategy_cache.store import open_cache
from ort_metainfer.trials.client import ChildTrialHost
from ort_metainfer.trials.ledger import NO_TIME
from ort_metainfer.trials.offered import devices_to_try
from ort_metainfer.trials.task import Setup, Thresholds

FILE = "records.jsonl.gz"
STEP_S = 60.0
GROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu"))
"""Where version 2, or version 1's controller of CPU time, is mounted."""

PERIOD_US = 100_000


@dataclass(frozen=True)
class Condition:
    """How much of the machine a child may use."""

    cores: int | None = None
    quota: float | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)


CONDITIONS: Mapping[str, Condition] = {
    "whole": Condition(),
    "two-cores": Condition(cores=2),
    "one-core": Condition(cores=1),
    "one-thread": Condition(properties={"intra_op_num_threads": 1}),
    "quota-1.5": Condition(quota=1.5),
    "quota-1": Condition(quota=1.0),
}


def until(seconds: float) -> float:
    return time.monotonic() + seconds


class Gathering(Oracle):
    """Tries what there is time for, the most telling first."""

    def __init__(self, end: float, *known: Any) -> None:
        super().__init__(*known)
        self.end = end

    def run(self) -> list[Trial]:
        wanted = [one for one in self.rules.propose(self.problem, ()) if isinstance(one, Proposal)]
        self.race([(one.by, one.strategy) for one in wanted])
        self.race([(d.name, c.part) for d in self.dimensions for c in d.choices])
        self.race([("combination", s) for s in islice(sorted(self.combined(), key=self.promise), MOST)])
        return list(self.trials.values())

    def race(self, named: Any) -> None:
        """A few at a time, so that the time is kept."""
        pending = [pair for pair in named if pair[1] not in self.trials]
        while pending and time.monotonic() < self.end:
            now, pending = pending[:6], pending[6:]
            super().race(now)


def problem_here(
    host: ChildTrialHost, setup: Setup, settings: Settings, directory: Path, probe_s: float, end: float
) -> Problem:
    """The problem with everything a record tells: the model's work, the devices and their profiles."""
    cache, policy = open_cache(directory), policy_of(settings, setup.baseline)
    devices, refusals = devices_to_try(host, setup, policy.providers, lambda: until(STEP_S))
    for refusal in refusals:
        print(f"  {refusal.subject}: {refusal.reason}", flush=True)
    for device in {one.provider: one for one in reversed(devices)}.values():
        probe(device, cache, probe_s)
    ground = Groundwork(cache, host, lambda share: until(STEP_S), lambda: end - time.monotonic())
    profiles = ground.profiles(devices)
    threads = setup.baseline.properties.get("intra_op_num_threads")
    if threads is not None:  # more cores than that are not there for the caller
        own = Feature("cores", float(threads), "1", "static")
        devices = tuple(replace(one, cores=float(threads)) if one.kind == "cpu" else one for one in devices)
        profiles = {name: profile.with_features(own) for name, profile in profiles.items()}
    assert setup.graph is not None
    model = fingerprint(os.fspath(setup.model_file), None)
    return Problem(
        model,
        setup.graph,
        devices,
        policy,
        setup.baseline,
        observe(1.0),
        dict(setup.shapes),
        True,
        profiles=profiles,
        work=ground.work(model.hash, setup, setup.shapes),
    )


def probe(device: Device, cache: Any, seconds: float) -> None:
    if seconds <= 0 or device.emulated:
        return
    try:
        profile = profile_device(device, cache, seconds)
        print(f"  profile of {device.provider}: {len(profile.features)} features", flush=True)
    except MetainferError as error:
        print(f"  no profile of {device.provider}: {error}", flush=True)


def gather(name: str, model: Path, inputs: Path, accuracy: str, options: argparse.Namespace) -> list[Record]:
    """Records of one model under the condition this process is in."""
    feeds = [dict(np.load(file)) for file in sorted(inputs.glob("*.npz"))]
    shapes = {key: tuple(map(int, value.shape)) for key, value in feeds[0].items()}
    same = all({key: value.shape for key, value in feed.items()} == shapes for feed in feeds)
    given = tuple(options.providers.split(",")) if options.providers else None
    settings, _ = resolve(Settings(accuracy=accuracy, input_shapes=shapes if same else None, providers=given))
    spec = SessionSpec(dict(CONDITIONS[name].properties))
    with tempfile.TemporaryDirectory() as folder, ChildTrialHost() as host:
        save_feeds(feeds, Path(folder))
        setup = Setup(model, spec, Path(folder), shapes=shapes if same else {}, inputs_are_real=True)
        setup = replace(setup, label=model.parent.name, graph=host.describe(setup, until(STEP_S)))
        host.prepare(setup, until(STEP_S))
        kept = Path(options.folder) / "profiles" / name
        problem = problem_here(host, setup, settings, kept, options.probe, until(options.seconds))
        trials = Gathering(until(options.seconds), host, setup, problem, Thresholds.of(accuracy)).run()
    device = machine_text(problem) if name == "whole" else f"{machine_text(problem)} [{name}]"
    made = [trial for trial in trials if trial.failure != NO_TIME]
    return [record_of(problem, trial, "bench", device=device, versions=versions(trial.strategy)) for trial in made]


def versions(strategy: Strategy) -> Mapping[str, str]:
    from ort_metainfer.providers import get_provider

    own = {} if strategy.provider is None else get_provider(strategy.provider).versions()
    return current_manifest(strategy.provider, own, {}).versions


def keep(file: Path, records: list[Record]) -> int:
    """Add records to the file; each once."""
    known = read_records(file).records if file.exists() else []
    together = {record.identity: record for record in [*known, *records]}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_records(file, together.values())
    return len(together)


@contextmanager
def limited(condition: Condition) -> Iterator[Path | None]:
    """A control group with the condition's quota, to put a child into; removed afterwards.

    Raises:
        OSError: none can be made here.
    """
    if condition.quota is None:
        yield None
        return
    top = next(folder for folder in GROUPS if (folder / "cgroup.procs").exists() or (folder / "tasks").exists())
    group = top / f"gather-{os.getpid()}"
    group.mkdir()
    try:
        quota_us = int(condition.quota * PERIOD_US)
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        yield group
    finally:
        group.rmdir()


def run_under(name: str, words: list[str]) -> int:
    """This script once more, in a child under the condition; its exit status."""
    condition = CONDITIONS[name]
    cores = sorted(os.sched_getaffinity(0))
    if condition.cores is not None and condition.cores > len(cores):
        print(f"{name}: there are {len(cores)} cores here; left out", flush=True)
        return 0
    try:
        with limited(condition) as group:

            def enter() -> None:
                if condition.cores is not None:
                    os.sched_setaffinity(0, cores[: condition.cores])
                if group is not None:
                    (group / "cgroup.procs").write_text(str(os.getpid()))

            return subprocess.run([sys.executable, __file__, "--under", name, *words], preexec_fn=enter).returncode
    except (OSError, StopIteration) as error:
        print(f"{name}: no such condition can be made here ({error}); left out", flush=True)
        return 0


def main(words: list[str]) -> None:
    """Each condition in turn, in a child; or, in that child, each model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--under")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--probe", type=float, default=60.0)
    parser.add_argument("--conditions", default=",".join(CONDITIONS))
    parser.add_argument("--accuracies", default="strict,fast")
    parser.add_argument("--providers", default="")
    parser.add_argument("folder")
    parser.add_argument("pairs", nargs="+")
    options = parser.parse_args(words)
    if options.under is None:
        failed = [name for name in options.conditions.split(",") if run_under(name, words)]
        sys.exit(f"under {', '.join(failed)} something failed; see above" if failed else 0)
    file, ledger, failed = Path(options.folder) / FILE, Path(options.folder) / "done.json", False
    for model, inputs in zip(options.pairs[::2], options.pairs[1::2], strict=True):
        for accuracy in options.accuracies.split(","):
            done = json.loads(ledger.read_text()) if ledger.exists() else []
            what = f"{options.under} {Path(model).parent.name} {accuracy}"
            if what in done:
                continue
            try:
                records = gather(options.under, Path(model), Path(inputs), accuracy, options)
            except MetainferError as error:
                print(f"{what}: {type(error).__name__}: {error}", flush=True)
                failed = True
                continue
            total = keep(file, records)
            ledger.write_text(json.dumps([*done, what], indent=1))
            print(f"{what}: {len(records)} trials, {total} records in all", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main(sys.argv[1:])
