"""A device described by measurement: what a few reference models take there under each configuration.

One measured reference network says more of a device than its clock, cores and vendor together; and it says it for each
candidate apart: how this configuration did on the references here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ort_metainfer.learning.tasks import Floats, Rows, Tasks, Words, case_mean, case_min

__all__ = ["aligned", "choose_references", "effects"]

RIDGE = 0.3
"""Pull towards no difference of a configuration seen on few references; in units of one measurement's weight."""

RIDGE_SLOPE = 3.0
"""The same for how a configuration's rank depends on size: few references say little of a slope."""

SIZE = "log_size"
"""The feature that holds the natural log of a model's work."""

SIZE_APART = 0.3
"""What a factor of e in size counts as, in units of log latency, where references are chosen: a slope over size can
only be read where references differ in it. A choice, made on ncnn's table among 0 to 0.3."""

UNKNOWN = (float("nan"), float("nan"))

WIDELY = 0.9
"""Reference models are chosen among those measured nearly as widely as any: a device without them stays unknown."""

FEATURES_OF_SINGLE = 3
"""So many references are told apart; what more of them say is averaged."""


def choose_references(tasks: Tasks, rows: NDArray[np.bool_], count: int) -> list[str]:
    """Models that represent the others best, of different families where there are enough.

    Widely measured ones are taken one by one, each the one that brings every model nearest to some reference in its
    profile over devices and configurations, and in size (facility location).

    Args:
        tasks: the table.
        rows: which rows may be looked at: those of known devices and models.
        count: how many.
    """
    models, profiles = _profiles(tasks, rows)
    known = ~np.isnan(profiles)
    order = _widely_measured(models, known.sum(axis=1), count)
    families = dict(zip(tasks.model[rows], tasks.family[rows], strict=True))
    size = _sizes(tasks, rows, models)
    distances = np.array([_distances(profiles, known, each) + SIZE_APART * np.abs(size - size[each]) for each in order])
    chosen: list[int] = []
    nearest = np.full(len(models), distances.max(initial=1.0))
    while len(chosen) < min(count, len(order)):
        taken = {families[models[order[each]]] for each in chosen}
        left = [each for each in range(len(order)) if each not in chosen]
        fresh = [each for each in left if families[models[order[each]]] not in taken] or left
        best = min(fresh, key=lambda each: float(np.minimum(nearest, distances[each]).sum()))
        chosen.append(best)
        nearest = np.minimum(nearest, distances[best])
    return [str(models[order[each]]) for each in chosen]


