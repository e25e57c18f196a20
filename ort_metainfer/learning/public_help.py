"""HELP's latencies of networks on GPUs, processors, phones, an FPGA and an ASIC: no choice, but classes to hold out."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ort_metainfer.errors import InputsError
from ort_metainfer.learning.support import Question, learn_support, refusal
from ort_metainfer.learning.tasks import Floats

__all__ = ["Gated", "gate_by_class", "kind_of", "load_help"]

SOURCE = "HayeonLee/HELP, data/*/latency, MIT"

KINDS = (("fpga", "fpga"), ("eyeriss", "asic"), ("raspi", "board"), ("gold|silver", "cpu"), ("titan|080ti", "gpu"))
"""Anything else in the archives is a phone."""

REFERENCES = 10
"""Networks whose latencies describe a device, as HELP itself takes them."""


@dataclass(frozen=True)
class Gated:
    """What the gate said of one device that was held out.

    Attributes:
        device: which; ``kind`` is its class.
        held_out: ``class`` where no device of its class was trained on, ``hardware`` where only itself was left out.
        refused: whether the model is not asked; ``reason`` says why, None where it is asked.
        reason_but_class: what the gate would say if its class were known: ranges and distance alone.
    """

    device: str
    kind: str
    held_out: str
    refused: bool
    reason: str | None
    reason_but_class: str | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def kind_of(device: str) -> str:
    """Device class, of a device's name in the archives."""
    return next((kind for stem, kind in KINDS if re.search(stem, device)), "phone")


def load_help(path: Path) -> tuple[list[str], Floats]:
    """Devices and devices x networks of log latency.

    Raises:
        InputsError: there is no readable archive.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            devices = sorted(archive.files)
            return devices, np.log(np.array([archive[device] for device in devices], dtype=np.float64))
    except (OSError, ValueError, KeyError) as error:
        raise InputsError(f"{path}: not a readable archive of latencies ({error})") from error


def gate_by_class(path: Path, classes: tuple[str, ...] = ("fpga", "asic"), seed: int = 0) -> list[Gated]:
    """What the gate says of devices whose class, or which themselves, were held out.

    A device is described by what it takes for some reference networks against their mean, as a profile is.

    Args:
        path: one of the archives.
        classes: held out as a whole; of the others every piece of hardware alone.
        seed: which networks are the references.
    """
    devices, log_ms = load_help(path)
    networks = np.random.default_rng(seed).choice(log_ms.shape[1], REFERENCES, replace=False)
    described = log_ms[:, networks] - log_ms[:, networks].mean(axis=1, keepdims=True)
    names = [f"reference/{number}" for number in range(REFERENCES)]
    kinds = np.array([kind_of(device) for device in devices])
    hardware = np.array([re.sub(r"_\d+$", "", device) for device in devices])  # a batch size is no other hardware
    found = []
    for number, device in enumerate(devices):
        by_class = kinds[number] in classes
        known = (kinds != kinds[number]) if by_class else (hardware != hardware[number])
        known &= ~np.isin(kinds, classes)
        support = learn_support(names, described[known], hardware[known], kinds[known], seed=seed)
        features = dict(zip(names, described[number].tolist(), strict=True))
        reason = refusal(support, Question(str(kinds[number]), features))
        other = refusal(support, Question(next(iter(support.kinds)), features))
        found.append(
            Gated(device, str(kinds[number]), "class" if by_class else "hardware", reason is not None, reason, other)
        )
    return found
