"""Where decisions hand over what they tried: the edge between deciding and learning, after the decision is made.

A record that cannot be made or kept costs a line at level debug, never a session. Simulated trials are not kept: what
was reckoned and what was measured do not lie in one file.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ort_metainfer.errors import MetainferError
from ort_metainfer.learning.features import graph_features, provider_of
from ort_metainfer.learning.record_store import RecordStore
from ort_metainfer.learning.records import record_of
from ort_metainfer.problem import Problem

if TYPE_CHECKING:
    from ort_metainfer.decision import Decision, Trial

__all__ = ["MISHAPS", "keep_trials", "with_profiles"]

log = logging.getLogger("ort_metainfer.learning")

MISHAPS = (MetainferError, OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""What a model or a machine that nobody foresaw may raise while it is put into figures."""


def keep_trials(
    directory: Path, problem: Problem | None, trials: Sequence[Trial], path: str, decision: Decision
) -> int:
    """Keep each trial of a decision as a record.

    Args:
        directory: the cache directory.
        problem: what was to be decided; None where it did not get that far.
        trials: what was tried; those for which there was no time say nothing and are left out.
        path: where they come from (see :class:`~ort_metainfer.learning.record.Record`).
        decision: how it ended: for the machine's name and the versions.

    Returns:
        How many were new.
    """
    from ort_metainfer.trials.ledger import NO_TIME

    made = [trial for trial in trials if not trial.simulated and (trial.gates or trial.failure != NO_TIME)]
    if problem is None or not made:
        return 0
    try:
        device = "" if decision.key is None else decision.key.device
        versions: Mapping[str, str] = {} if decision.manifest is None else decision.manifest.versions
        problem = with_profiles(problem, directory, made)
        graph = graph_features(problem.graph, problem.work, problem.shapes)
        more = {"device": device, "versions": versions, "graph": graph}
        records = [record_of(problem, trial, path, **more) for trial in made]  # type: ignore[arg-type]
    except MISHAPS as error:
        log.debug("the trials of %s are not recorded: %s", problem.model.label, error)
        return 0
    return RecordStore(directory).add(records)


def with_profiles(problem: Problem, directory: Path, trials: Sequence[Trial]) -> Problem:
    """The same with the profiles of the devices that were tried, where they are kept and it has none."""
    if problem.profiles:
        return problem
    from ort_metainfer.hardware.profiles import known_profile, versions_of
    from ort_metainfer.strategy_cache.store import open_cache

    cache = open_cache(directory)
    found = {}
    for name in {provider_of(trial.strategy, problem) for trial in trials}:
        device = problem.device(name)
        profile = None if device is None else known_profile(cache, device, versions_of(device))
        if profile is not None:
            found[name] = profile
    return replace(problem, profiles=found)