def _widely_measured(models: NDArray[np.str_], times: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """Models by how often they were measured, at least ``count`` of them."""
    order = np.lexsort((models, -times))
    return order[: max(count, int((times >= WIDELY * times.max(initial=0)).sum()))]


def _profiles(tasks: Tasks, rows: NDArray[np.bool_]) -> tuple[NDArray[np.str_], Floats]:
    """Model by (device, configuration): log latency against the case's mean; NaN where not measured."""
    models, model = np.unique(tasks.model[rows], return_inverse=True)
    places = np.char.add(np.char.add(tasks.device[rows], "\0"), tasks.configuration[rows])
    names, place = np.unique(places, return_inverse=True)
    profiles = np.full((len(models), len(names)), np.nan)
    profiles[model, place] = tasks.target[rows]
    return models, profiles


def _sizes(tasks: Tasks, rows: NDArray[np.bool_], models: NDArray[np.str_]) -> Floats:
    """Natural log of each model's work; the mean where it is not known."""
    known = dict(zip(tasks.model[rows].tolist(), tasks.column(SIZE)[rows].tolist(), strict=True))
    size = np.array([known[each] for each in models.tolist()])
    return np.where(np.isnan(size), np.nanmean(size), size) if not np.isnan(size).all() else np.zeros(len(models))


def _distances(profiles: Floats, known: NDArray[np.bool_], one: int) -> Floats:
    """Mean absolute difference of each profile to one of them; the largest seen where nothing is in common."""
    common = known & known[one]
    difference = np.where(common, np.abs(profiles - profiles[one]), 0.0).sum(axis=1)
    count = common.sum(axis=1)
    found = difference / np.maximum(count, 1)
    return np.asarray(np.where(count > 0, found, found.max(initial=1.0)), dtype=np.float64)


def effects(
    log_ms: Floats, model: Sequence[str] | Words, configuration: Sequence[str] | Words, size: Floats | None = None
) -> tuple[dict[str, tuple[float, float]], float, float]:
    """How each configuration does on one device, by ridge regression on its reference measurements.

    log latency = of the model + of the configuration + (slope of the configuration) x (size - mean size): what costs
    the same for every model weighs more with small ones, so that a configuration's rank depends on size.

    Args:
        log_ms: natural log of each measured latency.
        model: of each; ``configuration`` likewise.
        size: natural log of each model's work; None where it is not known.

    Returns:
        Configuration -> its part and its slope; the mean part of a model; the mean size.
    """
    models, of_model = np.unique(model, return_inverse=True)
    configurations, of_configuration = np.unique(configuration, return_inverse=True)
    known = np.zeros(len(log_ms)) if size is None else np.asarray(size, dtype=np.float64)
    middle = float(np.nanmean(known)) if not np.isnan(known).all() else 0.0
    rows, cut = np.arange(len(log_ms)), len(configurations)
    design = np.zeros((len(log_ms), 2 * cut + len(models)))
    design[rows, of_configuration] = design[rows, 2 * cut + of_model] = 1.0
    design[rows, cut + of_configuration] = np.nan_to_num(known - middle)
    pull = np.diag([RIDGE] * cut + [RIDGE_SLOPE] * cut + [1e-9] * len(models))
    parts = np.linalg.solve(design.T @ design + pull, design.T @ log_ms)
    pairs = zip(parts[:cut].tolist(), parts[cut : 2 * cut].tolist(), strict=True)
    return dict(zip(configurations.tolist(), pairs, strict=True)), float(parts[2 * cut :].mean()), middle


def aligned(tasks: Tasks, references: Sequence[str]) -> dict[str, Floats]:
    """Columns that describe each row's device by its own measurements of the references.

    ``reference`` is how this configuration did on them here, against the case's mean, ``reference_over_best`` against
    its best candidate; ``reference_at_size`` and ``reference_at_size_over_best`` the same for a model of this size,
    where the table tells models' work;
    ``reference_0`` and following on each of the first alone; ``reference_log_ms`` how long a reference takes here. NaN
    where it was not measured.
    """
    if not references:
        return {}
    raw, at_size, absolute = (np.full(len(tasks), np.nan) for _ in range(3))
    single = np.full((min(len(references), FEATURES_OF_SINGLE), len(tasks)), np.nan)
    log_ms, size, is_reference = tasks.log_ms, tasks.column(SIZE), np.isin(tasks.model, list(references))
    for device in np.unique(tasks.device):
        here = np.flatnonzero(tasks.device == device)
        measured = here[is_reference[here]]
        if not len(measured):
            continue
        parts, absolute[here], middle = effects(
            log_ms[measured], tasks.model[measured], tasks.configuration[measured], size[measured]
        )
        found = np.array([parts.get(each, UNKNOWN) for each in tasks.configuration[here].tolist()])
        raw[here] = found[:, 0]
        at_size[here] = found[:, 0] + found[:, 1] * np.nan_to_num(size[here] - middle)
        for number, alone in enumerate(single):
            alone[here] = _alone(tasks, here, measured[tasks.model[measured] == references[number]], log_ms)
    described = {"reference": raw} | ({} if np.isnan(size).all() else {"reference_at_size": at_size})
    columns = {name: each - case_mean(tasks.case, each) for name, each in described.items()}
    columns |= {f"{name}_over_best": each - case_min(tasks.case, each) for name, each in described.items()}
    columns |= {f"reference_{number}": each - case_mean(tasks.case, each) for number, each in enumerate(single)}
    return {**columns, "reference_log_ms": absolute}


def _alone(tasks: Tasks, here: Rows, one: Rows, log_ms: Floats) -> Floats:
    """Log latency of one reference under the configuration of each row; NaN where it was not measured so."""
    found = dict(zip(tasks.configuration[one].tolist(), log_ms[one].tolist(), strict=True))
    return np.array([found.get(each, np.nan) for each in tasks.configuration[here].tolist()])
