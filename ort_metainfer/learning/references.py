"""A device described by measurement: what a few reference models take there under each configuration.

One measured reference network says more of a device than its clock, cores and vendor together; and it says it for each
candidate apart: how this configuration did on the references here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ort_metainfer.learning.tasks import Floats, Tasks, case_mean, case_min

__all__ = ["aligned", "choose_references", "effects"]

RIDGE = 0.3
"""Pull towards no difference of a configuration seen on few references; in units of one measurement's weight."""

WIDELY = 0.9
"""Reference models are chosen among those measured nearly as widely as any: a device without them stays unknown."""

FEATURES_OF_SINGLE = 3
"""So many references are told apart; what more of them say is averaged."""


def choose_references(tasks: Tasks, rows: NDArray[np.bool_], count: int) -> list[str]:
    """Models that represent the others best, of different families where there are enough.

    Widely measured ones are taken one by one, each the one that brings every model nearest to some reference in its
    profile over devices and configurations (facility location).

    Args:
        tasks: the table.
        rows: which rows may be looked at: those of known devices and models.
        count: how many.
    """
    models, profiles = _profiles(tasks, rows)
    known = ~np.isnan(profiles)
    order = _widely_measured(models, known.sum(axis=1), count)
    families = dict(zip(tasks.model[rows], tasks.family[rows], strict=True))
    distances = np.array([_distances(profiles, known, each) for each in order])
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


def _distances(profiles: Floats, known: NDArray[np.bool_], one: int) -> Floats:
    """Mean absolute difference of each profile to one of them; the largest seen where nothing is in common."""
    common = known & known[one]
    difference = np.where(common, np.abs(profiles - profiles[one]), 0.0).sum(axis=1)
    count = common.sum(axis=1)
    found = difference / np.maximum(count, 1)
    return np.where(count > 0, found, found.max(initial=1.0))


def effects(log_ms: Floats, model: Sequence[str], configuration: Sequence[str]) -> tuple[dict[str, float], float]:
    """How each configuration does on one device: log latency = of the model + of the configuration, least squares.

    Returns:
        Configuration -> its part, in natural log units; and the mean part of a model.
    """
    models, of_model = np.unique(model, return_inverse=True)
    configurations, of_configuration = np.unique(configuration, return_inverse=True)
    rows, cut = np.arange(len(log_ms)), len(configurations)
    design = np.zeros((len(log_ms), cut + len(models)))
    design[rows, of_configuration] = design[rows, cut + of_model] = 1.0
    pull = np.diag([RIDGE] * cut + [1e-9] * len(models))
    parts = np.linalg.solve(design.T @ design + pull, design.T @ log_ms)
    return dict(zip(configurations.tolist(), parts[:cut].tolist(), strict=True)), float(parts[cut:].mean())


def aligned(tasks: Tasks, references: Sequence[str]) -> dict[str, Floats]:
    """Columns that describe each row's device by its own measurements of the references.

    ``reference`` is how this configuration did on them here, against the case's mean, ``reference_over_best`` against
    its best candidate; ``reference_0`` and following on each of the first alone; ``reference_log_ms`` how long a
    reference takes here. NaN where it was not measured.
    """
    if not references:
        return {}
    raw, absolute = np.full(len(tasks), np.nan), np.full(len(tasks), np.nan)
    single = np.full((min(len(references), FEATURES_OF_SINGLE), len(tasks)), np.nan)
    log_ms, is_reference = tasks.log_ms, np.isin(tasks.model, list(references))
    for device in np.unique(tasks.device):
        here = tasks.device == device
        measured = here & is_reference
        if not measured.any():
            continue
        parts, absolute[here] = effects(log_ms[measured], tasks.model[measured], tasks.configuration[measured])
        raw[here] = [parts.get(each, np.nan) for each in tasks.configuration[here]]
        for number in range(len(single)):
            one = measured & (tasks.model == references[number])
            found = dict(zip(tasks.configuration[one], log_ms[one], strict=True))
            single[number, here] = [found.get(each, np.nan) for each in tasks.configuration[here]]
    columns = {"reference": raw - case_mean(tasks.case, raw), "reference_over_best": raw - case_min(tasks.case, raw)}
    columns |= {f"reference_{number}": each - case_mean(tasks.case, each) for number, each in enumerate(single)}
    return {**columns, "reference_log_ms": absolute}
