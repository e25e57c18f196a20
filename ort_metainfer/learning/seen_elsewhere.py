"""What was measured for the same model on other devices, as columns beside a device's own description."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ort_metainfer.learning.tasks import Floats, Rows, Tasks, case_mean, case_min

__all__ = ["seen_elsewhere"]

PROBES = ("cpu_share", "gpu_share", "log_layers")
"""Columns that compiling a candidate on a device tells."""

ROUNDS = 4
"""Alternating least squares over devices and configurations settles within these."""

WIDTH = 0.05
"""How far apart two devices' reference ratios are (mean, natural log units) where one says little of the other. Found
on AI Hub's table among 0.03 to 0.3: 0.05 and 0.08 do best with three and with ten references."""


def seen_elsewhere(tasks: Tasks, learn: NDArray[np.bool_], references: Sequence[str]) -> dict[str, Floats]:
    """Columns that say how each candidate did for this very model on the devices that may be learned from.

    A row's own hardware is never looked at, neither for rows to learn from: a column means the same everywhere.
    ``elsewhere`` is the candidate against the case's mean, weighted towards devices whose references did alike;
    ``elsewhere_over_best`` against the best; ``elsewhere_even`` with even weights, ``elsewhere_nearest`` on the most
    similar device alone; ``elsewhere_devices`` how many devices it rests on. ``elsewhere_apart_x`` is how far this
    candidate's probe ``x`` lies from the same candidate's there: compiled otherwise, it runs otherwise.

    Args:
        tasks: the table.
        learn: rows that may be looked at.
        references: models that describe a device by what they take there; none: devices are told by class alone.
    """
    devices, device = np.unique(tasks.device, return_inverse=True)
    configurations, configuration = np.unique(tasks.configuration, return_inverse=True)
    hardware = np.array([tasks.hardware[device == number][0] for number in range(len(devices))])
    weight = _similarity(tasks, device, len(devices), references)
    weight *= hardware[:, None] != hardware[None, :]
    found = np.full((4, len(tasks)), np.nan)
    probes = {name: tasks.column(name) for name in PROBES if name in tasks.names}
    apart = {name: np.full(len(tasks), np.nan) for name in probes}
    for model in np.unique(tasks.model):
        rows = np.flatnonzero(tasks.model == model)
        usable = rows[learn[rows]]
        grid = np.full((len(devices), len(configurations)), np.nan)
        grid[device[usable], configuration[usable]] = tasks.log_ms[usable]
        for here in np.unique(device[rows]):
            these = rows[device[rows] == here]
            found[:, these] = _candidates(grid[:, configuration[these]], weight[here])
            for name, column in probes.items():
                there = _mean_there(column, usable, configuration, weight[here][device[usable]], configuration[these])
                apart[name][these] = column[these] - there
    even, near, nearest, count = found
    near = near - case_mean(tasks.case, near)
    return {
        "elsewhere": near,
        "elsewhere_over_best": near - case_min(tasks.case, near),
        "elsewhere_even": even - case_mean(tasks.case, even),
        "elsewhere_nearest": nearest - case_mean(tasks.case, nearest),
        "elsewhere_devices": count,
        **{f"elsewhere_apart_{name}": column for name, column in apart.items()},
    }


def _mean_there(column: Floats, usable: Rows, configuration: Rows, weight: Floats, wanted: Rows) -> Floats:
    """Weighted mean of a column over the usable rows of each wanted configuration; NaN where there is none."""
    weight = np.where(np.isnan(column[usable]), 0.0, weight)
    size = int(configuration.max()) + 1
    total = np.bincount(configuration[usable], weight * np.nan_to_num(column[usable]), minlength=size)
    count = np.bincount(configuration[usable], weight, minlength=size)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (total / count)[wanted]


def _candidates(grid: Floats, weight: Floats) -> Floats:
    """For the candidates of one case, devices x candidates: even and weighted effects, the nearest's, how many."""
    is_other = weight > 0
    known = ~np.isnan(grid) & is_other[:, None]
    known &= (known.sum(axis=1) >= 2)[:, None]  # one candidate alone says nothing of a choice
    result = np.full((4, grid.shape[1]), np.nan)
    result[3] = known.sum(axis=0)
    if not known.any():
        return result
    result[0] = _effect(grid, known.astype(np.float64))
    result[1] = _effect(grid, known * weight[:, None])
    nearest = int(np.argmax(weight * known.any(axis=1) * (known.sum(axis=1) == known.sum(axis=1).max())))
    result[2] = np.where(known[nearest], grid[nearest], np.nan)
    return result


def _effect(grid: Floats, weight: Floats) -> Floats:
    """Each column's part in value = row + column, by weighted alternating least squares; NaN where nothing is known."""
    filled = np.nan_to_num(grid)
    column = np.zeros(grid.shape[1])
    of_row, of_column = weight.sum(axis=1), weight.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        for _ in range(ROUNDS):
            row = np.where(of_row > 0, (weight * (filled - column)).sum(axis=1) / of_row, 0.0)
            column = np.where(of_column > 0, (weight * (filled - row[:, None])).sum(axis=0) / of_column, 0.0)
    return np.where(of_column > 0, column, np.nan)


def _similarity(tasks: Tasks, device: Rows, devices: int, references: Sequence[str]) -> Floats:
    """Devices x devices: by class and, where they are described, by how each reference did there; within (0, 1]."""
    kind = np.array([tasks.kind[device == number][0] for number in range(devices)])
    alike = np.where(kind[:, None] == kind[None, :], 1.0, 0.5)
    measured = np.isin(tasks.model, list(references))
    if not measured.any():
        return alike
    words = np.char.add(np.char.add(tasks.model[measured], "\0"), tasks.configuration[measured])
    names, place = np.unique(words, return_inverse=True)
    profile = np.full((devices, len(names)), np.nan)
    profile[device[measured], place] = tasks.target[measured]
    difference = np.abs(profile[:, None, :] - profile[None, :, :])
    common = ~np.isnan(difference)
    apart = np.where(common, difference, 0.0).sum(axis=2) / np.maximum(common.sum(axis=2), 1)
    apart = np.where(common.any(axis=2), apart, WIDTH)
    return alike * np.maximum(np.exp(-apart / WIDTH), 1e-3)
